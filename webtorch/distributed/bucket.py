"""Gradients that travel together. Floor 5."""

from __future__ import annotations

from collections.abc import Sequence

from webtorch.distributed.calls import Lane
from webtorch.tensors.tensor import Tensor

# Bytes of a bucket of PyTorch's, and the least that is worth a sum of its own.
_MOST, _LEAST = 25 << 20, 1 << 20
# So many buckets travel where links are slow.
_COUNT = 8


def default_cap(nbytes: int, lane: Lane) -> int:
    """Return how many bytes a bucket has where the user does not say, of gradients of so many. The last bucket travels
    when nothing is computed any more, so it is small, unless processes share memory: there fewer programs gain more.
    """
    return _MOST if lane.shares() else max(_LEAST, min(_MOST, nbytes // _COUNT))


class GradBucket:
    """The gradients of some parameters as one tensor, which a hook of DistributedDataParallel gets."""

    def __init__(self, index: int, buffer: Tensor, params: Sequence[Tensor], last: bool) -> None:
        self._index, self._buffer, self._params, self._last = index, buffer, list(params), last

    def index(self) -> int:
        """Return its number: they go in this order."""
        return self._index

    def buffer(self) -> Tensor:
        """Return all gradients, flat."""
        return self._buffer

    def set_buffer(self, buffer: Tensor) -> None:
        """Put another tensor in their place."""
        self._buffer = buffer

    def parameters(self) -> list[Tensor]:
        """Return the parameters."""
        return list(self._params)

    def gradients(self) -> list[Tensor]:
        """Return each parameter's part, in its shape."""
        parts = self._buffer.split([p.numel() for p in self._params])
        return [g.reshape(p.shape) for g, p in zip(parts, self._params, strict=True)]

    def is_last(self) -> bool:
        """Whether no other follows in this backward pass."""
        return self._last
