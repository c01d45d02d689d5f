"""Graph -> Graph passes that run before fusion. May import floors 0 and 1.

Each pass is one function. `run_passes` verifies the graph after every one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from webtorch.ir.dtype import Scalar, int32
from webtorch.ir.graph import IN_MEMORY, Graph, GraphNode
from webtorch.ir.limits import Limits
from webtorch.ir.reducer import REDUCERS
from webtorch.ir.view import contiguous_strides, is_contiguous, numel
from webtorch.ops.elementwise import mul
from webtorch.ops.primitive import IDENTITY

Pass = Callable[[Graph, Limits], Graph]

# Partial results of one reduction that a GPU, or the threads of a CPU, can work on side by side.
_GPU_PARTS = 512
_CPU_PARTS = 16
# A row up to this long takes one workgroup less time than a dispatch more, and what follows it can be in its kernel.
_GPU_ROW = 16384
# Rows up to which a product is one of sums: as many as are coarsened together.
_FEW_ROWS = 8


def merge_equal_nodes(graph: Graph, limits: Limits) -> Graph:
    """Drop nodes that no output needs, and compute equal nodes once.

    Nodes with runtime arguments are equal only if they name the same arguments.
    """
    needed = [False] * len(graph.nodes)
    for output in graph.outputs:
        needed[output.node] = True
        if output.donor is not None:
            needed[output.donor] = True
    for i in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[i]
        if node.kind == "buffer":
            needed[i] = True  # inputs keep their numbers: the caller binds them in order
        if needed[i]:
            for s in node.srcs:
                needed[s] = True
    nodes: list[GraphNode] = []
    new_number: dict[int, int] = {}
    seen: dict[tuple[object, ...], int] = {}
    # Two outputs stay two buffers even if they are equal: each may be overwritten in place later.
    outputs_now = {o.node for o in graph.outputs}
    uses = Counter(s for i, node in enumerate(graph.nodes) if needed[i] for s in node.srcs)
    for i, node in enumerate(graph.nodes):
        if not needed[i]:
            continue
        srcs = tuple(new_number[s] for s in node.srcs)
        written: tuple[object, ...] = srcs
        if node.kind == "update":
            base = graph.nodes[node.srcs[0]]
            if base.kind == "empty" and uses[node.srcs[0]] == 1:
                # Where the same is written to memory that holds nothing, the memory is as good as the other.
                written = ("empty", base.shape, srcs[1])
        key = (node.kind, written, node.attrs, node.args, node.shape, node.dtype)
        found = None if node.is_given or i in outputs_now else seen.get(key)
        if found is None:
            found = len(nodes)
            seen.setdefault(key, found)
            nodes.append(node.with_srcs(srcs))
        new_number[i] = found
    return graph.renumbered(nodes, new_number)


def sum_few_rows(graph: Graph, limits: Limits) -> Graph:
    """Turn products of few rows, each by a matrix of its own, into sums: the attention of one query. They read the
    matrices once, as tiles would, and kernels of sums compute operands and what follows.
    """
    if not limits.is_gpu:
        return graph
    nodes: list[GraphNode] = []
    new_number: dict[int, int] = {}

    def add(kind: str, srcs: tuple[int, ...], attrs: tuple[Any, ...], like: GraphNode) -> int:
        """Add a node of the shape and type of another; return its number."""
        nodes.append(GraphNode(kind, srcs, attrs, (), like.shape, like.dtype, like.line))
        return len(nodes) - 1

    for i, node in enumerate(graph.nodes):
        srcs = tuple([new_number[s] for s in node.srcs])
        if node.kind != "matmul" or not _has_few_rows(node):
            nodes.append(node.with_srcs(srcs))
            new_number[i] = len(nodes) - 1
            continue
        (batch, m, n), k = node.shape, graph.nodes[node.srcs[0]].shape[2]
        wide = node.dtype.compute
        terms = replace(node, shape=(batch, m, n, k), dtype=wide)
        windows = ((m * k, k, 0, 1), (k * n, 0, 1, n))
        pair = tuple(
            [
                add("view", (s,), (strides, 0), replace(terms, dtype=nodes[s].dtype))
                for s, strides in zip(srcs, windows, strict=True)
            ]
        )
        each = add("map", pair, (mul, "tt", wide), terms)
        total = add("reduce", (each,), ("sum", (3,)), replace(node, shape=(batch, m, n, 1)))
        new_number[i] = add("view", (total,), (contiguous_strides(node.shape), 0), node)
    return graph.renumbered(nodes, new_number)


def _has_few_rows(node: GraphNode) -> bool:
    batch, m, n = node.shape
    kind = node.dtype
    return (
        batch > 1 and 0 < m <= _FEW_ROWS and n > 0 and kind.kind == "float" and kind.itemsize <= 4
    )


def split_reductions(graph: Graph, limits: Limits) -> Graph:
    """Turn a reduction with few results over many elements into two, so that the device's
    parallelism is used.

    Source (K, R) becomes (K, P, R / P): partial results over R / P, then one over P. The sum stays
    well conditioned.
    """
    nodes: list[GraphNode] = []
    new_number: dict[int, int] = {}

    def add(node: GraphNode) -> int:
        """Add a node; return its number."""
        nodes.append(node)
        return len(nodes) - 1

    for i, node in enumerate(graph.nodes):
        srcs = tuple(new_number[s] for s in node.srcs)
        node = node.with_srcs(srcs)
        parts = _parts(graph, graph.nodes[i], limits) if node.kind == "reduce" else 1
        if parts > 1:
            op, dims = node.attrs
            source = nodes[srcs[0]]
            dim = max(dims, key=lambda d: source.shape[d])
            shape = (
                *source.shape[:dim],
                parts,
                source.shape[dim] // parts,
                *source.shape[dim + 1 :],
            )
            split = add(
                GraphNode(
                    "view", srcs, (contiguous_strides(shape), 0), (), shape, source.dtype, node.line
                )
            )
            # Dimension `dim` now numbers the parts; the reduced dims behind it have moved up by
            # one.
            first = tuple(sorted({d + 1 if d >= dim else d for d in dims}))
            kept = tuple(1 if d in first else s for d, s in enumerate(shape))
            partial = add(
                GraphNode("reduce", (split,), (op, first), (), kept, node.dtype, node.line)
            )
            whole = tuple(1 if d == dim else s for d, s in enumerate(kept))
            total = add(
                GraphNode("reduce", (partial,), (op, (dim,)), (), whole, node.dtype, node.line)
            )
            new_number[i] = add(
                GraphNode(
                    "view",
                    (total,),
                    (contiguous_strides(node.shape), 0),
                    (),
                    node.shape,
                    node.dtype,
                    node.line,
                )
            )
        else:
            new_number[i] = add(node)
    return graph.renumbered(nodes, new_number)


def _parts(graph: Graph, node: GraphNode, limits: Limits) -> int:
    op, dims = node.attrs
    if REDUCERS[op].is_position or limits.varying:
        # A number of parts that divides one size does not divide another.
        return 1
    source = graph.nodes[node.srcs[0]]
    outer = numel(node.shape)
    inner = source.elements // max(outer, 1)
    if outer == 0 or inner < 2048:
        return 1
    rows = bool(dims) and max(dims) == max(
        (d for d, s in enumerate(source.shape) if s > 1), default=0
    )
    if limits.is_gpu:
        # Rows get a workgroup each, columns a thread each; both want enough of them.
        wanted = -(-_GPU_PARTS // outer) if rows else -(-65536 // outer)
        smallest = 2048 if rows else 32
        if rows and inner <= _GPU_ROW:
            return 1
    else:
        if outer * (inner if rows else 1) > 65536 * 8 or (rows and outer >= 8):
            return 1
        wanted, smallest = -(-_CPU_PARTS // outer) if rows else 16, 4096 if rows else 64
    if not rows and not limits.is_gpu and outer >= 4096:
        return 1
    size = max(source.shape[d] for d in dims)
    limit = min(wanted, inner // smallest, 1024)
    return next((p for p in range(limit, 1, -1) if size % p == 0), 1)


def compose_views(graph: Graph, limits: Limits) -> Graph:
    """Drop views that change nothing, and merge a reshape of a reshape."""
    nodes: list[GraphNode] = []
    new_number: dict[int, int] = {}
    # A view that is an output is a copy: it must stay.
    outputs_now = {o.node for o in graph.outputs}
    for i, node in enumerate(graph.nodes):
        srcs = tuple(new_number[s] for s in node.srcs)
        if node.kind == "view" and len(node.attrs) == 2 and i not in outputs_now:
            source = nodes[srcs[0]]
            reshape = (
                node.attrs[1] == 0
                and node.elements == source.elements
                and is_contiguous(node.shape, node.attrs[0])
            )
            if reshape and source.shape == node.shape:
                new_number[i] = srcs[0]
                continue
            if reshape and source.kind == "view":
                below = nodes[source.srcs[0]]
                if (
                    len(source.attrs) == 2
                    and source.attrs[1] == 0
                    and is_contiguous(source.shape, source.attrs[0])
                    and source.elements == below.elements
                ):
                    srcs = source.srcs
                    if below.shape == node.shape:
                        new_number[i] = srcs[0]
                        continue
        nodes.append(node.with_srcs(srcs))
        new_number[i] = len(nodes) - 1
    return graph.renumbered(nodes, new_number)


def drop_copies(graph: Graph, limits: Limits) -> Graph:
    """Read through what changes nothing: copies in one type, sums and extremes over dims of size 1."""
    nodes: list[GraphNode] = []
    new_number: dict[int, int] = {}
    outputs_now = {o.node for o in graph.outputs}
    for i, node in enumerate(graph.nodes):
        srcs = tuple(new_number[s] for s in node.srcs)
        if i not in outputs_now and srcs and _changes_nothing(node, nodes[srcs[0]]):
            new_number[i] = srcs[0]
            continue
        if i not in outputs_now and srcs and _narrows_back(node, nodes[srcs[0]], nodes):
            new_number[i] = nodes[srcs[0]].srcs[0]
            continue
        nodes.append(node.with_srcs(srcs))
        new_number[i] = len(nodes) - 1
    return graph.renumbered(nodes, new_number)


def _changes_nothing(node: GraphNode, source: GraphNode) -> bool:
    # What a buffer held must stay apart from what is written into it, and rounding must happen.
    if node.dtype is not source.dtype or node.shape != source.shape:
        return False
    if node.kind == "map":
        op, pattern, _ = node.attrs
        # A copy of a view is there for its order in memory.
        kept = source.is_given or source.writes or source.kind == "view"
        return op is IDENTITY and pattern == "t" and not kept
    return node.kind == "reduce" and REDUCERS[node.attrs[0]].gives is None


def _narrows_back(node: GraphNode, source: GraphNode, nodes: list[GraphNode]) -> bool:
    """Whether a 16-bit float is made of one that was only widened."""
    if not (_converts(node) and _converts(source) and node.shape == source.shape):
        return False
    first = nodes[source.srcs[0]]
    return (
        node.dtype is first.dtype
        and node.dtype.compute is source.dtype is not node.dtype
        and first.shape == node.shape
        and not (first.is_given or first.writes)
    )


def _converts(node: GraphNode) -> bool:
    return node.kind == "map" and node.attrs[0] is IDENTITY and node.attrs[1] == "t"


def pass_offsets(graph: Graph, limits: Limits) -> Graph:
    """Make the offsets of many equal views of one value arguments: the steps of a loop that was
    unrolled then share their kernels, which are built and compiled once.
    """
    alike: dict[tuple[object, ...], list[int]] = {}
    for i, node in enumerate(graph.nodes):
        # The offsets in buffers are arguments as recorded, or are where something is written.
        if (
            node.kind == "view"
            and len(node.attrs) == 2
            and graph.nodes[node.srcs[0]].kind not in IN_MEMORY
        ):
            key = (_whole(graph, node.srcs[0]), node.attrs[0], node.shape)
            alike.setdefault(key, []).append(i)
    if all(len(views) < _MANY_VIEWS for views in alike.values()):
        return graph
    # Templates read their operands, where they are in memory, at fixed offsets.
    read = [False] * len(graph.nodes)
    for i in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[i]
        if node.kind in _TEMPLATES or (node.kind == "view" and read[i]):
            for s in node.srcs:
                read[s] = True
    nodes = list(graph.nodes)
    first = len(graph.arg_dtypes)
    values: list[Scalar] = []
    for views in alike.values():
        kind = graph.nodes[_whole(graph, graph.nodes[views[0]].srcs[0])].kind
        if kind in _TEMPLATES or kind == "reduce":
            views = [i for i in views if not read[i]]
        offsets = [graph.nodes[i].attrs[1] for i in views]
        if len(views) < _MANY_VIEWS or min(offsets) == max(offsets):
            continue
        step = gcd(*[o - offsets[0] for o in offsets])
        lowest = min(offsets)
        count = (max(offsets) - lowest) // step + 1
        for i, offset in zip(views, offsets, strict=True):
            attrs = (nodes[i].attrs[0], lowest, step, count)
            nodes[i] = replace(nodes[i], attrs=attrs, args=(first + len(values),))
            values.append((offset - lowest) // step)
    return replace(
        graph.with_nodes(nodes),
        arg_dtypes=(*graph.arg_dtypes, *[int32] * len(values)),
        constants=(*graph.constants, *values),
    )


_TEMPLATES = frozenset({"matmul", "conv", "scan", "sort", "attention", "host"})
# So many views of one value, that differ in where they begin, are a loop.
_MANY_VIEWS = 8


def _whole(graph: Graph, number: int) -> int:
    """Return the node whose memory, in its order, is all of this node."""
    node = graph.nodes[number]
    while node.kind == "view" and len(node.attrs) == 2 and node.attrs[1] == 0:
        source = graph.nodes[node.srcs[0]]
        if node.elements != source.elements or not is_contiguous(node.shape, node.attrs[0]):
            break
        number, node = node.srcs[0], source
    return number


PASSES: tuple[Pass, ...] = (
    compose_views,
    drop_copies,
    sum_few_rows,
    merge_equal_nodes,
    split_reductions,
    merge_equal_nodes,
    pass_offsets,
)


@dataclass(frozen=True, slots=True)
class PassResult:
    """What one pass did; printed, the graph before and after."""

    name: str
    before: Graph
    after: Graph

    def __str__(self) -> str:
        counts = f"{len(self.before.nodes)} nodes -> {len(self.after.nodes)}"
        if self.before == self.after:
            return f"pass {self.name}: {counts}, nothing changed"
        return f"pass {self.name}: {counts}\nbefore\n{self.before}\nafter\n{self.after}"


def run_passes(
    graph: Graph, limits: Limits, watch: Callable[[PassResult], object] | None = None
) -> Graph:
    """Run every pass in order and verify after each; `watch` is shown what each one did."""
    for one in PASSES:
        before, graph = graph, one(graph, limits)
        graph.verify()
        if watch is not None:
            watch(PassResult(one.__name__, before, graph))
    return graph
