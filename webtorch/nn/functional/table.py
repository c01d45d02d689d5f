"""The way from `nn.functional` to the op table. May import the op floor only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from webtorch.ops import functional as entries

__all__ = ["composite", "table"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def table(name: str, otherwise: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return the op table's function called `name`, or `otherwise` when the table has none.

    A function written here from other operations steps back as soon as its op has an entry, whose
    kernel is the better one.
    """
    found = getattr(entries, name, None) if otherwise is not None else getattr(entries, name)
    return otherwise if found is None and otherwise is not None else found


def composite(function: _Function) -> _Function:
    """Return the op table's function of the same name, or `function` when the table has none."""
    return table(function.__name__, function)  # type: ignore[return-value]
