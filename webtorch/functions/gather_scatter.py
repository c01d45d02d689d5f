"""Gathering and scattering: one index tensor along a dim, flat positions, masks.

Bounds of index tensors are checked on the device; nothing is read from it, except where the result's shape depends
on the data (nonzero, masked_select): these say so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from webtorch.errors import DTypeError, IndexOutOfRangeError, ShapeError
from webtorch.functions import creation, joining, movement, pointwise, slicing
from webtorch.functions.check import dynamic
from webtorch.functions.indexing import (
    check_index,
    expanded_to,
    flattened,
    from_front,
    index_put,
    no_elements,
    to_front,
    true_positions,
    unravel,
    zeros_of,
)
from webtorch.functions.slicing import window
from webtorch.ir.dtype import (
    DType,
    Number,
    Scalar,
    bool_,
    int32,
    int64,
    integer_limits,
)
from webtorch.ir.view import Shape, broadcast_shapes, normalize_dim, numel
from webtorch.ops import comparison, elementwise
from webtorch.ops.layout import of_first, row_major
from webtorch.ops.primitive import cast_to, conjugate, copy, differentiated, fill, iota, shown
from webtorch.ops.primitive import scan as _scan
from webtorch.ops.primitive import scatter as _scatter
from webtorch.ops.primitive import take as _take
from webtorch.ops.record import BOOL, Autocast, Family, OutRule, composite
from webtorch.ops.splits import along, of_select
from webtorch.tensors import tape
from webtorch.tensors.above import ask
from webtorch.tensors.host import tracing
from webtorch.tensors.modes import mode, no_grad
from webtorch.tensors.switches import alert
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.values import at_hand, check_places, taken_over, waited_for
from webtorch.tensors.views import zeros_after

FAMILY: Family = "index"

# -- values that are known at the call --------------------------------------------------------------


_FAR = "index out of range in self. "
_FAR_IN_DATA = "INDICES element is out of DATA bounds, id={index} axis_dim={size}. "
_FAR_IN_COPY = (
    "index_copy_(): index {index} is out of bounds for dimension {dim} with size {size}. "
)
_FAR_IN_FLAT = "out of range: tried to access index {index} on a tensor of {size} elements. "


def _along(op: str, words: str = "", wrap: bool = False, empty: str = "") -> Callable[..., None]:
    """Return what checks an index along a dim, for the field `values`; `empty`: PyTorch's words for a dim of size 0."""

    def check(input: Tensor, dim: int, index: Tensor, *_: object, **__: object) -> None:
        """Raise for an index beyond the dim."""
        shape = input._shape
        if -len(shape) <= dim < len(shape):
            size = shape[dim]
            if empty and not size and index.numel():
                raise IndexOutOfRangeError(empty)
            check_places(op, index, size, words, -size if wrap else 0, dim % len(shape))

    return check


def _in_flat(op: str) -> Callable[..., None]:
    """Return what checks places among all elements."""

    def check(input: Tensor, index: Tensor, *_: object, **__: object) -> None:
        """Raise for a place beyond all elements."""
        size = numel(input._shape)
        check_places(op, index, size, _FAR_IN_FLAT, -size)

    return check


def _enough(input: Tensor, mask: Tensor, source: Tensor) -> None:
    """Raise where a mask asks for more than there is."""
    known = at_hand(mask)
    if known is None or not known.size:
        return
    times = numel(broadcast_shapes(input._shape, mask._shape)) // known.size
    if known.sum() * times > source.numel():
        raise RuntimeError("Number of elements of source < number of ones in mask")


# -- one index along one dim -----------------------------------------------------------------------


def _vector(op: str, index: Tensor) -> Tensor:
    if len(index._shape) > 1:
        raise IndexError(
            f"{op}(): Index is supposed to be a vector, got shape {list(index._shape)}"
        )
    check_index(op, index)
    return index if index._shape else movement.reshape(index, (1,))


@composite(
    splits=of_select,
    overlap="none",
    gradient_name="IndexSelectBackward0",
    aten=("index_select",),
    values=_along(
        "index_select",
        _FAR_IN_DATA,
        empty="index_select(): self indexing axis dim should be positive",
    ),
    layout=row_major,
)
def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """The slices of input at the positions of a 1-d index along `dim`."""
    index = _vector("index_select", index)
    if not input._shape:
        normalize_dim(dim, 0)
        if index.numel() != 1:
            raise ShapeError(
                f"index_select(): Index to scalar can have only 1 value, got {index.numel()} value(s)"
            )
        return movement.reshape(_take(movement.reshape(input, (1,)), [index], "index_select"), ())
    dim = normalize_dim(dim, len(input._shape))
    if not index.numel():
        shape = input._shape
        return no_elements(input, (*shape[:dim], 0, *shape[dim + 1 :]))
    rows = _take(to_front(input, dim), [index], "index_select", dims=(dim,))
    return from_front(rows, dim)


