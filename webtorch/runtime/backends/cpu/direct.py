"""Convolutions of batches of images in machine code, without unfolding them. float32.

A vector holds one element of several images. Images are laid out anew as (bunch, channel, row, column,
image of the bunch), with zeros around them; then a window's elements are whole vectors at fixed
distances, whatever the stride, padding and dilation are, and all three products keep a tile of
results in registers:

    forward   some channels x some spots: filters are broadcast, vectors of images loaded
    input     the same on the output's gradient: the taps that reach a spot depend on the spot modulo
              the stride, so spots are done by such phases
    weight    some filters x some taps: products of two vectors, added up over all spots and bunches

Imports NumPy, floors 0-2 and modules beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from webtorch.ir.dtype import float32
from webtorch.ir.kernel import Convolution
from webtorch.runtime.backends.cpu import jit
from webtorch.runtime.backends.cpu.llvmtypes import Ir, declared
from webtorch.runtime.backends.cpu.memory import Array
from webtorch.runtime.backends.cpu.vectorcode import (
    HERE,
    Addressed,
    Functions,
    Target,
    VectorWriter,
    source_digest,
)

Table = npt.NDArray[np.int64]
# A function of the first operand, the second and the result.
Run = Callable[[Addressed, Addressed, Addressed], None]

# Below this share of used lanes the other way is faster.
_LEAST_USE = 0.6
# Convolutions of fewer products are not worth loading the compiler.
_LEAST_WORK = 1 << 18
# Images are done some bunches at a time, so that their copies stay below this many bytes.
_SCRATCH = 32 << 20


@dataclass(frozen=True, slots=True)
class Shape:
    """What fits the processor's registers: lanes of a vector, and tiles of results to choose from.

    LLVM loads all operands of a step first: room for them is left too.
    """

    lanes: int
    # Channels x spots, for forward and input.
    tiles: tuple[tuple[int, int], ...]
    # Filters x taps, for weight.
    gradients: tuple[tuple[int, int], ...]


def shape_for(features: str) -> Shape:
    """Return the tiles for a processor with LLVM's features `features`."""
    names = features.split(",")
    if "+avx512f" in names:
        return Shape(16, ((8, 3), (6, 4)), ((5, 4), (4, 5)))
    if "+avx" in names:
        return Shape(8, ((4, 3), (6, 2)), ((3, 3), (4, 2)))
    if "+simd128" in names:
        # WebAssembly: of SSE's 16 registers the browser's compiler needs some for itself.
        return Shape(4, ((4, 2), (2, 4)), ((3, 3), (4, 2)))
    if "+sse2" in names:
        return Shape(4, ((4, 3), (6, 2)), ((3, 3), (4, 2)))
    # ARM has 32 registers of 4 lanes.
    return Shape(4, ((8, 3), (6, 4)), ((5, 4), (4, 5)))


# -- the code ---------------------------


