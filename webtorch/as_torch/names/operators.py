"""torch.ops: operators by namespace, those that torch.library was given, and PyTorch's own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from webtorch.as_torch.names.library import _OPERATORS
from webtorch.aten.parts import aten
from webtorch.profiler import record_function


def _enter(name: str, args: str | None = None) -> record_function:
    """Begin a range of a profile, and return it."""
    return record_function(name, args).__enter__()


# torch.ops.profiler: ranges that begin and end by calls.
_RANGES: dict[str, object] = {
    "_record_function_enter": _enter,
    "_record_function_enter_new": _enter,
    "_record_function_exit": lambda handle: handle.__exit__(),
}


class _Namespace:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        found = _OPERATORS.get(f"{self._name}::{name}")
        if found is None and self._name == "profiler" and name in _RANGES:
            return _RANGES[name]
        if found is None and self._name.endswith(("c10d", "c10d_functional")):
            from webtorch.distributed.counting import NAMES, Collective

            space = self._name.removeprefix("_")
            if name in NAMES[space].values():
                return Collective(space, name)
        if found is None and self._name == "aten":
            return getattr(aten, name)
        if found is None:
            raise AttributeError(
                f"'_OpNamespace' '{self._name}' object has no attribute '{name}': webtorch knows the operators that "
                "torch.library was given, and PyTorch's own as `torch.ops.aten`"
            )
        return found

    def __dir__(self) -> list[str]:
        return [n.partition("::")[2] for n in _OPERATORS if n.startswith(f"{self._name}::")]


def load_library(path: str | os.PathLike[str]) -> None:
    """Take torchvision's operators from here. Raises OSError for other libraries of C++ operators: they
    are written against PyTorch's core.
    """
    place = Path(path)
    if place.parent.name == "torchvision" and place.name.partition(".")[0] == "_C":
        from webtorch.as_torch.names import torchvision_operators

        return torchvision_operators.register()
    raise OSError(
        f"torch.ops.load_library: {os.fspath(path)} is compiled for PyTorch's C++ core, which webtorch does not have"
    )


loaded_libraries: set[str] = set()
_namespaces: dict[str, _Namespace] = {}


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _namespaces.setdefault(name, _Namespace(name))
