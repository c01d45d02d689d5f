"""Plans memory and builds the program: which buffers exist, which share memory, what is written in
place. Floors 0 and 1.

Every stored node gets memory. An update or scatter takes over its base's memory when nothing reads
the base afterwards; an
output takes over its donor's (the buffer whose tensor it overwrites) when the kernel that writes it
reads the donor only at the
element it writes. Temporaries with disjoint lifetimes share pool slots.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from webtorch.ir import expr as ex
from webtorch.ir.expr import Expr
from webtorch.ir.graph import Graph
from webtorch.ir.kernel import (
    Attention,
    BufferSlot,
    Convolution,
    Host,
    Kernel,
    Matmul,
    Routine,
    Scan,
    Sort,
    Store,
    epilogue_of,
)
from webtorch.ir.limits import Limits
from webtorch.ir.lines import line_text
from webtorch.ir.program import BufferDecl, Copy, Dispatch, Program, Role, Separation, Site, Step
from webtorch.ir.view import numel
from webtorch.lower.build import BuiltKernel, build_kernel
from webtorch.lower.fuse import (
    Fuser,
    formula_cost,
    is_other_result,
    matrix_operand,
    plain_operand,
    unpacked_operand,
)
from webtorch.lower.fusion_rules import Group, operation
from webtorch.lower.joining_rules import Remark
from webtorch.lower.joint import join_products
from webtorch.lower.schedule import in_frugal_order
from webtorch.lower.together import put_together, renumbered, written_by
from webtorch.lower.turns import put_in_turn

# A temporary of at least this size is written over in place where that can be.
_IN_PLACE_BYTES = 1 << 16


@dataclass(slots=True)
class Task:
    """One step before memory is planned: what it runs, on which nodes; `writes` are the stored
    nodes it produces.
    """

    routine: Routine
    nodes: tuple[int, ...]
    args: tuple[int, ...]
    writes: tuple[int, ...]
    line: str
    sites: tuple[Site, ...] = ()
    # (written node, base node): the node is its base with some elements replaced.
    bases: tuple[tuple[int, int], ...] = ()
    # The number of its group.
    group: int = -1


@dataclass(slots=True)
class Memory:
    """Which program buffer each stored node lives in."""

    buffer_of: dict[int, int] = field(default_factory=dict)
    decls: list[BufferDecl] = field(default_factory=list)

    def new(self, node: int, decl: BufferDecl) -> int:
        """Declare a buffer for a node."""
        self.decls.append(decl)
        self.buffer_of[node] = len(self.decls) - 1
        return len(self.decls) - 1


def plan_program(graph: Graph, limits: Limits) -> Program:
    """Return the program that computes the graph's outputs. Inputs are its "buffer" nodes, in
    order.
    """
    planner, program = _planned(graph, limits, frozenset())
    if planner.apart:
        _, program = _planned(graph, limits, planner.apart)
    return program


def _planned(graph: Graph, limits: Limits, apart: Set[int]) -> tuple[_Planner, Program]:
    fuser = Fuser(graph, limits, apart)
    groups = fuser.run()
    tasks = _tasks(graph, groups, fuser.stored)
    planner = _Planner(graph, in_frugal_order(graph, tasks), limits)
    program = planner.program()
    return planner, replace(program, separations=planner.separations(program, fuser.separations))


def _tasks(graph: Graph, groups: list[Group], stored: set[int]) -> list[Task]:
    outputs = {o.node for o in graph.outputs}
    read_by: dict[int, set[int]] = {}
    for group in groups:
        for member in group.members:
            for r in _stored_sources(graph, member, stored):
                read_by.setdefault(r, set()).add(group.number)
    tasks: list[Task] = []
    for group in groups:
        needed = {
            m for m in group.members if m in outputs or read_by.get(m, set()) - {group.number}
        }
        if group.kind == "product" and needed - {group.members[0]}:
            built = build_kernel(graph, group, stored, needed, f"k{len(tasks)}")
            task = _product_task(graph, group, built, needed, stored)
        elif group.body is None or group.kind == "product":
            if graph.nodes[group.members[0]].kind == "attention":
                task = _attention_task(graph, group.members, stored)
            else:
                task = template_task(graph, group.members[0], stored)
        elif needed:
            built = build_kernel(graph, group, stored, needed, f"k{len(tasks)}")
            task = _kernel_task(graph, group, built, needed, stored)
        else:
            continue
        task.group = group.number
        tasks.append(task)
    return tasks


def _stored_sources(graph: Graph, number: int, stored: set[int]) -> set[int]:
    found: set[int] = set()
    seen: set[int] = set()
    stack = list(graph.nodes[number].srcs)
    while stack:
        s = stack.pop()
        if s in seen:
            continue
        seen.add(s)
        if s in stored:
            found.add(s)
        else:
            stack.extend(graph.nodes[s].srcs)
    return found


def _kernel_task(
    graph: Graph, group: Group, built: BuiltKernel, needed: set[int], stored: set[int]
) -> Task:
    writes = tuple(sorted(needed))
    kernel = replace(built.kernel, name=describe(graph, group, stored))
    bases = tuple((m, graph.nodes[m].srcs[0]) for m in writes if graph.nodes[m].writes)
    return Task(kernel, built.nodes, built.args, writes, built.line, built.sites, bases)


def _product_task(
    graph: Graph, group: Group, built: BuiltKernel, needed: set[int], stored: set[int]
) -> Task:
    """Return a product with its epilogue: the operands come first, then what the epilogue writes
    and reads, also where it reads an operand."""
    product, *others = group.members
    task = template_task(graph, product, stored)
    routine = task.routine
    assert isinstance(routine, Matmul | Convolution)
    after = replace(group, members=others)
    return Task(
        replace(
            routine,
            name=f"{routine.name}_{describe(graph, after, stored)}",
            buffers=(*routine.buffers[:2], *built.kernel.buffers),
            args=built.kernel.args,
            epilogue=built.kernel.stores,
        ),
        (*task.nodes[:2], *built.nodes),
        built.args,
        tuple(sorted(needed)),
        built.line,
    )


def describe(graph: Graph, group: Group, stored: Set[int]) -> str:
    """Return a name that says what a group computes: `mul_add_sum`.

    Operations stand in the order in which they were recorded. Of many, those that cost most stand,
    each once, and how many there are besides.
    """
    found: set[int] = set()
    waiting = list(group.members)
    while waiting:
        n = waiting.pop()
        if n not in found:
            found.add(n)
            waiting.extend(s for s in graph.nodes[n].srcs if s not in stored)
    nodes = [graph.nodes[n] for n in sorted(found)]
    told = [n for n in nodes if n.kind != "view" and operation(n) not in _UNTOLD]
    told = told or [n for n in nodes if n.kind != "view"]
    names = [operation(n) for n in told]
    if len(names) > _MOST_TOLD:
        costs = {operation(n): formula_cost(n) if n.kind == "map" else _MAX_COST for n in told}
        first = sorted(costs, key=lambda name: -costs[name])[:_MOST_TOLD]
        names = [name for name in costs if name in first] + [f"and_{len(names) - len(first)}_more"]
    return "_".join(names) or "copy"


# What tells nothing where something else is computed: other types, and positions.
_UNTOLD = frozenset({"cast", "count"})
# So many operations stand in a kernel's name.
_MOST_TOLD = 5
# A sum over a row costs more than any formula.
_MAX_COST = 1 << 20


def template_task(graph: Graph, number: int, stored: set[int]) -> Task:
    """Return the task of a node that is a routine by itself, such as a product, a scan or a host function."""
    node = graph.nodes[number]
    line = line_text(node.line)

    def slot(n: int, access: str = "read") -> BufferSlot:
        """Return the binding of a node's buffer."""
        return BufferSlot(graph.nodes[n].dtype, access, graph.nodes[n].elements)  # type: ignore[arg-type]

    if node.kind == "matmul":
        left, right = (matrix_operand(graph, s, stored) for s in node.srcs)
        unpacked: Expr | None = None
        if right is None:
            source, unpacked = unpacked_operand(graph, node.srcs[1], stored)
            right = source, (0, 0, 0), 0
        assert left is not None
        batch, m, n = node.shape
        k = graph.nodes[node.srcs[0]].shape[2]
        three = (slot(left[0]), slot(right[0]), slot(number, "write"))
        routine: Routine = Matmul(
            f"matmul_{batch}x{m}x{n}x{k}", (batch,), m, n, k, left[1], right[1], left[2], right[2], three,
            unpacked=unpacked,
        )  # fmt: skip
        return Task(routine, (left[0], right[0], number), (), (number,), line)
    sources = tuple(plain_operand(graph, s, stored) for s in node.srcs)
    nodes = (*(s for s in sources if s is not None), number)
    slots = (*(slot(n) for n in nodes[:-1]), slot(number, "write"))
    if node.kind == "conv":
        kind, input_shape, weight_shape, output_shape, stride, padding, dilation, groups = (
            node.attrs
        )
        routine = Convolution(
            f"conv_{kind}",
            kind,
            input_shape,
            weight_shape,
            output_shape,
            stride,
            padding,
            dilation,
            groups,
            slots,
        )
    elif node.kind == "host":
        function, params = node.attrs
        shapes = tuple(graph.nodes[s].shape for s in node.srcs)
        routine = Host(f"host_{function}", function, params, shapes, slots)
    elif node.kind == "sort":
        rows, length = graph.nodes[node.srcs[0]].shape
        descending, first = node.attrs
        name = f"sort_{rows}x{length}"
        routine = Sort(name, rows, length, first, node.shape[1], descending, slots)
    else:
        op, dim = node.attrs
        routine = Scan(
            f"scan_{op}",
            op,
            numel(node.shape[:dim]),
            node.shape[dim],
            numel(node.shape[dim + 1 :]),
            slots,
        )
    return Task(routine, nodes, (), (number,), line)


