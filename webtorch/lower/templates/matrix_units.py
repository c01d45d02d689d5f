"""Products of 16-bit floats on matrix units (WGSL subgroup matrices; Dawn has them behind
chromium_experimental_subgroup_matrix). Floor 2; imports floors 0 and 1, the renderer and the product
kernels.

A workgroup copies tiles of both operands to workgroup memory as they lie, eight elements at a time;
each subgroup multiplies its part in fragments of 16 x 16 with sums in float32. Rows of a tile are
padded by eight elements, else neighbouring rows would meet in the same memory banks. Results go
through the same memory, a row of fragments at a time, to be converted and written where they belong:
that memory decides how many workgroups a multiprocessor holds (an H200 shares out 48 KB, and a
workgroup of 128 that is alone reaches 175 rather than 295 TFLOP/s).
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace

from webtorch.ir import expr as ex
from webtorch.ir.dtype import float16, float32, int32
from webtorch.ir.expr import Expr
from webtorch.ir.kernel import RUN
from webtorch.ir.limits import Limits
from webtorch.lower.templates.gemm import add_parts, finish_block, k_range, tile_numbers
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
    batch_place,
)
from webtorch.lower.templates.tuning import FAMILIES, Family, MatrixTile
from webtorch.lower.wgsl_reduce import native_half
from webtorch.lower.wgsl_shader import Draft, Engine, WgslPass, fold_grid
from webtorch.ops.blocks import quarter

# A fragment has this many rows, columns and k; memory is read and copied in vectors of eight.
_SIDE, _VECTOR = 16, 8
# Where an operand is computed: the fewest rows and the shortest part of k, the workgroups of a multiprocessor, and
# what a turn of theirs takes, in seconds, and starting and writing, in turns (an H200, 2026-11-28).
_FEW, _LEAST_CHUNK, _BESIDE, _TURN, _START = 2, 256, 3, 0.6e-6, 3
# How many steps of k are on their way from memory there.
_AHEAD = 2
# Parts of k that are tried: the last ones for gradients of weights, sums over all places of a batch.
_SPLITS = (1, 2, 3, 4, 5, 6, 7, 8, 11, 14, 16, 22, 29, 44, 58, 88, 132)
ENABLES = (
    "enable subgroups;",
    "enable chromium_experimental_subgroup_matrix;",
    # Offsets depend on the subgroup's number, which is lid / 32: uniform, but not to the analysis.
    "diagnostic(off, chromium.subgroup_matrix_uniformity);",
)

# Two float16 in a word, and a word of two float16.
_PAIRS = {
    "wt_pair": ["fn wt_pair(word: u32) -> vec2<f16> { return bitcast<vec2<f16>>(word); }"],
    "wt_word": ["fn wt_word(pair: vec2<f16>) -> u32 { return bitcast<u32>(pair); }"],
}


@dataclass(frozen=True, slots=True)
class _Side:
    """One operand: whether its rows in memory run along k, and how its tile lies."""

    operand: Operand
    along_k: bool
    name: str
    origin: str
    # Rows of the tile, and vectors in each without the padding.
    rows: int
    vectors: int
    # Vectors of workgroup memory before the tile.
    start: int

    @property
    def unit(self) -> int:
        """Vectors that an invocation copies together: those of a run that is computed."""
        return RUN // _VECTOR if self.operand.runs else 1

    @property
    def units(self) -> int:
        """How many of these a row has."""
        return self.vectors // self.unit

    @property
    def stride(self) -> int:
        """Vectors from one row of the tile to the next."""
        return self.vectors + 1


def operands(w: ProductWriter) -> tuple[tuple[Operand, bool], tuple[Operand, bool]] | None:
    """Return (operand, whether it runs along k) for both, or None if one cannot be read as vectors
    of eight."""
    p = w.p
    found = []
    for load, variable in ((p.left, ROW), (p.right, COLUMN)):
        if variable == COLUMN and p.runs and load.dtype is float16:
            found.append((Operand(load, variable, False, True, runs=p.runs), True))
            continue
        if load.op != "load" or load.dtype is not float16:
            return None
        if w.is_wide(load, K, _VECTOR):
            found.append((Operand(load, variable, False, True), True))
        elif w.is_wide(load, variable, _VECTOR):
            found.append((Operand(load, variable, True, False), False))
        else:
            return None
    return found[0], found[1]


def usable(limits: Limits, engine: Engine) -> bool:
    """Whether there are matrix units that kernels can use."""
    return limits.has_matrix_units and limits.has_f16 and engine == "dawn"


def choose(p: Product, limits: Limits, engine: Engine) -> tuple[MatrixTile, int] | None:
    """Return a tile and how many workgroups share the k of an output, or None where matrix units do
    not serve: other types, other adapters, operands that are not eight apart, tiny products."""
    found = fastest(p, limits, engine)
    return None if found is None else found[1:]


def fastest(p: Product, limits: Limits, engine: Engine) -> tuple[float, MatrixTile, int] | None:
    """Return (seconds by the model, tile, parts of k), or None as `choose` does."""
    if not usable(limits, engine):
        return None
    terms = p.k * p.taps
    least = _FEW if p.runs else _SIDE
    if p.accumulates is not float32 or p.m < least or min(p.n, terms) < _SIDE:
        return None
    both = operands(ProductWriter(p, limits))
    if both is None:
        return None
    along_k = sum(along for _, along in both)
    family = FAMILIES[limits.family]
    if p.runs:
        return _unpacking(p, family, limits)
    best: tuple[float, MatrixTile, int] | None = None
    for known in family.matrix_tiles:
        tile = known.tile
        if tile.shared_bytes > limits.workgroup_memory_bytes:
            continue
        # A step of the loop is within a tap.
        if p.taps > 1 and p.k % tile.depth:
            continue
        groups = p.groups(tile.rows, tile.columns)
        for split in _SPLITS:
            if split > 1 and (terms < 512 * split or groups * split > 4 * family.multiprocessors):
                break
            # As in `ranked`: the busiest multiprocessor works on its workgroups in turns.
            work = 2.0 * tile.rows * tile.columns * (-(-terms // split) + known.start_k)
            busiest = -(-groups * split // family.multiprocessors)
            rate = known.rates[along_k] * 1e12 / family.multiprocessors
            seconds = known.turns(busiest) * work / rate
            if split > 1:
                seconds += _second_pass(p, split)
            if best is None or seconds < best[0]:
                best = seconds, tile, split
    return best


def _unpacking(p: Product, family: Family, limits: Limits) -> tuple[float, MatrixTile, int] | None:
    """Return what `fastest` does for an operand that is computed: tiles that hold all rows, as each computes it. A
    multiprocessor works on some workgroups side by side, each of which takes as long as one, turn by turn.
    """
    fitting = [t for t in family.unpacking if t.shared_bytes <= limits.workgroup_memory_bytes]
    if not fitting:
        return None
    tile = next((t for t in fitting if t.rows >= p.m), fitting[-1])
    groups, beside = p.groups(tile.rows, tile.columns), _BESIDE * family.multiprocessors

    def seconds(split: int) -> float:
        """Return what so many parts of k take by the model."""
        turns = -(-groups * split // beside) * (p.k / split / tile.depth + _START)
        return turns * _TURN + (_second_pass(p, split) if split > 1 else 0)

    split = min(range(1, max(1, p.k // _LEAST_CHUNK) + 1), key=seconds)
    return seconds(split), tile, split


def _second_pass(p: Product, split: int) -> float:
    """Return what adding parts of k takes, in seconds."""
    return 3e-6 + 8 * p.batch * p.m * (p.n + sum(p.others)) * split / 3e12


def render(
    p: Product, limits: Limits, engine: Engine, image_columns: int = 0
) -> list[WgslPass] | None:
    """Return the dispatches of a product on matrix units, or None where they do not serve.
    `image_columns`: as in `render_product`."""
    found = choose(p, limits, engine)
    return None if found is None else matrix_passes(p, limits, *found, image_columns)


def matrix_passes(
    p: Product, limits: Limits, tile: MatrixTile, split: int, image_columns: int = 0
) -> list[WgslPass]:
    """Return the dispatches of a product with a given tile and split of k."""
    return [d.finished() for d in matrix_drafts(p, limits, tile, split, image_columns)]


def matrix_drafts(
    p: Product, limits: Limits, tile: MatrixTile, split: int, image_columns: int = 0
) -> list[Draft]:
    """Return what the dispatches of a product are made of."""
    memo: dict[Expr, Expr] = {}
    runs = [ex.rewrite(x, lambda node, _: native_half(node, limits), memo) for x in p.runs]
    p = replace(p, runs=tuple(runs))
    w = ProductWriter(p, limits)
    w.image_columns = image_columns or 1
    both = operands(w)
    assert both is not None, p.name
    w.declare({}, {o.slot: _width(p, o) if o.runs else _VECTOR for o, _ in both})
    terms = p.k * p.taps
    chunk = -(-terms // split)
    chunk = -(-chunk // tile.depth) * tile.depth
    split = -(-terms // chunk)
    words = p.batch * p.m * (-(-p.n // 4) * 4)
    scratch = (16 * p.scratch_first + 4 * words * split,) if split > 1 else ()
    groups = -(-p.m // tile.rows) * -(-p.n // tile.columns) * p.batch * split
    grid = fold_grid(groups, limits)
    exact = grid[0] * grid[1] * grid[2] == groups
    body = tile_numbers(p, tile.rows, tile.columns, split, grid, exact)
    sides: list[_Side] = []
    start = 0
    for (operand, along_k), name, origin, span in zip(
        both,
        ("left", "right"),
        ("tile_row", "tile_column"),
        (tile.rows, tile.columns),
        strict=True,
    ):
        lines, vectors = (span, tile.depth) if along_k else (tile.depth, span)
        sides.append(_Side(operand, along_k, name, origin, lines, vectors // _VECTOR, start))
        start += lines * sides[-1].stride
    shared = [f"var<workgroup> tiles: array<vec4<u32>, {max(start, tile.finished)}>;"]
    _multiply(w, tile, sides, chunk, split, body)
    _write(w, tile, split, body)
    drafts = [Draft(w, body, shared, tile.threads, grid, scratch, directives=ENABLES)]
    if split > 1:
        drafts.append(add_parts(p, limits, split, words, scratch, image_columns))
    return [replace(one, scratch_type="vec4<u32>", trusted=i == 0) for i, one in enumerate(drafts)]


def _multiply(
    w: ProductWriter,
    tile: MatrixTile,
    sides: list[_Side],
    chunk: int,
    split: int,
    body: list[str],
) -> None:
    """Write the loop over k that leaves sums in the fragments m0_0, m0_1, ..."""
    p = w.p
    body += [
        f"let part_row = (lid / 32u / {tile.across}u) * {tile.fragment_rows * _SIDE}u;",
        f"let part_column = (lid / 32u % {tile.across}u) * {tile.fragment_columns * _SIDE}u;",
    ]
    every = replace(p, k=p.k * p.taps)
    body += k_range(every, split, chunk, "tile_row", tile.rows, tile.depth)
    batch = batch_place(p, body)
    copies = [c for side in sides for c in _copies(w, tile, side, batch, body)]

    def fetch(base: str, turn: int) -> list[str]:
        """Return the loads of one step of k: of both operands, to be put into workgroup memory."""
        first: list[str] = []
        tap, inside = Places(first, (), 1 << TAP), base
        if p.taps > 1:
            # A tap has whole steps of the loop, so it is the same for the workgroup.
            tap.env[p.variable(TAP)] = w.bind(f"({base}) / {p.k}", first)
            inside = w.bind(f"{base} - {tap.env[p.variable(TAP)]} * {p.k}", first)
        every = [c.fetch(w, (batch, c.place, tap), inside, tile, turn) for c in copies]
        return [*first, *(x for lines in every for x in lines)]

    rows, columns, depth = tile.fragment_rows, tile.fragment_columns, tile.depth
    kind = f"subgroup_matrix_result<f32, {_SIDE}, {_SIDE}>"
    body += [f"var m{i}_{j}: {kind};" for i in range(rows) for j in range(columns)]
    turns = _turns(p)
    body += fetch("k_first", 0)
    for turn in range(1, turns):
        body += _guarded(
            f"k_begin + {turn * depth} < k_end", fetch(f"k_begin + {turn * depth}", turn)
        )
    body.append(f"for (var k0: i32 = k_begin; k0 < k_end; k0 = k0 + {turns * depth}) {{")
    for turn in range(turns):
        k, after = (f"k0 + {n * depth}" if n else "k0" for n in (turn, turn + turns))
        step = [line for c in copies for line in c.share(w, batch, tile, k, turn)]
        step.append("workgroupBarrier();")
        # With the branch: 282 TFLOP/s, without 134.
        step += _guarded(f"{after} < k_end", fetch(after, turn))
        left, right = sides
        for at in range(0, depth, _SIDE):
            step.append("{")
            step += _fragments(left, "left", "a", rows, "part_row", at)
            step += _fragments(right, "right", "b", columns, "part_column", at)
            for i in range(rows):
                for j in range(columns):
                    m = f"m{i}_{j}"
                    step.append(f"  {m} = subgroupMatrixMultiplyAccumulate(a{i}, b{j}, {m});")
            step.append("}")
        step.append("workgroupBarrier();")
        body += ["  " + x for x in (_guarded(f"{k} < k_end", step) if turn else step)]
    body.append("}")


def _turns(p: Product) -> int:
    """Return how many steps of k are on their way from memory."""
    return _AHEAD if p.runs else 1


def _guarded(test: str, lines: list[str]) -> list[str]:
    """Return lines that run where a test is true."""
    return [f"if ({test}) {{", *("  " + x for x in lines), "}"]


@dataclass(frozen=True, slots=True)
class _Copy:
    """A vector that one invocation copies from an operand to its tile, by way of a register."""

    side: _Side
    tag: str
    place: Places
    # Whether some invocations have nothing to copy.
    guarded: bool

    @property
    def inside(self) -> str:
        """The test whether an invocation has something to copy."""
        return f"n{self.tag} < {self.side.rows * self.side.units}"

    def at(
        self,
        w: ProductWriter,
        places: tuple[Places, ...],
        base: str,
        tile: MatrixTile,
        lines: list[str],
    ) -> tuple[Places, str]:
        """Return the place of the vector in the tile that begins at k = `base`, and the test whether it is one beyond
        the end, where that may be; `places` hold all variables but k.
        """
        p, side, tag = w.p, self.side, self.tag
        step = f"vector{tag} * {_VECTOR}" if side.along_k else f"row{tag}"
        k_name = w.bind(f"{base} + {step}", lines)
        over = p.taps == 1 and p.k % tile.depth != 0
        k = Places(lines, (), 1 << K)
        last = p.k - (side.unit * _VECTOR if side.along_k else 1)
        bound = w.bind(f"min({k_name}, {last})", lines) if over else k_name
        k.env[p.variable(K)] = bound
        mask = BATCHES | (1 << side.operand.variable) | (1 << K) | (1 << TAP)
        return Places(lines, (*places, k), mask), f"{k_name} < {p.k}" if over else ""

    def fetch(
        self, w: ProductWriter, places: tuple[Places, ...], base: str, tile: MatrixTile, turn: int
    ) -> list[str]:
        """Return the loads of the tile that begins at k = `base`, into the registers of a turn."""
        side, into = self.side, self.registers(turn)
        block: list[str] = []
        place, inside = self.at(w, places, base, tile, block)
        if side.operand.runs:
            for name, text in _reads(w, side.operand, place, f"{into}_").items():
                block.append(f"{name} = {text};")
        else:
            at = w.vector_index(side.operand.load.args[0], place, _VECTOR)
            text = f"b{side.operand.slot}[{at}]"
            if inside:
                text = f"select(vec4<u32>(), {text}, {inside})"
            block.append(f"{into} = {text};")
        return _guarded(self.inside, block) if self.guarded else block

    def registers(self, turn: int) -> str:
        """Return what names of the registers begin with that wait for a turn."""
        return f"f{self.tag}{'b' * turn}"

    def share(
        self, w: ProductWriter, batch: Places, tile: MatrixTile, base: str, turn: int
    ) -> list[str]:
        """Return the store to workgroup memory of what was fetched for the tile at k = `base`."""
        side, tag, held = self.side, self.tag, self.registers(turn)
        block: list[str] = []
        first = f"{side.start} + " if side.start else ""
        if side.operand.runs:
            # What was read waits in registers: multiplying the tile before does not wait for it.
            place, inside = self.at(w, (batch, self.place), base, tile, block)
            for load, (name, lane) in _registers(w, side.operand, f"{held}_").items():
                place.env[load] = (
                    f"{name}.{'xyzw'[lane]}" if w.slots[side.operand.slot].width > 1 else name
                )
            words = [
                x for i in range(0, RUN, 4) for x in _halves(w, side.operand.runs[i : i + 4], place)
            ]
            for u in range(side.unit):
                text = f"vec4<u32>({', '.join(words[u * 4 : u * 4 + 4])})"
                text = f"select(vec4<u32>(), {text}, {inside})" if inside else text
                block.append(
                    f"tiles[{first}row{tag} * {side.stride} + vector{tag} + {u}] = {text};"
                )
        else:
            block.append(f"tiles[{first}row{tag} * {side.stride} + vector{tag}] = {held};")
        if self.guarded:
            return _guarded(self.inside, block)
        # Names are those of a turn.
        return ["{", *("  " + x for x in block), "}"] if side.operand.runs else block


def _halves(w: ProductWriter, values: tuple[Expr, ...], place: Places) -> list[str]:
    """Return the texts of two words that hold four elements as float16.

    Two bytes of a word are made floats at once: as the last bits of a power of two, less their middle, they are
    numbers of -1 to 1 without rounding. Only their scale, which is as large as the largest element, what is added for
    the middle, and the result are rounded.
    """
    found = quarter(values)
    if found is None:
        texts = [w.value(x.args[0] if x.op == "cast" else x, place) for x in values]
        return [f"pack2x16float(vec2<f32>({a}, {b}))" for a, b in (texts[:2], texts[2:])]
    word, bits, less, scale, low = found
    middle = 1 << (bits - 1)
    step = w.bind(f"vec2<f16>(f16({w.value(scale * float(middle), place)}))", place.lines)
    if middle != less:
        above = scale * float(middle - less)
        low = above if low is None else above + low
    text = w.bind(f"bitcast<u32>({w.value(word, place)})", place.lines)
    # 2 ** (11 - bits), whose fraction of ten bits counts by 1 / middle.
    power = (26 - bits << 10) * 0x10001
    w.functions |= _PAIRS
    pairs = []
    for shifted in (text, f"({text} >> 8u)"):
        near = f"(wt_pair(({shifted} & 0xff00ffu) | {power}u) - {2.0 ** (11 - bits) + 1}h)"
        if low is None:
            pair = f"{near} * {step}"
        else:
            pair = f"fma({near}, {step}, vec2<f16>(f16({w.value(low, place)})))"
        pairs.append(w.bind(pair, place.lines))
    return [f"wt_word(vec2<f16>({pairs[0]}.{x}, {pairs[1]}.{x}))" for x in "xy"]


def _first(load: Expr, width: int) -> tuple[Expr, int]:
    """Return where a vector of `width` begins that has an element, and which of it that is."""
    terms, waiting, number = list[Expr](), [load.args[0]], 0
    while waiting:
        x = waiting.pop()
        if x.op == "add":
            waiting += reversed(x.args)
        elif x.op == "const":
            number += int(x.value)
        else:
            terms.append(x)
    lane = number % width
    return functools.reduce(operator.add, terms, ex.const(number - lane, int32)), lane


def _registers(w: ProductWriter, operand: Operand, prefix: str) -> dict[Expr, tuple[str, int]]:
    """Return where what is read for a run waits: a register for each element, or vector of them, and which it is."""
    width = w.slots[operand.slot].width
    names: dict[Expr, str] = {}
    found = {}
    for load in ex.walk(*operand.runs):
        if load.op == "load":
            first, lane = _first(load, width)
            found[load] = names.setdefault(first, f"{prefix}{len(names)}"), lane
    return found


def _reads(w: ProductWriter, operand: Operand, place: Places, prefix: str) -> dict[str, str]:
    """Return the texts of what the registers hold."""
    width = w.slots[operand.slot].width
    found: dict[str, str] = {}
    for load, (name, _) in _registers(w, operand, prefix).items():
        if name not in found and width == 1:
            found[name] = w.value(load, place)
        elif name not in found:
            at = w.value(_first(load, width)[0], place)
            found[name] = f"b{operand.slot}[({at}) >> 2u]"
    return found


def _width(p: Product, operand: Operand) -> int:
    """Return how many elements of data one read of a computed operand can have: four where all lie so."""
    loads = [load for load in ex.walk(*operand.runs) if load.op == "load"]
    whole = p.buffers[operand.slot].elements % 4 == 0
    return 4 if whole and all(_multiple(_first(load, 4)[0]) % 4 == 0 for load in loads) else 1


def _multiple(x: Expr) -> int:
    """Return a number that divides a position, wherever it is."""
    if x.op == "const":
        return int(x.value)
    if x.op == "mul":
        return _multiple(x.args[0]) * _multiple(x.args[1])
    if x.op in ("add", "sub"):
        return math.gcd(_multiple(x.args[0]), _multiple(x.args[1]))
    return 1


def _copies(
    w: ProductWriter, tile: MatrixTile, side: _Side, batch: Places, body: list[str]
) -> Iterator[_Copy]:
    """Yield what an invocation copies of an operand, after writing where it lies."""
    p, variable = w.p, side.operand.variable
    size, span = p.sizes[variable], tile.rows if variable == ROW else tile.columns
    total = side.rows * side.units
    for u in range(-(-total // tile.threads)):
        tag = f"{side.name[0]}{u}"
        body += [
            f"let n{tag} = i32(lid) + {u * tile.threads};",
            f"let row{tag} = n{tag} / {side.units};",
            f"let vector{tag} = n{tag} % {side.units}{f' * {side.unit}' if side.unit > 1 else ''};",
        ]
        place = Places(body, (batch,), BATCHES | (1 << variable))
        first = f"row{tag}" if side.along_k else f"vector{tag} * {_VECTOR}"
        text = f"{side.origin} + {first}"
        last = size - (1 if side.along_k else _VECTOR)
        place.env[p.variable(variable)] = w.bind(
            text if size % span == 0 else f"min({text}, {last})", body
        )
        copy = _Copy(side, tag, place, (u + 1) * tile.threads > total)
        for turn in range(_turns(p)):
            names, kind = [copy.registers(turn)], "vec4<u32>"
            if side.operand.runs:
                kind = "vec4<i32>" if w.slots[side.operand.slot].width > 1 else "i32"
                names = [n for n, _ in _registers(w, side.operand, f"{names[0]}_").values()]
            body += [f"var {name}: {kind};" for name in dict.fromkeys(names)]
        yield copy


def _fragments(
    side: _Side, which: str, letter: str, count: int, first: str, k: int
) -> Iterator[str]:
    """Yield the loads of an operand's fragments at k of the tiles; it is the left or the right one."""
    # Row-major: rows of the matrix are rows of the tile.
    major = "row_major" if side.along_k == (which == "left") else "col_major"
    for i in range(count):
        at = f"{first} + {i * _SIDE}u"
        if side.along_k:
            offset = f"({at}) * {side.stride}u + {side.start + k // _VECTOR}u"
        else:
            offset = f"{side.start + k * side.stride}u + ({at}) / {_VECTOR}u"
        yield (
            f"  let {letter}{i} = subgroupMatrixLoad<subgroup_matrix_{which}"
            f"<f16, {_SIDE}, {_SIDE}>, {major}>(&tiles, {offset}, {side.stride}u);"
        )


