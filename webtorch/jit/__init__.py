"""`webtorch.jit`: functions that TorchScript would compile stay Python functions. Floor 1.

`script` and `trace` return what they are given, with TorchScript's errors, and say so once: it computes the same.
There is no file format of programs here; `webtorch.compile` captures a step, `webtorch.web.export` writes one.
"""

from __future__ import annotations

import types
import typing
import warnings
from typing import Any, Final, NoReturn, TypeVar

from webtorch.ir.lines import user_depth
from webtorch.jit.scripted import Error, ScriptFunction, ScriptModule, scripted

__all__ = [
    "Attribute", "Error", "Final", "ScriptFunction", "ScriptModule", "annotate", "export", "freeze", "ignore",
    "interface", "is_scripting", "is_tracing", "isinstance", "load", "optimize_for_inference", "save", "script",
    "script_if_tracing", "trace", "trace_module", "unused",
]  # fmt: skip

T = TypeVar("T")
_said: set[str] = set()


class TracerWarning(Warning):
    """What PyTorch warns of while it traces: here nothing does, and programs filter it."""


def _say(name: str) -> None:
    if name not in _said:
        _said.add(name)
        warnings.warn(
            f"torch.jit.{name}: webtorch has no TorchScript; the Python code itself is used and computes "
            "the same",
            stacklevel=user_depth(),
        )


def _overload(func: T) -> T:
    """Return a function that only declares types."""
    return func


def script(
    obj: T,
    optimize: object = None,
    _frames_up: int = 0,
    _rcb: object = None,
    example_inputs: object = None,
) -> T:
    """Return what computes as `obj` does, with TorchScript's errors; it warns the first time."""
    _say("script")
    if getattr(obj, "has_uninitialized_params", bool)():
        raise RuntimeError(
            f"'{type(obj).__name__}' has uninitialized parameters. Did you forget to run a forward pass?"
        )
    return scripted(obj)


class Future:
    """The result of a `fork`."""

    def __init__(self, value: Any) -> None:
        """Take the result."""
        self._value = value

    def wait(self) -> Any:
        """Return the result."""
        return self._value

    value = wait

    def done(self) -> bool:
        """Return True: what is forked runs at once."""
        return True


def fork(func: Any, *args: object, **kwargs: object) -> Future:
    """Return what holds the result of a call, which is made at once."""
    return Future(func(*args, **kwargs))


def wait(future: Future) -> Any:
    """Return the result of a `fork`."""
    return future.wait()


_fork, _wait = fork, wait


def trace(
    func: T,
    example_inputs: object = None,
    optimize: object = None,
    check_trace: bool = True,
    check_inputs: object = None,
    check_tolerance: float = 1e-05,
    strict: bool = True,
    _force_outplace: bool = False,
    _module_class: object = None,
    _compilation_unit: object = None,
    example_kwarg_inputs: dict[str, object] | None = None,
    _store_inputs: bool = True,
) -> T:
    """Return what computes as `func` does, with a warning the first time. Unlike a trace it keeps its branches.

    It is called once, as PyTorch's is, so that what it raises is raised here.
    """
    _say("trace")
    if example_inputs is not None or example_kwarg_inputs is not None:
        given: Any = () if example_inputs is None else example_inputs
        run: Any = func
        run(
            *(given if isinstance(given, (tuple, list)) else (given,)),
            **(example_kwarg_inputs or {}),
        )
    return scripted(func)


def trace_module(mod: T, inputs: object, *args: object, **kwargs: object) -> T:
    """Return what computes as `mod` does, with a warning the first time."""
    _say("trace_module")
    return scripted(mod)


def script_if_tracing(fn: T) -> T:
    """Return `fn` itself: nothing is ever traced."""
    return fn


def freeze(
    mod: T,
    preserved_attrs: object = None,
    optimize_numerics: bool = True,
    preserve_parameters: bool = False,
) -> T:
    """Return `mod` itself."""
    return mod


def optimize_for_inference(mod: T, other_methods: object = None) -> T:
    """Return `mod` itself."""
    return mod


def ignore(drop: object = False, **kwargs: object) -> Any:
    """Mark a method that TorchScript would not compile: nothing is compiled here."""
    return drop if callable(drop) else lambda fn: fn


def unused(fn: T) -> T:
    """Mark a method that TorchScript would not compile: nothing is compiled here."""
    return fn


def export(fn: T) -> T:
    """Mark a method that TorchScript would compile: nothing is compiled here."""
    return fn


def interface(obj: T) -> T:
    """Return a class that only declares methods: nothing is compiled here."""
    return obj


def is_scripting() -> bool:
    """Return False."""
    return False


def is_tracing() -> bool:
    """Return False."""
    return False


def annotate(the_type: object, the_value: T) -> T:
    """Return the value."""
    return the_value


def Attribute(value: T, type: object = None) -> T:
    """Return the value."""
    return value


def isinstance(obj: Any, target_type: Any) -> bool:
    """Whether `obj` is an instance of a class, or of a type such as list[int] or Optional[str]."""
    import builtins

    if builtins.isinstance(target_type, tuple):
        return any(isinstance(obj, kind) for kind in target_type)
    origin, parts = typing.get_origin(target_type), typing.get_args(target_type)
    if origin is None:
        return builtins.isinstance(obj, target_type or type(None))
    if origin in (typing.Union, types.UnionType):
        return any(isinstance(obj, kind) for kind in parts)
    if not builtins.isinstance(obj, origin):
        return False
    if origin is dict:
        return all(isinstance(k, parts[0]) and isinstance(v, parts[1]) for k, v in obj.items())
    if origin is tuple:
        return len(obj) == len(parts) and all(map(isinstance, obj, parts))
    return all(isinstance(x, parts[0]) for x in obj)


def save(m: object, f: object, _extra_files: object = None) -> NoReturn:
    """Raise: there is no TorchScript."""
    raise RuntimeError(
        "torch.jit.save: webtorch has no TorchScript programs. Save the module's state_dict() with "
        "torch.save, or export a compiled step with webtorch.web.export"
    )


def load(f: object, map_location: object = None, _extra_files: object = None) -> NoReturn:
    """Raise: there is no TorchScript."""
    raise RuntimeError(
        "torch.jit.load: webtorch has no TorchScript programs. Build the module in Python and load its "
        "state_dict()"
    )


_script_if_tracing = script_if_tracing


def _overload_method(func: T) -> T:
    return func
