"""What this floor asks of the floors above it: they fill it in when they are loaded. Nothing is imported here.

Printing a tensor, making one from a scalar of Python and compiling a module are written with tensors, so they
stand above them; `Tensor.__repr__` asks for the first by its name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

_given: dict[str, Callable[..., Any]] = {}
# Rooms that are loaded when what they give is first asked for; the others are loaded with the package.
_ROOMS = {
    "alias": "webtorch.aten.parts",
    "as_called": "webtorch.aten.dispatch",
    "asked_for_kernels": "webtorch.aten.parts",
    "compile": "webtorch.capture",
    "run_rule": "webtorch.aten.dispatch",
    "layer": "webtorch.nn",
    "empty_sparse": "webtorch.sparse",
    "sparse_mask": "webtorch.sparse",
    "smm": "webtorch.sparse",
    "sparse_places": "webtorch.sparse",
    "sparse_rows": "webtorch.sparse",
    "sspaddmm": "webtorch.sparse",
    "storage_type": "webtorch.functions.storages",
    "to_sparse": "webtorch.sparse",
    "typed": "webtorch.functions.storages",
    "untyped": "webtorch.functions.storages",
}


def give(**functions: Callable[..., object]) -> None:
    """Fill in functions by the names under which they are asked for."""
    _given.update(functions)


def ask(name: str) -> Callable[..., Any]:
    """Return what was given under a name."""
    found = _given.get(name)
    if found is None:
        importlib.import_module(_ROOMS[name])
        found = _given[name]
    return found
