"""torch.ops: operators that torch.library was given, by namespace. PyTorch's own are not among them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from webtorch import nn
from webtorch.as_torch.names.library import _OPERATORS
from webtorch.tensors.absent import pytorch_names
from webtorch.tensors.tensor import Tensor


def _alias(x: Any) -> Any:
    return x.view(x.shape)


def _slice(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    return x[(slice(None),) * (dim % x.ndim) + (slice(start, end, step),)]


def _index(x: Any, indices: Any) -> Any:
    return x[tuple(slice(None) if i is None else i for i in indices)]


# Operators that Python writes otherwise.
_WRITTEN: dict[str, Callable[..., Any]] = {
    "alias": _alias,
    "slice": _slice,
    "index": _index,
    "lift_fresh": _alias,
}


def _is_known(name: str) -> bool:
    """Whether PyTorch may have an operator of this name: a public function, a method, or a part of one."""
    if name in _WRITTEN:
        return True
    if name.startswith("_"):
        return not name.startswith("__")
    return any(name in pytorch_names().get(place, ()) for place in ("", "Tensor", "nn.functional"))


class _Aten:
    """An operator of PyTorch's own: a name to compare with, which calls the public function of that name."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self._qualified_op_name = f"aten::{name}"

    def __repr__(self) -> str:
        return f"<OpOverloadPacket(op='aten.{self.__name__}')>"

    def __getattr__(self, overload: str) -> _Aten:
        # Its overloads (default, Tensor, out, ...) are one here: the function looks at its arguments.
        if overload.startswith("_"):
            raise AttributeError(overload)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.__name__ in _WRITTEN:
            return _WRITTEN[self.__name__](*args, **kwargs)
        for place in (sys.modules["webtorch"], nn.functional, Tensor):
            found = getattr(place, self.__name__, None)
            if found is not None:
                return found(*args, **kwargs)
        raise NotImplementedError(
            f"torch.ops.aten.{self.__name__}: webtorch has no public function of this name"
        )


class _Namespace:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        found = _OPERATORS.get(f"{self._name}::{name}")
        if found is None and self._name == "aten" and _is_known(name):
            return self.__dict__.setdefault(name, _Aten(name))
        if found is None:
            raise AttributeError(
                f"'_OpNamespace' '{self._name}' object has no attribute '{name}': webtorch knows the operators that "
                "torch.library was given; PyTorch's own are called by their public names"
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
