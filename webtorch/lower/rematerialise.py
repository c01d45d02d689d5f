"""Computing values again instead of keeping them, to stay within a budget of memory. May import
floors 0 and 1.

Where a graph holds the most (a training step: between forward and backward), what it holds there is
kept or computed again. What frees much memory for few operations goes first; each choice is planned
and measured, until the program fits.
"""

from __future__ import annotations

from collections.abc import Callable

from webtorch.ir.graph import KINDS, Graph, GraphNode
from webtorch.ir.program import Program
from webtorch.ir.view import numel
from webtorch.lower.fuse import compared, formula_cost

# Nodes that may be computed again for one value.
_MAX_CHAIN = 64
_MAX_ROUNDS = 12


def fit_budget(
    graph: Graph,
    budget: int,
    plan: Callable[[Graph], Program],
    peak: Callable[[Program], int],
) -> tuple[Program, int]:
    """Return the program of `graph` with a peak of at most `budget` bytes, or the smallest found.

    `plan` makes programs, `peak` measures them; the peak is returned too.
    """
    best = plan(graph)
    least = peak(best)
    if least <= budget:
        return best, least
    crossing, end = _held(graph)
    chosen: set[int] = set()
    waiting = sorted(crossing, key=lambda n: _price(graph, n, crossing - chosen))
    # Little by little: with nothing kept, one long chain would be computed again as a whole.
    part = sum(_bytes(graph.nodes[n]) for n in waiting) // _MAX_ROUNDS + 1
    for _ in range(_MAX_ROUNDS):
        taken = 0
        while waiting and taken < min(least - budget, part):
            node = waiting.pop(0)
            taken += _bytes(graph.nodes[node])
            chosen.add(node)
        if not taken:
            break
        program = plan(_again(graph, chosen, end))
        found = peak(program)
        if found < least:
            best, least = program, found
        if least <= budget:
            break
    return best, least


def _bytes(node: GraphNode) -> int:
    return node.elements * node.dtype.itemsize


def _held(graph: Graph) -> tuple[set[int], int]:
    """Return the nodes that hold values where the graph holds the most, and that place."""
    last = list(range(len(graph.nodes)))
    for i, node in enumerate(graph.nodes):
        for s in node.srcs:
            last[s] = i
    outputs = {o.node for o in graph.outputs}
    change = [0] * (len(graph.nodes) + 1)
    for i, node in enumerate(graph.nodes):
        # A view is no value of its own.
        if not (node.is_given or node.writes or node.kind == "view") and i not in outputs:
            change[i] += _bytes(node)
            change[last[i]] -= _bytes(node)
    end = most = held = 0
    for i, c in enumerate(change):
        held += c
        if held > most:
            end, most = i, held
    exact = {b for node in graph.nodes if node.kind == "map" for b in compared(graph.nodes, node)}
    found = {
        i
        for i, node in enumerate(graph.nodes[: end + 1])
        if last[i] > end
        and i not in outputs
        and i not in exact
        and KINDS[node.kind].may_drop
        and node.elements > 1
    }
    return found, end


def _price(graph: Graph, number: int, kept: set[int]) -> float:
    """Return the operations for each byte that computing a node again would cost."""
    work = 0
    stack, seen = [number], {number}
    while stack:
        n = stack.pop()
        node = graph.nodes[n]
        work += _work(graph, node)
        for s in node.srcs:
            if s not in seen and graph.nodes[s].kind != "buffer" and s not in kept:
                seen.add(s)
                stack.append(s)
        if len(seen) > _MAX_CHAIN:
            return float("inf")
    return work / max(_bytes(graph.nodes[number]), 1)


def _work(graph: Graph, node: GraphNode) -> int:
    match node.kind:
        case "matmul":
            return 2 * node.elements * graph.nodes[node.srcs[0]].shape[-1]
        case "conv":
            weight = graph.nodes[node.srcs[1]].shape
            return 2 * node.elements * numel(weight[1:])
        case "map":
            return node.elements * formula_cost(node)
        case "reduce":
            return graph.nodes[node.srcs[0]].elements
    return node.elements


def _again(graph: Graph, chosen: set[int], end: int) -> Graph:
    """Return the graph in which what comes after `end` reads second computations of `chosen`."""
    nodes: list[GraphNode] = []
    number: dict[int, int] = {}
    copies: dict[int, int] = {}
    last = list(range(len(graph.nodes)))
    for i, node in enumerate(graph.nodes):
        for s in node.srcs:
            last[s] = i
    outputs = {o.node for o in graph.outputs}

    def second(n: int) -> int:
        """Return the number of node `n` for what comes late: a copy, if its value is gone."""
        if n in copies:
            return copies[n]
        node = graph.nodes[n]
        stays = (
            n > end
            or KINDS[node.kind].once
            or n in outputs
            or (n not in chosen and last[n] > end and node.kind != "view")
        )
        if stays:
            return number[n]
        srcs = tuple(second(s) for s in node.srcs)
        if node.kind == "view" and srcs == tuple(number[s] for s in node.srcs):
            return number[n]
        nodes.append(node.with_srcs(srcs))
        copies[n] = len(nodes) - 1
        return copies[n]

    for i, node in enumerate(graph.nodes):
        srcs = tuple(second(s) if i > end else number[s] for s in node.srcs)
        nodes.append(node.with_srcs(srcs))
        number[i] = len(nodes) - 1
    return graph.renumbered(nodes, number)
