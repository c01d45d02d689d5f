"""Repeating and reordering of elements: repeat, tile, flip, roll, turn, and what lies beside a diagonal."""

from __future__ import annotations

from collections.abc import Sequence

from webtorch.functions import pointwise
from webtorch.functions.joining import cat, join
from webtorch.functions.movement import (
    METHOD,
    expanded,
    ravel,
    reshape,
    sizes_of,
    swapped,
    unique_dims,
    unsqueeze,
    zero_of,
)
from webtorch.functions.slicing import pick, window
from webtorch.ir.dtype import (
    int64,
)
from webtorch.ir.view import (
    Shape,
    normalize_dim,
)
from webtorch.ops.layout import ChannelsLastAs, of_first, row_major
from webtorch.ops.primitive import (
    as_view,
    cast_to,
    copy,
    iota,
    reduce_dims,
)
from webtorch.ops.primitive import scan as _scan
from webtorch.ops.record import TABLE, Family, composite
from webtorch.ops.splits import along
from webtorch.tensors.tensor import Tensor

FAMILY: Family = "movement"

# -- repeating -------------------------------------------------------------------------------------


def _repeat(x: Tensor, counts: Shape) -> Tensor:
    shape = (1,) * (len(counts) - len(x._shape)) + x._shape
    if any(n < 0 for n in counts):
        sizes = [a * b for a, b in zip(counts, shape, strict=True)]
        raise RuntimeError(f"Trying to create tensor with negative dimension {min(sizes)}: {sizes}")
    apart = tuple(v for n in shape for v in (1, n))
    repeated = tuple(v for r, n in zip(counts, shape, strict=True) for v in (r, n))
    out = expanded("repeat", reshape(x, apart), repeated)
    out = copy(out)
    return reshape(out, tuple(r * n for r, n in zip(counts, shape, strict=True)))


@composite(function_in=METHOD, gradient_name="RepeatBackward0", grows=True, traced=True)
def repeat(input: Tensor, *args: object, repeats: Sequence[int] | None = None) -> Tensor:
    """The tensor repeated `repeats` times along each dimension, new leading ones included."""
    counts = sizes_of("repeat", args, repeats, "repeats")
    if len(counts) < len(input._shape):
        raise RuntimeError(
            "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor"
        )
    return _repeat(input, counts)


@composite(gradient_name="RepeatBackward0", grows=True)
def tile(input: Tensor, *args: object, dims: Sequence[int] | None = None) -> Tensor:
    """The tensor repeated `dims` times; missing leading counts are 1."""
    counts = sizes_of("tile", args, dims, "dims") if args != ((),) else ()
    return _repeat(input, (1,) * (len(input._shape) - len(counts)) + counts)


@composite(own_view=True, looks_at=("repeats",))
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
        return TABLE["repeat_interleave"](input, counts, 0, output_size=output_size)
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
    wide = expanded(
        "repeat_interleave",
        unsqueeze(input, dim + 1),
        (*shape[: dim + 1], repeats, *shape[dim + 1 :]),
    )
    return reshape(copy(wide), (*shape[:dim], shape[dim] * repeats, *shape[dim + 1 :]))


def _repeat_each(x: Tensor, counts: Tensor, dim: int, output_size: int | None) -> Tensor:
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


def flipped(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return a copy with the order of elements along `dims` reversed; its rule is the same again."""
    shape, strides = x._shape, x._strides
    if not dims or 0 in shape:
        return copy(x)
    offset = x._offset + sum((shape[d] - 1) * strides[d] for d in dims)
    turned = tuple(-s if d in dims else s for d, s in enumerate(strides))
    return copy(as_view(x, shape, turned, offset, vjp=flipped, args=(dims,), name="Flip"))


@composite(
    splits=along("dims", moves=True),
    gradient_name="FlipBackward0",
    layout=of_first,
    aten=("flip",),
    traced=True,
)
def flip(input: Tensor, *args: object, dims: Sequence[int] | None = None) -> Tensor:
    """A copy with the order of elements along `dims` reversed."""
    wanted = sizes_of("flip", args, dims, "dims") if args != ((),) else ()
    places = unique_dims(wanted, len(input._shape) or 1)
    return flipped(input, places) if input._shape else copy(input)


@composite(gradient_name="FlipBackward0")
def fliplr(input: Tensor) -> Tensor:
    """A copy with dimension 1 reversed."""
    if len(input._shape) < 2:
        raise RuntimeError("Input must be >= 2-d.")
    return flipped(input, (1,))


@composite(gradient_name="FlipBackward0")
def flipud(input: Tensor) -> Tensor:
    """A copy with dimension 0 reversed."""
    if len(input._shape) < 1:
        raise RuntimeError("Input must be >= 1-d.")
    return flipped(input, (0,))


@composite(gradient_name="RollBackward0", layout=ChannelsLastAs(0), aten=("roll",), traced=True)
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


@composite(gradient_name="Rot90Backward0")
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
            return swapped(flipped(input, (b,)), a, b)
        case 2:
            return flipped(input, (a, b))
        case 3:
            return swapped(flipped(input, (a,)), a, b)
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


def _tril_rule(g: Tensor, _out: Tensor, _input: Tensor, diagonal: int) -> Tensor:
    return tril(g, diagonal)


def _triu_rule(g: Tensor, _out: Tensor, _input: Tensor, diagonal: int) -> Tensor:
    return triu(g, diagonal)


@composite(
    inplace=True,
    vjp=(_tril_rule,),
    complex_rule=True,
    gradient_name="TrilBackward0",
    direct=("tril",),
    aten=("tril",),
    layout=row_major,
)
def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """The lower triangle of matrices, up to `diagonal`; 0 elsewhere."""
    _triangle("tril", input)
    return pointwise.where(_distance(input) <= diagonal, input, zero_of(input.dtype))


@composite(
    inplace=True,
    vjp=(_triu_rule,),
    complex_rule=True,
    gradient_name="TriuBackward0",
    direct=("triu",),
    aten=("triu",),
    layout=row_major,
)
def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """The upper triangle of matrices, from `diagonal` on; 0 elsewhere."""
    _triangle("triu", input)
    return pointwise.where(_distance(input) >= diagonal, input, zero_of(input.dtype))
