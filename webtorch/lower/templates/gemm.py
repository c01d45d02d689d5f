"""Products of tiles: the one kernel behind matrix products and convolutions. Floor 2; imports floor
0 and the renderer.

A product is given as expressions: `left` over (batch, row, k), `right` over (batch, k, column), and
the output's position over
(batch, row, column). A convolution is a product whose operands compute their positions, so nothing
is unrolled in memory.

Two kernels:
* `blocks`: each invocation computes 4 x 4 outputs in registers and reads its operands itself. The
best on adapters that run
  on a CPU, where barriers cost more than reading again.
* `tiles`: a workgroup copies tiles of both operands to workgroup memory as four-element vectors
along the row (the column)
  dimension, one row of vectors for each k; the next tiles are fetched into registers while these
  are multiplied.
Products with few outputs and a long k are split along k over workgroups, with a second pass that
adds the parts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType, int32
from webtorch.ir.expr import Expr
from webtorch.ir.kernel import BufferSlot, Convolution, Kernel, Matmul, epilogue_of
from webtorch.ir.limits import Limits
from webtorch.lower.sizes import size_class
from webtorch.lower.templates.tuning import FAMILIES, MatrixTile, Tile
from webtorch.lower.wgsl_facts import affine
from webtorch.lower.wgsl_kernel import write_points
from webtorch.lower.wgsl_shader import Draft, WgslPass, fold_grid, group_number
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


# Mesa's llvmpipe leaves a loop, without a word, after 65,535 turns of an invocation; a turn is four k.
_LONGEST = 4 << 15
# What a workgroup spends before and after its loop, in k; what a second pass costs, in seconds; and
# the bytes a second in which partial sums are written and read.
_OVERHEAD_K, _SECOND_PASS, _BYTES = 48, 3e-6, 3e12
# Operations spent on one element of an operand whose position is computed.
_GATHER = 20


def _rounded(size: int) -> int:
    step = max(1, 1 << (size - 1).bit_length() >> 3)
    return -(-size // step) * step


def shape_class(p: Product, limits: Limits) -> str:
    """Return the name of the class that a product belongs to for tuning: its type, how its operands
    are read (w as vectors along rows or columns, d as vectors along k, g one by one), and batch, m,
    n and k, rounded up to quarters of a power of two: 1152 to 1280."""
    how = ("w" if o.wide else "d" if o.deep else "g" for o in operands_of(ProductWriter(p, limits)))
    whole = (p.batch, p.m, p.n + sum(p.others), p.k)
    sizes = "x".join(str(_rounded(size)) for size in whole)
    return f"{p.buffers[0].dtype.name} {''.join(how)} {sizes}"


def choose(p: Product, limits: Limits, tuned: bool = True) -> tuple[Tile | None, int]:
    """Return the tile (None for the kernel without workgroup memory) and how many workgroups share
    the k of an output.

    The fastest by a model: the busiest multiprocessor works on its workgroups in turns, and each
    takes a tile's operations at the tile's rate, slower while few run side by side. What was
    measured, on this adapter or on its family, comes first, unless not `tuned`.
    """
    # The shortest parts of k that a software adapter can be trusted with.
    needed = 1 if limits.is_gpu else -(-p.k // _LONGEST)
    shipped = FAMILIES[limits.family].measured if limits.is_gpu else {}
    if tuned and not limits.varying and (limits.tuned or shipped):
        name = shape_class(p, limits)
        found = limits.tuned.get(name) or shipped.get(name)
        if found is not None and _fits(found, limits):
            *tile_sizes, split = found
            split = max(needed, min(split, p.k // 4))
            return Tile(*tile_sizes) if any(tile_sizes) else None, max(1, split)
    if not limits.is_gpu:
        if limits.varying:
            # As many parts for every size.
            return None, needed
        groups = p.groups(32, 32)
        return None, max(needed, min(8 // groups, p.k // 2048)) if groups < 4 else needed
    found_by_model = ranked(p, limits)
    return found_by_model[0][1:] if found_by_model else (None, 1)


def _fits(sizes: tuple[int, ...], limits: Limits) -> bool:
    """Whether a workgroup of a measured tile can run here: a browser may offer less."""
    tile = Tile(*sizes[:5])
    return not any(sizes[:5]) or (
        tile.threads <= limits.max_workgroup_invocations
        and tile.shared_bytes <= limits.workgroup_memory_bytes
    )


def ranked(p: Product, limits: Limits) -> list[tuple[float, Tile, int]]:
    """Return (seconds by the model, tile, parts of k), the fastest first."""
    family = FAMILIES[limits.family]
    # Operands that are not read as vectors compute the position of every element.
    writer = ProductWriter(p, limits)
    gathers = [not (o.wide or o.deep) for o in operands_of(writer)]
    out: list[tuple[float, Tile, int]] = []
    if limits.varying:
        others = tuple(size_class(n) for n in p.others)
        batch, m, n, k = map(size_class, (p.batch, p.m, p.n, p.k))
        p = replace(p, batch=batch, m=m, n=n, k=k, others=others)
    for known in family.tiles:
        tile = known.tile
        if (
            tile.threads > limits.max_workgroup_invocations
            or tile.shared_bytes > limits.workgroup_memory_bytes
        ):
            continue
        groups = p.groups(tile.rows, tile.columns)
        slow = 1 + _GATHER * (gathers[0] / tile.columns + gathers[1] / tile.rows)
        for split in useful_splits(p, groups, family.multiprocessors):
            chunk = -(-p.k // split) + _OVERHEAD_K
            each = 2 * tile.rows * tile.columns * chunk * slow / (known.rate * 1e12)
            busiest = -(-groups * split // family.multiprocessors)
            seconds = each * family.multiprocessors * known.turns(busiest)
            if split > 1:
                seconds += _SECOND_PASS + 8 * p.batch * p.m * (p.n + sum(p.others)) * split / _BYTES
            out.append((seconds, tile, split))
    return sorted(out, key=lambda found: found[0])


def useful_splits(p: Product, groups: int, multiprocessors: int) -> set[int]:
    """Return how many parts of k are worth trying: none, and those that just fill a few turns."""
    most = max(1, min(p.k // 128, 512))
    return {1} | {max(1, min(most, n * multiprocessors // groups)) for n in (1, 2, 3, 4, 6, 8)}


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
        for root in (p.left, p.right, p.position):
            for node in ex.walk(root):
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
            form[0] % width == 0
            and form[1].get(variable, 0) == 1
            and all(c % width == 0 for d, c in form[1].items() if d != variable)
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
                and form[0] % width == 0
                and form[1].get(COLUMN, 0) == 1
                and all(c % width == 0 for d, c in form[1].items() if d != COLUMN)
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
        terms = [str(form[0] // width)] if form[0] else []
        for d, c in form[1].items():
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

    @property
    def slot(self) -> int:
        """The buffer that the operand is read from."""
        source = self.load.args[0] if self.load.op == "cast" else self.load
        return cast(int, source.value)


def operands_of(w: ProductWriter) -> tuple[Operand, Operand]:
    """Return how both operands are read: their buffer, and the strides of their position if it is affine."""
    p = w.p
    out = []
    dtype = p.accumulates
    for load, variable in ((p.left, ROW), (p.right, COLUMN)):
        load = ex.cast(load, dtype)
        source = load.args[0] if load.op == "cast" else load
        form = affine(source.args[0], w.affine_memo) if source.op == "load" else None
        along_k = p.k_fastest if form is None else form[1].get(K, 0) == 1
        wide = w.is_wide(load, variable)
        deep = not wide and w.is_wide(load, K)
        out.append(Operand(load, variable, wide, along_k, deep))
    return out[0], out[1]


def _vector(w: ProductWriter, operand: Operand, scope_of: list[Places]) -> str:
    """Return the text of four values along the operand's variable; `scope_of` places each of
    them."""
    if operand.wide:
        return w.wide_load(operand.load, scope_of[0])
    parts = ", ".join(w.value(operand.load, s) for s in scope_of)
    return f"vec4<{w.kind}>({parts})"


def _row_scopes(
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


def _lane_scopes(rows: list[Places], k: Places, variable: int, lines: list[str]) -> list[Places]:
    mask = BATCHES | (1 << variable) | (1 << K) | (1 << TAP)
    return [Places(lines, (*r.sees, r, k), mask) for r in rows]


def render_product(p: Product, limits: Limits, image_columns: int = 0) -> list[WgslPass]:
    """Return the dispatches of a product. `image_columns`: how many columns in a row are
    consecutive in the output, where the
    output's position is not linear."""
    tile, split = choose(p, limits)
    return product_passes(p, limits, tile, split, image_columns)


