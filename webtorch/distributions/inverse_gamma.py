"""Reciprocals of gamma numbers. May import floors 0 to 4."""

from __future__ import annotations

import math

from webtorch.distributions import constraints
from webtorch.distributions.gamma import Gamma
from webtorch.distributions.transformed_distribution import TransformedDistribution
from webtorch.distributions.transforms import PowerTransform
from webtorch.distributions.utils import Value, part
from webtorch.functions import public as webtorch
from webtorch.tensors.tensor import Tensor

__all__ = ["InverseGamma"]


class InverseGamma(TransformedDistribution):
    """1 / x of a gamma number x."""

    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.positive
    has_rsample = True
    _batched = ()
    concentration = part("base_dist.concentration", "The concentration of the gamma number.")
    rate = part("base_dist.rate", "The rate of the gamma number.")

    def __init__(
        self, concentration: Value, rate: Value, validate_args: bool | None = None
    ) -> None:
        base = Gamma(concentration, rate, validate_args=validate_args)
        power = PowerTransform(-base.rate.new_ones(()))
        super().__init__(base, power, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """`rate / (concentration - 1)`; infinite for concentration <= 1."""
        a = self.concentration
        return webtorch.where(a > 1, self.rate / (a - 1), math.inf)

    @property
    def mode(self) -> Tensor:
        """`rate / (concentration + 1)`."""
        return self.rate / (self.concentration + 1)

    @property
    def variance(self) -> Tensor:
        """The variance; infinite for concentration <= 2."""
        a = self.concentration
        variance = self.rate.square() / ((a - 1).square() * (a - 2))
        return webtorch.where(a > 2, variance, math.inf)

    def entropy(self) -> Tensor:
        """Return the entropy in nats, by the digamma function."""
        a = self.concentration
        return a + self.rate.log() + a.lgamma() - (1 + a) * a.digamma()
