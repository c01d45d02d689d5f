"""Movement: views, copies of parts, joining, repeating, padding.

A view is `as_view` with new shape, strides and offset, and a rule that turns the view's cotangent into the tensor's.
The rules are written with ops of this file, so that second derivatives follow. They keep shapes, not tensors, alive.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from webtorch.errors import DeviceError, DTypeError, ShapeError
from webtorch.functions import pointwise
from webtorch.ir.dtype import (
    DType,
    Scalar,
    int32,
    int64,
    integer_limits,
    legacy_name,
    promote_types,
)
from webtorch.ir.view import (
    Shape,
    broadcast_shapes,
    contiguous_strides,
    extent,
    format_order,
    format_strides,
    infer_shape,
    is_contiguous,
    lies_in,
    memory_order,
    normalize_dim,
    numel,
    reshape_strides,
    strides_like,
)
from webtorch.ops.layout import channels_last_together, of_first
from webtorch.ops.primitive import (
    as_view,
    cast_to,
    check_own_storage,
    conjugate,
    copy,
    empty,
    fill,
    iota,
    pad_with,
    reduce_dims,
    seen_as,
)
from webtorch.ops.primitive import scan as _scan
from webtorch.ops.primitive import write as _write
from webtorch.ops.purity import warn_once
from webtorch.ops.record import TABLE, Autocast, Example, composite
from webtorch.tensors import tape
from webtorch.tensors.formats import memory_format as MemoryFormat
from webtorch.tensors.made_by import several_views
from webtorch.tensors.modes import mode, unrecorded
from webtorch.tensors.tensor import Tensor

METHOD: tuple[str, ...] = ("Tensor",)


# -- arguments -------------------------------------------------------------------------------------


def sizes_of(
    op: str, args: Sequence[Any], named: Sequence[int] | int | None = None, what: str = "size"
) -> Shape:
    """Return the integers of `f(2, 3)`, `f((2, 3))` or `f(size=(2, 3))`. Raises TypeError."""
    if named is not None:
        args = (named,)
    if len(args) == 1 and isinstance(args[0], (tuple, list)):
        args = args[0]
    elif not args:
        raise TypeError(f'{op}() missing 1 required positional arguments: "{what}"')
    for value in args:
        if type(value) is not int:
            return tuple(_integer(op, what, v) for v in args)
    return tuple(args)


def _integer(op: str, what: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(
            f"{op}(): argument '{what}' must be tuple of ints, but found element of type "
            f"{type(value).__name__}"
        ) from None


def unique_dims(dims: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return `dims` as 0..rank-1 in the order given. Raises RuntimeError when one appears twice."""
    out = tuple(normalize_dim(d, rank) for d in dims)
    if len(set(out)) != len(out):
        twice = next(d for d in out if out.count(d) > 1)
        raise RuntimeError(f"dim {twice} appears multiple times in the list of dims")
    return out


def zero_of(dtype: DType) -> Scalar:
    """Return the Python zero that does not change a tensor of `dtype` by promotion."""
    return False if dtype.kind == "bool" else 0


def integers_held(x: Tensor) -> tuple[int, int]:
    """Return the least and the largest integer that `x` can hold where it is: a GPU's int64 has 32 bits."""
    return integer_limits(int32 if x.dtype is int64 and x.device.type != "cpu" else x.dtype)


def sum_to(g: Tensor, shape: Shape) -> Tensor:
    """Return `g` summed over the dimensions along which `shape` was expanded to it."""
    if g._shape == shape:
        return g
    lead = len(g._shape) - len(shape)
    dims = tuple(
        i for i, size in enumerate(g._shape) if i < lead or (shape[i - lead] == 1 and size != 1)
    )
    if 0 in g._shape:
        return fill(shape, 0, g.dtype, g.device)
    if dims:
        g = reduce_dims(g, "sum", dims)
    return g if g._shape == shape else reshape(g, shape)


# -- one tensor, another shape ---------------------------------------------------------------------


def _as_shape(x: Tensor, shape: Shape, strides: Shape, name: str) -> Tensor:
    old = x._shape
    return as_view(x, shape, strides, x._offset, vjp=lambda g: reshape(g, old), name=name)


def _inferred(op: str, x: Tensor, sizes: Shape) -> Shape:
    try:
        return infer_shape(sizes, numel(x._shape))
    except ShapeError as error:
        raise ShapeError(
            f"{error} ({op} of shape {list(x._shape)}): the sizes must multiply up to "
            f"{numel(x._shape)}, and one of them may be -1"
        ) from None


@composite(
    family="movement", function_in=METHOD, torch="Tensor.view", geometry=("view", "_reshape_alias")
)
def view(
    input: Tensor, *args: Any, size: Sequence[int] | None = None, dtype: DType | None = None
) -> Tensor:
    """The same memory in another shape; one size may be -1. Raises RuntimeError when strides do not allow it.

    With a dtype in place of sizes, the same memory as elements of that type, outside autograd. Types of other
    sizes change the last dimension, whose stride must be 1.
    """
    if dtype is not None or (len(args) == 1 and isinstance(args[0], DType)):
        return _bits_as(input, args[0] if dtype is None else dtype)
    old = input._shape
    shape = _inferred("view", input, sizes_of("view", args, size))
    strides = reshape_strides(old, input._strides, shape)
    if strides is None:
        raise ShapeError(
            f"view size is not compatible with input tensor's size and stride (at least one dimension "
            f"spans across two contiguous subspaces): shape {list(old)} with strides "
            f"{list(input._strides)} viewed as {list(shape)}. Use .reshape(...) instead."
        )
    return _as_shape(input, shape, strides, "View")


