"""How calls of elementwise entries are recorded: once for each signature, then from what was prepared. Floor 4.

The signature of a call is the shapes, strides, types and devices of its tensors and the types of its
numbers. The first call with one works out promotion, broadcasting, layout and checks; later ones make
their node and tensor of it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

from webtorch.errors import DTypeError, ShapeError
from webtorch.ir.dtype import (
    DType,
    Scalar,
    bool_,
    integer_limits,
)
from webtorch.ir.graph import Form, Node, window
from webtorch.ir.lines import user_line
from webtorch.ir.view import broadcast_shapes, contiguous_strides, numel, result_strides
from webtorch.ops.record import Elementwise, Op, Slope, slope
from webtorch.runtime.realize import Runtime
from webtorch.tensors.above import ask
from webtorch.tensors.batching import levels_of, logical, physical, sizes_of
from webtorch.tensors.forward import propagate
from webtorch.tensors.modes import mode, transforms
from webtorch.tensors.primitives import (
    device_mismatch,
    fill,
    ordered_node,
    out_of_order,
    reduce_dims,
)
from webtorch.tensors.promotion import Operand, depending, get_default_dtype, result_type
from webtorch.tensors.storage import Storage
from webtorch.tensors.tape import (
    NUMBER,
    ONCE,
    Called,
    Cotangents,
    Edge,
    GradFn,
    SavedTensor,
    gradient_edge,
    set_history,
)
from webtorch.tensors.tensor import Tensor, _transfer, check_type
from webtorch.tensors.views import as_view, zeros_after


@lru_cache(maxsize=65536)
def _expanded(
    shape: tuple[int, ...], strides: tuple[int, ...], target: tuple[int, ...]
) -> tuple[int, ...]:
    lead = len(target) - len(shape)
    return (0,) * lead + tuple(
        [
            0 if s == 1 and t != 1 else st
            for s, st, t in zip(shape, strides, target[lead:], strict=True)
        ]
    )


def _operand_node(t: Tensor, shape: tuple[int, ...], order: tuple[int, ...] | None) -> Node:
    """Return the value of an operand at `shape`, with its dims in `order`."""
    if order is not None:
        return ordered_node(t, shape, _expanded(t._shape, t._strides, shape), order)
    if t._shape == shape:
        return t._node()
    node = t._storage.node
    if node.dtype is not t.dtype:
        node = t._flat_node()
    strides = _expanded(t._shape, t._strides, shape)
    return window(node, shape, strides, t._offset, t.dtype)


class _Gradient:
    """How calls with one signature, of whose operands the same ones need gradients, get their gradient
    function: worked out at the first.
    """

    __slots__ = (
        "apart", "count", "once", "op", "others", "parts", "places", "reads", "reads_out", "rule", "shapes",
    )  # fmt: skip

    def __init__(
        self, op: Elementwise, operands: Sequence[Operand], edges: Sequence[Edge | None]
    ) -> None:
        self.op = op
        self.count = len(operands)
        self.apart = op.saves_values
        # Of each tensor: its place, its shape, and the slope where there is no rule for all of them.
        places = [i for i, o in enumerate(operands) if isinstance(o, Tensor)]
        self.shapes = [cast("Tensor", operands[i])._shape for i in places]
        self.parts: list[tuple[int, Slope | None]] = []
        # The operands that the cotangents are computed with.
        self.reads: list[int] = []
        self.reads_out = False
        if op.vjp is not None:
            used = op.used_by_vjp()
            self.parts = [(i, None) for i in places]
            self.reads = [i for i, name in enumerate(op.tensors) if i not in places or name in used]
            self.reads_out = "out" in used
        else:
            for i, edge in zip(places, edges, strict=True):
                self.parts.append((i, None if edge is None else slope(op, i)))
            self.reads = sorted({i for _, s in self.parts if s is not None for i in s.tensors})
        # Those of them that are tensors, and those that are numbers.
        self.places = [i for i in self.reads if i in places]
        self.others = [i for i in self.reads if i not in places]
        self.once = (NUMBER if self.others else ONCE) if op.once else ()
        self.rule = self._by_slopes if op.vjp is None else self._by_rule

    def attach(
        self,
        out: Tensor,
        operands: Sequence[Operand],
        numbers: Sequence[Scalar],
        edges: Sequence[Edge | None],
    ) -> None:
        """Give the result of a call its gradient function."""
        saved: list[SavedTensor] = []
        others: list[Scalar | complex] = []
        for i in self.reads:
            value = operands[i]
            if isinstance(value, Tensor):
                saved.append(SavedTensor(value, None, self.apart))
            else:
                others.append(value)
        if self.reads_out:
            saved.append(SavedTensor(out, 0, self.apart))
        fn = GradFn(
            self.op.gradient_name, tuple(edges), self.rule, saved or self.once, (others, numbers)
        )
        set_history(out, fn)

    def called(self, static: Any) -> Called:
        """Return what is known of a call, by its parameters."""
        others, numbers = static
        op = self.op
        saved = [op.tensors[i] for i in self.places] + ["out"] * self.reads_out
        known = {op.tensors[i]: o for i, o in zip(self.others, others, strict=True)}
        return Called(saved, known | dict(zip(op.numbers, numbers, strict=False)))

    def numbers_of(self, title: str) -> int:
        """Return how many numbers PyTorch makes tensors of, which its function of a name shows as inputs."""
        op = self.op
        shows = op.numbers_as_tensors and title == op.gradient_name
        return self.count - len(self.shapes) if shows else 0

    def _values(
        self, saved: Sequence[SavedTensor], others: Sequence[Scalar | complex]
    ) -> list[Any]:
        """Return the operands that are read, each in its place."""
        values: list[object] = [None] * self.count
        for i, s in zip(self.places, saved, strict=False):
            values[i] = s.unpack()
        for i, value in zip(self.others, others, strict=True):
            values[i] = value
        return values

    def _by_rule(
        self, gs: Cotangents, saved: Sequence[SavedTensor], static: Any
    ) -> list[Tensor | None]:
        """Return the cotangents that the entry's own rule gives."""
        (vjp,) = self.op.rules()
        others, numbers = static
        out = saved[-1].unpack() if self.reads_out else None
        found = vjp(gs[0], out, *self._values(saved, others), *numbers)
        return [
            None if (c := found[i]) is None else sum_to(c, shape)
            for (i, _), shape in zip(self.parts, self.shapes, strict=True)
        ]

    def _by_slopes(
        self, gs: Cotangents, saved: Sequence[SavedTensor], static: Any
    ) -> list[Tensor | None]:
        """Return the cotangents by the derivatives of the formula."""
        g, (others, numbers) = gs[0], static
        values = self._values(saved, others) if self.reads else []
        found: list[Tensor | None] = []
        for (_, s), shape in zip(self.parts, self.shapes, strict=True):
            if s is None:
                found.append(None)
            elif s.kind == "formula":
                assert s.op is not None
                if len(s.tensors) == 1 and not s.numbers:
                    c = apply_two(s.op, g, values[s.tensors[0]])
                else:
                    read = [values[i] for i in s.tensors]
                    c = apply(s.op, [g, *read], [numbers[i] for i in s.numbers])
                found.append(sum_to(c, shape))
            elif s.kind == "zero":
                found.append(fill(shape, 0, g.dtype, g.device))
            else:
                found.append(sum_to(g if s.kind == "one" else -g, shape))
        return found


