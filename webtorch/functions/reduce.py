"""Reductions over dims: sums, products, means, logic, extremes, norms.

The kernel of each is the primitive `reduce_dims`; what stands here is PyTorch's rules around
it: which dims, which types, what an empty input gives, and gradients where the derived ones would be wrong
(zeros in a product, a norm of zero) or wasteful. 16-bit floats are summed as float32.

A composite's rule is called as vjp(g, out, *arguments), the arguments as they were passed, and returns
cotangents for the first of them; those left out have none. Ops with a rule are called with positional
arguments only.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from webtorch.errors import DTypeError, ShapeError
from webtorch.functions.pointwise import square
from webtorch.ir.dtype import (
    FLOATS,
    DType,
    Scalar,
    bool_,
    float64,
    int64,
    uint8,
    uint64,
)
from webtorch.ir.view import contiguous_strides, wrap_dim
from webtorch.ops.comparison import (
    _where,
    eq,
    isinf,
    isnan,
    logical_and,
    logical_or,
    maximum,
    minimum,
    ne,
)
from webtorch.ops.elementwise import _div, exp, is_tensor, log
from webtorch.ops.elementwise import (
    abs as absolute,
)
from webtorch.ops.precision import computed_wide, to_type, widened
from webtorch.ops.primitive import (
    as_view,
    cast_to,
    copy,
    fill,
    iota,
    pad_with,
    pairs,
    real_part,
    reduce_dims,
)
from webtorch.ops.record import (
    TABLE,
    WHOLE,
    Autocast,
    OutRule,
    composite,
    over_dims,
    return_type,
)
from webtorch.ops.reduction import is_nonzero_part, norm_slope, root
from webtorch.ops.splits import of_norm, reduces
from webtorch.tensors.modes import mode
from webtorch.tensors.promotion import get_default_dtype
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.views import zeros_after

Dims = int | Sequence[int] | None


# Names and fields are PyTorch's; `max` and `min` with a dim, and the running ones, return these.


@return_type("max")
class Max(NamedTuple):
    """What max returns."""

    values: Tensor
    indices: Tensor


@return_type("min")
class Min(NamedTuple):
    """What min returns."""

    values: Tensor
    indices: Tensor


@return_type("aminmax")
class Aminmax(NamedTuple):
    """What aminmax returns."""

    min: Tensor
    max: Tensor


# -- dims, types, empty inputs ----------------------------------------------------------------------------------------


def wrap_dims(name: str, dim: Dims, rank: int) -> tuple[int, ...]:
    """Return the sorted dims that `dim` names: all of them for None and (). Raises IndexError, ShapeError."""
    if rank > 64:
        raise ShapeError(f"{name}: only tensors with up to 64 dims are supported, got {rank}")
    if dim is None:
        return tuple(range(rank))
    if isinstance(dim, int):
        return (wrap_dim(name, dim, rank),)[:rank]
    dims = [wrap_dim(name, operator.index(d), rank) for d in dim]
    for d in dims:
        if dims.count(d) > 1:
            raise ShapeError(
                f"{name}: dim {d} appears multiple times in the list of dims {tuple(dim)}"
            )
    return tuple(sorted(dims)) if dims and rank else tuple(range(rank))


def one_dim(name: str, dim: object, rank: int) -> int:
    """Return `dim` counted from the front, where only one is allowed. Raises TypeError, IndexError."""
    if not isinstance(dim, int):
        raise TypeError(
            f"{name}(): argument 'dim' must be int, not {type(dim).__name__}. Call it once for each dim."
        )
    return wrap_dim(name, dim, rank)


def count_of(shape: Sequence[int], dims: tuple[int, ...]) -> int:
    """Return how many elements are reduced to one."""
    return math.prod(shape[d] for d in dims)


def reduced_shape(
    shape: Sequence[int], dims: tuple[int, ...], keepdim: bool = False
) -> tuple[int, ...]:
    """Return the shape without `dims`, or with size 1 there."""
    if keepdim:
        return tuple([1 if d in dims else s for d, s in enumerate(shape)])
    return tuple([s for d, s in enumerate(shape) if d not in dims])


def as_float(x: Tensor) -> Tensor:
    """Return integers and bools as the default float type, floats as they are."""
    return x if x.dtype.has_gradient else cast_to(x, get_default_dtype())


def _reshaped(g: Tensor, shape: tuple[int, ...]) -> Tensor:
    return g.reshape(shape)


def drop_dims(x: Tensor, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    """Remove `dims`, which have size 1, unless they are to be kept."""
    if keepdim or not dims:
        return x
    shape = reduced_shape(x._shape, dims)
    if not x._whole:
        return x.reshape(shape)
    if x._grad_fn is None:
        # A result that nobody has seen yet, but what keeps saved tensors: it simply is of that shape.
        if mode.saved_hooks:
            x = x.detach()
        x._shape, x._strides = shape, contiguous_strides(shape)
        return x
    # What lies in memory in order needs no more than a view.
    return as_view(
        x, shape, contiguous_strides(shape), x._offset, vjp=_reshaped, args=(x._shape,), name="View"
    )


@composite(
    name="_of_nothing",
    function_in=(),
    vjp=lambda g, _out, x, _shape, _value, _dtype: (zeros_after(g, x.shape, x.dtype),),
)
def of_nothing(x: Tensor, shape: tuple[int, ...], value: Scalar, dtype: DType) -> Tensor:
    """Return the reduction of an empty x: `value` everywhere. Connected to x for autograd."""
    return fill(shape, value, dtype, x.device)


def combine_dims(
    x: Tensor, combine: str, dims: tuple[int, ...], keepdim: bool, identity: Scalar = 0
) -> Tensor:
    """Return the reduction over `dims` in x's type; `identity` where there is nothing to combine."""
    if 0 in x._shape:
        return of_nothing(x, reduced_shape(x._shape, dims, keepdim), identity, x.dtype)
    # Of nothing to combine the result is a tensor of its own all the same.
    return drop_dims(reduce_dims(x, combine, dims), dims, keepdim) if dims else copy(x)


