"""Builds the kernels of groups that fusion has chosen, splitting loops until positions are plain
strides. May import floors 0 and 1.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from webtorch.ir import expr as ex
from webtorch.ir import index as ix
from webtorch.ir.dtype import bool_, int32
from webtorch.ir.expr import Expr
from webtorch.ir.graph import Graph, GraphNode
from webtorch.ir.index import Index
from webtorch.ir.kernel import Access, BufferSlot, Kernel, Level, Reduce, Store
from webtorch.ir.lines import line_text
from webtorch.ir.program import Site
from webtorch.ir.reducer import REDUCERS
from webtorch.ir.view import numel
from webtorch.lower.body import Body, Loops, Unfusable, split_loops
from webtorch.lower.fusion_rules import Group

# How often the loops of a kernel are split to turn quotients in its positions into strides.
_MAX_SPLITS = 12


@dataclass(slots=True)
class BuiltKernel:
    """A kernel with the graph nodes behind its buffer slots and the graph arguments behind its own."""

    kernel: Kernel
    nodes: tuple[int, ...]
    args: tuple[int, ...]
    sites: tuple[Site, ...]
    line: str


def build_kernel(
    graph: Graph, group: Group, stored: set[int], needed: set[int], name: str
) -> BuiltKernel:
    """Return the group's kernel. `needed` are the members that something outside the group reads.

    Groups of one form, such as those of a network's equal layers, have one kernel: it is built once.
    """
    form = _form(graph, group, stored, needed)
    line = line_text(graph.nodes[group.members[-1]].line)
    known = _BUILT.get(form.key)
    if known is not None:
        _BUILT.move_to_end(form.key)
        kernel, nodes, args, sites = known
        return BuiltKernel(
            kernel,
            tuple([form.nodes[n] for n in nodes]),
            tuple([form.args[a] for a in args]),
            sites,
            line,
        )
    built = _build_kernel(graph, group, stored, needed, name, line)
    numbers = {n: i for i, n in enumerate(form.nodes)}
    numbers_of_args = {a: i for i, a in enumerate(form.args)}
    _BUILT[form.key] = (
        built.kernel,
        tuple([numbers[n] for n in built.nodes]),
        tuple([numbers_of_args[a] for a in built.args]),
        built.sites,
    )
    if len(_BUILT) > _MAX_BUILT:
        _BUILT.popitem(last=False)
    return built


@dataclass(slots=True)
class _Form:
    """All that a group's kernel depends on, with nodes and arguments numbered as they are met."""

    key: tuple[Any, ...]
    nodes: list[int]
    args: list[int]


# Form -> kernel, its nodes and arguments by their numbers in the form, and its sites.
_BUILT: OrderedDict[
    tuple[object, ...], tuple[Kernel, tuple[int, ...], tuple[int, ...], tuple[Site, ...]]
] = OrderedDict()
_MAX_BUILT = 2048


def _form(graph: Graph, group: Group, stored: set[int], needed: set[int]) -> _Form:
    assert group.body is not None
    loops = group.body.loops
    members = sorted(group.members)
    inside = set(members)
    numbers: dict[int, int] = {}
    args: dict[int, int] = {}
    parts: list[object] = []
    for member in members:
        stack = [member]
        while stack:
            n = stack[-1]
            if n in numbers:
                stack.pop()
                continue
            node = graph.nodes[n]
            # What is read from memory has no sources here, but for a view, which may show an index
            # to be a count (Body._counts_below).
            leaf = n in stored and n not in inside
            srcs = node.srcs if not leaf or node.kind == "view" else ()
            waiting = [s for s in reversed(srcs) if s not in numbers]
            if waiting:
                stack.extend(waiting)
                continue
            stack.pop()
            numbers[n] = len(numbers)
            parts.append(
                (
                    leaf,
                    node.kind,
                    node.attrs,
                    node.shape,
                    node.dtype,
                    tuple([numbers[s] for s in srcs]),
                    None if leaf else tuple([args.setdefault(a, len(args)) for a in node.args]),
                    # A bad index is reported with the user's line.
                    line_text(node.line) if node.kind in ("take", "scatter") and not leaf else "",
                )
            )
    key = (
        loops.outer,
        loops.inner,
        loops.outer_flat,
        loops.inner_flat,
        tuple(parts),
        tuple([(numbers[m], m in needed, m in group.shared) for m in members]),
    )
    return _Form(key, list(numbers), list(args))


