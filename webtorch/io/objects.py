"""Objects of any class in the files of `torch.save`: whole modules, and what else pickles.

They are written by what `__reduce_ex__` says, as Python's pickle does. Only `load(weights_only=False)`
makes objects of any class again, which runs code that the file names; else a file may hold objects of
the classes given to `add_safe_globals`. May import the tensor floor and nn.Parameter.
"""

from __future__ import annotations

import copyreg
import functools
import importlib
import inspect
import io
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

from webtorch import nn
from webtorch.io.pickle_machine import Call, Given, Name, Writer
from webtorch.nn.parameter import Parameter
from webtorch.ops.purity import warn
from webtorch.tensors.tensor import Tensor
from webtorch.version import PACKAGE

_NAMED = (type, FunctionType)
# Classes without a name in their module, by their only object.
_ONLY: dict[object, object] = {type(x): x for x in (None, NotImplemented, Ellipsis)}

# "module.name" -> the class or function that the user allows in files.
_safe: dict[str, object] = {}


def _full_name(one: Any) -> tuple[str, object]:
    if isinstance(one, tuple):
        return str(one[1]), one[0]
    return f"{one.__module__}.{one.__qualname__}", one


def add_safe_globals(safe_globals: Sequence[object]) -> None:
    """Allow `load(weights_only=True)` to make objects of these classes and to call these functions.

    An entry is a class or function, or a pair of it and its full name in files.
    """
    _safe.update(map(_full_name, safe_globals))


def get_safe_globals() -> list[object]:
    """Return what `add_safe_globals` was given."""
    return list(_safe.values())


def clear_safe_globals() -> None:
    """Allow no classes in files any more."""
    _safe.clear()


class safe_globals:
    """Allow classes and functions in files within a block, as `add_safe_globals` does."""

    def __init__(self, safe_globals: Sequence[object]) -> None:
        self.given = safe_globals
        self.before: dict[str, object] = {}

    def __enter__(self) -> None:
        self.before = dict(_safe)
        add_safe_globals(self.given)

    def __exit__(self, *_: object) -> None:
        _safe.clear()
        _safe.update(self.before)


def allowed() -> dict[str, Name]:
    """Return what the names that the user allows in files stand for."""
    return {name: Given(name, one) for name, one in _safe.items()}


def build(target: object, state: object) -> bool:
    """Set the state of an object whose class the user allows; whether it is one."""
    if not any(type(target) is one for one in _safe.values()):
        return False
    restore = getattr(target, "__setstate__", None)
    if restore is not None:
        restore(state)
        return True
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    if attributes:
        vars(target).update(attributes)
    for name, value in (slots or {}).items():
        setattr(target, name, value)
    return True


# ---- the source of classes, in files from before PyTorch 1.6


class SourceChangeWarning(Warning):
    """That the source of a class differs from the one in a file."""


def _source_of(kind: type[object]) -> str:
    return "".join(inspect.getsourcelines(kind)[0])


def source_of(kind: type[object]) -> tuple[str, str] | None:
    """Return the file and the source of a user's class of modules; None of other classes, and where there is none."""
    if not issubclass(kind, nn.Module) or kind.__module__.partition(".")[0] in (PACKAGE, "torch"):
        return None
    try:
        return inspect.getsourcefile(kind) or "", _source_of(kind)
    except (OSError, TypeError):
        warn(
            f"Couldn't retrieve source code for container of type {kind.__name__}. It won't be checked for correctness "
            "upon loading."
        )
        return None


def check_source(kind: object, saved: Sequence[object]) -> None:
    """Warn if the source of a class is not the one that a file has."""
    if not isinstance(kind, type) or len(saved) != 2:
        return
    try:
        changed = _source_of(kind) != saved[1]
    except (OSError, TypeError):
        return
    if changed:
        warn(
            f"source code of class '{kind.__module__}.{kind.__qualname__}' has changed. you can retrieve the original "
            "source code by accessing the object's source attribute or set `torch.nn.Module.dump_patches = True` and "
            "use the patch tool to revert the changes.",
            SourceChangeWarning,
        )


# ---- writing


def slots_of(kind: type[object]) -> list[str]:
    """Return the slots that a class of tensors has beyond those of Tensor."""
    own = {name for base in Tensor.__mro__ for name in vars(base).get("__slots__", ())}
    return [name for name in copyreg._slotnames(kind) if name not in own]  # type: ignore[attr-defined]


def attributes_of(x: Tensor) -> dict[str, object]:
    """Return what a user has set on a tensor: how a view was made, for one, is a part of its graph."""
    return {n: v for n, v in vars(x).items() if n != "_shown_device" and not hasattr(Tensor, n)}


def state_of(x: Tensor) -> object:
    """Return the attributes that a tensor has by itself, as its class gives them to pickle."""
    if "__getstate__" in {
        name for base in type(x).__mro__ for name in vars(base) if base is not object
    }:
        return x.__getstate__()
    attributes = attributes_of(x)
    slots = {name: getattr(x, name) for name in slots_of(type(x)) if hasattr(x, name)}
    return (attributes, slots) if slots else attributes