def _slices_of(
    op: str, x: Tensor, dim: int, index: Tensor, source: Tensor
) -> tuple[int, Tensor, Tensor, Tensor]:
    """Return dim, x, index and source, none of them 0-d. Raises as PyTorch does."""
    index = _vector(op, index)
    dim = normalize_dim(dim, len(x._shape))
    x, source = _at_least_1d(x), _at_least_1d(source)
    if source._shape[dim : dim + 1] != index._shape:
        found = source._shape[dim] if dim < len(source._shape) else 0
        error = IndexError if op == "index_copy_" else ShapeError
        raise error(
            f"{op}(): Number of indices ({index.numel()}) should be equal to "
            f"source.size(dim): ({found}), for dim: {dim}"
        )
    shape, other = x._shape, source._shape
    if shape[:dim] + shape[dim + 1 :] != other[:dim] + other[dim + 1 :]:
        raise ShapeError(
            "source tensor shape must match self tensor shape, excluding the specified dimension. Got "
            f"self.shape = {list(shape)} source.shape = {list(other)}"
        )
    return dim, x, index, source


def _put_slices(
    op: str, x: Tensor, dim: int, index: Tensor, source: Tensor, combine: str, wrap: bool = False
) -> Tensor:
    """Return x with the slices of source combined at the positions of a 1-d index along `dim`.

    Dims before it are counted through, so that x keeps its order: then it is written in place.
    """
    count = index._shape[0]
    full = (*x._shape[:dim], count)
    lines = [iota(n, 0, 1, int64, x.device) for n in full[:-1]]
    indices = [
        expanded_to(movement.reshape(i, (*(1,) * d, full[d], *(1,) * (dim - d))), full)
        for d, i in enumerate((*lines, index))
    ]
    return _scatter(x, indices, source, combine, op, wrap, dims=range(dim + 1))


def _same_type(op: str, x: Tensor, source: Tensor) -> None:
    if x.dtype is not source.dtype:
        raise DTypeError(
            f"{op}(): self ({x.dtype.legacy}) and source ({source.dtype.legacy}) must have the same "
            f"scalar type. Use source.to({x.dtype})."
        )


@composite(
    family="composite",
    name="_with_none_of",
    function_in=(),
    vjp=lambda g, _out, _base, source: (g, zeros_after(g, source._shape)),
)
def _with_none_of(base: Any, source: Tensor) -> Tensor:
    """A copy of base, where no element of `source` is written, which takes part in gradients all the same."""
    return copy(base)


@composite(
    inplace=True,
    gradient_name="IndexAddBackward0",
    aten=("index_add",),
    overlap="first",
    values=_along("index_add_"),
)
def index_add(
    input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Scalar = 1
) -> Tensor:
    """A copy of input with alpha times the slices of `source` added at the positions of `index`."""
    _same_type("index_add_", input, source)
    dim, base, index, slices = _slices_of("index_add_", input, dim, index, source)
    if not index.numel() or 0 in base._shape:
        return _with_none_of(input, source)
    if not elementwise.plain(alpha, 1):
        slices = slices * alpha
    out = _put_slices("index_add_", base, dim, index, slices, "add")
    return movement.reshape(out, input._shape)


@composite(
    overlap="first",
    inplace=True,
    autocast=Autocast(cpu="promote"),
    gradient_name="IndexCopyBackward0",
    aten=("index_copy",),
    values=_along("index_copy_", _FAR_IN_COPY),
)
def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """A copy of input with the slices of `source` at the positions of `index`."""
    if input.dtype is not source.dtype:
        raise DTypeError(
            "index_copy_(): self and source expected to have the same dtype, but got (self) "
            f"{input.dtype.legacy} and (source) {source.dtype.legacy}"
        )
    dim, base, index, slices = _slices_of("index_copy_", input, dim, index, source)
    if not index.numel() or 0 in base._shape:
        return _with_none_of(input, source)
    out = _put_slices("index_copy_", base, dim, index, slices, "set")
    return movement.reshape(out, input._shape)


