"""What is known of graphs that come again: their programs, and what these are run with. Floor 3."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from webtorch.ir.dtype import Scalar
from webtorch.ir.graph import Node
from webtorch.runtime.backend import Executable
from webtorch.runtime.churn import Family
from webtorch.runtime.frozen import Frozen, Value
from webtorch.runtime.parts import Cut


class Known:
    """What is known of graphs of one key: their program, and what it is run with."""

    __slots__ = ("args", "executable", "family", "moved", "order", "runtime")

    def __init__(
        self,
        runtime: object,
        family: Family | None,
        executable: Executable,
        given: Sequence[Node],
        frozen: Frozen,
        places: dict[Node, int],
        *,
        part: bool = False,
    ) -> None:
        self.runtime, self.executable = runtime, weakref.ref(executable)
        self.family = family
        # Which of what is given is which input (None: in their order).
        place = {n: i for i, n in enumerate(given)}
        order = [place[n] for n in frozen.inputs]
        self.order = None if not part and order == list(range(len(given))) else order
        # The arguments (None: those of the graph), and which of them are numbers of the graph.
        self.moved: list[tuple[int, int]] = []
        at = 0
        for node in frozen.order:
            first, count = places.get(node), len(node.scalars)
            if first is not None:
                self.moved += [(at + i, first + i) for i in range(count)]
            at += count
        own = self.moved == [(i, i) for i in range(at)]
        self.args = None if own and not part else [*frozen.args]

    def numbers(self, given: Sequence[Scalar]) -> Sequence[Scalar]:
        """Return the arguments of a run, of a graph's numbers."""
        args = self.args
        if args is None:
            return given
        if self.moved:
            args = args.copy()
            for at, place in self.moved:
                args[at] = given[place]
        return args


class KnownParts:
    """What is known of graphs of one key that are computed in parts."""

    __slots__ = ("cut", "number", "parts", "results", "times", "values")

    def __init__(self, cut: Cut, times: dict[int, int], number: int) -> None:
        self.cut, self.times, self.number = cut, times, number
        # Each part, and which values nothing reads any more after it.
        self.parts: list[tuple[Known, list[int]]] = []
        # Where among all values those of the owners are.
        self.results: list[int] = []
        # While this is made: the inputs, then the results of each part in turn.
        self.values: list[Node] = []

    def add(self, part: Known, results: Sequence[Value]) -> None:
        """Note a part."""
        self.parts.append((part, []))
        self.values += [r.node for r in results]

    def end(self, inputs: int, owners: Sequence[Value]) -> None:
        """Note that all parts are there. The first `inputs` values are there before they run."""
        place = {n: i for i, n in enumerate(self.values)}
        self.results = [place[owner.node] for owner in owners]
        kept = {*range(inputs), *self.results}
        for known, gone in reversed(self.parts):
            gone += {*(known.order or ())} - kept
            kept.update(gone)
        self.values = []
