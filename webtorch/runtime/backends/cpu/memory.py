"""Memory of the CPU backend: NumPy arrays that go back to a pool. Imports NumPy and floors 0 and 3's protocol.

Fresh pages from the system cost more than most kernels, so blocks are kept and given out again: up
to an eighth of the machine's memory, sizes that nobody asks for any more first to go. A block whose
array is still seen by somebody (a view, a memoryview) is left alone.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from webtorch.errors import OutOfMemoryError
from webtorch.ir.dtype import DType
from webtorch.runtime.backend import counts_references

Array = npt.NDArray[Any]

_LARGE = 1 << 16
_ALIGNMENT = 64
# What of the machine's memory may be free blocks, and how much that is at most.
_POOL_SHARE = 8
_POOL_LIMIT = 4 << 30
# How many bytes programs may keep for temporaries.
_MOST_KEPT = 64 << 20
# How many bytes one program may keep for what it gives.
_MOST_AGAIN = 4 << 20
# After so many blocks that found no room, a size must be asked for again to stay.
_PATIENCE = 64

_ARRAY_TYPES: dict[DType, object] = {}


def array_type(dtype: DType) -> Any:
    """Return the NumPy type that holds `dtype`: bfloat16 as its bits, bool as bytes of 0 and 1."""
    found = _ARRAY_TYPES.get(dtype)
    if found is None:
        found = _ARRAY_TYPES[dtype] = np.dtype(dtype.numpy or dtype.name)
    return found


class Block:
    """Some bytes with a fixed address, aligned to 64. `seen`: an array of them has been made."""

    __slots__ = ("address", "raw", "seen", "size", "start")

    def __init__(self, size: int) -> None:
        self.raw: Array = np.empty(size + _ALIGNMENT, np.uint8)
        address = self.raw.__array_interface__["data"][0]
        self.start = -address % _ALIGNMENT
        self.address: int = address + self.start
        self.size = size
        self.seen = False


def _pool_limit() -> int:
    """Return how many bytes may be kept in free blocks, by the memory of the machine or container."""
    known = []
    try:
        known.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        known.append(8 << 30)  # Windows does not say
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            known.append(int(Path("/sys/fs/cgroup", name).read_text()))
        except (OSError, ValueError):
            continue
    return min(_POOL_LIMIT, min(known) // _POOL_SHARE)


class Memory:
    """Counts live bytes and keeps free blocks by size, at most `limit` bytes of them."""

    def __init__(self, limit: int | None = None) -> None:
        self.peak = 0
        self.limit = _pool_limit() if limit is None else limit
        self.free: dict[int, list[Block]] = {}
        # Sizes that were asked for lately, and how many blocks found no room since that was begun anew.
        self.wanted: set[int] = set()
        self.turned_away = 0
        self.lock = threading.Lock()
        # Small blocks that were given back and still count as live: a lock costs more than all the rest.
        self.returned: deque[Block] = deque()
        # Bytes that programs keep for their temporaries, and those of programs that are gone.
        self.kept = 0
        self.left: deque[int] = deque()
        self._live = 0
        self._pooled = 0

    @property
    def live(self) -> int:
        """Bytes that are in use."""
        with self.lock:
            self._settle()
            return self._live

    @property
    def pooled(self) -> int:
        """Bytes of free blocks."""
        with self.lock:
            self._settle()
            return self._pooled

    def take(self, size: int) -> Block:
        """Return a block of `size` bytes, rounded up as a buffer does. Raises OutOfMemoryError."""
        with self.lock:
            self._settle()
            live = self._live = self._live + size
            if live > self.peak:
                self.peak = live
            self.wanted.add(size)
            blocks = self.free.get(size)
            if blocks:
                self._pooled -= size
                return blocks.pop()
        for again in (True, False):
            try:
                return Block(size)
            except MemoryError:
                if again:
                    self.release()
        with self.lock:
            self._live -= size
        raise OutOfMemoryError(
            f"cpu: cannot allocate {size} bytes ({self.live} bytes are live): free tensors or work in smaller parts"
        )

    def keep(self, program: object, nbytes: int) -> bool:
        """Whether a program may keep memory for its temporaries for as long as it is there."""
        with self.lock:
            while self.left:
                self.kept -= self.left.popleft()
            if self.kept + nbytes > _MOST_KEPT:
                return False
            self.kept += nbytes
        # No lock: a collection may come anywhere.
        weakref.finalize(program, self.left.append, nbytes).atexit = False
        return True

    def give(self, block: Block) -> None:
        """Take back a block; it is used again unless somebody still sees its memory through an array."""
        self.returned.append(block)
        # A collection may come here while this thread has the lock: then whoever takes it next does this.
        if block.size >= _LARGE and self.lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self.lock.release()

    def _settle(self) -> None:
        """Put what was given back into the pool."""
        returned = self.returned
        while returned:
            block = returned.popleft()
            size = block.size
            self._live -= size
            # Arrays made from `raw` hold it as their base: the block's own reference and the argument make two.
            if sys.getrefcount(block.raw) <= 2 and (
                self._pooled + size <= self.limit or self._make_room(size)
            ):
                block.seen = False
                blocks = self.free.get(size)
                if blocks is None:
                    blocks = self.free[size] = []
                blocks.append(block)
                self._pooled += size

    def _make_room(self, size: int) -> bool:
        """Give back free blocks of sizes that nobody asks for any more; whether `size` bytes fit then.

        Those that a program goes through again and again stay, also where they do not all fit: with the
        oldest going first, each would be gone just before its turn.
        """
        for other in [s for s in self.free if s not in self.wanted]:
            self._pooled -= other * len(self.free.pop(other))
        self.turned_away += 1
        if self.turned_away >= _PATIENCE:
            self.turned_away = 0
            self.wanted.clear()
        return self._pooled + size <= self.limit

    def release(self) -> None:
        """Give every free block back to the system."""
        with self.lock:
            self._settle()
            self.free.clear()
            self._pooled = 0


def _large_size(nbytes: int) -> int:
    """Round up so that blocks of like sizes are interchangeable: to 1/8 of the power of two below."""
    step = 1 << (nbytes.bit_length() - 4)
    return (nbytes + step - 1) & -step


def rounded(dtype: DType, elements: int) -> int:
    """Return how many bytes a block for some values has."""
    size = (elements * dtype.itemsize + 63) & -64 or 64
    return size if size < _LARGE else _large_size(size)


MEMORY = Memory()
_take, _give, _returned = MEMORY.take, MEMORY.give, MEMORY.returned


class CpuBuffer:
    """Memory for `elements` values; `address` is where it starts, `array` a flat NumPy array of it."""

    __slots__ = ("__weakref__", "_array", "address", "block", "dtype", "elements")
    block: Block

    def __init__(self, dtype: DType, elements: int) -> None:
        self.dtype = dtype
        self.elements = elements
        self._array: Array | None = None
        size = rounded(dtype, elements)
        block = None
        if _returned:
            # As a rule one was given back where another is wanted: the counts stay as they are.
            try:
                block = _returned.pop()
            except IndexError:
                pass  # another thread was faster
            else:
                if block.size != size or block.seen:
                    _returned.append(block)
                    block = None
        if block is None:
            block = _take(size)
        self.block = block
        self.address = block.address

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.elements * self.dtype.itemsize

    @property
    def array(self) -> Array:
        """All values. Made at first use: compiled code needs only the address."""
        array = self._array
        if array is None:
            block = self.block
            block.seen = True
            raw = block.raw[block.start : block.start + self.nbytes]
            array = self._array = raw.view(array_type(self.dtype))
        return array

    # As arguments: at the end of the process the module's names are gone before its last buffers.
    def __del__(
        self,
        give: Callable[[Block], None] = _give,
        returned: deque[Block] = _returned,
        large: int = _LARGE,
    ) -> None:
        try:
            block = self.block
        except AttributeError:
            return  # there was no memory
        # The array must go first, or the block would look used.
        self._array = None
        if block.size < large:
            returned.append(block)
        else:
            give(block)

    # Whether a value may be written here.
    writable = True


class PartBuffer(CpuBuffer):
    """Another name for the start of a buffer's memory."""

    __slots__ = ("owner",)

    def __init__(self, dtype: DType, elements: int, owner: CpuBuffer) -> None:
        self.dtype = dtype
        self.elements = elements
        self._array = None
        self.owner = owner
        self.block, self.address = owner.block, owner.address

    def __del__(self, *_: object) -> None:
        """The owner gives the memory back."""


