"""Shapes, strides and strided views over a flat storage. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from webtorch.errors import ShapeError

Shape = tuple[int, ...]


@lru_cache(maxsize=65536)
def numel(shape: Shape) -> int:
    """Return the number of elements of `shape` (1 for a 0-d shape)."""
    count = 1
    for size in shape:
        if type(size) is not int and not isinstance(size, int):
            raise TypeError(f"a size must be an int, not {type(size).__name__}")
        count *= size
    return count


@lru_cache(maxsize=65536)
def contiguous_strides(shape: Shape) -> Shape:
    """Return the row-major strides of `shape`, in elements, as PyTorch counts them (size 0 counts
    as 1).
    """
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def overlaps(shape: Shape, strides: Shape) -> bool:
    """Whether two elements of a view may share memory (exact for views whose strides nest, as all
    usual ones do).
    """
    reach = 0
    for stride, size in sorted((abs(st), s) for s, st in zip(shape, strides, strict=True) if s > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def expands_to(shape: Shape, wanted: Shape) -> bool:
    """Whether a tensor of `shape` can be expanded to `wanted`."""
    lead = len(wanted) - len(shape)
    return lead >= 0 and all(a in (1, b) for a, b in zip(shape, wanted[lead:], strict=True))


@lru_cache(maxsize=65536)
def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the shape that all of `shapes` expand to.

    Dimensions are aligned from the right; sizes in one dimension must be equal or 1.

    >>> broadcast_shapes((4, 1), (3,))
    (4, 3)

    Raises ShapeError, naming the dimension, if two sizes disagree.
    """
    rank = max((len(s) for s in shapes), default=0)
    out = [1] * rank
    for shape in shapes:
        for i, size in enumerate(reversed(shape)):
            at = rank - 1 - i
            if size == out[at] or size == 1:
                continue
            if out[at] != 1:
                raise ShapeError(
                    f"The size of tensor a ({out[at]}) must match the size of tensor b ({size}) "
                    "at non-singleton "
                    f"dimension {at}: shapes {' and '.join(map(str, shapes))} do not broadcast"
                )
            out[at] = size
    return tuple(out)


@dataclass(frozen=True, slots=True)
class View:
    """A strided window on a flat storage: element `i` lies at `offset + sum(i[d] * strides[d])`."""

    shape: Shape
    strides: Shape
    offset: int = 0

    @property
    def is_contiguous(self) -> bool:
        """Whether elements lie in row-major order without gaps (the offset does not matter)."""
        return is_contiguous(self.shape, self.strides)

    def extent(self) -> tuple[int, int]:
        """Return the lowest and highest storage position touched; (0, -1) when empty."""
        return extent(self.shape, self.strides, self.offset)


@lru_cache(maxsize=65536)
def is_contiguous(shape: Shape, strides: Shape) -> bool:
    """Whether `strides` are row-major for `shape`; dimensions of size 1 may have any stride, those of
    an empty view too.
    """
    if 0 in shape:
        return True
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1:
            if stride != step:
                return False
            step *= size
    return True


def extent(shape: Shape, strides: Shape, offset: int) -> tuple[int, int]:
    """Return the lowest and highest storage position that a view touches; (0, -1) when empty."""
    low = high = offset
    for size, stride in zip(shape, strides, strict=True):
        if size == 0:
            return 0, -1
        if stride > 0:
            high += (size - 1) * stride
        else:
            low += (size - 1) * stride
    return low, high


@lru_cache(maxsize=65536)
def reshape_strides(shape: Shape, strides: Shape, new_shape: Shape) -> Shape | None:
    """Return strides that show a view as `new_shape` without copying, or None when a copy is
    needed.

    Follows PyTorch's rule: dimensions may be merged only where they are contiguous with each other.
    """
    if numel(shape) == 0:
        return contiguous_strides(new_shape)
    # Merge the old dimensions into runs of memory that are walked with one stride.
    runs: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == size * stride:
            runs[-1] = (runs[-1][0] * size, stride)
        else:
            runs.append((size, stride))
    out = [0] * len(new_shape)
    at = len(new_shape) - 1
    for run_size, run_stride in reversed(runs):
        filled = 1
        while filled < run_size and at >= 0:
            size = new_shape[at]
            out[at] = run_stride * filled
            filled *= size
            at -= 1
        if filled != run_size:
            return None
    # Leading dimensions of size 1 take the stride PyTorch gives them.
    while at >= 0:
        if new_shape[at] != 1:
            return None
        out[at] = out[at + 1] * new_shape[at + 1] if at + 1 < len(new_shape) else 1
        at -= 1
    return tuple(out)


def wrap_dim(name: str, dim: int, rank: int) -> int:
    """Return `dim` counted from the front. A 0-d tensor has dims 0 and -1. Raises IndexError."""
    bound = max(rank, 1)
    if not -bound <= dim < bound:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-bound}, {bound - 1}], but got {dim}): {name}"
        )
    return dim % bound


def normalize_dim(dim: int, rank: int) -> int:
    """Return `dim` as 0..rank-1. Raises IndexError with PyTorch's text when out of range."""
    limit = max(rank, 1)
    if not -limit <= dim < limit:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-limit}, {limit - 1}], but got "
            f"{dim})"
        )
    return dim + limit if dim < 0 else dim


