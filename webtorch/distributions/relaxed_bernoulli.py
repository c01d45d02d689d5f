"""Coin tosses that gradients pass. May import floors 0 to 4."""

from __future__ import annotations

from collections.abc import Sequence

from webtorch.distributions import constraints
from webtorch.distributions.distribution import Distribution
from webtorch.distributions.transformed_distribution import TransformedDistribution
from webtorch.distributions.transforms import SigmoidTransform
from webtorch.distributions.utils import BinaryParameter, Value, broadcast_all, clamp_probs, part
from webtorch.functions import public as webtorch
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

__all__ = ["LogitRelaxedBernoulli", "RelaxedBernoulli"]


class LogitRelaxedBernoulli(BinaryParameter, Distribution):
    """The log odds of a RelaxedBernoulli number (Maddison, Mnih and Teh, 2017)."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.real
    _batched = ("probs", "logits", "_param")
    _unbatched = ("temperature",)

    def __init__(
        self,
        temperature: Tensor,
        probs: Value | None = None,
        logits: Value | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.temperature = temperature
        self._set_probs_or_logits(probs, logits)
        super().__init__(self._param.shape, validate_args=validate_args)

    def rsample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return samples with gradients: (logits + logistic noise) / temperature."""
        shape = self._extended_shape(sample_shape)
        probs = clamp_probs(self.probs.expand(shape))
        u = clamp_probs(webtorch.rand(shape, dtype=probs.dtype, device=probs.device))
        noise = u.log() - (-u).log1p()
        return (noise + probs.log() - (-probs).log1p()) / self.temperature

    def _log_prob(self, value: Tensor) -> Tensor:
        logits, value = broadcast_all(self.logits, value)
        away = logits - value * self.temperature
        return self.temperature.log() + away - 2 * away.exp().log1p()


class RelaxedBernoulli(TransformedDistribution):
    """Numbers between 0 and 1 that approach coin tosses as the temperature falls, with gradients.

    Maddison, Mnih and Teh, 2017; Jang, Gu and Poole, 2017.
    """

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.unit_interval
    has_rsample = True
    _batched = ()
    temperature = part("base_dist.temperature", "The temperature.")
    logits = part("base_dist.logits", "Log odds.")
    probs = part("base_dist.probs", "Probabilities.")

    def __init__(
        self,
        temperature: Tensor,
        probs: Value | None = None,
        logits: Value | None = None,
        validate_args: bool | None = None,
    ) -> None:
        base = LogitRelaxedBernoulli(temperature, probs, logits)
        super().__init__(base, SigmoidTransform(), validate_args=validate_args)
