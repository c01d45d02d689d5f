"""Gradients that travel together. Floor 5."""

from __future__ import annotations

from collections.abc import Sequence

from webtorch.tensors.tensor import Tensor


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
