"""The entries that users find in `nn.functional`, by name. May import floors 0 and 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from webtorch.ops.record import TABLE


def entries() -> dict[str, Callable[..., Any]]:
    """Return the functions of every entry that lists nn.functional, aliases included."""
    return {
        name: op.function
        for op in TABLE.values()
        if "nn.functional" in op.function_in
        for name in (op.name, *op.aliases)
    }


def __getattr__(name: str) -> Callable[..., Any]:
    found = entries().get(name)
    if found is None:
        raise AttributeError(f"nn.functional has no entry {name!r} in the op table")
    return found
