"""Storages: what tensors and their views share. A storage's value is a graph node, computed or not.
Floor 4.
"""

from __future__ import annotations

import gc

from webtorch.ir.dtype import DType
from webtorch.ir.graph import Node
from webtorch.ir.view import numel
from webtorch.runtime.realize import Runtime


class Storage:
    """Flat memory of one device and element type. Writing replaces the value; the version counts
    writes.
    """

    __slots__ = ("__weakref__", "donor", "dtype", "elements", "node", "runtime", "version")

    def __init__(self, node: Node, runtime: Runtime) -> None:
        self.node = node
        self.runtime = runtime
        self.dtype: DType = node.dtype
        self.elements = numel(node.shape)
        self.version = 0
        # The computed value that a pending one will replace: its memory may be written in place.
        self.donor: Node | None = None
        if node.kind != "buffer":
            runtime.add(self)

    def replace(self, node: Node) -> None:
        """Give the storage a new value, as an in-place operation does."""
        old = self.node
        if old.kind == "buffer":
            self.donor = None if old.shared else old
            if self.runtime.capturing:
                self.runtime.overwritten.setdefault(self, old)
            self.runtime.add(self)
        self.node = node
        if node.kind == "buffer":
            self.donor = None
        self.version += 1

    def grow(self, node: Node) -> None:
        """Take a larger value, as resize_ does."""
        if self.runtime.capturing and self.node.kind == "buffer":
            self.runtime.overwritten.setdefault(self, self.node)
        self.node, self.donor, self.elements = node, None, numel(node.shape)
        self.runtime.add(self)
        self.version += 1

    def realize(self) -> Node:
        """Return the value as a buffer node, computing everything pending on the device if needed."""
        if self.node.kind != "buffer":
            self.runtime.realize()
            if self.node.kind != "buffer":
                # An earlier attempt failed and left it out: raise its error here.
                self.runtime.add(self)
                self.runtime.realize()
        return self.node

    @staticmethod
    def live() -> list[Storage]:
        """Return every storage that exists. Slow; for captures and reports."""
        return [o for o in gc.get_objects() if type(o) is Storage]

    @property
    def nbytes(self) -> int:
        """Size in bytes, as PyTorch counts it."""
        return self.elements * self.dtype.itemsize
