"""Writes recorded values as nodes of a file: the frame of it. Floor 6.

A value is written by the rule of the outermost call that gave it; a rule that cannot write a call
returns None, and then the calls inside it are tried. So an operation without a rule is written with
its parts, and an elementwise one from its formula in the op table: a new operation needs nothing
here. The rules are in `rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias, TypeVar

from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType, Scalar, int64
from webtorch.ir.lines import line_text
from webtorch.ir.view import contiguous_strides, numel
from webtorch.onnx.graph import TO_THE_END, Attr, ExportError, Graph, Ints, Step
from webtorch.onnx.recording import Call, Recording, Value, contents, value_of_node
from webtorch.ops.record import TABLE
from webtorch.tensors.tensor import Tensor

Name = str
# The names of a call's results; None where a rule cannot write it, or does not name one of them.
Written: TypeAlias = Name | tuple[Name | None, ...] | None
Rule = TypeVar("Rule", bound=Callable[..., Written])
RULES: dict[str, Callable[..., Written]] = {}
# Larger constants are computed in the file where they can be.
_FOLD_BYTES = 64 << 20


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Declare how calls of the named operations are written: `function(writer, call, arguments...)`.

    It returns the name of the result, or a tuple of names, or None where it cannot.
    """

    def declare(function: Rule) -> Rule:
        """Put the function into RULES under each name."""
        for name in names:
            assert name not in RULES, name
            RULES[name] = function
        return function

    return declare


