"""Numbers of an interval. May import floors 0 to 4."""

from __future__ import annotations

import math
from collections.abc import Sequence

from webtorch.distributions import constraints
from webtorch.distributions.distribution import Distribution
from webtorch.distributions.utils import Value, broadcast_all
from webtorch.functions import public as webtorch
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

__all__ = ["Uniform"]


class Uniform(Distribution):
    """Numbers in [low, high), all as likely."""

    has_rsample = True
    _batched = ("low", "high")

    def __init__(self, low: Value, high: Value, validate_args: bool | None = None) -> None:
        self.low, self.high = broadcast_all(low, high)
        super().__init__(self.low.shape, validate_args=validate_args)

    @property
    def arg_constraints(self) -> dict[str, constraints.Constraint]:
        """Each bound by the other."""
        return {
            "low": constraints.less_than(self.high),
            "high": constraints.greater_than(self.low),
        }

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> constraints.Constraint:
        """From low to high."""
        return constraints.interval(self.low, self.high)

    @property
    def mean(self) -> Tensor:
        """`(low + high) / 2`."""
        return (self.high + self.low) / 2

    @property
    def mode(self) -> Tensor:
        """NaN: all numbers are as likely."""
        return math.nan * self.high

    @property
    def stddev(self) -> Tensor:
        """`(high - low) / sqrt(12)`."""
        return (self.high - self.low) / math.sqrt(12)

    @property
    def variance(self) -> Tensor:
        """`(high - low) ** 2 / 12`."""
        return (self.high - self.low).square() / 12

    def rsample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return samples with gradients: low + u * (high - low), u in [0, 1)."""
        shape = self._extended_shape(sample_shape)
        u = webtorch.rand(shape, dtype=self.low.dtype, device=self.low.device)
        return self.low + u * (self.high - self.low)

    def _log_prob(self, value: Tensor) -> Tensor:
        inside = (self.low <= value) & (self.high > value)
        return inside.type_as(self.low).log() - (self.high - self.low).log()

    def _cdf(self, value: Tensor) -> Tensor:
        return ((value - self.low) / (self.high - self.low)).clamp(min=0, max=1)

    def icdf(self, value: Tensor) -> Tensor:
        """Return the value that has a cumulative probability: low + value * (high - low)."""
        return value * (self.high - self.low) + self.low

    def entropy(self) -> Tensor:
        """Return the entropy in nats: log(high - low)."""
        return (self.high - self.low).log()
