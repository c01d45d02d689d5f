"""Remembers cheaply which line of the user's program an operation came from. Standard library only."""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
import sys
import weakref
from collections.abc import Sequence
from threading import get_ident
from types import CodeType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Programs that ship inside the package are users of it.
_USERS = (os.path.join(_PACKAGE, "cli", "demo", ""),)
# Folders whose code is no user's: the package's, and that of a library which stands between it and the user.
_WAY_IN = tuple([os.path.join(_PACKAGE, room, "") for room in ("dispatch", "scripts")])
_libraries: tuple[str, ...] = (_PACKAGE,)
# What the names in code begin with that such a library made of a user's.
_made: tuple[str, ...] = ()
# Whether code is of these; by id, since the hash of a code object is computed anew each time from
# all of its constants. An entry goes with its code, before another can get the id: holding the code
# would hold what lives as long as it does, as the graphs do that PyTorch compiled for it.
_internal: dict[int, tuple[bool, weakref.ref[CodeType]]] = {}

# Thread -> the line of a call that it makes again, for the one that a script left out.
made_again: dict[int, tuple[CodeType, int]] = {}


def source_text(place: str) -> str:
    """Return what stands at "file.py:12"; "" where that is not known."""
    file, _, number = place.rpartition(":")
    return linecache.getline(file, int(number)).strip() if file and number.isdigit() else ""


def user_line(inside: int = 2) -> tuple[CodeType, int] | None:
    """Return (code, instruction) of the user's innermost frame; `line_text` turns it
    into text. The frames nearer than `inside` are known to be the package's.
    """
    if made_again:
        line = made_again.get(get_ident())
        if line is not None:
            return line
    frame = _frame(inside)
    while frame is not None:
        code = frame.f_code
        if (known := _internal.get(id(code))) is None:
            known = _look_up(code)
        if not known[0]:
            return code, frame.f_lasti
        frame = frame.f_back  # type: ignore[assignment]
    return None


_frame = sys._getframe


class StepLine(str):
    """The line of a program's step, with the number of its node in the graph: when the program is found again for
    another graph, that one's node there says the line.
    """

    __slots__ = ("node",)

    node: int


def line_of(step: str, lines: Sequence[object] | None) -> str:
    """Return the line of a step for a graph whose nodes have `lines`, which are not known where there are None."""
    number = step.node if isinstance(step, StepLine) else -1
    return line_text(lines[number]) if lines and 0 <= number < len(lines) else str(step)


def line_text(line: object) -> str:
    """Return "file:line" of a remembered user line (code object, instruction), or ""; a text as it
    is.
    """
    if isinstance(line, str):
        return line
    if not isinstance(line, tuple):
        return ""
    code, instruction = line
    number = code.co_firstlineno
    for start, end, lineno in code.co_lines():
        if start <= instruction < end and lineno is not None:
            number = lineno
    return f"{code.co_filename}:{number}"


def user_depth() -> int:
    """Return the `stacklevel` with which a warning of the caller names the user's line."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and (
        is_internal(frame.f_code) or frame.f_code.co_filename == contextlib.__file__
    ):
        depth, frame = depth + 1, frame.f_back
    return depth


def pass_over(folder: str, made: str) -> None:
    """Take the code in a folder for the package's own, which is never the user's line, and code that
    uses names which begin with `made`, wherever its file is.
    """
    global _libraries, _made
    _libraries, _made = (*_libraries, os.path.join(folder, "")), (*_made, made)
    _internal.clear()


def is_internal(code: CodeType) -> bool:
    """Whether code belongs to the package itself, or to a library that stands between it and the user."""
    return (_internal.get(id(code)) or _look_up(code))[0]


def is_user_asking() -> bool:
    """Whether a user's code reads the property whose function asks this, maybe through the way in and a script."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_WAY_IN):
        frame = frame.f_back
    return not is_internal(frame.f_code)


def _look_up(code: CodeType) -> tuple[bool, weakref.ref[CodeType]]:
    key, name = id(code), code.co_filename
    inside = name.startswith((*_libraries, "<frozen")) and not name.startswith(_USERS)
    inside = inside or any(n.startswith(_made) for n in code.co_names)
    known = _internal[key] = inside, weakref.ref(code, functools.partial(_internal.pop, key))
    return known
