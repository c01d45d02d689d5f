"""Indexing: gathering and scattering by index tensors, masks, positions, order.

Everything stands on two primitives: `take` picks rows of the first dims by index tensors, `scatter` combines rows
into them. Bounds of index tensors are checked on the device; nothing is read from it, except where the result's shape
depends on the data (nonzero, masked_select, bincount, ...): these say so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from webtorch.errors import DTypeError, ShapeError
from webtorch.functions import creation, movement, pointwise
from webtorch.functions.movement import METHOD, pick, window
from webtorch.ir.dtype import (
    DType,
    Number,
    Scalar,
    bool_,
    float32,
    float64,
    int32,
    int64,
    integer_limits,
    legacy_name,
    uint8,
)
from webtorch.ir.view import Shape, broadcast_shapes, normalize_dim, numel
from webtorch.ops import elementwise
from webtorch.ops.integer import search_high, search_low, search_probe
from webtorch.ops.primitive import as_view, cast_to, copy, differentiated, fill, iota, reduce_dims
from webtorch.ops.primitive import scan as _scan
from webtorch.ops.primitive import scatter as _scatter
from webtorch.ops.primitive import take as _take
from webtorch.ops.primitive import write as _write
from webtorch.ops.record import BOOL, Autocast, Example, Operand, composite
from webtorch.tensors import tape
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.modes import no_grad
from webtorch.tensors.tensor import Tensor

FUNCTIONAL = ("nn.functional",)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _check_index(op: str, index: Tensor) -> None:
    if index.dtype not in (int64, int32):
        raise DTypeError(
            f"{op}(): Expected dtype int32/int64 for index, got {index.dtype}: use index.long()."
        )


def _to_front(x: Tensor, dim: int) -> Tensor:
    return x if dim == 0 else movement.movedim(x, dim, 0)


def _from_front(x: Tensor, dim: int) -> Tensor:
    return x if dim == 0 else movement.contiguous(movement.movedim(x, 0, dim))


def _flat(x: Tensor) -> Tensor:
    return movement.reshape(x, (x.numel(),))


def _expanded(x: Tensor, shape: Shape) -> Tensor:
    return x if x._shape == shape else movement.broadcast_to(x, shape)


def _zeros(shape: Shape, dtype: DType, device: DeviceLike) -> Tensor:
    return fill(shape, movement.zero_of(dtype), dtype, device)


# -- several index tensors at once: x[i, :, j] -----------------------------------------------------


def true_positions(flags: Any) -> Tensor:
    """Return the positions of the true elements of a 1-d bool tensor. Reads their count from the device."""
    n = flags.numel()
    device = flags.device
    if not n:
        return fill((0,), 0, int64, device)
    running = _scan(cast_to(flags, int64), "sum", 0)
    count = int(pick(running, 0, n - 1).item())
    if count == 0:
        return fill((0,), 0, int64, device)
    everyone = iota(n, 0, 1, int64, device)
    if count == n:
        return everyone
    # Elements that do not count all go to one place past the end.
    slot = pointwise.where(flags, running - 1, count)
    found = _scatter(fill((count + 1,), 0, int64, device), [slot], everyone, "set", "nonzero")
    return window(found, 0, 0, count)


def _unravel(positions: Any, shape: Shape) -> list[Tensor]:
    """Return the coordinate tensors of flat `positions` in `shape`."""
    out, stride = [], numel(shape)
    for d, size in enumerate(shape):
        stride //= max(size, 1)
        part = positions if stride <= 1 else elementwise.floor_divide(positions, stride)
        out.append(part if d == 0 else elementwise.remainder(part, max(size, 1)))
    return out


def expand_masks(shape: Shape, indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return index tensors with each bool mask replaced by the positions of its true elements (read on the host).

    Raises IndexError where a mask does not fit, or there are more indices than dimensions.
    """
    out: list[Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in (bool_, uint8):
            out.append(index)
            continue
        dim = len(out)
        if dim + len(index._shape) > len(shape):
            raise IndexError(f"too many indices for tensor of dimension {len(shape)}")
        for d, size in enumerate(index._shape):
            if size != shape[dim + d]:
                raise IndexError(
                    f"The shape of the mask {list(index._shape)} at index {d} does not match the shape of the "
                    f"indexed tensor {list(shape)} at index {dim + d}"
                )
        flags = index if index.dtype is bool_ else elementwise.ne(index, 0)
        out.extend(_unravel(true_positions(_flat(flags)), index._shape))
    if len(out) > len(shape):
        raise IndexError(f"too many indices for tensor of dimension {len(shape)}")
    return out


class Layout:
    """Where index tensors apply and where their common shape appears in the result.

    `tensors` are by dimension; those in `single` (0-d, like an int) vanish before the place of the others is found.
    `names` are the dimensions as messages call them, where these differ.
    """

    def __init__(
        self,
        shape: Shape,
        tensors: dict[int, Any],
        single: Sequence[int] = (),
        names: Mapping[int, int] | None = None,
    ) -> None:
        rank = len(shape)
        for d, index in tensors.items():
            # Also where nothing is read, because another index is empty.
            if not shape[d] and numel(index._shape):
                raise IndexError(f"index is out of bounds for dimension {d} with size 0")
        many = [d for d in sorted(tensors) if d not in single]
        try:
            self.index_shape = broadcast_shapes(*(tensors[d]._shape for d in many))
        except ShapeError:
            shapes = ", ".join(str(list(tensors[d]._shape)) for d in many)
            raise IndexError(
                "shape mismatch: indexing tensors could not be broadcast together with shapes "
                f"{shapes}"
            ) from None
        rest = [d for d in range(rank) if d not in tensors]
        self.order = (*single, *many, *rest)
        self.indices = {d: _expanded(tensors[d], self.index_shape) for d in (*single, *many)}
        self.names = [d if names is None else names.get(d, d) for d in self.indices]
        self.rest_shape = tuple(shape[d] for d in rest)
        left = [d for d in range(rank) if d not in single]
        places = [left.index(d) for d in many]
        together = bool(places) and places[-1] - places[0] == len(places) - 1
        # Between the other dims where the indexed dims are neighbours, else in front: NumPy's and PyTorch's rule.
        self.at = places[0] if together else 0
        head, tail = self.rest_shape[: self.at], self.rest_shape[self.at :]
        self.shape = (*head, *self.index_shape, *tail)

    def to_result(self, x: Tensor) -> Tensor:
        """Return (index dims, rest) in the order of the result."""
        n = len(self.index_shape)
        if not self.at or not n:
            return x
        dims = (*range(n, n + self.at), *range(n), *range(n + self.at, len(x._shape)))
        return movement.contiguous(movement.permute(x, dims))

    def from_result(self, x: Tensor) -> Tensor:
        """Return a tensor in the order of the result as (index dims, rest)."""
        n = len(self.index_shape)
        if not self.at or not n:
            return x
        dims = (
            *range(self.at, self.at + n),
            *range(self.at),
            *range(self.at + n, len(x._shape)),
        )
        return movement.permute(x, dims)


def take_at(
    x: Tensor,
    tensors: dict[int, Any],
    single: Sequence[int] = (),
    names: Mapping[int, int] | None = None,
) -> Tensor:
    """Return x indexed by integer tensors, given by dimension."""
    layout = Layout(x._shape, tensors, single, names)
    if 0 in layout.index_shape:
        return _no_elements(x, layout.shape)
    return layout.to_result(
        _take(
            movement.permute(x, layout.order),
            list(layout.indices.values()),
            "index",
            wrap=True,
            dims=layout.names,
        )
    )


def _no_elements(x: Tensor, shape: Shape) -> Tensor:
    """Return an empty result that still belongs to x's graph."""
    return tape.attach(
        _zeros(shape, x.dtype, x.device),
        "Index",
        (x,),
        tape.zeros_of,
        (),
        (x._shape,),
    )


def put_at(
    x: Tensor,
    tensors: dict[int, Any],
    value: Any,
    single: Sequence[int] = (),
    accumulate: bool = False,
    names: Mapping[int, int] | None = None,
) -> None:
    """Write `value` to x at integer tensors, given by dimension; duplicates add up with `accumulate`."""
    layout = Layout(x._shape, tensors, single, names)
    value = put_value(value, layout.shape)
    if 0 in layout.shape:
        # It takes part in gradients all the same.
        _write(as_view(x, (0,), (1,), x._offset), movement.reshape(value, (0,)))
        return
    rows = layout.from_result(value)
    # Dims before the last indexed one are counted through, so that x keeps its order: then it is
    # written in place.
    between = [d for d in range(max(tensors)) if d not in tensors]
    n = len(layout.index_shape)
    full = (*layout.index_shape, *(x._shape[d] for d in between))
    indices, dims = [], []
    for d in range(max(tensors) + 1):
        if d in tensors:
            index = layout.indices[d]
            shape = (*layout.index_shape, *(1 for _ in between))
            dims.append(d if names is None else names.get(d, d))
        else:
            index = iota(x._shape[d], 0, 1, int64, x.device)
            place = n + between.index(d)
            shape = tuple(x._shape[d] if i == place else 1 for i in range(len(full)))
            dims.append(d)
        indices.append(_expanded(movement.reshape(index, shape), full))
    combine = "add" if accumulate else "set"
    out = _scatter(x, indices, rows, combine, "index_put_", wrap=True, dims=dims)
    _write(x, out, fresh=True)


def put_value(value: Any, shape: Shape) -> Tensor:
    """Return `value` expanded to the shape of an indexing result. Raises ShapeError as PyTorch does."""
    given = value._shape
    # PyTorch drops leading dims of size 1 from what is assigned.
    extra = len(given) - len(shape)
    if extra > 0 and all(n == 1 for n in given[:extra]):
        value = movement.reshape(value, given[extra:])
    try:
        return _expanded(value, shape)
    except ShapeError:
        raise ShapeError(
            f"shape mismatch: value tensor of shape {list(given)} cannot be broadcast to indexing result of "
            f"shape {list(shape)}"
        ) from None


def check_put_dtype(op: str, x: Tensor, values: Tensor) -> None:
    """Raise DTypeError where PyTorch does not convert what is assigned."""
    if values.dtype is not x.dtype:
        raise DTypeError(
            f"{op}: Index put requires the source and destination dtypes match, got {x.dtype} for the "
            f"destination and {values.dtype} for the source. Use values.to({x.dtype})."
        )


def _put(
    op: str, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool
) -> Tensor:
    check_put_dtype(op, x, values)
    expanded = expand_masks(x._shape, indices)
    tensors = {d: i for d, i in enumerate(expanded) if i is not None}
    if tensors:
        put_at(x, tensors, values, accumulate=accumulate)
    else:
        raise IndexError(f"{op}: at least one index tensor is needed")
    return x


@composite(family="index", autocast=Autocast(gpu="promote"))
def index_put(
    input: Tensor, indices: Sequence[Tensor], values: Tensor, accumulate: bool = False
) -> Tensor:
    """A copy of input with `values` at the positions of index tensors; with accumulate, duplicates add up."""
    return _put("index_put", movement.clone(input), indices, values, accumulate)


@composite(
    family="index",
    name="index_put_",
    function_in=METHOD,
    torch="Tensor.index_put_",
    example=Example(((5, 2),), (("i5",), Operand(9, 2), True)),
)
def _index_put_in_place(
    input: Tensor, indices: Sequence[Tensor], values: Tensor, accumulate: bool = False
) -> Tensor:
    """Write `values` at the positions of index tensors; with accumulate, duplicates add up."""
    return _put("index_put_", input, indices, values, accumulate)


# -- one index along one dim -----------------------------------------------------------------------


def _vector(op: str, index: Tensor) -> Tensor:
    if len(index._shape) > 1:
        raise IndexError(
            f"{op}(): Index is supposed to be a vector, got shape {list(index._shape)}"
        )
    _check_index(op, index)
    return index if index._shape else movement.reshape(index, (1,))


@composite(
    family="index",
    overlap="none",
    gradient_name="IndexSelectBackward0",
    aten=("index_select",),
)
def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """The slices of input at the positions of a 1-d index along `dim`."""
    index = _vector("index_select", index)
    if not input._shape:
        normalize_dim(dim, 0)
        return movement.reshape(_take(movement.reshape(input, (1,)), [index], "index_select"), ())
    dim = normalize_dim(dim, len(input._shape))
    if not index.numel():
        shape = input._shape
        return _no_elements(input, (*shape[:dim], 0, *shape[dim + 1 :]))
    rows = _take(_to_front(input, dim), [index], "index_select", dims=(dim,))
    return _from_front(rows, dim)


def _rows_to(
    op: str, x: Tensor, dim: int, index: Tensor, source: Tensor
) -> tuple[int, Any, Any, Any]:
    """Return dim, and x, index and source ready to be scattered along a first dim. Raises as PyTorch does."""
    index = _vector(op, index)
    dim = normalize_dim(dim, len(x._shape))
    if not x._shape:
        x = movement.reshape(x, (1,))
    if not source._shape:
        source = movement.reshape(source, (1,))
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
    return dim, _to_front(x, dim), index, _to_front(source, dim)


def _same_type(op: str, x: Tensor, source: Tensor) -> None:
    if x.dtype is not source.dtype:
        raise DTypeError(
            f"{op}(): self ({legacy_name(x.dtype)}) and source ({legacy_name(source.dtype)}) must have the same "
            f"scalar type. Use source.to({x.dtype})."
        )


@composite(
    name="_with_none_of",
    function_in=(),
    torch="",
    vjp=lambda g, _out, _base, source: (g, fill(source._shape, 0, g.dtype, g.device)),
)
def _with_none_of(base: Any, source: Tensor) -> Tensor:
    """A copy of base, where no element of `source` is written, which takes part in gradients all the same."""
    return copy(base)


@composite(
    family="index",
    inplace=True,
    gradient_name="IndexAddBackward0",
    aten=("index_add",),
    overlap="first",
)
def index_add(
    input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Scalar = 1
) -> Tensor:
    """A copy of input with alpha times the slices of `source` added at the positions of `index`."""
    _same_type("index_add_", input, source)
    dim, base, index, rows = _rows_to("index_add_", input, dim, index, source)
    if not index.numel() or 0 in base._shape:
        return _with_none_of(input, source)
    if not elementwise.plain(alpha, 1):
        rows = rows * alpha
    out = _scatter(base, [index], rows, "add", "index_add_", dims=(dim,))
    return movement.reshape(_from_front(out, dim), input._shape)


@composite(
    overlap="first",
    family="index",
    inplace=True,
    autocast=Autocast(cpu="promote"),
    gradient_name="IndexCopyBackward0",
    aten=("index_copy",),
)
def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """A copy of input with the slices of `source` at the positions of `index`."""
    if input.dtype is not source.dtype:
        raise DTypeError(
            "index_copy_(): self and source expected to have the same dtype, but got (self) "
            f"{legacy_name(input.dtype)} and (source) {legacy_name(source.dtype)}"
        )
    dim, base, index, rows = _rows_to("index_copy_", input, dim, index, source)
    if not index.numel() or 0 in base._shape:
        return _with_none_of(input, source)
    out = _scatter(base, [index], rows, "set", "index_copy_", dims=(dim,))
    return movement.reshape(_from_front(out, dim), input._shape)


@composite(
    family="index",
    inplace=True,
    refuses=BOOL,
    gradient_name="IndexReduceBackward0",
    aten=("index_reduce",),
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


@composite(family="index", inplace=True, gradient_name="PutBackward0", overlap="first")
def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """A copy of input with `source` at positions of its flat elements; `accumulate` adds."""
    _check_index("put_", index)
    if input.dtype is not source.dtype:
        raise DTypeError(
            f"put_(): self and source expected to have the same dtype, but got self.dtype = "
            f"{input.dtype} and source.dtype = {source.dtype}"
        )
    if index.numel() != source.numel():
        raise ShapeError(
            "put_(): Expected source and index to have the same number of elements, but got "
            f"source.numel() = {source.numel()}, index.numel() = {index.numel()}"
        )
    if not index.numel():
        return copy(input)
    flat = _flat(movement.clone(input))
    combine = "add" if accumulate else "set"
    out = _scatter(flat, [_flat(index)], _flat(source), combine, "put_", True)
    return movement.reshape(out, input._shape)


def _as_value(op: str, value: Any, like: Tensor) -> Tensor:
    """Return a number or 0-d tensor as a 0-d tensor of `like`'s type and device."""
    if not isinstance(value, Tensor):
        return fill((), creation.fits(creation._number(value), like.dtype), like.dtype, like.device)
    if value._shape:
        raise RuntimeError(
            f"{op} only supports a 0-dimensional value tensor, but got tensor with {len(value._shape)} dimension(s)."
        )
    return cast_to(value.to(like.device), like.dtype)


@composite(family="index", inplace=True, gradient_name="IndexFillBackward0", aten=("index_fill",))
def index_fill(input: Tensor, dim: int, index: Tensor, value: Number | Tensor) -> Tensor:
    """A copy of input with `value` in the slices at the positions of `index`."""
    if len(index._shape) > 1:
        raise RuntimeError("Index has to be a vector/scalar")
    index = _vector("index_fill_", index)
    value = _as_value("index_fill_", value, input)
    dim = normalize_dim(dim, len(input._shape))
    base = _to_front(input if input._shape else movement.reshape(input, (1,)), dim)
    if not index.numel() or 0 in base._shape:
        return _with_none_of(input, value)
    if differentiated(value):
        # Duplicates are one write, so the gradient counts them once: the value goes where a mask is.
        flags = fill(base._shape[:1], False, bool_, base.device)
        one = fill(index._shape, True, bool_, base.device)
        flags = _scatter(flags, [index], one, "set", "index_fill_", wrap=True, dims=(dim,))
        flags = movement.reshape(flags, (-1,) + (1,) * (len(base._shape) - 1))
        out = pointwise.where(flags, value, base)
        return movement.reshape(_from_front(out, dim), input._shape)
    rows = _expanded(value, (index.numel(), *base._shape[1:]))
    # Negative positions count from the end here, as in PyTorch.
    out = _scatter(base, [index], rows, "set", "index_fill_", wrap=True, dims=(dim,))
    return movement.reshape(_from_front(out, dim), input._shape)


# -- gather and scatter along a dim ----------------------------------------------------------------


def _at_least_1d(x: Tensor) -> Tensor:
    return x if x._shape else movement.reshape(x, (1,))


def _coordinates(x: Tensor, dim: int, index: Tensor) -> tuple[Any, list[Any], Shape]:
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
        tensors.append(_expanded(line, want))
    return x, tensors, want


def _check_against(x: Tensor, index: Tensor, dim: int, what: str) -> None:
    if len(index._shape) != len(x._shape):
        raise ShapeError(
            f"Index tensor must have the same number of dimensions as {what} tensor: got {len(index._shape)} "
            f"and {len(x._shape)}"
        )


def _gather(x: Tensor, dim: int, index: Tensor, op: str = "gather") -> Tensor:
    if not index.numel() and index.dtype not in (int64, int32):
        return _no_elements(x, index._shape)
    _check_index(op, index)
    result_shape = index._shape
    x, index = _at_least_1d(x), _at_least_1d(index)
    _check_against(x, index, dim, "input")
    dim = normalize_dim(dim, len(x._shape))
    for d, (a, b) in enumerate(zip(index._shape, x._shape, strict=True)):
        if a > b and d != dim:
            raise ShapeError(
                f"Size does not match at dimension {d} expected index {list(index._shape)} to be no larger than "
                f"self {list(x._shape)} apart from dimension {dim}"
            )
    if not index.numel():
        return _no_elements(x, result_shape)
    source, tensors, _ = _coordinates(x, dim, index)
    return movement.reshape(_take(source, tensors, op), result_shape)


@composite(family="index", overlap="none", gradient_name="GatherBackward0")
def gather(input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """out[i][j][k] = input[index[i][j][k]][j][k] for dim 0, and so on: one element per element of `index`."""
    return _gather(input, dim, index)


def _scatter_along(
    op: str, x: Tensor, dim: int, index: Tensor, src: Tensor, combine: str
) -> Tensor:
    """Return x with the elements of src combined at `index` along `dim`; src None stands for ones."""
    _check_index(op, index)
    shape = x._shape
    base, index = _at_least_1d(x), _at_least_1d(index)
    dim = normalize_dim(dim, len(base._shape))
    if not index.numel():
        return _with_none_of(x, src)
    _check_against(base, index, dim, "self")
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
    base, tensors, want = _coordinates(base, dim, index)
    out = _scatter(base, tensors, movement.reshape(src, want), combine, op)
    return movement.reshape(out, shape)


_OLD_REDUCTIONS = {"add": "add", "multiply": "mul"}


@composite(family="index", inplace=True, gradient_name="ScatterBackward0", overlap="first")
def scatter(
    input: Tensor,
    dim: int,
    index: Tensor,
    src: Any = None,
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
        value = creation.fits(creation._number(src), input.dtype)
        src = fill(index._shape, value, input.dtype, input.device)
    combine = "set" if reduce is None else _OLD_REDUCTIONS[reduce]
    return _scatter_along("scatter", input, dim, index, src, combine)


@composite(
    family="index",
    inplace=True,
    autocast=Autocast(gpu="promote"),
    gradient_name="ScatterAddBackward0",
    overlap="first",
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
    if dtype is int64:
        # The neutral value must fit where int64 is held in 32 bits.
        low, high = -(2**31), 2**31 - 1
    value = low if reduce == "amax" else high
    return bool(value) if dtype is bool_ else value


def _times_written(x: Tensor, dim: int, index: Tensor, include_self: bool, dtype: DType) -> Tensor:
    """Return how many values meet at each element, at least 1."""
    start = fill(x._shape, 1 if include_self else 0, dtype, x.device)
    one = fill(index._shape, 1, dtype, x.device)
    count = _scatter_along("scatter_reduce", start, dim, index, one, "add")
    return pointwise.where(elementwise.eq(count, 0), 1, count)


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
        out = out / count if x.dtype.kind == "float" else elementwise.floor_divide(out, count)
    return out


def _integer_extreme(x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str) -> Tensor:
    """Amax or amin without self for int64: start from any value that is written, which needs no neutral one."""
    op = "scatter_reduce"
    base = _scatter_along(op, x, dim, index, src, "set")
    return _scatter_along(op, base, dim, index, src, _REDUCTIONS[reduce])


@composite(family="index", inplace=True)
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
            to_src = movement.pad_dim(to_src, d, 0, n)
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
        return g, _gather(g, dim, index, op)
    if reduce == "mean":
        share = g / _times_written(x, dim, index, include_self, g.dtype)
        return share, _gather(share, dim, index, op)
    src = _first_part(src, index._shape)
    if reduce == "prod":
        if not include_self:
            # The elements that were overwritten get none: the caller clears them.
            return g, _product_rule(g, x, dim, index, src, include_self)[1]
        return _product_rule(g, x, dim, index, src, include_self)
    # amax, amin: all that reach the extreme share the cotangent.
    best = _scatter_reduced(x, dim, index, src, reduce, include_self)
    mine = cast_to(elementwise.eq(x, best), g.dtype)
    theirs = cast_to(elementwise.eq(src, _gather(best, dim, index, op)), g.dtype)
    if not include_self:
        none = fill(index._shape, 0, g.dtype, g.device)
        mine = _scatter_along(op, mine, dim, index, none, "set")
    winners = _scatter_along(op, mine, dim, index, theirs, "add")
    share = g / pointwise.where(elementwise.eq(winners, 0), 1, winners)
    return mine * share, theirs * _gather(share, dim, index, op)


def _product_rule(
    g: Tensor, x: Tensor, dim: int, index: Tensor, src: Tensor, include_self: bool
) -> tuple[Tensor, Tensor]:
    """The derivative of a product is the product of the others: of all but the zeros, where there is one zero."""
    op = "scatter_reduce"

    def zero(t: Tensor) -> Tensor:
        """Return where a tensor is 0."""
        return elementwise.eq(t, 0)

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

    def others(t: Tensor, product: Any, zeros: Tensor) -> Tensor:
        """Return the product of all other factors at each place."""
        rest = product / without_zeros(t)
        none_left = elementwise.eq(zeros - cast_to(zero(t), g.dtype), 0)
        return pointwise.where(none_left, rest, 0.0)

    here = _gather(product, dim, index, op)
    meets = _gather(zeros, dim, index, op)
    return g * others(x, product, zeros), _gather(g, dim, index, op) * others(src, here, meets)


@composite(
    family="index",
    overlap="none",
    gradient_name="TakeBackward0",
    aten=("take",),
)
def take(input: Tensor, index: Tensor) -> Tensor:
    """The elements at flat positions `index`, in index's shape; negative positions count from the end."""
    if index.dtype is not int64:
        raise DTypeError(
            f"take(): Expected a long tensor for index, but got {legacy_name(index.dtype)}: use index.long()."
        )
    if not index.numel():
        return _no_elements(input, index._shape)
    return _take(_flat(input), [index], "take", wrap=True)


@composite(family="index", gradient_name="GatherBackward0")
def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """Gather with index and input broadcast against each other; without dim, over all elements."""
    _check_index("take_along_dim", indices)
    # Negative positions count from the end here, unlike in gather.
    size = input.numel() if dim is None else input._shape[normalize_dim(dim, len(input._shape))]
    indices = pointwise.where(elementwise.lt(indices, 0), indices + size, indices)
    if dim is None:
        return _gather(_flat(input), 0, _flat(indices))
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
    return _gather(_expanded(input, tuple(sizes[0])), dim, _expanded(indices, tuple(sizes[1])))


# -- masks -----------------------------------------------------------------------------------------


def _check_mask(op: str, mask: Tensor) -> None:
    if mask.dtype is not bool_:
        raise DTypeError(
            f"{op}: expected BoolTensor for mask, got {mask.dtype}. Compare first, as in mask != 0."
        )


@composite(
    family="index",
    overlap="none",
    gradient_name="MaskedSelectBackward0",
    aten=("masked_select",),
)
def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements where mask is true, in one dimension. Reads their count from the device."""
    _check_mask("masked_select", mask)
    shape = broadcast_shapes(input._shape, mask._shape)
    positions = true_positions(_flat(_expanded(mask, shape)))
    flat = _flat(_expanded(input, shape))
    return (
        _take(flat, [positions], "masked_select") if positions.numel() else _no_elements(flat, (0,))
    )


@composite(
    family="index", inplace=True, gradient_name="MaskedScatterBackward0", aten=("masked_scatter",)
)
def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """A copy of input in which the elements where mask is true are replaced by those of `source`, in order."""
    _check_mask("masked_scatter", mask)
    if source.dtype is not input.dtype:
        raise DTypeError(
            "masked_scatter: expected self and source to have same dtypes but got "
            f"{legacy_name(input.dtype)} and {legacy_name(source.dtype)}"
        )
    shape = broadcast_shapes(input._shape, mask._shape)
    input, mask = _expanded(input, shape), _expanded(mask, shape)
    if not numel(shape):
        return _with_none_of(input, source)
    if not source.numel():
        input = _with_none_of(input, source)
        source = _zeros((1,), source.dtype, source.device)
    flags = _flat(mask)
    place = _scan(cast_to(flags, int64), "sum", 0) - 1
    # Where the mask is false the value read is not used; too few source elements are an index error.
    place = pointwise.where(flags, place, 0)
    values = _take(_flat(source), [place], "masked_scatter")
    return pointwise.where(mask, movement.reshape(values, shape), input)


@composite(
    family="index",
    forms=(
        "(input: Tensor, *, as_tuple: Literal[False] = False) -> Tensor",
        "(input: Tensor, *, as_tuple: Literal[True]) -> tuple[Tensor, ...]",
    ),
)
def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """The positions of nonzero elements: (count, ndim), or a tuple of ndim vectors. Reads the count from the device."""
    shape = input._shape
    if not shape and as_tuple:
        return nonzero(movement.reshape(input, (1,)), as_tuple=True)
    flags = _flat(input if input.dtype is bool_ else elementwise.ne(input, 0))
    positions = true_positions(flags)
    columns = _unravel(positions, shape)
    if as_tuple:
        return tuple(columns)
    if not columns:
        return fill((positions.numel(), 0), 0, int64, input.device)
    return movement.stack(columns, 1)


@composite(family="index", aten=("nonzero_static",))
def nonzero_static(input: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """The first `size` positions of elements that are not zero; missing rows are `fill_value`."""
    if size < 0:
        raise RuntimeError("nonzero_static: 'size' must be an non-negative integer")
    shape = input._shape
    flags = _flat(input if input.dtype is bool_ else elementwise.ne(input, 0))
    count = numel(shape)
    if not shape or not size or not count:
        return fill((size, len(shape)), fill_value, int64, input.device)
    # The place of each position among those found; what does not fit and what is not found go to one more row.
    place = _scan(cast_to(flags, int64), "sum", 0) - 1
    place = pointwise.where(flags, pointwise.clamp(place, max=size), size)
    empty = fill((size + 1,), -1, int64, input.device)
    positions = index_put(empty, (place,), iota(count, 0, 1, int64, input.device))[:size]
    columns = _unravel(pointwise.clamp(positions, min=0), shape)
    return movement.stack([pointwise.where(positions < 0, fill_value, c) for c in columns], 1)


@composite(family="index")
def argwhere(input: Tensor) -> Tensor:
    """The positions of nonzero elements: (count, ndim). Reads the count from the device."""
    return nonzero(input)


# -- tables ----------------------------------------------------------------------------------------


@composite(
    family="index",
    function_in=FUNCTIONAL,
    torch="nn.functional.one_hot",
    example=Example(("i5",), (5,)),
)
def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """1 at the class of each element, in a new last dimension.

    num_classes=-1 stands for the largest class plus 1, which is read from the device.
    """
    if tensor.dtype is not int64:
        raise DTypeError(
            f"one_hot is only applicable to index tensor of type LongTensor. Got {tensor.dtype}: use .long()."
        )
    if not tensor.numel():
        if num_classes <= 0:
            raise RuntimeError("Can not infer total number of classes from empty tensor.")
        return fill((*tensor._shape, num_classes), 0, int64, tensor.device)
    flat = _flat(tensor)
    if num_classes == -1:
        low = int(reduce_dims(flat, "min", (0,)).item())
        if low < 0:
            raise RuntimeError("Class values must be non-negative.")
        num_classes = int(reduce_dims(flat, "max", (0,)).item()) + 1
    if num_classes < 1:
        raise RuntimeError("num_classes should be positive")
    n = flat.numel()
    table = fill((n, num_classes), 0, int64, tensor.device)
    ones = fill((n,), 1, int64, tensor.device)
    rows = iota(n, 0, 1, int64, tensor.device)
    out = _scatter(table, [rows, flat], ones, "set", "one_hot")
    return movement.reshape(out, (*tensor._shape, num_classes))


def _renormalize(weight: Tensor, flat: Any, max_norm: float, norm_type: float) -> None:
    """Scale down, in place, the looked-up rows whose norm is above max_norm."""
    rows = _take(weight, [flat], "embedding")
    size = elementwise.abs(rows)
    if norm_type == math.inf:
        norm = reduce_dims(size, "max", (1,))
    else:
        total = reduce_dims(pointwise.pow(size, norm_type), "sum", (1,))
        norm = pointwise.pow(total, 1.0 / norm_type)
    # PyTorch's own guard against a norm that rounds to the bound.
    factor = pointwise.where(elementwise.gt(norm, max_norm), max_norm / (norm + 1e-7), 1.0)
    _write(weight, _scatter(weight, [flat], rows * factor, "set", "embedding"))


@composite(
    family="index",
    function_in=FUNCTIONAL,
    torch="nn.functional.embedding",
    gradient_name="EmbeddingBackward0",
    example=Example(("i5", (5, 3))),
)
def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """The rows of `weight` at the positions `input`.

    padding_idx: this row gets no gradient. max_norm: rows with a larger norm_type norm are scaled down in place first.
    scale_grad_by_freq: a row's gradient is divided by how often it was used. sparse is taken and ignored.
    """
    if input.dtype not in (int64, int32):
        raise DTypeError(
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got "
            f"torch.{legacy_name(input.dtype)}Tensor instead (while checking arguments for embedding)"
        )
    if len(weight._shape) != 2:
        raise ShapeError(f"'weight' must be 2-D, got {list(weight._shape)}")
    count, width = weight._shape
    if padding_idx is not None:
        if not -count <= padding_idx < count:
            raise AssertionError("Padding_idx must be within num_embeddings")
        padding_idx %= count
    if not input.numel():
        return _no_elements(weight, (*input._shape, width))
    if max_norm is not None:
        if not weight.dtype.has_gradient:
            raise DTypeError(
                "embedding: max_norm: norm(): input dtype should be either floating point or complex. "
                f"Got {weight.dtype} instead. Convert the weight with .float()."
            )
        with no_grad():
            _renormalize(weight, _flat(input), max_norm, norm_type)
    if padding_idx is None and not scale_grad_by_freq:
        return _take(weight, [input], "embedding")
    with no_grad():
        out = _take(weight, [input], "embedding")
    saved = (tape.SavedTensor(input),)
    args = (count, width, padding_idx, scale_grad_by_freq)
    return tape.attach(out, "Embedding", (weight,), _rows_back, saved, args)


def _rows_back(
    g: Tensor, input: Tensor, count: int, width: int, padding_idx: int | None, by_frequency: bool
) -> tuple[Tensor]:
    """Return the cotangent of an embedding's weight: rows added where they were read."""
    flat = _flat(input)
    n = flat.numel()
    rows = movement.reshape(g, (n, width))
    if by_frequency:
        ones = fill((n,), 1, g.dtype, g.device)
        used = _scatter(fill((count,), 0, g.dtype, g.device), [flat], ones, "add", "embedding")
        rows = rows / movement.reshape(_take(used, [flat], "embedding"), (n, 1))
    if padding_idx is not None:
        dropped = movement.reshape(elementwise.eq(flat, padding_idx), (n, 1))
        rows = pointwise.where(dropped, 0.0, rows)
    table = fill((count, width), 0, g.dtype, g.device)
    return (_scatter(table, [flat], rows, "add", "embedding"),)


def counted(
    places: Tensor, size: int, weights: Tensor | None = None, kind: DType = int64
) -> Tensor:
    """Return how often each place 0, 1, ... below `size` occurs, or the sum of its weights."""
    where = places.device
    values = fill(places._shape, 1, kind, where) if weights is None else weights
    return _scatter(
        fill((size,), 0, kind, where), [cast_to(places, int64)], values, "add", "bincount"
    )


@composite(family="index", example=Example(("i5",)), aten=("bincount",))
def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each value 0, 1, ... occurs, or the sum of its weights. Reads the largest value from the device."""
    if input.dtype.kind not in ("int", "uint"):
        raise NotImplementedError(f"\"bincount\" not implemented for '{legacy_name(input.dtype)}'")
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if len(input._shape) != 1:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None and weights._shape != input._shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    kind = int64 if weights is None else weights.dtype
    if kind.kind != "float" and weights is not None:
        kind = float64 if input.device.type == "cpu" else float32
        weights = cast_to(weights, kind)
    n = input.numel()
    if not n:
        return fill((minlength,), 0, int64 if weights is None else kind, input.device)
    if int(reduce_dims(input, "min", (0,)).item()) < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    size = max(int(reduce_dims(input, "max", (0,)).item()) + 1, minlength)
    return counted(input, size, None if weights is None else weights.detach(), kind)


@composite(family="index", function_in=("torch",), aten=("searchsorted",))
def searchsorted(
    sorted_sequence: Tensor,
    input: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Where to insert the values of `input` so that the last dimension of sorted_sequence stays sorted.

    Before equal elements, or after them with right=True (side="right").
    """
    if side not in (None, "left", "right"):
        raise RuntimeError(
            f"torch.searchsorted(): side can only be 'left' or 'right' but got {side}"
        )
    if side == "left" and right:
        raise RuntimeError(
            "torch.searchsorted(): side and right can't be set to opposites, got side of left while right was True"
        )
    right = right or side == "right"
    if not isinstance(input, Tensor):
        value = creation._number(input)
        input = creation.tensor(value, device=sorted_sequence.device)
    sequence = sorted_sequence
    if len(sequence._shape) != 1 and sequence._shape[:-1] != input._shape[:-1]:
        raise RuntimeError(
            "torch.searchsorted(): boundaries tensor should be 1 dimension or the first N-1 dimensions of "
            "boundaries tensor and input value tensor must match, but we got boundaries tensor "
            f"{list(sequence._shape)} and input value tensor {list(input._shape)}"
        )
    if sorter is not None:
        if sorter._shape != sequence._shape:
            raise RuntimeError(
                "torch.searchsorted(): boundary and sorter must have the same size, but got boundary tensor "
                f"{list(sequence._shape)} and got sorter tensor {list(sorter._shape)}"
            )
        sequence = _gather(sequence, -1, sorter)
    return _search(sequence, input, right, int32 if out_int32 else int64)


def _search(sequence: Any, values: Any, right: bool, dtype: DType) -> Any:
    """Binary search of every value at once: a fixed number of halvings, which read nothing from the device."""
    n, shape, device = sequence._shape[-1], values._shape, values.device
    if not n or not values.numel():
        return fill(shape, 0, dtype, device)
    rows: list[Tensor] = []
    if len(sequence._shape) > 1:
        batch = numel(sequence._shape[:-1])
        sequence = movement.reshape(sequence, (batch, n))
        values = movement.reshape(values, (batch, values.numel() // batch))
        line = movement.reshape(iota(batch, 0, 1, int64, device), (batch, 1))
        rows = [_expanded(line, values._shape)]
    inside = values._shape
    low, high = fill(inside, 0, int64, device), fill(inside, n, int64, device)
    for _ in range(n.bit_length()):
        found = _take(sequence, [*rows, search_probe(low, high, n - 1)], "searchsorted")
        # Where it does not stop, not where it goes on: a NaN among the values goes to the end.
        stop = elementwise.gt(found, values) if right else elementwise.ge(found, values)
        low, high = search_low(low, high, stop), search_high(low, high, stop)
    return movement.reshape(cast_to(low, dtype), shape)


@composite(family="index", function_in=("torch",), refuses=BOOL, aten=("bucketize",))
def bucketize(
    input: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    """The number of the interval between sorted `boundaries` in which each value lies."""
    if len(boundaries._shape) != 1:
        raise RuntimeError(
            f"boundaries tensor must be 1 dimension, but got dim({len(boundaries._shape)})"
        )
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


@composite(family="index", function_in=("torch",), refuses=BOOL, aten=("isin",))
def isin(
    elements: Tensor | Number,
    test_elements: Tensor | Number,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> Tensor:
    """Whether each element is among test_elements; the opposite with invert."""
    if not isinstance(elements, Tensor) and not isinstance(test_elements, Tensor):
        raise TypeError("isin(): at least one of elements and test_elements must be a Tensor")
    if not isinstance(test_elements, Tensor):
        same = elementwise.eq(elements, test_elements)
        return elementwise.logical_not(same) if invert else same
    if not isinstance(elements, Tensor):
        elements = fill((), elements, creation._dtype_of_number(elements), test_elements.device)
    if test_elements.dtype is bool_:
        raise RuntimeError("Unsupported input type encountered for isin(): Bool")
    if not elements.numel() or not test_elements.numel():
        return fill(elements._shape, invert, bool_, elements.device)
    same = elementwise.eq(movement.unsqueeze(elements, -1), _flat(test_elements))
    last = len(elements._shape)
    found = movement.reshape(reduce_dims(same, "any", (last,)), elements._shape)
    return elementwise.logical_not(found) if invert else found
