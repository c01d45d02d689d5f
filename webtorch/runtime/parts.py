"""Graphs of one form whose sizes change from step to step, in parts. Floor 3; imports floor 0 only.

A loop over a growing sequence (a cache of keys and values that `cat` makes longer) records a graph at
every step that differs from the last in a few sizes only. As a whole each would be compiled anew. Cut
where sizes that change meet those that do not, most parts are the programs of the step before, and the
same for every layer; what is left to compile is small.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from webtorch.ir.graph import Node

# A graph with fewer operations is compiled as a whole: cutting it would save little.
FEWEST = 48
# So many operations in a row are cheaper computed with their changing neighbours than cut off from them.
_ISLAND = 4
_SMALL = frozenset(("map", "reduce", "pad"))
# How many operations may change, of all; where most do, cutting saves nothing.
_MOST_CHANGED = 0.5


class Owner(Protocol):
    """What holds a node as its value: a storage."""

    node: Node
    donor: Node | None


@dataclass(slots=True)
class Held:
    """A value between two parts, which nothing outside the graph holds."""

    node: Node
    donor: Node | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """What is computed together: the numbers of owners, and of nodes that later parts read."""

    owners: tuple[int, ...]
    nodes: tuple[int, ...]
    # Whether its sizes change from step to step.
    varying: bool


@dataclass(frozen=True, slots=True)
class Cut:
    """How graphs of one structure are computed in parts."""

    parts: tuple[Part, ...]
    # The owners whose old values are read by a later part, so that their memory is not taken over.
    keeping: tuple[int, ...]

    @property
    def varying(self) -> int:
        """In how many parts sizes change."""
        return sum([p.varying for p in self.parts])


def changed_sizes(before: Sequence[Any], now: Sequence[Any]) -> set[int]:
    """Return the numbers of the nodes that differ in kind, shape or attributes between two outlines."""
    return {i for i, (b, n) in enumerate(zip(before, now, strict=True)) if b[:3] != n[:3]}


def _sources(order: Sequence[Node]) -> tuple[list[list[int]], list[bool]]:
    """Return which nodes each reads from memory, and which need none: views, and what reads nothing.

    These are computed anew in each part that reads them.
    """
    number = {n: i for i, n in enumerate(order)}
    reads: list[list[int]] = []
    free: list[bool] = []
    for node in order:
        if node.kind == "buffer":
            reads.append([])
            free.append(True)
            continue
        found: list[int] = []
        for s in node.srcs:
            n = number[s]
            # What is computed anew reads what it reads; data are read as they are.
            found += reads[n] if free[n] else [n]
        reads.append(found)
        free.append(node.kind == "view" or not node.srcs)
    return reads, free


def _data(order: Sequence[Node]) -> Iterator[tuple[int, Node]]:
    """Return (reader, data) for each time that data are read, as they are or through views."""
    for i, node in enumerate(order):
        for s in node.srcs:
            while s.kind == "view":
                s = s.srcs[0]
            if s.kind == "buffer":
                yield i, s


def structure(order: Sequence[Node], owners: Sequence[Owner]) -> int:
    """Return a hash of which nodes read which, and of which owners overwrite what: a `Cut` serves graphs
    of one family that have the same.
    """
    number = {n: i for i, n in enumerate(order)}
    reads = tuple([tuple([number[s] for s in n.srcs]) for n in order])
    donors = tuple([(number[o.node], o.donor and number[o.donor]) for o in owners])
    return hash((reads, donors))


def cut(order: Sequence[Node], owners: Sequence[Owner], changing: set[int]) -> Cut | None:
    """Return how a graph is computed in parts; None if it is better computed as a whole.

    `order` are its nodes, sources first; `changing` the numbers of those whose sizes change. What
    overwrites data that nothing reads afterwards comes last, so that a failure before it leaves the data
    as they were.
    """
    reads, free = _sources(order)
    moving = _moving(order, free, changing)
    _absorb(order, reads, free, moving)
    work = [i for i in range(len(order)) if not free[i]]
    if not work or sum([moving[i] for i in work]) > _MOST_CHANGED * len(work):
        return None
    stage = _stages(order, owners, reads, free, moving)
    if stage is None:
        return None
    number = {n: i for i, n in enumerate(order)}
    last_read: dict[Node, int] = {}
    for i, data in _data(order):
        last_read[data] = max(last_read.get(data, 0), stage[i])
    ours: list[list[int]] = [[] for _ in range(max(stage) + 1)]
    keeping = []
    for n, owner in enumerate(owners):
        at = stage[number[owner.node]]
        ours[at].append(n)
        if owner.donor is not None and last_read.get(owner.donor, 0) > at:
            keeping.append(n)
    held: list[list[int]] = [[] for _ in ours]
    owned = {number[o.node] for o in owners}
    there = set(owned)
    for i, found in enumerate(reads):
        if free[i] and i not in owned:
            continue
        for r in found:
            if stage[r] < stage[i] and r not in there:
                there.add(r)
                held[stage[r]].append(r)
    made = [Part(tuple(o), tuple(h), bool(s % 2)) for s, (o, h) in enumerate(zip(ours, held))]
    return Cut(tuple([p for p in made if p.owners or p.nodes]), tuple(keeping))


def _stages(
    order: Sequence[Node],
    owners: Sequence[Owner],
    reads: Sequence[Sequence[int]],
    free: Sequence[bool],
    moving: Sequence[bool],
) -> list[int] | None:
    """Return the stage of each node, None if there is one only. Those with odd numbers hold what moves."""
    # As early as what is read allows.
    stage = [0] * len(order)
    for i, found in enumerate(reads):
        earliest = max([stage[r] for r in found], default=0)
        stage[i] = earliest if free[i] else earliest + (earliest % 2 != moving[i])
    last = max(stage)
    if not last:
        return None
    number = {n: i for i, n in enumerate(order)}
    read = {r for found in reads for r in found}
    owned = {number[o.node] for o in owners}
    for owner in owners:
        i = number[owner.node]
        if owner.donor is not None and i not in read:
            late = last if free[i] else last - (last % 2 != moving[i])
            stage[i] = max(stage[i], late)
    # The rest as late as its readers allow, so that little is kept from one stage to another.
    latest = [last] * len(order)
    for i in reversed(range(len(order))):
        if not free[i] and i not in owned:
            stage[i] = latest[i]
        if not free[i] or i in owned:
            for r in reads[i]:
                allowed = min(latest[r], stage[i])
                latest[r] = allowed - (allowed % 2 != moving[r])
    return stage


def _absorb(
    order: Sequence[Node], reads: Sequence[Sequence[int]], free: Sequence[bool], moving: list[bool]
) -> None:
    """Let small work between what moves move too: a row's maximum is not worth parts of its own."""
    far = _ISLAND + 1
    below, above = [far] * len(order), [far] * len(order)
    for i, found in enumerate(reads):
        if moving[i]:
            below[i] = 0
        elif order[i].kind in _SMALL:
            below[i] = min(far, 1 + min([below[r] for r in found], default=far))
    for i in reversed(range(len(order))):
        if free[i]:
            continue
        if moving[i]:
            above[i] = 0
        if moving[i] or order[i].kind in _SMALL:
            for r in reads[i]:
                above[r] = min(above[r], above[i] + 1)
    for i in range(len(order)):
        if not free[i] and order[i].kind in _SMALL and max(below[i], above[i]) < far:
            moving[i] = True


def _moving(order: Sequence[Node], free: Sequence[bool], changing: set[int]) -> list[bool]:
    """Return which nodes have, or read, sizes that change."""
    number = {n: i for i, n in enumerate(order)}
    moving: list[bool] = []
    shifting: list[bool] = []
    for i, node in enumerate(order):
        reads = i in changing or any(shifting[number[s]] for s in node.srcs)
        moving.append(reads)
        # A view of what changes is read as that; a result of one size may be read by what never changes.
        shifting.append(reads if free[i] else i in changing)
    return moving
