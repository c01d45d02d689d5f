"""PyTorch's own kernels for views, which look at no memory: the CPU's, lent to the device. Floor 6; imports PyTorch.

Python can register functions of Python only, so a view is one that calls the CPU's kernel: 2 to 4 us of the thread, of
1 that the view takes. A table of PyTorch's says which kernel an operator has for a device; an entry is four words. Here
those of the CPU are written over those of the function of Python. Whoever registers something for the operator makes
PyTorch write the entry anew, and gets the function of Python back, which does the same. So does a PyTorch whose headers
say another form of the table (before 2.10, which tells of no kernel).
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import torch
from torch._ops import OpOverload

# What the words of an entry follow from: a table of entries in an operator, and the members of an entry.
_FORM = {
    "dispatch/Dispatcher.h": ("impl::OperatorEntry op;", "Dispatcher::OperatorDef* operatorDef_;"),
    "dispatch/OperatorEntry.h": (
        "std::array<KernelFunction, c10::num_runtime_entries> dispatchTable_;",
    ),
    "boxing/BoxedKernel.h": (
        "c10::intrusive_ptr<OperatorKernel> functor_;",
        "InternalBoxedKernelFunction* boxed_kernel_func_;",
    ),
    "boxing/KernelFunction.h": (
        "BoxedKernel boxed_kernel_func_;",
        "void* unboxed_kernel_func_;",
        "void* sym_unboxed_kernel_func_;",
        "KernelFunction kernel_;",
    ),
}
_WORD = ctypes.sizeof(ctypes.c_size_t)
# Of an entry: the object that is called, and the three ways to call it.
_ENTRY = 4
# The device's entry of a table is within so many words of its operator, whose table has more of them.
_REACH = 400


def _is_known() -> bool:
    """Whether PyTorch's tables have the form that is known here."""
    root = Path(torch.__file__).parent / "include/ATen/core"
    try:
        texts = {name: (root / name).read_text("utf-8") for name in _FORM}
    except OSError:
        return False
    for name, lines in _FORM.items():
        places = [texts[name].find(line) for line in lines]
        if -1 in places or places != sorted(places):
            return False
    return True


def _words(address: int, count: int) -> list[int]:
    return list((ctypes.c_size_t * count).from_address(address))


def _object(made: object) -> int:
    """Return where an object of PyTorch's is that Python has: the word after what all objects begin with."""
    return _words(id(made) + object.__basicsize__, 1)[0]


def _entry(name: str, key: str) -> tuple[object, list[int]]:
    """Return a kernel of PyTorch's, and the words of its entry."""
    kernel = torch._C._dispatch_get_computed_kernel_for_dispatch_key(f"aten::{name}", key)
    return kernel, _words(_object(kernel), _ENTRY)


def _find(table: list[int], entry: list[int]) -> int | None:
    """Return where an entry is in the words of an operator."""
    places = [i for i in range(len(table)) if table[i : i + _ENTRY] == entry]
    return places[0] if len(places) == 1 else None


def lend(operators: dict[str, OpOverload]) -> bool:
    """Give operators, which have a function of Python for the device, the CPU's kernels, all or none; return whether
    they have them.
    """
    tell = getattr(torch._C, "_dispatch_get_computed_kernel_for_dispatch_key", None)
    if sys.platform == "win32" or tell is None or not _is_known():
        return False
    found = []
    for name, operator in operators.items():
        kernel, theirs = _entry(name, "CPU")
        _, ours = _entry(name, "PrivateUse1")
        begin = _words(_object(operator._handle), 1)[0]
        place = _find(_words(begin, _REACH), ours)
        # A function of Python is called in a box alone.
        if place is None or any(ours[2:]) or not any(theirs[2:]):
            return False
        found.append((begin + place * _WORD, kernel, theirs))
    for address, kernel, theirs in found:
        # The entry counts as one that has the kernel: the kernel's object, which does, never dies.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kernel))
        ctypes.memmove(address, (ctypes.c_size_t * _ENTRY)(*theirs), _ENTRY * _WORD)
    return True
