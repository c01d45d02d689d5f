"""Matrix products on WebGPU. Floor 2; imports floor 0, the renderer and the product kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from webtorch.ir import expr as ex
from webtorch.ir.dtype import int32
from webtorch.ir.expr import Expr
from webtorch.ir.kernel import RUN, Kernel, Matmul, Products
from webtorch.ir.limits import Limits
from webtorch.ir.view import contiguous_strides, numel
from webtorch.lower.templates import matrix_units
from webtorch.lower.templates.gemm import choose, pays, product_drafts, ranked, render_product
from webtorch.lower.templates.generic import matmul_kernel
from webtorch.lower.templates.matrix_units import matrix_drafts
from webtorch.lower.templates.product import (
    BATCH,
    COLUMN,
    PARTS,
    ROW,
    K,
    Product,
    finishes,
    linear,
    split,
)
from webtorch.lower.templates.tuning import MatrixTile, Tile
from webtorch.lower.together import renumbered
from webtorch.lower.wgsl_kernel import render_kernel
from webtorch.lower.wgsl_reduce import render_reductions
from webtorch.lower.wgsl_shader import Draft, Engine, WgslPass, beside

_ALONE = {0: 0, 1: 1, 2: 2}
# What a dispatch costs beside its work, in seconds; and the part of their time that products must
# gain in one dispatch: its shader is as long as theirs together, and takes as long to compile.
_DISPATCH, _GAIN = 3e-6, 0.1
# Most outputs of an invocation where products are one dispatch without matrix units. Drivers give
# invocations with more too few registers when their tile is in the shader several times: on an H200,
# three products of 1024 x 768 x 768 took 316 us with 8 x 12 outputs, 140 as three dispatches.
_OWN = 32


def product(r: Matmul, places: Mapping[int, int] = _ALONE) -> Product:
    """Return a matrix product with its batch dimensions made one loop variable; `places` are the
    numbers of its operands and its output among the buffers."""
    count = numel(r.batch)
    scales = [_scale(r.batch, s[:-2]) for s in (r.left_strides, r.right_strides)]
    parts = r.batch if None in scales else ()
    sizes = (count, r.m, r.n, r.k, 1, *parts)
    index = [ex.index(d, s) for d, s in enumerate(sizes)]

    def operand(slot: int, strides: tuple[int, ...], offset: int, row: Expr, column: Expr) -> Expr:
        """Return the load of an operand's element."""
        position = ex.const(offset, int32)
        scale = scales[slot]
        if scale is None:
            position = position + linear(index[PARTS:], list(strides[:-2]))
        elif scale:
            position = position + index[BATCH] * scale
        position = position + row * strides[-2] + column * strides[-1]
        return ex.load(places[slot], r.buffers[slot].dtype, position)

    left = operand(0, r.left_strides, r.left_offset, index[ROW], index[K])
    runs: tuple[Expr, ...] = ()
    fours: tuple[Expr, ...] = ()
    if r.unpacked is not None:

        def unpacked(run: Expr, within: Expr) -> Expr:
            """Return the right operand's element at a place in a run."""
            return r.right(run, within, index[COLUMN], places[1])

        # Divided: no stride of k is one of runs.
        run, four = ex.floordiv(index[K], RUN), ex.floordiv(index[K], 4)
        half = ex.mod(four, RUN // 4) * 4
        runs = tuple([unpacked(run, ex.const(i, int32)) for i in range(RUN)])
        fours = tuple([unpacked(ex.floordiv(four, RUN // 4), half + i) for i in range(4)])
        right = unpacked(ex.floordiv(index[K], RUN), ex.mod(index[K], RUN))
    else:
        right = operand(1, r.right_strides, r.right_offset, index[K], index[COLUMN])
    place = (index[BATCH] * r.m + index[ROW]) * r.n + index[COLUMN]
    points = (*split(index[BATCH], *r.batch)[1:], index[ROW], index[COLUMN])
    return Product(
        r.name, count, r.m, r.n, r.k, left, right, place, r.buffers, r.args, parts=parts,
        out=places[2], runs=runs, fours=fours, **finishes(r, points),
    )  # fmt: skip


def _scale(batch: tuple[int, ...], strides: tuple[int, ...]) -> int | None:
    """Return s if the batch strides are s times row-major ones (0 for a shared operand), else
    None."""
    found: int | None = None
    for size, step, stride in zip(batch, contiguous_strides(batch), strides, strict=True):
        if size == 1:
            continue
        if stride % step or (found is not None and found != stride // step):
            return None
        found = stride // step
    return found or 0


def is_product(r: Matmul, limits: Limits) -> bool:
    """Whether tiles serve. Dot products and matrix-vector products are reductions: nothing is read
    twice."""
    outputs = numel(r.batch) * r.m * r.n
    return r.k > 0 and r.m > 1 and r.n > 1 and outputs >= 16 and pays(outputs * r.k, limits)


def render(routine: Matmul, limits: Limits, engine: Engine) -> list[WgslPass]:
    """Return the dispatches of a matrix product."""
    work = product(routine) if is_product(routine, limits) else matmul_kernel(routine)
    return _rendered(work, limits, engine)


def _rendered(work: Product | Kernel, limits: Limits, engine: Engine) -> list[WgslPass]:
    if isinstance(work, Kernel):
        return render_kernel(work, limits, engine)
    return matrix_units.render(work, limits, engine) or render_product(work, limits)


def render_products(r: Products, limits: Limits, engine: Engine) -> list[WgslPass]:
    """Return the dispatches of products of one left operand: that of all, where it pays; else those
    of each."""
    numbered = [
        (dict(enumerate(places)), dict(enumerate(numbers)))
        for places, numbers in zip(r.places, r.numbers, strict=True)
    ]
    found: list[Product | Kernel] = []
    for part, (slots, args) in zip(r.parts, numbered, strict=True):
        if is_product(part, limits):
            p = replace(product(part, slots), buffers=r.buffers, args=r.args)
            if p.epilogue is not None:
                p = replace(p, epilogue=renumbered(p.epilogue, slots, args, r.buffers, r.args))
            found.append(p)
        else:
            found.append(renumbered(matmul_kernel(part), slots, args, r.buffers, r.args))
    products = [p for p in found if isinstance(p, Product)]
    kernels = [k for k in found if isinstance(k, Kernel)]
    together: list[WgslPass] | None = None
    if not kernels:
        together = _together(products, limits, engine)
    elif not products:
        one = render_reductions(kernels, limits)
        together = [one] if one else None
    return together or [one for x in found for one in _rendered(x, limits, engine)]


def _together(parts: list[Product], limits: Limits, engine: Engine) -> list[WgslPass] | None:
    """Return the dispatches of products with one left operand, each of which has some of the
    workgroups; None where they gain nothing, or differ in what they need."""
    whole = replace(parts[0], others=tuple(p.n for p in parts[1:]))
    # Each as it would be alone.
    alone = [matrix_units.fastest(p, limits, engine) for p in parts]
    best = matrix_units.fastest(whole, limits, engine)
    if any((one is None) != (best is None) for one in alone):
        return None
    tile: Tile | MatrixTile | None
    if best is not None:
        seconds, tile, split = best
        apart = sum(one[0] for one in alone if one)
    else:
        found = [c for c in ranked(whole, limits) if c[1].own_rows * c[1].own_columns <= _OWN]
        models = [ranked(p, limits) for p in parts]
        if not limits.is_gpu:
            seconds, (tile, split), models = 0.0, choose(whole, limits), []
        elif found and all(models):
            seconds, tile, split = found[0]
        else:
            return None
        apart = sum(m[0][0] for m in models)
    gained = apart + _DISPATCH * (len(parts) - 1) - seconds
    if limits.is_gpu and not limits.varying and gained < _GAIN * apart:
        return None
    drafts: list[list[Draft]] = []
    first = 0
    for i, p in enumerate(parts):
        p = replace(p, part=i, scratch_first=first)
        first += p.batch * p.m * -(-p.n // 4) * split
        drafts.append(
            matrix_drafts(p, limits, tile, split)
            if isinstance(tile, MatrixTile)
            else product_drafts(p, limits, tile, split)
        )
    passes = [beside(stage, limits) for stage in zip(*drafts, strict=True)]
    whole_passes = [one for one in passes if one is not None]
    return whole_passes if len(whole_passes) == len(passes) else None
