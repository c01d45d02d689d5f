"""Normalisations: layer, RMS, group, batch and instance norm.

All stand on two rules: subtract the mean and divide by the standard deviation over some dims, or divide by the
root mean square. Statistics are computed in float32 for 16-bit floats. The gradient rules compute them again from
the input: within one program the compiler finds the forward pass's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from webtorch.errors import DTypeError, ShapeError
from webtorch.functions.pointwise import square
from webtorch.functions.reduce import combine_dims, count_of, mean_of
from webtorch.ir.dtype import FLOATS, DType, bfloat16, float16, float32, float64
from webtorch.ops.activation import FUNCTIONAL
from webtorch.ops.elementwise import abs as absolute
from webtorch.ops.elementwise import rsqrt, sqrt
from webtorch.ops.layout import ChannelsLastAs, row_major
from webtorch.ops.precision import is_short, to_type, widened
from webtorch.ops.record import ANEW, WHOLE, Anew, Autocast, composite
from webtorch.ops.splits import norm_over, of_examples
from webtorch.tensors.modes import mode, transforms
from webtorch.tensors.tensor import Tensor

ONE_VALUE = "Expected more than 1 value per channel when training, got input size {}"

# The distance from 1 to the next number: rms_norm's default eps.
EPSILON: dict[DType, float] = {
    float64: 2.0**-52,
    float32: 2.0**-23,
    float16: 2.0**-10,
    bfloat16: 2.0**-7,
}


def _statistics(x: Tensor, dims: tuple[int, ...], eps: Any) -> tuple[Tensor, Tensor]:
    """Return x less its mean, and 1 / standard deviation, over `dims`."""
    centred = x - mean_of(x, dims, True)
    return centred, rsqrt(mean_of(square(centred), dims, True) + eps)


def _normalized_slope(g: Tensor, x: Tensor, dims: tuple[int, ...], eps: object) -> Tensor:
    centred, scale = _statistics(x, dims, eps)
    unit = centred * scale
    return (g - mean_of(g, dims, True) - unit * mean_of(g * unit, dims, True)) * scale


@composite(
    name="_normalized",
    function_in=(),
    vjp=lambda g, _out, x, dims, eps: (_normalized_slope(g, x, dims, eps),),
)
def normalized(x: Tensor, dims: tuple[int, ...], eps: object) -> Tensor:
    """Return (x - mean) / sqrt(variance + eps) over `dims`."""
    centred, scale = _statistics(x, dims, eps)
    return centred * scale


def _rms_slope(g: Tensor, x: Tensor, dims: tuple[int, ...], eps: float) -> Tensor:
    scale = rsqrt(mean_of(square(x), dims, True) + eps)
    unit = x * scale
    return (g - unit * mean_of(g * unit, dims, True)) * scale


@composite(
    name="_rms_normalized",
    function_in=(),
    vjp=lambda g, _out, x, dims, eps: (_rms_slope(g, x, dims, eps),),
)
def rms_normalized(x: Tensor, dims: tuple[int, ...], eps: Any) -> Tensor:
    """Return x / sqrt(mean(x ** 2) + eps) over `dims`."""
    return x * rsqrt(mean_of(square(x), dims, True) + eps)


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None, dtype: DType) -> Tensor:
    """Return x * weight + bias as `dtype`; either may be None."""
    if weight is not None:
        x = x * weight
    if bias is not None:
        x = x + bias
    return to_type(x, dtype)


def _check_float(name: str, x: Tensor) -> None:
    if x.dtype.kind != "float":
        raise DTypeError(f"{name}: not implemented for {x.dtype}. Convert it with .float().")


def last_dims(
    name: str, input: Tensor, normalized_shape: Any, **affine: Tensor | None
) -> tuple[int, ...]:
    """Return the dims that `normalized_shape` names. Raises ShapeError as PyTorch does."""
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    # Of complex numbers PyTorch has this one only: the root of the mean of the squares, not of their sizes.
    if not (input.dtype.is_complex and name == "rms_norm"):
        _check_float(name, input)
    if not shape:
        raise ShapeError(
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, "
            "but got normalized_shape = ()"
        )
    for title, x in affine.items():
        if x is not None and tuple(x.shape) != shape:
            raise ShapeError(
                f"Expected {title} to be of same shape as normalized_shape, but got {title} of shape "
                f"{list(x.shape)} and normalized_shape = {list(shape)}"
            )
    if tuple(input.shape[-len(shape) :]) != shape:
        raise ShapeError(
            f"Given normalized_shape={list(shape)}, expected input with shape "
            f"[*, {', '.join(map(str, shape))}], but got input of size{list(input.shape)}"
        )
    return tuple(range(input.ndim - len(shape), input.ndim))


@composite(
    splits=norm_over("normalized_shape"),
    function_in=("torch", "nn.functional"),
    dtypes=FLOATS,
    autocast=Autocast(gpu="fp32"),
    gradient_name="NativeLayerNormBackward0",
    vjp=Anew(unread=("bias",)),
    layout=row_major,
)
def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
) -> Tensor:
    """Return input with mean 0 and variance 1 over its last dims, times weight, plus bias (Ba et al., 2016)."""
    dims = last_dims("layer_norm", input, normalized_shape, weight=weight, bias=bias)
    for other in (weight, bias):
        if other is None or other.dtype is input.dtype:
            continue
        if not (is_short(input.dtype) and other.dtype is float32):
            raise DTypeError(
                f"layer_norm: mixed dtype (CPU): all inputs must share same datatype, but the input is {input.dtype} "
                f"and the weight or bias {other.dtype}. Convert one of them, as in input.to({other.dtype})."
            )
    if 0 in input.shape:
        return _affine(input, weight, bias, input.dtype) if weight is not None else input.clone()
    return _affine(normalized(widened(input), dims, eps), weight, bias, input.dtype)


@composite(
    splits=norm_over("normalized_shape"),
    function_in=("torch", "nn.functional"),
    dtypes=FLOATS,
    autocast=Autocast(gpu="fp32"),
    gradient_name="FusedRmsNormBackward0",
    vjp=ANEW,
    # PyTorch multiplies by the weight last.
    leads=lambda _input, _shape, weight, _eps: None if weight is None else (1, 0),
    layout=ChannelsLastAs(0),
)
def rms_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Return input / root mean square over its last dims, times weight (Zhang and Sennrich, 2019)."""
    dims = last_dims("rms_norm", input, normalized_shape, weight=weight)
    if 0 in input.shape:
        return _affine(input, weight, None, input.dtype) if weight is not None else input.clone()
    # 16-bit inputs are computed in float32, and PyTorch's default eps is that of the type computed in.
    wide = widened(input)
    unit = rms_normalized(wide, dims, EPSILON[wide.dtype.to_real()] if eps is None else eps)
    return _affine(unit, weight, None, input.dtype)


