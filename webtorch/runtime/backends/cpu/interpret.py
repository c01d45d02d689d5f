"""A graph computed node by node, with NumPy and no program. Imports NumPy, floors 0-2 and this backend's own modules.

A graph that has not come before takes some 0.3 ms a node to compile, and a few microseconds a node here. Results are
those of the programs' NumPy form: the same functions of the same types, in the same order.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType, bool_, int32, uint32
from webtorch.ir.expr import Expr
from webtorch.ir.graph import Graph, GraphNode, Node, Output
from webtorch.ir.kernel import BufferSlot, Kernel, Matmul
from webtorch.ir.reducer import REDUCERS
from webtorch.ir.view import Shape, contiguous_strides, numel
from webtorch.lower.affine import Affine
from webtorch.lower.numpysource import NumpyWriter
from webtorch.lower.plan import template_task
from webtorch.runtime.backends.cpu import numpy_math
from webtorch.runtime.backends.cpu.executable import argument_converter, runner
from webtorch.runtime.backends.cpu.memory import Array, ArrayBuffer, CpuBuffer, array_type

# Nodes that are routines of whole arrays.
_ROUTINES = frozenset({"conv", "scan", "sort", "host"})
# As many elements are computed in the time that compiling a node takes.
_ELEMENTS = 50_000


class _NotHere(Exception):
    """Programs must compute this: what is missing here, and indices that are out of range."""


def interpret(order: Sequence[Node], wanted: Sequence[Node]) -> list[CpuBuffer] | None:
    """Return the values of the wanted nodes, in memory of their own; None where programs are to compute them. `order`
    are all nodes of the graph, sources first.
    """
    work = 0
    for node in order:
        if node.kind == "attention":
            return None
        if node.kind != "buffer":
            work += numel(node.shape)
    if work > _ELEMENTS * len(order):
        return None
    try:
        with np.errstate(all="ignore"):
            return _Run(order, wanted).results()
    except (_NotHere, MemoryError):
        return None


class _Run:
    """One graph. Values are contiguous arrays of at least one dim; views are made where they are read."""

    def __init__(self, order: Sequence[Node], wanted: Sequence[Node]) -> None:
        self.order, self.wanted = order, wanted
        # Where the data of each node lies: the node that views begin at.
        self.root: dict[Node, Node] = {}
        self.left: Counter[Node] = Counter()
        self.values: dict[Node, Array] = {}

    def results(self) -> list[CpuBuffer]:
        """Compute the nodes in order."""
        root, left, values = self.root, self.left, self.values
        for node in self.order:
            if node.kind == "view":
                root[node] = root[node.srcs[0]]
                continue
            root[node] = node
            for s in node.srcs:
                left[root[s]] += 1
        for node in self.wanted:
            left[root[node]] += 1
        for node in self.order:
            kind = node.kind
            if kind == "view":
                continue
            if kind == "buffer":
                values[node] = node.buffer.array.reshape(node.shape or (1,))
                # It is never written.
                left[node] += 1
                continue
            shape = node.shape or (1,)
            value: Array = getattr(self, f"_{kind}", self._routine)(node, shape)
            values[node] = value
            for s in node.srcs:
                at = root[s]
                left[at] -= 1
                if not left[at]:
                    values.pop(at, None)
        made = []
        for node in self.wanted:
            buffer = CpuBuffer(node.dtype, numel(node.shape))
            if buffer.elements:
                buffer.array[...] = self.read(node).reshape(-1)
            made.append(buffer)
        return made

    def read(self, node: Node) -> Array:
        """Return a value as an array of its shape, which may be a view of other memory."""
        if node.kind != "view":
            return self.values[node]
        source, shape = node.srcs[0], node.shape or (1,)
        flat = self.flat(source)
        strides, offset = node.attrs[0] or (1,), _offset(node)
        if 0 in shape:
            return np.empty(shape, flat.dtype)
        if strides == contiguous_strides(shape):
            return flat[offset : offset + numel(shape)].reshape(shape)
        size = flat.itemsize
        return np.ndarray(
            shape, flat.dtype, flat, offset * size, tuple([s * size for s in strides])
        )

    def flat(self, node: Node) -> Array:
        """Return a value as a flat contiguous array."""
        return np.ascontiguousarray(self.read(node)).reshape(-1)

    def _empty(self, node: Node, shape: Shape) -> Array:
        return np.zeros(shape, array_type(node.dtype))

    def _map(self, node: Node, shape: Shape) -> Array:
        operation, pattern, compute = node.attrs
        function, converters = _formula(
            operation, pattern, compute, tuple([s.dtype for s in node.srcs]), node.dtype
        )
        srcs, scalars, made = iter(node.srcs), iter(node.scalars), iter(converters)
        values: list[Any] = []
        for letter in pattern:
            if letter == "t":
                values.append(self.read(next(srcs)))
            elif letter in "su":
                values.append(next(made)(next(scalars)))
            else:
                flat = np.arange(numel(shape), dtype=np.int32).reshape(shape)
                values.append(flat if letter == "p" else flat % 2)
        value: Array = np.asarray(function(*values))
        if value.shape != shape:
            return np.broadcast_to(value, shape).copy()
        return _own(value)

    def _pad(self, node: Node, shape: Shape) -> Array:
        (low,) = node.attrs
        source = node.srcs[0]
        fill = _cast(node.dtype.compute, node.dtype)(
            argument_converter(node.dtype.compute)(node.scalars[0])
        )
        value = np.full(shape, fill, array_type(node.dtype))
        if numel(source.shape):
            # What lies outside, where a border is negative, is left out.
            theirs = tuple(
                [
                    slice(max(-b, 0), max(min(size, whole - b), 0))
                    for b, size, whole in zip(low, source.shape, node.shape)
                ]
            )
            ours = tuple(
                [slice(max(b, 0), max(b, 0) + t.stop - t.start) for b, t in zip(low, theirs)]
            )
            if all(t.stop > t.start for t in theirs):
                value[ours] = _cast(source.dtype, node.dtype)(self.read(source)[theirs])
        return value

    def _reduce(self, node: Node, shape: Shape) -> Array:
        name, dims = node.attrs
        source = node.srcs[0]
        whole = source.shape
        # Neighbouring dims are one, as in a kernel.
        runs: list[list[Any]] = []
        for d, size in enumerate(whole):
            if size != 1:
                if runs and runs[-1][1] == (d in dims):
                    runs[-1][0] *= size
                else:
                    runs.append([size, d in dims])
        kept = [i for i, run in enumerate(runs) if not run[1]]
        gone = [i for i, run in enumerate(runs) if run[1]]
        reducer, kind = REDUCERS[name], node.dtype.compute
        if not numel(whole):
            raise _NotHere
        compute = kind
        if reducer.is_position:
            compute = source.dtype.compute
        elif reducer.is_logical:
            compute = bool_
        array = _cast(source.dtype, compute)(self.read(source))
        array = array.reshape([run[0] for run in runs] or (1,))
        array = array.transpose([*kept, *gone]) if runs else array
        first = len(kept) if runs else 1
        if gone:
            reduce = numpy_math.NAMESPACE[f"reduce_{name}"]
            array = reduce(array, array.shape, first, array_type(kind).type)
        elif reducer.is_position:
            array = np.zeros(shape, array_type(kind))
        return _own(_cast(kind, node.dtype)(array.reshape(shape)))

    def _update(self, node: Node, shape: Shape) -> Array:
        base = self.base(node)
        window, strides = node.attrs[:2]
        if numel(window):
            offset = node.attrs[2] if len(node.attrs) == 3 else node.scalars[0]
            value = _cast(node.srcs[1].dtype, node.dtype)(self.read(node.srcs[1]))
            target = numpy_math.view(base.reshape(-1), int(offset), window or (1,), strides or (1,))
            target[...] = value.reshape(target.shape)
        return base.reshape(shape)

    def base(self, node: Node) -> Array:
        """Return what a node writes to: the value of its first source, or a copy where that is read later."""
        source = node.srcs[0]
        at = self.root[source]
        if at is source and self.left[at] == 1 and source.dtype is node.dtype:
            return self.values[at]
        value: Array = _cast(source.dtype, node.dtype)(self.read(source))
        return value.copy(order="C")

    def _take(self, node: Node, shape: Shape) -> Array:
        source = node.srcs[0]
        places = self.places(node, node.srcs[1:], source.shape)
        array = self.read(source).reshape(source.shape or (1,))
        if not places:
            raise _NotHere
        value = array[tuple(places)]
        return _own(_cast(source.dtype, node.dtype)(value).reshape(shape))

    def places(self, node: Node, indices: Sequence[Node], target: Shape) -> list[Array]:
        """Return the indices of rows of an array, all of which are in bounds."""
        wrap = node.attrs[-1]
        found: list[Array] = []
        for size, index in zip(target, indices):
            raw = self.read(index).astype(np.int64)
            if raw.size:
                low, high = int(raw.min()), int(raw.max())
                if low < (-size if wrap else 0) or high >= size:
                    raise _NotHere
                if low < 0:
                    raw = np.where(raw < 0, raw + size, raw)
            found.append(raw)
        return found

    def _scatter(self, node: Node, shape: Shape) -> Array:
        base = self.base(node)
        places = self.places(node, node.srcs[1:-1], node.shape)
        value = _cast(node.srcs[-1].dtype, node.dtype)(self.read(node.srcs[-1])).reshape(-1)
        if not value.size:
            return base.reshape(shape)
        rest = node.shape[len(places) :]
        inner = numel(rest)
        position: Array = np.zeros((), np.int64)
        for size, at in zip(contiguous_strides(node.shape), places):
            position = position + at.reshape(-1) * size
        position = (position.reshape(-1, 1) + np.arange(inner)).reshape(-1)
        flat = base.reshape(-1)
        numpy_math.scatter(flat, position, value, None, value.shape, node.attrs[2])
        return flat.reshape(shape)

    def _matmul(self, node: Node, shape: Shape) -> Array:
        """Multiply as programs do, with operands that are views where they are."""
        given: list[CpuBuffer] = []
        where: list[tuple[Shape, int]] = []
        for s in node.srcs:
            strided = s.kind == "view" and min(s.attrs[0]) >= 0
            at = s.srcs[0] if strided else s
            given.append(ArrayBuffer(at.dtype, self.flat(at)))
            where.append((s.attrs[0], _offset(s)) if strided else (contiguous_strides(s.shape), 0))
        batch, m, n = node.shape
        k = node.srcs[0].shape[2]
        if not batch * m * n * k:
            raise _NotHere
        value = np.empty(numel(shape), array_type(node.dtype))
        given.append(ArrayBuffer(node.dtype, value))
        slots = [BufferSlot(b.dtype, "read", b.elements) for b in given[:2]]
        slots.append(BufferSlot(node.dtype, "write", value.size))
        (left, first), (right, second) = where
        routine = Matmul("matmul", (batch,), m, n, k, left, right, first, second, tuple(slots))
        runner(routine).run(given, (), _NO_STATUS)
        return value.reshape(shape)

    def _routine(self, node: Node, shape: Shape) -> Array:
        """Compute a routine of whole arrays as programs do."""
        if node.kind not in _ROUTINES or not all(numel(s.shape) for s in (node, *node.srcs)):
            raise _NotHere
        srcs = [GraphNode("buffer", (), (), (), s.shape, s.dtype) for s in node.srcs]
        last = len(srcs)
        own = GraphNode(node.kind, tuple(range(last)), node.attrs, (), node.shape, node.dtype)
        graph = Graph((*srcs, own), (Output(last, None),), ())
        given: list[CpuBuffer] = [ArrayBuffer(s.dtype, self.flat(s)) for s in node.srcs]
        value = np.empty(numel(shape), array_type(node.dtype))
        given.append(ArrayBuffer(node.dtype, value))
        routine = template_task(graph, last, {*range(last + 1)}).routine
        runner(routine).run(given, (), _NO_STATUS)
        return value.reshape(shape)


_NO_STATUS: Array = np.zeros(2, np.int64)


def _offset(view: Node) -> int:
    attrs = view.attrs
    if len(attrs) == 2:
        return int(attrs[1])
    step = int(view.scalars[0])
    return step if len(attrs) == 1 else step * int(attrs[2]) + int(attrs[1])


def _own(value: Array) -> Array:
    """Return a value as an array that is contiguous and no view of another."""
    flags = value.flags
    return value if flags.owndata and flags.c_contiguous else value.copy(order="C")


class _Formula(NumpyWriter):
    """A formula of whole arrays: what a kernel would load are parameters."""

    def view(self, buffer: int, where: Affine) -> str:
        """Return the parameter."""
        return f"b{buffer}"

    def function_of(self, root: Expr, names: Sequence[str]) -> str:
        """Return the text of the function."""
        self.wanted = set()
        self.want(root)
        self.emit(f"return {self.value(root)}")
        return "\n".join([f"def formula({', '.join(names)}):", *self.lines]) + "\n"


@functools.lru_cache(4096)
def _formula(
    operation: Any, pattern: str, compute: DType, given: tuple[DType, ...], gives: DType
) -> tuple[Callable[..., Array], list[Callable[[Any], Any]]]:
    """Return the function of a map's operands, and what makes its numbers."""
    inputs: list[Expr] = []
    names: list[str] = []
    converters: list[Callable[[Any], Any]] = []
    types = iter(given)
    for i, letter in enumerate(pattern):
        if letter == "t":
            dtype = next(types)
            value = ex.cast(ex.load(i, dtype, ex.const(0, int32)), dtype.compute)
            inputs.append(ex.cast(value, compute))
            names.append(f"b{i}")
            continue
        dtype = {"s": compute, "u": uint32}.get(letter, int32)
        inputs.append(ex.arg(i, dtype))
        names.append(f"a{i}")
        if letter in "su":
            converters.append(argument_converter(dtype))
    root = ex.cast(ex.rounded(operation.build(tuple(inputs)), gives), gives)
    return _compiled(root, names), converters


@functools.lru_cache(1024)
def _cast(source: DType, target: DType) -> Callable[[Array], Array]:
    """Return the function that converts values in memory."""
    if source is target:
        return _same
    value = ex.cast(ex.load(0, source, ex.const(0, int32)), source.compute)
    return _compiled(ex.cast(ex.rounded(value, target), target), ["b0"])


def _same(x: Array) -> Array:
    return x


def _compiled(root: Expr, names: Sequence[str]) -> Callable[..., Array]:
    writer = _Formula(Kernel("formula", (), (), (), (), (), ()))
    namespace = dict(numpy_math.NAMESPACE)
    text = writer.function_of(root, names)
    exec(compile(text, "<formula>", "exec"), namespace)
    function: Callable[..., Array] = namespace["formula"]
    return function