class _Recorder:
    """How the calls of an entry with one signature are recorded: worked out at the first (`_prepare`)."""

    __slots__ = (
        "attrs", "compute", "converts", "differentiable", "dtype", "elements", "form", "gradients", "order",
        "runtime", "shape", "stored", "strides",
    )  # fmt: skip

    def __init__(
        self,
        op: Elementwise,
        operands: Sequence[Operand],
        numbers: Sequence[Scalar],
        dtype: DType,
        runtime: Runtime,
    ) -> None:
        letters = ["t" if isinstance(o, Tensor) else "s" for o in operands] + ["s"] * len(numbers)
        self.attrs = (op, "".join(letters), dtype.compute)
        self.form = Form()
        # The type of the calculation, and of the result.
        self.compute = dtype
        self.dtype = bool_ if op.promotion == "bool" else dtype
        self.runtime = runtime
        self.differentiable = op.differentiable and self.dtype.kind == "float"
        # By which operands need gradients, as bits.
        self.gradients: dict[int, _Gradient] = {}
        # Whether the numbers become others, or may be wrong.
        values = [*[o for o in operands if not isinstance(o, Tensor)], *numbers]
        self.converts = bool(values) and (
            dtype.kind != "float" or any(type(v) not in (int, float) for v in values)
        )

    def lie(self, shape: tuple[int, ...], strides: tuple[int, ...] | None) -> None:
        """Say where the elements of the result lie; None: in order."""
        self.shape = shape
        self.strides = contiguous_strides(shape) if strides is None else strides
        self.elements = numel(shape)
        # Memory from the widest stride to the narrowest.
        self.order = out_of_order(shape, self.strides)
        self.stored = shape if self.order is None else tuple([shape[d] for d in self.order])

    def record(self, operands: Sequence[Operand], numbers: Sequence[Scalar]) -> Tensor:
        """Record a call, without gradients. `numbers` come after the operands."""
        shape, order = self.shape, self.order
        srcs: list[Node] = []
        values: list[Scalar] = []
        for o in operands:
            if isinstance(o, Tensor):
                node = o._storage.node
                if not o._whole or node.shape != shape or order is not None:
                    node = _operand_node(o, shape, order)
                srcs.append(node)
            else:
                values.append(o)  # type: ignore[arg-type]
        values += numbers
        if self.converts:
            values = self._converted(operands, values)
        node = Node(
            "map",
            tuple(srcs),
            self.attrs,
            tuple(values),
            self.stored,
            self.dtype,
            user_line(),
            self.form,
        )
        out = object.__new__(Tensor)
        out._adopt(
            Storage(node, self.runtime, self.elements), shape, self.strides, 0, order is None
        )
        return out

    def _converted(self, operands: Sequence[Operand], values: list[Scalar]) -> list[Scalar]:
        """Return the numbers in the type that the call computes in. Raises for those that it cannot hold."""
        op, pattern, _ = self.attrs
        compute, found = self.compute, []
        places = [i for i, letter in enumerate(pattern) if letter == "s"]
        for place, value in zip(places, values, strict=True):
            if place >= len(operands):
                found.append(_scalar(op, value, compute))
                continue
            number = _scalar(op, value, compute, not op.numbers_fit)
            if (
                not number
                and compute.kind != "float"
                and op.divides
                and place == 1
                and 0 not in self.shape
            ):
                raise RuntimeError(
                    f"ZeroDivisionError: {op.name.strip('_')} of {compute} by 0. Divide floats, or test the divisor."
                )
            found.append(number)
        return found