class KeptBuffer(CpuBuffer):
    """A buffer that its program takes again: one of which an array was made says so."""

    __slots__ = ("place", "shown")
    place: int
    shown: list[int]

    @property
    def array(self) -> Array:
        """All values."""
        if self._array is None:
            self.shown.append(self.place)
        return super().array


class Again:
    """Buffers that a program writes at each run: those of the last run that nobody has any more, and new ones for the
    others. To give back and to take so many would cost more than all else of a step.
    """

    def __init__(self, kinds: Sequence[tuple[DType, int]]) -> None:
        self.kinds = kinds
        self.buffers: list[KeptBuffer] = []
        # The places of those of which an array was made.
        self.shown: list[int] = []
        # How often each is counted that nobody else has; none where they are not kept.
        self.alone: list[int] = []
        self.begun = False

    def take(self) -> list[KeptBuffer]:
        """Return buffers that nobody has."""
        buffers = self.buffers
        if not self.alone:
            return self._begin()
        counts = [*map(sys.getrefcount, buffers)]
        if counts != self.alone:
            for i, (count, alone) in enumerate(zip(counts, self.alone)):
                if count != alone:
                    buffers[i] = self._new(i)
        while self.shown:
            i = self.shown.pop()
            buffers[i]._array = None
            # An array that somebody has holds the block's as its base.
            if sys.getrefcount(buffers[i].block.raw) > 2:
                buffers[i] = self._new(i)
        return buffers

    def _new(self, place: int) -> KeptBuffer:
        """Return a new buffer for a place."""
        buffer = KeptBuffer(*self.kinds[place])
        buffer.place, buffer.shown = place, self.shown
        return buffer

    def _begin(self) -> list[KeptBuffer]:
        """Return new buffers, which are kept from now on if they are few."""
        buffers = [self._new(i) for i in range(len(self.kinds))]
        if not self.begun:
            self.begun = True
            total = sum([b.block.size for b in buffers])
            if counts_references() and total <= _MOST_AGAIN and MEMORY.keep(self, total):
                self.buffers = buffers
                del buffers
                self.alone = [*map(sys.getrefcount, self.buffers)]
                return self.buffers
        return buffers


