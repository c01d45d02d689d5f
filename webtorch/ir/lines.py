"""Remembers cheaply which line of the user's program an operation came from. Standard library only."""

from __future__ import annotations

import contextlib
import os
import sys
from types import CodeType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Programs that ship inside the package are users of it.
_USERS = (_PACKAGE + "demo" + os.sep,)
# Folders whose code is no user's: the package's, and that of a library which stands between it and the user.
_libraries: tuple[str, ...] = (_PACKAGE,)
# Whether code is of these; by id, since the hash of a code object is computed anew each time from
# all of its constants. The code is held, so that no other gets its id.
_internal: dict[int, tuple[bool, CodeType]] = {}
# A program that makes code without end, as notebooks do, starts anew here.
_MOST = 1 << 16


def user_line() -> tuple[CodeType, int] | None:
    """Return (code, instruction) of the user's innermost frame; `describe` turns it
    into text.
    """
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        known = _internal.get(id(code))
        if not (is_internal(code) if known is None else known[0]):
            return code, frame.f_lasti
        frame = frame.f_back  # type: ignore[assignment]
    return None


def user_depth() -> int:
    """Return the `stacklevel` with which a warning of the caller names the user's line."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and (
        is_internal(frame.f_code) or frame.f_code.co_filename == contextlib.__file__
    ):
        depth, frame = depth + 1, frame.f_back
    return depth


def pass_over(folder: str) -> None:
    """Take the code in a folder for the package's own, which is never the user's line."""
    global _libraries
    _libraries = (*_libraries, os.path.join(folder, ""))
    _internal.clear()


def is_internal(code: CodeType) -> bool:
    """Whether code belongs to the package itself, or to a library that stands between it and the user."""
    known = _internal.get(id(code))
    if known is None:
        name = code.co_filename
        inside = name.startswith(_libraries) and not name.startswith(_USERS)
        if len(_internal) >= _MOST:
            _internal.clear()
        known = _internal[id(code)] = inside or name.startswith("<frozen"), code
    return known[0]
