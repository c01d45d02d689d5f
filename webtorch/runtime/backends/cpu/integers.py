"""Sums of small integers times a row: what a row times packed weights is, in instructions that multiply bytes.

Such a kernel sums (a * q + b) * x over a row x that all its outer points share: q are integers of up to eight bits,
unpacked of bytes, and a and b change from one run of q to the next only. The row is rounded to integers of some 23
bits, which are three signed bytes each; four q times four of these are summed by one instruction (`vpdpbusd`). A row
is rounded in groups, by the largest of each: what is lost is what float32 would lose of that. Rows that hold infinities
or NaN, or next to nothing, take the kernel's usual way. All of it comes of the kernel's expressions, so that formats
of packed numbers are not known here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from webtorch.ir import expr as ex
from webtorch.ir.dtype import float16, float32, int8, int16, int32, integer_limits, uint8
from webtorch.ir.expr import FUNCTIONS, Expr
from webtorch.ir.kernel import BufferSlot, Kernel, Store
from webtorch.ir.view import contiguous_strides
from webtorch.lower.affine import Affine, affine
from webtorch.lower.loopnest import tile
from webtorch.lower.pysource import python_source
from webtorch.runtime.backends.cpu import jit, lane_loops
from webtorch.runtime.backends.cpu.llvmtypes import Ir, IrFunction, Kind, declared
from webtorch.runtime.backends.cpu.loopcode import LoopCompiler
from webtorch.runtime.backends.cpu.vectorcode import VectorWriter, source_digest

# Integers that one instruction multiplies and adds up in a lane.
_IN_A_LANE = 4
_MOST_LANES = 16
# A row's three bytes are each 128 less than those of the number and this.
_CLEAR = 0x808080
# The largest number of which that has three bytes is 0x7F7F7F; rounding may exceed what is asked for by some.
_MOST = 0x7F7F7F - 1000
# The bits of 1e-30, from which on a group's factor and its inverse are normal numbers, and of infinity.
_LEAST, _INFINITE = 0x0DA24260, 0x7F800000
# Rows are kept on the stack.
_LONGEST = 1 << 15
# Sums of so many outer points are made before what comes after them.
_POINTS = 64
# Memory is asked for so many bytes before it is read.
_AHEAD = 4096


@dataclass(frozen=True)
class Term:
    """What a turn of the innermost loop adds: (a * q + b) * x."""

    a: Expr
    q: Expr
    b: Expr | None
    x: Expr


@dataclass(frozen=True)
class Sum:
    """A kernel's one sum: its terms for each point of the loops `groups` and `run`, of which the last is innermost."""

    kernel: Kernel
    terms: tuple[Term, ...]
    groups: int
    run: int
    # The least and the largest q.
    low: int
    high: int

    @property
    def span(self) -> int:
        """How many elements of the row a group has."""
        return len(self.terms) * self.run


def found(kernel: Kernel) -> Sum | None:
    """Return the sum of a kernel, if it is one."""
    outer = [d for d, size in enumerate(kernel.outer) if size > 1]
    rank = len(kernel.outer)
    if (
        len(kernel.reduces) != 1
        or kernel.reduces[0].op != "sum"
        or kernel.reduces[0].value.dtype is not float32
        or kernel.checks
        or len(outer) != 1
        or len(kernel.inner) != 2
        or any(s.level != "outer" or s.combine != "set" for s in kernel.stores)
    ):
        return None
    groups, run = kernel.inner
    depends = _Depends()
    terms: list[Term] = []
    last: Expr | None = kernel.reduces[0].value
    while last is not None:
        found = ex.product(last)
        if found is None:
            return None
        left, right, last = found
        if outer[0] in depends.on(right):
            left, right = right, left
        if depends.on(right) & {*range(rank)}:
            return None
        parts = _in_q(left, rank + 1, depends)
        if parts is None:
            return None
        terms.append(Term(*parts, right))
    memo: dict[Expr, tuple[int, int]] = {}
    limits = [_limits(t.q, memo) for t in terms]
    low, high = min(least for least, _ in limits), max(most for _, most in limits)
    span = len(terms) * run
    if not high - low < 256 or span % 32 or run % _IN_A_LANE or groups * span > _LONGEST:
        return None
    return Sum(kernel, tuple(reversed(terms)), groups, run, low, high)


_INT32 = (-(1 << 31), (1 << 31) - 1)


