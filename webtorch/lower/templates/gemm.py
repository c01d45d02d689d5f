"""Products of tiles: the one kernel behind matrix products and convolutions. Floor 2; imports floor 0, the
renderer and `product`.

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

from webtorch.ir.limits import Limits
from webtorch.lower.sizes import size_class
from webtorch.lower.templates.product import (
    BATCHES,
    COLUMN,
    ROW,
    TAP,
    K,
    Operand,
    Places,
    Product,
    ProductWriter,
    along,
    batch_place,
    lane_scopes,
    operands_of,
    row_scopes,
    vector,
)
from webtorch.lower.templates.tuning import FAMILIES, MatrixTile, Tile
from webtorch.lower.wgsl_shader import Draft, WgslPass, fold_grid, group_number

# Mesa's llvmpipe leaves a loop, without a word, after 65,535 turns of an invocation; a turn is four k.
_LONGEST = 4 << 15
# What a workgroup spends before and after its loop, in k; what a second pass costs, in seconds; and
# the bytes a second in which partial sums are written and read.
_OVERHEAD_K, _SECOND_PASS, _BYTES = 48, 3e-6, 3e12
# Multiplications from which on a tile gains on a software adapter what its text, which is long, takes more
# time to compile than the generic kernel's: on lavapipe, 80 ms against 30.
_MANY = 1 << 14
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


def pays(multiplications: int, limits: Limits) -> bool:
    """Whether a product is worth the compilation of a tile."""
    return limits.is_gpu or multiplications >= _MANY


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
    writer.declare({o.slot: (o.wide or o.deep) and not o.runs for o in (left, right)})
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
    rows = row_scopes(w, left, "row", batch, body)
    columns = row_scopes(w, right, "column", batch, body)
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
                lanes = lane_scopes(scopes, k, operand.variable, lines)
                names.append(w.bind(vector(w, operand, lanes), lines))
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
    lanes = lane_scopes(scopes, k, operand.variable, lines)
    loaded = [w.bind(along(w, operand, s), lines) for s in lanes]
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
        bound = w.bind(f"min({k_name}, {last})", block) if guarded else k_name
        k.env[w.p.variable(K)] = bound
        lanes = lane_scopes(self.rows, k, operand.variable, block)
        for name, part in zip(
            self.registers, [[s] for s in lanes] if operand.deep else [lanes], strict=True
        ):
            text = along(w, operand, part[0]) if operand.deep else vector(w, operand, part)
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
            rows = row_scopes(w, operand, f"{origin} + v{tag} * 4", batch, body, exact)
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
