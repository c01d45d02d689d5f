"""Numbers between 0 and 1 with an exponential density. May import floors 0 to 4."""

from __future__ import annotations

import math
from collections.abc import Sequence

from webtorch.distributions import constraints
from webtorch.distributions.exp_family import ExponentialFamily
from webtorch.distributions.utils import (
    BinaryParameter,
    Value,
    broadcast_all,
    clamp_probs,
    lazy_property,
    logits_to_probs,
)
from webtorch.functions import public as webtorch
from webtorch.nn.functional import binary_cross_entropy_with_logits
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

__all__ = ["ContinuousBernoulli"]


class ContinuousBernoulli(BinaryParameter, ExponentialFamily):
    """Density in proportion to probs ** x * (1 - probs) ** (1 - x). Loaiza-Ganem and Cunningham, 2019.

    Where probs is between the two `lims`, the formulas cancel, and their series around 1/2 is taken.
    """

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.unit_interval
    has_rsample = True
    _mean_carrier_measure = 0
    _batched = ("probs", "logits", "_param")
    _unbatched = ("_lims",)

    def __init__(
        self,
        probs: Value | None = None,
        logits: Value | None = None,
        lims: tuple[float, float] = (0.499, 0.501),
        validate_args: bool | None = None,
    ) -> None:
        self._set_probs_or_logits(probs, logits)
        if probs is not None:
            inside = constraints.unit_interval.check(self._param)
            if validate_args is not None and not bool(inside.all()):
                raise ValueError("The parameter probs has invalid values")
            self.probs = self._param = clamp_probs(self._param)
        self._lims = lims
        super().__init__(self._param.shape, validate_args=validate_args)

    @lazy_property
    def probs(self) -> Tensor:
        """Probabilities, clamped."""
        return clamp_probs(logits_to_probs(self.logits, is_binary=True))

    def _regular(self, x: Tensor | None = None, middle: float = 0.0) -> Tensor:
        x = self.probs if x is None else x
        return (x <= self._lims[0] - middle) | (x > self._lims[1] - middle)

    def _safe_probs(self) -> Tensor:
        """Return probs, or a number outside the limits where they are within."""
        return webtorch.where(self._regular(), self.probs, self._lims[0])

    def _cont_bern_log_norm(self) -> Tensor:
        """Return the logarithm of the constant that makes the density's integral 1."""
        p = self._safe_probs()
        low, high = webtorch.where(p <= 0.5, p, 0.0), webtorch.where(p >= 0.5, p, 1.0)
        width = webtorch.where(p <= 0.5, (-2.0 * low).log1p(), (2.0 * high - 1.0).log())
        exact = ((-p).log1p() - p.log()).abs().log() - width
        x = (self.probs - 0.5).square()
        series = math.log(2.0) + (4.0 / 3.0 + 104.0 / 45.0 * x) * x
        return webtorch.where(self._regular(), exact, series)

    @property
    def mean(self) -> Tensor:
        """`probs / (2 * probs - 1) + 1 / (log(1 - probs) - log(probs))`, 1/2 at probs = 1/2."""
        p = self._safe_probs()
        exact = p / (2.0 * p - 1.0) + 1.0 / ((-p).log1p() - p.log())
        x = self.probs - 0.5
        series = 0.5 + (1.0 / 3.0 + 16.0 / 45.0 * x.square()) * x
        return webtorch.where(self._regular(), exact, series)

    @property
    def variance(self) -> Tensor:
        """The variance: 1/12, that of a uniform number, at probs = 1/2, and smaller elsewhere."""
        p = self._safe_probs()
        slope = ((-p).log1p() - p.log()).square()
        exact = p * (p - 1.0) / (1.0 - 2.0 * p).square() + 1.0 / slope
        x = (self.probs - 0.5).square()
        series = 1.0 / 12.0 - (1.0 / 15.0 - 128.0 / 945.0 * x) * x
        return webtorch.where(self._regular(), exact, series)

    def _uniform(self, sample_shape: Sequence[int]) -> Tensor:
        shape = self._extended_shape(sample_shape)
        return webtorch.rand(shape, dtype=self.probs.dtype, device=self.probs.device)

    def rsample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return samples with gradients, by the inverse of the distribution function."""
        return self.icdf(self._uniform(sample_shape))

    def _log_prob(self, value: Tensor) -> Tensor:
        logits, value = broadcast_all(self.logits, value)
        loss = binary_cross_entropy_with_logits(logits, value, reduction="none")
        return -loss + self._cont_bern_log_norm()

    def _cdf(self, value: Tensor) -> Tensor:
        p = self._safe_probs()
        exact = (p.pow(value) * (1.0 - p).pow(1.0 - value) + p - 1.0) / (2.0 * p - 1.0)
        inside = webtorch.where(self._regular(), exact, value)
        return webtorch.where(value <= 0.0, 0.0, webtorch.where(value >= 1.0, 1.0, inside))

    def icdf(self, value: Tensor) -> Tensor:
        """Return the value that has a cumulative probability; within `lims` the probability itself."""
        p = self._safe_probs()
        rest = (-p).log1p()
        exact = ((-p + value * (2.0 * p - 1.0)).log1p() - rest) / (p.log() - rest)
        return webtorch.where(self._regular(), exact, value)

    def entropy(self) -> Tensor:
        """Return the entropy in nats: at most 0, that of a uniform number."""
        zero, one = (-self.probs).log1p(), self.probs.log()
        return self.mean * (zero - one) - self._cont_bern_log_norm() - zero

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (self.logits,)

    def _log_normalizer(self, x: Tensor) -> Tensor:
        regular = self._regular(x, 0.5)
        safe = webtorch.where(regular, x, self._lims[0] - 0.5)
        exact = safe.expm1().abs().log() - safe.abs().log()
        series = 0.5 * x + x.pow(2) / 24.0 - x.pow(4) / 2880.0
        return webtorch.where(regular, exact, series)
