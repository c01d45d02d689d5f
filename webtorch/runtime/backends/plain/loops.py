"""Kernel -> WebAssembly: the loops of `lower/plainsource`, with the same results to the bit, and products of
matrices and convolutions in vectors of four. Imports floors 0-2.

A function takes the addresses of its buffers, its arguments, the address of two status words and that of scratch
memory. Each value is computed in the outermost loop that knows what it depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from webtorch.ir import expr as ex
from webtorch.ir.dtype import bool_, float32, float64, int32, int64, uint64
from webtorch.ir.expr import Expr, Range
from webtorch.ir.kernel import Check, Kernel, Reduce, Store
from webtorch.ir.view import numel
from webtorch.lower.affine import affine
from webtorch.lower.bounds import bounds
from webtorch.lower.walk import Dep, ValueWalk
from webtorch.runtime.backends.plain.assembly import END, GET, IF, SET, Value
from webtorch.runtime.backends.plain.scalars import LIBRARY, Scalars

# Rows and vectors of a tile of a product, and terms that are added in one go.
ROWS, WIDTH, BLOCK = 4, 8, 256
# Products of less work are not worth packing their operands, and larger ones would take too much memory.
_LITTLE, _MOST_BYTES = 2048, 1 << 28
# Instructions of vectors of four: zeros, of memory whole and one element repeated (an offset follows), and arithmetic.
_ZEROS = b"\xfd\x0c" + bytes(16)
_LOAD, _SPLAT, _STORE = b"\xfd\x00\x00", b"\xfd\x09\x00", b"\xfd\x0b\x00"
_ADD, _MUL = b"\xfd\xe4\x01", b"\xfd\xe6\x01"
# The function of tiles comes first in a module, after those it brings.
TILE = len(LIBRARY)


@dataclass
class _Scope:
    """One loop body: what is known inside it, and its instructions."""

    known: frozenset[Dep]
    names: dict[object, Value] = field(default_factory=dict)
    code: bytearray = field(default_factory=bytearray)


class Loops(ValueWalk[Value], Scalars):
    """Writes the loops of a kernel."""

    def __init__(self, kernel: Kernel) -> None:
        params = [int32] * len(kernel.buffers) + list(kernel.args) + [int32, int32]
        ValueWalk.__init__(self)
        Scalars.__init__(self, params)
        self.kernel = kernel
        self.dims = kernel.outer + kernel.inner
        self.first_inner = len(kernel.outer)
        self.buffers = self.given[: len(kernel.buffers)]
        self.arguments = self.given[len(kernel.buffers) : -2]
        self.status, self.scratch = self.given[-2:]
        # Bytes of scratch memory that are needed.
        self.nbytes = 0
        self.scopes: list[_Scope] = []
        self.bounds_memo: dict[Expr, Range] = {}

    # -- scopes

    def open(self, *known: Dep) -> None:
        """Begin a scope in which these loop variables are known too."""
        outside = self.scopes[-1].known if self.scopes else frozenset()
        self.scopes.append(_Scope(outside | set(known)))
        self.out = self.scopes[-1].code

    def close(self) -> bytes:
        """End the scope and return its instructions."""
        code = bytes(self.scopes.pop().code)
        if self.scopes:
            self.out = self.scopes[-1].code
        return code

    def within(self, deps: frozenset[Dep]) -> _Scope:
        """Return the outermost scope that knows what is needed, and write there."""
        scope = next(s for s in self.scopes if deps <= s.known)
        self.out = scope.code
        return scope

    def known(self, key: object) -> Value | None:
        """Return what is known under a key."""
        for scope in self.scopes:
            if key in scope.names:
                return scope.names[key]
        return None

    def repeat(
        self, count: int | Value, body: Callable[[Value], None], *known: Dep, step: int = 1
    ) -> None:
        """Write a loop of `count` turns, at least one, around what `body` writes of its variable."""
        end = self.constant(count, int32) if isinstance(count, int) else count
        number = self.variable(self.constant(0, int32))
        self.open(*known)
        body(number)
        code = self.close()
        self.loop(number, end, step, code)

    def nest(self, dims: Sequence[int], body: Callable[[], None]) -> None:
        """Nest the loops over dims around `body`; nothing runs where one has no points."""
        if any(self.dims[d] == 0 for d in dims):
            return
        live = [d for d in dims if self.dims[d] > 1]

        def inside(place: int) -> None:
            """Write the loop of one dim."""
            if place == len(live):
                body()
                return
            d = live[place]

            def turn(number: Value) -> None:
                """Write the loops inside, where this variable is known."""
                self.scopes[-1].names["index", d] = number
                inside(place + 1)

            self.repeat(self.dims[d], turn, d)

        inside(0)

    def decode(self, dims: Sequence[int], flat: Value) -> None:
        """Define loop variables by the row-major number of their point, in the innermost scope."""
        live = [d for d in dims if self.dims[d] > 1]
        for place, d in enumerate(reversed(live)):
            size = self.dims[d]
            own = flat
            if place < len(live) - 1:
                own = self.small_divisor("mod", flat, size)
                flat = self.small_divisor("div", flat, size)
            self.scopes[-1].names["index", d] = own
        self.scopes[-1].known |= set(live)

    # -- values

    def find(self, node: Expr) -> Value | None:
        """Return a value that is there already."""
        match node.op:
            case "const":
                return self.number(node)
            case "arg":
                return self.arguments[node.value]
            case "index":
                d = node.value[0]
                return self.constant(0, int32) if self.dims[d] <= 1 else self.known(("index", d))
        return self.known(node)

    def operands(self, node: Expr) -> Iterable[Expr]:
        """Return the nodes that must be there before a node is computed."""
        if node.op == "load":
            return (*self.leaves(node.args[0]), *node.args[1:])
        return node.args

    def compute(self, node: Expr) -> None:
        """Write a value whose operands are there, in the outermost loop that can."""
        inside = self.out
        self._compute(node, self.within(self.deps(node)))
        self.out = inside

    def _compute(self, node: Expr, scope: _Scope) -> None:
        match node.op:
            case "load":
                dtype = self.kernel.buffers[node.value].dtype
                address = self.address(node.value, node.args[0])
                self.out = scope.code
                if len(node.args) == 3:
                    test, other = self.ready(node.args[1]), self.ready(node.args[2])
                    found = self.guarded(test, dtype, address, other)
                else:
                    found = self.element(dtype, address)
            case "cast":
                found = self.cast(self.ready(node.args[0]), node.dtype)
            case "bitcast":
                found = self.bitcast(self.ready(node.args[0]), node.dtype)
            case "philox":
                lanes = self.philox(*map(self.ready, node.args))
                scope.names.update(zip(self.lanes(node), lanes, strict=True))
                return
            case _ if self.divides(node):
                divisor = node.args[1].value
                found = self.small_divisor(node.op, self.ready(node.args[0]), divisor)
            case _:
                found = self.apply(node.op, node.dtype, [self.ready(a) for a in node.args])
        scope.names[node] = found

    def divides(self, x: Expr) -> bool:
        """Whether `x` is an i32 that is not negative, divided by a constant."""
        if x.op not in ("floordiv", "truncdiv", "mod", "truncmod") or x.dtype is not int32:
            return False
        if x.args[1].op != "const" or x.args[1].value <= 0:
            return False
        low, high = bounds(x.args[0], self.bounds_memo)
        return low >= 0 and high < 1 << 31

    # -- positions: numbers of bytes, modulo 2^32

    def leaves(self, position: Expr) -> list[Expr]:
        """Return the values that a position is made of."""
        if affine(position) is not None:
            return []
        if position.op in ("add", "sub"):
            return [leaf for a in position.args for leaf in self.leaves(a)]
        return [position]

    def address(self, buffer: int, position: Expr) -> Value:
        """Return the address of an element: sums of loop variables grow from the outermost on."""
        size = self.kernel.buffers[buffer].dtype.itemsize
        parts: dict[int, int] = {}
        rest: list[tuple[Expr, int]] = []
        offset = 0
        stack = [(position, 1)]
        while stack:
            node, sign = stack.pop()
            where = affine(node)
            if where is not None:
                offset += sign * where.offset
                for d, stride in where.strides.items():
                    parts[d] = parts.get(d, 0) + sign * stride
            elif node.op in ("add", "sub"):
                stack.append((node.args[0], sign))
                stack.append((node.args[1], sign if node.op == "add" else -sign))
            else:
                rest.append((node, sign))
        order = {d: at for at, s in enumerate(self.scopes) for d in sorted(s.known, key=str)
                 if d not in (self.scopes[at - 1].known if at else ())}  # fmt: skip
        key: tuple[object, ...] = (buffer, offset)
        found = self.sum_of(
            key, frozenset(), self.buffers[buffer], self.constant(offset * size, int32)
        )
        deps: frozenset[Dep] = frozenset()
        terms: list[tuple[int, object, frozenset[Dep], Expr | int, int]] = []
        for d, stride in parts.items():
            if stride and self.dims[d] > 1:
                terms.append((order[d], ("index", d), frozenset({d}), d, stride))
        for node, sign in rest:
            own = self.deps(node)
            at = max((order[d] for d in own), default=0)
            terms.append((at, node, own, node, sign))
        for _, name, own, what, factor in sorted(terms, key=lambda t: (t[0], str(t[1]))):
            deps |= own
            key = (*key, name, factor)
            done = self.known(key)
            if done is None:
                value = self.known(("index", what)) if isinstance(what, int) else self.ready(what)
                assert value is not None
                term = self.scaled(value, factor * size, own)
                done = self.sum_of(key, deps, found, term)
            found = done
        return found

    def scaled(self, x: Value, factor: int, deps: frozenset[Dep]) -> Value:
        """Return a number of elements in bytes."""
        inside = self.out
        scope = self.within(deps)
        key = ("scaled", x.code, factor)
        found = scope.names.get(key)
        if found is None:
            x = self.converted(x, int32)
            if factor > 0 and factor & (factor - 1) == 0:
                found = x if factor == 1 else x << self.constant(factor.bit_length() - 1, int32)
            else:
                found = x * self.constant(factor, int32)
            scope.names[key] = found
        self.out = inside
        return found

    def sum_of(self, key: object, deps: frozenset[Dep], a: Value, b: Value) -> Value:
        """Return a + b, under a key."""
        found = self.known(key)
        if found is None:
            inside = self.out
            scope = self.within(deps)
            found = a if b.code == self.constant(0, int32).code else a + b
            scope.names[key] = found
            self.out = inside
        return found

    # -- the kernel

    def render(self) -> Loops:
        """Write the function."""
        kernel = self.kernel
        self.open()
        product = _Product.of(self)
        if product is not None:
            self.nbytes = product.nbytes
            product.write()
        elif kernel.outer_count:
            self.nest(range(self.first_inner), self.point)
        self.out = bytearray(self.close())
        return self

    def point(self) -> None:
        """Write what is done for one outer point."""
        kernel = self.kernel
        late = [c for c in kernel.checks if any(isinstance(d, tuple) for d in self.deps(c.value))]
        self.checks([c for c in kernel.checks if c not in late])
        for group in self.stages():
            self.stage(group)
        self.checks(late)
        # Every value is computed before the first store: an output may be an input too.
        outside = self.prepared([s for s in kernel.stores if s.level == "outer"])
        inside = [s for s in kernel.stores if s.level == "inner"]
        if inside:
            self.nest(self.inner, lambda: self.stores(self.prepared(inside)))
        self.stores(outside)

    @property
    def inner(self) -> range:
        """The inner dims."""
        return range(self.first_inner, len(self.dims))

    def checks(self, checks: Sequence[Check]) -> None:
        """Write the tests of indices, in the inner loops where they vary."""
        for c in checks:

            def test(c: Check = c) -> None:
                """Write one test."""
                self.report(self.status, c.site, self.value(c.value), c.low, c.high)

            if any(not isinstance(d, tuple) and d >= self.first_inner for d in self.deps(c.value)):
                self.nest(self.inner, test)
            else:
                test()

    def stages(self) -> list[list[int]]:
        """Group the reductions that one sweep over the inner points can do together."""
        level: dict[int, int] = {}
        for k, reduce in enumerate(self.kernel.reduces):
            needs = [d[1] for d in self.deps(reduce.value) if isinstance(d, tuple)]
            level[k] = max((level[n] + 1 for n in needs), default=0)
        groups = range(max(level.values(), default=-1) + 1)
        return [[k for k, own in level.items() if own == group] for group in groups]

    def stage(self, group: Sequence[int]) -> None:
        """Write reductions over the inner points."""
        running = [_Running(self, self.kernel.reduces[k]) for k in group]

        def turn() -> None:
            """Take the values of one inner point."""
            for one in running:
                one.take(self.value(one.reduce.value))

        self.nest(self.inner, turn)
        for k, one in zip(group, running, strict=True):
            result = one.result()
            node = ex.reduced(k, result.dtype)
            self.alive.append(node)
            self.scopes[-1].names[node] = result
            self.scopes[-1].known |= {("reduced", k)}

    def prepared(self, stores: Sequence[Store]) -> list[tuple[Store, Value, Value, Value | None]]:
        """Compute the addresses, values and conditions of stores."""
        ready = []
        for s in stores:
            valid = None if s.valid is None else self.value(s.valid)
            value = self.value(s.value)
            for leaf in self.leaves(s.position):
                self.value(leaf)
            ready.append((s, self.address(s.buffer, s.position), value, valid))
        return ready

    def stores(self, ready: Sequence[tuple[Store, Value, Value, Value | None]]) -> None:
        """Write stores whose parts are computed."""
        for s, address, value, valid in ready:
            dtype = self.kernel.buffers[s.buffer].dtype
            if valid is not None:
                self.emit(valid, IF)
            if s.combine != "set":
                value = self.apply(
                    s.combine, dtype, [self.element(dtype, address), self.cast(value, dtype)]
                )
            self.put_element(dtype, address, value)
            if valid is not None:
                self.emit(END)


class _Running:
    """A reduction under way: its accumulator, and where it was met if that is asked for."""

    def __init__(self, loops: Loops, reduce: Reduce) -> None:
        self.loops, self.reduce = loops, reduce
        dtype = reduce.value.dtype
        self.function = reduce.reducer.function(dtype)
        self.wide = dtype
        if dtype.kind == "float":
            self.wide = (
                dtype if reduce.reducer.is_extreme or reduce.reducer.is_position else float64
            )
        elif dtype is not bool_:
            self.wide = uint64 if dtype is uint64 else int64
        self.best = loops.variable(loops.constant(reduce.identity, self.wide))
        if reduce.reducer.is_position:
            self.at, self.number, self.seen = (
                loops.variable(loops.constant(0, t)) for t in (int32, int32, bool_)
            )

    def take(self, x: Value) -> None:
        """Combine with a value."""
        m = self.loops
        x = x if x.dtype is self.wide else m.cast(x, self.wide)
        if not self.reduce.reducer.is_position:
            m.put(self.best, m.apply(self.function.name, self.wide, [self.best, x]))
            return
        none = m.test("eq", self.seen, m.constant(0, bool_))
        m.emit(none | m.beats(self.reduce.op, x, self.best), IF)
        m.put(self.best, x)
        m.put(self.at, self.number)
        m.put(self.seen, m.constant(1, bool_))
        m.emit(END)
        m.put(self.number, self.number + m.constant(1, int32))

    def result(self) -> Value:
        """Return what came of it, in the reduction's type."""
        m, r = self.loops, self.reduce
        if r.reducer.is_position:
            return m.cast(self.at, r.dtype)
        return m.cast(m.cast(self.best, r.value.dtype), r.dtype)


