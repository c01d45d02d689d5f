"""Decides which nodes live in memory and which are computed together, and builds the kernels. May
import floors 0 and 1.

1. Choose the nodes that must be stored: outputs, operands of templates, results of reductions,
bounded expression sizes.
2. Put stored nodes into groups, in order: a node joins the group of a node it reads when it can be
computed at the same
   point of the same loops; else it starts a group. What follows a product, element by element,
   joins the product: bias, activation and residual are computed while its sums are in registers.
3. Where two groups would compute the same costly expression, store it in the first.
4. Build each group's kernel, splitting loops until positions are plain strides.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from webtorch.ir import expr as ex
from webtorch.ir import index as ix
from webtorch.ir.dtype import DType, bool_, int32, uint32
from webtorch.ir.expr import Expr
from webtorch.ir.graph import Graph, GraphNode
from webtorch.ir.index import Index
from webtorch.ir.kernel import (
    Access,
    BufferSlot,
    Check,
    Combine,
    Kernel,
    Level,
    Reduce,
    Store,
    image_points,
)
from webtorch.ir.limits import Limits
from webtorch.ir.program import Site
from webtorch.ir.view import contiguous_strides, numel
from webtorch.lower.body import (
    Body,
    Loops,
    Unfusable,
    flat_loops,
    line_text,
    point_loops,
    reduce_loops,
    split_loops,
)

TEMPLATES = frozenset({"matmul", "conv", "scan", "sort", "attention", "host"})
# Templates whose outputs may be worked on before they are stored.
PRODUCTS = frozenset({"matmul", "conv"})
# An expression with more parts than this is cut by storing a part of it; keeps source text and
# register use bounded.
_MAX_SIZE = 160
# One kernel never holds more than this many expression parts in all.
_MAX_GROUP_SIZE = 600
# A row kernel computes what it reduces once for each of its stages. An expression that costs more
# than this is computed in a kernel of its own: software adapters take seconds to compile it several
# times over, and every device takes longer to run it.
_MAX_ROW_COST = 200
# Nor does the epilogue of a product compute what costs more than this: invocations hold many sums, and few
# of them run side by side. On an H200 gelu (12) gains; its gradient (23) took 365 us in a product, for
# 215 of the product and 43 of a kernel of its own.
_MAX_EPILOGUE_COST = 20
# Rows longer than this are not kept inside one kernel: one workgroup or thread would walk them
# several times.
_MAX_FUSED_ROW = 65536
# A sum over this many large operands that several nodes read is stored: a stream of residuals would
# otherwise be added up anew, from its beginning, in each layer.
_MAX_SHARED_LEAVES = 4
# What costs more than this is stored where it is read at two places, as it is and moved: each would
# compute it, and a chain of such steps (a running sum by doubling) twice as often with every one.
_MAX_MOVED_COST = 12
# How often the loops of a kernel are split to turn quotients in its positions into strides.
_MAX_SPLITS = 12


@dataclass(slots=True)
class Group:
    """Stored nodes that one routine computes. `body` is None for a template; a product's is that of
    its epilogue.
    """

    number: int
    members: list[int] = field(default_factory=list)
    body: Body | None = None
    # Bit h is set when group h must run before this one.
    before: int = 0
    # Groups that read what this one computes.
    followers: set[int] = field(default_factory=set)
    size: int = 0
    kind: str = "flat"
    # Members that are stored because other groups need them too.
    shared: set[int] = field(default_factory=set)
    # Every stored node that this group reads.
    reads: set[int] = field(default_factory=set)


@dataclass(slots=True)
class BuiltKernel:
    """A kernel with the graph nodes behind its buffer slots and the graph arguments behind its own."""

    kernel: Kernel
    nodes: tuple[int, ...]
    args: tuple[int, ...]
    sites: tuple[Site, ...]
    line: str


class Fuser:
    """Groups the nodes of one graph for one device."""

    def __init__(self, graph: Graph, limits: Limits, apart: Set[int] = frozenset()) -> None:
        """`apart` are updates and scatters whose new values are stored first: no kernel that writes
        one of them may read what it overwrites.
        """
        self.graph = graph
        self.limits = limits
        self.apart = apart
        self.nodes = graph.nodes
        self.stored: set[int] = set()
        self.groups: list[Group] = []
        self.group_of: dict[int, Group] = {}
        self.leaves: list[frozenset[int]] = []
        self.sizes: list[int] = []
        self.costs: list[int] = []
        # The product that a node finishes, if any.
        self.product_below: list[int | None] = []
        # Costs of nodes themselves, whether they are stored or not.
        self.own_costs: list[int] = []
        self.max_slots = limits.max_buffers_per_kernel - 1
        self.use_counts = [0] * len(graph.nodes)
        for node in graph.nodes:
            for s in set(node.srcs):
                self.use_counts[s] += 1

    def run(self) -> list[Group]:
        """Return the groups in an order in which they can run."""
        self._choose_stored()
        for number, node in enumerate(self.nodes):
            if number in self.stored and node.kind not in ("buffer", "empty") and node.elements:
                self._place(number, node)
        ordered = self._order()
        self._store_shared(ordered)
        return [g for g in ordered if g.members]

    # ---- which nodes are stored
    # ------------------------------------------------------------------------------------

    def _choose_stored(self) -> None:
        for output in self.graph.outputs:
            self.stored.add(output.node)
        for number, node in enumerate(self.nodes):
            if (
                node.kind in ("buffer", "empty", "reduce", "update", "scatter")
                or node.kind in TEMPLATES
            ):
                self.stored.add(number)
            self._store_operands(number, node)
            self._measure(number, node)
            self.product_below.append(self._product_below(number, node))
            if (
                self.product_below[number] is not None
                and self.use_counts[number] > 1
                and node.kind == "map"
            ):
                # Several read it, and nothing else what it is made from: in memory it takes the
                # product's place.
                self._store(number)

    def _store(self, number: int) -> None:
        """Store a node that was thought to be computed in place; what reads it then reads memory."""
        if number not in self.stored:
            self.stored.add(number)
            self.leaves[number] = frozenset((number,))
            self.sizes[number], self.costs[number] = 1, 0

    def _product_below(self, number: int, node: GraphNode) -> int | None:
        """Return the product that `node` is, or is made from element by element, if nothing else
        reads that nor what lies between.
        """
        if not self.limits.has_epilogues:
            return None
        if node.kind in PRODUCTS:
            return number
        if node.kind != "map" and not (node.kind == "view" and _is_reshape(self.graph, node)):
            return None
        found = {
            p
            for s in node.srcs
            if self.use_counts[s] == 1
            and (p := self.product_below[s]) is not None
            and (s == p or s not in self.stored)
            and self.nodes[s].elements == node.elements
            and node.dtype.itemsize <= self.nodes[p].dtype.itemsize
        }
        return max(found, default=None)

    def _store_operands(self, number: int, node: GraphNode) -> None:
        match node.kind:
            case "matmul":
                for s in node.srcs:
                    self._store_operand(s, matrix_operand)
            case "conv" | "scan" | "sort" | "host":
                for s in node.srcs:
                    self._store_operand(s, plain_operand)
            case "attention":
                part, result, _, mask, _ = node.attrs
                strided = 3 + mask + (part != "forward")
                for i, s in enumerate(node.srcs[: len(node.srcs) - (result > 0)]):
                    self._store_operand(s, matrix_operand if i < strided else plain_operand)
            case "update" | "scatter":
                for s in node.srcs if number in self.apart else node.srcs[:1]:
                    self._store(s)
            case "take":
                # Many positions may be read many times; only data in memory (through views) is
                # worth that.
                source = node.srcs[0]
                while self.nodes[source].kind == "view" and source not in self.stored:
                    source = self.nodes[source].srcs[0]
                if self.costs[source] > 1:
                    self._store(source)
            case "pad":
                source = node.srcs[0]
                while self.nodes[source].kind == "view" and source not in self.stored:
                    source = self.nodes[source].srcs[0]
                if self.use_counts[source] > 1 and self.costs[source] > _MAX_MOVED_COST:
                    self._store(source)
            case "view" | "reduce":
                source = node.srcs[0]
                repeats = node.elements >= 2 * self.nodes[source].elements
                if node.kind == "view" and repeats and self.costs[source] > 3:
                    self._store(source)
                if node.kind == "reduce" and self.costs[source] > _MAX_ROW_COST:
                    while self.nodes[source].kind == "view" and self.use_counts[source] == 1:
                        source = self.nodes[source].srcs[0]
                    if self.use_counts[source] > 1:
                        self._store(source)
            case "map":
                for source in compared(self.nodes, node):
                    if self.use_counts[source] > 1:
                        self._store(source)

    def _store_operand(
        self, number: int, operand: Callable[[Graph, int, set[int]], object]
    ) -> None:
        """Store what a template reads: best the node below the views, so that they cost no copy;
        else the view itself.
        """
        if operand(self.graph, number, self.stored) is not None:
            return
        base = number
        while base not in self.stored and self.nodes[base].kind == "view":
            base = self.nodes[base].srcs[0]
        if (
            base not in self.stored
            # Queries, keys and values of one product: together they are all of it.
            and self.nodes[base].elements
            <= self.nodes[number].elements * max(1, self.use_counts[base])
            and operand(self.graph, number, {base}) is not None
        ):
            self._store(base)
        else:
            self._store(number)

    def _measure(self, number: int, node: GraphNode) -> None:
        size, cost = 1, 0
        leaves: frozenset[int] = frozenset()
        for s in node.srcs:
            leaves |= self.leaves[s]
            size += self.sizes[s]
            cost += self.costs[s]
        if node.kind == "map":
            cost += formula_cost(node)
        elif node.kind in ("pad", "take"):
            cost += 2
        # A kernel has few bindings: store parts until the rest fits (one for the result).
        while node.kind not in TEMPLATES and (
            len(leaves) > self.max_slots - 1
            or (
                size > _MAX_SIZE
                and len(node.srcs) > 1
                and max(self.sizes[s] for s in node.srcs) > 1
            )
        ):
            candidates = [s for s in node.srcs if s not in self.stored]
            if not candidates:
                break
            self._store(max(candidates, key=lambda s: (len(self.leaves[s]), self.sizes[s])))
            leaves = frozenset().union(*(self.leaves[s] for s in node.srcs))
            size = 1 + sum(self.sizes[s] for s in node.srcs)
            cost = sum(self.costs[s] for s in node.srcs)
        if number not in self.stored and (
            size > _MAX_SIZE or (self.use_counts[number] > 1 and self._has_many(node, leaves))
        ):
            self.stored.add(number)
        self.leaves.append(leaves)
        self.sizes.append(size)
        self.costs.append(cost)
        self.own_costs.append(cost)
        if number in self.stored:
            self.leaves[number] = frozenset((number,))
            self.sizes[number], self.costs[number] = 1, 0

    def _has_many(self, node: GraphNode, leaves: frozenset[int]) -> bool:
        large = sum(self.nodes[leaf].elements * 2 >= node.elements for leaf in leaves)
        return node.kind == "map" and node.elements > 1 and large >= _MAX_SHARED_LEAVES

    # ---- which stored nodes are computed together
    # ------------------------------------------------------------------

    def _reads(self, number: int) -> set[int]:
        """Stored nodes that computing `number` reads (found anew, since more nodes may have been
        stored since).
        """
        found: set[int] = set()
        stack = list(self.nodes[number].srcs)
        seen: set[int] = set()
        while stack:
            s = stack.pop()
            if s in seen:
                continue
            seen.add(s)
            if s in self.stored:
                found.add(s)
            else:
                stack.extend(self.nodes[s].srcs)
        return found

    def _place(self, number: int, node: GraphNode) -> None:
        reads = self._reads(number)
        if node.kind in TEMPLATES:
            first = self.group_of.get(node.srcs[-1]) if is_other_result(node) else None
            if first is not None:
                # Another result of an attention that is computed here.
                first.members.append(number)
                self.group_of[number] = first
                return
            if node.kind in PRODUCTS and self.limits.has_epilogues:
                self._start_product(number, node, reads)
            else:
                self._start(number, reads, None, "template")
            return
        for group in self._candidates(node, reads):
            if self._join(group, number, node, reads):
                return
        loops = self._own_loops(node)
        body = Body(self.graph, loops, self.stored, sketch=True)
        group = self._start(number, reads, body, "row" if node.kind == "reduce" else "flat")
        self._add_member(group, number, node)

    def _start_product(self, number: int, node: GraphNode, reads: set[int]) -> None:
        """Start a group that what follows the product may join."""
        body = Body(self.graph, product_loops(node), self.stored, sketch=True, first_slot=2)
        body.stages[number] = 0
        group = self._start(number, reads, body, "product")
        group.members.append(number)
        self.group_of[number] = group

    def _own_loops(self, node: GraphNode) -> Loops:
        if node.kind == "reduce":
            return reduce_loops(self.nodes[node.srcs[0]].shape, node.attrs[1])
        return flat_loops(self._work(node))

    def _work(self, node: GraphNode) -> int:
        """Number of points at which the node's kernel stores."""
        if node.kind == "update":
            return self.nodes[node.srcs[1]].elements
        if node.kind == "scatter":
            return self.nodes[node.srcs[-1]].elements
        return node.elements

    def _candidates(self, node: GraphNode, reads: set[int]) -> list[Group]:
        if node.kind == "scatter" and node.attrs[2] != "set":
            return []
        work = self._work(node) if node.kind != "reduce" else self.nodes[node.srcs[0]].elements
        direct = {self.group_of[r].number for r in reads if r in self.group_of}
        # Groups that read the same large data are worth joining too: it is read once.
        shared = {
            g.number
            for g in self.groups[-8:]
            if g.body is not None
            and g.kind != "product"
            and any(self.nodes[r].elements * 4 >= work and work > 1 for r in g.reads & reads)
        }
        found = [self.groups[n] for n in sorted(direct | shared, reverse=True)]
        return [g for g in found if g.body is not None]

    def _join(self, group: Group, number: int, node: GraphNode, reads: set[int]) -> bool:
        assert group.body is not None
        if group.kind == "product" and (
            node.kind != "map"
            or self.own_costs[number] > _MAX_EPILOGUE_COST
            or not any(r in group.members for r in reads)
        ):
            return False
        if node.kind in ("update", "scatter") and node.srcs[0] in group.members:
            return False  # it would write into what the same kernel is still writing
        if number in self.apart and node.srcs[0] in group.reads:
            return False
        if any(m in self.apart and self.nodes[m].srcs[0] in reads for m in group.members):
            return False
        after = 1 << group.number
        ancestors = 0
        for r in reads:
            other = self.group_of.get(r)
            if other is not None and other is not group:
                if other.before & after:
                    return False  # the node needs something that needs this group
                ancestors |= other.before | (1 << other.number)
        outside = {r for r in group.reads | reads if r not in group.members}
        if (
            len(outside) + len(group.members) + 1 > self.max_slots + (group.kind == "product")
            or group.size + self.sizes_of(number) > _MAX_GROUP_SIZE
        ):
            return False
        body = group.body
        if self._too_dear_for_rows(group, number, node):
            return False
        if node.kind == "reduce":
            mine = self._own_loops(node)
            if group.kind == "row":
                if (mine.outer, mine.inner, mine.inner_flat) != (
                    body.loops.outer,
                    body.loops.inner,
                    body.loops.inner_flat,
                ):
                    return False
                # Sums side by side store nothing at inner points; a sum of what was summed walks
                # the row again.
                aside = self.limits.is_gpu and not any(r in group.members for r in reads)
                if not aside and not self._row_fits(mine):
                    return False
            else:
                # Turn the elementwise kernel into a row kernel, so that what it computes is reduced
                # on the way.
                if (
                    body.loops.outer_count != mine.outer_count * mine.inner_count
                    or not self._row_fits(mine)
                ):
                    return False
                if any(self.nodes[m].kind in ("update", "scatter") for m in group.members):
                    return False
                if not self._convert(group, mine):
                    return False
                body = group.body
        else:
            work = self._work(node)
            try:
                level = body.level_of(work)
            except Unfusable:
                return False
            if group.kind == "row" and level == "inner" and not self._row_fits(body.loops):
                return False
        before = body.snapshot()
        try:
            self._add_member(group, number, node)
        except Unfusable:
            body.restore(before)
            return False
        if group.kind == "product" and not self._epilogue_fits(group):
            self._remove_last(group, before)
            return False
        if not any(r in group.members for r in reads) and self._reads_elsewhere(
            body, before.memo, group.reads & reads
        ):
            self._remove_last(group, before)
            return False
        group.reads |= reads
        self._follow(group, reads)
        if ancestors & ~group.before:
            group.before |= ancestors
            waiting, seen = list(group.followers), set(group.followers)
            while waiting:
                other = self.groups[waiting.pop()]
                other.before |= group.before
                new = other.followers - seen
                seen |= new
                waiting.extend(new)
        return True

    def _epilogue_fits(self, group: Group) -> bool:
        """Whether a product can be bound with its epilogue. An operand that the epilogue reads too
        has two slots; a product that stores no sums has none for them, nor status words for checks.
        """
        body, (product, *others) = group.body, group.members
        assert body is not None
        stores = len(others) + all(self.product_below[m] != product for m in others)
        return not body.checks and body.first_slot + len(body.slots) + stores <= self.max_slots

    def _remove_last(self, group: Group, before: Body) -> None:
        """Undo `_add_member`; `before` is the body as it was."""
        assert group.body is not None
        number = group.members.pop()
        del self.group_of[number]
        group.size -= self.sizes_of(number)
        group.body.restore(before)

    def _follow(self, group: Group, reads: set[int]) -> None:
        """Note that a group comes after those that compute what it reads."""
        for r in reads:
            other = self.group_of.get(r)
            if other is not None and other is not group:
                other.followers.add(group.number)

    def _too_dear_for_rows(self, group: Group, number: int, node: GraphNode) -> bool:
        """Whether joining would make a row kernel compute a dear expression for each of its stages."""
        if node.kind == "reduce":
            return group.kind != "row" and any(
                self.own_costs[m] > _MAX_ROW_COST for m in group.members
            )
        return (
            group.kind == "row"
            and self._work(node) != group_rows(group)
            and self.own_costs[number] > _MAX_ROW_COST
        )

    def _reads_elsewhere(
        self, body: Body, before: dict[tuple[int, Index, Any], Expr], shared: set[int]
    ) -> bool:
        """Whether a node that joined only to share reads turned out to read the shared data at
        other positions.
        """
        return any(
            key not in before and key[0] in shared and self.nodes[key[0]].elements > 1
            for key in body.memo
        )

    def sizes_of(self, number: int) -> int:
        """Expression parts of a stored node."""
        return 1 + sum(self.sizes[s] for s in self.nodes[number].srcs)

    def _row_fits(self, loops: Loops) -> bool:
        """Whether storing at every inner point of these loops is efficient: rows that are short and
        lie together.
        """
        if loops.outer_count * loops.inner_count <= 16384:
            return True
        if loops.inner_count > _MAX_FUSED_ROW:
            return False
        last = len(loops.outer) + len(loops.inner) - 1
        contiguous = any(
            a.kind == "loop" and a.value[0] == last and f == 1 for a, f in loops.inner_flat.terms
        )
        return contiguous and bool(loops.inner) and (self.limits.is_gpu or loops.outer_count >= 8)

    def _convert(self, group: Group, loops: Loops) -> bool:
        body = Body(self.graph, loops, self.stored, sketch=True)
        members = list(group.members)
        old = group.body
        group.body, group.members = body, []
        try:
            for member in members:
                self._add_member(group, member, self.nodes[member])
        except Unfusable:
            group.body, group.members = old, members
            return False
        group.kind = "row"
        return True

    def _start(self, number: int, reads: set[int], body: Body | None, kind: str) -> Group:
        group = Group(len(self.groups), body=body, kind=kind, reads=set(reads))
        for r in reads:
            other = self.group_of.get(r)
            if other is not None:
                group.before |= other.before | (1 << other.number)
        self._follow(group, reads)
        self.groups.append(group)
        if body is None:
            group.members.append(number)
            self.group_of[number] = group
        return group

    def _add_member(self, group: Group, number: int, node: GraphNode) -> None:
        """Try the node's expressions inside the group; raises Unfusable and leaves the group's
        lists unchanged.
        """
        body = group.body
        assert body is not None
        evaluate(body, number, node)
        if node.kind == "reduce":
            body.stages[number] = len(body.stages)
        elif node.kind in ("update", "scatter"):
            # What was written at other positions cannot be read back inside the kernel.
            body.own[number] = "outer"
        else:
            body.own[number] = body.level_of(node.elements)
        group.members.append(number)
        group.size += self.sizes_of(number)
        self.group_of[number] = group

    def _order(self) -> list[Group]:
        """Return the groups in an order in which they can run.

        What overwrites memory in place comes after all others that read it, where that can be.
        """
        readers = self._other_readers()
        done = 0
        out: list[Group] = []
        waiting = list(self.groups)
        held: list[Group] = []

        def emit(group: Group) -> None:
            nonlocal done
            out.append(group)
            done |= 1 << group.number
            while free := [g for g in held if not readers[g.number] & ~done]:
                held.remove(free[0])
                emit(free[0])

        while waiting or held:
            rest = []
            before = len(out)
            for group in waiting:
                if group.before & ~done:
                    rest.append(group)
                elif readers.get(group.number, 0) & ~done:
                    held.append(group)
                else:
                    emit(group)
            if len(out) == before:
                assert held, "groups depend on each other"
                emit(held.pop(0))
            waiting = rest
        return out

    def _other_readers(self) -> dict[int, int]:
        """For groups that may write in place: which other groups read the memory, as bits. Those
        that need the group's own results are left out.
        """
        donor = {o.node: o.donor for o in self.graph.outputs if o.donor is not None}
        written: dict[int, list[int]] = {}
        for group in self.groups:
            for m in group.members:
                if m in donor:
                    written.setdefault(donor[m], []).append(group.number)
                if self.nodes[m].kind in ("update", "scatter"):
                    written.setdefault(self.nodes[m].srcs[0], []).append(group.number)
        found: dict[int, int] = {}
        for group in self.groups:
            for r in group.reads & written.keys():
                for number in written[r]:
                    if number != group.number and not group.before & (1 << number):
                        found[number] = found.get(number, 0) | 1 << group.number
        return found

    # ---- what is stored because several kernels need it
    # ------------------------------------------------------------

    def _store_shared(self, ordered: list[Group]) -> None:
        rank = {g.number: i for i, g in enumerate(ordered)}
        users: list[set[int]] = [set() for _ in self.nodes]
        for number in range(len(self.nodes) - 1, -1, -1):
            node = self.nodes[number]
            if number in self.stored:
                target = {self.group_of[number].number} if number in self.group_of else set()
            else:
                target = users[number]
                if len(target) > 1 and self._worth_storing(number, node):
                    first = min(target, key=lambda g: rank[g])
                    rest = [self.groups[g] for g in target if g != first]
                    room = all(len(g.reads) + len(g.members) + 2 <= self.max_slots for g in rest)
                    if room and self._store_in(self.groups[first], number, node):
                        target = {first}
                        for g in rest:
                            g.reads.add(number)
            for s in node.srcs:
                users[s] |= target

    def _worth_storing(self, number: int, node: GraphNode) -> bool:
        if node.kind not in ("map", "take") or not node.elements:
            return False
        large = [
            leaf for leaf in self.leaves[number] if self.nodes[leaf].elements * 2 >= node.elements
        ]
        return self.costs[number] >= 12 or (len(large) >= 2 and self.costs[number] >= 2)

    def _store_in(self, group: Group, number: int, node: GraphNode) -> bool:
        body = group.body
        if (
            body is None
            or body.first_slot + len(body.slots) + len(group.members) + 1 > self.max_slots
            or node.dtype.compute is not node.dtype
        ):
            return False
        try:
            level = body.level_of(node.elements)
        except Unfusable:
            return False
        if (number, body.flat(level), None) not in body.memo:
            return False
        body.own[number] = level
        group.members.append(number)
        group.shared.add(number)
        self.group_of[number] = group
        self.stored.add(number)
        return True


