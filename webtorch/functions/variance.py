"""Variance and standard deviation over dims, alone or with the mean."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

from webtorch.errors import DTypeError
from webtorch.functions.pointwise import square
from webtorch.functions.reduce import (
    combine_dims,
    count_of,
    drop_dims,
    mean,
    mean_of,
    of_nothing,
    reduced_shape,
    wrap_dims,
)
from webtorch.ir.dtype import (
    FLOATS,
)
from webtorch.ops.elementwise import (
    _div,
)
from webtorch.ops.precision import to_type, widened
from webtorch.ops.primitive import (
    imag_part,
    real_part,
)
from webtorch.ops.purity import warn
from webtorch.ops.record import (
    ANEW,
    WHOLE,
    Family,
    composite,
)
from webtorch.ops.reduction import root
from webtorch.tensors.tensor import Tensor

FAMILY: Family = "reduce"


def _variance_slope(x: Tensor, dims: tuple[int, ...], correction: float) -> Tensor:
    freedom = count_of(x.shape, dims) - correction
    return (x - mean_of(x, dims, True)) * (2.0 / freedom if freedom else math.inf)


@composite(
    family="composite",
    name="_variance",
    function_in=(),
    # The path through the mean cancels: it is left out.
    vjp=lambda g, _out, x, dims, correction: (g * _variance_slope(x, dims, correction),),
)
def _variance(x: Tensor, dims: tuple[int, ...], correction: float) -> Tensor:
    """Return the variance over `dims`, kept: in two passes, so that a large mean cancels nothing."""
    squares = square(x - mean_of(x, dims, True))
    freedom = builtins.max(count_of(x.shape, dims) - correction, 0)
    return _div(combine_dims(squares, "sum", dims, True), freedom)


def _spread(
    name: str, input: Tensor, dim: Any, unbiased: Any, keepdim: bool, correction: Any
) -> tuple[Any, tuple[int, ...]]:
    """Return the variance (dims kept, float32 for 16-bit floats) and the dims."""
    if isinstance(dim, bool):
        # The form var(input, unbiased).
        dim, unbiased = None, dim
    if not input.dtype.has_gradient:
        raise DTypeError(
            f"std and var only support floating point and complex dtypes: got {input.dtype}. "
            f"Convert it with .float()."
        )
    if unbiased is not None and correction is not None:
        raise TypeError(f"{name}: pass unbiased= or correction=, not both.")
    if correction is None:
        correction = 1 if unbiased is None else int(unbiased)
    dims = wrap_dims(name, dim, input.ndim)
    if name and count_of(input.shape, dims) <= correction:
        warn(
            f"{name}(): degrees of freedom is <= 0. Correction should be strictly less than the reduction "
            "factor (input numel divided by output numel)."
        )
    if input.dtype.is_complex:
        # The variance of both parts.
        parts = real_part(input), imag_part(input)
        of_real, of_imag = (_spread("", x, dim, None, keepdim, correction)[0] for x in parts)
        return of_real + of_imag, dims
    wide = widened(input)
    if 0 in input.shape:
        shape = reduced_shape(input.shape, dims, True)
        return of_nothing(wide, shape, math.nan, wide.dtype), dims
    return _variance(wide, dims, correction), dims


def _var_of(
    name: str,
    input: Tensor,
    dim: Sequence[int] | int | None,
    unbiased: bool | None,
    keepdim: bool,
    correction: float | None,
) -> Tensor:
    result, dims = _spread(name, input, dim, unbiased, keepdim, correction)
    return to_type(drop_dims(result, dims, keepdim), input.dtype.to_real())


def _std_of(
    name: str,
    input: Tensor,
    dim: Sequence[int] | int | None,
    unbiased: bool | None,
    keepdim: bool,
    correction: float | None,
) -> Tensor:
    result, dims = _spread(name, input, dim, unbiased, keepdim, correction)
    return to_type(drop_dims(root(result), dims, keepdim), input.dtype.to_real())


_SPREADS: tuple[Any, ...] = (
    ((), {}),
    ((0,), {}),
    ((), {"dim": (0, -1), "correction": 0, "keepdim": True}),
)


@composite(
    dtypes=FLOATS, samples=_SPREADS, autocast=WHOLE, out="cast", gradient_name="VarBackward0"
)
def var(
    input: Tensor,
    dim: int | Sequence[int] | bool | None = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """Return the variance over `dim`, divided by the count less `correction` (1 by default)."""
    return _var_of("var", input, dim, unbiased, keepdim, correction)


@composite(
    dtypes=FLOATS, samples=_SPREADS, autocast=WHOLE, out="cast", gradient_name="StdBackward0"
)
def std(
    input: Tensor,
    dim: int | Sequence[int] | bool | None = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """Return the standard deviation over `dim`; its gradient is 0 where it is 0."""
    return _std_of("std", input, dim, unbiased, keepdim, correction)


@composite(
    dtypes=FLOATS,
    function_in=("torch",),
    samples=_SPREADS,
    autocast=WHOLE,
    gradient_name="VarMeanBackward0",
    vjp=ANEW,
    outputs=2,
)
def var_mean(
    input: Tensor,
    dim: int | Sequence[int] | bool | None = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (variance, mean) over `dim`."""
    spread = _var_of("var_mean", input, dim, unbiased, keepdim, correction)
    return spread, mean(input, None if isinstance(dim, bool) else dim, keepdim)


@composite(
    dtypes=FLOATS,
    function_in=("torch",),
    samples=_SPREADS,
    autocast=WHOLE,
    gradient_name="StdMeanBackward0",
    vjp=ANEW,
    outputs=2,
)
def std_mean(
    input: Tensor,
    dim: int | Sequence[int] | bool | None = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (standard deviation, mean) over `dim`."""
    spread = _std_of("std_mean", input, dim, unbiased, keepdim, correction)
    return spread, mean(input, None if isinstance(dim, bool) else dim, keepdim)