@dataclass
class _Product:
    """A kernel that is one sum of products of two float32s, of which one varies along rows alone and the other along
    columns alone: a product of matrices, whatever their elements are computed from.

    The columns' side is packed whole, as (inner points, columns); of the rows' side four rows at a time are, as (inner
    points, 4), of which `tile` makes four rows of sums.
    """

    loops: Loops
    left: Expr
    right: Expr
    batch: list[int]
    rows: list[int]
    columns: list[int]

    @staticmethod
    def of(loops: Loops) -> _Product | None:
        """Return the product that a kernel is, None if it is none that pays."""
        kernel = loops.kernel
        if (
            len(kernel.reduces) != 1
            or kernel.checks
            or any(s.level == "inner" for s in kernel.stores)
        ):
            return None
        (reduce,) = kernel.reduces
        if reduce.op != "sum" or reduce.value.op != "mul" or reduce.dtype is not float32:
            return None
        left, right = reduce.value.args
        outer = [d for d in range(loops.first_inner) if loops.dims[d] > 1]
        of_left, of_right = ([d for d in outer if d in loops.deps(side)] for side in (left, right))
        batch = [d for d in outer if (d in of_left) == (d in of_right)]
        rows, columns = ([d for d in side if d not in batch] for side in (of_left, of_right))
        if _size(loops, columns) > _size(loops, rows):
            left, right, rows, columns = right, left, columns, rows
        if _size(loops, columns) < ROWS and _size(loops, rows) >= ROWS:
            left, right, rows, columns = right, left, columns, rows
        m, n, k = _size(loops, rows), _size(loops, columns), kernel.inner_count
        if m < 2 or n < ROWS or m * n * k < _LITTLE or n * k * 4 > _MOST_BYTES:
            return None
        return _Product(loops, left, right, batch, rows, columns)

    @property
    def padded(self) -> int:
        """The columns of a tile's rows, whole vectors."""
        return -(-_size(self.loops, self.columns) // 4) * 4

    @property
    def nbytes(self) -> int:
        """The scratch memory that is needed: both packed sides and a tile."""
        inner = self.loops.kernel.inner_count
        return 4 * (inner * self.padded + inner * ROWS + ROWS * self.padded)

    def write(self) -> None:
        """Write the loops."""
        if self.loops.kernel.outer_count and self.loops.kernel.inner_count:
            self.loops.nest(self.batch, self.matrices)

    def matrices(self) -> None:
        """Write one product."""
        m = self.loops
        inner, padded = m.kernel.inner_count, self.padded
        packed = m.scratch
        strip = m.scratch + m.constant(4 * inner * padded, int32)
        tile = strip + m.constant(4 * inner * ROWS, int32)
        self.pack(self.right, packed, [*m.inner, *self.columns], padded, self.columns)
        total = m.constant(_size(m, self.rows), int32)

        def rows(first: Value) -> None:
            """Write a tile of rows, from the first on."""
            four = m.variable(total - first)
            m.put(
                four,
                m.select(
                    m.test("lt", four, m.constant(ROWS, int32)), four, m.constant(ROWS, int32)
                ),
            )

            def row(number: Value) -> None:
                """Pack one row of the left operand."""
                m.decode(self.rows, first + number)
                target = strip + (number << m.constant(2, int32))
                self.pack(self.left, target, list(m.inner), ROWS, [])

            m.repeat(four, row)
            m.call(
                TILE, None, strip, packed, tile, m.constant(inner, int32), m.constant(padded, int32)
            )

            def results(number: Value) -> None:
                """Store one row of the tile."""
                m.decode(self.rows, first + number)
                start = tile + number * m.constant(4 * padded, int32)
                place = m.variable(start)

                def column() -> None:
                    """Store one sum."""
                    result = m.load(float32, place)
                    m.put(place, place + m.constant(4, int32))
                    node = ex.reduced(0, float32)
                    m.alive.append(node)
                    m.scopes[-1].names[node] = result
                    m.scopes[-1].known |= {("reduced", 0)}
                    m.stores(m.prepared(m.kernel.stores))

                m.nest(self.columns, column)

            m.repeat(four, results)

        m.repeat(total, rows, step=ROWS)

    def pack(self, side: Expr, start: Value, dims: list[int], width: int, along: list[int]) -> None:
        """Copy a side, its inner points as rows of `width` elements, of which those `along` dims are used."""
        m = self.loops
        place = m.variable(start)
        count = _size(m, along)
        # Between two rows lie the columns that make them whole vectors.
        inner = [d for d in dims if d not in along]

        def element() -> None:
            """Copy one element."""
            found = m.value(side)
            m.store(float32, place, found)
            m.put(place, place + m.constant(4, int32))

        def row() -> None:
            """Copy a row, and skip what fills up its last vector."""
            m.nest(along, element)
            if width > count:
                m.put(place, place + m.constant(4 * (width - count), int32))

        m.nest(inner, row)


def _size(loops: Loops, dims: Sequence[int]) -> int:
    return numel(tuple(loops.dims[d] for d in dims))


def tile() -> Scalars:
    """Return the function (strip, packed, tile, inner, padded): four rows of sums, of `padded` columns each.

    The strip has four rows' elements beside each other for each inner point, `packed` those of all columns.
    """
    m = Scalars([int32] * 5)
    strip, packed, target, inner, padded = m.given
    row = padded << m.constant(2, int32)

    def columns(first: Value, vectors: int) -> None:
        """Write the sums of some columns."""
        sums = [[m.local("v") for _ in range(vectors)] for _ in range(ROWS)]
        totals = [[m.local("v") for _ in range(vectors)] for _ in range(ROWS)]
        right = [m.local("v") for _ in range(vectors)]
        for lane in (n for line in totals for n in line):
            m.emit(_ZEROS, SET + lane)
        at, beside = m.variable(strip), m.variable(packed + (first << m.constant(2, int32)))
        begin = m.variable(m.constant(0, int32))
        outside, m.out = m.out, bytearray()
        for lane in (n for line in sums for n in line):
            m.emit(_ZEROS, SET + lane)
        limit = begin + m.constant(BLOCK, int32)
        limit = m.select(m.test("lt", limit, inner), limit, inner)
        k = m.variable(begin)
        block, m.out = m.out, bytearray()
        for v, lane in enumerate(right):
            m.emit(beside, _LOAD + bytes((16 * v,)), SET + lane)
        for r, line in enumerate(sums):
            left = m.local("v")
            m.emit(at, _SPLAT + bytes((4 * r,)), SET + left)
            for v, lane in enumerate(line):
                product = GET + left + GET + right[v] + _MUL
                m.emit(GET + lane, product, _ADD, SET + lane)
        m.put(at, at + m.constant(4 * ROWS, int32))
        m.put(beside, beside + row)
        body, m.out = bytes(m.out), block
        m.loop(k, limit, 1, body)
        for line, total in zip(sums, totals, strict=True):
            for lane, whole in zip(line, total, strict=True):
                m.emit(GET + lane, GET + whole, _ADD, SET + whole)
        body, m.out = bytes(m.out), outside
        m.loop(begin, inner, BLOCK, body)
        place = target + (first << m.constant(2, int32))
        for r, total in enumerate(totals):
            start = place if not r else place + row * m.constant(r, int32)
            for v, lane in enumerate(total):
                m.emit(start, GET + lane, _STORE + bytes((16 * v,)))

    first = m.variable(m.constant(0, int32))
    whole = m.op(int32, "i.and", padded, m.constant(-WIDTH, int32))
    m.emit(whole, IF)
    outside, m.out = m.out, bytearray()
    columns(first, WIDTH // 4)
    body, m.out = bytes(m.out), outside
    m.loop(first, whole, WIDTH, body)
    m.emit(END)
    m.emit(m.test("lt", first, padded), IF)
    columns(first, 1)
    m.emit(END)
    return m


def written(kernel: Kernel) -> tuple[Loops, int]:
    """Return the function of a kernel, and the bytes of scratch memory that it needs. Raises UnwritableError."""
    loops = Loops(kernel).render()
    return loops, loops.nbytes
