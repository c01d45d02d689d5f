"""Kernel -> Python source over loops: compiled to vector code where llvmlite is, run as plain Python under a debugger.

The text defines one function, `name(begin, end, b0, ..., a0, ..., status)`, that does the outer
points begin..end-1 (row-major). It is a small language with Python's meaning: annotations say what
buffers hold, `b0[i]` reads and writes an element, integers are positions, and every other value is
typed by a call such as `float32(0.5)`. `x += y` marks a sum whose order is free. The names that it
calls are in `runtime/backends/cpu/plain.py` (Python) and `runtime/backends/cpu/jit.py` (machine
code). Imports floors 0-2.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterable, Sequence

from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType, bfloat16, bool_, float16, float32, int32
from webtorch.ir.expr import Expr, cost_cpu
from webtorch.ir.kernel import Check, Kernel, Reduce, Store
from webtorch.ir.view import numel
from webtorch.lower.affine import Affine, affine
from webtorch.lower.pyvalues import (
    ValueWriter,
    called,
    column_start,
    identifier,
    is_pair,
    start,
)

# Outer points that one accumulator array of a column kernel serves.
COLUMNS = 512
# Terms of a float sum that are added in one go; blocks are then added up, so that rounding errors stay small.
SUM_BLOCK = 4096
# Bytes of a row that may be kept between the stages of a row kernel; it must fit the first-level cache with its inputs.
_ROW_BYTES = 1 << 16
# Innermost loops of fewer turns are merged with those around them, up to this many turns: vectors need some.
_SHORT = 16
_MERGED = 64
# Sums over innermost loops of so many turns, one to four vectors, that come again are added up in lanes: vectors are
# summed up once, not for each loop.
_LANES = range(16, 33)
# Nested inner loops of at most this many points in all are unrolled: LLVM's vectors run along outer points of one
# loop at most.
_UNROLLED = 8
# From this cost on, a value is kept in a row rather than computed again in the next stage.
_KEEP_COST = 12
# Rows that a column kernel may add in one go, best first (blocks of SUM_BLOCK // 8 are whole numbers of these), and how
# dear each of them may be.
_TOGETHER = (4, 2)
_LITTLE = 16


def literal(node: ast.expr) -> float | int | None:
    """Return the number that is written in a text; None for what is computed."""
    match node:
        case ast.Constant(value=bool() | int() | float() as number):
            return number
        case ast.Name(id="inf"):
            return math.inf
        case ast.Name(id="nan"):
            return math.nan
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = literal(operand)
            return None if inner is None else -inner
    return None


class _Writer(ValueWriter):
    """Writes the loops of a kernel."""

    def __init__(self, kernel: Kernel, varying: bool) -> None:
        super().__init__(kernel)
        self.varying = varying
        # Lines that make memory of the function's.
        self.arrays: list[str] = []

    # -- the kernel ---------------------------

    def render(self) -> str:
        """Return the source of `kernel(begin, end, buffers, arguments, status)`."""
        kernel = self.kernel
        params = ["begin", "end"]
        params += [f"b{i}: {b.dtype.name}" for i, b in enumerate(kernel.buffers)]
        params += [f"a{i}: {d.name}" for i, d in enumerate(kernel.args)]
        params.append("status")
        # Dims of size 1 are always 0.
        self.open(*[d for d, size in enumerate(self.dims) if size == 1])
        if not kernel.inner:
            self.elementwise()
        elif self.by_columns():
            self.column_kernel()
        else:
            self.row_kernel()
        body = self.scopes[0].lines
        return (
            "\n".join(
                [
                    f"def {identifier(kernel.name)}({', '.join(params)}):",
                    *["    " + text for text in body],
                ]
            )
            + "\n"
        )

    def decode(self, dims: tuple[int, ...], flat: str) -> None:
        """Define i0.. from the row-major number `flat` of a point of `dims`."""
        live = [d for d, size in enumerate(dims) if size > 1]
        for number, d in enumerate(reversed(live)):
            first = number == len(live) - 1
            if first:
                self.line(f"i{d} = {flat}")
            else:
                self.line(f"i{d} = rem({flat}, {dims[d]})")
                rest = f"q{d}"
                self.line(f"{rest} = div({flat}, {dims[d]})")
                flat = rest
            self.know(d)
        if not live and dims and numel(dims) > 1:
            raise AssertionError(dims)

    def elementwise(self) -> None:
        """Write the loops of a kernel without reductions; the last dim is the vectors' loop."""
        dims = self.kernel.outer
        live = [d for d, size in enumerate(dims) if size > 1]
        if not live:
            self.body()
            return
        last = live[-1]
        # Checks of what a reduction gives come after it, in the loop.
        ahead = not self.kernel.reduces
        if len(live) == 1:
            head = f"for i{last} in range(begin, end):"
            if ahead:
                self.checks_ahead(head, last)
            self.open(last)
            self.body(not ahead)
            self.close(head)
            return
        if dims[last] < _SHORT:
            head = "for i in range(begin, end):"

            def decode() -> None:
                """Write the loop variables of the point i."""
                self.decode(dims, "i")
                self.merged = (tuple(live), "i")

            if ahead:
                self.checks_ahead(head, -1, decode)
            self.open()
            decode()
            self.body(not ahead)
            self.close(head)
            return
        self.line("i = begin")
        self.open()
        self.decode_segment(dims, last, f"min({dims[last]} - start, end - i)")
        head = f"for i{last} in range(start, start + n):"
        if ahead:
            self.checks_ahead(head, last)
        self.open(last)
        self.body(not ahead)
        self.close(head)
        self.line("i = i + n")
        self.close("while i < end:")

    def decode_segment(self, dims: tuple[int, ...], last: int, count: str) -> None:
        """Define the dims before `last`, where the run along `last` starts, and how many points it has."""
        self.line(f"start = rem(i, {dims[last]})")
        if any(size > 1 for size in dims[:last]):
            self.line(f"row = div(i, {dims[last]})")
            self.decode(dims[:last], "row")
        self.line(f"n = {count}")

    def body(self, checks: bool = True) -> None:
        """The inside of an elementwise kernel."""
        if not checks:
            self.write(self.prepare(self.kernel.stores))
            return
        self.checks("outer")
        for k, reduce in enumerate(self.kernel.reduces):
            if reduce.reducer.is_position:
                self.line(f"r{k} = {reduce.dtype.name}(0)")
            else:
                self.line(f"r{k} = {self.value(reduce.value)}")
            self.know(("reduced", k))
        self.checks("outer", late=True)
        self.checks("inner")
        self.write(self.prepare(self.kernel.stores))

    def stages(self) -> list[list[int]]:
        """Group the reductions that one sweep over the inner points can do together."""
        groups: list[list[int]] = []
        level: dict[int, int] = {}
        for k, reduce in enumerate(self.kernel.reduces):
            needs = [d[1] for d in self.deps(reduce.value) if isinstance(d, tuple)]
            level[k] = max((level[n] + 1 for n in needs), default=0)
            while len(groups) <= level[k]:
                groups.append([])
            groups[level[k]].append(k)
        return groups

    def by_columns(self) -> bool:
        """Whether to work on many outer points at once: where they are neighbours in memory, or the
        inner loop is short.
        """
        outer, inner = self.kernel.outer, self.kernel.inner
        live = [d for d, size in enumerate(outer) if size > 1]
        if not live or outer[live[-1]] < 8:
            return False
        last = live[-1]
        steps = [d for d in range(self.first_inner, len(self.dims)) if self.dims[d] > 1]
        if not steps:
            return True
        along_row = along_column = 0
        for root in self.kernel.expressions():
            for node in ex.walk(root):
                if node.op == "load" and (where := affine(node.args[0])) is not None:
                    along_row += where.stride(steps[-1]) == 1
                    along_column += where.stride(last) == 1 and any(where.stride(d) for d in steps)
        if along_column > along_row:
            return True
        # Rows that fill vectors by themselves need no neighbours.
        return numel(inner) <= (_SHORT - 1 if along_row > along_column else 64)

    # -- one outer point after another ---------------------------

    def row_kernel(self) -> None:
        """Write a kernel whose reductions run along consecutive memory, one outer point a time."""
        outer = self.kernel.outer
        live = [d for d, size in enumerate(outer) if size > 1]
        together = self.neighbours(live)
        self.open()
        if together:
            # What does not change from one neighbour to the next is computed before them.
            turns = numel(tuple(outer[d] for d in together))
            self.line(f"start = rem(i, {turns})")
            self.line(f"row = div(i, {turns})")
            self.decode(tuple(s if d not in together else 1 for d, s in enumerate(outer)), "row")
            self.line(f"n = min({turns} - start, end - i)")
            self.open()
            self.decode(tuple(s if d in together else 1 for d, s in enumerate(outer)), "o")
            self.merged = (tuple(together), "o")
        elif live:
            self.decode(outer, "i")
        self.checks("outer")
        self.plan_rows()
        for group in self.stages():
            self.row_stage(group)
        self.checks("outer", late=True)
        outside = [s for s in self.kernel.stores if s.level == "outer"]
        inside = [s for s in self.kernel.stores if s.level == "inner"]
        ready = self.prepare(outside)
        self.inner_checks()
        if inside:
            self.inner_loops(lambda: self.write(self.prepare(inside)), merge=True)
        self.write(ready)
        if together:
            self.merged = ((), "")
            self.close("for o in range(start, start + n):")
            self.line("i = i + n")
            self.close("while i < end:")
            self.scopes[-1].lines.insert(0, "i = begin")
        else:
            self.close("for i in range(begin, end):")
        arrays = [
            f"{name} = local({e.dtype.name}, {self.kernel.inner_count})"
            for e, name in self.rows.items()
        ]
        self.scopes[-1].lines[:0] = arrays + self.arrays

    def neighbours(self, live: list[int]) -> list[int]:
        """Return the last outer dims, if vectors should run along them: where the inner loops are so
        short that they disappear.
        """
        if self.kernel.inner_count > _UNROLLED:
            return []
        first, turns = len(live), 1
        while first and turns < _SHORT:
            first -= 1
            turns *= self.dims[live[first]]
        return live[first:] if first and turns >= _SHORT else []

    def inner_checks(self, columns: int | None = None) -> None:
        """Test the indices of the inner points, each column of them if there are columns: all together
        first, as `checks_ahead` does.
        """
        found = [c for c in self.kernel.checks if c.level == "inner"]
        if not found:
            return

        apart = [c for c in found if columns is None or columns not in self.deps(c.value)]
        among = [c for c in found if c not in apart]

        def run(body: Callable[[Check], None], checks: list[Check]) -> None:
            """Write the tests one by one."""
            for check in checks:
                body(check)

        def each(body: Callable[[Check], None]) -> None:
            """Write all tests in one way, those of columns in the columns' loop."""
            run(body, apart)
            if among and columns is not None:
                self.columns(columns, lambda: run(body, among))

        def note(check: Check) -> None:
            """Write that a test has failed, without a branch."""
            self.line(f"bad = bad | int32({self.fails(check)})")

        self.line("bad = int32(0)")
        self.inner_loops(lambda: each(note), merge=columns is None)
        self.open()
        self.inner_loops(lambda: each(self.report), merge=columns is None)
        self.close("if bad != int32(0):")

    def plan_rows(self) -> None:
        """Choose the values that are kept between stages: dear ones that a later sweep needs again.

        They change along every inner dim: what does not is computed outside the loops of the others.
        """
        sweeps = [[self.kernel.reduces[k].value for k in group] for group in self.stages()]
        sweeps.append([s.value for s in self.kernel.stores if s.level == "inner"])
        inner = {d for d in range(self.first_inner, len(self.dims)) if self.dims[d] > 1}
        seen: list[set[Expr]] = [set(ex.walk(*roots)) for roots in sweeps if roots]
        wanted: list[Expr] = []
        for i, nodes in enumerate(seen):
            later = set().union(*seen[i + 1 :])
            wanted += [
                e
                for e in nodes & later
                if inner and cost_cpu(e) >= _KEEP_COST and inner <= self.deps(e) and e not in wanted
            ]
        budget = _ROW_BYTES
        order = sorted(wanted, key=lambda e: (-cost_cpu(e), ex.show(e)))
        for e in order:
            # A part of a kept value is needed only inside it, most of the time.
            if any(e in set(ex.walk(k)) for k in self.rows) or e.dtype in (
                bool_,
                float16,
                bfloat16,
            ):
                continue
            size = self.kernel.inner_count * e.dtype.itemsize
            if size <= budget:
                budget -= size
                self.rows[e] = f"row{len(self.rows)}"

    def inner_loops(
        self, body: Callable[[], None], head: str = "", innermost: str = "", merge: bool = False
    ) -> None:
        """Nest the inner loops around `body`; `head` replaces the range of the outermost.

        `innermost` replaces the head of the innermost loop, whose point is then left to `body`. With `merge`, short
        innermost loops become one.
        """
        live = [d for d in range(self.first_inner, len(self.dims)) if self.dims[d] > 1]
        together = self.short_loops(live[1:] if head else live) if merge else []
        merged = self.merged
        apart = live[: len(live) - len(together)]
        for d in apart:
            self.open(*() if innermost and d == live[-1] else (d,))
        if together or not live:
            self.open()
        if together:
            self.decode(tuple(s if d in together else 1 for d, s in enumerate(self.dims)), "m")
            self.merged = (tuple(together), "m")
        self.keeping = True
        self.kept = set()
        body()
        self.keeping = False
        self.merged = merged
        if together:
            self.close(f"for m in range({numel(tuple(self.dims[d] for d in together))}):")
        elif not live:
            self.close("if True:")
        nested = len(apart) > 1 and self.kernel.inner_count <= _UNROLLED
        kind = "unrolled" if nested else "range"
        for d in reversed(apart):
            span = head if head and d == live[0] else f"{kind}({self.dims[d]})"
            self.close(innermost if innermost and d == live[-1] else f"for i{d} in {span}:")
        self.written |= self.kept

    def short_loops(self, live: list[int]) -> list[int]:
        """Return the innermost loops that are to be one, if there is more than one."""
        if not live or self.dims[live[-1]] >= _SHORT:
            return []
        loads = [
            where
            for root in self.kernel.expressions()
            for node in ex.walk(root)
            if node.op == "load" and (where := affine(node.args[0])) is not None
        ]
        first, turns, runs = len(live), 1, 0
        while first and turns < _MERGED:
            size = self.dims[live[first - 1]]
            # Loads that stay runs of memory; beyond what vectors need, none may be lost.
            found = sum(self.is_run(where, live[first - 1 :]) for where in loads)
            if turns >= _SHORT and (found < runs or turns * size > SUM_BLOCK):
                break
            first, turns, runs = first - 1, turns * size, found
        return live[first:] if len(live) - first > 1 and turns >= _SHORT else []

    def is_run(self, where: Affine, dims: Sequence[int]) -> bool:
        """Whether walking `dims` in row-major order walks memory in order."""
        stride = 1
        for d in reversed(dims):
            if where.stride(d) != stride:
                return False
            stride *= self.dims[d]
        return True

    def row_stage(self, group: list[int]) -> None:
        """Write the reductions of one stage; long float sums are added in blocks."""
        reduces = [(k, self.kernel.reduces[k]) for k in group]
        live = [d for d in range(self.first_inner, len(self.dims)) if self.dims[d] > 1]
        total = self.kernel.inner_count
        blocked = [
            k
            for k, r in reduces
            if r.op == "sum" and r.value.dtype.kind == "float" and total > SUM_BLOCK
        ]
        for k, r in reduces:
            self.line(f"acc{k} = {start(r)}")
            if is_pair(r):
                self.line(f"at{k} = int64(0)")
        if not blocked and self.sums_in_lanes(reduces, live):
            self.lane_sums(group, live[-1])
            return

        def body() -> None:
            """Write what one inner point adds."""
            for k, r in reduces:
                self.accumulate(k, r, f"part{k}" if k in blocked else f"acc{k}")

        if not blocked:
            self.inner_loops(body, merge=True)
        else:
            first = live[0]
            rest = max(total // self.dims[first], 1)
            size = max(SUM_BLOCK // rest, 1)
            self.open()
            for k in blocked:
                self.line(f"part{k} = {start(self.kernel.reduces[k])}")
            self.inner_loops(body, f"range(j, min(j + {size}, {self.dims[first]}))", merge=True)
            for k in blocked:
                self.line(f"acc{k} += part{k}")
            self.close(f"for j in range(0, {self.dims[first]}, {size}):")
        for k, r in reduces:
            self.line(f"r{k} = {self.finish(k, r)}")
            self.know(("reduced", k))

    def sums_in_lanes(self, reduces: Sequence[tuple[int, Reduce]], live: list[int]) -> bool:
        """Whether a stage's sums are added up in lanes."""
        return (
            not self.varying
            and len(live) > 1
            and self.dims[live[-1]] in _LANES
            and all(r.op == "sum" and r.value.dtype is float32 for _, r in reduces)
        )

    def lane_sums(self, group: list[int], last: int) -> None:
        """Write the float sums of a stage, with a lane for each turn of the innermost loop."""
        count = self.dims[last]
        names = {k: f"lanes{k}" for k in group}
        self.arrays += [f"{name} = local(float32, {count})" for name in names.values()]

        def body() -> None:
            """Write what one inner point adds to its lane."""
            for k, name in names.items():
                self.line(
                    f"{name}[i{last}] = {name}[i{last}] + {self.value(self.kernel.reduces[k].value)}"
                )

        self.line(f"for c in range({count}):")
        for name in names.values():
            self.line(f"    {name}[c] = float32(0)")
        self.inner_loops(body)
        self.line(f"for c in range({count}):")
        for k, name in names.items():
            self.line(f"    acc{k} += {name}[c]")
        for k in group:
            self.line(f"r{k} = acc{k}")
            self.know(("reduced", k))

    def accumulate(self, k: int, r: Reduce, acc: str) -> None:
        """Combine one inner point into the scalar `acc`."""
        value = self.value(r.value)
        function = r.reducer.function(r.value.dtype)
        if r.reducer.is_position:
            if not is_pair(r):
                self.line(f"{acc} = maximum({acc}, order_{r.op}({value}, {self.inner_number()}))")
                return
            self.line(f"better = {self.better(r, value, acc)}")
            self.line(f"{acc} = where(better, {value}, {acc})")
            self.line(f"at{k} = where(better, int64({self.inner_number()}), at{k})")
        elif r.value.dtype is bool_:
            self.line(f"{acc} = {acc} {function.infix} int32({value})")
        elif function.infix:
            self.line(f"{acc} {function.infix}= {value}")
        else:
            if r.value.dtype.kind == "float":
                value = f"order_{r.op}({value})"
            self.line(f"{acc} = {function.loops}({acc}, {value})")

    def better(self, r: Reduce, value: str, best: str) -> str:
        """Return the test whether a value takes the place of the best: NaN does, the first of equals stays."""
        sign = ">" if r.reducer.combine == "max" else "<"
        if r.value.dtype.kind == "float":
            return f"({value} {sign} {best}) | (isnan({value}) & logical_not(isnan({best})))"
        return f"{value} {sign} {best}"

    def finish(self, k: int, r: Reduce) -> str:
        """Return the text of a reduction's result from its accumulator."""
        if r.reducer.is_position:
            return (
                f"{r.dtype.name}(at{k})"
                if is_pair(r)
                else f"{r.dtype.name}(order_position(acc{k}))"
            )
        if r.reducer.is_extreme and r.value.dtype.kind == "float":
            return f"unorder(acc{k}, {r.value.dtype.name})"
        return f"acc{k} != int32(0)" if r.value.dtype is bool_ else f"acc{k}"

    # -- many outer points at once ---------------------------

    def column_kernel(self) -> None:
        """Write a kernel whose reductions run across memory: COLUMNS neighbours at once."""
        outer = self.kernel.outer
        last = max(d for d, size in enumerate(outer) if size > 1)
        self.line("i = begin")
        self.open()
        self.decode_segment(outer, last, f"min(min({outer[last]} - start, end - i), {COLUMNS})")
        if any(c.level == "outer" for c in self.kernel.checks):
            self.columns(last, lambda: self.checks("outer"))
        for group in self.stages():
            self.column_stage(group, last)
        if any(c.level == "outer" for c in self.kernel.checks):
            self.columns(last, lambda: self.checks("outer", late=True))
        outside = [s for s in self.kernel.stores if s.level == "outer"]
        inside = [s for s in self.kernel.stores if s.level == "inner"]
        saved: list[tuple[Store, str]] = []
        if inside and outside:
            # Values of outer stores are computed before inner stores write.
            for s in outside:
                saved.append((s, self.array(s.value.dtype)))

            def save() -> None:
                """Keep the inner values that later stages read."""
                for s, name in saved:
                    self.line(f"{name}[c] = {self.value(s.value)}")

            self.columns(last, save)
        self.inner_checks(last)
        if inside:
            self.inner_loops(lambda: self.columns(last, lambda: self.write(self.prepare(inside))))

        def epilogue() -> None:
            """Write the stores of the finished columns."""
            if saved:
                ready = []
                for s, name in saved:
                    for leaf in self.position_leaves(s.position):
                        self.value(leaf)
                    ready.append(
                        (
                            s,
                            self.position(s.position),
                            f"{name}[c]",
                            "" if s.valid is None else self.value(s.valid),
                        )
                    )
                self.write(ready)
            else:
                self.write(self.prepare(outside))

        if outside:
            self.columns(last, epilogue)
        self.line("i = i + n")
        self.close("while i < end:")
        self.scopes[-1].lines[:0] = self.arrays

    def array(self, dtype: DType, count: int = COLUMNS) -> str:
        """Return the name of a new local array, one element a column."""
        name = self.fresh("v")
        self.arrays.append(f"{name} = local({dtype.name}, {count})")
        return name

    def columns(self, last: int, body: Callable[[], None]) -> None:
        """Loop over the columns; finished reductions are read from their arrays."""
        finished = [d for d in self.scopes[-1].known if isinstance(d, tuple) and d[0] == "column"]
        self.open(last, *[("reduced", d[1]) for d in finished])
        self.line(f"i{last} = start + c")
        for _, k in sorted(finished):
            self.line(f"r{k} = result{k}[c]")
        body()
        self.close("for c in range(n):")

    def column_stage(self, group: list[int], last: int) -> None:
        """Write the reductions of one stage for all columns; long float sums are added in blocks."""
        reduces = [(k, self.kernel.reduces[k]) for k in group]
        live = [d for d in range(self.first_inner, len(self.dims)) if self.dims[d] > 1]
        total = self.kernel.inner_count
        blocked = [
            k
            for k, r in reduces
            if r.op == "sum" and r.value.dtype.kind == "float" and total > SUM_BLOCK // 4
        ]
        for k, r in reduces:
            kind = int32 if r.value.dtype is bool_ else r.value.dtype
            self.arrays.append(f"acc{k} = local({kind.name}, {COLUMNS})")
            self.arrays.append(
                f"result{k} = local({r.dtype.name if r.reducer.is_position else r.value.dtype.name}, {COLUMNS})"
            )
            if r.reducer.is_position:
                self.arrays.append(f"at{k} = local(int32, {COLUMNS})")
            if k in blocked:
                self.arrays.append(f"part{k} = local({kind.name}, {COLUMNS})")

        def clear(parts: bool) -> None:
            """Write the accumulators' start, or that of the blocks' parts."""
            for k, r in reduces:
                if not parts:
                    self.line(f"acc{k}[c] = {column_start(r)}")
                    if r.reducer.is_position:
                        self.line(f"at{k}[c] = int32(0)")
                elif k in blocked:
                    self.line(f"part{k}[c] = {column_start(r)}")

        sums = {k: f"{'part' if k in blocked else 'acc'}{k}[c]" for k in group}

        def body(places: dict[int, str]) -> None:
            """Write what one inner point adds to a column."""
            for k, r in reduces:
                self.column_accumulate(k, r, places[k])

        def add_parts() -> None:
            """Add the blocks' parts to the sums."""
            for k in blocked:
                self.line(f"acc{k}[c] = acc{k}[c] + part{k}[c]")

        self.columns(last, lambda: clear(False))
        if not blocked:
            self.add_rows(sums, last, body)
        else:
            first = live[0]
            size = max(SUM_BLOCK // 8 // max(total // self.dims[first], 1), 1)
            self.open()
            self.columns(last, lambda: clear(True))
            self.add_rows(sums, last, body, size)
            self.columns(last, add_parts)
            self.close(f"for j in range(0, {self.dims[first]}, {size}):")

        def results() -> None:
            """Write the results from the accumulators."""
            for k, r in reduces:
                text = f"acc{k}[c] != int32(0)" if r.value.dtype is bool_ else f"acc{k}[c]"
                self.line(
                    f"result{k}[c] = {f'{r.dtype.name}(at{k}[c])' if r.reducer.is_position else text}"
                )

        self.columns(last, results)
        self.know(*[("column", k) for k, _ in reduces])

    def add_rows(
        self,
        sums: dict[int, str],
        last: int,
        body: Callable[[dict[int, str]], None],
        block: int = 0,
    ) -> None:
        """Loop over the inner points around what each adds to the columns' `sums`; `block` is how many turns of the
        outermost loop start at j.

        Many rows go together where that is cheap: sums are read and written once for all of them.
        """
        live = [d for d in range(self.first_inner, len(self.dims)) if self.dims[d] > 1]
        head = f"range(j, min(j + {block}, {self.dims[live[0]]}))" if block else ""
        if not live or not self.rows_together(live[-1], sums):
            self.inner_loops(lambda: self.columns(last, lambda: body(sums)), head)
            return
        d = live[-1]
        rows = self.dims[d]
        # A loop over rows that are left takes as long to compile as the first: a number that leaves none is better.
        turns = next((n for n in _TOGETHER if not self.varying and rows % n == 0), _TOGETHER[0])
        whole = rows - rows % turns

        def several() -> None:
            """Write what some rows add to a column."""
            for k, place in sums.items():
                self.line(f"sum{k} = {place}")
            self.open(d)
            self.line(f"i{d} = g + turn")
            body({k: f"sum{k}" for k in sums})
            self.close(f"for turn in unrolled({turns}):")
            for k, place in sums.items():
                self.line(f"{place} = sum{k}")

        def one() -> None:
            """Write what one of the last rows adds."""
            self.line(f"i{d} = g")
            self.know(d)
            self.columns(last, lambda: body(sums))

        blocked = block and len(live) == 1
        begin, stop = ("j", f"min(j + {block}, {whole})") if blocked else ("0", f"{whole}")
        self.inner_loops(
            lambda: self.columns(last, several),
            head,
            f"for g in range({begin}, {stop}, {turns}):",
        )
        if whole < rows or self.varying:
            begin, stop = (
                (f"max(j, {whole})", f"min(j + {block}, {rows})")
                if blocked
                else (f"{whole}", f"{rows}")
            )
            self.inner_loops(one, head, f"for g in range({begin}, {stop}):")

    def rows_together(self, d: int, group: Iterable[int]) -> bool:
        """Whether several rows along `d` are added in one go: where there are many, and each is little work."""
        values = [self.kernel.reduces[k] for k in group]
        if self.dims[d] < _MERGED or any(r.reducer.is_position for r in values):
            return False
        return cost_cpu(*[r.value for r in values]) <= _LITTLE

    def column_accumulate(self, k: int, r: Reduce, old: str) -> None:
        """Write what one inner point adds to one column's accumulator, which `old` names."""
        value = self.value(r.value)
        function = r.reducer.function(r.value.dtype)
        if r.reducer.is_position:
            self.line(f"best{k} = {old}")
            self.line(f"better{k} = {self.better(r, value, f'best{k}')}")
            self.line(f"{old} = where(better{k}, {value}, best{k})")
            self.line(f"at{k}[c] = where(better{k}, int32({self.inner_number()}), at{k}[c])")
        elif r.value.dtype is bool_:
            self.line(f"{old} = {old} {function.infix} int32({value})")
        else:
            self.line(f"{old} = {called(function, old, value)}")


def python_source(kernel: Kernel, varying: bool = False) -> str:
    """Return the loop text of `kernel`; if its sizes vary, its arrays have room for larger ones."""
    text = _Writer(kernel, varying).render()
    return _LOCAL.sub(_roomy, text) if varying else text


_LOCAL = re.compile(r"(local\(\w+, )(\d+)\)")


def _roomy(found: re.Match[str]) -> str:
    return f"{found[1]}{1 << (int(found[2]) - 1).bit_length()})"
