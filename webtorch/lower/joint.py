"""Puts products of one left operand into one dispatch: queries, keys and values of a layer.
Floors 0 and 1.

Each of them alone may leave most of a GPU idle, or take less time than its dispatch costs; together they
run as one product with the columns of all, while each keeps its own weights, which nothing copies, its
own output and its own epilogue. A product moves up to one that ran before it, or that one moves down to
it, whatever lies between, as long as nothing there needs or changes what the moved one writes or reads.
(Where a GPU gains nothing, the template runs them one by one: templates/matmul.py.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field, replace

from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType
from webtorch.ir.expr import Expr
from webtorch.ir.kernel import BufferSlot, Kernel, Matmul, Products, Routine
from webtorch.ir.limits import Limits
from webtorch.ir.program import Copy, Dispatch, Step
from webtorch.lower.affine import affine
from webtorch.lower.joining_rules import (
    BETWEEN,
    DISTANCE,
    GATE,
    LEFT_OPERAND,
    OVERWRITTEN,
    PRODUCT_ALONE,
    Remark,
    left_operand,
)
from webtorch.lower.templates.generic import matmul_kernel
from webtorch.lower.together import renumbered, without_unused, written_by

# Steps that a product may pass. What it reads lives longer, if it moves down, and what it writes, if it
# moves up: so it does not move far.
_FAR = 24

# What products of one dispatch have in common: the left operand, as it lies; batch, m and k; types.
_Kind = tuple[object, ...]


@dataclass(slots=True)
class _Run:
    """Products that will be one dispatch, in the place of their last or an earlier step."""

    kind: _Kind
    # The number of the last of them in the program, before anything was joined.
    number: int
    members: list[Dispatch]
    # Buffers that the dispatch binds.
    bindings: int
    touched: set[int]
    written: set[int]


@dataclass(slots=True)
class _Place:
    """A step, with the buffers that it reads or writes, and those that it writes."""

    step: Step | None
    touched: set[int]
    written: set[int]
    run: _Run | None = field(default=None)


class _Joiner:
    """Goes through the steps of a program, each of which finds its place among those before."""

    def __init__(
        self,
        steps: list[Step],
        routines: list[Routine],
        limits: Limits,
        kept: Set[int],
        remarks: list[Remark],
    ) -> None:
        self.steps = steps
        self.remarks = remarks
        # The last product of each left operand: the number of its step.
        self.last: dict[int, int] = {}
        self.routines = list(routines)
        self.known = {r: i for i, r in enumerate(routines)}
        self.most = limits.max_buffers_per_kernel
        self.kept = kept
        self.places: list[_Place] = []
        self.uses = Counter(b for step in steps for b in set(step.buffers))

    def run(self) -> bool:
        """Make the places; whether anything was joined."""
        joined = False
        for number, step in enumerate(self.steps):
            here = _Place(step, set(step.buffers), written_by(step, self.routines))
            routine = None if isinstance(step, Copy) else self.routines[step.routine]
            if (
                isinstance(step, Dispatch)
                and isinstance(routine, Matmul)
                and min(routine.m, routine.k)
            ):
                why = _refusal(routine, step)
                if why is None:
                    kind = _kind_of(routine, step)
                    touched, written = here.touched, here.written
                    here.run = _Run(kind, number, [step], len(step.buffers), touched, written)
                    why = self._join(here)
                    joined |= why is None
                if why is not None:
                    self._remark(number, step, routine, *why)
                self.last[step.buffers[0]] = number
            self.places.append(here)
        return joined

    def result(self) -> tuple[list[Step], list[Routine]]:
        """Return the steps and the routines."""
        out: list[Step] = []
        for place in self.places:
            if place.run is not None and len(place.run.members) > 1:
                out.append(self._dispatch(*_merged(place.run.members, self.routines)))
            elif place.step is not None:
                out.append(place.step)
        return without_unused(out, self.routines)

    def _dispatch(self, routine: Routine, step: Dispatch) -> Dispatch:
        number = self.known.setdefault(routine, len(self.routines))
        if number == len(self.routines):
            self.routines.append(routine)
        return replace(step, routine=number)

    def _remark(self, number: int, step: Dispatch, product: Matmul, rule: str, reason: str) -> None:
        """Note why a product was not joined with the last one of its left operand."""
        other = self.last.get(step.buffers[0])
        if other is None:
            return
        if not rule:
            before = self.steps[other]
            assert isinstance(before, Dispatch)
            last = self.routines[before.routine]
            assert isinstance(last, Matmul)
            if _refusal(last, before) is not None:
                return
            if _kind_of(last, before) == _kind_of(product, step):
                rule, reason = DISTANCE, f"more than {_FAR} steps lie between"
            else:
                rule, reason = LEFT_OPERAND, left_operand(product, last)
        self.remarks.append(Remark(number, other, rule, reason))

    def _join(self, here: _Place) -> tuple[str, str] | None:
        """Let a product join the last run of its kind, if they can meet: there, or else here.

        Returns None if it did, and else the rule that says no, with its reason: "" without a run.
        """
        own = here.run
        assert own is not None
        # What lies between, as far as it has been walked.
        touched: set[int] = set()
        written: set[int] = set()
        for place in reversed(self.places[-_FAR:]):
            run = place.run
            if run is None or run.kind != own.kind:
                touched |= place.touched
                written |= place.written
                continue
            up = not (own.touched & written or own.written & touched)
            down = not (run.touched & written or run.written & touched)
            if own.written & run.touched:
                return OVERWRITTEN, "it writes what the other reads or writes"
            if not up and not down:
                return BETWEEN, "what lies between needs or changes what both read and write"
            stays, goes = (place, here) if up else (here, place)
            if run.written & own.touched:
                one = self._finished(run, own)
                if one is None:
                    return GATE, "it needs more of the other's result than that of its own point"
                stays.run, stays.step = None, one
                stays.touched, stays.written = set(one.buffers), written_by(one, self.routines)
            elif run.bindings + own.bindings - 1 <= self.most:
                merged = _Run(
                    own.kind,
                    own.number,
                    [*run.members, *own.members],
                    run.bindings + own.bindings - 1,
                    run.touched | own.touched,
                    run.written | own.written,
                )
                stays.run, stays.touched, stays.written = merged, merged.touched, merged.written
            else:
                count = run.bindings + own.bindings - 1
                return "bindings", (
                    f"together they bind {count} buffers, and a kernel has room for {self.most} on this device"
                )
            goes.run, goes.step, goes.touched, goes.written = None, None, set(), set()
            return None
        return "", ""

    def _finished(self, run: _Run, own: _Run) -> Dispatch | None:
        """Return the dispatch of two products of a row, where what follows the second needs the sums
        of the first: a gate. None where it needs more than those of its own point."""
        if len(run.members) > 1:
            return None
        first, second = run.members[0], own.members[0]
        one, two = (self.routines[s.routine] for s in (first, second))
        assert isinstance(one, Matmul) and isinstance(two, Matmul)
        if one.m > 1 or one.n != two.n:
            return None
        # What nothing else reads is not stored.
        free = {b for b in run.written if self.uses[b] == 2 and b not in self.kept}
        free &= own.touched
        every = dict.fromkeys((*first.buffers, *second.buffers))
        buffers = [b for b in every if b not in free]
        if len(buffers) > self.most:
            return None
        args = tuple(dict.fromkeys((*first.args, *second.args)))
        a, b = _numbered_alike((first, one), (second, two), (*buffers, *free), args)
        if not _needs_own_point_only(a, b):
            return None
        stored = {s.buffer: s for s in a.stores}

        def from_sums(e: Expr, operands: tuple[Expr, ...]) -> Expr | None:
            """Return what the second reads of the first, from its sums instead of from memory."""
            if e.op == "load" and e.value in stored:
                # Rounded as if it had been in memory.
                return ex.cast(ex.cast(stored[e.value].value, a.buffers[e.value].dtype), e.dtype)
            return None

        finished = [replace(s, value=ex.rewrite(s.value, from_sums)) for s in b.stores]
        kernel = replace(
            a,
            name=f"{one.name}_and_{two.name}",
            buffers=a.buffers[: len(buffers)],
            reduces=(*a.reduces, *b.reduces),
            stores=(*(s for s in a.stores if s.buffer < len(buffers)), *finished),
        )
        return self._dispatch(kernel, Dispatch(0, tuple(buffers), args, second.line))


def _numbered_alike(
    first: tuple[Dispatch, Matmul],
    second: tuple[Dispatch, Matmul],
    buffers: tuple[int, ...],
    args: tuple[int, ...],
) -> tuple[Kernel, Kernel]:
    """Return two products as kernels with common numbers of buffers and arguments: their places in
    `buffers` and in `args`."""
    places, numbers = ({x: i for i, x in enumerate(xs)} for xs in (buffers, args))
    slots: dict[int, BufferSlot] = {}
    kinds: dict[int, DType] = {}
    for step, part in (first, second):
        for buffer, slot in zip(step.buffers, part.buffers, strict=True):
            same = slots.get(buffer, slot).access == slot.access
            slots[buffer] = replace(slot, access=slot.access if same else "read_write")
        kinds.update(zip(step.args, part.args, strict=True))
    one, two = (
        renumbered(
            matmul_kernel(part),
            {i: places[buffer] for i, buffer in enumerate(step.buffers)},
            {i: numbers[arg] for i, arg in enumerate(step.args)},
            tuple(slots[buffer] for buffer in buffers),
            tuple(kinds[arg] for arg in args),
            stage,
        )
        for stage, (step, part) in enumerate((first, second))
    )
    return one, two


def _needs_own_point_only(first: Kernel, second: Kernel) -> bool:
    """Whether what `second` reads of what `first` stores is the element of its own point, and is read
    after its sums: its operands are read before anything is stored."""
    if any(s.combine != "set" or s.valid is not None for s in first.stores):
        return False
    spots = {s.buffer: affine(s.position) for s in first.stores}
    if any(
        e.op == "load" and e.value in spots for e in ex.walk(*(r.value for r in second.reduces))
    ):
        return False
    read = [e for e in ex.walk(*second.expressions()) if e.op == "load" and e.value in spots]
    return all(
        len(e.args) == 1 and (at := affine(e.args[0])) is not None and at == spots[e.value]
        for e in read
    )


def join_products(
    steps: list[Step],
    routines: list[Routine],
    limits: Limits,
    kept: Set[int],
    remarks: list[Remark],
) -> tuple[list[Step], list[Routine]]:
    """Return steps and routines with products of one left operand merged where the device gains from
    it; `kept` are the buffers that are read when the program has run. `remarks` gets the reason why a
    product was not joined with the one before it that has its left operand.
    """
    if not limits.has_joint_products:
        return steps, routines
    joiner = _Joiner(steps, routines, limits, kept, remarks)
    return joiner.result() if joiner.run() else (steps, routines)


def _kind_of(r: Matmul, step: Dispatch) -> _Kind:
    """Return which products this one may join."""
    right: DType = r.buffers[1].dtype
    return (
        step.buffers[0], r.left_strides, r.left_offset, r.batch, r.m, r.k, right, r.accumulates,
    )  # fmt: skip


def _refusal(r: Matmul, step: Dispatch) -> tuple[str, str] | None:
    """Return the rule by which a product joins no other, and its reason."""
    for rule in PRODUCT_ALONE:
        reason = rule(r, step)
        if reason is not None:
            return rule.__name__, reason
    return None


def _merged(members: list[Dispatch], routines: list[Routine]) -> tuple[Products, Dispatch]:
    """Return one routine of several products and its dispatch."""
    parts: list[Matmul] = []
    slots: list[BufferSlot] = []
    buffers: list[int] = []
    places: list[tuple[int, ...]] = []
    args: dict[int, int] = {}
    kinds: list[DType] = []
    numbers: list[tuple[int, ...]] = []
    for step in members:
        part = routines[step.routine]
        assert isinstance(part, Matmul)
        if not parts:
            slots, buffers = [part.buffers[0]], [step.buffers[0]]
        first = len(slots)
        parts.append(part)
        slots += part.buffers[1:]
        buffers += step.buffers[1:]
        places.append((0, *range(first, len(slots))))
        for a, kind in zip(step.args, part.args, strict=True):
            if a not in args:
                args[a] = len(kinds)
                kinds.append(kind)
        numbers.append(tuple(args[a] for a in step.args))
    name = f"{parts[0].name}_x{len(parts)}"
    routine = Products(
        name, tuple(parts), tuple(places), tuple(numbers), tuple(slots), tuple(kinds)
    )
    return routine, Dispatch(0, tuple(buffers), tuple(args), members[-1].line)