def _build_kernel(
    graph: Graph, group: Group, stored: set[int], needed: set[int], name: str, line: str
) -> BuiltKernel:
    assert group.body is not None
    loops = group.body.loops
    if group.kind == "product":
        # Its loops are those of the template: no position asks for others.
        body = Body(graph, loops, stored, shared=group.shared, first_slot=2)
        body.stages[group.members[0]] = 0
        for m in sorted(needed & set(group.members)):
            body.slot(m)
        return _built(body, name, line, *_parts(body, group, needed))
    last: tuple[Loops, Body, list[Reduce], list[Store]] | None = None
    for left in reversed(range(_MAX_SPLITS)):
        body = Body(graph, loops, stored, shared=group.shared)
        try:
            reduces, stores = _parts(body, group, needed)
        except Unfusable:
            if last is None:
                raise
            # Split loops hid that two positions are one: back to those that keep a quotient.
            loops, body, reduces, stores = last
            break
        last = loops, body, reduces, stores
        splits: dict[int, int] = {}
        for flat in body.positions:
            for dim, step in ix.split_points(flat).items():
                splits[dim] = max(splits.get(dim, 0), step)
        # The last body must be that of the loops; positions may then keep a quotient, which is
        # slower and right.
        if not splits or not left:
            break
        loops = split_loops(loops, splits)
    loops, body, reduces, stores = _merge_loops(
        graph, group, needed, stored, loops, body, reduces, stores
    )
    return _built(body, name, line, reduces, stores)


def _built(
    body: Body, name: str, line: str, reduces: list[Reduce], stores: list[Store]
) -> BuiltKernel:
    """Return a finished kernel, with its buffers numbered from 0: those before an epilogue's first
    slot are left out.
    """
    accesses: dict[int, Access] = {}
    for s in stores:
        accesses[s.buffer] = "write" if s.combine == "set" else "read_write"
    for root in [
        *(r.value for r in reduces),
        *(
            e
            for s in stores
            for e in (s.position, s.value) + ((s.valid,) if s.valid is not None else ())
        ),
    ]:
        for e in ex.walk(root):
            if e.op == "load":
                slot = e.value
                assert isinstance(slot, int)
                accesses[slot] = "read" if accesses.get(slot, "read") == "read" else "read_write"
    graph = body.graph
    nodes = tuple(body.slots)
    slots = tuple(
        BufferSlot(graph.nodes[n].dtype, accesses.get(i, "read"), graph.nodes[n].elements)
        for i, n in enumerate(nodes, body.first_slot)
    )
    kernel = Kernel(
        name,
        body.loops.outer,
        body.loops.inner,
        slots,
        tuple(body.arg_dtypes),
        tuple(reduces),
        tuple(stores),
        tuple(body.checks.values()),
    )
    args = tuple(body.args)
    return BuiltKernel(kernel, nodes, args, tuple(body.sites), line)


def _parts(body: Body, group: Group, needed: set[int]) -> tuple[list[Reduce], list[Store]]:
    graph = body.graph
    reduces: list[Reduce] = []
    stores: list[Store] = []
    # Members are in topological order, except those that were stored late because others share
    # them.
    for number in sorted(group.members):
        node = graph.nodes[number]
        level: Level = "outer"
        combine = "set"
        inside: Expr | None = None
        if node.kind == "reduce":
            op, _ = node.attrs
            value = body.value(node.srcs[0], body.loops.inner_flat)
            if REDUCERS[op].is_logical:
                value = ex.cast(value, bool_)
            elif not REDUCERS[op].is_position:
                value = ex.cast(value, node.dtype.compute)
            reduces.append(Reduce(op, value, node.dtype.compute))
            body.stages[number] = len(body.stages)
            position, out = (
                body.loops.outer_flat,
                ex.cast(ex.reduced(body.stages[number], node.dtype.compute), node.dtype),
            )
        elif number in body.stages:
            # The product of an epilogue.
            position = body.loops.outer_flat
            out = ex.cast(ex.reduced(body.stages[number], node.dtype.compute), node.dtype)
        elif node.kind == "update":
            level = body.level_of(graph.nodes[node.srcs[1]].elements)
            flat = body.flat(level)
            out = ex.cast(body.value(node.srcs[1], flat), node.dtype)
            position = _window_position(body, node, flat)
        elif node.kind == "scatter":
            level = body.level_of(graph.nodes[node.srcs[-1]].elements)
            flat = body.flat(level)
            position, inside = body.indexed_position(node, node.shape, node.srcs[1:-1], flat, None)
            out = ex.cast(body.value(node.srcs[-1], flat), node.dtype)
            combine = node.attrs[2]
        else:
            level = body.level_of(node.elements)
            position = body.flat(level)
            out = ex.cast(body.compute(number, position), node.dtype)
            body.own[number] = level
        if number in needed:
            where = body.position(position)
            stores.append(Store(body.slot(number), where, out, level, combine, inside))
    return reduces, stores