def product_loops(node: GraphNode) -> Loops:
    """Return the loops over the output of a product."""
    shape = node.shape
    return point_loops(shape if node.kind == "matmul" else image_points(node.attrs[0], shape))


def _is_reshape(graph: Graph, node: GraphNode) -> bool:
    """Whether a view shows all elements of its source in order."""
    return (
        len(node.attrs) == 2
        and node.attrs[1] == 0
        and node.attrs[0] == contiguous_strides(node.shape)
        and graph.nodes[node.srcs[0]].elements == node.elements
    )


def group_rows(group: Group) -> int:
    """Number of outer points of a group's loops."""
    assert group.body is not None
    return group.body.loops.outer_count


def evaluate(body: Body, number: int, node: GraphNode) -> None:
    """Build the expressions of a member once, to see whether it can be computed in this kernel."""
    match node.kind:
        case "reduce":
            body.value(node.srcs[0], body.loops.inner_flat)
        case "update":
            body.value(
                node.srcs[1], body.flat(body.level_of(body.graph.nodes[node.srcs[1]].elements))
            )
        case "scatter":
            level = body.level_of(body.graph.nodes[node.srcs[-1]].elements)
            body.indexed_position(node, node.shape, node.srcs[1:-1], body.flat(level), level, None)
            body.value(node.srcs[-1], body.flat(level))
        case _:
            body.compute(number, body.flat(body.level_of(node.elements)))


