"""Reductions, search and order as nodes. Floor 6."""

from __future__ import annotations

from webtorch.ir.dtype import DType, bool_
from webtorch.ir.reducer import REDUCERS
from webtorch.ir.view import numel
from webtorch.onnx.recording import Call, Value
from webtorch.onnx.rules.products import Sizes
from webtorch.onnx.writer import Name, Writer, Written, rule
from webtorch.ops.record import TABLE


def _dims(dim: Sizes | None, rank: int) -> list[int] | None:
    if dim is None or dim == () or dim == []:
        return None
    return [d % rank if rank else 0 for d in ([dim] if isinstance(dim, int) else dim)]


@rule(*(op.name for op in TABLE.values() if op.onnx.startswith("Reduce")))
def _reduction(
    w: Writer,
    call: Call,
    input: Value,
    dim: Sizes | None = None,
    keepdim: bool = False,
    dtype: DType | None = None,
) -> Name | None:
    out = call.results[0]
    if out.dtype is bool_ or numel(input.shape) == 0 or not input.shape:
        return None
    x = w.cast(w.name(input), input.dtype, out.dtype)
    return w.reduce(TABLE[call.name].onnx, x, _dims(dim, len(input.shape)), keepdim)


@rule("argmax", "argmin")
def _arg(
    w: Writer, call: Call, input: Value, dim: int | None = None, keepdim: bool = False
) -> Name | None:
    if dim is None or input.dtype is bool_ or not input.shape:
        return None
    return w.node(
        REDUCERS[call.name].onnx, w.name(input), axis=dim % len(input.shape), keepdims=int(keepdim)
    )


@rule("max", "min")
def _extreme(
    w: Writer,
    call: Call,
    input: Value,
    dim: int | Value | None = None,
    keepdim: bool = False,
    other: object = None,
) -> Written:
    if isinstance(dim, Value) or other is not None or not input.shape or input.dtype is bool_:
        return None
    x, node = w.name(input), REDUCERS[call.name].onnx
    if dim is None:
        return w.reduce(node, x, None, False)
    dim %= len(input.shape)
    values = w.reduce(node, x, [dim], keepdim)
    place = REDUCERS[f"arg{call.name}"].onnx
    return values, w.node(place, x, axis=dim, keepdims=int(keepdim))


@rule("vector_norm")
def _norm(
    w: Writer,
    call: Call,
    x: Value | None = None,
    ord: float | str = 2,
    dim: Sizes | None = None,
    keepdim: bool = False,
    **_: object,
) -> Name | None:
    if ord not in (1, 2) or not isinstance(x, Value) or not x.shape or x.dtype.kind != "float":
        return None
    if call.results[0].dtype is not x.dtype:
        return None
    return w.reduce(f"ReduceL{int(ord)}", w.name(x), _dims(dim, len(x.shape)), keepdim)


@rule("topk")
def _topk(
    w: Writer,
    call: Call,
    input: Value,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> Written:
    if not input.shape:
        return None
    return w.outputs(2, "TopK", w.name(input), w.ints([k]), axis=dim % len(input.shape),
        largest=int(largest), sorted=int(sorted),
    )  # fmt: skip


@rule("argsort")
def _argsort(
    w: Writer,
    call: Call,
    input: Value,
    dim: int = -1,
    descending: bool = False,
    stable: bool | None = False,
) -> Name | None:
    found = _sort(w, call, input, dim, descending, stable)
    return None if found is None else found[1]


@rule("sort")
def _sort(
    w: Writer,
    call: Call,
    input: Value,
    dim: int = -1,
    descending: bool = False,
    stable: bool | None = False,
) -> Written:
    if not input.shape or input.dtype is bool_:
        return None
    dim %= len(input.shape)
    x = w.name(input)
    count = w.ints([input.shape[dim]], [(x, input.shape)])
    return w.outputs(2, "TopK", x, count, axis=dim, largest=int(descending), sorted=1)


@rule("_sort_places")
def _sort_places(w: Writer, call: Call, x: Value, descending: bool, first: int, count: int) -> Name:
    name = w.name(x)
    most = w.ints([first + count], [(name, x.shape)])
    places = w.outputs(2, "TopK", name, most, axis=1, largest=int(descending), sorted=1)[1]
    return w.slice(places, 1, first, None) if first else places


@rule("cumsum")
def _cumsum(
    w: Writer, call: Call, input: Value, dim: int, dtype: DType | None = None
) -> Name | None:
    if not input.shape:
        return None
    x = w.cast(w.name(input), input.dtype, call.results[0].dtype)
    return w.node("CumSum", x, w.ints([dim % len(input.shape)], scalar=True))
