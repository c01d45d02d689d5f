"""When a node may be computed in a kernel: named rules, each of which gives a reason where it says no.
May import floors 0 and 1.

A rule is a function `(facts, new, group)` that returns None, or why the node cannot join the group in
plain words; its name is the rule's. `BEFORE` is asked first, in order. What passes is then tried: the
node's expressions are built inside the group, which may turn out to read at positions where nothing is
(`positions`), and `AFTER` looks at the result. What was said of two kernels is kept in the program
(`ir.program.Separation`), as remarks of optimisations are in LLVM.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field

from webtorch.ir.graph import Graph, GraphNode
from webtorch.ir.index import Index
from webtorch.ir.limits import Limits
from webtorch.ir.view import Shape
from webtorch.lower.body import Body, Loops, flat_loops, reduce_loops

# One kernel never holds more than this many expression parts in all.
_MAX_GROUP_SIZE = 600
# A row kernel computes what it reduces once for each of its stages. An expression that costs more
# than this is computed in a kernel of its own: software adapters take seconds to compile it several
# times over, and every device takes longer to run it.
MAX_ROW_COST = 200
# Nor does the epilogue of a product compute what costs more than this: invocations hold many sums, and few
# of them run side by side. On an H200 gelu (12) gains; its gradient (23) took 365 us in a product, for
# 215 of the product and 43 of a kernel of its own.
_MAX_EPILOGUE_COST = 20
# Rows longer than this are not kept inside one kernel: one workgroup or thread would walk them
# several times.
_MAX_FUSED_ROW = 65536
# Rows up to this long are still in a card's cache when they are walked again, however they lie.
_SHORT_ROW = 512
# Values of so few points are kept in one kernel however they lie.
_FEW_POINTS = 16384


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
class Newcomer:
    """A stored node that looks for a kernel."""

    number: int
    node: GraphNode
    # The stored nodes that it reads.
    reads: set[int]
    # Points at which it stores.
    work: int
    # Those of a reduction.
    loops: Loops | None


class Facts:
    """What is known of a graph's nodes and groups while they are fused."""

    def __init__(self, graph: Graph, limits: Limits, apart: Set[int]) -> None:
        self.graph = graph
        self.limits = limits
        self.apart = apart
        self.nodes = graph.nodes
        self.group_of: dict[int, Group] = {}
        self.sizes: list[int] = []
        # Costs of nodes themselves, whether they are stored or not.
        self.own_costs: list[int] = []
        # The product that a node finishes, if any.
        self.product_below: list[int | None] = []
        self.max_slots = limits.max_buffers_per_kernel - 1

    def newcomer(self, number: int, node: GraphNode, reads: set[int]) -> Newcomer:
        """Return what rules ask about a node."""
        loops = None
        if node.kind == "reduce":
            loops = reduce_loops(self.nodes[node.srcs[0]].shape, node.attrs[1])
        return Newcomer(number, node, reads, self._work(node), loops)

    def _work(self, node: GraphNode) -> int:
        """Number of points at which the node's kernel stores."""
        if node.kind == "update":
            return self.nodes[node.srcs[1]].elements
        if node.kind == "scatter":
            return self.nodes[node.srcs[-1]].elements
        return node.elements

    def sizes_of(self, number: int) -> int:
        """Expression parts of a stored node."""
        return 1 + sum(self.sizes[s] for s in self.nodes[number].srcs)

    def row_fits(self, loops: Loops) -> bool:
        """Whether storing at every inner point of these loops is efficient: rows that are short and
        lie together.
        """
        if loops.outer_count * loops.inner_count <= _FEW_POINTS:
            return True
        if loops.inner_count > _MAX_FUSED_ROW:
            return False
        last = len(loops.outer) + len(loops.inner) - 1
        contiguous = any(
            a.kind == "loop" and a.value[0] == last and f == 1 for a, f in loops.inner_flat.terms
        )
        return contiguous and bool(loops.inner) and (self.limits.is_gpu or loops.outer_count >= 8)


def own_loops(new: Newcomer) -> Loops:
    """Return the loops of a kernel that a node begins."""
    return flat_loops(new.work) if new.loops is None else new.loops


def operation(node: GraphNode) -> str:
    """Return the name of what a node computes."""
    if node.kind == "map":
        return str(node.attrs[0].name).strip("_")
    return str(node.attrs[0]) if node.kind == "reduce" else node.kind


Rule = Callable[[Facts, Newcomer, Group], str | None]


# ---- asked before a node is tried in a group


def routine(facts: Facts, new: Newcomer, group: Group) -> str | None:
    """Templates take nothing in, but for the epilogues of products."""
    if group.body is not None:
        return None
    kind = facts.nodes[group.members[0]].kind
    return f"{kind} is a routine of its own, and computes nothing that follows it on this device"