def formula_cost(node: GraphNode) -> int:
    """Return a rough cost of a map node's formula in additions."""
    op, pattern, compute = node.attrs
    key = (op, pattern, compute)
    found = _FORMULA_COSTS.get(key)
    if found is None:
        formula = _formula(op, pattern, compute)
        found = ex.cost(formula)
        if len(_FORMULA_COSTS) > 4096:
            _FORMULA_COSTS.clear()
        _FORMULA_COSTS[key] = found
    return found


_FORMULA_COSTS: dict[tuple[object, ...], int] = {}


def _formula(op: Any, pattern: str, compute: DType) -> Expr:
    kinds = {"u": uint32, "p": int32, "c": int32}
    found: Expr = op.build(
        tuple(ex.input_(i, kinds.get(letter, compute)) for i, letter in enumerate(pattern))
    )
    return found


def compared(nodes: Sequence[GraphNode], node: GraphNode) -> list[int]:
    """Return the computed nodes whose elements a map node compares for equality with other elements.

    Such a value is one number: a maximum is found among its elements again. Two kernels that compute one
    formula may round it in two ways, so it is kept.
    """
    op, pattern, compute = node.attrs
    if compute.kind != "float" or len(node.srcs) < 2:
        return []
    key = (op, pattern, compute)
    places = _COMPARED.get(key)
    if places is None:
        found: set[int] = set()
        for e in ex.walk(_formula(op, pattern, compute)):
            if e.op in ("eq", "ne") and all(
                a.op == "input" and pattern[a.value] == "t" for a in e.args
            ):
                found |= {a.value for a in e.args}
        if len(_COMPARED) > 4096:
            _COMPARED.clear()
        places = _COMPARED[key] = tuple(sorted(found))
    bases = []
    for place in places:
        # What is no tensor has no source.
        number = sum(letter == "t" for letter in pattern[:place])
        source = node.srcs[number]
        while nodes[source].kind in ("view", "pad"):
            source = nodes[source].srcs[0]
        if nodes[source].kind == "map" and nodes[source].srcs:
            bases.append(source)
    return bases


