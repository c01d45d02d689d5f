"""Rarer layers of aten: bags of embeddings, sampling, fractional pooling, alignment and margin losses. Floor 6.

Each calls the op table or `webtorch.nn.functional`, and its gradient is that of the same call.
"""

from __future__ import annotations

from collections.abc import Sequence

from webtorch.aten.gradients import pullback, table_gradient, to_maxima
from webtorch.aten.table import FUNCTIONS, REDUCTIONS, Function, Sizes, aten, op, ruled_as
from webtorch.functions import segment  # noqa: F401  (declares segment_reduce)
from webtorch.functions.quantize import rounded_to_levels
from webtorch.ir.dtype import Number, int64
from webtorch.nn import functional as F
from webtorch.nn import recurrence
from webtorch.ops.primitive import cast_to, copy, fill, iota, scatter
from webtorch.tensors.tensor import Tensor

# ---- bags of embeddings -------------------------------------------------------------------------

_MODES = ("sum", "mean", "max")


def _bag_of(offsets: Tensor, count: int, include_last_offset: bool) -> Tensor:
    """Return the bag that each index belongs to."""
    ends = offsets if not include_last_offset else offsets[:-1]
    places = iota(count, 0, 1, int64, offsets.device)
    return op.sum(cast_to(op.le(ends.unsqueeze(1), places.unsqueeze(0)), int64), 0) - 1


def _bag_sum(rows: Tensor, bag: Tensor, bags: int) -> Tensor:
    zeros = fill((bags, *rows._shape[1:]), 0, rows.dtype, rows.device)
    return scatter(zeros, [bag], rows, "add", "embedding_bag") if rows.numel() else zeros


