"""Coin tosses. May import floors 0 to 4."""

from __future__ import annotations

import math
from collections.abc import Sequence

from webtorch.distributions import constraints
from webtorch.distributions.exp_family import ExponentialFamily
from webtorch.distributions.utils import BinaryParameter, Value, broadcast_all, part
from webtorch.functions import public as webtorch
from webtorch.nn.functional import binary_cross_entropy_with_logits
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

__all__ = ["Bernoulli"]


class Bernoulli(BinaryParameter, ExponentialFamily):
    """1 with probability `probs` (or of log odds `logits`), else 0."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.boolean
    has_enumerate_support = True
    _mean_carrier_measure = 0
    _batched = ("probs", "logits", "_param")
    mean = part("probs", "The probability of 1.")

    def __init__(
        self,
        probs: Value | None = None,
        logits: Value | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._set_probs_or_logits(probs, logits)
        super().__init__(self._param.shape, validate_args=validate_args)

    @property
    def mode(self) -> Tensor:
        """The likelier value; NaN where probs is 1/2."""
        likely = (self.probs >= 0.5).to(self.probs)
        return webtorch.where(self.probs == 0.5, math.nan, likely)

    @property
    def variance(self) -> Tensor:
        """`probs * (1 - probs)`."""
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return zeros and ones of the parameter's dtype, without gradient."""
        with webtorch.no_grad():
            return webtorch.bernoulli(self.probs.expand(self._extended_shape(sample_shape)))

    def _log_prob(self, value: Tensor) -> Tensor:
        logits, value = broadcast_all(self.logits, value)
        return -binary_cross_entropy_with_logits(logits, value, reduction="none")

    def entropy(self) -> Tensor:
        """Return the entropy in nats: at most log(2)."""
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Return 0 and 1 along a new first dim; without `expand`, for a batch of ones."""
        values = webtorch.arange(2, dtype=self._param.dtype, device=self._param.device)
        return self._enumerated(values, expand)

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (webtorch.logit(self.probs),)

    def _log_normalizer(self, x: Tensor) -> Tensor:
        return x.exp().log1p()
