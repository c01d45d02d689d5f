"""Nodes that move elements: shapes, joining, slices, padding. Floor 6; needs NumPy."""

from __future__ import annotations

import math

import numpy

from webtorch.functions import public as webtorch
from webtorch.onnx.operators.table import (
    Attrs,
    Context,
    Numbers,
    Result,
    element_type,
    ints,
    is_host,
    number,
    op,
)
from webtorch.onnx.operators.windows import pad_sides
from webtorch.tensors.tensor import Tensor


@op("Shape")
def _shape(c: Context, a: Attrs, n: int, x: Tensor) -> Result:
    sizes = list(x.shape)[a.get("start", 0) : a.get("end", None)]
    return numpy.array(sizes, dtype=numpy.int64)


@op("Size")
def _size(c: Context, a: Attrs, n: int, x: Tensor) -> Result:
    return numpy.array(math.prod(x.shape), dtype=numpy.int64)


@op("Reshape", host=(1,))
def _reshape(c: Context, a: Attrs, n: int, x: Tensor, shape: Numbers | None = None) -> Tensor:
    target = list(a["shape"]) if shape is None else ints(shape) or []
    if not a.get("allowzero"):
        target = [x.shape[d] if s == 0 else s for d, s in enumerate(target)]
    return x.reshape(tuple(target))


