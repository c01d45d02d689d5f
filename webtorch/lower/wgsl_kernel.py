"""Generic kernels: those without reductions, and the way to the others. Floor 2; imports floor 0
and the writer.

An invocation takes `lanes` consecutive points, so that it can load four-element vectors and write
whole words of packed types.
Kernels that read along one dimension and write along another walk squares.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from webtorch.ir import expr as ex
from webtorch.ir.kernel import (
    Check,
    Kernel,
    Several,
    Store,
)
from webtorch.ir.limits import Limits
from webtorch.ir.view import numel
from webtorch.lower.affine import affine
from webtorch.lower.wgsl_reduce import render_reduction, render_reductions
from webtorch.lower.wgsl_shader import (
    Draft,
    Engine,
    WgslPass,
    beside,
    fold_grid,
    group_number,
)
from webtorch.lower.wgsl_writer import TAKERS, VECTOR_POINTS, KernelWriter, Scope, rounded_by_store


def render_kernel(kernel: Kernel, limits: Limits, engine: Engine) -> list[WgslPass]:
    """Return the dispatches of a generic kernel."""
    del engine  # the generic kernels use nothing that engines spell differently
    if not kernel.reduces:
        return [_elementwise(kernel, limits)]
    return render_reduction(kernel, limits)


def flat(kernel: Kernel) -> Kernel:
    """Return a kernel without reductions with its inner points made outer ones."""
    if not kernel.inner:
        return kernel
    stores = []
    for s in kernel.stores:
        if s.level == "outer":
            first = [
                ex.eq(ex.index(len(kernel.outer) + i, n), 0)
                for i, n in enumerate(kernel.inner)
                if n > 1
            ]
            valid = s.valid
            for test in first:
                valid = test if valid is None else valid & test
            s = Store(s.buffer, s.position, s.value, "outer", s.combine, valid)
        stores.append(Store(s.buffer, s.position, s.value, "outer", s.combine, s.valid))
    checks = tuple(Check(c.value, c.high, c.site, "outer", c.low) for c in kernel.checks)
    return Kernel(
        kernel.name,
        (*kernel.outer, *kernel.inner),
        (),
        kernel.buffers,
        kernel.args,
        (),
        tuple(stores),
        checks,
    )


_SQUARE = 32


def _transposed_dim(writer: KernelWriter) -> int | None:
    """Return the outer dimension along which a kernel reads neighbours while it writes along the
    last one, else None.

    Such a kernel should walk squares: the lines of memory that it reads then stay in the cache
    until they are used up.
    """
    k, lanes = writer.kernel, writer.lanes
    rank = len(k.outer)
    if not writer.limits.is_gpu or rank < 2 or writer.limits.max_workgroup_invocations < 256:
        return None
    last = k.outer[-1]
    if k.outer_count < VECTOR_POINTS or last < _SQUARE or last % lanes:
        return None
    best: tuple[int, int] | None = None
    for node in writer.loads():
        form = affine(node.args[0], writer.affine_memo)
        if form is None or form.stride(rank - 1) in (0, 1):
            continue
        for d in range(rank - 1):
            size = k.buffers[cast(int, node.value)].elements
            if form.stride(d) == 1 and k.outer[d] >= 4 and (best is None or size > best[0]):
                best = (size, d)
    return None if best is None else best[1]


def _write_square(writer: KernelWriter, across: int, body: list[str]) -> tuple[int, int, int]:
    """Number the points square by square: `across` and the last dimension side by side; returns the
    grid."""
    outer, lanes = writer.kernel.outer, writer.lanes
    wide = _SQUARE // lanes
    tall = 256 // wide
    last, other = outer[-1], outer[across]
    step = numel(outer[across + 1 :])
    tiles_x, tiles_y = -(-last // _SQUARE), -(-other // tall)
    middle = numel(outer[across + 1 : -1])
    grid = fold_grid(tiles_x * tiles_y * middle * numel(outer[:across]), writer.limits)
    body += [
        f"let group = i32({group_number(grid)});",
        f"let along = (group % {tiles_x}) * {_SQUARE} + i32(lid % {wide}u) * {lanes};",
        f"let side = ((group / {tiles_x}) % {tiles_y}) * {tall} + i32(lid / {wide}u);",
        f"let rest = group / {tiles_x * tiles_y};",
        f"if (along >= {last} || side >= {other}) {{ return; }}",
        f"let i = (rest / {middle}) * {step * other} + side * {step} + (rest % {middle}) * {last} + along;",
    ]
    return grid


def _elementwise(kernel: Kernel, limits: Limits) -> WgslPass:
    return _draft(kernel, limits).finished()


def render_points(kernel: Kernel, limits: Limits) -> WgslPass:
    """Return the dispatch of a kernel without sums, one point an invocation: those that are large."""
    return _draft(kernel, limits, 64, False).finished()


def render_several(routine: Several, limits: Limits) -> list[WgslPass]:
    """Return the dispatch of several kernels, each of which has some of the workgroups; or of each
    by itself, where they cannot be one."""
    if any(part.reduces for part in routine.parts):
        sums = render_reductions(routine.parts, limits)
        return [sums] if sums else [p for k in routine.parts for p in render_reduction(k, limits)]
    one = beside([_draft(part, limits, _MERGED_SIZE) for part in routine.parts], limits)
    return [one] if one else [_elementwise(part, limits) for part in routine.parts]


# Invocations in a workgroup of merged kernels.
_MERGED_SIZE = 64


def _draft(kernel: Kernel, limits: Limits, wanted: int = 0, vectors: bool = True) -> Draft:
    """Return what the dispatch is made of, in workgroups of `wanted`, if given; an invocation takes
    several points only with `vectors`."""
    kernel = flat(kernel)
    writer = KernelWriter(kernel, limits)
    count = kernel.outer_count
    if vectors and not writer.in_turn:
        writer.choose_lanes(count)
    else:
        writer.choose_slots()
    lanes = writer.lanes
    top = writer.top
    body = top.lines
    across = None if wanted else _transposed_dim(writer)
    if writer.in_turn:
        size = min(64, limits.max_workgroup_invocations)
        grid = fold_grid(TAKERS // size, limits)
        body.append(f"let own = {group_number(grid)} * {size}u + lid;")
        body.append(f"for (var i = 0; i < {count}; i = i + 1) {{")
        write_points(writer)
        body.append("}")
        return Draft(writer, body, [], size, grid, has_status=bool(kernel.checks))
    if across is not None:
        size, grid = 256, _write_square(writer, across, body)
    else:
        invocations = -(-count // lanes)
        size = wanted or min(
            256 if invocations >= 1 << 14 else 64, limits.max_workgroup_invocations
        )
        grid = fold_grid(-(-invocations // size), limits)
        number = f"i32({group_number(grid)} * {size}u + lid)"
        body.append(f"let i = {number}{f' * {lanes}' if lanes > 1 else ''};")
    body.append(f"if (i >= {count}) {{ return; }}")
    write_points(writer)
    return Draft(writer, body, [], size, grid, has_status=bool(kernel.checks))


def write_points(writer: KernelWriter, known: Callable[[Scope], object] | None = None) -> None:
    """Write what a kernel without reductions does at the points of one invocation, from number `i`
    on. `known` is given the scope of each point first, to say what is known there."""
    kernel, top, lanes, count = writer.kernel, writer.top, writer.lanes, writer.kernel.outer_count
    body = top.lines
    top.linear = "i"
    scopes: list[Scope] = []
    if lanes == 1:
        scopes = [top]
    else:
        for lane in range(lanes):
            scope = Scope(parent=top, lines=body, lane=lane)
            scope.base = scopes[0] if scopes else scope
            if lane == 0:
                scope.linear = "i"
            elif count % lanes == 0:
                scope.linear = f"(i + {lane})"
            else:
                scope.linear = writer.bind(f"min(i + {lane}, {count - 1})", body)
            scopes.append(scope)
    if known is not None:
        for scope in scopes:
            known(scope)
    partial = count % lanes != 0
    for lane, scope in enumerate(scopes):
        guard = f"i + {lane} < {count}" if partial and lane else ""
        for check in kernel.checks:
            writer.check(check, scope, guard)
    writer.read_before_writing(kernel.stores, scopes)
    for store in kernel.stores:
        slot = writer.slots[store.buffer]
        if slot.width > 1 and not slot.atomic:
            whole = Store(
                store.buffer, store.position, rounded_by_store(store.value, slot.slot.dtype)
            )
            writer.store_word(whole, scopes, str(count) if partial else "")
        else:
            for lane, scope in enumerate(scopes):
                writer.store(store, scope, f"i + {lane} < {count}" if partial and lane else "")
