"""Where objects keep their slots, and functions of machine code that read and make them. Imports this backend's
modules.
"""

from __future__ import annotations

import ctypes
import re
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from webtorch.runtime.backends.cpu import jit, launch


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


# What texts begin with: an object, and a number, of what lies at a place.
_HELP = """
define internal ptr @at(ptr %object, i64 %offset) alwaysinline {
  %place = getelementptr i8, ptr %object, i64 %offset
  %found = load ptr, ptr %place
  ret ptr %found
}

define internal i64 @whole(ptr %object, i64 %offset) alwaysinline {
  %place = getelementptr i8, ptr %object, i64 %offset
  %found = load i64, ptr %place
  ret i64 %found
}
"""
# The kind of a member that is an object, or not there.
_OBJECT = 16


def offset(cls: type[object], name: str) -> int:
    """Return where objects of a class keep a slot. Raises LookupError for what is none."""
    for base in cls.__mro__:
        if name in vars(base):
            slot = vars(base)[name]
            if type(slot).__name__ != "member_descriptor":
                break
            member = _Slot.from_address(id(slot) + object.__basicsize__).member.contents
            if member.name != name.encode() or member.kind != _OBJECT:
                break
            return int(member.offset)
    raise LookupError(f"{cls.__name__}.{name} is no slot")


def text(
    text: str, classes: Mapping[str, type[object]], words: Sequence[str], others: Mapping[str, int]
) -> str:
    """Return a text in LLVM's own language with numbers for names in it, behind `_HELP`.

    The names are TYPE (where an object keeps its class), those of `others`, and what has two parts: NODE_kind is where
    objects of `classes["NODE"]` keep `kind`, WORD_kind where the word of this name is, in bytes, and IS_kind its
    number. Raises LookupError where something is no slot.
    """
    known = {"TYPE": object.__basicsize__ - 8, **others}

    def place(found: re.Match[str]) -> str:
        """Return the number that stands for a name."""
        if found[0] in known:
            return str(known[found[0]])
        kind, name = found.groups()
        if kind in ("IS", "WORD"):
            number = words.index(name)
            return str(number if kind == "IS" else 8 * number)
        return str(offset(classes[kind], name))

    names = re.sub(rf"\b({'|'.join(known)})\b", place, text)
    return _HELP + re.sub(r"\b([A-Z][A-Z_]*[A-Z])_([a-z_]+)\b", place, names)


def assembled(
    source: str,
    names: tuple[str, ...],
    classes: Mapping[str, type[object]],
    words: Sequence[str],
    others: Mapping[str, int],
) -> Sequence[int] | None:
    """Return where the functions of a text are (see `text`); None where there is no machine code, or objects are of
    another making.
    """
    if not jit.available() or sys.implementation.name != "cpython":
        return None
    if ctypes.sizeof(ctypes.c_void_p) != 8 or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    try:
        return jit.assemble(text(source, classes, words, others), names)
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
