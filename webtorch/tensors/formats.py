"""The classes of layouts and memory formats, and their constants. Floor 4."""

from __future__ import annotations


class _Named(str):
    """A constant that is known by its name."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class layout(_Named):
    """The class of layouts. Tensors are dense: there is `strided` only."""

    __slots__ = ()


class memory_format(_Named):
    """The class of memory formats."""

    __slots__ = ()


strided = layout("torch.strided")
contiguous_format = memory_format("torch.contiguous_format")
preserve_format = memory_format("torch.preserve_format")
channels_last = memory_format("torch.channels_last")
channels_last_3d = memory_format("torch.channels_last_3d")
