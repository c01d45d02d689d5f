"""Gathering, scattering and choosing as nodes. Floor 6."""

from __future__ import annotations

from typing import Any

from webtorch.functions import public as webtorch
from webtorch.ir.dtype import Scalar, bool_, int64
from webtorch.onnx.recording import Call, Value
from webtorch.onnx.writer import Name, Writer, Written, rule


@rule("embedding")
def _embedding(w: Writer, call: Call, input: Value, weight: Value, **_: object) -> Name | None:
    return w.node("Gather", w.name(weight), w.cast(w.name(input), input.dtype, int64), axis=0)


@rule("index_select")
def _index_select(w: Writer, call: Call, input: Value, dim: int, index: Value) -> Name | None:
    if not input.shape or len(index.shape) != 1:
        return None
    place = w.cast(w.name(index), index.dtype, int64)
    return w.node("Gather", w.name(input), place, axis=dim % len(input.shape))


@rule("gather", "take_along_dim")
def _gather(
    w: Writer, call: Call, input: Value, dim: int | None = None, **args: object
) -> Name | None:
    index: Any = args.get("index", args.get("indices"))
    if dim is None or not input.shape or len(index.shape) != len(input.shape):
        return None
    if call.name != "gather" and index.shape != call.results[0].shape:
        return None
    place = w.cast(w.name(index), index.dtype, int64)
    return w.node("GatherElements", w.name(input), place, axis=dim % len(input.shape))


@rule("scatter", "scatter_add")
def _scatter(
    w: Writer,
    call: Call,
    input: Value,
    dim: int,
    index: Value,
    src: Value | None = None,
    **args: object,
) -> Name | None:
    if not isinstance(src, Value) or args.get("reduce") or not input.shape:
        return None
    if src.shape != index.shape or (call.name == "scatter_add" and w.opset < 16):
        return None
    place = w.cast(w.name(index), index.dtype, int64)
    return w.node(
        "ScatterElements", w.name(input), place, w.name(src), axis=dim % len(input.shape),
        reduction="add" if call.name == "scatter_add" else None,
    )  # fmt: skip


@rule("where")
def _where(
    w: Writer,
    call: Call,
    condition: Value,
    input: Value | Scalar | None = None,
    other: Value | Scalar | None = None,
) -> Written:
    if input is None or other is None or condition.dtype is not bool_:
        return None
    out = call.results[0].dtype
    names = [
        w.cast(w.name(v), v.dtype, out) if isinstance(v, Value) else w.number(v, out)
        for v in (input, other)
    ]
    return w.node("Where", w.name(condition), *names)


@rule("masked_fill")
def _masked_fill(
    w: Writer, call: Call, input: Value, mask: Value, value: Value | Scalar
) -> Name | None:
    if mask.dtype is not bool_:
        return None
    dtype = input.dtype
    number = (
        w.cast(w.name(value), value.dtype, dtype)
        if isinstance(value, Value)
        else w.number(value, dtype)
    )
    return w.node("Where", w.name(mask), number, w.name(input))


@rule("one_hot")
def _one_hot(w: Writer, call: Call, tensor: Value, num_classes: int = -1) -> Name:
    classes = call.results[0].shape[-1]
    ends = w.constant(webtorch.tensor([0, 1], device="cpu"), "off_on")
    index = w.cast(w.name(tensor), tensor.dtype, int64)
    return w.node("OneHot", index, w.ints([classes], scalar=True), ends, axis=-1)
