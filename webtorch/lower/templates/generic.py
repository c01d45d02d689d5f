"""The templates as generic kernels: the fallback on every device, and the reference of the
templates' tests. Floor 2;
imports floor 0 only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType, int32
from webtorch.ir.expr import Expr
from webtorch.ir.kernel import (
    RUN,
    BufferSlot,
    Convolution,
    Kernel,
    Matmul,
    Reduce,
    Scan,
    Store,
)
from webtorch.ir.reducer import REDUCERS
from webtorch.ir.view import contiguous_strides, numel
from webtorch.lower.affine import affine

P = TypeVar("P", bound=Matmul | Convolution)
# A row and a column.
Place: TypeAlias = Sequence[Expr]


def _sum_of_products(a: Expr, b: Expr, dtype: DType) -> Reduce:
    """Return the reduction that adds a * b in type `dtype`."""
    return Reduce("sum", ex.cast(a, dtype) * ex.cast(b, dtype), dtype)


def _linear(indices: list[Expr], strides: tuple[int, ...], offset: int = 0) -> Expr:
    position = ex.const(offset, int32)
    for i, stride in zip(indices, strides, strict=True):
        if stride:
            position = position + i * stride
    return position


def at_points(
    routine: Matmul | Convolution, points: Sequence[Expr], value: Expr | None = None
) -> tuple[Store, ...]:
    """Return the stores of a product's epilogue, its loop variables replaced by `points` and the
    sum by `value`, where one is given."""
    memo: dict[Expr, Expr] = {}

    def other(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
        """Return a loop variable's point, and the product's value for its sum."""
        del args
        if node.op == "index":
            return points[node.value[0]]
        return value if node.op == "reduced" else None

    return tuple(
        replace(
            s,
            position=ex.rewrite(s.position, other, memo),
            value=ex.rewrite(s.value, other, memo),
            valid=None if s.valid is None else ex.rewrite(s.valid, other, memo),
        )
        for s in routine.epilogue
    )


def without_epilogue(
    routine: P,
) -> tuple[P, Kernel, tuple[int, ...], BufferSlot | None]:
    """Return a product that stores its sums, and the kernel that does the rest.

    Then the buffers of the kernel, by their numbers among the routine's, and the product's output:
    the first of them, if the returned slot is None; else it has the number after the last of the
    routine's, and is a scratch buffer of that form.
    """
    r = routine
    dtype, count = r.accumulates, numel(r.points)
    flat = _linear([ex.index(d, s) for d, s in enumerate(r.points)], contiguous_strides(r.points))
    rest = tuple(range(2, len(r.buffers)))
    # The sums wait where a result is going to be, if that is written only, and all of it.
    free = [
        s.buffer
        for s in r.epilogue
        if r.buffers[s.buffer] == BufferSlot(dtype, "write", count)
        and s.valid is None
        and affine(s.position) == affine(flat)
    ]
    scratch = None if free else BufferSlot(dtype, "write", count)
    target = free[0] if free else len(r.buffers)
    order = (target, *(n for n in rest if n != target))
    place = {n: i for i, n in enumerate(order)}
    memo: dict[Expr, Expr] = {}

    def other(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
        """Return the stored sum, and loads of the buffers by their new numbers."""
        if node.op == "reduced":
            return ex.load(0, dtype, flat)
        if node.op == "load":
            return ex.make("load", node.dtype, args, place[node.value])
        return None

    stores = tuple(
        replace(s, buffer=place[s.buffer], position=ex.rewrite(s.position, other, memo),
                value=ex.rewrite(s.value, other, memo),
                valid=None if s.valid is None else ex.rewrite(s.valid, other, memo))
        for s in r.epilogue
    )  # fmt: skip
    slots = tuple(r.buffers[n] for n in order if n < len(r.buffers))
    out = BufferSlot(dtype, "write", count)
    first = replace(out, access="read") if scratch else replace(out, access="read_write")
    kernel = Kernel(
        f"{r.name}_after",
        r.points,
        (),
        (first, *(slots if scratch else slots[1:])),
        r.args,
        (),
        stores,
    )
    plain = replace(r, buffers=(*r.buffers[:2], out), args=(), epilogue=())
    return plain, kernel, order, scratch


def matmul_kernel(routine: Matmul) -> Kernel:
    """Return a matrix product as a generic kernel, with the same buffers."""
    r = routine
    outer = (*r.batch, r.m, r.n)
    rank = len(outer)
    index = [ex.index(d, size) for d, size in enumerate(outer)]
    batch, row, column = index[:-2], index[-2], index[-1]
    k = ex.index(rank, r.k)
    left = ex.load(0, r.buffers[0].dtype, _linear([*batch, row, k], r.left_strides, r.left_offset))
    if r.unpacked is not None:
        right = r.right(ex.floordiv(k, RUN), ex.mod(k, RUN), column)
    else:
        place = _linear([*batch, k, column], r.right_strides, r.right_offset)
        right = ex.load(1, r.buffers[1].dtype, place)
    out = r.buffers[2].dtype
    reduce = _sum_of_products(left, right, r.accumulates)
    strides = [1]
    for size in reversed(outer[1:]):
        strides.insert(0, strides[0] * size)
    store = Store(2, _linear(index, tuple(strides)), ex.cast(ex.reduced(0, reduce.dtype), out))
    stores = r.epilogue or (store,)
    return Kernel(r.name, outer, (r.k,), r.buffers, r.args, (reduce,), stores)


def within(x: Expr, size: int) -> Expr:
    """Return whether 0 <= x < size."""
    return ex.ge(x, 0) & ex.lt(x, size)


def guarded(slot: int, dtype: DType, position: Expr, valid: Expr) -> Expr:
    """Return a load that is 0 where `valid` does not hold."""
    return ex.make("load", dtype, (position, valid, ex.const(0, dtype)), slot)


def met(r: Convolution, spot: Place, tap: Place) -> tuple[ex.Expr, ex.Expr, ex.Expr]:
    """Return the row and column of the image that a tap of the window meets at a spot of the output,
    and whether there is such a place."""
    (sy, sx), (py, px), (dy, dx) = r.stride, r.padding, r.dilation
    y = spot[0] * sy + tap[0] * dy - py
    x = spot[1] * sx + tap[1] * dx - px
    return y, x, within(y, r.input_shape[2]) & within(x, r.input_shape[3])


def meeting(r: Convolution, place: Place, tap: Place) -> tuple[ex.Expr, ex.Expr, ex.Expr]:
    """Return the spot of the output at which a tap meets a place of the image, and whether there is such a spot."""
    (sy, sx), (py, px), (dy, dx) = r.stride, r.padding, r.dilation
    ty, tx = place[0] + py - tap[0] * dy, place[1] + px - tap[1] * dx
    y, x = ex.floordiv(ty, sy), ex.floordiv(tx, sx)
    valid = within(y, r.output_shape[2]) & within(x, r.output_shape[3])
    if sy > 1:
        valid = valid & ex.eq(ex.mod(ty, sy), 0)
    if sx > 1:
        valid = valid & ex.eq(ex.mod(tx, sx), 0)
    return y, x, valid


def conv_kernel(routine: Convolution) -> Kernel:
    """Return a convolution, or one of its gradients, as a generic kernel with the same buffers."""
    r = routine
    n, c, h, w = r.input_shape
    o, cg, kh, kw = r.weight_shape
    _, _, oh, ow = r.output_shape
    og = o // r.groups
    first, second, out = (b.dtype for b in r.buffers[:3])
    if r.kind == "forward":
        outer, inner = (n, o, oh, ow), (cg, kh, kw)
        i = [ex.index(d, s) for d, s in enumerate((*outer, *inner))]
        y, x, valid = met(r, (i[2], i[3]), (i[5], i[6]))
        channel = ex.floordiv(i[1], og) * cg + i[4] if r.groups > 1 else i[4]
        a = guarded(0, first, ((i[0] * c + channel) * h + y) * w + x, valid)
        b = ex.load(1, second, ((i[1] * cg + i[4]) * kh + i[5]) * kw + i[6])
    elif r.kind == "input":
        outer, inner = (n, c, h, w), (og, kh, kw)
        i = [ex.index(d, s) for d, s in enumerate((*outer, *inner))]
        y, x, valid = meeting(r, (i[2], i[3]), (i[5], i[6]))
        channel = ex.floordiv(i[1], cg) * og + i[4] if r.groups > 1 else i[4]
        a = guarded(0, first, ((i[0] * o + channel) * oh + y) * ow + x, valid)
        local = ex.mod(i[1], cg) if r.groups > 1 else i[1]
        b = ex.load(1, second, ((channel * cg + local) * kh + i[5]) * kw + i[6])
    else:
        outer, inner = (o, cg, kh, kw), (n, oh, ow)
        i = [ex.index(d, s) for d, s in enumerate((*outer, *inner))]
        y, x, valid = met(r, (i[5], i[6]), (i[2], i[3]))
        channel = ex.floordiv(i[0], og) * cg + i[1] if r.groups > 1 else i[1]
        a = guarded(0, first, ((i[4] * c + channel) * h + y) * w + x, valid)
        b = ex.load(1, second, ((i[4] * o + i[0]) * oh + i[5]) * ow + i[6])
    reduce = _sum_of_products(a, b, r.accumulates)
    if r.epilogue:
        spot = i[2] * outer[3] + i[3]
        points = (i[0], i[1], spot) if r.kind != "weight" else (i[0], i[1] * (kh * kw) + spot)
        return Kernel(r.name, outer, inner, r.buffers, r.args, (reduce,), at_points(r, points))
    position = ((i[0] * outer[1] + i[1]) * outer[2] + i[2]) * outer[3] + i[3]
    store = Store(2, position, ex.cast(ex.reduced(0, reduce.dtype), out))
    return Kernel(r.name, outer, inner, r.buffers, r.args, (reduce,), (store,))


def scan_kernel(routine: Scan) -> Kernel:
    """Return a scan as a generic kernel: every element reduces its whole prefix, so only for short
    rows."""
    r = routine
    out = r.buffers[1].dtype
    dtype = out.compute
    i = [ex.index(d, s) for d, s in enumerate((r.outer, r.length, r.inner, r.length))]
    x = ex.cast(ex.load(0, r.buffers[0].dtype, (i[0] * r.length + i[3]) * r.inner + i[2]), dtype)
    reducer = REDUCERS[r.op]
    if not reducer.is_extreme:
        value = ex.where(ex.le(i[3], i[1]), x, reducer.identity(dtype))
    else:
        # A prefix always holds its own first element, whatever the type's smallest value is.
        start = ex.cast(ex.load(0, r.buffers[0].dtype, i[0] * (r.length * r.inner) + i[2]), dtype)
        value = ex.where(ex.le(i[3], i[1]), x, start)
    store = Store(1, (i[0] * r.length + i[1]) * r.inner + i[2], ex.cast(ex.reduced(0, dtype), out))
    return Kernel(
        r.name,
        (r.outer, r.length, r.inner),
        (r.length,),
        r.buffers,
        r.args,
        (Reduce(r.op, value, dtype),),
        (store,),
    )
