"""What a backward pass runs, and in which order leaves get their gradients that one function has completed. Floor 4,
below the engine.

PyTorch's engine has what is ready in a heap, in which all leaves have one key: they come as libstdc++ has it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from webtorch.tensors.tape import GradFn

_MOST = 1 << 64


def graph_of(starts: Iterable[GradFn | None], until: Container[GradFn] = ()) -> dict[GradFn, None]:
    """Return the functions that a backward pass from `starts` may run, in an order that depends on the graph alone; but
    for those where it is to end.
    """
    seen: dict[GradFn, None] = {}
    pending = [fn for fn in starts if fn is not None]
    while pending:
        fn = pending.pop()
        if fn not in seen and fn not in until:
            seen[fn] = None
            pending.extend(e[0] for e in fn.edges if e is not None)
    return seen


def in_heaps_order(
    fn: GradFn, done: Sequence[GradFn], waiting: Sequence[tuple[int, GradFn]]
) -> list[GradFn]:
    """Return the leaves that `fn` has completed in the order in which they come. `waiting`: the functions for which
    something waits, with their keys.
    """
    # One that a function leads to twice waits for the second time.
    after = [*dict.fromkeys([e[0] for e in reversed(fn.edges) if e is not None])][::-1]
    whole = {*done}
    if len(done) < 3:
        return [e for e in after if e in whole]
    pushed = [(_MOST if e in whole else e.sequence, e) for e in after]
    # What lacks something is in no heap yet: leaves, and what is behind others.
    heap = [pair for pair in waiting if pair[1] not in after]
    others = [e for key, e in (*heap, *pushed) if 0 <= key < _MOST]
    behind = graph_of([edge[0] for e in others for edge in e.edges if edge is not None])
    heap = [pair for pair in heap if pair[1] not in behind]
    return _popped(
        heap, [(key, e) for key, e in pushed if key == _MOST or (key >= 0 and e not in behind)]
    )


def _popped(heap: list[tuple[int, GradFn]], pushed: list[tuple[int, GradFn]]) -> list[GradFn]:
    """Return what has the greatest key once all of `pushed` are in a heap, in the order in which it is popped, where
    equal ones come as in libstdc++.
    """

    def up(hole: int, item: tuple[int, GradFn]) -> None:
        """Move an item up from a hole to where it belongs."""
        while hole and heap[(hole - 1) // 2][0] < item[0]:
            heap[hole] = heap[(hole - 1) // 2]
            hole = (hole - 1) // 2
        heap[hole] = item

    for item in pushed:
        heap.append(item)
        up(len(heap) - 1, item)
    found, most = list[GradFn](), heap[0][0]
    while heap and heap[0][0] == most:
        found.append(heap[0][1])
        item, hole = heap.pop(), 0
        while 2 * hole + 1 < len(heap):
            # The right one of two equal children.
            child = 2 * hole + 2
            if child == len(heap) or heap[child][0] < heap[child - 1][0]:
                child -= 1
            heap[hole] = heap[child]
            hole = child
        if heap:
            up(hole, item)
    return found