@aten("_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, ...]:
    for name, x, ranks in (
        ("weight", weight, (2,)),
        ("input", indices, (1, 2)),
        ("offsets", offsets, (1,)),
    ):
        if x.ndim not in ranks:
            may = " or ".join(f"{n}D" for n in ranks)
            raise RuntimeError(
                f"{name} has to be a {may} Tensor, but got Tensor of dimension {x.ndim}"
            )
    indices, offsets = cast_to(indices, int64).reshape(-1), cast_to(offsets, int64)
    bags, count = offsets._shape[0] - include_last_offset, indices.numel()
    if not count:
        nothing = fill((bags,), 0, int64, weight.device)
        out = fill((bags, weight._shape[1]), 0, weight.dtype, weight.device)
        where = fill((bags, weight._shape[1]) if mode == 2 else (bags,), 0, int64, weight.device)
        return out, fill((0,), 0, int64, weight.device), nothing, where
    bag = _bag_of(offsets, count, include_last_offset)
    counted = fill((count,), 1, int64, weight.device)
    if padding_idx >= 0:
        counted = cast_to(op.ne(indices, padding_idx), int64)
    size = _bag_sum(counted, bag, bags)
    out = F.embedding_bag(
        indices, weight, offsets, mode=_MODES[mode], per_sample_weights=per_sample_weights,
        include_last_offset=include_last_offset, padding_idx=padding_idx if padding_idx >= 0 else None,
    )  # fmt: skip
    if mode != 2:
        return out, bag, size, op.clone(size)
    # The index whose row gave each maximum.
    rows = op.embedding(indices, weight)
    hit = op.logical_and(op.eq(rows, op.index_select(out, 0, bag)), op.gt(counted, 0).unsqueeze(1))
    places = op.where(hit, iota(count, 0, 1, int64, weight.device).unsqueeze(1), count)
    first = fill((bags, weight._shape[1]), count, int64, weight.device)
    first = op.index_reduce(first, 0, bag, places, "amin")
    found = op.index_select(indices, 0, op.clamp(first, 0, count - 1).reshape(-1))
    return out, bag, size, op.where(op.lt(first, count), found.reshape(first._shape), -1)


@aten("_embedding_bag_dense_backward")
def _embedding_bag_dense_backward(
    g: Tensor,
    indices: Tensor,
    bag: Tensor,
    size: Tensor,
    where: Tensor,
    count: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Tensor | None = None,
    padding_idx: int = -1,
) -> Tensor:
    indices = cast_to(indices, int64)
    if not indices.numel():
        return fill((count, g._shape[1]), 0, g.dtype, g.device)
    if mode == 2:
        zeros = fill((count, g._shape[1]), 0, g.dtype, g.device)
        columns = iota(g._shape[1], 0, 1, int64, g.device).unsqueeze(0).expand(g._shape)
        rows = op.clamp(where, 0)
        given = op.where(op.ge(where, 0), g, 0.0)
        return scatter(zeros, [rows, columns], given, "add", "embedding_bag")
    bag = cast_to(bag, int64)
    if mode == 1:
        g = g / op.clamp(cast_to(size, g.dtype), 1).unsqueeze(1)
    rows = op.index_select(g, 0, bag)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    return table_gradient(rows, indices, count, padding_idx, scale_grad_by_freq)


@aten("_embedding_bag_per_sample_weights_backward")
def _per_sample_weights_backward(
    g: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    bag: Tensor,
    mode: int,
    padding_idx: int = -1,
) -> Tensor:
    indices = cast_to(indices, int64)
    rows = op.embedding(indices, weight) * op.index_select(g, 0, cast_to(bag, int64))
    out = op.sum(rows, 1)
    return op.where(op.eq(indices, padding_idx), 0.0, out) if padding_idx >= 0 else out


@aten("embedding_renorm_")
def _embedding_renorm(weight: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    named = fill((weight._shape[0],), 0, int64, weight.device)
    flat = cast_to(indices.reshape(-1), int64)
    if not flat.numel():
        return copy(weight)
    named = scatter(
        named, [flat], fill(flat._shape, 1, int64, weight.device), "add", "embedding_renorm_"
    )
    norm = op.vector_norm(weight, norm_type, 1, True)
    too_long = op.logical_and(op.gt(norm, max_norm), op.gt(named, 0).unsqueeze(1))
    return op.where(too_long, weight * (max_norm / (norm + 1e-7)), weight)


# ---- pooling and sampling -----------------------------------------------------------------------


def _fractional(rank: int) -> tuple[Function, Function]:
    pool = (F.fractional_max_pool2d_with_indices, F.fractional_max_pool3d_with_indices)[rank - 2]

    def forward(
        x: Tensor, kernel: Sequence[int], output_size: Sequence[int], samples: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the maxima and their positions."""
        return tuple(pool(x, tuple(kernel), tuple(output_size), None, True, samples))

    spread = to_maxima(rank)

    def backward(
        g: Tensor, x: Tensor, kernel: Sizes, output_size: Sizes, indices: Tensor
    ) -> Tensor:
        """Return the cotangent of the input."""
        return spread(g, x, indices)

    return forward, backward


for _rank in (2, 3):
    _forward, _backward = _fractional(_rank)
    FUNCTIONS[f"fractional_max_pool{_rank}d"] = _forward
    FUNCTIONS[f"fractional_max_pool{_rank}d_backward"] = _backward


_SAMPLING = ("bilinear", "nearest", "bicubic")
_EDGES = ("zeros", "border", "reflection")


@aten("grid_sampler_2d", "grid_sampler_3d")
def _grid_sampler(x: Tensor, grid: Tensor, mode: int, edges: int, align_corners: bool) -> Tensor:
    return op.grid_sample(x, grid, _SAMPLING[mode], _EDGES[edges], align_corners)


@aten("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def _grid_sampler_backward(
    g: Tensor,
    x: Tensor,
    grid: Tensor,
    mode: int,
    edges: int,
    align_corners: bool,
    mask: Sequence[bool],
) -> tuple[Tensor, Tensor]:
    def run(a: Tensor, b: Tensor) -> Tensor:
        """Return the sampled values."""
        return _grid_sampler(a, b, mode, edges, align_corners)

    gx, gg = pullback(run, (x, grid), g, mask)
    return gx, (fill(grid._shape, 0, grid.dtype, grid.device) if gg is None and mask[1] else gg)


# ---- losses -------------------------------------------------------------------------------------


@aten("multi_margin_loss", out="exact")
def _multi_margin(
    x: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1,
    weight: Tensor | None = None,
    reduction: int = 1,
) -> Tensor:
    return F.multi_margin_loss(x, target, p, margin, weight, reduction=REDUCTIONS[reduction])


@aten("multi_margin_loss_backward")
def _multi_margin_backward(
    g: Tensor,
    x: Tensor,
    target: Tensor,
    p: Number,
    margin: Number,
    weight: Tensor | None = None,
    reduction: int = 1,
) -> Tensor:
    return pullback(lambda y: _multi_margin(y, target, p, margin, weight, reduction), (x,), g)[0]


ruled_as(F.multi_margin_loss, "multi_margin_loss")
ruled_as(F.multilabel_margin_loss, "multilabel_margin_loss")


@aten("multilabel_margin_loss_forward")
def _multilabel_margin(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    out = F.multilabel_margin_loss(x, target, reduction=REDUCTIONS[reduction])
    rows = target.reshape(-1, target._shape[-1]) if target.ndim else target.reshape(1, 1)
    # A class is a target if it is among the labels before the row's first -1.
    valid = op.eq(op.cumsum(cast_to(op.lt(rows, 0), int64), 1), 0)
    classes = iota(rows._shape[1], 0, 1, int64, x.device)
    same = op.eq(rows.unsqueeze(2), classes)
    hit = op.any(op.logical_and(same, valid.unsqueeze(2)), 1)
    return out, cast_to(hit.reshape(target._shape), x.dtype)


@aten("multilabel_margin_loss_backward")
def _multilabel_margin_backward(
    g: Tensor, x: Tensor, target: Tensor, reduction: int, is_target: Tensor
) -> Tensor:
    def run(y: Tensor) -> Tensor:
        """Return the loss."""
        return F.multilabel_margin_loss(y, target, reduction=REDUCTIONS[reduction])

    return pullback(run, (x,), g)[0]


def _lengths(values: Tensor | Sequence[int]) -> Tensor | Sequence[int]:
    return values if isinstance(values, Tensor) else list(values)


@aten("_ctc_loss", "_ctc_loss.Tensor")
def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    out = F.ctc_loss(
        log_probs,
        targets,
        _lengths(input_lengths),
        _lengths(target_lengths),
        blank,
        "none",
        zero_infinity,
    )
    # PyTorch's second result is what its own backward reads; ours follows the loss again.
    return out, fill((0,), 0, log_probs.dtype, log_probs.device)


@aten("_ctc_loss_backward", "_ctc_loss_backward.Tensor")
def _ctc_loss_backward(
    g: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    loss: Tensor,
    alpha: Number,
    blank: int,
    zero_infinity: bool = False,
) -> Tensor:
    def run(x: Tensor) -> Tensor:
        """Return the loss of log probabilities."""
        return _ctc_loss(x, targets, input_lengths, target_lengths, blank, zero_infinity)[0]

    return pullback(run, (log_probs,), g)[0]


# ---- recurrences --------------------------------------------------------------------------------


# PyTorch's list for CUDA has the kernels that stand below the layers there.
for _name in recurrence.__all__:
    ruled_as(getattr(recurrence, _name), _name)


# ---- distances ----------------------------------------------------------------------------------


@aten("_cdist_forward")
def _cdist(x: Tensor, y: Tensor, p: float, compute_mode: int | None = None) -> Tensor:
    return op.cdist(x, y, p)


@aten("_cdist_backward")
def _cdist_backward(g: Tensor, x: Tensor, y: Tensor, p: float, out: Tensor) -> Tensor:
    if not g.numel() or not x._shape[-1]:
        return fill(x._shape, 0, x.dtype, x.device)
    return pullback(lambda z: op.cdist(z, y, p), (x,), g)[0]


@aten("_pdist_forward")
def _pdist(x: Tensor, p: float = 2.0) -> Tensor:
    return op.pdist(x, p)


@aten("_pdist_backward")
def _pdist_backward(g: Tensor, x: Tensor, p: float, out: Tensor) -> Tensor:
    if not g.numel():
        return fill(x._shape, 0, x.dtype, x.device)
    return pullback(lambda z: op.pdist(z, p), (x,), g)[0]


# ---- segments, histograms -----------------------------------------------------------------------


@aten("_segment_reduce_backward")
def _segment_reduce_backward(
    g: Tensor,
    out: Tensor,
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    initial: Tensor | None = None,
) -> Tensor:
    def run(x: Tensor) -> Tensor:
        """Return the reduced segments."""
        return op.segment_reduce(
            x, reduce, lengths=lengths, offsets=offsets, axis=axis, initial=initial, unsafe=True
        )

    return pullback(run, (data,), g)[0]


@aten("histogram.bin_ct", "histogram.bins_tensor")
def _histogram(
    x: Tensor,
    bins: int | Sequence[int] = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, ...]:
    return tuple(op.histogram(x, bins, range=range, weight=weight, density=density))


@aten("_histogramdd_bin_edges")
def _histogramdd_edges(
    x: Tensor,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> list[Tensor]:
    return list(op.histogramdd(x, list(bins), range=range, weight=weight, density=density)[1])


@aten("_histogramdd_from_bin_cts", "_histogramdd_from_bin_tensors")
def _histogramdd(
    x: Tensor,
    bins: Sequence[int] | Sequence[Tensor],
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Tensor:
    return op.histogramdd(x, list(bins), range=range, weight=weight, density=density)[0]


@aten("unique_dim_consecutive")
def _unique_dim_consecutive(
    x: Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, ...]:
    return tuple(op.unique_consecutive(x, True, True, dim))


# ---- attention's softmax, quantisation, weight norm ---------------------------------------------


@aten("_masked_softmax")
def _masked_softmax(
    x: Tensor, mask: Tensor, dim: int | None = None, mask_type: int | None = None
) -> Tensor:
    dim = x.ndim - 1 if dim is None else dim
    if mask.ndim != x.ndim and mask_type == 1:
        mask = mask.reshape(mask._shape[0], 1, 1, mask._shape[1])
    hidden = op.expand(mask, x._shape) if mask._shape != x._shape else mask
    return op.softmax(op.where(hidden, float("-inf"), x), dim)


@aten("_masked_softmax_backward")
def _masked_softmax_backward(
    g: Tensor, out: Tensor, mask: Tensor, dim: int | None = None
) -> Tensor:
    dim = out.ndim - 1 if dim is None else dim
    weighted = g * out
    return op.where(mask, 0.0, weighted - out * op.sum(weighted, dim, True))


@aten("fake_quantize_per_tensor_affine_cachemask")
def _fake_quantize(
    x: Tensor, scale: float, zero_point: int, low: int, high: int
) -> tuple[Tensor, Tensor]:
    return rounded_to_levels(x, scale, zero_point, low, high)


@aten("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def _fake_quantize_tensors(
    x: Tensor, scale: Tensor, zero_point: Tensor, enabled: Tensor, low: int, high: int
) -> tuple[Tensor, Tensor]:
    out, mask = rounded_to_levels(x, scale.reshape(()), zero_point.reshape(()), low, high)
    on = op.ne(enabled.reshape(()), 0)
    return op.where(on, out, x), op.logical_or(mask, op.logical_not(on))


@aten("fake_quantize_per_channel_affine_cachemask")
def _fake_quantize_channels(
    x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, low: int, high: int
) -> tuple[Tensor, Tensor]:
    shape = [1] * x.ndim
    shape[axis] = -1
    return rounded_to_levels(x, scale.reshape(shape), zero_point.reshape(shape), low, high)


@aten("_weight_norm_interface")
def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    dims = tuple(d for d in range(v.ndim) if d != (dim % v.ndim))
    norm = op.vector_norm(v, 2, dims, True)
    return v * (g / norm), norm


@aten("_weight_norm_interface_backward")
def _weight_norm_backward(
    gw: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int
) -> tuple[Tensor, ...]:
    return tuple(pullback(lambda a, b: _weight_norm(a, b, dim)[0], (v, g), gw))


@aten("glu_jvp")
def _glu_jvp(out: Tensor, x: Tensor, dx: Tensor, dim: int) -> Tensor:
    (_, b), (da, db) = op.chunk(x, 2, dim), op.chunk(dx, 2, dim)
    gate = op.sigmoid(b)
    return da * gate + out * (1.0 - gate) * db


@aten("glu_backward_jvp")
def _glu_backward_jvp(_: Tensor, g: Tensor, x: Tensor, dg: Tensor, dx: Tensor, dim: int) -> Tensor:
    (a, b), (da, db) = op.chunk(x, 2, dim), op.chunk(dx, 2, dim)
    gate = op.sigmoid(b)
    slope = gate * (1.0 - gate)
    moved = dg * a + g * da + g * a * (1.0 - 2.0 * gate) * db
    return op.cat([dg * gate + g * slope * db, slope * moved], dim)
