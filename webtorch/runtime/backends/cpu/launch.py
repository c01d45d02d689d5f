"""Calls of compiled kernels as functions of Python's own kind. Imports this backend's modules.

A kernel takes one block of cells: addresses, numbers. To pack one and to pass it on by ctypes takes a microsecond of
the interpreter's time, more than many kernels. The function here (`slotcode`) is called with the values
themselves (`METH_FASTCALL`), writes their cells and calls the kernel; for what takes a while it lets other threads
run meanwhile.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from webtorch.runtime.backends.cpu import jit, native_threads, slotcode

# So many values fit the block, besides the status words.
MOST = 62


class Call(NamedTuple):
    """A call of machine code: all of a kernel.

    `kinds` has a letter for each value that it is given: "Q" for an address or an integer, "d" for a floating-point
    number. `last` is the cell that follows them. `long`: other threads run Python meanwhile. `step`: so many points go
    to a thread at a time; 0 where this thread has them all.
    """

    native: jit.Native
    points: int
    kinds: str
    last: int
    long: bool = False
    step: int = 0


# The words that `self` points to: the kernel, its last point, how many values there are, which of them are floating
# point (a bit each), the cell that follows them, whether other threads may run meanwhile, how many points go to a
# thread, and the pool of threads.
_WORDS = ("kernel", "points", "count", "floats", "last", "long", "step", "pool")
_TEXT = """
def work(words: Words, block):
    kernel = words.kernel
    if int(words.step) == 0:
        kernel(0, int(words.points), block)
    else:
        shared = words.pool[0]
        shared(words.pool, kernel, 0, int(words.points), int(words.step), block)

def wt_launch(self, args, count: int) -> object:
    block = room(64)
    words: Words = PyLong_AsVoidPtr(self)
    if count != int(words.count):
        PyErr_BadArgument()
        return null
    floats = int(words.floats)
    for i in range(count):
        if floats & 1:
            block[i] = PyFloat_AsDouble(args[i])
        else:
            block[i] = PyLong_AsUnsignedLongLongMask(args[i])
        floats = floats >> 1
    block[count] = words.last
    if PyErr_Occurred() != null:
        return null
    if int(words.long):
        thread = PyEval_SaveThread()
        work(words, block)
        PyEval_RestoreThread(thread)
    else:
        work(words, block)
    return PyLong_FromLong(0)
"""
# How Python calls a function: with a row of values, or with a tuple and a dictionary.
_FASTCALL, _NAMED = 0x80, 0x3


class _Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_METHODS: dict[int, _Method] = {}


def builtin(
    name: bytes, address: int, words: ctypes.Array[Any], kept: object = None, named: bool = False
) -> Callable[..., Any]:
    """Return machine code as a function of Python's, whose `self` are words that must live as long as it does: it holds
    what is `kept`. `named`: it takes a tuple, and a dictionary or null.
    """
    # What a function is described by lives as long as the process.
    flags = _NAMED if named else _FASTCALL
    method = _METHODS.setdefault(address, _Method(name, address, flags, None))
    prototype = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object
    )
    make = prototype(("PyCFunction_NewEx", ctypes.pythonapi))
    made: Callable[..., Any] = make(ctypes.addressof(method), ctypes.addressof(words), kept)
    return made


@functools.cache
def _address() -> int:
    fields = {"Words": {name: 8 * n for n, name in enumerate(_WORDS)}}
    key = f"{_TEXT}{_WORDS}"
    return jit.assemble(lambda: slotcode.written(jit.tree(_TEXT), fields, {}), ("wt_launch",), key)[
        0
    ]


def launch(call: Call) -> tuple[Callable[..., object], object]:
    """Return a function that makes a call, of its values, and what must live as long as that does."""
    floats = sum(1 << i for i, kind in enumerate(call.kinds) if kind == "d")
    words = (ctypes.c_uint64 * 8)(
        call.native.address,
        call.points,
        len(call.kinds),
        floats,
        call.last,
        int(call.long),
        call.step,
        native_threads.POOL,
    )
    function = builtin(b"launch", _address(), words)
    return function, (words, call.native)
