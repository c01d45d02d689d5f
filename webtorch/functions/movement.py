"""Movement: the same elements in another shape, another order of dims, other memory.

A view is `as_view` with new shape, strides and offset, and a rule that turns the view's cotangent into the tensor's.
The rules are written with other operations, so that second derivatives follow. They keep shapes, not tensors, alive.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from webtorch.errors import ShapeError
from webtorch.ir.dtype import (
    DType,
    Scalar,
)
from webtorch.ir.view import (
    Shape,
    broadcast_shapes,
    contiguous_strides,
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
from webtorch.ops.primitive import (
    as_view,
    conjugate,
    copy,
    seen_as,
)
from webtorch.ops.purity import warn_once
from webtorch.ops.record import Example, Family, composite
from webtorch.ops.splits import by_parts, same
from webtorch.tensors import tape
from webtorch.tensors.formats import channels_last, channels_last_3d
from webtorch.tensors.formats import memory_format as MemoryFormat
from webtorch.tensors.recorders import sum_to
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.writing import check_graph

FAMILY: Family = "movement"

METHOD: tuple[str, ...] = ("Tensor",)


# -- arguments -------------------------------------------------------------------------------------


def sizes_of(
    op: str, args: Sequence[object], named: Sequence[int] | int | None = None, what: str = "size"
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
            return tuple([_integer(op, what, v, bool(i)) for i, v in enumerate(args)])
    return tuple(args)


def _integer(op: str, what: str, value: Any, bools: bool = False) -> int:
    try:
        # PyTorch looks at the first element alone.
        if bools or type(value) is not bool:
            return operator.index(value)
        raise TypeError
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


# -- one tensor, another shape ---------------------------------------------------------------------


def _as_shape(x: Tensor, shape: Shape, strides: Shape, name: str) -> Tensor:
    return as_view(x, shape, strides, x._offset, vjp=_as_before, args=(x._shape,), name=name)


def _as_before(g: Tensor, shape: Shape) -> Tensor:
    return g if g._shape == shape else reshape(g, shape)


def _inferred(op: str, x: Tensor, sizes: Shape) -> Shape:
    try:
        return infer_shape(sizes, numel(x._shape))
    except ShapeError as error:
        raise ShapeError(
            f"{error} ({op} of shape {list(x._shape)}): the sizes must multiply up to "
            f"{numel(x._shape)}, and one of them may be -1"
        ) from None


@composite(function_in=METHOD, geometry=("view", "_reshape_alias"))
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
    how = f"to view {old.legacy} as {dtype.legacy} (different element sizes)"
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


@composite()
def reshape(input: Tensor, *args: object, shape: Sequence[int] | None = None) -> Tensor:
    """The elements in another shape; one size may be -1. A view where strides allow it, else a copy."""
    old = input._shape
    new = _inferred("reshape", input, sizes_of("reshape", args, shape, "shape"))
    strides = reshape_strides(old, input._strides, new)
    if strides is not None:
        return _as_shape(input, new, strides, "View")
    out = _as_shape(copy(input), new, contiguous_strides(new), "View")
    # Nobody has the copy: PyTorch's result is no view of it.
    out._base = None
    return out


@composite(function_in=METHOD, splits=by_parts)
def view_as(input: Tensor, other: Tensor) -> Tensor:
    """A view in the shape of `other`."""
    return view(input, other._shape)


@composite(function_in=METHOD, splits=by_parts)
def reshape_as(input: Tensor, other: Tensor) -> Tensor:
    """The elements in the shape of `other`."""
    return reshape(input, other._shape)


@composite()
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


@composite()
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


@composite()
def ravel(input: Tensor) -> Tensor:
    """The elements in one dimension, next to each other in memory."""
    return reshape(contiguous(input), (-1,)) if input.numel() else reshape(input, (0,))


def squeezed_dims(shape: Shape, dim: object) -> tuple[int, ...]:
    """Return which dimensions squeeze keeps."""
    if dim is None:
        return tuple(i for i, size in enumerate(shape) if size != 1)
    dims = unique_dims(dim if isinstance(dim, (tuple, list)) else (dim,), len(shape))
    return tuple(i for i, size in enumerate(shape) if size != 1 or i not in dims)


@composite(traced=True)
def squeeze(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Without dimensions of size 1: all of them, or those of `dim` that have size 1."""
    shape, strides = input._shape, input._strides
    kept = squeezed_dims(shape, dim)
    return _as_shape(
        input, tuple(shape[i] for i in kept), tuple(strides[i] for i in kept), "Squeeze"
    )


@composite(traced=True)
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


@composite(function_in=METHOD, grows=True)
def expand(
    input: Tensor, *args: object, size: Sequence[int] | None = None, implicit: bool = False
) -> Tensor:
    """A view in which dimensions of size 1 are repeated; -1 keeps a size."""
    return expanded("expand", input, sizes_of("expand", args, size))


