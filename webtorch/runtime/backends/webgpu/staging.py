"""Buffers that the host maps, through which data goes to the device and comes back. Not synchronised: the caller
holds the device's lock. Imports this package's `native` and `memory`.

They are kept for the next copy: new memory of the system's costs a page fault for every 4 KiB, which is most of
what a copy of some megabytes would take.
"""

from __future__ import annotations

from collections import deque

from webtorch.runtime.backends.webgpu.memory import size_class
from webtorch.runtime.backends.webgpu.native import (
    COPY_SRC,
    MAP_WRITE,
    Native,
    Pointer,
    Problem,
    Ticket,
)

# Bytes that are kept, of each of the two ways.
_KEPT = 256 << 20


class Staging:
    """Mappable buffers of one device, by their capacity."""

    def __init__(self, native: Native, largest: int) -> None:
        self._native = native
        self._largest = largest
        # Those to be read into, which are not mapped.
        self._free: dict[int, list[Pointer]] = {}
        self._free_bytes = 0
        # Those to be written, in the order in which they will be mapped again.
        self._returning: dict[int, deque[tuple[Ticket, Pointer]]] = {}
        self._writable_bytes = 0

    def capacity(self, nbytes: int) -> int:
        """Return the size of the buffer for so many bytes."""
        return size_class(nbytes, self._largest)

    def take(self, capacity: int) -> tuple[Pointer, Problem | None]:
        """Return a buffer for a read."""
        free = self._free.get(capacity)
        if free:
            self._free_bytes -= capacity
            return free.pop(), None
        return self._native.create_readable(capacity)

    def keep(self, capacity: int, pointer: Pointer) -> None:
        """Take back a buffer that was read and is mapped no more."""
        if self._free_bytes + capacity > _KEPT:
            self._native.release_buffer(pointer)
            return
        self._free.setdefault(capacity, []).append(pointer)
        self._free_bytes += capacity

    def take_writable(self, capacity: int) -> tuple[Pointer, Ticket | None] | None:
        """Return a buffer for a write, with what to wait for if it is not mapped yet; None where there is no memory."""
        returning = self._returning.get(capacity)
        if returning:
            ticket, pointer = returning[0]
            if not ticket.ready.is_set():
                self._native.poll()
            if ticket.ready.is_set() or self._writable_bytes + capacity > _KEPT:
                returning.popleft()
                return pointer, ticket
        if self._writable_bytes + capacity > _KEPT:
            self._release_writable()
        pointer, problem = self._native.create_buffer(capacity, COPY_SRC | MAP_WRITE, mapped=True)
        if problem is not None:
            return None
        self._writable_bytes += capacity
        return pointer, None

    def give_back(self, capacity: int, pointer: Pointer) -> None:
        """Take back a buffer whose copy was submitted: it is mapped again once that has run."""
        ticket = self._native.begin_map(pointer, capacity, MAP_WRITE)
        self._returning.setdefault(capacity, deque()).append((ticket, pointer))

    def lose(self, capacity: int) -> None:
        """Forget a buffer that will not come back."""
        self._writable_bytes -= capacity

    def _release_writable(self) -> None:
        for capacity, returning in self._returning.items():
            self._writable_bytes -= capacity * len(returning)
            for _, pointer in returning:
                self._native.release_buffer(pointer)
        self._returning.clear()

    def release(self) -> None:
        """Give all that is unused back to the system."""
        for free in self._free.values():
            for pointer in free:
                self._native.release_buffer(pointer)
        self._free.clear()
        self._free_bytes = 0
        self._release_writable()