# What was prepared, by the entry and the signature of the call.
_recorders: dict[tuple[object, ...], _Recorder] = {}
_MOST_RECORDERS = 1 << 14
depending.append(_recorders.clear)


def apply(op: Elementwise, operands: Sequence[Operand], numbers: Sequence[Scalar] = ()) -> Tensor:
    """Record an elementwise op. `operands` are the formula's tensors, some of which may be Python
    numbers.
    """
    signature: list[object] = [op]
    for o in operands:
        if not isinstance(o, Tensor):
            signature.append(type(o))
        elif o._whole:
            signature += (o._shape, o.dtype, o._storage.runtime)
        elif not o._levels:
            signature += (o._shape, o._strides, o.dtype, o._storage.runtime)
        else:
            return _batched(op, operands, numbers)
    for n in numbers:
        signature.append(type(n))
    key = tuple(signature)
    recorder = _recorders.get(key)
    if recorder is None:
        recorder = _prepare(op, operands, numbers)
        if recorder is None:
            return _of_another_kind(op, operands, numbers)
        if len(_recorders) >= _MOST_RECORDERS:
            _recorders.clear()
        _recorders[key] = recorder
    out = recorder.record(operands, numbers)
    if recorder.differentiable:
        _follow(recorder, out, operands, numbers)
    return out