def expanded(op: str, x: Tensor, size: Shape) -> Tensor:
    """Return a view expanded to `size`; -1 keeps a size. Raises ShapeError, naming `op`, where it cannot be."""
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
    # A new dimension of size 1 is laid out like one that unsqueeze makes.
    for i in range(lead - 1, -1, -1):
        if size[i] == 1 and old:
            strides[i] = shape[i + 1] * strides[i + 1]
    new = tuple(shape)
    return as_view(x, new, tuple(strides), x._offset, vjp=sum_to, args=(old,), name="Expand")


@composite(function_in=METHOD)
def expand_as(input: Tensor, other: Tensor) -> Tensor:
    """Expanded to the shape of `other`."""
    return expanded("expand_as", input, other._shape)


@composite(grows=True)
def broadcast_to(input: Tensor, size: Sequence[int]) -> Tensor:
    """Expanded to `size`."""
    return expanded("broadcast_to", input, sizes_of("broadcast_to", (size,)))


@composite(function_in=("torch",))
def broadcast_tensors(*tensors: Any) -> tuple[Tensor, ...]:
    """Views of the tensors in the shape that all of them expand to."""
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        tensors = tuple(tensors[0])
    shape = broadcast_shapes(*(t._shape for t in tensors))
    return tuple(t if t._shape == shape else expanded("expand", t, shape) for t in tensors)


# -- order of dimensions ---------------------------------------------------------------------------


def permuted(x: Tensor, dims: tuple[int, ...], name: str = "Permute") -> Tensor:
    """Return a view with dimension `dims[i]` as its i-th; `name` is that of the gradient function."""
    shape, strides = x._shape, x._strides
    inverse = tuple(sorted(range(len(dims)), key=dims.__getitem__))
    return as_view(
        x,
        tuple([shape[d] for d in dims]),
        tuple([strides[d] for d in dims]),
        x._offset,
        vjp=permuted,
        args=(inverse, name),
        name=name,
    )


@composite(traced=True)
def permute(input: Tensor, *args: object, dims: Sequence[int] | None = None) -> Tensor:
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
    return permuted(input, wanted)


def swapped(x: Tensor, dim0: int, dim1: int, name: str = "Transpose") -> Tensor:
    """Return a view with two dimensions exchanged; `name` is that of the gradient function."""
    rank = len(x._shape)
    a, b = normalize_dim(dim0, rank), normalize_dim(dim1, rank)
    order = list(range(rank))
    if rank:
        order[a], order[b] = b, a
    return permuted(x, tuple(order), name)


@composite(traced=True)
def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Dimensions dim0 and dim1 exchanged."""
    return swapped(input, dim0, dim1)


@composite()
def swapaxes(input: Tensor, axis0: int, axis1: int) -> Tensor:
    """Another name of transpose."""
    return swapped(input, axis0, axis1)


@composite()
def swapdims(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Another name of transpose."""
    return swapped(input, dim0, dim1)


@composite(traced=True)
def t(input: Tensor) -> Tensor:
    """The transpose of a matrix; 0-d and 1-d tensors as they are."""
    rank = len(input._shape)
    if rank > 2:
        raise ShapeError(
            f"t() expects a tensor with <= 2 dimensions, but self is {rank}D. Use .mT or .transpose(-2, -1)."
        )
    return permuted(input, tuple(reversed(range(rank))), "T")


def _matrix_transpose(name: str, x: Tensor) -> Tensor:
    if not x._shape:
        title = "adjoint()" if name == "adjoint" else f"Tensor.{name}"
        advice = (
            "This function is the identity in these cases."
            if name == "mT"
            else "Consider using x.conj()."
        )
        warn_once(f"{title} is deprecated on 0-D tensors. {advice}")
        return x
    if len(x._shape) < 2:
        raise ShapeError(
            f"tensor.{name} is only supported on matrices or batches of matrices. Got "
            f"{len(x._shape)}-D tensor."
        )
    return swapped(x, -2, -1)


@composite(function_in=METHOD)
def mT(input: Tensor) -> Tensor:
    """The last two dimensions exchanged (a property)."""
    return _matrix_transpose("mT", input)


@composite(function_in=METHOD)
def mH(input: Tensor) -> Tensor:
    """The conjugate transpose, which is mT for real types (a property)."""
    return conjugate(_matrix_transpose("mH", input))


@composite()
def adjoint(input: Tensor) -> Tensor:
    """The conjugate transpose, which is mT for real types."""
    return conjugate(_matrix_transpose("adjoint", input))


@composite(function_in=METHOD, name="T")
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
    return permuted(input, tuple(reversed(range(rank))))


@composite(function_in=METHOD, name="H")
def _H(input: Tensor) -> Tensor:
    """The conjugate transpose of a matrix (a property)."""
    if len(input._shape) not in (0, 2):
        raise ShapeError(
            f"tensor.H is only supported on matrices (2-D tensors). Got {len(input._shape)}-D tensor."
        )
    return conjugate(swapped(input, 0, 1) if input._shape else input)


# The properties among the entries: `functions.bind` binds them so.
PROPERTIES = ("mT", "mH", "T", "H")


