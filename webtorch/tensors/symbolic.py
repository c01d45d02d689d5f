"""PyTorch's symbolic numbers. Sizes are Python's numbers here, and these functions take them. Floor 4."""

from __future__ import annotations

import math
from typing import Any


class SymInt:
    """A class to check for: no size is one."""


class SymFloat:
    """A class to check for: no number is one."""


class SymBool:
    """A class to check for: no truth value is one."""


def sym_int(a: Any) -> int:
    """Return a number without its fraction."""
    return math.trunc(a)


def sym_float(a: Any) -> float:
    """Return a number as a float."""
    return float(a)


def sym_not(a: object) -> bool:
    """Return whether something is false."""
    return not a


def sym_max(a: Any, b: Any) -> Any:
    """Return the larger number: a float if one of them is."""
    found = max(a, b)
    return float(found) if isinstance(a, float) or isinstance(b, float) else found


def sym_min(a: Any, b: Any) -> Any:
    """Return the smaller number: a float if one of them is."""
    found = min(a, b)
    return float(found) if isinstance(a, float) or isinstance(b, float) else found


def sym_sum(args: Any) -> Any:
    """Return the sum of numbers."""
    return sum(args)


def sym_sqrt(a: Any) -> float:
    """Return a square root."""
    return math.sqrt(a)


def sym_ite(b: object, t: object, f: object) -> Any:
    """Return `t` if `b`, else `f`."""
    return t if b else f