def _attention_task(graph: Graph, members: list[int], stored: set[int]) -> Task:
    node = graph.nodes[members[0]]
    part, _, causal, mask, dropout = node.attrs
    srcs = node.srcs[:-1] if is_other_result(node) else node.srcs
    query, key, value = (graph.nodes[s].shape for s in srcs[:3])
    strided = 3 + mask + (part != "forward")
    operands = [matrix_operand(graph, s, stored) for s in srcs[:strided]]
    plain = [plain_operand(graph, s, stored) for s in srcs[strided:]]
    reads = [o[0] for o in operands if o is not None] + [p for p in plain if p is not None]
    assert len(reads) == len(srcs), "an operand is in memory neither as it is nor as a view"
    nodes = (*reads, *members)
    slots = tuple(
        BufferSlot(
            graph.nodes[n].dtype, "read" if i < len(reads) else "write", graph.nodes[n].elements
        )
        for i, n in enumerate(nodes)
    )
    batch, heads, length, size = query
    routine = Attention(
        f"attention_{part}_{batch}x{heads}x{length}x{key[2]}x{size}",
        part,
        batch,
        heads,
        key[1],
        length,
        key[2],
        size,
        value[3],
        causal,
        mask,
        dropout,
        tuple(graph.nodes[m].attrs[1] for m in members),
        tuple(o[1] for o in operands if o is not None),
        tuple(o[2] for o in operands if o is not None),
        slots,
        tuple(graph.arg_dtypes[a] for a in node.args),
    )
    return Task(routine, nodes, node.args, tuple(members), line_text(node.line))


