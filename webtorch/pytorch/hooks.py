"""Exceptions that hooks raise in a backward pass. Floor 6; imports PyTorch.

On its way out of a hook an exception passes a guard of PyTorch's, which asks Python for the device's type, with the
exception still set and in a C++ function that may not throw: CPython calls that a mistake, and the process ends. So
while a backward pass runs, the answer is a callable that first takes the exception away, in C; PyTorch's engine then
returns without a result and without an exception, and the one that was taken is raised in its stead. With a guard in
machine code (`guard`) nothing of this happens.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from webtorch.pytorch import guard
from webtorch_autoload.device import hide, state

_TYPE = torch._C._autograd.DeviceType.PrivateUse1


class _Taken(threading.local):
    """What was taken away in this thread and not raised yet."""

    def __init__(self) -> None:
        # Every node would run in a thread of the engine's own, which costs twice the time of the node.
        torch.autograd.set_multithreading_enabled(False)
        self.errors: list[BaseException] = []


_taken = _Taken()
# Where PyErr_Fetch puts references, which are ours then.
_fetched = (ctypes.c_void_p * 3)()
_release = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("Py_DecRef", ctypes.pythonapi))


def _object(place: int) -> Any:
    """Return what was fetched, the place's reference with it."""
    address = _fetched[place]
    if not address:
        return None
    found = ctypes.cast(address, ctypes.py_object).value
    _release(address)
    _fetched[place] = None
    return found


def _type(_: int) -> Any:
    """Return the device's type; keep what was fetched. No exception is set any more when this runs."""
    if _fetched[0]:
        kind, error, traceback = _object(0), _object(1), _object(2)
        if not isinstance(error, BaseException):
            arguments = error if isinstance(error, tuple) else () if error is None else (error,)
            error = kind(*arguments)
        _taken.errors.append(error.with_traceback(traceback))
    return _TYPE


_fetch: Any = ctypes.PYFUNCTYPE(ctypes.c_int)(("PyErr_Fetch", ctypes.pythonapi))
_fetch.restype = _type
# No function of Python runs before the exception is gone.
_answer = functools.partial(
    _fetch, *(ctypes.byref(_fetched, n * ctypes.sizeof(ctypes.c_void_p)) for n in range(3))
)


def _descend(levels: int) -> None:
    """Raise RecursionError where there is no room for so many calls, of Python and of C."""
    if levels:
        _descend_in_c(levels - 1)


_descend_in_c = functools.partial(_descend)
# The calls that `_answer` makes.
_LEVELS = 12


class _Engine(torch._C._ImperativeEngine):
    """PyTorch's autograd engine, whose backward passes survive what hooks raise."""

    # What is called where a pass begins.
    begin: Callable[[], None]
    # Passes at work, of all threads.
    depth = 0

    def run_backward(self, *args: object, **kwargs: object) -> tuple[torch.Tensor, ...]:
        """Run a backward pass. Raises what a hook raised."""
        _descend(_LEVELS)
        self.begin()
        asked = state["guard"]
        taken = _taken.errors
        before = len(taken)
        # Between these lines Python does not change threads: they call nothing.
        if not self.depth:
            self.quick, asked.type_ = asked.type_, _answer
        self.depth += 1
        try:
            return super().run_backward(*args, **kwargs)
        except SystemError:
            if len(taken) == before:
                raise
        finally:
            self.depth -= 1
            if not self.depth:
                asked.type_ = self.quick
        error = taken[-1]
        del taken[before:]
        raise error


class _Plain(torch._C._ImperativeEngine):
    """PyTorch's autograd engine, in the thread that calls."""

    # What is called where a pass begins.
    begin: Callable[[], None]

    def run_backward(self, *args: object, **kwargs: object) -> tuple[torch.Tensor, ...]:
        """Run a backward pass."""
        self.begin()
        _taken.errors  # noqa: B018  (the first time in a thread)
        return super().run_backward(*args, **kwargs)


def install(begin: Callable[[], None]) -> None:
    """Let backward passes survive what hooks raise, in the thread that calls; `begin` is called before each."""
    kind = _Plain if guard.install() else _Engine
    hide(kind.run_backward)
    engine = kind()
    engine.begin = begin
    torch.autograd.Variable._execution_engine = engine
