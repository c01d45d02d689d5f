"""Order: sort, argsort, topk, kthvalue, median, quantile, unique.

Only the order is computed, as an index tensor (`lower/templates/sort.py` and the CPU's `order.py` say how); values are
gathered by it, so gradients follow. It is stable: ties keep their order. NaN is the largest number, as in PyTorch.
Nothing is read from the device, except for the length of what `unique` returns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from webtorch.errors import ShapeError
from webtorch.functions import gather_scatter, indexing, joining, movement, pointwise, slicing
from webtorch.functions.check import dynamic
from webtorch.functions.reduce import one_of_all
from webtorch.ir.dtype import bool_, float64, int64
from webtorch.ir.view import normalize_dim, numel
from webtorch.ops import comparison, elementwise
from webtorch.ops.layout import of_first, row_major
from webtorch.ops.primitive import cast_to, copy, fill, iota, reduce_dims, sort_places
from webtorch.ops.primitive import scan as _scan
from webtorch.ops.primitive import scatter as _scatter
from webtorch.ops.record import BOOL, Autocast, Family, composite, over_dims, return_type
from webtorch.ops.splits import along
from webtorch.runtime.backend import FEW
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.values import taken_over, waited_for

FAMILY: Family = "index"


@return_type("sort")
class Sort(NamedTuple):
    """What sort returns."""

    values: Tensor
    indices: Tensor


@return_type("topk")
class Topk(NamedTuple):
    """What topk returns."""

    values: Tensor
    indices: Tensor


@return_type("kthvalue")
class Kthvalue(NamedTuple):
    """What kthvalue returns."""

    values: Tensor
    indices: Tensor


@return_type("median")
class Median(NamedTuple):
    """What median returns."""

    values: Tensor
    indices: Tensor


@return_type("nanmedian")
class Nanmedian(NamedTuple):
    """What nanmedian returns."""

    values: Tensor
    indices: Tensor


def _by_rank(x: Tensor, descending: bool, first: int, count: int) -> Tensor:
    """Return `sort_places` of float64 on WebGPU, whose keys of two words it cannot sort: each is compared with all."""
    other, mine = x[:, None], x[:, :, None]
    if descending:
        other, mine = mine, other
    less = (other < mine) | (comparison.isnan(mine) & ~comparison.isnan(other))
    more = (mine < other) | (comparison.isnan(other) & ~comparison.isnan(mine))
    place = iota(x._shape[1], 0, 1, int64, x.device)
    before = pointwise.where(place < place[:, None], ~more, less)
    rank = reduce_dims(cast_to(before, int64), "sum", (2,))
    return sort_places(movement.reshape(rank, x._shape), False, first, count)


def _order(
    x: Tensor, dim: int, descending: bool, first: int = 0, count: int | None = None
) -> Tensor:
    """Return the positions along `dim` in sorted order: `count` (None: all) from rank `first` on."""
    shape = x._shape
    n = shape[dim]
    count = n if count is None else count
    if not count or not x.numel() or n == 1:
        return fill((*shape[:dim], count, *shape[dim + 1 :]), 0, int64, x.device)
    x = x.detach()
    moved = movement.movedim(x, dim, -1)
    rows = movement.reshape(moved, (x.numel() // n, n))
    compares = x.dtype is float64 and x._storage.runtime.kind == "webgpu" and n <= FEW
    by = _by_rank if compares else sort_places
    found = by(rows, descending, first, count)
    found = movement.reshape(found, (*moved._shape[:-1], count))
    return movement.contiguous(movement.movedim(found, -1, dim))


def _sorted(x: Tensor, dim: int, descending: bool) -> tuple[Tensor, Tensor]:
    if not x._shape:
        normalize_dim(dim, 0)
        return copy(x), fill((), 0, int64, x.device)
    dim = normalize_dim(dim, len(x._shape))
    order = _order(x, dim, descending)
    return gather_scatter.gather_along(x, dim, order, "sort"), order


@composite(
    splits=along("dim"), gradient_name="SortBackward0", ties=True, layout=of_first, overlap="whole"
)
def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Sort:
    """(values, indices): the elements in order along `dim`, and where they were. Ties keep their order."""
    return Sort(*_sorted(input, dim, bool(descending)))


@composite(splits=along("dim"), ties=True, layout=of_first)
def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """The positions of the elements in order along `dim`. Ties keep their order."""
    return _sorted(input, dim, bool(descending))[1]


@composite(ties=True, overlap="whole")
def msort(input: Tensor) -> Tensor:
    """The elements in order along dimension 0."""
    return _sorted(input, 0, False)[0]


@composite(
    splits=along("dim"),
    refuses=BOOL,
    gradient_name="TopkBackward0",
    once=True,
    ties=True,
    overlap="none",
    layout=row_major,
)
def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Topk:
    """(values, indices): the k largest (or smallest) elements along `dim`, in order."""
    if not input._shape:
        normalize_dim(dim, 0)
        if not 0 <= k <= 1:
            raise RuntimeError("selected index k out of range")
        # As in PyTorch, also of k = 0.
        return Topk(copy(input), fill((), 0, int64, input.device))
    dim = normalize_dim(dim, len(input._shape))
    if not 0 <= k <= input._shape[dim]:
        raise RuntimeError(
            f"selected index k out of range: k={k} of {input._shape[dim]} elements along dim {dim}"
        )
    order = _order(input, dim, largest, 0, k)
    return Topk(gather_scatter.gather_along(input, dim, order, "topk"), order)


def _selected(x: Tensor, dim: int, index: Tensor, keepdim: bool) -> tuple[Tensor, Tensor]:
    """Return values and positions at `index`, a position tensor of size 1 along `dim`."""
    values = gather_scatter.gather_along(x, dim, index, "kthvalue")
    if keepdim:
        return values, index
    return movement.squeeze(values, dim), movement.squeeze(index, dim)


@composite(
    refuses=BOOL, overlap="none", gradient_name="KthvalueBackward0", ties=True, aten=("kthvalue",)
)
def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Kthvalue:
    """(values, indices): the k-th smallest element along `dim`, counted from 1."""
    rank = len(input._shape)
    dim = normalize_dim(dim, rank)
    x = input if rank else movement.reshape(input, (1,))
    if not 1 <= k <= x._shape[dim]:
        raise RuntimeError(f"kthvalue(): selected number k out of range for dimension {dim}")
    index = _order(x, dim, False, k - 1, 1)
    return Kthvalue(*_selected(x, dim, index, keepdim and bool(rank)))


def _median(x: Tensor, dim: int, keepdim: bool, skip_nan: bool, record: Any) -> Any:
    rank = len(x._shape)
    dim = normalize_dim(dim, rank)
    x = x if rank else movement.reshape(x, (1,))
    n = x._shape[dim]
    if not n:
        raise IndexError(f"median(): Expected reduction dim {dim} to have non-zero size.")
    if skip_nan and x.dtype.kind == "float":
        count = reduce_dims(cast_to(comparison.isnan(x.detach()), int64), "sum", (dim,))
        middle = comparison.bitwise_right_shift(comparison.clamp_min(n - 1 - count, 0), 1)
        index = gather_scatter.gather_along(_order(x, dim, False), dim, middle, "median")
    else:
        index = _order(x, dim, False, (n - 1) // 2, 1)
        if x.dtype.kind == "float":
            # One NaN makes the median NaN: the first of them.
            missing = comparison.isnan(x.detach())
            first = reduce_dims(missing, "argmax", (dim,))
            index = pointwise.where(reduce_dims(missing, "any", (dim,)), first, index)
    return record(*_selected(x, dim, index, keepdim and bool(rank)))


def _median_of_all(x: Tensor, skip_nan: bool) -> Tensor:
    def find(x: Tensor) -> Tensor:
        """Return the median of all elements."""
        return _median(movement.reshape(x, (-1,)), 0, False, skip_nan, Median).values

    return one_of_all.function(x, find)


@composite(
    refuses=BOOL,
    gradient_name=over_dims("Median"),
    ties=True,
    overlap="none",
    forms=(
        "(input: Tensor) -> Tensor",
        "(input: Tensor, dim: int, keepdim: bool = False) -> Median",
    ),
)
def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The middle element, the lower of two; NaN if one is. With dim: (values, indices)."""
    if dim is None:
        return _median_of_all(input, False)
    return _median(input, dim, keepdim, False, Median)


