"""Matrix products in machine code on the backend's own threads. float32.

Both operands are copied into panels, in the order in which a tile of results reads them: for each
step along the sum, some rows of the left side and some vectors of the right side. A tile stays in
registers for the whole sum. A library's product is as fast on large matrices, but its threads and
ours would fight for the processors, and it does small batches on one thread.

Imports NumPy, floors 0-2 and modules beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import numpy.typing as npt

from webtorch.ir.dtype import float32
from webtorch.ir.kernel import Matmul
from webtorch.runtime.backends.cpu import jit
from webtorch.runtime.backends.cpu.contraction import simplified
from webtorch.runtime.backends.cpu.llvmtypes import Ir
from webtorch.runtime.backends.cpu.memory import CpuBuffer
from webtorch.runtime.backends.cpu.vectorcode import (
    HERE,
    Addressed,
    Functions,
    Target,
    VectorWriter,
    source_digest,
)

Run = Callable[[CpuBuffer, CpuBuffer, CpuBuffer], None]

# Terms that are added up in registers; longer sums are done in parts, so that panels stay in the
# second-level cache and rounding errors small.
_DEPTH = 2048
# Panels of this many bytes at a time.
_SCRATCH = 64 << 20
# Smaller products, of one matrix and of a whole batch, are left to NumPy, which does them on one thread:
# its call costs less.
_LEAST_WORK = 1 << 18
_LEAST_BATCH_WORK = 1 << 21
# With fewer rows or columns the copies cost as much as the product.
_LEAST_SIDE = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """What fits the processor's registers: lanes of a vector, and tiles (rows, vectors) to choose from."""

    lanes: int
    tiles: tuple[tuple[int, int], ...]


def shape_for(features: str) -> Shape:
    """Return the tiles for a processor with LLVM's features `features`."""
    names = features.split(",")
    if "+avx512f" in names:
        return Shape(16, ((8, 3), (12, 2), (24, 1)))
    if "+avx" in names:
        return Shape(8, ((4, 3), (6, 2), (12, 1)))
    if "+simd128" in names:
        # WebAssembly: of SSE's 16 registers the browser's compiler needs some for itself.
        return Shape(4, ((4, 2), (8, 1), (2, 4)))
    # ARM has 32 registers of 4 lanes, SSE 16.
    return Shape(4, ((4, 3), (6, 2), (12, 1)) if "+sse2" in names else ((8, 3), (12, 2), (24, 1)))


