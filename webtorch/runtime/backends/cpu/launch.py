"""Calls of compiled kernels as functions of Python's own kind. Imports this backend's modules.

A kernel takes one block of cells: addresses, numbers. To pack one and to pass it on by ctypes takes a microsecond of
the interpreter's time, more than many kernels. The function here, in LLVM's own language, is called with the values
themselves (`METH_FASTCALL`), writes their cells and calls the kernel; for what takes a while it lets other threads
run meanwhile.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from webtorch.runtime.backends.cpu import jit, native_threads

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
_TEXT = """
declare ptr @PyLong_AsVoidPtr(ptr)
declare i64 @PyLong_AsUnsignedLongLongMask(ptr)
declare double @PyFloat_AsDouble(ptr)
declare ptr @PyErr_Occurred()
declare ptr @PyLong_FromLong(i64)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @PyErr_BadArgument()

define internal void @work(ptr %words, ptr %block) {
entry:
  %kernel = load ptr, ptr %words
  %p1 = getelementptr i64, ptr %words, i64 1
  %behind = load i64, ptr %p1
  %p6 = getelementptr i64, ptr %words, i64 6
  %step = load i64, ptr %p6
  %alone = icmp eq i64 %step, 0
  br i1 %alone, label %here, label %share
here:
  call void %kernel(i64 0, i64 %behind, ptr %block)
  ret void
share:
  %p7 = getelementptr i64, ptr %words, i64 7
  %pool = load ptr, ptr %p7
  %shared = load ptr, ptr %pool
  call void %shared(ptr %pool, ptr %kernel, i64 0, i64 %behind, i64 %step, ptr %block)
  ret void
}

define ptr @wt_launch(ptr %self, ptr %args, i64 %count) {
entry:
  %block = alloca [64 x i64], align 16
  %words = call ptr @PyLong_AsVoidPtr(ptr %self)
  %p2 = getelementptr i64, ptr %words, i64 2
  %wanted = load i64, ptr %p2
  %p3 = getelementptr i64, ptr %words, i64 3
  %floats = load i64, ptr %p3
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
  %p4 = getelementptr i64, ptr %words, i64 4
  %last = load i64, ptr %p4
  %end = getelementptr i64, ptr %block, i64 %count
  store i64 %last, ptr %end
  %error = call ptr @PyErr_Occurred()
  %failed = icmp ne ptr %error, null
  br i1 %failed, label %raised, label %ready
raised:
  ret ptr null
ready:
  %p5 = getelementptr i64, ptr %words, i64 5
  %long = load i64, ptr %p5
  %lets = icmp ne i64 %long, 0
  br i1 %lets, label %apart, label %here
apart:
  %thread = call ptr @PyEval_SaveThread()
  call void @work(ptr %words, ptr %block)
  call void @PyEval_RestoreThread(ptr %thread)
  br label %done
here:
  call void @work(ptr %words, ptr %block)
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