def write(w: Writer, value: object, path: tuple[object, ...]) -> None:
    """Write a value of any class. Raises PicklingError for one that has no name or does not pickle."""
    if isinstance(value, type) and value in _ONLY:
        w.name("builtins", "type")
        w.items((_ONLY[value],))
        w.out += b"R"
        return
    if isinstance(value, _NAMED):
        _write_name(w, value, value.__module__, value.__qualname__)
        return
    found = value.__reduce_ex__(2)
    if isinstance(found, str):
        _write_name(w, value, pickle.whichmodule(value, found), found)  # type: ignore[attr-defined]
        return
    function, args, state, items, pairs, restore = (*found, None, None, None, None)[:6]
    at = (*path, type(value).__name__)
    if function is copyreg.__newobj__:  # type: ignore[attr-defined]
        w.value(args[0], at)
        w.items(tuple(args[1:]), at)
        w.out += b"\x81"
    else:
        w.value(function, at)
        w.items(tuple(args), at)
        w.out += b"R"
    w.remember(value)
    for item in items or ():
        w.value(item, at)
        w.out += b"a"
    for key, item in pairs or ():
        w.value(key, at)
        w.value(item, at)
        w.out += b"s"
    if state is not None and restore is not None:
        w.value(restore, at)
        w.items((value, state), at)
        w.out += b"R0"
    elif state is not None:
        w.value(state, at)
        w.out += b"b"


def _write_name(w: Writer, value: object, module: str, name: str) -> None:
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not value:
        raise pickle.PicklingError(
            f"save: Can't pickle {value!r}: attribute lookup {name} on {module} failed: a file holds "
            "the names of classes and functions, so they must be found in their module. Move it to "
            "the top of one, or save a state_dict()"
        )
    outer, _, last = name.rpartition(".")
    if not outer:
        w.name(module, name)
        return
    # Protocol 2 has no dotted names.
    w.name("builtins", "getattr")
    w.items((functools.reduce(getattr, outer.split("."), sys.modules[module]), last))
    w.out += b"R"


# ---- reading what is trusted

_CLASSES: dict[str, object] = {
    "torch.Tensor": Tensor, "torch._tensor.Tensor": Tensor, "torch.nn.Parameter": Parameter,
    "torch.nn.parameter.Parameter": Parameter,
}  # fmt: skip


class _Finding:
    """What an unpickler is told, so that webtorch stands in PyTorch's place."""

    names: Mapping[str, object]
    persistent: Callable[[object], object]

    def persistent_load(self, pid: object) -> object:
        """Return the storage that a persistent id names."""
        return self.persistent(pid)

    def find_class(self, module: str, name: str) -> object:
        """Return what a global name of the pickle stands for: PyTorch's names mean ours."""
        full = f"{module}.{name}"
        if full in _CLASSES:
            return _CLASSES[full]
        if full == "torch._tensor._rebuild_from_type_v2":
            return _from_type
        known = self.names.get(full)
        if known is not None:
            return known.function if isinstance(known, Call) else known
        if module == "torch" or module.startswith("torch."):
            return _counterpart(module, name)
        return super().find_class(module, name)  # type: ignore[misc]


def of_class(tensor: Any, kind: type[object]) -> Any:
    """Return a leaf that is a tensor as one of class `kind`."""
    if type(tensor) is kind:
        return tensor
    return Tensor._make_subclass(kind, tensor.detach(), tensor.requires_grad)


def _from_type(make: Callable[..., Any], kind: type[object], args: Any, state: object) -> object:
    made = of_class(make(*args), kind)
    if hasattr(kind, "__setstate__"):
        made.__setstate__(state)
        return made
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    vars(made).update(attributes or {})
    for name, value in (slots or {}).items():
        setattr(made, name, value)
    return made


def _counterpart(module: str, name: str) -> object:
    """Return webtorch's class or function for one of PyTorch's, of that module or one around it."""
    parts = module.split(".")[1:]
    if parts[:2] == ["nn", "modules"]:
        # Some classes are not among the names of torch.nn itself.
        files = [vars(m) for n, m in sorted(sys.modules.items()) if n.startswith("webtorch.nn.")]
        inner = [f[name] for f in files if isinstance(f.get(name), type)]
        if inner and not hasattr(nn, name):
            return inner[0]
        parts = ["nn"]
    while True:
        try:
            return getattr(importlib.import_module(".".join(["webtorch", *parts])), name)
        except (ImportError, AttributeError):
            if not parts:
                break
            parts.pop()
    raise pickle.UnpicklingError(
        f"load: the file holds an object of {module}.{name}, which webtorch {PACKAGE} does not have"
    )


def read(
    data: bytes,
    names: Mapping[str, object],
    persistent: Callable[[object], object],
    module: Any = pickle,
    **options: object,
) -> object:
    """Return the value that a pickle describes, running the code that it names; `module` unpickles."""
    kind: Any = type("Unpickler", (_Finding, module.Unpickler), {})
    unpickler = kind(io.BytesIO(data), **{"encoding": "utf-8", **options})
    unpickler.names, unpickler.persistent = names, persistent
    found: object = unpickler.load()
    return found
