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
from webtorch.ir.expr import Expr
from webtorch.ir.kernel import Convolution, Kernel
from webtorch.ir.limits import Limits
from webtorch.lower.templates import conv_units, matrix_units, winograd
from webtorch.lower.templates.gemm import choose, pays, product_passes
from webtorch.lower.templates.generic import conv_kernel, guarded, within
from webtorch.lower.templates.phases import phase, untouched
from webtorch.lower.templates.product import BATCH, COLUMN, ROW, TAP, K, Product, finishes, split
from webtorch.lower.wgsl_kernel import render_kernel
from webtorch.lower.wgsl_shader import Engine, WgslPass


def product(r: Convolution, by_tap: bool = False) -> tuple[Product, int]:
    """Return a convolution as a product, and how many of its columns are consecutive in memory.

    `by_tap`: with the taps of the kernel (for the gradient of the weight, the places of an image) as a
    loop of their own around k.
    """
    writer = _Products(r, by_tap)
    match r.kind:
        case "forward":
            return writer.plain_forward() if writer.plain else writer.forward()
        case "input":
            return writer.plain_input() if writer.plain else writer.input()
        case _:
            return writer.weight()


class _Products:
    """A convolution's sizes, and the product that each of its kinds is."""

    def __init__(self, r: Convolution, by_tap: bool) -> None:
        self.r, self.by_tap = r, by_tap
        self.n, self.c, self.h, self.w = r.input_shape
        self.o, self.cg, self.kh, self.kw = r.weight_shape
        _, _, self.oh, self.ow = r.output_shape
        self.og, self.taps = self.o // r.groups, self.kh * self.kw
        self.first, self.second = r.buffers[0].dtype, r.buffers[1].dtype
        # One tap, one step, no border: each image is a plain matrix product.
        self.plain = self.taps == 1 and (*r.stride, *r.padding) == (1, 1, 0, 0) and r.groups == 1

    def made(
        self, sizes: tuple[int, ...], left: Expr, right: Expr, place: Expr, *points: Expr
    ) -> Product:
        """Return the product (batch, rows, columns, inner size, taps) of these operands."""
        r = self.r
        batch, rows, columns, k = sizes[:4]
        return Product(
            r.name, batch, rows, columns, k, left, right, place, r.buffers, r.args,
            taps=sizes[4] if len(sizes) > 4 else 1, **finishes(r, points),
        )  # fmt: skip

    def along_k(self, count: int, inner: int) -> tuple[int, ...]:
        """Return the sizes of the loops over `count` times `inner` k."""
        return (count, inner) if self.by_tap and inner > 1 else (count * inner,)

    def gather(self, image: Expr, channel: Expr, tap: tuple[Expr, Expr], at: list[Expr]) -> Expr:
        """Return the element of the input that a tap meets at a place of the output, 0 on the border."""
        (sy, sx), (py, px), (dy, dx) = self.r.stride, self.r.padding, self.r.dilation
        (ky, kx), (oy, ox) = tap, at
        y, x = oy * sy + ky * dy - py, ox * sx + kx * dx - px
        position = ((image * self.c + channel) * self.h + y) * self.w + x
        tests = []
        if py or dy * (self.kh - 1) + sy * (self.oh - 1) >= self.h:
            tests.append(within(y, self.h))
        if px or dx * (self.kw - 1) + sx * (self.ow - 1) >= self.w:
            tests.append(within(x, self.w))
        if not tests:
            return ex.load(0, self.first, position)
        both = tests[0] if len(tests) == 1 else tests[0] & tests[1]
        return guarded(0, self.first, position, both)

    def plain_forward(self) -> tuple[Product, int]:
        """Return the products of a weight of one tap with each image."""
        c, o, hw = self.c, self.o, self.h * self.w
        sizes = (self.n, o, hw, c)
        v = _variables(sizes)
        left = ex.load(1, self.second, v[ROW] * c + v[K])
        right = ex.load(0, self.first, (v[BATCH] * c + v[K]) * hw + v[COLUMN])
        place = (v[BATCH] * o + v[ROW]) * hw + v[COLUMN]
        return self.made(sizes, left, right, place, v[BATCH], v[ROW], v[COLUMN]), hw

    def plain_input(self) -> tuple[Product, int]:
        """Return the products of a weight of one tap, transposed, with each cotangent."""
        c, o, hw = self.c, self.o, self.h * self.w
        sizes = (self.n, c, hw, o)
        v = _variables(sizes)
        left = ex.load(1, self.second, v[K] * c + v[ROW])
        right = ex.load(0, self.first, (v[BATCH] * o + v[K]) * hw + v[COLUMN])
        place = (v[BATCH] * c + v[ROW]) * hw + v[COLUMN]
        return self.made(sizes, left, right, place, v[BATCH], v[ROW], v[COLUMN]), hw

    def forward(self) -> tuple[Product, int]:
        """Return the product of the weight with what each place of the output sees."""
        n, o, cg, og, taps = self.n, self.o, self.cg, self.og, self.taps
        oh, ow = self.oh, self.ow
        sizes = (self.r.groups, og, n * oh * ow, *self.along_k(cg, taps))
        v = _variables(sizes)
        whole = v[K] * taps + v[TAP] if len(v) > TAP else v[K]
        left = ex.load(1, self.second, (v[BATCH] * og + v[ROW]) * (cg * taps) + whole)
        image, *at = split(v[COLUMN], oh, ow)
        channel, ky, kx = _k_parts(v, self.kh, self.kw)
        right = self.gather(image, v[BATCH] * cg + channel, (ky, kx), at)
        picture, spot = split(v[COLUMN], oh * ow)
        row = v[BATCH] * og + v[ROW]
        place = (picture * o + row) * (oh * ow) + spot
        return self.made(sizes, left, right, place, picture, row, spot), oh * ow

    def input(self) -> tuple[Product, int]:
        """Return the product of the weight with the cotangents of the places that saw each place of the
        input."""
        r, n, h, w, c, o = self.r, self.n, self.h, self.w, self.c, self.o
        cg, og, taps, oh, ow = self.cg, self.og, self.taps, self.oh, self.ow
        (sy, sx), (py, px), (dy, dx) = r.stride, r.padding, r.dilation
        sizes = (r.groups, cg, n * h * w, *self.along_k(og, taps))
        v = _variables(sizes)
        channel, tap = _k_parts(v, taps)
        at = (v[BATCH] * og + channel) * (cg * taps) + v[ROW] * taps + tap
        left = ex.load(1, self.second, at)
        image, y, x = split(v[COLUMN], h, w)
        _, ky, kx = _k_parts(v, self.kh, self.kw)
        ty, tx = y + py - ky * dy, x + px - kx * dx
        oy, ox = (ex.floordiv(ty, sy) if sy > 1 else ty), (ex.floordiv(tx, sx) if sx > 1 else tx)
        valid = within(oy, oh) & within(ox, ow)
        if sy > 1:
            valid = valid & ex.eq(ty, oy * sy)
        if sx > 1:
            valid = valid & ex.eq(tx, ox * sx)
        right = guarded(
            0, self.first, ((image * o + v[BATCH] * og + channel) * oh + oy) * ow + ox, valid
        )
        picture, spot = split(v[COLUMN], h * w)
        row = v[BATCH] * cg + v[ROW]
        place = (picture * c + row) * (h * w) + spot
        return self.made(sizes, left, right, place, picture, row, spot), h * w

    def weight(self) -> tuple[Product, int]:
        """Return the product of the cotangents with what each place of the output sees."""
        r, n, c, o, cg, og, taps = self.r, self.n, self.c, self.o, self.cg, self.og, self.taps
        oh, ow = self.oh, self.ow
        sizes = (r.groups, og, cg * taps, *self.along_k(n, oh * ow))
        v = _variables(sizes)
        picture, spot = _k_parts(v, oh * ow)
        at = (picture * o + v[BATCH] * og + v[ROW]) * (oh * ow) + spot
        left = ex.load(1, self.second, at)
        if self.plain:
            right = ex.load(0, self.first, (picture * c + v[COLUMN]) * (oh * ow) + spot)
        else:
            image, *seen_from = _k_parts(v, oh, ow)
            channel, ky, kx = split(v[COLUMN], self.kh, self.kw)
            right = self.gather(image, v[BATCH] * cg + channel, (ky, kx), seen_from)
        row = v[BATCH] * og + v[ROW]
        place = row * (cg * taps) + v[COLUMN]
        run = 1 if len(sizes) > TAP else oh * ow
        made = self.made(sizes, left, right, place, row, v[COLUMN])
        return replace(made, k_fastest=True, left_run=run, right_run=run if self.plain else 1), 1


def _variables(sizes: tuple[int, ...]) -> list[Expr]:
    """Return a loop variable for each size."""
    return [ex.index(d, s) for d, s in enumerate(sizes)]


def _k_parts(v: list[Expr], *inner: int) -> list[Expr]:
    """Return k as (which, coordinates in `inner`)."""
    if len(v) > TAP:
        return [v[K], *split(v[TAP], *inner)[1:]]
    return split(v[K], *inner)


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


def is_product(r: Convolution, limits: Limits) -> bool:
    """Whether one product of tiles computes the routine."""
    p, _ = product(r)
    return _has_tiles(p, limits) and not _has_phases(r, p)


def _has_tiles(p: Product, limits: Limits) -> bool:
    return min(p.m, p.n) >= 4 and p.k > 0 and pays(p.batch * p.m * p.n * p.k, limits)


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
    if not _has_tiles(p, limits):
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