def _bits_as(x: Tensor, dtype: DType) -> Tensor:
    old = x.dtype
    shape, strides, offset = x._shape, x._strides, x._offset
    if dtype.itemsize == old.itemsize:
        return seen_as(x, shape, strides, offset, dtype)
    how = f"to view {legacy_name(old)} as {legacy_name(dtype)} (different element sizes)"
    if not shape:
        raise ShapeError(f"self.dim() cannot be 0 {how}")
    if dtype.itemsize < old.itemsize:
        ratio = old.itemsize // dtype.itemsize
        if strides[-1] != 1:
            raise ShapeError(f"self.stride(-1) must be 1 {how}, but got {strides[-1]}")
        shape = (*shape[:-1], shape[-1] * ratio)
        strides = (*[st * ratio for st in strides[:-1]], 1)
        return seen_as(x, shape, strides, offset * ratio, dtype)
    ratio = dtype.itemsize // old.itemsize
    for what, value in (("size(-1)", shape[-1]), ("storage_offset()", offset)):
        if value % ratio:
            raise ShapeError(f"self.{what} must be divisible by {ratio} {how}, but got {value}")
    if strides[-1] != 1:
        raise ShapeError(f"self.stride(-1) must be 1 {how}, but got {strides[-1]}")
    for d, stride in enumerate(strides[:-1]):
        if stride % ratio:
            raise ShapeError(
                f"self.stride({d}) must be divisible by {ratio} {how}, but got {stride}"
            )
    strides = (*[st // ratio for st in strides[:-1]], 1)
    return seen_as(x, (*shape[:-1], shape[-1] // ratio), strides, offset // ratio, dtype)


@composite(family="movement")
def reshape(input: Tensor, *args: Any, shape: Sequence[int] | None = None) -> Tensor:
    """The elements in another shape; one size may be -1. A view where strides allow it, else a copy."""
    old = input._shape
    new = _inferred("reshape", input, sizes_of("reshape", args, shape, "shape"))
    strides = reshape_strides(old, input._strides, new)
    if strides is None:
        input = copy(input)
        strides = contiguous_strides(new)
    return _as_shape(input, new, strides, "View")


@composite(family="movement", function_in=METHOD, torch="Tensor.view_as")
def view_as(input: Tensor, other: Tensor) -> Tensor:
    """A view in the shape of `other`."""
    return view(input, other._shape)


@composite(family="movement", function_in=METHOD, torch="Tensor.reshape_as")
def reshape_as(input: Tensor, other: Tensor) -> Tensor:
    """The elements in the shape of `other`."""
    return reshape(input, other._shape)


@composite(family="movement")
def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Dimensions start_dim to end_dim as one."""
    shape = input._shape
    start, end = normalize_dim(start_dim, len(shape)), normalize_dim(end_dim, len(shape))
    if start > end:
        raise RuntimeError("flatten() has invalid args: start_dim cannot come after end_dim")
    if not shape:
        return reshape(input, (1,))
    if start == end:
        return input
    return reshape(input, (*shape[:start], numel(shape[start : end + 1]), *shape[end + 1 :]))


@composite(family="movement")
def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """Dimension `dim` as several of `sizes`; one may be -1."""
    shape = input._shape
    dim = normalize_dim(dim, len(shape))
    sizes = sizes_of("unflatten", (sizes,), None, "sizes")
    if not sizes:
        raise RuntimeError("unflatten: sizes must be non-empty")
    if not shape:
        raise RuntimeError(f"unflatten: Dimension specified as {dim} but tensor has no dimensions")
    try:
        parts = infer_shape(sizes, shape[dim])
    except ShapeError:
        raise ShapeError(
            f"unflatten: Provided sizes {list(sizes)} don't multiply up to the size of dim {dim} "
            f"({shape[dim]}) in the input tensor"
        ) from None
    return reshape(input, (*shape[:dim], *parts, *shape[dim + 1 :]))


@composite(family="movement")
def ravel(input: Tensor) -> Tensor:
    """The elements in one dimension."""
    return reshape(input, (-1,)) if input.numel() else reshape(input, (0,))


def squeezed_dims(shape: Shape, dim: Any) -> tuple[int, ...]:
    """Return which dimensions squeeze keeps."""
    if dim is None:
        return tuple(i for i, size in enumerate(shape) if size != 1)
    dims = unique_dims(dim if isinstance(dim, (tuple, list)) else (dim,), len(shape))
    return tuple(i for i, size in enumerate(shape) if size != 1 or i not in dims)


@composite(family="movement")
def squeeze(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Without dimensions of size 1: all of them, or those of `dim` that have size 1."""
    shape, strides = input._shape, input._strides
    kept = squeezed_dims(shape, dim)
    return _as_shape(
        input, tuple(shape[i] for i in kept), tuple(strides[i] for i in kept), "Squeeze"
    )


@composite(family="movement", traced=True)
def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """With a new dimension of size 1 at `dim`."""
    shape, strides = input._shape, input._strides
    dim = normalize_dim(dim, len(shape) + 1)
    step = shape[dim] * strides[dim] if dim < len(shape) else 1
    return _as_shape(
        input,
        (*shape[:dim], 1, *shape[dim:]),
        (*strides[:dim], step, *strides[dim:]),
        "Unsqueeze",
    )


@composite(family="movement", function_in=METHOD, torch="Tensor.expand", grows=True)
def expand(
    input: Tensor, *args: Any, size: Sequence[int] | None = None, implicit: bool = False
) -> Tensor:
    """A view in which dimensions of size 1 are repeated; -1 keeps a size."""
    return _expand("expand", input, sizes_of("expand", args, size))


def _expand(op: str, x: Tensor, size: Shape) -> Tensor:
    old, old_strides = x._shape, x._strides
    lead = len(size) - len(old)
    if lead < 0:
        raise ShapeError(
            f"{op}: the number of sizes provided ({len(size)}) must be greater or equal to the number of "
            f"dimensions in the tensor ({len(old)}): {list(old)} to {list(size)}"
        )
    shape, strides = list(size), [0] * len(size)
    for i, want in enumerate(size):
        if i < lead:
            if want < 0:
                raise ShapeError(
                    f"The expanded size of the tensor ({want}) isn't allowed in a leading, non-existing "
                    f"dimension {i} ({op} of shape {list(old)} to {list(size)}): -1 keeps a size, give a "
                    "number for a new dimension"
                )
            continue
        have = old[i - lead]
        if want in (-1, have):
            shape[i], strides[i] = have, old_strides[i - lead]
        elif have != 1 or want < 0:
            raise ShapeError(
                f"The expanded size of the tensor ({want}) must match the existing size ({have}) at "
                f"non-singleton dimension {i}.  Target sizes: {list(size)}.  Tensor sizes: {list(old)}. "
                f"{op} repeats dimensions of size 1 only; use repeat or tile to copy others"
            )
    new = tuple(shape)
    return as_view(x, new, tuple(strides), x._offset, vjp=lambda g: sum_to(g, old), name="Expand")


@composite(family="movement", function_in=METHOD, torch="Tensor.expand_as")
def expand_as(input: Tensor, other: Tensor) -> Tensor:
    """Expanded to the shape of `other`."""
    return _expand("expand_as", input, other._shape)


@composite(family="movement", grows=True)
def broadcast_to(input: Tensor, size: Sequence[int]) -> Tensor:
    """Expanded to `size`."""
    return _expand("broadcast_to", input, sizes_of("broadcast_to", (size,)))


@composite(family="movement", function_in=("torch",))
def broadcast_tensors(*tensors: Any) -> tuple[Tensor, ...]:
    """Views of the tensors in the shape that all of them expand to."""
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        tensors = tuple(tensors[0])
    shape = broadcast_shapes(*(t._shape for t in tensors))
    return tuple(t if t._shape == shape else _expand("expand", t, shape) for t in tensors)


# -- order of dimensions ---------------------------------------------------------------------------


def _permute(x: Tensor, dims: tuple[int, ...], name: str = "Permute") -> Tensor:
    shape, strides = x._shape, x._strides
    inverse = tuple(sorted(range(len(dims)), key=dims.__getitem__))
    return as_view(
        x,
        tuple([shape[d] for d in dims]),
        tuple([strides[d] for d in dims]),
        x._offset,
        vjp=lambda g: _permute(g, inverse, name),
        name=name,
    )


@composite(family="movement")
def permute(input: Tensor, *args: Any, dims: Sequence[int] | None = None) -> Tensor:
    """The dimensions in the order `dims`."""
    order = sizes_of("permute", args, dims, "dims") if args != () or dims is not None else ()
    rank = len(input._shape)
    if len(order) != rank:
        raise ShapeError(
            "permute(sparse_coo): number of dimensions in the tensor input does not match the length of "
            f"the desired ordering of dimensions i.e. input.dim() = {rank} is not equal to len(dims) = "
            f"{len(order)}"
        )
    wanted = tuple(normalize_dim(d, rank) for d in order)
    if len(set(wanted)) != rank:
        raise ShapeError(
            f"permute(): duplicate dims are not allowed. Got {list(order)} for shape {list(input._shape)}"
        )
    return _permute(input, wanted)


def _swap(x: Tensor, dim0: int, dim1: int, name: str = "Transpose") -> Tensor:
    rank = len(x._shape)
    a, b = normalize_dim(dim0, rank), normalize_dim(dim1, rank)
    order = list(range(rank))
    if rank:
        order[a], order[b] = b, a
    return _permute(x, tuple(order), name)


@composite(family="movement", traced=True)
def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Dimensions dim0 and dim1 exchanged."""
    return _swap(input, dim0, dim1)


@composite(family="movement")
def swapaxes(input: Tensor, axis0: int, axis1: int) -> Tensor:
    """Another name of transpose."""
    return _swap(input, axis0, axis1)


@composite(family="movement")
def swapdims(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Another name of transpose."""
    return _swap(input, dim0, dim1)


@composite(family="movement", traced=True)
def t(input: Tensor) -> Tensor:
    """The transpose of a matrix; 0-d and 1-d tensors as they are."""
    rank = len(input._shape)
    if rank > 2:
        raise ShapeError(
            f"t() expects a tensor with <= 2 dimensions, but self is {rank}D. Use .mT or .transpose(-2, -1)."
        )
    return _permute(input, tuple(reversed(range(rank))), "T")


def _matrix_transpose(name: str, x: Tensor) -> Tensor:
    if len(x._shape) < 2:
        raise ShapeError(
            f"tensor.{name} is only supported on matrices or batches of matrices. Got "
            f"{len(x._shape)}-D tensor."
        )
    return _swap(x, -2, -1)


@composite(family="movement", function_in=METHOD, torch="Tensor.mT")
def mT(input: Tensor) -> Tensor:
    """The last two dimensions exchanged (a property)."""
    return _matrix_transpose("mT", input)


@composite(family="movement", function_in=METHOD, torch="Tensor.mH")
def mH(input: Tensor) -> Tensor:
    """The conjugate transpose, which is mT for real types (a property)."""
    return conjugate(_matrix_transpose("mH", input))


@composite(family="movement")
def adjoint(input: Tensor) -> Tensor:
    """The conjugate transpose, which is mT for real types."""
    return conjugate(_matrix_transpose("adjoint", input))


@composite(family="movement", function_in=METHOD, torch="Tensor.T", name="T")
def _T(input: Tensor) -> Tensor:
    """All dimensions in reverse order (a property)."""
    rank = len(input._shape)
    if rank == 0:
        warn_once(
            "Tensor.T is deprecated on 0-D tensors. This function is the identity in these cases."
        )
    elif rank != 2:
        warn_once(
            "The use of `x.T` on tensors of dimension other than 2 to reverse their shape is deprecated and it "
            "will throw an error in a future release. Consider `x.mT` to transpose batches of matrices or "
            "`x.permute(*torch.arange(x.ndim - 1, -1, -1))` to reverse the dimensions of a tensor."
        )
    return _permute(input, tuple(reversed(range(rank))))


@composite(family="movement", function_in=METHOD, torch="Tensor.H", name="H")
def _H(input: Tensor) -> Tensor:
    """The conjugate transpose of a matrix (a property)."""
    if len(input._shape) not in (0, 2):
        raise ShapeError(
            f"tensor.H is only supported on matrices (2-D tensors). Got {len(input._shape)}-D tensor."
        )
    return conjugate(_swap(input, 0, 1) if input._shape else input)


# The properties among the entries: `functions.bind` binds them so.
PROPERTIES = ("mT", "mH", "T", "H")


def _movedim(x: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    rank = len(x._shape)
    source = (source,) if isinstance(source, int) else tuple(source)
    destination = (destination,) if isinstance(destination, int) else tuple(destination)
    if len(source) != len(destination):
        raise ShapeError(
            f"movedim: Invalid source or destination dims: source ({list(source)} dims) should contain the "
            f"same number of dims as destination ({list(destination)} dims)"
        )
    moved = tuple(normalize_dim(d, rank) for d in source)
    places = tuple(normalize_dim(d, rank) for d in destination)
    for what, dims, given in (("source", moved, source), ("destination", places, destination)):
        if len(set(dims)) != len(dims):
            raise ShapeError(f"movedim: repeated dim in `{what}` ({list(given)})")
    if not rank:
        return _permute(x, ())
    order: list[int] = [-1] * rank
    for d, place in zip(moved, places, strict=True):
        order[place] = d
    rest = iter(d for d in range(rank) if d not in moved)
    return _permute(x, tuple(next(rest) if d == -1 else d for d in order))


@composite(family="movement", aliases=("moveaxis",))
def movedim(input: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Dimensions `source` moved to the places `destination`; the others keep their order."""
    return _movedim(input, source, destination)


# -- windows ---------------------------------------------------------------------------------------


def _border(shape: Shape, dim: int, low: int, high: int) -> tuple[Shape, Shape]:
    before, after = [0] * len(shape), [0] * len(shape)
    before[dim], after[dim] = low, high
    return tuple(before), tuple(after)


def pad_dim(x: Tensor, dim: int, low: int, high: int, value: Scalar = 0) -> Tensor:
    """Return `x` with `low` and `high` more elements of `value` at the ends of `dim`."""
    if not low and not high:
        return x
    before, after = _border(x._shape, dim, low, high)
    return pad_with(x, before, after, zero_of(x.dtype) if value == 0 else value)


def _spread(g: Tensor, dim: int, step: int) -> Tensor:
    """Return `g` with step - 1 zeros between neighbours along `dim`."""
    count = g._shape[dim]
    if step == 1 or count <= 1:
        return g
    shape = g._shape
    wide = pad_dim(unsqueeze(g, dim + 1), dim + 1, 0, step - 1)
    wide = reshape(wide, (*shape[:dim], count * step, *shape[dim + 1 :]))
    return window(wide, dim, 0, (count - 1) * step + 1)


def _from_window(g: Tensor, shape: Shape, dim: int, start: int, step: int) -> Tensor:
    """Return zeros of `shape` with `g` at positions start, start + step, ... of `dim`."""
    if not g._shape[dim]:
        return fill(shape, 0, g.dtype, g.device)
    g = _spread(g, dim, step)
    return pad_dim(g, dim, start, shape[dim] - start - g._shape[dim])


def window(x: Tensor, dim: int, start: int, length: int, step: int = 1) -> Tensor:
    """Return the view of elements start, start + step, ... (`length` of them) along `dim`; all in range."""
    shape, strides = x._shape, x._strides
    return as_view(
        x,
        (*shape[:dim], length, *shape[dim + 1 :]),
        (*strides[:dim], strides[dim] * step, *strides[dim + 1 :]),
        x._offset + (start * strides[dim] if length else 0),
        vjp=lambda g: _from_window(g, shape, dim, start, step),
        name="Slice",
    )


def pick(x: Tensor, dim: int, index: int) -> Tensor:
    """Return the view without `dim` at position `index`, which is in range."""
    shape, strides = x._shape, x._strides
    return as_view(
        x,
        (*shape[:dim], *shape[dim + 1 :]),
        (*strides[:dim], *strides[dim + 1 :]),
        x._offset + index * strides[dim],
        vjp=lambda g: pad_dim(unsqueeze(g, dim), dim, index, shape[dim] - index - 1),
        name="Select",
    )


@composite(family="movement", traced=True)
def select(input: Tensor, dim: int, index: int) -> Tensor:
    """The view at position `index` of `dim`, without that dimension."""
    shape = input._shape
    if not shape:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    dim, index = normalize_dim(dim, len(shape)), operator.index(index)
    if not -shape[dim] <= index < shape[dim]:
        raise IndexError(
            f"select(): index {index} out of range for tensor of size {list(shape)} at dimension {dim}"
        )
    return pick(input, dim, index % shape[dim])


def slice_bounds(size: int, start: int | None, stop: int | None, step: int) -> tuple[int, int]:
    """Return first position and count of a slice with positive step, clamped as Python does."""
    first, last, _ = slice(start, stop, step).indices(size)
    return first, max(0, -(-(last - first) // step))


@composite(family="movement", function_in=(), torch="", name="slice", traced=True)
def slice_(
    input: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """The view of positions start, start + step, ... before end along `dim`."""
    shape = input._shape
    if not shape:
        raise IndexError("slice() cannot be applied to a 0-dim tensor.")
    dim = normalize_dim(dim, len(shape))
    if step <= 0:
        raise ValueError("step must be greater than zero")
    first, count = slice_bounds(shape[dim], start, end, step)
    return window(input, dim, first, count, step)


@composite(family="movement")
def narrow(input: Tensor, dim: int, start: int | Tensor, length: int) -> Tensor:
    """The view of `length` elements from `start` along `dim`."""
    shape = input._shape
    if not shape:
        raise ShapeError("narrow() cannot be applied to a 0-dim tensor.")
    if isinstance(start, Tensor) and (start._shape or start.dtype.kind not in ("int", "uint")):
        raise RuntimeError("start must be an 0-dim integral Tensor.")
    dim, start, length = normalize_dim(dim, len(shape)), operator.index(start), int(length)
    size = shape[dim]
    if length < 0:
        raise RuntimeError("narrow(): length must be non-negative.")
    if not -size <= start <= size:
        raise IndexError(
            f"start out of range (expected to be in range of [{-size}, {size}], but got {start})"
        )
    start = start + size if start < 0 else start
    if start + length > size:
        raise RuntimeError(
            f"start ({start}) + length ({length}) exceeds dimension size ({size}). "
            f"(narrow of shape {list(input._shape)} along dimension {dim})"
        )
    return window(input, dim, start, length)


@composite(family="movement", gradient_name="UnbindBackward0", traced=True)
def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """The views at each position of `dim`."""
    if not input._shape:
        raise IndexError("Dimension specified as 0 but tensor has no dimensions")
    dim = normalize_dim(dim, len(input._shape))
    return several_views(tuple([pick(input, dim, i) for i in range(input._shape[dim])]))


def _split_by(x: Tensor, lengths: Sequence[int], dim: int) -> tuple[Tensor, ...]:
    out, start = [], 0
    for length in lengths:
        out.append(window(x, dim, start, length))
        start += length
    return tuple(out)


def _split_with_sizes(x: Tensor, sizes: Sequence[int], dim: int) -> tuple[Tensor, ...]:
    size = x._shape[dim]
    if any(s < 0 for s in sizes):
        raise RuntimeError(
            f"split_with_sizes expects split_sizes have only non-negative entries, but got split_sizes="
            f"{list(sizes)}"
        )
    if sum(sizes) != size:
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {size} (input tensor's size at "
            f"dimension {dim}), but got split_sizes={list(sizes)}, which sum to {sum(sizes)}: shape "
            f"{list(x._shape)}"
        )
    return several_views(_split_by(x, sizes, dim))


def _split_evenly(x: Tensor, length: int, dim: int) -> tuple[Tensor, ...]:
    size = x._shape[dim]
    count = max(1, -(-size // length)) if length else 1
    lengths = [length] * (count - 1) + [size - length * (count - 1)]
    return several_views(_split_by(x, lengths, dim))


def _splittable(op: str, x: Tensor, dim: int) -> int:
    if not x._shape:
        raise RuntimeError(f"{op} expects at least a 1-dimensional tensor")
    return normalize_dim(dim, len(x._shape))


def _split_title(input: Any, split_size_or_sections: Any, dim: int = 0) -> str:
    sizes = isinstance(split_size_or_sections, (tuple, list))
    return "SplitWithSizesBackward0" if sizes else "SplitBackward0"


@composite(family="movement", gradient_name=_split_title)
def split(
    input: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0
) -> tuple[Tensor, ...]:
    """Views of parts along `dim`: of one size (the last may be smaller), or of the sizes listed."""
    dim = _splittable("split", input, dim)
    if isinstance(split_size_or_sections, (tuple, list)):
        return _split_with_sizes(input, [operator.index(s) for s in split_size_or_sections], dim)
    assert not isinstance(split_size_or_sections, Sequence)
    length = operator.index(split_size_or_sections)
    if length < 0:
        raise RuntimeError(f"split expects split_size be non-negative, but got split_size={length}")
    if length == 0 and input._shape[dim]:
        raise RuntimeError(
            f"split_size can only be 0 if dimension size is 0, but got dimension size of {input._shape[dim]} "
            f"(split of shape {list(input._shape)} along dimension {dim})"
        )
    return _split_evenly(input, length, dim)


@composite(family="movement", gradient_name="SplitWithSizesBackward0", traced=True)
def split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Views of parts of the sizes listed along `dim`."""
    return _split_with_sizes(input, list(split_sizes), _splittable("split", input, dim))


@composite(family="movement", gradient_name="SplitBackward0")
def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of at most `chunks` parts of one size along `dim`; the last may be smaller."""
    dim = _splittable("chunk", input, dim)
    if chunks <= 0:
        raise RuntimeError(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    length = -(-input._shape[dim] // chunks)
    if not length:
        return several_views(_split_by(input, [0] * chunks, dim))
    return _split_evenly(input, length, dim)


@composite(family="movement")
def tensor_split(
    input: Tensor,
    indices_or_sections: Any = None,
    dim: int = 0,
    *,
    indices: Sequence[int] | None = None,
    sections: int | None = None,
) -> tuple[Tensor, ...]:
    """Views of parts along `dim`: `sections` parts as equal as possible, or cut before each of `indices`."""
    if indices_or_sections is None:
        indices_or_sections = sections if sections is not None else indices
    if not input._shape:
        raise RuntimeError(
            "tensor_split expected at least a 1-dimensional tensor, but got a tensor with 0 dims"
        )
    dim = normalize_dim(dim, len(input._shape))
    size = input._shape[dim]
    if hasattr(indices_or_sections, "tolist"):
        indices_or_sections = indices_or_sections.tolist()
    if isinstance(indices_or_sections, int):
        count = indices_or_sections
        if count <= 0:
            raise RuntimeError(f"number of sections must be larger than 0, got {count}")
        return _split_by(input, [size // count + (i < size % count) for i in range(count)], dim)
    cuts = [0, *(slice(i, None).indices(size)[0] for i in indices_or_sections), size]
    pairs = list(itertools.pairwise(cuts))
    return tuple(window(input, dim, a, max(b - a, 0)) for a, b in pairs)


def _named_split(name: str, x: Tensor, dim: int, rank: int, parts: Any) -> tuple[Tensor, ...]:
    if len(x._shape) < rank:
        raise RuntimeError(
            f"torch.{name} requires a tensor with at least {rank} dimension, but got a tensor with "
            f"{len(x._shape)} dimensions!"
        )
    if isinstance(parts, int) and (parts <= 0 or x._shape[dim] % parts):
        raise RuntimeError(
            f"torch.{name} attempted to split along dimension {dim}, but the size of the dimension "
            f"{x._shape[dim]} is not divisible by the split_size {parts}!"
        )
    return tensor_split(x, parts, dim)


@composite(family="movement")
def hsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Views of equal parts along dimension 1 (0 for a 1-d tensor)."""
    return _named_split("hsplit", input, 0 if len(input._shape) == 1 else 1, 1, indices_or_sections)


@composite(family="movement")
def vsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Views of equal parts along dimension 0."""
    return _named_split("vsplit", input, 0, 2, indices_or_sections)


@composite(family="movement")
def dsplit(input: Tensor, indices_or_sections: Any) -> tuple[Tensor, ...]:
    """Views of equal parts along dimension 2."""
    return _named_split("dsplit", input, 2, 3, indices_or_sections)


# -- diagonals and sliding windows -----------------------------------------------------------------


def _square(x: Tensor) -> Tensor:
    """Return the matrices with the last dimension of `x` on their diagonals.

    Rows of n + 1, x first and zeros after it, laid end to end and cut after n * n, put element i at row i, column i.
    """
    *batch, n = x._shape
    rank = len(batch)
    wide = reshape(pad_dim(unsqueeze(x, -1), rank + 1, 0, n), (*batch, n * (n + 1)))
    return reshape(window(wide, rank, 0, n * n), (*batch, n, n))


@composite(family="movement", gradient_name="DiagEmbedBackward0")
def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices in dimensions dim1 and dim2 with the last dimension on their diagonal `offset`; 0 elsewhere."""
    rank = len(input._shape) + 1
    if not input._shape:
        raise IndexError(
            "Dimension out of range (expected to be in range of [-1, 0], but got -1): diag_embed needs a "
            "tensor with at least one dimension"
        )
    first, second = normalize_dim(dim1, rank), normalize_dim(dim2, rank)
    if first == second:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    n = input._shape[-1]
    side = n + abs(offset)
    if n:
        return contiguous(_place_diagonal(_square(input), side, side, offset, first, second))
    zeros = fill((*input._shape[:-1], side, side), zero_of(input.dtype), input.dtype, input.device)
    return contiguous(_movedim(zeros, (rank - 2, rank - 1), (first, second)))


def _place_diagonal(
    square: Tensor, rows: int, columns: int, offset: int, dim1: int, dim2: int
) -> Tensor:
    """Return matrices of rows x columns with `square` at diagonal `offset`, in dimensions dim1 and dim2."""
    rank, n = len(square._shape), square._shape[-1]
    above, left = max(-offset, 0), max(offset, 0)
    square = pad_dim(square, rank - 2, above, rows - above - n)
    square = pad_dim(square, rank - 1, left, columns - left - n)
    return _movedim(square, (rank - 2, rank - 1), (dim1, dim2))


@composite(family="movement", traced=True)
def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The view of diagonal `offset` of dimensions dim1 and dim2, as a new last dimension."""
    shape, strides = input._shape, input._strides
    rank = len(shape)
    first, second = normalize_dim(dim1, rank), normalize_dim(dim2, rank)
    if first == second:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    rows, columns = shape[first], shape[second]
    n = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    start = max(offset, 0) * strides[second] + max(-offset, 0) * strides[first] if n else 0
    kept = [d for d in range(rank) if d not in (first, second)]

    def vjp(g: Tensor) -> Tensor:
        """Return zeros with the cotangent on the diagonal."""
        if not n:
            return fill(shape, 0, g.dtype, g.device)
        return _place_diagonal(_square(g), rows, columns, offset, first, second)

    return as_view(
        input,
        (*(shape[d] for d in kept), n),
        (*(strides[d] for d in kept), strides[first] + strides[second]),
        input._offset + start,
        vjp=vjp,
        name="Diagonal",
    )


@composite(family="movement")
def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """The matrix with a 1-d tensor on its diagonal, or a copy of a matrix's diagonal."""
    rank = len(input._shape)
    if rank == 1:
        return diag_embed(input, diagonal)
    if rank != 2:
        raise ShapeError(f"diag(): Supports 1D or 2D tensors. Got {rank}D")
    return copy(_diagonal(input, diagonal))


_diagonal = diagonal


@composite(family="movement", gradient_name="DiagEmbedBackward0")
def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """The matrix with all elements on its diagonal."""
    return diag_embed(ravel(input), offset)


def _overlap(g: Tensor, shape: Shape, dim: int, size: int, step: int) -> Tensor:
    """Return the sum of windows `g` (window number at `dim`, place in the window last) at their places in `shape`.

    Windows are cut in blocks of `step`; block k of window j belongs to block j + k of the result. Padding each row k of
    the (k, j) table by one row's length less one shifts it by k, so that a sum over k adds what belongs together.
    """
    rank, count = len(shape), g._shape[dim]
    if not count or not size or 0 in g._shape:
        return fill(shape, 0, g.dtype, g.device)
    blocks = -(-size // step)
    lead, rest = shape[:dim], shape[dim + 1 :]
    # (lead, count, rest, size) -> (lead, blocks, count, step, rest)
    g = pad_dim(g, rank, 0, blocks * step - size)
    g = reshape(g, (*lead, count, *rest, blocks, step))
    n_rest = len(rest)
    order = (
        *range(dim),
        dim + 1 + n_rest,
        dim,
        dim + 2 + n_rest,
        *range(dim + 1, dim + 1 + n_rest),
    )
    g = _permute(g, order)
    if blocks > 1:
        g = pad_dim(g, dim + 1, 0, blocks)
        g = reshape(g, (*lead, blocks * (count + blocks), step, *rest))
        total = count + blocks - 1
        g = reshape(window(g, dim, 0, blocks * total), (*lead, blocks, total, step, *rest))
        g = reduce_dims(g, "sum", (dim,))
    g = reshape(g, (*lead, (count + blocks - 1) * step, *rest))
    length = g._shape[dim]
    if length > shape[dim]:
        return window(g, dim, 0, shape[dim])
    return pad_dim(g, dim, 0, shape[dim] - length)


@composite(
    family="movement", function_in=METHOD, torch="Tensor.unfold", traced=True, geometry=("unfold",)
)
def unfold(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """The view of all windows of `size` along `dimension`, `step` apart; the window is the last dimension."""
    shape, strides = input._shape, input._strides
    dim = normalize_dim(dimension, len(shape))
    extent_, stride = (shape[dim], strides[dim]) if shape else (1, 1)
    if size > extent_:
        raise RuntimeError(
            f"maximum size for tensor at dimension {dim} is {extent_} but size is {size} "
            f"(unfold of shape {list(input._shape)})"
        )
    if step <= 0:
        raise RuntimeError(f"step is {step} but must be > 0")
    if size < 0:
        raise RuntimeError(f"size is {size} but must be >= 0")
    if not shape:
        return as_view(
            input, (size,), (1,), input._offset, vjp=lambda g: sum_to(g, ()), name="Unfold"
        )
    count = (extent_ - size) // step + 1
    return as_view(
        input,
        (*shape[:dim], count, *shape[dim + 1 :], size),
        (*strides[:dim], stride * step, *strides[dim + 1 :], stride),
        input._offset,
        vjp=lambda g: _overlap(g, shape, dim, size, step),
        name="Unfold",
    )


@composite(family="movement", geometry=("as_strided",))
def as_strided(
    input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """A view of the storage with the sizes, strides and offset given (in elements)."""
    shape, strides = tuple(size), tuple(stride)
    offset = input._offset if storage_offset is None else storage_offset
    if len(shape) != len(strides):
        raise RuntimeError("mismatch in length of strides and shape")
    if any(s < 0 for s in strides):
        raise RuntimeError(
            f"as_strided: Negative strides are not supported at the moment, got strides: {list(strides)}"
        )
    check_own_storage(input)
    last = extent(shape, strides, offset)[1]
    width, available = input.dtype.itemsize, input._storage.nbytes // input.dtype.itemsize
    if last >= available or offset < 0:
        raise RuntimeError(
            f"setStorage: sizes {list(shape)}, strides {list(strides)}, storage offset {offset}, and "
            f"itemsize {width} requiring a storage size of {(last + 1) * width} are out of bounds for "
            f"storage of size {available * width}"
        )
    return as_view(input, shape, strides, offset, name="AsStrided")


# -- the same tensor, seen otherwise ----------------------------------------------------------------


def _become(name: str, x: Tensor, seen: Any) -> Tensor:
    """Make `x` the view `seen` of its own storage."""
    if mode.grad and x.requires_grad and x.is_leaf:
        raise RuntimeError(
            f"{name}: a leaf Variable that requires grad is being used in an in-place operation."
        )
    x._shape, x._strides, x._offset, x._whole = (
        seen._shape,
        seen._strides,
        seen._offset,
        seen._whole,
    )
    if seen._grad_fn is not None:
        tape.set_history(x, seen._grad_fn)
    return x


@composite(
    family="movement", name="t_", function_in=METHOD, torch="Tensor.t_", example=Example(((4, 6),))
)
def t_(input: Tensor) -> Tensor:
    """Transpose a matrix in place: only the strides change."""
    return _become("t_", input, t(input))


@composite(
    family="movement",
    name="transpose_",
    function_in=METHOD,
    torch="Tensor.transpose_",
    example=Example(((3, 4, 2),), (0, 2)),
)
def transpose_(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Exchange two dimensions in place: only the strides change."""
    return _become("transpose_", input, _swap(input, dim0, dim1))


@composite(
    family="movement",
    name="swapaxes_",
    function_in=METHOD,
    torch="Tensor.swapaxes_",
    example=Example(((3, 4, 2),), (0, 1)),
)
def swapaxes_(input: Tensor, axis0: int, axis1: int) -> Tensor:
    """Exchange two dimensions in place: only the strides change."""
    return _become("swapaxes_", input, _swap(input, axis0, axis1))


@composite(
    family="movement",
    name="swapdims_",
    function_in=METHOD,
    torch="Tensor.swapdims_",
    example=Example(((3, 4, 2),), (1, 2)),
)
def swapdims_(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Exchange two dimensions in place: only the strides change."""
    return _become("swapdims_", input, _swap(input, dim0, dim1))


@composite(
    family="movement",
    name="squeeze_",
    function_in=METHOD,
    torch="Tensor.squeeze_",
    example=Example(((3, 1, 2),)),
)
def squeeze_(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Drop dimensions of size 1 in place."""
    return _become("squeeze_", input, squeeze(input, dim))


@composite(
    family="movement",
    name="unsqueeze_",
    function_in=METHOD,
    torch="Tensor.unsqueeze_",
    example=Example(((3, 2),), (1,)),
)
def unsqueeze_(input: Tensor, dim: int) -> Tensor:
    """Add a dimension of size 1 in place."""
    return _become("unsqueeze_", input, unsqueeze(input, dim))


@composite(
    family="movement",
    name="as_strided_",
    function_in=("torch", "Tensor"),
    torch="Tensor.as_strided_",
    example=Example(((4, 6),), ((3, 2), (6, 2), 1)),
)
def as_strided_(
    input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """See the same storage with other sizes, strides and offset (in elements)."""
    return _become("as_strided_", input, as_strided(input, size, stride, storage_offset))


# -- parts replaced ---------------------------------------------------------------------------------


def _replaced(name: str, input: Tensor, src: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
    out = clone(input)
    target = part(out)
    if target._shape != src._shape:
        raise ShapeError(
            f"{name}: expected src to have a size equal to the part of self that it replaces. src size = "
            f"{list(src._shape)}, part size = {list(target._shape)}"
        )
    _write(target, cast_to(src, input.dtype))
    return out


@composite(family="movement", gradient_name="SelectScatterBackward0")
def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """A copy with `src` in place of input.select(dim, index)."""
    return _replaced("select_scatter", input, src, lambda x: select(x, dim, index))


@composite(family="movement", gradient_name="SliceScatterBackward0")
def slice_scatter(
    input: Tensor,
    src: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    """A copy with `src` in place of the slice start:end:step of `dim`."""
    return _replaced("slice_scatter", input, src, lambda x: slice_(x, dim, start, end, step))


@composite(family="movement", gradient_name="DiagonalScatterBackward0")
def diagonal_scatter(
    input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """A copy with `src` in place of input.diagonal(offset, dim1, dim2)."""
    return _replaced("diagonal_scatter", input, src, lambda x: diagonal(x, offset, dim1, dim2))


# -- copies ----------------------------------------------------------------------------------------


def laid_out(strides: Shape, make: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return `make` of x, new memory of its shape, with the strides given, which leave no gaps."""
    order = None if is_contiguous(x._shape, strides) else memory_order(x._shape, strides)
    out = make(x) if order is None else in_order(order, make, x)
    # The strides of dims of one element are free. What nobody else has, it is no view of.
    out._strides, out._base = strides, None
    return out


def in_order(order: tuple[int, ...], make: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return `make` of x with its dims in `order`, seen in the old order again: keeps a dense layout."""
    inverse = tuple(sorted(range(len(order)), key=order.__getitem__))
    return _permute(make(_permute(x, order)), inverse)


def strides_for(shape: Shape, strides: Shape, memory_format: MemoryFormat | None) -> Shape:
    """Return the strides of a new tensor in a memory format; by default in the layout of the view given."""
    order = format_order(memory_format, len(shape))
    if order is not None:
        return format_strides(shape, order)
    if str(memory_format).endswith("contiguous_format"):
        return contiguous_strides(shape)
    return strides_like(shape, strides)


@composite(family="movement", torch="clone")
def clone(input: Tensor, *, memory_format: MemoryFormat | None = None) -> Tensor:
    """A copy in new memory, by default with its dims in the order that they have in `input`."""
    return laid_out(strides_for(input._shape, input._strides, memory_format), copy, input)


@composite(family="movement", function_in=METHOD, torch="Tensor.contiguous")
def contiguous(input: Tensor, memory_format: MemoryFormat | None = None) -> Tensor:
    """The tensor itself when its elements lie in row-major order, else a copy that is so."""
    order = format_order(memory_format, len(input._shape))
    if order is not None:
        there = lies_in(input._shape, input._strides, order)
        return input if there else clone(input, memory_format=memory_format)
    return input if is_contiguous(input._shape, input._strides) else copy(input)


# -- joining ---------------------------------------------------------------------------------------


def _joint_dtype(tensors: Sequence[Tensor]) -> DType:
    dtype = tensors[0].dtype
    for other in tensors:
        if other.dtype is not dtype:
            dtype = promote_types(dtype, other.dtype)
    return dtype


def _listed(name: str, tensors: Any) -> tuple[Tensor, ...]:
    if not isinstance(tensors, (list, tuple)):
        raise TypeError(
            f"{name}(): argument 'tensors' (position 1) must be tuple of Tensors, not {type(tensors).__name__}"
        )
    for i, part in enumerate(tensors):
        if not isinstance(part, Tensor):
            raise TypeError(
                f"{name}(): expected Tensor as element {i} in argument 0, but got {type(part).__name__}"
            )
    return tuple(tensors)


def _shapes(tensors: Sequence[Tensor]) -> str:
    """Return the shapes of tensors for a message, the first few of many."""
    shown = ", ".join(str(list(t._shape)) for t in tensors[:6])
    return shown + (f", ... ({len(tensors)} tensors)" if len(tensors) > 6 else "")


def join(tensors: Sequence[Tensor], dim: int) -> Tensor:
    """What `cat` computes, for other operations: autocast does not see it."""
    tensors = _listed("cat", tensors)
    if not tensors:
        raise ValueError("torch.cat(): expected a non-empty list of Tensors")
    for i, part in enumerate(tensors):
        if not part._shape:
            raise RuntimeError(
                f"zero-dimensional tensor (at position {i}) cannot be concatenated: cat joins along a "
                "dimension that exists; use stack, or reshape(1)"
            )
    dtype, device = _joint_dtype(tensors), tensors[0].device
    # PyTorch's legacy rule: tensors of shape (0,) join with anything.
    parts = [(i, p) for i, p in enumerate(tensors) if p._shape != (0,)]
    first = parts[0][1]._shape if parts else (0,)
    dim = normalize_dim(dim, len(first))
    total = 0
    for i, part in parts:
        shape = part._shape
        if part.device != device:
            raise DeviceError(
                f"cat: Expected all tensors to be on the same device, but found at least two devices, "
                f"{device} and {part.device}! Move them with .to({str(device)!r})."
            )
        if len(shape) != len(first):
            raise ShapeError(
                f"Tensors must have same number of dimensions: got {len(first)} and {len(shape)} "
                f"(cat along dimension {dim} of shapes {_shapes(tensors)}): use unsqueeze, or stack for "
                "a new dimension"
            )
        for d, (a, b) in enumerate(zip(first, shape, strict=True)):
            if a != b and d != dim:
                raise ShapeError(
                    f"Sizes of tensors must match except in dimension {dim}. Expected size {a} but got "
                    f"size {b} for tensor number {i} in the list (cat of shapes {_shapes(tensors)}): "
                    f"dimension {d} differs; join along that one, or pad it"
                )
        total += shape[dim]
    out = empty((*first[:dim], total, *first[dim + 1 :]), dtype, device, tensors)
    starts: list[int | None] = [None] * len(tensors)
    with unrecorded():
        start = 0
        for i, part in parts:
            starts[i] = start
            length = part._shape[dim]
            if numel(part._shape):
                source = part if part.dtype is dtype else cast_to(part, dtype)
                _write(window(out, dim, start, length), source)
            start += length
    shapes = [p._shape for p in tensors]

    def rule(g: Tensor) -> tuple[Tensor, ...]:
        """Return each operand's window of the cotangent."""
        return tuple(
            fill(shape, 0, g.dtype, g.device) if at is None else window(g, dim, at, shape[dim])
            for at, shape in zip(starts, shapes, strict=True)
        )

    return tape.attach(out, "Cat", tensors, rule)


@composite(
    family="movement",
    function_in=("torch",),
    autocast=Autocast(cpu="promote"),
    out="cast",
    layout=channels_last_together,
    direct=("cat",),
    aten=("cat",),
    overlap="none",
)
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The tensors one after another along `dim`; types are promoted."""
    return join(tensors, dim)


@composite(family="movement", function_in=("torch",), autocast=Autocast(cpu="promote"), out="cast")
def concat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Another name of cat."""
    return join(tensors, dim)


@composite(family="movement", function_in=("torch",), autocast=Autocast(cpu="promote"), out="cast")
def concatenate(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None) -> Tensor:
    """Another name of cat."""
    return join(tensors, dim if axis is None else axis)


@composite(
    family="movement",
    function_in=("torch",),
    autocast=Autocast(cpu="promote"),
    out="cast",
    gradient_name="StackBackward0",
    traced=True,
)
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The tensors, all of one shape, along a new dimension `dim`."""
    tensors = _listed("stack", tensors)
    if not tensors:
        raise RuntimeError("stack expects a non-empty TensorList")
    shape = tensors[0]._shape
    for i, part in enumerate(tensors):
        if part._shape != shape:
            raise ShapeError(
                f"stack expects each tensor to be equal size, but got {list(shape)} at entry 0 and "
                f"{list(part._shape)} at entry {i}: use cat to join tensors of different sizes"
            )
    dim = normalize_dim(dim, len(shape) + 1)
    return join([unsqueeze(part, dim) for part in tensors], dim)


def _promoted(args: tuple[Any, ...], rank: Callable[[Tensor], Tensor]) -> Any:
    if len(args) == 1 and isinstance(args[0], (tuple, list)):
        return tuple(rank(x) for x in args[0])
    return rank(args[0]) if len(args) == 1 else tuple(rank(x) for x in args)


def _at_least_1d(x: Tensor) -> Tensor:
    return x if x._shape else reshape(x, (1,))


def _at_least_2d(x: Tensor) -> Tensor:
    return x if len(x._shape) >= 2 else unsqueeze(_at_least_1d(x), 0)


def _at_least_3d(x: Tensor) -> Tensor:
    return x if len(x._shape) >= 3 else unsqueeze(_at_least_2d(x), -1)


_ONE_OR_MORE = (
    "(tensor: Tensor) -> Tensor",
    "(*tensors: Tensor) -> tuple[Tensor, ...]",
    "(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]",
)


@composite(
    family="movement",
    function_in=("torch",),
    forms=_ONE_OR_MORE,
)
def atleast_1d(*tensors: Any) -> Any:
    """The tensor, or tensors, with at least one dimension."""
    return _promoted(tensors, _at_least_1d)


@composite(
    family="movement",
    function_in=("torch",),
    forms=_ONE_OR_MORE,
)
def atleast_2d(*tensors: Any) -> Any:
    """The tensor, or tensors, with at least two dimensions."""
    return _promoted(tensors, _at_least_2d)


@composite(
    family="movement",
    function_in=("torch",),
    forms=_ONE_OR_MORE,
)
def atleast_3d(*tensors: Any) -> Any:
    """The tensor, or tensors, with at least three dimensions."""
    return _promoted(tensors, _at_least_3d)


@composite(family="movement", function_in=("torch",), autocast=Autocast(cpu="promote"), out="cast")
def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors side by side: along dimension 1, or 0 for 1-d tensors."""
    parts = [_at_least_1d(x) for x in tensors]
    if not parts:
        raise RuntimeError("hstack expects a non-empty TensorList")
    return join(parts, 0 if len(parts[0]._shape) == 1 else 1)


@composite(
    family="movement",
    function_in=("torch",),
    aliases=("row_stack",),
    autocast=Autocast(cpu="promote"),
    out="cast",
)
def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors below each other, as matrices."""
    parts = [_at_least_2d(x) for x in tensors]
    if not parts:
        raise RuntimeError("vstack expects a non-empty TensorList")
    return join(parts, 0)


@composite(family="movement", function_in=("torch",), autocast=Autocast(cpu="promote"), out="cast")
def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors along dimension 2."""
    parts = [_at_least_3d(x) for x in tensors]
    if not parts:
        raise RuntimeError("dstack expects a non-empty TensorList")
    return join(parts, 2)


@composite(family="movement", function_in=("torch",), autocast=Autocast(cpu="promote"), out="cast")
def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """1-d tensors as the columns of a matrix; matrices side by side."""
    parts = [reshape(x, (x.numel(), 1)) if len(x._shape) <= 1 else x for x in tensors]
    if not parts:
        raise RuntimeError("column_stack expects a non-empty TensorList")
    return join(parts, 1)


@composite(family="movement", function_in=("torch",), gradient_name="BlockDiagBackward0")
def block_diag(*tensors: Any) -> Tensor:
    """The matrix with the tensors as blocks along its diagonal."""
    parts = []
    for i, x in enumerate(tensors):
        if len(x._shape) > 2:
            raise ShapeError(
                f"torch.block_diag: Input tensors must have 2 or fewer dimensions. Input {i} has "
                f"{len(x._shape)} dimensions"
            )
        parts.append(_at_least_2d(x))
    width = sum(p._shape[1] for p in parts)
    rows, at = [], 0
    for part in parts:
        rows.append(pad_dim(part, 1, at, width - at - part._shape[1]))
        at += part._shape[1]
    return join(rows, 0)


@composite(family="movement", function_in=("torch",))
def meshgrid(*tensors: Any, indexing: str | None = None) -> tuple[Tensor, ...]:
    """Grids of coordinates: tensor i along dimension i ("ij"), or the first two exchanged ("xy")."""
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        tensors = tuple(tensors[0])
    if not tensors:
        raise ValueError("meshgrid expects a non-empty TensorList")
    if indexing is None:
        warn_once(
            "torch.meshgrid: in an upcoming release, it will be required to pass the indexing argument."
        )
    if indexing not in (None, "ij", "xy"):
        raise RuntimeError(
            f'torch.meshgrid: indexing must be one of "xy" or "ij", but received: {indexing}'
        )
    for x in tensors:
        if len(x._shape) > 1:
            raise RuntimeError(
                f"torch.meshgrid: Expected 0D or 1D tensor in the tensor list but got: {list(x._shape)}"
            )
        if x.dtype is not tensors[0].dtype:
            raise RuntimeError("torch.meshgrid expects all tensors to have the same dtype")
    swap = indexing == "xy" and len(tensors) >= 2
    if swap:
        tensors = (tensors[1], tensors[0], *tensors[2:])
    sizes = tuple(x.numel() for x in tensors)
    grids = []
    for i, x in enumerate(tensors):
        shape = tuple(n if d == i else 1 for d, n in enumerate(sizes))
        grids.append(_expand("expand", reshape(x, shape), sizes))
    if swap:
        grids[0], grids[1] = grids[1], grids[0]
    return tuple(grids)


@composite(family="movement", function_in=("torch",))
def cartesian_prod(*tensors: Any) -> Tensor:
    """All combinations of the elements of 1-d tensors, one a row."""
    for x in tensors:
        if len(x._shape) != 1:
            raise RuntimeError(f"Expect a 1D vector, but got shape {list(x._shape)}")
    if len(tensors) == 1:
        return tensors[0]
    return stack([ravel(grid) for grid in meshgrid(*tensors, indexing="ij")], 1)


# -- repeating -------------------------------------------------------------------------------------


def _repeat(x: Tensor, counts: Shape) -> Tensor:
    shape = (1,) * (len(counts) - len(x._shape)) + x._shape
    if any(n < 0 for n in counts):
        sizes = [a * b for a, b in zip(counts, shape, strict=True)]
        raise RuntimeError(f"Trying to create tensor with negative dimension {min(sizes)}: {sizes}")
    apart = tuple(v for n in shape for v in (1, n))
    repeated = tuple(v for r, n in zip(counts, shape, strict=True) for v in (r, n))
    out = _expand("repeat", reshape(x, apart), repeated)
    out = copy(out)
    return reshape(out, tuple(r * n for r, n in zip(counts, shape, strict=True)))


@composite(
    family="movement",
    function_in=METHOD,
    torch="Tensor.repeat",
    gradient_name="RepeatBackward0",
    grows=True,
)
def repeat(input: Tensor, *args: Any, repeats: Sequence[int] | None = None) -> Tensor:
    """The tensor repeated `repeats` times along each dimension, new leading ones included."""
    counts = sizes_of("repeat", args, repeats, "repeats")
    if len(counts) < len(input._shape):
        raise RuntimeError(
            "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor"
        )
    return _repeat(input, counts)


@composite(family="movement", gradient_name="RepeatBackward0", grows=True)
def tile(input: Tensor, *args: Any, dims: Sequence[int] | None = None) -> Tensor:
    """The tensor repeated `dims` times; missing leading counts are 1."""
    counts = sizes_of("tile", args, dims, "dims") if args != ((),) else ()
    return _repeat(input, (1,) * (len(input._shape) - len(counts)) + counts)


@composite(family="movement", own_view=True)
def repeat_interleave(
    input: Tensor,
    repeats: int | Tensor | None = None,
    dim: int | None = None,
    *,
    output_size: int | None = None,
) -> Tensor:
    """Each element (or slice along `dim`) repeated in place: all `repeats` times, or each its own number of times.

    With a tensor of numbers and no output_size, their sum is read from the device.
    """
    if repeats is None:
        # repeat_interleave(repeats): the positions 0, 0, 1, ... themselves.
        counts = input
        input = iota(counts.numel(), 0, 1, int64, counts.device)
        return _repeat_each(input, counts, 0, output_size)
    if dim is None:
        input, dim = ravel(input), 0
    dim = normalize_dim(dim, len(input._shape))
    if not input._shape:
        input = reshape(input, (1,))
    if isinstance(repeats, (list, tuple)):
        repeats = TABLE["tensor"](list(repeats), device=input.device)
    if not isinstance(repeats, int):
        if repeats.numel() != 1:
            return _repeat_each(input, repeats, dim, output_size)
        repeats = int(repeats.item())
    if repeats < 0:
        raise RuntimeError("Repeats must be non-negative")
    shape = input._shape
    wide = _expand(
        "repeat_interleave",
        unsqueeze(input, dim + 1),
        (*shape[: dim + 1], repeats, *shape[dim + 1 :]),
    )
    return reshape(copy(wide), (*shape[:dim], shape[dim] * repeats, *shape[dim + 1 :]))


def _repeat_each(x: Tensor, counts: Any, dim: int, output_size: int | None) -> Tensor:
    if len(counts._shape) != 1:
        raise RuntimeError("repeats must be 0-dim or 1-dim tensor")
    if counts.dtype.kind not in ("int", "uint"):
        raise RuntimeError("repeats has to be Long or Int tensor")
    if counts.numel() != x._shape[dim]:
        raise RuntimeError(
            f"repeats must have the same size as input along dim, but got repeats.size(0) = "
            f"{counts.numel()} and input.size({dim}) = {x._shape[dim]}"
        )
    if not counts.numel():
        return x
    ends = _scan(counts if counts.dtype is int64 else cast_to(counts, int64), "sum", 0)
    if output_size is None:
        # Both numbers are read at once.
        least = reduce_dims(counts, "min", (0,))
        last = pick(ends, 0, counts.numel() - 1)
        low, total = cat((reshape(cast_to(least, int64), (1,)), reshape(last, (1,)))).tolist()
        if low < 0:
            raise RuntimeError("repeats can not be negative")
    else:
        total = output_size
    places = iota(total, 0, 1, int64, x.device)
    return TABLE["index_select"](x, dim, TABLE["searchsorted"](ends, places, right=True))


# -- order of elements -----------------------------------------------------------------------------


def _flip(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    shape, strides = x._shape, x._strides
    if not dims or 0 in shape:
        return copy(x)
    offset = x._offset + sum((shape[d] - 1) * strides[d] for d in dims)
    turned = tuple(-s if d in dims else s for d, s in enumerate(strides))
    return copy(as_view(x, shape, turned, offset, vjp=lambda g: _flip(g, dims), name="Flip"))


@composite(
    family="movement", gradient_name="FlipBackward0", layout=of_first, aten=("flip",), traced=True
)
def flip(input: Tensor, *args: Any, dims: Sequence[int] | None = None) -> Tensor:
    """A copy with the order of elements along `dims` reversed."""
    wanted = sizes_of("flip", args, dims, "dims") if args != ((),) else ()
    if not input._shape:
        return copy(input)
    return _flip(input, unique_dims(wanted, len(input._shape)))


@composite(family="movement", gradient_name="FlipBackward0")
def fliplr(input: Tensor) -> Tensor:
    """A copy with dimension 1 reversed."""
    if len(input._shape) < 2:
        raise RuntimeError("Input must be >= 2-d.")
    return _flip(input, (1,))


@composite(family="movement", gradient_name="FlipBackward0")
def flipud(input: Tensor) -> Tensor:
    """A copy with dimension 0 reversed."""
    if len(input._shape) < 1:
        raise RuntimeError("Input must be >= 1-d.")
    return _flip(input, (0,))


@composite(family="movement", gradient_name="RollBackward0", aten=("roll",), traced=True)
def roll(
    input: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] | None = ()
) -> Tensor:
    """A copy with elements shifted along `dims`, the last ones coming in at the front; no dims: over all elements."""
    shifts = (shifts,) if isinstance(shifts, int) else tuple(shifts)
    dims = () if dims is None else (dims,) if isinstance(dims, int) else tuple(dims)
    if not shifts:
        raise RuntimeError("`shifts` required")
    if not dims:
        if len(shifts) != 1:
            raise RuntimeError(
                f"shifts and dimensions must align. shifts: {len(shifts)}, dims:{len(dims)}"
            )
        return reshape(roll(ravel(input), shifts, (0,)), input._shape)
    if not input._shape:
        raise IndexError(f"Dimension specified as {dims[0]} but tensor has no dimensions")
    if len(shifts) != len(dims):
        raise RuntimeError(
            f"shifts and dimensions must align. shifts: {len(shifts)}, dims:{len(dims)}"
        )
    out = input
    for shift, d in zip(shifts, dims, strict=True):
        dim = normalize_dim(d, len(input._shape))
        size = input._shape[dim] if input._shape else 1
        if not size or not input.numel():
            continue
        shift %= size
        if shift:
            parts = (window(out, dim, size - shift, shift), window(out, dim, 0, size - shift))
            out = join(parts, dim)
    return copy(input) if out is input else out


@composite(family="movement", gradient_name="Rot90Backward0")
def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """A copy turned by k quarter turns in the plane of `dims`, from the first towards the second."""
    rank = len(input._shape)
    if len(dims) != 2:
        raise RuntimeError(f"expected total rotation dims == 2, but got dims = {len(dims)}")
    if rank < 2:
        raise RuntimeError(f"expected total dims >= 2, but got total dims = {rank}")
    a, b = normalize_dim(dims[0], rank), normalize_dim(dims[1], rank)
    if a == b:
        raise RuntimeError(
            f"expected rotation dims to be different, but got dim0 = {dims[0]} and dim1 = {dims[1]}"
        )
    match k % 4:
        case 1:
            return _swap(_flip(input, (b,)), a, b)
        case 2:
            return _flip(input, (a, b))
        case 3:
            return _swap(_flip(input, (a,)), a, b)
        case _:
            return copy(input)


# -- triangles -------------------------------------------------------------------------------------


def _distance(x: Tensor) -> Tensor:
    """Return column minus row of each place in the last two dimensions."""
    rows, columns = x._shape[-2:]
    row = reshape(iota(rows, 0, 1, int64, x.device), (rows, 1))
    return iota(columns, 0, 1, int64, x.device) - row


def _triangle(name: str, x: Tensor) -> None:
    if len(x._shape) < 2:
        raise RuntimeError(f"{name}: input tensor must have at least 2 dimensions")


@composite(
    family="movement", inplace=True, gradient_name="TrilBackward0", direct=("tril",), aten=("tril",)
)
def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """The lower triangle of matrices, up to `diagonal`; 0 elsewhere."""
    _triangle("tril", input)
    return pointwise.where(_distance(input) <= diagonal, input, zero_of(input.dtype))


@composite(
    family="movement", inplace=True, gradient_name="TriuBackward0", direct=("triu",), aten=("triu",)
)
def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """The upper triangle of matrices, from `diagonal` on; 0 elsewhere."""
    _triangle("triu", input)
    return pointwise.where(_distance(input) >= diagonal, input, zero_of(input.dtype))


# -- padding ---------------------------------------------------------------------------------------


def _reflect(x: Tensor, dim: int, low: int, high: int, name: str) -> list[Tensor | None]:
    size = x._shape[dim]
    if low >= size or high >= size:
        raise RuntimeError(
            "Argument #4: Padding size should be less than the corresponding input dimension, but got: "
            f"padding ({low}, {high}) at dimension {dim} of input {list(x._shape)}"
        )
    before = _flip(window(x, dim, 1, low), (dim,)) if low > 0 else None
    after = _flip(window(x, dim, size - 1 - high, high), (dim,)) if high > 0 else None
    return [before, after]


def _replicate(x: Tensor, dim: int, low: int, high: int, name: str) -> list[Tensor | None]:
    size = x._shape[dim]
    if not size:
        raise RuntimeError(
            f"replicate padding: expected a non-empty dimension {dim}, but got {list(x._shape)}"
        )

    def edge(at: int, count: int) -> Tensor | None:
        """Return one place of the dim, `count` times; None for 0 times."""
        shape = (*x._shape[:dim], count, *x._shape[dim + 1 :])
        return _expand(name, window(x, dim, at, 1), shape) if count > 0 else None

    return [edge(0, low), edge(size - 1, high)]


def _circular(x: Tensor, dim: int, low: int, high: int, name: str) -> list[Tensor | None]:
    size = x._shape[dim]
    if low > size or high > size:
        raise RuntimeError("Padding value causes wrapping around more than once.")
    before = window(x, dim, size - low, low) if low > 0 else None
    return [before, window(x, dim, 0, high) if high > 0 else None]


_EDGES = {"reflect": _reflect, "replicate": _replicate, "circular": _circular}


@composite(family="movement", function_in=("nn.functional",), torch="nn.functional.pad")
def pad(
    input: Tensor, pad: Sequence[int], mode: str = "constant", value: Scalar | None = None
) -> Tensor:
    """The last dimensions with borders; `pad` lists (before, after), last dimension first. Negative counts crop.

    mode: "constant" (with `value`), "reflect", "replicate" or "circular".
    """
    rank, counts = len(input._shape), [operator.index(n) for n in pad]
    if len(counts) % 2:
        raise RuntimeError(
            "Padding length must be divisible by 2: pad takes a number before and one after for each "
            f"dimension, last dimension first, and got {len(pad)}"
        )
    if len(counts) > 2 * rank:
        raise RuntimeError(
            "Padding length should be less than or equal to two times the input dimension but got padding "
            f"length {len(counts)} and input of dimension {rank}"
        )
    if mode != "constant" and mode not in _EDGES:
        raise NotImplementedError(f"Unrecognised padding mode {mode}")
    if mode != "constant":
        if value:
            raise ValueError(f'Padding mode "{mode}" doesn\'t take in value argument')
        if len(counts) // 2 not in (rank - 1, rank - 2) or len(counts) > 6:
            raise NotImplementedError(
                f"Only 2D, 3D, 4D, 5D padding with non-constant padding are supported for now: {mode} of "
                f"{len(counts) // 2} dimensions needs one or two dimensions more, and the input has {rank}"
            )
    if mode in ("reflect", "replicate") and input.dtype.kind == "bool":
        raise DTypeError(f"\"{mode}_pad\" not implemented for 'Bool': use .to(torch.uint8)")
    if mode == "replicate" or (mode == "reflect" and len(counts) < 6):
        return _pad_edges(input, counts, mode)
    return _padded(input, counts, mode, value)


@composite(name="_pad_edges", function_in=(), torch="", autocast=Autocast(cpu="fp32"))
def _pad_edges(input: Tensor, counts: list[int], mode: str) -> Tensor:
    return _padded(input, counts, mode, None)


def _padded(input: Tensor, counts: list[int], mode: str, value: Scalar | None) -> Tensor:
    rank = len(input._shape)
    low, high = [0] * rank, [0] * rank
    out = input
    for i in range(0, len(counts), 2):
        dim = rank - 1 - i // 2
        before, after = counts[i], counts[i + 1]
        size = input._shape[dim]
        if size + before + after < 0:
            raise RuntimeError(
                f"The input size {size}, plus negative padding {before} and {after} resulted in a negative "
                f"output size, which is invalid. Check dimension {dim} of your input."
            )
        start = max(-before, 0)
        cropped = out
        if before < 0 or after < 0:
            cropped = window(out, dim, start, size - start - max(-after, 0))
        # What goes round is what is left.
        whole = cropped if mode == "circular" else out
        sides: list[Tensor | None] = (
            [None, None] if mode == "constant" else _EDGES[mode](whole, dim, before, after, mode)
        )
        out = cropped
        if mode == "constant":
            low[dim], high[dim] = max(before, 0), max(after, 0)
        elif before > 0 or after > 0:
            out = join([p for p in (sides[0], out, sides[1]) if p is not None], dim)
    if any(low) or any(high):
        filler: Scalar = 0 if value is None else value
        if input.dtype.kind == "bool":
            filler = bool(filler)
        elif not input.dtype.has_gradient:
            filler = int(filler)
        out = pad_with(out, tuple(low), tuple(high), filler)
    return copy(out) if out._storage is input._storage else contiguous(out)
