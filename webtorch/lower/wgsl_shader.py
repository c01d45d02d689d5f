"""A whole shader: bindings, helpers, entry point, and the grid that runs it. Floor 2; imports floor
0 and the writer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from webtorch.ir import expr as ex
from webtorch.ir.dtype import (
    DType,
    bool_,
    float32,
    int32,
    uint32,
)
from webtorch.ir.expr import FUNCTIONS, Expr
from webtorch.ir.kernel import (
    Kernel,
    Store,
)
from webtorch.ir.limits import Limits
from webtorch.lower import prelude
from webtorch.lower.wgsl_table import TWO_WORDS, wgsl_type
from webtorch.lower.wgsl_writer import KernelWriter, Scope, Slot

Engine = Literal["naga", "dawn"]


Binding = Literal["read", "read_write", "uniform"]


@dataclass(frozen=True, slots=True)
class WgslPass:
    """One compute dispatch.

    Bindings of group 0, in order: the routine's buffers named in `slots`, one scratch buffer for
    each entry of `scratch`
    (its size in bytes; the passes of a routine share them by number), the uniform struct if
    `args_bytes` is not 0, and the
    two status words if `has_status`. `bindings` says how each is used. `args` places the routine's
    arguments in the struct:
    (offset in bytes, type to write, argument number). `trusted_indices`: every index that the
    source computes is within its buffer, whatever the data, so an engine may leave out its own
    checks; `trusted_loops`: so it may with the counters that make sure that loops end, after which
    drivers unroll them.
    """

    source: str
    grid: tuple[int, int, int]
    workgroup_size: tuple[int, int, int]
    slots: tuple[int, ...]
    scratch: tuple[int, ...] = ()
    args: tuple[tuple[int, DType, int], ...] = ()
    args_bytes: int = 0
    has_status: bool = False
    bindings: tuple[Binding, ...] = ()
    trusted_indices: bool = False
    trusted_loops: bool = False
    # Integers that the source takes from a uniform, in place of arguments: where in a matrix a step of a blocked
    # method works, so that all its steps are one shader.
    numbers: tuple[int, ...] = ()


_SUBGROUPS = "enable subgroups;"

# What an argument of a WGSL type is written as.
_STORED: dict[str, DType] = {
    "f32": float32, "i32": int32, "u32": uint32, **{kind: d for d, kind in TWO_WORDS.items()}
}  # fmt: skip


def fold_grid(groups: int, limits: Limits) -> tuple[int, int, int]:
    """Return a grid of at least `groups` workgroups within the device's limit for each
    dimension."""
    most = limits.max_workgroups_per_dim
    if groups <= most:
        return (max(groups, 1), 1, 1)
    rows = -(-groups // most)
    if rows <= most:
        return (-(-groups // rows), rows, 1)
    layers = -(-groups // (most * most))
    return (most, -(-groups // (most * layers)), layers)


def group_number(grid: tuple[int, int, int]) -> str:
    """Return the text of the workgroup's number, as u32, in a folded grid."""
    if grid[1] == 1:
        return "wid.x"
    if grid[2] == 1:
        return f"(wid.y * {grid[0]}u + wid.x)"
    return f"((wid.z * {grid[1]}u + wid.y) * {grid[0]}u + wid.x)"


