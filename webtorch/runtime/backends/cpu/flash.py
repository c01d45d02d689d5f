"""Attention in machine code, a block of scores at a time: they stay in the first-level cache. float32.

A lane of a vector is a query. A block of some vectors of queries keeps its own part transposed,
(element, query); then scores are (key, query), whose largest and whose sum over keys are vectors like
any other, and every product has one operand that is read element by element, in place, with whatever
strides, and one that is read in vectors:

    scores   (key, query)       key[j, e]     x query^T[e, :]
    result   (element, query)   value[j, w]   x weights[j, :], scaled anew where a larger score is met
    backward of scores          value[j, w]   x cotangent^T[w, :]
    of query (element, query)   key[j, e]     x change[j, :]
    of value (key, element)     weights[j, q] x cotangent[q, :]
    of key   (key, element)     change[j, q]  x query[q, :]

A thread takes a block of queries after the other; in backward, a head of keys after the other, for
which it computes scores once and all three gradients, or, where there are fewer heads than threads, a
block of queries or some keys, of which it computes one side each. (Dao et al., 2022.)

Imports floors 0-2 and modules beside it.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

from webtorch.ir import expr as ex
from webtorch.ir.dtype import bool_, float32
from webtorch.ir.expr.exponential import exp_of_negative
from webtorch.ir.kernel import Attention
from webtorch.runtime.backends.cpu import jit, philox
from webtorch.runtime.backends.cpu.threads import get_num_threads
from webtorch.runtime.backends.cpu.vectorcode import (
    HERE,
    Functions,
    Target,
    VectorWriter,
    source_digest,
)

# Keys of a block of scores.
_KEYS = 64
# Keys whose gradients a thread computes by themselves, where there are fewer heads than threads.
_KEYS_ALONE = 256
_LOWEST = -3.4028234663852886e38
# The counter of blocks that threads have taken, before scratch memory: a line of the cache.
_COUNTER = 16
_MASKS = ("", "bool", "float32")
_EXP = exp_of_negative(ex.input_(0, float32))


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


class _Machine(jit.LlvmMachine):
    """Elementary functions of vectors."""

    def __init__(self, module: Any, fused: bool, lanes: int) -> None:
        super().__init__(module, fused)
        self.lanes = lanes
        self.types = {k: self.ir.VectorType(t, lanes) for k, t in self.types.items()}

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """Return a * b + c, rounded once where the processor can."""
        if not self.fused:
            return a * b + c
        kind = self.types[a.kind]
        name = f"llvm.fma.v{self.lanes}f{self.widths[a.kind]}"
        function = self.module.globals.get(name) or self.ir.Function(
            self.module, self.ir.FunctionType(kind, [kind] * 3), name
        )
        return self.wrap(self.builder.call(function, [a.value, b.value, c.value]), a.kind)


@dataclass(frozen=True, slots=True)
class _Operand:
    """A tensor (batch, head, position, element): where it starts, and its strides."""

    start: Any
    strides: tuple[Any, Any, Any, Any]


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of queries of one head: how many vectors, the first query and how many there are."""

    vectors: int
    batch: Any
    head: Any
    first: Any
    valid: Any