@op("Flatten")
def _flatten(c: Context, a: Attrs, n: int, x: Tensor) -> Tensor:
    axis = a.get("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape((math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@op("Squeeze", host=(1,))
def _squeeze(c: Context, a: Attrs, n: int, x: Tensor, axes: Numbers | None = None) -> Tensor:
    given = a.get("axes") if axes is None else ints(axes)
    return x.squeeze() if given is None else x.squeeze(tuple(given))


@op("Unsqueeze", host=(1,))
def _unsqueeze(c: Context, a: Attrs, n: int, x: Tensor, axes: Numbers | None = None) -> Tensor:
    given = list(a["axes"]) if axes is None else ints(axes) or []
    rank = x.ndim + len(given)
    for d in sorted(d % rank for d in given):
        x = x.unsqueeze(d)
    return x


@op("Transpose")
def _transpose(c: Context, a: Attrs, n: int, x: Tensor) -> Tensor:
    return x.permute(tuple(a.get("perm") or reversed(range(x.ndim))))


@op("Expand", host=(1,))
def _expand(c: Context, a: Attrs, n: int, x: Tensor, shape: Numbers) -> Tensor:
    target = tuple(ints(shape) or ())
    return x.expand(tuple(numpy.broadcast_shapes(tuple(x.shape), target)))


@op("Tile", host=(1,))
def _tile(c: Context, a: Attrs, n: int, x: Tensor, repeats: Numbers) -> Tensor:
    return x.repeat(tuple(ints(repeats) or ()))


@op("Concat")
def _concat(c: Context, a: Attrs, n: int, *x: Tensor) -> Tensor:
    return webtorch.cat(x, a.get("axis", 1))


@op("Split", host=(1,))
def _split(c: Context, a: Attrs, n: int, x: Tensor, split: Numbers | None = None) -> Result:
    axis = a.get("axis", 0)
    sizes = a.get("split") if split is None else ints(split)
    if sizes is None:
        parts = a.get("num_outputs", n)
        each = -(-x.shape[axis] // parts)
        sizes = [each] * (parts - 1) + [x.shape[axis] - each * (parts - 1)]
    return tuple(webtorch.split(x, list(sizes), axis))


@op("Slice", host=(1, 2, 3, 4))
def _slice(
    c: Context,
    a: Attrs,
    n: int,
    x: Tensor,
    starts: Numbers | None = None,
    ends: Numbers | None = None,
    axes: Numbers | None = None,
    steps: Numbers | None = None,
) -> Tensor:
    first = a.get("starts") if starts is None else ints(starts)
    last = a.get("ends") if ends is None else ints(ends)
    assert first is not None and last is not None
    dims = (a.get("axes") if axes is None else ints(axes)) or list(range(len(first)))
    by = [1] * len(first) if steps is None else ints(steps) or []
    for d, start, stop, step in zip(dims, first, last, by, strict=True):
        d %= x.ndim
        size = x.shape[d]
        if step > 0:
            begin = min(max(start + size if start < 0 else start, 0), size)
            end = min(max(stop + size if stop < 0 else stop, 0), size)
            x = x[(slice(None),) * d + (slice(begin, max(begin, end), step),)]
            continue
        begin = min(max(start + size if start < 0 else start, -1), size - 1)
        end = min(max(stop + size if stop < 0 else stop, -1), size - 1)
        where = list(range(begin, end, step))
        x = x.index_select(d, webtorch.tensor(where, dtype=webtorch.int64, device=x.device))
    return x


@op("Pad", host=(1, 2, 3))
def _pad(
    c: Context,
    a: Attrs,
    n: int,
    x: Tensor,
    pads: Numbers | None = None,
    value: Numbers | None = None,
    axes: Numbers | None = None,
) -> Tensor:
    given = list(a["pads"]) if pads is None else ints(pads) or []
    fill = a.get("value", 0) if value is None else number(value)
    count = len(given) // 2
    dims = list(range(count)) if axes is None else [d % x.ndim for d in ints(axes) or []]
    low, high = [0] * x.ndim, [0] * x.ndim
    for i, d in enumerate(dims):
        low[d], high[d] = given[i], given[i + count]
    mode = a.get("mode", "constant")
    if mode == "constant":
        return pad_sides(x, low, high, fill)
    # One dim after the other, by positions: any number of dims, and borders larger than the input.
    for d in range(x.ndim):
        size = x.shape[d]
        if not (low[d] or high[d]):
            continue
        where = [_reflected(i, size, mode) for i in range(-low[d], size + high[d])]
        x = x.index_select(d, webtorch.tensor(where, dtype=webtorch.int64, device=x.device))
    return x


def _reflected(i: int, size: int, mode: str) -> int:
    if mode == "edge":
        return min(max(i, 0), size - 1)
    if mode == "wrap":
        return i % size
    period = max(2 * (size - 1), 1)
    i %= period
    return i if i < size else period - i


@op("DepthToSpace")
def _depth_to_space(c: Context, a: Attrs, n: int, x: Tensor) -> Tensor:
    b = a["blocksize"]
    batch, channels, height, width = x.shape
    if a.get("mode", "DCR") == "DCR":
        parts = x.reshape(batch, b, b, channels // b**2, height, width).permute(0, 3, 4, 1, 5, 2)
    else:
        parts = x.reshape(batch, channels // b**2, b, b, height, width).permute(0, 1, 4, 2, 5, 3)
    return parts.reshape(batch, channels // b**2, height * b, width * b)


@op("SpaceToDepth")
def _space_to_depth(c: Context, a: Attrs, n: int, x: Tensor) -> Tensor:
    b = a["blocksize"]
    batch, channels, height, width = x.shape
    parts = x.reshape(batch, channels, height // b, b, width // b, b)
    order = (0, 1, 3, 5, 2, 4) if a.get("mode") == "CRD" else (0, 3, 5, 1, 2, 4)
    parts = parts.permute(*order)
    return parts.reshape(batch, channels * b * b, height // b, width // b)


@op("ConstantOfShape", host=(0,))
def _constant_of_shape(c: Context, a: Attrs, n: int, shape: Numbers) -> Tensor:
    value = a.get("value", numpy.zeros(1, numpy.float32))
    return c.tensor(numpy.full(ints(shape) or (), value.reshape(-1)[0], value.dtype))


@op("Range", host=(0, 1, 2))
def _range(c: Context, a: Attrs, n: int, start: Numbers, limit: Numbers, delta: Numbers) -> Tensor:
    steps = numpy.arange(number(start), number(limit), number(delta))
    if is_host(start):
        return c.tensor(steps.astype(start.dtype))
    return c.tensor(steps, start.device).to(start.dtype)


@op("EyeLike")
def _eye(c: Context, a: Attrs, n: int, x: Tensor) -> Tensor:
    dtype = element_type(a["dtype"]) if "dtype" in a else x.dtype
    rows, columns = x.shape
    i = webtorch.arange(rows, device=x.device).reshape(-1, 1)
    j = webtorch.arange(columns, device=x.device)
    return (j - i == a.get("k", 0)).to(dtype)


@op("Trilu", host=(1,))
def _trilu(c: Context, a: Attrs, n: int, x: Tensor, k: Numbers | None = None) -> Tensor:
    diagonal = 0 if k is None else int(number(k))
    wide = x.to(webtorch.int32) if x.dtype is webtorch.bool else x
    out = wide.triu(diagonal) if a.get("upper", 1) else wide.tril(diagonal)
    return out.to(x.dtype)


@op("CenterCropPad", host=(1,))
def _center_crop_pad(c: Context, a: Attrs, n: int, x: Tensor, shape: Numbers) -> Tensor:
    axes = a.get("axes") or list(range(x.ndim))
    for d, size in zip(axes, ints(shape) or [], strict=True):
        d %= x.ndim
        extra = size - x.shape[d]
        if extra < 0:
            x = x.narrow(d, -extra // 2, size)
        elif extra:
            low, high = [0] * x.ndim, [0] * x.ndim
            low[d], high[d] = extra // 2, extra - extra // 2
            x = pad_sides(x, low, high)
    return x


@op("ReverseSequence", host=(1,))
def _reverse_sequence(c: Context, a: Attrs, n: int, x: Tensor, lengths: Numbers) -> Tensor:
    time, batch = a.get("time_axis", 0), a.get("batch_axis", 1)
    steps = x.shape[time]
    rows = [
        [length - 1 - t if t < length else t for t in range(steps)]
        for length in ints(lengths) or []
    ]
    index = webtorch.tensor(rows, device=x.device)
    index = index if batch < time else index.t()
    shape = [1] * x.ndim
    shape[time], shape[batch] = steps, x.shape[batch]
    return x.gather(time, index.reshape(shape).expand(x.shape))


@op("Compress", host=(1,))
def _compress(c: Context, a: Attrs, n: int, x: Tensor, condition: Numbers) -> Tensor:
    where = [i for i, yes in enumerate(condition.reshape(-1).tolist()) if yes]
    index = webtorch.tensor(where, dtype=webtorch.int64, device=x.device)
    return (
        x.reshape(-1).index_select(0, index)
        if "axis" not in a
        else x.index_select(a["axis"], index)
    )


@op("NonZero")
def _nonzero(c: Context, a: Attrs, n: int, x: Tensor) -> Tensor:
    return webtorch.nonzero(x).t()
