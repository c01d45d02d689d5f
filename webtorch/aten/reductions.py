"""Reductions, softmax, order and search of aten. Floor 6; imports the engine, not PyTorch."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

from webtorch.aten.table import Dims, Function, aten, dims_of, op
from webtorch.ir.dtype import DType, float32
from webtorch.ir.lines import user_depth
from webtorch.ops.layout import columns
from webtorch.ops.primitive import fill
from webtorch.tensors.tensor import Tensor


@aten("sum", direct=("sum.dim_IntList",))
def _sum(
    x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    return op.sum(x, dims_of(dim), keepdim, dtype=dtype)


@aten("nansum")
def _nansum(
    x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    return op.nansum(x, dims_of(dim), keepdim, dtype=dtype)


@aten("mean", direct=("mean.dim",))
def _mean(
    x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    return op.mean(x, dims_of(dim), keepdim, dtype=dtype)


@aten("prod")
def _prod(
    x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    return op.prod(x, dim, keepdim, dtype=dtype)


@aten("amax", direct=("amax",))
def _amax(x: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Tensor:
    return op.amax(x, tuple(dim), keepdim)


@aten("amin")
def _amin(x: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Tensor:
    return op.amin(x, tuple(dim), keepdim)


@aten("any")
def _any(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return op.any(x, dims_of(dim), keepdim)


@aten("all")
def _all(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return op.all(x, dims_of(dim), keepdim)


@aten("count_nonzero")
def _count_nonzero(x: Tensor, dim: Dims = None) -> Tensor:
    return op.count_nonzero(x, dims_of(dim))


@aten("max", "max.unary_out")
def _max(x: Tensor) -> Tensor:
    return op.max(x)


@aten("min", "min.unary_out")
def _min(x: Tensor) -> Tensor:
    return op.min(x)


@aten("max.dim", "max.dim_max")
def _max_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, ...]:
    return tuple(op.max(x, dim, keepdim))


@aten("min.dim", "min.dim_min")
def _min_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, ...]:
    return tuple(op.min(x, dim, keepdim))


@aten("median")
def _median(
    x: Tensor, dim: int | None = None, keepdim: bool = False
) -> Tensor | tuple[Tensor, ...]:
    if dim is None and not x.numel() and x.dtype.is_floating_point:
        return fill((), math.nan, x.dtype, x.device)
    found = op.median(x, dim, keepdim)
    return found if dim is None else tuple(found)


@aten("nanmedian")
def _nanmedian(
    x: Tensor, dim: int | None = None, keepdim: bool = False
) -> Tensor | tuple[Tensor, ...]:
    if dim is None and not x.numel() and x.dtype.is_floating_point:
        return fill((), math.nan, x.dtype, x.device)
    found = op.nanmedian(x, dim, keepdim)
    return found if dim is None else tuple(found)


@aten("aminmax", "_aminmax", "_aminmax.dim")
def _aminmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, ...]:
    return tuple(op.aminmax(x, dim=dim, keepdim=keepdim))


def _spread(name: str) -> Function:
    """Return the meaning of `var` and its kin, which warn where there are too few numbers for the correction."""

    def run(
        x: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
    ) -> Tensor:
        """Compute it, and warn as PyTorch does."""
        correction = 1 if correction is None else correction
        found = getattr(op, name)(x, dims_of(dim), correction=correction, keepdim=keepdim)
        results = found[0].numel() if isinstance(found, tuple) else found.numel()
        if x.numel() // max(results, 1) <= correction:
            warnings.warn(
                f"{name}(): degrees of freedom is <= 0. Correction should be strictly less than the reduction "
                "factor (input numel divided by output numel).",
                UserWarning,
                stacklevel=user_depth(),
            )
        return found

    return run


for _name in ("var", "std"):
    aten(_name, f"{_name}.correction")(_spread(_name))
    aten(f"{_name}_mean.correction")(_spread(f"{_name}_mean"))


@aten("linalg_vector_norm")
def _vector_norm(
    x: Tensor,
    ord: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    return op.vector_norm(x, ord, dims_of(dim), keepdim, dtype=dtype)


@aten("norm")
def _norm(
    x: Tensor,
    p: float | None = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    return op.norm(x, 2 if p is None else p, dims_of(dim), keepdim, dtype=dtype)


@aten("_logcumsumexp", overlap="whole")
def _logcumsumexp(x: Tensor, dim: int) -> Tensor:
    return op.logcumsumexp(x, dim)


@aten("_softmax", out="exact", direct=("_softmax",))
def _softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    return op.softmax(x, dim, dtype=float32 if half_to_float else None)


@aten("_log_softmax", out="exact", direct=("_log_softmax",))
def _log_softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    return op.log_softmax(x, dim, dtype=float32 if half_to_float else None)


@aten("_safe_softmax", direct=("_safe_softmax",))
def _safe_softmax(x: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    out = op.softmax(x, dim, dtype=dtype)
    # Rows of nothing but -inf are zeros.
    return op.where(op.eq(op.amax(x, dim, True), float("-inf")), 0.0, out)


@aten("sort")
def _sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, ...]:
    return tuple(op.sort(x, dim, descending))


@aten("sort.stable", "sort.values_stable")
def _sort_stable(
    x: Tensor, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, ...]:
    return tuple(op.sort(x, dim, descending, bool(stable)))


@aten("topk")
def _topk(
    x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, ...]:
    return tuple(op.topk(x, k, dim, largest, sorted))


@aten("nonzero", layout=columns)
def _nonzero(x: Tensor) -> Tensor:
    return op.nonzero(x)


@aten("_unique2")
def _unique2(
    x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    found, inverse, counts = op.unique(x, True, True, True)
    return found, inverse, counts


@aten("_unique")
def _unique(x: Tensor, sorted: bool = True, return_inverse: bool = False) -> Tensor:
    return _unique2(x)[:2]


@aten("unique_dim")
def _unique_dim(
    x: Tensor,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Tensor:
    return op.unique(x, True, True, True, dim)


@aten("unique_consecutive")
def _unique_consecutive(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Tensor:
    return op.unique_consecutive(x, True, True, dim)
