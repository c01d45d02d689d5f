"""Puts small independent kernels into one dispatch: the updates of many parameters.
Floors 0 and 1.

A dispatch costs a GPU some microseconds between its neighbours and the host as much to encode; the
update of a bias moves a few kilobytes. Kernels join while nothing between them needs or changes what
they write or read, as long as their buffers fit into one binding group. What they read lives until
the last of them: only small ones join.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType
from webtorch.ir.expr import Expr
from webtorch.ir.kernel import BufferSlot, Check, Kernel, Reduce, Routine, Several, Store
from webtorch.ir.program import Copy, Dispatch, Step
from webtorch.runtime.backend import Limits

# A kernel of more points works longer than its dispatch costs: 4 MB of a parameter, seven times read
# or written, are 7 us at 4.4 TB/s.
_MAX_POINTS = 1 << 20
# And together they delay the release of at most these bytes.
_MAX_BYTES = 32 << 20


def renumbered(
    kernel: Kernel,
    slots: dict[int, int],
    args: dict[int, int],
    buffers: tuple[BufferSlot, ...],
    kinds: tuple[DType, ...],
) -> Kernel:
    """Return a kernel whose buffers and arguments have the numbers that `slots` and `args` give."""

    def move(e: Expr) -> Expr:
        def other(n: Expr, operands: tuple[Expr, ...]) -> Expr | None:
            if n.op == "load":
                return ex.make("load", n.dtype, operands, slots[n.value])
            if n.op == "arg":
                return ex.make("arg", n.dtype, operands, args[n.value])
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


@dataclass(slots=True)
class _Run:
    """Kernels that will be one dispatch: their steps, and the buffers that they read and write."""

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
    last: _Run | None = None
    most = limits.max_buffers_per_kernel
    for number, step in enumerate(steps):
        touched = {step.source, step.target} if isinstance(step, Copy) else set(step.buffers)
        written = _written(step, routines)
        kernel = None if isinstance(step, Copy) else routines[step.routine]
        joins = isinstance(kernel, Kernel) and _may_join(kernel)
        mine = last if joins else None
        if mine is not None:
            assert isinstance(kernel, Kernel)
            nbytes = sum(s.elements * s.dtype.itemsize for s in kernel.buffers)
            if (
                not touched & mine.written
                and not written & mine.buffers.keys()
                and len(mine.buffers.keys() | touched) <= most
                and mine.nbytes + nbytes <= _MAX_BYTES
            ):
                mine.steps.append(number)
                mine.buffers.update(dict.fromkeys(step.buffers))  # type: ignore[union-attr]
                mine.written |= written
                mine.nbytes += nbytes
            else:
                mine = None
        if (
            last is not None
            and last is not mine
            and (touched & last.written or written & last.buffers.keys())
        ):
            last = None
        if joins and mine is None:
            assert isinstance(kernel, Kernel) and isinstance(step, Dispatch)
            nbytes = sum(s.elements * s.dtype.itemsize for s in kernel.buffers)
            last = _Run([number], dict.fromkeys(step.buffers), set(written), nbytes)
            runs.append(last)
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
    return _without_unused(left, routines)


def _written(step: Step, routines: list[Routine]) -> set[int]:
    if isinstance(step, Copy):
        return {step.target}
    slots = routines[step.routine].buffers
    return {b for b, s in zip(step.buffers, slots, strict=True) if s.access != "read"}


def _may_join(kernel: Kernel) -> bool:
    return (
        not kernel.reduces
        and not kernel.checks
        and 0 < kernel.outer_count * kernel.inner_count <= _MAX_POINTS
        and all(s.combine == "set" for s in kernel.stores)
        and any(s.access == "read_write" for s in kernel.buffers)
    )


def _merged(run: _Run, steps: list[Step], routines: list[Routine]) -> tuple[Several, Dispatch]:
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
    parts = tuple(
        renumbered(
            kernel,
            {i: places[b] for i, b in enumerate(step.buffers)},
            {i: numbers[a] for i, a in enumerate(step.args)},
            whole,
            tuple(kinds),
        )
        for kernel, step in members
    )
    name = f"{parts[0].name}_x{len(parts)}"
    last = members[-1][1]
    return (
        Several(name, parts, whole, tuple(kinds)),
        Dispatch(0, tuple(run.buffers), tuple(numbers), last.line),
    )


def _without_unused(steps: list[Step], routines: list[Routine]) -> tuple[list[Step], list[Routine]]:
    """Return both without the routines that no step runs."""
    used = list(dict.fromkeys(s.routine for s in steps if isinstance(s, Dispatch)))
    place = {r: i for i, r in enumerate(used)}
    return (
        [replace(s, routine=place[s.routine]) if isinstance(s, Dispatch) else s for s in steps],
        [routines[r] for r in used],
    )
