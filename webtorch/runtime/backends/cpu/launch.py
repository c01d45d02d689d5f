"""Calls of compiled kernels as functions of Python's own kind. Imports this backend's modules.

A kernel takes one block of cells: addresses, numbers. To pack one and to pass it on by ctypes takes a microsecond of
the interpreter's time, more than many kernels. The function here, in LLVM's own language, is called with the values
themselves (`METH_FASTCALL`), writes their cells and calls the kernel; for what takes a while it lets other threads
run meanwhile.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

from webtorch.runtime.backends.cpu import jit

# So many values fit the block, besides the status words.
MOST = 62

# The words that `self` points to: the kernel, its first and last points, how many values there are, which of them are
# floating point (a bit each), the cell that follows them, and whether other threads may run meanwhile.
_TEXT = """
declare ptr @PyLong_AsVoidPtr(ptr)
declare i64 @PyLong_AsUnsignedLongLongMask(ptr)
declare double @PyFloat_AsDouble(ptr)
declare ptr @PyErr_Occurred()
declare ptr @PyLong_FromLong(i64)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @PyErr_BadArgument()

define ptr @wt_launch(ptr %self, ptr %args, i64 %count) {
entry:
  %block = alloca [64 x i64], align 16
  %words = call ptr @PyLong_AsVoidPtr(ptr %self)
  %p3 = getelementptr i64, ptr %words, i64 3
  %wanted = load i64, ptr %p3
  %p4 = getelementptr i64, ptr %words, i64 4
  %floats = load i64, ptr %p4
  %right = icmp eq i64 %count, %wanted
  br i1 %right, label %next, label %wrong
wrong:
  call void @PyErr_BadArgument()
  ret ptr null
next:
  %i = phi i64 [ 0, %entry ], [ %i1, %stored ]
  %bits = phi i64 [ %floats, %entry ], [ %bits1, %stored ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %value, label %all
value:
  %from = getelementptr ptr, ptr %args, i64 %i
  %object = load ptr, ptr %from
  %cell = getelementptr i64, ptr %block, i64 %i
  %bit = and i64 %bits, 1
  %is_float = icmp ne i64 %bit, 0
  br i1 %is_float, label %float, label %whole
float:
  %d = call double @PyFloat_AsDouble(ptr %object)
  store double %d, ptr %cell
  br label %stored
whole:
  %n = call i64 @PyLong_AsUnsignedLongLongMask(ptr %object)
  store i64 %n, ptr %cell
  br label %stored
stored:
  %i1 = add i64 %i, 1
  %bits1 = lshr i64 %bits, 1
  br label %next
all:
  %p5 = getelementptr i64, ptr %words, i64 5
  %last = load i64, ptr %p5
  %end = getelementptr i64, ptr %block, i64 %count
  store i64 %last, ptr %end
  %error = call ptr @PyErr_Occurred()
  %failed = icmp ne ptr %error, null
  br i1 %failed, label %raised, label %ready
raised:
  ret ptr null
ready:
  %kernel = load ptr, ptr %words
  %p1 = getelementptr i64, ptr %words, i64 1
  %first = load i64, ptr %p1
  %p2 = getelementptr i64, ptr %words, i64 2
  %behind = load i64, ptr %p2
  %p6 = getelementptr i64, ptr %words, i64 6
  %long = load i64, ptr %p6
  %lets = icmp ne i64 %long, 0
  br i1 %lets, label %apart, label %here
apart:
  %thread = call ptr @PyEval_SaveThread()
  call void %kernel(i64 %first, i64 %behind, ptr %block)
  call void @PyEval_RestoreThread(ptr %thread)
  br label %done
here:
  call void %kernel(i64 %first, i64 %behind, ptr %block)
  br label %done
done:
  %zero = call ptr @PyLong_FromLong(i64 0)
  ret ptr %zero
}
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
    return jit.assemble(_TEXT, ("wt_launch",))[0]


def launch(
    native: jit.Native, count: int, kinds: Sequence[str], last: int, long: bool
) -> tuple[Callable[..., object], object]:
    """Return a function that runs points 0 to `count` of a kernel, and what must live as long as that does.

    It takes a value for each of `kinds`: "Q" for an address or an integer, "d" for a floating-point number. `last` is
    the cell that follows them. `long`: other threads run meanwhile.
    """
    floats = sum(1 << i for i, kind in enumerate(kinds) if kind == "d")
    words = (ctypes.c_uint64 * 7)(native.address, 0, count, len(kinds), floats, last, int(long))
    function = builtin(b"launch", _address(), words)
    return function, (words, native)
