"""Exponentials of normal numbers. May import floors 0 to 4."""

from __future__ import annotations

from webtorch.distributions import constraints
from webtorch.distributions.normal import Normal
from webtorch.distributions.transformed_distribution import TransformedDistribution
from webtorch.distributions.transforms import ExpTransform
from webtorch.distributions.utils import Value, part
from webtorch.tensors.tensor import Tensor

__all__ = ["LogNormal"]


class LogNormal(TransformedDistribution):
    """exp(x) of a normal number x of mean `loc` and standard deviation `scale`."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.positive
    has_rsample = True
    _batched = ()
    loc = part("base_dist.loc", "The mean of the logarithm.")
    scale = part("base_dist.scale", "The standard deviation of the logarithm.")

    def __init__(self, loc: Value, scale: Value, validate_args: bool | None = None) -> None:
        base = Normal(loc, scale, validate_args=validate_args)
        super().__init__(base, ExpTransform(), validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """`exp(loc + scale ** 2 / 2)`."""
        return (self.loc + self.scale.square() / 2).exp()

    @property
    def mode(self) -> Tensor:
        """`exp(loc - scale ** 2)`."""
        return (self.loc - self.scale.square()).exp()

    @property
    def variance(self) -> Tensor:
        """`(exp(scale ** 2) - 1) * exp(2 * loc + scale ** 2)`."""
        square = self.scale.square()
        return square.expm1() * (2 * self.loc + square).exp()

    def entropy(self) -> Tensor:
        """Return the entropy in nats: that of the normal number plus loc."""
        return self.base_dist.entropy() + self.loc
