"""Failures before the first success. May import floors 0 to 4."""

from __future__ import annotations

from collections.abc import Sequence

from webtorch.distributions import constraints
from webtorch.distributions.distribution import Distribution
from webtorch.distributions.utils import BinaryParameter, Value, broadcast_all
from webtorch.functions import public as webtorch
from webtorch.nn.functional import binary_cross_entropy_with_logits
from webtorch.tensors.host import reads
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

__all__ = ["Geometric"]


class Geometric(BinaryParameter, Distribution):
    """The number of failures before the first success, of probability `probs` (or of log odds `logits`)."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.nonnegative_integer
    _batched = ("probs", "logits", "_param")

    def __init__(
        self,
        probs: Value | None = None,
        logits: Value | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._set_probs_or_logits(probs, logits)
        super().__init__(self._param.shape, validate_args=validate_args)
        if self._validate_args and probs is not None and reads.possible:
            valid = self.probs > 0
            if not bool(valid.all()):
                raise ValueError(
                    f"Expected parameter probs ({type(self.probs).__name__} of shape "
                    f"{tuple(self.probs.shape)}) of distribution {self!r} to be positive but found "
                    f"invalid values:\n{self.probs.detach()[~valid]}"
                )

    @property
    def mean(self) -> Tensor:
        """1 / probs - 1."""
        return 1.0 / self.probs - 1.0

    @property
    def mode(self) -> Tensor:
        """0."""
        return webtorch.zeros_like(self.probs)

    @property
    def variance(self) -> Tensor:
        """`(1 / probs - 1) / probs`."""
        return (1.0 / self.probs - 1.0) / self.probs

    def sample(self, sample_shape: Sequence[int] = Size()) -> Tensor:
        """Return counts of the parameter's dtype, without gradient, by the inverse of the distribution function."""
        shape = self._extended_shape(sample_shape)
        tiny = webtorch.finfo(self.probs.dtype).tiny
        with webtorch.no_grad():
            # 1 - u is never 0, and small where u is near 1.
            u = webtorch.rand(shape, dtype=self.probs.dtype, device=self.probs.device)
            return ((1 - u).clamp(min=tiny).log() / (-self.probs).log1p()).floor()

    def _log_prob(self, value: Tensor) -> Tensor:
        value, probs = broadcast_all(value, self.probs)
        # 0 * log(0) is 0 here: a sure success leaves no failures.
        failure = webtorch.where((probs == 1) & (value == 0), 0.0, probs)
        return value * (-failure).log1p() + self.probs.log()

    def entropy(self) -> Tensor:
        """Return the entropy in nats: that of one trial / probs."""
        loss = binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")
        return loss / self.probs
