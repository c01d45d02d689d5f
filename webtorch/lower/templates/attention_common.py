"""What attention's kernels share: operands and their places, masks, dropout, how results are written.
Floor 2; imports floor 0 and the renderer.
"""

from __future__ import annotations

from collections.abc import Sequence

from webtorch.ir.dtype import float16, float32
from webtorch.ir.kernel import Attention, Kernel
from webtorch.ir.limits import Limits
from webtorch.lower.wgsl_shader import WgslPass, finish, fold_grid, group_number
from webtorch.lower.wgsl_writer import KernelWriter

# The lowest float: a score that is not seen; and the next: the least of one that is seen, and of the largest of a row.
LOWEST, LEAST_SEEN = "-0x1.fffffep127f", "-0x1.fffffcp127f"


def indented(lines: list[str]) -> list[str]:
    """Return the lines of a block."""
    return ["  " + x for x in lines]


class AttentionWriter:
    """Writes what is alike in all of them."""

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

    def groups(self, count: int) -> tuple[list[str], tuple[int, int, int]]:
        """Return the lines that number `count` workgroups, and the grid."""
        grid = fold_grid(count, self.limits)
        lines = [f"let group = i32({group_number(grid)});"]
        if grid[0] * grid[1] * grid[2] != count:
            lines.append(f"if (group >= {count}) {{ return; }}")
        return lines, grid

    def start(self) -> tuple[list[str], tuple[int, int, int]]:
        """Return the lines that say where the workgroup is, and the grid."""
        r = self.r
        heads, total = (r.shared, r.source) if self.by_key else (r.heads, r.length)
        blocks = -(-total // self.rows)
        lines, grid = self.groups(r.batch * heads * blocks)
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

    def bases(self, names: Sequence[str], head: str) -> list[str]:
        """Write where the rows of operands, and of the mask if there is one, begin."""
        every = [*names, "mask"] if self.r.mask else names
        return [f"let {name}_base = {self.base(name, head)};" for name in every]

    def over_columns(self, first: str, last: str, step: list[str]) -> list[str]:
        """Write the loop over tiles of columns."""
        return [
            f"for (var first_column: i32 = {first}; first_column < {last}; "
            f"first_column = first_column + {self.columns}) {{",
            *indented(step),
            "}",
        ]

    def columns_seen(self) -> tuple[str, str]:
        """Return the first column that a row of the tile sees, and one past the last."""
        r = self.r
        total = r.length if self.by_key else r.source
        if not r.causal:
            return "0", str(total)
        if self.by_key:
            return f"(first_row / {self.columns}) * {self.columns}", str(total)
        return "0", f"min({total}, first_row + {self.rows})"

    def hidden(self, x: str, rows: str, columns: str, lines: list[str]) -> str:
        """Return four scores, `LOWEST` where nothing is seen; `rows` and `columns` are vectors of
        their numbers on the row side and the column side.
        """
        r = self.r
        length, source = (columns, rows) if self.by_key else (rows, columns)
        seen = []
        if self.by_key:
            seen.append(f"({length} < vec4<i32>({r.length}))")
        seen.append(f"({source} < vec4<i32>({r.source}))")
        if r.causal:
            seen.append(f"({source} <= {length})")
        if r.mask:
            strides, _ = self.geometry["mask"]
            slot = self.w.slots[self.number["mask"]]
            found = []
            for lane in range(4):
                at = [
                    f"min({position}[{lane}], {size - 1}) * {stride}"
                    for position, size, stride in (
                        (length, r.length, strides[2]),
                        (source, r.source, strides[3]),
                    )
                    if stride
                ]
                place = self.w.bind(" + ".join(["mask_base", *at]), lines)
                found.append(self.w.element(slot, place))
            if slot.slot.dtype.name == "bool":
                seen.append(f"vec4<bool>({', '.join(found)})")
            else:
                # A mask of -infinity, too, leaves a number that can be subtracted from. One of the lowest
                # float hides nothing in a row that has no other.
                x = self.w.bind(f"{x} + vec4<f32>({', '.join(found)})", lines)
                lowest = f"vec4<f32>({LOWEST})"
                least = f"select({x}, vec4<f32>({LEAST_SEEN}), {x} == {lowest})"
                x = self.w.bind(f"select({least}, {lowest}, {x} < {lowest})", lines)
        return self.w.bind(f"select(vec4<f32>({LOWEST}), {x}, {' & '.join(seen)})", lines)

    def kept(self, row: str, column: str, head: str) -> str:
        """Return whether dropout keeps the weight of one query and one key."""
        length, source = (column, row) if self.by_key else (row, column)
        r = self.r
        line = f"u32((batch * {r.heads} + {head}) * {r.length} + {length})"
        return f"wt_kept({line}, u32({source}))"

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

    def dropped(self, rows: str, columns: str) -> str:
        """Return the factors of dropout of four scores; one of `rows` and `columns` is a vector, the
        other a number in parentheses."""
        parts = []
        for n in range(4):
            row, column = (x if x.startswith("(") else f"{x}[{n}]" for x in (rows, columns))
            parts.append(f"select(0f, 1f, {self.kept(row, column, 'head')})")
        return f"vec4<f32>({', '.join(parts)}) / (1f - args.a1)"

    def put(
        self, name: str, line: str, chunk: str, last: int, value: str, lines: list[str]
    ) -> None:
        """Write four elements of a row of `last`, from 4 `chunk` on, where they lie within it."""
        slot = self.w.slots[self.number[name]]
        first = self.w.bind(f"{chunk} * 4", lines)
        block = []
        if slot.width == 4 and not slot.packed:
            kind = f"vec4<f16>({value})" if slot.native_f16 else value
            block.append(f"{slot.name}[({line} * {last} + {first}) >> 2u] = {kind};")
        else:
            for j in range(4):
                at = f"({line} * {last} + {first} + {j})"
                store = self.w.store_lines(slot, at, f"{value}[{j}]", "set")
                if last % 4:
                    store = [f"if ({first} + {j} < {last}) {{", *indented(store), "}"]
                block += store
        lines += [f"if ({first} < {last}) {{", *indented(block), "}"]

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
