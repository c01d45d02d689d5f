"""What is known of graphs that come again: their programs, and what these are run with. Floor 3."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from webtorch.ir.dtype import Scalar
from webtorch.ir.graph import Node
from webtorch.runtime.backend import Executable
from webtorch.runtime.churn import Family
from webtorch.runtime.frozen import Frozen, Value
from webtorch.runtime.parts import Cut


def _nothing() -> None:
    """Return what is gone."""


class Known:
    """What is known of graphs of one key: their program, and what it is run with."""

    __slots__ = (
        "args",
        "executable",
        "family",
        "moved",
        "order",
        "parts",
        "picked",
        "plan",
        "runtime",
    )

    def __init__(
        self,
        runtime: object,
        family: Family | None,
        program: Executable | KnownParts,
        given: Sequence[Node] | dict[Node, int],
        frozen: Frozen,
        places: dict[Node, int],
        *,
        part: bool = False,
    ) -> None:
        self.runtime, self.family = runtime, family
        self.executable: Callable[[], Executable | None] = _nothing
        self.parts: weakref.ref[KnownParts] | None = None
        # How the backend computes a value of this program as one call; nothing where it cannot, None where that is not
        # known yet.
        self.plan: bytes | None = None
        if isinstance(program, KnownParts):
            self.parts = weakref.ref(program)
        else:
            self.executable = weakref.ref(program)
        # Which of what is given is which input (None: in their order).
        place = given if isinstance(given, dict) else {n: i for i, n in enumerate(given)}
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
        # Where among these and the numbers of a graph each argument is.
        self.picked = [*range(at)] if self.moved else []
        for i, given_at in self.moved:
            self.picked[i] = at + given_at

    def numbers(self, given: Sequence[Scalar]) -> Sequence[Scalar]:
        """Return the arguments of a run, of a graph's numbers."""
        args = self.args
        if args is None:
            return given
        if self.picked:
            values = [*args, *given]
            return [values[i] for i in self.picked]
        return args


@dataclass(slots=True)
class Divided:
    """What is known of graphs of one structure that are computed in parts."""

    # The numbers of the nodes that have been seen to change.
    changing: set[int] = field(default_factory=set)
    cut: Cut | None = None
    # Whether the cut left all that changes in the parts that may change, last time.
    fits: bool = False
    # How often each came, by the hash of its key.
    times: dict[int, int] = field(default_factory=dict)


class KnownParts:
    """What is known of graphs of one key that are computed in parts."""

    __slots__ = ("__weakref__", "cut", "divided", "number", "parts", "results")

    def __init__(self, divided: Divided, cut: Cut, number: int) -> None:
        self.divided, self.cut, self.number = divided, cut, number
        # Each part, and which values nothing reads any more after it. The values are the inputs and then the results of
        # each part in turn.
        self.parts: list[tuple[Known, list[int]]] = []
        # Where among all values those of the owners are.
        self.results: list[int] = []

    @property
    def times(self) -> dict[int, int]:
        """How often graphs of this structure came."""
        return self.divided.times

    def is_there(self) -> bool:
        """Whether all parts have run once, and none of their programs is gone."""
        return bool(self.results) and all(part.executable() for part, _ in self.parts)

    def end(
        self, parts: Sequence[Known], place: dict[Node, int], inputs: int, owners: Sequence[Value]
    ) -> None:
        """Note all parts, and where each value is. The first `inputs` are there before they run."""
        self.results = [place[owner.node] for owner in owners]
        kept = {*range(inputs), *self.results}
        for known in reversed(parts):
            gone = [*({*(known.order or ())} - kept)]
            kept.update(gone)
            self.parts.insert(0, (known, gone))
