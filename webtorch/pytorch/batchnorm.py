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