class _Writer(VectorWriter):
    def __init__(self, shape: Shape, fused: bool, position_bits: int) -> None:
        super().__init__(shape.lanes, fused, position_bits)
        widths = {n for rows, vectors in shape.tiles for n in (rows, vectors * shape.lanes)}
        for width in sorted(widths):
            self.functions[f"pack{width}"] = self.pack, (width,)
        for rows, vectors in shape.tiles:
            self.functions[f"tiles{rows}x{vectors}"] = self.tiles, (rows, vectors)

    def pack(self, begin: Ir, end: Ir, width: int) -> None:
        """Copy a matrix into panels (step of the sum, line of the panel); a unit is a panel.

        Lines past the last repeat it: what is computed from them is not stored.
        """
        b = self.b
        source, target, offsets = (self.cell(self.pointer) for _ in range(3))
        panels, lines, steps, line_stride, step_stride = (self.cell() for _ in range(5))
        lanes = math.gcd(width, self.width)
        vector = self.vector_of(lanes)
        one = self.number(1)
        with self.loop(begin, end) as unit:
            matrix, first = b.sdiv(unit, panels), b.mul(b.srem(unit, panels), self.number(width))
            start = self.at(source, self.entry(offsets, matrix))
            start = self.at(start, b.mul(first, line_stride))
            out = self.at(target, b.mul(unit, b.mul(steps, self.number(width))))
            valid = self.smaller(b.sub(lines, first), self.number(width))
            last = b.sub(valid, one)
            strides = [b.mul(line_stride, self.smaller(self.number(n), last)) for n in range(width)]
            whole = b.icmp_signed("==", valid, self.number(width))
            beside = b.and_(whole, b.icmp_signed("==", line_stride, one))
            behind = b.icmp_signed("==", step_stride, one)
            done = b.sub(steps, b.srem(steps, self.number(lanes)))
            done = b.select(behind, done, self.number(0))
            done = b.select(beside, steps, done)

            def along_lines(step: Ir) -> None:
                """Copy one step of a panel whose lines are neighbours in memory."""
                place, to = (
                    self.at(start, b.mul(step, step_stride)),
                    b.mul(step, self.number(width)),
                )
                for n in range(0, width, lanes):
                    value = self.load(self.at(place, self.number(n)), vector)
                    self.store(value, self.at(out, b.add(to, self.number(n))))

            def along_steps(step: Ir) -> None:
                """Copy a square of a panel whose steps are neighbours in memory, transposed."""
                for n in range(0, width, lanes):
                    rows = [
                        self.load(self.at(start, b.add(stride, step)), vector)
                        for stride in strides[n : n + lanes]
                    ]
                    for i, column in enumerate(self.transposed(rows)):
                        to = b.mul(b.add(step, self.number(i)), self.number(width))
                        self.store(column, self.at(out, b.add(to, self.number(n))))

            with b.if_else(beside) as (yes, no):
                with yes, self.loop(self.number(0), steps) as step:
                    along_lines(step)
                with no, self.loop(self.number(0), done, lanes) as step:
                    along_steps(step)
            with self.loop(done, steps) as step:
                place, to = (
                    self.at(start, b.mul(step, step_stride)),
                    b.mul(step, self.number(width)),
                )
                for n, stride in enumerate(strides):
                    value = b.load(self.at(place, stride), typ=self.f32)
                    b.store(value, self.at(out, b.add(to, self.number(n))))

    def tiles(self, begin: Ir, end: Ir, rows: int, vectors: int) -> None:
        """Compute tiles of results; a unit is a tile."""
        b, lanes = self.b, self.width
        left, right, out, left_numbers, right_numbers = (self.cell(self.pointer) for _ in range(5))
        m, n, steps, row_tiles, column_tiles, more = (self.cell() for _ in range(6))
        totals = self.accumulators(rows * vectors)
        with b.goto_entry_block():
            spare = b.alloca(self.vector, rows * vectors)
        width = vectors * lanes
        zero, nothing = self.number(0), self.ir.Constant(self.f32, 0.0)
        again = b.icmp_signed("!=", more, zero)
        with self.loop(begin, end) as unit:
            row_tile, rest = b.srem(unit, row_tiles), b.sdiv(unit, row_tiles)
            column_tile, batch = b.srem(rest, column_tiles), b.sdiv(rest, column_tiles)
            panel = b.add(b.mul(self.entry(left_numbers, batch), row_tiles), row_tile)
            a = self.at(left, b.mul(panel, b.mul(steps, self.number(rows))))
            panel = b.add(b.mul(self.entry(right_numbers, batch), column_tiles), column_tile)
            c = self.at(right, b.mul(panel, b.mul(steps, self.number(width))))
            for total in totals:
                b.store(self.zero, total)
            with self.loop(zero, steps) as step:
                here = self.at(c, b.mul(step, self.number(width)))
                seen = [self.load(self.at(here, self.number(j * lanes))) for j in range(vectors)]
                here = self.at(a, b.mul(step, self.number(rows)))
                for i in range(rows):
                    x = self.splat(b.load(self.at(here, self.number(i)), typ=self.f32))
                    for j in range(vectors):
                        total = totals[i * vectors + j]
                        b.store(self.fma(x, seen[j], b.load(total, typ=self.vector)), total)
            row, column = b.mul(row_tile, self.number(rows)), b.mul(column_tile, self.number(width))
            corner = self.at(out, b.add(b.mul(b.add(b.mul(batch, m), row), n), column))
            height = self.smaller(b.sub(m, row), self.number(rows))
            across = self.smaller(b.sub(n, column), self.number(width))
            full = b.and_(
                b.icmp_signed("==", height, self.number(rows)),
                b.icmp_signed("==", across, self.number(width)),
            )
            with b.if_else(b.and_(full, b.not_(again))) as (yes, no):
                with yes:
                    for number, total in enumerate(totals):
                        i, j = divmod(number, vectors)
                        line = self.at(corner, b.mul(n, self.number(i)))
                        value = b.load(total, typ=self.vector)
                        self.store(value, self.at(line, self.number(j * lanes)))
                with no:
                    for number, total in enumerate(totals):
                        place = b.gep(spare, [self.number(number)], source_etype=self.vector)
                        b.store(b.load(total, typ=self.vector), place)
                    floats = b.bitcast(spare, self.f32.as_pointer())
                    with self.loop(zero, height) as row:
                        line = self.at(corner, b.mul(n, row))
                        values = self.at(floats, b.mul(row, self.number(width)))
                        with self.loop(zero, across) as k:
                            place = self.at(line, k)
                            old = b.select(again, b.load(place, typ=self.f32), nothing)
                            value = b.load(self.at(values, k), typ=self.f32)
                            b.store(b.fadd(old, value), place)


@cache
def _functions(shape: Shape, fused: bool, position_bits: int) -> Functions:
    key = f"{shape} {fused} {position_bits} {source_digest(__file__)}"
    return Functions(lambda: _Writer(shape, fused, position_bits), f"wt_gemm{shape.lanes}_", key)


