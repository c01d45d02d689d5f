"""Ctrl-C without aborting the process. Floor 6; standard library only.

PyTorch's device guard runs Python inside C++ functions that may not throw: a KeyboardInterrupt
raised just there ends the process. So while tensors are on "webgpu" the handler of SIGINT only sets
a flag, and the next kernel raises. Where no kernel runs (a sleep, a Python loop), a timer raises a
moment later.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType

_DELAY_SECONDS = 0.25


class Flag:
    """Whether Ctrl-C was pressed and not yet raised. Kernels read `pressed` directly: it is on their hot path."""

    pressed = False
    # Which press it is: the timer of an earlier one must not raise this one.
    count = 0


flag = Flag()


def check() -> None:
    """Raise KeyboardInterrupt if Ctrl-C was pressed."""
    if flag.pressed:
        flag.pressed = False
        raise KeyboardInterrupt


def _handle(number: int, frame: FrameType | None) -> None:
    if flag.pressed:
        # The timer's, or a second press: nothing took the first.
        flag.pressed = False
        raise KeyboardInterrupt
    flag.pressed = True
    flag.count += 1
    count = flag.count
    main = threading.main_thread().ident

    def again() -> None:
        if flag.pressed and flag.count == count and main is not None:
            if hasattr(signal, "pthread_kill"):
                signal.pthread_kill(main, signal.SIGINT)
            else:
                signal.raise_signal(signal.SIGINT)

    timer = threading.Timer(_DELAY_SECONDS, again)
    timer.daemon = True
    timer.start()


def install() -> None:
    """Take over SIGINT, unless the program has a handler of its own or this is not the main thread."""
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):
        signal.signal(signal.SIGINT, _handle)
