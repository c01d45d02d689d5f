"""The Cauchy distribution. May import floors 0 to 4."""

from __future__ import annotations

import math
from collections.abc import Sequence

from webtorch.distributions import constraints
from webtorch.distributions.distribution import Distribution
from webtorch.distributions.utils import Value, broadcast_all, part
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

__all__ = ["Cauchy"]


class Cauchy(Distribution):
    """The ratio of two normal numbers, times `scale`, plus `loc`: without mean and variance."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True
    _batched = ("loc", "scale")
    mode = part("loc", "The location.")

    def __init__(self, loc: Value, scale: Value, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """NaN: the integral does not converge."""
        return self._full(self.loc, math.nan)

    @property
    def variance(self) -> Tensor:
        """Infinity."""
        return self._full(self.loc, math.inf)

    def rsample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return samples with gradients: loc + scale * (standard Cauchy numbers)."""
        noise = self.loc.new_empty(self._extended_shape(sample_shape)).cauchy_()
        return self.loc + noise * self.scale

    def _log_prob(self, value: Tensor) -> Tensor:
        z = (value - self.loc) / self.scale
        return -math.log(math.pi) - self.scale.log() - z.square().log1p()

    def _cdf(self, value: Tensor) -> Tensor:
        return ((value - self.loc) / self.scale).atan() / math.pi + 0.5

    def icdf(self, value: Tensor) -> Tensor:
        """Return the value that has a cumulative probability: loc + scale * tan(pi * (value - 1/2))."""
        return (math.pi * (value - 0.5)).tan() * self.scale + self.loc

    def entropy(self) -> Tensor:
        """Return the entropy in nats: log(4 * pi * scale)."""
        return math.log(4 * math.pi) + self.scale.log()
