"""Where objects keep their slots, and functions of machine code that read and make them. Imports this backend's
modules.
"""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from webtorch.runtime.backends.cpu import jit, launch, slotcode


class _Member(ctypes.Structure):
    """PyMemberDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("kind", ctypes.c_int),
        ("offset", ctypes.c_ssize_t),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class _Slot(ctypes.Structure):
    """PyMemberDescrObject, behind what every object begins with."""

    _fields_ = (
        ("owner", ctypes.c_void_p),
        ("name", ctypes.c_void_p),
        ("qualified", ctypes.c_void_p),
        ("member", ctypes.POINTER(_Member)),
    )


# What texts begin with. The class of an object is a word of it.
_HELP = """
def type_of(x) -> object:
    return x[TYPE]

def is_a(x, cls) -> bool:
    return x != null and type_of(x) == cls

def held(x) -> object:
    Py_IncRef(x)
    return x

def put(place, value):
    # Put another value into a slot.
    old = place[0]
    place[0] = held(value)
    Py_DecRef(old)
"""
# The kind of a member that is an object, or not there.
_OBJECT = 16


def offsets(cls: type[object]) -> dict[str, int]:
    """Return where objects of a class keep what its slots hold."""
    found: dict[str, int] = {}
    for base in reversed(cls.__mro__):
        for name, slot in vars(base).items():
            found.pop(name, None)
            if type(slot).__name__ == "member_descriptor":
                member = _Slot.from_address(id(slot) + object.__basicsize__).member.contents
                if member.name == name.encode() and member.kind == _OBJECT:
                    found[name] = int(member.offset)
    return found


def assembled(
    source: str,
    names: tuple[str, ...],
    classes: Mapping[str, type[object]],
    structs: Mapping[str, Sequence[str]],
    numbers: Mapping[str, int],
) -> Sequence[int] | None:
    """Return where the functions of a text (see `slotcode`) are; None where there is no machine code, or objects are
    of another making.

    `classes` and `structs` are what it says of addresses: slots, and words in a row. `numbers` are its other names.
    """
    if not jit.available() or sys.implementation.name != "cpython":
        return None
    if ctypes.sizeof(ctypes.c_void_p) != 8 or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    fields = {name: offsets(cls) for name, cls in classes.items()}
    fields |= {name: {word: 8 * n for n, word in enumerate(ws)} for name, ws in structs.items()}
    known = {"TYPE": object.__basicsize__ // 8 - 1, **numbers}

    def text() -> str:
        """Return the text in LLVM's own language."""
        return slotcode.written(jit.tree(_HELP + source), fields, known)

    try:
        return jit.assemble(text, names, f"{_HELP}{source}{fields}{known}")
    except LookupError:
        return None


def cells(objects: Sequence[object], numbers: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    """Return words that `self` may point to: objects, which somebody else holds, and numbers."""
    words = [*map(id, objects), *numbers]
    return (ctypes.c_int64 * len(words))(*words)


def function(
    name: bytes,
    address: int,
    objects: Sequence[object],
    numbers: Sequence[int] = (),
    kept: object = None,
    named: bool = False,
) -> Callable[..., Any]:
    """Return machine code as a function of Python's, whose `self` are words: objects, and numbers. It holds the
    objects, and what is `kept` for it. `named`: see `launch.builtin`.
    """
    words = cells(objects, numbers)
    return launch.builtin(name, address, words, (words, objects, kept), named)
