"""Sizes given as one number or as one for each dimension. Imports the standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["Sizes", "repeat"]

Sizes = int | Sequence[int]


def repeat(value: object, count: int) -> tuple[Any, ...]:
    """Return `value` as a tuple: an iterable as it is, one number `count` times.

    >>> repeat(3, 2)
    (3, 3)
    """
    if isinstance(value, Iterable) and not isinstance(value, str):
        return tuple(value)
    return (value,) * count
