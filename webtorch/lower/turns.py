"""Puts small kernels that need each other into one dispatch, in which they run in turn. Floors 0 and 1.

A dispatch and the barrier before it cost a graphics card some 4 us, in which it would compute far more than a row of a
few thousand elements; a language model's token is a chain of such rows. Invocations of one workgroup may wait for each
other, so a workgroup can compute one kernel after another, as long as it reads nothing that other workgroups write:
what a norm leaves is one workgroup's, and attention of one query splits into heads, which need their own scores only.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import gcd

from webtorch.ir import expr as ex
from webtorch.ir.kernel import Kernel, Routine, Several
from webtorch.ir.limits import Limits
from webtorch.ir.program import Copy, Dispatch, Step
from webtorch.lower.affine import Affine, Memo, affine
from webtorch.lower.joining_rules import Remark
from webtorch.lower.together import in_common, without_unused

# Workgroups that share the kernels: small ones have points enough for each, large ones keep a card at work.
_FEW_GROUPS, _MANY_GROUPS = 64, 512
# Operations of a kernel that one workgroup may do: a multiprocessor takes 2 us for them.
_MOST_WORK = 400_000
# Points of a kernel that a few workgroups may take: more of them wait for memory longer than a dispatch costs.
_MOST_POINTS = 1 << 16
# How many times as much as all others together a large one takes.
_LARGER = 16
# Operations and points of a kernel that each of many groups may have, and inner points that it should have.
_MOST_WORK_OF_MANY, _MOST_POINTS_OF_MANY, _LEAST_OF_MANY = 1 << 21, 2048, 24576
# The part of a workgroup's memory that may hold what it alone sees.
_HELD = 0.75
# What reading an element counts as.
_LOAD = 2
# Points of a row that one invocation computes together, and what they share once.
LANES = 4


@dataclass(frozen=True, slots=True)
class _Part:
    """A kernel that may run in turn with others: its step, the operations that it takes, and what it reads and writes:
    buffers of the program, each with the position.
    """

    kernel: Kernel
    number: int
    work: int
    reads: tuple[tuple[int, Affine | None], ...]
    writes: tuple[tuple[int, Affine | None], ...]


def put_in_turn(
    steps: list[Step],
    routines: list[Routine],
    limits: Limits,
    remarks: list[Remark],
    kept: Collection[int] = (),
) -> tuple[list[Step], list[Routine]]:
    """Return steps and routines with kernels that follow each other put into one dispatch.

    `remarks` gets the reason why a step was not put together with the one before it. `kept` are buffers that are the
    caller's.
    """
    if not limits.has_turns:
        return steps, routines
    made: list[Step] = []
    routines = list(routines)
    run: list[_Part] = []
    groups = 0
    users: dict[int, set[int]] = {b: {-1} for b in kept}
    for number, step in enumerate(steps):
        for b in step.buffers:
            users.setdefault(b, set()).add(number)

    def close() -> None:
        """Emit what runs in turn."""
        numbers = [part.number for part in run]
        if len(run) < 2:
            made.extend(steps[n] for n in numbers)
        else:
            parts, buffers, args, dispatch = in_common(numbers, steps, routines)
            name = f"{parts[-1].name}_after_{len(parts) - 1}"
            own = {i for i, b in enumerate(dispatch.buffers) if users[b] <= {*numbers}}
            several = _with_local(Several(name, parts, buffers, args, groups), own, limits)
            if several not in routines:
                routines.append(several)
            made.append(replace(dispatch, routine=routines.index(several)))
        run.clear()

    for number, step in enumerate(steps):
        part = _part(number, step, routines)
        if part is None:
            close()
            made.append(step)
            continue
        if run:
            found = _groups([*run, part], limits)
            if isinstance(found, str):
                remarks.append(Remark(number, run[-1].number, "turns", found))
                close()
            else:
                groups = found
        run.append(part)
    close()
    return (steps, routines) if len(made) == len(steps) else without_unused(made, routines)


def _with_local(several: Several, own: set[int], limits: Limits) -> Several:
    """Return kernels that run in turn with those of their `own` buffers as local in which each group sees its share."""
    memo: Memo = {}
    local: list[tuple[int, int]] = []
    left = _HELD * limits.workgroup_memory_bytes
    for b in sorted(own):
        users = [p for p in several.parts if any(n == b for n, _ in _touched(p))]
        slot = several.buffers[b]
        if len(users) < 2 or any(n == b for n, _ in _read(users[0])):
            continue
        count, low, high = slot.elements, 0, slot.elements - 1
        if several.groups > 1:
            found = {
                _span(p, affine(position, memo), digits_of(p.outer, several.groups) or ())
                for p in users
                for n, position in _touched(p)
                if n == b
            }
            # All find a group's share by the same step (`_are_apart`).
            count = next(iter(found))[0]
            low, high = min(low for _, low, _ in found), max(high for *_, high in found)
        nbytes = max(slot.dtype.itemsize, 4) * count
        if low >= 0 and high < count and nbytes <= left:
            local.append((b, count))
            left -= nbytes
    return replace(several, local=tuple(local))


def _read(kernel: Kernel) -> set[tuple[int, ex.Expr]]:
    """Return the buffers that a kernel reads, each with the position."""
    loads = (n for n in ex.walk(*kernel.expressions()) if n.op == "load")
    return {(n.value, n.args[0]) for n in loads}


def _touched(kernel: Kernel) -> set[tuple[int, ex.Expr]]:
    """Return the buffers that a kernel reads or writes, each with the position."""
    return _read(kernel) | {(s.buffer, s.position) for s in kernel.stores}


def _part(number: int, step: Step, routines: Sequence[Routine]) -> _Part | None:
    """Return a step as one that may run in turn with others."""
    kernel = None if isinstance(step, Copy) else routines[step.routine]
    if not isinstance(step, Dispatch) or not isinstance(kernel, Kernel) or step.starts:
        return None
    sums = any(s.combine != "set" for s in kernel.stores)
    if kernel.is_large or sums or not kernel.outer_count * kernel.inner_count:
        return None
    memo: Memo = {}
    reads = {(step.buffers[b], position) for b, position in _read(kernel)}
    writes = {(step.buffers[s.buffer], s.position) for s in kernel.stores}
    return _Part(
        kernel, number, _work(kernel),
        tuple([(b, affine(position, memo)) for b, position in reads]),
        tuple([(b, affine(position, memo)) for b, position in writes]),
    )  # fmt: skip


def _groups(parts: Sequence[_Part], limits: Limits) -> int | str:
    """Return in how many groups kernels run in turn, or why they do not."""
    bound = {b for part in parts for b, _ in (*part.reads, *part.writes)}
    if len(bound) > limits.max_buffers_per_kernel:
        return (
            f"together they bind {len(bound)} buffers, and a kernel has room for "
            f"{limits.max_buffers_per_kernel} on this device"
        )
    whole = gcd(*[part.kernel.outer_count for part in parts])
    work = max(part.work for part in parts)
    few = next((g for g in _shares(whole, 1, _FEW_GROUPS)[::-1] if _are_apart(parts, g)), 1)
    points = max(part.kernel.outer_count for part in parts)
    if work <= few * _MOST_WORK and points <= _MOST_POINTS:
        return few
    if parts[0].work * _LARGER >= work and (many := _many_groups(parts, whole, limits)):
        return many
    # A large one, and small ones that need what it computes: so many groups keep a card at work, as it does by itself.
    rest = sum(part.work for part in parts) - work
    if rest * _LARGER <= work and parts[0].work == work:
        for g in _shares(whole, _MANY_GROUPS, whole):
            if _are_apart(parts, g):
                return g
    return (
        f"a workgroup that needs nothing of others does {work // few} operations of one of them, which has {points} "
        f"points: at most {_MOST_WORK}, for {_MOST_POINTS} points, take less time than a dispatch costs"
    )


def _many_groups(parts: Sequence[_Part], whole: int, limits: Limits) -> int:
    """Return in how many groups large kernels run in turn, each of which leaves the next no more than a workgroup's
    memory holds: scores, what they become, and values. They keep a card at work; 0: there are no such groups.
    """
    work = max(part.work for part in parts)
    kernels = [part.kernel for part in parts]
    points = max(k.outer_count for k in kernels)
    # What each leaves at its points.
    left = sum(
        k.outer_count * (k.inner_count if any(s.level == "inner" for s in k.stores) else 1)
        for k in kernels[:-1]
    )
    held = int(_HELD * limits.workgroup_memory_bytes) // 4
    least = max(work // _MOST_WORK_OF_MANY, points // _MOST_POINTS_OF_MANY, left // held)
    most = max(k.outer_count * k.inner_count for k in kernels) // _LEAST_OF_MANY
    most = min(most, points // _FEW_GROUPS, limits.max_workgroups_per_dim)
    shares = _shares(whole, max(least, _FEW_GROUPS) + 1, most)
    apart = [g for g in shares if _are_apart(parts, g)]
    return next((g for g in apart if g >= _MANY_GROUPS), max(apart, default=0))


def _shares(whole: int, least: int, most: int) -> list[int]:
    """Return the divisors of a number within bounds."""
    return [g for g in range(least, min(whole, most) + 1) if whole % g == 0]


def _work(kernel: Kernel) -> int:
    """Return about how many operations a kernel takes."""
    rank = len(kernel.outer) + len(kernel.inner)
    dims = (*kernel.outer, *kernel.inner)
    last = rank - 1 if dims and dims[-1] % LANES == 0 else -1
    inner = [r.value for r in kernel.reduces]
    inner += [e for s in kernel.stores if s.level == "inner" for e in (s.position, s.value)]
    outer = [e for s in kernel.stores if s.level == "outer" for e in (s.position, s.value)]
    points = kernel.outer_count
    return int(
        points * kernel.inner_count * _operations(inner, last) + points * _operations(outer, last)
    )


def _operations(roots: Sequence[ex.Expr], last: int) -> float:
    """Return the operations of a point: what does not depend on the last dim is shared by its neighbours."""
    depends: dict[ex.Expr, bool] = {}
    total = 0.0
    for node in ex.walk(*roots):
        depends[node] = node.op == "index" and node.value[0] == last
        depends[node] |= any(depends[a] for a in node.args)
        weight = _LOAD if node.op == "load" else 1 if node.args else 0
        total += weight if depends[node] or last < 0 else weight / LANES
    return total


# ---- whether groups need nothing of each other


def _are_apart(parts: Sequence[_Part], groups: int) -> bool:
    """Whether no group reads, or overwrites, in a later part what another one uses in an earlier one.

    Each element of such a buffer belongs to one group: those of group g are the positions from g * step on, less than
    `step` of them, by which all parts find it.
    """
    if groups == 1:
        return True
    written = {b for part in parts for b, _ in part.writes}
    spans: dict[int, list[tuple[int, int, int]]] = {}
    users: dict[int, set[int]] = {}
    for part in parts:
        digits = digits_of(part.kernel.outer, groups)
        if digits is None:
            return False
        for buffer, form in (*part.reads, *part.writes):
            if buffer in written:
                users.setdefault(buffer, set()).add(part.number)
                spans.setdefault(buffer, []).append(_span(part.kernel, form, digits))
    for buffer, found in spans.items():
        if len(users[buffer]) < 2:
            continue
        steps = {step for step, _, _ in found}
        low, high = min(low for _, low, _ in found), max(high for *_, high in found)
        if len(steps) != 1 or high - low >= min(steps):
            return False
    return True


def digits_of(outer: Sequence[int], groups: int) -> list[tuple[int, int, int]] | None:
    """Return how the number of a group is made of outer dims: of each its number, how many groups a step of it is
    apart, and how many neighbours a group has. None if groups have no blocks of outer points.
    """
    left, found = groups, list[tuple[int, int, int]]()
    for dim, size in enumerate(outer):
        if left == 1:
            break
        if left % size == 0:
            left //= size
            found.append((dim, left, 1))
        elif size % left == 0:
            found.append((dim, 1, size // left))
            left = 1
        else:
            return None
    return found if left == 1 else None


def _span(
    part: Kernel, form: Affine | None, digits: Sequence[tuple[int, int, int]]
) -> tuple[int, int, int]:
    """Return by how much positions of neighbouring groups are apart (0: not evenly), and the first and the last of the
    first group.
    """
    if form is None:
        return 0, 0, 0
    sizes = dict(enumerate((*part.outer, *part.inner)))
    steps = set[int]()
    for dim, apart, own in digits:
        if sizes[dim] > 1:
            step, rest = divmod(form.stride(dim) * own, apart)
            steps.add(0 if rest else step)
        sizes[dim] = own
    low = high = form.offset
    for dim, size in sizes.items():
        reach = form.stride(dim) * (size - 1)
        low, high = low + min(reach, 0), high + max(reach, 0)
    return (steps.pop() if len(steps) == 1 else 0), low, high
