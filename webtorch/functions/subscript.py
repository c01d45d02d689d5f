"""`x[...]` and `x[...] = v`: what PyTorch accepts between the brackets.

Ints, slices, None and ... make a view; what is left are index tensors (lists, ranges, arrays, masks become such), which
read by `take` and write by `scatter`. A 0-d integer tensor selects like an int: `x[i]` reads it, as PyTorch does, and
is a view. In a capture, where nothing may be read, it is a copy, which is put back when it is written. One that vmap
maps over gives a copy, here as in PyTorch.
"""

from __future__ import annotations

import operator
from typing import Any

from webtorch.dispatch.call import active
from webtorch.errors import DeviceError
from webtorch.functions import assign, creation, indexing, movement, pointwise
from webtorch.functions.slicing import pick, slice_bounds, window
from webtorch.ir.dtype import bool_, int8, int16, int32, int64, uint8
from webtorch.ir.view import numel
from webtorch.ops import comparison
from webtorch.ops.primitive import cast_to, fill, write
from webtorch.ops.purity import warn
from webtorch.tensors import override
from webtorch.tensors.host import tracing
from webtorch.tensors.remember import Views
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.values import taken_over, waited_for
from webtorch.tensors.writing import Picked, check_overlap, leave_hooks, repeated

_BAD_TYPE = "only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables are valid indices (got {})"
_LIST = (
    "Using a non-tuple sequence for multidimensional indexing is deprecated and will be changed in pytorch 2.9; use "
    "x[tuple(seq)] instead of x[seq]. In pytorch 2.9 this will be interpreted as tensor index, x[torch.tensor(seq)], "
    "which will result either in an error or a different result"
)
_BAD_DTYPE = "tensors used as indices must be long, int, byte or bool tensors"


def getitem(x: Tensor, index: object) -> Tensor:
    """Return x[index]: a view for ints, slices, None and ..., else new data. Raises IndexError as PyTorch does."""
    if type(index) is int:
        return _pick(x, 0, index)
    if (
        type(index) is Tensor
        and index.dtype is int64
        and index._shape
        and x._shape
        and index._storage.runtime is x._storage.runtime
    ):
        # One tensor of positions, as most are.
        return indexing.take_at(x, {0: index}, (), {0: 0})
    if active.count:
        return _getitem(x, index)
    args = x, index
    out = _views.find(args, {})
    return _views.run(args, {}) if out is None else out


def _getitem(x: Tensor, index: object) -> Tensor:
    mask = _as_mask(x, index)
    if mask is not None and mask._shape and (known := waited_for(x, mask)) is not None:
        values, chosen = known
        return taken_over(values[chosen], x.dtype, x)
    reads = not x._storage.runtime.capturing
    view, tensors, single, names = _parse(x, index, reads)
    if tensors:
        out = indexing.take_at(view, tensors, single, names)
        if (
            tracing.active
            and len(single) == len(tensors)
            and not any(i._levels for i in tensors.values())
        ):

            def take() -> Tensor:
                """Return the indexed elements."""
                return indexing.take_at(view, tensors, single, names)

            def put() -> None:
                """Write the indexed elements into `out`."""
                indexing.put_at(view, tensors, out, single, names=names)

            tracing.picked.append(Picked(view, out, take, put))
        return out
    return movement._as_shape(x, x._shape, x._strides, "Alias") if view is x else view


_views = Views(lambda args, _: _getitem(*args))


def setitem(x: Tensor, index: Tensor, value: Any) -> None:
    """Do x[index] = value, in place. Raises IndexError, ShapeError or TypeError as PyTorch does."""
    if x._base is not None:
        leave_hooks(x)
    mask = _as_mask(x, index)
    if not isinstance(value, (Tensor, float, int)) and override.is_foreign((index, value), {}):
        raise TypeError(f"can't assign a {type(value).__name__} to a tensor")
    given, value = value, _as_value(x, value)
    if mask is not None and value.numel() == 1:
        # No positions are needed, so nothing is read from the device.
        mask = movement.reshape(mask, mask._shape + (1,) * (x.ndim - mask.ndim))
        value = movement.reshape(value, ())
        if 0 in x._strides and repeated(x):
            x.masked_fill_(mask, value)
        else:
            write(x, pointwise.where(mask, value, x), fresh=True)
        return
    view, tensors, single, names = _parse(x, index)
    if tensors:
        # One value is converted, and so is what 0-d tensors select like ints.
        converted = (
            not isinstance(given, Tensor) or given.numel() == 1 or len(tensors) == len(single)
        )
        if len(tensors) > len(single) > 0 and value._storage is x._storage:
            # Whether what is written is read as well hangs on the numbers.
            view, tensors, single, names = _parse(x, index, reads=True)
        if not single:
            indexing.check_put(view, _items(index), value)
        as_it_is = None if converted else given
        indexing.put_at(view, tensors, value, single, names=names, given=as_it_is)
        return
    extra = value.ndim - view.ndim
    if extra > 0 and all(n == 1 for n in value._shape[:extra]):
        value = movement.reshape(value, value._shape[extra:])
    if value._shape != view._shape:
        value = movement.broadcast_to(value, view._shape)
    check_overlap(view, (value,))
    assign.overwrite(view, value)