def _window_position(body: Body, node: GraphNode, flat: Index) -> Index:
    shape, strides = node.attrs[:2]
    if len(node.attrs) == 3:
        offset = ix.constant(node.attrs[2])
    else:
        offset = ix.value(body.argument(node.args[0], int32), 0, 1 << 31)
    return ix.linearize(ix.delinearize(flat, shape), strides) + offset


def _merge_loops(
    graph: Graph,
    group: Group,
    needed: set[int],
    stored: set[int],
    loops: Loops,
    body: Body,
    reduces: list[Reduce],
    stores: list[Store],
) -> tuple[Loops, Body, list[Reduce], list[Store]]:
    """Merge neighbouring loops that every position walks as one, so that kernels have as few loops
    as possible.
    """
    sizes = (*loops.outer, *loops.inner)
    borders = {len(loops.outer)}
    runs: list[list[int]] = []
    for d, size in enumerate(sizes):
        if (
            runs
            and d not in borders
            and all(_walks_as_one(p, d - 1, d, size) for p in body.positions)
        ):
            runs[-1].append(d)
        else:
            runs.append([d])
    if len(runs) == len(sizes):
        return loops, body, reduces, stores
    new_sizes = [numel(tuple(sizes[d] for d in run)) for run in runs]
    place = {
        d: (r, numel(tuple(sizes[e] for e in run[i + 1 :])))
        for r, run in enumerate(runs)
        for i, d in enumerate(run)
    }
    first = {run[0] for run in runs}

    def mapping(dim: int, size: int) -> Index:
        """Return the position along an old loop."""
        r, step = place[dim]
        whole = ix.loop(r, new_sizes[r]) // step
        return whole if dim in first else whole % size

    outer_count = sum(1 for run in runs if run[0] < len(loops.outer))
    merged = Loops(
        tuple(new_sizes[:outer_count]), tuple(new_sizes[outer_count:]),
        ix.replace_loops(loops.outer_flat, mapping), ix.replace_loops(loops.inner_flat, mapping),
    )  # fmt: skip
    new_body = Body(graph, merged, stored, shared=group.shared)
    try:
        new_reduces, new_stores = _parts(new_body, group, needed)
    except Unfusable:
        # A position that was that of the point is no longer written as it.
        return loops, body, reduces, stores
    if any(ix.split_points(p) for p in new_body.positions):
        return loops, body, reduces, stores
    return merged, new_body, new_reduces, new_stores


def _walks_as_one(position: Index, left: int, right: int, size: int) -> bool:
    """Whether a position treats loops `left` and `right` (of `size`) like one longer loop."""
    factors = {a.value[0]: f for a, f in position.terms if a.kind == "loop"}
    if factors.get(left, 0) != factors.get(right, 0) * size:
        return False
    return all(
        _free_of(a.base, left, right) for a, _ in position.terms if a.kind in ("div", "mod")
    ) and all(_expr_free_of(a.value, left, right) for a, _ in position.terms if a.kind == "value")


def _free_of(base: Index | None, left: int, right: int) -> bool:
    assert base is not None
    return all(
        a.value[0] not in (left, right)
        if a.kind == "loop"
        else _free_of(a.base, left, right)
        if a.kind in ("div", "mod")
        else True
        for a, _ in base.terms
    )


def _expr_free_of(expression: Expr, left: int, right: int) -> bool:
    return all(e.op != "index" or e.value[0] not in (left, right) for e in ex.walk(expression))