def moved_dims(x: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Return a view with dimensions `source` at the places `destination`; the others keep their order."""
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
        return permuted(x, ())
    order: list[int] = [-1] * rank
    for d, place in zip(moved, places, strict=True):
        order[place] = d
    rest = iter(d for d in range(rank) if d not in moved)
    return permuted(x, tuple(next(rest) if d == -1 else d for d in order))


@composite(aliases=("moveaxis",))
def movedim(input: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Dimensions `source` moved to the places `destination`; the others keep their order."""
    return moved_dims(input, source, destination)


# -- the same tensor, seen otherwise ----------------------------------------------------------------


def become(x: Tensor, seen: Any) -> Tensor:
    """Make `x` the view `seen` of its own storage."""
    check_graph(x)
    x._shape, x._strides, x._offset, x._whole = (
        seen._shape,
        seen._strides,
        seen._offset,
        seen._whole,
    )
    if seen._grad_fn is not None:
        tape.set_history(x, seen._grad_fn)
        # Views of x lie elsewhere in it now.
        x._history += x._base is None
    x._counter.version += 1
    return x


@composite(name="t_", function_in=METHOD, example=Example(((4, 6),)))
def t_(input: Tensor) -> Tensor:
    """Transpose a matrix in place: only the strides change."""
    return become(input, t(input))


@composite(name="transpose_", function_in=METHOD, example=Example(((3, 4, 2),), (0, 2)))
def transpose_(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Exchange two dimensions in place: only the strides change."""
    return become(input, swapped(input, dim0, dim1))


@composite(name="swapaxes_", function_in=METHOD, example=Example(((3, 4, 2),), (0, 1)))
def swapaxes_(input: Tensor, axis0: int, axis1: int) -> Tensor:
    """Exchange two dimensions in place: only the strides change."""
    return become(input, swapped(input, axis0, axis1))


@composite(name="swapdims_", function_in=METHOD, example=Example(((3, 4, 2),), (1, 2)))
def swapdims_(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Exchange two dimensions in place: only the strides change."""
    return become(input, swapped(input, dim0, dim1))


@composite(name="squeeze_", function_in=METHOD, example=Example(((3, 1, 2),)))
def squeeze_(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Drop dimensions of size 1 in place."""
    return become(input, squeeze(input, dim))


@composite(name="unsqueeze_", function_in=METHOD, example=Example(((3, 2),), (1,)))
def unsqueeze_(input: Tensor, dim: int) -> Tensor:
    """Add a dimension of size 1 in place."""
    return become(input, unsqueeze(input, dim))


# -- copies ----------------------------------------------------------------------------------------


def laid_out(strides: Shape, make: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return `make` of x, new memory of its shape, with the strides given, which leave no gaps."""
    order = None if is_contiguous(x._shape, strides) else memory_order(x._shape, strides)
    out = make(x) if order is None else in_order(order, make, x)
    # The strides of dims of one element are free. What nobody else has, it is no view of.
    out._strides, out._base = strides, None
    if out._whole and strides != contiguous_strides(x._shape):
        # Images of one channel lie in two orders at once: the strides say in which.
        out._whole = False
    return out


def in_order(order: tuple[int, ...], make: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return `make` of x with its dims in `order`, seen in the old order again: keeps a dense layout."""
    inverse = tuple(sorted(range(len(order)), key=order.__getitem__))
    return permuted(make(permuted(x, order)), inverse)


def strides_for(shape: Shape, strides: Shape, memory_format: MemoryFormat | None) -> Shape:
    """Return the strides of a new tensor in a memory format; by default in the layout of the view given."""
    order = format_order(memory_format, len(shape))
    if order is not None:
        return format_strides(shape, order)
    if str(memory_format).endswith("contiguous_format"):
        return contiguous_strides(shape)
    return strides_like(shape, strides)


@composite(splits=same)
def clone(input: Tensor, *, memory_format: MemoryFormat | None = None) -> Tensor:
    """A copy in new memory, by default with its dims in the order that they have in `input`."""
    if input._levels and memory_format in (channels_last, channels_last_3d):
        raise RuntimeError(
            "NYI: Tensor.clone(memory_format) inside vmap is only supported with memory_format torch.preserve_format "
            f"or torch.contiguous_format (got {'ChannelsLast' if memory_format is channels_last else 'ChannelsLast3d'})"
        )
    return laid_out(strides_for(input._shape, input._strides, memory_format), copy, input)


@composite(splits=same, function_in=METHOD)
def contiguous(input: Tensor, memory_format: MemoryFormat | None = None) -> Tensor:
    """The tensor itself when its elements lie in row-major order, else a copy that is so."""
    if input._levels and memory_format in (channels_last, channels_last_3d):
        input.is_contiguous(memory_format=memory_format)
    order = format_order(memory_format, len(input._shape))
    if order is not None:
        there = lies_in(input._shape, input._strides, order)
        return input if there else clone(input, memory_format=memory_format)
    return input if is_contiguous(input._shape, input._strides) else copy(input)
