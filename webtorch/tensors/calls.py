"""Calls of table entries on tensors: promotion, broadcasting, recording, gradients, in-place and
out= forms. Floor 4.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from webtorch.errors import DTypeError, ShapeError
from webtorch.ir.dtype import (
    DType,
    Scalar,
    bool_,
    float32,
    float64,
    int64,
    integer_limits,
    kind_of_scalar,
    legacy_name,
    promote_types,
    uint8,
)
from webtorch.ir.graph import Node
from webtorch.ir.lines import user_line
from webtorch.ir.view import broadcast_shapes, contiguous_strides, numel, result_strides
from webtorch.ops import elementwise
from webtorch.ops.purity import warn
from webtorch.ops.record import Elementwise, Op, gradient_title, in_old_order, slope, used_arguments
from webtorch.runtime.realize import Runtime
from webtorch.tensors import override
from webtorch.tensors.above import ask
from webtorch.tensors.autocast import without_autocast
from webtorch.tensors.batching import levels_of, logical, physical, sizes_of
from webtorch.tensors.forward import propagate, transposed_call
from webtorch.tensors.primitives import (
    as_view,
    cast_to,
    check_int64,
    check_places,
    check_writable,
    conjugate,
    device_mismatch,
    fill,
    leave_hooks,
    ordered_node,
    out_of_order,
    reduce_dims,
    write,
)
from webtorch.tensors.remember import forget
from webtorch.tensors.storage import Storage
from webtorch.tensors.tape import (
    GradFn,
    SavedTensor,
    forward,
    gradient_edge,
    mode,
    set_history,
    unrecorded,
)
from webtorch.tensors.tensor import Size, Tensor, _transfer, unsupported_text

Operand = Tensor | Scalar | complex
_default_dtype = float32


def get_default_dtype() -> DType:
    """Return the dtype of new floating-point tensors."""
    return _default_dtype


def set_default_dtype(d: DType) -> None:
    """Set the dtype of new floating-point tensors. Raises TypeError for other types."""
    global _default_dtype
    if not getattr(d, "is_floating_point", False):
        raise TypeError("only floating-point types are supported as the default type")
    _default_dtype = d
    _promoted.cache_clear()
    _recorders.clear()
    forget()


# ---- promotion
# --------------------------------------------------------------------------------------------------------


def _combine(higher: DType | None, lower: DType | None) -> DType | None:
    """PyTorch's rule between a group of operands that sets the width and one that may only raise
    the category.
    """
    if higher is None or lower is None:
        return higher or lower
    if higher.is_complex:
        return higher
    if higher.kind == "float":
        return higher.to_complex() if lower.is_complex else higher
    if higher.kind == "bool" or lower.has_gradient:
        return promote_types(higher, lower)
    return higher


@lru_cache(maxsize=4096)
def _promoted(dims: tuple[DType, ...], zeros: tuple[DType, ...], kinds: tuple[str, ...]) -> DType:
    def join(types: Sequence[DType]) -> DType | None:
        out: DType | None = None
        for t in types:
            out = t if out is None else promote_types(out, t)
        return out

    scalars = {"bool": bool_, "int": int64, "float": _default_dtype}
    if "complex" in kinds:
        scalars["complex"] = _default_dtype.to_complex()
    found = _combine(join(dims), _combine(join(zeros), join([scalars[k] for k in kinds])))
    return _default_dtype if found is None else found


def result_type(*operands: Operand) -> DType:
    """Return the dtype that arithmetic on these tensors and numbers gives."""
    dims = tuple([o.dtype for o in operands if isinstance(o, Tensor) and o._shape])
    zeros = tuple([o.dtype for o in operands if isinstance(o, Tensor) and not o._shape])
    kinds = tuple([kind_of_scalar(o) for o in operands if not isinstance(o, Tensor)])
    return _promoted(dims, zeros, kinds)


def can_cast(from_: DType, to: DType) -> bool:
    """Return whether PyTorch allows writing results of one dtype to a tensor of another."""
    order = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}
    return order[from_.kind] <= order[to.kind]


# ---- elementwise
# ------------------------------------------------------------------------------------------------------


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
    if not t._offset or node.kind not in ("buffer", "update", "scatter"):
        return Node("view", (node,), (strides, t._offset), (), shape, t.dtype)
    return Node("view", (node,), (strides,), (t._offset,), shape, t.dtype)


class _Recorder:
    """How the calls of an entry with one signature are recorded: worked out at the first (`_prepare`)."""

    __slots__ = (
        "attrs", "compute", "converts", "differentiable", "dtype", "elements", "order", "runtime",
        "shape", "stored", "strides",
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
        # The type of the calculation, and of the result.
        self.compute = dtype
        self.dtype = bool_ if op.promotion == "bool" else dtype
        self.runtime = runtime
        self.differentiable = op.differentiable and self.dtype.kind == "float"
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
            "map", tuple(srcs), self.attrs, tuple(values), self.stored, self.dtype, user_line()
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
            if compute is int64:
                check_int64(op.name, number, self.runtime)
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
_recorders: dict[tuple[Any, ...], _Recorder] = {}
_MOST_RECORDERS = 1 << 14


def apply(op: Elementwise, operands: Sequence[Operand], numbers: Sequence[Scalar] = ()) -> Tensor:
    """Record an elementwise op. `operands` are the formula's tensors, some of which may be Python
    numbers.
    """
    signature: list[Any] = [op]
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
        _follow(op, out, operands, numbers)
    return out


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
            node = Node("map", srcs, recorder.attrs, values, shape, dtype, user_line())
            out = object.__new__(Tensor)
            out._adopt(Storage(node, runtime, recorder.elements), shape, recorder.strides, 0, True)
            if recorder.differentiable and (
                forward.levels
                or x._requires_grad
                or x._base is not None
                or (not values and (y._requires_grad or y._base is not None))  # type: ignore[union-attr]
            ):
                _follow(op, out, (x, y), ())
            return out
    return apply(op, (x, y))


def _of_another_kind(
    op: Elementwise, operands: Sequence[Operand], numbers: Sequence[Scalar]
) -> Tensor:
    """Record a call on complex numbers, on tensors of several devices or on a number alone."""
    if any(o.dtype.is_complex if isinstance(o, Tensor) else type(o) is complex for o in operands):
        return ask("apply_form")(op, operands, numbers)
    if not any(isinstance(o, Tensor) for o in operands):
        return apply(op, [_from_number(operands[0]), *operands[1:]], numbers)
    return apply(op, _to_one_device(op, operands)[0], numbers)


def _batched(op: Elementwise, operands: Sequence[Operand], numbers: Sequence[Scalar]) -> Tensor:
    """Record a call on tensors with dimensions that vmap hides: the result has them first."""
    recorder = _prepare(op, operands, numbers)
    if recorder is None:
        return _of_another_kind(op, operands, numbers)
    levels, rank = levels_of(operands), len(recorder.shape)
    recorder.lie((*sizes_of(levels), *recorder.shape), None)
    # Behind the dimensions that vmap hides, all operands have the dims of the result.
    full = [physical(o, levels, rank) if isinstance(o, Tensor) else o for o in operands]
    out = logical(recorder.record(full, numbers), levels)
    if recorder.differentiable:
        _follow(op, out, operands, numbers)
    return out


def _prepare(
    op: Elementwise, operands: Sequence[Operand], numbers: Sequence[Scalar]
) -> _Recorder | None:
    """Work out what calls like this one record; None where they go another way."""
    tensors = [o for o in operands if isinstance(o, Tensor)]
    others = [o for o in operands if not isinstance(o, Tensor)]
    if not tensors or any(type(o) is complex for o in others):
        return None
    first = tensors[0]
    runtime = first._storage.runtime
    if any(t._storage.runtime is not runtime for t in tensors):
        return None
    _check_operands(op, operands)
    dtype = result_type(*operands)
    if dtype.is_complex:
        return None
    if op.promotion == "float" and dtype.kind != "float":
        wide = _default_dtype is float64 and float64 in runtime.unsupported
        dtype = float32 if wide else _default_dtype
    if dtype not in op.dtypes:
        raise DTypeError(
            f"\"{op.name.strip('_')}\" not implemented for '{legacy_name(dtype)}': it takes "
            f"{', '.join(d.name for d in op.dtypes)}"
        )
    alike = all(t._shape == first._shape for t in tensors)
    shape = first._shape if alike else _broadcast(op, operands)
    recorder = _Recorder(op, operands, numbers, dtype, runtime)
    if recorder.dtype in runtime.unsupported:
        raise DTypeError(unsupported_text(recorder.dtype, runtime))
    rows = all(t._whole for t in tensors)
    lying = tuple([(t._shape, t._strides) for t in tensors])
    recorder.lie(shape, None if rows else result_strides(shape, lying, not others))
    return recorder


def _follow(
    op: Elementwise, out: Tensor, operands: Sequence[Operand], numbers: Sequence[Scalar]
) -> None:
    """Give a result its gradient function and its tangents."""
    if mode.grad and op.differentiable and out.dtype.kind == "float":
        for o in operands:
            # What has no base says it itself.
            if isinstance(o, Tensor) and (
                o._requires_grad or (o._base is not None and o.requires_grad)
            ):
                _attach(op, out, operands, numbers)
                break
    if forward.levels and mode.forward and op.differentiable and out.dtype.kind == "float":
        propagate(out, operands, functools.partial(_tangent, op, out, operands, numbers))


def _check_operands(op: Elementwise, operands: Sequence[Operand]) -> None:
    if op is elementwise._sub:
        elementwise.check_subtraction("sub", *operands)


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
            part = op.vjp(t, out, *operands, *numbers)[i]
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


def _from_number(value: Any) -> Tensor:
    if not isinstance(value, (bool, int, float, complex)):
        raise TypeError(f"expected a Tensor or a number, not {type(value).__name__}")
    return fill((), value, result_type(value), None)


def _to_one_device(op: Op, operands: Sequence[Operand]) -> tuple[list[Operand], Any]:
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
    return out, main._storage.runtime


def _broadcast(op: Op, operands: Sequence[Operand]) -> tuple[int, ...]:
    shapes = [o._shape for o in operands if isinstance(o, Tensor)]
    try:
        return broadcast_shapes(*shapes)
    except ShapeError as error:
        raise ShapeError(
            f"{op.name.strip('_')}: {error}. Sizes must be equal or 1, counted from the right."
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
    out = (
        reduce_dims(g, "sum", dims)
        if dims and g.numel()
        else g
        if g.numel()
        else fill(shape, 0, g.dtype, g.device)
    )
    return reshape_fresh(out, shape)


def reshape_fresh(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Reshape a contiguous tensor."""
    if x._shape == shape:
        return x
    source = x._shape
    return as_view(
        x, shape, contiguous_strides(shape), x._offset, lambda g: g.reshape(source), "View"
    )


