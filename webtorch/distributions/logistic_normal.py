"""Points of the simplex from normal numbers. May import floors 0 to 4."""

from __future__ import annotations

from webtorch.distributions import constraints
from webtorch.distributions.normal import Normal
from webtorch.distributions.transformed_distribution import TransformedDistribution
from webtorch.distributions.transforms import StickBreakingTransform
from webtorch.distributions.utils import Value, part

__all__ = ["LogisticNormal"]


class LogisticNormal(TransformedDistribution):
    """Normal numbers mapped to a simplex of one dim more by breaking a stick."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.simplex
    has_rsample = True
    _batched = ()
    loc = part("base_dist.base_dist.loc", "The means of the normal numbers.")
    scale = part("base_dist.base_dist.scale", "The standard deviations of the normal numbers.")

    def __init__(self, loc: Value, scale: Value, validate_args: bool | None = None) -> None:
        base = Normal(loc, scale, validate_args=validate_args)
        if not base.batch_shape:
            base = base.expand([1])
        super().__init__(base, StickBreakingTransform(), validate_args=validate_args)
