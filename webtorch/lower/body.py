"""Builds the scalar expressions of one kernel by walking a graph backwards from a point. May import
floors 0 and 1.

Reading node `n` at flat position `i` is an expression. Views only change the position, so a chain
of views costs no copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from webtorch.ir import expr as ex
from webtorch.ir import index as ix
from webtorch.ir.dtype import DType, int32, int64, uint32
from webtorch.ir.expr import Expr
from webtorch.ir.graph import Graph, GraphNode
from webtorch.ir.index import Index
from webtorch.ir.kernel import Check, Level
from webtorch.ir.lines import line_text
from webtorch.ir.program import Site
from webtorch.ir.view import Shape, contiguous_strides, numel
from webtorch.ops.primitive import COUNT


class Unfusable(Exception):
    """The node cannot be computed inside this kernel."""


@dataclass(slots=True)
class Loops:
    """The loop nest of a kernel: sizes, and the flat positions that each level stands for."""

    outer: Shape
    inner: Shape
    outer_flat: Index
    inner_flat: Index

    @property
    def outer_count(self) -> int:
        """Number of outer points."""
        return numel(self.outer)

    @property
    def inner_count(self) -> int:
        """Number of inner points for each outer point."""
        return numel(self.inner)


def flat_loops(elements: int) -> Loops:
    """Loops over `elements` points in order."""
    flat = ix.loop(0, elements)
    return Loops((elements,), (), flat, flat)


def reduce_loops(shape: Shape, dims: tuple[int, ...]) -> Loops:
    """Loops over a source of `shape` whose `dims` are reduced: kept dims outside, reduced dims
    inside, both merged.
    """
    runs: list[tuple[int, int, bool]] = []  # size, stride, reduced
    for d, (size, stride) in enumerate(zip(shape, contiguous_strides(shape), strict=True)):
        if size == 1:
            continue
        if runs and runs[-1][2] == (d in dims):
            runs[-1] = (runs[-1][0] * size, stride, d in dims)
        else:
            runs.append((size, stride, d in dims))
    kept = [(size, stride) for size, stride, reduced in runs if not reduced]
    gone = [(size, stride) for size, stride, reduced in runs if reduced]
    outer, inner = tuple(s for s, _ in kept), tuple(s for s, _ in gone)
    variables = [ix.loop(d, s) for d, s in enumerate((*outer, *inner))]
    outer_flat = ix.linearize(tuple(variables[: len(outer)]), contiguous_strides(outer))
    inner_flat = ix.linearize(tuple(variables), tuple(stride for _, stride in (*kept, *gone)))
    return Loops(outer, inner, outer_flat, inner_flat)


def split_loops(loops: Loops, splits: dict[int, int]) -> Loops:
    """Split loop `d` of size s into (s // splits[d], splits[d])."""
    sizes = (*loops.outer, *loops.inner)
    new_outer: list[int] = []
    new_inner: list[int] = []
    positions: dict[int, tuple[int, int | None]] = {}
    for d, size in enumerate(sizes):
        target = new_outer if d < len(loops.outer) else new_inner
        first = len(new_outer) + len(new_inner)
        if d in splits:
            target += [size // splits[d], splits[d]]
            positions[d] = (first, splits[d])
        else:
            target.append(size)
            positions[d] = (first, None)
    new_sizes = (*new_outer, *new_inner)

    def mapping(dim: int, size: int) -> Index:
        """Return an old loop variable in terms of the new ones."""
        first, step = positions[dim]
        if step is None:
            return ix.loop(first, size)
        return ix.loop(first, new_sizes[first]) * step + ix.loop(first + 1, step)

    return Loops(
        tuple(new_outer),
        tuple(new_inner),
        ix.replace_loops(loops.outer_flat, mapping),
        ix.replace_loops(loops.inner_flat, mapping),
    )


def point_loops(sizes: Shape) -> Loops:
    """Loops over points of these sizes, in order."""
    variables = tuple(ix.loop(d, s) for d, s in enumerate(sizes))
    flat = ix.linearize(variables, contiguous_strides(sizes))
    return Loops(sizes, (), flat, flat)


# The values of a sketch.
UNKNOWN = ex.input_(0, uint32)


@dataclass(slots=True)
class Body:
    """The expressions of one kernel under construction.

    `stored` are nodes in memory. `own` are nodes that this kernel itself computes, with their
    level; `stages` those that are
    reductions of this kernel.
    """

    graph: Graph
    loops: Loops
    stored: set[int]
    own: dict[int, Level] = field(default_factory=dict)
    # Own nodes that are stored only because other kernels need them too: at other positions they
    # are computed again.
    shared: set[int] = field(default_factory=set)
    stages: dict[int, int] = field(default_factory=dict)
    slots: dict[int, int] = field(default_factory=dict)
    # The number of the first slot: an epilogue's come after its product's operands.
    first_slot: int = 0
    args: dict[int, int] = field(default_factory=dict)
    arg_dtypes: list[DType] = field(default_factory=list)
    # By what is checked, the size, and whether negative indices count from the end.
    checks: dict[tuple[Expr, int, bool], Check] = field(default_factory=dict)
    sites: list[Site] = field(default_factory=list)
    # Every position that was computed, so that loops can be split where quotients remain.
    positions: set[Index] = field(default_factory=set)
    memo: dict[tuple[int, Index, Any], Expr] = field(default_factory=dict)
    # Whether only what is read, and where, is wanted: then values are `UNKNOWN`.
    sketch: bool = False

    def snapshot(self) -> Body:
        """Return a copy to go back to when a node turns out not to fit."""
        return replace(
            self,
            slots=dict(self.slots),
            args=dict(self.args),
            arg_dtypes=list(self.arg_dtypes),
            checks=dict(self.checks),
            sites=list(self.sites),
            own=dict(self.own),
            stages=dict(self.stages),
            memo=dict(self.memo),
        )

    def restore(self, before: Body) -> None:
        """Go back to what `snapshot` returned."""
        self.slots, self.args, self.arg_dtypes = before.slots, before.args, before.arg_dtypes
        self.checks, self.sites = before.checks, before.sites
        self.own, self.stages, self.memo = before.own, before.stages, before.memo

    def slot(self, node: int) -> int:
        """Return the buffer slot of a stored node, making one if needed."""
        return self.slots.setdefault(node, self.first_slot + len(self.slots))

    def argument(self, number: int, dtype: DType) -> Expr:
        """Return runtime argument `number` of the graph as this kernel sees it."""
        slot = self.args.get(number)
        if slot is None:
            slot = self.args[number] = len(self.arg_dtypes)
            self.arg_dtypes.append(dtype)
        return ex.arg(slot, dtype)

    def position(self, flat: Index) -> Expr:
        """Return the expression of a position, and remember it for loop splitting."""
        self.positions.add(flat)
        return flat.expr()

    def flat(self, level: Level) -> Index:
        """Return the flat position of the current point at a level."""
        return self.loops.outer_flat if level == "outer" else self.loops.inner_flat

    def level_of(self, elements: int) -> Level:
        """Return the level at which a node of that many elements is computed. Raises Unfusable."""
        if elements == self.loops.outer_count:
            return "outer"
        if elements == self.loops.outer_count * self.loops.inner_count:
            return "inner"
        raise Unfusable(f"{elements} elements are not those of this kernel's points")

    def value(self, number: int, flat: Index, valid: Any = None) -> Expr:
        """Return node `number` at position `flat`, in its compute type. Where `valid` does not hold
        the value is any. (In a sketch `valid` is anything that names the condition.)
        """
        key = (number, flat, valid)
        found = self.memo.get(key)
        if found is None or (found is UNKNOWN and not self.sketch):
            found = self.memo[key] = self._value(number, flat, valid)
        return found

    def _value(self, number: int, flat: Index, valid: Expr | None) -> Expr:
        node = self.graph.nodes[number]
        if number in self.stages:
            if flat != self.loops.outer_flat:
                raise Unfusable("it reads what this kernel reduces at other points than its own")
            if self.sketch:
                return UNKNOWN
            return ex.rounded(ex.reduced(self.stages[number], node.dtype.compute), node.dtype)
        if number in self.own:
            if flat != self.flat(self.own[number]) and number not in self.shared:
                raise Unfusable("it reads what this kernel computes at other points than its own")
        elif number in self.stored:
            return self._load(number, node, flat, valid)
        return self.compute(number, flat, valid)

    def _load(self, number: int, node: GraphNode, flat: Index, valid: Expr | None) -> Expr:
        slot = self.slot(number)
        if self.sketch:
            return UNKNOWN
        position = self.position(flat)
        if valid is None:
            element = ex.load(slot, node.dtype, position)
        else:
            element = ex.make("load", node.dtype, (position, valid, ex.const(0, node.dtype)), slot)
        return ex.cast(element, node.dtype.compute)

    def compute(self, number: int, flat: Index, valid: Expr | None = None) -> Expr:
        """Return the formula of node `number` at position `flat`, even if the node is in memory
        too.
        """
        node = self.graph.nodes[number]
        match node.kind:
            case "map":
                return self._map(node, flat, valid)
            case "view":
                return self.value(node.srcs[0], self.source_position(node, flat), valid)
            case "pad":
                return self._pad(node, flat, valid)
            case "take":
                return self._take(node, flat, valid)
            case "empty":
                return ex.const(0, node.dtype.compute)
        raise Unfusable(f"{node.kind} has no value at a single point")

    def _map(self, node: GraphNode, flat: Index, valid: Expr | None) -> Expr:
        op, pattern, compute = node.attrs
        if self.sketch:
            for s in node.srcs:
                self.value(s, flat, valid)
            kinds = [compute if letter == "s" else uint32 for letter in pattern if letter in "su"]
            for a, kind in zip(node.args, kinds, strict=True):
                self.argument(a, kind)
            return UNKNOWN
        srcs, args = iter(node.srcs), iter(node.args)
        inputs: list[Expr] = []
        for letter in pattern:
            match letter:
                case "t":
                    inputs.append(ex.cast(self.value(next(srcs), flat, valid), compute))
                case "s":
                    inputs.append(self.argument(next(args), compute))
                case "u":
                    inputs.append(self.argument(next(args), uint32))
                case "p":
                    inputs.append(self.position(flat))
                case "c":
                    inputs.append(self.position(flat % 2))
        return ex.rounded(op.build(tuple(inputs)), node.dtype)

    def source_position(self, node: GraphNode, flat: Index) -> Index:
        """Return where element `flat` of a view lies in its source."""
        strides = node.attrs[0]
        if len(node.attrs) == 2:
            offset = ix.constant(node.attrs[1])
        elif len(node.attrs) == 1:
            offset = ix.value(self.argument(node.args[0], int32), 0, 1 << 31)
        else:
            _, first, step, count = node.attrs
            steps = ix.value(self.argument(node.args[0], int32), 0, count - 1)
            offset = steps * step + first
        if strides == contiguous_strides(node.shape):
            return flat + offset
        return ix.linearize(ix.delinearize(flat, node.shape), strides) + offset

    def _pad(self, node: GraphNode, flat: Index, valid: Expr | None) -> Expr:
        (low,) = node.attrs
        source = self.graph.nodes[node.srcs[0]]
        if not source.elements:
            fill = self.argument(node.args[0], node.dtype.compute)
            return UNKNOWN if self.sketch else ex.rounded(fill, node.dtype)
        inside: Any = None
        coordinates = []
        for coordinate, below, size in zip(
            ix.delinearize(flat, node.shape), low, source.shape, strict=True
        ):
            moved = coordinate - below
            lowest, highest = moved.range
            if self.sketch:
                if lowest < 0 or highest >= size:
                    inside = (inside, moved, size)
                coordinates.append(moved)
                continue
            at = self.position(moved) if lowest < 0 or highest >= size else None
            for needed, bound in ((lowest < 0, None), (highest >= size, size)):
                if needed and at is not None:
                    holds = at >= 0 if bound is None else at < bound
                    inside = holds if inside is None else inside & holds
            coordinates.append(moved)
        flat_source = ix.linearize(tuple(coordinates), contiguous_strides(source.shape))
        if inside is None:
            return self.value(node.srcs[0], flat_source, valid)
        if self.sketch:
            self.argument(node.args[0], node.dtype.compute)
            self.value(node.srcs[0], flat_source, (valid, inside))
            return UNKNOWN
        both = inside if valid is None else valid & inside
        fill = ex.rounded(self.argument(node.args[0], node.dtype.compute), node.dtype)
        return ex.where(inside, self.value(node.srcs[0], flat_source, both), fill)

    def indexed_position(
        self,
        node: GraphNode,
        target: Shape,
        indices: tuple[int, ...],
        flat: Index,
        valid: Expr | None,
    ) -> tuple[Index, Expr | None]:
        """Return where point `flat` of (index shape + rest) lies in an array of shape `target`.

        Bounds are checked on the device. Also returned is whether all indices are in bounds (None
        where they are by construction): a write elsewhere must not happen.
        """
        inside: Expr | None = None
        count, dims, name, wrap = *node.attrs[:2], *node.attrs[-2:]
        rest = numel(target[count:])
        which = flat // rest
        strides = contiguous_strides(target)
        position = flat % rest if rest > 1 else ix.constant(0)
        for d, index_node in enumerate(indices):
            # Which element is read is an expression.
            sketch, self.sketch = self.sketch, False
            raw = self.value(index_node, which, None if sketch else valid)
            self.sketch = sketch
            size = target[d]
            if not self._counts_below(index_node, size):
                # 64-bit indices are checked as such, then are short.
                raw = ex.cast(raw, int64 if raw.dtype is int64 else int32)
                self._check(raw, size, name, dims[d], wrap, None if sketch else valid, node)
                if wrap:
                    raw = ex.where(raw < 0, raw + size, raw)
                holds = (raw >= 0) & (raw < size)
                inside = holds if inside is None else inside & holds
                raw = ex.maximum(ex.minimum(raw, size - 1), 0)
            raw = ex.cast(raw, int32 if size <= 1 << 31 else int64)
            position = position + ix.value(raw, 0, max(size - 1, 0)) * strides[d]
        return position, inside

    def _counts_below(self, number: int, size: int) -> bool:
        """Whether an index is 0, 1, 2, ... up to less than `size`: right by construction."""
        while self.graph.nodes[number].kind == "view":
            number = self.graph.nodes[number].srcs[0]
        node = self.graph.nodes[number]
        return (
            node.kind == "map"
            and node.attrs[:2] == (COUNT, "p")
            and node.dtype in (int32, int64)
            and node.elements <= size
        )

    def _check(
        self,
        raw: Expr,
        size: int,
        name: str,
        dim: int,
        wrap: bool,
        valid: Expr | None,
        node: GraphNode,
    ) -> None:
        checked = raw if valid is None else ex.where(valid, raw, 0)
        key = (checked, size, wrap)
        if key not in self.checks:
            inner = any(
                e.op == "index" and e.value[0] >= len(self.loops.outer) for e in ex.walk(checked)
            )
            self.checks[key] = Check(
                checked, size, len(self.sites), "inner" if inner else "outer", -size if wrap else 0
            )
            self.sites.append(Site(name, dim, size, line_text(node.line)))

    def _take(self, node: GraphNode, flat: Index, valid: Expr | None) -> Expr:
        source = self.graph.nodes[node.srcs[0]]
        position, _ = self.indexed_position(node, source.shape, node.srcs[1:], flat, valid)
        return self.value(node.srcs[0], position, valid)