class _Writer(VectorWriter):
    def __init__(self, shape: Shape, fused: bool, position_bits: int) -> None:
        super().__init__(shape.lanes, fused, position_bits)
        self.functions["pack"] = self.pack, ()
        for rows, columns in shape.tiles:
            self.functions[f"filters{rows}"] = self.filters, (rows,)
            self.functions[f"tiles{rows}x{columns}"] = self.tiles, (rows, columns)
        for rows, columns in shape.gradients:
            self.functions[f"gradients{rows}x{columns}"] = self.gradients, (rows, columns)

    # -- the functions ---------------------------

    def pack(self, begin: Ir, end: Ir) -> None:
        """Lay out images anew; a unit is a channel of a bunch."""
        b, lanes = self.b, self.width
        source, target, places = (self.cell(self.pointer) for _ in range(3))
        spots, plane, channels, images, border = (self.cell() for _ in range(5))
        stride = b.mul(channels, spots)
        numbers = self.ir.Constant(
            self.ir.VectorType(self.index, lanes), [self.number(n) for n in range(lanes)]
        )
        with self.loop(begin, end) as unit:
            bunch, channel = b.sdiv(unit, channels), b.srem(unit, channels)
            first = self.lanes(bunch)
            count = self.smaller(b.sub(images, first), self.number(lanes))
            start = self.at(source, b.add(b.mul(first, stride), b.mul(channel, spots)))
            out = self.at(target, self.lanes(b.mul(unit, plane)))
            bordered = b.icmp_signed("!=", border, self.number(0))
            with b.if_then(bordered), self.loop(self.number(0), plane) as p:
                self.store(self.zero, self.at(out, self.lanes(p)))
            wide = b.insert_element(
                self.ir.Constant(numbers.type, self.ir.Undefined),
                count,
                self.ir.Constant(self.ir.IntType(32), 0),
            )
            wide = b.shuffle_vector(
                wide, wide, self.ir.Constant(self.ir.VectorType(self.ir.IntType(32), lanes), None)
            )
            real = b.icmp_signed("<", numbers, wide)
            rows = [
                self.at(
                    start, b.mul(self.smaller(self.number(n), b.sub(count, self.number(1))), stride)
                )
                for n in range(lanes)
            ]
            whole = b.sub(spots, b.srem(spots, self.number(lanes)))

            def put(value: Ir, spot: Ir) -> None:
                """Store a vector of one place, zeros outside the image."""
                place = self.at(out, self.lanes(self.entry(places, spot)))
                self.store(b.select(real, value, self.zero), place)

            with self.loop(self.number(0), whole, lanes) as spot:
                columns = self.transposed([self.load(self.at(row, spot)) for row in rows])
                for n, column in enumerate(columns):
                    put(column, b.add(spot, self.number(n)))
            with self.loop(whole, spots) as spot:
                value = self.zero
                for n, row in enumerate(rows):
                    value = b.insert_element(
                        value,
                        b.load(self.at(row, spot), typ=self.f32),
                        self.ir.Constant(self.ir.IntType(32), n),
                    )
                put(value, spot)

    def filters(self, begin: Ir, end: Ir, rows: int) -> None:
        """Lay out filters as (tile, tap, channel of the tile); a unit is a tile."""
        b = self.b
        source, target, taps, tiles = (self.cell(self.pointer) for _ in range(4))
        count, stride = self.cell(), self.cell()
        with self.loop(begin, end) as unit:
            tile = self.at(tiles, b.mul(unit, self.number(4)), self.i64)
            start = self.at(source, self.entry(tile, self.number(3)))
            valid = self.entry(tile, self.number(2))
            out = self.at(target, b.mul(unit, b.mul(count, self.number(rows))))
            with self.loop(self.number(0), count) as tap:
                place = self.at(start, self.entry(taps, tap))
                to = self.at(out, b.mul(tap, self.number(rows)))
                for m in range(rows):
                    inside = b.icmp_signed("<", self.number(m), valid)
                    row = b.select(inside, b.mul(stride, self.number(m)), self.number(0))
                    x: Ir = b.load(self.at(place, row), typ=self.f32)
                    x = b.select(inside, x, self.ir.Constant(self.f32, 0.0))
                    b.store(x, self.at(to, self.number(m)))

    def tiles(self, begin: Ir, end: Ir, rows: int, columns: int) -> None:
        """Compute some channels of a bunch; a unit is a tile of channels of a bunch."""
        b, lanes = self.b, self.width
        x, filters, scratch, out, bases, places, taps, phases, tiles = (
            self.cell(self.pointer) for _ in range(9)
        )
        tile_count, bunch_size, taps_count, phase_count, spots, scratch_plane, images = (
            self.cell() for _ in range(7)
        )
        image_size = self.cell()
        totals = self.accumulators(rows * columns)
        with self.loop(begin, end) as unit:
            bunch, number = b.sdiv(unit, tile_count), b.srem(unit, tile_count)
            tile = self.at(tiles, b.mul(number, self.number(4)), self.i64)
            images_at = self.at(
                x, b.add(b.mul(bunch, bunch_size), self.entry(tile, self.number(0)))
            )
            plane = self.lanes(scratch_plane)
            mine = self.at(scratch, b.mul(unit, b.mul(plane, self.number(rows))))
            own = self.at(filters, b.mul(number, b.mul(taps_count, self.number(rows))))
            with self.loop(self.number(0), phase_count) as p:
                phase = self.at(phases, b.mul(p, self.number(4)), self.i64)
                first, last, tap_first, tap_last = (
                    self.entry(phase, self.number(n)) for n in range(4)
                )
                with self.loop(first, last, columns) as spot:
                    for total in totals:
                        b.store(self.zero, total)
                    starts = [
                        self.at(images_at, self.entry(bases, b.add(spot, self.number(j))))
                        for j in range(columns)
                    ]
                    with self.loop(tap_first, tap_last) as tap:
                        pair = self.at(taps, b.mul(tap, self.number(2)), self.i64)
                        distance = self.entry(pair, self.number(0))
                        seen = [self.load(self.at(s, distance)) for s in starts]
                        weights = self.at(own, self.entry(pair, self.number(1)))
                        for m in range(rows):
                            w: Ir = b.load(self.at(weights, self.number(m)), typ=self.f32)
                            w = self.splat(w)
                            for j in range(columns):
                                total = totals[m * columns + j]
                                b.store(self.fma(w, seen[j], b.load(total, typ=self.vector)), total)
                    # Spots that fill up the last tile have the place of the last one.
                    for j in range(columns):
                        to = self.at(
                            mine, self.lanes(self.entry(places, b.add(spot, self.number(j))))
                        )
                        for m in range(rows):
                            value = b.load(totals[m * columns + j], typ=self.vector)
                            self.store(value, self.at(to, b.mul(plane, self.number(m))))
            valid, channel = self.entry(tile, self.number(2)), self.entry(tile, self.number(1))
            image = self.lanes(bunch)
            count = self.smaller(b.sub(images, image), self.number(lanes))
            with self.loop(self.number(0), valid) as row:
                source = self.at(mine, b.mul(plane, row))
                target = self.at(
                    out,
                    b.add(b.mul(image, image_size), b.mul(b.add(channel, row), spots)),
                )
                self.unpack(source, target, spots, image_size, count)

    def unpack(self, source: Ir, target: Ir, spots: Ir, image_size: Ir, count: Ir) -> None:
        """Write a channel of a bunch to its images."""
        b, lanes = self.b, self.width
        whole = b.sub(spots, b.srem(spots, self.number(lanes)))
        full = b.icmp_signed("==", count, self.number(lanes))
        whole = b.select(full, whole, self.number(0))
        with self.loop(self.number(0), whole, lanes) as spot:
            rows = [
                self.load(self.at(source, self.lanes(b.add(spot, self.number(n)))))
                for n in range(lanes)
            ]
            to = self.at(target, spot)
            for n, row in enumerate(self.transposed(rows)):
                self.store(row, self.at(to, b.mul(image_size, self.number(n))))
        with self.loop(self.number(0), count) as image:
            column = self.at(source, image)
            to = self.at(target, b.mul(image_size, image))
            with self.loop(whole, spots) as spot:
                value = b.load(self.at(column, self.lanes(spot)), typ=self.f32)
                b.store(value, self.at(to, spot))

    def gradients(self, begin: Ir, end: Ir, rows: int, columns: int) -> None:
        """Compute filters' gradients; a unit is a tile of taps of a tile of filters."""
        b = self.b
        x, grad, out, tiles, tap_tiles, taps, places, bases, spots = (
            self.cell(self.pointer) for _ in range(9)
        )
        tile_count, depth, bunches, x_size, grad_size, plane, more = (self.cell() for _ in range(7))
        totals = self.accumulators(rows * columns)
        name = f"llvm.vector.reduce.fadd.v{self.width}f32"
        add_up = declared(self.ir, self.module, name, self.f32, [self.f32, self.vector])
        with self.loop(begin, end) as unit:
            tile = self.at(tiles, b.mul(b.sdiv(unit, tile_count), self.number(4)), self.i64)
            taps_at = self.at(tap_tiles, b.mul(b.srem(unit, tile_count), self.number(4)), self.i64)
            first, tap_count, spot_first, spot_last = (
                self.entry(taps_at, self.number(n)) for n in range(4)
            )
            images_at = self.at(x, self.entry(tile, self.number(0)))
            channel, valid = self.entry(tile, self.number(1)), self.entry(tile, self.number(2))
            last = b.sub(valid, self.number(1))
            rows_at = [
                b.mul(plane, b.add(channel, self.smaller(self.number(m), last)))
                for m in range(rows)
            ]
            distances = [self.entry(taps, b.add(first, self.number(j))) for j in range(columns)]
            for total in totals:
                b.store(self.zero, total)
            with self.loop(self.number(0), bunches) as bunch:
                here = self.at(images_at, b.mul(bunch, x_size))
                starts = [self.at(here, d) for d in distances]
                grads = self.at(grad, b.mul(bunch, grad_size))
                lines = [self.at(grads, row) for row in rows_at]
                with self.loop(spot_first, spot_last) as spot:
                    base, at = self.entry(bases, spot), self.entry(spots, spot)
                    seen = [self.load(self.at(s, base)) for s in starts]
                    for m in range(rows):
                        g = self.load(self.at(lines[m], at))
                        for j in range(columns):
                            total = totals[m * columns + j]
                            b.store(self.fma(g, seen[j], b.load(total, typ=self.vector)), total)
            nothing = self.ir.Constant(self.f32, 0.0)
            for m in range(rows):
                row = self.at(out, b.mul(depth, b.add(channel, self.number(m))))
                for j in range(columns):
                    value = b.call(
                        add_up,
                        [nothing, b.load(totals[m * columns + j], typ=self.vector)],
                        fastmath=("reassoc",),
                    )
                    inside = b.and_(
                        b.icmp_signed("<", self.number(m), valid),
                        b.icmp_signed("<", self.number(j), tap_count),
                    )
                    with b.if_then(inside):
                        tap = b.add(first, self.number(j))
                        place = self.at(row, self.entry(places, tap))
                        old: Ir = b.load(place, typ=self.f32)
                        old = b.select(b.icmp_signed("!=", more, self.number(0)), old, nothing)
                        b.store(b.fadd(old, value), place)


