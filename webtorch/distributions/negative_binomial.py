"""Successes before a number of failures. May import floors 0 to 4."""

from __future__ import annotations

from collections.abc import Sequence

from webtorch.distributions import constraints
from webtorch.distributions.distribution import Distribution
from webtorch.distributions.gamma import Gamma
from webtorch.distributions.utils import BinaryParameter, Value, lazy_property
from webtorch.functions import public as webtorch
from webtorch.nn.functional import logsigmoid
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

__all__ = ["NegativeBinomial"]


class NegativeBinomial(BinaryParameter, Distribution):
    """The number of successes, of probability `probs`, before `total_count` failures (which need not be whole)."""

    arg_constraints = {
        "total_count": constraints.greater_than_eq(0),
        "probs": constraints.half_open_interval(0.0, 1.0),
        "logits": constraints.real,
    }
    support = constraints.nonnegative_integer
    _batched = ("total_count", "probs", "logits", "_param")

    def __init__(
        self,
        total_count: Value,
        probs: Value | None = None,
        logits: Value | None = None,
        validate_args: bool | None = None,
    ) -> None:
        (count,) = self._set_probs_or_logits(probs, logits, total_count)
        self.total_count = count.type_as(self._param)
        super().__init__(self._param.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """`total_count * probs / (1 - probs)`."""
        return self.total_count * self.logits.exp()

    @property
    def mode(self) -> Tensor:
        """`floor((total_count - 1) * probs / (1 - probs))`, at least 0."""
        return ((self.total_count - 1) * self.logits.exp()).floor().clamp(min=0.0)

    @property
    def variance(self) -> Tensor:
        """`mean / (1 - probs)`."""
        return self.mean / (-self.logits).sigmoid()

    @lazy_property
    def _gamma(self) -> Gamma:
        # A rate of exp(-logits): the mixture of Poisson numbers over it.
        return Gamma(concentration=self.total_count, rate=(-self.logits).exp(), validate_args=False)

    def sample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return counts of the parameter's dtype, without gradient: Poisson numbers of gamma rates."""
        with webtorch.no_grad():
            return webtorch.poisson(self._gamma.sample(sample_shape=sample_shape))

    def _log_prob(self, value: Tensor) -> Tensor:
        n = self.total_count
        density = n * logsigmoid(-self.logits) + value * logsigmoid(self.logits)
        constant = -(n + value).lgamma() + (1.0 + value).lgamma() + n.lgamma()
        # Without failures to wait for, 0 is sure.
        return density - constant.masked_fill(n + value == 0.0, 0.0)