_COMPARED: dict[tuple[object, ...], tuple[int, ...]] = {}


# ---- operands of templates
# ---------------------------------------------------------------------------------------------


def plain_operand(graph: Graph, number: int, stored: set[int]) -> int | None:
    """Return the stored node whose whole, contiguous memory is operand `number`, or None."""
    while number not in stored:
        node = graph.nodes[number]
        if node.kind != "view" or not _is_reshape(graph, node):
            return None
        number = node.srcs[0]
    return number


def matrix_operand(
    graph: Graph, number: int, stored: set[int]
) -> tuple[int, tuple[int, ...], int] | None:
    """Return (stored node, strides of the operand's dims, offset) if operand `number` is a strided
    view of it, else None.
    """
    shape = graph.nodes[number].shape
    variables = tuple(ix.loop(d, s) for d, s in enumerate(shape))
    flat = ix.linearize(variables, contiguous_strides(shape))
    while number not in stored:
        node = graph.nodes[number]
        if node.kind != "view" or len(node.attrs) != 2:
            return None
        strides, offset = node.attrs
        if strides == contiguous_strides(node.shape):
            flat = flat + offset
        else:
            flat = ix.linearize(ix.delinearize(flat, node.shape), strides) + offset
        number = node.srcs[0]
    if not flat.is_affine:
        return None
    by_dim = {a.value[0]: f for a, f in flat.terms}
    strides = tuple(by_dim.get(d, 0) for d in range(len(shape)))
    return (number, strides, flat.constant) if all(s >= 0 for s in strides) else None