def _per_channel(x: Tensor | None, rank: int) -> Any:
    """Return a vector over channels with the shape that broadcasts against (N, C, ...)."""
    return None if x is None else x.reshape((1, -1) + (1,) * (rank - 2))


def _check_channels(name: str, channels: int, **vectors: Any) -> None:
    for title, x in vectors.items():
        if x is not None and x.numel() != channels:
            raise ShapeError(
                f"{title} should contain {channels} elements not {x.numel()} ({name}: one for each channel)"
            )


@composite(
    splits=of_examples,
    function_in=("torch", "nn.functional"),
    dtypes=FLOATS,
    autocast=Autocast(gpu="fp32"),
    gradient_name="NativeGroupNormBackward0",
    vjp=Anew(unread=("bias",)),
    layout=ChannelsLastAs(0),
)
def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
) -> Tensor:
    """Return input (N, C, ...) with mean 0 and variance 1 in each group of channels (Wu and He, 2018)."""
    _check_float("group_norm", input)
    if input.ndim < 2:
        raise ShapeError(
            f"group_norm: Expected at least 2 dimensions for input tensor but received {input.ndim}"
        )
    if num_groups <= 0:
        raise ShapeError(f"Expected num groups to be greater than 0, got {num_groups} (group_norm)")
    samples, channels = input.shape[:2]
    if channels % num_groups:
        raise ShapeError(
            f"Expected number of channels in input to be divisible by num_groups, but got input of shape "
            f"{list(input.shape)} and num_groups={num_groups} (group_norm)"
        )
    _check_channels("group_norm", channels, weight=weight, bias=bias)
    if 0 in input.shape:
        # The gradients of weights are zeros.
        rank = input.ndim
        return _affine(input, _per_channel(weight, rank), _per_channel(bias, rank), input.dtype)
    size = [samples * channels // num_groups, num_groups, *input.shape[2:]]
    if math.prod(size) == num_groups:
        raise ValueError(ONE_VALUE.format(size))
    groups = widened(input).reshape((samples, num_groups, -1))
    unit = normalized(groups, (2,), eps).reshape(input.shape)
    return _affine(
        unit, _per_channel(weight, input.ndim), _per_channel(bias, input.ndim), input.dtype
    )


@composite(
    name="_channels_normalized",
    function_in=(),
    vjp=Anew(unread=("bias",)),
    # PyTorch repeats the bias last, where each sample has numbers of its own.
    leads=lambda _x, weight, bias, dims, _eps: (
        None if 0 in dims or weight is None or bias is None else (0, 2, 1)
    ),
)
def _channels_normalized(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, dims: tuple[int, ...], eps: float
) -> Tensor:
    """Return input (N, C, ...) with mean 0 and variance 1 over `dims`, times weight, plus bias."""
    unit, rank = normalized(widened(input), dims, eps), input.ndim
    return _affine(unit, _per_channel(weight, rank), _per_channel(bias, rank), input.dtype)


# What the next batch writes to the running statistics is not what this one was normalised by.
@composite(name="_channels_scaled", function_in=(), vjp=ANEW, saves_values=True)
def _channels_scaled(
    input: Tensor,
    mean: Tensor,
    variance: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    """Return input (N, C, ...) normalised by a mean and a variance of each channel, times weight, plus bias."""
    m, v, w, b = (_per_channel(x, input.ndim) for x in (mean, variance, weight, bias))
    return _affine((widened(input) - m) * rsqrt(widened(v) + eps), w, b, input.dtype)


def _update_running(
    running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Any,
    variance: Tensor,
    momentum: Any,
) -> None:
    """Move the running statistics towards those of this batch, in place."""
    for running, now in ((running_mean, mean), (running_var, variance)):
        if running is not None:
            if now._levels and not running._levels:
                raise RuntimeError(
                    "Batch norm got a batched tensor as input while the running_mean or running_var, which "
                    "will be updated in place, were not batched.\nIf you are using a module and do not "
                    "need eval mode, please set `track_running_stats` to be False.If you are using a "
                    "prebuilt module and do not need eval mode, please see the functorch website for "
                    "resources on how to patch your module to work with vmap"
                )
            wide = widened(running)
            now = to_type(now.detach(), wide.dtype).reshape(running.shape)
            if wide is running:
                running.lerp_(now, momentum)
            else:
                # Rounded once.
                running.copy_(wide.lerp(now, momentum))


def _batch_statistics(x: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return the mean and the unbiased variance over `dims`, kept."""
    mean = mean_of(x, dims, True)
    count = count_of(x.shape, dims)
    return mean, mean_of(square(x - mean), dims, True) * (count / (count - 1))


@composite(
    function_in=FUNCTIONAL,
    dtypes=FLOATS,
    autocast=WHOLE,
    gradient_name="NativeBatchNormBackward0",
    layout=ChannelsLastAs(0),
)
def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-05,
) -> Tensor:
    """Return input (N, C, ...) normalised per channel (Ioffe and Szegedy, 2015).

    In training with the statistics of this batch, and running_mean and running_var (if given) move towards them by
    `momentum` (a number or a 0-d tensor); otherwise with the running ones.
    """
    _check_float("batch_norm", input)
    if input.ndim == 1 and not input.numel():
        return input.clone()
    if input.ndim < 2:
        raise ShapeError(
            f"batch_norm: expected at least 2D input (got {input.ndim}D input). Unsqueeze a batch dim first."
        )
    if transforms.count and any(
        input in level and any(x is not None and x in level for x in (running_mean, running_var))
        for level in mode.forward
    ):
        raise RuntimeError(
            "batch_norm is not differentiable wrt running_mean and running_var, they cannot have forward grad "
            "defined: give them without tangents, as in running_mean.detach()"
        )
    channels, rank = input.shape[1], input.ndim
    _check_channels(
        "batch_norm", channels,
        running_mean=running_mean, running_var=running_var, weight=weight, bias=bias,
    )  # fmt: skip
    if training:
        if eps <= 0:
            raise ValueError(f"batch_norm eps must be positive during training, but got {eps}")
        dims = (0, *range(2, rank))
        if count_of(input.shape, dims) == 1:
            raise ValueError(ONE_VALUE.format(f"torch.Size({list(input.shape)})"))
        if 0 in input.shape:
            # Of no numbers; weight and bias have gradients all the same.
            out = input.clone()
            out = out if weight is None or not channels else out * weight[0]
            return out if bias is None or not channels else out + bias[0]
        if running_mean is not None or running_var is not None:
            # Before the result is saved for: a checkpoint computes anew up to there, and both times move them.
            statistics = _batch_statistics(widened(input.detach()), dims)
            _update_running(running_mean, running_var, *statistics, momentum)
        return _channels_normalized(input, weight, bias, dims, eps)
    if running_mean is None or running_var is None:
        raise RuntimeError(
            "batch_norm: Expected running_mean and running_var to be defined when training=False"
        )
    return _channels_scaled(input, running_mean, running_var, weight, bias, eps)


@composite(
    splits=None,
    function_in=FUNCTIONAL,
    dtypes=FLOATS,
    autocast=WHOLE,
    gradient_name="ViewBackward0",
    layout=row_major,
)
def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-05,
) -> Tensor:
    """Return input (N, C, ...) with mean 0 and variance 1 in each channel of each sample (Ulyanov et al., 2016)."""
    _check_float("instance_norm", input)
    if not use_input_stats:
        # PyTorch repeats them for each sample: their gradients come in the order of these two.
        w, b = (None if p is None else p.view(p.shape) for p in (weight, bias))
        return batch_norm(input, running_mean, running_var, w, b, False, momentum, eps)
    rank, dims = input.ndim, tuple(range(2, input.ndim))
    if rank < 3 or count_of(input.shape, dims) == 1:
        raise ValueError(
            f"Expected more than 1 spatial element when training, got input size torch.Size({list(input.shape)})"
        )
    _check_channels(
        "instance_norm", input.shape[1],
        running_mean=running_mean, running_var=running_var, weight=weight, bias=bias,
    )  # fmt: skip
    if 0 in input.shape:
        return input.clone()
    out = _channels_normalized(input, weight, bias, dims, eps)
    if running_mean is not None or running_var is not None:
        statistics = _batch_statistics(widened(input.detach()), dims)
        mean, variance = (mean_of(s, (0,), True) for s in statistics)
        _update_running(running_mean, running_var, mean, variance, momentum)
    return out


@composite(
    name="_weight_norm",
    function_in=(),
    gradient_name=lambda v, _g, dim: (
        "WeightNormInterfaceBackward0" if dim in (0, v.ndim - 1) else "MulBackward0"
    ),
    vjp=ANEW,
    # PyTorch makes one operation of norms along the first or the last dim.
    leads=lambda v, _g, dim: None if dim in (0, v.ndim - 1) else (1, 0),
)
def weight_normalized(v: Tensor, g: Tensor, dim: int) -> Tensor:
    """Return v with the norms g along `dim`, or with one norm for -1."""
    return v * (g / norm_except_dim(v, dim))


def norm_except_dim(v: Tensor, dim: int) -> Tensor:
    """Return the norms of the slices along `dim`, with sizes of 1 elsewhere; of all for -1."""
    others = tuple([d for d in range(v.ndim) if d != dim])
    return sqrt(combine_dims(square(v), "sum", others, dim != -1)) if others else absolute(v)
