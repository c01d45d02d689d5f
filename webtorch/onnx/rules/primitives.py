"""Primitives as nodes: what composites without a rule are made of. Floor 6."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webtorch.ir.dtype import DType, Scalar, bool_, int32, int64
from webtorch.ir.reducer import REDUCERS
from webtorch.onnx.graph import ExportError
from webtorch.onnx.recording import Call, Value
from webtorch.onnx.writer import Name, Writer, rule


@rule("_cast")
def _cast(w: Writer, call: Call, x: Value, dtype: DType) -> Name:
    return w.cast(w.name(x), x.dtype, dtype)


@rule("_copy", "clone", "contiguous", "alias_copy")
def _copy(w: Writer, call: Call, **args: Any) -> Name:
    return w.name(args.get("x") or args["input"])


@rule("_write")
def _write(w: Writer, call: Call, x: Value, values: Value, fresh: bool = False) -> Name:
    # Seen through the window that was written, the new value is what was written there.
    return w.name(values)


@rule("_fill")
def _fill(
    w: Writer, call: Call, shape: Sequence[int], value: Scalar, dtype: DType, device: object
) -> Name:
    return w.full(tuple(shape), value, dtype)


@rule("_empty")
def _empty(
    w: Writer, call: Call, shape: Sequence[int], dtype: DType, device: object, like: object = ()
) -> Name:
    return w.full(tuple(shape), 0, dtype)


@rule("_iota")
def _iota(
    w: Writer, call: Call, count: int, start: Scalar, step: Scalar, dtype: DType, device: object
) -> Name:
    steps = w.node(
        "Range", w.ints([0], scalar=True), w.ints([count], scalar=True), w.ints([1], scalar=True)
    )
    if step == 1 and start == 0:
        return w.cast(steps, int64, dtype)
    scaled = w.node("Mul", w.cast(steps, int64, dtype), w.number(step, dtype))
    return w.node("Add", scaled, w.number(start, dtype))


@rule("_philox")
def _philox(
    w: Writer,
    call: Call,
    shape: Sequence[int],
    seed: object,
    offset: object,
    dtype: DType,
    device: object,
    kind: str = "uniform",
    low: object = 0,
) -> Name | None:
    if kind not in ("uniform", "normal"):
        raise ExportError("export: random integers have no form in ONNX: pass them as an input")
    op = "RandomUniformLike" if kind == "uniform" else "RandomNormalLike"
    like = w.full(tuple(shape), 0, dtype)
    return w.node(op, like)


@rule("_reduce")
def _reduce(w: Writer, call: Call, x: Value, combine: str, dims: Sequence[int]) -> Name:
    name, reducer = w.name(x), REDUCERS[combine]
    if reducer.is_position:
        assert len(dims) == 1
        name = w.cast(name, x.dtype, int32) if x.dtype is bool_ else name
        return w.node(reducer.onnx, name, axis=dims[0], keepdims=1)
    if reducer.is_logical:
        wide = name if x.dtype.name in ("int32", "float32") else w.node("Cast", name, to="int32")
        if x.dtype is not bool_:
            zero = w.number(0, x.dtype)
            wide = w.node("Cast", w.node("Not", w.node("Equal", name, zero)), to="int32")
        return w.node("Cast", w.reduce(reducer.onnx, wide, dims, True), to="bool")
    return w.reduce(reducer.onnx, name, dims, True)


@rule("_scan")
def _scan(w: Writer, call: Call, x: Value, combine: str, dim: int) -> Name | None:
    if combine != "sum":
        raise ExportError(
            f"export: a running {combine} (cum{combine}) has no form in ONNX: compute it outside"
        )
    return w.node("CumSum", w.name(x), w.ints([dim], scalar=True))


@rule("_take")
def _take(
    w: Writer,
    call: Call,
    x: Value,
    indices: Sequence[Value],
    name: str,
    wrap: bool = False,
    dims: Sequence[int] = (),
) -> Name:
    index = [w.cast(w.name(i), i.dtype, int64) for i in indices]
    if len(index) == 1:
        return w.node("Gather", w.name(x), index[0], axis=0)
    last = len(indices[0].shape)
    rows = [w.unsqueeze(i, [last]) for i in index]
    return w.node("GatherND", w.name(x), w.node("Concat", *rows, axis=last))


@rule("_scatter")
def _scatter(
    w: Writer,
    call: Call,
    base: Value,
    indices: Sequence[Value],
    values: Value,
    combine: str,
    name: str,
    wrap: bool = False,
    dims: Sequence[int] = (),
) -> Name:
    index = [w.cast(w.name(i), i.dtype, int64) for i in indices]
    last = len(indices[0].shape)
    rows = [w.unsqueeze(i, [last]) for i in index]
    where = rows[0] if len(rows) == 1 else w.node("Concat", *rows, axis=last)
    # Other combinations are ONNX's words too.
    reduction = None if combine == "set" else combine
    if (reduction in ("max", "min") and w.opset < 18) or (reduction and w.opset < 16):
        raise ExportError(f"export: {name} with {combine} needs opset 18; this is {w.opset}")
    return w.node("ScatterND", w.name(base), where, w.name(values), reduction=reduction)


@rule("_matmul")
def _matmul(w: Writer, call: Call, a: Value, b: Value) -> Name:
    return w.node("MatMul", w.name(a), w.name(b))


@rule("_conv2d")
def _conv2d(
    w: Writer,
    call: Call,
    kind: str,
    a: Value,
    b: Value,
    input_shape: object,
    weight_shape: object,
    output_shape: object,
    geometry: tuple[Sequence[int], Sequence[int], Sequence[int], int],
) -> Name | None:
    stride, padding, dilation, groups = geometry
    if kind != "forward":
        raise ExportError("export: gradients of convolutions have no form in ONNX")
    low = list(padding[:2]) if len(padding) == 4 else list(padding)
    return w.node(
        "Conv", w.name(a), w.name(b), strides=list(stride), pads=[*low, *low],
        dilations=list(dilation), group=groups,
    )  # fmt: skip


@rule("_pad")
def _pad(
    w: Writer, call: Call, x: Value, low: Sequence[int], high: Sequence[int], value: Scalar
) -> Name:
    return w.node("Pad", w.name(x), w.ints([*low, *high]), w.number(value, x.dtype))