def is_other_result(node: GraphNode) -> bool:
    """Whether a node is a result of an attention that is not the first."""
    return node.kind == "attention" and node.attrs[1] > 0


# ---- kernels
# -----------------------------------------------------------------------------------------------------------


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
    tuple[Any, ...], tuple[Kernel, tuple[int, ...], tuple[int, ...], tuple[Site, ...]]
] = OrderedDict()
_MAX_BUILT = 2048


def _form(graph: Graph, group: Group, stored: set[int], needed: set[int]) -> _Form:
    assert group.body is not None
    loops = group.body.loops
    members = sorted(group.members)
    inside = set(members)
    numbers: dict[int, int] = {}
    args: dict[int, int] = {}
    parts: list[Any] = []
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
        combine: Combine = "set"
        inside: Expr | None = None
        if node.kind == "reduce":
            op, _ = node.attrs
            value = body.value(node.srcs[0], body.loops.inner_flat)
            if op in ("any", "all"):
                value = ex.cast(value, bool_)
            elif op not in ("argmax", "argmin"):
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
            position, inside = body.indexed_position(
                node, node.shape, node.srcs[1:-1], flat, level, None
            )
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


__all__ = [
    "BuiltKernel",
    "Check",
    "Fuser",
    "Group",
    "build_kernel",
    "matrix_operand",
    "plain_operand",
]
