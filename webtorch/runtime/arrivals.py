"""Values that come from other processes: what reads one waits for it, and what does not goes on. Floor 3."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from webtorch.ir.dtype import DType
from webtorch.ir.graph import Node
from webtorch.ir.view import Shape


def patiently(wait: Callable[[], object]) -> None:
    """Call what waits for other processes and changes nothing here: Ctrl-C may end it anywhere."""
    wait()


class Arrival:
    """Something that other processes send, with the node that stands for its value until that is there.

    The node stays as it is until it is read, however early the value comes: programs do not depend on times.
    """

    __slots__ = ("_bring", "_there", "buffer", "error", "place", "reference")

    def __init__(self, place: object = None, bring: Callable[[], None] | None = None) -> None:
        """`place`: the memory in which it is expected, if that is known; `bring`: what who waits for it does first."""
        self._there, self._bring = threading.Event(), bring
        self.place: Any = place
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
        self.buffer, self.error, self._bring = buffer, error, None
        self._there.set()

    @property
    def is_there(self) -> bool:
        """Whether it has come."""
        return self._there.is_set()

    def wait(self) -> None:
        """Wait for it."""
        bring = self._bring
        if bring is not None:
            bring()
        patiently(self._there.wait)


def sent(arriving: Sequence[Arrival], nodes: Collection[Node]) -> list[Arrival]:
    """Return those whose values these nodes stand for."""
    return [a for a in arriving if a.reference is not None and a.reference() in nodes]


def places(arriving: Sequence[Arrival], nodes: Iterable[Node]) -> list[Any]:
    """Return the memory of values, of those to come too; None for that of one which is not known."""
    coming = {a.reference(): a.place for a in arriving if a.reference is not None}
    return [n.buffer if n.kind == "buffer" else coming.get(n) for n in nodes]


def settle(arriving: list[Arrival], nodes: Collection[Node]) -> None:
    """Let these nodes, whose values have come, be data, and forget what has come and nobody holds. Raises what kept one
    from coming, once.
    """
    error: Exception | None = None
    for arrival in arriving[:]:
        node = None if arrival.reference is None else arrival.reference()
        if arrival.is_there and (node is None or node in nodes):
            arriving.remove(arrival)
            error = error or arrival.error
            if node is not None:
                node.become_buffer(arrival.buffer)
    if error is not None:
        for arrival in arriving:
            if arrival.error is error:
                arrival.error = None
        raise error


def waiting(nodes: Iterable[Node]) -> tuple[set[Node], set[Node]]:
    """Return which of these nodes stand on values to come, and the data that those read."""
    # Whether each node stands on one; None while that is looked for.
    found: dict[Node, bool | None] = {}
    late: set[Node] = set()
    for top in nodes:
        stack = [top]
        while stack:
            node = stack[-1]
            known = found.get(node, ...)
            if known is ...:
                found[node] = None
                stack += [s for s in node.srcs if s not in found]
            else:
                stack.pop()
                if known is None:
                    found[node] = node.kind == "arriving" or any(found[s] for s in node.srcs)
        if found[top]:
            late.add(top)
    return late, {n for n in _all(late) if n.kind == "buffer"}


def waits(node: Node) -> bool:
    """Whether a node stands on a value to come."""
    seen: set[Node] = set()
    stack = [node]
    while stack:
        node = stack.pop()
        if node.kind == "arriving":
            return True
        if node not in seen:
            seen.add(node)
            stack += node.srcs
    return False


def _all(nodes: Iterable[Node]) -> set[Node]:
    """Return these nodes and all that they stand on."""
    seen: set[Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack += node.srcs
    return seen


def read(nodes: Iterable[Node]) -> set[Node]:
    """Return the nodes of values to come that these stand on."""
    return {n for n in _all(nodes) if n.kind == "arriving"}
