"""Gathering and scattering. Floor 6; needs NumPy."""

from __future__ import annotations

import math
from typing import overload

import numpy

from webtorch.functions import public as webtorch
from webtorch.ir.reducer import REDUCERS
from webtorch.nn import functional as F
from webtorch.onnx.operators.table import Attrs, Context, Numbers, is_host, number, op
from webtorch.tensors.tensor import Tensor


@overload
def _wrapped(index: Tensor, size: int) -> Tensor: ...
@overload
def _wrapped(index: Numbers, size: int) -> Numbers: ...
def _wrapped(index: Numbers, size: int) -> Numbers:
    """Return positions counted from the front."""
    if not isinstance(index, Tensor):
        return numpy.where(index < 0, index + size, index)
    index = index.to(webtorch.int64)
    return webtorch.where(index < 0, index + size, index)


@op("Gather", host=(1,))
def _gather(c: Context, a: Attrs, n: int, x: Tensor, index: Numbers) -> Tensor:
    axis = a.get("axis", 0) % x.ndim
    place = _wrapped(index, x.shape[axis])
    if is_host(place) and place.ndim == 0:
        return x.select(axis, int(place))
    place = c.tensor(place, x.device)
    if axis == 0:
        return F.embedding(place, x) if x.ndim == 2 and x.dtype.is_floating_point else x[place]
    flat = x.index_select(axis, place.reshape(-1))
    return flat.reshape((*x.shape[:axis], *place.shape, *x.shape[axis + 1 :]))


@op("GatherElements")
def _gather_elements(c: Context, a: Attrs, n: int, x: Tensor, index: Tensor) -> Tensor:
    axis = a.get("axis", 0) % x.ndim
    return x.gather(axis, _wrapped(index, x.shape[axis]))


@op("GatherND")
def _gather_nd(c: Context, a: Attrs, n: int, x: Tensor, index: Tensor) -> Tensor:
    batch = a.get("batch_dims", 0)
    depth = index.shape[-1]
    places: list[Tensor] = []
    for d in range(batch):
        shape = [1] * (index.ndim - 1)
        shape[d] = x.shape[d]
        places.append(webtorch.arange(x.shape[d], device=x.device).reshape(shape))
    places += [_wrapped(index.select(-1, k), x.shape[batch + k]) for k in range(depth)]
    return x[tuple(places)]


# ONNX's words for how old and new values become one -> PyTorch's.
_REDUCTIONS = {
    r.combine: f"a{r.name}" if r.is_extreme else r.name
    for r in REDUCERS.values()
    if r.gives is None
}


@op("ScatterElements", "Scatter")
def _scatter_elements(
    c: Context, a: Attrs, n: int, x: Tensor, index: Tensor, updates: Tensor
) -> Tensor:
    axis = a.get("axis", 0) % x.ndim
    place = _wrapped(index, x.shape[axis])
    reduce = _REDUCTIONS.get(a.get("reduction", "none"))
    if reduce is None:
        return x.scatter(axis, place, updates)
    return x.scatter_reduce(axis, place, updates, reduce)


@op("ScatterND")
def _scatter_nd(c: Context, a: Attrs, n: int, x: Tensor, index: Tensor, updates: Tensor) -> Tensor:
    depth = index.shape[-1]
    flat = None
    for k in range(depth):
        place = _wrapped(index.select(-1, k), x.shape[k])
        flat = place if flat is None else flat * x.shape[k] + place
    rows = x.reshape((math.prod(x.shape[:depth]), -1))
    values = updates.reshape((-1, rows.shape[1]))
    assert flat is not None
    flat = flat.reshape(-1)
    reduce = _REDUCTIONS.get(a.get("reduction", "none"))
    if reduce is None:
        out = rows.index_copy(0, flat, values)
    else:
        out = rows.scatter_reduce(0, flat.reshape(-1, 1).expand(values.shape), values, reduce)
    return out.reshape(x.shape)


@op("OneHot", host=(1,))
def _one_hot(c: Context, a: Attrs, n: int, index: Tensor, depth: Numbers, values: Tensor) -> Tensor:
    count = int(number(depth))
    axis = a.get("axis", -1)
    rank = index.ndim + 1
    axis %= rank
    shape = [1] * rank
    shape[axis] = count
    place = index.to(webtorch.int64)
    place = webtorch.where(place < 0, place + count, place).unsqueeze(axis)
    hit = webtorch.arange(count, device=index.device).reshape(shape) == place
    return webtorch.where(hit, values[1], values[0])
