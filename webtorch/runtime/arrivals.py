"""Values that come from other processes: what reads one waits for it, and what does not goes on. Floor 3."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import Any

from webtorch.ir.dtype import DType
from webtorch.ir.graph import Node
from webtorch.ir.view import Shape


class Arrival:
    """Something that other processes send, with the node that stands for its value until that is there.

    The node stays as it is until it is read, however early the value comes: programs do not depend on times.
    """

    __slots__ = ("_there", "buffer", "error", "reference")

    def __init__(self) -> None:
        self._there = threading.Event()
        self.reference: weakref.ref[Node] | None = None
        self.buffer: Any = None
        self.error: Exception | None = None

    def node(self, shape: Shape, dtype: DType) -> Node:
        """Return the node, which is made here."""
        node = Node("arriving", (), (), (), shape, dtype)
        self.reference = weakref.ref(node)
        return node

    def come(self, buffer: object, error: Exception | None = None) -> None:
        """Note that the value is there, or why it is not what it should be. For any thread."""
        self.buffer, self.error = buffer, error
        self._there.set()

    @property
    def is_there(self) -> bool:
        """Whether it has come."""
        return self._there.is_set()

    def wait(self) -> None:
        """Wait for it."""
        self._there.wait()


def read(nodes: Iterable[Node]) -> set[Node]:
    """Return the nodes of values to come that these stand on."""
    seen: set[Node] = set()
    found: set[Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            if node.kind == "arriving":
                found.add(node)
            else:
                stack += node.srcs
    return found
