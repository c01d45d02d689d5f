"""Views, joining, slices and padding as nodes. Floor 6."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

from webtorch.ir.dtype import Scalar, bool_, int32, int64
from webtorch.ir.view import numel
from webtorch.onnx.recording import Call, Value
from webtorch.onnx.writer import Name, Writer, Written, rule


@rule(
    "reshape", "view", "flatten", "unflatten", "ravel", "view_as", "reshape_as", "squeeze",
    "unsqueeze", "squeeze_", "unsqueeze_",
)  # fmt: skip
def _reshape(w: Writer, call: Call, input: Value, **args: Any) -> Name | None:
    out = call.results[0]
    if numel(out.shape) != numel(input.shape) or out.dtype is not input.dtype:
        return None
    x = w.name(input)
    rank = len(input.shape)
    if call.name.startswith("unsqueeze"):
        return w.unsqueeze(x, [args["dim"] % (rank + 1)])
    if call.name.startswith("squeeze"):
        dim = args.get("dim")
        dims = range(rank) if dim is None else [dim] if isinstance(dim, int) else dim
        return w.squeeze(x, [d % rank for d in dims if rank and input.shape[d] == 1])
    return w.reshape(x, input.shape, out.shape)


@rule(
    "permute", "transpose", "swapaxes", "swapdims", "t", "T", "mT", "H", "mH", "adjoint", "t_", "transpose_",
)  # fmt: skip
def _permute(w: Writer, call: Call, input: Value, **args: Any) -> Name | None:
    rank = len(input.shape)
    order = list(range(rank))
    if rank < 2:
        return w.name(input)
    match call.name:
        case "permute":
            given = args["args"] or args["dims"]
            dims = given[0] if len(given) == 1 and not isinstance(given[0], int) else given
            order = [d % rank for d in dims]
        case "t" | "T" | "t_" | "H":
            order = order[::-1]
        case "mT" | "mH" | "adjoint":
            order[-1], order[-2] = order[-2], order[-1]
        case _:
            a, b = (n % rank for n in [v for v in args.values() if isinstance(v, int)][:2])
            order[a], order[b] = order[b], order[a]
    return w.transpose(w.name(input), order)


@rule("expand", "expand_as", "broadcast_to")
def _expand(w: Writer, call: Call, input: Value, **args: object) -> Name:
    return w.expand(w.name(input), input.shape, call.results[0].shape)


@rule("repeat", "tile")
def _repeat(w: Writer, call: Call, input: Value, **args: object) -> Name | None:
    out = call.results[0].shape
    lead = len(out) - len(input.shape)
    shape = (1,) * lead + input.shape
    x = w.reshape(w.name(input), input.shape, shape)
    if 0 in shape:
        return None
    return w.node("Tile", x, w.ints([o // s for o, s in zip(out, shape, strict=True)]))


@rule("cat", "concat", "concatenate")
def _cat(w: Writer, call: Call, tensors: Sequence[Value], dim: int = 0, **args: Any) -> Name | None:
    out = call.results[0]
    axis = args.get("axis")
    dim = (dim if axis is None else axis) % len(out.shape)
    parts = [t for t in tensors if t.shape != (0,)]
    names = [w.cast(w.name(t), t.dtype, out.dtype) for t in parts]
    return names[0] if len(names) == 1 else w.node("Concat", *names, axis=dim)


@rule("stack")
def _stack(w: Writer, call: Call, tensors: Sequence[Value], dim: int = 0) -> Name:
    out = call.results[0]
    dim %= len(out.shape)
    names = [w.unsqueeze(w.cast(w.name(t), t.dtype, out.dtype), [dim]) for t in tensors]
    return names[0] if len(names) == 1 else w.node("Concat", *names, axis=dim)


@rule("split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk")
def _split(w: Writer, call: Call, input: Value, dim: int = 0, **args: Any) -> Written:
    dim %= len(input.shape)
    sizes = [r.shape[dim] for r in call.results]
    x = w.name(input)
    if len(sizes) == 1:
        return (x,)
    if len(set(sizes)) == 1 and w.opset >= 18:
        return w.outputs(len(sizes), "Split", x, axis=dim, num_outputs=len(sizes))
    return w.outputs(len(sizes), "Split", x, w.ints(sizes), axis=dim)


@rule("unbind")
def _unbind(w: Writer, call: Call, input: Value, dim: int = 0) -> Written:
    dim %= len(input.shape)
    x = w.name(input)
    return tuple(
        w.node("Gather", x, w.ints([i], scalar=True), axis=dim) for i in range(len(call.results))
    )


@rule("select")
def _select(w: Writer, call: Call, input: Value, dim: int, index: int) -> Name:
    return w.node(
        "Gather", w.name(input), w.ints([index], scalar=True), axis=dim % len(input.shape)
    )


@rule("narrow")
def _narrow(
    w: Writer, call: Call, input: Value, dim: int, start: int | Value, length: int
) -> Name | None:
    if isinstance(start, Value):
        return None
    dim %= len(input.shape)
    start = start % input.shape[dim] if start < 0 else start
    stop = start + length
    return w.slice(w.name(input), dim, start, None if stop == input.shape[dim] else stop)


@rule("getitem")
def _getitem(w: Writer, call: Call, x: Value, index: object) -> Name | None:
    items = _spelled_out(index, len(x.shape))
    if items is None:
        return None
    # Without new dims, which come at the end.
    read = [i for i in items if i is not None]
    tensors = [(d, i) for d, i in enumerate(read) if isinstance(i, Value)]
    picked = [(d, int(i)) for d, i in enumerate(read) if isinstance(i, SupportsIndex)]
    slices = [(d, i) for d, i in enumerate(read) if isinstance(i, slice)]
    if len(tensors) + len(picked) + len(slices) < len(read):
        return None
    if tensors and (picked or None in items):
        return None
    if any(i.indices(x.shape[d])[2] < 1 for d, i in slices):
        return None
    name = w.name(x)
    for d, i in slices:
        name = _sliced(w, name, d, i, x.shape[d])
    for d, number in reversed(picked):
        name = w.node("Gather", name, w.ints([number], scalar=True), axis=d)
    for d, tensor in tensors:
        places = w.cast(w.name(tensor), tensor.dtype, int64)
        name = w.node("Gather", name, places, axis=d)
    kept = [i for i in items if i is None or isinstance(i, slice)]
    return w.unsqueeze(name, [k for k, i in enumerate(kept) if i is None])


def _spelled_out(index: object, rank: int) -> list[object] | None:
    """Return an index as one item for each dim, and None for each new one; None for what has no nodes here."""
    items = list(index) if isinstance(index, tuple) else [index]
    if any(isinstance(i, (bool, list)) for i in items):
        return None
    tensors = [i for i in items if isinstance(i, Value)]
    if len(tensors) > 1 or any(i.dtype.kind not in ("int", "uint") for i in tensors):
        return None
    at = next((k for k, i in enumerate(items) if i is Ellipsis), None)
    used = sum(1 for i in items if i is not None and i is not Ellipsis)
    end = len(items) if at is None else at
    return [*items[:end], *[slice(None)] * (rank - used), *items[end + 1 :]]


def _sliced(w: Writer, name: Name, d: int, taken: slice, size: int) -> Name:
    start, stop, step = taken.indices(size)
    if (start, step) == (0, 1) and stop >= size:
        return name
    # As it was written: what is counted from the end stays so.
    first = taken.start if taken.start is not None and -size <= taken.start <= size else start
    last = None if stop >= size else taken.stop if -size <= taken.stop else stop
    return w.slice(name, d, int(first), last if last is None else int(last), step)


@rule("flip")
def _flip(w: Writer, call: Call, input: Value, **args: Any) -> Name | None:
    given = args["args"] or args["dims"]
    dims = given[0] if len(given) == 1 and not isinstance(given[0], int) else given
    name = w.name(input)
    for d in dims:
        bounds = [w.ints([n]) for n in (-1, -(2**63), d % len(input.shape), -1)]
        name = w.node("Slice", name, *bounds)
    return name


@rule("tril", "triu")
def _trilu(w: Writer, call: Call, input: Value, diagonal: int = 0) -> Name | None:
    if w.opset < 14:
        return None
    wide = input.dtype is bool_
    x = w.cast(w.name(input), input.dtype, int32) if wide else w.name(input)
    out = w.node("Trilu", x, w.ints([diagonal], scalar=True), upper=int(call.name == "triu"))
    return w.cast(out, int32, bool_) if wide else out


@rule("pad", "constant_pad_nd")
def _pad(
    w: Writer,
    call: Call,
    input: Value,
    pad: Sequence[int],
    mode: str = "constant",
    value: Scalar | None = None,
) -> Name | None:
    rank = len(input.shape)
    counts = len(pad) // 2
    low, high = [0] * rank, [0] * rank
    for k in range(counts):
        low[rank - 1 - k], high[rank - 1 - k] = pad[2 * k], pad[2 * k + 1]
    modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    if mode == "circular" and w.opset < 19:
        return None
    number = w.number(value or 0, input.dtype) if mode == "constant" and value else None
    return w.node("Pad", w.name(input), w.ints([*low, *high]), number, mode=modes[mode])
