"""The way from `nn.functional` to the op table. May import floors 0 to 4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from webtorch.tensors.bind import NAMESPACES

__all__ = ["composite", "entries", "table"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Every function of the op table that PyTorch has in nn.functional, by name.
entries = NAMESPACES["nn.functional"]


def table(name: str) -> Callable[..., Any]:
    """Return the op table's function called `name`; KeyError if it has none."""
    return entries[name]


def composite(function: _Function) -> _Function:
    """Return the op table's function of the same name, or `function` when the table has none.

    What is written here with other operations steps back as soon as its op has an entry, whose
    kernel is the better one.
    """
    return entries.get(function.__name__, function)  # type: ignore[return-value]
