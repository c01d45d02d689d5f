"""Reductions, running sums and search. Floor 6."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from webtorch import linalg
from webtorch.functions import public as webtorch
from webtorch.onnx.operators.table import Attrs, Context, Numbers, Result, ints, number, op
from webtorch.tensors.tensor import Tensor

# Of a tensor over dims, which stay as ones or not.
Reduction: TypeAlias = Callable[[Tensor, Sequence[int], bool], Tensor]
_REDUCTIONS: dict[str, Reduction] = {
    "ReduceSum": lambda x, d, k: x.sum(d, keepdim=k, dtype=x.dtype),
    "ReduceMean": lambda x, d, k: (
        x.mean(d, keepdim=k)
        if x.dtype.is_floating_point
        else webtorch.div(
            x.sum(d, keepdim=k), math.prod(x.shape[i] for i in d), rounding_mode="trunc"
        ).to(x.dtype)
    ),
    "ReduceMax": lambda x, d, k: x.amax(d, keepdim=k),
    "ReduceMin": lambda x, d, k: x.amin(d, keepdim=k),
    "ReduceProd": lambda x, d, k: _prod(x, d, k),
    "ReduceL1": lambda x, d, k: x.abs().sum(d, keepdim=k, dtype=x.dtype),
    "ReduceL2": lambda x, d, k: (
        webtorch.sqrt((x * x).sum(d, keepdim=k).float()).to(x.dtype)
        if not x.dtype.is_floating_point
        else linalg.vector_norm(x, 2, d, k)
    ),
    "ReduceLogSum": lambda x, d, k: webtorch.log(x.sum(d, keepdim=k)),
    "ReduceLogSumExp": lambda x, d, k: webtorch.logsumexp(x, d, k),
    "ReduceSumSquare": lambda x, d, k: (x * x).sum(d, keepdim=k, dtype=x.dtype),
}


def _prod(x: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
    for d in sorted(dims, reverse=True):
        x = x.prod(d, keepdim=keepdim, dtype=x.dtype)
    return x


def _empty_reduction(name: str, x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return what a reduction of nothing gives."""
    least, most = -math.inf, math.inf
    if not x.dtype.is_floating_point and x.dtype is not webtorch.bool:
        least, most = webtorch.iinfo(x.dtype).min, webtorch.iinfo(x.dtype).max
    value = {"ReduceMax": least, "ReduceMin": most, "ReduceProd": 1, "ReduceLogSum": -math.inf,
             "ReduceLogSumExp": -math.inf, "ReduceMean": math.nan}.get(name, 0)  # fmt: skip
    if x.dtype is webtorch.bool:
        value = name == "ReduceMin"
    return webtorch.full(tuple(shape), value, dtype=x.dtype, device=x.device)


# What a reduction makes of one element, where that is another one.
_OF_ONE: dict[str, Callable[[Tensor], Tensor]] = {
    "ReduceSumSquare": lambda x: x * x, "ReduceL1": webtorch.abs, "ReduceL2": webtorch.abs,
    "ReduceLogSum": webtorch.log,
}  # fmt: skip


def _reduction(name: str, function: Reduction) -> None:
    @op(name, host=(1,))
    def run(c: Context, a: Attrs, n: int, x: Tensor, axes: Numbers | None = None) -> Tensor:
        """Run the reduction over the axes of the attribute, or of the second input."""
        given = a.get("axes") if axes is None else ints(axes)
        keep = bool(a.get("keepdims", 1))
        if not given:
            if a.get("noop_with_empty_axes"):
                return _OF_ONE[name](x) if name in _OF_ONE else x
            given = range(x.ndim)
        dims = tuple(sorted({d % x.ndim for d in given})) if x.ndim else ()
        if 0 in [x.shape[d] for d in dims]:
            shape = [1 if d in dims else s for d, s in enumerate(x.shape) if keep or d not in dims]
            return _empty_reduction(name, x, shape)
        if not x.ndim:
            flat = function(x.reshape(1), (0,), False)
            return flat
        if x.dtype is webtorch.bool:
            return function(x.to(webtorch.int32), dims, keep).to(webtorch.bool)
        return function(x, dims, keep)


for _name, _reduce in _REDUCTIONS.items():
    _reduction(_name, _reduce)


def _arg(find: Callable[[Tensor, int, bool], Tensor]) -> Callable[..., Tensor]:
    def run(c: Context, a: Attrs, n: int, x: Tensor) -> Tensor:
        """Run the search along `axis`, for the last place if the node asks for that."""
        axis, keep = a.get("axis", 0) % x.ndim, bool(a.get("keepdims", 1))
        if not a.get("select_last_index"):
            return find(x, axis, keep)
        return x.shape[axis] - 1 - find(x.flip(axis), axis, keep)

    return run


op("ArgMax")(_arg(lambda x, d, k: x.argmax(d, keepdim=k)))
op("ArgMin")(_arg(lambda x, d, k: x.argmin(d, keepdim=k)))


@op("CumSum", host=(1,))
def _cumsum(c: Context, a: Attrs, n: int, x: Tensor, axis: Numbers) -> Tensor:
    dim = int(number(axis)) % x.ndim
    if a.get("reverse"):
        x = x.flip(dim)
    out = x.cumsum(dim, dtype=x.dtype)
    if a.get("exclusive"):
        out = out - x
    return out.flip(dim) if a.get("reverse") else out


@op("CumProd", host=(1,))
def _cumprod(c: Context, a: Attrs, n: int, x: Tensor, axis: Numbers) -> Tensor:
    dim = int(number(axis)) % x.ndim
    if a.get("reverse"):
        x = x.flip(dim)
    out = x.cumprod(dim, dtype=x.dtype)
    if a.get("exclusive"):
        out = webtorch.cat(
            [webtorch.ones_like(out.narrow(dim, 0, 1)), out.narrow(dim, 0, x.shape[dim] - 1)], dim
        )
    return out.flip(dim) if a.get("reverse") else out


@op("TopK", host=(1,))
def _topk(c: Context, a: Attrs, n: int, x: Tensor, k: Numbers | None = None) -> Result:
    count = a["k"] if k is None else int(number(k))
    dim = a.get("axis", -1) % x.ndim
    # Equal elements in the order of their positions, which a stable sort keeps.
    values, index = x.sort(dim, descending=bool(a.get("largest", 1)), stable=True)
    return values.narrow(dim, 0, count), index.narrow(dim, 0, count)
