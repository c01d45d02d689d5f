"""One of several events, with gradients. May import floors 0 to 4."""

from __future__ import annotations

from collections.abc import Sequence

from webtorch.distributions import constraints
from webtorch.distributions.categorical import Categorical, OfCategorical
from webtorch.distributions.transformed_distribution import TransformedDistribution
from webtorch.distributions.transforms import ExpTransform
from webtorch.distributions.utils import broadcast_all, clamp_probs, part
from webtorch.functions import public as webtorch
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

__all__ = ["ExpRelaxedCategorical", "RelaxedOneHotCategorical"]


class ExpRelaxedCategorical(OfCategorical):
    """The logarithm of a RelaxedOneHotCategorical vector (Maddison, Mnih and Teh, 2017)."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support = constraints.real_vector
    has_rsample = True
    _batched = ("_categorical",)
    _unbatched = ("temperature",)

    def __init__(
        self,
        temperature: Tensor,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._categorical = Categorical(probs, logits)
        self.temperature = temperature
        shape = self._categorical.param_shape
        super().__init__(shape[:-1], shape[-1:], validate_args=validate_args)

    def rsample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return samples with gradients: log_softmax((logits + Gumbel noise) / temperature)."""
        shape = self._extended_shape(sample_shape)
        logits = self.logits
        u = clamp_probs(webtorch.rand(shape, dtype=logits.dtype, device=logits.device))
        scores = (logits - (-u.log()).log()) / self.temperature
        return scores - scores.logsumexp(dim=-1, keepdim=True)

    def _log_prob(self, value: Tensor) -> Tensor:
        count = self._categorical._num_events
        logits, value = broadcast_all(self.logits, value)
        score = logits - value * self.temperature
        score = (score - score.logsumexp(dim=-1, keepdim=True)).sum(-1)
        factorial = webtorch.full_like(self.temperature, float(count)).lgamma()
        return score + factorial + self.temperature.log() * (count - 1)


class RelaxedOneHotCategorical(TransformedDistribution):
    """Points of the simplex that approach one-hot vectors as the temperature falls, with gradients.

    Maddison, Mnih and Teh, 2017; Jang, Gu and Poole, 2017.
    """

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support = constraints.simplex
    has_rsample = True
    _batched = ()
    temperature = part("base_dist.temperature", "The temperature.")
    logits = part("base_dist.logits", "Log probabilities.")
    probs = part("base_dist.probs", "Probabilities.")

    def __init__(
        self,
        temperature: Tensor,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        base = ExpRelaxedCategorical(temperature, probs, logits, validate_args=validate_args)
        super().__init__(base, ExpTransform(), validate_args=validate_args)
