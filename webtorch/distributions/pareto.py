"""Numbers with a heavy tail. May import floors 0 to 4."""

from __future__ import annotations

from webtorch.distributions import constraints
from webtorch.distributions.exponential import Exponential
from webtorch.distributions.transformed_distribution import TransformedDistribution
from webtorch.distributions.transforms import AffineTransform, ExpTransform
from webtorch.distributions.utils import Value, broadcast_all, part
from webtorch.tensors.tensor import Tensor

__all__ = ["Pareto"]


class Pareto(TransformedDistribution):
    """Numbers above `scale`, of survival (scale / x) ** alpha."""

    arg_constraints = {"alpha": constraints.positive, "scale": constraints.positive}
    _batched = ("scale", "alpha")
    mode = part("scale", "The scale, the smallest value.")

    def __init__(self, scale: Value, alpha: Value, validate_args: bool | None = None) -> None:
        self.scale, self.alpha = broadcast_all(scale, alpha)
        base = Exponential(self.alpha, validate_args=validate_args)
        steps = [ExpTransform(), AffineTransform(loc=0, scale=self.scale)]
        super().__init__(base, steps, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """`alpha * scale / (alpha - 1)`; infinite for alpha <= 1."""
        a = self.alpha.clamp(min=1)
        return a * self.scale / (a - 1)

    @property
    def variance(self) -> Tensor:
        """The variance; infinite for alpha <= 2."""
        a = self.alpha.clamp(min=2)
        return self.scale.square() * a / ((a - 1).square() * (a - 2))

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> constraints.Constraint:
        """From scale on."""
        return constraints.greater_than_eq(self.scale)

    def entropy(self) -> Tensor:
        """Return the entropy in nats: log(scale / alpha) + 1 + 1 / alpha."""
        return (self.scale / self.alpha).log() + (1 + self.alpha.reciprocal())