class Writer:
    """Writes one recording into a graph."""

    def __init__(
        self,
        recording: Recording,
        names: dict[int, str],
        opset: int,
        unfolded: frozenset[tuple[int, ...]],
    ) -> None:
        self.recording, self.opset, self.unfolded = recording, opset, unfolded
        self.graph = Graph()
        self.known: dict[Value, Name] = {}
        # Names of tensors in memory: id of a node -> (name, value)
        self.leaves: dict[int, tuple[Name, Value]] = {}
        self.parameters = names
        self.call: Call | None = None
        self.trying: set[int] = set()
        self.interned: dict[Hashable, Name] = {}
        self._by_nodes: dict[int, list[Value]] | None = None

    # -- values ---------------------------------------------------------------------------------

    def name(self, v: Value) -> Name:
        """Return the name of a value, writing what gives it first."""
        found = self.known.get(v)
        if found is None:
            found = self._write(v)
            self.known[v] = found
        return found

    def _write(self, v: Value) -> Name:
        calls = self.recording.calls.get(v, ())
        if not self.recording.depends(v):
            constant = self._constant(v, calls)
            if constant is not None:
                return constant
        outer = self.call
        for call, number in reversed(calls):
            function = RULES.get(call.name)
            if function is None or call.number in self.trying:
                continue
            self.trying.add(call.number)
            self.call = call
            try:
                result = function(self, call, **call.args)
            finally:
                self.call = outer
                self.trying.discard(call.number)
            if result is None:
                # What the rule wrote before it gave up is dropped when nothing reads it.
                continue
            results = result if isinstance(result, tuple) else (result,)
            for one, name in zip(call.results, results, strict=False):
                if name is not None:
                    self.known.setdefault(one, name)
            wanted = results[number] if number < len(results) else None
            if wanted is not None:
                return wanted
        return self._by_node(v)

    def _constant(self, v: Value, calls: Sequence[tuple[Call, int]]) -> Name | None:
        node = v.node
        call = calls[-1][0] if calls else None
        unfolded = any(c.place in self.unfolded for c, _ in calls)
        if node.kind == "buffer":
            leaf = self.parameters.get(id(node))
            if leaf is not None and v.is_flat and v.shape == node.shape:
                return self.data(leaf, contents(v, self.recording.runtime))
        if unfolded:
            return None
        within = self.recording.calls.get(v.whole, ()) if call is None and not v.is_flat else ()
        if any(c.place in self.unfolded for c, _ in within):
            return None
        nbytes = numel(v.shape) * v.dtype.itemsize
        entry = None if call is None else TABLE.get(call.name)
        grows = entry is not None and entry.grows and nbytes > 4096
        if nbytes > _FOLD_BYTES or grows:
            # What holds it is smaller.
            return None
        key = ("folded", v)
        if key not in self.interned:
            name = self.graph.fresh(self._title(v, call))
            if not self.recording.is_weight(v, self.parameters):
                self.graph.plain.add(name)
            self.graph.data[name] = contents(v, self.recording.runtime)
            if call is not None:
                self.graph.folded[name] = call.place
            self.interned[key] = name
        return self.interned[key]

    def _title(self, v: Value, call: Call | None) -> str:
        leaf = self.parameters.get(id(v.node))
        if leaf is not None:
            return f"{leaf}.{call.name if call is not None else 'view'}"
        scope = call.scope if call is not None else ""
        what = "constant" if call is None else call.name.strip("_")
        return f"{scope}.{what}" if scope else what

    def data(self, name: str, tensor: Tensor) -> Name:
        """Return `name`, which is that of a tensor in memory."""
        self.graph.data.setdefault(name, tensor)
        self.graph.taken.setdefault(name, 0)
        return name

    def constant(self, tensor: Tensor, title: str, *, weight: bool = False) -> Name:
        """Return the name of a new tensor of data, which is a weight or just numbers."""
        name = self.graph.fresh(title)
        if not weight:
            self.graph.plain.add(name)
        self.graph.data[name] = tensor
        return name

    def tensor(self, v: Value | None) -> Tensor | None:
        """Return a value as data where it depends on no input."""
        if v is None or self.recording.depends(v):
            return None
        return contents(v, self.recording.runtime)

    def _by_node(self, v: Value) -> Name:
        """Write a value that no call gave: a view of another, or a part written in place."""
        node = v.node
        if v != v.whole:
            return self._view(v)
        if node.kind == "update":
            return self._update(v)
        for u in self._shown().get(id(node), ()):
            # Its data stand in another order: the call gave a view of all of them.
            order = _permutation(v.shape, u)
            if order is not None:
                inverse = sorted(range(len(order)), key=order.__getitem__)
                return self.node("Transpose", self.name(u), perm=inverse)
        if node.kind == "map" and node.attrs[1] == "t" and node.attrs[0].name == "_cast":
            return self.cast(self.name(value_of_node(node.srcs[0])), node.srcs[0].dtype, node.dtype)
        if node.kind == "empty":
            return self.full(node.shape, 0, node.dtype)
        if node.kind == "buffer":
            raise ExportError(
                f"export: a tensor of shape {node.shape} that the function makes or reads is another one "
                "at another size of the dynamic dimensions: leave them fixed, or make it an input"
            )
        line = line_text(node.line)
        at = f" (recorded at {line})" if line else ""
        raise ExportError(
            f"export: a value of kind {node.kind} has no form in ONNX{at}. Move that operation out of "
            "the exported function, or replace it."
        )

    def _shown(self) -> dict[int, list[Value]]:
        """Return the values that calls gave, by their node."""
        if self._by_nodes is None:
            self._by_nodes = {}
            for u in self.recording.calls:
                if u != u.whole and self.recording.calls[u]:
                    self._by_nodes.setdefault(id(u.node), []).append(u)
        return self._by_nodes

    def _view(self, v: Value) -> Name:
        """Write a window with strides on the data of another value."""
        whole = v.whole
        if v.is_flat:
            return self.reshape(self.name(whole), whole.shape, v.shape)
        order = _permutation(whole.shape, v)
        if order is not None:
            return self.node("Transpose", self.name(whole), perm=list(order))
        window = _window(whole.shape, v)
        if window is not None:
            return self._sliced(self.name(whole), whole.shape, v, window)
        reach = v.offset + sum((s - 1) * st for s, st in zip(v.shape, v.strides, strict=True))
        if numel(v.shape) > 1 << 24 or reach >= 1 << 40:
            raise ExportError(
                f"export: a view of shape {v.shape} with strides {v.strides} has no form in ONNX"
            )
        flat = self.reshape(self.name(whole), whole.shape, (-1,))
        positions = self._positions(v)
        return self.node("Gather", flat, positions, axis=0)

    def _sliced(
        self, x: Name, shape: tuple[int, ...], v: Value, window: list[tuple[int, int, int, int]]
    ) -> Name:
        """Write a view as slices of dims, in another order, with new and broadcast dims."""
        for d, (start, count, step, _) in enumerate(window):
            if (start, count) != (0, shape[d]):
                stop = start + count * step
                x = self.slice(x, d, start, None if stop >= shape[d] else stop, step)
        dropped = [d for d, w in enumerate(window) if w[3] < 0]
        x = self.squeeze(x, dropped)
        seen = [w[3] for w in window if w[3] >= 0]
        x = self.transpose(x, sorted(range(len(seen)), key=seen.__getitem__))
        x = self.unsqueeze(x, [d for d in range(len(v.shape)) if d not in seen])
        ones = tuple(s if d in seen else 1 for d, s in enumerate(v.shape))
        return self.expand(x, ones, v.shape)

    def _positions(self, v: Value) -> Name:
        index = webtorch.full((1,) * len(v.shape), v.offset, dtype=int64, device="cpu")
        for d, (size, stride) in enumerate(zip(v.shape, v.strides, strict=True)):
            steps = webtorch.arange(size, device="cpu") * stride
            index = index + steps.reshape((1,) * d + (size,) + (1,) * (len(v.shape) - d - 1))
        return self.constant(index.expand(v.shape).contiguous(), "positions")

    def _update(self, v: Value) -> Name:
        """Write a value whose window was overwritten."""
        old, new = v.node.srcs
        shape, strides = v.node.attrs[0], v.node.attrs[1]
        offset = v.node.scalars[0] if v.node.scalars else v.node.attrs[2]
        window = Value(v.node, tuple(shape), tuple(strides), int(offset))
        base, values = self.name(value_of_node(old)), self.name(value_of_node(new))
        block = _window(v.shape, window) if numel(window.shape) else None
        parts = [d for d, w in enumerate(block or ()) if w[:2] != (0, v.shape[d])]
        if block is not None and len(parts) <= 1 and all(w[2] == 1 for w in block):
            return self._with_block(base, v.shape, values, window.shape, block, parts)
        flat = self.reshape(base, tuple(old.shape), (-1,))
        index = self._positions(window)
        count = numel(window.shape)
        positions = self.reshape(index, window.shape, (count,))
        flat_values = self.reshape(values, tuple(new.shape), (count,))
        out = self.node("ScatterElements", flat, positions, flat_values, axis=0)
        return self.reshape(out, (-1,), v.shape)

    def _with_block(
        self,
        base: Name,
        shape: tuple[int, ...],
        values: Name,
        given: tuple[int, ...],
        window: list[tuple[int, int, int, int]],
        parts: list[int],
    ) -> Name:
        """Write a value of which all, or a run of one dim, was overwritten."""
        seen = [w[3] for w in window if w[3] >= 0]
        rest = [d for d in range(len(given)) if d not in seen]
        values = self.transpose(values, [*rest, *seen])
        moved = tuple(given[d] for d in (*rest, *seen))
        values = self.reshape(values, moved, tuple(w[1] for w in window))
        if not parts:
            return values
        (d,) = parts
        start, count = window[d][:2]
        pieces = [self.slice(base, d, 0, start)] if start else []
        pieces.append(values)
        if start + count < shape[d]:
            pieces.append(self.slice(base, d, start + count, None))
        return self.node("Concat", *pieces, axis=d)

    # -- nodes ----------------------------------------------------------------------------------

    def node(self, op: str, *inputs: Name | None, **attrs: Attr) -> Name:
        """Write a node; return the name of its output."""
        return self.outputs(1, op, *inputs, **attrs)[0]

    def outputs(self, count: int, op: str, *inputs: Name | None, **attrs: Attr) -> tuple[Name, ...]:
        """Write a node; return the names of its first outputs, as many as `count`."""
        given = ["" if x is None else x for x in inputs]
        while given and not given[-1]:
            given.pop()
        call = self.call
        title = op.lower() if call is None else call.name.strip("_")
        if call is not None and call.name == "apply" and call.op is not None:
            title = call.op.name.strip("_")
        base = f"{call.scope}.{title}" if call is not None and call.scope else title
        names = [self.graph.fresh(base) for _ in range(count)]
        attrs = {k: a for k, a in attrs.items() if a is not None}
        scope = call.scope if call is not None else ""
        self.graph.steps.append(Step(op, given, names, attrs, scope, title))
        return tuple(names)

    def ints(
        self,
        values: Sequence[int],
        near: Sequence[tuple[Name, tuple[int, ...]]] = (),
        use: str = "",
        scalar: bool = False,
    ) -> Name:
        """Return the name of integers, which may differ between recordings at several sizes."""
        name = self.graph.fresh("sizes" if len(values) != 1 else "size")
        self.graph.ints[name] = Ints(tuple(int(v) for v in values), tuple(near), scalar, use)
        return name

    def number(self, value: Scalar, dtype: DType) -> Name:
        """Return the name of one number of a type."""
        name = self.graph.fresh("number")
        self.graph.numbers[name] = (value, dtype)
        return name

    def require(self, version: int, what: str) -> bool:
        """Whether the opset has a node; for rules that have another way."""
        return self.opset >= version

    def reshape(self, x: Name, shape: tuple[int, ...], target: tuple[int, ...]) -> Name:
        """Write another shape."""
        if tuple(shape) == tuple(target):
            return x
        if 0 in target:
            return self.node("Reshape", x, self.ints(target), allowzero=1)
        return self.node("Reshape", x, self.ints(target, [(x, tuple(shape))], "reshape"))

    def transpose(self, x: Name, order: Sequence[int]) -> Name:
        """Write other dims."""
        return x if list(order) == sorted(order) else self.node("Transpose", x, perm=list(order))

    def slice(self, x: Name, dim: int, start: int, stop: int | None, step: int = 1) -> Name:
        """Write a part of a dim; `stop` None goes to the end."""
        end = TO_THE_END if stop is None else stop
        bounds = [self.ints([n]) for n in (start, end, dim)]
        return self.node("Slice", x, *bounds, self.ints([step]) if step != 1 else None)

    def cast(self, x: Name, source: DType, dtype: DType) -> Name:
        """Write a conversion."""
        return x if source is dtype else self.node("Cast", x, to=dtype.name)

    def full(self, shape: Sequence[int], value: Scalar, dtype: DType) -> Name:
        """Write a tensor of one value."""
        scalar = self.number(value, dtype)
        return scalar if not shape else self.node("Expand", scalar, self.ints(shape))

    def expand(self, x: Name, shape: tuple[int, ...], target: tuple[int, ...]) -> Name:
        """Write a broadcast."""
        if tuple(shape) == tuple(target):
            return x
        return self.node("Expand", x, self.ints(target, [(x, tuple(shape))], "expand"))

    def reduce(self, op: str, x: Name, dims: Sequence[int] | None, keepdim: bool) -> Name:
        """Write a reduction; its axes are an input in newer opsets and an attribute in older ones."""
        keep = int(keepdim)
        if dims is None:
            return self.node(op, x, keepdims=keep)
        if op == "ReduceSum" or self.opset >= 18:
            return self.node(op, x, self.ints(dims), keepdims=keep)
        return self.node(op, x, axes=list(dims), keepdims=keep)

    def unsqueeze(self, x: Name, dims: Sequence[int]) -> Name:
        """Write new dims of one element."""
        return self.node("Unsqueeze", x, self.ints(dims)) if dims else x

    def squeeze(self, x: Name, dims: Sequence[int]) -> Name:
        """Leave dims of one element out."""
        return self.node("Squeeze", x, self.ints(dims)) if dims else x


