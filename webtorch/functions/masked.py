"""torch.masked: reductions and normalisations that leave elements out.

A mask is true where an element counts. What is left out is replaced by the value that changes nothing;
a slice with nothing in it gives that value, or NaN where a mean is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from webtorch.errors import DTypeError
from webtorch.functions import composite as norms
from webtorch.functions import cumulative, ordering, reduce
from webtorch.functions.pointwise import where
from webtorch.functions.reduce import Dims
from webtorch.ir.dtype import DType, Scalar, bool_, int64, integer_limits
from webtorch.ops import elementwise
from webtorch.ops.precision import widened
from webtorch.ops.primitive import cast_to, conjugate, fill, real_part
from webtorch.ops.record import Composite, P, R, composite
from webtorch.tensors.promotion import get_default_dtype
from webtorch.tensors.tensor import Tensor

MASKED = ("masked",)


# ---- what changes nothing --------------------------------------------------------------------


def _zero(*operands: object) -> Scalar:
    return 0


def _one(*operands: object) -> Scalar:
    return 1


def lowest(x: Tensor, *operands: object) -> Scalar:
    """Return the lowest value of a tensor's type."""
    return -math.inf if x.dtype.has_gradient else integer_limits(x.dtype)[0]


def highest(x: Tensor, *operands: object) -> Scalar:
    """Return the highest value of a tensor's type."""
    return math.inf if x.dtype.has_gradient else integer_limits(x.dtype)[1]


def _of_norm(x: Tensor, ord: float = 2.0, *operands: object) -> Scalar:
    return math.inf if ord == -math.inf else 0


def _ambiguous(*operands: object) -> None:
    """Nothing: how many elements there are matters too."""


# ---- operations ------------------------------------------------------------------------------


def _filled(x: Tensor, mask: Tensor | None, value: Scalar) -> Tensor:
    if mask is None:
        return x
    return where(mask, x, value)


def _floats(name: str, x: Tensor) -> Tensor:
    """Return `x`. Raises DTypeError unless it is of floats or complex numbers."""
    if not x.dtype.has_gradient:
        raise DTypeError(f"masked.{name}: not implemented for {x.dtype}. Convert it with .float().")
    return x


def _numbers(name: str, x: Tensor, masked: bool = True) -> Tensor:
    """Return `x`. Raises DTypeError for bools, where something is `masked`."""
    if x.dtype is bool_ and masked:
        raise DTypeError(f"masked.{name}: not implemented for {x.dtype}. Convert it with .int().")
    return x


def _typed(x: Tensor, dtype: DType | None, widen: bool = False) -> Tensor:
    if dtype is None:
        dtype = int64 if widen and not x.dtype.has_gradient else x.dtype
    return cast_to(x, dtype)


def _dims(dim: Dims, rank: int) -> Dims:
    """Return what torch.masked means by dim: () are all dims."""
    return dim if dim is None or isinstance(dim, int) else tuple(dim) or None


def _masked(
    identity: Callable[..., Scalar | None] | None = None, on_groups: bool = False
) -> Callable[[Callable[P, R]], Composite[P, R]]:
    def declare(function: Callable[P, R]) -> Composite[P, R]:
        """Declare the operation that a function is, by the function's name."""
        name = function.__name__.strip("_")
        return composite(
            name=f"masked_{name}", family="index", function_in=MASKED, torch=f"masked.{name}",
            identity=identity, on_groups=on_groups,
        )(function)  # fmt: skip

    return declare


