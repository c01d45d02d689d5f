"""One of several events. May import floors 0 to 4."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from webtorch.distributions import constraints
from webtorch.distributions.distribution import Distribution
from webtorch.distributions.utils import (
    lazy_property,
    logits_to_probs,
    part,
    probs_to_logits,
)
from webtorch.functions import public as webtorch
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

__all__ = ["Categorical"]


class Categorical(Distribution):
    """The number of an event: `probs` (any positive scale) or `logits` along the last dim say how likely each is."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    has_enumerate_support = True
    _batched = ("probs", "logits", "_param")
    _unbatched = ("_num_events",)

    def __init__(
        self,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        name, given = ("logits", logits) if probs is None else ("probs", probs)
        if given is None or (probs is not None and logits is not None):
            raise ValueError("Either `probs` or `logits` must be specified, but not both.")
        if given.dim() < 1:
            raise ValueError(f"`{name}` parameter must be at least one-dimensional.")
        if probs is None:
            self._param = given - given.logsumexp(dim=-1, keepdim=True)
        else:
            self._param = given / given.sum(-1, keepdim=True)
        setattr(self, name, self._param)
        self._num_events = self._param.shape[-1]
        super().__init__(self._param.shape[:-1], validate_args=validate_args)

    def _new(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._param.new(*args, **kwargs)

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> constraints.Constraint:
        """The integers from 0 to the number of events minus 1."""
        return constraints.integer_interval(0, self._num_events - 1)

    @lazy_property
    def logits(self) -> Tensor:
        """Log probabilities."""
        return probs_to_logits(self.probs)

    @lazy_property
    def probs(self) -> Tensor:
        """Probabilities."""
        return logits_to_probs(self.logits)

    @property
    def param_shape(self) -> Size:
        """The shape of the parameter."""
        return self._param.shape

    @property
    def mean(self) -> Tensor:
        """NaN: the numbers of events have no order."""
        return self._full(self.probs, math.nan)

    @property
    def mode(self) -> Tensor:
        """The likeliest event, as int64."""
        return self.probs.argmax(dim=-1)

    @property
    def variance(self) -> Tensor:
        """NaN: the numbers of events have no order."""
        return self._full(self.probs, math.nan)

    def sample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return numbers of events as int64, of shape sample_shape + batch_shape."""
        sample_shape = Size(sample_shape)
        rows = self.probs.detach().reshape(-1, self._num_events)
        shape = self._extended_shape(sample_shape)
        if shape.numel() == 0:
            return webtorch.empty(shape, dtype=webtorch.int64, device=rows.device)
        return webtorch.multinomial(rows, sample_shape.numel(), True).T.reshape(shape)

    def _log_prob(self, value: Tensor) -> Tensor:
        value, table = webtorch.broadcast_tensors(value.long().unsqueeze(-1), self.logits)
        return table.gather(-1, value[..., :1]).squeeze(-1)

    def entropy(self) -> Tensor:
        """Return the entropy in nats; events of probability 0 add nothing."""
        logits = self.logits.clamp(min=webtorch.finfo(self.logits.dtype).min)
        return -(logits * self.probs).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Return all numbers of events along a new first dim; without `expand`, for a batch of ones."""
        values = webtorch.arange(self._num_events, dtype=webtorch.long, device=self._param.device)
        return self._enumerated(values, expand)


class OfCategorical(Distribution):
    """A distribution whose samples come from those of a Categorical, `_categorical`, with its parameters."""

    _categorical: Categorical
    probs = part("_categorical.probs", "Probabilities along the last dim.")
    logits = part("_categorical.logits", "Log probabilities along the last dim.")
    param_shape = part("_categorical.param_shape", "The shape of the parameter that was given.")

    def _new(self, *args: object, **kwargs: object) -> Tensor:
        return self._categorical._new(*args, **kwargs)