@composite(
    inplace=True,
    refuses=BOOL,
    gradient_name="IndexReduceBackward0",
    aten=("index_reduce",),
    overlap="first",
    values=_along("index_reduce_", _FAR),
)
def index_reduce(
    input: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    """A copy of input with the slices of `source` that meet combined: prod, mean, amax or amin."""
    if reduce not in ("prod", "mean", "amax", "amin"):
        raise RuntimeError(
            f"index_reduce(): Expected reduce to be one of prod, mean, amax or amin but got {reduce}."
        )
    _same_type("index_reduce", input, source)
    index = _vector("index_reduce", index)
    dim = normalize_dim(dim, len(input._shape))
    x = movement.reshape(input, (1,)) if not input._shape else input
    rows = movement.reshape(source, (1,)) if not source._shape else source
    if rows._shape[dim] != index.numel():
        raise ShapeError(
            f"index_reduce(): Number of indices ({index.numel()}) should be equal to "
            f"source.size(dim): ({rows._shape[dim]}), for dim: {dim}"
        )
    if not rows.numel():
        return copy(input)
    where = movement.reshape(index, (1,) * dim + (-1,) + (1,) * (len(x._shape) - dim - 1))
    where = movement.expand(cast_to(where, int64), rows._shape)
    out = scatter_reduce(x, dim, where, rows, reduce, include_self=include_self)
    return movement.reshape(out, input._shape)


@composite(
    inplace=True, gradient_name="PutBackward0", once=True, overlap="first", values=_in_flat("put_")
)
def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """A copy of input with `source` at positions of its flat elements; `accumulate` adds."""
    if index.dtype is not int64:
        raise DTypeError(f"put_(): Expected a long tensor for index, but got {index.dtype.legacy}")
    if input.dtype is not source.dtype:
        raise DTypeError(
            f"put_(): self and source expected to have the same dtype, but got self.dtype = "
            f"{input.dtype.legacy} and source.dtype = {source.dtype.legacy}"
        )
    if index.numel() != source.numel():
        raise IndexError(
            "put_(): Expected source and index to have the same number of elements, but got "
            f"source.numel() = {source.numel()}, index.numel() = {index.numel()}"
        )
    if not index.numel():
        return copy(input)
    if not accumulate:
        alert("put_")
    flat = flattened(movement.clone(input))
    combine = "add" if accumulate else "set"
    out = _scatter(flat, [flattened(index)], flattened(source), combine, "put_", True)
    return movement.reshape(out, input._shape)


def _as_value(op: str, value: object, like: Tensor) -> Tensor:
    """Return a number or 0-d tensor as a 0-d tensor of `like`'s type and device."""
    if isinstance(value, complex) and not like.dtype.is_complex:
        raise RuntimeError(
            f"{op}(): Converting complex Scalar to non-complex type is not supported"
        )
    if not isinstance(value, Tensor):
        return fill(
            (), creation.fits(creation.number_of(value), like.dtype), like.dtype, like.device
        )
    if value._shape:
        raise RuntimeError(
            f"{op} only supports a 0-dimensional value tensor, but got tensor with {len(value._shape)} dimension(s)."
        )
    return cast_to(value.to(like.device), like.dtype)


def _filled_once(memory: Tensor, dim: int, index: Tensor, value: object) -> tuple[object, ...]:
    """Each position along a dim whose elements share their places is the first."""
    return dim, index if memory._shape[dim] > 1 else index * 0, value


@composite(
    splits=along("dim"),
    inplace=True,
    overlap="none",
    once_in_place=_filled_once,
    gradient_name="IndexFillBackward0",
    aten=("index_fill",),
    values=_along("index_fill_", wrap=True),
    layout=of_first,
)
def index_fill(input: Tensor, dim: int, index: Tensor, value: Number | Tensor) -> Tensor:
    """A copy of input with `value` in the slices at the positions of `index`."""
    if len(index._shape) > 1:
        raise RuntimeError("Index has to be a vector/scalar")
    if isinstance(value, complex) and not input.dtype.is_complex:
        raise RuntimeError(
            "index_fill_(): Converting complex Scalar to non-complex type is not supported"
        )
    index = _vector("index_fill_", index)
    value = _as_value("index_fill_", value, input)
    dim = normalize_dim(dim, len(input._shape))
    base = _at_least_1d(input)
    if not index.numel() or 0 in base._shape:
        return _with_none_of(input, value)
    if differentiated(value):
        # Duplicates are one write, so the gradient counts them once: the value goes where a mask is.
        flags = fill((base._shape[dim],), False, bool_, base.device)
        one = fill(index._shape, True, bool_, base.device)
        flags = _scatter(flags, [index], one, "set", "index_fill_", wrap=True, dims=(dim,))
        flags = movement.reshape(flags, (-1,) + (1,) * (len(base._shape) - dim - 1))
        return movement.reshape(pointwise.where(flags, value, base), input._shape)
    shape = base._shape
    slices = expanded_to(value, (*shape[:dim], index.numel(), *shape[dim + 1 :]))
    # Negative positions count from the end here, as in PyTorch.
    out = _put_slices("index_fill_", base, dim, index, slices, "set", wrap=True)
    return movement.reshape(out, input._shape)


# -- gather and scatter along a dim ----------------------------------------------------------------


def _at_least_1d(x: Tensor) -> Tensor:
    return x if x._shape else movement.reshape(x, (1,))


def _coordinates(x: Tensor, dim: int, index: Tensor) -> tuple[Tensor, list[Tensor], Shape]:
    """Return x, full index tensors and their shape for `x[i, ..., index[i, ..., k], ..., k]` along `dim`.

    Dims after `dim` that index and x share entirely are joined, so that fewer index tensors are needed.
    """
    shape, want = x._shape, index._shape
    cut = dim + 1
    if shape[cut:] == want[cut:] and len(shape) - cut > 1 and x.is_contiguous():
        x = movement.reshape(x, (*shape[:cut], numel(shape[cut:])))
        index = movement.reshape(index, (*want[:cut], numel(want[cut:])))
        shape, want = x._shape, index._shape
    tensors, rank = [], len(shape)
    for d in range(rank):
        if d == dim:
            tensors.append(index)
            continue
        line = iota(want[d], 0, 1, int64, x.device)
        line = movement.reshape(line, (1,) * d + (want[d],) + (1,) * (rank - d - 1))
        tensors.append(expanded_to(line, want))
    return x, tensors, want


def _check_against(x: Tensor, index: Tensor, what: str) -> None:
    if len(index._shape) != len(x._shape):
        raise ShapeError(
            f"Index tensor must have the same number of dimensions as {what} tensor: got {len(index._shape)} "
            f"and {len(x._shape)}"
        )


def gather_along(x: Tensor, dim: int, index: Tensor, op: str = "gather") -> Tensor:
    """What `gather` computes, for other operations: errors name `op`."""
    if not index.numel() and index.dtype not in (int64, int32):
        return no_elements(x, index._shape)
    check_index(op, index)
    result_shape = index._shape
    x, index = _at_least_1d(x), _at_least_1d(index)
    _check_against(x, index, "input")
    dim = normalize_dim(dim, len(x._shape))
    for d, (a, b) in enumerate(zip(index._shape, x._shape, strict=True)):
        if a > b and d != dim:
            raise ShapeError(
                f"Size does not match at dimension {d} expected index {list(index._shape)} to be no larger than "
                f"self {list(x._shape)} apart from dimension {dim}"
            )
    if not index.numel():
        return no_elements(x, result_shape)
    source, tensors, _ = _coordinates(x, dim, index)
    return movement.reshape(_take(source, tensors, op), result_shape)


@composite(
    splits=along("dim"),
    overlap="none",
    gradient_name="GatherBackward0",
    once=True,
    values=_along("gather"),
)
def gather(input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """out[i][j][k] = input[index[i][j][k]][j][k] for dim 0, and so on: one element per element of `index`.

    With sparse_grad the gradient of the input is a sparse tensor.
    """
    if not (sparse_grad and tape.needs_grad((input,)) and not index._levels):
        return gather_along(input, dim, index)
    with no_grad():
        out = gather_along(input, dim, index)
    at = normalize_dim(dim, max(input.ndim, 1))
    kept = tape.SavedTensor(index)
    return tape.attach(out, "Gather", (input,), _sparse_places, (kept,), (input._shape, at))


def _sparse_places(g: Tensor, index: Tensor, shape: tuple[int, ...], dim: int) -> Any:
    return ask("sparse_places")(g, index, shape, dim)


def _scatter_along(
    op: str, x: Tensor, dim: int, index: Tensor, src: Tensor, combine: str
) -> Tensor:
    """Return x with the elements of src combined at `index` along `dim`; src None stands for ones."""
    check_index(op, index)
    shape = x._shape
    base, index = _at_least_1d(x), _at_least_1d(index)
    dim = normalize_dim(dim, len(base._shape))
    if not index.numel():
        return _with_none_of(x, src)
    _check_against(base, index, "self")
    src = _at_least_1d(src)
    if src.dtype is not x.dtype:
        raise DTypeError(
            f"{op}(): Expected self.dtype to be equal to src.dtype, got {x.dtype} and {src.dtype}: "
            f"use src.to({x.dtype})."
        )
    if len(src._shape) != len(index._shape):
        raise ShapeError(
            "Index tensor must have the same number of dimensions as src tensor: got "
            f"{len(index._shape)} and {len(src._shape)}"
        )
    for d, n in enumerate(index._shape):
        if (n > base._shape[d] and d != dim) or n > src._shape[d]:
            raise ShapeError(
                f"Expected index {list(index._shape)} to be no larger than self {list(base._shape)} apart from "
                f"dimension {dim} and to be no larger size than src {list(src._shape)}"
            )
    for d, n in enumerate(index._shape):
        if n < src._shape[d]:
            src = window(src, d, 0, n)
    if combine == "mul" and base.dtype.is_complex:
        return movement.reshape(_complex_products(op, base, dim, index, src), shape)
    base, tensors, want = _coordinates(base, dim, index)
    out = _scatter(base, tensors, movement.reshape(src, want), combine, op)
    return movement.reshape(out, shape)


def _complex_products(op: str, base: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """Return base multiplied by the elements of src at `index`: slice by slice, in each of which places differ."""
    for k in range(index._shape[dim]):
        at = window(index, dim, k, 1)
        product = gather_along(base, dim, at, op) * window(src, dim, k, 1)
        base = _scatter_along(op, base, dim, at, product, "set")
    return base


_OLD_REDUCTIONS = {"add": "add", "multiply": "mul"}


@composite(
    splits=along("dim"),
    inplace=True,
    gradient_name="ScatterBackward0",
    overlap="first",
    values=_along("scatter"),
)
def scatter(
    input: Tensor,
    dim: int,
    index: Tensor,
    src: object = None,
    *,
    value: Number | None = None,
    reduce: str | None = None,
) -> Tensor:
    """A copy of input with `src` (a tensor or a number) written to input[index[i][j]][j] for dim 0, and so on.

    reduce: "add" or "multiply" combines with what is there.
    """
    if src is None:
        src = value
    if src is None:
        raise TypeError('scatter() missing 1 required positional argument: "src" or "value"')
    if reduce is not None and reduce not in _OLD_REDUCTIONS:
        raise RuntimeError("reduce argument must be either add or multiply.")
    if not isinstance(src, Tensor):
        value = creation.fits(creation.number_of(src), input.dtype)
        src = fill(index._shape, value, input.dtype, input.device)
    combine = "set" if reduce is None else _OLD_REDUCTIONS[reduce]
    return _scatter_along("scatter", input, dim, index, src, combine)


@composite(
    splits=along("dim"),
    inplace=True,
    autocast=Autocast(gpu="promote"),
    gradient_name="ScatterAddBackward0",
    overlap="first",
    values=_along("scatter_add"),
)
def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """A copy of input with `src` added at input[index[i][j]][j] for dim 0, and so on."""
    return _scatter_along("scatter_add", input, dim, index, src, "add")


_REDUCTIONS = {"sum": "add", "prod": "mul", "mean": "add", "amax": "max", "amin": "min"}


def _identity(reduce: str, dtype: DType) -> Scalar:
    if reduce in ("sum", "mean"):
        return movement.zero_of(dtype)
    if reduce == "prod":
        return True if dtype is bool_ else 1
    if dtype.kind == "float":
        return -math.inf if reduce == "amax" else math.inf
    low, high = integer_limits(dtype)
    value = low if reduce == "amax" else high
    return bool(value) if dtype is bool_ else value


def _times_written(x: Tensor, dim: int, index: Tensor, include_self: bool, dtype: DType) -> Tensor:
    """Return how many values meet at each element, at least 1."""
    start = fill(x._shape, 1 if include_self else 0, dtype, x.device)
    one = fill(index._shape, 1, dtype, x.device)
    count = _scatter_along("scatter_reduce", start, dim, index, one, "add")
    return pointwise.where(comparison.eq(count, 0), 1, count)


def _scatter_reduced(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool
) -> Tensor:
    op = "scatter_reduce"
    base = x
    if not include_self:
        neutral = _identity(reduce, x.dtype)
        if x.dtype is int64 and reduce in ("amax", "amin"):
            return _integer_extreme(x, dim, index, src, reduce)
        filled = fill(index._shape, neutral, x.dtype, x.device)
        base = _scatter_along(op, x, dim, index, filled, "set")
    out = _scatter_along(op, base, dim, index, src, _REDUCTIONS[reduce])
    if reduce == "mean":
        count = _times_written(x, dim, index, include_self, x.dtype)
        out = out / count if x.dtype.has_gradient else elementwise.floor_divide(out, count)
    return out


def _integer_extreme(x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str) -> Tensor:
    """Amax or amin without self for int64: start from any value that is written, which needs no neutral one."""
    op = "scatter_reduce"
    base = _scatter_along(op, x, dim, index, src, "set")
    return _scatter_along(op, base, dim, index, src, _REDUCTIONS[reduce])


@composite(inplace=True, overlap="first", values=_along("scatter_reduce"))
def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """A copy of input with the values of `src` that meet at one element combined: sum, prod, mean, amax or amin.

    include_self: whether input's own value takes part. Differentiable in input and src.
    """
    if reduce not in _REDUCTIONS:
        raise RuntimeError(
            f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}"
        )
    if reduce == "mean" and input.dtype is bool_:
        raise DTypeError("scatter_reduce: 'mean' is not implemented for 'Bool'")
    if reduce == "sum" and include_self:
        return _scatter_along("scatter_reduce", input, dim, index, src, "add")
    if not tape.needs_grad((input, src)):
        return _scatter_reduced(input, dim, index, src, reduce, include_self)
    with no_grad():
        out = _scatter_reduced(input, dim, index, src, reduce, include_self)
    saved = [tape.SavedTensor(t) for t in (input, src, index)]
    args = (dim, reduce, include_self)
    return tape.attach(out, "ScatterReduce", (input, src), _scatter_reduce_back, saved, args)


def _scatter_reduce_back(
    g: Tensor, x: Tensor, src: Tensor, index: Tensor, dim: int, reduce: str, include_self: bool
) -> tuple[Tensor, Tensor]:
    """Return the cotangents of input and src."""
    to_x, to_src = _reduce_rule(g, x, dim, index, src, reduce, include_self)
    if not include_self:
        none = fill(index._shape, 0, g.dtype, g.device)
        to_x = _scatter_along("scatter_reduce", to_x, dim, index, none, "set")
    if to_src._shape != src._shape:
        after = tuple(a - b for a, b in zip(src._shape, to_src._shape, strict=True))
        for d, n in enumerate(after):
            to_src = slicing.pad_dim(to_src, d, 0, n)
    return movement.reshape(to_x, x._shape), to_src


def _first_part(x: Tensor, shape: Shape) -> Tensor:
    for d, n in enumerate(shape):
        if n < x._shape[d]:
            x = window(x, d, 0, n)
    return x


def _reduce_rule(
    g: Tensor, x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool
) -> tuple[Tensor, Tensor]:
    op = "scatter_reduce"
    if reduce == "sum":
        return g, gather_along(g, dim, index, op)
    if reduce == "mean":
        share = g / _times_written(x, dim, index, include_self, g.dtype)
        return share, gather_along(share, dim, index, op)
    src = _first_part(src, index._shape)
    if reduce == "prod":
        if not include_self:
            # The elements that were overwritten get none: the caller clears them.
            return g, _product_rule(g, x, dim, index, src, include_self)[1]
        return _product_rule(g, x, dim, index, src, include_self)
    # amax, amin: all that reach the extreme share the cotangent.
    best = _scatter_reduced(x, dim, index, src, reduce, include_self)
    mine = cast_to(comparison.eq(x, best), g.dtype)
    theirs = cast_to(comparison.eq(src, gather_along(best, dim, index, op)), g.dtype)
    if not include_self:
        none = fill(index._shape, 0, g.dtype, g.device)
        mine = _scatter_along(op, mine, dim, index, none, "set")
    winners = _scatter_along(op, mine, dim, index, theirs, "add")
    share = g / pointwise.where(comparison.eq(winners, 0), 1, winners)
    return mine * share, theirs * gather_along(share, dim, index, op)


def _product_rule(
    g: Tensor, x: Tensor, dim: int, index: Tensor, src: Tensor, include_self: bool
) -> tuple[Tensor, Tensor]:
    """The derivative of a product is the product of the others: of all but the zeros, where there is one zero."""
    op = "scatter_reduce"

    def zero(t: Tensor) -> Tensor:
        """Return where a tensor is 0."""
        return comparison.eq(t, 0)

    def without_zeros(t: Tensor) -> Tensor:
        """Return a tensor with 1 in the place of 0."""
        return pointwise.where(zero(t), 1, t)

    start = (
        without_zeros(x)
        if include_self
        else pointwise.where(zero(x), 1, fill((), 1, x.dtype, x.device))
    )
    # As an operation of its own, so that it has a derivative again.
    product = scatter_reduce(start, dim, index, without_zeros(src), "prod")
    zeros = cast_to(zero(x), g.dtype) if include_self else fill(x._shape, 0, g.dtype, x.device)
    zeros = _scatter_along(op, zeros, dim, index, cast_to(zero(src), g.dtype), "add")
    if mode.grad and g.requires_grad and not tracing.active and not g.is_meta:
        mine = fill(x._shape, 0, g.dtype, x.device)
        met = _scatter_along(op, mine, dim, index, cast_to(zero(src), g.dtype), "add")
        if shown(comparison.gt(met, 1)).any().item():
            raise RuntimeError(
                "Double backward is unsupported for scatter_reduce(prod) when >1 zeros in src are scattered to the "
                "same position in self"
            )

    def others(t: Tensor, product: Tensor, zeros: Tensor) -> Tensor:
        """Return the product of all other factors at each place."""
        rest = product / without_zeros(t)
        rest = conjugate(rest) if rest.dtype.is_complex else rest
        none_left = comparison.eq(zeros - cast_to(zero(t), g.dtype), 0)
        return pointwise.where(none_left, rest, 0.0)

    here = gather_along(product, dim, index, op)
    meets = gather_along(zeros, dim, index, op)
    return g * others(x, product, zeros), gather_along(g, dim, index, op) * others(src, here, meets)


@composite(
    overlap="none",
    gradient_name="TakeBackward0",
    once=True,
    aten=("take",),
    values=_in_flat("take"),
)
def take(input: Tensor, index: Tensor) -> Tensor:
    """The elements at flat positions `index`, in index's shape; negative positions count from the end."""
    if index.dtype is not int64:
        raise DTypeError(
            f"take(): Expected a long tensor for index, but got {index.dtype.legacy}: use index.long()."
        )
    if not index.numel():
        return no_elements(input, index._shape)
    return _take(flattened(input), [index], "take", wrap=True)


@composite(splits=along("dim"), gradient_name="GatherBackward0", once=True, overlap="none")
def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """Gather with index and input broadcast against each other; without dim, over all elements."""
    if indices.dtype is not int64:
        raise DTypeError(
            f"torch.take_along_dim(): dtype of indices should be Long but got {indices.dtype}: "
            "use indices.long()"
        )
    # Negative positions count from the end here, unlike in gather.
    size = input.numel() if dim is None else input._shape[normalize_dim(dim, len(input._shape))]
    indices = pointwise.where(comparison.lt(indices, 0), indices + size, indices)
    if dim is None:
        return gather_along(flattened(input), 0, flattened(indices))
    if len(input._shape) != len(indices._shape):
        raise ShapeError(
            "torch.take_along_dim(): input and indices should have the same number of dimensions, but got "
            f"{len(input._shape)} dimensions for input, and {len(indices._shape)} dimensions for indices"
        )
    dim = normalize_dim(dim, len(input._shape))
    a, b = list(input._shape), list(indices._shape)
    a[dim] = b[dim] = 1
    joint = list(broadcast_shapes(tuple(a), tuple(b)))
    sizes = [list(joint), list(joint)]
    sizes[0][dim], sizes[1][dim] = input._shape[dim], indices._shape[dim]
    return gather_along(
        expanded_to(input, tuple(sizes[0])), dim, expanded_to(indices, tuple(sizes[1]))
    )


# -- masks -----------------------------------------------------------------------------------------


_BY_SELECTING = (
    "vmap: Attempted to vmap over `mask` in torch.masked_select(self, mask) We cannot support this because for each "
    "batch this would return a differently shaped Tensor. Please file an issue at "
    "https://github.com/pytorch/pytorch/issues if you need this feature: use where or masked_fill."
)


@composite(overlap="none", gradient_name="MaskedSelectBackward0", aten=("masked_select",))
def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements where mask is true, in one dimension. Reads their count from the device."""
    pointwise.check_mask("masked_select", mask)
    shape = broadcast_shapes(input._shape, mask._shape)
    if input._shape == shape == mask._shape and (known := waited_for(input, mask)) is not None:
        values, chosen = known
        return taken_over(values[chosen], input.dtype, input)
    positions = true_positions(flattened(expanded_to(mask, shape)), _BY_SELECTING)
    flat = flattened(expanded_to(input, shape))
    return (
        _take(flat, [positions], "masked_select") if positions.numel() else no_elements(flat, (0,))
    )


@composite(
    inplace=True,
    gradient_name="MaskedScatterBackward0",
    aten=("masked_scatter",),
    values=_enough,
    layout=row_major,
)
def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """A copy of input in which the elements where mask is true are replaced by those of `source`, in order."""
    pointwise.check_mask("masked_scatter", mask)
    if source.dtype is not input.dtype:
        raise DTypeError(
            "masked_scatter: expected self and source to have same dtypes but got "
            f"{input.dtype.legacy} and {source.dtype.legacy}"
        )
    shape = broadcast_shapes(input._shape, mask._shape)
    input, mask = expanded_to(input, shape), expanded_to(mask, shape)
    if not numel(shape):
        return _with_none_of(input, source)
    if not source.numel():
        input = _with_none_of(input, source)
        source = zeros_of((1,), source.dtype, source.device)
    flags = flattened(mask)
    place = _scan(cast_to(flags, int64), "sum", 0) - 1
    # Where the mask is false the value read is not used; too few source elements are an index error.
    place = pointwise.where(flags, place, 0)
    values = _take(flattened(source), [place], "masked_scatter")
    return pointwise.where(mask, movement.reshape(values, shape), input)


def _one_matrix(input: Tensor, *, as_tuple: bool = False) -> OutRule:
    if as_tuple:
        raise RuntimeError("nonzero does not support the out kwarg when as_tuple is True")
    return "exact"


@composite(
    forms=(
        "(input: Tensor, *, as_tuple: Literal[False] = False) -> Tensor",
        "(input: Tensor, *, as_tuple: Literal[True]) -> tuple[Tensor, ...]",
    ),
    out=_one_matrix,
)
def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """The positions of nonzero elements: (count, ndim), or a tuple of ndim vectors. Reads the count from the device."""
    shape = input._shape
    if not shape and as_tuple:
        return nonzero(movement.reshape(input, (1,)), as_tuple=True)
    if shape and (known := waited_for(input)) is not None:
        places = known[0].nonzero()
        if as_tuple:
            return tuple(taken_over(p, int64, input) for p in places)
        import numpy

        return taken_over(numpy.stack(places, 1), int64, input)
    flags = flattened(input if input.dtype is bool_ else comparison.ne(input, 0))
    positions = true_positions(flags, dynamic("nonzero"))
    columns = unravel(positions, shape)
    if as_tuple:
        return tuple(columns)
    if not columns:
        return fill((positions.numel(), 0), 0, int64, input.device)
    return joining.stack(columns, 1)


@composite(aten=("nonzero_static",))
def nonzero_static(input: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """The first `size` positions of elements that are not zero; missing rows are `fill_value`."""
    if size < 0:
        raise RuntimeError("nonzero_static: 'size' must be an non-negative integer")
    shape = input._shape
    flags = flattened(input if input.dtype is bool_ else comparison.ne(input, 0))
    count = numel(shape)
    if not shape or not size or not count:
        return fill((size, len(shape)), fill_value, int64, input.device)
    # The place of each position among those found; what does not fit and what is not found go to one more row.
    place = _scan(cast_to(flags, int64), "sum", 0) - 1
    place = pointwise.where(flags, pointwise.clamp(place, max=size), size)
    empty = fill((size + 1,), -1, int64, input.device)
    positions = index_put(empty, (place,), iota(count, 0, 1, int64, input.device))[:size]
    columns = unravel(pointwise.clamp(positions, min=0), shape)
    return joining.stack([pointwise.where(positions < 0, fill_value, c) for c in columns], 1)


@composite()
def argwhere(input: Tensor) -> Tensor:
    """The positions of nonzero elements: (count, ndim). Reads the count from the device."""
    return nonzero(input)
