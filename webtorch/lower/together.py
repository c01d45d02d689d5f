"""Puts small independent kernels into one dispatch: the updates of many parameters, and sums that read a vector.
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
from webtorch.lower.affine import Memo, affine
from webtorch.lower.joining_rules import ALONE, JOIN, ROWS, Remark, Update, Updates

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
        routine = None if isinstance(step, Copy) else routines[step.routine]
        before, waiting = waiting, [r for r in waiting if r.vector is not None]
        waiting = [
            *waiting,
            *_undisturbed([r for r in before if r.vector is None], touched, written),
        ]
        one = _candidate(number, step, routine, touched, written)
        alone = None if one is None or routine is None else _stays_alone(routine, one)
        if one is None or alone is not None:
            if alone is not None and runs:
                remarks.append(Remark(number, runs[-1].steps[-1], *alone))
            _pass(waiting, None, touched, written)
            continue
        run = next((r for r in waiting if _refusal(one, r, limits) is None), None)
        if run is None:
            if runs:
                why = runs[-1].closed or _refusal(one, runs[-1], limits)
                assert why is not None
                remarks.append(Remark(number, runs[-1].steps[-1], *why))
            run = Updates(one.loops, one.vector)
            runs.append(run)
            if len(waiting) > _MAX_WAITING:
                waiting[0].closed = ("waiting", f"more than {_MAX_WAITING + 1} other kernels wait")
            waiting = [*waiting[-_MAX_WAITING:], run]
        run.add(one)
        if run.vector is None:
            # All of these happen here now, those too that stood before the sums.
            touched, written = set(run.buffers), run.written
        _pass(waiting, run, touched, written)
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
        here = run.steps[-1 if run.vector is None else 0]
        at[here] = replace(dispatch, routine=place)
        gone.update(set(run.steps) - {here})
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


def _pass(
    waiting: list[Updates], joined: Updates | None, touched: set[int], written: set[int]
) -> None:
    """Note a step that sums would pass which join others before it."""
    for run in waiting:
        if run is not joined and run.vector is not None:
            run.passed |= touched
            run.passed_written |= written


def _candidate(
    number: int, step: Step, routine: Routine | None, touched: set[int], written: set[int]
) -> Update | None:
    """Return a step as one that may join others."""
    if not isinstance(step, Dispatch) or not isinstance(routine, Kernel):
        return None
    vector = vector_of(routine)
    if vector is None and not _is_update(routine):
        return None
    nbytes = sum(s.elements * s.dtype.itemsize for s in routine.buffers)
    loops = (routine.outer, routine.inner) if routine.reduces and vector is None else ((), ())
    shared = None if vector is None else step.buffers[vector]
    return Update(number, step, loops, touched, written, nbytes, shared)


def _is_update(routine: Routine | None) -> TypeGuard[Kernel]:
    """Whether a routine is a kernel that writes into what it reads: what may be put together."""
    return isinstance(routine, Kernel) and any(s.access == "read_write" for s in routine.buffers)


def vector_of(kernel: Kernel) -> int | None:
    """Return the buffer that a kernel of sums reads anew for each of its rows, if there is one: the vector that a
    matrix is multiplied by.
    """
    if not kernel.reduces or any(b.access == "read_write" for b in kernel.buffers):
        return None
    rows = max(range(len(kernel.outer)), key=lambda d: kernel.outer[d], default=None)
    memo: Memo = {}
    found: set[int] = set()
    for load in ex.walk(*[r.value for r in kernel.reduces]):
        if load.op != "load":
            continue
        place = affine(load.args[0], memo)
        if place is not None and rows is not None and not place.stride(rows):
            found.add(load.value)
        elif kernel.buffers[load.value].elements > 1:
            found.discard(load.value)
    inner = kernel.inner_count
    return next((b for b in sorted(found) if kernel.buffers[b].elements >= inner > 1), None)


def _stays_alone(routine: Routine, one: Update) -> tuple[str, str] | None:
    """Return the rule by which a kernel joins no other, and its reason."""
    assert isinstance(routine, Kernel)
    for rule in ALONE if one.vector is None else ROWS:
        reason = rule(routine)
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
    beside = run.vector is not None
    parts, whole, kinds, dispatch = in_common(run.steps, steps, routines, not beside)
    name = f"{parts[0].name}_x{len(parts)}"
    if beside or not parts[0].reduces:
        return Several(name, parts, whole, kinds), dispatch
    one = replace(
        parts[0],
        name=name,
        reduces=tuple(r for p in parts for r in p.reduces),
        stores=tuple(s for p in parts for s in p.stores),
    )
    return one, dispatch


def in_common(
    numbers: Sequence[int],
    steps: Sequence[Step],
    routines: Sequence[Routine],
    count_stages: bool = False,
) -> tuple[tuple[Kernel, ...], tuple[BufferSlot, ...], tuple[DType, ...], Dispatch]:
    """Return the kernels of some steps with their buffers and arguments numbered in common, these, and the dispatch of
    all; with `count_stages`, also their reductions.
    """
    slots: dict[int, BufferSlot] = {}
    args: dict[int, DType] = {}
    members: list[tuple[Kernel, Dispatch]] = []
    for n in numbers:
        step = steps[n]
        assert isinstance(step, Dispatch)
        kernel = routines[step.routine]
        assert isinstance(kernel, Kernel)
        members.append((kernel, step))
        for b, slot in zip(step.buffers, kernel.buffers, strict=True):
            known = slots.setdefault(b, slot)
            if known.access != slot.access:
                slots[b] = replace(slot, access="read_write")
        args.update(zip(step.args, kernel.args, strict=True))
    places, counts = ({k: i for i, k in enumerate(known)} for known in (slots, args))
    whole, kinds = tuple(slots.values()), tuple(args.values())
    parts: list[Kernel] = []
    stages = 0
    for kernel, step in members:
        places_here = {i: places[b] for i, b in enumerate(step.buffers)}
        numbers_here = {i: counts[a] for i, a in enumerate(step.args)}
        parts.append(renumbered(kernel, places_here, numbers_here, whole, kinds, stages))
        # Those beside each other have rows of their own.
        stages += len(kernel.reduces) if count_stages else 0
    dispatch = Dispatch(0, tuple(slots), tuple(args), members[-1][1].line)
    return tuple(parts), whole, kinds, dispatch


def without_unused(steps: list[Step], routines: list[Routine]) -> tuple[list[Step], list[Routine]]:
    """Return both without the routines that no step runs."""
    used = list(dict.fromkeys(s.routine for s in steps if isinstance(s, Dispatch)))
    place = {r: i for i, r in enumerate(used)}
    return (
        [replace(s, routine=place[s.routine]) if isinstance(s, Dispatch) else s for s in steps],
        [routines[r] for r in used],
    )
