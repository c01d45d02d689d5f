"""Kernels that run in turn in one dispatch (`Several.groups`). Floor 2; imports floor 0 and the writer.

Each workgroup takes its share of the points of one kernel, waits for all of its invocations, and takes its share of the
next.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from webtorch.ir.kernel import Kernel, Several
from webtorch.ir.limits import Limits
from webtorch.lower.coarsening import CARD, coarsened
from webtorch.lower.turns import LANES, digits_of
from webtorch.lower.wgsl_kernel import flat, render_kernel, write_points
from webtorch.lower.wgsl_reduce import (
    Geometry,
    ReductionWriter,
    natively,
    power_below,
    reads_columns,
    writer_of,
)
from webtorch.lower.wgsl_shader import Draft, Engine, WgslPass
from webtorch.lower.wgsl_writer import VECTOR_POINTS, KernelWriter

# Points of a kernel for each invocation, where a workgroup may have so many.
_POINTS = 4
# Invocations that a card takes at once, and those of a workgroup of many.
_FULL, _MANY = 1 << 17, 256
# Invocations that a workgroup should have when rows are computed together.
_LEFT = 128


def render_turns(routine: Several, limits: Limits, engine: Engine) -> list[WgslPass]:
    """Return the dispatch of kernels that run in turn; or those of each, where they cannot be one."""
    one = None if limits.varying else _together(routine, limits)
    if one is not None:
        return [one]
    return [p for part in routine.parts for p in render_kernel(part, limits, engine)]


def _together(routine: Several, limits: Limits) -> WgslPass | None:
    groups = routine.groups
    parts = [_row_part(p, limits, groups) if p.reduces else flat(p) for p in routine.parts]
    most = max(p.outer_count * p.inner_count for p in routine.parts) // groups
    size = power_below(limits.max_workgroup_invocations)
    # Several of many groups run side by side, so that one works while another waits.
    while size > 64 and (size * _POINTS > most or (size > _MANY and size * groups > _FULL)):
        size //= 2
    writers = [_writer(p, limits, groups) for p in parts]
    if any(w.in_turn for w in writers) or not _agree(writers):
        return None
    body: list[str] = ["let group = i32(wid.x);"] if groups > 1 else []
    shared: dict[str, str] = {}
    for number, writer in enumerate(writers):
        if number:
            body += ["storageBarrier();", "workgroupBarrier();"]
        own = writer.kernel.outer_count // groups
        if writer.kernel.reduces:
            lines = _row_lines(writer, size, own, shared)
        else:
            lines = _point_lines(writer, size, own)
        first = f"group * {own} + " if groups > 1 else ""
        body += ["{", *("  " + x.replace("FIRST + ", first) for x in lines), "}"]
    writer = writers[0]
    body = _with_local(body, shared, routine, writers)
    writer.args = sorted({a for w in writers for a in w.args})
    writer.functions = {n: lines for w in writers for n, lines in w.functions.items()}
    has_status = any(p.checks for p in parts)
    draft = Draft(writer, body, list(shared.values()), size, (groups, 1, 1), has_status=has_status)
    one = draft.finished()
    found = re.findall(r"array<(vec4<)?\w+>?, (\d+)>;", "\n".join(shared.values()))
    bound = sum(int(count) * (16 if vector else 4) for vector, count in found)
    return one if bound <= limits.workgroup_memory_bytes else None


def _with_local(
    body: list[str], shared: dict[str, str], routine: Several, writers: Sequence[KernelWriter]
) -> list[str]:
    """Declare what a workgroup alone sees as its memory; return the lines with the positions there."""
    slots = writers[0].slots
    seen = {n for n in slots if sum(w.touches(n) for w in writers) > 1}
    seen &= {s.buffer for p in routine.parts for s in p.stores}
    for number, count in routine.local:
        slot = slots[number]
        if slot.packed or slot.atomic or count % slot.width:
            continue
        if routine.groups > 1:
            body = [_within(x, slot.name, count // slot.width) for x in body]
        array = f"array<{slot.declared}, {count // slot.width}>"
        shared[slot.name] = f"var<workgroup> {slot.name}: {array};"
        del slots[number]
        seen.discard(number)
    # Where nobody waits for what is written to memory, no barrier does.
    return body if seen else [x for x in body if x != "storageBarrier();"]


def _within(line: str, name: str, step: int) -> str:
    """Return a line in which the positions in a buffer are those in a group's share of it, of so many places."""
    out = ""
    while f"{name}[" in line:
        before, _, line = line.partition(f"{name}[")
        depth, end = 1, 0
        while depth:
            depth += {"[": 1, "]": -1}.get(line[end], 0)
            end += 1
        out += f"{before}{name}[({line[: end - 1]}) - group * {step}]"
        line = line[end:]
    return out + line


