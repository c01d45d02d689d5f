"""Successes in a number of trials. May import floors 0 to 4."""

from __future__ import annotations

from collections.abc import Sequence

from webtorch.distributions import constraints
from webtorch.distributions.distribution import Distribution
from webtorch.distributions.utils import BinaryParameter, Value
from webtorch.functions import public as webtorch
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

__all__ = ["Binomial"]


class Binomial(BinaryParameter, Distribution):
    """The number of successes in `total_count` trials of probability `probs` (or of log odds `logits`)."""

    arg_constraints = {
        "total_count": constraints.nonnegative_integer,
        "probs": constraints.unit_interval,
        "logits": constraints.real,
    }
    has_enumerate_support = True
    _batched = ("total_count", "probs", "logits", "_param")

    def __init__(
        self,
        total_count: Value = 1,
        probs: Value | None = None,
        logits: Value | None = None,
        validate_args: bool | None = None,
    ) -> None:
        (count,) = self._set_probs_or_logits(probs, logits, total_count)
        self.total_count = count.type_as(self._param)
        super().__init__(self._param.shape, validate_args=validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> constraints.Constraint:
        """The integers from 0 to total_count."""
        return constraints.integer_interval(0, self.total_count)

    @property
    def mean(self) -> Tensor:
        """`total_count * probs`."""
        return self.total_count * self.probs

    @property
    def mode(self) -> Tensor:
        """`floor((total_count + 1) * probs)`, at most total_count."""
        return ((self.total_count + 1) * self.probs).floor().clamp(max=self.total_count)

    @property
    def variance(self) -> Tensor:
        """`total_count * probs * (1 - probs)`."""
        return self.total_count * self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return counts of the parameter's dtype, without gradient."""
        shape = self._extended_shape(sample_shape)
        with webtorch.no_grad():
            return webtorch.binomial(self.total_count.expand(shape), self.probs.expand(shape))

    def _log_prob(self, value: Tensor) -> Tensor:
        n, logits = self.total_count, self.logits
        # n log(1 + exp(logits)), from the side that does not overflow; the gradient at 0 is a half.
        above = (logits.clamp(min=0) + logits - logits.clamp(max=0)) / 2
        normalizer = n * above + n * (-logits.abs()).exp().log1p() - (n + 1).lgamma()
        choices = (value + 1).lgamma() + (n - value + 1).lgamma()
        return value * logits - choices - normalizer

    def entropy(self) -> Tensor:
        """Return the entropy in nats, summed over the support.

        Waits for the device. Raises NotImplementedError unless all trials have one total_count.
        """
        self._one_count("entropy")
        log_prob = self.log_prob(self.enumerate_support(False))
        return -(log_prob.exp() * log_prob).sum(0)

    def _one_count(self, what: str) -> int:
        count = int(self.total_count.max())
        if not bool(self.total_count.min() == count):
            raise NotImplementedError(f"Inhomogeneous total count not supported by `{what}`.")
        return count

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Return 0 to total_count along a new first dim; without `expand`, for a batch of ones.

        Waits for the device. Raises NotImplementedError unless all trials have one total_count.
        """
        count = self._one_count("enumerate_support")
        values = webtorch.arange(1 + count, dtype=self._param.dtype, device=self._param.device)
        return self._enumerated(values, expand)
