"""torch.ops: operators that torch.library was given, by namespace. PyTorch's own are not among them."""

from __future__ import annotations

import os
from typing import Any, NoReturn

from webtorch.as_torch.names.library import _OPERATORS


class _Namespace:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        found = _OPERATORS.get(f"{self._name}::{name}")
        if found is None:
            raise AttributeError(
                f"'_OpNamespace' '{self._name}' object has no attribute '{name}': webtorch knows the operators that "
                "torch.library was given; PyTorch's own are called by their public names"
            )
        return found

    def __dir__(self) -> list[str]:
        return [n.partition("::")[2] for n in _OPERATORS if n.startswith(f"{self._name}::")]


def load_library(path: str | os.PathLike[str]) -> NoReturn:
    """Raise OSError: libraries of C++ operators are written against PyTorch's core."""
    raise OSError(
        f"torch.ops.load_library: {os.fspath(path)} is compiled for PyTorch's C++ core, which webtorch does not have"
    )


loaded_libraries: set[str] = set()
_namespaces: dict[str, _Namespace] = {}


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _namespaces.setdefault(name, _Namespace(name))
