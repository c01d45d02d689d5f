"""The way from `nn.functional` to the op table. May import floors 0 to 4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from webtorch.functions.bind import NAMESPACES

__all__ = ["entries", "table"]

# Every function of the op table that PyTorch has in nn.functional, by name.
entries = NAMESPACES["nn.functional"]


def table(name: str) -> Callable[..., Any]:
    """Return the op table's function called `name`; KeyError if it has none."""
    return entries[name]