def apply_one(op: Elementwise, x: Tensor, numbers: tuple[Scalar, ...] = ()) -> Tensor:
    """Record an elementwise op of one operand: `apply`, written out for a tensor in order."""
    if x._whole:
        storage = x._storage
        if numbers:
            key = (op, x._shape, x.dtype, storage.runtime, *map(type, numbers))
            recorder = _recorders.get(key)
        else:
            recorder = _recorders.get((op, x._shape, x.dtype, storage.runtime))
        if recorder is not None and not recorder.converts:
            node, shape = storage.node, recorder.shape
            if node.shape != shape:
                node = x._node()
            node = Node(
                "map",
                (node,),
                recorder.attrs,
                numbers,
                shape,
                recorder.dtype,
                user_line(3),
                recorder.form,
            )
            out = object.__new__(Tensor)
            out._adopt(
                Storage(node, recorder.runtime, recorder.elements), shape, recorder.strides, 0, True
            )
            if recorder.differentiable and (
                x._requires_grad or x._base is not None or transforms.count
            ):
                _follow(recorder, out, (x,), numbers)
            return out
    return apply(op, (x,), numbers)


def apply_two(op: Elementwise, x: Operand, y: Operand) -> Tensor:
    """Record an elementwise op of two operands: `apply`, written out for tensors in order."""
    if isinstance(x, Tensor) and x._whole:
        storage, shape = x._storage, x._shape
        if not isinstance(y, Tensor):
            recorder = _recorders.get((op, shape, x.dtype, storage.runtime, type(y)))
        elif y._whole:
            other = y._storage
            recorder = _recorders.get(
                (op, shape, x.dtype, storage.runtime, y._shape, y.dtype, other.runtime)
            )
        else:
            recorder = None
        if recorder is not None and not recorder.converts:
            shape = recorder.shape
            first = storage.node if storage.node.shape == shape else _operand_node(x, shape, None)
            srcs: tuple[Node, ...]
            values: tuple[Scalar, ...]
            if isinstance(y, Tensor):
                node = other.node
                srcs = first, node if node.shape == shape else _operand_node(y, shape, None)
                values = ()
            else:
                srcs, values = (first,), (y,)  # type: ignore[assignment]
            dtype, runtime = recorder.dtype, recorder.runtime
            node = Node(
                "map", srcs, recorder.attrs, values, shape, dtype, user_line(), recorder.form
            )
            out = object.__new__(Tensor)
            out._adopt(Storage(node, runtime, recorder.elements), shape, recorder.strides, 0, True)
            if recorder.differentiable and (
                x._requires_grad
                or x._base is not None
                or (not values and (y._requires_grad or y._base is not None))  # type: ignore[union-attr]
                or transforms.count
            ):
                _follow(recorder, out, (x, y), ())
            return out
    return apply(op, (x, y))


def _of_another_kind(
    op: Elementwise, operands: Sequence[Operand], numbers: Sequence[Scalar]
) -> Tensor:
    """Record a call on complex numbers, on tensors of several devices or on a number alone."""
    if any(o.dtype.is_complex if isinstance(o, Tensor) else type(o) is complex for o in operands):
        return cast("Tensor", ask("apply_form")(op, operands, numbers))
    if not any(isinstance(o, Tensor) for o in operands):
        return apply(op, [_from_number(operands[0]), *operands[1:]], numbers)
    return apply(op, to_one_device(op, operands), numbers)


