"""Puts small independent kernels into one dispatch: the updates of many parameters.
Floors 0 and 1.

A dispatch costs a GPU some microseconds between its neighbours and the host as much to encode; the
update of a bias moves a few kilobytes. Kernels join while nothing between them needs or changes what
they write or read, as long as their buffers fit into one binding group. What they read lives until
the last of them: only small ones join.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType
from webtorch.ir.expr import Expr
from webtorch.ir.kernel import BufferSlot, Check, Kernel, Reduce, Routine, Several, Store
from webtorch.ir.limits import Limits
from webtorch.ir.program import Copy, Dispatch, Step
from webtorch.lower.joining_rules import ALONE, JOIN, Remark, Update, Updates

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

        return ex.rewrite(e, other, moved)

    moved: dict[Expr, Expr] = {}
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


def put_together(
    steps: list[Step], routines: list[Routine], limits: Limits, remarks: list[Remark]
) -> tuple[list[Step], list[Routine]]:
    """Return steps and routines with kernels merged where the device gains from it.

    `remarks` gets the reason why an update was not put together with those before it.
    """
    if not limits.has_several:
        return steps, routines
    runs: list[Updates] = []
    # Those that another kernel may still join: its last one is where a run happens.
    waiting: list[Updates] = []
    for number, step in enumerate(steps):
        touched = set(step.buffers)
        written = written_by(step, routines)
        waiting = _undisturbed(waiting, touched, written)
        routine = None if isinstance(step, Copy) else routines[step.routine]
        if not isinstance(step, Dispatch) or not _is_update(routine):
            continue
        alone = _stays_alone(routine)
        if alone is not None:
            if runs:
                remarks.append(Remark(number, runs[-1].steps[-1], *alone))
            continue
        nbytes = sum(s.elements * s.dtype.itemsize for s in routine.buffers)
        loops = (routine.outer, routine.inner) if routine.reduces else ((), ())
        one = Update(number, step, loops, touched, written, nbytes)
        run = next((r for r in waiting if _refusal(one, r, limits) is None), None)
        if run is None:
            if runs:
                why = runs[-1].closed or _refusal(one, runs[-1], limits)
                assert why is not None
                remarks.append(Remark(number, runs[-1].steps[-1], *why))
            run = Updates(loops)
            runs.append(run)
            if len(waiting) > _MAX_WAITING:
                waiting[0].closed = ("waiting", f"more than {_MAX_WAITING + 1} other kernels wait")
            waiting = [*waiting[-_MAX_WAITING:], run]
        run.add(one)
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


def _undisturbed(runs: list[Updates], touched: set[int], written: set[int]) -> list[Updates]:
    """Return the runs that a step leaves as they are; the others are closed."""
    left: list[Updates] = []
    for run in runs:
        if touched & run.written or written & run.buffers.keys():
            what = "needs what they write" if touched & run.written else "changes what they read"
            run.closed = ("between", f"a step after the others {what}")
        else:
            left.append(run)
    return left


def _is_update(routine: Routine | None) -> TypeGuard[Kernel]:
    """Whether a routine is a kernel that writes into what it reads: what may be put together."""
    return isinstance(routine, Kernel) and any(s.access == "read_write" for s in routine.buffers)


def _stays_alone(kernel: Kernel) -> tuple[str, str] | None:
    """Return the rule by which a kernel joins no other, and its reason."""
    for rule in ALONE:
        reason = rule(kernel)
        if reason is not None:
            return rule.__name__, reason
    return None


def _refusal(one: Update, run: Updates, limits: Limits) -> tuple[str, str] | None:
    """Return the rule by which a kernel does not join others, and its reason."""
    for rule in JOIN:
        reason = rule(one, run, limits)
        if reason is not None:
            return rule.__name__, reason
    return None


def _merged(
    run: Updates, steps: list[Step], routines: list[Routine]
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
