"""Convolutions and their gradients on WebGPU, as products of tiles whose operands compute their
positions. Floor 2;
imports floor 0, the renderer and the product kernels.

With row i and column j of the product of one group:
    forward  rows: output channels   columns: (image, y, x) of the output   k: (channel, ky, kx)
    input    rows: input channels    columns: (image, y, x) of the input    k: (output channel, ky,
    kx)
    weight   rows: output channels   columns: (channel, ky, kx)             k: (image, y, x) of the
    output
Groups are the batch of the product. Depthwise convolutions share nothing between outputs, and stay
generic reductions.
"""

from __future__ import annotations

from dataclasses import replace

from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType
from webtorch.ir.expr import Expr
from webtorch.ir.kernel import Convolution, Kernel
from webtorch.ir.limits import Limits
from webtorch.lower.templates import conv_units, matrix_units, winograd
from webtorch.lower.templates.gemm import (
    BATCH,
    COLUMN,
    ROW,
    TAP,
    K,
    Product,
    choose,
    finishes,
    product_passes,
    split,
)
from webtorch.lower.templates.generic import conv_kernel, guarded, within
from webtorch.lower.templates.phases import phase, untouched
from webtorch.lower.wgsl_kernel import render_kernel
from webtorch.lower.wgsl_shader import Engine, WgslPass

__all__ = ["conv_kernel", "is_product", "phase_products", "product", "render"]