@cache
def _functions(shape: Shape, fused: bool, position_bits: int) -> Functions:
    key = f"{shape} {fused} {position_bits} {source_digest(__file__)}"
    return Functions(lambda: _Writer(shape, fused, position_bits), f"wt_conv{shape.lanes}_", key)


# -- the tables ---------------------------


def _table(values: object) -> Table:
    return np.ascontiguousarray(values, np.int64)


def _apart(spots: int) -> int:
    """Return room for at least `spots` vectors; planes of an even number would share cache lines' sets."""
    return spots | 1


def _filled(values: Array, multiple: int) -> Array:
    """Repeat the last value up to a multiple."""
    return np.concatenate([values, np.repeat(values[-1:], -len(values) % multiple, axis=0)])


@dataclass(frozen=True, slots=True)
class _Band:
    """Rows (or columns) of results that the same taps reach at the same distances."""

    results: list[int]
    # Where each result's distances count from, and the distance of each tap.
    starts: list[int]
    taps: tuple[int, ...]
    distances: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Axis:
    """One direction of a convolution."""

    size: int
    result: int
    taps: int
    stride: int
    padding: int
    dilation: int

    def forward(self, apart: bool) -> tuple[list[_Band], int, int]:
        """Return the bands, how many zeros go before the images, and the size with zeros.

        With `apart`, results that zeros reach have their own bands, without the taps that do.
        """
        taps = range(self.taps)
        bands: dict[tuple[int, ...], _Band] = {}
        for y in range(self.result):
            at = y * self.stride - self.padding
            met = tuple(i for i in taps if not apart or 0 <= at + i * self.dilation < self.size)
            band = bands.setdefault(met, _Band([], [], met, tuple(i * self.dilation for i in met)))
            band.results.append(y)
            band.starts.append(y * self.stride)
        reach = (self.result - 1) * self.stride + (self.taps - 1) * self.dilation + 1
        return list(bands.values()), self.padding, max(reach, self.padding + self.size)

    def backward(self, apart: bool) -> tuple[list[_Band], int, int]:
        """Return the same for images' gradients: row y meets row (y + padding - i dilation) / stride
        of the outputs' gradients through tap i, where that is whole.
        """
        s = self.stride
        before = max(0, -((self.padding - (self.taps - 1) * self.dilation) // s))
        bands: dict[tuple[int, tuple[int, ...]], _Band] = {}
        for y in range(self.size):
            at = y + self.padding
            met = tuple(
                i
                for i in range(self.taps)
                if (at - i * self.dilation) % s == 0
                and (not apart or 0 <= (at - i * self.dilation) // s < self.result)
            )
            phase = y % s
            distances = tuple((phase + self.padding - i * self.dilation) // s + before for i in met)
            band = bands.setdefault((phase, met), _Band([], [], met, distances))
            band.results.append(y)
            band.starts.append(y // s)
        reach = (self.size - 1 + self.padding) // s + 1
        return list(bands.values()), before, before + max(self.result, reach)


class Plan:
    """A convolution for a target. What does not change from run to run: sizes and tables of offsets, in elements."""

    def __init__(self, routine: Convolution, target: Target = HERE) -> None:
        self.target = target
        features, fused = target.processor
        self.shape = shape_for(features)
        self.code = _functions(self.shape, fused, target.position_bits)
        self.lanes = self.shape.lanes
        self.n, self.c, h, w = routine.input_shape
        self.o, self.cg, self.kh, self.kw = routine.weight_shape
        _, _, oh, ow = routine.output_shape
        self.g, self.og = routine.groups, self.o // routine.groups
        self.inside, self.outside = h * w, oh * ow
        self.window = self.kh * self.kw
        self.axes = [
            _Axis(*sizes)
            for sizes in zip(
                (h, w), (oh, ow), (self.kh, self.kw),
                routine.stride, routine.padding, routine.dilation, strict=True,
            )
        ]  # fmt: skip
        self.run: Run
        self.tables: tuple[Table, ...]
        if routine.kind == "weight":
            self.gradient_tables((h, w))
        elif routine.kind == "input":
            self.tile_tables("backward", (oh, ow), w)
        else:
            self.tile_tables("forward", (h, w), ow)

    def channel_tiles(self, rows: int, per_group: int, images: int) -> Table:
        """Return (offset of the images, first channel, number of channels, 0) of each tile.

        `images` is the number of elements from one group's images to the next one's.
        """
        return _table(
            [
                (group * images, group * per_group + first, min(rows, per_group - first), 0)
                for group in range(self.g)
                for first in range(0, per_group, rows)
            ]
        )

    def tile_tables(self, direction: str, source: tuple[int, int], result_width: int) -> None:
        """Make the tables of the tiles of channels and spots, choosing the tile that does least work."""
        forward = direction == "forward"
        sources, results = (self.cg, self.og) if forward else (self.og, self.cg)
        best: tuple[float, Any] | None = None
        for tile in self.shape.tiles:
            for apart in ((False, False), (True, False), (True, True)):
                axes = [getattr(a, direction)(b) for a, b in zip(self.axes, apart, strict=True)]
                work = sum(
                    -(-len(a.results) * len(b.results) // tile[1])
                    * (len(a.taps) * len(b.taps) * sources + 4)
                    for a in axes[0][0]
                    for b in axes[1][0]
                )
                work *= -(-results // tile[0]) * tile[0] * tile[1]
                if best is None or work < best[0]:
                    best = work, (tile, axes)
        assert best is not None
        self.function = "tiles{}x{}".format(*best[1][0])
        (self.rows, spots), ((rows, top, height), (columns, left, width)) = best[1]
        self.plane = _apart(height * width)
        y, x = np.mgrid[: source[0], : source[1]]
        self.pixels = _table(((y + top) * width + x + left).ravel())
        self.border = height * width > len(self.pixels)
        channels = np.arange(sources)[:, None, None]
        i, j = np.mgrid[: self.kh, : self.kw]
        # From a filter to the next of its channel's tile, and to the next of what is added up.
        stride, channel = (self.cg * self.window, self.window)
        if not forward:
            stride, channel = channel, stride
        filter_taps = _table((channels * channel + i * self.kw + j).ravel())
        lists: list[list[Array]] = [[], [], []]
        phases, spot, tap = [], 0, 0
        for a in rows:
            for b in columns:
                starts = np.add.outer(np.multiply(a.starts, width), b.starts).ravel()
                places = np.add.outer(np.multiply(a.results, result_width), b.results).ravel()
                i, j = np.array(a.taps, np.int64)[:, None], np.array(b.taps, np.int64)
                di, dj = np.array(a.distances, np.int64)[:, None], np.array(b.distances, np.int64)
                distances = (channels * self.plane + di * width + dj).ravel()
                filters = (channels * self.window + i * self.kw + j).ravel() * self.rows
                phases.append((spot, spot + len(starts), tap, tap + len(filters)))
                found = (
                    _filled(starts, spots) * self.lanes, _filled(places, spots),
                    np.stack([distances * self.lanes, filters], -1),
                )  # fmt: skip
                for every, some in zip(lists, found, strict=True):
                    every.append(some)
                spot += len(found[0])
                tap += len(filters)
        bases, places, taps = (_table(np.concatenate(every)) for every in lists)
        self.filter_stride, self.tap_count = stride, len(filter_taps)
        self.phase_count = len(phases)
        tiles = self.channel_tiles(self.rows, results, sources * self.plane * self.lanes)
        group, first = tiles[:, 1] // results, tiles[:, 1] % results
        tiles[:, 3] = group * self.og * self.cg * self.window + first * stride
        self.tile_count = len(tiles)
        # In the order in which `filters` and then `tiles` take them.
        self.tables = (filter_taps, tiles, bases, places, taps, _table(phases), tiles)
        self.addresses = [self.target.address(t) for t in self.tables]
        self.sources, self.results = sources * self.g, results * self.g
        self.spots_in, self.spots_out = (
            (self.inside, self.outside) if forward else (self.outside, self.inside)
        )
        self.run = self.tiled

    def gradient_tables(self, source: tuple[int, int]) -> None:
        """Make the tables of the tiles of filters and taps, choosing the tile that does least work."""
        best: tuple[float, Any] | None = None
        (_, top, height), (_, left, width) = (axis.forward(False) for axis in self.axes)
        # Spots that a tap meets inside the images, for each tap's row and column.
        met = [
            [
                [
                    y
                    for y in range(a.result)
                    if 0 <= y * a.stride - a.padding + i * a.dilation < a.size
                ]
                for i in range(a.taps)
            ]
            for a in self.axes
        ]
        used = sum(map(len, met[0])) * sum(map(len, met[1]))
        for tile in self.shape.gradients:
            filters = -(-self.og // tile[0]) * tile[0]
            whole = -(-self.cg * self.window // tile[1]) * tile[1] * self.outside
            apart = -(-self.cg // tile[1]) * tile[1] * used
            for work, split_up in ((whole, False), (apart, True)):
                if best is None or filters * work < best[0]:
                    best = filters * work, (tile, split_up)
        assert best is not None
        self.function = "gradients{}x{}".format(*best[1][0])
        (self.rows, columns), apart = best[1]
        self.plane = _apart(height * width)
        y, x = np.mgrid[: source[0], : source[1]]
        self.pixels = _table(((y + top) * width + x + left).ravel())
        self.border = height * width > len(self.pixels)
        di, dj = (a.dilation for a in self.axes)
        sh, sw = (a.stride for a in self.axes)
        across = self.axes[1].result
        taps: list[Array] = []
        places: list[Array] = []
        bases: list[Array] = []
        spots: list[Array] = []
        tiles: list[tuple[int, int, int, int]] = []

        def add(c: Array, i: Array, j: Array) -> None:
            """Add taps, in tiles that meet the last spots added."""
            distances = _filled((c * self.plane + i * di * width + j * dj).ravel(), columns)
            count, last = c.size, sum(len(b) for b in bases)
            for first in range(0, count, columns):
                begin = sum(len(t) for t in taps) + first
                tiles.append((begin, min(columns, count - first), last - len(bases[-1]), last))
            taps.append(distances)
            places.append(_filled((c * self.window + i * self.kw + j).ravel(), columns))

        def meet(rows: Table, along: Table) -> None:
            """Add the positions where rows and columns of taps meet."""
            bases.append(
                np.add.outer(np.multiply(rows, sh * width), np.multiply(along, sw)).ravel()
            )
            spots.append(np.add.outer(np.multiply(rows, across), along).ravel())

        if apart:
            for i in range(self.kh):
                for j in range(self.kw):
                    meet(np.array(met[0][i], np.int64), np.array(met[1][j], np.int64))
                    c = np.arange(self.cg)
                    add(c, np.full_like(c, i), np.full_like(c, j))
        else:
            meet(np.arange(self.axes[0].result), np.arange(across))
            add(*np.mgrid[: self.cg, : self.kh, : self.kw])
        lanes = self.lanes
        self.spots = _table(np.arange(self.outside))
        filter_tiles = self.channel_tiles(self.rows, self.og, self.cg * self.plane * lanes)
        self.tap_tiles, self.tile_count = len(tiles), len(filter_tiles)
        self.tables = (
            filter_tiles, _table(tiles), _table(np.concatenate(taps) * lanes),
            _table(np.concatenate(places)), _table(np.concatenate(bases) * lanes),
            _table(np.concatenate(spots) * lanes),
        )  # fmt: skip
        self.addresses = [self.target.address(t) for t in self.tables]
        self.run = self.gradients

    # -- runs ---------------------------

    def bunches(self, per_bunch: int) -> list[tuple[int, int]]:
        """Cut the images into parts of whole bunches whose copies take `per_bunch` bytes each."""
        count = max(_SCRATCH // max(per_bunch, 1), 1) * self.lanes
        return [(i, min(i + count, self.n)) for i in range(0, self.n, count)]

    def packed(self, x: int, channels: int, images: int, places: Table, border: bool) -> Addressed:
        """Return the images at address `x` laid out anew."""
        bunches = -(-images // self.lanes)
        plane = self.plane if places is self.pixels else _apart(len(places))
        out = self.target.scratch(bunches * channels * plane * self.lanes)
        cells = (
            x, out.address, self.target.address(places), len(places), plane, channels, images, int(border)
        )  # fmt: skip
        self.target.run(
            self.code, "pack", bunches * channels, cells, bunches * channels * len(places)
        )
        return out

    def tiled(self, x: Addressed, weight: Addressed, out: Addressed) -> None:
        """Compute outputs from images, or images' gradients from outputs' gradients."""
        lanes, rows, taps, tiles = self.lanes, self.rows, self.tap_count, self.tile_count
        filters = self.target.scratch(tiles * taps * rows)
        cells = (weight.address, filters.address, *self.addresses[:2], taps, self.filter_stride)
        self.target.run(self.code, f"filters{rows}", tiles, cells, tiles * rows * taps)
        size_in, size_out = self.sources * self.spots_in, self.results * self.spots_out
        bunch = self.sources * self.plane * lanes
        plane = _apart(self.spots_out)
        room = tiles * rows * plane * lanes
        for begin, end in self.bunches(4 * (bunch + room)):
            first = x.address + 4 * begin * size_in
            images = self.packed(first, self.sources, end - begin, self.pixels, self.border)
            count = -(-(end - begin) // lanes)
            scratch = self.target.scratch(count * room)
            cells = (
                images.address, filters.address, scratch.address, out.address + 4 * begin * size_out,
                *self.addresses[2:], tiles, bunch, taps, self.phase_count, self.spots_out, plane,
                end - begin, size_out,
            )  # fmt: skip
            work = count * tiles * rows * taps * self.spots_out
            self.target.run(self.code, self.function, count * tiles, cells, work)

    def gradients(self, x: Addressed, grad: Addressed, out: Addressed) -> None:
        """Compute the filters' gradients from images and outputs' gradients."""
        lanes = self.lanes
        size_x, size_grad = self.c * self.inside, self.o * self.outside
        plane = _apart(self.outside) * lanes
        x_bunch, grad_bunch = self.c * self.plane * lanes, self.o * plane
        for begin, end in self.bunches(4 * (x_bunch + grad_bunch)):
            count = end - begin
            first = x.address + 4 * begin * size_x
            images = self.packed(first, self.c, count, self.pixels, self.border)
            first = grad.address + 4 * begin * size_grad
            grads = self.packed(first, self.o, count, self.spots, False)
            cells = (
                images.address, grads.address, out.address, *self.addresses, self.tap_tiles,
                self.cg * self.window, -(-count // lanes), x_bunch, grad_bunch, plane,
                int(begin > 0),
            )  # fmt: skip
            work = self.o * self.cg * self.window * self.outside * count // lanes
            self.target.run(self.code, self.function, self.tile_count * self.tap_tiles, cells, work)


def suits(routine: Convolution) -> bool:
    """Whether this way is the faster one here."""
    n = routine.input_shape[0]
    if not jit.available() or any(b.dtype is not float32 for b in routine.buffers[:3]):
        return False
    _, _, height, width = routine.output_shape
    if n * height * width * math.prod(routine.weight_shape) < _LEAST_WORK:
        return False
    lanes = shape_for(jit.processor()[0]).lanes
    _, _, kh, kw = routine.weight_shape
    # One pixel windows are matrix products as they are, but for the sum over all images.
    plain = kh == kw == 1 and routine.stride == (1, 1) and routine.kind != "weight"
    return n >= _LEAST_USE * lanes * -(-n // lanes) and not plain


def convolution(routine: Convolution) -> Run:
    """Return a function of the buffers (first, second, out)."""
    return Plan(routine).run
