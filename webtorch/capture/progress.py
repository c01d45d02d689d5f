"""Tells a person at a terminal what takes long. Floor 5; standard library only, rich where it is there."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

# Seconds after which a person would like to know.
DELAY = 1.0


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """While the block runs for more than a second: one line on standard error, if that is a terminal.

    It goes when the block ends, where rich is installed and the terminal can do that.
    """
    if not sys.stderr.isatty():
        yield
        return
    shown: list[Any] = []
    lock = threading.Lock()
    over = False

    def show() -> None:
        """Print the line, unless the block is over."""
        with lock:
            if over:
                return
            console = None
            with contextlib.suppress(ImportError):
                console = importlib.import_module("rich.console").Console(stderr=True)
            if console is None or console.is_dumb_terminal:
                sys.stderr.write(f"webtorch: {what} ...\n")
                return
            status = console.status(f"webtorch: {what}", spinner="line")
            status.start()
            shown.append(status)

    timer = threading.Timer(DELAY, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            over = True
        timer.cancel()
        for status in shown:
            status.stop()