def _permutation(shape: tuple[int, ...], v: Value) -> tuple[int, ...] | None:
    """Return the order in which a view has the dims of a contiguous value, if it has all of them."""
    if len(shape) != len(v.shape) or v.offset:
        return None
    strides = contiguous_strides(shape)
    order: list[int] = []
    for size, stride in zip(v.shape, v.strides, strict=True):
        for d in range(len(shape)):
            if d not in order and shape[d] == size and (strides[d] == stride or size == 1):
                order.append(d)
                break
        else:
            return None
    return tuple(order)


def _window(shape: tuple[int, ...], v: Value) -> list[tuple[int, int, int, int]] | None:
    """Return for each dim of a contiguous value the (start, count, step) that a view has of it, and
    the view's dim (-1: none); None for views that are no such window.
    """
    strides = contiguous_strides(shape)
    found: dict[int, tuple[int, int, int]] = {}
    for k, (size, stride) in enumerate(zip(v.shape, v.strides, strict=True)):
        if size == 1 or stride == 0:
            continue
        fits = [
            d
            for d in range(len(shape))
            if d not in found and stride % strides[d] == 0 and (size - 1) * stride < shape[d] * strides[d]
        ]  # fmt: skip
        if not fits or stride < 0 or size == 0:
            return None
        d = max(fits, key=strides.__getitem__)
        found[d] = (size, stride // strides[d], k)
    rest = v.offset
    window = []
    for d, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        start, rest = divmod(rest, stride) if size > 1 else (0, rest)
        count, step, k = found.get(d, (1, 1, -1))
        if start + (count - 1) * step >= size:
            return None
        window.append((start, count, step, k))
    return window if rest == 0 else None
