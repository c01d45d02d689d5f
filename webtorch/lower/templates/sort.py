"""Order of rows on WebGPU: where each element of a sorted row was. Floor 2; imports floor 0 and the renderer.

Numbers become unsigned keys whose order is theirs (NaN last; the complement for descending rows), and
a key with its place is different from every other: ties keep their order. Rows that fit in a
workgroup's memory are sorted there by a bitonic network (Batcher, 1968), of which each invocation
does several levels at a time on elements of its own. Longer rows are sorted in such blocks, and
pairs of sorted runs are merged, all at once, until one is left; each workgroup finds what falls to
it by halving along a diagonal ("merge path": Green, McColl and Bader, 2012).
"""

from __future__ import annotations

from dataclasses import dataclass

from webtorch.ir.dtype import DType
from webtorch.ir.kernel import Kernel, Sort
from webtorch.ir.limits import Limits
from webtorch.lower.wgsl_shader import WgslPass, finish, fold_grid, group_number
from webtorch.lower.wgsl_table import convert, wgsl_type
from webtorch.lower.wgsl_writer import KernelWriter

# A key and a place, 32 bits each.
_PAIR_BYTES = 8
# A workgroup sorts at most this many, and merges at most this many at a time.
_MOST_SORTED = 4096
_MOST_MERGED = 2048
# What an invocation merges by itself.
_OWN_MERGED = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """Powers of two: `block` elements are sorted by a workgroup, `tile` elements merged by one."""

    block: int
    tile: int