def _batched(op: Elementwise, operands: Sequence[Operand], numbers: Sequence[Scalar]) -> Tensor:
    """Record a call on tensors with dimensions that vmap hides, which stand before all others where the operands' order
    of dims is kept.
    """
    recorder = _prepare(op, operands, numbers)
    if recorder is None:
        return _of_another_kind(op, operands, numbers)
    levels, rank = levels_of(operands), len(recorder.shape)
    # Behind the dimensions that vmap hides, all operands have the dims of the result.
    full = [physical(o, levels, rank) if isinstance(o, Tensor) else o for o in operands]
    lying = tuple([(o._shape, o._strides) for o in full if isinstance(o, Tensor)])
    shape = (*sizes_of(levels), *recorder.shape)
    recorder.lie(shape, result_strides(shape, lying, len(lying) == len(full)))
    out = logical(recorder.record(full, numbers), levels)
    if recorder.differentiable:
        _follow(recorder, out, operands, numbers)
    return out


def _prepare(
    op: Elementwise, operands: Sequence[Operand], numbers: Sequence[Scalar]
) -> _Recorder | None:
    """Work out what calls like this one record; None where they go another way."""
    tensors = [o for o in operands if isinstance(o, Tensor)]
    others = [o for o in operands if not isinstance(o, Tensor)]
    if not tensors:
        return None
    first = tensors[0]
    if op.refuses and first is operands[0] and first.dtype in op.refuses:
        raise DTypeError(f"\"{op.name.strip('_')}\" not implemented for '{first.dtype.legacy}'")
    if any(type(o) is complex for o in others):
        return None
    runtime = first._storage.runtime
    if any(t._storage.runtime is not runtime for t in tensors):
        return None
    if op.operands_fit is not None:
        op.operands_fit(*operands)
    dtype = result_type(*operands[op.chooses :])
    if dtype.is_complex:
        return None
    if op.promotion == "float" and dtype.kind != "float":
        dtype = get_default_dtype()
    if dtype not in op.dtypes:
        raise DTypeError(
            f"\"{op.name.strip('_')}\" not implemented for '{dtype.legacy}': it takes "
            f"{', '.join(d.name for d in op.dtypes)}"
        )
    alike = all(t._shape == first._shape for t in tensors)
    shape = first._shape if alike else _broadcast(op, operands)
    recorder = _Recorder(op, operands, numbers, dtype, runtime)
    check_type(recorder.dtype, shape, runtime)
    rows = all(t._whole for t in tensors)
    lying = tuple([(t._shape, t._strides) for t in tensors])
    recorder.lie(shape, None if rows else result_strides(shape, lying, not others))
    return recorder


def _follow(
    recorder: _Recorder, out: Tensor, operands: Sequence[Operand], numbers: Sequence[Scalar]
) -> None:
    """Give a result that may have a gradient its gradient function and its tangents."""
    op = recorder.attrs[0]
    if mode.grad:
        edges: list[Edge | None] = []
        needs, place = 0, 1
        for o in operands:
            if not isinstance(o, Tensor):
                continue
            # What has no base says it itself.
            if o._requires_grad or (o._base is not None and o.requires_grad):
                edges.append(gradient_edge(o))
                needs += place
            else:
                edges.append(None)
            place += place
        if needs:
            gradient = recorder.gradients.get(needs)
            if gradient is None:
                gradient = recorder.gradients[needs] = _Gradient(op, operands, edges)
            gradient.attach(out, operands, numbers, edges)
    if transforms.count and mode.forward:
        propagate(out, operands, functools.partial(_tangent, op, out, operands, numbers))


