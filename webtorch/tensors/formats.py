"""The classes of layouts and memory formats, and their constants. Floor 4."""

from __future__ import annotations

from typing import Any, ClassVar, Self


class _Named:
    """A constant that is known by its name: there is one of each."""

    __slots__ = ("name",)

    name: str
    _made: ClassVar[dict[tuple[type, str], Any]] = {}

    def __new__(cls, name: str) -> Self:
        """Return the constant of a name."""
        if (cls, name) not in cls._made:
            made = super().__new__(cls)
            made.name = name
            cls._made[cls, name] = made
        found: Self = cls._made[cls, name]
        return found

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return type(self), (self.name,)


class layout(_Named):
    """The class of layouts: `strided`, and those of sparse tensors."""

    __slots__ = ()


class memory_format(_Named):
    """The class of memory formats."""

    __slots__ = ()


strided = layout("torch.strided")
sparse_coo = layout("torch.sparse_coo")
sparse_csr, sparse_csc = layout("torch.sparse_csr"), layout("torch.sparse_csc")
sparse_bsr, sparse_bsc = layout("torch.sparse_bsr"), layout("torch.sparse_bsc")
LAYOUTS = (strided, sparse_coo, sparse_csr, sparse_csc, sparse_bsr, sparse_bsc)
contiguous_format = memory_format("torch.contiguous_format")
preserve_format = memory_format("torch.preserve_format")
channels_last = memory_format("torch.channels_last")
channels_last_3d = memory_format("torch.channels_last_3d")
