"""The machine code of attention, a block of scores at a time: they stay in the first-level cache. float32.

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

(Dao et al., 2022.) Its parts are in `flashparts`, what calls it is in `flash`. Imports
modules beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from webtorch.runtime.backends.cpu.flashparts import Block, BlockWriter, Operand, Shape
from webtorch.runtime.backends.cpu.llvmtypes import Ir

# Keys of a block of scores.
KEYS = 64
_LOWEST = -3.4028234663852886e38
_MASKS = ("", "bool", "float32")


@dataclass(frozen=True, slots=True)
class _Running:
    """Accumulators of a block, a vector of queries each: the largest score that was met, the sum of
    weights, and the largest score before the keys at hand."""

    tops: list[Ir]
    sums: list[Ir]
    tops_before: list[Ir]


@dataclass(frozen=True, slots=True)
class _ForwardRoom:
    """A unit's memory: queries, scores and results, transposed; a mask; and of each query two numbers,
    the factor of what is in results, then the largest score and what weights are multiplied with."""

    query: Ir
    scores: Ir
    facts: Ir
    result: Ir
    extra: Ir


@dataclass(frozen=True, slots=True)
class _BackwardRoom:
    """A unit's memory: queries, cotangents and gradients of queries, transposed; rows of queries and of
    cotangents; scores and their cotangents; of each query the largest score, what weights are multiplied
    with, and what is taken off; a mask; and ones."""

    query: Ir
    cotangent: Ir
    change_query: Ir
    query_rows: Ir
    grad_rows: Ir
    scores: Ir
    changes: Ir
    facts: Ir
    extra: Ir
    ones: Ir


@dataclass(frozen=True, slots=True)
class _Backward:
    """The parameters of a backward function, past those of all: operands, where gradients of query, key
    and value go, how the work is cut, and how long rows are."""

    grad: Operand
    stats: Ir
    delta: Ir
    results: list[Ir]
    heads_at_once: Ir
    blocks_at_once: Ir
    keys_at_once: Ir
    query_parts: Ir
    key_parts: Ir
    query_line: Ir
    grad_line: Ir


@dataclass(frozen=True, slots=True)
class _Part:
    """What one item of a backward function computes: the ranges of heads, of blocks of queries and of
    keys, where keys and values begin, and their gradients."""

    batch: Ir
    shared: Ir
    heads: tuple[Ir, Ir]
    blocks: tuple[Ir, Ir]
    keys: tuple[Ir, Ir]
    key: Ir
    value: Ir
    outs: list[Ir]


class FlashWriter(BlockWriter):
    """Writes the functions of attention for one processor."""

    def __init__(self, shape: Shape, fused: bool, position_bits: int) -> None:
        super().__init__(shape, fused, position_bits)
        widths = range(1, len(shape.rows) + 1)
        for vectors, mask, dropout in product(widths, _MASKS, (False, True)):
            self.functions[name_of("forward", vectors, mask, dropout)] = (
                self.forward,
                (vectors, mask, dropout),
            )
            for columns, even in product(widths, (False, True)):
                name = name_of("backward", vectors, mask, dropout, columns, even)
                self.functions[name] = self.backward, (vectors, mask, dropout, columns, even)

    def forward(self, begin: Ir, end: Ir, vectors: int, mask: str, dropout: bool) -> None:
        """Compute the results or the statistics of blocks of queries, as long as there are some."""
        b, lanes = self.b, self.width
        self.parameters(mask, dropout)
        out, stats = self.cell(self.pointer), self.cell(self.pointer)
        line = self.number(vectors * lanes)
        zero, one = self.number(0), self.number(1)
        running = _Running(*(self.accumulators(vectors) for _ in range(3)))
        none = self.ir.Constant(self.i64, 0)
        wants_out = b.icmp_unsigned("!=", b.ptrtoint(out, self.i64), none)
        wants_stats = b.icmp_unsigned("!=", b.ptrtoint(stats, self.i64), none)
        counter = self.counter if self.index == self.i64 else None
        with self.loop(begin, end) as unit:
            room = self._forward_room(unit, line)
            with self.taken(counter, self.items, unit, self.units) as item:
                number, place = b.sdiv(item, self.blocks), b.srem(item, self.blocks)
                batch, head = b.sdiv(number, self.heads), b.srem(number, self.heads)
                # Those that see most come first.
                first = b.mul(b.sub(b.sub(self.blocks, one), place), line)
                valid = self.smaller(b.sub(self.length, first), line)
                block = Block(vectors, batch, head, first, valid)
                shared = b.sdiv(head, self.inner)
                key, value = (self.of(x, batch, shared) for x in (self.key, self.value))
                self.transpose_in(
                    self.of(self.query, batch, head, first),
                    self.query.strides[2:],
                    self.size,
                    valid,
                    room.query,
                    vectors,
                    factor=self.scale,
                )
                self._begin(running, room.result)
                seen, limits = self.seen_by(block), self.limits(block)
                with self.loop(zero, seen, KEYS) as j0:
                    count = self.smaller(b.sub(seen, j0), self.number(KEYS))
                    self._scores(block, key, j0, count, limits, room, running)
                    self._weights(block, j0, count, room, running)
                    with b.if_then(wants_out):
                        self.product_of(
                            self.at(value, b.mul(j0, self.value.strides[2])),
                            (self.value.strides[3], self.value.strides[2]),
                            self.value_width,
                            room.scores,
                            count,
                            room.result,
                            vectors,
                            room.facts,
                        )
                self._statistics(running, room.facts)
                row = b.add(b.mul(number, self.length), first)
                with b.if_then(wants_out):
                    to = self.at(out, b.mul(row, self.value_width))
                    self.transpose_out(
                        room.result,
                        self.value_width,
                        valid,
                        to,
                        self.value_width,
                        vectors,
                        self.at(room.facts, line),
                    )
                with b.if_then(wants_stats), self.loop(zero, valid) as i:
                    to = self.at(stats, b.mul(b.add(row, i), self.number(2)))
                    b.store(self.scalar(self.at(room.facts, i)), to)
                    b.store(self.scalar(self.at(room.facts, b.add(line, i))), self.at(to, one))

    def _forward_room(self, unit: Ir, line: Ir) -> _ForwardRoom:
        """Return where a unit keeps its block."""
        b = self.b
        query = self.at(self.scratch, b.mul(unit, self.room))
        scores = self.at(query, b.mul(self.size, line))
        facts = self.at(scores, b.mul(self.number(KEYS), line))
        result = self.at(facts, b.mul(self.number(2), line))
        extra = self.at(result, b.mul(self.value_width, line))
        return _ForwardRoom(query, scores, facts, result, extra)

    def _begin(self, running: _Running, result: Ir) -> None:
        """Clear what is added up over keys."""
        vectors = len(running.tops)
        for v in range(vectors):
            self.b.store(self.constant(_LOWEST), running.tops[v])
            self.b.store(self.zero, running.sums[v])
        with self.loop(self.number(0), self.value_width) as w:
            for v in range(vectors):
                self.store(self.zero, self.beside(result, w, vectors, v))

    def _scores(
        self,
        block: Block,
        key: Ir,
        first: Ir,
        count: Ir,
        limits: list[Ir],
        room: _ForwardRoom,
        running: _Running,
    ) -> None:
        """Compute the scores of some keys, and the largest that each query has met; those of before
        are kept."""
        b, vectors, tops = self.b, block.vectors, running.tops
        self.product_of(
            self.at(key, b.mul(first, self.key.strides[2])),
            self.key.strides[2:],
            count,
            room.query,
            self.size,
            room.scores,
            vectors,
        )
        self.mask_block(block, first, count, room.extra)
        for v in range(vectors):
            b.store(b.load(tops[v], typ=self.vector), running.tops_before[v])
        with self.loop(self.number(0), count) as row:
            for v in range(vectors):
                at = self.beside(room.scores, row, vectors, v)
                x = self.load(at)
                if self.mask:
                    x = self.masked(x, self.beside(room.extra, row, vectors, v))
                x = self.before(x, b.add(first, row), limits[v])
                self.store(x, at)
                top = b.load(tops[v], typ=self.vector)
                b.store(self.larger_lanes(x, top), tops[v])

    def _weights(
        self, block: Block, first: Ir, count: Ir, room: _ForwardRoom, running: _Running
    ) -> None:
        """Put weights in place of scores; sums, and the factors of results, follow the largest score."""
        b, vectors, sums = self.b, block.vectors, running.sums
        zero = self.number(0)
        for v in range(vectors):
            top, old = (b.load(x[v], typ=self.vector) for x in (running.tops, running.tops_before))
            change = self.exp(b.fsub(old, top))
            self.store(change, self.beside(room.facts, zero, vectors, v))
            b.store(b.fmul(b.load(sums[v], typ=self.vector), change), sums[v])
        with self.loop(zero, count) as row:
            for v in range(vectors):
                at = self.beside(room.scores, row, vectors, v)
                top = b.load(running.tops[v], typ=self.vector)
                x = self.exp(b.fsub(self.load(at), top))
                b.store(b.fadd(b.load(sums[v], typ=self.vector), x), sums[v])
                if self.dropout:
                    x = b.fmul(x, self.keep(block, b.add(first, row), v))
                self.store(x, at)

    def _statistics(self, running: _Running, facts: Ir) -> None:
        """Store the largest score of each query, and what its weights are multiplied with."""
        b, vectors = self.b, len(running.tops)
        for v in range(vectors):
            total = b.load(running.sums[v], typ=self.vector)
            inverse = b.fdiv(self.constant(1.0), total)
            inverse = b.select(b.fcmp_ordered("==", total, self.zero), self.zero, inverse)
            self.store(
                b.load(running.tops[v], typ=self.vector),
                self.beside(facts, self.number(0), vectors, v),
            )
            self.store(inverse, self.beside(facts, self.number(1), vectors, v))

    def backward(
        self,
        begin: Ir,
        end: Ir,
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
        given = self._backward_parameters()
        none = self.ir.Constant(self.i64, 0)
        wants = [b.icmp_unsigned("!=", b.ptrtoint(x, self.i64), none) for x in given.results]
        line = self.number(vectors * lanes)
        zero = self.number(0)
        counter = self.counter if self.index == self.i64 else None
        with self.loop(begin, end) as unit:
            room = self._backward_room(unit, line, given)
            for v in range(vectors):
                self.store(self.constant(1.0), self.beside(room.ones, zero, vectors, v))
            with self.taken(counter, self.items, unit, self.units) as item:
                part = self._part_of(item, given, wants)
                with (
                    self.loop(*part.heads) as head_inside,
                    self.loop(*part.blocks) as place,
                ):
                    head = b.add(b.mul(part.shared, self.inner), head_inside)
                    first = b.mul(place, line)
                    valid = self.smaller(b.sub(self.length, first), line)
                    block = Block(vectors, part.batch, head, first, valid)
                    key_first, key_end = part.keys
                    seen, limits = self.smaller(key_end, self.seen_by(block)), self.limits(block)
                    line_number = b.add(b.mul(part.batch, self.heads), head)
                    row = b.add(b.mul(line_number, self.length), first)
                    with b.if_then(b.or_(wants[0], b.icmp_signed("<", key_first, seen))):
                        rows = self._queries(block, row, line, given, room)
                        with self.loop(zero, self.size) as e:
                            for v in range(vectors):
                                self.store(self.zero, self.beside(room.change_query, e, vectors, v))
                        with self.loop(key_first, seen, KEYS) as j0:
                            count = self.smaller(b.sub(seen, j0), self.number(KEYS))
                            key_at = self._changes(block, part, j0, count, limits, room)
                            with b.if_then(wants[0]):
                                self._add_to_queries(key_at, count, vectors, room)
                            for want, left, right, out, width in (
                                (wants[1], room.changes, rows[0], part.outs[0], self.size),
                                (wants[2], room.scores, rows[1], part.outs[1], self.value_width),
                            ):
                                with b.if_then(want):
                                    to = self.at(out, b.mul(j0, width))
                                    self.add_rows(
                                        left, line, count, right, valid, to, width, columns, even
                                    )
                        with b.if_then(wants[0]):
                            to = self.at(given.results[0], b.mul(row, self.size))
                            self.transpose_out(
                                room.change_query,
                                self.size,
                                valid,
                                to,
                                self.size,
                                vectors,
                                room.ones,
                            )

    def _add_to_queries(self, key: Ir, count: Ir, vectors: int, room: _BackwardRoom) -> None:
        """Add what some keys give to the gradients of a block of queries."""
        strides = self.key.strides[3], self.key.strides[2]
        self.product_of(
            key, strides, self.size, room.changes, count, room.change_query, vectors, room.ones
        )

    def _backward_parameters(self) -> _Backward:
        grad = self.operand()
        stats, delta, *results = (self.cell(self.pointer) for _ in range(5))
        return _Backward(grad, stats, delta, results, *(self.cell() for _ in range(7)))

    def _backward_room(self, unit: Ir, line: Ir, given: _Backward) -> _BackwardRoom:
        """Return where a unit keeps its block."""
        b = self.b
        place = self.at(self.scratch, b.mul(unit, self.room))
        rooms = []
        for elements in (
            b.mul(self.size, line),
            b.mul(self.value_width, line),
            b.mul(self.size, line),
            b.mul(given.query_line, line),
            b.mul(given.grad_line, line),
            b.mul(self.number(KEYS), line),
            b.mul(self.number(KEYS), line),
            b.mul(self.number(4), line),
        ):
            rooms.append(place)
            place = self.at(place, elements)
        ones = self.at(rooms[-1], b.mul(self.number(3), line))
        rooms += [place, ones]
        return _BackwardRoom(*rooms)

    def _part_of(self, item: Ir, given: _Backward, wants: list[Ir]) -> _Part:
        """Return what an item computes, and clear the gradients of its keys and values."""
        b = self.b
        rest, key_part = b.sdiv(item, given.key_parts), b.srem(item, given.key_parts)
        rest, query_part = b.sdiv(rest, given.query_parts), b.srem(rest, given.query_parts)
        head_parts = b.sdiv(self.inner, given.heads_at_once)
        number, head_part = b.sdiv(rest, head_parts), b.srem(rest, head_parts)
        groups = b.sdiv(self.heads, self.inner)
        batch, shared = b.sdiv(number, groups), b.srem(number, groups)
        key_first = b.mul(key_part, given.keys_at_once)
        key_end = self.smaller(self.source, b.add(key_first, given.keys_at_once))
        outs = []
        for want, result, width in zip(
            wants[1:], given.results[1:], (self.size, self.value_width), strict=True
        ):
            to = self.at(result, b.mul(b.mul(number, self.source), width))
            outs.append(to)
            with b.if_then(want):
                from_, until = b.mul(key_first, width), b.mul(key_end, width)
                with self.loop(from_, until) as i:
                    b.store(self.ir.Constant(self.f32, 0.0), self.at(to, i))
        key, value = (self.of(x, batch, shared) for x in (self.key, self.value))
        block_first = b.mul(query_part, given.blocks_at_once)
        block_end = self.smaller(self.blocks, b.add(block_first, given.blocks_at_once))
        head_first = b.mul(head_part, given.heads_at_once)
        heads = head_first, b.add(head_first, given.heads_at_once)
        return _Part(
            batch, shared, heads, (block_first, block_end), (key_first, key_end), key, value, outs
        )

    def _queries(
        self, block: Block, row: Ir, line: Ir, given: _Backward, room: _BackwardRoom
    ) -> list[tuple[Ir, Ir]]:
        """Lay out a block of queries, their cotangents and statistics; return where rows of queries and
        of cotangents are, and how far apart."""
        b, vectors, valid = self.b, block.vectors, block.valid
        grad = given.grad
        query_at = self.of(self.query, block.batch, block.head, block.first)
        grad_at = self.of(grad, block.batch, block.head, block.first)
        self.transpose_in(
            query_at, self.query.strides[2:], self.size, valid, room.query, vectors,
            factor=self.scale,
        )  # fmt: skip
        self.transpose_in(
            grad_at, grad.strides[2:], self.value_width, valid, room.cotangent, vectors
        )
        rows = [
            self.rows_of(at, x.strides[2:], valid, width, place, length)
            for at, x, width, place, length in (
                (query_at, self.query, self.size, room.query_rows, given.query_line),
                (grad_at, grad, self.value_width, room.grad_rows, given.grad_line),
            )
        ]
        facts, one = room.facts, self.number(1)
        with self.loop(self.number(0), line) as i:
            b.store(self.ir.Constant(self.f32, 0.0), self.at(facts, b.add(line, i)))
            last = b.add(row, self.smaller(i, b.sub(valid, one)))
            pair = self.at(given.stats, b.mul(last, self.number(2)))
            b.store(self.scalar(pair), self.at(facts, i))
            b.store(
                self.scalar(self.at(given.delta, last)),
                self.at(facts, b.add(b.add(line, line), i)),
            )
            with b.if_then(b.icmp_signed("<", i, valid)):
                b.store(self.scalar(self.at(pair, one)), self.at(facts, b.add(line, i)))
        return rows

    def _changes(
        self,
        block: Block,
        part: _Part,
        first: Ir,
        count: Ir,
        limits: list[Ir],
        room: _BackwardRoom,
    ) -> Ir:
        """Compute the weights of some keys, in place of scores, and the cotangents of scores; return
        where the keys are."""
        b, vectors = self.b, block.vectors
        key_at = self.at(part.key, b.mul(first, self.key.strides[2]))
        value_at = self.at(part.value, b.mul(first, self.value.strides[2]))
        for at, operand, right, steps, to in (
            (key_at, self.key, room.query, self.size, room.scores),
            (value_at, self.value, room.cotangent, self.value_width, room.changes),
        ):
            self.product_of(at, operand.strides[2:], count, right, steps, to, vectors)
        self.mask_block(block, first, count, room.extra)
        with self.loop(self.number(0), count) as row:
            for v in range(vectors):
                self._change(block, room, row, b.add(first, row), v, limits[v])
        return key_at

    def _change(
        self, block: Block, room: _BackwardRoom, row: Ir, key: Ir, v: int, limit: Ir
    ) -> None:
        """Put weights in place of scores, and the cotangents of scores in place of those of weights."""
        b, vectors = self.b, block.vectors
        at, also = (self.beside(x, row, vectors, v) for x in (room.scores, room.changes))
        x, y = self.load(at), self.load(also)
        if self.mask:
            x = self.masked(x, self.beside(room.extra, row, vectors, v))
        x = self.before(x, key, limit)
        top, inverse, less = (
            self.load(self.beside(room.facts, self.number(n), vectors, v)) for n in range(3)
        )
        x = used = b.fmul(self.exp(b.fsub(x, top)), inverse)
        if self.dropout:
            kept = self.keep(block, key, v)
            used, y = b.fmul(x, kept), b.fmul(y, kept)
        self.store(used, at)
        self.store(b.fmul(b.fmul(b.fsub(y, less), x), self.scale), also)


def name_of(
    part: str, vectors: int, mask: str, dropout: bool, columns: int = 0, even: bool = False
) -> str:
    """Return the name of a function."""
    tail = f"x{columns}{'' if even else 'm'}" if columns else ""
    return f"{part}{vectors}{tail}{mask and '_' + mask}{'_dropout' if dropout else ''}"
