"""Memory of the host that tensors pass through on their way to other processes, kept for the next ones. Floor 3."""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

# A tensor of PyTorch's, or one of its types, which is not imported here.
Foreign: TypeAlias = Any

# Bytes that a group keeps: new memory costs a page fault for every 4 KiB.
_KEPT = 512 << 20
# Memory of this size is worth a question to the system.
_HUGE = 4 << 20


@functools.cache
def _madvise() -> Callable[[int, int, int], object] | None:
    if sys.platform != "linux":
        return None
    found = ctypes.CDLL(None).madvise
    found.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return found


def in_huge_pages(x: Foreign) -> Foreign:
    """Return a tensor, after asking the system for large pages where it is large, as NumPy does: a page fault for every
    4 KiB takes longer than the copy.
    """
    size = x.numel() * x.element_size()
    advise = _madvise() if size >= _HUGE else None
    if advise is not None:
        address = x.data_ptr()
        start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        advise(start, address + size - start, mmap.MADV_HUGEPAGE)
    return x


class HostMemory:
    """Memory that tensors are read into; `make` gives new bytes, a flat tensor of so many."""

    def __init__(self, make: Callable[[int], Foreign]) -> None:
        self._make, self._bytes = make, make(0).dtype
        self._free: dict[int, list[Foreign]] = {}
        self._size = 0
        self._lock = threading.Lock()

    def take(self, shape: Sequence[int], dtype: Foreign) -> Foreign:
        """Return an uninitialised tensor."""
        size = math.prod(shape) * dtype.itemsize
        with self._lock:
            free = self._free.get(size)
            found = free.pop() if free else None
            if found is not None:
                self._size -= size
        made = self._make(size) if found is None else found
        return made.view(dtype).view(shape)

    def keep(self, x: Foreign) -> None:
        """Take back a tensor that nobody uses any more."""
        size = x.numel() * x.element_size()
        with self._lock:
            if size and self._size + size <= _KEPT:
                self._size += size
                self._free.setdefault(size, []).append(x.view(-1).view(self._bytes))
