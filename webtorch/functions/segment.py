"""Reductions of consecutive segments, distances of pairs."""

from __future__ import annotations

import math

from webtorch.errors import DTypeError, ShapeError
from webtorch.functions import gather_scatter, products, ranges
from webtorch.functions.pointwise import isnan, where
from webtorch.functions.reduce import _others
from webtorch.ir.dtype import Number, int32, int64
from webtorch.ir.view import normalize_dim
from webtorch.ops.precision import computed_wide
from webtorch.ops.primitive import cast_to, iota, reduce_dims
from webtorch.ops.record import NOT_FLOATS, Autocast, composite
from webtorch.tensors.tensor import Tensor


@computed_wide
def _combined_rule(
    g: Tensor, out: Tensor, x: Tensor, inside: Tensor, combine: str, dim: int, start: Number
) -> tuple[Tensor, None]:
    """Return the cotangent of each element: extremes, and what is NaN, share theirs evenly."""
    if combine == "prod":
        odd = (x == 0) | isnan(x)
        return g * where(odd, _others(x, dim) * start, out / where(odd, 1.0, x)), None
    hit = inside & ((x == out) | isnan(x))
    count = cast_to(hit, g.dtype).sum(dim, keepdim=True).clamp(min=1)
    return where(hit, g / count, 0.0), None


@composite(name="_segments_combined", function_in=(), vjp=_combined_rule)
def _segments_combined(x: Tensor, inside: Tensor, combine: str, dim: int, start: Number) -> Tensor:
    found = reduce_dims(x, combine, (dim,))
    if combine == "prod":
        return found * start
    return found.clamp(min=start) if combine == "max" else found.clamp(max=start)


@composite(
    family="index",
    function_in=("torch",),
    torch="",
    refuses=NOT_FLOATS,
    aten=("segment_reduce",),
    gradient_name="SegmentReduceBackward0",
)
def segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Number | None = None,
) -> Tensor:
    """The sum, mean, max, min or prod of parts of `data` along `axis`, given by lengths or offsets."""
    kind = {"amax": "max", "amin": "min"}.get(reduce, reduce)
    if kind not in ("sum", "mean", "max", "min", "prod"):
        raise RuntimeError(
            f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}"
        )
    if indices is not None:
        raise RuntimeError(
            "segment_reduce(): indices based reduction is not supported yet. Give lengths or offsets."
        )
    given, name = (lengths, "lengths") if offsets is None else (offsets, "offsets")
    if given is None:
        raise RuntimeError("segment_reduce(): Either lengths or offsets must be defined.")
    axis = normalize_dim(axis, data.ndim)
    if given.ndim != axis + 1:
        raise ShapeError(
            f"segment_reduce(): Expected axis to be the last dimension of {name} but got {axis}."
        )
    if given.dtype not in (int32, int64):
        raise DTypeError(
            f"\"_segment_reduce_{name}_cpu_kernel1\" not implemented for '{given.dtype.legacy}': use int32 or int64"
        )
    total = data._shape[axis]
    given = cast_to(given, int64)
    if offsets is None:
        ends = given.cumsum(-1)
        starts = ends - given
    else:
        starts, ends = given[..., :-1], given[..., 1:]
    count = ends - starts
    if not unsafe and count.numel():
        if bool((count < 0).any().item()):
            raise RuntimeError("lengths contains negative value!")
        if offsets is None and not bool((count.sum(-1) == total).all().item()):
            raise RuntimeError(
                "segment_reduce(): Expected all rows of lengths along axis to sum to "
                "data.size(lengths.dim()-1) when !unsafe."
            )
    neutral = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}[kind]
    places = iota(total, 0, 1, int64, data.device)
    # (batch, parts, total): whether an element belongs to a part.
    inside = (places < ends.unsqueeze(-1)) & (places >= starts.unsqueeze(-1))
    rest = data.ndim - axis - 1
    inside = inside.reshape((*inside._shape, *(1,) * rest))
    picked = where(inside, data.unsqueeze(axis), neutral)
    dim = axis + 1
    start = neutral if initial is None else initial
    if not total or kind in ("sum", "mean"):
        out = picked.sum(dim) + start
        if kind == "mean":
            count = count.reshape((*count._shape, *(1,) * rest))
            empty = math.nan if initial is None else start
            out = where(count > 0, out / count.clamp(min=1), empty)
        return out
    return _segments_combined(picked, inside, kind, dim, start).squeeze(dim)


@composite(
    family="index",
    function_in=("torch", "nn.functional"),
    autocast=Autocast(gpu="fp32"),
    gradient_name="PdistBackward0",
)
def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """The p-norm distances between all pairs of rows, in the order (0, 1), (0, 2), ..., (1, 2), ..."""
    if input.ndim != 2:
        raise ShapeError(f"pdist only supports 2D tensors, got: {input.ndim}D")
    if input.dtype.kind != "float":
        raise DTypeError("pdist only supports floating-point dtypes")
    if p < 0:
        raise RuntimeError("pdist only supports non-negative p values")
    count = input._shape[0]
    pairs = ranges.triu_indices(count, count, 1, device=input.device)
    first, second = (gather_scatter.index_select(input, 0, pairs[k]) for k in (0, 1))
    if not pairs._shape[1] or not input._shape[1]:
        return (first - second).sum(-1)
    return products.cdist(first.unsqueeze(1), second.unsqueeze(1), p).reshape((-1,))