def accumulation(facts: Facts, new: Newcomer, group: Group) -> str | None:
    """What adds up at positions given by data has no order with anything else at its points."""
    if new.node.kind != "scatter" or new.node.attrs[2] == "set":
        return None
    return "positions that data give may repeat: what adds up there is a kernel of its own"


def epilogue_operation(facts: Facts, new: Newcomer, group: Group) -> str | None:
    """The epilogue of a product is computed element by element."""
    if group.kind != "product" or new.node.kind == "map":
        return None
    return f"what follows a product's sums in their registers is element by element, and {operation(new.node)} is not"


def epilogue_cost(facts: Facts, new: Newcomer, group: Group) -> str | None:
    """Invocations of a product hold many sums: few run side by side."""
    cost = facts.own_costs[new.number]
    if group.kind != "product" or cost <= _MAX_EPILOGUE_COST:
        return None
    return (
        f"{operation(new.node)} costs about {cost} additions an element, and a product computes "
        f"what costs at most {_MAX_EPILOGUE_COST}"
    )


def write_in_progress(facts: Facts, new: Newcomer, group: Group) -> str | None:
    """A kernel has no order among its points."""
    if not new.node.writes or new.node.srcs[0] not in group.members:
        return None
    return "it would write into what the same kernel is still writing"


def read_of_overwritten(facts: Facts, new: Newcomer, group: Group) -> str | None:
    """What is written in place must not be read elsewhere by the same kernel."""
    if new.number in facts.apart and new.node.srcs[0] in group.reads:
        return "it overwrites in place what this kernel reads at other positions"
    if any(m in facts.apart and facts.nodes[m].srcs[0] in new.reads for m in group.members):
        return "it reads what this kernel overwrites in place"
    return None


def order(facts: Facts, new: Newcomer, group: Group) -> str | None:
    """No kernel waits for itself."""
    after = 1 << group.number
    for r in new.reads:
        other = facts.group_of.get(r)
        if other is not None and other is not group and other.before & after:
            return "it also needs the result of a third kernel, which needs this one"
    return None


def bindings(facts: Facts, new: Newcomer, group: Group) -> str | None:
    """A kernel binds few buffers."""
    outside = {r for r in group.reads | new.reads if r not in group.members}
    count = len(outside) + len(group.members) + 1
    most = facts.max_slots + (group.kind == "product")
    if count <= most:
        return None
    return f"together they bind {count} buffers, and a kernel has room for {most} on this device"


def length(facts: Facts, new: Newcomer, group: Group) -> str | None:
    """The text of a kernel is bounded."""
    parts = group.size + facts.sizes_of(new.number)
    if parts <= _MAX_GROUP_SIZE:
        return None
    return f"together they have {parts} parts of expressions, more than {_MAX_GROUP_SIZE}"


def row_cost(facts: Facts, new: Newcomer, group: Group) -> str | None:
    """A row kernel computes what it reduces once for each of its stages."""
    if new.node.kind == "reduce":
        if group.kind == "row":
            return None
        dear = max((facts.own_costs[m] for m in group.members), default=0)
    else:
        if group.kind != "row" or new.work == rows_of(group):
            return None
        dear = facts.own_costs[new.number]
    if dear <= MAX_ROW_COST:
        return None
    return (
        f"an expression of about {dear} additions would be computed for each reduction of a row: "
        f"at most {MAX_ROW_COST} pay"
    )


def row_loops(facts: Facts, new: Newcomer, group: Group) -> str | None:
    """Reductions of one kernel walk the same points."""
    if new.loops is None or group.kind != "row" or group.body is None:
        return None
    mine, loops = new.loops, group.body.loops
    if (mine.outer, mine.inner, mine.inner_flat) == (loops.outer, loops.inner, loops.inner_flat):
        return None
    if (mine.outer, mine.inner) == (loops.outer, loops.inner):
        return f"it reduces {_points(mine)} in another order"
    return f"it reduces {_points(mine)}, and this kernel {_points(loops)}"


def row_again(facts: Facts, new: Newcomer, group: Group) -> str | None:
    """A reduction of what was reduced walks the row again."""
    if new.loops is None or group.kind != "row":
        return None
    # Sums side by side store nothing at inner points; a sum of what was summed walks the row again.
    short = new.loops.inner_count <= _SHORT_ROW
    aside = facts.limits.is_gpu and (short or new.reads.isdisjoint(group.members))
    return None if aside or facts.row_fits(new.loops) else _unfit(new.loops)


