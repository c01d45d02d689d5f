"""Kernel -> plain Python source, for where there is neither NumPy nor a compiler. Imports floors 0-2.

The text defines `kernel(b0, ..., a0, ..., status)`, which does all points one after the other.
Buffers are memoryviews of the element type (16-bit floats as their bits). A value is a Python
number that its type can hold: float32 results are rounded, integers wrap around. The names that the
text calls are in `runtime/backends/plain/arithmetic.py`.
"""

from __future__ import annotations

import struct

from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType, bool_, float16, float32, float64, integer_limits, uint64
from webtorch.ir.expr import FUNCTIONS, Expr, Range
from webtorch.ir.kernel import Check, Kernel, Reduce, Store
from webtorch.lower.bounds import UNKNOWN, bounds


def _const(value: float | int, dtype: DType) -> str:
    if dtype.kind != "float":
        return repr(value)
    value = float(value)
    if dtype is not float64 and value == value and abs(value) != float("inf"):
        (value,) = struct.unpack("<f", float32.to_bytes([value]))
    return repr(value) if value == value and abs(value) != float("inf") else f"float('{value}')"


class _Writer:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.first_inner = len(kernel.outer)
        self.lines: list[str] = []
        self.depth = 1
        self.count = 0
        # Names of computed expressions: those of the outer point, and of the inner point at hand.
        self.outer: dict[Expr, str] = {}
        self.inner: dict[Expr, str] | None = None
        self.is_inner: dict[Expr, bool] = {}
        self.bounds: dict[Expr, Range] = {}

    def emit(self, text: str) -> None:
        """Write a line at the current depth."""
        self.lines.append("    " * self.depth + text)

    def varies(self, node: Expr) -> bool:
        """Whether a value differs between the inner points of one outer point."""
        found = self.is_inner.get(node)
        if found is None:
            for n in ex.walk(node):
                if n not in self.is_inner:
                    own = n.op == "index" and n.value[0] >= self.first_inner
                    self.is_inner[n] = own or any(self.is_inner[a] for a in n.args)
            found = self.is_inner[node]
        return found

    def value(self, root: Expr) -> str:
        """Return the text of a value, computing before it what it is made of."""
        for node in ex.walk(root):
            names = self.inner if self.inner is not None and self.varies(node) else self.outer
            if node not in names:
                names[node] = self.text(node, names)
        return self.name(root)

    def name(self, node: Expr) -> str:
        """Return the name of a node's value at the current level of loops."""
        if self.inner is not None and self.varies(node):
            return self.inner[node]
        return self.outer[node]

    def text(self, node: Expr, names: dict[Expr, str]) -> str:
        """Return the text of a node without operands, or of an operation on named ones."""
        match node.op:
            case "const":
                return _const(node.value, node.dtype)
            case "arg":
                return f"a{node.value}"
            case "index":
                return f"i{node.value[0]}"
            case "reduced":
                return f"r{node.value}"
        self.count += 1
        self.emit(f"t{self.count} = {self.operation(node)}")
        return f"t{self.count}"

    def operation(self, node: Expr) -> str:
        """Return the text of an operation on its operands' names."""
        args = [self.name(a) for a in node.args]
        op, dtype = node.op, node.dtype
        source = node.args[0].dtype
        if op == "load":
            position = args[0]
            one = self.loaded(node.value, position)
            return one if len(args) == 1 else f"{one} if {args[1]} else {args[2]}"
        if op == "where":
            return f"{args[1]} if {args[0]} else {args[2]}"
        if op == "philox":
            return f"philox({', '.join(args)})[{node.value}]"
        if op == "cast":
            return self.cast(args[0], source, dtype)
        if op == "bitcast":
            return f"bitcast({args[0]}, {source.name!r}, {dtype.name!r})"
        if op == "not":
            return f"not {args[0]}"
        function = FUNCTIONS[op]
        if function.infix:
            text = f"{args[0]} {function.infix} {args[1]}"
        elif op == "neg":
            text = f"-{args[0]}"
        else:
            kind = "f" if source.kind == "float" else "i"
            text = f"{kind}_{op}({', '.join(args)})"
        if function.gives_bool:
            return text
        if dtype.kind == "float":
            return text if dtype is float64 or function.exact else f"f32({text})"
        # Where the bounds are known it never overflows.
        if not function.wraps or dtype is bool_ or bounds(node, self.bounds) != UNKNOWN:
            return text
        return f"w_{dtype.name}({text})"

    def loaded(self, slot: int, position: str) -> str:
        """Return the text of a buffer's element as a Python number."""
        dtype = self.kernel.buffers[slot].dtype
        text = f"b{slot}[{position}]"
        return f"from_{dtype.name}({text})" if dtype.name in ("float16", "bfloat16") else text

    def cast(self, x: str, source: DType, target: DType) -> str:
        """Return the text of a conversion between Python numbers of two dtypes, wrapped and rounded."""
        if source is target:
            return x
        if target is bool_:
            return f"{x} != 0"
        if target.kind == "float":
            if source.kind != "float":
                x = f"float({x})"
            if target is float64 or (source is not float64 and target is float32):
                return x if source.kind == "float" or target is float64 else f"f32({x})"
            return f"f32({x})" if target is float32 else f"near_{target.name}({x})"
        to_int = "to_upper_int" if target is uint64 else "to_int"
        whole = f"{to_int}({x})" if source.kind == "float" else f"int({x})"
        low, high = integer_limits(target)
        before_low, before_high = (
            integer_limits(source) if source.kind != "float" else (low - 1, high + 1)
        )
        fits = low <= before_low and before_high <= high
        return whole if fits else f"w_{target.name}({whole})"

    def store(self, s: Store, position: str, value: str, valid: str) -> None:
        """Write a store, combined with the old value if it is not a plain one."""
        dtype = self.kernel.buffers[s.buffer].dtype
        old = self.loaded(s.buffer, position)
        if s.combine != "set":
            infix = FUNCTIONS[s.combine].infix
            if infix:
                value = f"{old} {infix} {value}"
                if dtype.kind != "float" and dtype is not bool_:
                    value = f"w_{dtype.name}({value})"
            else:
                value = f"{'f' if dtype.kind == 'float' else 'i'}_{s.combine}({old}, {value})"
        if dtype.name in ("float16", "bfloat16"):
            value = f"to_{dtype.name}({value})"
        elif dtype is bool_:
            value = f"bool({value})"
        guard = f"if {valid}: " if valid else ""
        self.emit(f"{guard}b{s.buffer}[{position}] = {value}")

    # -- the loop nest

    def loops(self, dims: range, sizes: tuple[int, ...]) -> None:
        """Open a loop for each dim."""
        for dim, size in zip(dims, sizes, strict=True):
            self.emit(f"for i{dim} in range({size}):")
            self.depth += 1

    def each_inner(self, roots: list[Expr]) -> int:
        """Open the loops over the inner points; what does not vary in them comes before. Returns the old depth."""
        for root in roots:
            for node in ex.walk(root):
                if not self.varies(node):
                    self.value(node)
        depth = self.depth
        inner = self.kernel.inner
        self.loops(range(self.first_inner, self.first_inner + len(inner)), inner)
        self.inner = {}
        return depth

    def end_inner(self, depth: int) -> None:
        """Leave the inner loops."""
        self.inner = None
        self.depth = depth

    def checks(self, checks: list[Check]) -> None:
        """Write the tests of indices, in the inner loops where they vary."""
        for c in checks:
            if not self.varies(c.value):
                self.emit(f"check(status, {c.site}, {self.value(c.value)}, {c.low}, {c.high})")
                continue
            depth = self.each_inner([c.value])
            self.emit(f"check(status, {c.site}, {self.value(c.value)}, {c.low}, {c.high})")
            self.end_inner(depth)

    def reduce(self, number: int, r: Reduce) -> None:
        """Write a reduction over the inner points, as r0, r1, ..."""
        value, name = r.value, f"r{number}"
        floating = value.dtype.kind == "float"
        first = _const(r.identity, value.dtype)
        self.emit(f"{name} = {first}")
        if r.reducer.is_position:
            self.emit(f"n{number} = at{number} = 0")
            self.emit(f"seen{number} = False")
        depth = self.each_inner([value])
        x = self.value(value)
        function = r.reducer.function(value.dtype)
        if r.reducer.is_position:
            self.emit(f"if not seen{number} or {r.op}_beats({x}, {name}):")
            self.emit(f"    {name} = {x}; at{number} = n{number}; seen{number} = True")
            self.emit(f"n{number} += 1")
        elif function.infix:
            self.emit(f"{name} {function.infix}= {x}")
        else:
            self.emit(f"{name} = {'f' if floating else 'i'}_{function.name}({name}, {x})")
        self.end_inner(depth)
        if r.reducer.is_position:
            self.emit(f"{name} = at{number}")
        elif function.wraps and value.dtype is not bool_:
            if floating and value.dtype is not float64:
                near = "f32" if value.dtype is not float16 else "near_float16"
                self.emit(f"{name} = {near}({name})")
            elif not floating:
                self.emit(f"{name} = w_{value.dtype.name}({name})")

    def render(self) -> str:
        """Return the source of the function `kernel(buffers, arguments, status)`."""
        kernel = self.kernel
        names = [f"b{i}" for i in range(len(kernel.buffers))]
        names += [f"a{i}" for i in range(len(kernel.args))]
        head = f"def kernel({', '.join([*names, 'status'])}):"
        self.loops(range(self.first_inner), kernel.outer)
        late = [c for c in kernel.checks if any(n.op == "reduced" for n in ex.walk(c.value))]
        self.checks([c for c in kernel.checks if c not in late])
        for number, r in enumerate(kernel.reduces):
            self.reduce(number, r)
        self.checks(late)
        # Every value is computed before the first store: an output may be an input too.
        ready = [(s, *self.parts(s)) for s in kernel.stores if s.level == "outer"]
        inside = [s for s in kernel.stores if s.level == "inner"]
        if inside:
            roots = [e for s in inside for e in (s.position, s.value, s.valid) if e is not None]
            depth = self.each_inner(roots)
            for made in [(s, *self.parts(s)) for s in inside]:
                self.store(*made)
            self.end_inner(depth)
        for made in ready:
            self.store(*made)
        return "\n".join([head, *self.lines, "    return"]) + "\n"

    def parts(self, s: Store) -> tuple[str, str, str]:
        """Return the texts of a store's position, value and condition ("" without one)."""
        valid = self.value(s.valid) if s.valid is not None else ""
        return self.value(s.position), self.value(s.value), valid


def plain_source(kernel: Kernel) -> str:
    """Return the plain Python text of `kernel`."""
    return _Writer(kernel).render()
