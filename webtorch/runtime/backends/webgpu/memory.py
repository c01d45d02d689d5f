"""Pooled device memory. Imports floor 0, the errors and this package's `native`.

A `Block` is one native buffer, or a row of them where it is larger than one can be; it never dies
while a program could use it: dropping the last `DeviceBuffer` puts it back into the pool, and reuse is
safe at once because the queue runs work in the order of submission. Blocks are given back to the system
only by `release_unused`, and then by dropping the reference, never with `buffer.destroy()`: the library
keeps what running work needs, and aborts the process when submitted work names a destroyed buffer.
"""

from __future__ import annotations

import gc
import heapq
import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterator

from webtorch.errors import OutOfMemoryError
from webtorch.ir.dtype import DType, int64, wide_int64
from webtorch.lower.layout import ALIGN, binding_bytes, device_bytes
from webtorch.runtime.backends.webgpu.binding import Made
from webtorch.runtime.backends.webgpu.native import (
    COPY_DST,
    COPY_SRC,
    STORAGE,
    Native,
    Pointer,
    Problem,
    is_out_of_memory,
)

_SMALLEST = 256


def size_class(nbytes: int, largest: int) -> int:
    """Return the block size for a request: eight steps to each power of two, so at most 1/8 is wasted."""
    if nbytes <= _SMALLEST:
        return _SMALLEST
    step = max(_SMALLEST, 1 << (nbytes.bit_length() - 4))
    rounded = -(-nbytes // step) * step
    largest &= -ALIGN
    return min(rounded, largest) if nbytes <= largest else rounded


# Blocks that are remembered for one purpose: a result may still be held while the next is computed.
_PREFERRED = 3


class Block:
    """One native buffer of the pool, or a row of buffers of `step` bytes (the last may have fewer).

    `nbytes`, `dtype`, `elements` and `label` describe the present user.
    """

    __slots__ = (
        "capacity", "dtype", "elements", "in_use", "label", "nbytes", "number", "pointer", "row", "step",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        pointer: Pointer,
        capacity: int,
        row: tuple[Pointer, ...] = (),
        step: int = 0,
    ) -> None:
        self.number = number
        # The first one.
        self.pointer = pointer
        self.capacity = capacity
        # All of them, where there are several.
        self.row = row
        self.step = step
        self.nbytes = 0
        self.in_use = False
        self.dtype: DType | None = None
        self.elements = 0
        self.label = ""

    def at(self, first: int, nbytes: int) -> tuple[Pointer, int]:
        """Return the buffer with these bytes, and where they begin there. Raises OutOfMemoryError if it is not one."""
        if not self.row:
            return self.pointer, first
        number, start = divmod(first, self.step)
        if start + nbytes > self.step:
            raise OutOfMemoryError(
                f"bytes {first} to {first + nbytes} of a tensor lie in several buffers on this adapter "
                f"(of {_size(self.step)}, {self.step} bytes), and this needs them in one; split the tensor, "
                "or use device 'cpu'"
            )
        return self.row[number], start

    def parts(self, nbytes: int, most: int) -> Iterator[tuple[Pointer, int, int, int]]:
        """Yield its first bytes in parts of at most `most`: the buffer, where they begin there and in all, how many."""
        if self.row:
            most = min(most, self.step)
        for first in range(0, nbytes, most):
            count = min(most, nbytes - first)
            yield *self.at(first, count), first, count


def moves(
    source: Block, target: Block, nbytes: int
) -> Iterator[tuple[Pointer, int, Pointer, int, int]]:
    """Yield the copies of the first bytes of one block to another: buffer and offset of both, and how many."""
    for _, _, first, count in (source if source.row else target).parts(nbytes, nbytes):
        yield *source.at(first, count), *target.at(first, count), count


class DeviceBuffer:
    """Device memory for `elements` values of one type; `nbytes` is its size in device memory.

    It is `stored` as that type, int64 perhaps as `wide_int64`; `held` is then the least and the largest value that it
    may hold, None where no more is known than how it is stored. Freed when the last reference goes, from any thread.
    """

    __slots__ = (
        "__weakref__", "_give_back", "block", "dtype", "elements", "held", "nbytes", "pool", "stored",
    )  # fmt: skip

    def __init__(self, pool: Pool, block: Block, stored: DType, elements: int) -> None:
        self.pool = pool
        self.block = block
        self.dtype = int64 if stored is wide_int64 else stored
        self.stored = stored
        self.held: tuple[int, int] | None = None
        self.elements = elements
        self.nbytes = device_bytes(stored, elements)
        # deque.append is atomic and takes no lock: a finalizer may run in any thread, inside any other code.
        self._give_back = pool.returned.append

    @property
    def label(self) -> str:
        """A name for messages about memory, such as the parameter that lives here."""
        return self.block.label

    @label.setter
    def label(self, text: str) -> None:
        """Name the memory in errors and profiles."""
        self.block.label = text

    def __del__(self) -> None:
        self._give_back(self.block)

    def __repr__(self) -> str:
        name = f" {self.label!r}" if self.label else ""
        return f"<webgpu buffer{name} {self.dtype.name}[{self.elements}]>"


class HostBlock:
    """Memory of the host's that the device reads and writes where it lies, as other devices and processes may."""

    def __init__(self, pool: Pool, made: Made, capacity: int) -> None:
        self._pool = pool
        # Its wrapper releases the native buffer, and lets go of the memory then.
        self._made = made
        self.block = Block(pool.number(), made._internal, capacity)

    def buffer(self, dtype: DType, elements: int) -> DeviceBuffer:
        """Return its beginning as a buffer, which keeps it alive."""
        made = DeviceBuffer(self._pool, self.block, dtype, elements)
        made._give_back = self._keep
        return made

    def _keep(self, block: Block) -> None:
        """It is not the pool's."""


def memory_limit() -> int | None:
    """Return WEBTORCH_MEMORY_LIMIT in bytes, or None. Raises ValueError when it is not a number."""
    text = os.environ.get("WEBTORCH_MEMORY_LIMIT", "").strip()
    return int(float(text)) if text else None


class _Unused:
    """Unused blocks of one capacity, by number."""

    __slots__ = ("blocks", "numbers")

    def __init__(self) -> None:
        self.blocks: dict[int, Block] = {}
        # A heap. Of a block that was taken by its number it may have some more.
        self.numbers: list[int] = []

    def put(self, block: Block) -> None:
        """Add one."""
        self.blocks[block.number] = block
        heapq.heappush(self.numbers, block.number)
        if len(self.numbers) > 4 * len(self.blocks) + 64:
            self.numbers = sorted(self.blocks)

    def first(self) -> Block | None:
        """Take the one with the lowest number, if there is one."""
        while self.blocks:
            block = self.blocks.pop(heapq.heappop(self.numbers), None)
            if block is not None:
                return block
        return None


class Pool:
    """The blocks of one device, by size class, and the account of them. The caller holds the device's lock.

    `allocated` counts live buffers (and, while a program runs, its temporaries), `reserved` all
    blocks.
    """

    def __init__(
        self,
        native: Native,
        max_buffer: int,
        step: int,
        on_release: Callable[[], None],
        error: Callable[[Problem, str], Exception],
    ) -> None:
        self._native = native
        # More than this is a row of buffers of `step` bytes.
        self._max_buffer = max_buffer
        self._step = step
        self._on_release = on_release
        self._error = error
        # By capacity.
        self._free: defaultdict[int, _Unused] = defaultdict(_Unused)
        self._blocks: dict[int, Block] = {}
        self._next = 0
        # Unused blocks that one user takes and gives back all together, with their bytes.
        self._parked: dict[object, tuple[list[Block], int]] = {}
        self.returned: deque[Block] = deque()
        self.limit = memory_limit()
        self.allocated = 0
        self.reserved = 0
        self.peak = 0

    def number(self) -> int:
        """Return a number for a new block, by which programs know memory again."""
        self._next += 1
        return self._next

    def collect(self) -> None:
        """Put the blocks of buffers that died since the last call back into the pool."""
        returned = self.returned
        while returned:
            self.give_back(returned.popleft())

    def give_back(self, block: Block) -> None:
        """Put one block back into the pool."""
        block.in_use = False
        self.allocated -= block.nbytes
        self._free[block.capacity].put(block)

    def park(self, user: object, blocks: list[Block], nbytes: int) -> None:
        """Give back blocks, `nbytes` in all, that `user` takes again together with `parked`, unless
        somebody else has needed one."""
        if user in self._parked:
            # It has run meanwhile with others.
            self._unpark()
        self.allocated -= nbytes
        self._parked[user] = blocks, nbytes

    def parked(self, user: object) -> list[Block] | None:
        """Take the blocks that `user` gave back with `park`, or return None if they are gone."""
        found = self._parked.pop(user, None)
        if found is None:
            return None
        self.allocated += found[1]
        if self.allocated > self.peak:
            self.peak = self.allocated
        return found[0]

    def _unpark(self) -> None:
        """Make parked blocks free for everybody."""
        for blocks, nbytes in self._parked.values():
            self.allocated += nbytes
            # Last taken, first given back: another program takes them in the same order.
            for block in reversed(blocks):
                self.give_back(block)
        self._parked.clear()

    def buffer(self, dtype: DType, elements: int) -> DeviceBuffer:
        """Return a new buffer. Raises OutOfMemoryError."""
        return DeviceBuffer(
            self, self.take(binding_bytes(dtype, elements), dtype, elements), dtype, elements
        )

    def take(
        self,
        nbytes: int,
        dtype: DType | None = None,
        elements: int = 0,
        preferred: list[Block] | None = None,
    ) -> Block:
        """Return a block of at least `nbytes`. Raises OutOfMemoryError.

        `preferred` are the blocks that served the same purpose before, the last at the end: one of
        them is taken if it is unused, and the list is kept up to date.
        """
        if self.returned:
            self.collect()
        block = None
        if preferred:
            block = self._preferred(preferred)
            if block is None and self._parked:
                self._unpark()
                block = self._preferred(preferred)
        if block is None:
            capacity = size_class(nbytes, self._max_buffer)
            free = self._free[capacity]
            if not free.blocks and self._parked:
                self._unpark()
            # The first ones: what a loop finds unused then follows from what it uses, not from the order in which
            # blocks came back, so that its programs meet the same memory again.
            block = free.first() or self._grow(capacity, nbytes, dtype, elements)
            if preferred is not None:
                preferred.append(block)
                if len(preferred) > _PREFERRED:
                    del preferred[0]
        block.in_use = True
        block.nbytes = nbytes
        block.dtype = dtype
        block.elements = elements
        block.label = ""
        self.allocated += nbytes
        if self.allocated > self.peak:
            self.peak = self.allocated
        return block

    def _preferred(self, preferred: list[Block]) -> Block | None:
        """Take one of `preferred` that is unused."""
        free = self._free[preferred[0].capacity].blocks
        return next((free.pop(b.number) for b in preferred if b.number in free), None)

    def _grow(self, capacity: int, nbytes: int, dtype: DType | None, elements: int) -> Block:
        what = f"{dtype.name}[{elements}], " if dtype is not None else ""
        problem: Problem | None = None
        for make_room in (None, self.release_unused, self._release_garbage):
            if make_room is not None:
                make_room()
            if self.limit is not None and self.reserved + capacity > self.limit:
                continue
            row, problem = self._create(capacity)
            if problem is None:
                break
        else:
            if problem is not None:
                raise self._failure(problem, what, nbytes)
            raise self._exhausted(
                what, nbytes, f"WEBTORCH_MEMORY_LIMIT is {_size(self.limit or 0)}"
            )
        number = self.number()
        made = row if len(row) > 1 else ()
        block = self._blocks[number] = Block(number, row[0], capacity, made, self._step)
        self.reserved += capacity
        return block

    def _create(self, capacity: int) -> tuple[tuple[Pointer, ...], Problem | None]:
        """Create the buffers of a block, all or none."""
        step = capacity if capacity <= self._max_buffer else self._step
        row: list[Pointer] = []
        for first in range(0, capacity, step):
            pointer, problem = self._native.create_buffer(
                min(step, capacity - first), STORAGE | COPY_SRC | COPY_DST
            )
            if problem is not None:
                for made in row:
                    self._native.release_buffer(made)
                return (), problem
            row.append(pointer)
        return tuple(row), None

    def _failure(self, problem: Problem, what: str, nbytes: int) -> Exception:
        if not is_out_of_memory(problem):
            return self._error(problem, "allocate")
        return self._exhausted(what, nbytes, "the device has no memory left")

    def _exhausted(self, what: str, nbytes: int, reason: str) -> OutOfMemoryError:
        live = sorted((b for b in self._blocks.values() if b.in_use), key=lambda b: -b.nbytes)
        rows = [
            f"  {_size(b.nbytes):>10}  {b.dtype.name if b.dtype else 'bytes'}[{b.elements}]  {b.label}".rstrip()
            for b in live[:5]
        ]
        largest = "\n".join(rows) if rows else "  none"
        return OutOfMemoryError(
            f"allocate: {what}{_size(nbytes)}: {reason}; {_size(self.allocated)} are in {len(live)} live buffers. "
            f"Delete tensors or use a smaller batch. The largest live buffers:\n{largest}"
        )

    def release_unused(self) -> None:
        """Give the pooled blocks back to the system."""
        self.collect()
        self._unpark()
        if not any(free.blocks for free in self._free.values()):
            return
        # Bind groups keep their buffers alive: forget them first.
        self._on_release()
        for free in self._free.values():
            for block in free.blocks.values():
                del self._blocks[block.number]
                self.reserved -= block.capacity
                for pointer in block.row or (block.pointer,):
                    self._native.release_buffer(pointer)
        self._free.clear()

    def _release_garbage(self) -> None:
        """Give back what only objects hold that Python has yet to find unused, too."""
        gc.collect()
        self.release_unused()


def _size(nbytes: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.4g} {unit}"
    return f"{nbytes} bytes"
