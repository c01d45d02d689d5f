"""What functions and types are called in a graph's text and in its code, and names that no two things share."""

from __future__ import annotations

import builtins
import functools
import inspect
import keyword
import re
import sys
import types
from collections.abc import Callable
from typing import Any

from webtorch.tensors import override
from webtorch.tensors.tensor import Tensor

_PACKAGE = "webtorch"
# Where operators say that they are, as PyTorch's do.
_OPERATORS = "torch._ops."


def is_ours(obj: object) -> bool:
    """Whether something is the package's own, so that code names it by its place in `torch`."""
    module = getattr(obj, "__module__", None)
    return isinstance(module, str) and (
        module == _PACKAGE or module.startswith((f"{_PACKAGE}.", _OPERATORS))
    )


@functools.cache
def _public_place(obj: Any) -> str:
    """Return where users find a class or function of the package ("torch.nn.Linear")."""
    if obj is Tensor:
        return "torch.Tensor"
    if obj in override.names():
        return override.names()[obj]
    name = str(obj.__name__)
    home = place = str(obj.__module__)
    while home:
        # The outermost module that has it.
        if getattr(sys.modules.get(home), name, None) is obj:
            place = home
        home = home.rpartition(".")[0]
    return f"torch{place.removeprefix(_PACKAGE)}.{name}"


def qualified_name(func: Callable[..., object]) -> str:
    """Return what a function is called in code: "torch.relu", "getattr", "package.module.function"."""
    name = getattr(func, "__name__", "")
    if getattr(builtins, name, None) is func:
        return name
    if is_ours(func):
        if func.__module__.startswith(_OPERATORS):
            return f"{func.__module__.replace('torch._ops', 'torch.ops')}.{name}"
        return _public_place(func)
    if name == "<lambda>":
        # The name that it was given in its module.
        try:
            name = inspect.getsource(func).split("=")[0].strip()
        except Exception as error:
            raise RuntimeError("Unable to represent lambda") from error
    module = getattr(func, "__module__", None)
    if module is None:
        raise RuntimeError(f"cannot find module for {func}")
    return f"{module}.{name}"


def node_name(func: Callable[..., object]) -> str:
    """Return what a node is called that calls a function: "relu", "linalg_norm"."""
    _, _, place = override.names().get(func, "").partition("torch.")
    module, _, name = place.rpartition(".")
    if module == "nn.functional":
        return name
    return f"{module}_{name}" if module in ("linalg", "fft", "special") else str(func.__name__)


def type_repr(obj: object) -> str:
    """Return how a type is written in an annotation: a class by module and name, all else by its repr."""
    if isinstance(obj, type) and not isinstance(obj, types.GenericAlias):
        if obj.__module__ == "builtins":
            return obj.__qualname__
        return _public_place(obj) if is_ours(obj) else f"{obj.__module__}.{obj.__qualname__}"
    if obj is ...:
        return "..."
    if isinstance(obj, types.FunctionType):
        return obj.__name__
    return repr(obj)


_lower_then_upper = re.compile(r"(?<=[a-z])([A-Z])")


def snake_case(text: str) -> str:
    """Return `PascalCase` as `pascal_case`, and `ALL_CAPS` as `all_caps`."""
    return _lower_then_upper.sub(r"_\1", text).lower()


# Names that code may not give to anything else: name -> what has it.
_taken: dict[str, object] = {k: object() for k in keyword.kwlist} | vars(builtins)


def reserve(name: str, obj: object) -> None:
    """Keep a name for one object."""
    _taken[name] = obj


_illegal = re.compile(r"[^0-9a-zA-Z_]+")
_name_and_number = re.compile(r"^([a-zA-Z_][0-9a-zA-Z_]*?)(?:_(\d+))?$")


class Namespace:
    """Names, each given once, and the objects that have them."""

    def __init__(self) -> None:
        self._of: dict[object, str] = {}
        self._used: set[str] = set()
        # The last number that a name was given with.
        self._numbers: dict[str, int] = {}

    def create_name(self, candidate: str, obj: object | None) -> str:
        """Return the name of an object, or a new one like `candidate`."""
        if obj is not None and obj in self._of:
            return self._of[obj]
        match = _name_and_number.match(candidate)
        if match is None:
            candidate = _illegal.sub("_", candidate) or "_unnamed"
            if candidate[0].isdigit():
                candidate = f"_{candidate}"
            match = _name_and_number.match(candidate)
            assert match is not None
        base, digits = match.group(1, 2)
        if digits is None or candidate in self._used:
            number = self._numbers.get(base, 0)
            if _taken.get(candidate, obj) is not obj:
                number += 1
                candidate = f"{base}_{number}"
        else:
            number = int(digits)
        while candidate in self._used:
            number += 1
            candidate = f"{base}_{number}"
        self._used.add(candidate)
        self._numbers[base] = number
        if obj is not None:
            self._of[obj] = candidate
        return candidate

    def associate_name_with_obj(self, name: str, obj: object) -> None:
        """Give a name that was created to an object that has none."""
        if self._of.setdefault(obj, name) is not name:
            raise AssertionError("obj is already associated")

    def rename(self, obj: object, name: str) -> None:
        """Give an object another name."""
        self._of[obj] = name
        self._used.add(name)
