"""What PyTorch's *_backward operators mean. Floor 6; imports the engine, not PyTorch.

Where the op table has the derivative of an elementwise formula, that is taken; where an operator is a composition, its
forward is recorded once more and differentiated by webtorch's own rules (`pullback`): nothing of the second forward is
computed except what the gradient reads. Normalisations and softmax use the results that PyTorch saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webtorch.aten.images import (
    RESIZES,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    avg_pool,
    convolution,
    padding,
)
from webtorch.aten.losses import class_weights
from webtorch.aten.norms import per_channel
from webtorch.aten.table import FUNCTIONS, Function, Sizes, aten, op
from webtorch.functions.pooling import max_pool_backward
from webtorch.ir.dtype import DType
from webtorch.ir.view import numel
from webtorch.ops.layout import ChannelsLastAs, of_operands
from webtorch.ops.precision import widened
from webtorch.ops.primitive import cast_to, conjugate, copy, fill, scatter
from webtorch.ops.record import TABLE, Elementwise, slope
from webtorch.tensors import recorders
from webtorch.tensors.engine import grad
from webtorch.tensors.modes import enable_grad
from webtorch.tensors.tensor import Tensor


def pullback(
    function: Function, inputs: Sequence[Any], g: Tensor, wanted: Sequence[bool] | None = None
) -> list[Any]:
    """Return the cotangents of `inputs` for g, the cotangent of `function(*inputs)`; None where not wanted."""
    mask = [True] * len(inputs) if wanted is None else list(wanted)
    leaves = [
        x.detach().requires_grad_(True) if w else x for x, w in zip(inputs, mask, strict=True)
    ]
    with enable_grad():
        out = function(*leaves)
    targets = [x for x, w in zip(leaves, mask, strict=True) if w]
    if not out.requires_grad:
        return [
            fill(x._shape, 0, x.dtype, x.device) if w else None
            for x, w in zip(inputs, mask, strict=True)
        ]
    found = iter(grad(out, targets, g, allow_unused=True) if targets else ())
    return [next(found) if w else None for w in mask]


def elementwise_slope(
    name: str, g: Tensor, tensors: Sequence[Tensor], numbers: Sequence[float] = ()
) -> Tensor:
    """Return the cotangent of the first tensor of an elementwise entry."""
    entry = TABLE[name]
    assert isinstance(entry, Elementwise)
    if entry.vjp is not None:
        return pullback(
            lambda x: recorders.apply(entry, (x, *tensors[1:]), numbers), (tensors[0],), g
        )[0]
    rule = slope(entry, 0)
    if rule.kind == "zero":
        return fill(tensors[0]._shape, 0, g.dtype, g.device)
    if rule.kind == "one":
        return copy(g)
    if rule.kind == "minus_one":
        return -g
    assert rule.op is not None
    return recorders.apply(
        rule.op, [g, *[tensors[i] for i in rule.tensors]], [numbers[i] for i in rule.numbers]
    )


# ---- elementwise --------------------------------------------------------------------------------


@aten("gelu_backward", layout=of_operands, direct=("gelu_backward",))
def _gelu(g: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    return elementwise_slope("_gelu_tanh" if approximate == "tanh" else "_gelu_erf", g, (x,))


def _plain(name: str) -> Function:
    return lambda g, x, *numbers: elementwise_slope(name, g, (x,), numbers)


_SILU = "silu_backward"
aten(_SILU, direct=(_SILU,), layout=of_operands)(_plain("silu"))
aten("mish_backward", layout=of_operands)(_plain("mish"))
aten("hardsigmoid_backward", layout=of_operands)(_plain("hardsigmoid"))
aten("hardswish_backward", layout=of_operands)(_plain("hardswish"))
aten("hardshrink_backward", layout=of_operands)(_plain("hardshrink"))
aten("softplus_backward", layout=of_operands)(_plain("softplus"))


@aten("softshrink_backward", layout=of_operands)
def _softshrink(g: Tensor, x: Tensor, lambd: float) -> Tensor:
    return op.where(op.le(op.abs(x), lambd), 0.0, g)


@aten("hardtanh_backward", layout=of_operands)
def _hardtanh(g: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    return op.where(op.logical_or(op.le(x, low), op.ge(x, high)), 0.0, g)


@aten("leaky_relu_backward", layout=of_operands)
def _leaky_relu(g: Tensor, x: Tensor, negative_slope: float, is_result: bool) -> Tensor:
    return op.where(op.gt(x, 0), g, g * negative_slope)


@aten("elu_backward", layout=of_operands)
def _elu(
    g: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, x: Tensor
) -> Tensor:
    if is_result:
        inner = (x + alpha * scale) * input_scale
    else:
        inner = op.exp(x * input_scale) * (alpha * scale * input_scale)
    return g * op.where(op.le(x, 0), inner, scale)


@aten("_prelu_kernel_backward", layout=of_operands)
def _prelu(g: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    positive = op.gt(x, 0)
    return op.where(positive, g, g * weight), op.where(positive, 0.0, g * x)


@aten("tanh_backward", overlap="whole", layout=of_operands, direct=("tanh_backward",))
def _tanh(g: Tensor, out: Tensor) -> Tensor:
    return op.tanh_backward(g, conjugate(out))


@aten("sigmoid_backward", overlap="whole", layout=of_operands, direct=("sigmoid_backward",))
def _sigmoid(g: Tensor, out: Tensor) -> Tensor:
    return op.sigmoid_backward(g, conjugate(out))


@aten("threshold_backward", overlap="whole", layout=of_operands, direct=("threshold_backward",))
def _threshold(g: Tensor, x: Tensor, threshold: float) -> Tensor:
    return op.threshold_backward(g, x, threshold)


@aten("log_sigmoid_backward", layout=of_operands)
def _log_sigmoid(g: Tensor, x: Tensor, buffer: Tensor) -> Tensor:
    return g * op.sigmoid(-x)


@aten("logit_backward", layout=of_operands)
def _logit(g: Tensor, x: Tensor, eps: float | None = None) -> Tensor:
    return pullback(lambda y: op.logit(y, eps), (x,), g)[0]


@aten("glu_backward")
def _glu(g: Tensor, x: Tensor, dim: int) -> Tensor:
    return pullback(lambda y: op.glu(y, dim), (x,), g)[0]


# ---- softmax ------------------------------------------------------------------------------------


@aten(
    "_softmax_backward_data",
    direct=("_softmax_backward_data",),
)
def _softmax(g: Tensor, out: Tensor, dim: int, input_dtype: DType) -> Tensor:
    weighted = widened(g) * out
    return cast_to(weighted - out * op.sum(weighted, dim, True), input_dtype)


@aten(
    "_log_softmax_backward_data",
    direct=("_log_softmax_backward_data",),
)
def _log_softmax(g: Tensor, out: Tensor, dim: int, input_dtype: DType) -> Tensor:
    wide = widened(g)
    return cast_to(wide - op.exp(out) * op.sum(wide, dim, True), input_dtype)


# ---- normalisations -----------------------------------------------------------------------------


def _through(g: Tensor, unit: Tensor, rstd: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return the cotangent of x where unit = (x - mean(x)) * rstd(x) over `dims`."""
    return rstd * (g - op.mean(g, dims, True) - unit * op.mean(g * unit, dims, True))


