"""Running sums, products, maxima and minima on WebGPU. Floor 2; imports floor 0, the renderer and
the generic forms.

A workgroup has `tx` rows side by side and `ty` invocations along each of them. It walks the rows in
tiles of ty * 4 elements:
every invocation scans its four elements, the totals of a tile are scanned in workgroup memory, and
the running total is carried
on. Few long rows are cut into parts: one pass reduces each part, and the scanning pass starts from
the parts before its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from webtorch.ir.dtype import DType
from webtorch.ir.kernel import Kernel, Scan
from webtorch.ir.limits import Limits
from webtorch.lower.templates.generic import scan_kernel
from webtorch.lower.wgsl_reduce import leave, taken, word_count
from webtorch.lower.wgsl_shader import Engine, WgslPass, finish, fold_grid, group_number
from webtorch.lower.wgsl_table import combine, convert, identity, wgsl_type
from webtorch.lower.wgsl_writer import KernelWriter

__all__ = ["render", "scan_kernel"]

_OWN = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """Launch geometry: tx rows, ty invocations along each, and how many parts a row is cut into."""

    tx: int
    ty: int
    parts: int = 1


def choose(r: Scan, limits: Limits) -> Plan:
    """Choose how a scan is spread over invocations."""
    rows = r.outer * r.inner
    if not limits.is_gpu and rows >= 32:
        return Plan(64, 1)
    most = min(limits.max_workgroup_invocations, 256 if limits.is_gpu else 64)
    # Neighbouring rows are neighbours in memory where there is an inner dimension.
    tx = 1
    while r.inner > 1 and tx < 32 and tx * 2 <= rows:
        tx *= 2
    ty = 1
    while ty * tx * 2 <= most and ty * _OWN < r.length:
        ty *= 2
    while ty * tx < 64 and tx * 2 <= rows:
        tx *= 2
    groups = -(-rows // tx)
    busy = 1056 if limits.is_gpu else 4
    parts = max(1, min(busy // groups, r.length // (ty * _OWN * 4)))
    return Plan(tx, ty, parts)


class _ScanWriter:
    """Writes the passes of one scan."""

    def __init__(self, r: Scan, limits: Limits, plan: Plan) -> None:
        self.r, self.plan = r, plan
        self.w = KernelWriter(Kernel(r.name, (1,), (), r.buffers, r.args, (), ()), limits)
        self.dtype: DType = r.buffers[1].dtype.compute
        self.kind = wgsl_type(self.dtype)
        for number in range(len(r.buffers)):
            self.w.slots[number] = self.w.template_slot(number)
        self.w.slots[1].atomic = self.w.slots[1].packed
        self.rows = r.outer * r.inner
        self.tile = plan.ty * _OWN
        per_part = -(-r.length // plan.parts)
        self.chunk = -(-per_part // self.tile) * self.tile
        self.parts = -(-r.length // self.chunk)
        words = self.rows * self.parts * word_count(self.kind)
        self.scratch = (4 * words,) if self.parts > 1 else ()

    def join(self, a: str, b: str) -> str:
        """Return the text of two values combined."""
        return combine(self.r.op, self.kind, a, b)

    @property
    def neutral(self) -> str:
        """Return the text of the value that changes nothing."""
        return identity(self.r.op, self.kind)

    def prologue(self, groups: int) -> tuple[list[str], tuple[int, int, int]]:
        """Return the lines that name the row, the place along it and the part."""
        r, plan = self.r, self.plan
        grid = fold_grid(groups, self.w.limits)
        lines = [f"let group = i32({group_number(grid)});"]
        if grid[0] * grid[1] * grid[2] != groups:
            lines.append(f"if (group >= {groups}) {{ return; }}")
        row_group = "group"
        if self.parts > 1:
            lines.append(f"let part = group % {self.parts};")
            row_group = f"(group / {self.parts})"
        if r.inner > 1:
            lines += [f"let tx = i32(lid % {plan.tx}u);", f"let ty = i32(lid / {plan.tx}u);"]
        else:
            lines += [f"let tx = i32(lid / {plan.ty}u);", f"let ty = i32(lid % {plan.ty}u);"]
        lines += [
            f"let row = {row_group} * {plan.tx} + tx;",
            f"let active_row = row < {self.rows};",
            f"let safe = min(row, {self.rows - 1});",
        ]
        if r.inner > 1:
            lines.append(
                f"let base = (safe / {r.inner}) * {r.length * r.inner} + safe % {r.inner};"
            )
        else:
            lines.append(f"let base = safe * {r.length};")
        begin = f"part * {self.chunk}" if self.parts > 1 else "0"
        end = f"min({begin} + {self.chunk}, {r.length})" if self.parts > 1 else f"{r.length}"
        lines += [f"let begin = {begin};", f"let stop = {end};"]
        return lines, grid

    def loads(self, lines: list[str]) -> None:
        """Write the four elements of this invocation as x0..x3, neutral beyond the end."""
        source = self.r.buffers[0].dtype
        for i in range(_OWN):
            lines.append(f"let at{i} = first + {i};")
            place = f"base + min(at{i}, {self.r.length - 1}) * {self.r.inner}"
            lines.append(f"let p{i} = {place};")
            value = convert(self.w.element(self.w.slots[0], f"p{i}"), source, self.dtype)
            lines.append(f"let x{i} = select({self.neutral}, {value}, at{i} < stop);")

    def share(self, lines: list[str], value: str) -> str:
        """Write the inclusive scan of `value` over ty; returns the name of what lies before this
        invocation, and leaves the
        total of all in `total`."""
        plan = self.plan
        word = f"select(0u, 1u, {value})" if self.kind == "bool" else value

        def index(y: str) -> str:
            """Return the text of an invocation's place in workgroup memory."""
            if self.r.inner > 1:
                return f"u32(({y}) * {plan.tx} + tx)"
            return f"u32(tx * {plan.ty} + {y})"

        def read(y: str) -> str:
            """Return the text that reads an invocation's value; bools lie there as words."""
            return (
                f"(shared_word[{index(y)}] != 0u)"
                if self.kind == "bool"
                else f"shared_word[{index(y)}]"
            )

        lines.append(f"shared_word[{index('ty')}] = {word};")
        lines.append("workgroupBarrier();")
        step = 1
        while step < plan.ty:
            lines.append(f"var s{step} = {read('ty')};")
            lines.append(
                f"if (ty >= {step}) {{ s{step} = {self.join(read(f'ty - {step}'), f's{step}')}; }}"
            )
            lines.append("workgroupBarrier();")
            new = f"select(0u, 1u, s{step})" if self.kind == "bool" else f"s{step}"
            lines.append(f"shared_word[{index('ty')}] = {new};")
            lines.append("workgroupBarrier();")
            step *= 2
        lines.append(f"var before = {self.neutral};")
        lines.append(f"if (ty > 0) {{ before = {read('ty - 1')}; }}")
        lines.append(f"let total = {read(str(plan.ty - 1))};")
        lines.append("workgroupBarrier();")
        return "before"

    @property
    def shared(self) -> list[str]:
        """Return the declaration of the workgroup memory, none for one invocation a line."""
        kind = "u32" if self.kind == "bool" else self.kind
        if self.plan.ty == 1:
            return []
        return [f"var<workgroup> shared_word: array<{kind}, {self.plan.tx * self.plan.ty}>;"]

    def reduce_pass(self) -> WgslPass:
        """Write the pass that leaves the total of every part in scratch."""
        groups = -(-self.rows // self.plan.tx) * self.parts
        body, grid = self.prologue(groups)
        loop = [f"let first = tile + ty * {_OWN};"]
        self.loads(loop)
        four = self.join(self.join("x0", "x1"), self.join("x2", "x3"))
        loop.append(f"sum = {self.join('sum', four)};")
        body.append(f"var sum: {self.kind} = {self.neutral};")
        body.append(f"for (var tile: i32 = begin; tile < stop; tile = tile + {self.tile}) {{")
        body += ["  " + x for x in loop]
        body.append("}")
        total = "sum"
        if self.plan.ty > 1:
            self.share(body, "sum")
            total = "total"
        line = " ".join(leave(total, self.kind, 0, f"row * {self.parts} + part"))
        body.append(f"if (active_row && ty == 0) {{ {line} }}")
        return finish(
            self.w, body, self.shared, self.plan.tx * self.plan.ty, grid, self.scratch, False
        )

    def scan_pass(self) -> WgslPass:
        """Write the pass that scans."""
        groups = -(-self.rows // self.plan.tx) * self.parts
        body, grid = self.prologue(groups)
        body.append(f"var carry: {self.kind} = {self.neutral};")
        if self.parts > 1:
            old = taken(self.kind, 0, f"safe * {self.parts} + j")
            body.append(
                f"for (var j: i32 = 0; j < part; j = j + 1) {{ carry = {self.join('carry', old)}; }}"
            )
        loop = [f"let first = tile + ty * {_OWN};"]
        self.loads(loop)
        loop.append("let y0 = x0;")
        loop += [f"let y{i} = {self.join(f'y{i - 1}', f'x{i}')};" for i in range(1, _OWN)]
        if self.plan.ty > 1:
            before = self.share(loop, f"y{_OWN - 1}")
            loop.append(f"let offset = {self.join('carry', before)};")
            loop.append(f"carry = {self.join('carry', 'total')};")
        else:
            loop.append("let offset = carry;")
            loop.append(f"carry = {self.join('carry', f'y{_OWN - 1}')};")
        for i in range(_OWN):
            loop.append(f"let z{i} = {self.join('offset', f'y{i}')};")
            lines = self.w.store_lines(self.w.slots[1], f"p{i}", f"z{i}", "set")
            loop += [f"if (active_row && at{i} < stop) {{", *("  " + x for x in lines), "}"]
        body.append(f"for (var tile: i32 = begin; tile < stop; tile = tile + {self.tile}) {{")
        body += ["  " + x for x in loop]
        body.append("}")
        return finish(
            self.w, body, self.shared, self.plan.tx * self.plan.ty, grid, self.scratch, False
        )


def scan_passes(r: Scan, limits: Limits, plan: Plan) -> list[WgslPass]:
    """Return the dispatches of a scan with a given geometry."""
    s = _ScanWriter(r, limits, plan)
    return [s.reduce_pass(), s.scan_pass()] if s.parts > 1 else [s.scan_pass()]


def render(routine: Scan, limits: Limits, engine: Engine) -> list[WgslPass]:
    """Return the dispatches of a scan."""
    del engine  # nothing here is spelled differently
    return scan_passes(routine, limits, choose(routine, limits))
