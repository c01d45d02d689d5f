"""A product, and how its operands are read. Floor 2; imports floor 0 and the renderer.

It is given as expressions: `left` over (batch, row, k), `right` over (batch, k, column), and the output's
position over (batch, row, column). A convolution is a product whose operands compute their positions, so
nothing is unrolled in memory. What computes it is in `gemm`, and in `matrix_units`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType, int32
from webtorch.ir.expr import Expr
from webtorch.ir.kernel import BufferSlot, Convolution, Kernel, Matmul, epilogue_of
from webtorch.ir.limits import Limits
from webtorch.lower.affine import affine
from webtorch.lower.wgsl_kernel import write_points
from webtorch.lower.wgsl_table import encode, wgsl_type
from webtorch.lower.wgsl_writer import KernelWriter, Scope

# Loop variables of a product, in order. K runs for each tap, where there are several.
BATCH, ROW, COLUMN, K, TAP, PARTS = range(6)
# The variables that are the same for a whole workgroup, as bits.
BATCHES = 1 << BATCH | -1 << PARTS


@dataclass(frozen=True, slots=True)
class Product:
    """out[position(b, m, n)] = sum over k of left(b, m, k) * right(b, k, n), in the type that the
    output computes in."""

    name: str
    batch: int
    m: int
    n: int
    k: int
    left: Expr
    right: Expr
    position: Expr
    buffers: tuple[BufferSlot, ...]
    args: tuple[DType, ...] = ()
    # Whether operands whose positions are not linear have neighbouring k, rather than rows or
    # columns, next to one another.
    k_fastest: bool = False
    # How many k from a multiple of it on are consecutive in an operand's memory, where its position
    # is not linear; and how many columns in the right one's.
    left_run: int = 1
    right_run: int = 1
    column_run: int = 1
    # Which k a row needs: all, those up to its own number ("before"), or those from it on ("from").
    # The left operand is read for others too, within a multiple of the tile's rows and depth, where
    # it must be 0.
    needs: Literal["all", "before", "from"] = "all"
    # The dimensions that the batch is made of, where operands are strided over them: loop variables
    # from PARTS on.
    parts: tuple[int, ...] = ()
    # How many times k runs, each time from positions that the operands compute from TAP.
    taps: int = 1
    # What is stored instead of the sums, as a kernel over the output's points, and the coordinates
    # of a point from the loop variables (Matmul.epilogue).
    epilogue: Kernel | None = None
    points: tuple[Expr, ...] = ()
    # The type of the sums, where that is not told by the output's.
    sums: DType | None = None
    # The buffer of the output, where there is no epilogue.
    out: int = 2
    # Of several products in one dispatch: which this is, and where its scratch memory begins, in
    # vectors.
    part: int = 0
    scratch_first: int = 0
    # The elements of a right operand that is computed (Matmul.unpacked) in the run of k that begins at k, and in
    # the four.
    runs: tuple[Expr, ...] = ()
    fours: tuple[Expr, ...] = ()
    # The columns of the others, when a tile is chosen for all.
    others: tuple[int, ...] = ()

    @property
    def accumulates(self) -> DType:
        """The type of the sums."""
        return self.sums or self.buffers[self.out].dtype.compute

    def groups(self, rows: int, columns: int) -> int:
        """Return the tiles of a size that the outputs take, those of `others` too."""
        across = sum(-(-n // columns) for n in (self.n, *self.others))
        return -(-self.m // rows) * across * self.batch

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the loop variables."""
        return (self.batch, self.m, self.n, self.k, self.taps, *self.parts)

    def variable(self, number: int) -> Expr:
        """Return a loop variable."""
        return ex.index(number, self.sizes[number])


class Places(Scope):
    """A scope that also sees the values of others: what depends on k alone, or on the row alone, is
    computed once."""

    def __init__(self, lines: list[str], sees: tuple[Scope, ...] = (), variables: int = 0) -> None:
        super().__init__(lines=lines)
        self.sees = sees
        self.variables = variables

    def find(self, x: Expr) -> str | None:
        """Return the name of `x` here or in a scope that this one sees."""
        text = self.env.get(x)
        if text is None:
            for other in self.sees:
                text = other.find(x)
                if text is not None:
                    break
        return text


def batch_place(p: Product, lines: list[str]) -> Places:
    """Return the place where the batch and its parts are known."""
    found = Places(lines, (), BATCHES)
    found.env[p.variable(BATCH)] = "batch"
    rest = p.batch
    for i, size in enumerate(p.parts):
        rest //= size
        lines.append(f"let batch{i} = batch / {rest} % {size};")
        found.env[p.variable(PARTS + i)] = f"batch{i}"
    return found