def _attach(
    op: Elementwise, out: Tensor, operands: Sequence[Operand], numbers: Sequence[Scalar]
) -> None:
    edges = tuple(
        [
            gradient_edge(o) if o.dtype.kind == "float" and o.requires_grad else None
            for o in operands
            if isinstance(o, Tensor)
        ]
    )
    shapes = [o._shape for o in operands if isinstance(o, Tensor)]
    if op.vjp is not None:
        rule = _given_rule(op, out, operands, numbers, shapes)
    else:
        rule = _derived_rule(op, operands, numbers, edges, shapes)
    fn = GradFn(op.gradient_name, edges, rule)
    if op.vjp is not None and "out" in op.used_by_vjp():
        rule.__defaults__[0].append(weakref.ref(fn))
    set_history(out, fn)


def _given_rule(
    op: Elementwise,
    out: Tensor,
    operands: Sequence[Operand],
    numbers: Sequence[Scalar],
    shapes: list[tuple[int, ...]],
) -> Any:
    used = op.used_by_vjp()
    assert op.vjp is not None
    vjp = op.vjp
    saved = [
        (SavedTensor(o, apart=op.saves_values) if name in used else None)
        if isinstance(o, Tensor)
        else o
        for name, o in zip(op.tensors, operands, strict=True)
    ]
    saved_out = SavedTensor(out, is_output=True, apart=op.saves_values) if "out" in used else None
    is_tensor = [isinstance(o, Tensor) for o in operands]

    def rule(gs: Any, owner: list[Any] = []) -> list[Tensor | None]:  # noqa: B006  (each rule has its own list)
        g = gs[0]
        result = saved_out.unpack(owner[0]()) if saved_out is not None else None
        found = vjp(
            g, result, *[s.unpack() if isinstance(s, SavedTensor) else s for s in saved], *numbers
        )
        kept = [c for c, t in zip(found, is_tensor, strict=False) if t]
        return [
            None if c is None else sum_to(c, shape) for c, shape in zip(kept, shapes, strict=True)
        ]

    rule.__defaults__ = ([],)
    return rule