def product(r: Convolution, by_tap: bool = False) -> tuple[Product, int]:
    """Return a convolution as a product, and how many of its columns are consecutive in memory.

    `by_tap`: with the taps of the kernel (for the gradient of the weight, the places of an image) as a
    loop of their own around k.
    """
    n, c, h, w = r.input_shape
    o, cg, kh, kw = r.weight_shape
    _, _, oh, ow = r.output_shape
    og, taps = o // r.groups, kh * kw
    (sy, sx), (py, px), (dy, dx) = r.stride, r.padding, r.dilation
    first, second = r.buffers[0].dtype, r.buffers[1].dtype
    # One tap, one step, no border: each image is a plain matrix product.
    plain = taps == 1 and (sy, sx, py, px) == (1, 1, 0, 0) and r.groups == 1

    def variables(*sizes: int) -> list[Expr]:
        """Return a loop variable for each size."""
        return [ex.index(d, s) for d, s in enumerate(sizes)]

    def made(
        sizes: tuple[int, ...], left: Expr, right: Expr, place: Expr, *points: Expr
    ) -> Product:
        """Return the product (batch, rows, columns, inner size, taps) of these operands."""
        batch, rows, columns, k = sizes[:4]
        return Product(
            r.name, batch, rows, columns, k, left, right, place, r.buffers, r.args,
            taps=sizes[4] if len(sizes) > 4 else 1, **finishes(r, points),
        )  # fmt: skip

    def along_k(count: int, inner: int) -> tuple[int, ...]:
        """Return the sizes of the loops over `count` times `inner` k."""
        return (count, inner) if by_tap and inner > 1 else (count * inner,)

    def k_parts(v: list[Expr], *inner: int) -> list[Expr]:
        """Return k as (which, coordinates in `inner`)."""
        if len(v) > TAP:
            return [v[K], *split(v[TAP], *inner)[1:]]
        return split(v[K], *inner)

    def gather(slot: int, dtype: DType, image: Expr, channel: Expr, y: Expr, x: Expr) -> Expr:
        """Return an element of the input, 0 on the border."""
        position = ((image * c + channel) * h + y) * w + x
        tests = []
        if py or dy * (kh - 1) + sy * (oh - 1) >= h:
            tests.append(within(y, h))
        if px or dx * (kw - 1) + sx * (ow - 1) >= w:
            tests.append(within(x, w))
        if not tests:
            return ex.load(slot, dtype, position)
        return guarded(slot, dtype, position, tests[0] if len(tests) == 1 else tests[0] & tests[1])

    if r.kind == "forward":
        if plain:
            sizes: tuple[int, ...] = (n, o, h * w, c)
            v = variables(*sizes)
            left = ex.load(1, second, v[ROW] * c + v[K])
            right = ex.load(0, first, (v[BATCH] * c + v[K]) * (h * w) + v[COLUMN])
            place = (v[BATCH] * o + v[ROW]) * (h * w) + v[COLUMN]
            return made(sizes, left, right, place, v[BATCH], v[ROW], v[COLUMN]), h * w
        sizes = (r.groups, og, n * oh * ow, *along_k(cg, taps))
        v = variables(*sizes)
        whole = v[K] * taps + v[TAP] if len(v) > TAP else v[K]
        left = ex.load(1, second, (v[BATCH] * og + v[ROW]) * (cg * taps) + whole)
        image, y, x = split(v[COLUMN], oh, ow)
        channel, ky, kx = k_parts(v, kh, kw)
        right = gather(
            0, first, image, v[BATCH] * cg + channel, y * sy + ky * dy - py, x * sx + kx * dx - px
        )
        picture, spot = split(v[COLUMN], oh * ow)
        row = v[BATCH] * og + v[ROW]
        place = (picture * o + row) * (oh * ow) + spot
        return made(sizes, left, right, place, picture, row, spot), oh * ow
    if r.kind == "input":
        if plain:
            sizes = (n, c, h * w, o)
            v = variables(*sizes)
            left = ex.load(1, second, v[K] * c + v[ROW])
            right = ex.load(0, first, (v[BATCH] * o + v[K]) * (h * w) + v[COLUMN])
            place = (v[BATCH] * c + v[ROW]) * (h * w) + v[COLUMN]
            return made(sizes, left, right, place, v[BATCH], v[ROW], v[COLUMN]), h * w
        sizes = (r.groups, cg, n * h * w, *along_k(og, taps))
        v = variables(*sizes)
        channel, tap = k_parts(v, taps)
        left = ex.load(1, second, (v[BATCH] * og + channel) * (cg * taps) + v[ROW] * taps + tap)
        image, y, x = split(v[COLUMN], h, w)
        _, ky, kx = k_parts(v, kh, kw)
        ty, tx = y + py - ky * dy, x + px - kx * dx
        oy, ox = (ex.floordiv(ty, sy) if sy > 1 else ty), (ex.floordiv(tx, sx) if sx > 1 else tx)
        valid = within(oy, oh) & within(ox, ow)
        if sy > 1:
            valid = valid & ex.eq(ty, oy * sy)
        if sx > 1:
            valid = valid & ex.eq(tx, ox * sx)
        right = guarded(
            0, first, ((image * o + v[BATCH] * og + channel) * oh + oy) * ow + ox, valid
        )
        picture, spot = split(v[COLUMN], h * w)
        row = v[BATCH] * cg + v[ROW]
        place = (picture * c + row) * (h * w) + spot
        return made(sizes, left, right, place, picture, row, spot), h * w
    sizes = (r.groups, og, cg * taps, *along_k(n, oh * ow))
    v = variables(*sizes)
    picture, spot = k_parts(v, oh * ow)
    left = ex.load(1, second, (picture * o + v[BATCH] * og + v[ROW]) * (oh * ow) + spot)
    image, y, x = k_parts(v, oh, ow)
    channel, ky, kx = split(v[COLUMN], kh, kw)
    right = gather(
        0, first, image, v[BATCH] * cg + channel, y * sy + ky * dy - py, x * sx + kx * dx - px
    )
    row = v[BATCH] * og + v[ROW]
    place = row * (cg * taps) + v[COLUMN]
    run = 1 if len(sizes) > TAP else oh * ow
    if plain:
        right = ex.load(0, first, (picture * c + v[COLUMN]) * (oh * ow) + spot)
    found = made(sizes, left, right, place, row, v[COLUMN])
    return replace(found, k_fastest=True, left_run=run, right_run=run if plain else 1), 1