def infer_shape(shape: tuple[int, ...], count: int) -> Shape:
    """Replace one -1 in `shape` so that it holds `count` elements. Raises ShapeError as PyTorch
    does.
    """
    known = 1
    unknown = None
    for i, size in enumerate(shape):
        if size == -1:
            if unknown is not None:
                raise ShapeError("only one dimension can be inferred")
            unknown = i
        elif size < 0:
            raise ShapeError(f"invalid shape dimension {size}")
        else:
            known *= size
    if unknown is None:
        if known != count:
            raise ShapeError(f"shape '{list(shape)}' is invalid for input of size {count}")
        return tuple(shape)
    if known == 0:
        if count == 0:
            raise ShapeError(
                f"cannot reshape tensor of 0 elements into shape {list(shape)} because the "
                "unspecified dimension "
                "size -1 can be any value and is ambiguous"
            )
        raise ShapeError(f"shape '{list(shape)}' is invalid for input of size {count}")
    if count % known:
        raise ShapeError(f"shape '{list(shape)}' is invalid for input of size {count}")
    return (*shape[:unknown], count // known, *shape[unknown + 1 :])


# ---- the layout of results
# ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=65536)
def memory_order(shape: Shape, strides: Shape) -> Shape | None:
    """Return the dims from the widest to the narrowest stride, or None where the view has gaps or
    overlaps.
    """
    order = tuple(sorted(range(len(shape)), key=lambda d: (shape[d] > 1, -strides[d])))
    if not is_contiguous(tuple([shape[d] for d in order]), tuple([strides[d] for d in order])):
        return None
    return order


# Where a view lies: its first byte, its shape and strides in elements, its elements' bytes together.
Place = tuple[int, Shape, Shape, int]


def is_overwritten(read: Place, written: Place, whole: bool) -> bool:
    """Whether elements that are read lie where others are written, of two views of one memory.

    `whole`: all of them may be read at the places where they are written. Where views have gaps, PyTorch
    does not look either.
    """
    (begin, _, strides, size), (start, _, out_strides, out_size) = read, written
    if not (size and out_size) or begin >= start + out_size or start >= begin + size:
        return False
    if whole and (begin, size, strides) == (start, out_size, out_strides):
        return False
    return all(memory_order(*place[1:3]) is not None for place in (read, written))


OVERWRITTEN = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single "
    "memory location. Please clone() the tensor before performing the operation."
)


def _from_narrowest(shape: Shape, operands: tuple[Shape, ...]) -> list[int]:
    """Return the dims from the narrowest to the widest stride of the first operand that tells them
    apart; row-major where none does. As PyTorch's TensorIterator sorts them.
    """
    order = list(range(len(shape)))[::-1]

    def comparison(a: int, b: int) -> int:
        """Return 1 if dim a is wider than b, -1 if narrower, 0 if nothing tells."""
        for strides in operands:
            if strides[a] and strides[b]:
                if strides[a] != strides[b]:
                    return 1 if strides[a] > strides[b] else -1
                if shape[a] > shape[b]:
                    return 1
        return 0

    for i in range(1, len(order)):
        at = i
        for before in range(i - 1, -1, -1):
            found = comparison(order[before], order[at])
            if found > 0:
                order[before], order[at] = order[at], order[before]
                at = before
            elif found < 0:
                break
    return order


@lru_cache(maxsize=65536)
def strides_like(shape: Shape, strides: Shape) -> Shape:
    """Return the strides of a new tensor in the layout of a view: the same if it has neither gaps
    nor overlaps, else those that keep its dims in order.
    """
    if memory_order(shape, strides) is not None:
        return strides
    out = [0] * len(shape)
    step = 1
    for d in _from_narrowest(shape, (strides,)):
        out[d] = step
        step *= max(shape[d], 1)
    return tuple(out)


# Memory formats: the dims from the widest stride to the narrowest.
_FORMATS = {"channels_last": (0, 2, 3, 1), "channels_last_3d": (0, 2, 3, 4, 1)}


def format_order(memory_format: object, rank: int) -> Shape | None:
    """Return the dims in the order of torch.channels_last or channels_last_3d; None for the others.

    Raises RuntimeError where the format has another rank.
    """
    name = str(memory_format).removeprefix("torch.")
    order = _FORMATS.get(name)
    if order is not None and len(order) != rank:
        raise RuntimeError(f"required rank {len(order)} tensor to use {name} format")
    return order


def format_strides(shape: Shape, order: Shape) -> Shape:
    """Return the strides of new memory whose dims lie in `order`."""
    inner = contiguous_strides(tuple([shape[d] for d in order]))
    return tuple([inner[order.index(d)] for d in range(len(shape))])


def lies_in(shape: Shape, strides: Shape, order: Shape) -> bool:
    """Return whether a view is dense with its dims in `order`."""
    return is_contiguous(tuple([shape[d] for d in order]), tuple([strides[d] for d in order]))


@lru_cache(maxsize=65536)
def result_strides(shape: Shape, operands: tuple[tuple[Shape, Shape], ...], alike: bool) -> Shape:
    """Return the strides that PyTorch gives the result of an elementwise operation.

    `operands` are the shapes and strides of its tensors, in order, which broadcast to `shape`;
    `alike` says that there are no numbers beside them.
    """
    if alike and all(s == shape for s, _ in operands):
        if all(is_contiguous(s, st) for s, st in operands):
            return contiguous_strides(shape)
        channels_last = _FORMATS["channels_last"]
        if len(shape) == 4 and all(lies_in(s, st, channels_last) for s, st in operands):
            return format_strides(shape, channels_last)
        first = operands[0][1]
        if all(st == first for _, st in operands) and memory_order(shape, first) is not None:
            return first
    aligned = []
    for s, st in operands:
        lead = len(shape) - len(s)
        own = [0 if a == 1 and b != 1 else c for a, b, c in zip(s, shape[lead:], st, strict=True)]
        aligned.append((*(0,) * lead, *own))
    order = _from_narrowest(shape, tuple(aligned))
    if order == list(range(len(shape)))[::-1]:
        return contiguous_strides(shape)
    out = [0] * len(shape)
    step = 1
    for d in order:
        out[d] = step
        step *= shape[d]
    return tuple(out)
