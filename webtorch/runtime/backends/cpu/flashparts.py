"""The parts of attention's machine code: products and copies of blocks, masks, dropout. Imports floors 0-2
and modules beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product

from webtorch.ir import expr as ex
from webtorch.ir.dtype import float32
from webtorch.ir.expr.exponential import exp_of_negative
from webtorch.runtime.backends import philox
from webtorch.runtime.backends.cpu.llvmtypes import Ir, Kind, declared
from webtorch.runtime.backends.cpu.machine import LaneMachine
from webtorch.runtime.backends.cpu.vectorcode import VectorWriter

EXP = exp_of_negative(ex.input_(0, float32))


@dataclass(frozen=True, slots=True)
class Shape:
    """What fits the processor's registers: lanes of a vector; for 1, 2, .. vectors side by side, how
    many rows of them a tile of results has.
    """

    lanes: int
    rows: tuple[int, ...]


def shape_for(features: str) -> Shape:
    """Return the tiles for a processor with LLVM's features `features`."""
    names = features.split(",")
    if "+avx512f" in names:
        return Shape(16, (8, 8, 8, 6))
    if "+avx" in names:
        return Shape(8, (8, 6, 4))
    if "+simd128" in names:
        return Shape(4, (8, 4))
    return Shape(4, (8, 6, 4) if "+sse2" in names else (8, 8, 8, 6))


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor (batch, head, position, element): where it starts, and its strides."""

    start: Ir
    strides: tuple[Ir, Ir, Ir, Ir]


@dataclass(frozen=True, slots=True)
class Block:
    """A block of queries of one head: how many vectors, the first query and how many there are."""

    vectors: int
    batch: Ir
    head: Ir
    first: Ir
    valid: Ir


class BlockWriter(VectorWriter):
    """Writes what is done with blocks of scores, for one processor."""

    def __init__(self, shape: Shape, fused: bool, position_bits: int) -> None:
        super().__init__(shape.lanes, fused, position_bits)
        self.machine = LaneMachine(self.module, fused, shape.lanes)
        self.i32 = self.ir.IntType(32)
        self.rows = shape.rows

    # -- small parts ---------------------------

    def operand(self) -> Operand:
        """Return the next parameters as a tensor."""
        start = self.cell(self.pointer)
        b, h, p, e = (self.cell() for _ in range(4))
        return Operand(start, (b, h, p, e))

    def of(self, x: Operand, *indices: Ir) -> Ir:
        """Return the address of an element; indices that are left out are 0."""
        place = x.start
        for index, stride in zip(indices, x.strides, strict=False):
            place = self.at(place, self.b.mul(index, stride))
        return place

    def beside(self, base: Ir, row: Ir, width: int, vector: int = 0) -> Ir:
        """Return the address of a vector of a row of `width` vectors."""
        place = self.b.mul(row, self.number(width * self.width))
        return self.at(base, self.b.add(place, self.number(vector * self.width)))

    def scalar(self, place: Ir) -> Ir:
        """Return a float."""
        return self.b.load(place, typ=self.f32)

    def constant(self, value: float) -> Ir:
        """Return a vector of one constant."""
        return self.machine.constant(value, "float32").value

    def lane_numbers(self) -> Ir:
        """Return (0, 1, ..) as positions."""
        kind = self.ir.VectorType(self.index, self.width)
        return self.ir.Constant(kind, [self.number(n) for n in range(self.width)])

    def positions(self, x: Ir) -> Ir:
        """Return a vector of one position."""
        return self.spread(x, self.index)

    def spread(self, x: Ir, kind: Kind) -> Ir:
        """Return a vector of one value of any type."""
        vector = self.ir.VectorType(kind, self.width)
        first = self.ir.Constant(self.i32, 0)
        one = self.b.insert_element(self.ir.Constant(vector, self.ir.Undefined), x, first)
        mask = self.ir.Constant(self.ir.VectorType(self.i32, self.width), None)
        return self.b.shuffle_vector(one, one, mask)

    def larger_lanes(self, a: Ir, b: Ir) -> Ir:
        """Return the larger of each two lanes; that of `b` where either is NaN."""
        return self.b.select(self.b.fcmp_ordered(">", a, b), a, b)

    def exp(self, x: Ir) -> Ir:
        """Return e^x for arguments that are hardly positive: 0 below -87."""
        m = self.machine
        m.builder = self.b
        return m.evaluate(EXP, [m.wrap(x, "float32")]).value

    def call(self, name: str, values: Sequence[Ir], write: Callable[..., None]) -> None:
        """Call a function of the module, which `write` writes where there is none of this name."""
        function = self.module.globals.get(name)
        if function is None:
            kind = self.ir.FunctionType(self.ir.VoidType(), [v.type for v in values])
            function = self.ir.Function(self.module, kind, name)
            function.linkage = "internal"
            for attribute in ("noinline", "nounwind"):
                function.attributes.add(attribute)
            outside, self.b = self.b, self.ir.IRBuilder(function.append_basic_block("entry"))
            write(*function.args)
            self.b.ret_void()
            self.b = outside
        self.b.call(function, values)

    @contextmanager
    def taken(self, counter: Ir | None, items: Ir, unit: Ir, units: Ir) -> Iterator[Ir]:
        """Take one item after the other that no other unit has taken."""
        b = self.b
        head, inside, after = (b.append_basic_block(n) for n in ("next", "item", "taken"))
        before = b.block
        b.branch(head)
        b.position_at_end(head)
        phi, item = None, unit
        if counter is None:
            item = phi = b.phi(self.index)
            phi.add_incoming(unit, before)
        else:
            item = b.atomic_rmw("add", counter, self.ir.Constant(self.i64, 1), "monotonic")
        b.cbranch(b.icmp_signed("<", item, items), inside, after)
        b.position_at_end(inside)
        yield item
        if phi is not None:
            phi.add_incoming(b.add(phi, units), b.block)
        b.branch(head)
        b.position_at_end(after)

    # -- products and copies ---------------------------

    def product(
        self,
        left: Ir,
        strides: tuple[Ir, Ir],
        rows: Ir,
        right: Ir,
        line: Ir,
        steps: Ir,
        vectors: int,
        start: Callable[[Ir, int], Ir],
        finish: Callable[[Ir, int, Ir], None],
    ) -> None:
        """Add up left[row, step] * right[step, :] over steps, in tiles of rows; rows past the last
        repeat it, which stores the same again.

        `strides` are those of `left` along rows and steps, `line` that of `right` along steps; `start`
        gives what sums begin with and `finish` takes them, for (row, number of the vector).
        """
        b, height = self.b, self.rows[vectors - 1]
        totals = self.accumulators(height * vectors)
        last = b.sub(rows, self.number(1))
        with self.loop(self.number(0), rows, height) as row:
            numbers = [self.smaller(b.add(row, self.number(i)), last) for i in range(height)]
            places = [self.at(left, b.mul(n, strides[0])) for n in numbers]
            for i, v in product(range(height), range(vectors)):
                b.store(start(numbers[i], v), totals[i * vectors + v])
            with self.loop(self.number(0), steps) as step:
                here = self.at(right, b.mul(step, line))
                seen = [
                    self.load(self.at(here, self.number(v * self.width))) for v in range(vectors)
                ]
                along = b.mul(step, strides[1])
                for i in range(height):
                    x = self.splat(self.scalar(self.at(places[i], along)))
                    for v in range(vectors):
                        total = totals[i * vectors + v]
                        b.store(self.fma(x, seen[v], b.load(total, typ=self.vector)), total)
            for i, v in product(range(height), range(vectors)):
                finish(numbers[i], v, b.load(totals[i * vectors + v], typ=self.vector))

    def product_of(
        self,
        left: Ir,
        strides: tuple[Ir, Ir],
        rows: Ir,
        right: Ir,
        steps: Ir,
        out: Ir,
        vectors: int,
        factors: Ir | None = None,
    ) -> None:
        """Compute out[row, :] = out[row, :] * factors + left[row, step] * right[step, :], summed over
        steps; all rows are of `vectors` vectors. Without factors nothing is in `out` before.
        """
        line = self.number(vectors * self.width)
        of_old = () if factors is None else (factors,)

        def write(
            left: Ir, along: Ir, step: Ir, rows: Ir, right: Ir, steps: Ir, out: Ir, *at: Ir
        ) -> None:
            """Write the product at a place."""
            kept = [
                self.load(self.at(at[0], self.number(v * self.width)))
                for v in range(vectors if at else 0)
            ]

            def old(row: Ir, v: int) -> Ir:
                """Return what is in `out`, times the factors."""
                if not at:
                    return self.zero
                return self.b.fmul(self.load(self.beside(out, row, vectors, v)), kept[v])

            def put(row: Ir, v: int, x: Ir) -> None:
                """Store a vector of `out`."""
                self.store(x, self.beside(out, row, vectors, v))

            self.product(left, (along, step), rows, right, line, steps, vectors, old, put)

        name = f"product{vectors}{'_more' * len(of_old)}"
        self.call(name, [left, *strides, rows, right, steps, out, *of_old], write)

    def transpose_in(
        self,
        source: Ir,
        strides: tuple[Ir, Ir],
        steps: Ir,
        valid: Ir,
        out: Ir,
        vectors: int,
        kind: Kind | None = None,
        factor: Ir | None = None,
    ) -> None:
        """Copy source[lane, step], times a factor, to out[step, lane]; lanes past the last repeat it."""
        kind = self.f32 if kind is None else kind
        name = f"transpose_in{vectors}_{kind}"
        values = [source, *strides, steps, valid, out]
        values.append(self.constant(1.0) if factor is None else factor)
        self.call(name, values, partial(self._transpose_in, vectors, kind))

    def _transpose_in(
        self,
        vectors: int,
        kind: Kind,
        source: Ir,
        line: Ir,
        step_stride: Ir,
        steps: Ir,
        valid: Ir,
        out: Ir,
        factor: Ir,
    ) -> None:
        b, lanes = self.b, self.width
        wide = self.ir.VectorType(kind, lanes)
        straight = b.icmp_signed("==", step_stride, self.number(1))
        whole = b.select(straight, b.sub(steps, b.srem(steps, self.number(lanes))), self.number(0))
        last = b.sub(valid, self.number(1))

        def number(x: Ir) -> Ir:
            """Return a vector as scaled float32 numbers."""
            return b.fmul(x if kind == self.f32 else b.uitofp(x, self.vector), factor)

        align = 4 if kind == self.f32 else 1
        with self.loop(self.number(0), self.number(vectors)) as v:
            first = self.lanes(v)
            rows = []
            for i in range(lanes):
                lane = self.smaller(b.add(first, self.number(i)), last)
                rows.append(self.at(source, b.mul(lane, line), kind))
            to = self.at(out, first)
            with self.loop(self.number(0), whole, lanes) as step:
                found = [
                    number(b.load(self.at(row, step, kind), typ=wide, align=align)) for row in rows
                ]
                for i, column in enumerate(self.transposed(found)):
                    self.store(column, self.beside(to, b.add(step, self.number(i)), vectors))
            with self.loop(whole, steps) as step:
                along = b.mul(step, step_stride)
                column = self.ir.Constant(wide, self.ir.Undefined)
                for i, row in enumerate(rows):
                    x = b.load(self.at(row, along, kind), typ=kind)
                    column = b.insert_element(column, x, self.ir.Constant(self.i32, i))
                self.store(number(column), self.beside(to, step, vectors))

    def transpose_out(
        self,
        source: Ir,
        steps: Ir,
        valid: Ir,
        out: Ir,
        line: Ir,
        vectors: int,
        factors: Ir,
    ) -> None:
        """Copy source[step, lane], times a factor of each lane, to out[lane, step]."""
        b, lanes = self.b, self.width
        whole = b.sub(steps, b.srem(steps, self.number(lanes)))
        with self.loop(self.number(0), self.number(vectors)) as v:
            first = self.lanes(v)
            start, to = self.at(source, first), self.at(out, b.mul(first, line))
            left = self.smaller(b.sub(valid, first), self.number(lanes))

            def scaled(step: Ir) -> Ir:
                """Return a step's vector, times the lanes' factors."""
                x = self.load(self.beside(start, step, vectors))
                return b.fmul(x, self.load(self.at(factors, first)))

            with self.loop(self.number(0), whole, lanes) as step:
                columns = [scaled(b.add(step, self.number(i))) for i in range(lanes)]
                for i, row in enumerate(self.transposed(columns)):
                    with b.if_then(b.icmp_signed("<", self.number(i), left)):
                        place = self.at(to, b.mul(self.number(i), line))
                        self.store(row, self.at(place, step))
            with self.loop(whole, steps) as step:
                self.store(scaled(step), self.beside(start, step, vectors))
                with self.loop(self.number(0), left) as lane:
                    x = self.scalar(self.at(self.beside(start, step, vectors), lane))
                    b.store(x, self.at(self.at(to, b.mul(lane, line)), step))

    # -- scores ---------------------------

    def parameters(self, mask: str, dropout: bool) -> None:
        """Read the parameters that both functions begin with."""
        self.counter, self.scratch = self.cell(self.pointer), self.cell(self.pointer)
        self.room, self.units, self.items = (self.cell() for _ in range(3))
        self.heads, self.inner, self.length, self.source, self.size, self.value_width = (
            self.cell() for _ in range(6)
        )
        self.causal, self.blocks = self.cell(), self.cell()
        self.query, self.key, self.value = (self.operand() for _ in range(3))
        self.hidden = self.operand() if mask else None
        self.mask = mask
        number = self.b.gep(self.cells, [self.number(self.cell_count)], source_etype=self.i64)
        self.cell_count += 1
        self.scale = self.splat(self.scalar(number))
        self.dropout = dropout
        if dropout:
            count = self.cell_count
            self.cell_count += 4
            places = [
                self.b.gep(self.cells, [self.number(count + n)], source_etype=self.i64)
                for n in range(4)
            ]
            self.least, self.kept = (self.splat(self.scalar(p)) for p in places[:2])
            # Both words of the seed, then the counter.
            seeds = self.b.load(places[2], typ=self.i64)
            self.seeds = [
                self.spread(self.b.trunc(x, self.i32), self.i32)
                for x in (seeds, self.b.lshr(seeds, self.ir.Constant(self.i64, 32)))
            ]
            self.drawn = self.b.load(places[3], typ=self.i64)

    def keep(self, block: Block, key: Ir, vector: int) -> Ir:
        """Return the factors of dropout of one key and a vector of queries."""
        b, m = self.b, self.machine
        m.builder = b
        line = self.wide(
            b.add(
                b.mul(b.add(b.mul(block.batch, self.heads), block.head), self.length), block.first
            )
        )
        line = b.add(line, self.ir.Constant(self.i64, vector * self.width))
        start = b.add(b.mul(line, self.wide(self.source)), b.add(self.drawn, self.wide(key)))
        kind = self.ir.VectorType(self.i64, self.width)
        steps = self.ir.Constant(kind, [self.ir.Constant(self.i64, n) for n in range(self.width)])
        numbers = b.add(
            self.spread(start, self.i64),
            b.mul(steps, self.spread(self.wide(self.source), self.i64)),
        )
        number = m.wrap(numbers, "uint64")
        low = m.cast(number, "uint32")
        high = m.cast(number >> m.constant(32, "uint64"), "uint32")
        seeds = [m.wrap(x, "uint32") for x in self.seeds]
        bits = philox.philox(m, seeds[0], seeds[1], low, high)[0]
        uniform = m.cast(m.cast(bits >> m.constant(8, "uint32"), "int32"), "float32")
        uniform = uniform * m.constant(2.0**-24, "float32")
        return b.select(b.fcmp_ordered(">=", uniform.value, self.least), self.kept, self.zero)

    def wide(self, x: Ir) -> Ir:
        """Return a position as an integer of 64 bits."""
        return x if self.index == self.i64 else self.b.zext(x, self.i64)

    def mask_block(self, block: Block, first: Ir, count: Ir, out: Ir) -> None:
        """Lay out the mask of a block of scores like these."""
        if self.hidden is None:
            return
        b = self.b
        kind = self.ir.IntType(8) if self.mask == "bool" else self.f32
        start = self.hidden.start
        indices = (block.batch, block.head, block.first, first)
        for index, stride in zip(indices, self.hidden.strides, strict=True):
            start = self.at(start, b.mul(index, stride), kind)
        line, step = self.hidden.strides[2:]
        with b.if_else(b.icmp_signed("==", line, self.number(0))) as (same, each):
            with same, self.loop(self.number(0), count) as j:
                x: Ir = b.load(self.at(start, b.mul(j, step), kind), typ=kind)
                x = b.uitofp(x, self.f32) if self.mask == "bool" else x
                for v in range(block.vectors):
                    self.store(self.splat(x), self.beside(out, j, block.vectors, v))
            with each:
                self.transpose_in(start, (line, step), count, block.valid, out, block.vectors, kind)

    def masked(self, score: Ir, place: Ir) -> Ir:
        """Return scores as the mask changes them."""
        b = self.b
        if self.mask == "bool":
            seen = b.fcmp_ordered("!=", self.load(place), self.zero)
            return b.select(seen, score, self.constant(float("-inf")))
        return b.fadd(score, self.load(place)) if self.mask else score

    def limits(self, block: Block) -> list[Ir]:
        """Return the last key that each query sees, for `before`."""
        b = self.b
        causal = b.icmp_signed("!=", self.causal, self.number(0))
        found = []
        for v in range(block.vectors):
            query = self.positions(b.add(block.first, self.number(v * self.width)))
            last = b.add(query, self.lane_numbers())
            found.append(b.select(causal, last, self.positions(self.source)))
        return found

    def before(self, score: Ir, key: Ir, limit: Ir) -> Ir:
        """Return scores, -infinity where the key comes after the last that a query sees."""
        seen = self.b.icmp_signed("<=", self.positions(key), limit)
        return self.b.select(seen, score, self.constant(float("-inf")))

    def seen_by(self, block: Block) -> Ir:
        """Return how many keys some query of a block sees."""
        b = self.b
        end = self.smaller(self.source, b.add(block.first, block.valid))
        return b.select(b.icmp_signed("!=", self.causal, self.number(0)), end, self.source)

    # -- gradients of keys ---------------------------

    def rows_of(
        self,
        source: Ir,
        strides: tuple[Ir, Ir],
        valid: Ir,
        width: Ir,
        room: Ir,
        line: Ir,
    ) -> tuple[Ir, Ir]:
        """Return where rows of queries are that can be read in whole vectors, and the distance of two:
        in place, or in a copy with zeros at the ends.
        """
        b = self.b
        whole = b.and_(
            b.icmp_signed("==", strides[1], self.number(1)), b.icmp_signed("==", width, line)
        )
        with b.if_then(b.not_(whole)), self.loop(self.number(0), valid) as q:
            start, to = self.at(source, b.mul(q, strides[0])), self.at(room, b.mul(q, line))
            with self.loop(self.number(0), width) as e:
                b.store(self.scalar(self.at(start, b.mul(e, strides[1]))), self.at(to, e))
            with self.loop(width, line) as e:
                b.store(self.ir.Constant(self.f32, 0.0), self.at(to, e))
        return b.select(whole, source, room), b.select(whole, strides[0], line)

    def add_rows(
        self,
        left: Ir,
        line: Ir,
        count: Ir,
        right: tuple[Ir, Ir],
        steps: Ir,
        out: Ir,
        width: Ir,
        columns: int,
        even: bool,
    ) -> None:
        """Add left[row, step] * right[step, :], summed over steps, to the rows of `out`."""
        values = [left, count, *right, steps, out, width]
        self.call("add_rows", values, partial(self._add_rows, line, columns, even))

    def _add_rows(
        self,
        line: Ir,
        columns: int,
        even: bool,
        left: Ir,
        count: Ir,
        right: Ir,
        right_line: Ir,
        steps: Ir,
        out: Ir,
        width: Ir,
    ) -> None:
        b, lanes = self.b, self.width
        with self.loop(self.number(0), width, columns * lanes) as column:
            inside = []
            for v in range(columns):
                position = self.positions(b.add(column, self.number(v * lanes)))
                position = b.add(position, self.lane_numbers())
                inside.append(b.icmp_signed("<", position, self.positions(width)))

            def place(row: Ir, v: int) -> Ir:
                """Return the address of a row's vector."""
                start = self.at(out, b.add(b.mul(row, width), column))
                return self.at(start, self.number(v * lanes))

            def old(row: Ir, v: int) -> Ir:
                """Return what is there; past the last column nothing is read."""
                at = place(row, v)
                return self.load(at) if even else self.masked_load(at, inside[v])

            def put(row: Ir, v: int, x: Ir) -> None:
                """Store a vector; past the last column nothing is written."""
                if even:
                    self.store(x, place(row, v))
                else:
                    self.masked_store(x, place(row, v), inside[v])

            self.product(
                left,
                (line, self.number(1)),
                count,
                self.at(right, column),
                right_line,
                steps,
                columns,
                old,
                put,
            )

    def masked_load(self, place: Ir, lanes: Ir) -> Ir:
        """Return some lanes of a vector, 0 for the others."""
        name = f"llvm.masked.load.v{self.width}f32.p0"
        kinds = [self.pointer, self.i32, lanes.type, self.vector]
        function = declared(self.ir, self.module, name, self.vector, kinds)
        align = self.ir.Constant(self.i32, 4)
        return self.b.call(function, [place, align, lanes, self.zero])

    def masked_store(self, value: Ir, place: Ir, lanes: Ir) -> None:
        """Store some lanes of a vector."""
        name = f"llvm.masked.store.v{self.width}f32.p0"
        kinds = [self.vector, self.pointer, self.i32, lanes.type]
        function = declared(self.ir, self.module, name, self.ir.VoidType(), kinds)
        self.b.call(function, [value, place, self.ir.Constant(self.i32, 4), lanes])
