"""Cumulative sums, products, extremes and log-sum-exp along a dim.

The kernel is the primitive `scan`; what stands here is PyTorch's types and gradients.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from webtorch.functions.reduce import accumulated, one_dim, positions
from webtorch.ir.dtype import (
    FLOATS,
    DType,
    Scalar,
    bool_,
    int64,
)
from webtorch.ops.comparison import _where, eq, isfinite, isinf, isnan, minimum
from webtorch.ops.elementwise import _round, exp, log1p
from webtorch.ops.precision import computed_wide, to_type, widened
from webtorch.ops.primitive import (
    cast_to,
    fill,
    imag_part,
    join,
    pad_with,
    real_part,
    scan,
)
from webtorch.ops.record import (
    WHOLE,
    Autocast,
    Family,
    composite,
    return_type,
)
from webtorch.ops.reduction import log_add
from webtorch.tensors.tensor import Tensor

FAMILY: Family = "scan"


@return_type("cummax")
class Cummax(NamedTuple):
    """What cummax returns."""

    values: Tensor
    indices: Tensor


@return_type("cummin")
class Cummin(NamedTuple):
    """What cummin returns."""

    values: Tensor
    indices: Tensor


def _shifted(x: Tensor, dim: int, by: int, value: Scalar) -> Tensor:
    """Return x moved by `by` places along `dim` (towards the front for by < 0), `value` where nothing comes from."""
    size = x.shape[dim]
    low, high = [0] * x.ndim, [0] * x.ndim
    if by > 0:
        low[dim] = by
        return pad_with(x.narrow(dim, 0, size - by), tuple(low), tuple(high), value)
    high[dim] = -by
    return pad_with(x.narrow(dim, -by, size + by), tuple(low), tuple(high), value)


@composite(
    samples=(((0,), {}), ((-1,), {})),
    inplace=True,
    autocast=Autocast(gpu="fp32_result"),
    out="into",
    gradient_name="CumsumBackward0",
    aten=("cumsum",),
    overlap="whole",
)
def cumsum(input: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """Return the running sum along `dim`; integers and bools give int64."""
    dim = one_dim("cumsum", dim, input.ndim)
    x = accumulated(input, dtype)
    return scan(x, "sum", dim) if x.ndim and 0 not in x.shape else x.clone()


def _cumprod_slope(g: Tensor, x: Tensor, dim: int) -> Tensor:
    """Return the cotangent of a running product: (product of those before) * s, with s[k] = g[k] + x[k+1] * s[k+1].

    The recurrence is solved by doubling, in products and sums only, so zeros are exact, here and in its own derivative.
    """
    size = x.shape[dim]
    before = (
        _shifted(_cumprod(x, dim), dim, 1, 1) if size > 1 else fill(x.shape, 1, x.dtype, x.device)
    )
    if size == 1:
        return g * before
    total, factor = g, _shifted(x, dim, -1, 0)
    step = 1
    while step < size:
        total = total + factor * _shifted(total, dim, -step, 0)
        factor = factor * _shifted(factor, dim, -step, 0)
        step *= 2
    return before * total


@computed_wide
def _cumprod_rule(g: Tensor, _out: Tensor, x: Tensor, dim: int) -> tuple[Tensor]:
    return (_cumprod_slope(g, x, dim),)


@composite(family="composite", name="_cumprod", function_in=(), vjp=_cumprod_rule)
def _cumprod(x: Tensor, dim: int) -> Tensor:
    return scan(x, "prod", dim)


@composite(
    samples=(((0,), {}), ((-1,), {})),
    inplace=True,
    autocast=Autocast(gpu="fp32_result"),
    out="into",
    gradient_name="CumprodBackward0",
    once=True,
    aten=("cumprod",),
    overlap="whole",
)
def cumprod(input: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """Return the running product along `dim`; gradients are exact where elements are zero."""
    dim = one_dim("cumprod", dim, input.ndim)
    x = accumulated(input, dtype)
    return _cumprod(x, dim) if x.ndim and 0 not in x.shape else x.clone()


@composite(
    dtypes=FLOATS,
    samples=(((0,), {}), ((-1,), {})),
    autocast=WHOLE,
    gradient_name="LogcumsumexpBackward0",
    once=True,
    overlap="whole",
)
def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """Return log(cumsum(exp(input))) along `dim`; nothing overflows."""
    if not input.dtype.has_gradient:
        raise NotImplementedError(
            f"logcumsumexp: not implemented for {input.dtype}. Convert it with .float()."
        )
    dim = one_dim("logcumsumexp", dim, input.ndim)
    if not input.ndim or 0 in input.shape:
        return input.clone()
    x = widened(input)
    total = _complex_running(x, dim) if input.dtype.is_complex else _running_logsumexp(x, dim)
    return to_type(total, input.dtype)


def _running_logsumexp(x: Tensor, dim: int) -> Tensor:
    """Return m + log1p(t) of real numbers: m the running maximum, t the sum of exp(x - m) less the maximum's own 1.

    t[i] = exp(min(x[i], m[i-1]) - m[i]) + exp(m[i-1] - m[i]) * t[i-1], solved by doubling. t is added to m at the end
    only: values are rounded once, and gradients do not depend on how large the numbers are.
    """
    values = x.detach()
    highest = scan(values, "max", dim)

    def weight(low: Tensor, high: Tensor) -> Tensor:
        """Return exp(low - high), 1 where both are equal, as infinities may be."""
        # Of two equal infinities too.
        return exp(_where(eq(low, high), 0, low - high))

    sums = weight(minimum(values, _shifted(highest, dim, 1, -math.inf)), highest)
    # The sum changes with each of its terms, with the maximum's own too.
    terms = exp(_where(isinf(highest), 0, x - highest))
    sums = sums + (terms - terms.detach())
    # After step k each element covers the 2 ** k before it.
    step = 1
    while step < x.shape[dim]:
        before = _shifted(highest, dim, step, -math.inf)
        sums = sums + weight(before, highest) * _shifted(sums, dim, step, 0)
        step *= 2
    return highest + log1p(sums)


def _complex_running(x: Tensor, dim: int) -> Tensor:
    total, step = x, 1
    while step < x.shape[dim]:
        total = log_add(total, _shifted(total, dim, step, -math.inf))
        step *= 2
    return _on_branch(total, x, dim)


def _on_branch(total: Tensor, x: Tensor, dim: int) -> Tensor:
    """Add the multiples of 2 pi i that PyTorch's order of addition gives logcumsumexp: each sum is
    within pi / 2 of the larger (in its real part) of the sum before and the new element.
    """
    phase, before = imag_part(total.detach()), _shifted(total.detach(), dim, 1, -math.inf)

    def turns(to: Tensor) -> Tensor:
        """Return how many turns a phase is away from another, 0 for NaN and infinities."""
        found = _round((to - phase) / (2 * math.pi))
        return _where(isfinite(found), found, 0)

    after_new, after_sum = turns(imag_part(x.detach())), turns(imag_part(before))
    # The last place where the new element was the larger one: from there on turns add up.
    is_new = real_part(x.detach()) >= real_part(before)
    last = scan(_where(is_new, positions(x, dim), 0), "max", dim)
    running = scan(_where(is_new, 0, after_sum), "sum", dim)
    whole = running + (after_new - running).gather(dim, last)
    return total + join(fill(whole.shape, 0, whole.dtype, whole.device), whole * (2 * math.pi))


def _running(name: str, input: Tensor, dim: int, combine: str, result: Any) -> Any:
    if not input.ndim and dim not in (-1, 0):
        raise IndexError(f"{name}(): Expected reduction dim -1 or 0 for scalar but got {dim}")
    dim = one_dim(name, dim, input.ndim)
    if not input.ndim or 0 in input.shape:
        return result(input.clone(), fill(input.shape, 0, int64, input.device))
    x = cast_to(input, int64) if input.dtype is bool_ else input
    best = scan(x.detach(), combine, dim)
    here = eq(x, best)
    if x.dtype.kind == "float":
        here = here | isnan(x)
    # PyTorch returns the last of equal elements.
    indices = scan(_where(here, positions(x, dim), 0), "max", dim)
    return result(input.gather(dim, indices), indices)


@composite(samples=(((0,), {}), ((-1,), {})), gradient_name="CummaxBackward0", once=True)
def cummax(input: Tensor, dim: int) -> Cummax:
    """Return (values, indices) of the running maximum along `dim`."""
    return _running("cummax", input, dim, "max", Cummax)


@composite(samples=(((0,), {}), ((-1,), {})), gradient_name="CumminBackward0", once=True)
def cummin(input: Tensor, dim: int) -> Cummin:
    """Return (values, indices) of the running minimum along `dim`."""
    return _running("cummin", input, dim, "min", Cummin)
