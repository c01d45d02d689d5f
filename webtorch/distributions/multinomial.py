"""How often each of several events happens. May import floors 0 to 4."""

from __future__ import annotations

import math
from typing import Any

from webtorch.distributions import constraints
from webtorch.distributions.binomial import Binomial
from webtorch.distributions.categorical import Categorical
from webtorch.distributions.distribution import Distribution
from webtorch.distributions.utils import broadcast_all
from webtorch.functions import public as webtorch
from webtorch.tensors.tensor import Size, Tensor

__all__ = ["Multinomial"]


class Multinomial(Distribution):
    """How often each event happens in `total_count` (a number) draws of a Categorical of `probs` or `logits`."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    total_count: int

    def __init__(
        self,
        total_count: int = 1,
        probs: Any = None,
        logits: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(total_count, int):
            raise NotImplementedError("inhomogeneous total_count is not supported")
        self.total_count = total_count
        self._categorical = Categorical(probs=probs, logits=logits)
        self._binomial = Binomial(total_count=total_count, probs=self.probs)
        shape = self._categorical.param_shape
        super().__init__(shape[:-1], shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        new = self._expand(Multinomial, batch_shape, _instance, "_categorical", "_binomial")
        new.total_count = self.total_count
        return new

    def _new(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._categorical._new(*args, **kwargs)

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> Any:
        return constraints.multinomial(self.total_count)

    @property
    def logits(self) -> Tensor:
        """Log probabilities."""
        return self._categorical.logits

    @property
    def probs(self) -> Tensor:
        """Probabilities."""
        return self._categorical.probs

    @property
    def param_shape(self) -> Size:
        """The shape of the parameter."""
        return self._categorical.param_shape

    @property
    def mean(self) -> Tensor:
        return self.probs * self.total_count

    @property
    def variance(self) -> Tensor:
        return self.total_count * self.probs * (1 - self.probs)

    def sample(self, sample_shape: Any = Size()) -> Tensor:
        with webtorch.no_grad():
            drawn = self._categorical.sample(Size((self.total_count,)) + Size(sample_shape))
            counts = self.probs.new_zeros(self._extended_shape(sample_shape))
            index = drawn.movedim(0, -1)
            return counts.scatter_add(-1, index, webtorch.ones_like(index).to(counts.dtype))

    def entropy(self) -> Tensor:
        n = self.total_count
        whole = n * self._categorical.entropy() - math.lgamma(n + 1)
        counts = self._binomial.enumerate_support(expand=False)[1:]
        weights = self._binomial.log_prob(counts).exp() * (counts + 1).lgamma()
        return whole + weights.sum([0, -1])

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        logits, value = broadcast_all(self.logits, value)
        # An impossible event that did not happen: 0 * -infinity is 0 here.
        logits = webtorch.where((value == 0) & (logits == -math.inf), 0.0, logits)
        choices = (value.sum(-1) + 1).lgamma() - (value + 1).lgamma().sum(-1)
        return choices + (logits * value).sum(-1)