def choose(r: Sort, limits: Limits) -> Plan:
    """Choose how much a workgroup sorts: whole rows where they fit."""
    fits = _power(limits.workgroup_memory_bytes // _PAIR_BYTES + 1) // 2
    width = _power(r.length)
    # Short rows share a workgroup, unless there are few.
    # Processors that run invocations one by one take long to compile many elements of each.
    most = _MOST_SORTED if limits.is_gpu else 1024
    block = max(64, min(fits, most, max(width, min(1024, _power(width * r.rows)))))
    # Beside its pairs, a merge keeps two numbers that the whole workgroup reads.
    merged = _power((limits.workgroup_memory_bytes - 16) // _PAIR_BYTES + 1) // 2
    return Plan(block, min(block, merged, _MOST_MERGED))


def _power(n: int) -> int:
    """Return the smallest power of two that is at least n (and 1)."""
    return 1 << max(n - 1, 0).bit_length()


def _key(value: str, dtype: DType, descending: bool) -> list[str]:
    """Return lines that leave the key of `value` in `key`."""
    kind = wgsl_type(dtype)
    if kind == "f32":
        lines = [
            f"let bits = bitcast<u32>({value});",
            "let plain = bits & 0x7fffffffu;",
            "var key = select(bits | 0x80000000u, ~bits, bits > 0x7fffffffu);",
            "if (plain == 0u) { key = 0x80000000u; }",
            "if (plain > 0x7f800000u) { key = 0xffffffffu; }",
        ]
    elif kind == "i32":
        lines = [f"var key = bitcast<u32>({value}) ^ 0x80000000u;"]
    elif kind == "bool":
        lines = [f"var key = select(0u, 1u, {value});"]
    else:
        lines = [f"var key = {value};"]
    return [*lines, "key = ~key;"] if descending else lines


def _after(a: str, b: str) -> str:
    """Return the test whether pair `a` comes after pair `b`."""
    return f"({a}.x > {b}.x || ({a}.x == {b}.x && {a}.y > {b}.y))"


def _place(e: str) -> str:
    """Return where element `e` lies in workgroup memory: spread over the banks for every stride."""
    return f"(({e}) ^ ((({e}) >> 5u) & 31u))"


class _SortWriter:
    """Writes the passes of one sort."""

    def __init__(self, r: Sort, limits: Limits, plan: Plan) -> None:
        self.r, self.limits, self.plan = r, limits, plan
        self.w = KernelWriter(Kernel(r.name, (1,), (), r.buffers, r.args, (), ()), limits)
        for number in range(len(r.buffers)):
            self.w.slots[number] = self.w.template_slot(number)
        self.blocks = -(-r.length // plan.block)
        # Keys and places of the sorted runs, and the same again to merge into.
        elements = 4 * r.rows * r.length
        self.scratch = (elements,) * (4 if self.blocks > 2 else 2 if self.blocks > 1 else 0)

    def group(self, groups: int) -> tuple[list[str], tuple[int, int, int]]:
        """Return the lines that number this workgroup, and the grid."""
        grid = fold_grid(groups, self.limits)
        lines = [f"let group = {group_number(grid)};"]
        if grid[0] * grid[1] * grid[2] != groups:
            lines.append(f"if (group >= {groups}u) {{ return; }}")
        return lines, grid

    def out(self, row: str, rank: str, place: str) -> list[str]:
        """Return the lines that store the place of the element that comes at `rank` of a row."""
        r = self.r
        at = f"({row} * {r.count}u + {rank} - {r.first}u)"
        chosen = f"{rank} >= {r.first}u && {rank} < {r.first + r.count}u"
        lines = self.w.store_lines(self.w.slots[1], at, f"i32({place})", "set")
        return [f"if ({chosen}) {{", *("  " + x for x in lines), "}"]

    def sort_pass(self) -> WgslPass:
        """Write the pass that sorts blocks, or several whole rows a workgroup."""
        r, total = self.r, self.plan.block
        whole = self.blocks == 1
        width = min(_power(r.length), total)
        levels = width.bit_length() - 1
        own = 16 if total >= 2048 else 8 if total >= 512 else 4
        while total // own > min(self.limits.max_workgroup_invocations, 256):
            own *= 2
        bits, size = own.bit_length() - 1, total // own
        rows_each = total // width
        groups = -(-r.rows // rows_each) if whole else r.rows * self.blocks
        body, grid = self.group(groups)
        for j in range(own):
            body += [f"let e{j} = {j * size}u + lid;"]
            if whole:
                body += [
                    f"let row{j} = group * {rows_each}u + e{j} / {width}u;",
                    f"let at{j} = e{j} % {width}u;",
                    f"let real{j} = row{j} < {r.rows}u && at{j} < {r.length}u;",
                ]
            else:
                body += [
                    f"let row{j} = group / {self.blocks}u;",
                    f"let at{j} = (group % {self.blocks}u) * {total}u + e{j};",
                    f"let real{j} = at{j} < {r.length}u;",
                ]
            source, compute = r.buffers[0].dtype, r.buffers[0].dtype.compute
            position = f"select(0u, row{j} * {r.length}u + at{j}, real{j})"
            value = convert(self.w.element(self.w.slots[0], position), source, compute)
            body += [
                "{",
                *("  " + x for x in _key(value, compute, r.descending)),
                f"  shared_keys[{_place(f'e{j}')}] = select(0xffffffffu, key, real{j});",
                f"  shared_places[{_place(f'e{j}')}] = at{j};",
                "}",
            ]
        body += self.network(levels, total, own, bits)
        for j in range(own):
            place = f"shared_places[{_place(f'e{j}')}]"
            if whole:
                lines = [
                    f"if (row{j} < {r.rows}u) {{",
                    *("  " + x for x in self.out(f"row{j}", f"at{j}", place)),
                    "}",
                ]
            else:
                to = f"row{j} * {r.length}u + at{j}"
                lines = [
                    f"if (real{j}) {{",
                    f"  scratch0[{to}] = shared_keys[{_place(f'e{j}')}];",
                    f"  scratch1[{to}] = {place};",
                    "}",
                ]
            body += lines
        return finish(self.w, body, self.shared(total), size, grid, self.scratch, False)

    def shared(self, count: int) -> list[str]:
        """Return the workgroup memory for `count` pairs."""
        return [
            f"var<workgroup> shared_keys: array<u32, {count}>;",
            f"var<workgroup> shared_places: array<u32, {count}>;",
        ]

    def network(self, levels: int, total: int, own: int, bits: int) -> list[str]:
        """Return the lines that sort each 2 ** levels elements of workgroup memory."""
        # An invocation holds the elements that differ in `bits` neighbouring bits of their number.
        top = total.bit_length() - 1 - bits
        inner = [
            f"let low = min(u32(chunk) * {bits}u, {top}u);",
            f"let first = ((lid >> low) << (low + {bits}u)) | (lid & ((1u << low) - 1u));",
            "workgroupBarrier();",
        ]
        for j in range(own):
            inner += [
                f"let n{j} = first + ({j}u << low);",
                f"let s{j} = {_place(f'n{j}')};",
                f"var r{j} = vec2<u32>(shared_keys[s{j}], shared_places[s{j}]);",
                f"let up{j} = phase == {levels}u || ((n{j} >> phase) & 1u) == 0u;",
            ]
        for bit in reversed(range(bits)):
            inner.append(f"if (phase > low + {bit}u) {{")
            for j in range(own):
                k = j | 1 << bit
                if k != j:
                    inner += [
                        "  {",
                        f"    let swap = {_after(f'r{j}', f'r{k}')} == up{j};",
                        f"    let a = r{j};",
                        f"    r{j} = select(a, r{k}, swap);",
                        f"    r{k} = select(r{k}, a, swap);",
                        "  }",
                    ]
            inner.append("}")
        for j in range(own):
            inner += [f"shared_keys[s{j}] = r{j}.x;", f"shared_places[s{j}] = r{j}.y;"]
        return [
            f"for (var phase: u32 = 1u; phase <= {levels}u; phase = phase + 1u) {{",
            f"  for (var chunk: i32 = i32((phase - 1u) / {bits}u); chunk >= 0; chunk = chunk - 1) {{",
            *("    " + x for x in inner),
            "  }",
            "}",
            "workgroupBarrier();",
        ]

    def merge_pass(self, run: int, number: int, last: bool) -> WgslPass:
        """Write the pass that merges pairs of runs of `run` elements; `number` counts such passes."""
        r, tile = self.r, self.plan.tile
        own = _OWN_MERGED
        while tile // own > min(self.limits.max_workgroup_invocations, 256):
            own *= 2
        size = tile // own
        tiles = -(-r.length // tile)
        keys, places = ("scratch0", "scratch1") if number % 2 == 0 else ("scratch2", "scratch3")
        to_keys, to_places = (
            ("scratch2", "scratch3") if number % 2 == 0 else ("scratch0", "scratch1")
        )
        body, grid = self.group(r.rows * tiles)
        body += [
            f"let row = group / {tiles}u;",
            f"let begin = (group % {tiles}u) * {tile}u;",
            f"let base = row * {r.length}u;",
            *_shares_of_runs(r.length, run, tile, keys, places),
            *_tile_of_runs(size, keys, places),
            *_own_ranks(own),
        ]
        # Through workgroup memory, so that neighbours write to neighbours.
        body.append("workgroupBarrier();")
        for j in range(own):
            body += [
                f"if (mine + {j}u < count) {{",
                f"  shared_keys[mine + {j}u] = r{j}.x;",
                f"  shared_places[mine + {j}u] = r{j}.y;",
                "}",
            ]
        body.append("workgroupBarrier();")
        body.append(f"for (var i: u32 = lid; i < count; i = i + {size}u) {{")
        if last:
            body += ["  " + x for x in self.out("row", "(begin + i)", "shared_places[i]")]
        else:
            body += [
                f"  {to_keys}[base + begin + i] = shared_keys[i];",
                f"  {to_places}[base + begin + i] = shared_places[i];",
            ]
        body.append("}")
        shared = [*self.shared(tile), "var<workgroup> split: array<u32, 2>;"]
        return finish(self.w, body, shared, size, grid, self.scratch, False)


def _shares_of_runs(length: int, run: int, tile: int, keys: str, places: str) -> list[str]:
    """Write which parts of two runs a tile of their merged elements holds."""
    return [
        # The two runs, a and b, as offsets and lengths in the row.
        f"let a = begin / {2 * run}u * {2 * run}u;",
        f"let count_a = min({run}u, {length}u - a);",
        "let b = a + count_a;",
        f"let count_b = min({run}u, {length}u - b);",
        "let d = begin - a;",
        f"let count = min({tile}u, count_a + count_b - d);",
        # How many of the first d (and d + count) elements of the result come from a.
        "if (lid < 2u) {",
        "  let diagonal = d + lid * count;",
        "  var low = select(0u, diagonal - count_b, diagonal > count_b);",
        "  var high = min(diagonal, count_a);",
        "  while (low < high) {",
        "    let middle = (low + high) / 2u;",
        "    let other = diagonal - 1u - middle;",
        f"    let x = vec2<u32>({keys}[base + a + middle], {places}[base + a + middle]);",
        f"    let y = vec2<u32>({keys}[base + b + other], {places}[base + b + other]);",
        f"    if ({_after('x', 'y')}) {{ high = middle; }} else {{ low = middle + 1u; }}",
        "  }",
        "  split[lid] = low;",
        "}",
        "workgroupBarrier();",
        "let from_a = split[0];",
        "let tile_a = split[1] - from_a;",
        "let from_b = d - from_a;",
        "let tile_b = count - tile_a;",
    ]


def _tile_of_runs(size: int, keys: str, places: str) -> list[str]:
    """Write the copy of both parts to workgroup memory, one after the other."""
    return [
        f"for (var i: u32 = lid; i < count; i = i + {size}u) {{",
        "  let source = base + select(b + from_b + (i - tile_a), a + from_a + i, i < tile_a);",
        f"  shared_keys[i] = {keys}[source];",
        f"  shared_places[i] = {places}[source];",
        "}",
        "workgroupBarrier();",
    ]


def _own_ranks(own: int) -> list[str]:
    """Write the merge of an invocation's `own` elements of the tile into r0, r1, ..."""
    body = [
        f"let mine = min(lid * {own}u, count);",
        "var low = select(0u, mine - tile_b, mine > tile_b);",
        "var high = min(mine, tile_a);",
        "while (low < high) {",
        "  let middle = (low + high) / 2u;",
        "  let other = tile_a + mine - 1u - middle;",
        "  let x = vec2<u32>(shared_keys[middle], shared_places[middle]);",
        "  let y = vec2<u32>(shared_keys[other], shared_places[other]);",
        f"  if ({_after('x', 'y')}) {{ high = middle; }} else {{ low = middle + 1u; }}",
        "}",
        "var at_a = low;",
        "var at_b = tile_a + mine - low;",
    ]
    for j in range(own):
        body += [
            f"var r{j} = vec2<u32>(0u, 0u);",
            f"if (mine + {j}u < count) {{",
            "  let x = vec2<u32>(shared_keys[at_a], shared_places[at_a]);",
            # Where one run has ended, the other's element is read twice.
            "  let safe_b = select(at_a, at_b, at_b < count);",
            "  let y = vec2<u32>(shared_keys[safe_b], shared_places[safe_b]);",
            f"  let take_b = at_a >= tile_a || (at_b < count && {_after('x', 'y')});",
            f"  r{j} = select(x, y, take_b);",
            "  at_b = at_b + select(0u, 1u, take_b);",
            "  at_a = at_a + select(1u, 0u, take_b);",
            "}",
        ]
    return body


def sort_passes(r: Sort, limits: Limits, plan: Plan) -> list[WgslPass]:
    """Return the dispatches of a sort with a given geometry."""
    s = _SortWriter(r, limits, plan)
    passes = [s.sort_pass()]
    run, number = plan.block, 0
    while run < r.length:
        passes.append(s.merge_pass(run, number, 2 * run >= r.length))
        run, number = 2 * run, number + 1
    return passes


def render(routine: Sort, limits: Limits) -> list[WgslPass]:
    """Return the dispatches of a sort."""
    return sort_passes(routine, limits, choose(routine, limits))
