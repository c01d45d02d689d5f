"""Decides which nodes live in memory and which are computed together. May import floors 0 and 1.

1. Choose the nodes that must be stored: outputs, operands of templates, results of reductions,
bounded expression sizes.
2. Put stored nodes into groups, in order: a node joins the group of a node it reads when it can be
computed at the same point of the same loops; else it starts a group. Rules with names decide, and say
why not (`fusion_rules`). What follows a product, element by element, joins the product: bias,
activation and residual are computed while its sums are in registers.
3. Where two groups would compute the same costly expression, store it in the first.

`build` makes each group's kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any

from webtorch.ir import expr as ex
from webtorch.ir import index as ix
from webtorch.ir.dtype import DType, int32, uint32
from webtorch.ir.expr import Expr
from webtorch.ir.graph import Graph, GraphNode
from webtorch.ir.kernel import RUN, image_points
from webtorch.ir.limits import Limits
from webtorch.ir.view import contiguous_strides
from webtorch.lower.body import (
    Body,
    Loops,
    Unfusable,
    point_loops,
)
from webtorch.lower.fusion_rules import (
    AFTER,
    BEFORE,
    COMPUTED_ONCE,
    JOINED_ANOTHER,
    MAX_ROW_COST,
    OPERAND,
    POSITIONS,
    Facts,
    Group,
    Newcomer,
    operand_reason,
    operation,
    own_loops,
    row_loops,
    shared_positions,
)

TEMPLATES = frozenset({"matmul", "conv", "scan", "sort", "attention", "host"})
# Templates whose outputs may be worked on before they are stored.
PRODUCTS = frozenset({"matmul", "conv"})
# An expression with more parts than this is cut by storing a part of it; keeps source text and
# register use bounded.
_MAX_SIZE = 160
# A sum over this many large operands that several nodes read is stored: a stream of residuals would
# otherwise be added up anew, from its beginning, in each layer.
_MAX_SHARED_LEAVES = 4
# Rows of a product up to which its right operand may be computed as it is read.
_FEW_ROWS = 64
# What costs more than this is stored where it is read at two places, as it is and moved: each would
# compute it, and a chain of such steps (a running sum by doubling) twice as often with every one.
_MAX_MOVED_COST = 12


class Fuser(Facts):
    """Groups the nodes of one graph for one device."""

    def __init__(self, graph: Graph, limits: Limits, apart: Set[int] = frozenset()) -> None:
        """`apart` are updates and scatters whose new values are stored first: no kernel that writes
        one of them may read what it overwrites.
        """
        super().__init__(graph, limits, apart)
        self.stored: set[int] = set()
        self.groups: list[Group] = []
        self.leaves: list[frozenset[int]] = []
        self.costs: list[int] = []
        # Why two groups, by their numbers, are not one: a rule and its reason.
        self.separations: dict[tuple[int, int], tuple[str, str]] = {}
        self.use_counts = [0] * len(graph.nodes)
        for node in graph.nodes:
            for s in set(node.srcs):
                self.use_counts[s] += 1

    def run(self) -> list[Group]:
        """Return the groups in an order in which they can run."""
        self._choose_stored()
        for number, node in enumerate(self.nodes):
            if number in self.stored and not node.is_given and node.elements:
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
            if node.is_given or node.writes or node.kind == "reduce" or node.kind in TEMPLATES:
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
                    if s != node.srcs[1] or not self._unpacks(node):
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
                source = self._below_views(node.srcs[0])
                if self.costs[source] > 1:
                    self._store(source)
            case "pad":
                source = self._below_views(node.srcs[0])
                if self.use_counts[source] > 1 and self.costs[source] > _MAX_MOVED_COST:
                    self._store(source)
            case "view" | "reduce":
                source = node.srcs[0]
                repeats = node.elements >= 2 * self.nodes[source].elements
                if node.kind == "view" and repeats and self.costs[source] > 3:
                    self._store(source)
                if node.kind == "reduce" and self.costs[source] > MAX_ROW_COST:
                    while self.nodes[source].kind == "view" and self.use_counts[source] == 1:
                        source = self.nodes[source].srcs[0]
                    if self.use_counts[source] > 1:
                        self._store(source)
            case "map":
                for source in compared(self.nodes, node):
                    if self.use_counts[source] > 1:
                        self._store(source)

    def _below_views(self, number: int) -> int:
        """Return the node that views which are not in memory look at."""
        while number not in self.stored and self.nodes[number].kind == "view":
            number = self.nodes[number].srcs[0]
        return number

    def _store_operand(
        self, number: int, operand: Callable[[Graph, int, set[int]], object]
    ) -> None:
        """Store what a template reads: best the node below the views, so that they cost no copy;
        else the view itself.
        """
        if operand(self.graph, number, self.stored) is not None:
            return
        base = self._below_views(number)
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

    def _unpacks(self, node: GraphNode) -> bool:
        """Whether a product of few rows computes its right operand as it reads it: packed weights, fewer bytes
        in memory, which nothing else has there unpacked. Each tile of rows computes it anew.
        """
        (batch, rows, _), right = node.shape, self.nodes[node.srcs[1]]
        few = batch == 1 and 1 < rows <= _FEW_ROWS and right.shape[1] % RUN == 0
        # Neighbours along k share what they are computed of.
        if not (self.limits.is_gpu and few and right.kind == "view" and right.attrs[0][1] == 1):
            return False
        leaves = [self.nodes[leaf] for leaf in self.leaves[node.srcs[1]]]
        waiting, seen = [node.srcs[1]], set[int]()
        while waiting:
            number = waiting.pop()
            if number in seen or (number in self.stored and number != node.srcs[1]):
                continue
            seen.add(number)
            one = self.nodes[number]
            if number in self.stored or one.kind not in ("map", "view") or one.args:
                return False
            waiting += one.srcs
        nbytes = [one.elements * one.dtype.itemsize for one in (*leaves, right)]
        # Tiles read packed data by words.
        return len(leaves) == 1 and leaves[0].dtype is int32 and nbytes[0] < nbytes[1]

    def _measure(self, number: int, node: GraphNode) -> None:
        size, cost = 1, 0
        leaves: frozenset[int] = frozenset()
        for s in node.srcs:
            leaves |= self.leaves[s]
            size += self.sizes[s]
            cost += self.costs[s]
        if node.kind == "view" and size == 2:
            # One read of what is in memory, wherever.
            size = 1
        if node.kind == "map":
            cost += formula_cost(node)
        elif node.kind in ("pad", "take"):
            cost += 2
        # A kernel has few bindings: store parts until the rest fits (one for the result).
        while node.kind not in TEMPLATES and (
            (most := len(leaves) > self.max_slots - 1)
            or (
                size > _MAX_SIZE
                and len(node.srcs) > 1
                and max(self.sizes[s] for s in node.srcs) > 1
            )
        ):
            # Copies of views of what is in memory make nothing shorter, and are a binding each.
            candidates = [s for s in node.srcs if s not in self.stored and (most or self.costs[s])]
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
            self._place_template(number, node, reads)
            return
        new = self.newcomer(number, node, reads)
        candidates = self._candidates(new)
        refused: list[tuple[str, str]] = []
        for group in candidates:
            reason = self._join(group, new)
            if reason is None:
                break
            refused.append(reason)
        else:
            body = Body(self.graph, own_loops(new), self.stored, sketch=True)
            group = self._start(number, reads, body, "row" if node.kind == "reduce" else "flat")
            self._add_member(group, number, node)
        for i, other in enumerate(candidates):
            if i < len(refused):
                self._separate(other, group, *refused[i])
            elif other is not group:
                text = f"{operation(node)}, which reads both, is computed in the later one"
                self._separate(other, group, JOINED_ANOTHER, text)

    def _place_template(self, number: int, node: GraphNode, reads: set[int]) -> None:
        first = self.group_of.get(node.srcs[-1]) if is_other_result(node) else None
        if first is not None:
            # Another result of an attention that is computed here.
            first.members.append(number)
            self.group_of[number] = first
            return
        if node.kind in PRODUCTS and self.limits.has_epilogues:
            group = self._start_product(number, node, reads)
        else:
            group = self._start(number, reads, None, "template")
        for r in reads:
            if r in self.group_of:
                self._separate(self.group_of[r], group, OPERAND, operand_reason(node))

    def _separate(self, one: Group, other: Group, rule: str, reason: str) -> None:
        """Note why two groups are not one; the first reason stays."""
        a, b = one.number, other.number
        self.separations.setdefault((a, b) if a < b else (b, a), (rule, reason))

    def _start_product(self, number: int, node: GraphNode, reads: set[int]) -> Group:
        """Start a group that what follows the product may join."""
        body = Body(self.graph, product_loops(node), self.stored, sketch=True, first_slot=2)
        body.stages[number] = 0
        group = self._start(number, reads, body, "product")
        group.members.append(number)
        self.group_of[number] = group
        return group

    def _candidates(self, new: Newcomer) -> list[Group]:
        """Return the groups that a node may join, the latest first: those that compute what it reads,
        and those that read the same large data, which is then read once.
        """
        reads = new.reads
        loops = new.loops
        work = new.work if loops is None else loops.outer_count * loops.inner_count
        direct = {self.group_of[r].number for r in reads if r in self.group_of}
        shared = {
            g.number
            for g in self.groups[-8:]
            if g.body is not None
            and g.kind != "product"
            and (
                any(self.nodes[r].elements * 4 >= work and work > 1 for r in g.reads & reads)
                or self._is_beside(g, new)
            )
        }
        return [self.groups[n] for n in sorted(direct | shared, reverse=True)]

    def _is_beside(self, group: Group, new: Newcomer) -> bool:
        """Whether a reduction walks the same rows as a group of them, and reads more than a number that it reads: a
        vector that two matrices are multiplied by. One dispatch then does for both, and for what follows them.
        """
        return (
            self.limits.has_joint_products
            and new.loops is not None
            and group.kind == "row"
            and row_loops(self, new, group) is None
            and any(self.nodes[r].elements > 1 for r in group.reads & new.reads)
        )

    def _join(self, group: Group, new: Newcomer) -> tuple[str, str] | None:
        """Compute a node in a group; or return the rule that says no, and its reason."""
        for rule in BEFORE:
            reason = rule(self, new, group)
            if reason is not None:
                return rule.__name__, reason
        assert group.body is not None
        if new.loops is not None and group.kind != "row":
            # Turn the elementwise kernel into a row kernel, so that what it computes is reduced on
            # the way.
            reason = self._convert(group, new.loops)
            if reason is not None:
                return POSITIONS, reason
        before = group.body.snapshot()
        try:
            self._add_member(group, new.number, new.node)
        except Unfusable as error:
            group.body.restore(before)
            return POSITIONS, str(error)
        for rule in AFTER:
            reason = rule(self, new, group)
            if reason is not None:
                self._remove_last(group, before)
                return rule.__name__, reason
        reason = shared_positions(self, new, group, before.memo.keys())
        if reason is not None:
            self._remove_last(group, before)
            return shared_positions.__name__, reason
        self._note_order(group, new.reads)
        return None

    def _note_order(self, group: Group, reads: set[int]) -> None:
        """Note what a group that now reads these nodes comes after, and so do those that follow it."""
        ancestors = 0
        for r in reads:
            other = self.group_of.get(r)
            if other is not None and other is not group:
                ancestors |= other.before | (1 << other.number)
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

    def _convert(self, group: Group, loops: Loops) -> str | None:
        """Give a group the loops of a reduction; or return why that cannot be, with the group as it was."""
        body = Body(self.graph, loops, self.stored, sketch=True)
        members = list(group.members)
        old = group.body
        group.body, group.members = body, []
        try:
            for member in members:
                self._add_member(group, member, self.nodes[member])
        except Unfusable as error:
            group.body, group.members = old, members
            return str(error)
        group.kind = "row"
        return None

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
        elif node.writes:
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
            """Put a group into the order, and those that waited for it."""
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
                if self.nodes[m].writes:
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
                        text = f"{operation(node)} is computed once, and read from memory here"
                        for g in rest:
                            g.reads.add(number)
                            self._separate(self.groups[first], g, COMPUTED_ONCE, text)
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
            body.indexed_position(node, node.shape, node.srcs[1:-1], body.flat(level), None)
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


def unpacked_operand(graph: Graph, number: int, stored: set[int]) -> tuple[int, Expr]:
    """Return the stored node that a right operand is computed of, and its element, as of `Matmul.unpacked`."""
    node = graph.nodes[number]
    _, k, n = node.shape
    run, place, column = (ix.loop(d, s) for d, s in enumerate((k // RUN, RUN, n)))
    body = Body(graph, point_loops((k // RUN, RUN, n)), stored, first_slot=1)
    value = body.value(number, (run * RUN + place) * n + column)
    (source,) = body.slots
    return source, ex.cast(value, node.dtype)


def is_other_result(node: GraphNode) -> bool:
    """Whether a node is a result of an attention that is not the first."""
    return node.kind == "attention" and node.attrs[1] > 0