class ProductWriter(KernelWriter):
    """Writes the loads of a product: values are computed in the outermost place where their
    variables are known."""

    def __init__(self, p: Product, limits: Limits) -> None:
        super().__init__(Kernel(p.name, p.sizes, (), p.buffers, p.args, (), ()), limits)
        for roots in ((p.left,), (p.right,), (p.position,), p.runs, p.fours):
            for node in ex.walk(*roots):
                for a in node.args:
                    self.uses[a] = self.uses.get(a, 0) + 1
        self.p = p
        self.kind = wgsl_type(p.accumulates)
        self.finisher = f"wt_finish{p.part or ''}"
        self.before = Places([])

    def varies(self, x: Expr) -> bool:
        """Vector loads are chosen by the template, not by lanes."""
        del x
        return False

    def _strides_of(self, terms: dict[int, int], first: int, dims: tuple[int, ...]) -> int | None:
        """No number counts the points of a product: positions are written from its variables."""
        del terms, first, dims
        return None

    def _home(self, node: Expr, scope: Scope) -> Scope:
        mask = self.mask(node)
        if isinstance(scope, Places):
            for other in (*scope.sees, scope):
                if isinstance(other, Places) and mask & ~other.variables == 0:
                    return other
        return scope

    def _fast_division(self, node: Expr, args: list[str]) -> str | None:
        """Places of packed data are found by bits: compilers do not see that they are not negative."""
        divisor = node.args[1].value if node.args[1].op == "const" else 0
        if (
            not self.p.runs
            or divisor <= 0
            or divisor & (divisor - 1)
            or self.bounds(node.args[0])[0] < 0
        ):
            return super()._fast_division(node, args)
        if node.op in ("floordiv", "truncdiv"):
            return f"({args[0]} >> {divisor.bit_length() - 1}u)"
        return f"({args[0]} & {divisor - 1})"

    def is_wide(self, load: Expr, variable: int, width: int = 4) -> bool:
        """Whether `width` values of `variable` from a multiple of it on are one aligned vector in
        memory."""
        source = load.args[0] if load.op == "cast" else load
        if source.op != "load" or len(source.args) > 1 or self.p.sizes[variable] % width:
            return False
        slot = self.p.buffers[cast(int, source.value)]
        if slot.elements % width or slot.access != "read" or (self.is_packed(slot.dtype)):
            return False
        form = affine(source.args[0], self.affine_memo)
        if form is None:
            run = self.p.left_run if source is self.p.left else self.p.right_run
            if variable == COLUMN and source is self.p.right:
                run = self.p.column_run
            return variable in (K, COLUMN) and run % width == 0
        return (
            form.offset % width == 0
            and form.stride(variable) == 1
            and all(c % width == 0 for d, c in form.strides.items() if d != variable)
        )

    def declare(self, wide: dict[int, bool], widths: dict[int, int] | None = None) -> None:
        """Choose how the buffers are declared; `wide` names the operands that are read as vectors
        of 4, `widths` those of other vectors."""
        for number in range(len(self.p.buffers)):
            s = self.template_slot(number)
            if not s.packed:
                s.width = 4 if wide.get(number) else (widths or {}).get(number, 1)
            self.slots[number] = s
        if self.p.epilogue is not None:
            self._write_epilogue(self.p.epilogue)
            return
        out = self.slots[self.p.out]
        if out.packed:
            out.atomic = not self.is_row_of(out.width)
        else:
            out.width = 4 if self.is_row_of(4) else 1

    def is_row_of(self, width: int) -> bool:
        """Whether `width` columns from a multiple of `width` on are consecutive and aligned in the
        output."""
        p = self.p
        form = affine(p.position, self.affine_memo)
        if form is not None:
            return (
                p.n % width == 0
                and p.buffers[p.out].elements % width == 0
                and form.offset % width == 0
                and form.stride(COLUMN) == 1
                and all(c % width == 0 for d, c in form.strides.items() if d != COLUMN)
            )
        # Images: columns run over (image, place), consecutive within an image.
        return (
            p.n % width == 0
            and p.buffers[p.out].elements % width == 0
            and self.image_columns % width == 0
        )

    image_columns = 1

    def _write_epilogue(self, kernel: Kernel) -> None:
        """Write the function that stores what follows the sums of a point, or of four columns where
        those are neighbours in memory, as an elementwise kernel does."""
        p = self.p
        w = KernelWriter(kernel, self.limits)
        w.lanes = 4 if self.is_row_of(4) and kernel.outer[-1] % 4 == 0 else 1
        w.choose_slots()
        for number in {s.buffer for s in kernel.stores} | {int(e.value) for e in w.loads()}:
            self.slots[number] = w.slots[number]
        self.args = w.args
        self.together = w.lanes == 4
        body = w.top.lines
        scope = Places(body, (), 0xF)
        for number, name in ((BATCH, "batch"), (ROW, "row"), (COLUMN, "column")):
            scope.env[p.variable(number)] = name
        first = [self.named(self.value(x, scope), body) for x in p.points]
        body.append(f"let i = {self.value(p.position, scope)};")
        sums = ex.reduced(0, p.accumulates)

        def known(point: Scope) -> None:
            """Name the point's loop variables and sum in its scope."""
            for d, (name, size) in enumerate(zip(first, kernel.outer, strict=False)):
                last = d == len(kernel.outer) - 1
                if not last or point.lane == 0:
                    point.env[ex.index(d, size)] = name
            point.env[sums] = f"value.{'xyzw'[point.lane]}" if self.together else "value"

        w.names = self.names
        write_points(w, known)
        kind = f"vec4<{self.kind}>" if self.together else self.kind
        self.functions[self.finisher] = [
            f"fn {self.finisher}(batch: i32, row: i32, column: i32, value: {kind}) {{",
            *("  " + x for x in body),
            "}",
        ]

    def wide_load(self, load: Expr, scope: Scope) -> str:
        """Return the text of a four-element load in the compute type."""
        source = load.args[0] if load.op == "cast" else load
        slot = self.slots[cast(int, source.value)]
        text = f"{slot.name}[{self.vector_index(source.args[0], scope, 4)}]"
        return text if slot.declared == f"vec4<{self.kind}>" else f"vec4<{self.kind}>({text})"

    def vector_index(self, position: Expr, scope: Scope, width: int) -> str:
        """Return `position`, a multiple of `width`, in vectors."""
        shift = width.bit_length() - 1
        form = affine(position, self.affine_memo)
        if form is None:
            return f"{self.value(position, scope)} >> {shift}u"
        # Every term is a multiple: divided one by one, rows of a tile share an address.
        terms = [str(form.offset // width)] if form.offset else []
        for d, c in form.strides.items():
            name = self.value(self.p.variable(d), scope) if c else ""
            if c == 1:
                terms.append(f"({name} >> {shift}u)")
            elif c:
                terms.append(f"{name} * {c // width}" if c > width else name)
        return " + ".join(terms) or "0"

    def store_columns(
        self, row: str, column: str, batch: str, value: str, lines: list[str], guard: str
    ) -> None:
        """Write four neighbouring outputs of a row from a vec4 of the compute type."""
        p = self.p
        out = self.slots[p.out]
        if p.epilogue is not None:
            self._call_epilogue(row, column, batch, value, lines, guard)
            return
        dtype = p.buffers[p.out].dtype
        whole = p.n % 4 == 0
        body: list[str] = []

        def at(step: int) -> str:
            """Return the position in memory of the column `step` places further."""
            scope = Places(body, (), 0xF)
            scope.env[p.variable(BATCH)] = batch
            scope.env[p.variable(ROW)] = row
            scope.env[p.variable(COLUMN)] = column if step == 0 else f"({column} + {step})"
            return self.named(self.value(p.position, scope), body)

        def element(step: int) -> str:
            """Return the text of one of the four sums."""
            return f"{value}.{'xyzw'[step]}"

        if out.packed and not out.atomic:
            for step in range(0, 4, out.width):
                place = at(step)
                bits = 32 // out.width
                words = [
                    f"({encode(element(step + i), dtype)} << {i * bits}u)" for i in range(out.width)
                ]
                line = (
                    f"{out.name}[{place} >> {out.width.bit_length() - 1}u] = {' | '.join(words)};"
                )
                body.append(
                    line if whole or step == 0 else f"if ({column} + {step} < {p.n}) {{ {line} }}"
                )
        elif out.width == 4 and not out.packed:
            kind = "f16" if out.native_f16 else self.kind
            text = value if kind == self.kind else f"vec4<{kind}>({value})"
            body.append(f"{out.name}[{at(0)} >> 2u] = {text};")
        else:
            for step in range(4):
                here: list[str] = []
                inside = f"if ({column} + {step} < {p.n}) {{" if not whole else "{"
                body.append(inside)
                mark = len(body)
                place = at(step)
                here = self.store_lines(out, place, element(step), "set")
                body += here
                body[mark:] = ["  " + x for x in body[mark:]]
                body.append("}")
        lines += [f"if ({guard}) {{", *("  " + x for x in body), "}"] if guard else body

    def _call_epilogue(
        self, row: str, column: str, batch: str, value: str, lines: list[str], guard: str
    ) -> None:
        if self.together:
            body = [f"{self.finisher}({batch}, {row}, {column}, {value});"]
        else:
            body = []
            for step in range(4):
                at = f"{column} + {step}" if step else column
                call = f"{self.finisher}({batch}, {row}, {at}, {value}.{'xyzw'[step]});"
                # The first column is always there.
                whole = step == 0 or self.p.n % 4 == 0
                body.append(call if whole else f"if ({at} < {self.p.n}) {{ {call} }}")
        lines += [f"if ({guard}) {{", *("  " + x for x in body), "}"] if guard else body


@dataclass(slots=True)
class Operand:
    """One operand: its load, the variable that its vectors run along, and how it is read."""

    load: Expr
    variable: int
    wide: bool
    # Whether neighbouring k are neighbours in memory: then neighbouring invocations take
    # neighbouring k.
    along_k: bool
    # Whether four k are read as one vector, and four such vectors turned around.
    deep: bool = False

    # Its elements in a run of k, where they are computed.
    runs: tuple[Expr, ...] = ()

    @property
    def slot(self) -> int:
        """The buffer that the operand is read from."""
        return next(cast(int, e.value) for e in ex.walk(self.load) if e.op == "load")


def operands_of(w: ProductWriter) -> tuple[Operand, Operand]:
    """Return how both operands are read: their buffer, and the strides of their position if it is affine."""
    p = w.p
    out = []
    dtype = p.accumulates
    for load, variable in ((p.left, ROW), (p.right, COLUMN)):
        load = ex.cast(load, dtype)
        source = load.args[0] if load.op == "cast" else load
        form = affine(source.args[0], w.affine_memo) if source.op == "load" else None
        along_k = p.k_fastest if form is None else form.stride(K) == 1
        wide = w.is_wide(load, variable)
        runs = p.runs if variable == COLUMN else ()
        deep = bool(runs) or (not wide and w.is_wide(load, K))
        out.append(Operand(load, variable, wide, along_k, deep, runs))
    return out[0], out[1]


def along(w: ProductWriter, operand: Operand, scope: Places) -> str:
    """Return the text of four values along k, from a multiple of four on, of a deep operand."""
    if not operand.runs:
        return w.wide_load(operand.load, scope)
    values = ", ".join(w.value(ex.cast(x, w.p.accumulates), scope) for x in w.p.fours)
    return f"vec4<{w.kind}>({values})"


def vector(w: ProductWriter, operand: Operand, scope_of: list[Places]) -> str:
    """Return the text of four values along the operand's variable; `scope_of` places each of
    them."""
    if operand.wide:
        return w.wide_load(operand.load, scope_of[0])
    parts = ", ".join(w.value(operand.load, s) for s in scope_of)
    return f"vec4<{w.kind}>({parts})"


def row_scopes(
    w: ProductWriter,
    operand: Operand,
    first: str,
    batch: Places,
    lines: list[str],
    exact: bool = False,
) -> list[Places]:
    """Return the places of four values of the operand's variable, starting at `first`: clamped
    unless they are `exact`, that is, never beyond the end."""
    size = w.p.sizes[operand.variable]
    base = w.bind(first, lines) if exact else ""
    scopes = []
    for step in range(1 if operand.wide else 4):
        scope = Places(lines, (batch,), BATCHES | (1 << operand.variable))
        text = f"{first} + {step}" if step else first
        most = size - 4 if operand.wide else size - 1
        if exact:
            name = f"({base} + {step})" if step else base
        else:
            name = w.bind(f"min({text}, {most})", lines)
        scope.env[w.p.variable(operand.variable)] = name
        scopes.append(scope)
    return scopes


def lane_scopes(rows: list[Places], k: Places, variable: int, lines: list[str]) -> list[Places]:
    """Return the scopes of neighbouring rows at one place along k."""
    mask = BATCHES | (1 << variable) | (1 << K) | (1 << TAP)
    return [Places(lines, (*r.sees, r, k), mask) for r in rows]


def split(x: Expr, *sizes: int) -> list[Expr]:
    """Return the coordinates of linear number `x` in a space whose last dimensions are `sizes`."""
    out: list[Expr] = []
    for size in reversed(sizes):
        out.insert(0, ex.mod(x, size) if size > 1 else ex.const(0, x.dtype))
        x = ex.floordiv(x, size)
    return [x, *out]


def finishes(r: Matmul | Convolution, points: tuple[Expr, ...]) -> dict[str, Any]:
    """Return the fields of a Product that say what is done with its sums; `points` are the
    coordinates of an output in `r.points`."""
    if not r.epilogue:
        return {}
    return {"epilogue": epilogue_of(r), "points": points, "sums": r.accumulates}


def linear(variables: list[Expr], strides: list[int], offset: int = 0) -> Expr:
    """Return offset + the sum of variable * stride."""
    out = ex.const(offset, int32)
    for v, s in zip(variables, strides, strict=True):
        if s:
            out = out + v * s
    return out
