"""Attention by tiles in registers: the forward pass, and the weights of the backward pass. Floor 2;
imports floor 0, the renderer and what attention's kernels share.

The scores of a tile of queries and a tile of keys are a product like any other (`gemm.py`): both
operands go to workgroup memory some elements of a head at a time, four rows to a vector, and are
fetched ahead into registers meanwhile.

Forward: the tile's weights then go to workgroup memory and are multiplied with the values; the
largest score and the sum of each row are kept, and what was added up is scaled where they grow
(Milakov and Gimelshein, 2018; Dao et al., 2022).

Backward: two products, of queries with keys and of cotangents with values, give weights and their
gradient, which are written to memory for the three products that follow (`attention_backward.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from webtorch.ir.kernel import Attention
from webtorch.ir.limits import Limits
from webtorch.lower.templates.attention_common import LEAST_SEEN, AttentionWriter, indented
from webtorch.lower.templates.gemm import lanes
from webtorch.lower.wgsl_shader import WgslPass

_BARRIER = "workgroupBarrier();"


@dataclass(frozen=True, slots=True)
class ScoreTile:
    """A workgroup's tile of scores: rows x columns, those of one invocation (multiples of four), and
    how many elements of a head are in workgroup memory at a time (a multiple of eight).
    """

    rows: int
    columns: int
    own_rows: int
    own_columns: int
    depth: int

    @property
    def across(self) -> int:
        """Invocations side by side."""
        return self.columns // self.own_columns

    @property
    def down(self) -> int:
        """Invocations one below the other."""
        return self.rows // self.own_rows

    @property
    def threads(self) -> int:
        """Invocations in a workgroup."""
        return self.across * self.down

    @property
    def pad(self) -> int:
        """Vectors between rows in workgroup memory, so that neighbours meet in different banks."""
        return 2 if self.depth == 16 else 1

    @property
    def stage(self) -> int:
        """Vectors of both operands in workgroup memory."""
        return self.depth * ((self.rows + self.columns) // 4 + 2 * self.pad)

    @property
    def line(self) -> int:
        """Vectors from one column of the weights to the next, of four rows each."""
        return self.rows // 4 + 1

    def chunks(self, width: int) -> int:
        """How many vectors of a row of values an invocation adds up."""
        return -(-width // (4 * self.across))

    def registers(self, width: int) -> int:
        """Numbers that an invocation keeps, about."""
        return self.own_rows * (self.own_columns + 4 * self.chunks(width)) + 70

    def forward_bytes(self, width: int) -> int:
        """Bytes of workgroup memory of the forward pass."""
        first = max(self.stage, self.columns * self.line)
        values = self.columns * self.chunks(width) * self.across
        return 16 * (first + values + self.across * self.line)


# The fastest first, on an H200.
FORWARD_TILES = (
    ScoreTile(64, 32, 4, 4, 32),
    ScoreTile(32, 32, 4, 4, 16),
    ScoreTile(16, 16, 4, 4, 8),
    ScoreTile(8, 8, 4, 4, 8),
)
WEIGHT_TILES = (
    ScoreTile(64, 64, 8, 8, 16),
    ScoreTile(32, 32, 4, 4, 16),
    ScoreTile(16, 16, 4, 4, 8),
)


def choose_forward(r: Attention, limits: Limits) -> ScoreTile | None:
    """Return the tile of the forward pass, or None where none fits."""
    found = [
        t
        for t in FORWARD_TILES[0 if limits.is_gpu else -2 :]
        if t.forward_bytes(r.width) <= limits.workgroup_memory_bytes
        and t.threads <= limits.max_workgroup_invocations
        and (t.registers(r.width) <= 256 or t is FORWARD_TILES[-1])
    ]
    return _first_of_use(r, found)


def _first_of_use(r: Attention, fitting: list[ScoreTile]) -> ScoreTile | None:
    """Return the first of the tiles that fit which is not far larger than what there is, or the last."""
    for tile in fitting:
        if (tile.rows < 2 * r.length and tile.columns < 2 * r.source) or tile is fitting[-1]:
            return tile
    return None


def choose_weights(r: Attention, limits: Limits) -> ScoreTile | None:
    """Return the tile of the backward pass's weights, or None where none fits."""
    found = [
        t
        for t in WEIGHT_TILES[0 if limits.is_gpu else -1 :]
        if 16 * t.stage <= limits.workgroup_memory_bytes
        and t.threads <= limits.max_workgroup_invocations
    ]
    return _first_of_use(r, found)