def _row_part(kernel: Kernel, limits: Limits, groups: int) -> Kernel:
    """Return a reduction as it is written: rows that share data are computed together where groups stay whole."""
    kernel = natively(kernel, limits)
    split = {dim: kernel.outer[dim] // own for dim, _, own in digits_of(kernel.outer, groups) or ()}
    # Dims of which each group has one place.
    first = sum(split.get(dim) == size for dim, size in enumerate(kernel.outer))
    one = coarsened(kernel, replace(CARD, invocations=groups * _LEFT), first=first)
    whole = all(one.outer[dim] % share == 0 for dim, share in split.items())
    return one if whole else kernel


def _writer(kernel: Kernel, limits: Limits, groups: int) -> KernelWriter:
    """Return the writer of a part, of which a workgroup takes several neighbours an invocation."""
    if kernel.reduces:
        return writer_of(kernel, limits, VECTOR_POINTS)
    writer = KernelWriter(kernel, limits)
    writer.choose_lanes(VECTOR_POINTS)
    packed = any(writer.is_packed(kernel.buffers[s.buffer].dtype) for s in kernel.stores)
    if writer.lanes == 1 and not packed and kernel.outer and kernel.outer[-1] % LANES == 0:
        # Neighbours share what they compute, wherever they are stored.
        writer.lanes = LANES
        writer.choose_slots()
    if kernel.outer_count // groups % writer.lanes:
        writer.lanes = 1
        writer.choose_slots()
    return writer


def _agree(writers: Sequence[KernelWriter]) -> bool:
    """Declare each buffer in one way for all parts; return whether that can be."""
    first = writers[0].slots
    for number in range(len(writers[0].kernel.buffers)):
        used = [w for w in writers if w.touches(number)]
        if len({w.slots[number].declared for w in used}) > 1:
            for w in used:
                w.plain(number)
        found = [w.slots[number] for w in used]
        if len({s.declared for s in found}) > 1:
            return False
        if found:
            first[number] = found[0]
    return True


def _row_lines(writer: KernelWriter, size: int, rows: int, shared: dict[str, str]) -> list[str]:
    """Return what a workgroup does for its rows of a reduction."""
    r = ReductionWriter(writer, _geometry(writer, size, rows))
    tx = r.g.tx
    r.invocation()
    r.body.append(f"let point = turn * {tx} + tx;")
    if rows % tx:
        r.body += [
            f"let active_point = point < {rows};",
            f"let o = FIRST + min(point, {rows - 1});",
        ]
        r.active = "active_point"
    else:
        r.body.append("let o = FIRST + point;")
        r.active = ""
    writer.top.linear = "o"
    r.write()
    renamed = dict[str, str]()
    for name, line in r.shared.items():
        mine = name
        while shared.setdefault(mine, line.replace(f" {name}:", f" {mine}:")) != line.replace(
            f" {name}:", f" {mine}:"
        ):
            mine += "x"
        renamed[name] = mine
    lines = [re.sub(r"\b[sp]\d+\b", lambda m: renamed.get(m[0], m[0]), x) for x in r.body]
    return _turns(lines, -(-rows // tx))


def _point_lines(writer: KernelWriter, size: int, points: int) -> list[str]:
    """Return what a workgroup does for its points of an elementwise kernel."""
    lanes, body = writer.lanes, writer.top.lines
    body.append(f"let at = (turn * {size} + i32(lid)){f' * {lanes}' if lanes > 1 else ''};")
    count = len(body)
    body.append("let i = FIRST + at;")
    write_points(writer)
    lines = body[:count]
    if points % (size * lanes):
        lines += [f"if (at < {points}) {{", *("  " + x for x in body[count:]), "}"]
    else:
        lines += body[count:]
    return _turns(lines, -(-points // (size * lanes)))


def _turns(lines: list[str], count: int) -> list[str]:
    """Return lines that are run several times."""
    if count == 1:
        return ["let turn = 0;", *lines]
    return [
        f"for (var turn = 0; turn < {count}; turn = turn + 1) {{",
        *("  " + x for x in lines),
        "}",
    ]


def _geometry(writer: KernelWriter, size: int, rows: int) -> Geometry:
    """Choose how the rows of a workgroup are spread over its invocations: all of them take part."""
    n = writer.kernel.inner_count
    if n <= 16 and rows >= size:
        return Geometry(size, 1, True)
    if reads_columns(writer):
        ty = min(max(size // min(32, power_below(rows)), 1), power_below(max(n // 4, 1)))
        return Geometry(size // ty, ty, True)
    per = max(writer.lanes, 1)
    ty = min(power_below(max(n // per, 1) * 2 - 1), size)
    while ty > 4 and ty * 4 * per > n and rows * ty > size:
        ty //= 2
    return Geometry(size // ty, ty, False)