def _tangent(
    op: Elementwise,
    out: Tensor,
    operands: Sequence[Operand],
    numbers: Sequence[Scalar],
    tangents: Sequence[Tensor | None],
) -> Tensor | None:
    """Return the tangent of a result: the slope for each operand, times its tangent.

    A cotangent of one element is multiplied by the same slope: the rules of backward are used.
    """
    total: Tensor | None = None
    for i, t in enumerate(tangents):
        if t is None:
            continue
        if op.vjp is not None:
            (rule,) = op.rules()
            part = rule(t, out, *operands, *numbers)[i]
        else:
            found = slope(op, i)
            if found.kind == "formula":
                assert found.op is not None
                inputs = [t, *[operands[k] for k in found.tensors]]
                part = apply(found.op, inputs, [numbers[k] for k in found.numbers])
            else:
                part = {"zero": None, "one": t, "minus_one": -t}[found.kind]
        if part is not None:
            total = part if total is None else total + part
    return total


def _from_number(value: object) -> Tensor:
    if not isinstance(value, (bool, int, float, complex)):
        raise TypeError(f"expected a Tensor or a number, not {type(value).__name__}")
    return fill((), value, result_type(value), None)


def to_one_device(op: Op, operands: Sequence[Operand]) -> list[Operand]:
    """0-d CPU tensors join the others' device, as in PyTorch; anything else is an error."""
    tensors = [o for o in operands if isinstance(o, Tensor)]
    main = next(
        (t for t in tensors if t._shape), next((t for t in tensors if not t.is_cpu), tensors[0])
    )
    out: list[Operand] = []
    for o in operands:
        if isinstance(o, Tensor) and o._storage.runtime is not main._storage.runtime:
            if o._shape or not o.is_cpu:
                raise device_mismatch(op.name, main, o)
            o = _transfer(o, main._storage.runtime)
        out.append(o)
    return out


def _broadcast(op: Op, operands: Sequence[Operand]) -> tuple[int, ...]:
    shapes = [o._shape for o in operands if isinstance(o, Tensor)]
    try:
        return broadcast_shapes(*shapes)
    except ShapeError as error:
        raise ShapeError(
            f"{error}: sizes of {op.name.strip('_')} must be equal or 1, counted from the right."
        ) from None


def _scalar(op: Op, value: Any, compute: DType, wraps: bool = False) -> Scalar:
    if isinstance(value, Tensor):
        value = value.item()
    elif not isinstance(value, (bool, int, float)):
        item = getattr(value, "item", None)
        if item is None:
            raise TypeError(
                f"{op.name.strip('_')}(): expected a number or a Tensor, not {type(value).__name__}"
            )
        value = item()
    if compute.kind in ("int", "uint"):
        if isinstance(value, float) and not isinstance(value, bool):
            if value != value or value in (float("inf"), float("-inf")):
                raise RuntimeError(
                    f"value cannot be converted to type {compute.name} without overflow"
                )
            value = int(value)
        low, high = integer_limits(compute)
        if not low <= value <= high:
            if wraps and -(2**63) <= value < 2**63:
                return (value - low) % (high - low + 1) + low
            if compute.kind == "uint" and -high <= value < 0:
                return value + high + 1  # PyTorch wraps negative numbers for unsigned types
            raise RuntimeError(
                f"{op.name.strip('_')}: value {value} cannot be converted to type {compute.name} "
                "without overflow"
            )
    return value


def sum_to(g: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return g summed over the dims along which `shape` was broadcast."""
    if g._shape == shape:
        return g
    lead = g.ndim - len(shape)
    dims = tuple(
        [d for d, s in enumerate(g._shape) if d < lead or (shape[d - lead] == 1 and s != 1)]
    )
    if 0 in g._shape:
        return zeros_after(g, shape)
    out = reshape_fresh(reduce_dims(g, "sum", dims) if dims else g, shape)
    if out is not g and dims:
        # Nobody else has what it is a view of.
        out._base = out._made_by = None
    return out


def reshape_fresh(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Reshape a contiguous tensor."""
    if x._shape == shape:
        return x
    return as_view(x, shape, contiguous_strides(shape), x._offset, _reshaped, (x._shape,), "View")


def _reshaped(g: Tensor, shape: tuple[int, ...]) -> Tensor:
    return g.reshape(shape)