def _limits(x: Expr, memo: dict[Expr, tuple[int, int]]) -> tuple[int, int]:
    """Return the least and the largest value of an integer."""
    for node in ex.walk(x):
        if node not in memo:
            low, high = _own_limits(node, [memo[a] for a in node.args])
            memo[node] = (low, high) if _INT32[0] <= low <= high <= _INT32[1] else _INT32
    return memo[x]


def _own_limits(x: Expr, known: list[tuple[int, int]]) -> tuple[int, int]:
    if (number := _known(x)) is not None:
        return number, number
    if x.op == "load" and x.dtype in (uint8, int8):
        return integer_limits(x.dtype)
    if x.op == "cast" and x.dtype is int32 and x.args[0].dtype.is_integral:
        return known[0]
    if x.op == "where":
        return min(known[1][0], known[2][0]), max(known[1][1], known[2][1])
    if len(known) != 2:
        return _INT32
    (a, b), (c, d) = known
    match x.op:
        case "add":
            return a + c, b + d
        case "sub":
            return a - d, b - c
        case "and" if c >= 0:
            return 0, d
        case "and" | "or" | "xor" if a >= 0 and c >= 0:
            return 0, (1 << max(b, d).bit_length()) - 1
        case "shl" if 0 <= c == d < 32:
            return a << c, b << c
        case "shr" if 0 <= c == d < 32:
            return a >> c, b >> c
    return _INT32


class _Depends:
    """The loops that expressions depend on."""

    def __init__(self) -> None:
        self.known: dict[Expr, frozenset[int]] = {}

    def on(self, x: Expr) -> frozenset[int]:
        """Return the dims."""
        for node in ex.walk(x):
            if node not in self.known:
                own = frozenset([node.value[0]]) if node.op == "index" else frozenset[int]()
                self.known[node] = own.union(*[self.known[a] for a in node.args])
        return self.known[x]


def _in_q(x: Expr, dim: int, depends: _Depends) -> tuple[Expr, Expr, Expr | None] | None:
    """Return a, q and b of a * q + b, of which q alone depends on a loop; None where it is something else."""
    inside = [dim in depends.on(a) for a in x.args]
    if x.op == "cast" and inside[0] and x.args[0].dtype is int32:
        return ex.const(1.0, float32), x.args[0], None
    product = ex.product(x)
    if inside.count(True) != 1 or not (product or x.op in ("add", "sub", "neg")):
        return None
    at = inside.index(True)
    found = _in_q(x.args[at], dim, depends)
    if found is None:
        return None
    a, q, b = found
    others = [arg for i, arg in enumerate(x.args) if i != at]
    if product:
        if at == 2:
            return None
        a, b = a * others[0], None if b is None else b * others[0]
        if product[2] is not None:
            b = product[2] if b is None else b + product[2]
        return a, q, b
    if x.op == "neg":
        return -a, q, None if b is None else -b
    if x.op == "add":
        return a, q, others[0] if b is None else b + others[0]
    if at == 0:
        return a, q, -others[0] if b is None else b - others[0]
    return -a, q, others[0] if b is None else others[0] - b


class _Unknown(Exception):
    """An expression that vectors of bytes cannot be made of."""


Lanes = tuple[Expr, ...]
Strides = tuple[tuple[int, int], ...]


