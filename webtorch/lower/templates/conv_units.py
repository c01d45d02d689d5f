"""Convolutions of float16 and their gradients on matrix units. Floor 2; imports floor 0, the renderer
and the product kernels.

Matrix units read eight neighbours at a time, and an image, shifted by a tap of the kernel, has none
that are aligned. So images are copied first, with a border of zeros and their channels innermost, and
kernels with their taps apart, (output channel, tap, channel): a convolution is then a product whose k
runs over the channels of one tap after the other, and reads everything in vectors. Where there are
fewer places than output channels, so that kernels are larger than what they multiply, it is the other
way round: kernels stay as they are, and images become one row of places for each (channel, tap).

    forward  rows: output channels   columns: (image, y, x) of the output   k: (tap, channel)
    input    rows: input channels    columns: (image, y, x) of the input    k: (tap, output channel),
             for each phase of the stride
    weight   rows: output channels   columns: (tap, channel)                k: (image, y, x) of the
             output
Groups are the batch of the product.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType, float16, float32, int32
from webtorch.ir.kernel import BufferSlot, Convolution, Kernel, Reduce, Store
from webtorch.ir.limits import Limits
from webtorch.lower.templates import matrix_units
from webtorch.lower.templates.generic import at_points, guarded, within
from webtorch.lower.templates.phases import phase, untouched
from webtorch.lower.templates.product import BATCH, COLUMN, ROW, TAP, K, Product, finishes, split
from webtorch.lower.wgsl_kernel import render_kernel
from webtorch.lower.wgsl_shader import Engine, WgslPass, on_scratch

Pair = tuple[int, int]

# Channels of a tap are a multiple of this, with zeros, so that a step of a product is within one.
_STEP, _VECTOR = 32, 8
# Bytes of copied images at once; more images are worked on in parts.
_MOST_SCRATCH = 256 << 20
# Multiplications from which on the copies are worth their dispatches.
_LEAST_WORK = 1 << 21
# Numbers of the scratch buffers: images, kernels (or cotangents), sums.
_IMAGES, _KERNELS, _SUMS = range(3)


def suits(r: Convolution, limits: Limits, engine: Engine) -> bool:
    """Whether matrix units compute `r`."""
    if not matrix_units.usable(limits, engine) or limits.varying:
        return False
    if any(b.dtype is not float16 for b in r.buffers[:2]) or r.accumulates is not float32:
        return False
    og, cg = r.weight_shape[0] // r.groups, r.weight_shape[1]
    places = r.input_shape[0] * math.prod(r.output_shape[2:])
    terms = places * cg * math.prod(r.weight_shape[2:])
    if min(og, cg, places) < 16 or r.groups * og * terms < _LEAST_WORK:
        return False
    if r.kind == "input" and not _work(r).parts:
        return False
    steps = list(_steps(r))
    if max(max(s.sizes) for s in steps) > min(2 * _MOST_SCRATCH, limits.max_binding_bytes):
        return False
    products = [s.work for s in steps if isinstance(s.work, Product)]
    return all(matrix_units.choose(p, limits, engine) is not None for p in products)


def passes(r: Convolution, limits: Limits, engine: Engine) -> list[WgslPass]:
    """Return the dispatches of a convolution that matrix units suit."""
    return join([(s, s.render(limits, engine)) for s in _steps(r)])


def join(rendered: list[tuple[_Step, list[WgslPass]]]) -> list[WgslPass]:
    """Return the dispatches of the steps of a routine, in the routine's memory."""
    # What sums are split into waits in memory that all products share.
    parts = max((p.scratch[0] for _, found in rendered for p in found if p.scratch), default=0)
    out = []
    for s, found in rendered:
        sizes = (*s.sizes, parts) if parts else s.sizes
        out += [on_scratch(p, s.scratch, s.numbers, sizes, (len(s.sizes),)) for p in found]
    return out


@dataclass(frozen=True, slots=True)
class _Step:
    """A kernel or a product, which of its buffers are scratch buffers, which the routine's, and the
    bytes of all scratch buffers."""

    work: Kernel | Product
    scratch: dict[int, int]
    numbers: dict[int, int]
    sizes: tuple[int, ...]
    # As in `matrix_units.render`.
    image_columns: int = 0

    def render(self, limits: Limits, engine: Engine) -> list[WgslPass]:
        """Return its dispatches."""
        if isinstance(self.work, Kernel):
            return render_kernel(self.work, limits, engine)
        found = matrix_units.render(self.work, limits, engine, self.image_columns)
        assert found is not None, self.work.name
        return found


