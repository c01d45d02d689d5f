"""Values in the loop text of `pysource`: expressions, positions, checks and stores. Imports floors 0 and 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from webtorch.ir.dtype import bfloat16, bool_, float16, float32, int32, int64, integer_limits
from webtorch.ir.expr import FUNCTIONS, Expr, Range, ScalarFunction
from webtorch.ir.kernel import Check, Kernel, Reduce, Store
from webtorch.lower.affine import Affine, affine
from webtorch.lower.bounds import UNKNOWN, bounds
from webtorch.lower.walk import Dep, ValueWalk


@dataclass
class _Scope:
    """One loop body: what is known inside it, and its lines."""

    known: frozenset[Dep]
    names: dict[Expr, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)


class ValueWriter(ValueWalk[str]):
    """Writes values, each once, in the outermost loop that knows what it depends on."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel
        self.dims = kernel.outer + kernel.inner
        self.first_inner = len(kernel.outer)
        self.scopes: list[_Scope] = []
        self.bounds_memo: dict[Expr, Range] = {}
        self.count = 0
        # Values kept in a row between stages: expression -> array, and those already written.
        self.rows: dict[Expr, str] = {}
        self.written: set[Expr] = set()
        # Whether values are being kept at the moment, and which ones the current sweep has kept.
        self.keeping = False
        self.kept: set[Expr] = set()
        # Dims that one loop walks together, in row-major order, and the loop's variable.
        self.merged: tuple[tuple[int, ...], str] = ((), "")

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
            for lane, other in enumerate(self.lanes(node)):
                scope.names[other] = f"{name}[{lane}]"
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
        low, high = bounds(x.args[0], self.bounds_memo)
        return low >= 0 and high < 2**31 and x.args[1].value > 0

    def widens(self, x: Expr) -> bool:
        """Return whether a node only changes the width of an integer that fits both."""
        source = x.args[0].dtype if x.args else x.dtype
        return (
            x.op == "cast"
            and x.dtype in (int32, int64)
            and source in (int32, int64)
            and bounds(x.args[0], self.bounds_memo) != UNKNOWN
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
    if r.reducer.is_extreme and dtype.kind == "float":
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