def _write(w: ProductWriter, tile: MatrixTile, split: int, body: list[str]) -> None:
    """Write the fragments to memory, a row of them at a time: neighbouring lanes take neighbouring
    columns."""
    # Vectors of four sums in a row of a subgroup, and from one row to the next.
    across, stride = tile.fragment_columns * _SIDE // 4, tile.finished_stride
    body += [
        f"let stage = (lid / 32u) * {_SIDE * stride}u;",
        "let lane = lid % 32u;",
        "let from_row = tile_row + i32(part_row);",
        "let from_column = tile_column + i32(part_column);",
    ]
    for i in range(tile.fragment_rows):
        for j in range(tile.fragment_columns):
            at = f"stage + {j * _SIDE // 4}u"
            body.append(f"subgroupMatrixStore<row_major>(&tiles, {at}, m{i}_{j}, {stride}u);")
        body.append("workgroupBarrier();")
        for u in range(across * _SIDE // 32):
            number = w.bind(f"lane + {u * 32}u", body)
            right = w.bind(f"{number} % {across}u", body)
            down = w.bind(f"{number} / {across}u", body)
            row = w.bind(f"from_row + i32({down}) + {i * _SIDE}", body)
            at = f"stage + {down} * {stride}u + {right}"
            value = w.bind(f"bitcast<vec4<f32>>(tiles[{at}])", body)
            column = w.bind(f"from_column + i32({right}) * 4", body)
            finish_block(w, body, row, column, value, split, tile)
        body.append("workgroupBarrier();")
