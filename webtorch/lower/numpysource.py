"""Kernel -> NumPy source: whole-array code over the loop nest, for small work and where no compiler
is. Imports floors 0-2.

The text defines `kernel(begin, end, b0, ..., a0, ..., status)`: buffers are flat arrays, and the
range is over the first loop dimension, so that a caller can work in blocks that stay in cache.
Names that the text uses are those of `runtime/backends/cpu/numpy_math.py`.
"""

from __future__ import annotations

from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType, bfloat16, bool_, float16, int32
from webtorch.ir.expr import FUNCTIONS, Expr
from webtorch.ir.kernel import Check, Kernel, Store
from webtorch.lower.affine import Affine, affine, index_of


def array_type(dtype: DType) -> str:
    """Return the NumPy type that holds `dtype`; bfloat16 is kept as its 16 bits."""
    return "bool_" if dtype is bool_ else dtype.numpy or dtype.name


class NumpyWriter:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.dims = kernel.outer + kernel.inner
        self.rank = len(self.dims)
        self.first_inner = len(kernel.outer)
        self.lines: list[str] = []
        self.names: dict[Expr, str] = {}
        self.groups: dict[tuple[Expr, ...], str] = {}
        self.count = 0
        # What positions, and the numbers that they are made of, are counted in.
        self.integer = "int64" if kernel.is_large else "int32"

    def fresh(self, prefix: str) -> str:
        """Return a new name."""
        self.count += 1
        return f"{prefix}{self.count}"

    def emit(self, text: str) -> None:
        """Write a line of the function."""
        self.lines.append("    " + text)

    def assign(self, prefix: str, text: str) -> str:
        """Write the assignment of a new name; return the name."""
        name = self.fresh(prefix)
        self.emit(f"{name} = {text}")
        return name

    # -- memory ---------------------------

    def view(self, buffer: int, where: Affine) -> str:
        """Return a strided view over the loop dims; dims without a stride have size 1."""
        if not self.rank:
            return f"b{buffer}[{where.offset}:{where.offset + 1}].reshape(())"
        strides = [where.stride(d) for d in range(self.rank)]
        first = strides[0]
        start = " + ".join(
            filter(
                None,
                [str(where.offset) if where.offset or not first else "", _times("begin", first)],
            )
        )
        sizes = ["n" if d == 0 else str(s) for d, s in enumerate(self.dims)]
        if self.rank == 1 and first == 1:
            stop = f"{where.offset} + end" if where.offset else "end"
            return f"b{buffer}[{start}:{stop}]"
        shape = ", ".join(s if strides[d] else "1" for d, s in enumerate(sizes))
        return f"view(b{buffer}, {start}, ({shape},), ({', '.join(map(str, strides))},))"

    def load(self, node: Expr) -> str:
        """Return the text that reads a buffer: a strided view where the position is affine."""
        slot = node.value
        assert isinstance(slot, int)
        if len(node.args) == 1:
            where = affine(node.args[0])
            if where is not None:
                return self.view(slot, where)
            return f"b{slot}[{self.value(node.args[0])}]"
        position, valid, other = map(self.value, node.args)
        return f"guarded(b{slot}, {position}, {valid}, {other})"

    # -- expressions ---------------------------

    def value(self, root: Expr) -> str:
        """Return the name of an expression's value, and write what it needs before."""
        found = self.names.get(root)
        if found is None:
            for node in ex.walk(root):
                if node not in self.names and self.needed(node, root):
                    self.names[node] = self.node(node)
            found = self.names[root]
        return found

    def needed(self, node: Expr, root: Expr) -> bool:
        """Return whether a node gets a name in this order of writing."""
        # Positions of strided loads are never computed: walk() meets them first, `load` asks for them if it must.
        return node is root or node in self.wanted

    def node(self, node: Expr) -> str:
        """Return the name or text of a node whose operands are written."""
        match node.op:
            case "const":
                return self.constant(node)
            case "arg":
                return f"a{node.value}"
            case "index":
                dim, size = index_of(node)
                shape = ", ".join("-1" if d == dim else "1" for d in range(self.rank))
                span = "begin, end" if dim == 0 else f"0, {size}"
                return self.assign("i", f"arange({span}, dtype={self.integer}).reshape({shape})")
            case "reduced":
                return f"r{node.value}"
            case "load":
                return self.assign("t", self.load(node))
            case "cast":
                return self.assign("t", self.cast(node))
            case "bitcast":
                return self.assign(
                    "t", f"{self.value(node.args[0])}.view({array_type(node.dtype)})"
                )
            case "philox":
                if node.args not in self.groups:
                    self.groups[node.args] = self.assign(
                        "p", f"philox({', '.join(map(self.value, node.args))})"
                    )
                return f"{self.groups[node.args]}[{node.value}]"
        return self.assign("t", self.call(node))

    def call(self, node: Expr, out: str = "") -> str:
        """Return the call of an op; `out` names the array that takes the result of a ufunc."""
        args = ", ".join(map(self.value, node.args))
        name = self.function(node)
        return f"{name}({args}, out={out})" if out else f"{name}({args})"

    def function(self, node: Expr) -> str:
        """Return the name of the NumPy function of a node, by its operand's type."""
        return FUNCTIONS[node.op].numpy or node.op

    def constant(self, node: Expr) -> str:
        """Return the text of a constant, typed as its dtype."""
        value = node.value
        if node.dtype is bfloat16:
            return f"uint16({int.from_bytes(node.dtype.to_bytes([value]), 'little')})"
        text = (
            f'float("{value}")'
            if isinstance(value, float) and (value != value or value in (ex.math.inf, -ex.math.inf))
            else repr(value)
        )
        kind = self.integer if node.dtype is int32 else array_type(node.dtype)
        return f"{kind}({text})"

    def cast(self, node: Expr) -> str:
        """Return the text of a conversion; bfloat16 lies in memory as uint16."""
        source, target = node.args[0].dtype, node.dtype
        x = self.value(node.args[0])
        if source is bfloat16:
            x = f"from_bfloat16({x})"
            return x if target.name == "float32" else f"convert({x}, {array_type(target)})"
        if target is bfloat16:
            return f"to_bfloat16({x})"
        if target is bool_:
            return f"not_equal({x}, {array_type(source)}(0))"
        return f"convert({x}, {array_type(target)})"

    # -- the kernel -----------------------------------------------------------------------------------------------

    def render(self) -> str:
        """Return the source of the function (begin, end, buffers, arguments, status)."""
        kernel = self.kernel
        params = ["begin", "end"]
        params += [f"b{i}" for i in range(len(kernel.buffers))]
        params += [f"a{i}" for i in range(len(kernel.args))]
        params.append("status")
        self.wanted: set[Expr] = set()
        roots = [r.value for r in kernel.reduces] + [c.value for c in kernel.checks]
        for store in kernel.stores:
            roots += [store.value, *([] if store.valid is None else [store.valid])]
            if self.strided(store) is None:
                roots.append(store.position)
        for root in roots:
            self.want(root)
        # An index may be the result of a reduction.
        late = {c for c in kernel.checks if any(n.op == "reduced" for n in ex.walk(c.value))}
        self.checks([c for c in kernel.checks if c not in late])
        inner = tuple(range(self.first_inner, self.rank))
        full = ", ".join(["n" if d == 0 else str(s) for d, s in enumerate(self.dims)])
        for i, reduce in enumerate(kernel.reduces):
            value = self.value(reduce.value)
            if inner:
                self.emit(
                    f"r{i} = reduce_{reduce.op}({value}, ({full},), {self.first_inner}, {array_type(reduce.dtype)})"
                )
            elif reduce.reducer.is_position:
                self.emit(f"r{i} = {array_type(reduce.dtype)}(0)")
            else:
                self.emit(f"r{i} = {value}")
        self.checks([c for c in kernel.checks if c in late])
        self.stores(kernel.stores)
        head = f"def kernel({', '.join(params)}):"
        if self.rank:
            head += "\n    n = end - begin"
        return "\n".join([head, *self.lines]) + "\n"

    def checks(self, checks: list[Check]) -> None:
        """Write the tests of indices."""
        for c in checks:
            self.emit(f"check(status, {c.site}, {self.value(c.value)}, {c.low}, {c.high})")

    def want(self, root: Expr) -> None:
        """Mark what must be computed: everything but the positions that become views."""
        stack = [root]
        while stack:
            node = stack.pop()
            if node in self.wanted:
                continue
            self.wanted.add(node)
            if node.op == "load" and len(node.args) == 1 and affine(node.args[0]) is not None:
                continue
            stack.extend(node.args)

    def stores(self, stores: tuple[Store, ...]) -> None:
        """Write the stores of one level; several are computed before the first one writes."""
        # Every value is computed before the first store, for an output may be an input too.
        direct = len(stores) == 1 and stores[0].combine == "set" and stores[0].valid is None
        if direct and self.store_into(stores[0]):
            return
        values = [self.value(s.value) for s in stores]
        written = {s.buffer for s in stores}
        for i, s in enumerate(stores):
            root = s.value
            while root.op == "cast":
                root = root.args[0]
            if root.op == "load" and root.value in written and len(stores) > 1:
                # A view of what another store may overwrite first.
                values[i] = self.assign("t", f"{values[i]}.copy()")
        targets = []
        for s in stores:
            where = self.strided(s)
            targets.append(self.value(s.position) if where is None else "")
        valids = [self.value(s.valid) if s.valid is not None else "" for s in stores]
        for s, value, target, valid in zip(stores, values, targets, valids):
            if not target:
                where = self.strided(s)
                assert where is not None
                self.emit(f"put({self.view(s.buffer, where)}, {value})")
                continue
            alone = self.first_inner if s.level == "outer" else self.rank
            sizes = ["n" if d == 0 else str(size) for d, size in enumerate(self.dims)]
            shape = ", ".join(size if d < alone else "1" for d, size in enumerate(sizes))
            shape = f"({shape},)" if shape else "()"
            self.emit(
                f'scatter(b{s.buffer}, {target}, {value}, {valid or None}, {shape}, "{s.combine}")'
            )

    def strided(self, s: Store) -> Affine | None:
        """Return the strides of a store that is an assignment to a view, else None."""
        if s.combine != "set" or s.valid is not None:
            return None
        where = affine(s.position)
        if where is None:
            return None
        level = self.first_inner if s.level == "outer" else self.rank
        # A dim without a stride would write one element many times.
        return where if all(where.stride(d) for d in range(level) if self.dims[d] > 1) else None

    def store_into(self, s: Store) -> bool:
        """Write the last op of a single store straight into the output; False where that does not fit."""
        where = self.strided(s)
        node = s.value
        reads = {n.value for n in ex.walk(node) if n.op == "load" and n is not node}
        if (
            where is None
            or self.kernel.inner
            or self.rank == 0
            or node.op not in FUNCTIONS
            or not FUNCTIONS[node.op].numpy
        ):
            return False
        # NumPy 2.4's negative is wrong in place at a distance of 16 bytes: only neighbours are
        # written where they were read.
        in_place = where.stride(self.rank - 1) == 1 and self.one_to_one(s, where)
        if s.buffer in reads and not in_place:
            return False
        if self.kernel.buffers[s.buffer].dtype is not node.dtype or node.dtype in (
            bfloat16,
            float16,
        ):
            return False
        self.emit(self.call(node, self.view(s.buffer, where)))
        return True

    def one_to_one(self, s: Store, where: Affine) -> bool:
        """Whether the kernel reads an updated buffer only at the element that it writes."""
        loads = [n for n in ex.walk(s.value) if n.op == "load" and n.value == s.buffer]
        return all(len(n.args) == 1 and affine(n.args[0]) == where for n in loads)


def _times(name: str, factor: int) -> str:
    return "" if not factor else name if factor == 1 else f"{name} * {factor}"


def numpy_source(kernel: Kernel) -> str:
    """Return the NumPy text of `kernel`."""
    return NumpyWriter(kernel).render()
