"""What `script` and `trace` return: the Python code itself, whose errors are TorchScript's. Floor 1."""

from __future__ import annotations

import dis
import functools
import traceback
from types import FunctionType, TracebackType
from typing import Any, TypeVar, cast

from webtorch.ir.lines import is_internal

T = TypeVar("T")
_RAISES = dis.opmap["RAISE_VARARGS"]
# Errors of operators and of arguments: TorchScript's interpreter has one kind for them.
_ONE_KIND = (
    AssertionError,
    AttributeError,
    IndexError,
    KeyError,
    TypeError,
    ValueError,
    ZeroDivisionError,
)


class Error(Exception):
    """What code that was scripted raises in PyTorch where it says `raise` or `assert`."""


class ScriptModule:
    """What the modules that `script` and `trace` return are, beside their own class."""


class ScriptFunction:
    """A class that no object is an instance of, for checks with isinstance."""


def scripted(obj: T) -> T:
    """Return a function, or a module that shares all it has with `obj`, with TorchScript's errors; else `obj`."""
    if type(obj) is FunctionType:
        return obj if "__scripted__" in vars(obj) else cast("T", _watched(obj))
    if isinstance(obj, (type, ScriptModule)) or not hasattr(type(obj), "_call_impl"):
        return obj
    twin = _new(type(obj))
    twin.__dict__ = obj.__dict__
    return cast("T", twin)


def _new(kind: type) -> object:
    """Return an empty module of a class, with TorchScript's errors."""
    return object.__new__(_class(kind))


@functools.cache
def _class(kind: Any) -> type:
    def __reduce_ex__(self: Any, protocol: Any) -> object:
        made = kind.__reduce_ex__(self, protocol)
        known = made[1][:1] == (type(self),)
        return (_new, (kind,), *made[2:]) if known else made

    own = {"forward": _watched(kind.forward), "__reduce_ex__": __reduce_ex__}
    names = {n: getattr(kind, n) for n in ("__module__", "__qualname__", "__doc__")}
    return type(kind)(kind.__name__, (ScriptModule, kind), {**names, **own})


def _watched(func: Any) -> object:
    """Return a function that raises TorchScript's errors where `func` raises its own."""

    @functools.wraps(func)
    def run(*args: object, **kwargs: object) -> object:
        """Call the function; its errors are TorchScript's."""
        try:
            return func(*args, **kwargs)
        except Error:
            raise
        except Exception as error:
            raise _of_torchscript(error) from error

    run.__scripted__ = True  # type: ignore[attr-defined]
    return run


def _of_torchscript(error: Exception) -> Exception:
    """Return what TorchScript raises for an error: `Error` for those that code says, RuntimeError for others."""
    last = cast("TracebackType", error.__traceback__)
    while last.tb_next is not None:
        last = last.tb_next
    code = last.tb_frame.f_code
    said = not is_internal(code) and code.co_code[last.tb_lasti] == _RAISES
    if not said and type(error) not in _ONE_KIND:
        return error
    frames = [f for f in traceback.walk_tb(error.__traceback__) if not is_internal(f[0].f_code)]
    lines = "".join(traceback.StackSummary.extract(iter(frames)).format())
    kind = "RuntimeError: AssertionError" if type(error) is AssertionError else type(error).__name__
    text = (
        "The following operation failed in the TorchScript interpreter.\n"
        f"Traceback of TorchScript (most recent call last):\n{lines}{kind}: {error}\n"
    )
    return (Error if said else RuntimeError)(text)
