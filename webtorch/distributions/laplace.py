"""The Laplace distribution. May import floors 0 to 4."""

from __future__ import annotations

import math
from collections.abc import Sequence

from webtorch.distributions import constraints
from webtorch.distributions.distribution import Distribution
from webtorch.distributions.utils import Value, broadcast_all, part
from webtorch.functions import public as webtorch
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

__all__ = ["Laplace"]


class Laplace(Distribution):
    """Density in proportion to exp(-|x - loc| / scale)."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True
    _batched = ("loc", "scale")
    mean = mode = part("loc", "The location.")

    def __init__(self, loc: Value, scale: Value, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @property
    def variance(self) -> Tensor:
        """2 * scale ** 2."""
        return 2 * self.scale.square()

    @property
    def stddev(self) -> Tensor:
        """`sqrt(2) * scale`."""
        return math.sqrt(2) * self.scale

    def rsample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return samples with gradients, by the inverse of the distribution function."""
        shape = self._extended_shape(sample_shape)
        eps = webtorch.finfo(self.loc.dtype).eps
        u = self.loc.new_empty(shape).uniform_(eps - 1, 1)
        return self.loc - self.scale * u.sign() * (-u.abs()).log1p()

    def _log_prob(self, value: Tensor) -> Tensor:
        return -(2 * self.scale).log() - (value - self.loc).abs() / self.scale

    def _cdf(self, value: Tensor) -> Tensor:
        away = value - self.loc
        return 0.5 - 0.5 * away.sign() * (-away.abs() / self.scale).expm1()

    def icdf(self, value: Tensor) -> Tensor:
        """Return the value that has a cumulative probability."""
        term = value - 0.5
        return self.loc - self.scale * term.sign() * (-2 * term.abs()).log1p()

    def entropy(self) -> Tensor:
        """Return the entropy in nats: 1 + log(2 * scale)."""
        return 1 + (2 * self.scale).log()
