"""Sizes of numbers that lie around 0. May import floors 0 to 4."""

from __future__ import annotations

import math

from webtorch.distributions import constraints
from webtorch.distributions.distribution import Distribution
from webtorch.distributions.transformed_distribution import TransformedDistribution
from webtorch.distributions.transforms import AbsTransform
from webtorch.functions import public as webtorch
from webtorch.tensors.tensor import Tensor


class Half(TransformedDistribution):
    """|x| of a number x whose distribution, `base`, is the same on both sides of 0."""

    arg_constraints = {"scale": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True
    scale: Tensor

    def __init__(self, base: Distribution, validate_args: bool | None = None) -> None:
        super().__init__(base, AbsTransform(), validate_args=validate_args)

    @property
    def mode(self) -> Tensor:
        """0."""
        return webtorch.zeros_like(self.scale)

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
