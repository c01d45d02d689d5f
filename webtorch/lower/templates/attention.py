"""Attention on WebGPU, scores never in memory. Floor 2; imports floor 0, the renderer and the
attention of matrix units.

A workgroup has a tile of rows, and walks the other side in tiles of columns: queries against keys
for the result and the cotangent of query, keys against queries for those of key and value. In each
step the tile of scores is a product of two tiles in workgroup memory; what becomes of the scores
goes to workgroup memory too and is multiplied with a third. The forward pass keeps the largest
score and the sum of each row and rescales what it has added up (Milakov and Gimelshein, 2018; Dao
et al., 2022); the gradients compute the scores again, so they need no atomics: one kernel for
query, one for key and value.

Counted for B batches of H heads, T positions and heads of E in float32, without a mask: in products
the scores are written once and read once by the softmax, whose result is written once and read
once, and backward reads it twice and writes and reads two more of its size: 9 T T numbers for each
head, 36 bytes for each score, of 2 (2 + 4) E = 768 FLOP at E = 64, or 21 FLOP a byte: a card with
4.4 TB/s of memory and 40 TFLOP/s of products waits for memory half of its time. Here 9 products
instead of 6 are computed, half of them with `causal`, and T (2 E + 2) numbers are moved: at the same
rate of products 0.75 of the time with `causal` and 1.0 without, in a T-th of the memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from webtorch.ir.dtype import float16, float32
from webtorch.ir.kernel import Attention, Kernel
from webtorch.lower.wgsl_shader import Engine, WgslPass, finish, fold_grid, group_number
from webtorch.lower.wgsl_writer import KernelWriter
from webtorch.runtime.backend import Limits


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
        kept = size if r.part == "forward" else size + width
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


def render(routine: Attention, limits: Limits, engine: Engine) -> list[WgslPass]:
    """Return the dispatch of an attention or a part of its gradients."""
    del engine  # nothing here is spelled differently
    tile = choose(routine, limits)
    assert tile is not None, "what records an attention asks whether a tile fits"
    return passes(routine, limits, tile)


def passes(r: Attention, limits: Limits, tile: Tile) -> list[WgslPass]:
    """Return the dispatch of an attention with a given tile."""
    if len(r.results) < 2 or len(r.buffers) <= limits.max_buffers_per_kernel + _SPARE:
        return [_Writer(r, limits, tile).render()]
    # Each result by itself: with a mask, the gradients of key and value take nine bindings.
    first = len(r.buffers) - 2
    found = []
    for i in (0, 1):
        buffers = (*r.buffers[:first], r.buffers[first + i])
        alone = replace(r, results=(r.results[i],), buffers=buffers)
        one = _Writer(alone, limits, tile).render()
        found.append(replace(one, slots=tuple(s + i if s == first else s for s in one.slots)))
    return found


def indented(lines: list[str]) -> list[str]:
    """Return the lines of a block."""
    return ["  " + x for x in lines]


class AttentionWriter:
    """What both kinds of kernels write alike: operands, the place of a workgroup, masks, dropout."""

    def __init__(self, r: Attention, limits: Limits, rows: int, columns: int) -> None:
        self.r, self.limits = r, limits
        self.rows, self.columns = rows, columns
        self.w = KernelWriter(Kernel(r.name, (1,), (), r.buffers, r.args, (), ()), limits)
        names = ["query", "key", "value"]
        if r.mask:
            names.append("mask")
        if r.part != "forward":
            names.append("grad")
        self.geometry = dict(zip(names, zip(r.strides, r.offsets, strict=True), strict=True))
        if r.part != "forward":
            names += ["stats", "delta"]
        other = "second" if r.part == "key" else "statistics"
        names += [("result", other)[i] for i in r.results]
        self.number = {name: i for i, name in enumerate(names)}
        self.by_key = r.part == "key"
        self.inner_heads = r.heads // r.shared
        for name, i in self.number.items():
            slot = r.buffers[i]
            s = self.w.template_slot(i)
            if s.packed:
                s.atomic = slot.access != "read"
            elif self.is_wide(name, 4):
                s.width = 4
            self.w.slots[i] = s

    def is_wide(self, name: str, width: int) -> bool:
        """Whether `width` neighbouring elements of every row are one aligned vector."""
        r = self.r
        slot = r.buffers[self.number[name]]
        if slot.dtype not in (float16, float32) or slot.elements % width:
            return False
        if name in ("result", "second"):
            last = r.size if r.part == "query" or (self.by_key and name == "result") else r.width
            return last % width == 0
        if name not in self.geometry or name == "mask":
            return False
        last = r.width if name in ("value", "grad") else r.size
        strides, offset = self.geometry[name]
        return (
            strides[3] == 1
            and not last % width
            and not offset % width
            and not any(s % width for s in strides[:3])
        )

    def start(self) -> tuple[list[str], tuple[int, int, int]]:
        """Return the lines that say where the workgroup is, and the grid."""
        r = self.r
        heads, total = (r.shared, r.source) if self.by_key else (r.heads, r.length)
        blocks = -(-total // self.rows)
        groups = r.batch * heads * blocks
        grid = fold_grid(groups, self.limits)
        lines = [f"let group = i32({group_number(grid)});"]
        if grid[0] * grid[1] * grid[2] != groups:
            lines.append(f"if (group >= {groups}) {{ return; }}")
        block = f"group % {blocks}"
        if r.causal and not self.by_key:
            # The last queries see the most keys: they start first.
            block = f"{blocks - 1} - {block}"
        lines += [
            f"let first_row = ({block}) * {self.rows};",
            f"let batch = group / {blocks * heads};",
            f"let row_head = group / {blocks} % {heads};",
        ]
        return lines, grid

    def base(self, name: str, head: str) -> str:
        """Return where the first row of a head begins, in elements."""
        strides, offset = self.geometry[name]
        if name in ("key", "value") and not self.by_key:
            head = f"({head} / {self.inner_heads})" if self.inner_heads > 1 else head
        terms = [str(offset)] if offset else []
        terms += [f"batch * {strides[0]}"] if strides[0] else []
        terms += [f"{head} * {strides[1]}"] if strides[1] else []
        return " + ".join(terms) or "0"

    def columns_seen(self) -> tuple[str, str]:
        """Return the first column that a row of the tile sees, and one past the last."""
        r = self.r
        total = r.length if self.by_key else r.source
        if not r.causal:
            return "0", str(total)
        if self.by_key:
            return f"(first_row / {self.columns}) * {self.columns}", str(total)
        return "0", f"min({total}, first_row + {self.rows})"

    def scores(
        self, kind: str, value: str, rows: str, columns: str, head: str, lines: list[str]
    ) -> str:
        """Return scaled scores with what is not seen as -infinity; `kind` is the type of the values,
        `rows` and `columns` are integers of its size: numbers on the row side and the column side.
        """
        r = self.r
        x = self.w.bind(f"{value} * args.a0", lines)
        length, source = (columns, rows) if self.by_key else (rows, columns)
        seen = []
        wide = kind.startswith("vec4")
        both = "&" if wide else "&&"
        if self.by_key:
            seen.append(f"({length} < {self.spread(kind, str(r.length))})")
        seen.append(f"({source} < {self.spread(kind, str(r.source))})")
        if r.causal:
            seen.append(f"({source} <= {length})")
        if r.mask:
            strides, _ = self.geometry["mask"]
            slot = self.w.slots[self.number["mask"]]
            found = []
            for lane in range(4) if wide else (None,):
                part = "" if lane is None else f"[{lane}]"
                at = [
                    f"min({position}{part if vector else ''}, {size - 1}) * {stride}"
                    for position, size, stride, vector in (
                        (length, r.length, strides[2], wide),
                        (source, r.source, strides[3], wide),
                    )
                    if stride
                ]
                place = self.w.bind(" + ".join(["mask_base", *at]), lines)
                found.append(self.w.element(slot, place))
            if slot.slot.dtype.name == "bool":
                seen.append(f"vec4<bool>({', '.join(found)})" if wide else found[0])
            else:
                added = f"vec4<f32>({', '.join(found)})" if wide else found[0]
                x = self.w.bind(f"{x} + {added}", lines)
        low = f"{kind}(-wt_inf())" if wide else "(-wt_inf())"
        return self.w.bind(f"select({low}, {x}, {f' {both} '.join(seen)})", lines)

    def spread(self, kind: str, value: str) -> str:
        """Return an integer as wide as `kind`."""
        return f"vec4<i32>({value})" if kind.startswith("vec4") else value

    def powers(self, kind: str, score: str, top: str) -> str:
        """Return exp(score - top), 0 where nothing is seen, whatever `top` is."""
        wide = kind.startswith("vec4")
        bits, zero = ("vec4<u32>", "vec4<f32>()") if wide else ("u32", "0f")
        return (
            f"select(exp({score} - {top}), {zero}, bitcast<{bits}>({score}) == {bits}(0xff800000u))"
        )

    def kept(self, row: str, column: str, head: str) -> str:
        """Return whether dropout keeps the weight of one query and one key."""
        length, source = (column, row) if self.by_key else (row, column)
        r = self.r
        line = f"u32((batch * {r.heads} + {head}) * {r.length} + {length})"
        return f"wt_kept({line}, u32({source}))"

    def helpers(self) -> list[str]:
        """Return the functions of this kernel that the prelude lacks."""
        if not self.r.dropout:
            return []
        # Number `line * source + column` of the weights, in 64 bits, from the counter on.
        return [
            "fn wt_sum_carries(a: u32, b: u32) -> u32 { return select(0u, 1u, a + b < a); }",
            "fn wt_kept(line: u32, column: u32) -> bool {",
            f"  let first = line * {self.r.source}u;",
            f"  let high = wt_mulhi(line, {self.r.source}u) + wt_sum_carries(first, column);",
            "  let low = first + column;",
            "  let carry = wt_sum_carries(low, args.a4);",
            "  let bits = wt_philox(args.a2, args.a3, low + args.a4, high + args.a5 + carry).x;",
            "  return f32(bits >> 8u) * 0x1p-24f >= args.a1;",
            "}",
        ]

    def finish(
        self,
        body: list[str],
        shared: list[str],
        threads: int,
        grid: tuple[int, int, int],
        directives: tuple[str, ...] = (),
    ) -> WgslPass:
        """Return the whole shader."""
        helpers = self.helpers()
        used = range(6 if self.r.dropout else 1)
        self.w.args = list(used)
        # The arguments of a helper are named where the body is: in a comment.
        body = [f"// {' '.join(f'args.a{a}' for a in used)}", *body]
        return finish(self.w, body, [*shared, *helpers], threads, grid, (), False, directives)


class _Writer(AttentionWriter):
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
        if r.part != "forward":
            self.declare("rows_b", -(-r.width // 4) * 4 * self.line)
        self.declare("side", side)
        self.declare("weights", tile.columns * self.line)

    def declare(self, name: str, vectors: int) -> None:
        """Declare an array of vectors in workgroup memory."""
        self.shared.append(f"var<workgroup> {name}: array<vec4<f32>, {vectors}>;")

    # -- tiles --

    def four(self, name: str, place: str, chunk: str, last: int) -> str:
        """Return four elements of a row from `place` on; `chunk` is their number in the row of
        `last` elements."""
        slot = self.w.slots[self.number[name]]
        if slot.width == 4 and not slot.packed:
            text = f"{slot.name}[({place} + {chunk} * 4) >> 2u]"
            return f"vec4<f32>({text})" if slot.native_f16 else text
        stride = self.geometry[name][0][3]
        parts = []
        for i in range(4):
            at = f"({place} + ({chunk} * 4 + {i}) * {stride})"
            if last % 4:
                at = f"({place} + min({chunk} * 4 + {i}, {last - 1}) * {stride})"
            part = self.w.element(slot, at)
            parts.append(f"select(0f, {part}, {chunk} * 4 + {i} < {last})" if last % 4 else part)
        return f"vec4<f32>({', '.join(parts)})"

    def extent(self, name: str) -> tuple[int, int]:
        """Return the number of rows of an operand, and of elements in each."""
        r = self.r
        rows = r.source if name in ("key", "value") else r.length
        return rows, r.width if name in ("value", "grad") else r.size

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
        forward = r.part == "forward"
        for name in row_names[: 1 if forward else 2]:
            body.append(f"let {name}_base = {self.base(name, 'row_head')};")
        body += self.turned(row_names[0], "rows_a", "first_row", tile.rows)
        if not forward:
            body += self.turned(row_names[1], "rows_b", "first_row", tile.rows)
        body += self.zeros("o", r.width if forward else r.size)
        if self.by_key:
            body += self.zeros("p", r.width)
        if forward:
            body += [f"var top{i} = vec4<f32>(-0x1.fffffep127f);" for i in range(quads)]
            body += [f"var sum{i} = vec4<f32>();" for i in range(quads)]
        first, last = self.columns_seen()
        if self.by_key and self.inner_heads > 1:
            body.append(
                f"for (var inner: i32 = 0; inner < {self.inner_heads}; inner = inner + 1) {{"
            )
            body.append(f"let head = row_head * {self.inner_heads} + inner;")
        else:
            body.append("let head = row_head;")
        body += [f"let {name}_base = {self.base(name, 'head')};" for name in column_names]
        if r.mask:
            body.append(f"let mask_base = {self.base('mask', 'head')};")
        if not forward:
            body.append(f"let first_line = (batch * {r.heads} + head) * {r.length};")
            if not self.by_key:
                for i in range(quads):
                    self.statistics(i, body)
        body.append(
            f"for (var first_column: i32 = {first}; first_column < {last}; "
            f"first_column = first_column + {tile.columns}) {{"
        )
        step: list[str] = []
        self.step(step, column_names)
        body += indented(step)
        body.append("}")
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
        forward = r.part == "forward"
        barrier = "workgroupBarrier();"
        lines += [barrier, *self.turned(columns[0], "side", "first_column", tile.columns), barrier]
        pairs = [(i, j) for i in range(quads) for j in range(4)]
        lines += [f"var s{i}_{j} = vec4<f32>();" for i, j in pairs]
        lines += self.product("s", "rows_a", r.size)
        if not forward:
            lines += [
                barrier,
                *self.turned(columns[1], "side", "first_column", tile.columns),
                barrier,
            ]
            lines += [f"var d{i}_{j} = vec4<f32>();" for i, j in pairs]
            lines += self.product("d", "rows_b", r.width)
        lines += [f"let column{j} = first_column + tx * 4 + {j};" for j in range(4)]
        lines += [
            f"let row{i} = vec4<i32>(own_row + {i * 4}) + vec4<i32>(0, 1, 2, 3);"
            for i in range(quads)
        ]
        scores = {
            (i, j): self.scores(
                "vec4<f32>", f"s{i}_{j}", f"row{i}", f"vec4<i32>(column{j})", "head", lines
            )
            for i, j in pairs
        }
        if forward:
            self.online(lines, scores)
            lines += self.plain(columns[1], "first_column")
            lines += [barrier, *self.gathered("o", r.width)]
            return
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
            power = self.powers("vec4<f32>", scores[i, j], top)
            weight = self.w.bind(f"{power} * inverse{n}", lines)
            kept[i, j], factor = weight, f"d{i}_{j}"
            if r.dropout:
                mask = self.dropped(i, j, lines)
                kept[i, j] = self.w.bind(f"{weight} * {mask}", lines)
                factor = f"d{i}_{j} * {mask}"
            shift = f"vec4<f32>(delta{n})" if self.by_key else f"delta{n}"
            changed[i, j] = self.w.bind(f"{weight} * ({factor} - {shift})", lines)

        def put(values: dict[tuple[int, int], str]) -> list[str]:
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

    def dropped(self, i: int, j: int, lines: list[str]) -> str:
        """Return the factors of dropout, 0 or 1, of four rows and a column."""
        parts = ", ".join(
            f"select(0f, 1f, {self.kept(f'row{i}[{n}]', f'column{j}', 'head')})" for n in range(4)
        )
        scale = " / (1f - args.a1)"
        return self.w.bind(f"vec4<f32>({parts}){scale}", lines)

    def online(self, lines: list[str], scores: dict[tuple[int, int], str]) -> None:
        """Write the new largest scores and sums, and leave exp(score - largest) in `weights`."""
        tile, quads = self.tile, self.quads
        barrier = "workgroupBarrier();"
        for i in range(quads):
            lines.append(f"var new{i} = top{i};")
            lines += [f"new{i} = max(new{i}, {scores[i, j]});" for j in range(4)]
            lines.append(f"weights[tx * {self.line} + ty * {quads} + {i}] = new{i};")
        lines.append(barrier)
        lines.append(f"for (var t: i32 = 0; t < {tile.across}; t = t + 1) {{")
        lines += [
            f"  new{i} = max(new{i}, weights[t * {self.line} + ty * {quads} + {i}]);"
            for i in range(quads)
        ]
        lines += ["}", barrier]
        for i in range(quads):
            lines += [
                f"let shrink{i} = exp(top{i} - new{i});",
                f"top{i} = new{i};",
                f"sum{i} = sum{i} * shrink{i};",
            ]
            for n in range(4):
                for c in range(self.own_chunks(self.r.width)):
                    name = f"o{i * 4 + n}_{c}"
                    lines.append(f"{name} = {name} * shrink{i}[{n}];")
            for j in range(4):
                power = self.w.bind(self.powers("vec4<f32>", scores[i, j], f"top{i}"), lines)
                lines.append(f"sum{i} = sum{i} + {power};")
                if self.r.dropout:
                    power = self.w.bind(f"{power} * {self.dropped(i, j, lines)}", lines)
                lines.append(
                    f"weights[(tx * 4 + {j}) * {self.line} + ty * {quads} + {i}] = {power};"
                )

    def write(self, lines: list[str]) -> None:
        """Write the results."""
        r, tile, quads = self.r, self.tile, self.quads
        barrier = "workgroupBarrier();"
        if r.part == "forward":
            lines.append(barrier)
            lines += [
                f"weights[tx * {self.line} + ty * {quads} + {i}] = sum{i};" for i in range(quads)
            ]
            lines.append(barrier)
            for i in range(quads):
                lines.append(f"var whole{i} = vec4<f32>();")
            lines.append(f"for (var t: i32 = 0; t < {tile.across}; t = t + 1) {{")
            lines += [
                f"  whole{i} = whole{i} + weights[t * {self.line} + ty * {quads} + {i}];"
                for i in range(quads)
            ]
            lines.append("}")
            for i in range(quads):
                # A query that sees no key gets zeros.
                lines.append(
                    f"let inverse{i} = select(1f / whole{i}, vec4<f32>(), whole{i} == vec4<f32>());"
                )
        rows, heads = (r.source, r.shared) if self.by_key else (r.length, r.heads)
        for row in range(tile.own):
            block = [f"let line = (batch * {heads} + row_head) * {rows} + own_row + {row};"]
            if r.part == "forward":
                factor = f"inverse{row // 4}[{row % 4}]"
                if 0 in r.results:
                    self.put("result", f"o{row}", r.width, factor, block)
                if 1 in r.results:
                    stats = self.number["statistics"]
                    block.append(
                        f"if (tx == 0) {{ b{stats}[line * 2] = top{row // 4}[{row % 4}]; "
                        f"b{stats}[line * 2 + 1] = {factor}; }}"
                    )
            else:
                if 0 in r.results:
                    self.put("result", f"o{row}", r.size, "args.a0", block)
                if 1 in r.results:
                    self.put("second", f"p{row}", r.width, "1f", block)
            lines += [f"if (own_row + {row} < {rows}) {{", *indented(block), "}"]

    def put(self, name: str, value: str, last: int, factor: str, lines: list[str]) -> None:
        """Write the chunks of a row that this invocation has."""
        slot = self.w.slots[self.number[name]]
        for n in range(self.own_chunks(last)):
            lines.append(f"let {name}{n} = (tx + {n * self.tile.across}) * 4;")
            block = [f"let out = {value}_{n} * {factor};"]
            if slot.width == 4 and not slot.packed:
                kind = "vec4<f16>(out)" if slot.native_f16 else "out"
                block.append(f"{slot.name}[(line * {last} + {name}{n}) >> 2u] = {kind};")
            else:
                for j in range(4):
                    at = f"(line * {last} + {name}{n} + {j})"
                    store = self.w.store_lines(slot, at, f"out[{j}]", "set")
                    if last % 4:
                        store = [
                            f"if ({name}{n} + {j} < {last}) {{",
                            *indented(store),
                            "}",
                        ]
                    block += store
            lines += [f"if ({name}{n} < {last}) {{", *indented(block), "}"]
