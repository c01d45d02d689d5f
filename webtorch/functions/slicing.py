"""Slicing: views of windows, diagonals and overlapping parts, and copies in which such a part is replaced.

`window` and `pick` are what the others stand on; a rule puts the part's cotangent into zeros of the whole.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from webtorch.errors import DTypeError, ShapeError
from webtorch.functions.movement import (
    METHOD,
    become,
    clone,
    contiguous,
    moved_dims,
    permuted,
    ravel,
    reshape,
    unsqueeze,
    zero_of,
)
from webtorch.ir.dtype import (
    Scalar,
    int64,
)
from webtorch.ir.view import (
    Shape,
    extent,
    normalize_dim,
)
from webtorch.ops.primitive import (
    as_view,
    cast_to,
    check_own_storage,
    copy,
    fill,
    pad_with,
    reduce_dims,
)
from webtorch.ops.primitive import write as _write
from webtorch.ops.purity import looks
from webtorch.ops.record import TABLE, Example, Family, composite
from webtorch.tensors.batching import spread
from webtorch.tensors.made_by import several_views
from webtorch.tensors.recorders import sum_to
from webtorch.tensors.tape import Cotangents, GradFn, gradient_edge, share_history
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.views import zeros_after

FAMILY: Family = "movement"

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
        return zeros_after(g, shape)
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
        vjp=_from_window,
        args=(shape, dim, start, step),
        name="Slice",
    )


def _from_pick(g: Tensor, dim: int, index: int, size: int) -> Tensor:
    """Return zeros with `g` at position `index` of `dim`."""
    return pad_dim(unsqueeze(g, dim), dim, index, size - index - 1)


def pick(x: Tensor, dim: int, index: int) -> Tensor:
    """Return the view without `dim` at position `index`, which is in range."""
    shape, strides = x._shape, x._strides
    return as_view(
        x,
        (*shape[:dim], *shape[dim + 1 :]),
        (*strides[:dim], *strides[dim + 1 :]),
        x._offset + index * strides[dim],
        vjp=_from_pick,
        args=(dim, index, shape[dim]),
        name="Select",
    )


@composite(traced=True)
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


@composite(function_in=(), name="slice", traced=True)
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


@composite()
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


def _by_one(
    views: tuple[Tensor, ...], x: Tensor, dim: int, lengths: Sequence[int], picks: bool = False
) -> tuple[Tensor, ...]:
    """Return views of x that lie one after the other along `dim` as the results of one gradient function."""
    if len(views) > 1 and views[0]._grad_fn is not None:
        parts = x._shape, dim, tuple(lengths), picks
        share_history(views, GradFn("Split", (gradient_edge(x),), _from_parts, (), parts))
    return views


def _from_parts(gs: Cotangents, _saved: object, static: Any) -> Cotangents:
    """Return the cotangent of a whole from those of its parts, of which some may be missing."""
    shape, dim, lengths, picks = static
    pieces: list[Tensor] = []
    # How many zeros come before the next piece, and before the first.
    gap = start = 0
    for g, length in zip(gs, lengths, strict=True):
        if g is None:
            gap += length
            continue
        if gap and pieces:
            pieces.append(fill((*shape[:dim], gap, *shape[dim + 1 :]), 0, g.dtype, g.device))
        start = start if pieces else gap
        pieces.append(unsqueeze(g, dim) if picks else g)
        gap = 0
    whole = pieces[0] if len(pieces) == 1 else TABLE["cat"](pieces, dim)
    return (pad_dim(whole, dim, start, gap),)


@composite(gradient_name="UnbindBackward0", traced=True)
def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """The views at each position of `dim`."""
    dim = normalize_dim(dim, len(input._shape))
    if not input._shape:
        raise IndexError("Dimension specified as 0 but tensor has no dimensions")
    count = input._shape[dim]
    views = several_views(tuple([pick(input, dim, i) for i in range(count)]))
    return _by_one(views, input, dim, (1,) * count, True)


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
    return _by_one(several_views(_split_by(x, sizes, dim)), x, dim, sizes)


def _split_evenly(x: Tensor, length: int, dim: int) -> tuple[Tensor, ...]:
    size = x._shape[dim]
    count = max(1, -(-size // length)) if length else 1
    lengths = [length] * (count - 1) + [size - length * (count - 1)]
    return _by_one(several_views(_split_by(x, lengths, dim)), x, dim, lengths)


def _splittable(op: str, x: Tensor, dim: int) -> int:
    if not x._shape:
        raise RuntimeError(f"{op} expects at least a 1-dimensional tensor")
    return normalize_dim(dim, len(x._shape))


def _split_title(input: object, split_size_or_sections: object, dim: int = 0) -> str:
    sizes = isinstance(split_size_or_sections, (tuple, list))
    return "SplitWithSizesBackward0" if sizes else "SplitBackward0"


@composite(
    gradient_name=_split_title,
    other_names={"tensor": "input", "split_size": "split_size_or_sections"},
    traced=True,
)
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


@composite(gradient_name="SplitWithSizesBackward0", traced=True)
def split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Views of parts of the sizes listed along `dim`."""
    return _split_with_sizes(
        input, list(map(operator.index, split_sizes)), _splittable("split", input, dim)
    )