def _derived_rule(
    op: Elementwise,
    operands: Sequence[Operand],
    numbers: Sequence[Scalar],
    edges: Any,
    shapes: list[tuple[int, ...]],
) -> Any:
    slots = [i for i, o in enumerate(operands) if isinstance(o, Tensor)]
    slopes = [
        slope(op, slot) if edge is not None else None
        for slot, edge in zip(slots, edges, strict=True)
    ]
    needed = {t for s in slopes if s is not None for t in s.tensors}
    saved = {
        i: SavedTensor(o, apart=op.saves_values) if isinstance(o, Tensor) else o
        for i, o in enumerate(operands)
        if i in needed
    }

    def rule(gs: Any) -> list[Tensor | None]:
        g = gs[0]
        values = {i: s.unpack() if isinstance(s, SavedTensor) else s for i, s in saved.items()}
        out: list[Tensor | None] = []
        for s, shape in zip(slopes, shapes, strict=True):
            if s is None or s.kind == "zero":
                out.append(None if s is None else fill(shape, 0, g.dtype, g.device))
                continue
            if s.kind == "formula":
                assert s.op is not None
                c = apply(
                    s.op, [g, *[values[i] for i in s.tensors]], [numbers[i] for i in s.numbers]
                )
            else:
                c = g if s.kind == "one" else -g
            out.append(sum_to(c, shape))
        return out

    return rule


