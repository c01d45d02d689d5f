"""Normalizations as functions. May import the tensor floor and the op table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import webtorch
from webtorch import Tensor
from webtorch.nn.functional.table import composite, table

__all__ = [
    "batch_norm",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "local_response_norm",
    "rms_norm",
]


def _per_channel(values: Tensor, rank: int) -> Tensor:
    """Return a (C,) tensor as (1, C, 1, ...) of `rank` dimensions."""
    return values.reshape((1, -1, *(1,) * (rank - 2)))


def _standardized(input: Tensor, mean: Tensor, var: Tensor, eps: float) -> Tensor:
    """Return (x - mean) / sqrt(var + eps)."""
    return (input - mean) * webtorch.rsqrt(var + eps)


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: Any,
    eps: float,
) -> Tensor:
    """Normalize by the batch's or the running statistics; update the latter when training."""
    rank = input.dim()
    if training:
        dims = [0, *range(2, rank)]
        var, mean = webtorch.var_mean(input, dims, correction=0, keepdim=True)
        count = input.numel() // max(input.shape[1], 1)
        with webtorch.no_grad():
            if running_mean is not None:
                running_mean.lerp_(mean.detach().reshape(-1).to(running_mean.dtype), momentum)
            if running_var is not None:
                unbiased = var.detach().reshape(-1) * (count / max(count - 1, 1))
                running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    else:
        if running_mean is None or running_var is None:
            raise RuntimeError(
                "Expected running_mean and running_var to be defined when training=False"
            )
        mean, var = _per_channel(running_mean, rank), _per_channel(running_var, rank)
    out = _standardized(input, mean, var, eps)
    if weight is not None:
        out = out * _per_channel(weight, rank)
    if bias is not None:
        out = out + _per_channel(bias, rank)
    return out


_batch_norm = table("batch_norm", _batch_norm)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: Any = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalize each channel (dimension 1) over the batch; update running statistics in place.

    The running variance is the unbiased one. Raises ValueError for one value per channel.
    """
    if training:
        size = tuple(input.shape)
        if math.prod(size) // max(size[1], 1) == 1:
            raise ValueError(
                f"Expected more than 1 value per channel when training, got input size {size}"
            )
    return _batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalize each channel of each example over its positions."""
    rank = input.dim()
    if use_input_stats:
        size = tuple(input.shape)
        if math.prod(size[2:]) == 1:
            raise ValueError(
                f"Expected more than 1 spatial element when training, got input size {input.shape}"
            )
        dims = list(range(2, rank))
        var, mean = webtorch.var_mean(input, dims, correction=0, keepdim=True)
        count = math.prod(size[2:])
        with webtorch.no_grad():
            if running_mean is not None:
                running_mean.lerp_(mean.detach().mean(0).reshape(-1), momentum)
            if running_var is not None:
                unbiased = var.detach().mean(0).reshape(-1) * (count / (count - 1))
                running_var.lerp_(unbiased, momentum)
    else:
        if running_mean is None or running_var is None:
            raise RuntimeError(
                "Expected running_mean and running_var to be defined when use_input_stats is false"
            )
        mean, var = _per_channel(running_mean, rank), _per_channel(running_var, rank)
    out = _standardized(input, mean, var, eps)
    if weight is not None:
        out = out * _per_channel(weight, rank)
    if bias is not None:
        out = out + _per_channel(bias, rank)
    return out


def _last_dims(name: str, input: Tensor, normalized_shape: Sequence[int]) -> list[int]:
    """Return the dimensions that `normalized_shape` names; raise RuntimeError if it does not fit."""
    shape = tuple(normalized_shape)
    if tuple(input.shape)[input.dim() - len(shape) :] != shape or input.dim() < len(shape):
        wanted = ", ".join(["*", *map(str, shape)])
        raise RuntimeError(
            f"{name}: Given normalized_shape={list(shape)}, expected input with shape [{wanted}], "
            f"but got input of size{list(input.shape)}"
        )
    return list(range(-len(shape), 0))


@composite
def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalize over the last dimensions, which have the sizes `normalized_shape`."""
    dims = _last_dims("layer_norm", input, normalized_shape)
    var, mean = webtorch.var_mean(input, dims, correction=0, keepdim=True)
    out = _standardized(input, mean, var, eps)
    if weight is not None:
        out = out * weight
    return out if bias is None else out + bias


@composite
def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Divide by the root of the mean square over the last dimensions; `eps` None is the dtype's."""
    dims = _last_dims("rms_norm", input, normalized_shape)
    if eps is None:
        eps = webtorch.finfo(input.dtype).eps
    out = input * webtorch.rsqrt((input * input).mean(dims, keepdim=True) + eps)
    return out if weight is None else out * weight


@composite
def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalize each example over each of `num_groups` groups of channels."""
    if input.dim() < 2:
        raise RuntimeError(
            f"Expected at least 2 dimensions for input tensor but received {input.dim()}"
        )
    size = tuple(input.shape)
    if size[1] % num_groups != 0:
        raise RuntimeError(
            "Expected number of channels in input to be divisible by num_groups, but got input of "
            f"shape {list(size)} and num_groups={num_groups}"
        )
    grouped = input.reshape(size[0], num_groups, -1)
    var, mean = webtorch.var_mean(grouped, [2], correction=0, keepdim=True)
    out = _standardized(grouped, mean, var, eps).reshape(size)
    if weight is not None:
        out = out * _per_channel(weight, input.dim())
    if bias is not None:
        out = out + _per_channel(bias, input.dim())
    return out


def local_response_norm(
    input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """Divide by (k + alpha * mean of the squares of `size` neighbouring channels) ** beta."""
    if input.dim() < 3:
        raise ValueError(
            f"Expected 3D or higher dimensionality                          input (got {input.dim()} "
            "dimensions)"
        )
    squares = input * input
    channels = input.shape[1]
    before = size // 2
    zeros = webtorch.zeros_like(squares[:, :1]).expand((-1, size - 1, *(-1,) * (input.dim() - 2)))
    padded = webtorch.cat([zeros[:, :before], squares, zeros[:, before:]], 1)
    total = padded[:, :channels]
    for shift in range(1, size):
        total = total + padded[:, shift : shift + channels]
    return input / (total / size * alpha + k) ** beta