@composite(gradient_name="SplitBackward0")
def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Views of at most `chunks` parts of one size along `dim`; the last may be smaller."""
    dim = _splittable("chunk", input, dim)
    if chunks <= 0:
        raise RuntimeError(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    length = -(-input._shape[dim] // chunks)
    if not length:
        lengths = [0] * chunks
        return _by_one(several_views(_split_by(input, lengths, dim)), input, dim, lengths)
    return _split_evenly(input, length, dim)


@composite(other_names={"tensor_indices_or_sections": "indices_or_sections"})
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
    if isinstance(indices_or_sections, Tensor):
        given = indices_or_sections
        expected = "tensor_split expected tensor_indices_or_sections to"
        if given.dtype is not int64:
            raise DTypeError(f"{expected} have dtype of long, but got {given.dtype.legacy}")
        if given.ndim > 1:
            raise RuntimeError(
                f"{expected} be a zero-dimensional or one-dimensional tensor, but got a tensor with "
                f"{given.ndim} dims"
            )
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


def _named_split(name: str, x: Tensor, dim: int, rank: int, parts: object) -> tuple[Tensor, ...]:
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


_SECTIONS = {"indices": "indices_or_sections", "sections": "indices_or_sections"}


@composite(other_names=_SECTIONS)
def hsplit(input: Tensor, indices_or_sections: Sequence[int] | int) -> tuple[Tensor, ...]:
    """Views of equal parts along dimension 1 (0 for a 1-d tensor)."""
    return _named_split("hsplit", input, 0 if len(input._shape) == 1 else 1, 1, indices_or_sections)


@composite(other_names=_SECTIONS)
def vsplit(input: Tensor, indices_or_sections: Sequence[int] | int) -> tuple[Tensor, ...]:
    """Views of equal parts along dimension 0."""
    return _named_split("vsplit", input, 0, 2, indices_or_sections)


@composite(other_names=_SECTIONS)
def dsplit(input: Tensor, indices_or_sections: Sequence[int] | int) -> tuple[Tensor, ...]:
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


@composite(gradient_name="DiagEmbedBackward0")
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
    return contiguous(moved_dims(zeros, (rank - 2, rank - 1), (first, second)))


def _place_diagonal(
    square: Tensor, rows: int, columns: int, offset: int, dim1: int, dim2: int
) -> Tensor:
    """Return matrices of rows x columns with `square` at diagonal `offset`, in dimensions dim1 and dim2."""
    rank, n = len(square._shape), square._shape[-1]
    above, left = max(-offset, 0), max(offset, 0)
    square = pad_dim(square, rank - 2, above, rows - above - n)
    square = pad_dim(square, rank - 1, left, columns - left - n)
    return moved_dims(square, (rank - 2, rank - 1), (dim1, dim2))


def _from_diagonal(g: Tensor, shape: Shape, offset: int, first: int, second: int) -> Tensor:
    """Return zeros with the cotangent on the diagonal."""
    if not g._shape[-1]:
        return fill(shape, 0, g.dtype, g.device)
    return _place_diagonal(_square(g), shape[first], shape[second], offset, first, second)


@composite(traced=True)
def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The view of diagonal `offset` of dimensions dim1 and dim2, as a new last dimension."""
    shape, strides, offset = input._shape, input._strides, operator.index(offset)
    rank = len(shape)
    first, second = normalize_dim(dim1, rank), normalize_dim(dim2, rank)
    if first == second:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    rows, columns = shape[first], shape[second]
    n = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    start = max(offset, 0) * strides[second] + max(-offset, 0) * strides[first] if n else 0
    kept = [d for d in range(rank) if d not in (first, second)]

    return as_view(
        input,
        (*(shape[d] for d in kept), n),
        (*(strides[d] for d in kept), strides[first] + strides[second]),
        input._offset + start,
        vjp=_from_diagonal,
        args=(shape, offset, first, second),
        name="Diagonal",
    )


