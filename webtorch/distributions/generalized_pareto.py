"""Excesses over a threshold. May import floors 0 to 4."""

from __future__ import annotations

import math
from collections.abc import Sequence

from webtorch.distributions import constraints
from webtorch.distributions.distribution import Distribution
from webtorch.distributions.utils import Value, broadcast_all, part
from webtorch.functions import public as webtorch
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

__all__ = ["GeneralizedPareto"]


class GeneralizedPareto(Distribution):
    """Survival (1 + concentration * z) ** (-1 / concentration), z = (x - loc) / scale; exp(-z) at concentration 0."""

    arg_constraints = {
        "loc": constraints.real,
        "scale": constraints.positive,
        "concentration": constraints.real,
    }
    has_rsample = True
    _batched = ("loc", "scale", "concentration")
    mode = part("loc", "The location, the smallest value.")

    def __init__(
        self, loc: Value, scale: Value, concentration: Value, validate_args: bool | None = None
    ) -> None:
        self.loc, self.scale, self.concentration = broadcast_all(loc, scale, concentration)
        super().__init__(self.loc.shape, validate_args=validate_args)

    def _parts(self) -> tuple[Tensor, Tensor]:
        """Return whether the concentration is 0, and one that can be divided by."""
        zero = webtorch.isclose(self.concentration, webtorch.zeros_like(self.concentration))
        return zero, webtorch.where(zero, 1.0, self.concentration)

    def rsample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return samples with gradients, by the inverse of the distribution function."""
        shape = self._extended_shape(sample_shape)
        return self.icdf(webtorch.rand(shape, dtype=self.loc.dtype, device=self.loc.device))

    def _log_prob(self, value: Tensor) -> Tensor:
        z = (value - self.loc) / self.scale
        zero, c = self._parts()
        power = 1 / c + webtorch.ones_like(z)
        falling = webtorch.where(power == 0, power, power * (c * z).log1p())
        return -self.scale.log() - webtorch.where(zero, z, falling)

    def log_survival_function(self, value: Tensor) -> Tensor:
        """Return the logarithm of the probability of being larger than a value."""
        if self._validate_args:
            self._validate_sample(value)
        z = (value - self.loc) / self.scale
        zero, c = self._parts()
        return webtorch.where(zero, -z, -(c * z).log1p() / c)

    def log_cdf(self, value: Tensor) -> Tensor:
        """Return the logarithm of the probability of being at most a value."""
        return (-self.log_survival_function(value).exp()).log1p()

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of being at most a value: exp(log_cdf(value))."""
        return self.log_cdf(value).exp()

    def icdf(self, value: Tensor) -> Tensor:
        """Return the value that has a cumulative probability."""
        zero, c = self._parts()
        logu = (-value).log1p()
        curved = self.loc + self.scale / c * (-c * logu).expm1()
        return webtorch.where(zero, self.loc - self.scale * logu, curved)

    @property
    def mean(self) -> Tensor:
        """`loc + scale / (1 - concentration)`; NaN for concentration >= 1."""
        valid = self.concentration < 1
        safe = webtorch.where(valid, self.concentration, 0.5)
        return webtorch.where(valid, self.loc + self.scale / (1 - safe), math.nan)

    @property
    def variance(self) -> Tensor:
        """The variance; NaN for concentration >= 1/2."""
        valid = self.concentration < 0.5
        safe = webtorch.where(valid, self.concentration, 0.25)
        variance = self.scale.square() / ((1 - safe).square() * (1 - 2 * safe))
        return webtorch.where(valid, variance, math.nan)

    def entropy(self) -> Tensor:
        """Return the entropy in nats: log(scale) + concentration + 1."""
        return (self.scale.log() + self.concentration + 1).expand(self._batch_shape)

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> constraints.Constraint:
        """From loc on; up to loc - scale / concentration where the concentration is negative."""
        bounded = self.loc - self.scale / self.concentration
        return constraints.interval(
            self.loc, webtorch.where(self.concentration < 0, bounded, math.inf)
        )