class _Tiles(AttentionWriter):
    """What both kernels do: products of rows and columns, whose sums are s0_0, s0_1, ..."""

    def __init__(self, r: Attention, limits: Limits, tile: ScoreTile) -> None:
        super().__init__(r, limits, tile.rows, tile.columns)
        self.tile = tile

    @property
    def row_quads(self) -> int:
        """How many vectors of four rows an invocation has."""
        return self.tile.own_rows // 4

    @property
    def column_quads(self) -> int:
        """How many vectors of four columns an invocation has."""
        return self.tile.own_columns // 4

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Return (four rows, column) of the invocation's own scores."""
        for i in range(self.row_quads):
            for j in range(self.tile.own_columns):
                yield i, j

    def column(self, j: int) -> str:
        """Return the number in the tile of an own column."""
        return f"(tx + {j // 4 * self.tile.across}) * 4 + {j % 4}"

    def places(self) -> list[str]:
        """Write which rows are the invocation's own."""
        tile = self.tile
        lines = lanes(tile.across, tile.down)
        lines += [
            f"let row{i} = vec4<i32>(first_row + (ty + {i * tile.down}) * 4) + vec4<i32>(0, 1, 2, 3);"
            for i in range(self.row_quads)
        ]
        return lines

    # -- tiles that are turned --

    def units(self, name: str, first: str, count: int, tag: str, lines: list[str]) -> list[str]:
        """Write what this invocation copies of an operand, and return the tags of its units: four
        elements of four rows."""
        tile, found = self.tile, []
        quarter = tile.depth // 4
        total, _ = self.extent(name)
        stride = self.geometry[name][0][2]
        items = count // 4 * quarter
        for u in range(-(-items // tile.threads)):
            t = f"{tag}{u}"
            found.append(t)
            lines += [
                f"let n{t} = i32(lid) + {u * tile.threads};",
                f"let k{t} = n{t} % {quarter};",
                f"let v{t} = n{t} / {quarter};",
                *(f"var f{t}_{i}: vec4<f32>;" for i in range(4)),
                *(
                    f"let p{t}_{i} = {name}_base + min({first} + v{t} * 4 + {i}, {total - 1}) * {stride};"
                    for i in range(4)
                ),
            ]
        return found

    def fetch(self, name: str, tags: list[str], element: str) -> list[str]:
        """Write the loads of the units, from `element` of the head on."""
        lines: list[str] = []
        _, last = self.extent(name)
        chunks = -(-last // 4)
        for t in tags:
            chunk = f"({element} / 4 + k{t})"
            over = last % self.tile.depth != 0
            at = self.w.bind(f"min({chunk}, {chunks - 1})", lines) if over else chunk
            for i in range(4):
                value = self.four(name, f"p{t}_{i}", at, last)
                if over:
                    value = f"select(vec4<f32>(), {value}, {chunk} < {chunks})"
                lines.append(f"f{t}_{i} = {value};")
        return lines

    def share(self, tags: list[str], start: int, count: int) -> list[str]:
        """Write the units to workgroup memory from vector `start` on, four rows to a vector."""
        tile, lines = self.tile, []
        quarter, line = tile.depth // 4, count // 4 + tile.pad
        items = count // 4 * quarter
        for u, t in enumerate(tags):
            block = []
            for i in range(4):
                turned = ", ".join(f"f{t}_{row}[{i}]" for row in range(4))
                # Element k is row k % 4 * quarter + k / 4: neighbours in different banks.
                at = f"{start + i * quarter * line} + k{t} * {line} + v{t}"
                block.append(f"tile[{at}] = vec4<f32>({turned});")
            if (u + 1) * tile.threads > items:
                block = [f"if (n{t} < {items}) {{", *indented(block), "}"]
            lines += block
        return lines

    def product(self, sums: str) -> list[str]:
        """Write sums += rows times columns, over the elements in workgroup memory."""
        tile = self.tile
        quarter = tile.depth // 4
        lines_a, lines_b = tile.rows // 4 + tile.pad, tile.columns // 4 + tile.pad
        second = tile.depth * lines_a

        def block(m: int, at: str) -> list[str]:
            """Return the lines of one element of the inner dim."""
            a = f"{m * quarter * lines_a} + ({at}) * {lines_a} + ty"
            c = f"{second + m * quarter * lines_b} + ({at}) * {lines_b} + tx"
            return [
                *(f"let a{i} = tile[{a} + {i * tile.down}];" for i in range(self.row_quads)),
                *(f"let c{j} = tile[{c} + {j * tile.across}];" for j in range(self.column_quads)),
                *(
                    f"{sums}{i}_{j} = fma(a{i}, vec4<f32>(c{j // 4}[{j % 4}]), {sums}{i}_{j});"
                    for i, j in self.pairs()
                ),
            ]

        return self.fours(quarter, quarter, block)

    def fours(self, count: int, together: int, block: Callable[[int, str], list[str]]) -> list[str]:
        """Write block(m, n) for all n < count and m < 4, `together` n at a time where a compiler for a
        GPU then schedules the loads ahead; as a loop the same tile of a product is a third slower.
        """
        step = together if self.limits.is_gpu else 1
        written: list[str] = []
        for n in range(step):
            at = f"n + {n}" if step < count else str(n)
            for m in range(4):
                written += ["{", *indented(block(m, at)), "}"]
        if step == count:
            return written
        return [
            f"for (var n: i32 = 0; n < {count}; n = n + {step}) {{",
            *indented(written),
            "}",
        ]

    def edge(self) -> str:
        """Return whether some score of the tile of columns is not seen, "" if never."""
        r, tile = self.r, self.tile
        if r.mask:
            return "true"
        tests = []
        if r.source % tile.columns:
            tests.append(f"first_column + {tile.columns} > {r.source}")
        if r.causal:
            tests.append(f"first_column + {tile.columns - 1} > first_row")
        return " || ".join(tests)

    def hide(self) -> list[str]:
        """Write scaled scores, with the lowest number where nothing is seen."""
        lines = [f"s{i}_{j} = s{i}_{j} * args.a0;" for i, j in self.pairs()]
        test = self.edge()
        if not test:
            return lines
        block: list[str] = []
        for i, j in self.pairs():
            column = self.w.bind(f"first_column + {self.column(j)}", block)
            x = self.hidden(f"s{i}_{j}", f"row{i}", f"vec4<i32>({column})", block)
            block.append(f"s{i}_{j} = {x};")
        return [*lines, f"if ({test}) {{", *indented(block), "}"]


class Forward(_Tiles):
    """Writes the forward pass."""

    def render(self) -> WgslPass:
        """Write the kernel."""
        r, tile = self.r, self.tile
        body, grid = self.start()
        body += self.places()
        body += self.bases(("query", "key", "value"), "row_head")
        body.append("let head = row_head;")
        chunks = tile.chunks(r.width)
        for i in range(tile.own_rows):
            body += [f"var o{i}_{n} = vec4<f32>();" for n in range(chunks)]
        for i in range(self.row_quads):
            body += [f"var top{i} = vec4<f32>({LEAST_SEEN});", f"var sum{i} = vec4<f32>();"]
        rows = self.units("query", "first_row", tile.rows, "a", body)
        _, last = self.columns_seen()
        body += self.over_columns("0", last, self._step(rows))
        self._write(body)
        first = max(tile.stage, tile.columns * tile.line)
        values = tile.columns * chunks * tile.across
        shared = [
            f"var<workgroup> tile: array<vec4<f32>, {first}>;",
            f"var<workgroup> values: array<vec4<f32>, {values}>;",
            f"var<workgroup> tops: array<vec4<f32>, {tile.across * tile.line}>;",
        ]
        one = self.finish(body, shared, tile.threads, grid)
        return replace(one, trusted_indices=True, trusted_loops=True)

    def _step(self, rows: list[str]) -> list[str]:
        r, tile = self.r, self.tile
        lines: list[str] = []
        columns = self.units("key", "first_column", tile.columns, "b", lines)
        lines += [f"var s{i}_{j} = vec4<f32>();" for i, j in self.pairs()]
        lines += [*self.fetch("query", rows, "0"), *self.fetch("key", columns, "0")]
        turns = -(-r.size // tile.depth)
        second = tile.depth * (tile.rows // 4 + tile.pad)
        loads, stores = self._value_part(turns)
        ahead = [*self.fetch("query", rows, "ahead"), *self.fetch("key", columns, "ahead")]
        loop = [
            *self.share(rows, 0, tile.rows),
            *self.share(columns, second, tile.columns),
            _BARRIER,
            # The last turn fetches what it has once more: no branch among the loads.
            f"let ahead = min(turn + 1, {turns - 1}) * {tile.depth};",
            *ahead,
            *loads,
            *self.product("s"),
            *stores,
            _BARRIER,
        ]
        lines += [
            f"for (var turn: i32 = 0; turn < {turns}; turn = turn + 1) {{",
            *indented(loop),
            "}",
        ]
        lines += self.hide()
        lines += self._online()
        return lines

    def _value_part(self, count: int) -> tuple[list[str], list[str]]:
        """Return the loads and the stores that copy part `turn` of `count` of the tile of values."""
        r, tile = self.r, self.tile
        total, last = self.extent("value")
        step = tile.chunks(r.width) * tile.across
        chunks, stride = -(-last // 4), self.geometry["value"][0][2]
        items = chunks * tile.columns
        turns = -(-items // (tile.threads * count))
        exact = turns * tile.threads * count == items
        loads: list[str] = []
        stores: list[str] = []
        for u in range(turns):
            n = self.w.bind(f"i32(lid) + (turn * {turns} + {u}) * {tile.threads}", loads)
            block: list[str] = []
            row = self.w.bind(f"first_column + {n} / {chunks}", block)
            chunk = self.w.bind(f"{n} % {chunks}", block)
            whole = r.source % tile.columns == 0
            at = row if whole else f"min({row}, {total - 1})"
            place = self.w.bind(f"value_base + {at} * {stride}", block)
            value = self.four("value", place, chunk, last)
            if not whole:
                value = f"select(vec4<f32>(), {value}, {row} < {total})"
            loads.append(f"var x{u}: vec4<f32>;")
            store = [f"values[{n} / {chunks} * {step} + {n} % {chunks}] = x{u};"]
            block.append(f"x{u} = {value};")
            if not exact:
                block = [f"if ({n} < {items}) {{", *indented(block), "}"]
                store = [f"if ({n} < {items}) {{ {store[0]} }}"]
            loads += block
            stores += store
        return loads, stores

    def _online(self) -> list[str]:
        """Write the new largest scores and sums, and add the weighted values."""
        r, tile, lines = self.r, self.tile, list[str]()
        for i in range(self.row_quads):
            lines.append(f"var new{i} = top{i};")
            lines += [f"new{i} = max(new{i}, s{i}_{j});" for j in range(tile.own_columns)]
            lines.append(f"tops[tx * {tile.line} + ty + {i * tile.down}] = new{i};")
        lines.append(_BARRIER)
        lines += [
            f"new{i} = max(new{i}, tops[{t * tile.line + i * tile.down} + ty]);"
            for t in range(tile.across)
            for i in range(self.row_quads)
        ]
        quarter = tile.columns // 4
        for i in range(self.row_quads):
            lines += [
                f"let shrink{i} = exp(top{i} - new{i});",
                f"top{i} = new{i};",
                f"sum{i} = sum{i} * shrink{i};",
            ]
            for n in range(4):
                for c in range(tile.chunks(r.width)):
                    name = f"o{i * 4 + n}_{c}"
                    lines.append(f"{name} = {name} * shrink{i}[{n}];")
            for j in range(tile.own_columns):
                power = self.w.bind(f"exp(s{i}_{j} - top{i})", lines)
                lines.append(f"sum{i} = sum{i} + {power};")
                if r.dropout:
                    column = self.w.bind(f"first_column + {self.column(j)}", lines)
                    power = self.w.bind(
                        f"{power} * {self.dropped(f'row{i}', f'({column})')}", lines
                    )
                # Column c is row c % 4 * quarter + c / 4: neighbours in different banks.
                row = f"{j % 4 * quarter + j // 4 * tile.across} + tx"
                lines.append(f"tile[({row}) * {tile.line} + ty + {i * tile.down}] = {power};")
        lines.append(_BARRIER)
        step = tile.chunks(r.width) * tile.across

        def block(m: int, at: str) -> list[str]:
            """Return the lines that add the weighted values of one column."""
            found = [
                f"let w{i} = tile[({m * quarter} + {at}) * {tile.line} + ty + {i * tile.down}];"
                for i in range(self.row_quads)
            ]
            for n in range(tile.chunks(r.width)):
                found.append(
                    f"let x{n} = values[(({at}) * 4 + {m}) * {step} + tx + {n * tile.across}];"
                )
                for own in range(tile.own_rows):
                    name = f"o{own}_{n}"
                    found.append(f"{name} = fma(vec4<f32>(w{own // 4}[{own % 4}]), x{n}, {name});")
            return found

        lines += self.fours(quarter, min(4, quarter), block)
        lines.append(_BARRIER)
        return lines

    def _write(self, lines: list[str]) -> None:
        r, tile = self.r, self.tile
        lines += [
            f"tops[tx * {tile.line} + ty + {i * tile.down}] = sum{i};"
            for i in range(self.row_quads)
        ]
        lines.append(_BARRIER)
        for i in range(self.row_quads):
            terms = (f"tops[{t * tile.line + i * tile.down} + ty]" for t in range(tile.across))
            lines += [
                f"let whole{i} = {' + '.join(terms)};",
                # A query that sees no key gets zeros.
                f"let inverse{i} = select(1f / whole{i}, vec4<f32>(), whole{i} == vec4<f32>());",
            ]
        for own in range(tile.own_rows):
            i, n = divmod(own, 4)
            block = [f"let line = (batch * {r.heads} + row_head) * {r.length} + row{i}[{n}];"]
            if 0 in r.results:
                for c in range(tile.chunks(r.width)):
                    chunk = self.w.bind(f"tx + {c * tile.across}", block)
                    value = self.w.bind(f"o{own}_{c} * inverse{i}[{n}]", block)
                    self.put("result", "line", chunk, r.width, value, block)
            if 1 in r.results:
                s = self.number["statistics"]
                block.append(
                    f"if (tx == 0) {{ b{s}[line * 2] = top{i}[{n}]; "
                    f"b{s}[line * 2 + 1] = inverse{i}[{n}]; }}"
                )
            lines += [f"if (row{i}[{n}] < {r.length}) {{", *indented(block), "}"]


@dataclass(frozen=True, slots=True)
class Part:
    """What of an attention's weights is in memory together: some batches, or some heads of key of one
    batch. Rows of `line` elements; what a query does not see is 0 within its square of `block` on the
    diagonal, and beyond that nothing is written with `causal`.
    """

    batch: int
    batches: int
    head: int
    heads: int
    line: int
    block: int = 1

    def elements(self, r: Attention) -> int:
        """Return the number of weights."""
        return self.batches * self.heads * (r.heads // r.shared) * r.length * self.line


class Weights(_Tiles):
    """Writes the kernel that leaves weights, and after them the gradient of the scores times the
    scale, in memory.
    """

    def __init__(self, r: Attention, limits: Limits, tile: ScoreTile, part: Part) -> None:
        super().__init__(r, limits, tile)
        self.part, self.total = part, part.elements(r)
        self.w.slots[self.number["result"]].width = 4

    def render(self) -> WgslPass:
        """Write the kernel."""
        r, tile = self.r, self.tile
        across, down = -(-r.source // tile.columns), -(-r.length // tile.rows)
        part, heads = self.part, self.part.heads * self.inner_heads
        body, grid = self.groups(part.batches * heads * across * down)
        body += [
            f"let first_column = (group % {across}) * {tile.columns};",
            f"let first_row = (group / {across} % {down}) * {tile.rows};",
            f"let own = group / {across * down};",
            f"let batch = {part.batch} + own / {heads};",
            f"let head = {part.head * self.inner_heads} + own % {heads};",
            f"let lines = (batch * {r.heads} + head) * {r.length};",
            f"let first_line = own * {r.length};",
        ]
        body += self.places()
        unseen = f"first_column > first_row + {tile.rows - 1}"
        if r.causal:
            side = part.block
            zeros: list[str] = []
            for i, n in self._own_rows():
                self._store(i, n, lambda j: "0f", lambda j: "0f", zeros)
            body += [
                f"if ({unseen}) {{",
                f"  if (first_column / {side} > (first_row + {tile.rows - 1}) / {side}) {{ return; }}",
                *indented(zeros),
                "  return;",
                "}",
            ]
        body += self.bases(("query", "key", "value", "grad"), "head")
        sides = (("query", "key", "s", r.size), ("grad", "value", "d", r.width))
        second = tile.depth * (tile.rows // 4 + tile.pad)
        loops = []
        for left, right, sums, size in sides:
            a = self.units(left, "first_row", tile.rows, f"{sums}a", body)
            b = self.units(right, "first_column", tile.columns, f"{sums}b", body)
            body += [f"var {sums}{i}_{j} = vec4<f32>();" for i, j in self.pairs()]
            fetch = [*self.fetch(left, a, "ahead"), *self.fetch(right, b, "ahead")]
            loops.append((a, b, sums, -(-size // tile.depth), fetch))
        for a, b, sums, turns, fetch in loops:
            body += ["{", "  let ahead = 0;", *indented(fetch), "}"]
            loop = [
                *self.share(a, 0, tile.rows),
                *self.share(b, second, tile.columns),
                _BARRIER,
                f"let ahead = min(turn + 1, {turns - 1}) * {tile.depth};",
                *fetch,
                *self.product(sums),
                _BARRIER,
            ]
            body += [
                f"for (var turn: i32 = 0; turn < {turns}; turn = turn + 1) {{",
                *indented(loop),
                "}",
            ]
        body += self._change()
        for i, n in self._own_rows():
            self._store(
                i,
                n,
                lambda j, i=i, n=n: f"s{i}_{j}[{n}]",
                lambda j, i=i, n=n: f"d{i}_{j}[{n}]",
                body,
            )
        shared = [f"var<workgroup> tile: array<vec4<f32>, {tile.stage}>;"]
        one = self.finish(body, shared, tile.threads, grid)
        return replace(one, trusted_indices=True, trusted_loops=True)

    def _own_rows(self) -> Iterator[tuple[int, int]]:
        for own in range(self.tile.own_rows):
            yield divmod(own, 4)

    def _change(self) -> list[str]:
        """Write the weights to s and the gradient of the scores, times the scale, to d."""
        r, lines = self.r, self.hide()
        stats, delta = self.number["stats"], self.number["delta"]
        for i in range(self.row_quads):
            lines += [
                f"let at{i}_{n} = lines + min(row{i}[{n}], {r.length - 1});" for n in range(4)
            ]
            for name, text in (
                ("top", "b{s}[at{i}_{n} * 2]"),
                ("inverse", "b{s}[at{i}_{n} * 2 + 1]"),
                ("delta", "b{d}[at{i}_{n}]"),
            ):
                parts = ", ".join(text.format(i=i, n=n, s=stats, d=delta) for n in range(4))
                lines.append(f"let {name}{i} = vec4<f32>({parts});")
        for i, j in self.pairs():
            weight = self.w.bind(f"exp(s{i}_{j} - top{i}) * inverse{i}", lines)
            kept, change = weight, f"d{i}_{j}"
            if r.dropout:
                column = self.w.bind(f"first_column + {self.column(j)}", lines)
                mask = self.w.bind(self.dropped(f"row{i}", f"({column})"), lines)
                kept, change = f"{weight} * {mask}", f"d{i}_{j} * {mask}"
            lines += [
                f"d{i}_{j} = {weight} * ({change} - delta{i}) * args.a0;",
                f"s{i}_{j} = {kept};",
            ]
        return lines

    def _store(self, i: int, n: int, weight, change, lines: list[str]) -> None:  # type: ignore[no-untyped-def]
        """Write one row of both, given the texts of its columns."""
        tile = self.tile
        block = [f"let line = (first_line + row{i}[{n}]) * {self.part.line};"]
        for q in range(self.column_quads):
            column = self.w.bind(f"first_column + {self.column(q * 4)}", block)
            inner: list[str] = []
            for first, values in ((0, weight), (self.total, change)):
                parts = ", ".join(values(q * 4 + m) for m in range(4))
                text = self.w.bind(f"vec4<f32>({parts})", inner)
                slot = self.w.slots[self.number["result"]]
                kind = f"vec4<f16>({text})" if slot.native_f16 else text
                inner.append(f"{slot.name}[({first} + line + {column}) >> 2u] = {kind};")
            if self.part.line % tile.columns:
                inner = [f"if ({column} < {self.part.line}) {{", *indented(inner), "}"]
            block += inner
        if self.r.length % tile.rows:
            block = [f"if (row{i}[{n}] < {self.r.length}) {{", *indented(block), "}"]
        else:
            block = ["{", *indented(block), "}"]
        lines += block


def forward(r: Attention, limits: Limits) -> WgslPass:
    """Return the dispatch of the forward pass."""
    tile = choose_forward(r, limits)
    assert tile is not None, "what records an attention asks whether a tile fits"
    return Forward(r, limits, tile).render()


def weights(r: Attention, limits: Limits, part: Part) -> WgslPass:
    """Return the dispatch that writes a part of the weights."""
    tile = choose_weights(r, limits)
    assert tile is not None, "who calls asks whether a tile fits"
    return Weights(r, limits, tile, part).render()
