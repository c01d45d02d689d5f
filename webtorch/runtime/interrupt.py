"""Ctrl-C waits where stopping would leave a program run and not noted. Floor 3; standard library only."""

from __future__ import annotations

import contextlib
import importlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


class _Held:
    """A block that SIGINT does not stop half way: what its handler does (raising KeyboardInterrupt)
    waits for the end. Nothing is held back in other threads, where no handler is called.

    Not `firm`: a second SIGINT stops the block at once, and handlers that are the program's own are
    left alone. `firm`, for libraries that cannot be left half way: nothing stops it, and the program's
    own handler waits too.
    """

    __slots__ = ("before", "depth", "firm", "handler", "pressed")

    def __init__(self, firm: bool) -> None:
        self.firm = firm
        self.depth = 0
        self.pressed = False
        self.before: Any = None
        self.handler = self._note

    def __enter__(self) -> None:
        if _ident() != _MAIN:
            return
        if self.depth == 0:
            self.before = before = _get(_SIGINT)
            if not (before is _DEFAULT or (self.firm and callable(before))):
                return
            self.pressed = False
            _set(_SIGINT, self.handler)
        self.depth += 1

    def __exit__(self, *error: object) -> None:
        if self.depth == 0 or _ident() != _MAIN:
            return
        self.depth -= 1
        if self.depth == 0:
            _set(_SIGINT, self.before)
            # The second SIGINT has raised it already.
            if self.pressed and (self.firm or error[0] is not KeyboardInterrupt):
                self.before(_SIGINT, None)

    @contextlib.contextmanager
    def lifted(self) -> Iterator[None]:
        """Let SIGINT do what its handler does in a part of the block that waits for others."""
        holds = self.depth > 0 and not self.firm and _ident() == _MAIN
        if holds:
            _set(_SIGINT, self.before)
        try:
            if holds and self.pressed:
                self.pressed = False
                self.before(_SIGINT, None)
            yield
        finally:
            if holds:
                _set(_SIGINT, self.handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.pressed and not self.firm:
            raise KeyboardInterrupt
        self.pressed = True


_MAIN = threading.main_thread().ident
# What the module `signal` calls, without its conversions to enumerations, which take some 5 us.
_signals: Any = importlib.import_module("_signal")
_get, _set, _ident = _signals.getsignal, _signals.signal, threading.get_ident
_SIGINT, _DEFAULT = int(signal.SIGINT), signal.default_int_handler
whole, firm = _Held(firm=False), _Held(firm=True)