def _check_not_empty(name: str, x: Tensor, dim: Dims, dims: tuple[int, ...], error: type) -> None:
    """Raise PyTorch's error when an extreme of nothing is asked for."""
    if 0 not in x.shape:
        return
    if dim is None or (not isinstance(dim, int) and not dim):
        raise error(
            f"{name}(): Expected reduction dim to be specified for input.numel() == 0. "
            f"Specify the reduction dim with the 'dim' argument."
        )
    for d in dims:
        if x.shape[d] == 0:
            raise IndexError(f"{name}(): Expected reduction dim {d} to have non-zero size.")


# -- sums, products, means --------------------------------------------------------------------------------------------


def accumulated(x: Tensor, dtype: DType | None) -> Tensor:
    """Return x in the type of its sum: `dtype`, or int64 for integers and bools."""
    if dtype is None:
        dtype = x.dtype if x.dtype.has_gradient else int64
    return to_type(x, dtype)


def _to_every(g: Tensor, shape: tuple[int, ...], dim: Dims) -> Tensor:
    """Return the cotangent of a sum over `dim`, for every element of `shape`."""
    dims = wrap_dims("sum", dim, len(shape))
    return (g.reshape(reduced_shape(shape, dims, True)) if g._shape else g).expand(shape)


@composite(
    splits=reduces("sum", linear=True),
    family="reduce",
    samples=(((), {}), ((0,), {}), ((), {"dim": -1, "keepdim": True})),
    autocast=Autocast(gpu="fp32_result"),
    out="into",
    gradient_name=over_dims("Sum"),
    complex_rule=True,
    vjp=(lambda g, _out, input_shape, dim, _keepdim, _dtype: _to_every(g, input_shape, dim),),
    onnx="ReduceSum",
    numpy="sum",
)
def sum(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """Return the sum over `dim` (all dims for None); integers and bools give int64."""
    dims = wrap_dims("sum", dim, input.ndim)
    return combine_dims(accumulated(input, dtype), "sum", dims, keepdim)


@composite(
    splits=reduces("sum"),
    family="reduce",
    samples=(((), {}), ((0,), {}), ((), {"dim": -1, "keepdim": True})),
    autocast=WHOLE,
    out="into",
    gradient_name="NansumBackward0",
)
def nansum(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """Return the sum over `dim` of what is not NaN."""
    if input.dtype.has_gradient:
        input = _where(isnan(input), 0.0, input)
    return sum(input, dim, keepdim, dtype=dtype)


def mean_of(x: Tensor, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    """Return the mean of floats over checked dims; NaN of nothing."""
    wide = widened(x)
    return to_type(_div(combine_dims(wide, "sum", dims, keepdim), count_of(x.shape, dims)), x.dtype)


def _mean_slope(
    g: Tensor, _out: object, input_shape: tuple[int, ...], dim: Dims, _keepdim: bool, _dtype: object
) -> Tensor:
    count = count_of(input_shape, wrap_dims("mean", dim, len(input_shape)))
    return _to_every(_div(widened(g), count), input_shape, dim)


@composite(
    splits=reduces("avg", linear=True),
    family="reduce",
    dtypes=FLOATS,
    samples=(((), {}), ((0,), {}), ((), {"dim": -1, "keepdim": True})),
    autocast=WHOLE,
    out="stated",
    gradient_name=over_dims("Mean"),
    complex_rule=True,
    vjp=(_mean_slope,),
    onnx="ReduceMean",
    numpy="mean",
)
def mean(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """Return the mean over `dim` (all dims for None); of floats only, NaN where there is nothing."""
    if dtype is not None:
        input = to_type(input, dtype)
    if not input.dtype.has_gradient:
        raise DTypeError(
            f"mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype. "
            f"Got: {input.dtype}. Convert it with .float(), or pass dtype=."
        )
    return mean_of(input, wrap_dims("mean", dim, input.ndim), keepdim)


@composite(
    family="reduce",
    dtypes=FLOATS,
    samples=(((), {}), ((0,), {}), ((), {"dim": -1, "keepdim": True})),
    autocast=WHOLE,
    out="into",
)
def nanmean(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """Return the mean over `dim` of what is not NaN."""
    if not input.dtype.has_gradient:
        raise DTypeError(
            f"nanmean(): expected input to have floating point or complex dtype but got {input.dtype}. "
            f"Convert it with .float()."
        )
    missing = isnan(input)
    wide = widened(_where(missing, 0.0, input))
    present = sum(cast_to(~missing, wide.dtype.to_real()), dim, keepdim)
    return to_type(_div(sum(wide, dim, keepdim), present), dtype or input.dtype)


def _others(x: Tensor, dim: int) -> Tensor:
    """Return, for each element, the product of the others along `dim`.

    A tree of products, up and down again: it divides by nothing, so zeros are exact, and it is made of
    products, so its own derivatives are as well.
    """
    size = x.shape[dim]
    if size == 1:
        return fill(x.shape, 1, x.dtype, x.device)
    half = (size + 1) // 2
    first, second = x.narrow(dim, 0, half), x.narrow(dim, half, size - half)
    none, missing = [0] * x.ndim, [0] * x.ndim
    missing[dim] = 2 * half - size
    # An odd size gets a 1 at its end.
    second = pad_with(second, tuple(none), tuple(missing), 1) if missing[dim] else second
    above = _others(first * second, dim)
    side = list(none)
    side[dim] = half
    both = pad_with(above * second, tuple(none), tuple(side), 0) + pad_with(
        above * first, tuple(side), tuple(none), 0
    )
    return both.narrow(dim, 0, size) if 2 * half > size else both


@computed_wide
def _prod_rule(g: Tensor, _out: Tensor, x: Tensor, dim: int) -> tuple[Tensor]:
    # Where an element is NaN so is its gradient, as PyTorch's, which divides by it.
    return (g * _where(isnan(x), x, _others(x, dim)),)


@composite(name="_prod", function_in=(), vjp=_prod_rule)
def _prod(x: Tensor, dim: int) -> Tensor:
    return reduce_dims(x, "prod", (dim,))


@composite(
    splits=reduces("product"),
    family="reduce",
    samples=(((), {}), ((0,), {}), ((), {"dim": -1, "keepdim": True})),
    autocast=Autocast("fp32", "fp32_result"),
    out="into",
    gradient_name=over_dims("Prod"),
    onnx="ReduceProd",
    numpy="prod",
)
def prod(
    input: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """Return the product over one dim or all; gradients are exact where elements are zero."""
    x = accumulated(input, dtype)
    if dim is None:
        shape = (1,) * x.ndim if keepdim else ()
        x, dims = x.reshape((-1,) if 0 not in x.shape else (0,)), (0,)
    else:
        dims = (one_dim("prod", dim, x.ndim),)
        shape = reduced_shape(x.shape, dims, keepdim)
    if 0 in x.shape:
        return of_nothing(x, shape, 1, x.dtype)
    return _prod(x, dims[0]).reshape(shape) if x.ndim else copy(x)


@composite(
    splits=reduces("sum"),
    family="reduce",
    differentiable=False,
    samples=(((), {}), ((0,), {})),
    numpy="count_nonzero",
)
def count_nonzero(input: Tensor, dim: Dims = None) -> Tensor:
    """Return how many elements are not zero, as int64."""
    dims = wrap_dims("count_nonzero", dim, input.ndim)
    return combine_dims(cast_to(_truth(input), int64), "sum", dims, False)


# -- logic ------------------------------------------------------------------------------------------------------------


def _truth(x: Tensor) -> Tensor:
    return x if x.dtype is bool_ else ne(x, 0)


def _logical(name: str, x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    if isinstance(dim, (tuple, list)) and not dim:
        dims: tuple[int, ...] = ()
    else:
        dims = wrap_dims(name, dim, x.ndim)
    result = combine_dims(_truth(x), name, dims, keepdim, identity=name == "all")
    # PyTorch keeps uint8, from the days when it had no bool.
    return to_type(result, uint8) if x.dtype is uint8 else result


@composite(
    splits=reduces("max"),
    family="reduce",
    differentiable=False,
    samples=(((), {}), ((0,), {})),
    out="mask",
    numpy="any",
)
def any(input: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """Return whether one element is not zero; False of nothing."""
    return _logical("any", input, dim, keepdim)


@composite(
    splits=reduces("min"),
    family="reduce",
    differentiable=False,
    samples=(((), {}), ((0,), {})),
    out="mask",
    numpy="all",
)
def all(input: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """Return whether no element is zero; True of nothing."""
    return _logical("all", input, dim, keepdim)


# -- extremes ---------------------------------------------------------------------------------------------------------


def _extreme(name: str, x: Tensor, combine: str, dim: Dims, keepdim: bool, error: type) -> Tensor:
    dims = wrap_dims(name, dim, x.ndim)
    _check_not_empty(name, x, dim, dims, error)
    if x.dtype.is_complex:
        raise DTypeError(f"\"{name}\" not implemented for '{x.dtype.legacy}'")
    if x.dtype is bool_:
        combine = "any" if combine == "max" else "all"
    return combine_dims(x, combine, dims, keepdim)


@composite(
    splits=reduces("max"),
    family="reduce",
    samples=(((), {}), ((0,), {}), (((0, -1),), {"keepdim": True})),
    gradient_name="AmaxBackward0",
    once=True,
    onnx="ReduceMax",
    numpy="max",
)
def amax(input: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    """Return the largest element over `dim`; NaN wins. Ties share the gradient evenly."""
    return _extreme("amax", input, "max", dim, keepdim, RuntimeError)


@composite(
    splits=reduces("min"),
    family="reduce",
    samples=(((), {}), ((0,), {}), (((0, -1),), {"keepdim": True})),
    gradient_name="AminBackward0",
    once=True,
    onnx="ReduceMin",
    numpy="min",
)
def amin(input: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    """Return the smallest element over `dim`; NaN wins. Ties share the gradient evenly."""
    return _extreme("amin", input, "min", dim, keepdim, RuntimeError)


@composite(
    family="reduce",
    samples=(((), {"dim": 0}), ((), {})),
    gradient_name="AminmaxBackward0",
    once=True,
    overlap="whole",
)
def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> Aminmax:
    """Return (min, max) over one dim or all."""
    return Aminmax(
        *(_extreme("aminmax", input, c, dim, keepdim, RuntimeError) for c in ("min", "max"))
    )


def _arg(name: str, x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    if x.dtype is bool_:
        raise DTypeError(f"{name}(): does not support bool input. Convert it with .int().")
    dims = tuple(range(x.ndim)) if dim is None else (one_dim(name, dim, x.ndim),)[: x.ndim]
    _check_not_empty(name, x, dim, dims, IndexError)
    if 0 in x.shape or not dims:
        return fill(reduced_shape(x.shape, dims, keepdim), 0, int64, x.device)
    return drop_dims(reduce_dims(x, name, dims), dims, keepdim)


@composite(
    family="reduce",
    differentiable=False,
    samples=(((), {}), ((0,), {}), ((-1, True), {})),
    ties=True,
    aten=("argmax",),
    numpy="argmax",
)
def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Return where the first largest element is (in the flattened input for None), as int64."""
    return _arg("argmax", input, dim, keepdim)


@composite(
    family="reduce",
    differentiable=False,
    samples=(((), {}), ((0,), {}), ((-1, True), {})),
    ties=True,
    aten=("argmin",),
    numpy="argmin",
)
def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Return where the first smallest element is (in the flattened input for None), as int64."""
    return _arg("argmin", input, dim, keepdim)


def positions(x: Tensor, dim: int, size: int | None = None) -> Tensor:
    """Return 0, 1, 2, ... below `size` (that of x unless given) along `dim`, int64, with size 1 in
    the other dims of x.
    """
    size = x.shape[dim] if size is None else size
    shape = [1] * x.ndim
    shape[dim] = size
    return iota(size, 0, 1, int64, x.device).reshape(tuple(shape))


@composite(
    name="_selected",
    function_in=(),
    # All of the gradient goes to the element whose index is returned, not shared among ties as in amax.
    # Nothing of x is needed for it, so x may be overwritten before the backward pass.
    vjp=lambda g, _out, _x, indices, _combine, dim, size: (
        _where(eq(positions(indices, dim, size), indices), g, 0.0),
    ),
)
def _selected(x: Tensor, indices: Tensor, combine: str, dim: int, size: int) -> Tensor:
    return reduce_dims(x, combine, (dim,))


def _shared(g: Tensor, out: Tensor, x: Tensor) -> Tensor:
    """Return the cotangent of x: all elements equal to `out`, or NaN as it is, have even parts of g."""
    same = logical_or(eq(x, out), logical_and(isnan(x), isnan(out)))
    count = combine_dims(cast_to(same, x.dtype), "sum", tuple(range(x.ndim)), False)
    return _where(same, g / count, 0.0)


@composite(name="_one_of_all", function_in=(), vjp=lambda g, out, x, _find: (_shared(g, out, x),))
def one_of_all(x: Tensor, find: Callable[[Tensor], Tensor]) -> Tensor:
    """Return `find(x)`, which is one of the elements of x. Ties share the gradient evenly."""
    return find(x)


def _select(name: str, input: Tensor, dim: object, keepdim: bool, other: Tensor | None) -> object:
    """Return what max and min do in their three forms."""
    if other is not None or (is_tensor(dim) and dim is not None):
        pair = maximum if name == "max" else minimum
        return pair(input, dim if other is None else other)
    if dim is None:
        return one_of_all(input, lambda x: _extreme(name, x, name, None, False, RuntimeError))
    result = Max if name == "max" else Min
    dim = one_dim(name, dim, input.ndim)
    dims = (dim,)[: input.ndim]
    _check_not_empty(name, input, dim, dims, RuntimeError)
    if not dims or 0 in input.shape:
        shape = reduced_shape(input.shape, dims, keepdim)
        values = copy(input) if not dims else of_nothing(input, shape, 0, input.dtype)
        return result(values, fill(shape, 0, int64, input.device))
    if input.dtype is bool_:
        # The engine orders numbers only.
        indices = reduce_dims(cast_to(input, int64), "arg" + name, dims)
        values = reduce_dims(input, "any" if name == "max" else "all", dims)
    else:
        indices = reduce_dims(input, "arg" + name, dims)
        values = _selected(input, indices, name, dim, input.shape[dim])
    return result(drop_dims(values, dims, keepdim), drop_dims(indices, dims, keepdim))


@composite(family="reduce", differentiable=False, aten=("hash_tensor",))
def hash_tensor(input: Tensor, dim: Dims = (), *, keepdim: bool = False, mode: int = 0) -> Tensor:
    """Return the exclusive or over `dim` of the bits of the elements as float64, or of integers as int64: a uint64."""
    if mode != 0:
        raise RuntimeError(f"Unknown hash_tensor mode: {mode}")
    dims = wrap_dims("hash_tensor", dim, input.ndim)
    _check_not_empty("hash_tensor", input, dim, dims, RuntimeError)
    if input.dtype.is_complex or input.dtype is uint64:
        raise DTypeError(f"\"xor_sum_cpu\" not implemented for '{input.dtype.legacy}'")
    bits = cast_to(input, float64).view(int64) if input.is_floating_point() else input.to(int64)
    rest = [d for d in range(input.ndim) if d not in dims]
    kept = [input._shape[d] for d in rest]
    bits = bits.permute(*rest, *dims).reshape(*kept, math.prod([input._shape[d] for d in dims]))
    while (count := bits._shape[-1]) > 1:
        if count % 2:
            bits = pad_with(bits, (0,) * bits.ndim, (*[0] * len(kept), 1), 0)
        half = bits._shape[-1] // 2
        bits = bits[..., :half] ^ bits[..., half:]
    shape = [1 if d in dims else s for d, s in enumerate(input._shape)] if keepdim else kept
    return bits.reshape(shape).view(uint64)


def _extreme_name(name: str) -> Callable[..., str]:
    """Return the `gradient_name` of max and min: PyTorch's overload over a dim comes first there."""

    def title(
        input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Tensor | None = None
    ) -> str:
        """Return the name by the arguments of a call."""
        other = dim if other is None else other
        if isinstance(other, Tensor):
            return f"{name}imumBackward0"
        return f"{name}Backward{1 if other is None else 0}"

    return title


def _out_of_extreme(
    input: Tensor, dim: object = None, keepdim: bool = False, *, other: Tensor | None = None
) -> OutRule:
    return "exact" if isinstance(dim, int) else "cast"


@composite(
    family="reduce",
    samples=(((), {}), ((0,), {}), ((-1, True), {})),
    out=_out_of_extreme,
    gradient_name=_extreme_name("Max"),
    once=True,
    forms=(
        "(input: Tensor) -> Tensor",
        "(input: Tensor, dim: int, keepdim: bool = False) -> Max",
        "(input: Tensor, other: Tensor) -> Tensor",
    ),
    overlap="whole",
)
def max(
    input: Tensor, dim: int | None = None, keepdim: bool = False, *, other: Tensor | None = None
) -> Any:
    """Return the largest element; with a dim (values, indices); with a second tensor, the elementwise maximum."""
    return _select("max", input, dim, keepdim, other)


@composite(
    family="reduce",
    samples=(((), {}), ((0,), {}), ((-1, True), {})),
    out=_out_of_extreme,
    gradient_name=_extreme_name("Min"),
    once=True,
    forms=(
        "(input: Tensor) -> Tensor",
        "(input: Tensor, dim: int, keepdim: bool = False) -> Min",
        "(input: Tensor, other: Tensor) -> Tensor",
    ),
    overlap="whole",
)
def min(
    input: Tensor, dim: int | None = None, keepdim: bool = False, *, other: Tensor | None = None
) -> Any:
    """Return the smallest element; with a dim (values, indices); with a second tensor, the elementwise minimum."""
    return _select("min", input, dim, keepdim, other)


# -- norms ------------------------------------------------------------------------------------------------------------


@composite(
    name="_p_norm", function_in=(), vjp=lambda g, out, x, p, _dims: (g * norm_slope(x, out, p),)
)
def _p_norm(x: Tensor, p: float, dims: tuple[int, ...]) -> Tensor:
    return combine_dims(absolute(x) ** p, "sum", dims, True) ** (1.0 / p)


@composite(
    splits=of_norm,
    name="vector_norm",
    family="reduce",
    dtypes=FLOATS,
    function_in=("linalg",),
    samples=(
        ((), {}), ((1,), {}), ((math.inf, 0), {}), ((-math.inf, 0), {}), ((0,), {}), ((3.0, -1, True), {}),
        ((0.5,), {}),
    ),
    autocast=Autocast(gpu="fp32_result"),gradient_name="LinalgVectorNormBackward0", once=True)  # fmt: skip
def vector_norm(
    x: Tensor,
    ord: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """Return the p-norm of order `ord` over `dim`; 0 counts, +-inf takes the extreme. Gradient 0 at norm 0."""
    if isinstance(ord, complex):
        raise RuntimeError(
            "linalg.vector_norm: Expected a non-complex scalar as the order of norm."
        )
    if not isinstance(ord, (int, float)):
        raise TypeError(
            f"linalg_vector_norm(): argument 'ord' must be Number, not {type(ord).__name__}"
        )
    if dtype is not None:
        if dtype.is_complex is not x.dtype.is_complex:
            kind = "complex" if x.dtype.is_complex else "real"
            raise DTypeError(
                f"linalg.vector_norm: dtype should be {kind} for {kind} inputs, but got {dtype}"
            )
        if dtype.has_gradient and dtype.itemsize < x.dtype.itemsize and x.dtype.has_gradient:
            raise DTypeError(
                f"linalg.vector_norm: the dtype of the input ({x.dtype}) should be convertible without narrowing "
                f"to the specified dtype ({dtype}). Convert the result instead."
            )
        x = to_type(x, dtype)
    if not x.dtype.has_gradient:
        raise DTypeError(
            f"linalg.vector_norm: Expected a floating point or complex tensor as input. Got {x.dtype}. "
            f"Convert it with .float()."
        )
    dims = wrap_dims("linalg.vector_norm", dim, x.ndim)
    if x.dtype.is_complex:
        if ord == 2 and x.ndim:
            # The root of the squares of all parts.
            found = vector_norm(pairs(x), 2, (*dims, x.ndim), keepdim)
            return found.squeeze(-1) if keepdim else found
        x = absolute(x)
    result_type, x = x.dtype, widened(x)
    if (ord < 0 or ord == math.inf) and builtins.any(x.shape[d] == 0 for d in dims):
        raise RuntimeError(
            f"linalg.vector_norm cannot compute the {ord:g} norm on an empty tensor because the operation "
            f"does not have an identity"
        )
    if 0 in x.shape:
        return of_nothing(x, reduced_shape(x.shape, dims, keepdim), 0.0, result_type)
    if ord == 2:
        result = root(combine_dims(square(x), "sum", dims, True))
    elif ord == 1:
        result = combine_dims(absolute(x), "sum", dims, True)
    elif ord == 0:
        result = combine_dims(is_nonzero_part(x), "sum", dims, True)
    elif math.isinf(ord):
        result = combine_dims(absolute(x), "max" if ord > 0 else "min", dims, True)
    else:
        result = _p_norm(x, float(ord), dims)
    return to_type(drop_dims(result, dims, keepdim), result_type)


@composite(
    splits=of_norm,
    family="reduce",
    dtypes=FLOATS,
    samples=(((), {}), ((1, 0), {}), ((3.0, -1, True), {}), (("fro",), {})),
    autocast=Autocast(gpu="fp32_result"),
    gradient_name="LinalgVectorNormBackward0",
    once=True,
)
def norm(
    input: Tensor,
    p: float | str | None = "fro",
    dim: Dims = None,
    keepdim: bool = False,
    dtype: DType | None = None,
) -> Tensor:
    """Return the p-norm over `dim`, of the flattened input by default; "nuc" is the sum of singular values."""
    if p == "nuc":
        pair = (0, 1) if dim is None else dim
        return TABLE["linalg_matrix_norm"](input, "nuc", pair, keepdim, dtype=dtype)
    order: Any = 2 if p is None or p == "fro" else p
    return vector_norm(input, order, dim, keepdim, dtype=dtype)


# -- logsumexp --------------------------------------------------------------------------------------------------------


@composite(name="_logsumexp", function_in=(), vjp=lambda g, out, x, _dims: (g * exp(x - out),))
def _logsumexp(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    largest = combine_dims(x, "max", dims, True)
    # inf - inf is NaN: an infinite maximum is not subtracted.
    largest = _where(isinf(largest), 0.0, largest)
    return log(combine_dims(exp(x - largest), "sum", dims, True)) + largest


@composite(
    family="reduce",
    samples=(((0,), {}), ((-1, True), {}), (((0, -1),), {})),
    autocast=Autocast(gpu="fp32"),
    out="cast",
    gradient_name="LogsumexpBackward0",
    also=("special.logsumexp",),
    traced=True,
    onnx="ReduceLogSumExp",
)
def logsumexp(input: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    """Return log(sum(exp(input))) over `dim`; nothing overflows."""
    dims = wrap_dims("logsumexp", dim, input.ndim)
    x = as_float(input)
    if x.dtype.is_complex and x.numel():
        top = combine_dims(real_part(x).detach(), "max", dims, True)
        top = _where(isinf(top), 0.0, top)
        return log(sum(exp(x - top), dims, keepdim)) + (
            top if keepdim else drop_dims(top, dims, False)
        )
    result_type, x = x.dtype, widened(x)
    if 0 in x.shape:
        return of_nothing(x, reduced_shape(x.shape, dims, keepdim), -math.inf, result_type)
    return to_type(drop_dims(_logsumexp(x, dims), dims, keepdim), result_type)