def _steps(r: Convolution) -> Iterator[_Step]:
    return _weight(r) if r.kind == "weight" else _images(_work(r))


def _rounded(count: int, step: int) -> int:
    return -(-count // step) * step


def _slot(elements: int, access: str, dtype: DType = float16) -> BufferSlot:
    return BufferSlot(dtype, "read" if access == "read" else "write", elements)


@dataclass(frozen=True, slots=True)
class _Copy:
    """Images with their channels innermost, [image][y][x][group][channel], zeros around them and
    after the channels of a group."""

    groups: int
    channels: int
    padded: int
    # Of the images.
    size: Pair
    # The first row and column that are copied, and how many.
    first: Pair
    window: Pair

    @property
    def line(self) -> int:
        """Elements of a place."""
        return self.groups * self.padded

    @property
    def image(self) -> int:
        """Elements of an image."""
        return math.prod(self.window) * self.line

    def kernel(self, name: str, source: BufferSlot, images: range, elements: int) -> Kernel:
        """Return the kernel that copies some images of buffer 0 to buffer 1, of so many elements."""
        outer = (len(images), *self.window, self.groups, self.padded)
        image, y, x, group, channel = (ex.index(d, s) for d, s in enumerate(outer))
        plane = ((image + images.start) * self.groups + group) * self.channels + channel
        at = (y + self.first[0], x + self.first[1])
        place = (plane * self.size[0] + at[0]) * self.size[1] + at[1]
        tests = [
            within(at[d], self.size[d])
            for d in range(2)
            if self.first[d] < 0 or self.first[d] + self.window[d] > self.size[d]
        ]
        if self.padded != self.channels:
            tests.append(ex.lt(channel, self.channels))
        value = ex.load(0, float16, place)
        if tests:
            valid = tests[0]
            for test in tests[1:]:
                valid = valid & test
            value = guarded(0, float16, place, valid)
        spot = (image * self.window[0] + y) * self.window[1] + x
        store = Store(1, spot * self.line + group * self.padded + channel, value)
        return Kernel(name, outer, (), (source, _slot(elements, "write")), (), (), (store,))


@dataclass(frozen=True, slots=True)
class _Part:
    """The places of one phase of the output. Rows and columns: (down, across)."""

    places: Pair
    taps: Pair
    # The row (column) of the source that place 0 meets at tap 0, and how far from there the next
    # place, and the next tap, are.
    start: Pair
    step: Pair
    reach: Pair
    # Tap j is first + j * stride of the kernel; place i is phase + i * apart of the output.
    first: Pair = (0, 0)
    stride: Pair = (1, 1)
    phase: Pair = (0, 0)
    apart: Pair = (1, 1)

    def ends(self, axis: int) -> Pair:
        """Return the first and the last row (column) of the source that it reads."""
        taps = self.reach[axis] * (self.taps[axis] - 1)
        places = self.step[axis] * (self.places[axis] - 1)
        return self.start[axis] + min(0, taps), self.start[axis] + max(0, taps) + places


def _window(parts: list[_Part]) -> tuple[Pair, Pair]:
    """Return the first row and column of the source that are read, and how many."""
    ends = [(p.ends(0), p.ends(1)) for p in parts]
    first = (min(e[0][0] for e in ends), min(e[1][0] for e in ends))
    last = (max(e[0][1] for e in ends), max(e[1][1] for e in ends))
    return first, (last[0] - first[0] + 1, last[1] - first[1] + 1)


@dataclass(frozen=True, slots=True)
class _Work:
    """A forward pass, or a gradient of the input: sums over `channels` of a source image for `rows`
    channels of the output, for each group."""

    r: Convolution
    channels: int
    rows: int
    source: Pair
    output: Pair
    parts: list[_Part]
    # Phases that no tap reaches.
    empty: list[_Part]

    @property
    def kernel(self) -> Pair:
        """Taps of the kernel."""
        return self.r.weight_shape[2], self.r.weight_shape[3]

    @property
    def terms(self) -> int:
        """Channels of all taps."""
        return self.channels * math.prod(self.kernel)

    @property
    def columns(self) -> int:
        """Places of all images."""
        return self.r.input_shape[0] * math.prod(self.output)

    @property
    def padded(self) -> int:
        """Channels of a group with zeros after them."""
        return _rounded(self.channels, _STEP if math.prod(self.kernel) > 1 else _VECTOR)

    @property
    def unfolds(self) -> bool:
        """Whether images become rows of places for each channel and tap."""
        fits = self.columns % _VECTOR == 0 and self.terms % _VECTOR == 0
        return self.r.kind == "forward" and fits and self.columns < self.rows

    @property
    def as_it_is(self) -> bool:
        """Whether kernels are read where they are."""
        one = math.prod(self.kernel) == 1 and self.padded == self.channels
        return self.unfolds or (self.r.kind == "forward" and one)

    def copy(self) -> _Copy:
        """Return how images are copied, where they do not unfold."""
        first, window = _window(self.parts)
        return _Copy(self.r.groups, self.channels, self.padded, self.source, first, window)


def _work(r: Convolution) -> _Work:
    """Return a forward pass or a gradient of the input as work."""
    image = (r.input_shape[2], r.input_shape[3])
    written = (r.output_shape[2], r.output_shape[3])
    kernel = (r.weight_shape[2], r.weight_shape[3])
    og, cg = r.weight_shape[0] // r.groups, r.weight_shape[1]
    if r.kind == "forward":
        start = (-r.padding[0], -r.padding[1])
        part = _Part(written, kernel, start, r.stride, r.dilation)
        return _Work(r, cg, og, image, written, [part], [])
    down, across = (
        [
            phase(image[d], kernel[d], r.stride[d], r.padding[d], r.dilation[d], number)
            for number in range(min(r.stride[d], image[d]))
        ]
        for d in range(2)
    )
    parts = [
        _Part(
            places=(a.places, b.places),
            taps=(a.taps, b.taps),
            start=(a.start, b.start),
            step=(1, 1),
            reach=(-a.back, -b.back),
            first=(a.first, b.first),
            stride=(a.stride, b.stride),
            phase=(i, j),
            apart=r.stride,
        )
        for i, a in enumerate(down)
        for j, b in enumerate(across)
    ]
    reached = [p for p in parts if math.prod(p.taps)]
    empty = [p for p in parts if not math.prod(p.taps)]
    return _Work(r, og, cg, written, image, reached, empty)


def _spans(images: int, image_bytes: int) -> list[range]:
    """Return the images that are worked on together: as few parts as fit, of about equal size."""
    step = -(-images // -(-images * image_bytes // _MOST_SCRATCH))
    return [range(i, min(i + step, images)) for i in range(0, images, step)]


def _images(w: _Work) -> Iterator[_Step]:
    """Yield the steps of a forward pass, or of a gradient of the input."""
    r = w.r
    every = range(r.input_shape[0])
    if w.unfolds:
        spans, elements = [every], r.groups * w.terms * w.columns
    else:
        copy = w.copy()
        spans = _spans(len(every), 2 * copy.image)
        elements = len(spans[0]) * copy.image
    of_kernels = r.groups * w.rows * math.prod(w.kernel) * w.padded
    # An unused buffer is bound, too.
    sizes = (2 * elements, 16 if w.as_it_is else 2 * of_kernels)
    scratch, numbers = {0: _IMAGES}, {i: i for i in range(1, len(r.buffers))}
    if not w.as_it_is:
        yield _Step(_kernels(w, of_kernels), {1: _KERNELS}, {0: 1}, sizes)
        scratch[1] = _KERNELS
    for span in spans:
        name = f"{r.name}_images"
        images = (
            _unfolded(w, name, elements)
            if w.unfolds
            else copy.kernel(name, r.buffers[0], span, elements)
        )
        yield _Step(images, {1: _IMAGES}, {0: 0}, sizes)
        for part in w.parts:
            p = _product(w, part, span, elements, of_kernels)
            columns = math.prod(w.output) if part.apart == (1, 1) else 0
            yield _Step(p, scratch, numbers, sizes, columns)
    for part in w.empty:
        numbers = {i: i for i in range(len(r.buffers))}
        yield _Step(untouched(r, part.places, part.phase), {}, numbers, sizes)


def _kernels(w: _Work, elements: int) -> Kernel:
    """Return the kernel that copies kernels: [group][row][tap][channel]."""
    r, taps = w.r, math.prod(w.kernel)
    outer = (r.groups, w.rows, taps, w.padded)
    group, row, tap, channel = (ex.index(d, s) for d, s in enumerate(outer))
    if r.kind == "forward":
        place = ((group * w.rows + row) * w.channels + channel) * taps + tap
    else:
        place = ((group * w.channels + channel) * w.rows + row) * taps + tap
    value = ex.load(0, float16, place)
    if w.padded != w.channels:
        value = guarded(0, float16, place, ex.lt(channel, w.channels))
    target = ((group * w.rows + row) * taps + tap) * w.padded + channel
    slots = (r.buffers[1], _slot(elements, "write"))
    return Kernel(f"{r.name}_kernels", outer, (), slots, (), (), (Store(1, target, value),))


def _unfolded(w: _Work, name: str, elements: int) -> Kernel:
    """Return the kernel that unfolds images: [group][channel][tap][image, place]."""
    r, (part,) = w.r, w.parts
    outer = (r.groups * w.channels, *w.kernel, r.input_shape[0], *w.output)
    channel, ky, kx, image, y, x = (ex.index(d, s) for d, s in enumerate(outer))
    at_y = y * part.step[0] + ky * part.reach[0] + part.start[0]
    at_x = x * part.step[1] + kx * part.reach[1] + part.start[1]
    plane = image * (r.groups * w.channels) + channel
    place = (plane * w.source[0] + at_y) * w.source[1] + at_x
    value = guarded(0, float16, place, within(at_y, w.source[0]) & within(at_x, w.source[1]))
    target = channel
    for index, size in zip((ky, kx, image, y, x), outer[1:], strict=True):
        target = target * size + index
    slots = (r.buffers[0], _slot(elements, "write"))
    return Kernel(name, outer, (), slots, (), (), (Store(1, target, value),))


def _product(w: _Work, part: _Part, span: range, elements: int, of_kernels: int) -> Product:
    """Return the product of one phase of some images."""
    r, whole = w.r, math.prod(w.kernel)
    columns = len(span) * math.prod(part.places)
    k, taps = (w.terms, 1) if w.unfolds else (w.padded, math.prod(part.taps))
    v = [ex.index(d, s) for d, s in enumerate((r.groups, w.rows, columns, k, taps))]
    row = v[BATCH] * w.rows + v[ROW]
    image, y, x = split(v[COLUMN], *part.places)
    if w.unfolds:
        left = row * w.terms + v[K]
        right = (v[BATCH] * w.terms + v[K]) * columns + v[COLUMN]
    else:
        copy = w.copy()
        jy, jx = split(v[TAP], *part.taps)[1:]
        tap = (jy * part.stride[0] + part.first[0]) * w.kernel[1]
        tap = tap + (jx * part.stride[1] + part.first[1])
        if part.taps == w.kernel:
            tap = v[TAP]
        left = row * (whole * w.padded) + tap * w.padded + v[K]
        # What the place gives, and what the tap: each is computed once.
        place = (image * copy.window[0] + y * part.step[0]) * copy.window[1] + x * part.step[1]
        shift = (jy * part.reach[0] + (part.start[0] - copy.first[0])) * copy.window[1]
        shift = shift + (jx * part.reach[1] + (part.start[1] - copy.first[1]))
        right = place * copy.line + (shift * copy.line + v[BATCH] * w.padded) + v[K]
    if part.apart == (1, 1):
        image, spot = split(v[COLUMN], math.prod(w.output))
    else:
        down, across = (at * s + p for at, s, p in zip((y, x), part.apart, part.phase, strict=True))
        spot = down * w.output[1] + across
    image = image + span.start
    kernels = r.buffers[1] if w.as_it_is else _slot(of_kernels, "read")
    return Product(
        r.name,
        r.groups,
        w.rows,
        columns,
        k,
        ex.load(1, float16, left),
        ex.load(0, float16, right),
        (image * (r.groups * w.rows) + row) * math.prod(w.output) + spot,
        (_slot(elements, "read"), kernels, *r.buffers[2:]),
        r.args,
        left_run=k,
        right_run=k,
        taps=taps,
        **finishes(r, (image, row, spot)),
    )


def _weight(r: Convolution) -> Iterator[_Step]:
    """Yield the steps of the gradient of the weight."""
    n, image = r.input_shape[0], (r.input_shape[2], r.input_shape[3])
    o, cg, kh, kw = r.weight_shape
    og, taps, spots = o // r.groups, kh * kw, math.prod(r.output_shape[2:])
    written = (r.output_shape[2], r.output_shape[3])
    part = _Part(written, (kh, kw), (-r.padding[0], -r.padding[1]), r.stride, r.dilation)
    copy = _Copy(
        r.groups, cg, _rounded(cg, _VECTOR), image, *_window([part])
    )  # fmt: skip
    # Cotangents run along k as they are, where the places of an image are whole vectors.
    as_it_is = spots % _VECTOR == 0
    second = _Copy(r.groups, og, _rounded(og, _VECTOR), written, (0, 0), written)
    rows = og if as_it_is else second.padded
    spans = _spans(n, 2 * max(copy.image, second.image))
    most = len(spans[0])
    columns = taps * copy.padded
    elements = (most * copy.image, most * second.image, len(spans) * r.groups * rows * columns)
    sizes = (2 * elements[0], 16 if as_it_is else 2 * elements[1], 4 * elements[2])
    for number, span in enumerate(spans):
        images = copy.kernel(f"{r.name}_images", r.buffers[0], span, elements[0])
        yield _Step(images, {1: _IMAGES}, {0: 0}, sizes)
        if not as_it_is:
            cotangents = second.kernel(f"{r.name}_cotangents", r.buffers[1], span, elements[1])
            yield _Step(cotangents, {1: _KERNELS}, {0: 1}, sizes)
        k = len(span) * spots
        v = [ex.index(d, s) for d, s in enumerate((r.groups, rows, columns, k))]
        picture, spot = split(v[K], spots)
        group, channel = v[BATCH] * og + v[ROW], v[ROW]
        left = (
            ((picture + span.start) * o + group) * spots + spot
            if as_it_is
            else v[K] * second.line + v[BATCH] * second.padded + channel
        )
        picture, y, x = split(v[K], *written)
        ky, kx, inner = split(v[COLUMN], kh, kw, copy.padded)[1:]
        place = (picture * copy.window[0] + y * r.stride[0]) * copy.window[1] + x * r.stride[1]
        shift = ky * (r.dilation[0] * copy.window[1]) + kx * r.dilation[1]
        right = place * copy.line + (shift * copy.line + v[BATCH] * copy.padded + inner)
        sums = (number * r.groups + v[BATCH]) * rows + v[ROW]
        p = Product(
            r.name,
            r.groups,
            rows,
            columns,
            k,
            ex.load(1, float16, left),
            ex.load(0, float16, right),
            sums * columns + v[COLUMN],
            (
                _slot(elements[0], "read"),
                r.buffers[1] if as_it_is else _slot(elements[1], "read"),
                _slot(elements[2], "write", float32),
            ),
            left_run=spots,
            column_run=copy.padded,
        )
        scratch = {0: _IMAGES, 2: _SUMS} if as_it_is else {0: _IMAGES, 1: _KERNELS, 2: _SUMS}
        yield _Step(p, scratch, {1: 1}, sizes)
    outer = (r.groups, og, cg, taps)
    i = [ex.index(d, s) for d, s in enumerate(outer)]
    span_number = ex.index(4, len(spans)) if len(spans) > 1 else ex.const(0, int32)
    at = ((span_number * r.groups + i[0]) * rows + i[1]) * columns + i[3] * copy.padded + i[2]
    last = len(r.buffers)
    value = ex.load(last, float32, at)
    points = (i[0] * og + i[1], i[2] * taps + i[3])
    reduces: tuple[Reduce, ...] = ()
    if len(spans) > 1:
        reduces, value = (Reduce("sum", value, float32),), ex.reduced(0, float32)
    stores = (
        at_points(r, points, value)
        if r.epilogue
        else (Store(2, points[0] * (cg * taps) + points[1], ex.cast(value, r.buffers[2].dtype)),)
    )
    work = Kernel(
        f"{r.name}_sums", outer, (len(spans),) if reduces else (),
        (*r.buffers, _slot(elements[2], "read", float32)), r.args, reduces, stores,
    )  # fmt: skip
    yield _Step(work, {last: _SUMS}, {j: j for j in range(last)}, sizes)
