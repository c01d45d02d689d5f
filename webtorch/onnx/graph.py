"""The file that is being written: nodes, weights, and integers that depend on sizes. Floor 6.

A function is recorded at several sizes of the dynamic dimensions, each recording is written as a
`Graph`, and `merge` finds what differs between them. Only integers may: sizes, bounds, axes'
lengths. Each of those is explained by the dimensions of a tensor at hand, or by a polynomial of the
dynamic dimensions, and computed in the file by Shape, Gather and arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias

from webtorch.capture.dynamic import Point, _monomials, _row
from webtorch.errors import CaptureError
from webtorch.ir.dtype import DType, Scalar
from webtorch.ir.view import Shape
from webtorch.tensors.tensor import Tensor

# What a slice's end is when it goes to the end.
TO_THE_END = 2**63 - 1


class ExportError(CaptureError):
    """A function cannot be written as ONNX: names the operation, what it lacks, and a way out."""


OnnxExporterError = ExportError


# What an attribute of a node may be; None: the node has none of this name.
Attr: TypeAlias = int | float | str | Sequence[int] | Sequence[str] | None


@dataclass
class Step:
    """One node of the file."""

    op: str
    inputs: list[str]
    outputs: list[str]
    attrs: dict[str, Attr] = field(default_factory=dict)
    scope: str = ""
    # The operation that the user called, for messages.
    source: str = ""


@dataclass
class Ints:
    """Integers that may depend on sizes: a shape, bounds. `near`: tensors whose dims may explain them."""

    values: tuple[int, ...]
    near: tuple[tuple[str, tuple[int, ...]], ...] = ()
    scalar: bool = False
    # "reshape": 0 keeps a dim and one -1 is free; "expand": 1 keeps the dim.
    use: str = ""


@dataclass
class Graph:
    """Nodes in order, integers and constants by name."""

    steps: list[Step] = field(default_factory=list)
    ints: dict[str, Ints] = field(default_factory=dict)
    # name -> a scalar number and its type, which may depend on sizes
    numbers: dict[str, tuple[Scalar, DType]] = field(default_factory=dict)
    # name -> a tensor of data
    data: dict[str, Tensor] = field(default_factory=dict)
    # Those of them that are no weights.
    plain: set[str] = field(default_factory=set)
    # constant name -> the call that gave it, where one did
    folded: dict[str, tuple[int, ...]] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)

    def fresh(self, base: str) -> str:
        """Return a name that is not taken yet."""
        count = self.taken.get(base)
        self.taken[base] = 1 if count is None else count + 1
        if count is None:
            return base
        return self.fresh(f"{base}_{count}")


def _left_open(
    rows: Sequence[Ints], position: int, shapes: Sequence[Shape], has_free: bool
) -> int | None:
    """Return how a reshape or an expansion names a size without computing it, None where it cannot.

    `shapes`: of the tensor that it is of, for each of the rows; `has_free`: whether a size before it is -1.
    """
    sizes, use = rows[0].values, rows[0].use
    if use not in ("reshape", "expand"):
        return None

    def keeps(place: int, at: int) -> bool:
        """Whether a size is always that of the tensor's own dim."""
        return all(
            0 <= at < len(s) and s[at] == r.values[place] for s, r in zip(shapes, rows, strict=True)
        )

    if use == "expand":
        return 1 if keeps(position, position - (len(sizes) - len(shapes[0]))) else None
    if keeps(position, position):
        return 0
    changing = [p for p in range(position + 1, len(sizes)) if len({r.values[p] for r in rows}) > 1]
    is_free = not has_free and all(keeps(p, p) for p in changing)
    return -1 if is_free and all(0 not in r.values for r in rows) else None


def different_constants(
    graphs: Sequence[Graph], read: Callable[[Tensor], bytes]
) -> set[tuple[int, ...]]:
    """Return the calls whose folded values differ between recordings: they depend on sizes."""
    first = graphs[0]
    found: set[tuple[int, ...]] = set()
    for name, number in first.folded.items():
        a = first.data[name]
        for g in graphs[1:]:
            other = [k for k, n in g.folded.items() if n == number]
            b = g.data[other[0]] if other else None
            if (
                b is None
                or a.shape != b.shape
                or a.dtype is not b.dtype
                or (a.numel() <= 1 << 20 and read(a) != read(b))
            ):
                found.add(number)
    return found


def merge(
    graphs: Sequence[Graph], points: Sequence[Point], symbols: Sequence[tuple[str, int]]
) -> Graph:
    """Return the first graph with what differs from the others computed from sizes.

    symbols: for each dynamic dimension an input and the dim that has it.
    """
    first = graphs[0]
    for other in graphs[1:]:
        _check_same(first, other)
    for name, a in first.data.items():
        # What was folded was compared before.
        if name not in first.folded and name in first.plain:
            for g in graphs[1:]:
                b = g.data[name]
                if a.shape != b.shape or a.tolist() != b.tolist():
                    users = [s.source or s.op for s in first.steps if name in s.inputs]
                    raise ExportError(
                        f"export: {(users or [name])[0]} reads positions that depend on a dynamic "
                        "dimension, and ONNX has no strided views: leave that dimension fixed, or write "
                        "it with slices"
                    )
    maker = _Sizes(first, points, symbols)
    for name, ints in list(first.ints.items()):
        rows = [g.ints[name] for g in graphs]
        if any(len(r.values) != len(ints.values) for r in rows):
            raise ExportError(
                f"export: the number of sizes in {name} depends on a dynamic dimension"
            )
        if all(r.values == ints.values for r in rows):
            continue
        maker.replace(name, rows)
    for name, (value, dtype) in list(first.numbers.items()):
        values = [g.numbers[name][0] for g in graphs]
        if any(v != value and not (v != v and value != value) for v in values):
            maker.replace_number(name, values, dtype)
    return first