def _as_value(x: Tensor, value: object) -> Tensor:
    """Return what is assigned as a tensor of x's dtype and device."""
    if isinstance(value, Tensor):
        if value._storage.runtime is not x._storage.runtime:
            if value.numel() != 1 and value.ndim:
                raise DeviceError(
                    "setitem: Expected all tensors to be on the same device, but found at least two devices, "
                    f"{x.device} and {value.device}! Move the value with .to('{x.device}')."
                )
            value = value.to(x.device)
        return cast_to(value, x.dtype)
    if isinstance(value, (bool, int, float, complex)) or (
        hasattr(value, "item") and getattr(value, "ndim", 1) == 0
    ):
        number = creation.fits(creation.number_of(value), x.dtype)
        return fill((), number, x.dtype, x.device)
    raise TypeError(
        f"can't assign a {type(value).__name__} to a {x.type()}: use webtorch.tensor(value)"
    )


def _as_mask(x: Tensor, index: object) -> Tensor | None:
    """Return the index when it is one bool mask over x's first dims, which a choice can apply."""
    if isinstance(index, tuple) and len(index) == 1:
        index = index[0]
    if not isinstance(index, Tensor) or index.dtype is not bool_:
        return None
    if x._shape[: index.ndim] != index._shape or index._storage.runtime is not x._storage.runtime:
        return None
    return index


def _pick(x: Tensor, dim: int, index: int) -> Tensor:
    shape = x._shape
    if dim >= len(shape):
        if not shape:
            raise IndexError(
                "invalid index of a 0-dim tensor. Use `tensor.item()` in Python or `tensor.item<T>()` in C++ to "
                "convert a 0-dim tensor to a number"
            )
        raise IndexError(f"too many indices for tensor of dimension {len(shape)}")
    size = shape[dim]
    if not -size <= index < size:
        raise IndexError(f"index {index} is out of bounds for dimension {dim} with size {size}")
    return pick(x, dim, index + size if index < 0 else index)


