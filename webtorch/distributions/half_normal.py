"""Sizes of normal numbers. May import floors 0 to 4."""

from __future__ import annotations

import math

from webtorch.distributions import constraints
from webtorch.distributions.normal import Normal
from webtorch.distributions.transformed_distribution import TransformedDistribution
from webtorch.distributions.transforms import AbsTransform
from webtorch.distributions.utils import Value, part
from webtorch.functions import public as webtorch
from webtorch.tensors.tensor import Tensor

__all__ = ["HalfNormal"]


class HalfNormal(TransformedDistribution):
    """|x| of a normal number x around 0, of standard deviation `scale`."""

    arg_constraints = {"scale": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True
    _batched = ()
    scale = part("base_dist.scale", "The standard deviation of the normal number.")

    def __init__(self, scale: Value, validate_args: bool | None = None) -> None:
        base = Normal(0, scale, validate_args=False)
        super().__init__(base, AbsTransform(), validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """`scale * sqrt(2 / pi)`."""
        return self.scale * math.sqrt(2 / math.pi)

    @property
    def mode(self) -> Tensor:
        """0."""
        return webtorch.zeros_like(self.scale)

    @property
    def variance(self) -> Tensor:
        """`scale ** 2 * (1 - 2 / pi)`."""
        return self.scale.square() * (1 - 2 / math.pi)

    def _log_prob(self, value: Tensor) -> Tensor:
        inside = self.base_dist.log_prob(value) + math.log(2)
        return webtorch.where(value >= 0, inside, -math.inf)

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of being at most a value, which is checked."""
        if self._validate_args:
            self._validate_sample(value)
        return 2 * self.base_dist.cdf(value) - 1

    def icdf(self, prob: Tensor) -> Tensor:
        """Return the value that has a cumulative probability: the base's at (prob + 1) / 2."""
        return self.base_dist.icdf((prob + 1) / 2)

    def entropy(self) -> Tensor:
        """Return the entropy in nats: the base's minus log(2)."""
        return self.base_dist.entropy() - math.log(2)
