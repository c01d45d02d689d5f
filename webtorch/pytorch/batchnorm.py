"""Norms as one operator: without the statistics where no gradient is recorded. Floor 6.

PyTorch makes each of another operator, whose further results are for the gradient. From `batch_norm` it goes through
two to `native_batch_norm`, which writes the running statistics though its schema does not say so.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn import functional as F

from webtorch.aten.norms import batch_norm
from webtorch.aten.table import FUNCTIONS
from webtorch.pytorch.kernels import composed, first_of, functional, is_plain, own, structured
from webtorch.tensors.tensor import Tensor

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_compose = functools.partial(torch.ops.aten.batch_norm.default._op_dk, _COMPOSITE)
_compose_index = functools.partial(torch.ops.aten._batch_norm_impl_index.default._op_dk, _COMPOSITE)
_native = torch.ops.aten.native_batch_norm.default


def _moving(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor | None, ...]:
    """Return what `native_batch_norm` gives, and the running statistics."""
    return batch_norm(x, weight, bias, mean, var, training, momentum, eps)


_as_it_is = functional("native_batch_norm", FUNCTIONS["native_batch_norm"])
_that_moves = functional("native_batch_norm", _moving, writes=(3, 4))


@own("native_batch_norm", "_native_batch_norm_legit")
def _native_batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> object:
    run = _as_it_is if not training or mean is None or var is None else _that_moves
    return run(x, weight, bias, mean, var, training, momentum, eps)


def _batch_norm_parts(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> torch.Tensor:
    """`aten::batch_norm`: where there is nothing that PyTorch would refuse, `native_batch_norm` at once."""
    given = weight, bias, mean, var
    if x.dim() > 1 and x.numel() and (training or (mean is not None and var is not None)):
        channels = x.shape[1]
        if all(v is None or v.numel() == channels for v in given):
            out: torch.Tensor = _native(x, *given, training, momentum, eps)[0]
            return out
    return _compose(x, *given, training, momentum, eps, cudnn_enabled)


def _batch_norm_alone(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    return batch_norm(x, weight, bias, mean, var, False, momentum, eps)[0]


_as_one = structured(torch.ops.aten.batch_norm.default, _batch_norm_alone, _batch_norm_parts)


@composed("batch_norm")
def _batch_norm(*args: Any) -> torch.Tensor:
    one = not args[5] and not torch.is_grad_enabled() and is_plain()
    out: torch.Tensor = (_as_one if one else _batch_norm_parts)(*args)
    return out


own("native_layer_norm")(first_of("native_layer_norm", F.layer_norm))
own("native_group_norm")(first_of("native_group_norm", F.group_norm))


@composed("_batch_norm_impl_index")
def _batch_norm_index(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *rest: object
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """`aten::_batch_norm_impl_index`, where PyTorch takes float64 statistics for an empty batch."""
    if x.numel():
        return _compose_index(x, weight, bias, *rest)
    out = x.clone()
    if weight is not None:
        out = out * weight[0]
    if bias is not None:
        out = out + bias[0]
    statistics = x.new_empty(x.shape[1:2], dtype=torch.float32)
    return out, statistics, statistics.clone(), x.new_empty((0,), dtype=torch.uint8), 0


# What `SyncBatchNorm` is made of: statistics of a part of the batch, their mean over the parts, and so for gradients.
# Parts in 16 bits have statistics in float32.


def _by_channel(x: torch.Tensor, *of_channels: torch.Tensor | None) -> list[Any]:
    """Return each vector of channels such that it stands beside `x`."""
    shape = [1, -1, *[1] * (x.dim() - 2)]
    return [None if v is None else v.reshape(shape) for v in of_channels]


def _sums(x: torch.Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


@composed("batch_norm_stats")
def _batch_norm_stats(x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    var, mean = torch.var_mean(_wide(x), _sums(x), correction=0)
    return mean, (var + eps).rsqrt()


@composed("batch_norm_gather_stats_with_counts")
def _batch_norm_gather(
    x: torch.Tensor,
    means: torch.Tensor,
    scales: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    share = (counts.to(means.dtype) / counts.sum()).unsqueeze(1)
    mean = (means * share).sum(0)
    var = ((scales.pow(-2) - eps + (means - mean).square()) * share).sum(0)
    if running_mean is not None:
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
    if running_var is not None:
        whole = counts.sum()
        running_var.lerp_((var * whole / (whole - 1)).to(running_var.dtype), momentum)
    return mean, (var + eps).rsqrt()


@composed("batch_norm_elemt")
def _batch_norm_elements(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    scale: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    weight, bias, mean, scale = _by_channel(x, weight, bias, mean, scale)
    out = (_wide(x) - mean) * (scale if weight is None else scale * weight)
    return (out if bias is None else out + bias).to(x.dtype)


@composed("batch_norm_backward_reduce")
def _batch_norm_backward_sums(
    gradient: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor | None,
    of_input: bool,
    of_weight: bool,
    of_bias: bool,
) -> tuple[torch.Tensor, ...]:
    wide, dims = _wide(gradient), _sums(x)
    total = wide.sum(dims)
    with_input = (wide * (_wide(x) - _by_channel(x, mean)[0])).sum(dims)
    kind = total.dtype if weight is None else weight.dtype
    return total, with_input, (with_input * scale).to(kind), total.to(kind)


@composed("batch_norm_backward_elemt")
def _batch_norm_backward_elements(
    gradient: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor | None,
    total: torch.Tensor,
    with_input: torch.Tensor,
    counts: torch.Tensor,
) -> torch.Tensor:
    count = counts.sum()
    slope = with_input * scale.square() / count
    mean, scale, weight, share, slope = _by_channel(x, mean, scale, weight, total / count, slope)
    out = (_wide(gradient) - share - (_wide(x) - mean) * slope) * scale
    return (out if weight is None else out * weight).to(gradient.dtype)