def product_passes(
    p: Product, limits: Limits, tile: Tile | None, split: int, image_columns: int = 0
) -> list[WgslPass]:
    """Return the dispatches of a product with a given tile and split of k."""
    return [d.finished() for d in product_drafts(p, limits, tile, split, image_columns)]


def product_drafts(
    p: Product, limits: Limits, tile: Tile | None, split: int, image_columns: int = 0
) -> list[Draft]:
    """Return what the dispatches of a product are made of."""
    writer = ProductWriter(p, limits)
    writer.image_columns = image_columns or 1
    left, right = operands_of(writer)
    writer.declare({o.slot: o.wide or o.deep for o in (left, right)})
    chunk = -(-p.k // split)
    depth = tile.depth if tile else 4
    chunk = -(-chunk // depth) * depth
    split = -(-p.k // chunk)
    words = p.batch * p.m * (-(-p.n // 4) * 4)
    scratch = (16 * p.scratch_first + 4 * words * split,) if split > 1 else ()
    body = (
        _tiles(writer, tile, left, right, chunk, split)
        if tile
        else _blocks(writer, left, right, chunk, split)
    )
    lines, shared, size, grid = body
    drafts = [Draft(writer, lines, shared, size, grid, scratch)]
    if split > 1:
        drafts.append(add_parts(p, limits, split, words, scratch, image_columns))
    # Rows, columns and k are clamped, and stores guarded: the engine's checks are not needed.
    return [replace(one, scratch_type="vec4<u32>", trusted=True) for one in drafts]


def k_range(p: Product, split: int, chunk: int, row: str, rows: int, depth: int) -> list[str]:
    """Write the first k of a tile, one past the last, and where its first part is read: the loop
    may be empty, the read is not."""
    begin = f"part * {chunk}" if split > 1 else "0"
    end = f"min({begin} + {chunk}, {p.k})" if split > 1 else f"{p.k}"
    if p.needs == "from":
        from_row = f"{row} / {depth} * {depth}" if rows % depth else row
        begin = f"max({begin}, {from_row})" if split > 1 else from_row
    if p.needs == "before":
        end = f"min({end}, {row} + {rows})"
    last = (p.k - 1) // depth * depth
    first = "k_begin" if p.needs == "all" else f"min(k_begin, {last})"
    return [f"let k_begin = {begin};", f"let k_end = {end};", f"let k_first = {first};"]


def add_parts(
    p: Product, limits: Limits, split: int, words: int, scratch: tuple[int, ...], image_columns: int
) -> Draft:
    """Write the pass that adds the parts of a split product, four columns an invocation."""
    w = ProductWriter(p, limits)
    w.image_columns = image_columns or 1
    w.declare({})
    quads = -(-p.n // 4)
    count = p.batch * p.m * quads
    grid = fold_grid(-(-count // 64), limits)
    body = [
        f"let i = i32({group_number(grid)} * 64u + lid);",
        f"if (i >= {count}) {{ return; }}",
        f"let column = (i % {quads}) * 4;",
        f"let row = (i / {quads}) % {p.m};",
        f"let batch = i / {quads * p.m};",
        f"var sum = vec4<{w.kind}>();",
        f"for (var s: i32 = 0; s < {split}; s = s + 1) {{",
        f"  sum = sum + bitcast<vec4<{w.kind}>>(scratch0[{_from(p)}s * {words // 4} + i]);",
        "}",
    ]
    w.store_columns("row", "column", "batch", "sum", body, "true")
    return Draft(w, body, [], 64, grid, scratch)


def _from(p: Product) -> str:
    return f"{p.scratch_first} + " if p.scratch_first else ""


def _fma(kind: str, a: str, b: str, c: str) -> str:
    return f"fma(vec4<f32>({a}), {b}, {c})" if kind == "f32" else f"vec4<{kind}>({a}) * {b} + {c}"


def finish_block(
    w: ProductWriter,
    body: list[str],
    row: str,
    column: str,
    value: str,
    split: int,
    tile: Tile | MatrixTile,
) -> None:
    """Write the store of a block of sums, behind the edge's tests; a split sum goes to scratch memory."""
    p = w.p
    tests = [f"{row} < {p.m}"] if p.m % tile.rows else []
    tests += [f"{column} < {p.n}"] if p.n % tile.columns else []
    guard = " && ".join(tests)
    if split == 1:
        w.store_columns(row, column, "batch", value, body, guard)
        return
    quads = -(-p.n // 4)
    at = f"part * {p.batch * p.m * quads} + (batch * {p.m} + {row}) * {quads} + ({column} >> 2u)"
    line = f"scratch0[{_from(p)}{at}] = bitcast<vec4<u32>>({value});"
    body.append(f"if ({guard}) {{ {line} }}" if guard else line)


def tile_numbers(
    p: Product, rows: int, columns: int, split: int, grid: tuple[int, int, int], exact: bool
) -> list[str]:
    """Write the numbers of a workgroup's tile."""
    across, down = -(-p.n // columns), -(-p.m // rows)
    lines = [f"let group = i32({group_number(grid)});"]
    if not exact:
        # Surplus workgroups of a folded grid; all invocations of one leave together.
        lines.append(f"if (group >= {across * down * p.batch * split}) {{ return; }}")
    lines += [
        f"let tile_column = (group % {across}) * {columns};",
        # The rows with the most k start first.
        f"let tile_row = ({down - 1} - (group / {across}) % {down}) * {rows};"
        if p.needs == "before"
        else f"let tile_row = ((group / {across}) % {down}) * {rows};",
    ]
    rest = f"(group / {across * down})"
    lines.append(f"let batch = {rest} % {p.batch};" if p.batch > 1 else "let batch = 0;")
    if split > 1:
        lines.append(f"let part = {rest} / {p.batch};")
    return lines


# What 8 x 8 invocations of the kernel without workgroup memory compute.
_BLOCK = Tile(32, 32, 4, 4, 4)


def _blocks(
    w: ProductWriter, left: Operand, right: Operand, chunk: int, split: int
) -> tuple[list[str], list[str], int, tuple[int, int, int]]:
    """Write the kernel without workgroup memory: 8 x 8 invocations of 4 x 4 outputs."""
    p = w.p
    groups = -(-p.m // 32) * -(-p.n // 32) * p.batch * split
    grid = fold_grid(groups, w.limits)
    body = tile_numbers(p, 32, 32, split, grid, grid[0] * grid[1] * grid[2] == groups)
    body += [
        "let row = tile_row + i32(lid / 8u) * 4;",
        "let column = tile_column + i32(lid % 8u) * 4;",
    ]
    if p.m > 4 or p.n > 4:
        body.append(f"if (row >= {p.m} || column >= {p.n}) {{ return; }}")
    batch = batch_place(p, body)
    rows = _row_scopes(w, left, "row", batch, body)
    columns = _row_scopes(w, right, "column", batch, body)
    body += [f"var acc{r} = vec4<{w.kind}>();" for r in range(4)]
    outer = body
    tap: Places | None = None
    if p.taps > 1:
        # What depends on the tap, and not on k, is computed once for it.
        body = []
        tap = Places(body, (), 1 << TAP)
        tap.env[p.variable(TAP)] = "tap"
        for scopes, variable in ((rows, ROW), (columns, COLUMN)):
            mask = BATCHES | (1 << variable) | (1 << TAP)
            scopes[:] = [Places(body, (batch, s, tap), mask) for s in scopes]
    # Four k at once: a row of the left operand is then one vector, where it lies along k in memory.
    whole = p.k - p.k % 4
    sides = ((left, rows), (right, columns))
    if whole:
        body += _block_loop(w, sides, split, chunk, (0, whole), 4)
    if p.k % 4:
        body += _block_loop(w, sides, split, chunk, (whole, p.k), 1)
    if p.taps > 1:
        outer.append(f"for (var tap: i32 = 0; tap < {p.taps}; tap = tap + 1) {{")
        outer += ["  " + x for x in body]
        outer.append("}")
        body = outer
    for r in range(4):
        finish_block(w, body, f"(row + {r})" if r else "row", "column", f"acc{r}", split, _BLOCK)
    return body, [], 64, grid


def _block_loop(
    w: ProductWriter,
    sides: tuple[tuple[Operand, list[Places]], ...],
    split: int,
    chunk: int,
    over: tuple[int, int],
    step: int,
) -> list[str]:
    """Write the loop of a block's sums over k from over[0] to over[1], `step` k a turn; of a split
    product, as far as they are in its part."""
    p = w.p
    first, stop = over
    begin = f"part * {chunk}" if split > 1 else "0"
    start = begin if not first else f"max({begin}, {first})" if split > 1 else f"{first}"
    end = f"min({begin} + {chunk}, {stop})" if split > 1 else f"{stop}"
    if p.needs == "from":
        start = f"max({start}, row)"
    elif p.needs == "before":
        end = f"min({end}, row + 4)"
    lines: list[str] = []
    vectors: tuple[list[str], list[str]] = ([], [])
    if step == 4:
        for (operand, scopes), names in zip(sides, vectors, strict=True):
            if operand.deep:
                names += _turned(w, operand, scopes, lines)
    for at in range(step):
        k = Places(lines, (), 1 << K)
        k.env[p.variable(K)] = f"(k + {at})" if at else "k"
        for (operand, scopes), names in zip(sides, vectors, strict=True):
            if len(names) <= at:
                lanes = _lane_scopes(scopes, k, operand.variable, lines)
                names.append(w.bind(_vector(w, operand, lanes), lines))
        a, b = (names[at] for names in vectors)
        lines += [
            f"acc{r} = {_fma(w.kind, f'{a}.{c}', b, f'acc{r}')};" for r, c in enumerate("xyzw")
        ]
    head = f"for (var k: i32 = {start}; k < {end}; k = k + {step}) {{"
    return [head, *("  " + x for x in lines), "}"]


def _turned(
    w: ProductWriter, operand: Operand, scopes: list[Places], lines: list[str]
) -> list[str]:
    """Load four k of four rows of an operand that lies along k; return the vectors at each k."""
    k = Places(lines, (), 1 << K)
    k.env[w.p.variable(K)] = "k"
    lanes = _lane_scopes(scopes, k, operand.variable, lines)
    loaded = [w.bind(w.wide_load(operand.load, s), lines) for s in lanes]
    return [
        w.bind(f"vec4<{w.kind}>({', '.join(f'{x}.{c}' for x in loaded)})", lines) for c in "xyzw"
    ]


@dataclass(slots=True)
class _Unit:
    """What one invocation copies from an operand to its tile: a vector of four rows (columns) at
    one k, or, of a deep operand, four vectors of four k each, turned around on the way."""

    operand: Operand
    tile: str
    tag: str
    # Vectors in a row of the tile, the padding not counted.
    span: int
    rows: list[Places]
    # The test whether this invocation has anything to copy, where not all have.
    inside: str

    @property
    def registers(self) -> list[str]:
        """Names of the vectors that wait in registers."""
        return [f"f{self.tag}_{r}" for r in range(4 if self.operand.deep else 1)]

    def fetch(self, w: ProductWriter, lines: list[str], base: str, depth: int) -> None:
        """Write the loads of the tile that begins at k = `base`."""
        size, operand, block = w.p.k, self.operand, list[str]()
        k_name = w.bind(f"{base} + k{self.tag}", block)
        guarded = size % depth != 0
        k = Places(block, (), 1 << K)
        last = size - 4 if operand.deep else size - 1
        k.env[w.p.variable(K)] = w.bind(f"min({k_name}, {last})", block) if guarded else k_name
        lanes = _lane_scopes(self.rows, k, operand.variable, block)
        for name, part in zip(
            self.registers, [[s] for s in lanes] if operand.deep else [lanes], strict=True
        ):
            text = w.wide_load(operand.load, part[0]) if operand.deep else _vector(w, operand, part)
            if guarded:
                text = f"select(vec4<{w.kind}>(), {text}, {k_name} < {size})"
            block.append(f"{name} = {text};")
        lines += (
            [f"if ({self.inside}) {{", *("  " + x for x in block), "}"] if self.inside else block
        )

    def share(self, kinds: str, depth: int) -> list[str]:
        """Return the stores to workgroup memory."""
        span, tag, quarter = self.span + _PAD, self.tag, depth // 4
        # k lies in row k % 4 * quarter + k / 4 of the tile: four groups of four k, turned around
        # together, then go to rows next to one another, in different banks.
        if self.operand.deep:
            lines = []
            for i, c in enumerate("xyzw"):
                turned = ", ".join(f"{name}.{c}" for name in self.registers)
                at = f"({i * quarter} + k{tag} / 4) * {span} + v{tag}"
                lines.append(f"{self.tile}[{at}] = {kinds}({turned});")
        else:
            at = f"(k{tag} % 4 * {quarter} + k{tag} / 4) * {span} + v{tag}"
            lines = [f"{self.tile}[{at}] = {self.registers[0]};"]
        return [f"if ({self.inside}) {{", *("  " + x for x in lines), "}"] if self.inside else lines


def _units(
    w: ProductWriter,
    tile: Tile,
    operands: tuple[tuple[Operand, int, str, str], ...],
    batch: Places,
    body: list[str],
) -> list[_Unit]:
    """Return what every invocation copies, after writing where its parts lie in the tiles."""
    units: list[_Unit] = []
    depth, threads = tile.depth, tile.threads
    for operand, span, name, origin in operands:
        total = span * depth // (4 if operand.deep else 1)
        for u in range(-(-total // threads)):
            tag = f"{name[0]}{u}"
            body.append(f"let n{tag} = me + {u * threads};")
            if operand.deep:
                k_text, v_text = f"n{tag} % {depth // 4} * 4", f"n{tag} / {depth // 4}"
            elif operand.along_k and not operand.wide:
                k_text, v_text = f"n{tag} % {depth}", f"n{tag} / {depth}"
            else:
                k_text, v_text = f"n{tag} / {span}", f"n{tag} % {span}"
            body.append(f"let k{tag} = {k_text};")
            body.append(f"let v{tag} = {v_text};")
            exact = w.p.sizes[operand.variable] % (span * 4) == 0
            rows = _row_scopes(w, operand, f"{origin} + v{tag} * 4", batch, body, exact)
            inside = f"n{tag} < {total}" if (u + 1) * threads > total else ""
            units.append(_Unit(operand, name, tag, span, rows, inside))
    return units


def lanes(across: int, down: int) -> list[str]:
    """Write where in the tile an invocation computes: 32 neighbours, which run in step, as 4 x 8
    where that fits, so that they read few different vectors."""
    if across % 8 or down % 4 or across == 8:
        return [f"let tx = i32(lid % {across}u);", f"let ty = i32(lid / {across}u);"]
    blocks = across // 8
    return [
        f"let tx = i32(lid % 8u + (lid / 32u % {blocks}u) * 8u);",
        f"let ty = i32(lid / 8u % 4u + (lid / {32 * blocks}u) * 4u);",
    ]


# Vectors between the rows of a tile, for memory banks: neighbouring k of a wide operand, or the
# four groups of k of a deep one, then lie in different ones.
_PAD = 2
# Turns of a loop over k from which on one more does not matter.
_LONG = 20


def _tiles(
    w: ProductWriter, tile: Tile, left: Operand, right: Operand, chunk: int, split: int
) -> tuple[list[str], list[str], int, tuple[int, int, int]]:
    """Write the kernel with tiles in workgroup memory."""
    p = w.p
    across, down, depth, threads = tile.columns // 4, tile.rows // 4, tile.depth, tile.threads
    groups = -(-p.m // tile.rows) * -(-p.n // tile.columns) * p.batch * split
    grid = fold_grid(groups, w.limits)
    body = tile_numbers(
        p, tile.rows, tile.columns, split, grid, grid[0] * grid[1] * grid[2] == groups
    )
    body += [
        *lanes(tile.columns // tile.own_columns, tile.rows // tile.own_rows),
        "let me = i32(lid);",
    ]
    kinds = f"vec4<{w.kind}>"
    shared = [
        f"var<workgroup> left_tile: array<{kinds}, {depth * (down + _PAD)}>;",
        f"var<workgroup> right_tile: array<{kinds}, {depth * (across + _PAD)}>;",
    ]
    batch = batch_place(p, body)
    body += k_range(p, split, chunk, "tile_row", tile.rows, depth)
    units = _units(
        w,
        tile,
        ((left, down, "left_tile", "tile_row"), (right, across, "right_tile", "tile_column")),
        batch,
        body,
    )

    def fetch(base: str) -> list[str]:
        """Return the loads of what each unit copies into workgroup memory."""
        lines: list[str] = []
        for unit in units:
            unit.fetch(w, lines, base, depth)
        return lines

    for unit in units:
        body += [f"var {name}: {kinds};" for name in unit.registers]
    for i in range(tile.own_rows):
        body += [f"var acc{i}_{j} = {kinds}();" for j in range(tile.own_columns // 4)]
    body += fetch("k_first")
    body.append(f"for (var k0: i32 = k_begin; k0 < k_end; k0 = k0 + {depth}) {{")
    loop: list[str] = []
    for unit in units:
        loop += unit.share(kinds, depth)
    loop.append("workgroupBarrier();")
    # With a branch around the loads drivers order them worse (45 rather than 50 TFLOP/s), so that the
    # last turn fetches its own tile once more; where turns are few, that costs more.
    if chunk >= _LONG * depth:
        loop.append(f"let next = select(k0, k0 + {depth}, k0 + {depth} < k_end);")
        loop += fetch("next")
    else:
        ahead = ("  " + x for x in fetch(f"k0 + {depth}"))
        loop += [f"if (k0 + {depth} < k_end) {{", *ahead, "}"]
    loop += _tile_sums(w.kind, tile)
    loop.append("workgroupBarrier();")
    body += ["  " + x for x in loop]
    body.append("}")
    _finish_tile(w, tile, split, body)
    return body, shared, threads, grid


def _steps(tile: Tile) -> tuple[int, int]:
    """Return how far apart in the tile an invocation's vectors are, down and across."""
    return tile.rows // tile.own_rows, tile.columns // tile.own_columns


def _tile_sums(kind: str, tile: Tile) -> list[str]:
    """Write what an invocation adds to its sums from the tiles in workgroup memory.

    Written out for every k: drivers then load ahead what the next k needs. As a loop, whatever the
    driver made of it, the same tile had 30 rather than 44 TFLOP/s.
    """
    across, down = tile.columns // 4 + _PAD, tile.rows // 4 + _PAD
    per_row, per_column = tile.own_rows // 4, tile.own_columns // 4
    y_step, x_step = _steps(tile)
    lines: list[str] = []
    for k in range(tile.depth):
        lines.append("{")
        for i in range(per_row):
            lines.append(f"  let a{i} = left_tile[ty + {k * down + i * y_step}];")
        for j in range(per_column):
            lines.append(f"  let b{j} = right_tile[tx + {k * across + j * x_step}];")
        for i in range(per_row):
            for r, c in enumerate("xyzw"):
                for j in range(per_column):
                    acc = f"acc{i * 4 + r}_{j}"
                    lines.append(f"  {acc} = {_fma(kind, f'a{i}.{c}', f'b{j}', acc)};")
        lines.append("}")
    return lines


def _finish_tile(w: ProductWriter, tile: Tile, split: int, body: list[str]) -> None:
    """Write the stores of an invocation's sums."""
    y_step, x_step = _steps(tile)
    for i in range(tile.own_rows // 4):
        for r in range(4):
            row = w.bind(f"tile_row + (ty + {i * y_step}) * 4 + {r}", body)
            for j in range(tile.own_columns // 4):
                column = w.bind(f"tile_column + (tx + {j * x_step}) * 4", body)
                finish_block(w, body, row, column, f"acc{i * 4 + r}_{j}", split, tile)


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