@composite(
    refuses=BOOL,
    gradient_name=over_dims("Nanmedian"),
    ties=True,
    overlap="none",
    forms=(
        "(input: Tensor) -> Tensor",
        "(input: Tensor, dim: int, keepdim: bool = False) -> Nanmedian",
    ),
)
def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The middle element of those that are not NaN, the lower of two. With dim: (values, indices)."""
    if dim is None:
        return _median_of_all(input, True)
    return _median(input, dim, keepdim, True, Nanmedian)


_INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


def _quantile(
    name: str,
    x: Tensor,
    q: float | Tensor,
    dim: int | None,
    keepdim: bool,
    how: str,
    skip_nan: bool,
) -> Tensor:
    if x.dtype.name not in ("float32", "float64"):
        raise RuntimeError(f"{name}() input tensor must be either float or double dtype")
    if not x.numel():
        raise RuntimeError(f"{name}() input tensor must be non-empty")
    if how not in _INTERPOLATIONS:
        raise RuntimeError(
            f"{name}() interpolation must be one of linear, lower, higher, midpoint or nearest, but got {how}"
        )
    if not isinstance(q, Tensor):
        if not 0 <= q <= 1:
            raise RuntimeError(f"{name}() q must be in the range [0, 1] but got {q}")
        q = fill((), float(q), x.dtype, x.device)
    if len(q._shape) > 1:
        raise RuntimeError(f"{name}() q must be a scalar or 1D tensor")
    if q.dtype is not x.dtype:
        raise RuntimeError(f"{name}() q tensor must be same dtype as the input tensor")
    rank = len(x._shape)
    if dim is None:
        moved = movement.reshape(x, (x.numel(),))
        kept = (1,) * rank
    else:
        at = normalize_dim(dim, rank)
        moved = movement.movedim(x, at, -1) if rank else movement.reshape(x, (1,))
        kept = (*x._shape[:at], 1, *x._shape[at + 1 :]) if rank else ()
    *outer, n = moved._shape
    ordered = _sorted(moved, -1, False)[0]
    qs = movement.reshape(q, (1,) * len(outer) + (-1,))
    missing = reduce_dims(cast_to(comparison.isnan(moved.detach()), x.dtype), "sum", (len(outer),))
    last = (
        comparison.clamp_min(n - 1 - missing, 0) if skip_nan else fill((), n - 1, x.dtype, x.device)
    )
    position = qs * last
    if not skip_nan:
        # One NaN makes the result NaN: it is the last in order.
        position = pointwise.where(comparison.gt(missing, 0), n - 1, position)
    if how == "lower":
        position = elementwise.floor(position)
    elif how == "higher":
        position = elementwise.ceil(position)
    elif how == "nearest":
        position = pointwise.round(position)
    shape = (*outer, q.numel())
    position = movement.broadcast_to(position, shape)
    low = elementwise.floor(position)
    below = gather_scatter.gather_along(ordered, -1, cast_to(low, int64), name)
    if how in ("linear", "midpoint"):
        above = gather_scatter.gather_along(
            ordered, -1, cast_to(elementwise.ceil(position), int64), name
        )
        weight = 0.5 if how == "midpoint" else position - low
        between = elementwise.lerp(
            below, above, fill((), 0.5, x.dtype, x.device) if how == "midpoint" else weight
        )
        below = pointwise.where(comparison.eq(position, low), below, between)
    # The dimension of q comes first.
    out = movement.movedim(below, -1, 0)
    count = q._shape
    rest = kept if keepdim else tuple(outer)
    return movement.reshape(out, (*count, *rest))


@composite(autocast=Autocast(cpu="fp32"))
def quantile(
    input: Tensor,
    q: float | Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Tensor:
    """The quantiles q (in [0, 1]; a number or a 1-d tensor, whose dimension comes first) along `dim` or over all."""
    return _quantile("quantile", input, q, dim, keepdim, interpolation, False)


@composite(autocast=Autocast(cpu="fp32"))
def nanquantile(
    input: Tensor,
    q: float | Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Tensor:
    """The quantiles q of the elements that are not NaN."""
    return _quantile("nanquantile", input, q, dim, keepdim, interpolation, True)


def _runs(rows: Tensor) -> tuple[Tensor, Tensor, int]:
    """Return where runs of equal rows (n, width) start, the number of each row's run, and their count.

    Reads the count from the device.
    """
    n = rows._shape[0]
    one = fill((1,), True, bool_, rows.device)
    if n == 1:
        new = one
    else:
        differ = comparison.ne(slicing.narrow(rows, 0, 1, n - 1), slicing.narrow(rows, 0, 0, n - 1))
        new = joining.cat((one, movement.reshape(reduce_dims(differ, "any", (1,)), (n - 1,))), 0)
    starts = indexing.true_positions(new, dynamic("_unique2"))
    number = _scan(cast_to(new, int64), "sum", 0) - 1
    return starts, number, starts.numel()


def _counts(starts: Tensor, n: int) -> Tensor:
    ends = joining.cat(
        (slicing.narrow(starts, 0, 1, starts.numel() - 1), fill((1,), n, int64, starts.device)), 0
    )
    return ends - starts


def _answer(values: Tensor, inverse: object, counts: object) -> Any:
    parts = [values, *(p for p in (inverse, counts) if p is not None)]
    return values if len(parts) == 1 else tuple(parts)


def _unique(
    x: Tensor, sort: bool, return_inverse: bool, return_counts: bool, dim: int | None
) -> Tensor:
    if dim is not None and x._shape:
        dim = normalize_dim(dim, len(x._shape))
        moved = movement.movedim(x, dim, 0)
    else:
        moved, dim = movement.reshape(x, (x.numel(),)), None
    n = moved._shape[0]
    width = numel(moved._shape[1:])
    rows = movement.reshape(moved, (n, width))
    if not n or not width:
        if n and not width:
            raise ShapeError(
                "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied"
            )
        none = fill((0,), 0, int64, x.device)
        nowhere = fill(x._shape if dim is None else (0,), 0, int64, x.device)
        values = copy(moved) if dim is None else movement.clone(movement.movedim(moved, 0, dim))
        return _answer(values, nowhere if return_inverse else None, none if return_counts else None)
    if sort and dim is None and not x.dtype.is_floating_point and (known := waited_for(x)):
        import numpy

        found, places, counts = numpy.unique(known[0], return_inverse=True, return_counts=True)
        return _answer(
            taken_over(found, x.dtype, x),
            taken_over(places.reshape(x._shape), int64, x) if return_inverse else None,
            taken_over(counts, int64, x) if return_counts else None,
        )
    if sort:
        order = iota(n, 0, 1, int64, x.device)
        # Rows in lexicographic order: a stable sort by each column, the last one first.
        for column in reversed(range(width)):
            keys = gather_scatter.index_select(slicing.select(rows, 1, column), 0, order)
            order = gather_scatter.index_select(order, 0, _order(keys, 0, False))
        rows = gather_scatter.index_select(rows, 0, order)
    starts, number, count = _runs(rows)
    values = movement.reshape(
        gather_scatter.index_select(rows, 0, starts), (count, *moved._shape[1:])
    )
    if dim is not None:
        values = movement.contiguous(movement.movedim(values, 0, dim))
    inverse: Tensor | None = None
    if return_inverse:
        inverse = number
        if sort:
            inverse = _scatter(fill((n,), 0, int64, x.device), [order], number, "set", "unique")
        if dim is None:
            inverse = movement.reshape(inverse, x._shape)
    return _answer(values, inverse, _counts(starts, n) if return_counts else None)


def _unique_forms(head: str) -> tuple[str, ...]:
    """Return the forms of a function that says on request where each element went and how often it occurs."""
    given, dim = f"input: Tensor{head}", "dim: int | None = None"
    return (
        f"({given}, return_inverse: Literal[False] = False, return_counts: Literal[False] = False, {dim}) -> Tensor",
        f"({given}, *, return_inverse: Literal[True], return_counts: bool = False, {dim}) -> tuple[Tensor, ...]",
        f"({given}, *, return_inverse: bool = False, return_counts: Literal[True], {dim}) -> tuple[Tensor, ...]",
        f"({given}, return_inverse: bool = False, return_counts: bool = False, {dim}) "
        "-> Tensor | tuple[Tensor, ...]",
    )


@composite(forms=_unique_forms(", sorted: bool = True"))
def unique(
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The different elements (or slices along `dim`), in order; on request where each went and how often it occurs.

    Reads the number of different elements from the device.
    """
    return _unique(input, True, return_inverse, return_counts, dim)


@composite(gradient_name="UniqueConsecutiveBackward0", forms=_unique_forms(""))
def unique_consecutive(
    input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """The elements (or slices along `dim`) that differ from the one before. Reads their number from the device."""
    return _unique(input, False, return_inverse, return_counts, dim)
