"""Ctrl-C waits where stopping would leave a program run and not noted. Floor 3; standard library only."""

from __future__ import annotations

import importlib
import signal
import threading
from types import FrameType
from typing import Any


class _Whole:
    """A block that SIGINT does not stop half way: KeyboardInterrupt is raised at its end.

    A second SIGINT stops it at once. Handlers that are the program's own are left alone, and so are
    other threads, where none is called.
    """

    __slots__ = ("depth", "handler", "pressed")

    def __init__(self) -> None:
        self.depth = 0
        self.pressed = False
        self.handler = self._note

    def __enter__(self) -> None:
        if _ident() != _MAIN:
            return
        if self.depth == 0:
            if _get(_SIGINT) is not _DEFAULT:
                return
            self.pressed = False
            _set(_SIGINT, self.handler)
        self.depth += 1

    def __exit__(self, *error: Any) -> None:
        if self.depth == 0 or _ident() != _MAIN:
            return
        self.depth -= 1
        if self.depth == 0:
            _set(_SIGINT, _DEFAULT)
            if self.pressed and error[0] is not KeyboardInterrupt:
                raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.pressed:
            raise KeyboardInterrupt
        self.pressed = True


class _Firm:
    """A block that no SIGINT stops, however often it comes: the program's own handler, or
    KeyboardInterrupt, waits for its end. For calls of libraries that cannot be left half way.
    """

    __slots__ = ("before", "depth", "handler", "pressed")

    def __init__(self) -> None:
        self.depth = 0
        self.pressed = False
        self.before: Any = None
        self.handler = self._note

    def __enter__(self) -> None:
        if _ident() != _MAIN:
            return
        if self.depth == 0:
            self.before = _get(_SIGINT)
            if not callable(self.before):
                return
            self.pressed = False
            _set(_SIGINT, self.handler)
        self.depth += 1

    def __exit__(self, *error: Any) -> None:
        if self.depth == 0 or _ident() != _MAIN:
            return
        self.depth -= 1
        if self.depth == 0:
            _set(_SIGINT, self.before)
            if self.pressed:
                self.before(_SIGINT, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.pressed = True


_MAIN = threading.main_thread().ident
# What the module `signal` calls, without its conversions to enumerations, which take some 5 us.
_signals: Any = importlib.import_module("_signal")
_get, _set, _ident = _signals.getsignal, _signals.signal, threading.get_ident
_SIGINT, _DEFAULT = int(signal.SIGINT), signal.default_int_handler
whole = _Whole()
firm = _Firm()
