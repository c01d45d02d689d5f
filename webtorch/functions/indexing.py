"""Indexing by tensors and masks, several at once: x[i, :, j], read and written.

Everything stands on two primitives: `take` picks rows of the first dims by index tensors, `scatter` combines rows
into them. Bounds of index tensors are checked on the device; nothing is read from it, except where the result's shape
depends on the data (masks).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from webtorch.errors import DTypeError, ShapeError
from webtorch.functions import movement, pointwise
from webtorch.functions.movement import METHOD
from webtorch.functions.slicing import pick, window
from webtorch.ir.dtype import (
    DType,
    bool_,
    int32,
    int64,
    uint8,
)
from webtorch.ir.view import Shape, broadcast_shapes, numel
from webtorch.ops import comparison, elementwise
from webtorch.ops.layout import of_operands
from webtorch.ops.primitive import as_view, cast_to, copy, fill, iota
from webtorch.ops.primitive import scan as _scan
from webtorch.ops.primitive import scatter as _scatter
from webtorch.ops.primitive import take as _take
from webtorch.ops.primitive import write as _write
from webtorch.ops.purity import warn
from webtorch.ops.record import Autocast, Example, Operand, composite
from webtorch.tensors import tape
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.primitives import lay
from webtorch.tensors.remember import remembered
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.values import check_places, taken_over, waited_for
from webtorch.tensors.views import zeros_after
from webtorch.tensors.writing import check_overlap, repeated, written_once

FUNCTIONAL = ("nn.functional",)
BYTES = "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead."


def check_index(op: str, index: Tensor) -> None:
    """Raise DTypeError unless an index is of int32 or int64."""
    if index.dtype not in (int64, int32):
        raise DTypeError(
            f"{op}(): Expected dtype int32/int64 for index, got {index.dtype}: use index.long()."
        )


def to_front(x: Tensor, dim: int) -> Tensor:
    """Return a view with `dim` as the first dimension."""
    return x if dim == 0 else movement.movedim(x, dim, 0)


def from_front(x: Tensor, dim: int) -> Tensor:
    """Return a contiguous tensor with the first dimension at `dim`: what `to_front` did is undone."""
    return x if dim == 0 else movement.contiguous(movement.movedim(x, 0, dim))


def flattened(x: Tensor) -> Tensor:
    """Return all elements in one dimension."""
    return movement.reshape(x, (x.numel(),))


def expanded_to(x: Tensor, shape: Shape) -> Tensor:
    """Return `x` itself where it has the shape, else a view expanded to it."""
    return x if x._shape == shape else movement.broadcast_to(x, shape)


def zeros_of(shape: Shape, dtype: DType, device: DeviceLike) -> Tensor:
    """Return zeros of a type: False for bool."""
    return fill(shape, movement.zero_of(dtype), dtype, device)


# -- several index tensors at once: x[i, :, j] -----------------------------------------------------


BY_MASK = (
    "vmap: We do not support batching operators that can support dynamic shape. Attempting to batch over indexing "
    "with a boolean mask: each example may have another number of elements. Use where or masked_fill"
)


def true_positions(flags: Tensor, mapped: str = BY_MASK) -> Tensor:
    """Return the positions of the true elements of a 1-d bool tensor. Reads their count from the device, and raises
    RuntimeError with the text `mapped` where each example of a vmap has its own.
    """
    if flags._levels:
        raise RuntimeError(mapped)
    n = flags.numel()
    device = flags.device
    if not n:
        return fill((0,), 0, int64, device)
    if (known := waited_for(flags)) is not None:
        return taken_over(known[0].nonzero()[0], int64, flags)
    found, total = _places(flags)
    found = window(found, 0, 0, int(total.item()))
    # A few of many do not keep the memory of all.
    return copy(found) if n > _MANY else found


# So many positions lie in memory of their own.
_MANY = 1 << 12


@remembered
def _places(flags: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions of the true elements, with room for all positions and one more, and their count."""
    n, device = flags.numel(), flags.device
    running = _scan(cast_to(flags, int64), "sum", 0)
    # Elements that do not count all go to one place past the end.
    slot = pointwise.where(flags, running - 1, n)
    everyone, empty = iota(n, 0, 1, int64, device), fill((n + 1,), 0, int64, device)
    found = _scatter(empty, [slot], everyone, "set", "nonzero")
    return found, copy(pick(running, 0, n - 1))


def unravel(positions: Tensor, shape: Shape) -> list[Tensor]:
    """Return the coordinate tensors of flat `positions` in `shape`."""
    out, stride = [], numel(shape)
    for d, size in enumerate(shape):
        stride //= max(size, 1)
        part = positions if stride <= 1 else elementwise.floor_divide(positions, stride)
        out.append(part if d == 0 else elementwise.remainder(part, max(size, 1)))
    return out


def check_mask(mask: Tensor, shape: Shape, dim: int) -> None:
    """Raise IndexError unless a mask is as large as the dims of a shape from `dim` on."""
    for d, size in enumerate(mask._shape):
        if size != shape[dim + d]:
            raise IndexError(
                f"The shape of the mask {list(mask._shape)} at index {d} does not match the shape of the "
                f"indexed tensor {list(shape)} at index {dim + d}"
            )


