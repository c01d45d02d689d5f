"""3 x 3 convolutions with stride 1, and both of their gradients, by Winograd's method: tiles of 4 x 4
outputs with a fourth of the multiplications. Floor 2; imports floor 0, the renderer and the product
kernels.

A tile of 6 x 6 inputs, a kernel and a tile of outputs are polynomials, known by their values at six
points in each direction (Lavin and Gray, 2016): tiles become 36 numbers each, these are multiplied
and summed over channels by 36 matrix products, and the sums become outputs. The gradient of the input
is the same with the kernel turned around; that of the weight multiplies tiles of the input with tiles
of the cotangent, sums over tiles, and leaves 3 x 3. The points 0, +-sqrt(1/2), +-sqrt(2) and infinity
keep float32's error at 1.5 times that of multiplying directly (0, +-1, +-2: 6 times).

For T tiles, C and O channels: 72 T C O FLOP for 288, and 288 (C + O) T bytes written and read again.
On an H200, 64 images of 128 x 56 x 56 to 128 channels: 0.63 ms, for 1.65 as one product (gemm.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from webtorch.ir import expr as ex
from webtorch.ir.dtype import float32
from webtorch.ir.expr import Expr
from webtorch.ir.kernel import BufferSlot, Convolution, Kernel, Reduce, Store
from webtorch.ir.limits import Limits
from webtorch.lower.templates.gemm import product_passes, ranked
from webtorch.lower.templates.generic import at_points, guarded, within
from webtorch.lower.templates.product import BATCH, COLUMN, PARTS, ROW, K, Product, split
from webtorch.lower.templates.tuning import FAMILIES
from webtorch.lower.wgsl_kernel import render_kernel, render_points
from webtorch.lower.wgsl_shader import Engine, WgslPass, on_scratch

# Outputs and inputs of a tile in each direction; numbers that a tile becomes.
_OUT, _IN = 4, 6
_POINTS = _IN * _IN
# The points, beside 0 and infinity: +-_A and +-_B. _A * _B is 1.
_A, _B = 0.5**0.5, 2.0**0.5
# Bytes of transformed tiles at once; more images are worked on in parts.
_MOST_SCRATCH = 256 << 20
# Bytes of transformed tiles of one image: beyond, convolutions are products without scratch memory.
_MOST_OF_AN_IMAGE = 1 << 30
# Numbers of the scratch buffers: transformed inputs, transformed kernels (or cotangents), products.
_TILES, _KERNELS, _SUMS = range(3)

Transform = Callable[[list[Expr]], list[Expr]]


def _number(value: float) -> Expr:
    return ex.const(value, float32)


def _inputs(d: list[Expr]) -> list[Expr]:
    """Six inputs -> six numbers."""
    even_a, odd_a = d[4] - d[2] * _number(2.0), (d[3] - d[1] * _number(2.0)) * _number(_A)
    even_b, odd_b = d[4] - d[2] * _number(0.5), (d[3] - d[1] * _number(0.5)) * _number(_B)
    return [
        d[0] + d[4] - d[2] * _number(2.5),
        even_a + odd_a,
        even_a - odd_a,
        even_b + odd_b,
        even_b - odd_b,
        d[1] + d[5] - d[3] * _number(2.5),
    ]


def _factors(g: list[Expr]) -> list[Expr]:
    """Three elements of a kernel, or four cotangents -> six numbers."""
    even_a, even_b = g[0] + g[2] * _number(0.5), g[0] + g[2] * _number(2.0)
    odd_a, odd_b = g[1] * _number(_A), g[1] * _number(_B)
    if len(g) == 4:
        odd_a, odd_b = odd_a + g[3] * _number(_A**3), odd_b + g[3] * _number(_B**3)
    return [
        g[0],
        (even_a + odd_a) * _number(-2 / 3),
        (even_a - odd_a) * _number(-2 / 3),
        (even_b + odd_b) * _number(1 / 6),
        (even_b - odd_b) * _number(1 / 6),
        g[-1],
    ]


def _outputs(count: int) -> Transform:
    """Six sums -> `count` outputs: four, or three elements of a kernel."""

    def transform(m: list[Expr]) -> list[Expr]:
        """Return the outputs of six sums along one dim."""
        sum_a, sum_b, past_a, past_b = m[1] + m[2], m[3] + m[4], m[1] - m[2], m[3] - m[4]
        found = [
            m[0] + sum_a + sum_b,
            past_a * _number(_A) + past_b * _number(_B),
            sum_a * _number(0.5) + sum_b * _number(2.0),
            past_a * _number(_A**3) + past_b * _number(_B**3),
        ][:count]
        found[-1] = found[-1] + m[5]
        return found

    return transform


def _both_ways(rows: list[list[Expr]], transform: Transform) -> list[list[Expr]]:
    """Transform every row, then every column."""
    across = [transform(row) for row in rows]
    down = [transform([row[j] for row in across]) for j in range(len(across[0]))]
    return [[column[i] for column in down] for i in range(len(down[0]))]


@dataclass(frozen=True, slots=True)
class _Geometry:
    """Images that are read in tiles of 6 x 6, `channels` of them each, from -padding on, a tile for each
    4 x 4 of (height, width); and images of another `others` channels."""

    images: int
    channels: int
    others: int
    read: tuple[int, int]
    padding: tuple[int, int]
    size: tuple[int, int]

    @property
    def across(self) -> tuple[int, int]:
        """Tiles of an image, down and across."""
        return -(-self.size[0] // _OUT), -(-self.size[1] // _OUT)

    @property
    def tiles(self) -> int:
        """Tiles of an image."""
        return self.across[0] * self.across[1]

    @property
    def scratch_bytes(self) -> int:
        """Bytes of an image's transformed tiles, read and written."""
        return 4 * _POINTS * self.tiles * (self.channels + self.others)


