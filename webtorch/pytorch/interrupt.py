"""What stops a kernel: Ctrl-C, which must neither abort the process nor leave half of an operation done; a fork.

Floor 6; the standard library, and where values of other processes are waited for.

PyTorch's device guard asks Python for the device's type inside C++ functions that may not throw, and signals may be
handled there: a KeyboardInterrupt raised just then ends the process. Raised while the engine works, it would leave a
program computed and not noted. So once tensors are on "webgpu", the handler of SIGINT only sets a flag. The next
kernel raises at its start, before it has done anything. Where no kernel starts (a sleep, a Python loop), a thread
presses again until it finds the main thread outside the engine, or waiting for what another process sends, which may
hang. Work that takes long (compiling, waiting for the
device) is finished first; a press that comes ten seconds after one without an answer is raised wherever it is.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import threading
import time
from pathlib import Path
from types import FrameType

from webtorch.runtime.arrivals import patiently

# How long kernels have to take a press before the thread presses again, and how often it then does, in seconds.
_DELAY = 0.1
_PERIOD = 0.02
_PATIENCE = 10.0
_ROOM = Path(__file__).resolve().parent.parent
_OURS = (str(_ROOM) + os.sep, str(_ROOM.parent / "webtorch_autoload") + os.sep)


class Flag:
    """Whether Ctrl-C was pressed and not yet raised. Kernels read `pressed` directly: it is on their hot path."""

    __slots__ = ("again", "forked", "pressed", "seen", "since")

    def __init__(self) -> None:
        self.pressed = False
        # Whether this is a forked child, in which kernels may not run; `pressed` then stays.
        self.forked = False
        # When it was, by time.monotonic().
        self.since = 0.0
        # Whether the thread presses, not the user.
        self.again = False
        # Where the main thread was the last time that the thread pressed: the frame's number and its instruction.
        self.seen: tuple[int, int] | None = None


flag = Flag()
# Wakes the thread. Unlike locks and events, a SimpleQueue may be used in a signal handler.
_presses: queue.SimpleQueue[None] = queue.SimpleQueue()


def check() -> None:
    """Raise KeyboardInterrupt if Ctrl-C was pressed and this is the main thread; RuntimeError in a forked child."""
    if flag.forked:
        raise RuntimeError(
            "webgpu: cannot use the device in a forked subprocess: its connection to the driver "
            "belongs to the parent. Use the 'spawn' start method, or keep tensors on the CPU there."
        )
    if flag.pressed and threading.current_thread() is threading.main_thread():
        flag.pressed = False
        raise KeyboardInterrupt


def _is_ours(frame: FrameType | None) -> bool:
    """Whether the engine or a kernel is at work: it is among the calls that lead to `frame`, and does not wait for
    another process.
    """
    ours = False
    while frame is not None:
        if frame.f_code is patiently.__code__:
            return False
        ours = ours or frame.f_code.co_filename.startswith(_OURS)
        frame = frame.f_back
    return ours


def _handle(number: int, frame: FrameType | None) -> None:
    again, flag.again = flag.again, False
    now = time.monotonic()
    if again and not flag.pressed:
        # A kernel took it meanwhile.
        return
    if not flag.pressed:
        flag.pressed, flag.since, flag.seen = True, now, None
        _presses.put(None)
    elif _is_ours(frame):
        if not again and now - flag.since > _PATIENCE:
            flag.pressed = False
            raise KeyboardInterrupt
    elif again and frame is not None:
        place = (id(frame), frame.f_lasti)
        if flag.seen is None:
            flag.seen = place
            return
        flag.pressed = False
        if place == flag.seen:
            # It has not moved: it sleeps, or waits, and only an exception from here wakes it.
            raise KeyboardInterrupt
        # Python runs, and may be within PyTorch's guard: this one is raised between two instructions of Python.
        kind = ctypes.py_object(KeyboardInterrupt)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), kind)


def _watch(main: int) -> None:
    """Press again until the main thread takes it."""
    while True:
        _presses.get()
        time.sleep(_DELAY)
        while flag.pressed:
            flag.again = True
            if hasattr(signal, "pthread_kill"):
                signal.pthread_kill(main, signal.SIGINT)
            else:
                signal.raise_signal(signal.SIGINT)
            time.sleep(_PERIOD)


def _in_child() -> None:
    """In a forked child no kernel may run, and there is no thread that presses: Ctrl-C is Python's own again."""
    flag.pressed = flag.forked = True
    if signal.getsignal(signal.SIGINT) is _handle:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def install() -> None:
    """Take over SIGINT, unless the program has a handler of its own or this is not the main thread."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_in_child)
    main = threading.main_thread()
    if (
        threading.current_thread() is not main
        or main.ident is None
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        return
    threading.Thread(target=_watch, args=(main.ident,), name="webtorch Ctrl-C", daemon=True).start()
    signal.signal(signal.SIGINT, _handle)