def _check_same(a: Graph, b: Graph) -> None:
    for x, y in zip(a.steps, b.steps, strict=False):
        if (x.op, x.inputs) != (y.op, y.inputs):
            raise ExportError(
                f"export: what {x.source or x.op} records depends on the size of a dynamic dimension "
                f"({x.op} at one size, {y.op} at another): leave that dimension fixed, or write the "
                "function without a branch on sizes"
            )
        if x.attrs != y.attrs:
            names = [k for k in x.attrs if x.attrs[k] != y.attrs.get(k)]
            raise ExportError(
                f"export: {x.source or x.op} at {x.scope or 'the top'}: {', '.join(names)} of {x.op} "
                f"depends on a dynamic dimension ({[x.attrs[k] for k in names]} and "
                f"{[y.attrs.get(k) for k in names]}), and ONNX has it fixed: leave that dimension fixed"
            )
    if len(a.steps) != len(b.steps):
        raise ExportError(
            "export: the number of operations depends on the size of a dynamic dimension (a Python "
            "loop over it, say): leave that dimension fixed"
        )


class _Sizes:
    """Makes nodes that compute integers from the sizes of tensors."""

    def __init__(
        self, graph: Graph, points: Sequence[Point], symbols: Sequence[tuple[str, int]]
    ) -> None:
        self.graph, self.points, self.symbols = graph, points, symbols
        self.made: dict[Hashable, str] = {}
        self.place = 0

    def node(self, op: str, inputs: list[str], **attrs: Attr) -> str:
        """Return the result of an operator, added once for the same inputs and attributes."""
        key = (op, tuple(inputs), tuple(sorted(attrs.items())))
        if key not in self.made:
            out = self.graph.fresh(f"size_{op.lower()}")
            self.graph.steps.insert(self.place, Step(op, inputs, [out], attrs))
            self.place += 1
            self.made[key] = out
        return self.made[key]

    def constant(self, *values: int) -> str:
        """Return the name of a constant vector of integers."""
        name = f"const_{'_'.join(map(str, values))}"
        self.graph.ints[name] = Ints(values)
        return name

    def dim(self, tensor: str, d: int) -> str:
        """Return the name of a tensor's size along a dim, a vector of one."""
        return self.node("Gather", [self.node("Shape", [tensor]), self.constant(d)], axis=0)

    def at(self, step: int, inputs: Iterable[str]) -> None:
        """New nodes stand before a step; what stands later than it is not at hand."""
        self.place = step
        before = {o for s in self.graph.steps[:step] for o in s.outputs}
        self.made = {k: v for k, v in self.made.items() if v in before}

    def replace(self, name: str, rows: list[Ints]) -> None:
        """Compute a vector of integers that changes with the sizes, and use it in its place."""
        users = [i for i, s in enumerate(self.graph.steps) if name in s.inputs]
        if not users:
            return
        self.at(users[0], ())
        ints = rows[0]
        entries: list[str | int] = []
        for position in range(len(ints.values)):
            values = [r.values[position] for r in rows]
            near = list(zip(*(r.near for r in rows), strict=False))
            entry = values[0] if len(set(values)) == 1 else None
            if entry is None and near:
                entry = _left_open(rows, position, [shape for _, shape in near[0]], -1 in entries)
            entries.append(self.number(values, near, name) if entry is None else entry)
        if all(isinstance(e, int) for e in entries):
            ints.values = tuple(int(e) for e in entries)
            return
        parts = [self.constant(e) if isinstance(e, int) else e for e in entries]
        new = parts[0] if len(parts) == 1 else self.node("Concat", parts, axis=0)
        if ints.scalar:
            new = self.node("Squeeze", [new, self.constant(0)])
        self.exchange(name, new)
        self.graph.ints.pop(name)

    def exchange(self, name: str, new: str) -> None:
        """Use another result wherever one is read."""
        for step in self.graph.steps:
            if name in step.inputs:
                step.inputs = [new if x == name else x for x in step.inputs]

    def number(
        self, values: list[int], near: Sequence[Sequence[tuple[str, tuple[int, ...]]]], name: str
    ) -> str:
        """Return the name of a vector of one integer that takes these values at the points."""
        for own in near:
            tensor = own[0][0]
            for d in range(len(own[0][1])):
                sizes = [shape[d] for _, shape in own]
                if sizes == values:
                    return self.dim(tensor, d)
        found = self.polynomial(values)
        if found is not None:
            return found
        dims = [
            (own[0][0], d, [shape[d] for _, shape in own])
            for own in near
            for d in range(len(own[0][1]))
        ]
        for place, (tensor, d) in enumerate(self.symbols):
            dims.append((tensor, d, [p[place] for p in self.points]))
        for tensor, d, sizes in dims:
            if len(set(sizes)) == 1:
                continue
            a = Fraction(values[1] - values[0], (sizes[1] - sizes[0]) or 1)
            b = values[0] - a * sizes[0]
            if a.denominator == 1 and all(a * s + b == v for s, v in zip(sizes, values)):
                return self.affine(self.dim(tensor, d), int(a), int(b))
            # What slices with a step and strided windows leave: (size + c) // k.
            for k in (2, 3, 4, 8, 16, 32):
                for c in range(values[0] * k - sizes[0], values[0] * k - sizes[0] + k):
                    if all((s + c) // k == v for s, v in zip(sizes, values)):
                        top = self.affine(self.dim(tensor, d), 1, c)
                        return self.node("Div", [top, self.constant(k)])
        users = [s for s in self.graph.steps if name in s.inputs]
        what = users[0].source or users[0].op if users else name
        raise ExportError(
            f"export: a size in {what} depends on the dynamic dimensions in a way that is no "
            f"polynomial of them (values {values} at sizes {list(self.points)}): leave that dimension fixed"
        )

    def affine(self, x: str, a: int, b: int) -> str:
        """Return the name of a * x + b."""
        if a != 1:
            x = self.node("Mul", [x, self.constant(a)])
        return x if b == 0 else self.node("Add", [x, self.constant(b)])

    def coefficients(self, values: Sequence[float]) -> list[Fraction] | None:
        """Return the coefficients of the monomials that give these values, if there are any."""
        rows = [
            [*map(Fraction, _row(p)), Fraction(v)] for p, v in zip(self.points, values, strict=True)
        ]
        count = len(rows[0]) - 1
        for column in range(count):
            pivot = next((r for r in range(column, len(rows)) if rows[r][column]), None)
            if pivot is None:
                return None
            rows[column], rows[pivot] = rows[pivot], rows[column]
            rows[column] = [x / rows[column][column] for x in rows[column]]
            for r in range(len(rows)):
                if r != column and rows[r][column]:
                    factor = rows[r][column]
                    rows[r] = [x - factor * y for x, y in zip(rows[r], rows[column], strict=True)]
        if any(row[-1] for row in rows[count:]):
            return None
        return [row[-1] for row in rows[:count]]

    def polynomial(self, values: Sequence[int]) -> str | None:
        """Return the name of a polynomial of the sizes that takes these values, None without one."""
        found = self.coefficients(values)
        if found is None:
            return None
        scale = 1
        for c in found:
            scale = math.lcm(scale, c.denominator)
        total: str | None = None
        constant = 0
        for powers, c in zip(_monomials(len(self.points[0])), found, strict=True):
            if not c:
                continue
            if not any(powers):
                constant = int(c * scale)
                continue
            term: str | None = None
            for (tensor, d), power in zip(self.symbols, powers, strict=True):
                for _ in range(power):
                    size = self.dim(tensor, d)
                    term = size if term is None else self.node("Mul", [term, size])
            assert term is not None
            term = self.affine(term, int(c * scale), 0)
            total = term if total is None else self.node("Add", [total, term])
        if total is None:
            return self.constant(constant)
        total = self.affine(total, 1, constant)
        return total if scale == 1 else self.node("Div", [total, self.constant(scale)])

    def replace_number(self, name: str, values: list[Scalar], dtype: DType) -> None:
        """Compute a number that depends on sizes: a polynomial of them, its inverse, or a root."""
        users = [i for i, s in enumerate(self.graph.steps) if name in s.inputs]
        if not users:
            return
        self.at(users[0], ())
        forms: list[tuple[str, Callable[[float], float]]] = [("", lambda v: v)]
        if dtype.kind == "float":
            forms += [
                ("inverse", lambda v: 1 / v),
                ("root", lambda v: v * v),
                ("inverse root", lambda v: 1 / (v * v)),
            ]
        for form, change in forms:
            try:
                wanted = [change(v) for v in values]
            except ZeroDivisionError:
                continue
            close = [Fraction(round(w)) for w in wanted]
            if any(abs(w - c) > 1e-9 * max(1.0, abs(w)) for w, c in zip(wanted, close)):
                continue
            found = self.polynomial([int(c) for c in close])
            if found is None:
                continue
            found = self.node("Squeeze", [found, self.constant(0)])
            found = self.node("Cast", [found], to=dtype.name)
            if "root" in form:
                found = self.node("Sqrt", [found])
            if "inverse" in form:
                found = self.node("Reciprocal", [found])
            self.exchange(name, found)
            self.graph.numbers.pop(name)
            return
        source = self.graph.steps[users[0]].source
        raise ExportError(
            f"export: the number {values[0]} in {source} depends on a dynamic dimension ({values} at "
            f"sizes {list(self.points)}) in a way that is not known here: leave that dimension fixed"
        )
