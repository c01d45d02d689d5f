"""One of several events, as a vector with a one. May import floors 0 to 4."""

from __future__ import annotations

from collections.abc import Sequence

from webtorch.distributions import constraints
from webtorch.distributions.categorical import Categorical, OfCategorical
from webtorch.distributions.utils import part
from webtorch.functions import public as webtorch
from webtorch.nn.functional import one_hot
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

__all__ = ["OneHotCategorical", "OneHotCategoricalStraightThrough"]


class OneHotCategorical(OfCategorical):
    """A vector with 1 at the event and 0 elsewhere; `probs` or `logits` as those of Categorical."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support = constraints.one_hot
    has_enumerate_support = True
    _batched = ("_categorical",)
    _param = part("_categorical._param", "The parameter that was given.")
    mean = part("probs", "The probabilities.")

    def __init__(
        self,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._categorical = Categorical(probs, logits)
        shape = self._categorical.param_shape
        super().__init__(shape[:-1], shape[-1:], validate_args=validate_args)

    @property
    def mode(self) -> Tensor:
        """The one-hot vector of the likeliest event."""
        return one_hot(self.probs.argmax(dim=-1), self.probs.shape[-1]).to(self.probs)

    @property
    def variance(self) -> Tensor:
        """Variances of the single numbers: probs * (1 - probs)."""
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return one-hot vectors of the parameter's dtype, without gradient."""
        index = self._categorical.sample(Size(sample_shape))
        return one_hot(index, self._categorical._num_events).to(self.probs)

    def _log_prob(self, value: Tensor) -> Tensor:
        return self._categorical.log_prob(value.max(-1)[1])

    def entropy(self) -> Tensor:
        """Return the entropy in nats, of the batch's shape."""
        return self._categorical.entropy()

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Return all one-hot vectors along a new first dim; without `expand`, for a batch of ones."""
        n = self.event_shape[0]
        values = webtorch.eye(n, dtype=self._param.dtype, device=self._param.device)
        values = values.view((n,) + (1,) * len(self.batch_shape) + (n,))
        return values.expand((n, *self.batch_shape, n)) if expand else values


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """The same, whose samples pass gradients on to the probabilities (Bengio, Léonard and Courville, 2013)."""

    has_rsample = True

    def rsample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return one-hot vectors whose gradient is that of probs."""
        return self.sample(sample_shape) + (self.probs - self.probs.detach())
