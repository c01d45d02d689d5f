"""Matrix products on WebGPU. Floor 2; imports floor 0, the renderer and the product kernels."""

from __future__ import annotations

from webtorch.ir import expr as ex
from webtorch.ir.dtype import int32
from webtorch.ir.expr import Expr
from webtorch.ir.kernel import Matmul
from webtorch.ir.view import contiguous_strides, numel
from webtorch.lower.templates import matrix_units
from webtorch.lower.templates.gemm import (
    BATCH,
    COLUMN,
    PARTS,
    ROW,
    K,
    Product,
    finishes,
    linear,
    render_product,
    split,
)
from webtorch.lower.templates.generic import matmul_kernel
from webtorch.lower.wgsl_kernel import render_kernel
from webtorch.lower.wgsl_shader import Engine, WgslPass
from webtorch.runtime.backend import Limits

__all__ = ["is_product", "matmul_kernel", "product", "render"]


def product(r: Matmul) -> Product:
    """Return a matrix product with its batch dimensions made one loop variable."""
    count = numel(r.batch)
    scales = [_scale(r.batch, s[:-2]) for s in (r.left_strides, r.right_strides)]
    parts = r.batch if None in scales else ()
    sizes = (count, r.m, r.n, r.k, 1, *parts)
    index = [ex.index(d, s) for d, s in enumerate(sizes)]

    def operand(slot: int, strides: tuple[int, ...], offset: int, row: Expr, column: Expr) -> Expr:
        position = ex.const(offset, int32)
        scale = scales[slot]
        if scale is None:
            position = position + linear(index[PARTS:], list(strides[:-2]))
        elif scale:
            position = position + index[BATCH] * scale
        position = position + row * strides[-2] + column * strides[-1]
        return ex.load(slot, r.buffers[slot].dtype, position)

    left = operand(0, r.left_strides, r.left_offset, index[ROW], index[K])
    right = operand(1, r.right_strides, r.right_offset, index[K], index[COLUMN])
    place = (index[BATCH] * r.m + index[ROW]) * r.n + index[COLUMN]
    points = (*split(index[BATCH], *r.batch)[1:], index[ROW], index[COLUMN])
    return Product(
        r.name, count, r.m, r.n, r.k, left, right, place, r.buffers, r.args, parts=parts,
        **finishes(r, points),
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


def is_product(r: Matmul) -> bool:
    """Whether tiles serve. Dot products and matrix-vector products are reductions: nothing is read
    twice."""
    return r.k > 0 and r.m > 1 and r.n > 1 and numel(r.batch) * r.m * r.n >= 16


def render(routine: Matmul, limits: Limits, engine: Engine) -> list[WgslPass]:
    """Return the dispatches of a matrix product."""
    r = routine
    if not is_product(r):
        return render_kernel(matmul_kernel(r), limits, engine)
    p = product(r)
    return matrix_units.render(p, limits, engine) or render_product(p, limits)