def _sums(
    g: Tensor, unit: Tensor, dims: tuple[int, ...], shape: Sizes, like: Tensor, mask: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the cotangents of weight and bias."""

    def total(x: Tensor) -> Tensor:
        """Return a sum over the normalised dims, in the parameter's dtype and shape."""
        return cast_to((op.sum(x, dims, True) if dims else x).reshape(shape), like.dtype)

    return total(g * unit) if mask[1] else None, total(g) if mask[2] else None


@aten("native_layer_norm_backward")
def _layer_norm(
    g: Tensor,
    x: Tensor,
    shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    like = x if weight is None else weight
    if not x.numel():
        empty = [fill(s, 0, like.dtype, x.device) for s in (x._shape, tuple(shape), tuple(shape))]
        return tuple(e if m else None for e, m in zip(empty, mask, strict=True))
    rank = x.ndim
    wide = widened(g)
    unit = (widened(x) - mean) * rstd
    gx = None
    if mask[0]:
        inner = wide if weight is None else wide * weight
        gx = cast_to(_through(inner, unit, rstd, tuple(range(rank - len(shape), rank))), x.dtype)
    outer = tuple(range(rank - len(shape)))
    return gx, *_sums(wide, unit, outer, tuple(shape), like, mask)


@aten(
    "native_group_norm_backward",
    layout=ChannelsLastAs(1),
)
def _group_norm(
    g: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    n: int,
    c: int,
    hw: int,
    groups: int,
    mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    like = x if weight is None else weight
    if not x.numel():
        empty = [fill(s, 0, like.dtype, x.device) for s in (x._shape, (c,), (c,))]
        return tuple(e if m else None for e, m in zip(empty, mask, strict=True))
    wide = widened(g).reshape(n, c, -1)
    rstd = rstd.reshape(n, groups, 1)
    unit = (widened(x).reshape(n, groups, -1) - mean.reshape(n, groups, 1)) * rstd
    gx = None
    if mask[0]:
        inner = wide if weight is None else wide * weight.reshape(1, c, 1)
        gx = cast_to(
            _through(inner.reshape(n, groups, -1), unit, rstd, (2,)).reshape(x._shape), x.dtype
        )
    return gx, *_sums(wide, unit.reshape(n, c, -1), (0, 2), (c,), like, mask)


def _batch_norm(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    training: bool,
    mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    like = x if weight is None else weight
    rank = x.ndim
    dims = (0, *range(2, rank))
    wide = widened(g)
    scale = per_channel(rstd, rank)
    unit = (widened(x) - per_channel(mean, rank)) * scale
    gx = None
    if mask[0]:
        inner = wide if weight is None else wide * per_channel(weight, rank)
        gx = cast_to(_through(inner, unit, scale, dims) if training else inner * scale, x.dtype)
    return gx, *_sums(wide, unit, dims, (x._shape[1],), like, mask)


@aten("native_batch_norm_backward", layout=ChannelsLastAs(1))
def _native_batch_norm(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    save_mean: Tensor,
    save_invstd: Tensor,
    training: bool,
    eps: float,
    mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    if training:
        return _batch_norm(g, x, weight, save_mean, save_invstd, True, mask)
    return _batch_norm(
        g, x, weight, running_mean, op.rsqrt(widened(running_var) + eps), False, mask
    )


@aten("batch_norm_backward", layout=ChannelsLastAs(1))
def _batch_norm_with_reserve(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    save_mean: Tensor,
    save_var: Tensor,
    update: bool,
    eps: float,
    mask: Sequence[bool],
    reserve: Tensor,
) -> Tensor:
    return _native_batch_norm(
        g, x, weight, running_mean, running_var, save_mean, save_var, update, eps, mask
    )


# ---- convolutions, pooling, resizing ------------------------------------------------------------


@aten(
    "convolution_backward_overrideable",
    layout=ChannelsLastAs(1, 2),
    direct=("convolution_backward_overrideable",),
)
def _convolution(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
    mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    def run(a: Tensor, b: Tensor) -> Tensor:
        """Return the convolution of two operands."""
        return convolution(
            a, b, None, stride, padding, dilation, transposed, output_padding, groups
        )

    gx, gw = pullback(run, (x, weight), g, mask[:2]) if any(mask[:2]) else (None, None)
    return gx, gw, op.sum(g, (0, *range(2, g.ndim))) if mask[2] else None


@aten("convolution_backward")
def _convolution_with_bias(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias_sizes: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
    mask: Sequence[bool],
) -> Tensor:
    return _convolution(
        g, x, weight, stride, padding, dilation, transposed, output_padding, groups, mask
    )


@aten("_convolution_double_backward")
def _convolution_twice(
    ggx: Tensor | None,
    ggw: Tensor | None,
    ggb: Tensor | None,
    g: Tensor,
    weight: Tensor,
    x: Tensor,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
    mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    options = stride, padding, dilation, transposed, output_padding, groups
    # A convolution is linear in each of both, so that its gradients are those of each alone.
    first, gg = mask[0], fill(g._shape, 0, g.dtype, g.device)
    if first and ggx is not None:
        gg = gg + convolution(ggx, weight, None, *options)
    if first and ggw is not None:
        gg = gg + convolution(x, ggw, None, *options)
    if first and ggb is not None:
        gg = gg + ggb.reshape((-1, *(1,) * (g.ndim - 2)))
    gx, gw = fill(x._shape, 0, x.dtype, x.device), fill(weight._shape, 0, x.dtype, x.device)
    if mask[1] and ggw is not None:
        gx = _convolution(g, x, ggw, *options, (True, False, False))[0]
    if mask[2] and ggx is not None:
        gw = _convolution(g, ggx, weight, *options, (False, True, False))[1]
    return tuple([found if m else None for found, m in zip((gg, gx, gw), mask, strict=True)])


def _max_pool(rank: int) -> Function:
    def run(
        g: Tensor,
        x: Tensor,
        kernel: Sizes,
        stride: Sizes,
        padding: Sizes,
        dilation: Sizes,
        ceil_mode: bool,
        indices: Tensor,
    ) -> Tensor:
        """Return the cotangent of the pooled input."""
        # Forward mode passes a tangent for `x`: only `indices` say where the maxima were.
        return max_pool_backward(
            rank, g, x, kernel, stride or None, padding, dilation, ceil_mode, indices
        )

    return run


def to_maxima(rank: int) -> Function:
    """Return what sends cotangents of a pooling's maxima to where `indices` say that they were."""

    def run(g: Tensor, x: Tensor, indices: Tensor) -> Tensor:
        """Return zeros with the cotangents added where the maxima were."""
        if not g.numel():
            return fill(x._shape, 0, g.dtype, g.device)
        lead = x._shape[:-rank]
        zeros = fill((*lead, numel(x._shape[-rank:])), 0, g.dtype, g.device)
        flat = (*lead, -1)
        spread = op.scatter_add(zeros, len(lead), indices.reshape(flat), g.reshape(flat))
        return spread.reshape(x._shape)

    return run


def _avg_pool(rank: int) -> Function:
    pool = avg_pool(rank)
    return lambda g, x, *options: pullback(lambda y: pool(y, *options), (x,), g)[0]


for _rank in (2, 3):
    _layout = ChannelsLastAs(1) if _rank == 3 else None
    aten(f"max_pool{_rank}d_with_indices_backward", layout=_layout)(_max_pool(_rank))
    FUNCTIONS[f"avg_pool{_rank}d_backward"] = _avg_pool(_rank)
    FUNCTIONS[f"adaptive_max_pool{_rank}d_backward"] = to_maxima(_rank)


@aten("_adaptive_avg_pool2d_backward", "adaptive_avg_pool2d_backward", layout=ChannelsLastAs(1))
def _adaptive_avg_pool2d(g: Tensor, x: Tensor) -> Tensor:
    return pullback(lambda y: adaptive_avg_pool2d(y, g._shape[-2:]), (x,), g)[0]


@aten("_adaptive_avg_pool3d_backward", "adaptive_avg_pool3d_backward")
def _adaptive_avg_pool3d(g: Tensor, x: Tensor) -> Tensor:
    return pullback(lambda y: adaptive_avg_pool3d(y, g._shape[-3:]), (x,), g)[0]


def _padding(mode: str) -> Function:
    run = padding(mode)
    return lambda g, x, pad: pullback(lambda y: run(y, pad), (x,), g)[0]


for _rank in (1, 2, 3):
    _layout = None if _rank == 1 else ChannelsLastAs(1)
    aten(f"reflection_pad{_rank}d_backward", layout=_layout)(_padding("reflect"))
    aten(f"replication_pad{_rank}d_backward", layout=_layout)(_padding("replicate"))


def _resize(name: str) -> Function:
    forward = FUNCTIONS[name]

    def run(
        g: Tensor, output_size: Sequence[int], input_size: Sequence[int], *rest: object
    ) -> Tensor:
        """Return the cotangent of the resized input."""
        # Resizing is linear: its gradient does not depend on where it is taken.
        x = fill(tuple(input_size), 0, g.dtype, g.device)
        return pullback(lambda y: forward(y, output_size, *rest), (x,), g)[0]

    return run


for _name in RESIZES:
    FUNCTIONS[f"{_name}_backward"] = _resize(_name)


# ---- indexing, dropout --------------------------------------------------------------------------


@aten("embedding_dense_backward")
def _embedding(
    g: Tensor, indices: Tensor, count: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    flat = indices.reshape(-1)
    return table_gradient(g.reshape(flat.numel(), -1), flat, count, padding_idx, scale_grad_by_freq)


def table_gradient(
    rows: Tensor, indices: Tensor, count: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    """Return the cotangent of a table of `count` rows from those of the rows that `indices` (1-d) took of it."""
    zeros = fill((count, rows._shape[1]), 0, rows.dtype, rows.device)
    if not indices.numel():
        return zeros
    if padding_idx >= 0:
        rows = op.where(op.eq(indices, padding_idx).unsqueeze(1), 0.0, rows)
    if scale_grad_by_freq:
        ones = fill(indices._shape, 1, rows.dtype, rows.device)
        often = scatter(
            fill((count,), 0, rows.dtype, rows.device), [indices], ones, "add", "embedding"
        )
        rows = rows / op.index_select(often, 0, indices).unsqueeze(1)
    return scatter(zeros, [indices], rows, "add", "embedding")


@aten("native_dropout_backward", layout=of_operands)
def _dropout(g: Tensor, mask: Tensor, scale: float) -> Tensor:
    return op.where(mask, g * scale, 0.0)


@aten("unfold_backward")
def _unfold(g: Tensor, sizes: Sequence[int], dim: int, size: int, step: int) -> Tensor:
    x = fill(tuple(sizes), 0, g.dtype, g.device)
    return pullback(lambda y: y.unfold(dim, size, step), (x,), g)[0]


# ---- losses -------------------------------------------------------------------------------------


@aten("nll_loss_backward", "nll_loss2d_backward")
def _nll_loss(
    g: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total: Tensor,
) -> Tensor:
    safe, weights = class_weights(x, target, weight, ignore_index)
    dim = 1 if x.ndim > 1 else 0
    each = -(weights * g)
    if reduction == 1:
        each = each / total
    # Where all are ignored, the loss is not a number and the gradient is 0.
    each = op.where(op.ne(target, ignore_index), each, 0.0)
    classes = op.arange(x._shape[dim], device=x.device).reshape((-1,) + (1,) * (x.ndim - 1 - dim))
    if safe.ndim < x.ndim:
        safe, each = safe.unsqueeze(dim), each.unsqueeze(dim)
    # A comparison instead of a scatter: every element is written once anyway.
    return op.where(op.eq(classes, safe), each, 0.0)


def _pair(name: str) -> Function:
    forward = FUNCTIONS[name]

    def run(g: Tensor, x: Tensor, y: Tensor, reduction: int = 1, *numbers: float) -> Tensor:
        """Return the cotangent of the first operand."""
        # The second derivative asks for this with one g for each element, whatever the reduction.
        each = g / numel(x._shape) if reduction == 1 and x.numel() else g
        return pullback(lambda z: forward(z, y, 0, *numbers), (x,), op.expand(each, x._shape))[0]

    return run


for _name in ("mse_loss", "smooth_l1_loss", "huber_loss"):
    FUNCTIONS[f"{_name}_backward"] = _pair(_name)


@aten("binary_cross_entropy_backward", layout=of_operands)
def _binary_cross_entropy(
    g: Tensor, x: Tensor, y: Tensor, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    # PyTorch's formula, which bounds the denominator.
    out = g * (x - y) / op.clamp(x * (1.0 - x), 1e-12)
    if weight is not None:
        out = out * weight
    return out / numel(x._shape) if reduction == 1 else out
