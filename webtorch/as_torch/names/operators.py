"""torch.ops: operators that torch.library was given, by namespace. PyTorch's own are not among them."""

from __future__ import annotations

import os
from typing import Any, NoReturn

import webtorch
from webtorch.as_torch.names.library import _OPERATORS
from webtorch.tensors.absent import pytorch_names


def _is_known(name: str) -> bool:
    """Whether PyTorch may have an operator of this name: a public function, a method, or a part of one."""
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
        for place in (webtorch, webtorch.nn.functional, webtorch.Tensor):
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
