"""PyTorch's machinery for its tests, read from the installed wheel while `torch` means webtorch.

`torch.testing._internal` is Python on public names, so it serves webtorch too. What it names and webtorch
lacks is a stand-in, and so is what a test file names at its top: a file is read as a whole, and the tests
that use such a name fail one by one, in the words that webtorch has for it.
"""

from __future__ import annotations

import dis
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from importlib.metadata import distribution
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import webtorch
from webtorch.as_torch import finder, install_as_torch
from webtorch.as_torch.names import operators, top
from webtorch.as_torch.room import Room
from webtorch.nn.module_hooks import GLOBAL
from webtorch.tensors.host import bindings

WHEEL = Path(str(distribution("torch").locate_file("")))
# Files that are read from the wheel; all else is webtorch's.
BORROWED = ("torch.testing._internal", "torch.testing._comparison", "torch.utils._import_utils",
            "torch.testing._utils", "torch._utils", "torch._utils_internal", "torch._vendor", "functorch",
            "torch.masked.maskedtensor.unary", "torch.masked.maskedtensor.binary",
            "torch.masked.maskedtensor.reductions")  # fmt: skip
PARAMETERS = "torch.testing._internal.generated.annotated_fn_args"


def _assert_metadata_eq(equal: Callable[[object, object], object], one: Any, other: Any) -> None:
    """What a tensor without data has in common with one that has them."""
    for of in (
        lambda t: t.dtype, lambda t: t.shape, lambda t: t.requires_grad, lambda t: t.is_leaf, lambda t: t.layout,
        lambda t: t.stride(), lambda t: t.storage_offset(), lambda t: t._is_view(), lambda t: t.grad is None,
    ):  # fmt: skip
        equal(of(one), of(other))


# What the machinery asks PyTorch's core, and is told.
ANSWERS: dict[str, Any] = {
    "torch._C._get_privateuse1_backend_name": lambda: "privateuseone",
    "torch._utils._is_privateuse1_backend_available": lambda: False,
    "torch._subclasses.meta_utils.assert_metadata_eq": _assert_metadata_eq,
    # Parameters of functions, by the functions of PyTorch's core: those here say theirs themselves.
    f"{PARAMETERS}.annotated_args": {},
    "torch._inductor.utils.GPU_TYPES": ["cuda", "mps", "xpu", "mtia"],
}

# Who looks names up for others.
_BETWEEN = ("importlib", "pkgutil", "mock.py", "contextlib")
# Whether a test file is being read.
reading = False


def _asks_for_all(frame: FrameType | None) -> bool:
    """Whether who asks is the machinery, or a file that is being read."""
    if reading:
        return True
    while frame is not None and any(m in frame.f_code.co_filename for m in _BETWEEN):
        frame = frame.f_back
    if frame is None:
        return False
    return frame.f_code.co_filename.startswith(str(WHEEL / "torch"))


def _is_imported(frame: FrameType | None) -> bool:
    """Whether a file of the machinery is being read: its decorators and lists take stand-ins."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and code.co_filename.startswith(str(WHEEL / "torch")):
            return True
        frame = frame.f_back
    return False


def _by_getattr(frame: FrameType) -> bool:
    """Whether a name is looked up by getattr or hasattr: to learn if it is there."""
    called = dis.opname[frame.f_code.co_code[frame.f_lasti]] in ("CALL", "PRECALL")
    called = called and frame.f_code.co_name != "_getattr_qual"
    return called and not any(m in frame.f_code.co_filename for m in _BETWEEN)


class _Absent(type):
    """What is asked of a stand-in is a stand-in; it holds nothing, and a test that calls it is told why."""

    def __getattr__(cls, name: str) -> Any:
        if name == "__all__":
            return []
        if name == "parametrize_fn" or (name.startswith("__") and not hasattr(int, name)):
            raise AttributeError(name)
        return stand_in(f"{cls.__name__}.{name}", cls.__doc__ or "")

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        # What describes an operation calls it for a test.
        by_test = "opinfo" in frame.f_code.co_filename or "cpp_extension" in cls.__name__
        by_test = by_test and not _is_imported(frame)
        if by_test or not _asks_for_all(frame):
            raise NotImplementedError(cls.__doc__)
        return args[0] if len(args) == 1 and callable(args[0]) else cls

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __bool__(cls) -> bool:
        return False

    def __or__(cls, other: object) -> Any:
        return cls

    __ror__ = __or__


def stand_in(name: str, why: str) -> Any:
    """Return what stands for a name that webtorch lacks: a class, which may be a base and a decorator."""
    return ANSWERS.setdefault(name, _Absent(name, (), {"__doc__": why}))


class _Type(top.AbsentDType):
    """A type that is absent is a type all the same, to lists and decorators."""

    @property
    def __class__(self) -> Any:
        return webtorch.dtype


class _Borrowed:
    """Finds the borrowed files, and stand-ins for modules that import statements name."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module lies, None where webtorch is to answer."""
        if name != PARAMETERS and any(
            name == one or name.startswith(f"{one}.") for one in BORROWED
        ):
            file = WHEEL.joinpath(*name.split("."))
            if file.is_dir():
                return importlib.util.spec_from_file_location(
                    name, file / "__init__.py", submodule_search_locations=[str(file)]
                )
            return importlib.util.spec_from_file_location(name, file.with_suffix(".py"))
        absent = name.startswith("torch.") and finder.sources_of(name) is None
        if absent and finder._is_statement() and _asks_for_all(sys._getframe(1)):
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a module whose names are stand-ins."""
        module, whole = ModuleType(spec.name), stand_in(spec.name, finder._absent(spec.name))
        module.__getattr__ = lambda name: getattr(whole, name)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module has no file."""


def _with_stand_ins(found: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """Return a look-up that gives who asks for all a stand-in for what is absent."""

    def look(holder: Any, name: str) -> Any:
        try:
            return found(holder, name)
        except (AttributeError, ImportError) as error:
            frame = sys._getframe(1)
            if name.startswith("__") or _by_getattr(frame) or not _asks_for_all(frame):
                raise
            return stand_in(f"{getattr(holder, '__name__', 'torch.ops')}.{name}", str(error))

    return look


def install() -> None:
    """Let `torch` mean webtorch, with PyTorch's own machinery for tests."""
    install_as_torch()
    sys.meta_path.insert(0, _Borrowed())
    # PyTorch lists the layers there; ours stand in one module with all else.
    kinds = {n: getattr(webtorch.nn, n) for n in dir(webtorch.nn)}
    layers = [
        n for n, k in kinds.items() if isinstance(k, type) and issubclass(k, webtorch.nn.Module)
    ]
    importlib.import_module("torch.nn.modules").__dict__["__all__"] = layers
    for owner in (Room, operators._Namespace):
        owner.__getattr__ = _with_stand_ins(owner.__getattr__)
    absent = {n: v for n, v in vars(top).items() if isinstance(v, top.AbsentDType)}
    made = {v: _Type(v.name, v.is_floating_point, v.is_complex) for v in absent.values()}
    vars(top).update({name: made[value] for name, value in absent.items()})
    # Where the machinery's data lies.
    importlib.import_module("torch").__dict__["__file__"] = str(WHEEL / "torch" / "__init__.py")


def forget_hooks() -> None:
    """Take away the hooks of all modules that a test has left; PyTorch's file does so by private names."""
    for table in vars(GLOBAL).values():
        if isinstance(table, dict):
            table.clear()
    bindings.modules += 1