# ---- the functions users call
# -------------------------------------------------------------------------------------------


def store_in(out: Tensor, result: Tensor, name: str, cut: bool = False) -> Tensor:
    """Write `result` to the `out=` argument, resizing it if its shape differs; floats are `cut` off for integers."""
    if not (can_cast(result.dtype, out.dtype) or cut):
        raise RuntimeError(
            f"result type {legacy_name(result.dtype)} can't be cast to the desired output type "
            f"{legacy_name(out.dtype)}"
        )
    if result.requires_grad or (mode.grad and out.requires_grad):
        raise RuntimeError(
            f"{name}(): functions with out=... arguments don't support automatic differentiation, "
            "but one of the arguments requires grad."
        )
    if out._shape != result._shape:
        if numel(out._shape):
            warn(
                f"An output with one or more elements was resized since it had shape {list(out._shape)}, which "
                f"does not match the required output shape {list(result._shape)}. This behavior is deprecated, "
                "and in a future PyTorch release outputs will not be resized unless they have zero elements. "
                "You can explicitly reuse an out tensor t by resizing it, inplace, to zero elements with "
                "t.resize_(0)."
            )
        out.resize_(result._shape)
    return write(out, cast_to(result, out.dtype), fresh=False)


def write_result(x: Tensor, result: Tensor, name: str) -> Tensor:
    """Write the result of an in-place op to `x`. Raises RuntimeError where shape or dtype do not
    fit.
    """
    if result._shape != x._shape:
        raise ShapeError(
            f"{name}: output with shape {list(x._shape)} doesn't match the broadcast shape "
            f"{list(result._shape)}; use the form without "
            "underscore, which makes a new tensor"
        )
    if result.dtype is not x.dtype:
        if x.dtype.is_complex and name == "abs_":
            raise RuntimeError("In-place abs is not supported for complex tensors.")
        if not can_cast(result.dtype, x.dtype):
            raise RuntimeError(
                f"result type {legacy_name(result.dtype)} can't be cast to the desired output "
                f"type {legacy_name(x.dtype)}"
            )
        result = cast_to(result, x.dtype)
    return write(x, result, fresh=True)


