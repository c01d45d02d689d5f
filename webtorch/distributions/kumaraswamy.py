"""Numbers between 0 and 1 with a closed distribution function. May import floors 0 to 4."""

from __future__ import annotations

import math

from webtorch.distributions import constraints
from webtorch.distributions.transformed_distribution import TransformedDistribution
from webtorch.distributions.transforms import AffineTransform, PowerTransform
from webtorch.distributions.uniform import Uniform
from webtorch.distributions.utils import Value, broadcast_all, euler_constant
from webtorch.functions import public as webtorch
from webtorch.tensors.tensor import Tensor

__all__ = ["Kumaraswamy"]


class Kumaraswamy(TransformedDistribution):
    """Distribution function 1 - (1 - x ** concentration1) ** concentration0."""

    arg_constraints = {
        "concentration1": constraints.positive,
        "concentration0": constraints.positive,
    }
    support = constraints.unit_interval
    has_rsample = True
    _batched = ("concentration1", "concentration0")

    def __init__(
        self, concentration1: Value, concentration0: Value, validate_args: bool | None = None
    ) -> None:
        self.concentration1, self.concentration0 = broadcast_all(concentration1, concentration0)
        base = Uniform(
            webtorch.zeros_like(self.concentration0),
            webtorch.ones_like(self.concentration0),
            validate_args=validate_args,
        )
        steps = [
            PowerTransform(exponent=self.concentration0.reciprocal()),
            AffineTransform(loc=1.0, scale=-1.0),
            PowerTransform(exponent=self.concentration1.reciprocal()),
        ]
        super().__init__(base, steps, validate_args=validate_args)

    def _moment(self, n: int) -> Tensor:
        """Return the mean of x ** n: b * beta(1 + n / a, b)."""
        b, first = self.concentration0, 1 + n / self.concentration1
        return b * (first.lgamma() + b.lgamma() - (first + b).lgamma()).exp()

    @property
    def mean(self) -> Tensor:
        """`concentration0 * beta(1 + 1 / concentration1, concentration0)`."""
        return self._moment(1)

    @property
    def mode(self) -> Tensor:
        """The mode; NaN where a concentration is below 1."""
        a, b = self.concentration1, self.concentration0
        log_mode = b.reciprocal() * (-b).log1p() - (-b * a).log1p()
        return webtorch.where((b < 1) | (a < 1), math.nan, log_mode).exp()

    @property
    def variance(self) -> Tensor:
        """The mean of the squares minus the square of the mean."""
        return self._moment(2) - self.mean.square()

    def entropy(self) -> Tensor:
        """Return the entropy in nats, by the harmonic number of concentration0."""
        a, b = self.concentration1, self.concentration0
        harmonic = (b + 1).digamma() + euler_constant
        return (1 - b.reciprocal()) + (1 - a.reciprocal()) * harmonic - a.log() - b.log()
