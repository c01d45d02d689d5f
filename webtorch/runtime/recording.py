"""What one thread records on a device without computing it, while other threads go on. Floor 3; may
import floors 0 to 2.

A capture overwrites storages for as long as it records, and gives them their values back. Other
threads see none of that: where one of them reads such a storage, it gets the value of before; what
it writes there is what the storage holds when the capture has ended.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Protocol

from webtorch.errors import CaptureError
from webtorch.ir.graph import Node
from webtorch.ops.primitive import IDENTITY


class Owner(Protocol):
    """What holds a node as its value: a storage."""

    node: Node
    donor: Node | None


# One thread captures at a time, whatever the device: a capture looks at all of them.
one_at_a_time = threading.RLock()


class Recording:
    """A capture of the thread that made it, on one device. `elsewhere`: on one where it must do nothing."""

    def __init__(self, *, elsewhere: bool = False) -> None:
        self.thread = threading.get_ident()
        self.elsewhere = elsewhere
        # Whether the thread computes something as if it had been there before.
        self.paused = False
        # What ends the capture when the captured function reads a value.
        self.stop: Callable[[], None] | None = None
        self.pending: list[weakref.ref[Owner]] = []
        # What owners held before the capture overwrote it, and what they hold for other threads.
        self.overwritten: weakref.WeakKeyDictionary[Owner, Node] = weakref.WeakKeyDictionary()
        self.public: weakref.WeakKeyDictionary[Owner, Node] = weakref.WeakKeyDictionary()
        # What owners held before another thread wrote them.
        self.before: weakref.WeakKeyDictionary[Owner, Node] = weakref.WeakKeyDictionary()
        # The values that the capture gave to owners of before, and all values that it recorded.
        self.given: dict[Node, weakref.ref[Owner]] = {}
        self.own: set[Node] = set()
        # What other threads made meanwhile.
        self.foreign: set[Node] = set()
        # How much the thread did on a device where it must do nothing.
        self.count = 0

    @property
    def is_mine(self) -> bool:
        """Whether the running thread captures here."""
        return threading.get_ident() == self.thread and not self.elsewhere and not self.paused

    def takes(self, owner: Owner) -> bool:
        """Take a value that was recorded, if it is the capture's. Another thread's is kept apart."""
        if threading.get_ident() != self.thread:
            if owner not in self.public:
                owner.node = self.apart(owner.node)
            return False
        if self.elsewhere or self.paused:
            self.count += 1
            return False
        self.own.add(owner.node)
        self.pending.append(weakref.ref(owner))
        return True

    def live(self) -> list[Owner]:
        """Return the owners of what is recorded and still wanted, in the order they were recorded."""
        found = {id(o): o for r in self.pending if (o := r()) is not None}
        return [o for o in found.values() if o.node.kind != "buffer"]

    def overwrite(self, owner: Owner, old: Node, node: Node) -> None:
        """Note that the capture gives `owner`, whose value `old` is computed or was there before, another."""
        if owner not in self.overwritten:
            if old.kind != "buffer":
                return
            self.overwritten[owner] = self.public[owner] = old
        self.given[node] = weakref.ref(owner)

    def value_of(self, owner: Owner) -> Node:
        """Return what `owner` holds for the running thread."""
        if threading.get_ident() == self.thread:
            return owner.node
        return self.public.get(owner, owner.node)

    def apart(self, node: Node) -> Node:
        """Return another thread's new value as it is without the capture.

        Raises CaptureError where it reads what only the capture has made.
        """
        node = self._seen(node)
        stack = [node]
        while stack:
            n = stack.pop()
            if n in self.foreign or n.kind == "buffer":
                continue
            if any(s in self.own for s in n.srcs):
                n.srcs = tuple([self._seen(s) for s in n.srcs])
            self.foreign.add(n)
            stack.extend(n.srcs)
        self.foreign.add(node)
        return node

    def _seen(self, node: Node) -> Node:
        if node not in self.own:
            return node
        reference = self.given.get(node)
        owner = reference() if reference is not None else None
        if owner is None or owner not in self.public:
            raise CaptureError(
                "another thread is capturing the function that makes this tensor, which has no value yet: use it "
                "when the call has returned"
            )
        return self.public[owner]

    def restore(self) -> None:
        """Give overwritten owners the values that they have for other threads."""
        for owner, node in self.public.items():
            owner.node, owner.donor = node, None
        for node, reference in self.given.items():
            there = reference()
            # Another thread may have looked here, and not have recorded yet what it does with it.
            if there is not None and node.kind != "buffer" and node.shape == there.node.shape:
                node.kind, node.srcs, node.scalars = "map", (self.overwritten[there],), ()
                node.attrs, node.form = (IDENTITY, "t", node.dtype.compute), None