def phase_products(r: Convolution) -> list[Product | Kernel]:
    """Return the input gradient of a strided convolution as one product for each phase of the
    stride.

    An input place meets only the taps of its own phase: nothing is multiplied with the zeros in
    between.
    """
    n, c, h, w = r.input_shape
    o, cg, kh, kw = r.weight_shape
    _, _, oh, ow = r.output_shape
    og = o // r.groups
    (sy, sx), (py, px), (dy, dx) = r.stride, r.padding, r.dilation
    out: list[Product | Kernel] = []
    for ry in range(min(sy, h)):
        for rx in range(min(sx, w)):
            a, b = phase(h, kh, sy, py, dy, ry), phase(w, kw, sx, px, dx, rx)
            if not a.taps * b.taps:
                out.append(untouched(r, (a.places, b.places), (ry, rx)))
                continue
            batch, rows, columns, k = (
                r.groups, cg, n * a.places * b.places, og * a.taps * b.taps
            )  # fmt: skip
            v = [ex.index(d, s) for d, s in enumerate((batch, rows, columns, k))]
            channel, jy, jx = split(v[K], a.taps, b.taps)
            image, y, x = split(v[COLUMN], a.places, b.places)
            tap = (jy * a.stride + a.first) * kw + jx * b.stride + b.first
            row = v[BATCH] * og + channel
            left = ex.load(1, r.buffers[1].dtype, (row * cg + v[ROW]) * (kh * kw) + tap)
            oy, ox = y + a.start - jy * a.back, x + b.start - jx * b.back
            valid = within(oy, oh) & within(ox, ow)
            position = ((image * o + row) * oh + oy) * ow + ox
            right = guarded(0, r.buffers[0].dtype, position, valid)
            channel = v[BATCH] * cg + v[ROW]
            spot = (y * sy + ry) * w + x * sx + rx
            place = (image * c + channel) * (h * w) + spot
            out.append(
                Product(
                    r.name,
                    batch,
                    rows,
                    columns,
                    k,
                    left,
                    right,
                    place,
                    r.buffers,
                    r.args,
                    **finishes(r, (image, channel, spot)),
                )
            )
    return out


def _phases(r: Convolution, limits: Limits, engine: Engine) -> list[WgslPass]:
    passes: list[WgslPass] = []
    for part in phase_products(r):
        if isinstance(part, Kernel):
            passes += render_kernel(part, limits, engine)
        else:
            # The passes of a routine share their scratch, so none of these is split along k.
            passes += product_passes(part, limits, choose(part, limits)[0], 1)
    return passes


def _has_phases(r: Convolution, p: Product) -> bool:
    return r.kind == "input" and max(r.stride) > 1 and p.m * p.n * p.k > 1 << 20


def is_product(r: Convolution) -> bool:
    """Whether one product of tiles computes the routine."""
    p, _ = product(r)
    return min(p.m, p.n) >= 4 and p.k > 0 and not _has_phases(r, p)


def is_special(r: Convolution, limits: Limits, engine: Engine) -> bool:
    """Whether Winograd's method or matrix units compute the routine."""
    return (
        matrix_units.choose(product(r)[0], limits, engine) is not None
        or conv_units.suits(r, limits, engine)
        or winograd.suits(r, limits)
    )


def render(routine: Convolution, limits: Limits, engine: Engine) -> list[WgslPass]:
    """Return the dispatches of a convolution or of one of its gradients."""
    p, columns = product(routine)
    if p.m < 4 or p.n < 4 or p.k == 0:
        return render_kernel(conv_kernel(routine), limits, engine)
    # Where there is one tap, and all lies in vectors, matrix units read what there is.
    found = matrix_units.render(p, limits, engine, columns)
    if found is not None:
        return found
    if conv_units.suits(routine, limits, engine):
        return conv_units.passes(routine, limits, engine)
    if _has_phases(routine, p):
        return _phases(routine, limits, engine)
    if winograd.suits(routine, limits):
        return winograd.passes(routine, limits, engine)
    tile, split = choose(p, limits)
    if tile is None and split == 1:
        # Positions and borders are computed for each tap, not for each k.
        return product_passes(product(routine, by_tap=True)[0], limits, None, 1, columns)
    return product_passes(p, limits, tile, split, columns)
