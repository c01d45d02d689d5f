"""Kernel -> Python source over loops: compiled to vector code where llvmlite is, run as plain Python under a debugger.

The text defines one function, `name(begin, end, b0, ..., a0, ..., status)`, that does the outer
points begin..end-1 (row-major). It is a small language with Python's meaning: annotations say what
buffers hold, `b0[i]` reads and writes an element, integers are positions, and every other value is
typed by a call such as `float32(0.5)`. `x += y` marks a sum whose order is free. The names that it
calls are in `runtime/backends/cpu/plain.py` (Python) and `runtime/backends/cpu/jit.py` (machine
code). Imports floors 0-2.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType, bfloat16, bool_, float16, float32, int32, int64, integer_limits
from webtorch.ir.expr import FUNCTIONS, Expr, ScalarFunction, cost_cpu
from webtorch.ir.kernel import Check, Kernel, Reduce, Store
from webtorch.ir.view import numel
from webtorch.lower.affine import Affine, affine

# Outer points that one accumulator array of a column kernel serves.
COLUMNS = 512
# Terms of a float sum that are added in one go; blocks are then added up, so that rounding errors stay small.
SUM_BLOCK = 4096
# Bytes of a row that may be kept between the stages of a row kernel; it must fit the first-level cache with its inputs.
_ROW_BYTES = 1 << 16
# Innermost loops of fewer turns are merged with those around them, up to this many turns: vectors need some.
_SHORT = 16
_MERGED = 64
# Inner loops of at most this many points in all are unrolled.
_UNROLLED = 8
# From this cost on, a value is kept in a row rather than computed again in the next stage.
_KEEP_COST = 12

Dep = int | tuple[str, int]


@dataclass
class _Scope:
    """One loop body: what is known inside it, and its lines."""

    known: frozenset[Dep]
    names: dict[Expr, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)


class _Writer:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.dims = kernel.outer + kernel.inner
        self.first_inner = len(kernel.outer)
        self.scopes: list[_Scope] = []
        self.dep_memo: dict[Expr, frozenset[Dep]] = {}
        self.count = 0
        # Values kept in a row between stages: expression -> array, and those already written.
        self.rows: dict[Expr, str] = {}
        self.written: set[Expr] = set()
        # Whether values are being kept at the moment, and which ones the current sweep has kept.
        self.keeping = False
        self.kept: set[Expr] = set()
        # Dims that one loop walks together, in row-major order, and the loop's variable.
        self.merged: tuple[tuple[int, ...], str] = ((), "")
        # Expressions are interned weakly: those made here must outlive their entries in the scopes.
        self.alive: list[Expr] = []

    # -- text ---------------------------

    def fresh(self, prefix: str = "t") -> str:
        """Return a new name."""
        self.count += 1
        return f"{prefix}{self.count}"

    def line(self, text: str) -> None:
        """Write a line into the innermost scope."""
        self.scopes[-1].lines.append(text)

    def open(self, *known: Dep) -> None:
        """Begin a scope in which these loop variables and stages are known too."""
        outside = self.scopes[-1].known if self.scopes else frozenset()
        self.scopes.append(_Scope(outside | set(known)))

    def close(self, head: str) -> None:
        """End the scope: its lines become the body of `head`."""
        scope = self.scopes.pop()
        self.line(head)
        self.scopes[-1].lines += ["    " + text for text in scope.lines or ["pass"]]

    def know(self, *deps: Dep) -> None:
        """Note what is known from here on in the innermost scope."""
        self.scopes[-1].known |= set(deps)

    # -- expressions ---------------------------

    def deps(self, root: Expr) -> frozenset[Dep]:
        """Return the loop variables and reductions that `root` needs."""
        known = self.dep_memo.get(root)
        if known is not None:
            return known
        # Values are written from the leaves up, so that the parts are known in most cases.
        below = all(a in self.dep_memo for a in root.args)
        for node in (root,) if below else ex.walk(root):
            if node in self.dep_memo:
                continue
            found: frozenset[Dep] = frozenset().union(*[self.dep_memo[a] for a in node.args])
            if node.op == "index":
                found = frozenset({node.value[0]})
            elif node.op == "reduced":
                found = frozenset({("reduced", node.value)})
            self.dep_memo[node] = found
        return self.dep_memo[root]

    def value(self, root: Expr) -> str:
        """Return the name of `root`'s value, computing it in the outermost loop that can."""
        stack = [root]
        while stack:
            node = stack[-1]
            if self.find(node) is not None:
                stack.pop()
                continue
            missing = [a for a in self.operands(node) if self.find(a) is None]
            if missing:
                stack += reversed(missing)
                continue
            stack.pop()
            self.compute(node)
        found = self.find(root)
        assert found is not None
        return found

    def operands(self, node: Expr) -> Iterable[Expr]:
        """Return the nodes that must have a name before a node's text is written."""
        if node in self.written:
            return ()
        if node.op == "load":
            return (*self.position_leaves(node.args[0]), *node.args[1:])
        return node.args

    def find(self, node: Expr) -> str | None:
        """Return the text by which a node's value is known, None if it must be computed."""
        match node.op:
            case "const":
                return constant(node)
            case "arg":
                return f"a{node.value}"
            case "reduced":
                return f"r{node.value}"
            case "index" if node.value[1] == 1:
                return "int32(0)"
        for scope in self.scopes:
            if node in scope.names:
                return scope.names[node]
        return None

    def compute(self, node: Expr) -> None:
        """Write a node's value in the outermost scope that knows what it depends on."""
        deps = self.deps(node)
        scope = next(s for s in self.scopes if deps <= s.known)
        if node in self.written:
            text = f"{self.rows[node]}[{self.inner_number()}]"
        else:
            text = self.text(node)
        name = self.fresh("p" if node.op == "philox" else "t")
        if node.op == "philox":
            # One call gives four lanes; the others find its name.
            for lane in range(4):
                other = ex.make("philox", node.dtype, node.args, lane)
                self.dep_memo[other] = deps
                scope.names[other] = f"{name}[{lane}]"
                self.alive.append(other)
        else:
            scope.names[node] = name
        scope.lines.append(f"{name} = {text}")
        if node in self.rows and node not in self.written and self.keeping:
            scope.lines.append(f"{self.rows[node]}[{self.inner_number()}] = {name}")
            self.kept.add(node)

    def text(self, node: Expr) -> str:
        """Return the text of a node whose operands have names."""
        if node.op == "load":
            position = self.position(node.args[0])
            text = f"b{node.value}[{position}]"
            if len(node.args) == 3:
                text += f" if {self.ready(node.args[1])} else {self.ready(node.args[2])}"
            return text
        args = [self.ready(a) for a in node.args]
        match node.op:
            case "index":
                return f"int32(i{node.value[0]})"
            case "cast":
                return self.cast(node, args[0])
            case "bitcast":
                return f"bitcast({args[0]}, {node.dtype.name})"
            case "neg":
                return f"-{args[0]}"
            case "div" if node.dtype.kind == "float":
                return f"{args[0]} / {args[1]}"
        function = FUNCTIONS[node.op]
        if function.infix:
            return f"{args[0]} {function.infix} {args[1]}"
        return f"{function.loops}({', '.join(args)})"

    def ready(self, node: Expr) -> str:
        """Return the text of a value that has been computed."""
        found = self.find(node)
        assert found is not None
        return found

    def cast(self, node: Expr, x: str) -> str:
        """Return the text of a conversion; bfloat16 lies in memory as uint16."""
        source, target = node.args[0].dtype, node.dtype
        if source is bfloat16:
            x = f"from_bfloat16({x})"
            return x if target is float32 else f"{target.name}({x})"
        if target is bfloat16:
            return f"to_bfloat16({x if source is float32 else f'float32({x})'})"
        if target is bool_ and source is not float16:
            return f"{x} != {source.name}(0)"
        if float16 in (source, target) and float32 not in (source, target):
            x = f"float32({x})"
        return f"{target.name}({x})"

    # -- positions: integers without wraparound ---------------------------

    def position(self, x: Expr) -> str:
        """Return the integer text of a position."""
        where = affine(x)
        if where is not None:
            return self.affine_text(where)
        if x.op in ("add", "sub", "mul"):
            a, b = self.position(x.args[0]), self.position(x.args[1])
            if x.op == "mul":
                return f"({a}) * ({b})"
            return f"{a} + {b}" if x.op == "add" else f"{a} - ({b})"
        if self.divides(x):
            name = "div" if x.op in ("floordiv", "truncdiv") else "rem"
            return f"{name}({self.position(x.args[0])}, {x.args[1].value})"
        if self.widens(x):
            return self.position(x.args[0])
        return f"int({self.ready(x)})"

    def affine_text(self, where: Affine) -> str:
        """Return `offset + i0 * stride + ...`, with merged dims as one where their strides allow it."""
        dims, name = self.merged
        strides = dict(where.strides)
        parts = []
        if dims:
            stride = step = strides.get(dims[-1], 0)
            for d in reversed(dims):
                if strides.get(d, 0) != step:
                    stride = 0
                step *= self.dims[d]
            if stride:
                parts.append(name if stride == 1 else f"{name} * {stride}")
                strides = {d: s for d, s in strides.items() if d not in dims}
        parts += [f"i{d}" if s == 1 else f"i{d} * {s}" for d, s in sorted(strides.items())]
        if where.offset or not parts:
            parts.append(str(where.offset))
        return " + ".join(parts)

    def position_leaves(self, x: Expr) -> list[Expr]:
        """Return the values that a position is made of."""
        if affine(x) is not None:
            return []
        if x.op in ("add", "sub", "mul"):
            return [*self.position_leaves(x.args[0]), *self.position_leaves(x.args[1])]
        if self.divides(x) or self.widens(x):
            return self.position_leaves(x.args[0])
        return [x]

    def divides(self, x: Expr) -> bool:
        """Whether `x` is a division of non-negative numbers by a constant, which is cheap."""
        if (
            x.op not in ("floordiv", "truncdiv", "mod", "truncmod")
            or x.args[1].op != "const"
            or x.dtype.kind == "float"
        ):
            return False
        low, high = bounds(x.args[0])
        return low >= 0 and high < 2**31 and x.args[1].value > 0

    def widens(self, x: Expr) -> bool:
        """Return whether a node only changes the width of an integer that fits both."""
        source = x.args[0].dtype if x.args else x.dtype
        return (
            x.op == "cast"
            and x.dtype in (int32, int64)
            and source in (int32, int64)
            and bounds(x.args[0]) != _UNKNOWN
        )

    # -- statements ---------------------------

    def checks(self, level: str, late: bool = False) -> None:
        """Test the indices of one level: those that are results of reductions are `late`."""
        for check in self.kernel.checks:
            reduced = any(isinstance(d, tuple) for d in self.deps(check.value))
            if check.level == level and (reduced and level == "outer") == late:
                self.report(check)

    def report(self, check: Check) -> None:
        """Test an index, and note it where it fails."""
        self.line(f"if {self.fails(check)}:")
        self.line(f"    report(status, {check.site}, {self.value(check.value)})")

    def fails(self, check: Check) -> str:
        """Return the test that holds where an index is out of its range."""
        value, name = self.value(check.value), check.value.dtype.name
        return f"({value} < {name}({check.low})) | ({value} >= {name}({check.high}))"

    def checks_ahead(
        self, head: str, known: Dep, prepare: Callable[[], None] | None = None
    ) -> None:
        """Test the indices of a loop before it: a report in a loop would keep it from being vectors.

        The tests of all turns come together first, and only where one fails are they made one by one.
        """
        here = self.scopes[-1].known
        inside = [c for c in self.kernel.checks if not self.deps(c.value) <= here]
        for check in self.kernel.checks:
            if check not in inside:
                self.report(check)
        if not inside:
            return

        def each(body: Callable[[Check], None]) -> None:
            """Write the tests that vary within the loop, in a loop of their own."""
            self.open(known)
            if prepare is not None:
                prepare()
            for check in inside:
                body(check)
            self.close(head)

        self.line("bad = int32(0)")
        each(lambda c: self.line(f"bad = bad | int32({self.fails(c)})"))
        self.open()
        each(self.report)
        self.close("if bad != int32(0):")

    def prepare(self, stores: Iterable[Store]) -> list[tuple[Store, str, str, str]]:
        """Compute what the stores need. Values come before the first write, for an output may be an input too."""
        ready = []
        for s in stores:
            value = self.value(s.value)
            for leaf in self.position_leaves(s.position):
                self.value(leaf)
            valid = "" if s.valid is None else self.value(s.valid)
            ready.append((s, self.position(s.position), value, valid))
        return ready

    def write(self, ready: list[tuple[Store, str, str, str]]) -> None:
        """Write stores whose parts are computed, each behind its condition."""
        for s, position, value, valid in ready:
            target = f"b{s.buffer}[{position}]"
            if s.combine != "set":
                value = self.combined(s, target, value)
            if valid:
                self.line(f"if {valid}:")
            self.line(f"{'    ' if valid else ''}{target} = {value}")

    def combined(self, s: Store, target: str, value: str) -> str:
        """Return the text of an old value combined with a new one."""
        dtype = self.kernel.buffers[s.buffer].dtype
        old = target
        if dtype in (float16, bfloat16):
            widen = "float32" if dtype is float16 else "from_bfloat16"
            old, value = f"{widen}({old})", f"{widen}({value})"
        text = called(FUNCTIONS[s.combine], old, value)
        if dtype is float16:
            return f"float16({text})"
        return f"to_bfloat16({text})" if dtype is bfloat16 else text

    def inner_number(self) -> str:
        """Return the row-major number of the inner point."""
        strides: dict[int, int] = {}
        stride = 1
        for d in range(len(self.dims) - 1, self.first_inner - 1, -1):
            if self.dims[d] > 1:
                strides[d] = stride
            stride *= self.dims[d]
        return self.affine_text(Affine(0, strides))

    # -- the kernel ---------------------------

    def render(self) -> str:
        """Return the source of `kernel(begin, end, buffers, arguments, status)`, for numba."""
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
        self.scopes[-1].lines[:0] = arrays

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

    def inner_loops(self, body: Callable[[], None], head: str = "", merge: bool = False) -> None:
        """Nest the inner loops around `body`; `head` replaces the range of the outermost.

        With `merge`, short innermost loops become one.
        """
        live = [d for d in range(self.first_inner, len(self.dims)) if self.dims[d] > 1]
        together = self.short_loops(live[1:] if head else live) if merge else []
        merged = self.merged
        apart = live[: len(live) - len(together)]
        for d in apart:
            self.open(d)
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
        for d in reversed(apart):
            span = head if head and d == live[0] else f"range({self.dims[d]})"
            self.close(f"for i{d} in {span}:")
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
        sign = ">" if r.op == "argmax" else "<"
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
        if r.op in ("max", "min") and r.value.dtype.kind == "float":
            return f"unorder(acc{k}, {r.value.dtype.name})"
        return f"acc{k} != int32(0)" if r.value.dtype is bool_ else f"acc{k}"

    # -- many outer points at once ---------------------------

    def column_kernel(self) -> None:
        """Write a kernel whose reductions run across memory: COLUMNS neighbours at once."""
        outer = self.kernel.outer
        last = max(d for d, size in enumerate(outer) if size > 1)
        self.arrays: list[str] = []
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

        def body() -> None:
            """Write what one inner point adds to a column."""
            for k, r in reduces:
                self.column_accumulate(k, r, f"part{k}" if k in blocked else f"acc{k}")

        def add_parts() -> None:
            """Add the blocks' parts to the sums."""
            for k in blocked:
                self.line(f"acc{k}[c] = acc{k}[c] + part{k}[c]")

        self.columns(last, lambda: clear(False))
        if not blocked:
            self.inner_loops(lambda: self.columns(last, body))
        else:
            first = live[0]
            size = max(SUM_BLOCK // 8 // max(total // self.dims[first], 1), 1)
            self.open()
            self.columns(last, lambda: clear(True))
            self.inner_loops(
                lambda: self.columns(last, body), f"range(j, min(j + {size}, {self.dims[first]}))"
            )
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

    def column_accumulate(self, k: int, r: Reduce, acc: str) -> None:
        """Write what one inner point adds to one column's accumulator."""
        value = self.value(r.value)
        old = f"{acc}[c]"
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


def called(function: ScalarFunction, a: str, b: str) -> str:
    """Return the text of a function of two values."""
    return f"{a} {function.infix} {b}" if function.infix else f"{function.loops}({a}, {b})"


def is_pair(r: Reduce) -> bool:
    """Whether an argmax needs its value and its position apart: 64-bit values leave no room for both in one integer."""
    return r.reducer.is_position and r.value.dtype.itemsize == 8


def start(r: Reduce) -> str:
    """Return the accumulator's first value in a row kernel."""
    dtype = r.value.dtype
    if r.reducer.is_position and not is_pair(r):
        return f"int64({integer_limits(int64)[0]})"
    if r.op in ("max", "min") and dtype.kind == "float":
        wide = int64 if dtype.itemsize == 8 else int32
        return f"{wide.name}({r.reducer.identity(wide)})"
    return column_start(r)


def column_start(r: Reduce) -> str:
    """Return the accumulator's first value where it has the value's own type."""
    dtype = r.value.dtype
    if dtype is bool_:
        return f"int32({int(r.identity)})"
    return f"{dtype.name}({r.identity})"


def constant(node: Expr) -> str:
    """Return the text of a constant."""
    if node.dtype is bfloat16:
        return f"bfloat16({int.from_bytes(node.dtype.to_bytes([node.value]), 'little')})"
    if isinstance(node.value, float) and not math.isfinite(node.value):
        return f"{node.dtype.name}({str(node.value).lower()})"
    return f"{node.dtype.name}({node.value!r})"


def identifier(name: str) -> str:
    """Return `name` as a Python identifier."""
    text = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    return text if text and not text[0].isdigit() else f"k_{text}"


_UNKNOWN = (-math.inf, math.inf)


def bounds(x: Expr) -> tuple[float, float]:
    """Return the least and largest value of an integer expression of loop variables; infinite where unknown."""
    match x.op:
        case "const":
            return float(x.value), float(x.value)
        case "index":
            return 0.0, x.value[1] - 1.0
        case "cast" if x.dtype.is_integral and x.args[0].dtype.is_integral:
            return bounds(x.args[0]) if x.dtype.itemsize >= 4 else _UNKNOWN
        case "add" | "sub" | "mul" | "floordiv" | "mod" | "min" | "max":
            (a, b), (c, d) = bounds(x.args[0]), bounds(x.args[1])
        case _:
            return _UNKNOWN
    if not all(map(math.isfinite, (a, b, c, d))):
        return _UNKNOWN
    match x.op:
        case "add":
            return a + c, b + d
        case "sub":
            return a - d, b - c
        case "mul":
            return min(a * c, a * d, b * c, b * d), max(a * c, a * d, b * c, b * d)
        case "floordiv" if c == d > 0:
            return a // c, b // c
        case "mod" if c == d > 0:
            return 0.0, min(b, c - 1) if a >= 0 else c - 1
        case "min":
            return min(a, c), min(b, d)
        case "max":
            return max(a, c), max(b, d)
    return _UNKNOWN


def python_source(kernel: Kernel, varying: bool = False) -> str:
    """Return the loop text of `kernel`; if its sizes vary, its arrays have room for larger ones."""
    text = _Writer(kernel).render()
    return _LOCAL.sub(_roomy, text) if varying else text


_LOCAL = re.compile(r"(local\(\w+, )(\d+)\)")


def _roomy(found: re.Match[str]) -> str:
    return f"{found[1]}{1 << (int(found[2]) - 1).bit_length()})"