Table = npt.NDArray[np.int64]


def _table(values: object) -> Table:
    return np.ascontiguousarray(values, np.int64)


@dataclass(frozen=True, slots=True)
class _Part:
    """Some products of a batch: where the matrices that they need start, and which one each needs."""

    first: int
    count: int
    # For the left side, then the right.
    starts: tuple[Table, Table]
    numbers: tuple[Table, Table]
    addresses: tuple[int, int, int, int]


class Plan:
    """A product for a target: what does not change from run to run."""

    def __init__(self, routine: Matmul, target: Target = HERE) -> None:
        self.target = target
        features, fused = target.processor
        self.shape = shape_for(features)
        self.code = _functions(self.shape, fused, target.position_bits)
        batch, self.m, left_strides, right_strides = simplified(routine)
        self.n, self.k = routine.n, routine.k
        *left, self.left_line, self.left_step = left_strides
        *right, self.right_step, self.right_line = right_strides
        self.left_offset, self.right_offset = routine.left_offset, routine.right_offset

        def work(tile: tuple[int, int]) -> int:
            """Return how many elements tiles of this size compute, padding included."""
            width = tile[1] * self.shape.lanes
            return -(-self.m // tile[0]) * tile[0] * -(-self.n // width) * width

        self.rows, vectors = min(self.shape.tiles, key=work)
        self.width = vectors * self.shape.lanes
        self.function = f"tiles{self.rows}x{vectors}"
        self.row_tiles, self.column_tiles = -(-self.m // self.rows), -(-self.n // self.width)
        parts = -(-self.k // _DEPTH)
        depth = -(-self.k // parts)
        self.steps = [(k, min(depth, self.k - k)) for k in range(0, self.k, depth)]
        panels = self.row_tiles * self.rows + self.column_tiles * self.width
        places = list(product(*[range(size) for size in batch]))
        at_once = max(_SCRATCH // (4 * depth * panels), 1)
        self.parts = []
        for first in range(0, len(places), at_once):
            some = places[first : first + at_once]
            starts, numbers = [], []
            for strides in (left, right):
                found: dict[int, int] = {}
                offsets = [sum(i * s for i, s in zip(p, strides, strict=True)) for p in some]
                numbers.append(_table([found.setdefault(o, len(found)) for o in offsets]))
                starts.append(_table(list(found)))
            a, b, c, d = (target.address(t) for t in (*starts, *numbers))
            self.parts.append(
                _Part(
                    first, len(some), (starts[0], starts[1]), (numbers[0], numbers[1]), (a, b, c, d)
                )
            )

    def run(self, left: Addressed, right: Addressed, out: Addressed) -> None:
        """Compute the products; of the buffers only the addresses are used."""
        rows, width, row_tiles, column_tiles = (
            self.rows, self.width, self.row_tiles, self.column_tiles
        )  # fmt: skip
        run, code = self.target.run, self.code
        for part in self.parts:
            left_starts, right_starts, *numbers = part.addresses
            result = out.address + 4 * part.first * self.m * self.n
            for first, steps in self.steps:
                panels = len(part.starts[0]) * row_tiles
                elements = panels * rows * steps
                a = self.target.scratch(elements)
                start = left.address + 4 * (self.left_offset + first * self.left_step)
                cells = (
                    start, a.address, left_starts,
                    row_tiles, self.m, steps, self.left_line, self.left_step,
                )  # fmt: skip
                run(code, f"pack{rows}", panels, cells, elements >> 2)
                panels = len(part.starts[1]) * column_tiles
                elements = panels * width * steps
                b = self.target.scratch(elements)
                start = right.address + 4 * (self.right_offset + first * self.right_step)
                cells = (
                    start, b.address, right_starts,
                    column_tiles, self.n, steps, self.right_line, self.right_step,
                )  # fmt: skip
                run(code, f"pack{width}", panels, cells, elements >> 2)
                tiles = (
                    a.address, b.address, result, *numbers,
                    self.m, self.n, steps, row_tiles, column_tiles, int(first > 0),
                )  # fmt: skip
                count = part.count * row_tiles * column_tiles
                work = count * steps * rows * width // self.shape.lanes
                run(code, self.function, count, tiles, work)


def suits(routine: Matmul) -> bool:
    """Whether this way is the faster one here."""
    work = routine.m * routine.n * routine.k
    return (
        (work >= _LEAST_WORK or math.prod(routine.batch) * work >= _LEAST_BATCH_WORK)
        and min(routine.m, routine.n) >= _LEAST_SIDE
        and all(b.dtype is float32 for b in routine.buffers[:3])
        and jit.available()
    )


def matmul(routine: Matmul) -> Run:
    """Return a function of the buffers (left, right, out)."""
    return Plan(routine).run