def _writes(steps: Sequence[Step], routines: Sequence[Routine]) -> Iterator[list[tuple[int, int]]]:
    """Yield for each step the buffers that it writes, each with how often it was written before."""
    times: Counter[int] = Counter()
    for step in steps:
        written = written_by(step, routines)
        yield [(b, times[b]) for b in written]
        times.update(written)


def _stores(routine: Routine) -> tuple[Store, ...]:
    """Return the stores of a kernel or of an epilogue, none for other routines."""
    match routine:
        case Kernel():
            return routine.stores
        case Matmul() | Convolution():
            return routine.epilogue
    return ()


class _Planner:
    """Gives memory to the tasks' nodes and writes the steps."""

    def __init__(self, graph: Graph, tasks: list[Task], limits: Limits) -> None:
        self.graph = graph
        self.limits = limits
        self.tasks = tasks
        self.outputs = {o.node for o in graph.outputs}
        self.donor = {o.node: o.donor for o in graph.outputs if o.donor is not None}
        self.donated = set(self.donor.values())
        self.memory = Memory()
        self.inputs = [i for i, n in enumerate(graph.nodes) if n.kind == "buffer"]
        # The last task that reads each stored node.
        self.last_read: dict[int, int] = {}
        for t, task in enumerate(tasks):
            for n in (*task.nodes, *(b for _, b in task.bases)):
                if n not in task.writes:
                    self.last_read[n] = t
        self.before_copy: dict[int, list[tuple[int, int]]] = {}
        # Nodes whose base is copied only because their kernel reads it elsewhere: storing the new
        # values first is less work.
        self.apart: set[int] = set()
        self.loads: dict[object, list[Expr]] = {}
        # The group whose step writes a buffer for the n-th time, by both. Steps are put together later,
        # but never two that write one buffer, and their order stays.
        self.group_of_write: dict[tuple[int, int], int] = {}
        # Why the dispatches of two groups were not made one: the rule and its reason.
        self.unjoined: dict[tuple[int, int], tuple[str, str]] = {}

    def program(self) -> Program:
        """Return the finished program."""
        for n in self.inputs:
            self.memory.new(
                n, BufferDecl("input", self.graph.nodes[n].dtype, self.graph.nodes[n].elements)
            )
        taken: set[int] = set()
        for t, task in enumerate(self.tasks):
            for n in task.nodes:
                if self.graph.nodes[n].kind == "empty" and n not in self.memory.buffer_of:
                    # Uninitialised memory that is read, as in torch.empty(4).long().
                    self._declare(n)
            for written, base in task.bases:
                free = self._may_take(base, t, taken)
                if free and self._reads_only_in_place(task, base, written, exact=False):
                    self._take(written, base, taken)
                    continue
                self.before_copy.setdefault(t, []).append((base, written))
                values = self.graph.nodes[self.graph.nodes[written].srcs[-1]]
                if free and values.elements <= self.graph.nodes[base].elements:
                    self.apart.add(written)
            for written in task.writes:
                donor = self.donor.get(written)
                if (
                    donor is not None
                    and written not in self.memory.buffer_of
                    and not any(w == written for w, _ in task.bases)
                    and self._may_take(donor, t, taken)
                    and self._reads_only_in_place(task, donor, written, exact=True)
                ):
                    self._take(written, donor, taken)
            for written in task.writes:
                if written not in self.memory.buffer_of:
                    dying = self._dying(task, t, written, taken)
                    if dying is None:
                        self._declare(written)
                    else:
                        self._take(written, dying, taken)
        self._declare_untouched()
        return self._assemble()

    def _declare(self, number: int) -> None:
        """Give a node memory of its own."""
        node = self.graph.nodes[number]
        role: Role = "output" if number in self.outputs else "temporary"
        self.memory.new(number, BufferDecl(role, node.dtype, node.elements))

    def _dying(self, task: Task, t: int, written: int, taken: set[int]) -> int | None:
        """Return a large temporary that only this task still reads, where it writes: it may write
        `written` into the same memory.
        """
        if written in self.outputs or not _stores(task.routine):
            return None
        node = self.graph.nodes[written]
        if node.elements * node.dtype.itemsize < _IN_PLACE_BYTES:
            return None
        for base in task.nodes:
            buffer = self.memory.buffer_of.get(base)
            if (
                base not in task.writes
                and buffer is not None
                and self.memory.decls[buffer].role == "temporary"
                and self._may_take(base, t, taken)
                and self._reads_only_in_place(task, base, written, exact=True)
            ):
                return base
        return None

    def _may_take(self, base: int, t: int, taken: set[int]) -> bool:
        """Whether base's memory is free to be overwritten by task t."""
        if base in taken or self.last_read.get(base, -1) > t:
            return False
        node = self.graph.nodes[base]
        if node.kind == "buffer":
            return base in self.donated
        return base not in self.outputs

    def _reads_only_in_place(self, task: Task, base: int, written: int, *, exact: bool) -> bool:
        """Whether the task reads `base` only at the element of `written` that it is about to write."""
        if (
            self.graph.nodes[base].dtype is not self.graph.nodes[written].dtype
            or self.graph.nodes[base].elements != self.graph.nodes[written].elements
        ):
            return False
        if base not in task.nodes:
            return True
        stores = _stores(task.routine)
        if not stores:
            return False
        first = 0
        if isinstance(task.routine, Matmul | Convolution):
            first = 2
            if base in task.nodes[:first]:
                return False
        slot, target = task.nodes.index(base, first), task.nodes.index(written, first)
        (store,) = (s for s in stores if s.buffer == target)
        if store.combine != "set" and not exact:
            return False
        # A scatter's positions may repeat: another invocation may have written the element already.
        repeats = self.graph.nodes[written].kind == "scatter"
        for e in self._loads(task.routine):
            if e.value == slot and (repeats or e.args[0] is not store.position or len(e.args) != 1):
                return False
        # Kernels compute the values of all stores of a point before they write the first.
        return True

    def _loads(self, routine: Routine) -> list[Expr]:
        """Return what a kernel or an epilogue loads."""
        if isinstance(routine, Matmul | Convolution):
            kernel = epilogue_of(routine)
        else:
            assert isinstance(routine, Kernel)
            kernel = routine
        # By what does not change with the name.
        key = (kernel.reduces, kernel.stores, kernel.checks)
        found = self.loads.get(key)
        if found is None:
            loads = [e for e in ex.walk(*kernel.expressions()) if e.op == "load"]
            found = self.loads[key] = loads
        return found

    def _take(self, written: int, base: int, taken: set[int]) -> None:
        taken.add(base)
        self.memory.buffer_of.setdefault(base, -1)
        if self.memory.buffer_of[base] == -1:
            # An "empty" base has no writer: it gets its memory here.
            node = self.graph.nodes[base]
            self.memory.new(base, BufferDecl("temporary", node.dtype, node.elements))
        buffer = self.memory.buffer_of[base]
        self.memory.buffer_of[written] = buffer
        if written in self.outputs and self.memory.decls[buffer].role == "temporary":
            self.memory.decls[buffer] = replace(self.memory.decls[buffer], role="output")

    def _declare_untouched(self) -> None:
        """Outputs that no task writes: empty tensors, uninitialised memory."""
        for output in self.graph.outputs:
            if output.node not in self.memory.buffer_of:
                self._declare(output.node)

    def _assemble(self) -> Program:
        steps: list[Step] = []
        routines: list[Routine] = []
        numbers: dict[Routine, int] = {}
        places: dict[Site, int] = {}
        for t, task in enumerate(self.tasks):
            for base, written in self.before_copy.get(t, ()):
                if base in self.memory.buffer_of:
                    steps.append(Copy(self.memory.buffer_of[base], self.memory.buffer_of[written]))
            routine, buffers = self._bind(task)
            if task.sites and isinstance(routine, Kernel):
                # Equal sites are one, and so are kernels that differ in nothing else.
                for site in task.sites:
                    places.setdefault(site, len(places))
                routine = replace(
                    routine,
                    checks=tuple(
                        replace(c, site=places[task.sites[c.site]]) for c in routine.checks
                    ),
                )
            number = numbers.setdefault(routine, len(routines))
            if number == len(routines):
                routines.append(routine)
            steps.append(Dispatch(number, buffers, task.args, task.line))
        self._note_groups(steps, routines)
        kept = {self.memory.buffer_of[n] for n in (*self.inputs, *self.outputs)}
        for join in (
            functools.partial(join_products, kept=kept),
            put_together,
            functools.partial(put_in_turn, kept=kept),
        ):
            remarks: list[Remark] = []
            joined = join(steps, routines, self.limits, remarks=remarks)
            self._note_remarks(steps, routines, remarks)
            steps, routines = joined
        decls = self._share_slots(steps)
        return Program(
            tuple(routines), tuple(decls), tuple(steps), self.graph.arg_dtypes,
            tuple(self.memory.buffer_of[n] for n in self.inputs),
            tuple(self.memory.buffer_of[o.node] for o in self.graph.outputs), tuple(places),
            self.graph.constants,
        )  # fmt: skip

    def _note_groups(self, steps: list[Step], routines: list[Routine]) -> None:
        """Note which group each write belongs to. The steps are those of the tasks, and copies."""
        groups = iter([task.group for task in self.tasks])
        for step, writes in zip(steps, _writes(steps, routines), strict=True):
            if isinstance(step, Dispatch):
                self.group_of_write.update(dict.fromkeys(writes, next(groups)))

    def _note_remarks(
        self, steps: list[Step], routines: list[Routine], remarks: list[Remark]
    ) -> None:
        """Note why groups were not put together: the steps of remarks are numbers in `steps`."""
        if not remarks:
            return
        found = (map(self.group_of_write.get, w) for w in _writes(steps, routines))
        groups = [next((g for g in known if g is not None), None) for known in found]
        for r in remarks:
            one, two = groups[r.step], groups[r.other]
            if one is not None and two is not None:
                self.unjoined.setdefault((one, two), (r.rule, r.reason))

    def separations(
        self, program: Program, groups: Mapping[tuple[int, int], tuple[str, str]]
    ) -> tuple[Separation, ...]:
        """Return why the program's steps are not one, from the reasons why their groups are not."""
        step_of: dict[int, int] = {}
        for number, writes in enumerate(_writes(program.steps, program.routines)):
            for write in writes:
                group = self.group_of_write.get(write)
                if group is not None:
                    step_of[group] = number
        found: dict[tuple[int, int], tuple[str, str]] = {}
        # What fusion said of two groups counts first.
        for pair, why in (*groups.items(), *self.unjoined.items()):
            one, two = (step_of.get(g) for g in pair)
            if one is not None and two is not None and one != two:
                found.setdefault((max(one, two), min(one, two)), why)
        return tuple([Separation(*pair, *why) for pair, why in sorted(found.items())])

    def _bind(self, task: Task) -> tuple[Routine, tuple[int, ...]]:
        """Return the routine with slots of one buffer merged, and the buffers of its slots."""
        buffers = tuple(self.memory.buffer_of[n] for n in task.nodes)
        routine = task.routine
        # An operand has its slot beside those of the epilogue.
        first = 2 if isinstance(routine, Matmul | Convolution) else 0
        rest = buffers[first:]
        if len(set(rest)) == len(rest) or not _stores(routine):
            return routine, buffers
        assert isinstance(routine, Kernel | Matmul | Convolution)
        kept = (*buffers[:first], *dict.fromkeys(rest))
        mapping = {slot: first + kept[first:].index(b) for slot, b in enumerate(rest, first)}
        slots: list[BufferSlot] = list(routine.buffers[:first])
        for b in kept[first:]:
            same = [routine.buffers[i] for i, other in enumerate(rest, first) if other == b]
            access = same[0].access if len({s.access for s in same}) == 1 else "read_write"
            slots.append(replace(same[0], access=access))

        args = {i: i for i in range(len(routine.args))}
        kernel = routine if isinstance(routine, Kernel) else epilogue_of(routine)
        merged = renumbered(kernel, mapping, args, tuple(slots), routine.args)
        if isinstance(routine, Kernel):
            return merged, kept
        return replace(routine, buffers=tuple(slots), epilogue=merged.stores), kept

    def _share_slots(self, steps: list[Step]) -> list[BufferDecl]:
        """Give temporaries whose lifetimes do not overlap the same pool slot.

        The largest first, each into the slot that is used at none of its steps and is nearest in
        size: then a slot is as large as the first that it got (Pisarchyk and Lee, 2020).
        """
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for i, step in enumerate(steps):
            for b in step.buffers:
                first.setdefault(b, i)
                last[b] = i
        decls = list(self.memory.decls)
        sizes = {
            b: d.elements * d.dtype.itemsize for b, d in enumerate(decls) if d.role == "temporary"
        }
        # Of each slot: bit i is set if it is used at step i. Sizes fall, so that the last slot that
        # is free is the nearest in size.
        used: list[int] = []
        for b in sorted(sizes, key=lambda b: (-sizes[b], first.get(b, 0))):
            start, end = first.get(b, 0), last.get(b, 0)
            life = (1 << (end + 1)) - (1 << start)
            slot = next((s for s in range(len(used) - 1, -1, -1) if not used[s] & life), len(used))
            if slot == len(used):
                used.append(0)
            used[slot] |= life
            decls[b] = replace(decls[b], alias=slot)
        return decls
