"""Shapes as PyTorch shows them. Floor 4."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, Self

from webtorch.ir.view import numel


class Size(tuple[int, ...]):
    """A shape, as PyTorch has it: a tuple that prints as torch.Size([...])."""

    __slots__ = ()

    def __new__(cls, sizes: Iterable[Any] = ()) -> Self:
        """Take sizes. Raises TypeError for what is no integer."""
        found = tuple(sizes)
        for i, n in enumerate(found):
            if type(n) is not int:
                try:
                    operator.index(n)
                except TypeError:
                    raise TypeError(
                        f"torch.Size() takes an iterable of 'int' (item {i} is '{type(n).__name__}')"
                    ) from None
        return tuple.__new__(cls, [n if type(n) is int else operator.index(n) for n in found])

    def numel(self) -> int:
        """Return the number of elements."""
        return numel(tuple(self))

    def __repr__(self) -> str:
        return f"torch.Size([{', '.join(map(str, self))}])"

    def __getitem__(self, key: Any) -> Any:
        found = tuple.__getitem__(self, key)
        return tuple.__new__(Size, found) if isinstance(key, slice) else found

    def __add__(self, other: object) -> Size:
        if isinstance(other, tuple):
            return tuple.__new__(Size, tuple.__add__(self, other))
        if hasattr(type(other), "__radd__"):
            return NotImplemented
        raise TypeError(f"can only concatenate tuple (not {type(other).__name__}) to torch.Size")

    def __radd__(self, other: object) -> Size:
        return Size((*other, *self)) if isinstance(other, tuple) else NotImplemented

    def __mul__(self, count: Any) -> Size:
        return tuple.__new__(Size, tuple.__mul__(self, count))

    __rmul__ = __mul__
