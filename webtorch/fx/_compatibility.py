"""PyTorch's mark of what stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def compatibility(is_backward_compatible: bool) -> Callable[[T], T]:
    """Return a decorator that changes nothing."""
    return lambda fn: fn