def bind_elementwise(op: Elementwise) -> Callable[..., Any]:
    """Return the public function of an elementwise entry."""
    names = (*op.tensors, *op.numbers)
    count = len(op.tensors)
    defaults = op.defaults
    given_by_place = len(op.positional())
    exact = op.out == "exact"

    if count == 1 and not op.numbers:

        def function(input: Tensor, *, out: Tensor | None = None) -> Tensor:
            if not isinstance(input, Tensor):
                if override.is_foreign((input,), {}):
                    return override.meet(function, (input,), {} if out is None else {"out": out})
                raise TypeError(
                    f"{op.name}(): argument 'input' (position 1) must be Tensor, not "
                    f"{type(input).__name__}"
                )
            result = apply(op, (input,))
            if out is None:
                return result
            if exact:
                _check_exact(op.name, (out,), (result,))
            return store_in(out, result, op.name)

    elif count == 2 and not op.numbers and op.tensors == ("input", "other"):

        def function(input: Operand, other: Operand, *, out: Tensor | None = None) -> Tensor:  # type: ignore[misc]
            if not (isinstance(input, Tensor) and isinstance(other, Tensor)):
                _check_numbers(op, input, other)
            try:
                result = apply_two(op, _operand(op, input), _operand(op, other, 1))
            except override.Foreign:
                given = {} if out is None else {"out": out}
                return override.meet(function, (input, other), given)
            if out is None:
                return result
            if exact:
                _check_exact(op.name, (out,), (result,))
            return store_in(out, result, op.name)

    else:

        def function(*args: Any, out: Tensor | None = None, **kwargs: Any) -> Tensor:  # type: ignore[misc]
            if len(args) > given_by_place and given_by_place < len(names):
                args, kwargs = _in_old_order(op, args, kwargs)
            values = _arguments(op, names, defaults, args, kwargs)
            if count == 2 and not (isinstance(values[0], Tensor) and isinstance(values[1], Tensor)):
                _check_numbers(op, values[0], values[1])
            try:
                tensors = [_operand(op, v, i) for i, v in enumerate(values[:count])]
            except override.Foreign:
                given = {} if out is None else {"out": out}
                return override.meet(function, args, {**kwargs, **given})
            result = apply(op, tensors, values[count:])
            if out is None:
                return result
            if (op.out(*values) if callable(op.out) else op.out) == "exact":
                _check_exact(op.name, (out,), (result,))
            return store_in(out, result, op.name)

    function.__name__ = function.__qualname__ = op.name
    function.__doc__ = op.doc
    return function


def _check_numbers(op: Elementwise, input: Any, other: Any) -> None:
    """Raise TypeError where PyTorch's function of this name takes no number."""
    # Internal entries are called with what their public ones have checked.
    if not op.function_in:
        return
    given = [isinstance(x, (bool, int, float, complex)) for x in (input, other)]
    if (
        all(given)
        or (given[0] and op.numbers_for != "both")
        or (given[1] and op.numbers_for == "none")
    ):
        number = 0 if given[0] else 1
        raise TypeError(
            f"{op.name}(): argument '{op.tensors[number]}' (position {number + 1}) must be Tensor, "
            f"not {type((input, other)[number]).__name__}"
        )


def _operand(op: Elementwise, value: Any, number: int = 0) -> Operand:
    if isinstance(value, (Tensor, bool, int, float, complex)):
        return value
    if override.is_foreign((value,), {}):
        raise override.Foreign
    item = getattr(value, "item", None)
    if item is not None and getattr(value, "ndim", 0) == 0:
        return item()
    raise TypeError(
        f"{op.name.strip('_')}(): argument '{op.tensors[number]}' (position {number + 1}) must be "
        f"Tensor, not {type(value).__name__}"
    )