class _Writer(VectorWriter):
    def __init__(self, shape: Shape, fused: bool, position_bits: int) -> None:
        super().__init__(shape.lanes, fused, position_bits)
        self.machine = _Machine(self.module, fused, shape.lanes)
        self.i32 = self.ir.IntType(32)
        self.rows = shape.rows
        widths = range(1, len(shape.rows) + 1)
        for vectors, mask, dropout in product(widths, _MASKS, (False, True)):
            self.functions[name_of("forward", vectors, mask, dropout)] = (
                self.forward,
                (vectors, mask, dropout),
            )
            for columns, even in product(widths, (False, True)):
                name = name_of("backward", vectors, mask, dropout, columns, even)
                self.functions[name] = self.backward, (vectors, mask, dropout, columns, even)

    # -- small parts ---------------------------

    def operand(self) -> _Operand:
        """Return the next parameters as a tensor."""
        start = self.cell(self.pointer)
        b, h, p, e = (self.cell() for _ in range(4))
        return _Operand(start, (b, h, p, e))

    def of(self, x: _Operand, *indices: Any) -> Any:
        """Return the address of an element; indices that are left out are 0."""
        place = x.start
        for index, stride in zip(indices, x.strides, strict=False):
            place = self.at(place, self.b.mul(index, stride))
        return place

    def beside(self, base: Any, row: Any, width: int, vector: int = 0) -> Any:
        """Return the address of a vector of a row of `width` vectors."""
        place = self.b.mul(row, self.number(width * self.width))
        return self.at(base, self.b.add(place, self.number(vector * self.width)))

    def scalar(self, place: Any) -> Any:
        """Return a float."""
        return self.b.load(place, typ=self.f32)

    def constant(self, value: float) -> Any:
        """Return a vector of one constant."""
        return self.machine.constant(value, "float32").value

    def lane_numbers(self) -> Any:
        """Return (0, 1, ..) as positions."""
        kind = self.ir.VectorType(self.index, self.width)
        return self.ir.Constant(kind, [self.number(n) for n in range(self.width)])

    def positions(self, x: Any) -> Any:
        """Return a vector of one position."""
        return self.spread(x, self.index)

    def spread(self, x: Any, kind: Any) -> Any:
        """Return a vector of one value of any type."""
        vector = self.ir.VectorType(kind, self.width)
        first = self.ir.Constant(self.i32, 0)
        one = self.b.insert_element(self.ir.Constant(vector, self.ir.Undefined), x, first)
        mask = self.ir.Constant(self.ir.VectorType(self.i32, self.width), None)
        return self.b.shuffle_vector(one, one, mask)

    def larger_lanes(self, a: Any, b: Any) -> Any:
        """Return the larger of each two lanes; that of `b` where either is NaN."""
        return self.b.select(self.b.fcmp_ordered(">", a, b), a, b)

    def exp(self, x: Any) -> Any:
        """Return e^x for arguments that are hardly positive: 0 below -87."""
        m = self.machine
        m.builder = self.b
        return m.evaluate(_EXP, [m.wrap(x, "float32")]).value

    def call(self, name: str, values: Sequence[Any], write: Callable[..., None]) -> None:
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
    def taken(self, counter: Any, items: Any, unit: Any, units: Any) -> Iterator[Any]:
        """Take one item after the other that no other unit has taken."""
        b = self.b
        head, inside, after = (b.append_basic_block(n) for n in ("next", "item", "taken"))
        before = b.block
        b.branch(head)
        b.position_at_end(head)
        static = counter is None
        if static:
            item = b.phi(self.index)
            item.add_incoming(unit, before)
        else:
            item = b.atomic_rmw("add", counter, self.ir.Constant(self.i64, 1), "monotonic")
        b.cbranch(b.icmp_signed("<", item, items), inside, after)
        b.position_at_end(inside)
        yield item
        if static:
            item.add_incoming(b.add(item, units), b.block)
        b.branch(head)
        b.position_at_end(after)

    # -- products and copies ---------------------------

    def product(
        self,
        left: Any,
        strides: tuple[Any, Any],
        rows: Any,
        right: Any,
        line: Any,
        steps: Any,
        vectors: int,
        start: Callable[[Any, int], Any],
        finish: Callable[[Any, int, Any], None],
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
        left: Any,
        strides: tuple[Any, Any],
        rows: Any,
        right: Any,
        steps: Any,
        out: Any,
        vectors: int,
        factors: Any = None,
    ) -> None:
        """Compute out[row, :] = out[row, :] * factors + left[row, step] * right[step, :], summed over
        steps; all rows are of `vectors` vectors. Without factors nothing is in `out` before.
        """
        line = self.number(vectors * self.width)
        more = factors is not None

        def write(
            left: Any, along: Any, step: Any, rows: Any, right: Any, steps: Any, out: Any, *at: Any
        ) -> None:
            """Write the product at a place."""
            kept = [
                self.load(self.at(at[0], self.number(v * self.width)))
                for v in range(vectors * more)
            ]

            def old(row: Any, v: int) -> Any:
                """Return what is in `out`, times the factors."""
                if not more:
                    return self.zero
                return self.b.fmul(self.load(self.beside(out, row, vectors, v)), kept[v])

            def put(row: Any, v: int, x: Any) -> None:
                """Store a vector of `out`."""
                self.store(x, self.beside(out, row, vectors, v))

            self.product(left, (along, step), rows, right, line, steps, vectors, old, put)

        name = f"product{vectors}{'_more' * more}"
        values = [left, *strides, rows, right, steps, out, *([factors] if more else [])]
        self.call(name, values, write)

    def transpose_in(
        self,
        source: Any,
        strides: tuple[Any, Any],
        steps: Any,
        valid: Any,
        out: Any,
        vectors: int,
        kind: Any = None,
        factor: Any = None,
    ) -> None:
        """Copy source[lane, step], times a factor, to out[step, lane]; lanes past the last repeat it."""
        name = f"transpose_in{vectors}_{kind or self.f32}"
        values = [source, *strides, steps, valid, out]
        values.append(self.constant(1.0) if factor is None else factor)
        self.call(name, values, partial(self._transpose_in, vectors, kind))

    def _transpose_in(
        self,
        vectors: int,
        kind: Any,
        source: Any,
        line: Any,
        step_stride: Any,
        steps: Any,
        valid: Any,
        out: Any,
        factor: Any,
    ) -> None:
        b, lanes = self.b, self.width
        kind = kind or self.f32
        wide = self.ir.VectorType(kind, lanes)
        straight = b.icmp_signed("==", step_stride, self.number(1))
        whole = b.select(straight, b.sub(steps, b.srem(steps, self.number(lanes))), self.number(0))
        last = b.sub(valid, self.number(1))

        def number(x: Any) -> Any:
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
                found = self.ir.Constant(wide, self.ir.Undefined)
                for i, row in enumerate(rows):
                    x = b.load(self.at(row, along, kind), typ=kind)
                    found = b.insert_element(found, x, self.ir.Constant(self.i32, i))
                self.store(number(found), self.beside(to, step, vectors))

    def transpose_out(
        self,
        source: Any,
        steps: Any,
        valid: Any,
        out: Any,
        line: Any,
        vectors: int,
        factors: Any,
    ) -> None:
        """Copy source[step, lane], times a factor of each lane, to out[lane, step]."""
        b, lanes = self.b, self.width
        whole = b.sub(steps, b.srem(steps, self.number(lanes)))
        with self.loop(self.number(0), self.number(vectors)) as v:
            first = self.lanes(v)
            start, to = self.at(source, first), self.at(out, b.mul(first, line))
            left = self.smaller(b.sub(valid, first), self.number(lanes))

            def scaled(step: Any) -> Any:
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
                with self.loop(self.number(0), left) as i:
                    x = self.scalar(self.at(self.beside(start, step, vectors), i))
                    b.store(x, self.at(self.at(to, b.mul(i, line)), step))

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

    def keep(self, block: _Block, key: Any, vector: int) -> Any:
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

    def wide(self, x: Any) -> Any:
        """Return a position as an integer of 64 bits."""
        return x if self.index == self.i64 else self.b.zext(x, self.i64)

    def mask_block(self, block: _Block, first: Any, count: Any, out: Any) -> None:
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
                x = b.load(self.at(start, b.mul(j, step), kind), typ=kind)
                x = b.uitofp(x, self.f32) if self.mask == "bool" else x
                for v in range(block.vectors):
                    self.store(self.splat(x), self.beside(out, j, block.vectors, v))
            with each:
                self.transpose_in(start, (line, step), count, block.valid, out, block.vectors, kind)

    def masked(self, score: Any, place: Any) -> Any:
        """Return scores as the mask changes them."""
        b = self.b
        if self.mask == "bool":
            seen = b.fcmp_ordered("!=", self.load(place), self.zero)
            return b.select(seen, score, self.constant(float("-inf")))
        return b.fadd(score, self.load(place)) if self.mask else score

    def limits(self, block: _Block) -> list[Any]:
        """Return the last key that each query sees, for `before`."""
        b = self.b
        causal = b.icmp_signed("!=", self.causal, self.number(0))
        found = []
        for v in range(block.vectors):
            query = self.positions(b.add(block.first, self.number(v * self.width)))
            last = b.add(query, self.lane_numbers())
            found.append(b.select(causal, last, self.positions(self.source)))
        return found

    def before(self, score: Any, key: Any, limit: Any) -> Any:
        """Return scores, -infinity where the key comes after the last that a query sees."""
        seen = self.b.icmp_signed("<=", self.positions(key), limit)
        return self.b.select(seen, score, self.constant(float("-inf")))

    def seen_by(self, block: _Block) -> Any:
        """Return how many keys some query of a block sees."""
        b = self.b
        end = self.smaller(self.source, b.add(block.first, block.valid))
        return b.select(b.icmp_signed("!=", self.causal, self.number(0)), end, self.source)

    # -- the functions ---------------------------

    def forward(self, begin: Any, end: Any, vectors: int, mask: str, dropout: bool) -> None:
        """Compute the results or the statistics of blocks of queries, as long as there are some."""
        b, lanes = self.b, self.width
        self.parameters(mask, dropout)
        out, stats = self.cell(self.pointer), self.cell(self.pointer)
        line = self.number(vectors * lanes)
        zero, one = self.number(0), self.number(1)
        tops, sums, changes = (self.accumulators(vectors) for _ in range(3))
        none = self.ir.Constant(self.i64, 0)
        wants_out = b.icmp_unsigned("!=", b.ptrtoint(out, self.i64), none)
        wants_stats = b.icmp_unsigned("!=", b.ptrtoint(stats, self.i64), none)
        counter = self.counter if self.index == self.i64 else None
        with self.loop(begin, end) as unit:
            query = self.at(self.scratch, b.mul(unit, self.room))
            scores = self.at(query, b.mul(self.size, line))
            facts = self.at(scores, b.mul(self.number(_KEYS), line))
            result = self.at(facts, b.mul(self.number(2), line))
            extra = self.at(result, b.mul(self.value_width, line))
            with self.taken(counter, self.items, unit, self.units) as item:
                number, place = b.sdiv(item, self.blocks), b.srem(item, self.blocks)
                batch, head = b.sdiv(number, self.heads), b.srem(number, self.heads)
                # Those that see most come first.
                first = b.mul(b.sub(b.sub(self.blocks, one), place), line)
                valid = self.smaller(b.sub(self.length, first), line)
                block = _Block(vectors, batch, head, first, valid)
                shared = b.sdiv(head, self.inner)
                key, value = (self.of(x, batch, shared) for x in (self.key, self.value))
                self.transpose_in(
                    self.of(self.query, batch, head, first),
                    self.query.strides[2:],
                    self.size,
                    valid,
                    query,
                    vectors,
                    factor=self.scale,
                )
                for v in range(vectors):
                    b.store(self.constant(_LOWEST), tops[v])
                    b.store(self.zero, sums[v])
                with self.loop(zero, self.value_width) as w:
                    for v in range(vectors):
                        self.store(self.zero, self.beside(result, w, vectors, v))
                seen, limits = self.seen_by(block), self.limits(block)
                with self.loop(zero, seen, _KEYS) as j0:
                    count = self.smaller(b.sub(seen, j0), self.number(_KEYS))
                    self.product_of(
                        self.at(key, b.mul(j0, self.key.strides[2])),
                        self.key.strides[2:],
                        count,
                        query,
                        self.size,
                        scores,
                        vectors,
                    )
                    self.mask_block(block, j0, count, extra)
                    for v in range(vectors):
                        b.store(b.load(tops[v], typ=self.vector), changes[v])

                    with self.loop(zero, count) as row:
                        for v in range(vectors):
                            at = self.beside(scores, row, vectors, v)
                            x = self.load(at)
                            if mask:
                                x = self.masked(x, self.beside(extra, row, vectors, v))
                            x = self.before(x, b.add(j0, row), limits[v])
                            self.store(x, at)
                            top = b.load(tops[v], typ=self.vector)
                            b.store(self.larger_lanes(x, top), tops[v])
                    for v in range(vectors):
                        top, old = (b.load(x[v], typ=self.vector) for x in (tops, changes))
                        change = self.exp(b.fsub(old, top))
                        self.store(change, self.beside(facts, zero, vectors, v))
                        b.store(b.fmul(b.load(sums[v], typ=self.vector), change), sums[v])
                    with self.loop(zero, count) as row:
                        for v in range(vectors):
                            at = self.beside(scores, row, vectors, v)
                            top = b.load(tops[v], typ=self.vector)
                            x = self.exp(b.fsub(self.load(at), top))
                            b.store(b.fadd(b.load(sums[v], typ=self.vector), x), sums[v])
                            if dropout:
                                x = b.fmul(x, self.keep(block, b.add(j0, row), v))
                            self.store(x, at)

                    with b.if_then(wants_out):
                        self.product_of(
                            self.at(value, b.mul(j0, self.value.strides[2])),
                            (self.value.strides[3], self.value.strides[2]),
                            self.value_width,
                            scores,
                            count,
                            result,
                            vectors,
                            facts,
                        )
                for v in range(vectors):
                    total = b.load(sums[v], typ=self.vector)
                    inverse = b.fdiv(self.constant(1.0), total)
                    inverse = b.select(b.fcmp_ordered("==", total, self.zero), self.zero, inverse)
                    self.store(
                        b.load(tops[v], typ=self.vector), self.beside(facts, zero, vectors, v)
                    )
                    self.store(inverse, self.beside(facts, one, vectors, v))
                row = b.add(b.mul(number, self.length), first)
                with b.if_then(wants_out):
                    to = self.at(out, b.mul(row, self.value_width))
                    self.transpose_out(
                        result,
                        self.value_width,
                        valid,
                        to,
                        self.value_width,
                        vectors,
                        self.at(facts, line),
                    )
                with b.if_then(wants_stats), self.loop(zero, valid) as i:
                    to = self.at(stats, b.mul(b.add(row, i), self.number(2)))
                    b.store(self.scalar(self.at(facts, i)), to)
                    b.store(self.scalar(self.at(facts, b.add(line, i))), self.at(to, one))

    def backward(
        self,
        begin: Any,
        end: Any,
        vectors: int,
        mask: str,
        dropout: bool,
        columns: int,
        even: bool,
    ) -> None:
        """Compute gradients of some keys by some blocks of queries, as long as there are some.

        Gradients of key and value are added up in rows of `columns` vectors; with `even`, rows are so
        many vectors or a multiple.
        """
        b, lanes = self.b, self.width
        self.parameters(mask, dropout)
        grad = self.operand()
        stats, delta, *results = (self.cell(self.pointer) for _ in range(5))
        heads_at_once, blocks_at_once, keys_at_once = (self.cell() for _ in range(3))
        query_parts, key_parts = self.cell(), self.cell()
        query_line, grad_line = self.cell(), self.cell()
        none = self.ir.Constant(self.i64, 0)
        wants = [b.icmp_unsigned("!=", b.ptrtoint(x, self.i64), none) for x in results]
        line = self.number(vectors * lanes)
        zero, one = self.number(0), self.number(1)
        counter = self.counter if self.index == self.i64 else None
        with self.loop(begin, end) as unit:
            place = self.at(self.scratch, b.mul(unit, self.room))
            rooms = []
            for elements in (
                b.mul(self.size, line),
                b.mul(self.value_width, line),
                b.mul(self.size, line),
                b.mul(query_line, line),
                b.mul(grad_line, line),
                b.mul(self.number(_KEYS), line),
                b.mul(self.number(_KEYS), line),
                b.mul(self.number(4), line),
            ):
                rooms.append(place)
                place = self.at(place, elements)
            query, cotangent, change_query, query_rows, grad_rows, scores, changes, facts = rooms
            extra = place
            ones = self.at(facts, b.mul(self.number(3), line))
            for v in range(vectors):
                self.store(self.constant(1.0), self.beside(ones, zero, vectors, v))
            with self.taken(counter, self.items, unit, self.units) as item:
                rest, key_part = b.sdiv(item, key_parts), b.srem(item, key_parts)
                rest, query_part = b.sdiv(rest, query_parts), b.srem(rest, query_parts)
                head_parts = b.sdiv(self.inner, heads_at_once)
                number, head_part = b.sdiv(rest, head_parts), b.srem(rest, head_parts)
                groups = b.sdiv(self.heads, self.inner)
                batch, shared = b.sdiv(number, groups), b.srem(number, groups)
                key_first = b.mul(key_part, keys_at_once)
                key_end = self.smaller(self.source, b.add(key_first, keys_at_once))
                outs = []
                for want, result, width in zip(
                    wants[1:], results[1:], (self.size, self.value_width), strict=True
                ):
                    to = self.at(result, b.mul(b.mul(number, self.source), width))
                    outs.append(to)
                    with b.if_then(want):
                        from_, until = b.mul(key_first, width), b.mul(key_end, width)
                        with self.loop(from_, until) as i:
                            b.store(self.ir.Constant(self.f32, 0.0), self.at(to, i))
                key, value = (self.of(x, batch, shared) for x in (self.key, self.value))
                block_first = b.mul(query_part, blocks_at_once)
                block_end = self.smaller(self.blocks, b.add(block_first, blocks_at_once))
                head_first = b.mul(head_part, heads_at_once)
                each_head = self.loop(head_first, b.add(head_first, heads_at_once))
                with each_head as head_inside, self.loop(block_first, block_end) as place:
                    head = b.add(b.mul(shared, self.inner), head_inside)
                    first = b.mul(place, line)
                    valid = self.smaller(b.sub(self.length, first), line)
                    block = _Block(vectors, batch, head, first, valid)
                    seen, limits = self.smaller(key_end, self.seen_by(block)), self.limits(block)
                    row = b.add(b.mul(b.add(b.mul(batch, self.heads), head), self.length), first)
                    with b.if_then(b.or_(wants[0], b.icmp_signed("<", key_first, seen))):
                        query_at = self.of(self.query, batch, head, first)
                        grad_at = self.of(grad, batch, head, first)
                        self.transpose_in(
                            query_at, self.query.strides[2:], self.size, valid, query, vectors,
                            factor=self.scale,
                        )  # fmt: skip
                        self.transpose_in(
                            grad_at, grad.strides[2:], self.value_width, valid, cotangent, vectors
                        )
                        rows = [
                            self.rows_of(at, x.strides[2:], valid, width, room, length)
                            for at, x, width, room, length in (
                                (query_at, self.query, self.size, query_rows, query_line),
                                (grad_at, grad, self.value_width, grad_rows, grad_line),
                            )
                        ]
                        with self.loop(zero, line) as i:
                            b.store(self.ir.Constant(self.f32, 0.0), self.at(facts, b.add(line, i)))
                            last = b.add(row, self.smaller(i, b.sub(valid, one)))
                            pair = self.at(stats, b.mul(last, self.number(2)))
                            b.store(self.scalar(pair), self.at(facts, i))
                            b.store(
                                self.scalar(self.at(delta, last)),
                                self.at(facts, b.add(b.add(line, line), i)),
                            )
                            with b.if_then(b.icmp_signed("<", i, valid)):
                                b.store(
                                    self.scalar(self.at(pair, one)),
                                    self.at(facts, b.add(line, i)),
                                )
                        with self.loop(zero, self.size) as e:
                            for v in range(vectors):
                                self.store(self.zero, self.beside(change_query, e, vectors, v))
                        with self.loop(key_first, seen, _KEYS) as j0:
                            count = self.smaller(b.sub(seen, j0), self.number(_KEYS))
                            key_at = self.at(key, b.mul(j0, self.key.strides[2]))
                            value_at = self.at(value, b.mul(j0, self.value.strides[2]))
                            for at, strides, right, steps, to in (
                                (key_at, self.key.strides, query, self.size, scores),
                                (
                                    value_at,
                                    self.value.strides,
                                    cotangent,
                                    self.value_width,
                                    changes,
                                ),
                            ):
                                self.product_of(at, strides[2:], count, right, steps, to, vectors)
                            self.mask_block(block, j0, count, extra)

                            with self.loop(zero, count) as j:
                                for v in range(vectors):
                                    self.change(
                                        block,
                                        scores,
                                        changes,
                                        extra,
                                        facts,
                                        j,
                                        b.add(j0, j),
                                        v,
                                        limits[v],
                                    )
                            with b.if_then(wants[0]):
                                self.product_of(
                                    key_at,
                                    (self.key.strides[3], self.key.strides[2]),
                                    self.size,
                                    changes,
                                    count,
                                    change_query,
                                    vectors,
                                    ones,
                                )
                            for want, left, right, out, width in (
                                (wants[1], changes, rows[0], outs[0], self.size),
                                (wants[2], scores, rows[1], outs[1], self.value_width),
                            ):
                                with b.if_then(want):
                                    to = self.at(out, b.mul(j0, width))
                                    self.add_rows(
                                        left, line, count, right, valid, to, width, columns, even
                                    )
                        with b.if_then(wants[0]):
                            to = self.at(results[0], b.mul(row, self.size))
                            self.transpose_out(
                                change_query, self.size, valid, to, self.size, vectors, ones
                            )

    def change(
        self,
        block: _Block,
        scores: Any,
        changes: Any,
        extra: Any,
        facts: Any,
        row: Any,
        key: Any,
        v: int,
        limit: Any,
    ) -> None:
        """Put weights in place of scores, and the cotangents of scores in place of those of weights."""
        b, vectors = self.b, block.vectors
        at, also = (self.beside(x, row, vectors, v) for x in (scores, changes))
        x, y = self.load(at), self.load(also)
        if self.mask:
            x = self.masked(x, self.beside(extra, row, vectors, v))
        x = self.before(x, key, limit)
        top, inverse, less = (
            self.load(self.beside(facts, self.number(n), vectors, v)) for n in range(3)
        )
        x = used = b.fmul(self.exp(b.fsub(x, top)), inverse)
        if self.dropout:
            kept = self.keep(block, key, v)
            used, y = b.fmul(x, kept), b.fmul(y, kept)
        self.store(used, at)
        self.store(b.fmul(b.fmul(b.fsub(y, less), x), self.scale), also)

    def rows_of(
        self,
        source: Any,
        strides: tuple[Any, Any],
        valid: Any,
        width: Any,
        room: Any,
        line: Any,
    ) -> tuple[Any, Any]:
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
        left: Any,
        line: Any,
        count: Any,
        right: tuple[Any, Any],
        steps: Any,
        out: Any,
        width: Any,
        columns: int,
        even: bool,
    ) -> None:
        """Add left[row, step] * right[step, :], summed over steps, to the rows of `out`."""
        values = [left, count, *right, steps, out, width]
        self.call("add_rows", values, partial(self._add_rows, line, columns, even))

    def _add_rows(
        self,
        line: Any,
        columns: int,
        even: bool,
        left: Any,
        count: Any,
        right: Any,
        right_line: Any,
        steps: Any,
        out: Any,
        width: Any,
    ) -> None:
        b, lanes = self.b, self.width
        with self.loop(self.number(0), width, columns * lanes) as column:
            inside = []
            for v in range(columns):
                position = self.positions(b.add(column, self.number(v * lanes)))
                position = b.add(position, self.lane_numbers())
                inside.append(b.icmp_signed("<", position, self.positions(width)))

            def place(row: Any, v: int) -> Any:
                """Return the address of a row's vector."""
                start = self.at(out, b.add(b.mul(row, width), column))
                return self.at(start, self.number(v * lanes))

            def old(row: Any, v: int) -> Any:
                """Return what is there; past the last column nothing is read."""
                at = place(row, v)
                return self.load(at) if even else self.masked_load(at, inside[v])

            def put(row: Any, v: int, x: Any) -> None:
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

    def masked_load(self, place: Any, lanes: Any) -> Any:
        """Return some lanes of a vector, 0 for the others."""
        name = f"llvm.masked.load.v{self.width}f32.p0"
        kinds = [self.pointer, self.i32, lanes.type, self.vector]
        function = self.module.globals.get(name) or self.ir.Function(
            self.module, self.ir.FunctionType(self.vector, kinds), name
        )
        align = self.ir.Constant(self.i32, 4)
        return self.b.call(function, [place, align, lanes, self.zero])

    def masked_store(self, value: Any, place: Any, lanes: Any) -> None:
        """Store some lanes of a vector."""
        name = f"llvm.masked.store.v{self.width}f32.p0"
        kinds = [self.vector, self.pointer, self.i32, lanes.type]
        function = self.module.globals.get(name) or self.ir.Function(
            self.module, self.ir.FunctionType(self.ir.VoidType(), kinds), name
        )
        self.b.call(function, [value, place, self.ir.Constant(self.i32, 4), lanes])