def reduced_points(facts: Facts, new: Newcomer, group: Group) -> str | None:
    """A reduction takes in the elementwise kernel whose points it reduces."""
    if new.loops is None or group.kind == "row" or group.body is None:
        return None
    mine, count = new.loops, group.body.loops.outer_count
    if count == mine.outer_count * mine.inner_count:
        return None
    return f"it reduces {_points(mine)}, and this kernel walks {_points(group.body.loops)}"


def reduced_row(facts: Facts, new: Newcomer, group: Group) -> str | None:
    """What a row kernel also stores at each point has to lie together."""
    if new.loops is None or group.kind == "row" or facts.row_fits(new.loops):
        return None
    return _unfit(new.loops)


def reduced_writes(facts: Facts, new: Newcomer, group: Group) -> str | None:
    """What writes windows or scattered elements is no row kernel."""
    if new.loops is None or group.kind == "row":
        return None
    if any(facts.nodes[m].writes for m in group.members):
        return "this kernel writes in place at positions of its own"
    return None


def points(facts: Facts, new: Newcomer, group: Group) -> str | None:
    """A kernel stores at its outer or at its inner points."""
    if new.loops is not None or group.body is None:
        return None
    loops = group.body.loops
    if new.work in (loops.outer_count, loops.outer_count * loops.inner_count):
        return None
    return f"it has {new.work} elements, and this kernel walks {_points(loops)}"


def row_stores(facts: Facts, new: Newcomer, group: Group) -> str | None:
    """What is stored at each point of a row kernel has to lie together."""
    if new.loops is not None or group.kind != "row" or group.body is None:
        return None
    loops = group.body.loops
    if new.work == loops.outer_count or facts.row_fits(loops):
        return None
    return _unfit(loops)


BEFORE: tuple[Rule, ...] = (
    routine,
    accumulation,
    epilogue_operation,
    epilogue_cost,
    write_in_progress,
    read_of_overwritten,
    order,
    bindings,
    length,
    row_cost,
    row_loops,
    row_again,
    reduced_points,
    reduced_row,
    reduced_writes,
    points,
    row_stores,
)


# ---- asked once a node's expressions stand in a group


def epilogue_bindings(facts: Facts, new: Newcomer, group: Group) -> str | None:
    """A product is bound with its epilogue. An operand that the epilogue reads too has two slots; a
    product that stores no sums has none for them, nor status words for checks.
    """
    if group.kind != "product":
        return None
    body, (product, *others) = group.body, group.members
    assert body is not None
    if body.checks:
        return "it checks indices, and a product has no place to report a bad one"
    stores = len(others) + all(facts.product_below[m] != product for m in others)
    count = body.first_slot + len(body.slots) + stores
    if count <= facts.max_slots:
        return None
    return (
        f"with it the product binds {count} buffers, and a kernel has room for {facts.max_slots} "
        "on this device"
    )


AFTER: tuple[Rule, ...] = (epilogue_bindings,)


def shared_positions(
    facts: Facts, new: Newcomer, group: Group, known: Set[tuple[int, Index, object]]
) -> str | None:
    """A node that joins only to share reads must read the shared data at the same positions. `known` is
    what the group read before.
    """
    if not new.reads.isdisjoint(group.members):
        return None
    assert group.body is not None
    shared = group.reads & new.reads
    for key in group.body.memo:
        if key not in known and key[0] in shared and facts.nodes[key[0]].elements > 1:
            return "both read the same data, but at other positions"
    return None


# ---- what else keeps kernels apart: nobody is asked

# A template's operands are data in memory.
OPERAND = "operand"
# The new values could not be read at the points of the group.
POSITIONS = "positions"
# A node joins one kernel.
JOINED_ANOTHER = "joined_another"
# A dear expression that several kernels need is computed by the first.
COMPUTED_ONCE = "computed_once"


def operand_reason(node: GraphNode) -> str:
    """Say why a template does not take in what computes its operands."""
    return f"{node.kind} reads its operands from memory"


def rows_of(group: Group) -> int:
    """Number of outer points of a group's loops."""
    assert group.body is not None
    return group.body.loops.outer_count


def _points(loops: Loops) -> str:
    """Return the loops in words."""
    if not loops.inner:
        return _count(loops.outer, "point")
    return f"{_count(loops.outer, 'row')} of {' x '.join(map(str, loops.inner))}"


def _count(sizes: Shape, what: str) -> str:
    text = " x ".join(map(str, sizes)) or "1"
    return f"one {what}" if text == "1" else f"{text} {what}s"


def _unfit(loops: Loops) -> str:
    """Say why `Facts.row_fits` does not hold."""
    if loops.inner_count > _MAX_FUSED_ROW:
        return f"rows of {loops.inner_count} elements are too long to be walked twice by one kernel"
    return f"{_points(loops)} do not lie together, so one kernel would walk them badly twice"