def _geometry(r: Convolution) -> _Geometry:
    n, c, *image = r.input_shape
    o, *out = r.output_shape[1:]
    read, written = (image[0], image[1]), (out[0], out[1])
    if r.kind == "input":
        # Tiles of the cotangent, which are multiplied with the kernel turned around.
        return _Geometry(n, o, c, written, (2 - r.padding[0], 2 - r.padding[1]), read)
    return _Geometry(n, c, o, read, r.padding, written)


def _together(g: _Geometry) -> int:
    """Return how many images are worked on at once: as few parts as fit, of equal size."""
    parts = -(-g.images * g.scratch_bytes // _MOST_SCRATCH)
    return -(-g.images // parts)


def suits(r: Convolution, limits: Limits) -> bool:
    """Whether this method was measured to be faster on this family of adapters, for what `r` computes."""
    if not (limits.is_gpu and FAMILIES[limits.family].winograd) or limits.varying or not fits(r):
        return False
    g = _geometry(r)
    if g.scratch_bytes > _MOST_OF_AN_IMAGE:
        return False
    # The largest scratch buffer is bound as a whole: tiles, or sums of a weight for each part of the images.
    together = _together(g)
    tiles = max(g.channels, g.others) * together * g.tiles
    sums = g.channels * g.others * -(-g.images // together)
    if 4 * _POINTS * max(tiles, sums) > limits.max_binding_bytes:
        return False
    # Tiles that reach beyond the outputs are wasted in part.
    whole = 16 * g.tiles <= 1.5 * g.size[0] * g.size[1]
    return whole and g.images * g.tiles >= 128 and min(g.channels, g.others) >= 64


def fits(r: Convolution) -> bool:
    """Whether this method computes `r`: float32, 3 x 3, no steps, all read as vectors of four."""
    if (r.weight_shape[2:], r.stride, r.dilation, r.groups) != ((3, 3), (1, 1), (1, 1), 1):
        return False
    if any(b.dtype is not float32 for b in r.buffers[:2]) or r.accumulates is not float32:
        return False
    g = _geometry(r)
    together = _together(g)
    counts = (g.channels, g.others, together * g.tiles, g.images % together * g.tiles)
    return all(count % 4 == 0 for count in counts)


def passes(r: Convolution, limits: Limits, engine: Engine) -> list[WgslPass]:
    """Return the dispatches of a convolution that `fits`."""
    g = _geometry(r)
    step = _together(g)
    spans = [(first, min(step, g.images - first)) for first in range(0, g.images, step)]
    found = _weight(r, g, spans, limits) if r.kind == "weight" else _images(r, g, spans)
    out: list[WgslPass] = []
    for one in found:
        out += one.render(limits, engine)
    return out


@dataclass(frozen=True, slots=True)
class _Step:
    """A kernel or a product, which of its buffers are scratch buffers, and which the routine's."""

    work: Kernel | Product
    scratch: dict[int, int]
    numbers: dict[int, int]
    sizes: tuple[int, int, int]
    # Whether all positions are ours: what follows a convolution may read anywhere.
    trusted: bool = True

    def render(self, limits: Limits, engine: Engine) -> Iterator[WgslPass]:
        """Yield its dispatches."""
        if isinstance(self.work, Product):
            # Parts would need scratch memory of their own.
            tile = next((t for _, t, n in ranked(self.work, limits) if n == 1), None)
            found = product_passes(self.work, limits, tile, 1)
        elif self.work.reduces:
            found = render_kernel(self.work, limits, engine)
        else:
            found = [render_points(self.work, limits)]
            if self.trusted:
                found = [replace(x, trusted_indices=True, trusted_loops=True) for x in found]
        for one in found:
            yield on_scratch(one, self.scratch, self.numbers, self.sizes)


def _slot(elements: int, access: Literal["read", "write"]) -> BufferSlot:
    return BufferSlot(float32, access, elements)


def _product_slots(elements: tuple[int, int, int]) -> tuple[BufferSlot, ...]:
    """Return the slots of a product: two operands of so many elements, and what it writes."""
    first, second, result = elements
    return _slot(first, "read"), _slot(second, "read"), _slot(result, "write")


def _patch(
    source: BufferSlot,
    plane: Expr,
    size: tuple[int, int],
    first: tuple[Expr, Expr],
    across: tuple[int, int],
    padding: tuple[int, int],
    count: int,
) -> list[list[Expr]]:
    """Return count x count elements of a plane of buffer 0 from `first` - padding on, 0 outside."""
    places: list[list[tuple[Expr, Expr | None]]] = []
    for axis in range(2):
        line: list[tuple[Expr, Expr | None]] = []
        for i in range(count):
            at = first[axis] + (i - padding[axis])
            inside = i >= padding[axis] and (
                (across[axis] - 1) * _OUT + i - padding[axis] < size[axis]
            )
            line.append((at, None if inside else within(at, size[axis])))
        places.append(line)
    rows: list[list[Expr]] = []
    for y, y_inside in places[0]:
        row: list[Expr] = []
        for x, x_inside in places[1]:
            position = (plane * size[0] + y) * size[1] + x
            tests = [t for t in (y_inside, x_inside) if t is not None]
            if not tests:
                row.append(ex.load(0, source.dtype, position))
            else:
                valid = tests[0] if len(tests) == 1 else tests[0] & tests[1]
                row.append(guarded(0, source.dtype, position, valid))
        rows.append(row)
    return rows


def _transformed(
    name: str,
    source: BufferSlot,
    g: _Geometry,
    span: tuple[int, int],
    channels: int,
    size: tuple[int, int],
    padding: tuple[int, int],
    count: int,
    transform: Transform,
) -> Kernel:
    """Return the kernel that transforms the tiles of some images: [point][channel][tile]."""
    first, images = span
    total = images * g.tiles
    channel, tile = ex.index(0, channels), ex.index(1, total)
    image, y, x = split(tile, *g.across)
    plane = (image + first) * channels + channel
    rows = _patch(source, plane, size, (y * _OUT, x * _OUT), g.across, padding, count)
    values = _both_ways(rows, transform)
    stores = tuple(
        Store(1, ((i * _IN + j) * channels + channel) * total + tile, values[i][j])
        for i in range(_IN)
        for j in range(_IN)
    )
    out = _slot(_POINTS * channels * total, "write")
    return Kernel(name, (channels, total), (), (source, out), (), (), stores)


def _images(r: Convolution, g: _Geometry, spans: list[tuple[int, int]]) -> Iterator[_Step]:
    """Yield the steps of a forward pass, or of a gradient of the input."""
    c, o, most = g.channels, g.others, spans[0][1] * g.tiles
    elements = (_POINTS * c * most, _POINTS * c * o, _POINTS * o * most)
    sizes = (4 * elements[0], 4 * elements[1], 4 * elements[2])
    kernels = _slot(elements[_KERNELS], "write")
    channel, other = ex.index(0, c), ex.index(1, o)
    turned = r.kind == "input"
    place = (channel * o + other) * 9 if turned else (other * c + channel) * 9
    weight = [
        [ex.load(0, float32, place + (8 - 3 * i - j if turned else 3 * i + j)) for j in range(3)]
        for i in range(3)
    ]
    if turned:
        # Weights lie as (output channel, input channel): read are the cotangent's, c here.
        assert r.weight_shape[:2] == (c, o)
    factors = _both_ways(weight, _factors)
    stores = tuple(
        Store(1, ((i * _IN + j) * c + channel) * o + other, factors[i][j])
        for i in range(_IN)
        for j in range(_IN)
    )
    work = Kernel(f"{r.name}_kernels", (c, o), (), (r.buffers[1], kernels), (), (), stores)
    yield _Step(work, {1: _KERNELS}, {0: 1}, sizes)
    for span in spans:
        total = span[1] * g.tiles
        tiles = _transformed(
            f"{r.name}_tiles", r.buffers[0], g, span, c, g.read, g.padding, _IN, _inputs
        )
        yield _Step(tiles, {1: _TILES}, {0: 0}, sizes)
        v = [ex.index(d, s) for d, s in enumerate((_POINTS, o, total, c, 1))]
        slots = _product_slots(elements)
        product = Product(
            f"{r.name}_products",
            _POINTS,
            o,
            total,
            c,
            ex.load(1, float32, (v[BATCH] * c + v[K]) * o + v[ROW]),
            ex.load(0, float32, (v[BATCH] * c + v[K]) * total + v[COLUMN]),
            (v[BATCH] * o + v[ROW]) * total + v[COLUMN],
            slots,
        )
        yield _Step(product, {0: _TILES, 1: _KERNELS, 2: _SUMS}, {}, sizes)
        yield _Step(*_finished(r, g, span, elements[_SUMS]), sizes, not r.epilogue)


def _finished(
    r: Convolution, g: _Geometry, span: tuple[int, int], elements: int
) -> tuple[Kernel, dict[int, int], dict[int, int]]:
    """Return the kernel that turns sums into outputs and does what follows them, which of its buffers
    are scratch buffers, and which the routine's."""
    first, images = span
    o, total = g.others, images * g.tiles
    other, tile = ex.index(0, o), ex.index(1, total)
    image, y, x = split(tile, *g.across)
    last = len(r.buffers)
    sums = [
        [ex.load(last, float32, ((i * _IN + j) * o + other) * total + tile) for j in range(_IN)]
        for i in range(_IN)
    ]
    outputs = _both_ways(sums, _outputs(_OUT))
    stores: list[Store] = []
    height, width = g.size
    for i in range(_OUT):
        for j in range(_OUT):
            row, column = y * _OUT + i, x * _OUT + j
            spot = row * width + column
            valid: Expr | None = None
            for at, size, offset in ((row, height, i), (column, width, j)):
                if size % _OUT and offset >= size % _OUT:
                    test = within(at, size)
                    valid = test if valid is None else valid & test
            points = (image + first, other, spot)
            if r.epilogue:
                made = at_points(r, points, outputs[i][j])
            else:
                position = (points[0] * o + other) * (height * width) + spot
                made = (Store(2, position, outputs[i][j]),)
            for store in made:
                both = store.valid if valid is None else valid
                if valid is not None and store.valid is not None:
                    both = valid & store.valid
                stores.append(replace(store, valid=both))
    buffers = (*r.buffers, _slot(elements, "read"))
    work = Kernel(f"{r.name}_outputs", (o, total), (), buffers, r.args, (), tuple(stores))
    return work, {last: _SUMS}, {i: i for i in range(last)}


def _weight(
    r: Convolution, g: _Geometry, spans: list[tuple[int, int]], limits: Limits
) -> Iterator[_Step]:
    """Yield the steps of the gradient of the weight."""
    c, o, most = g.channels, g.others, spans[0][1] * g.tiles
    # Sums over tiles are split, so that there are workgroups for every multiprocessor, as long as all
    # sums, which wait to be added, fit into scratch memory too.
    groups = _POINTS * -(-o // 64) * -(-c // 64)
    wanted = -(-6 * FAMILIES[limits.family].multiprocessors // groups)
    most_sums = min(_MOST_SCRATCH, limits.max_binding_bytes)
    wanted = min(wanted, max(1, most_sums // (4 * _POINTS * o * c * len(spans))))
    split_of = [_parts(span[1] * g.tiles, wanted) for span in spans]
    parts = sum(split_of)
    elements = (
        _POINTS * c * most,
        _POINTS * o * max(most, c),
        _POINTS * o * c * parts,
    )
    sizes = (4 * elements[0], 4 * elements[1], 4 * elements[2])
    before = 0
    for span, pieces in zip(spans, split_of, strict=True):
        tiles = _transformed(
            f"{r.name}_tiles", r.buffers[0], g, span, c, g.read, g.padding, _IN, _inputs
        )
        yield _Step(tiles, {1: _TILES}, {0: 0}, sizes)
        cotangents = _transformed(
            f"{r.name}_cotangents", r.buffers[1], g, span, o, g.size, (0, 0), _OUT, _factors
        )
        yield _Step(cotangents, {1: _KERNELS}, {0: 1}, sizes)
        product = _weight_product(r, g, span, pieces, (before, parts), elements)
        yield _Step(product, {0: _TILES, 1: _KERNELS, 2: _SUMS}, {}, sizes)
        before += pieces
    held = _SUMS
    if parts > 1:
        yield _Step(_added(r, g, parts, elements), {0: _SUMS, 1: _KERNELS}, {}, sizes)
        held = _KERNELS
    last = len(r.buffers)
    work = _weight_outputs(r, g, elements[held])
    yield _Step(work, {last: held}, {i: i for i in range(last)}, sizes, not r.epilogue)


def _weight_product(
    r: Convolution,
    g: _Geometry,
    span: tuple[int, int],
    pieces: int,
    numbers: tuple[int, int],
    elements: tuple[int, int, int],
) -> Product:
    """Return the product of some images' transformed cotangents and tiles, in `pieces` sums over tiles
    each; `numbers` are the number of the first among all sums, and how many there are."""
    c, o, total = g.channels, g.others, span[1] * g.tiles
    before, parts = numbers
    long = total // pieces
    v = [ex.index(d, s) for d, s in enumerate((_POINTS * pieces, o, c, long, 1, _POINTS, pieces))]
    point, piece = v[PARTS], v[PARTS + 1]
    sum_of = ex.floordiv(v[BATCH], pieces) * parts + ex.mod(v[BATCH], pieces) + before
    return Product(
        f"{r.name}_products",
        _POINTS * pieces,
        o,
        c,
        long,
        ex.load(1, float32, (point * o + v[ROW]) * total + piece * long + v[K]),
        ex.load(0, float32, (point * c + v[COLUMN]) * total + piece * long + v[K]),
        (sum_of * o + v[ROW]) * c + v[COLUMN],
        _product_slots(elements),
        parts=(_POINTS, pieces),
    )


def _added(r: Convolution, g: _Geometry, parts: int, elements: tuple[int, int, int]) -> Kernel:
    """Return the kernel that adds the sums over parts of the tiles."""
    places = g.others * g.channels
    point, place, part = ex.index(0, _POINTS), ex.index(1, places), ex.index(2, parts)
    value = ex.load(0, float32, (point * parts + part) * places + place)
    store = Store(1, point * places + place, ex.reduced(0, float32))
    slots = (_slot(elements[_SUMS], "read"), _slot(elements[_KERNELS], "write"))
    total = Reduce("sum", value, float32)
    return Kernel(f"{r.name}_parts", (_POINTS, places), (parts,), slots, (), (total,), (store,))


def _weight_outputs(r: Convolution, g: _Geometry, elements: int) -> Kernel:
    """Return the kernel that turns sums into a weight's gradient and does what follows it."""
    c, o, last = g.channels, g.others, len(r.buffers)
    other, channel = ex.index(0, o), ex.index(1, c)
    sums = [
        [ex.load(last, float32, ((i * _IN + j) * o + other) * c + channel) for j in range(_IN)]
        for i in range(_IN)
    ]
    outputs = _both_ways(sums, _outputs(3))
    stores: list[Store] = []
    for i in range(3):
        for j in range(3):
            place = channel * 9 + 3 * i + j
            if r.epilogue:
                stores += at_points(r, (other, place), outputs[i][j])
            else:
                stores.append(Store(2, other * (c * 9) + place, outputs[i][j]))
    buffers = (*r.buffers, _slot(elements, "read"))
    return Kernel(f"{r.name}_outputs", (o, c), (), buffers, r.args, (), tuple(stores))


def _parts(total: int, wanted: int) -> int:
    """Return how many equal parts of vectors of four `total` is split into: about `wanted`."""
    fitting = [n for n in range(1, wanted + 1) if total % (4 * n) == 0 and total // n >= 64]
    return fitting[-1] if fitting else 1