def expand_masks(shape: Shape, indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return index tensors with each bool mask replaced by the positions of its true elements (read on the host).

    Raises IndexError where a mask does not fit, or there are more indices than dimensions.
    """
    out: list[Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in (bool_, uint8):
            out.append(index)
            continue
        if index.dtype is uint8:
            warn(BYTES)
        dim = len(out)
        if dim + len(index._shape) > len(shape):
            raise IndexError(f"too many indices for tensor of dimension {len(shape)}")
        check_mask(index, shape, dim)
        flags = index if index.dtype is bool_ else comparison.ne(index, 0)
        out.extend(unravel(true_positions(flattened(flags)), index._shape))
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
                raise IndexError(
                    f"index is out of bounds for dimension with size 0 (dimension {d})"
                )
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
        self.indices = {d: expanded_to(tensors[d], self.index_shape) for d in (*single, *many)}
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

    def strides(self, x: Tensor) -> Shape:
        """Return the strides of a result that lies in memory in the order of x and of the indices."""
        rest, n = self.order[len(self.indices) :], len(self.index_shape)
        own = [x._strides[d] for d in rest]
        source = (*own[: self.at], *(0,) * n, *own[self.at :])
        forms = [(self.shape, source)]
        for index in self.indices.values():
            around = ((0,) * self.at, (0,) * (len(rest) - self.at))
            forms.append((self.shape, (*around[0], *index._strides, *around[1])))
        return of_operands(tuple(forms), self.shape)

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
    # Of a call that is remembered, too.
    check_bounds(x, tensors, names)
    named = None if names is None else tuple(names.items())
    return _taken(x, tuple(tensors), tuple(single), named, *tensors.values())


@remembered
def _taken(
    x: Tensor,
    dims: tuple[int, ...],
    single: tuple[int, ...],
    named: tuple[tuple[int, int], ...] | None,
    *indices: Tensor,
) -> Tensor:
    names = None if named is None else dict(named)
    given = dict(zip(dims, indices, strict=True))
    layout = Layout(x._shape, given, single, names)
    if 0 in layout.index_shape:
        return no_elements(x, layout.shape)
    out = layout.to_result(
        _take(
            movement.permute(x, layout.order),
            list(layout.indices.values()),
            "index",
            wrap=True,
            dims=layout.names,
        )
    )
    if not x._whole and not out._levels and not out.dtype.is_complex:
        strides = layout.strides(x)
        if strides != out._strides:
            lay(out, strides)
    return out


def check_bounds(
    x: Tensor, tensors: Mapping[int, Any], names: Mapping[int, int] | None = None
) -> None:
    """Raise IndexOutOfRangeError where a position that is at hand lies beyond its dim; else the next read does."""
    for d, index in tensors.items():
        # A dim of no elements is refused by `Layout`, in PyTorch's other words.
        if size := x._shape[d]:
            place = d if names is None else names.get(d, d)
            check_places("index", index, size, low=-size, dim=place)


def no_elements(x: Tensor, shape: Shape) -> Tensor:
    """Return an empty result that still belongs to x's graph."""
    return tape.attach(
        zeros_of(shape, x.dtype, x.device),
        "Index",
        (x,),
        lambda g, shape: (zeros_after(g, shape),),
        (),
        (x._shape,),
    )


def put_at(
    x: Tensor,
    tensors: dict[int, Any],
    value: object,
    single: Sequence[int] = (),
    accumulate: bool = False,
    names: Mapping[int, int] | None = None,
    given: Tensor | None = None,
) -> None:
    """Write `value` to x at integer tensors, given by dimension; duplicates add up with `accumulate`.

    given: the value as the user has it, where PyTorch does not convert it.
    """
    layout = Layout(x._shape, tensors, single, names)
    check_bounds(x, tensors, names)
    value = put_value(value, layout.shape)
    shared = repeated(x) if 0 in x._strides else ()
    if (
        shared
        and tensors.keys() >= {*shared}
        and (memory := written_once(x, "index_put_")) is not None
    ):
        tensors = {d: index * 0 if d in shared else index for d, index in tensors.items()}
        return put_at(memory, tensors, value, single, accumulate, names, given)
    if given is not None and given.dtype is not x.dtype:
        raise DTypeError(
            f"Index put requires the source and destination dtypes match, got {x.dtype.legacy} for the "
            f"destination and {given.dtype.legacy} for the source. Use values.to({x.dtype})."
        )
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
        indices.append(expanded_to(movement.reshape(index, shape), full))
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
        return expanded_to(value, shape)
    except ShapeError:
        raise ShapeError(
            f"shape mismatch: value tensor of shape {list(given)} cannot be broadcast to indexing result of "
            f"shape {list(shape)}"
        ) from None


def check_put(
    x: Tensor, indices: Sequence[object], value: object, accumulate: bool = False
) -> None:
    """Raise RuntimeError if what is written in place is read as well, as index or as value.

    One value where a mask is true is read before anything is written.
    """
    given = [i for i in indices if isinstance(i, Tensor)]
    one = not isinstance(value, Tensor) or value.numel() == 1
    if not (one and len(given) == 1 and given[0].dtype is bool_ and not accumulate):
        check_overlap(x, (value, *given), whole=False)


def _put(
    op: str, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool
) -> Tensor:
    expanded = expand_masks(x._shape, indices)
    tensors = {d: i for d, i in enumerate(expanded) if i is not None}
    if tensors:
        put_at(x, tensors, values, accumulate=accumulate, given=values)
    else:
        raise RuntimeError(f"{op}: at least one index tensor is needed")
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
    example=Example(((5, 2),), (("i5",), Operand(9, 2), True)),
)
def _index_put_in_place(
    input: Tensor, indices: Sequence[Tensor], values: Tensor, accumulate: bool = False
) -> Tensor:
    """Write `values` at the positions of index tensors; with accumulate, duplicates add up."""
    check_put(input, indices, values, accumulate)
    return _put("index_put_", input, indices, values, accumulate)