def _dims_used(item: object) -> int:
    """Return how many dims of x an item takes."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    if isinstance(item, Tensor) and item.dtype in (bool_, uint8):
        return item.ndim
    return 1


def _slice_number(value: Any) -> int | None:
    if value is None:
        return None
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(
            "slice indices must be integers or None or have an __index__ method"
        ) from None


def _parse(
    x: Tensor, index: Any, reads: bool = False
) -> tuple[Tensor, dict[int, Tensor], tuple[int, ...], dict[int, int]]:
    """Return the view that plain indices make, index tensors by its dims, which of these select like ints, and which
    dims of x they stand for. `reads`: 0-d integer tensors are read, and make views too.
    """
    items = [_convert(x, item, reads) for item in _items(index)]
    used = sum(_dims_used(item) for item in items)
    if used > x.ndim:
        if not x.ndim:
            return _pick(x, 0, 0), {}, (), {}
        raise IndexError(
            f"too many indices for tensor of dimension {x.ndim}: {used} for shape {list(x._shape)}"
        )
    view, dim = x, 0  # dim counts the dims of `view` that are settled
    at = 0  # the dim of x, for messages
    tensors: dict[int, Tensor] = {}
    single: list[int] = []
    names: dict[int, int] = {}
    skipped = False
    for item in items:
        if item is None:
            view = movement.unsqueeze(view, dim)
            dim += 1
        elif item is Ellipsis:
            if not skipped:
                dim += x.ndim - used
                at += x.ndim - used
            skipped = True
        elif isinstance(item, bool):
            # A new dim of size 1, of which True takes the one element and False none.
            view = movement.unsqueeze(view, dim)
            tensors[dim] = fill((1 if item else 0,), 0, int64, x.device)
            dim += 1
        elif isinstance(item, int):
            size = x._shape[at]
            if not -size <= item < size:
                raise IndexError(
                    f"index {item} is out of bounds for dimension {at} with size {size}"
                )
            view = pick(view, dim, item % size)
            at += 1
        elif isinstance(item, slice):
            step = _slice_number(item.step)
            if step is not None and step <= 0:
                raise ValueError("step must be greater than zero")
            start, stop, step = _slice_number(item.start), _slice_number(item.stop), step or 1
            size = x._shape[at]
            first, count = slice_bounds(size, start, stop, step)
            if count != size or step != 1:
                view = window(view, dim, first, count, step)
            dim += 1
            at += 1
        else:
            dims = _dims_used(item)
            if item.dtype in (bool_, uint8):
                view, dim = _mask(x, view, item, dim, at, tensors)
            else:
                if not item.ndim:
                    single.append(dim)
                tensors[dim], names[dim] = item, at
                dim += 1
            at += dims
    return view, tensors, tuple(single), names


def _mask(
    x: Tensor, view: Tensor, mask: Tensor, dim: int, at: int, tensors: dict[int, Tensor]
) -> tuple[Tensor, int]:
    """Put the positions of a mask's true elements (read on the host) among the index tensors."""
    flags = mask if mask.dtype is bool_ else comparison.ne(mask, 0)
    if not mask.ndim:
        view = movement.unsqueeze(view, dim)
        tensors[dim] = indexing.true_positions(movement.reshape(flags, (1,)))
        return view, dim + 1
    indexing.check_mask(mask, x._shape, at)
    positions = indexing.true_positions(movement.reshape(flags, (numel(mask._shape),)))
    for d, column in enumerate(indexing.unravel(positions, mask._shape)):
        tensors[dim + d] = column
    return view, dim + mask.ndim


def _items(index: Tensor) -> tuple[Tensor, ...]:
    if isinstance(index, tuple):
        return index
    # A short list of more than numbers is a tuple, as it was with Numeric.
    if (
        isinstance(index, list)
        and len(index) < 32
        and any(
            i is None
            or i is Ellipsis
            or isinstance(i, (slice, Tensor, list, tuple, range))
            or (hasattr(i, "__array__") and hasattr(i, "__setitem__"))
            for i in index
        )
    ):
        warn(_LIST)
        return tuple(index)
    return (index,)


def _convert(x: Tensor, item: Any, reads: bool = False) -> Any:
    """Return one index as None, Ellipsis, bool, int, slice or a tensor on x's device. Raises IndexError otherwise."""
    if item is None or item is Ellipsis or isinstance(item, (bool, int, slice)):
        return item
    if isinstance(item, Tensor):
        if not item.ndim and item.dtype in (int8, int16):
            item = cast_to(item, int64)
        if item.dtype not in (int64, int32, bool_, uint8):
            raise IndexError(f"{_BAD_DTYPE}, got {item.dtype}")
        if item.dtype is uint8 and item.ndim:
            warn(indexing.BYTES)
        if reads and not item.ndim and not item._levels and item.dtype in (int64, int32):
            return int(item.item())
        return item if item._storage.runtime is x._storage.runtime else item.to(x.device)
    if isinstance(item, str):
        raise TypeError("new(): invalid data type 'str'")
    if isinstance(item, (list, tuple, range)) or hasattr(item, "__array__"):
        if getattr(item, "ndim", 1) == 0:
            return bool(item) if getattr(item.dtype, "kind", "") == "b" else operator.index(item)
        if (
            hasattr(item, "dtype")
            and getattr(item.dtype, "kind", "i") in "iu"
            and item.dtype.name != "uint8"
        ):
            item = item.astype("int64")
        made = creation.made_of(
            item, int64 if hasattr(item, "__len__") and not len(item) else None, x.device
        )
        if made.dtype not in (int64, int32, bool_, uint8):
            raise IndexError(f"{_BAD_DTYPE}, got {made.dtype}")
        return made
    if hasattr(item, "__index__"):
        return operator.index(item)
    raise IndexError(_BAD_TYPE.format(type(item).__name__))