@composite()
def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """The matrix with a 1-d tensor on its diagonal, or a copy of a matrix's diagonal."""
    rank = len(input._shape)
    if rank == 1:
        return diag_embed(input, diagonal)
    if rank != 2:
        raise ShapeError(f"diag(): Supports 1D or 2D tensors. Got {rank}D")
    return copy(_diagonal(input, diagonal))


_diagonal = diagonal


@composite(gradient_name="DiagEmbedBackward0")
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
        return zeros_after(g, shape)
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
    g = permuted(g, order)
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


@composite(function_in=METHOD, traced=True, geometry=("unfold",))
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
        return as_view(input, (size,), (1,), input._offset, vjp=sum_to, args=((),), name="Unfold")
    count = (extent_ - size) // step + 1
    return as_view(
        input,
        (*shape[:dim], count, *shape[dim + 1 :], size),
        (*strides[:dim], stride * step, *strides[dim + 1 :], stride),
        input._offset,
        vjp=_overlap,
        args=(shape, dim, size, step),
        name="Unfold",
    )


@composite(geometry=("as_strided",), traced=True)
def as_strided(
    input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """A view of the storage with the sizes, strides and offset given (in elements)."""
    shape, strides = tuple(map(operator.index, size)), tuple(map(operator.index, stride))
    offset = input._offset
    if storage_offset is not None:
        offset = operator.index(storage_offset)
        # Of a view that is known the distance from its tensor is kept.
        looks()
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


@composite(
    name="as_strided_",
    function_in=("torch", "Tensor"),
    torch="Tensor.as_strided_",
    example=Example(((4, 6),), ((3, 2), (6, 2), 1)),
)
def as_strided_(
    input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """See the same storage with other sizes, strides and offset (in elements)."""
    return become(input, as_strided(input, size, stride, storage_offset))


# -- parts replaced ---------------------------------------------------------------------------------


def _replaced(name: str, input: Tensor, src: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
    # Of an input that all examples share, each gets a copy.
    out = clone(spread(input, (src,)))
    target = part(out)
    if target._shape != src._shape:
        raise ShapeError(
            f"{name}: expected src to have a size equal to the part of self that it replaces. src size = "
            f"{list(src._shape)}, part size = {list(target._shape)}"
        )
    _write(target, cast_to(src, input.dtype))
    return out


@composite(gradient_name="SelectScatterBackward0")
def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """A copy with `src` in place of input.select(dim, index)."""
    return _replaced("select_scatter", input, src, lambda x: select(x, dim, index))


@composite(gradient_name="SliceScatterBackward0")
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


@composite(gradient_name="DiagonalScatterBackward0")
def diagonal_scatter(
    input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """A copy with `src` in place of input.diagonal(offset, dim1, dim2)."""
    return _replaced("diagonal_scatter", input, src, lambda x: diagonal(x, offset, dim1, dim2))
