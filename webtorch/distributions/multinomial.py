"""How often each of several events happens. May import floors 0 to 4."""

from __future__ import annotations

import math
from collections.abc import Sequence

from webtorch.distributions import constraints
from webtorch.distributions.binomial import Binomial
from webtorch.distributions.categorical import Categorical, OfCategorical
from webtorch.distributions.utils import broadcast_all
from webtorch.functions import public as webtorch
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

__all__ = ["Multinomial"]


class Multinomial(OfCategorical):
    """How often each event happens in `total_count` (a number) draws of a Categorical of `probs` or `logits`."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    total_count: int
    _batched = ("_categorical", "_binomial")
    _unbatched = ("total_count",)

    def __init__(
        self,
        total_count: int = 1,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(total_count, int):
            raise NotImplementedError("inhomogeneous total_count is not supported")
        self.total_count = total_count
        self._categorical = Categorical(probs=probs, logits=logits)
        self._binomial = Binomial(total_count=total_count, probs=self.probs)
        shape = self._categorical.param_shape
        super().__init__(shape[:-1], shape[-1:], validate_args=validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> constraints.Constraint:
        """Vectors of counts of sum total_count."""
        return constraints.multinomial(self.total_count)

    @property
    def mean(self) -> Tensor:
        """`total_count * probs`."""
        return self.probs * self.total_count

    @property
    def variance(self) -> Tensor:
        """Variances of the single counts: total_count * probs * (1 - probs)."""
        return self.total_count * self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return counts of the parameter's dtype, without gradient: total_count draws are counted."""
        with webtorch.no_grad():
            drawn = self._categorical.sample(Size((self.total_count,)) + Size(sample_shape))
            counts = self.probs.new_zeros(self._extended_shape(sample_shape))
            index = drawn.movedim(0, -1)
            return counts.scatter_add(-1, index, webtorch.ones_like(index).to(counts.dtype))

    def entropy(self) -> Tensor:
        """Return the entropy in nats, of the batch's shape; sums over total_count terms for each event."""
        n = self.total_count
        whole = n * self._categorical.entropy() - math.lgamma(n + 1)
        counts = self._binomial.enumerate_support(expand=False)[1:]
        weights = self._binomial.log_prob(counts).exp() * (counts + 1).lgamma()
        return whole + weights.sum([0, -1])

    def _log_prob(self, value: Tensor) -> Tensor:
        logits, value = broadcast_all(self.logits, value)
        # An impossible event that did not happen: 0 * -infinity is 0 here.
        logits = webtorch.where((value == 0) & (logits == -math.inf), 0.0, logits)
        choices = (value.sum(-1) + 1).lgamma() - (value + 1).lgamma().sum(-1)
        return choices + (logits * value).sum(-1)
