"""Ctrl-C waits where stopping would leave a program run and not noted. Floor 3; standard library only."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class _Whole:
    """A block that SIGINT does not stop half way: KeyboardInterrupt is raised at its end.

    A second SIGINT stops it at once. Handlers that are the program's own are left alone, and so are
    other threads, where none is called.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.pressed = False

    def __enter__(self) -> None:
        if threading.get_ident() != _MAIN:
            return
        if self.depth == 0:
            if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
                return
            self.pressed = False
            signal.signal(signal.SIGINT, self._note)
        self.depth += 1

    def __exit__(self, *error: Any) -> None:
        if self.depth == 0 or threading.get_ident() != _MAIN:
            return
        self.depth -= 1
        if self.depth == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if self.pressed and error[0] is None:
                raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.pressed:
            raise KeyboardInterrupt
        self.pressed = True


_MAIN = threading.main_thread().ident
whole = _Whole()