def declarations(
    writer: KernelWriter,
    body: list[str],
    scratch: tuple[int, ...],
    has_status: bool,
    scratch_type: str = "u32",
) -> tuple[list[str], tuple[int, ...], list[Binding], tuple[tuple[int, DType, int], ...], int]:
    """Return the binding lines for what `body` uses: (lines, slots, bindings, args, args_bytes)."""
    text = "\n".join(body)
    lines: list[str] = []
    slots: list[int] = []
    bindings: list[Binding] = []
    for number, slot in sorted(writer.slots.items()):
        if f"{slot.name}[" not in text:
            continue
        access: Binding = "read" if slot.slot.access == "read" and not slot.atomic else "read_write"
        lines.append(
            f"@group(0) @binding({len(bindings)}) var<storage, {access}> {slot.name}: array<{slot.declared}>;"
        )
        slots.append(number)
        bindings.append(access)
    for i in range(len(scratch)):
        lines.append(
            f"@group(0) @binding({len(bindings)}) var<storage, read_write> scratch{i}: array<{scratch_type}>;"
        )
        bindings.append("read_write")
    args: list[tuple[int, DType, int]] = []
    used = [a for a in sorted(writer.args) if f"args.a{a}" in text]
    at = 0
    if used:
        members = []
        # Those of two words first: they start at whole ones.
        for number in sorted(used, key=lambda n: writer.kernel.args[n] not in TWO_WORDS):
            dtype = writer.kernel.args[number]
            kind = "u32" if dtype is bool_ else wgsl_type(dtype)
            members.append(f"a{number}: {kind}")
            args.append((at, _STORED[kind], number))
            at += 8 if dtype in TWO_WORDS else 4
        lines.insert(0, f"struct Args {{ {', '.join(members)} }}")
        lines.append(f"@group(0) @binding({len(bindings)}) var<uniform> args: Args;")
        bindings.append("uniform")
    if has_status:
        lines.append(
            f"@group(0) @binding({len(bindings)}) var<storage, read_write> status: array<atomic<u32>, 2>;"
        )
        bindings.append("read_write")
    return lines, tuple(slots), bindings, tuple(args), -(-at // 16) * 16


def function_source(name: str) -> str:
    """Return the float32 expansion of a scalar function as a WGSL function `wt_NAME`."""
    found = _FUNCTIONS.get(name)
    if found is None:
        function = FUNCTIONS[name]
        assert function.expansion is not None
        inputs = tuple(ex.input_(i, float32) for i in range(function.arity))
        root = function.expansion(*inputs)
        limits = Limits(0, 8, 64, 65535, 16384, False, False)
        kernel = Kernel(name, (1,), (), (), (), (), (Store(0, ex.const(0, int32), root),))
        writer = KernelWriter(kernel, limits)
        scope = writer.top
        parameters = "xyz"[: function.arity]
        for node, letter in zip(inputs, parameters, strict=True):
            scope.env[node] = letter
        signature = ", ".join(f"{p}: f32" for p in parameters)
        _write_returns(writer, root, scope)
        lines = "\n".join("  " + x for x in scope.lines)
        found = f"fn wt_{name}({signature}) -> f32 {{\n{lines}\n}}"
        _FUNCTIONS[name] = found
    return found


_FUNCTIONS: dict[str, str] = {}


def _write_returns(writer: KernelWriter, root: Expr, scope: Scope) -> None:
    """Write `return root`; a choice at the root becomes a branch, so that only the chosen side is
    computed."""
    while root.op == "where":
        condition, chosen, root = root.args
        test = writer.value(condition, scope)
        branch = Scope(env=dict(scope.env))
        _write_returns(writer, chosen, branch)
        scope.lines += [f"if ({test}) {{", *("  " + x for x in branch.lines), "}"]
    scope.lines.append(f"return {writer.value(root, scope)};")


def assemble(
    declared: list[str],
    shared: list[str],
    body: list[str],
    size: int,
    f16: bool,
    directives: tuple[str, ...] = (),
) -> str:
    """Return the whole shader text; `directives` open it."""
    functions = {
        f"wt_{f.name}": function_source(f.name)
        for f in FUNCTIONS.values()
        if f.expansion is not None
    }
    helpers = prelude.needed(["\n".join([*declared, *shared, *body])], functions)
    if any("subgroupShuffle" in line for line in body) and _SUBGROUPS not in directives:
        directives = (_SUBGROUPS, *directives)
    head = [*(["enable f16;"] if f16 else []), *directives]
    return "\n".join(
        [
            *head,
            *declared,
            *shared,
            helpers,
            f"@compute @workgroup_size({size})",
            "fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {",
            *("  " + line for line in body),
            "}",
            "",
        ]
    )


def finish(
    writer: KernelWriter,
    body: list[str],
    shared: list[str],
    size: int,
    grid: tuple[int, int, int],
    scratch: tuple[int, ...],
    has_status: bool,
    directives: tuple[str, ...] = (),
    scratch_type: str = "u32",
) -> WgslPass:
    """Put declarations, helpers and body together."""
    # Those of a split product are called by its second pass only.
    functions = [
        line
        for name, lines in writer.functions.items()
        if any(f"{name}(" in x for x in body)
        for line in lines
    ]
    text = [*functions, *body]
    lines, slots, bindings, args, args_bytes = declarations(
        writer, text, scratch, has_status, scratch_type
    )
    f16 = (
        any(writer.slots[n].native_f16 for n in slots)
        or any("f32(f16(" in x for x in text)
        or any("f16>" in x or "<f16" in x for x in shared)
    )
    source = assemble(lines, [*shared, *functions], body, size, f16, directives)
    return WgslPass(
        source, grid, (size, 1, 1), slots, scratch, args, args_bytes, has_status, tuple(bindings)
    )


@dataclass(slots=True)
class Draft:
    """What a pass is made of: those of several routines may become one."""

    writer: KernelWriter
    body: list[str]
    shared: list[str]
    size: int
    grid: tuple[int, int, int]
    scratch: tuple[int, ...] = ()
    has_status: bool = False
    directives: tuple[str, ...] = ()
    scratch_type: str = "u32"
    # Whether its indices and loops are trusted (WgslPass).
    trusted: bool = False

    def finished(self) -> WgslPass:
        """Return the pass."""
        one = finish(
            self.writer, self.body, self.shared, self.size, self.grid, self.scratch,
            self.has_status, self.directives, self.scratch_type,
        )  # fmt: skip
        return replace(one, trusted_indices=True, trusted_loops=True) if self.trusted else one


def beside(drafts: Sequence[Draft], limits: Limits) -> WgslPass | None:
    """Return one pass in which each draft has some of the workgroups; None where they cannot share
    one: other workgroups, a buffer that one declares as vectors and another does not, too many.

    Their buffers and arguments are numbered in common, and so is their scratch memory.
    """
    first = drafts[0]
    total = sum(d.grid[0] for d in drafts)
    if total > limits.max_workgroups_per_dim:
        return None
    slots: dict[int, Slot] = {}
    shared: dict[str, str] = {}
    body: list[str] = []
    begin = 0
    for d in drafts:
        if d.grid[1:] != (1, 1) or d.size != first.size or d.scratch_type != first.scratch_type:
            return None
        text = "\n".join([*d.body, *(x for lines in d.writer.functions.values() for x in lines)])
        for number, slot in d.writer.slots.items():
            if f"{slot.name}[" in text and slots.setdefault(number, slot).declared != slot.declared:
                return None
        for line in d.shared:
            if shared.setdefault(line.partition(":")[0], line) != line:
                return None
        body += [
            f"if (wid.x >= {begin}u && wid.x < {begin + d.grid[0]}u) {{",
            f"  let wid = vec3<u32>(wid.x - {begin}u, 0u, 0u);",
            *("  " + x for x in d.body),
            "}",
        ]
        begin += d.grid[0]
    writer = first.writer
    writer.slots = slots
    writer.args = sorted({a for d in drafts for a in d.writer.args})
    writer.functions = {n: lines for d in drafts for n, lines in d.writer.functions.items()}
    scratch = max((d.scratch for d in drafts), default=())
    return replace(
        first,
        body=body,
        shared=list(shared.values()),
        grid=(total, 1, 1),
        scratch=scratch,
        has_status=any(d.has_status for d in drafts),
        trusted=all(d.trusted for d in drafts),
    ).finished()


def on_scratch(
    p: WgslPass,
    scratch: Mapping[int, int],
    numbers: Mapping[int, int] | Sequence[int],
    sizes: tuple[int, ...],
    own: Sequence[int] = (),
) -> WgslPass:
    """Return a pass some of whose buffers are scratch memory of a routine: `scratch` gives them its
    number, `numbers` gives the others the routine's, `own` those of the pass's own scratch memory in
    the routine's, and `sizes` are the bytes of all scratch buffers, which are bound, used or not."""
    assert len(p.scratch) <= len(own), "its own scratch buffers would be the routine's by number"
    first = len(p.slots)
    found: dict[int, int] = {scratch[s]: i for i, s in enumerate(p.slots) if s in scratch}
    found |= {own[j]: first + j for j in range(len(p.scratch))}
    kept = [i for i, s in enumerate(p.slots) if s not in scratch]
    rest = range(first + len(p.scratch), len(p.bindings))
    order = [*kept, *(found.get(j) for j in range(len(sizes))), *rest]
    new = {old: i for i, old in enumerate(order) if old is not None}
    source = re.sub(r"@binding\((\d+)\)", lambda m: f"@binding({new[int(m[1])]})", p.source)
    unused = "".join(
        f"@group(0) @binding({i}) var<storage, read> unused{i}: array<u32>;\n"
        for i, old in enumerate(order)
        if old is None
    )
    kinds: list[Binding] = ["read" if old is None else p.bindings[old] for old in order]
    return replace(
        p,
        source=source.replace("@compute", f"{unused}@compute", 1),
        slots=tuple(numbers[p.slots[i]] for i in kept),
        scratch=sizes,
        bindings=tuple(kinds),
    )
