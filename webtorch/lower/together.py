"""Puts small independent kernels into one dispatch: the updates of many parameters.
Floors 0 and 1.

A dispatch costs a GPU some microseconds between its neighbours and the host as much to encode; the
update of a bias moves a few kilobytes. Kernels join while nothing between them needs or changes what
they write or read, as long as their buffers fit into one binding group. What they read lives until
the last of them: only small ones join.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType
from webtorch.ir.expr import Expr
from webtorch.ir.kernel import BufferSlot, Check, Kernel, Reduce, Routine, Several, Store
from webtorch.ir.limits import Limits
from webtorch.ir.program import Copy, Dispatch, Step

# A kernel of more points works longer than its dispatch costs: 4 MB of a parameter, seven times read
# or written, are 7 us at 4.4 TB/s.
_MAX_POINTS = 1 << 20
# And together they delay the release of at most these bytes.
_MAX_BYTES = 32 << 20
# Runs that wait at a time.
_MAX_WAITING = 7


def renumbered(
    kernel: Kernel,
    slots: dict[int, int],
    args: dict[int, int],
    buffers: tuple[BufferSlot, ...],
    kinds: tuple[DType, ...],
    stages: int = 0,
) -> Kernel:
    """Return a kernel whose buffers and arguments have the numbers that `slots` and `args` give, and
    whose reductions come after `stages` others."""

    def move(e: Expr) -> Expr:
        """Return an expression with its buffers, arguments and stages renumbered."""

        def other(n: Expr, operands: tuple[Expr, ...]) -> Expr | None:
            """Return a renumbered node, None for one without numbers."""
            if n.op == "load":
                return ex.make("load", n.dtype, operands, slots[n.value])
            if n.op == "arg":
                return ex.make("arg", n.dtype, operands, args[n.value])
            if n.op == "reduced" and stages:
                return ex.reduced(n.value + stages, n.dtype)
            return None

        return ex.rewrite(e, other)

    return replace(
        kernel,
        buffers=buffers,
        args=kinds,
        reduces=tuple(Reduce(r.op, move(r.value), r.dtype) for r in kernel.reduces),
        stores=tuple(
            Store(
                slots[s.buffer],
                move(s.position),
                move(s.value),
                s.level,
                s.combine,
                None if s.valid is None else move(s.valid),
            )
            for s in kernel.stores
        ),
        checks=tuple(Check(move(c.value), c.high, c.site, c.level, c.low) for c in kernel.checks),
    )


# The loops that kernels of one dispatch have in common; none for elementwise ones.
_Kind = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(slots=True)
class _Run:
    """Kernels that will be one dispatch: their steps, and the buffers that they read and write."""

    kind: _Kind
    steps: list[int] = field(default_factory=list)
    buffers: dict[int, None] = field(default_factory=dict)
    written: set[int] = field(default_factory=set)
    nbytes: int = 0


def put_together(
    steps: list[Step], routines: list[Routine], limits: Limits
) -> tuple[list[Step], list[Routine]]:
    """Return steps and routines with kernels merged where the device gains from it."""
    if not limits.has_several:
        return steps, routines
    runs: list[_Run] = []
    # Those that another kernel may still join: its last one is where a run happens.
    waiting: list[_Run] = []
    most = limits.max_buffers_per_kernel
    for number, step in enumerate(steps):
        touched = set(step.buffers)
        written = written_by(step, routines)
        routine = None if isinstance(step, Copy) else routines[step.routine]
        kind = _kind_of(routine) if isinstance(routine, Kernel) else None
        waiting = [r for r in waiting if not (touched & r.written or written & r.buffers.keys())]
        if kind is None or not isinstance(step, Dispatch) or routine is None:
            continue
        nbytes = sum(s.elements * s.dtype.itemsize for s in routine.buffers)
        for run in waiting:
            if (
                run.kind == kind
                and len(run.buffers.keys() | touched) <= most
                and run.nbytes + nbytes <= _MAX_BYTES
            ):
                break
        else:
            run = _Run(kind)
            runs.append(run)
            waiting = [*waiting[-_MAX_WAITING:], run]
        run.steps.append(number)
        run.buffers.update(dict.fromkeys(step.buffers))
        run.written |= written
        run.nbytes += nbytes
    several = [r for r in runs if len(r.steps) > 1]
    if not several:
        return steps, routines
    routines = list(routines)
    known = {r: i for i, r in enumerate(routines)}
    at: dict[int, Step] = {}
    gone: set[int] = set()
    for run in several:
        merged, dispatch = _merged(run, steps, routines)
        place = known.setdefault(merged, len(routines))
        if place == len(routines):
            routines.append(merged)
        at[run.steps[-1]] = replace(dispatch, routine=place)
        gone.update(run.steps[:-1])
    left = [at.get(n, s) for n, s in enumerate(steps) if n not in gone]
    return without_unused(left, routines)


def written_by(step: Step, routines: Sequence[Routine]) -> set[int]:
    """Return the buffers that a step writes."""
    if isinstance(step, Copy):
        return {step.target}
    slots = routines[step.routine].buffers
    return {b for b, s in zip(step.buffers, slots, strict=True) if s.access != "read"}


def _kind_of(kernel: Kernel) -> _Kind | None:
    """Return which kernels this one may join, None if it stays alone."""
    if (
        kernel.checks
        or not 0 < kernel.outer_count * kernel.inner_count <= _MAX_POINTS
        or any(s.combine != "set" for s in kernel.stores)
        or all(s.access != "read_write" for s in kernel.buffers)
    ):
        return None
    if not kernel.reduces:
        return (), ()
    if any(s.level == "inner" for s in kernel.stores) or any(
        e.op == "reduced" for r in kernel.reduces for e in ex.walk(r.value)
    ):
        return None
    return kernel.outer, kernel.inner


def _merged(
    run: _Run, steps: list[Step], routines: list[Routine]
) -> tuple[Several | Kernel, Dispatch]:
    """Return one routine of several kernels and its dispatch."""
    places = {b: i for i, b in enumerate(run.buffers)}
    slots: list[BufferSlot | None] = [None] * len(places)
    numbers: dict[int, int] = {}
    kinds: list[DType] = []
    members: list[tuple[Kernel, Dispatch]] = []
    for n in run.steps:
        step = steps[n]
        assert isinstance(step, Dispatch)
        kernel = routines[step.routine]
        assert isinstance(kernel, Kernel)
        members.append((kernel, step))
        for b, slot in zip(step.buffers, kernel.buffers, strict=True):
            slots[places[b]] = slot
        for a, kind in zip(step.args, kernel.args, strict=True):
            if a not in numbers:
                numbers[a] = len(kinds)
                kinds.append(kind)
    whole = tuple(s for s in slots if s is not None)
    parts: list[Kernel] = []
    stages = 0
    for kernel, step in members:
        places_here = {i: places[b] for i, b in enumerate(step.buffers)}
        numbers_here = {i: numbers[a] for i, a in enumerate(step.args)}
        parts.append(renumbered(kernel, places_here, numbers_here, whole, tuple(kinds), stages))
        stages += len(kernel.reduces)
    name = f"{parts[0].name}_x{len(parts)}"
    dispatch = Dispatch(0, tuple(run.buffers), tuple(numbers), members[-1][1].line)
    if not stages:
        return Several(name, tuple(parts), whole, tuple(kinds)), dispatch
    one = replace(
        parts[0],
        name=name,
        reduces=tuple(r for p in parts for r in p.reduces),
        stores=tuple(s for p in parts for s in p.stores),
    )
    return one, dispatch


def without_unused(steps: list[Step], routines: list[Routine]) -> tuple[list[Step], list[Routine]]:
    """Return both without the routines that no step runs."""
    used = list(dict.fromkeys(s.routine for s in steps if isinstance(s, Dispatch)))
    place = {r: i for i, r in enumerate(used)}
    return (
        [replace(s, routine=place[s.routine]) if isinstance(s, Dispatch) else s for s in steps],
        [routines[r] for r in used],
    )
