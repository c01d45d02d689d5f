"""The order of a program's steps. May import floors 0 and 1.

Fusion gives an order in which the steps can run, which is that of the graph: all gradients of
activations first, then all gradients of weights. Memory wants another.
"""

from __future__ import annotations

import heapq
from typing import Protocol, TypeVar

from webtorch.ir.graph import Graph

# A task that takes less than this part of the largest value is thought to take nothing.
_SMALL = 64


class Task(Protocol):
    """One step before memory is planned."""

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
    stands. A task that may overwrite memory in place still comes after those that read it.
    """
    writer = {n: t for t, task in enumerate(tasks) for n in task.writes}
    outputs = {o.node for o in graph.outputs}
    donor = {o.node: o.donor for o in graph.outputs if o.donor is not None}
    reads: list[set[int]] = []
    readers: dict[int, list[int]] = {}
    for t, task in enumerate(tasks):
        found = {*task.nodes, *(b for _, b in task.bases)} - set(task.writes)
        reads.append(found)
        for n in found:
            readers.setdefault(n, []).append(t)
    after: list[set[int]] = [set() for _ in tasks]
    for t, task in enumerate(tasks):
        waits = {writer[n] for n in reads[t] if n in writer}
        taken = {donor[n] for n in task.writes if n in donor} | {b for _, b in task.bases}
        for n in taken:
            waits |= {r for r in readers.get(n, ()) if r < t}
        for w in waits - {t}:
            after[w].add(t)
    waiting = [0] * len(tasks)
    for followers in after:
        for t in followers:
            waiting[t] += 1

    def size(n: int) -> int:
        """Return the bytes of a node's result."""
        node = graph.nodes[n]
        return node.elements * node.dtype.itemsize

    in_place = {n for task in tasks for n in task.writes if n in donor}
    in_place |= {n for task in tasks for n, _ in task.bases}
    freed = {n for n in readers if n in writer and n not in outputs}
    left = {n: len(readers[n]) for n in freed}
    delta = [sum(size(n) for n in task.writes if n not in in_place) for task in tasks]
    for n in freed:
        if left[n] == 1:
            delta[readers[n][0]] -= size(n)
    small = max((size(n) for task in tasks for n in task.writes), default=0) // _SMALL
    ready = [t for t in range(len(tasks)) if not waiting[t]]
    frugal = [(delta[t], t) for t in ready if delta[t] <= small]
    heapq.heapify(frugal)
    done = [False] * len(tasks)
    order: list[T] = []
    while ready:
        while frugal and done[frugal[0][1]]:
            heapq.heappop(frugal)
        t = heapq.heappop(frugal)[1] if frugal else heapq.heappop(ready)
        if done[t]:
            continue
        done[t] = True
        order.append(tasks[t])
        for n in reads[t] & freed:
            left[n] -= 1
            if left[n] == 1:
                last = next(r for r in readers[n] if not done[r])
                delta[last] -= size(n)
                if not waiting[last] and delta[last] <= small:
                    heapq.heappush(frugal, (delta[last], last))
        for follower in after[t]:
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, follower)
                if delta[follower] <= small:
                    heapq.heappush(frugal, (delta[follower], follower))
    assert len(order) == len(tasks), "tasks wait for each other"
    return order
