"""Puts small kernels that need each other into one dispatch, in which they run in turn. Floors 0 and 1.

A dispatch and the barrier before it cost a graphics card some 4 us, in which it would compute far more than a row of a
few thousand elements; a language model's token is a chain of such rows. Invocations of one workgroup may wait for each
other, so a workgroup can compute one kernel after another, as long as it reads nothing that other workgroups write:
what a norm leaves is one workgroup's, and attention of one query splits into heads, which need their own scores only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
# What reading an element counts as.
_LOAD = 2
# Points of a row that one invocation computes together, and what they share once.
LANES = 4


def put_in_turn(
    steps: list[Step], routines: list[Routine], limits: Limits, remarks: list[Remark]
) -> tuple[list[Step], list[Routine]]:
    """Return steps and routines with kernels that follow each other put into one dispatch.

    `remarks` gets the reason why a step was not put together with the one before it.
    """
    if not limits.has_turns:
        return steps, routines
    made: list[Step] = []
    routines = list(routines)
    known = {r: i for i, r in enumerate(routines)}
    run: list[int] = []
    found: Several | None = None

    def close() -> None:
        """Emit what runs in turn."""
        nonlocal found
        if found is None:
            made.extend(steps[n] for n in run)
        else:
            place = known.setdefault(found, len(routines))
            if place == len(routines):
                routines.append(found)
            *_, dispatch = in_common(run, steps, routines)
            made.append(replace(dispatch, routine=place))
        run.clear()
        found = None

    for number, step in enumerate(steps):
        reason = _unfit(step, routines)
        both = None
        if run and reason is None:
            both = _in_turn([*run, number], steps, routines, limits)
            if isinstance(both, str):
                remarks.append(Remark(number, run[-1], "turns", both))
        if isinstance(both, Several):
            found = both
            run.append(number)
            continue
        close()
        run.append(number)
        if reason is not None:
            close()
    close()
    if len(made) == len(steps):
        return steps, routines
    return without_unused(made, routines)


def _unfit(step: Step, routines: Sequence[Routine]) -> str | None:
    """Return why a step runs by itself."""
    routine = None if isinstance(step, Copy) else routines[step.routine]
    if not isinstance(step, Dispatch) or not isinstance(routine, Kernel) or step.starts:
        return "it is no kernel of loops"
    if routine.is_large or any(s.combine != "set" for s in routine.stores):
        return "it adds up at positions that data give"
    return None if routine.outer_count * routine.inner_count else "it computes nothing"


def _in_turn(
    run: Sequence[int], steps: Sequence[Step], routines: Sequence[Routine], limits: Limits
) -> Several | str:
    """Return the routine of steps that run in turn, or why they do not."""
    parts, buffers, args, _ = in_common(run, steps, routines)
    if len(buffers) > limits.max_buffers_per_kernel:
        return f"together they bind {len(buffers)} buffers, and a kernel has room for {limits.max_buffers_per_kernel}"
    whole = 0
    for part in parts:
        whole = gcd(whole, part.outer_count)
    shares = [g for g in range(1, whole + 1) if whole % g == 0]
    few = [g for g in reversed(shares) if g <= _FEW_GROUPS]
    # Of many, the fewest whose invocations have enough to do.
    many = [g for g in shares if g >= _MANY_GROUPS]
    work = max(_work(part) for part in parts)
    groups = next((g for g in few if g == 1 or _are_apart(parts, g)), 1)
    if work > groups * _MOST_WORK:
        groups = next((g for g in many if work <= g * _MOST_WORK and _are_apart(parts, g)), groups)
    work //= groups
    if work > _MOST_WORK:
        return (
            f"a workgroup that needs nothing of others does {work} operations of one of them: at most "
            f"{_MOST_WORK} take less time than a dispatch costs"
        )
    name = f"{parts[-1].name}_after_{len(parts) - 1}"
    return Several(name, parts, buffers, args, groups)


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


def _are_apart(parts: Sequence[Kernel], groups: int) -> bool:
    """Whether no group reads, or overwrites, in a later part what another one uses in an earlier one.

    Each element of such a buffer belongs to one group: those of group g are the positions from g * step on, less than
    `step` of them, by which all parts find it.
    """
    written = {s.buffer for p in parts for s in p.stores}
    memo: Memo = {}
    spans: dict[int, list[tuple[int, int, int]]] = {}
    users: dict[int, set[int]] = {}
    for number, part in enumerate(parts):
        digits = digits_of(part.outer, groups)
        if digits is None:
            return False
        places = [(s.buffer, s.position) for s in part.stores]
        places += [(n.value, n.args[0]) for n in ex.walk(*part.expressions()) if n.op == "load"]
        for buffer, position in places:
            if buffer not in written:
                continue
            users.setdefault(buffer, set()).add(number)
            spans.setdefault(buffer, []).append(_span(part, affine(position, memo), digits))
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
