"""The gradients of attention in little memory: scores are computed again. Floor 2; imports floor 0,
the renderer and what attention's kernels share.

For where weights would take too much memory (`attention_backward.py`). A workgroup has a tile of rows,
and walks the other side in tiles of columns: queries against keys for the cotangent of query, keys
against queries for those of key and value. In each step the tiles of scores and of their gradient are
products of two tiles in workgroup memory; what becomes of them goes to workgroup memory too and is
multiplied with a third. No atomics: one kernel for query, one for key and value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from webtorch.ir.kernel import Attention
from webtorch.ir.limits import Limits
from webtorch.lower.templates.attention_common import AttentionWriter, indented
from webtorch.lower.wgsl_shader import WgslPass


@dataclass(frozen=True, slots=True)
class Tile:
    """A workgroup's tile of scores: `across` invocations side by side with four columns each, and
    `down` of them with `own` rows each (a multiple of four).
    """

    across: int
    down: int
    own: int

    @property
    def rows(self) -> int:
        """Rows of the tile."""
        return self.down * self.own

    @property
    def columns(self) -> int:
        """Columns of the tile."""
        return self.across * 4

    @property
    def threads(self) -> int:
        """Invocations in a workgroup."""
        return self.across * self.down

    def shared_bytes(self, r: Attention) -> int:
        """Bytes of workgroup memory."""
        size, width = -(-r.size // 4) * 4, -(-r.width // 4) * 4
        wide = max(size, width)
        kept = size + width
        own_chunks = -(-wide // (4 * self.across)) * self.across
        side = max(wide * self.columns, self.columns * own_chunks * 4)
        return 4 * (kept * self.rows + side + self.columns * self.rows)


# From the most reuse of what workgroup memory holds to the least memory. Eight rows of an invocation
# take 3 loads of four for 32 products, four take 2 for 16.
TILES = (
    Tile(16, 8, 8),
    Tile(16, 8, 4),
    Tile(8, 8, 8),
    Tile(8, 8, 4),
    Tile(8, 4, 4),
    Tile(4, 4, 4),
    Tile(4, 2, 4),
    Tile(2, 1, 4),
)


# Bindings that `max_buffers_per_kernel` leaves for scratch and status, which this needs not.
_SPARE = 2


def choose(r: Attention, limits: Limits) -> Tile | None:
    """Return the tile of an attention, or None where no tile fits into workgroup memory."""
    rows, columns = (r.source, r.length) if r.part == "key" else (r.length, r.source)
    chunks = max(-(-r.size // 4), -(-r.width // 4))
    fitting = [
        t
        for t in TILES
        if t.shared_bytes(r) <= limits.workgroup_memory_bytes
        and t.threads <= limits.max_workgroup_invocations
    ]
    for tile in fitting:
        # Tiles far larger than what there is, or with more invocations across than the head has
        # chunks of four, compute in vain.
        if (tile.rows < 2 * rows and tile.columns < 2 * columns and tile.across <= chunks) or (
            tile is fitting[-1]
        ):
            return tile
    return None


def passes(r: Attention, limits: Limits, tile: Tile) -> list[WgslPass]:
    """Return the dispatch of an attention with a given tile."""
    if len(r.results) < 2 or len(r.buffers) <= limits.max_buffers_per_kernel + _SPARE:
        return [_Again(r, limits, tile).render()]
    # Each result by itself: with a mask, the gradients of key and value take nine bindings.
    first = len(r.buffers) - 2
    found = []
    for i in (0, 1):
        buffers = (*r.buffers[:first], r.buffers[first + i])
        alone = replace(r, results=(r.results[i],), buffers=buffers)
        one = _Again(alone, limits, tile).render()
        found.append(replace(one, slots=tuple(s + i if s == first else s for s in one.slots)))
    return found


class _Again(AttentionWriter):
    """Writes one kernel without matrix units."""

    def __init__(self, r: Attention, limits: Limits, tile: Tile) -> None:
        super().__init__(r, limits, tile.rows, tile.columns)
        self.tile = tile
        # Loops over a tile: written out where a compiler for a GPU schedules them.
        self.unroll = 16 if limits.is_gpu else 2
        self.line = tile.rows // 4  # vectors of four rows
        self.quads = tile.own // 4  # of one invocation
        self.shared: list[str] = []
        wide = max(r.size, r.width)
        chunks = -(-wide // 4)
        self.chunks = -(-chunks // tile.across)
        side = max(chunks * 4 * tile.across, tile.columns * self.chunks * tile.across)
        self.declare("rows_a", -(-r.size // 4) * 4 * self.line)
        self.declare("rows_b", -(-r.width // 4) * 4 * self.line)
        self.declare("side", side)
        self.declare("weights", tile.columns * self.line)

    def declare(self, name: str, vectors: int) -> None:
        """Declare an array of vectors in workgroup memory."""
        self.shared.append(f"var<workgroup> {name}: array<vec4<f32>, {vectors}>;")

    # -- tiles --

    def turned(self, name: str, target: str, first: str, count: int) -> list[str]:
        """Write a tile of `count` rows from `first` on so that neighbours in memory are rows."""
        total, last = self.extent(name)
        chunks, groups = -(-last // 4), count // 4
        stride = self.geometry[name][0][2]
        block = [f"let four = u % {groups};", f"let chunk = u / {groups};"]
        for i in range(4):
            row = f"{first} + four * 4 + {i}"
            place = self.w.bind(f"{name}_base + min({row}, {total - 1}) * {stride}", block)
            value = self.four(name, place, "chunk", last)
            block.append(f"let q{i} = select(vec4<f32>(), {value}, {row} < {total});")
        for i in range(4):
            parts = ", ".join(f"q{j}[{i}]" for j in range(4))
            block.append(f"{target}[(chunk * 4 + {i}) * {groups} + four] = vec4<f32>({parts});")
        return self.strided(chunks * groups, block)

    def plain(self, name: str, first: str) -> list[str]:
        """Write a tile of columns from `first` on to `side` as it lies in memory."""
        total, last = self.extent(name)
        chunks = -(-last // 4)
        stride = self.geometry[name][0][2]
        block = [f"let row = {first} + u / {chunks};", f"let chunk = u % {chunks};"]
        place = self.w.bind(f"{name}_base + min(row, {total - 1}) * {stride}", block)
        value = self.four(name, place, "chunk", last)
        step = self.chunks * self.tile.across
        block.append(
            f"side[(u / {chunks}) * {step} + chunk] = select(vec4<f32>(), {value}, row < {total});"
        )
        return self.strided(chunks * self.columns, block)

    def strided(self, count: int, block: list[str]) -> list[str]:
        """Write a loop in which the workgroup shares `count` units."""
        return [
            f"for (var u: i32 = i32(lid); u < {count}; u = u + {self.tile.threads}) {{",
            *indented(block),
            "}",
        ]

    def product(self, target: str, rows: str, size: int) -> list[str]:
        """Write target += rows side^T over the elements of a head."""
        size = -(-size // 4) * 4
        return self.loop(
            size,
            lambda e: [
                *(
                    f"let a{i} = {rows}[({e}) * {self.line} + ty * {self.quads} + {i}];"
                    for i in range(self.quads)
                ),
                f"let c = side[({e}) * {self.tile.across} + tx];",
                *(
                    f"{target}{i}_{j} = fma(a{i}, vec4<f32>(c[{j}]), {target}{i}_{j});"
                    for i in range(self.quads)
                    for j in range(4)
                ),
            ],
        )

    def gathered(self, target: str, size: int) -> list[str]:
        """Write target += weights side over the columns of the tile."""
        step = self.chunks * self.tile.across
        count = self.own_chunks(size)

        def block(c: str) -> list[str]:
            """Return the lines of one column of the tile."""
            lines = [
                f"let w{i} = weights[({c}) * {self.line} + ty * {self.quads} + {i}];"
                for i in range(self.quads)
            ]
            for n in range(count):
                lines.append(f"let x{n} = side[({c}) * {step} + tx + {n * self.tile.across}];")
                for row in range(self.tile.own):
                    name = f"{target}{row}_{n}"
                    lines.append(f"{name} = fma(vec4<f32>(w{row // 4}[{row % 4}]), x{n}, {name});")
            return lines

        return self.loop(self.columns, block)

    def loop(self, count: int, block) -> list[str]:  # type: ignore[no-untyped-def]
        """Write a loop over `count`, some turns of it written out."""
        turns = self.unroll
        while count % turns:
            turns //= 2
        lines = [f"for (var e: i32 = 0; e < {count}; e = e + {turns}) {{"]
        for turn in range(turns):
            lines += ["  {", *indented(indented(block(f"e + {turn}"))), "  }"]
        return [*lines, "}"]

    def own_chunks(self, size: int) -> int:
        """How many chunks of four elements of a row an invocation adds up."""
        chunks = -(-size // 4)
        return -(-chunks // self.tile.across)

    def zeros(self, target: str, size: int) -> list[str]:
        """Declare the sums of an invocation."""
        return [
            f"var {target}{row}_{n} = vec4<f32>();"
            for row in range(self.tile.own)
            for n in range(self.own_chunks(size))
        ]

    # -- the kernel --

    def render(self) -> WgslPass:
        """Write the kernel."""
        r, tile, quads = self.r, self.tile, self.quads
        body, grid = self.start()
        body += [
            f"let tx = i32(lid % {tile.across}u);",
            f"let ty = i32(lid / {tile.across}u);",
            f"let own_row = first_row + ty * {tile.own};",
        ]
        # Workgroup memory is not trusted to be zeroed where sums read past the last chunk.
        row_names = ("key", "value") if self.by_key else ("query", "grad")
        column_names = ("query", "grad") if self.by_key else ("key", "value")
        for name in row_names:
            body.append(f"let {name}_base = {self.base(name, 'row_head')};")
        body += self.turned(row_names[0], "rows_a", "first_row", tile.rows)
        body += self.turned(row_names[1], "rows_b", "first_row", tile.rows)
        body += self.zeros("o", r.size)
        if self.by_key:
            body += self.zeros("p", r.width)
        first, last = self.columns_seen()
        if self.by_key and self.inner_heads > 1:
            body.append(
                f"for (var inner: i32 = 0; inner < {self.inner_heads}; inner = inner + 1) {{"
            )
            body.append(f"let head = row_head * {self.inner_heads} + inner;")
        else:
            body.append("let head = row_head;")
        body += self.bases(column_names, "head")
        body.append(f"let first_line = (batch * {r.heads} + head) * {r.length};")
        if not self.by_key:
            for i in range(quads):
                self.statistics(i, body)
        step: list[str] = []
        self.step(step, column_names)
        body += self.over_columns(first, last, step)
        if self.by_key and self.inner_heads > 1:
            body.append("}")
        self.write(body)
        one = self.finish(body, self.shared, tile.threads, grid)
        return replace(one, trusted_indices=True, trusted_loops=True)

    def statistics(self, i: int, lines: list[str]) -> None:
        """Write the statistics of four rows, which are queries."""
        for j in range(4):
            row = f"min(own_row + {i * 4 + j}, {self.r.length - 1})"
            lines.append(f"let at{i}_{j} = first_line + {row};")
        for name, text in (
            ("top", "b{s}[at{i}_{j} * 2]"),
            ("inverse", "b{s}[at{i}_{j} * 2 + 1]"),
            ("delta", "b{d}[at{i}_{j}]"),
        ):
            parts = ", ".join(
                text.format(i=i, j=j, s=self.number["stats"], d=self.number["delta"])
                for j in range(4)
            )
            lines.append(f"let {name}{i} = vec4<f32>({parts});")

    def step(self, lines: list[str], columns: tuple[str, str]) -> None:
        """Write what is done with one tile of columns."""
        r, tile, quads = self.r, self.tile, self.quads
        barrier = "workgroupBarrier();"
        lines += [barrier, *self.turned(columns[0], "side", "first_column", tile.columns), barrier]
        pairs = [(i, j) for i in range(quads) for j in range(4)]
        lines += [f"var s{i}_{j} = vec4<f32>();" for i, j in pairs]
        lines += self.product("s", "rows_a", r.size)
        lines += [barrier, *self.turned(columns[1], "side", "first_column", tile.columns), barrier]
        lines += [f"var d{i}_{j} = vec4<f32>();" for i, j in pairs]
        lines += self.product("d", "rows_b", r.width)
        lines += [f"let column{j} = first_column + tx * 4 + {j};" for j in range(4)]
        lines += [
            f"let row{i} = vec4<i32>(own_row + {i * 4}) + vec4<i32>(0, 1, 2, 3);"
            for i in range(quads)
        ]
        lines += [f"s{i}_{j} = s{i}_{j} * args.a0;" for i, j in pairs]
        scores = {
            (i, j): self.hidden(f"s{i}_{j}", f"row{i}", f"vec4<i32>(column{j})", lines)
            for i, j in pairs
        }
        if self.by_key:
            for j in range(4):
                lines.append(f"let line{j} = first_line + min(column{j}, {r.length - 1});")
                stats, delta = self.number["stats"], self.number["delta"]
                lines += [
                    f"let top{j} = b{stats}[line{j} * 2];",
                    f"let inverse{j} = b{stats}[line{j} * 2 + 1];",
                    f"let delta{j} = b{delta}[line{j}];",
                ]
        changed: dict[tuple[int, int], str] = {}
        kept: dict[tuple[int, int], str] = {}
        for i, j in pairs:
            n = j if self.by_key else i
            top = f"vec4<f32>(top{n})" if self.by_key else f"top{n}"
            weight = self.w.bind(f"exp({scores[i, j]} - {top}) * inverse{n}", lines)
            kept[i, j], factor = weight, f"d{i}_{j}"
            if r.dropout:
                mask = self.w.bind(self.dropped(f"row{i}", f"(column{j})"), lines)
                kept[i, j] = self.w.bind(f"{weight} * {mask}", lines)
                factor = f"d{i}_{j} * {mask}"
            shift = f"vec4<f32>(delta{n})" if self.by_key else f"delta{n}"
            changed[i, j] = self.w.bind(f"{weight} * ({factor} - {shift})", lines)

        def put(values: dict[tuple[int, int], str]) -> list[str]:
            """Return the lines that put weights into workgroup memory."""
            return [
                f"weights[(tx * 4 + {j}) * {self.line} + ty * {quads} + {i}] = {values[i, j]};"
                for i, j in pairs
            ]

        lines.append(barrier)
        if self.by_key and 1 in r.results:
            lines += [*put(kept), *self.plain(columns[1], "first_column"), barrier]
            lines += [*self.gathered("p", r.width), barrier]
        lines += [*put(changed), *self.plain(columns[0], "first_column"), barrier]
        lines += self.gathered("o", r.size)

    def write(self, lines: list[str]) -> None:
        """Write the results."""
        r, tile = self.r, self.tile
        rows, heads = (r.source, r.shared) if self.by_key else (r.length, r.heads)
        for row in range(tile.own):
            block = [f"let line = (batch * {heads} + row_head) * {rows} + own_row + {row};"]
            for result, name, sums, last, factor in (
                (0, "result", "o", r.size, " * args.a0"),
                (1, "second", "p", r.width, ""),
            ):
                for n in range(self.own_chunks(last) if result in r.results else 0):
                    chunk = self.w.bind(f"tx + {n * tile.across}", block)
                    value = self.w.bind(f"{sums}{row}_{n}{factor}", block)
                    self.put(name, "line", chunk, last, value, block)
            lines += [f"if (own_row + {row} < {rows}) {{", *indented(block), "}"]
