"""Attention on matrix units: the forward pass, and the weights of the backward pass, in float16 with
sums in float32. Floor 2; imports floor 0, the renderer and what attention's kernels share.

Each subgroup of a workgroup has 16 or 32 rows of queries, whose fragments stay in registers; keys and
values go through workgroup memory, a tile at a time. No lane knows which elements of a fragment it
holds, so scores go through workgroup memory too, where a lane reads a row, or half of one: the largest
of a row is then found in registers. What a tile's weights are multiplied with and the scores of the
next tile are computed between the same two barriers.

Rows of a fragment cannot be scaled either. So what a row's scores are measured by is not its largest
one: it stays as it is until a score exceeds it by `_ROOM`, which float16 bears, and only then, which
is rare, what was added up is scaled in workgroup memory (the idea of FlashAttention-4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from webtorch.ir.dtype import float16
from webtorch.ir.kernel import Attention
from webtorch.ir.limits import Limits
from webtorch.lower.templates.attention_common import LEAST_SEEN, AttentionWriter, indented
from webtorch.lower.templates.attention_tiles import Part
from webtorch.lower.templates.matrix_units import ENABLES
from webtorch.lower.wgsl_shader import Engine, WgslPass

_BARRIER = "workgroupBarrier();"
_SIDE, _VECTOR = 16, 8
# exp(5.5) is 245: the sum of a fragment's products stays far from what float16 cannot hold.
_ROOM = "5.5f"


@dataclass(frozen=True, slots=True)
class UnitTile:
    """A workgroup's tile: its subgroups, the fragments of rows that each has (1 or 2), the keys of a
    step, and how many kinds of scores lie side by side.
    """

    subgroups: int
    fragments: int
    columns: int
    kinds: int = 1

    @property
    def own(self) -> int:
        """Rows of a subgroup."""
        return self.fragments * _SIDE

    @property
    def rows(self) -> int:
        """Rows of the tile."""
        return self.subgroups * self.own

    @property
    def threads(self) -> int:
        """Invocations in a workgroup."""
        return 32 * self.subgroups

    @property
    def lanes(self) -> int:
        """Lanes that share a row."""
        return 2 // self.fragments

    @property
    def score_line(self) -> int:
        """Vectors of four float32 from one row of scores to the next."""
        return self.kinds * self.columns // 4 + 1

    @property
    def half_line(self) -> int:
        """Vectors of eight float16 from one row of weights to the next."""
        return self.columns // _VECTOR + 1

    def shared_bytes(self, lines: int, halves: bool = True) -> int:
        """Bytes of workgroup memory; `lines` are the vectors of one row of each tile."""
        kept = self.score_line + halves * self.half_line
        return 16 * (self.rows * kept + self.tiles(lines))

    def tiles(self, lines: int) -> int:
        """Vectors of the tiles, through which fragments of rows go first."""
        return max(self.columns * lines, 2 * self.rows)

    def registers(self, kept: int) -> int:
        """Numbers that an invocation keeps, about: `kept` float32 of each of its rows in fragments."""
        return self.own * (kept + self.columns) // 32 + 70


# The fastest first, on an H200.
TILES = (UnitTile(8, 1, 16), UnitTile(4, 1, 16), UnitTile(2, 1, 16))
WEIGHT_TILES = (UnitTile(5, 1, 16, 2), UnitTile(4, 1, 16, 2), UnitTile(2, 1, 16, 2))


def suits(r: Attention, limits: Limits, engine: Engine) -> bool:
    """Whether matrix units serve: float16 whose rows are vectors of eight, heads of fragments."""
    if not (limits.has_matrix_units and limits.has_f16 and engine == "dawn"):
        return False
    if r.size % _SIDE or r.width % _SIDE or min(r.length, r.source) < _SIDE:
        return False
    writer = AttentionWriter(r, limits, 1, 1)
    names = ["query", "key", "value"] + ["grad"] * (r.part != "forward")
    return all(
        r.buffers[writer.number[n]].dtype is float16 and writer.is_wide(n, _VECTOR) for n in names
    )


def _choose(
    r: Attention,
    limits: Limits,
    engine: Engine,
    tiles: Sequence[UnitTile],
    lines: int,
    further: int,
    kept: int,
    halves: bool = True,
) -> UnitTile | None:
    """Return the first tile that fits, with `lines` vectors in one row of each tile, `further` bytes of
    workgroup memory and `kept` numbers of each row, or None where matrix units do not serve."""
    if not suits(r, limits, engine):
        return None
    for tile in tiles:
        shared = tile.shared_bytes(lines, halves) + further
        if shared <= limits.workgroup_memory_bytes and tile.registers(kept) <= 256:
            return tile
    return None


def _line(elements: int) -> int:
    """Return the vectors from one row of a tile to the next: one more than there are, for banks."""
    return elements // _VECTOR + 1


def forward(r: Attention, limits: Limits, engine: Engine) -> WgslPass | None:
    """Return the dispatch of the forward pass, or None where matrix units do not serve."""
    lines = _line(r.size) + _line(r.width)
    # One word more is for what the workgroup agrees upon.
    tile = _choose(r, limits, engine, TILES, lines, 16, r.width + r.size // 2)
    return None if tile is None else Forward(r, limits, tile).render()


def weights(r: Attention, limits: Limits, engine: Engine, part: Part) -> WgslPass | None:
    """Return the dispatch that writes a part of the weights, or None."""
    lines = _line(r.size) + _line(r.width)
    kept = (r.size + r.width) // 2
    tile = _choose(r, limits, engine, WEIGHT_TILES, lines, 0, kept, halves=False)
    return None if tile is None else Weights(r, limits, tile, part).render()


class _Units(AttentionWriter):
    """What both kernels do: tiles of keys or values, products of fragments, rows of scores."""

    def __init__(self, r: Attention, limits: Limits, tile: UnitTile) -> None:
        super().__init__(r, limits, tile.rows, tile.columns)
        self.tile = tile
        for name in ("query", "key", "value", "grad"):
            if name in self.number:
                self.w.slots[self.number[name]].width = _VECTOR

    def shared(self, lines: int, halves: bool = True) -> list[str]:
        """Return the arrays in workgroup memory; `lines` are the vectors of one row of each tile."""
        tile = self.tile
        found = [
            f"var<workgroup> scores: array<vec4<f32>, {tile.rows * tile.score_line}>;",
            f"var<workgroup> tile: array<vec4<u32>, {tile.tiles(lines)}>;",
        ]
        if halves:
            found.append(f"var<workgroup> halves: array<vec4<u32>, {tile.rows * tile.half_line}>;")
        return found

    def places(self) -> list[str]:
        """Write the rows of this subgroup, and the row of this lane: neighbours have neighbouring
        rows, which are in different banks.
        """
        tile = self.tile
        return [
            f"let own = (lid / 32u) * {tile.own}u;",
            f"let mine = own + lid % {tile.own}u;",
            f"let part = i32(lid % 32u / {tile.own}u) * {tile.columns // tile.lanes // 4};",
            "let row = first_row + i32(mine);",
            f"let score_at = i32(mine) * {tile.score_line} + part;",
            f"let half_at = i32(mine) * {tile.half_line} + part / 2;",
        ]

    def store(self, i: int, column: int, name: str) -> str:
        """Write a fragment to the scores, from row fragment `i` and vector `column` on."""
        line = self.tile.score_line
        at = f"(own + {i * _SIDE}u) * {line}u + {column}u"
        return f"subgroupMatrixStore<row_major>(&scores, {at}, {name}, {line}u);"

    def reload(self, i: int, column: int, name: str) -> str:
        """Write the opposite of `store`."""
        line = self.tile.score_line
        at = f"(own + {i * _SIDE}u) * {line}u + {column}u"
        return f"{name} = subgroupMatrixLoad<{_RESULT}, row_major>(&scores, {at}, {line}u);"

    @property
    def quads(self) -> int:
        """Vectors of four scores that a lane reads."""
        return self.tile.columns // self.tile.lanes // 4

    # -- tiles --

    def fetch(self, name: str, first: str, tag: str, lines: list[str]) -> None:
        """Write the loads of the tile of keys or values from `first` on into registers."""
        tile = self.tile
        total, last = self.extent(name)
        vectors = last // _VECTOR
        slot = self.w.slots[self.number[name]]
        stride = self.geometry[name][0][2]
        whole = total % tile.columns == 0
        if whole:
            # The tile after the last one is the last one again.
            start = self.w.bind(
                f"min({first}, {total - tile.columns}) * {stride // _VECTOR}", lines
            )
        for u in range(-(-tile.columns * vectors // tile.threads)):
            block: list[str] = []
            if whole:
                block.append(f"{tag}{u} = {slot.name}[{tag}_at{u} + {start}];")
            else:
                n = self.w.bind(f"i32(lid) + {u * tile.threads}", block)
                at = self.w.bind(f"{first} + {n} / {vectors}", block)
                place = (
                    f"{name}_base + min({at}, {total - 1}) * {stride} + {n} % {vectors} * {_VECTOR}"
                )
                text = f"{slot.name}[({place}) >> 3u]"
                block.append(f"{tag}{u} = select(vec4<u32>(), {text}, {at} < {total});")
            if (u + 1) * tile.threads > tile.columns * vectors:
                inside = f"i32(lid) + {u * tile.threads} < {tile.columns * vectors}"
                block = [f"if ({inside}) {{", *indented(block), "}"]
            lines += block

    def registers(self, name: str, tag: str) -> list[str]:
        """Declare what `fetch` fills, and what of its places does not change."""
        tile, lines = self.tile, list[str]()
        vectors = self.extent(name)[1] // _VECTOR
        stride = self.geometry[name][0][2]
        for u in range(-(-tile.columns * vectors // tile.threads)):
            n = f"(i32(lid) + {u * tile.threads})"
            lines += [
                f"var {tag}{u}: vec4<u32>;",
                f"let {tag}_at{u} = ({name}_base >> 3u) + {n} / {vectors} * {stride // _VECTOR} "
                f"+ {n} % {vectors};",
            ]
        return lines

    def share(self, name: str, tag: str, first: str = "0") -> list[str]:
        """Write the registers to the tile at vector `first` of workgroup memory."""
        tile, lines = self.tile, []
        vectors = self.extent(name)[1] // _VECTOR
        for u in range(-(-tile.columns * vectors // tile.threads)):
            n = f"(i32(lid) + {u * tile.threads})"
            at = f"{first} + {n} / {vectors} * {vectors + 1} + {n} % {vectors}"
            store = f"tile[{at}] = {tag}{u};"
            if (u + 1) * tile.threads > tile.columns * vectors:
                store = f"if ({n} < {tile.columns * vectors}) {{ {store} }}"
            lines.append(store)
        return lines

    def rows_held(self, name: str, letter: str) -> list[str]:
        """Write the fragments of this subgroup's rows of queries or cotangents, which then stay."""
        tile, lines = self.tile, list[str]()
        total, last = self.extent(name)
        slot = self.w.slots[self.number[name]]
        stride = self.geometry[name][0][2]
        vectors = _SIDE // _VECTOR
        count = tile.rows * vectors
        for first in range(0, last, _SIDE):
            place = (
                f"{name}_base + min(first_row + u / {vectors}, {total - 1}) * {stride} "
                f"+ {first} + u % {vectors} * {_VECTOR}"
            )
            lines += [
                f"for (var u: i32 = i32(lid); u < {count}; u = u + {tile.threads}) {{",
                f"  tile[u] = {slot.name}[({place}) >> 3u];",
                "}",
                _BARRIER,
            ]
            for i in range(tile.fragments):
                at = f"(own + {i * _SIDE}u) * {vectors}u"
                kept = load("left", "row", "tile", at, vectors)
                lines.append(f"let {letter}{i}_{first // _SIDE} = {kept}")
            lines.append(_BARRIER)
        return lines

    def products(self, letter: str, size: int, first: str = "0u", column: int = 0) -> list[str]:
        """Write the products of the rows held with the tile at vector `first` of workgroup memory, to
        the scores from vector `column` on.
        """
        tile, lines = self.tile, list[str]()
        line = _line(size)
        for j in range(tile.columns // _SIDE):
            lines.append("{")
            lines += [f"  var s{i} = {_RESULT}();" for i in range(tile.fragments)]
            for k in range(size // _SIDE):
                at = f"{first} + {j * _SIDE * line + k * 2}u"
                lines.append(f"  let c{k} = " + load("right", "col", "tile", at, line))
                for i in range(tile.fragments):
                    lines.append(
                        f"  s{i} = subgroupMatrixMultiplyAccumulate({letter}{i}_{k}, c{k}, s{i});"
                    )
            for i in range(tile.fragments):
                lines.append("  " + self.store(i, column + j * 4, f"s{i}"))
            lines.append("}")
        return lines

    def column(self, q: int) -> str:
        """Return the numbers of the keys of a vector of the lane's scores."""
        return f"(vec4<i32>(first_column + (part + {q}) * 4) + vec4<i32>(0, 1, 2, 3))"

    def hide(self, q: int, lines: list[str]) -> str:
        """Return scaled scores of a vector, where the tile has some that are not seen."""
        columns = self.w.bind(self.column(q), lines)
        return self.hidden(f"x{q}", "rows", columns, lines)

    def scaled(self) -> list[str]:
        """Write the lane's scores, scaled, to x0, x1, ..."""
        r, tile, lines = self.r, self.tile, list[str]()
        for q in range(self.quads):
            lines.append(f"var x{q} = scores[score_at + {q}] * args.a0;")
        tests = ["true"] if r.mask else []
        if r.source % tile.columns:
            tests.append(f"first_column + {tile.columns} > {r.source}")
        if r.causal:
            tests.append(f"first_column + {tile.columns - 1} > first_row")
        if tests:
            block = ["let rows = vec4<i32>(row);"]
            for q in range(self.quads):
                block.append(f"x{q} = {self.hide(q, block)};")
            lines += [f"if ({' || '.join(tests)}) {{", *indented(block), "}"]
        return lines

    def kept_factor(self, q: int, lines: list[str]) -> str:
        """Return the factors of dropout of a vector of the lane's scores."""
        columns = self.w.bind(self.column(q), lines)
        return self.w.bind(self.dropped("(row)", columns), lines)

    def across(self, function: str, value: str) -> str:
        """Return a lane's value combined with that of the lane that has the other half of its row."""
        if self.tile.lanes == 1:
            return value
        other = f"subgroupShuffleXor({value}, {_SIDE}u)"
        return f"max({value}, {other})" if function == "max" else f"({value} + {other})"


_RESULT = f"subgroup_matrix_result<f32, {_SIDE}, {_SIDE}>"


def load(side: str, major: str, name: str, at: str, line: int) -> str:
    """Return the load of a fragment of float16."""
    kind = f"subgroup_matrix_{side}<f16, {_SIDE}, {_SIDE}>"
    return f"subgroupMatrixLoad<{kind}, {major}_major>(&{name}, {at}, {line}u);"


def packed(values: list[str]) -> str:
    """Return two vectors of four float32 as eight float16."""
    return (
        "vec4<u32>("
        + ", ".join(f"pack2x16float({v}.{h})" for v in values for h in ("xy", "zw"))
        + ")"
    )


class Forward(_Units):
    """Writes the forward pass."""

    def render(self) -> WgslPass:
        """Write the kernel."""
        r, tile = self.r, self.tile
        body, grid = self.start()
        body += self.places()
        body += self.bases(("query", "key", "value"), "row_head")
        body.append("let head = row_head;")
        body.append("if (lid == 0u) { grown = 0; }")
        body += self.rows_held("query", "q")
        body += [
            f"var o{i}_{e}: {_RESULT};"
            for i in range(tile.fragments)
            for e in range(r.width // _SIDE)
        ]
        body += [f"var top = f32({LEAST_SEEN});", "var sum = 0f;"]
        body += [*self.registers("key", "fk"), *self.registers("value", "fv")]
        self.fetch("key", "0", "fk", body)
        self.fetch("value", "0", "fv", body)
        body += self.share("key", "fk")
        self.fetch("key", str(tile.columns), "fk", body)
        body += [_BARRIER, *self.products("q", r.size), _BARRIER]
        _, last = self.columns_seen()
        body += self.over_columns("0", last, self._step())
        self._write(body)
        shared = [*self.shared(_line(r.size) + _line(r.width)), "var<workgroup> grown: i32;"]
        one = self.finish(body, shared, tile.threads, grid, ENABLES)
        return replace(one, trusted_indices=True, trusted_loops=True)

    def _step(self) -> list[str]:
        r, tile = self.r, self.tile
        # Values lie behind the keys.
        values = tile.columns * _line(r.size)
        lines = [*self.share("value", "fv", str(values)), *self.share("key", "fk")]
        self.fetch("value", f"first_column + {tile.columns}", "fv", lines)
        self.fetch("key", f"first_column + {2 * tile.columns}", "fk", lines)
        lines += self.scaled()
        most = "x0"
        for q in range(1, self.quads):
            most = self.w.bind(f"max({most}, x{q})", lines)
        most = self.w.bind(f"max(max({most}.x, {most}.y), max({most}.z, {most}.w))", lines)
        most = self.w.bind(self.across("max", most), lines)
        lines += [
            "var shrink = 1f;",
            f"if ({most} > top + {_ROOM} || (first_column == 0 && {most} > top)) {{",
            f"  shrink = exp(top - {most});",
            f"  top = {most};",
            "  sum = sum * shrink;",
            # Nothing was added up before the first step.
            "  if (first_column > 0) { grown = first_column; }",
            "}",
        ]
        for q in range(self.quads):
            lines.append(f"let p{q} = exp(x{q} - vec4<f32>(top));")
        total = self.w.bind(" + ".join(f"p{q}" for q in range(self.quads)), lines)
        lines.append(f"sum = sum + ({total}.x + {total}.y + {total}.z + {total}.w);")
        kept = [f"p{q}" for q in range(self.quads)]
        if r.dropout:
            kept = [
                self.w.bind(f"p{q} * {self.kept_factor(q, lines)}", lines)
                for q in range(self.quads)
            ]
        for q in range(0, self.quads, 2):
            lines.append(f"halves[half_at + {q // 2}] = {packed(kept[q : q + 2])};")
        return [
            *lines,
            # A barrier before it, and one after.
            "let latest = workgroupUniformLoad(&grown);",
            "if (latest == first_column && first_column > 0) {",
            *indented(self._rescale()),
            "}",
            *self._gathered(values),
            # Those of the next step. After the last one they are of no use.
            *self.products("q", r.size),
            _BARRIER,
        ]

    def _gathered(self, first: int) -> list[str]:
        """Write the sums plus the weights times the tile at vector `first` of workgroup memory."""
        tile, lines, line = self.tile, list[str](), _line(self.r.width)
        for k in range(tile.columns // _SIDE):
            lines.append("{")
            for i in range(tile.fragments):
                at = f"(own + {i * _SIDE}u) * {tile.half_line}u + {k * 2}u"
                lines.append(f"  let w{i} = " + load("left", "row", "halves", at, tile.half_line))
            for e in range(self.r.width // _SIDE):
                at = f"{first + k * _SIDE * line + e * 2}u"
                lines.append(f"  let c{e} = " + load("right", "row", "tile", at, line))
                for i in range(tile.fragments):
                    m = f"o{i}_{e}"
                    lines.append(f"  {m} = subgroupMatrixMultiplyAccumulate(w{i}, c{e}, {m});")
            lines.append("}")
        return lines

    def _parts(self) -> list[list[tuple[int, int, str]]]:
        """Return the fragments (row, column, name) of the sums, as many together as scores have room."""
        tile, found = self.tile, []
        together, width = tile.columns // _SIDE, self.r.width // _SIDE
        for first in range(0, width, together):
            found.append(
                [
                    (i, e - first, f"o{i}_{e}")
                    for e in range(first, min(first + together, width))
                    for i in range(tile.fragments)
                ]
            )
        return found

    def _rescale(self) -> list[str]:
        """Write sums times the lanes' `shrink`."""
        lines: list[str] = []
        for part in self._parts():
            for i, e, name in part:
                lines.append(self.store(i, e * 4, name))
            lines.append(_BARRIER)
            for q in range(self.quads):
                lines.append(f"scores[score_at + {q}] = scores[score_at + {q}] * shrink;")
            lines.append(_BARRIER)
            for i, e, name in part:
                lines.append(self.reload(i, e * 4, name))
            lines.append(_BARRIER)
        return lines

    def _write(self, lines: list[str]) -> None:
        r = self.r
        whole = self.w.bind(self.across("sum", "sum"), lines)
        lines += [
            f"let inverse = select(1f / {whole}, 0f, {whole} == 0f);",
            f"let line = (batch * {r.heads} + head) * {r.length} + row;",
            f"let inside = row < {r.length};",
        ]
        if 1 in r.results:
            s = self.number["statistics"]
            lines.append(
                f"if (inside && part == 0) {{ b{s}[line * 2] = top; b{s}[line * 2 + 1] = inverse; }}"
            )
        if 0 not in r.results:
            return
        together = self.tile.columns // 4
        for n, part in enumerate(self._parts()):
            for i, e, name in part:
                lines.append(self.store(i, e * 4, name))
            lines.append(_BARRIER)
            block: list[str] = []
            for q in range(self.quads):
                value = self.w.bind(f"scores[score_at + {q}] * inverse", block)
                chunk = self.w.bind(f"part + {n * together + q}", block)
                self.put("result", "line", chunk, r.width, value, block)
            lines += ["if (inside) {", *indented(block), "}", _BARRIER]


class Weights(_Units):
    """Writes the kernel that leaves weights, and after them the gradient of the scores times the
    scale, in memory.
    """

    def __init__(self, r: Attention, limits: Limits, tile: UnitTile, part: Part) -> None:
        super().__init__(r, limits, tile)
        self.part, self.total = part, part.elements(r)
        self.w.slots[self.number["result"]].width = _VECTOR

    def render(self) -> WgslPass:
        """Write the kernel."""
        r, tile, part = self.r, self.tile, self.part
        heads, blocks = part.heads * self.inner_heads, -(-r.length // tile.rows)
        body, grid = self.groups(part.batches * heads * blocks)
        block = f"group % {blocks}"
        body += [
            # The last queries see the most keys: they start first.
            f"let first_row = ({f'{blocks - 1} - {block}' if r.causal else block}) * {tile.rows};",
            f"let number = group / {blocks};",
            f"let batch = {part.batch} + number / {heads};",
            f"let head = {part.head * self.inner_heads} + number % {heads};",
            f"let lines = (batch * {r.heads} + head) * {r.length};",
            f"let first_line = number * {r.length} + first_row;",
        ]
        body += self.places()
        body += self.bases(("query", "key", "value", "grad"), "head")
        stats, delta = self.number["stats"], self.number["delta"]
        body += [
            f"let known = lines + min(row, {r.length - 1});",
            f"let top = vec4<f32>(b{stats}[known * 2]);",
            f"let inverse = b{stats}[known * 2 + 1];",
            f"let delta = vec4<f32>(b{delta}[known]);",
        ]
        body += [*self.rows_held("query", "q"), *self.rows_held("grad", "g")]
        body += [*self.registers("key", "fk"), *self.registers("value", "fv")]
        self.fetch("key", "0", "fk", body)
        self.fetch("value", "0", "fv", body)
        body += self._shared_tiles()
        self.fetch("key", str(tile.columns), "fk", body)
        self.fetch("value", str(tile.columns), "fv", body)
        body += [_BARRIER, *self._scores(), _BARRIER]
        last = str(r.source)
        if r.causal:
            # Beyond the diagonal, products read to the end of their own tile.
            size = part.block
            last = f"min({last}, (first_row + {tile.rows - 1} + {size}) / {size} * {size})"
        body += self.over_columns("0", last, self._step())
        shared = self.shared(_line(r.size) + _line(r.width), halves=False)
        one = self.finish(body, shared, tile.threads, grid, ENABLES)
        return replace(one, trusted_indices=True, trusted_loops=True)

    def _shared_tiles(self) -> list[str]:
        values = self.tile.columns * _line(self.r.size)
        return [*self.share("key", "fk"), *self.share("value", "fv", str(values))]

    def _scores(self) -> list[str]:
        """Write the products of queries with keys, and of cotangents with values."""
        r, tile = self.r, self.tile
        values = tile.columns * _line(r.size)
        return [
            *self.products("q", r.size),
            *self.products("g", r.width, f"{values}u", tile.columns // 4),
        ]

    def _step(self) -> list[str]:
        r, tile = self.r, self.tile
        lines = self._shared_tiles()
        self.fetch("key", f"first_column + {2 * tile.columns}", "fk", lines)
        self.fetch("value", f"first_column + {2 * tile.columns}", "fv", lines)
        lines += self.scaled()
        kept, changes = [], []
        for q in range(self.quads):
            lines.append(f"let p{q} = exp(x{q} - top) * inverse;")
            change = f"scores[score_at + {tile.columns // 4 + q}]"
            if r.dropout:
                factor = self.w.bind(self.kept_factor(q, lines), lines)
                change = f"{change} * {factor}"
            kept.append(self.w.bind(f"p{q} * {factor}", lines) if r.dropout else f"p{q}")
            changes.append(self.w.bind(f"p{q} * ({change} - delta) * args.a0", lines))
        for q in range(0, self.quads, 2):
            lines += self._out(q, 0, packed(kept[q : q + 2]))
            lines += self._out(q, self.total, packed(changes[q : q + 2]))
        # The scores of the next step. After the last one they are of no use.
        return [*lines, _BARRIER, *self._scores(), _BARRIER]

    def _out(self, q: int, first: int, value: str) -> list[str]:
        """Write eight numbers of the lane's row to memory."""
        r, tile = self.r, self.tile
        slot = self.w.slots[self.number["result"]]
        column = f"first_column + part * 4 + {q * 4}"
        at = f"{first} + (first_line + i32(mine)) * {self.part.line} + {column}"
        store = f"{slot.name}[({at}) >> 3u] = {value};"
        tests = []
        if r.length % tile.rows:
            tests.append(f"row < {r.length}")
        if self.part.line % tile.columns:
            tests.append(f"{column} < {self.part.line}")
        return [f"if ({' && '.join(tests)}) {{ {store} }}" if tests else store]