class ArrayBuffer(CpuBuffer):
    """The memory of a NumPy array, from its first element to its last. Strides must not be negative."""

    __slots__ = ("writable",)

    def __init__(self, dtype: DType, array: Array) -> None:
        self.dtype = dtype
        strides = [st // array.itemsize for st in array.strides]
        order = sorted(range(array.ndim), key=lambda d: (-strides[d], -array.shape[d]))
        dense = array.transpose(order)
        if array.flags.c_contiguous or dense.flags.c_contiguous:
            flat = dense.reshape(-1)
        else:
            reach = sum(st * (n - 1) for st, n in zip(strides, array.shape)) + 1
            flat = as_strided(array, (reach if array.size else 0,), (array.itemsize,))
        self._array = flat
        self.elements = flat.size
        self.address = flat.__array_interface__["data"][0]
        self.writable = bool(array.flags.writeable)

    def __del__(self, *_: object) -> None:
        """The memory is the array's."""

    def is_seen(self) -> bool:
        """Whether anybody else may still see the memory through an array."""
        base = self.array.base
        alone = type(base) is np.ndarray and base.base is None and base.flags.owndata
        # Arrays on this memory hold it as their base. It is held here by `self.array`, by `base`
        # and by the argument.
        return not alone or sys.getrefcount(base) > 3


class HostBlock:
    """Memory that other processes may read and write too."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory

    def buffer(self, dtype: DType, elements: int) -> ArrayBuffer:
        """Return its beginning as a buffer."""
        return ArrayBuffer(dtype, np.frombuffer(self._memory, array_type(dtype), elements))


class Loan:
    """Lets NumPy see a buffer's memory. Lives as long as any array that does."""

    __slots__ = ("__array_interface__", "__weakref__", "buffer")

    def __init__(self, buffer: CpuBuffer) -> None:
        self.buffer = buffer
        self.__array_interface__ = {
            "shape": (buffer.elements,),
            "typestr": array_type(buffer.dtype).str,
            "data": (buffer.address, False),
            "version": 3,
        }


def lend(
    buffer: CpuBuffer, before: Callable[[], object] | None
) -> tuple[Array, Callable[[], object]]:
    """Return a flat array of a buffer's memory, and what tells whether an array sees it still.

    `before` is what an earlier call returned, if its arrays are still there.
    """
    if isinstance(buffer, ArrayBuffer):
        return buffer.array, buffer.is_seen
    loan = before() if before is not None else None
    if not isinstance(loan, Loan):
        loan = Loan(buffer)
    return np.asarray(loan), weakref.ref(loan)
