"""Normalisations of aten, whose operators also return the statistics. Floor 6; imports the engine, not PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from webtorch.aten.table import aten, op
from webtorch.functions.norm import last_dims
from webtorch.ir.dtype import DType, float32, uint8
from webtorch.ir.view import numel
from webtorch.ops.layout import ChannelsLastAs
from webtorch.ops.precision import widened
from webtorch.ops.primitive import cast_to, copy, fill
from webtorch.tensors.tensor import Tensor


def normalized(x: Tensor, dims: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return ((x - mean) / deviation, mean, 1 / deviation) over `dims`, which stay; in float32 for 16-bit inputs."""
    x = widened(x)
    mean = op.mean(x, dims, True)
    centred = x - mean
    rstd = op.rsqrt(op.mean(op.square(centred), dims, True) + eps)
    return centred * rstd, mean, rstd


def affine(unit: Tensor, weight: Tensor | None, bias: Tensor | None, dtype: DType) -> Tensor:
    """Return unit * weight + bias as `dtype`."""
    if weight is not None:
        unit = unit * weight
    if bias is not None:
        unit = unit + bias
    return cast_to(unit, dtype)


@aten("native_layer_norm", direct=("native_layer_norm",))
def _native_layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = last_dims("layer_norm", x, shape, weight=weight, bias=bias)
    if not x.numel():
        lead = (*x._shape[: x.ndim - len(shape)], *(1,) * len(shape))
        return copy(x), fill(lead, 0, float32, x.device), fill(lead, 0, float32, x.device)
    unit, mean, rstd = normalized(x, dims, eps)
    return affine(unit, weight, bias, x.dtype), mean, rstd


@overload
def per_channel(vector: Tensor, rank: int) -> Tensor: ...
@overload
def per_channel(vector: Tensor | None, rank: int) -> Tensor | None: ...
def per_channel(vector: Tensor | None, rank: int) -> Tensor | None:
    """Return a vector over channels as it broadcasts against (N, C, ...)."""
    return None if vector is None else vector.reshape((1, -1) + (1,) * (rank - 2))


@aten(
    "native_group_norm",
    layout=ChannelsLastAs(0),
    direct=("native_group_norm",),
)
def _native_group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    n: int,
    c: int,
    hw: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    if not x.numel():
        none = fill((n, groups), 0, float32, x.device)
        return copy(x), none, copy(none)
    unit, mean, rstd = normalized(x.reshape(n, groups, -1), (2,), eps)
    out = affine(
        unit.reshape(x._shape), per_channel(weight, x.ndim), per_channel(bias, x.ndim), x.dtype
    )
    return out, mean.reshape(n, groups), rstd.reshape(n, groups)


def _batch_dims(x: Tensor) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _moved(running: Tensor, now: Tensor, momentum: float) -> Tensor:
    """Return a running statistic moved towards that of this batch, rounded once."""
    wide = widened(running)
    return cast_to(wide + momentum * (now - wide), running.dtype)


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return (out, mean, 1 / deviation, new running mean, new running variance); the statistics are vectors."""
    if not training:
        assert running_mean is not None and running_var is not None
        mean, rstd = running_mean, op.rsqrt(widened(running_var) + eps)
        unit = (widened(x) - per_channel(mean, x.ndim)) * per_channel(rstd, x.ndim)
        return (
            affine(unit, per_channel(weight, x.ndim), per_channel(bias, x.ndim), x.dtype),
            mean,
            cast_to(rstd, running_var.dtype),
            running_mean,
            running_var,
        )
    dims = _batch_dims(x)
    unit, mean, rstd = normalized(x, dims, eps)
    out = affine(unit, per_channel(weight, x.ndim), per_channel(bias, x.ndim), x.dtype)
    mean, rstd = mean.reshape(-1), rstd.reshape(-1)
    if running_mean is not None and running_var is not None:
        count = numel(tuple(x._shape[d] for d in dims))
        if count <= 1:
            raise ValueError(
                f"Expected more than 1 value per channel when training, got input size {list(x._shape)}"
            )
        variance = (1.0 / op.square(rstd) - eps) * (count / (count - 1))
        running_mean = _moved(running_mean, mean, momentum)
        running_var = _moved(running_var, variance, momentum)
    return out, mean, rstd, running_mean, running_var


@aten("native_batch_norm", "_native_batch_norm_legit", layout=ChannelsLastAs(0))
def _native_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    out, mean, rstd, new_mean, new_var = batch_norm(
        x, weight, bias, running_mean, running_var, training, momentum, eps
    )
    if training and running_mean is not None:
        op.copy_(running_mean, new_mean)
        op.copy_(running_var, new_var)
    if not training:
        return out, fill((0,), 0, float32, x.device), fill((0,), 0, float32, x.device)
    return out, mean, rstd


@aten("_native_batch_norm_legit.no_stats")
def _batch_norm_no_stats(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    return batch_norm(x, weight, bias, None, None, True, momentum, eps)[:3]


@aten("_native_batch_norm_legit_functional", layout=ChannelsLastAs(0))
def _batch_norm_functional(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor | None, ...]:
    out, mean, rstd, new_mean, new_var = batch_norm(
        x, weight, bias, running_mean, running_var, training, momentum, eps
    )
    if not training:
        mean, rstd = fill((0,), 0, float32, x.device), fill((0,), 0, float32, x.device)
    return out, mean, rstd, new_mean, new_var


@aten("_native_batch_norm_legit_no_training", layout=ChannelsLastAs(0))
def _batch_norm_no_training(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    out = batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps)[0]
    return out, fill((0,), 0, float32, x.device), fill((0,), 0, float32, x.device)


@aten("_batch_norm_with_update", layout=ChannelsLastAs(0))
def _batch_norm_with_update(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    out, mean, rstd = _native_batch_norm(
        x, weight, bias, running_mean, running_var, True, momentum, eps
    )
    return out, mean, rstd, fill((0,), 0, uint8, x.device)