class _Writer(VectorWriter):
    """Writes the function of a sum."""

    def __init__(self, sum_: Sum, fused: bool) -> None:
        self.lanes_of = min(_MOST_LANES, math.gcd(sum_.span, 64) // _IN_A_LANE)
        super().__init__(self.lanes_of, fused)
        self.sum = sum_
        self.functions = {"sum": (self.whole, ())}
        self.limits: dict[Expr, tuple[int, int]] = {}
        ir = self.ir
        self.i8, self.i16, self.i32 = (ir.IntType(n) for n in (8, 16, 32))
        self.words = ir.VectorType(self.i32, self.width)
        self.bytes = ir.VectorType(self.i8, self.width * _IN_A_LANE)
        most = max(abs(sum_.low), abs(sum_.high))
        # With a part that does not depend on q, q counts from its least, which that part then holds.
        self.apart = any(t.b is not None for t in sum_.terms)
        if self.apart:
            most = sum_.high - sum_.low
        # The largest number of the row: sums of four products are whole numbers of 32 bits.
        self.most = min(_MOST, ((1 << 31) - 1) // (_IN_A_LANE * most) - 8)
        self.chunk = self.width * _IN_A_LANE
        self.chunks = sum_.groups * sum_.span // self.chunk

    # -- what is made of the kernel's loop text ---------------------------

    def part(self, kernel: Kernel, name: str) -> IrFunction:
        """Add the function of another kernel to the module."""
        tree = jit.parsed(python_source(kernel), name)
        compiler = LoopCompiler(self.module, tree, self.fused)
        compiler.function.linkage = "internal"
        compiler.function.attributes.add("nounwind")
        return compiler.function

    def row(self) -> Kernel:
        """Return the kernel that writes the row, in the order of terms, behind the buffers."""
        own = self.sum
        kernel = own.kernel
        rank, size = len(kernel.outer), (own.groups, own.run)
        at = [ex.index(d, size[d]) for d in range(2)]

        def moved(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
            """Return the loops by their new numbers."""
            del args
            return at[node.value[0] - rank] if node.op == "index" else None

        memo: dict[Expr, Expr] = {}
        count = len(own.terms)
        stores = [
            Store(
                len(kernel.buffers),
                (at[0] * count + i) * own.run + at[1],
                ex.rewrite(t.x, moved, memo),
            )
            for i, t in enumerate(own.terms)
        ]
        slot = BufferSlot(float32, "write", own.groups * own.span)
        return replace(
            kernel, outer=size, inner=(), buffers=(*kernel.buffers, slot), reduces=(), stores=tuple(stores)
        )  # fmt: skip

    def after(self) -> Kernel:
        """Return the kernel that stores what is made of sums, which lie behind the buffers."""
        kernel = self.sum.kernel
        place = ex.const(0, int32)
        strides = contiguous_strides(kernel.outer)
        for d, (size, stride) in enumerate(zip(kernel.outer, strides, strict=True)):
            if size > 1:
                place = place + ex.index(d, size) * stride
        read = ex.load(len(kernel.buffers), float32, place)

        def summed(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
            """Return a sum where it is asked for."""
            del args
            return read if node.op == "reduced" else None

        stores = [replace(s, value=ex.rewrite(s.value, summed)) for s in kernel.stores]
        slot = BufferSlot(float32, "read", kernel.outer_count)
        return replace(
            kernel, inner=(), buffers=(*kernel.buffers, slot), reduces=(), stores=tuple(stores)
        )  # fmt: skip

    # -- the function ---------------------------

    def place_of(self, kind: Kind, count: int = 1) -> Ir:
        """Return memory on the stack, whatever is in it."""
        with self.b.goto_entry_block():
            place = self.b.alloca(kind, count)
        place.align = 64
        place.type = self.pointer
        return place

    def whole(self, begin: Ir, end: Ir) -> None:
        """Round the row, sum, and store, or do all of it the usual way."""
        b, own = self.b, self.sum
        kernel = own.kernel
        usual = self.part(tile(kernel), "usual")
        row, after = self.part(self.row(), "row"), self.part(self.after(), "after")
        count = own.groups * own.span
        numbers = self.place_of(self.f32, count)
        rounded = self.place_of(self.i8, 4 * count)
        factors = self.place_of(self.f32, own.groups)
        sums = self.place_of(self.f32, _POINTS)
        slots, cells = len(kernel.buffers), len(kernel.buffers) + len(kernel.args) + 2
        more = self.place_of(self.i64, cells)
        for i in range(cells - 1):
            cell = b.load(self.at(self.cells, self.number(i), self.i64), typ=self.i64)
            b.store(cell, self.at(more, self.number(i + (i >= slots)), self.i64))
        behind = self.at(more, self.number(slots), self.i64)
        b.store(b.ptrtoint(numbers, self.i64), behind)
        b.call(row, [self.number(0), self.number(own.groups * own.run), more])
        bad = self.rounding(numbers, rounded, factors)
        otherwise = b.append_basic_block("usual")
        fine = b.append_basic_block("fine")
        b.cbranch(bad, otherwise, fine)
        b.position_at_end(otherwise)
        b.call(usual, [begin, end, self.cells])
        b.ret_void()
        b.position_at_end(fine)
        with self.loop(begin, end, _POINTS) as first:
            stop = self.smaller(end, b.add(first, self.number(_POINTS)))
            with self.loop(first, stop) as point:
                b.store(self.total(point, rounded, factors), self.at(sums, b.sub(point, first)))
            start = b.sub(b.ptrtoint(sums, self.i64), b.mul(first, self.number(4)))
            b.store(start, behind)
            b.call(after, [first, stop, more])
        lane_loops.keep(self.module, self.ir)

    def called(self, name: str, kind: Kind, *args: Ir) -> Ir:
        """Call a function of LLVM's."""
        return self.b.call(declared(self.ir, self.module, name, kind, [a.type for a in args]), args)

    def all_of(self, kind: Kind, value: float) -> Ir:
        """Return a vector of one constant."""
        return self.ir.Constant(kind, [self.ir.Constant(kind.element, value)] * kind.count)

    def repeated(self, x: Ir, count: int) -> Ir:
        """Return a vector of one value."""
        kind = self.ir.VectorType(x.type, count)
        one = self.b.insert_element(
            self.ir.Constant(kind, self.ir.Undefined), x, self.ir.Constant(self.i32, 0)
        )
        return self.shuffled(one, one, [0] * count)

    def shuffled(self, x: Ir, y: Ir, picks: Sequence[int]) -> Ir:
        """Return some elements of two vectors."""
        kind = self.ir.VectorType(self.i32, len(picks))
        mask = self.ir.Constant(kind, [self.ir.Constant(self.i32, p) for p in picks])
        return self.b.shuffle_vector(x, y, mask)

    def dots(self, q: Ir, row: Sequence[Ir]) -> Ir:
        """Return the sums of four products in each lane: of unsigned bytes and numbers of three bytes."""
        bits = self.width * 32
        name = f"llvm.x86.avx512.vpdpbusd.{bits}"
        total: Ir = self.ir.Constant(self.words, None)
        operands = q.type if jit.bytes_in_dots() else self.words
        if operands is self.words:
            q, row = self.b.bitcast(q, operands), [self.b.bitcast(x, operands) for x in row]
        for i, x in enumerate(row):
            if i:
                total = self.b.shl(total, self.all_of(self.words, 8))
            total = self.called(name, self.words, total, q, x)
        return total

    def rounding(self, numbers: Ir, rounded: Ir, factors: Ir) -> Ir:
        """Write the row's numbers as bytes, the highest first, and sums of four; return whether they cannot be."""
        b, own, width = self.b, self.sum, self.width
        flag = self.place_of(self.i32)
        b.store(self.ir.Constant(self.i32, 0), flag)
        size = self.all_of(self.words, 0x7FFFFFFF)
        one = self.all_of(self.bytes, 1)
        with self.loop(self.number(0), self.number(own.groups)) as group:
            begin = b.mul(group, self.number(own.span))
            largest: Ir = self.ir.Constant(self.words, None)
            for i in range(0, own.span, width):
                place = self.at(numbers, b.add(begin, self.number(i)))
                x = b.and_(b.load(place, typ=self.words, align=4), size)
                largest = b.select(b.icmp_unsigned(">", x, largest), x, largest)
            name = f"llvm.vector.reduce.umax.v{width}i32"
            bits = self.called(name, self.i32, largest)
            empty = b.icmp_unsigned("==", bits, self.ir.Constant(self.i32, 0))
            least, infinite = (self.ir.Constant(self.i32, n) for n in (_LEAST, _INFINITE))
            bad = b.or_(b.icmp_unsigned("<", bits, least), b.icmp_unsigned(">=", bits, infinite))
            bad = b.and_(bad, b.not_(empty))
            b.store(b.or_(b.load(flag, typ=self.i32), b.zext(bad, self.i32)), flag)
            most, zero = (self.ir.Constant(self.f32, n) for n in (float(self.most), 0.0))
            value = b.bitcast(b.select(b.or_(bad, empty), least, bits), self.f32)
            factor = b.select(empty, zero, b.fdiv(value, most))
            b.store(factor, self.at(factors, group))
            inverse = self.splat(b.select(b.or_(bad, empty), zero, b.fdiv(most, value)))
            scale = self.splat(factor)
            for i in range(0, own.span, self.chunk):
                at = b.add(begin, self.number(i))
                parts: list[list[Ir]] = []
                for j in range(0, self.chunk, width):
                    x = self.load(self.at(numbers, b.add(at, self.number(j))))
                    x = b.fmul(x, inverse)
                    x = self.called(f"llvm.rint.v{width}f32", self.vector, x)
                    # What is no number is not used.
                    whole = self.called(f"llvm.fptosi.sat.v{width}i32.v{width}f32", self.words, x)
                    whole = b.add(whole, self.all_of(self.words, _CLEAR))
                    narrow = self.ir.VectorType(self.i8, width)
                    parts.append(
                        [
                            b.trunc(b.lshr(whole, self.all_of(self.words, n)), narrow)
                            for n in (16, 8, 0)
                        ]
                    )
                row = []
                to = b.mul(at, self.number(4))
                for n in range(3):
                    joined = self.joined([p[n] for p in parts])
                    row.append(b.xor(joined, self.all_of(self.bytes, 0x80)))
                    place = self.at(rounded, b.add(to, self.number(n * self.chunk)), self.i8)
                    b.store(row[n], place, align=32)
                total = self.dots(one, row)
                if self.apart:
                    total = b.fmul(b.sitofp(total, self.vector), scale)
                else:
                    total = b.mul(total, self.all_of(self.words, own.low))
                place = self.at(rounded, b.add(to, self.number(3 * self.chunk)), self.i8)
                b.store(total, place, align=32)
        return b.icmp_unsigned("!=", b.load(flag, typ=self.i32), self.ir.Constant(self.i32, 0))

    def total(self, point: Ir, rounded: Ir, factors: Ir) -> Ir:
        """Return the sum of an outer point."""
        b, own = self.b, self.sum
        place = self.place_of(self.vector)
        b.store(self.zero, place)
        with self.loop(self.number(0), self.number(own.groups)) as group:
            self.point, self.group = point, group
            self.made: dict[tuple[str, Lanes], Ir] = {}
            self.bases: dict[tuple[int, Strides], Ir] = {}
            factor = b.load(self.at(factors, group), typ=self.f32)
            total: Ir = b.load(place, typ=self.vector)
            count = len(own.terms)
            scales = self.joined([self.floats(tuple([t.a for t in own.terms]))])
            scales = b.fmul(scales, self.repeated(factor, count))
            lows = None
            if self.apart:
                lows = self.joined([self.floats(tuple([self.low(t) for t in own.terms]))])
            begin = b.mul(group, self.number(4 * own.span))
            for i in range(0, own.span, self.chunk):
                row = []
                for n in range(4):
                    at = self.number(4 * i + n * self.chunk)
                    kind = self.bytes if n < 3 else self.vector if self.apart else self.words
                    at = self.at(rounded, b.add(begin, at), self.i8)
                    row.append(b.load(at, typ=kind, align=32))
                elements = [divmod(i + j, own.run) for j in range(self.chunk)]
                q = self.digits(tuple([_more(self.element(t, c), -own.low) for t, c in elements]))
                dots = self.dots(q, row[:3])
                if not self.apart and own.low:
                    dots = b.add(dots, row[3])
                picks = [t for t, _ in elements[::_IN_A_LANE]]
                total = self.fma(
                    self.shuffled(scales, scales, picks), b.sitofp(dots, self.vector), total
                )
                if lows is not None:
                    total = self.fma(self.shuffled(lows, lows, picks), row[3], total)
            self.fetch_ahead()
            b.store(total, place)
        name = f"llvm.vector.reduce.fadd.v{self.width}f32"
        function = declared(self.ir, self.module, name, self.f32, [self.f32, self.vector])
        nothing = self.ir.Constant(self.f32, -0.0)
        return b.call(function, [nothing, b.load(place, typ=self.vector)], fastmath=("reassoc",))

    def fetch_ahead(self) -> None:
        """Ask for the memory that groups to come will read: what the processor does so for ends with a page."""
        rank = len(self.sum.kernel.outer)
        for (_, strides), place in self.bases.items():
            size = dict(strides).get(rank, 0)
            for ahead in range(_AHEAD, _AHEAD + size, 64):
                constants = [self.ir.Constant(self.i32, n) for n in (0, 3, 1)]
                at = self.at(place, self.number(ahead), self.i8)
                self.called("llvm.prefetch.p0", self.ir.VoidType(), at, *constants)

    def low(self, term: Term) -> Expr:
        """Return what a term's elements are where q is its least."""
        low = ex.const(float(self.sum.low), float32)
        least = term.b if self.sum.low == 0 else term.a * low + (term.b or 0.0)
        return ex.const(0.0, float32) if least is None else least

    def element(self, term: int, place: int) -> Expr:
        """Return q of one turn of the innermost loop."""
        return _at_place(self.sum.terms[term].q, len(self.sum.kernel.outer) + 1, place)

    # -- expressions, a lane each ---------------------------

    def lanes_of_kind(self, kind: Kind, count: int) -> Kind:
        """Return the type of so many lanes: of one it is no vector, as LLVM reads no number of two bytes in one."""
        return kind if count == 1 else self.ir.VectorType(kind, count)

    def joined(self, parts: Sequence[Ir]) -> Ir:
        """Return lanes one after the other."""
        whole = [p if _is_vector(p.type) else self.repeated(p, 1) for p in parts]
        picks = [(i, j) for i, p in enumerate(whole) for j in range(p.type.count)]
        return self.taken(whole, picks)

    def taken(self, parts: list[Ir], picks: Sequence[tuple[int, int]]) -> Ir:
        """Return a vector of elements of others: the number of a vector, and the element's in it."""
        if len(parts) == 1:
            mine = [j for _, j in picks]
            if mine == [*range(parts[0].type.count)]:
                return parts[0]
            return self.shuffled(parts[0], parts[0], mine)
        longest = max(p.type.count for p in parts)
        pairs: list[Ir] = []
        for i in range(0, len(parts) - 1, 2):
            x, y = (
                self.shuffled(p, p, [min(n, p.type.count - 1) for n in range(longest)])
                if p.type.count < longest
                else p
                for p in parts[i : i + 2]
            )
            pairs.append(self.shuffled(x, y, [*range(2 * longest)]))
        if len(parts) % 2:
            pairs.append(parts[-1])
        return self.taken(pairs, [(i // 2, j + (i % 2) * longest) for i, j in picks])

    def each(self, kind: str, lanes: Lanes, make: Callable[[Lanes], Ir]) -> Ir:
        """Return a vector, whose different lanes are made once; lanes that are alike are made together."""
        known = self.made.get((kind, lanes))
        if known is not None:
            return known
        different = tuple(dict.fromkeys(lanes))
        if different != lanes:
            found = self.each(kind, different, make)
            if len(different) == 1:
                found = self.repeated(found, len(lanes))
            else:
                places = {e: i for i, e in enumerate(different)}
                found = self.taken([found], [(0, places[e]) for e in lanes])
        elif 1 < len(lanes) <= 2 and kind != "bytes":
            found = self.joined([self.each(kind, (e,), make) for e in lanes])
        else:
            runs = _runs(lanes, lambda e: (e.op, e.dtype, len(e.args)))
            if len(runs) > 1:
                found = self.joined([self.each(kind, run, make) for run in runs])
            else:
                found = make(lanes)
        self.made[kind, lanes] = found
        return found

    def constants(self, kind: Kind, values: Sequence[float]) -> Ir:
        """Return a vector of constants."""
        found = [self.ir.Constant(kind, v) for v in values]
        if len(found) == 1:
            return found[0]
        return self.ir.Constant(self.lanes_of_kind(kind, len(found)), found)

    def loads(self, lanes: Lanes) -> Ir:
        """Return bytes of memory."""
        found: list[tuple[Expr, Affine]] = []
        for e in lanes:
            where = affine(e.args[0])
            if where is None or e.dtype not in (uint8, int8):
                raise _Unknown
            found.append((e, where))
        (first, where), strides = found[0], found[0][1].strides
        if any(e.value != first.value or w.strides != strides for e, w in found):
            raise _Unknown
        base = self.base(first.value, strides)
        offsets = sorted({w.offset for _, w in found})
        runs: list[list[int]] = []
        for offset in offsets:
            if runs and offset == runs[-1][-1] + 1 and len(runs[-1]) < 64:
                runs[-1].append(offset)
            else:
                runs.append([offset])
        parts: list[Ir] = []
        places: dict[int, tuple[int, int]] = {}
        for number, run in enumerate(runs):
            kind = self.lanes_of_kind(self.i8, len(run))
            at = self.at(base, self.number(run[0]), self.i8)
            parts.append(self.b.load(at, typ=kind, align=1))
            places |= {offset: (number, i) for i, offset in enumerate(run)}
        if len(lanes) == 1:
            return parts[0]
        parts = [p if _is_vector(p.type) else self.repeated(p, 1) for p in parts]
        return self.taken(parts, [places[w.offset] for _, w in found])

    def base(self, buffer: int, strides: dict[int, int]) -> Ir:
        """Return where the bytes of an outer point and a group are counted from."""
        key = (buffer, tuple(sorted(strides.items())))
        if key not in self.bases:
            b = self.b
            cell = self.at(self.cells, self.number(buffer), self.i64)
            place: Ir = b.load(cell, typ=self.pointer)
            rank = len(self.sum.kernel.outer)
            for dim, stride in strides.items():
                index = self.group if dim == rank else self.point
                place = self.at(place, b.mul(index, self.number(stride)), self.i8)
            self.bases[key] = place
        return self.bases[key]

    def digits(self, lanes: Lanes) -> Ir:
        """Return the lowest eight bits of integers."""
        return self.each("bytes", lanes, self._digits)

    def _digits(self, lanes: Lanes) -> Ir:
        b, op = self.b, lanes[0].op
        columns = [tuple(c) for c in zip(*[e.args for e in lanes], strict=True)]
        if op == "const":
            return self.constants(self.i8, [e.value & 255 for e in lanes])
        if op == "cast" and columns[0][0].op == "load":
            return self.each("loads", columns[0], self.loads)
        if op in ("and", "or", "xor", "add", "sub"):
            x, y = (self.digits(c) for c in columns)
            write = {"and": b.and_, "or": b.or_, "xor": b.xor, "add": b.add, "sub": b.sub}[op]
            return write(x, y)
        if op == "where":
            return b.select(self.test(columns[0]), *[self.digits(c) for c in columns[1:]])
        if op not in ("shl", "shr"):
            raise _Unknown
        runs = _runs(lanes, lambda e: (e.args[1].op, _number(e.args[1])))
        if len(runs) > 1:
            return self.joined([self.digits(run) for run in runs])
        count = _number(columns[1][0])
        inner = columns[0]
        if op == "shr" and count == 24 and all(_is_shift(e, 24) for e in inner):
            # The lowest byte with its sign: the same bits.
            return self.digits(tuple([e.args[0] for e in inner]))
        limits = [_limits(e, self.limits) for e in inner]
        if op == "shr" and any(not 0 <= low <= high < 256 for low, high in limits):
            raise _Unknown
        x = self.digits(inner)
        if count == 0:
            return x
        return (b.shl if op == "shl" else b.lshr)(x, self.constants(self.i8, [count] * len(lanes)))

    def test(self, lanes: Lanes) -> Ir:
        """Return whether bits of words are clear: each is in one byte."""
        parts: list[Expr] = []
        for e in lanes:
            if e.op != "eq" or _known(e.args[1]) != 0 or e.args[0].op != "and":
                raise _Unknown
            word, mask = e.args[0].args
            bits = _known(mask)
            if bits is None:
                word, bits = mask, _known(word)
            byte = None if not bits else ((bits & -bits).bit_length() - 1) // 8
            if bits is None or byte is None or bits & ~(255 << (8 * byte)):
                raise _Unknown
            parts.append(_byte_of(word, byte) & (bits >> (8 * byte)))
        x = self.digits(tuple(parts))
        return self.b.icmp_unsigned("==", x, self.constants(self.i8, [0] * len(lanes)))

    def integers(self, lanes: Lanes) -> Ir:
        """Return integers of 32 bits."""
        return self.each("integers", lanes, self._integers)

    def _integers(self, lanes: Lanes) -> Ir:
        b, op = self.b, lanes[0].op
        columns = [tuple(c) for c in zip(*[e.args for e in lanes], strict=True)]
        kind = self.lanes_of_kind(self.i32, len(lanes))
        if op == "const":
            return self.constants(self.i32, [e.value & 0xFFFFFFFF for e in lanes])
        if op == "cast" and columns[0][0].op == "load":
            x = self.each("loads", columns[0], self.loads)
            return b.zext(x, kind) if columns[0][0].dtype is uint8 else b.sext(x, kind)
        if op == "where":
            test = self.truths(columns[0])
            return b.select(test, *[self.integers(c) for c in columns[1:]])
        write = {
            "and": b.and_, "or": b.or_, "xor": b.xor, "add": b.add, "sub": b.sub, "mul": b.mul, "shl": b.shl,
            "shr": b.ashr,
        }.get(op)  # fmt: skip
        if write is None or lanes[0].dtype is not int32:
            raise _Unknown
        if op in ("shl", "shr") and any(not 0 <= _number(e) < 32 for e in columns[1]):
            raise _Unknown
        x, y = (self.integers(c) for c in columns)
        return write(x, y)

    def truths(self, lanes: Lanes) -> Ir:
        """Return comparisons of integers."""
        op = lanes[0].op
        function = FUNCTIONS.get(op)
        if function is None or not (function.gives_bool and function.infix):
            raise _Unknown
        if any(e.op != op or e.args[0].dtype is not int32 for e in lanes):
            raise _Unknown
        columns = [tuple(c) for c in zip(*[e.args for e in lanes], strict=True)]
        return self.b.icmp_signed(function.infix, *[self.integers(c) for c in columns])

    def floats(self, lanes: Lanes) -> Ir:
        """Return numbers of float32."""
        return self.each("floats", lanes, self._floats)

    def _floats(self, lanes: Lanes) -> Ir:
        b, op = self.b, lanes[0].op
        columns = [tuple(c) for c in zip(*[e.args for e in lanes], strict=True)]
        kind = self.lanes_of_kind(self.f32, len(lanes))
        if op == "const":
            return self.constants(self.f32, [e.value for e in lanes])
        if op == "cast" and columns[0][0].dtype is int32:
            return b.sitofp(self.integers(columns[0]), kind)
        if op == "cast" and columns[0][0].dtype is float16 and columns[0][0].op == "bitcast":
            short = [e.args[0] for e in columns[0]]
            if any(e.op != "cast" or e.dtype is not int16 for e in short):
                raise _Unknown
            x = self.integers(tuple([e.args[0] for e in short]))
            x = b.trunc(x, self.lanes_of_kind(self.i16, len(lanes)))
            return b.fpext(b.bitcast(x, self.lanes_of_kind(self.ir.HalfType(), len(lanes))), kind)
        if op == "bitcast" and columns[0][0].dtype is int32:
            return b.bitcast(self.integers(columns[0]), kind)
        if op == "neg":
            return b.fneg(self.floats(columns[0]))
        write = {"mul": b.fmul, "add": b.fadd, "sub": b.fsub}.get(op)
        if write is None:
            raise _Unknown
        x, y = (self.floats(c) for c in columns)
        return write(x, y)


def _is_vector(kind: Kind) -> bool:
    return hasattr(kind, "count")


def _runs(lanes: Lanes, what: Callable[[Expr], object]) -> list[Lanes]:
    """Return neighbours that are alike."""
    found: list[list[Expr]] = []
    for e in lanes:
        if found and what(found[-1][0]) == what(e):
            found[-1].append(e)
        else:
            found.append([e])
    return [tuple(run) for run in found]


def _at_place(x: Expr, dim: int, place: int) -> Expr:
    """Return an expression at a place of a loop."""
    at = ex.const(place, int32)
    return ex.rewrite(x, lambda n, _: at if n.op == "index" and n.value[0] == dim else None)


def _more(x: Expr, by: int) -> Expr:
    """Return an integer and a number, which is added to each of what is chosen from: there it may meet another."""
    if x.op == "where":
        return ex.where(x.args[0], _more(x.args[1], by), _more(x.args[2], by))
    return x + by if by else x


def _known(x: Expr) -> int | None:
    """Return an integer that is known."""
    if x.op == "const":
        return int(x.value)
    values = [_known(a) for a in x.args]
    if len(values) != 2 or None in values or x.dtype is not int32:
        return None
    a, b = values[0] or 0, values[1] or 0
    match x.op:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "shl":
            return (a << b) & 0xFFFFFFFF
    return None


def _number(x: Expr) -> int:
    """Return an integer that has to be known."""
    found = _known(x)
    if found is None:
        raise _Unknown
    return found


def _is_shift(x: Expr, count: int) -> bool:
    return x.op == "shl" and _known(x.args[1]) == count


def _byte_of(x: Expr, byte: int) -> Expr:
    """Return a byte of a word that is made of bytes."""
    if x.op == "or":
        parts = [e for e in (_byte_of(a, byte) for a in x.args) if _known(e) != 0]
        return parts[0] | parts[1] if len(parts) == 2 else parts[0] if parts else ex.const(0, int32)
    if x.op == "cast" and x.args[0].dtype is uint8:
        return x if byte == 0 else ex.const(0, int32)
    if x.op == "shl":
        count = _number(x.args[1])
        if count % 8 == 0:
            return (
                _byte_of(x.args[0], byte - count // 8) if count // 8 <= byte else ex.const(0, int32)
            )
    raise _Unknown


@cache
def lanes() -> int:
    """Return how many bytes one instruction multiplies; 0 where there is none."""
    features = set(jit.processor()[0].split(","))
    return 64 if features >= {"+avx512vnni", "+avx512bw", "+avx512vl"} else 0


def native(kernel: Kernel, source: str) -> jit.Native | None:
    """Return the machine code of a kernel that is such a sum, whose loop text is given; None where it is none."""
    if not jit.available() or not lanes():
        return None
    own = found(kernel)
    if own is None:
        return None
    try:
        return jit.function(
            source,
            lambda name, fused: _Writer(own, fused).text("sum", name),
            source_digest(__file__),
        )
    except _Unknown:
        return None