@_masked(_zero, True)
def sum_(
    input: Tensor,
    dim: Dims = None,
    *,
    keepdim: bool = False,
    dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The sum of the elements that count."""
    x = _filled(_typed(input, dtype, True), mask, 0)
    return reduce.sum(x, _dims(dim, x.ndim), keepdim, dtype=x.dtype)


@_masked(_one, True)
def prod_(
    input: Tensor,
    dim: Dims = None,
    *,
    keepdim: bool = False,
    dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The product of the elements that count."""
    x = _filled(_typed(input, dtype, True), mask, 1)
    # Of no dims, () are all and [] are none.
    dims = range(x.ndim) if dim in (None, ()) else (dim,) if isinstance(dim, int) else dim
    for d in sorted((d % max(x.ndim, 1) for d in dims), reverse=True):
        x = reduce.prod(x, d, keepdim, dtype=x.dtype)
    return x


@_masked(lowest, True)
def amax_(
    input: Tensor,
    dim: Dims = None,
    *,
    keepdim: bool = False,
    dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The largest of the elements that count."""
    x = _numbers("amax", _typed(input, dtype), mask is not None)
    x = _filled(x, mask, lowest(x))
    return reduce.amax(x, () if dim is None else dim, keepdim)


@_masked(highest, True)
def amin_(
    input: Tensor,
    dim: Dims = None,
    *,
    keepdim: bool = False,
    dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The smallest of the elements that count."""
    x = _numbers("amin", _typed(input, dtype), mask is not None)
    x = _filled(x, mask, highest(x))
    return reduce.amin(x, () if dim is None else dim, keepdim)


@_masked(lowest)
def argmax_(
    input: Tensor,
    dim: int | None = None,
    *,
    keepdim: bool = False,
    dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Where the largest of the elements that count is."""
    x = _numbers("argmax", _typed(input, dtype))
    return cast_to(reduce.argmax(_filled(x, mask, lowest(x)), dim, keepdim), x.dtype)


@_masked(highest)
def argmin_(
    input: Tensor,
    dim: int | None = None,
    *,
    keepdim: bool = False,
    dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Where the smallest of the elements that count is."""
    x = _numbers("argmin", _typed(input, dtype))
    return cast_to(reduce.argmin(_filled(x, mask, highest(x)), dim, keepdim), x.dtype)


def _counted(x: Tensor, mask: Tensor | None, dim: Dims, keepdim: bool, dtype: DType) -> Tensor:
    """Return how many elements count."""
    if mask is None:
        ones = fill(x._shape, 1, dtype, x.device)
    else:
        ones = cast_to(mask.expand(x._shape) if mask._shape != x._shape else mask, dtype)
    return reduce.sum(ones, _dims(dim, x.ndim), keepdim, dtype=dtype)


@_masked(_ambiguous, True)
def mean_(
    input: Tensor,
    dim: Dims = None,
    *,
    keepdim: bool = False,
    dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The mean of the elements that count."""
    x = _typed(input, dtype)
    if not x.dtype.has_gradient:
        raise ValueError(
            f"masked.mean: Could not infer output dtype. Input dtype must be either a floating point or complex "
            f"dtype. Got: {x.dtype}. Pass dtype=torch.float32."
        )
    total = masked_sum(x, dim, keepdim=keepdim, dtype=x.dtype, mask=mask)
    return total / _counted(x, mask, dim, keepdim, x.dtype)


@_masked(lambda *operands: math.nan)
def median_(
    input: Tensor,
    dim: int = -1,
    *,
    keepdim: bool = False,
    dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The median of the elements that count."""
    x = _typed(input, dtype)
    x = _filled(x, mask, math.nan)
    found = ordering.nanmedian(x, dim, keepdim)
    return found[0]


@_masked(lowest)
def logsumexp_(
    input: Tensor,
    dim: Dims = None,
    *,
    keepdim: bool = False,
    dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """log(sum(exp(elements that count)))."""
    x = _typed(input, dtype)
    if x.dtype is bool_ and mask is not None:
        raise NotImplementedError(f"identity of logsumexp on {x.dtype} input")
    x = _filled(x, mask, lowest(x))
    found = reduce.logsumexp(x, tuple(range(x.ndim)) if dim is None else dim, keepdim)
    return cast_to(found, x.dtype)


@_masked(lowest)
def logaddexp_(
    input: Tensor,
    other: Tensor,
    *,
    dtype: DType | None = None,
    input_mask: Tensor | None = None,
    other_mask: Tensor | None = None,
) -> Tensor:
    """log(exp(input) + exp(other)) of the elements that count."""
    x = _filled(_floats("logaddexp", _typed(input, dtype)), input_mask, -math.inf)
    y = _filled(_typed(other, dtype), other_mask, -math.inf)
    return elementwise.logaddexp(x, y)


@_masked(_of_norm)
def norm_(
    input: Tensor,
    ord: float = 2.0,
    dim: Dims = None,
    *,
    keepdim: bool = False,
    dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The norm of the elements that count."""
    x = _filled(_typed(input, dtype), mask, _of_norm(input, ord))
    return reduce.vector_norm(x, ord, _dims(dim, x.ndim), keepdim)


def _spread(
    input: Tensor,
    dim: Dims,
    unbiased: bool | None,
    correction: float | None,
    keepdim: bool,
    dtype: DType | None,
    mask: Tensor | None,
    root: bool,
) -> Tensor:
    if correction is None:
        correction = 1 if unbiased is None or unbiased else 0
    x = _numbers("std" if root else "var", _typed(input, dtype))
    if not x.dtype.has_gradient:
        x = cast_to(x, get_default_dtype())
    wide = widened(x)
    real = wide.dtype.to_real()
    count = _counted(wide, mask, dim, True, real)
    mean = masked_sum(wide, dim, keepdim=True, mask=mask) / count
    distance = wide - mean
    square = (
        real_part(distance * conjugate(distance)) if wide.dtype.is_complex else distance * distance
    )
    total = masked_sum(square, dim, keepdim=keepdim, mask=mask)
    plain = count if keepdim else _counted(wide, mask, dim, False, real)
    if correction:
        plain = (plain - correction).clamp(min=0)
    out = total / plain
    return cast_to(out.sqrt() if root else out, x.dtype)


@_masked(_ambiguous)
def var_(
    input: Tensor,
    dim: Dims = None,
    unbiased: bool | None = None,
    *,
    correction: Scalar | None = None,
    keepdim: bool = False,
    dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The variance of the elements that count."""
    return _spread(input, dim, unbiased, correction, keepdim, dtype, mask, False)


@_masked(_ambiguous)
def std_(
    input: Tensor,
    dim: Dims = None,
    unbiased: bool | None = None,
    *,
    correction: Scalar | None = None,
    keepdim: bool = False,
    dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The standard deviation of the elements that count."""
    return _spread(input, dim, unbiased, correction, keepdim, dtype, mask, True)


@_masked(_zero)
def cumsum_(
    input: Tensor, dim: int, *, dtype: DType | None = None, mask: Tensor | None = None
) -> Tensor:
    """The running sum of the elements that count."""
    x = _filled(_numbers("cumsum", _typed(input, dtype)), mask, 0)
    return cumulative.cumsum(x, dim, dtype=x.dtype)


@_masked(_one)
def cumprod_(
    input: Tensor, dim: int, *, dtype: DType | None = None, mask: Tensor | None = None
) -> Tensor:
    """The running product of the elements that count."""
    x = _filled(_numbers("cumprod", _typed(input, dtype)), mask, 1)
    return cumulative.cumprod(x, dim, dtype=x.dtype)


@_masked()
def softmax_(
    input: Tensor, dim: int, *, dtype: DType | None = None, mask: Tensor | None = None
) -> Tensor:
    """The softmax of the elements that count."""
    return norms.softmax(_filled(_floats("softmax", _typed(input, dtype)), mask, -math.inf), dim)


@_masked()
def log_softmax_(
    input: Tensor, dim: int, *, dtype: DType | None = None, mask: Tensor | None = None
) -> Tensor:
    """The logarithm of the softmax of the elements that count."""
    return norms.log_softmax(
        _filled(_floats("log_softmax", _typed(input, dtype)), mask, -math.inf), dim
    )


@_masked()
def softmin_(
    input: Tensor, dim: int, *, dtype: DType | None = None, mask: Tensor | None = None
) -> Tensor:
    """The softmax of the negated elements that count."""
    return norms.softmax(-_filled(_floats("softmin", _typed(input, dtype)), mask, math.inf), dim)


@_masked()
def normalize_(
    input: Tensor,
    ord: float,
    dim: int,
    *,
    eps: float = 1e-12,
    dtype: DType | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The elements that count, divided by their norm."""
    x = _typed(input, dtype)
    size = masked_norm(x, ord, dim, keepdim=True, mask=mask)
    return _filled(x, mask, 0) / size.clamp(min=eps)


masked_sum, masked_norm = sum_, norm_
