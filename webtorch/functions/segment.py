"""Reductions of consecutive segments, distances of pairs."""

from __future__ import annotations

import math

from webtorch.errors import DTypeError, ShapeError
from webtorch.functions import gather_scatter, products, ranges
from webtorch.functions.pointwise import where
from webtorch.ir.dtype import Number, int64
from webtorch.ir.view import normalize_dim
from webtorch.ops.primitive import cast_to, iota
from webtorch.ops.record import NOT_FLOATS, Autocast, composite
from webtorch.tensors.tensor import Tensor


@composite(
    family="index", function_in=("torch",), torch="", refuses=NOT_FLOATS, aten=("segment_reduce",)
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
    if reduce not in ("sum", "mean", "max", "min", "prod"):
        raise RuntimeError(f"unsupported reduction given: {reduce}")
    if lengths is None and offsets is None:
        raise RuntimeError("segment_reduce(): Either lengths or offsets must be defined.")
    if indices is not None:
        raise RuntimeError(
            "segment_reduce(): indices based reduction is not supported. Give lengths or offsets."
        )
    axis = normalize_dim(axis, data.ndim)
    if offsets is not None:
        lengths = offsets.narrow(axis, 1, offsets._shape[axis] - 1) - offsets.narrow(
            axis, 0, offsets._shape[axis] - 1
        )
    assert lengths is not None
    if lengths.ndim != axis + 1:
        raise ShapeError("segment_reduce(): Expected axis to be the last dim of lengths.")
    total = data._shape[axis]
    if not unsafe:
        if lengths.numel() and bool((lengths < 0).any().item()):
            raise RuntimeError("lengths contains negative value!")
        if (
            offsets is None
            and lengths.numel()
            and not bool((lengths.sum(-1) == total).all().item())
        ):
            raise RuntimeError(
                "segment_reduce(): Expected all rows of lengths along axis to sum to "
                "data.size(lengths.dim()-1) when !unsafe."
            )
    neutral = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}[reduce]
    ends = cast_to(lengths, int64).cumsum(-1)
    places = iota(total, 0, 1, int64, data.device)
    # (batch, parts, total): whether an element belongs to a part.
    inside = (places < ends.unsqueeze(-1)) & (places >= (ends - lengths).unsqueeze(-1))
    rest = data.ndim - axis - 1
    inside = inside.reshape((*inside._shape, *(1,) * rest))
    x = data.unsqueeze(axis)
    picked = where(inside, x, neutral)
    dim = axis + 1
    start = neutral if initial is None else initial
    count = lengths.reshape((*lengths._shape, *(1,) * rest))
    if reduce in ("sum", "mean"):
        out = picked.sum(dim)
        out = out if initial is None else out + start
        if reduce == "mean":
            empty = math.nan if initial is None else start
            out = where(count > 0, out / count.clamp(min=1), empty)
        return out
    if reduce == "prod":
        return picked.prod(dim) * start
    if not total:
        return picked.sum(dim) + start
    out = picked.amax(dim) if reduce == "max" else picked.amin(dim)
    if initial is not None:
        out = out.clamp(min=start) if reduce == "max" else out.clamp(max=start)
    return out


@composite(
    family="index",
    function_in=("torch", "nn.functional"),
    torch="nn.functional.pdist",
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
