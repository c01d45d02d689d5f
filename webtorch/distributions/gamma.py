"""The gamma distribution. May import floors 0 to 4."""

from __future__ import annotations

from collections.abc import Sequence

from webtorch.distributions import constraints
from webtorch.distributions.exp_family import ExponentialFamily
from webtorch.distributions.utils import Value, broadcast_all
from webtorch.functions import public as webtorch
from webtorch.functions.sampling import _standard_gamma
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

__all__ = ["Gamma"]


class Gamma(ExponentialFamily):
    """Density in proportion to x ** (concentration - 1) * exp(-rate * x)."""

    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True
    _mean_carrier_measure = 0
    _batched = ("concentration", "rate")

    def __init__(
        self, concentration: Value, rate: Value, validate_args: bool | None = None
    ) -> None:
        self.concentration, self.rate = broadcast_all(concentration, rate)
        super().__init__(self.concentration.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """`concentration / rate`."""
        return self.concentration / self.rate

    @property
    def mode(self) -> Tensor:
        """`(concentration - 1) / rate`, at least 0."""
        return ((self.concentration - 1) / self.rate).clamp(min=0)

    @property
    def variance(self) -> Tensor:
        """`concentration / rate ** 2`."""
        return self.concentration / self.rate.square()

    def rsample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return samples with gradients by both parameters, at least the dtype's smallest normal number."""
        shape = self._extended_shape(sample_shape)
        value = _standard_gamma(self.concentration.expand(shape)) / self.rate.expand(shape)
        # Small concentrations give numbers that are 0 in this dtype; the gradient is that of the sample itself.
        tiny = webtorch.finfo(value.dtype).tiny
        return value + (value.detach().clamp(min=tiny) - value.detach())

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the logarithm of the density of a value, which may be a number."""
        return super().log_prob(
            webtorch.as_tensor(value, dtype=self.rate.dtype, device=self.rate.device)
        )

    def _log_prob(self, value: Tensor) -> Tensor:
        a, rate = self.concentration, self.rate
        return a.xlogy(rate) + (a - 1).xlogy(value) - rate * value - a.lgamma()

    def entropy(self) -> Tensor:
        """Return the entropy in nats, by the digamma function."""
        a = self.concentration
        return a - self.rate.log() + a.lgamma() + (1.0 - a) * a.digamma()

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (self.concentration - 1, -self.rate)

    def _log_normalizer(self, x: Tensor, y: Tensor) -> Tensor:
        return (x + 1).lgamma() + (x + 1) * (-y.reciprocal()).log()

    def _cdf(self, value: Tensor) -> Tensor:
        return webtorch.igamma(self.concentration, self.rate * value)