def _in_old_order(
    op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, factor = in_old_order(op, args, op.factor in kwargs)
    return args, {**kwargs, op.factor: factor}


def _arguments(
    op: Op,
    names: tuple[str, ...],
    defaults: dict[str, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> list[Any]:
    if len(args) > len(names):
        raise TypeError(
            f"{op.name}() takes {len(names)} positional arguments but {len(args)} were given"
        )
    values = list(args)
    for name in names[len(args) :]:
        if name in kwargs:
            values.append(kwargs.pop(name))
        elif name in defaults:
            values.append(defaults[name])
        else:
            raise TypeError(f"{op.name}(): missing required argument '{name}'")
    kwargs.pop("inplace", None)
    if kwargs:
        raise TypeError(f"{op.name}() got an unexpected keyword argument '{next(iter(kwargs))}'")
    return values


def accept_inplace(op: Op, inplace: Callable[..., Any]) -> Callable[..., Any]:
    """Return the nn.functional form of an entry, which takes `inplace` after its numbers."""
    function = op.function
    count = (
        len(op.numbers) + len(op.tensors)
        if isinstance(op, Elementwise)
        else len(inspect.signature(function).parameters)
    )

    def functional(*args: Any, **kwargs: Any) -> Any:
        chosen = kwargs.pop("inplace", False)
        if len(args) > count:
            args, chosen = args[:-1], args[-1]
        return (inplace if chosen else function)(*args, **kwargs)

    functional.__name__ = functional.__qualname__ = op.name
    functional.__doc__ = op.doc
    return functional


NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim"}


# Parameters of composites that are tensors, in PyTorch's words.
_TENSOR_NAMES = frozenset((
    "input", "other", "target", "weight", "bias", "indices", "index", "mat1", "mat2", "batch1",
    "batch2", "vec", "tensor", "query", "key", "value", "source", "src", "mask", "condition",
    "x1", "x2", "input1", "input2", "anchor", "positive", "negative", "grid",
))  # fmt: skip


def refuse_types(op: Op) -> Callable[..., Any]:
    """Return a composite's function with PyTorch's error for types that it does not take."""
    function, refused = op.function, frozenset(op.refuses)

    @functools.wraps(function)
    def public(*args: Any, **kwargs: Any) -> Any:
        first = args[0] if args else next(iter(kwargs.values()), None)
        if isinstance(first, Tensor) and first.dtype in refused:
            raise DTypeError(
                f"\"{op.name.strip('_')}\" not implemented for '{legacy_name(first.dtype)}'"
            )
        return function(*args, **kwargs)

    return public


def refuse_others(op: Op, with_out: Callable[..., Any]) -> Callable[..., Any]:
    """Return a composite's function with PyTorch's error for an argument that is no tensor.

    What is no tensor shows when it is used as one: calls with the right arguments pay nothing.
    `with_out` is called where `out=` is given.
    """
    function = op.function
    signature = inspect.signature(function)
    looks = not op.factory

    @functools.wraps(function)
    def public(*args: Any, **kwargs: Any) -> Any:
        if looks and args and not isinstance(args[0], Tensor) and override.is_foreign(args, kwargs):
            return override.meet(public, args, kwargs)
        try:
            if kwargs and "out" in kwargs:
                return with_out(*args, **kwargs)
            return function(*args, **kwargs)
        except (AttributeError, TypeError) as error:
            if override.is_foreign(args, kwargs):
                return override.meet(public, args, kwargs)
            if not isinstance(error, AttributeError):
                raise
            given = dict(zip(signature.parameters, args, strict=False)) | kwargs
            for position, name in enumerate(signature.parameters, 1):
                value = given.get(name)
                # The error may be another one's, of the right arguments.
                if (
                    name in _TENSOR_NAMES
                    and value is not None
                    and not isinstance(value, Tensor)
                    and f"'{type(value).__name__}' object" in str(error)
                ):
                    raise TypeError(
                        f"{op.name.strip('_')}(): argument '{name}' (position {position}) must be "
                        f"Tensor, not {type(value).__name__}"
                    ) from error
            raise

    return public


def takes_out(op: Op, place: str) -> bool:
    """Whether the function of an entry takes `out=` there."""
    return place in ("torch", "linalg", "special", "fft") or op.takes_out


def _check_apart(name: str, places: Sequence[Tensor], given: Sequence[Any]) -> None:
    """Raise RuntimeError if an `out=` shares memory with an input."""
    for place in places:
        for x in given:
            if isinstance(x, Tensor) and x._storage is place._storage and _meet(x, place):
                raise RuntimeError(
                    f"{name}: unsupported operation: the input tensor and the written-to tensor refer to "
                    "the same memory. Please clone() one of them before the operation."
                )


def _meet(x: Tensor, y: Tensor) -> bool:
    """Whether the memory from the first to the last element of two views overlaps."""
    if not (x.numel() and y.numel()):
        return False
    ends = [
        t._offset + sum((s - 1) * st for s, st in zip(t._shape, t._strides, strict=True))
        for t in (x, y)
    ]
    return x._offset <= ends[1] and y._offset <= ends[0]


def check_stated(name: str, dtype: DType | None, out: Any) -> None:
    """Raise RuntimeError if `dtype=` is given beside an `out=` of another type."""
    if dtype is not None and dtype is not out.dtype:
        raise RuntimeError(
            f"{name}: Expected out tensor to have dtype {dtype}, but got {out.dtype} instead"
        )


def _check_exact(name: str, places: Sequence[Tensor], found: Sequence[Tensor]) -> None:
    """Raise RuntimeError if an `out=` has another type than the result."""
    for place, result in zip(places, found, strict=False):
        if place.dtype is not result.dtype:
            raise RuntimeError(
                f"{name}: Expected out tensor to have dtype {result.dtype}, but got {place.dtype} instead"
            )


def accept_out(op: Op) -> Callable[..., Any]:
    """Return a composite's function with `out=`."""
    function = op.function
    if "out" in inspect.signature(function).parameters:
        return function
    plain = without_autocast(function)
    apart = op.overlap == "refused"

    @functools.wraps(function)
    def public(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        if out is None:
            return function(*args, **kwargs)
        places = out if isinstance(out, (tuple, list)) else (out,)
        for place in places:
            check_places(place)
        if apart:
            _check_apart(op.name, places, (*args, *kwargs.values()))
        rule = op.out(*args, **kwargs) if callable(op.out) else op.out
        if rule in ("into", "stated"):
            check_stated(op.name, kwargs.get("dtype"), out)
        if rule == "into" and kwargs.get("dtype") is None:
            if op.name.startswith("nan") and not out.dtype.has_gradient:
                raise DTypeError(
                    f"\"{op.name}\" not implemented for '{legacy_name(out.dtype)}': give an out= of floats"
                )
            kwargs["dtype"] = out.dtype
        found = plain(*args, **kwargs)
        if rule == "mask" and out.dtype not in (bool_, uint8):
            raise RuntimeError(
                f"{op.name} only supports bool tensor for result, got: {legacy_name(out.dtype)}"
            )
        if rule == "exact":
            _check_exact(op.name, places, found if isinstance(found, tuple) else (found,))
        if isinstance(found, tuple):
            stored = [
                store_in(o, f, op.name, rule == "truncate") for o, f in zip(out, found, strict=True)
            ]
            return type(found)(*stored) if hasattr(found, "_fields") else tuple(stored)
        return store_in(out, found, op.name, rule == "truncate")

    return public


def bind_inplace(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the in-place form of a function whose first argument is the tensor to overwrite."""

    def inplace(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        # Asked here: what `function` is given has another name.
        if args and type(args[0]) not in override.plain and override.is_foreign(args, kwargs):
            return override.meet(inplace, (self, *args), kwargs)
        check_writable(self)
        if not mode.grad:
            return write_result(self, function(self, *args, **kwargs), name)
        if self._base is not None:
            leave_hooks(self)
        # What is saved for backward meanwhile may be what is overwritten.
        previous, mode.overwriting = mode.overwriting, []
        saved = mode.overwriting
        try:
            result = function(self, *args, **kwargs)
        finally:
            mode.overwriting = previous
        return (
            _write_and_keep(self, result, name, saved)
            if saved
            else write_result(self, result, name)
        )

    inplace.__name__ = inplace.__qualname__ = name
    inplace.__doc__ = f"In-place form of {function.__name__}."
    return inplace


def _write_and_keep(x: Tensor, result: Tensor, name: str, saved: list[SavedTensor]) -> Tensor:
    """Write the result of an in-place op whose gradient needs `saved`.

    A saved x is the value before the write, which is kept; a saved result is from now on x itself,
    so that overwriting x again is an error, as in PyTorch.
    """
    before = x._storage
    if any(s.storage is before for s in saved):
        kept = Storage(before.share(), before.runtime)
        for s in saved:
            if s.storage is before:
                s.move(kept, s.geometry)
    same_dtype = result.dtype is x.dtype
    made = result._storage
    write_result(x, result, name)
    for s in saved:
        if same_dtype and s.storage is made and s.is_output:
            s.move(x._storage, (x._shape, x._strides, x._offset, x._whole, x.dtype, x._levels))
    return x


def bind_composite(op: Op) -> Callable[..., Any]:
    """Return the public function of a composite that carries its own gradient rule."""
    inner, vjp = op.function, op.vjp
    assert vjp is not None
    signature = inspect.signature(inner)
    names = tuple(signature.parameters)
    used = used_arguments(vjp, ("g", "out", *names))
    many = op.outputs > 1
    title = gradient_title(op.name)

    def function(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            if bound.kwargs:
                if _recorded(args) or (forward.levels and mode.forward):
                    return _with_keywords(bound)
                return inner(*args, **kwargs)
            args = bound.args
        if forward.levels and mode.forward:
            return run(args)
        if not _recorded(args):
            return inner(*args)
        return run(args)

    def _with_keywords(bound: inspect.BoundArguments) -> Any:
        return run(tuple(bound.arguments.values()))

    def move(args: Sequence[Any], tensors: list[Tensor], results: Sequence[Tensor]) -> None:
        """Give the results their tangents."""
        if not forward.levels or not mode.forward:
            return
        out = tuple(results) if many else results[0]
        has_complex = any(t.dtype.is_complex for t in (*tensors, *results))

        def rule(gs: tuple[Tensor, ...]) -> list[Any]:
            found = (_turned(vjp) if has_complex else vjp)(gs if many else gs[0], out, *args)
            return _one_each(found, args)

        transposed_call(results, tensors, rule)

    def run(args: tuple[Any, ...]) -> Any:
        bound = signature.bind(*args) if len(args) <= len(names) else None
        if bound is not None:
            bound.apply_defaults()
            args = bound.args
        with unrecorded():
            out = inner(*args)
        results = out[: op.outputs] if isinstance(out, tuple) else (out,)
        tensors = [a for a in args if isinstance(a, Tensor)]
        if not _recorded(args):
            move(args, tensors, results)
            return out
        edges = tuple(
            [
                gradient_edge(t) if t.dtype.has_gradient and t.requires_grad else None
                for t in tensors
            ]
        )
        saved = [
            (SavedTensor(a, apart=op.saves_values) if n in used else None)
            if isinstance(a, Tensor)
            else a
            for n, a in zip(names, args, strict=False)
        ]
        saved_out = [SavedTensor(r, is_output=True) for r in results] if "out" in used else []
        positions = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
        owner: list[Any] = []
        has_complex = not op.complex_rule and any(t.dtype.is_complex for t in (*tensors, *results))

        def rule(gs: Any) -> list[Tensor | None]:
            kept = [s.unpack(owner[0]()) for s in saved_out]
            for number, result in enumerate(kept):
                result._output_nr = number
            g, out = (tuple(gs), tuple(kept)) if many else (gs[0], kept[0] if kept else None)
            values = [s.unpack() if isinstance(s, SavedTensor) else s for s in saved]
            found = (_turned(vjp) if has_complex else vjp)(g, out, *values)
            return [found[i] if i < len(found) else None for i in positions]

        fn = GradFn(title, edges, rule)
        owner.append(weakref.ref(fn))
        for number, result in enumerate(results):
            set_history(result, fn, number)
        move(args, tensors, results)
        return out

    function.__name__ = function.__qualname__ = op.name
    function.__doc__ = op.doc
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def _turned(vjp: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule for complex numbers that a rule of real ones stands for.

    PyTorch's cotangent of a complex number is that of its two parts, as one number; for a holomorphic
    function it is conj(f'(x)) * g: the rule for conj(g), conjugated.
    """

    def rule(g: Any, out: Any, *values: Any) -> Any:
        given = g if isinstance(g, tuple) else (g,)
        turned = tuple([c if c is None else conjugate(c) for c in given])
        found = vjp(turned if isinstance(g, tuple) else turned[0], out, *values)
        return tuple([conjugate(c) if isinstance(c, Tensor) else c for c in found])

    return rule


def _one_each(cotangents: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Return the cotangents of the tensors among the arguments."""
    places = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
    return [cotangents[i] if i < len(cotangents) else None for i in places]


def _recorded(args: Sequence[Any]) -> bool:
    if mode.grad:
        for a in args:
            if isinstance(a, Tensor) and a.requires_grad:
                return True
    return False


__all__ = [
    "Size",
    "apply",
    "bind_composite",
    "bind_elementwise",
    "bind_inplace",
    "result_type",
    "store_in",
    "sum_to",
    "unsupported_text",
    "write_result",
]
