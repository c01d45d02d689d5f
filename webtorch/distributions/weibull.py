"""Lifetimes. May import floors 0 to 4."""

from __future__ import annotations

from webtorch.distributions import constraints
from webtorch.distributions.exponential import Exponential
from webtorch.distributions.transformed_distribution import TransformedDistribution
from webtorch.distributions.transforms import AffineTransform, PowerTransform
from webtorch.distributions.utils import Value, broadcast_all, euler_constant
from webtorch.functions import public as webtorch
from webtorch.tensors.tensor import Tensor

__all__ = ["Weibull"]


class Weibull(TransformedDistribution):
    """Survival exp(-(x / scale) ** concentration)."""

    arg_constraints = {"scale": constraints.positive, "concentration": constraints.positive}
    support = constraints.positive
    _batched = ("scale", "concentration", "concentration_reciprocal")

    def __init__(
        self, scale: Value, concentration: Value, validate_args: bool | None = None
    ) -> None:
        self.scale, self.concentration = broadcast_all(scale, concentration)
        self.concentration_reciprocal = self.concentration.reciprocal()
        base = Exponential(webtorch.ones_like(self.scale), validate_args=validate_args)
        steps = [
            PowerTransform(exponent=self.concentration_reciprocal),
            AffineTransform(loc=0, scale=self.scale),
        ]
        super().__init__(base, steps, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """`scale * gamma(1 + 1 / concentration)`."""
        return self.scale * (1 + self.concentration_reciprocal).lgamma().exp()

    @property
    def mode(self) -> Tensor:
        """`scale * (1 - 1 / concentration) ** (1 / concentration)`; NaN for concentration < 1."""
        k = self.concentration
        return self.scale * ((k - 1) / k) ** k.reciprocal()

    @property
    def variance(self) -> Tensor:
        """`scale ** 2 * (gamma(1 + 2 / concentration) - gamma(1 + 1 / concentration) ** 2)`."""
        r = self.concentration_reciprocal
        spread = (1 + 2 * r).lgamma().exp() - (2 * (1 + r).lgamma()).exp()
        return self.scale.square() * spread

    def entropy(self) -> Tensor:
        """Return the entropy in nats: Euler's constant * (1 - 1 / concentration) + log(scale / concentration) + 1."""
        r = self.concentration_reciprocal
        return euler_constant * (1 - r) + (self.scale * r).log() + 1