def name_of(
    part: str, vectors: int, mask: str, dropout: bool, columns: int = 0, even: bool = False
) -> str:
    """Return the name of a function."""
    tail = f"x{columns}{'' if even else 'm'}" if columns else ""
    return f"{part}{vectors}{tail}{mask and '_' + mask}{'_dropout' if dropout else ''}"


@cache
def _functions(shape: Shape, fused: bool, position_bits: int) -> Functions:
    key = f"{shape} {fused} {position_bits} {source_digest(__file__)} {ex.show(_EXP)} {source_digest(philox.__file__)}"
    return Functions(lambda: _Writer(shape, fused, position_bits), f"wt_flash{shape.lanes}_", key)


# How much of the processor's speed tiles of 1, 2, .. vectors reach.
_SPEED = (0.6, 0.9, 1.0, 1.0)


class Plan:
    """An attention, or its gradients, for a target: what does not change from run to run."""

    def __init__(self, r: Attention, target: Target = HERE) -> None:
        self.r, self.target = r, target
        features, fused = target.processor
        shape = shape_for(features)
        self.code = _functions(shape, fused, target.position_bits)
        lanes = shape.lanes
        most = len(shape.rows)

        def work(vectors: int) -> float:
            """Return the cost of blocks of so many vectors of rows, in a unit of its own."""
            block = vectors * lanes
            firsts = range(0, r.length, block)
            seen = (min(f + block, r.source) if r.causal else r.source for f in firsts)
            return sum(seen) * block / _SPEED[vectors - 1]

        self.vectors = min(range(1, most + 1), key=work)
        block = self.vectors * lanes
        self.blocks = -(-r.length // block)
        mask = "" if not r.mask else "bool" if r.buffers[3].dtype is bool_ else "float32"
        self.names = ["query", "key", "value"] + ["mask"] * r.mask
        self.reads = len(r.buffers) - len(r.results)
        self.inner = r.heads // r.shared
        options: tuple[Any, ...] = (self.vectors, mask, r.dropout)
        self.room = block * (r.size + r.width + (2 if mask else 1) * _KEYS + 2)
        self.lines = (0, 0)
        if r.part != "forward":

            def padded(columns: int) -> float:
                """Return the cost of so many vectors of columns, padding included."""
                group = columns * lanes
                total = sum(-(-width // group) * group for width in (r.size, r.width))
                return total / _SPEED[columns - 1]

            columns = min(range(1, most + 1), key=padded)
            group = columns * lanes
            self.lines = (-(-r.size // group) * group, -(-r.width // group) * group)
            options = (*options, columns, self.lines == (r.size, r.width))
            self.room = block * (
                2 * r.size + r.width + sum(self.lines) + (3 if mask else 2) * _KEYS + 4
            )
        self.room = -(-self.room // 16) * 16
        self.function = name_of("forward" if r.part == "forward" else "backward", *options)
        seen = sum(
            min(f + block, r.source) if r.causal else r.source for f in range(0, r.length, block)
        )
        self.work = (
            r.batch * r.heads * seen * self.vectors * (r.size + r.width)
            * (1 if r.part == "forward" else 3)
        )  # fmt: skip

    def run(self, buffers: Sequence[Any], args: Sequence[Any]) -> None:
        """Compute; of the buffers only the addresses are used."""
        r = self.r
        threads = get_num_threads()
        results: list[int] = [0, 0, 0]
        for number, buffer in zip(r.results, buffers[self.reads :], strict=True):
            results[number] = buffer.address
        if r.part == "forward":
            items = r.batch * r.heads * self.blocks
            self._run(buffers, args, items, threads, self.work, results[:2])
            return
        fixed = [*(b.address for b in buffers[self.reads - 2 : self.reads])]
        groups = r.batch * r.shared
        if groups >= threads and (groups % threads == 0 or groups >= 4 * threads):
            tail = [*fixed, *results, self.inner, self.blocks, max(r.source, 1), 1, 1, *self.lines]
            self._run(buffers, args, groups, threads, self.work, tail)
            return
        if results[0]:
            tail = [*fixed, results[0], 0, 0, 1, 1, max(r.source, 1), self.blocks, 1, *self.lines]
            items = r.batch * r.heads * self.blocks
            self._run(buffers, args, items, threads, self.work, tail)
        if results[1] or results[2]:
            parts = -(-r.source // _KEYS_ALONE)
            tail = [
                *fixed,
                0,
                *results[1:],
                self.inner,
                self.blocks,
                _KEYS_ALONE,
                1,
                parts,
                *self.lines,
            ]
            self._run(buffers, args, groups * parts, threads, self.work, tail)

    def _run(
        self,
        buffers: Sequence[Any],
        args: Sequence[Any],
        items: int,
        threads: int,
        work: int,
        tail: Sequence[int],
    ) -> None:
        r = self.r
        units = min(threads, items)
        scratch = self.target.scratch(_COUNTER + units * self.room)
        ctypes.memset(scratch.address, 0, 8)
        cells = [
            scratch.address, scratch.address + 4 * _COUNTER, self.room, units, items,
            r.heads, self.inner, r.length, r.source, r.size, r.width, int(r.causal), self.blocks,
        ]  # fmt: skip
        for number in range(3 + r.mask):
            size = r.buffers[number].dtype.itemsize
            cells += [buffers[number].address + size * r.offsets[number], *r.strides[number]]
        cells.append(_bits(args[0]))
        if r.dropout:
            p, seed0, seed1, low, high = args[1:]
            kept = 1.0 / (1.0 - float(p))
            cells += [_bits(p), _bits(kept)]
            cells += [_signed(int(seed0), int(seed1)), _signed(int(low), int(high))]
        if r.part != "forward":
            number = 3 + r.mask
            cells += [buffers[number].address + 4 * r.offsets[number], *r.strides[number]]
        cells += tail
        self.target.run(self.code, self.function, units, cells, work)


def _bits(x: float) -> int:
    (found,) = struct.unpack("i", struct.pack("f", x))
    return int(found)


def _signed(low: int, high: int) -> int:
    both = low & 0xFFFFFFFF | (high & 0xFFFFFFFF) << 32
    return both - (1 << 64) if both >> 63 else both


def suits(r: Attention) -> bool:
    """Whether there is machine code for this."""
    strided = r.buffers[: 3 + r.mask + (r.part != "forward")]
    types = [s.dtype for i, s in enumerate(strided) if not (r.mask and i == 3)]
    return (
        all(t is float32 for t in types)
        and (not r.mask or r.buffers[3].dtype in (bool_, float32))
        and jit.available()
    )
