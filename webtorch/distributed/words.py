"""What processes of one host say of their calls: words in memory that all of them read, and a bell each, which wakes
who waits for a word. Floor 5.

Some processors (ARM's) let others see what was written in another order. A word is true of memory that was written
before it: `say` has that seen first, and who has read a word calls `order` before that memory. What a word consists of
has a sum, so that half of one is seen to be half. Linux's futex orders so, and lets who waits sleep.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import threading
from array import array
from collections.abc import Sequence

# The number of futex among Linux's calls, by processor, and two of the things that it does.
_CALL = {"x86_64": 202, "aarch64": 98, "riscv64": 98}
_WAIT, _WAKE = 0, 1
# Bytes of memory for words. In words of eight bytes: the bell behind a token, then one place a call; a header of seven
# numbers, its sum, and the number of the call whose part this process has added up, plus one.
UNIT = 1 << 16
_BELL, _FIRST, _SIZE, HEADER = 1, 64, 16, 7
# Who begins a call has read what all said of those some calls before it, so that none is two times that behind.
_PLACES = 64


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Memory:
    """Memory that a process makes for others to read: a file without a name, found by the number that it has here."""

    def __init__(self, size: int) -> None:
        self.file = os.memfd_create("webtorch")
        try:
            os.ftruncate(self.file, size)
            self.view = memoryview(mmap.mmap(self.file, size))
        except OSError:
            os.close(self.file)
            raise

    @staticmethod
    def of(process: int, file: int, size: int) -> memoryview:
        """Return the memory of another process."""
        with open(f"/proc/{process}/fd/{file}", "r+b") as found:
            return memoryview(mmap.mmap(found.fileno(), size))

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self.file)


def can_share() -> bool:
    """Whether processes can share memory, and wait for each other, here."""
    return (
        hasattr(os, "memfd_create")
        and os.uname().machine in _CALL
        and ctypes.sizeof(ctypes.c_void_p) == 8
    )


class Words:
    """The words of all ranks, of which this process writes its own."""

    def __init__(self, rank: int, memory: Sequence[memoryview]) -> None:
        """`memory`: of `UNIT` bytes by rank."""
        self._rank = rank
        self._words = [view.cast("q") for view in memory]
        # The bell counts; its lower half is what the system looks at.
        self._bells = [ctypes.c_uint32.from_buffer(view, 8 * _BELL) for view in memory]
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._number = _CALL[os.uname().machine]
        # Several threads say something.
        self._lock = threading.Lock()

    def _futex(self, rank: int, operation: int, value: int, time: _Time | None = None) -> int:
        """Call the system, whatever that returns."""
        found: int = self._syscall(
            ctypes.c_long(self._number), ctypes.c_void_p(ctypes.addressof(self._bells[rank])),
            operation, ctypes.c_uint32(value), None if time is None else ctypes.byref(time), None, 0,
        )  # fmt: skip
        return found

    def order(self) -> None:
        """Let what is read from now on be no older than what was read, and what is written be seen later than that."""
        # Whoever wakes looks again: what this is for is that it puts memory in order.
        self._futex(self._rank, _WAKE, 1)

    def _write(self, at: int, words: array[int]) -> None:
        mine, bell = self._words[self._rank], self._bells[self._rank]
        with self._lock:
            self.order()
            mine[at : at + len(words)] = memoryview(words)
            self.order()
            bell.value += 1
            self._futex(self._rank, _WAKE, 1 << 30)

    def say(self, numbers: Sequence[int]) -> None:
        """Say what this process gives to a call, whose number comes first."""
        self._write(_place(numbers[0]), array("q", [*numbers, hash(tuple(numbers))]))

    def said(self, rank: int, number: int) -> list[int] | None:
        """Return what a rank has said of a call, if it has."""
        at = _place(number)
        words = self._words[rank]
        if words[at] != number:
            return None
        *numbers, proof = words[at : at + HEADER + 1].tolist()
        return numbers if hash(tuple(numbers)) == proof else None

    def say_added(self, number: int) -> None:
        """Say that this process has added up its part of a call."""
        self._write(_place(number) + HEADER + 1, array("q", [number + 1]))

    def added(self, rank: int, number: int) -> bool | None:
        """Whether a rank has added up its part of a call; None if it has not."""
        return self._words[rank][_place(number) + HEADER + 1] == number + 1 or None

    def bell(self, rank: int) -> int:
        """Return how often a rank has said something, to `sleep` on after a look at its words."""
        return self._bells[rank].value

    def sleep(self, rank: int, bell: int, seconds: float) -> bool:
        """Wait until a rank says something; False if so many seconds have gone by."""
        time = _Time(int(seconds), int(seconds % 1 * 1e9))
        return self._futex(rank, _WAIT, bell, time) == 0 or ctypes.get_errno() != errno.ETIMEDOUT


def _place(number: int) -> int:
    return _FIRST + number % _PLACES * _SIZE
