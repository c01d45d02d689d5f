"""The normal distribution. May import floors 0 to 4."""

from __future__ import annotations

import math
from collections.abc import Sequence

from webtorch.distributions import constraints
from webtorch.distributions.exp_family import ExponentialFamily
from webtorch.distributions.utils import Value, _standard_normal, broadcast_all, part
from webtorch.functions import public as webtorch
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

__all__ = ["Normal"]


class Normal(ExponentialFamily):
    """Normal numbers of mean `loc` and standard deviation `scale`."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True
    _mean_carrier_measure = 0
    _batched = ("loc", "scale")
    mean = mode = part("loc", "The mean.")
    stddev = part("scale", "The standard deviation.")

    def __init__(self, loc: Value, scale: Value, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @property
    def variance(self) -> Tensor:
        """`scale ** 2`."""
        return self.stddev.square()

    def sample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return samples without gradient."""
        shape = self._extended_shape(sample_shape)
        with webtorch.no_grad():
            return webtorch.normal(self.loc.expand(shape), self.scale.expand(shape))

    def rsample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return samples with gradients: loc + scale * (standard normal numbers)."""
        shape = self._extended_shape(sample_shape)
        eps = _standard_normal(shape, dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + eps * self.scale

    def _log_prob(self, value: Tensor) -> Tensor:
        away = (value - self.loc).square() / (2 * self.scale.square())
        return -away - self.scale.log() - math.log(math.sqrt(2 * math.pi))

    def _cdf(self, value: Tensor) -> Tensor:
        z = (value - self.loc) * self.scale.reciprocal() / math.sqrt(2)
        return 0.5 * (1 + z.erf())

    def icdf(self, value: Tensor) -> Tensor:
        """Return the value that has a cumulative probability, by erfinv."""
        return self.loc + self.scale * (2 * value - 1).erfinv() * math.sqrt(2)

    def entropy(self) -> Tensor:
        """Return the entropy in nats: (1 + log(2 * pi)) / 2 + log(scale)."""
        return 0.5 + 0.5 * math.log(2 * math.pi) + self.scale.log()

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        square = self.scale.square()
        return (self.loc / square, -0.5 * square.reciprocal())

    def _log_normalizer(self, x: Tensor, y: Tensor) -> Tensor:
        return -0.25 * x.square() / y + 0.5 * (-math.pi / y).log()
