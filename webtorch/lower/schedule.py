"""The order of a program's steps. May import floors 0 and 1.

Fusion gives an order in which the steps can run, which is that of the graph: all gradients of
activations first, then all gradients of weights. Memory wants another.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from typing import Protocol, TypeVar

from webtorch.ir.checks import first_checks
from webtorch.ir.graph import Graph
from webtorch.ir.kernel import Routine

# A task that takes less than this part of the largest value is thought to take nothing.
_SMALL = 64


class Task(Protocol):
    """One step before memory is planned."""

    @property
    def routine(self) -> Routine:
        """What it runs."""

    @property
    def nodes(self) -> tuple[int, ...]:
        """The stored nodes that it runs on."""

    @property
    def writes(self) -> tuple[int, ...]:
        """Those that it produces."""

    @property
    def bases(self) -> tuple[tuple[int, int], ...]:
        """(written node, base node): the node is its base with some elements replaced."""


T = TypeVar("T", bound=Task)


def in_frugal_order(graph: Graph, tasks: list[T]) -> list[T]:
    """Return the tasks in an order that keeps little in memory.

    What frees at least as much as it takes runs as soon as it can (the gradient of a weight frees
    an activation, its optimizer's update frees the gradient), and so does what takes next to
    nothing (the gradient of a bias, a step count), on which others wait; else the given order
    stands. A task that may overwrite memory in place still comes after those that read it, and one that
    overwrites what the program is given after those that check indices, so that it need not run where one is bad.
    """
    reads = [{*t.nodes, *(b for _, b in t.bases)} - set(t.writes) for t in tasks]
    readers: dict[int, list[int]] = {}
    for t, found in enumerate(reads):
        for n in found:
            readers.setdefault(n, []).append(t)
    after = _followers(graph, tasks, reads, readers)
    order = _Scheduler(graph, tasks, reads, readers, after).order()
    assert len(order) == len(tasks), "tasks wait for each other"
    return [tasks[t] for t in order]


def _followers(
    graph: Graph, tasks: Sequence[Task], reads: list[set[int]], readers: dict[int, list[int]]
) -> list[set[int]]:
    """Return the tasks that wait for each: those that read what it writes, or overwrite what it reads."""
    writer = {n: t for t, task in enumerate(tasks) for n in task.writes}
    donor = {o.node: o.donor for o in graph.outputs if o.donor is not None}
    after: list[set[int]] = [set() for _ in tasks]
    for t, task in enumerate(tasks):
        waits = {writer[n] for n in reads[t] if n in writer}
        taken = {donor[n] for n in task.writes if n in donor} | {b for _, b in task.bases}
        for n in taken:
            waits |= {r for r in readers.get(n, ()) if r < t}
        for w in waits - {t}:
            after[w].add(t)
    _let_writers_wait(graph, tasks, donor, after)
    return after


def _let_writers_wait(
    graph: Graph, tasks: Sequence[Task], donor: dict[int, int], after: list[set[int]]
) -> None:
    """Let the tasks that overwrite what the program is given wait for those that check indices first, unless some of
    these wait for them.
    """
    checks = first_checks([(task.routine, task.nodes) for task in tasks])
    if not checks:
        return
    given: dict[int, bool] = dict.fromkeys(donor, True)
    for task in tasks:
        given |= {n: graph.nodes[b].kind == "buffer" or given.get(b, False) for n, b in task.bases}
    writers = [t for t, task in enumerate(tasks) if any(given.get(n) for n in task.writes)]
    later = set(writers)
    for t in range(len(tasks)):
        if t in later:
            later |= after[t]
    for c in checks - later:
        after[c].update(writers)


class _Scheduler:
    """Takes one task after the other that waits for none, a frugal one where there is one.

    `delta` is how many bytes of memory each would take, less those that it would free: a value is freed
    by the last that reads it, which is known once the others have run.
    """

    def __init__(
        self,
        graph: Graph,
        tasks: Sequence[Task],
        reads: list[set[int]],
        readers: dict[int, list[int]],
        after: list[set[int]],
    ) -> None:
        self.reads, self.readers, self.after = reads, readers, after
        self.bytes = [n.elements * n.dtype.itemsize for n in graph.nodes]
        outputs = {o.node for o in graph.outputs}
        donated = {o.node for o in graph.outputs if o.donor is not None}
        written = {n for task in tasks for n in task.writes}
        in_place = (written & donated) | {n for task in tasks for n, _ in task.bases}
        self.freed = {n for n in readers if n in written and n not in outputs}
        self.left = {n: len(readers[n]) for n in self.freed}
        self.delta = [sum(self.bytes[n] for n in t.writes if n not in in_place) for t in tasks]
        for n in self.freed:
            if self.left[n] == 1:
                self.delta[readers[n][0]] -= self.bytes[n]
        self.small = max((self.bytes[n] for n in written), default=0) // _SMALL
        self.waiting = Counter(t for followers in after for t in followers)
        self.done = [False] * len(tasks)
        self.ready = [t for t in range(len(tasks)) if not self.waiting[t]]
        self.frugal = [(self.delta[t], t) for t in self.ready if self.delta[t] <= self.small]
        heapq.heapify(self.frugal)

    def order(self) -> list[int]:
        """Return the tasks in the order in which they are taken."""
        order: list[int] = []
        while self.ready:
            t = self._next()
            if self.done[t]:
                continue
            self.done[t] = True
            order.append(t)
            for n in self.reads[t] & self.freed:
                self._read(n)
            for follower in self.after[t]:
                self.waiting[follower] -= 1
                if not self.waiting[follower]:
                    heapq.heappush(self.ready, follower)
                    self._offer(follower)
        return order

    def _next(self) -> int:
        """Return what is taken next; it may have been taken already."""
        while self.frugal and self.done[self.frugal[0][1]]:
            heapq.heappop(self.frugal)
        return heapq.heappop(self.frugal)[1] if self.frugal else heapq.heappop(self.ready)

    def _offer(self, t: int) -> None:
        """Let a task that waits for none run soon, where it takes little."""
        if self.delta[t] <= self.small:
            heapq.heappush(self.frugal, (self.delta[t], t))

    def _read(self, n: int) -> None:
        """Note that one less is to read a value: the last one frees it."""
        self.left[n] -= 1
        if self.left[n] == 1:
            last = next(r for r in self.readers[n] if not self.done[r])
            self.delta[last] -= self.bytes[n]
            if not self.waiting[last]:
                self._offer(last)
