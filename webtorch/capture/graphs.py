"""Parts of a graph that run by themselves, one after the other. Floor 5."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from webtorch.ir.graph import Graph, GraphNode, Output
from webtorch.lower.fuse import compared, formula_cost
from webtorch.ops.primitive import IDENTITY

# A value of this cost (in additions) or less is computed again from what is kept anyway.
_CHEAP = 4


def above(nodes: Sequence[GraphNode], roots: Sequence[int]) -> set[int]:
    """Return the nodes that some stand on, and these."""
    found: set[int] = set()
    stack = list(roots)
    while stack:
        n = stack.pop()
        if n not in found:
            found.add(n)
            stack.extend(nodes[n].srcs)
    return found


def split_at(
    nodes: Sequence[GraphNode],
    first: set[int],
    second: set[int],
    roots: Sequence[int],
    stale: Collection[int],
) -> tuple[list[int], set[int]]:
    """Return the nodes of the first half to keep for the second, and those to compute again. The
    inputs `stale` are no longer there then.
    """
    border = {s for n in second - first for s in nodes[n].srcs if s in first or s in stale}
    border |= {n for n in roots if n in first}
    again: set[int] = set()
    wanted: set[int] = set()
    stack = sorted(border)
    while stack:
        n = stack.pop()
        node = nodes[n]
        if n in wanted or n in again:
            continue
        if node.kind == "buffer":
            if n in stale:
                wanted.add(n)
        elif node.kind == "view" or (node.kind == "map" and not node.srcs):
            again.add(n)
            stack.extend(node.srcs)
        else:
            wanted.add(n)
    exact = {b for n in second if nodes[n].kind == "map" for b in compared(nodes, nodes[n])}
    for n in sorted(wanted, reverse=True):
        node = nodes[n]
        if node.kind != "map" or n in exact or formula_cost(node) > _CHEAP:
            continue
        path: set[int] = set()
        rest = list(node.srcs)
        while rest:
            s = rest.pop()
            if (s in wanted and s != n) or s in again:
                continue
            if nodes[s].kind == "buffer" and s not in stale:
                continue
            if nodes[s].kind == "view":
                path.add(s)
                rest.extend(nodes[s].srcs)
            else:
                break
        else:
            wanted.discard(n)
            again |= {n} | path
    return sorted(wanted), again


def copied(nodes: list[GraphNode], n: int) -> int:
    """Add a copy of a node's value to a graph's nodes, and return its number."""
    node = nodes[n]
    nodes.append(
        GraphNode("map", (n,), (IDENTITY, "t", node.dtype.compute), (), node.shape, node.dtype)
    )
    return len(nodes) - 1


def part_of(
    graph: Graph, members: set[int], outputs: tuple[Output, ...], inputs: set[int]
) -> Graph:
    """Return the part of a graph that `members` are; those of `inputs` become buffers."""
    nodes: list[GraphNode] = []
    number: dict[int, int] = {}
    for n in sorted(members):
        node = graph.nodes[n]
        number[n] = len(nodes)
        if n in inputs:
            nodes.append(GraphNode("buffer", (), (), (), node.shape, node.dtype, node.line))
        else:
            nodes.append(dataclasses.replace(node, srcs=tuple(number[s] for s in node.srcs)))
    return graph.renumbered(nodes, number, outputs)
