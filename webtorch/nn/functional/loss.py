"""Losses that the op table does not have. May import floors 0 to 4."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import webtorch
from webtorch import Tensor
from webtorch.nn.functional.table import table
from webtorch.ops.record import FP32
from webtorch.tensors.autocast import autocast_rule

__all__ = [
    "multi_margin_loss",
    "multilabel_soft_margin_loss",
    "triplet_margin_with_distance_loss",
]

_logsigmoid, _pairwise_distance = table("logsigmoid"), table("pairwise_distance")


def legacy_reduction(
    size_average: bool | None, reduce: bool | None, reduction: str, stacklevel: int = 3
) -> str:
    """Return `reduction`, or what the old arguments ask for, with a warning."""
    if size_average is None and reduce is None:
        return reduction
    averaged = size_average is None or size_average
    reduced = reduce is None or reduce
    chosen = "none" if not reduced else "mean" if averaged else "sum"
    warnings.warn(
        "size_average and reduce args will be deprecated, please use "
        f"reduction='{chosen}' instead.",
        stacklevel=stacklevel,
    )
    return chosen


def _reduced(values: Tensor, reduction: str) -> Tensor:
    """Return the values, their mean or their sum."""
    if reduction == "none":
        return values
    if reduction == "mean":
        return values.mean()
    if reduction == "sum":
        return values.sum()
    raise ValueError(f"{reduction} is not a valid value for reduction")


def multilabel_soft_margin_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return binary cross entropy with logits, averaged over the classes (last dimension)."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    losses = -(target * _logsigmoid(input) + (1 - target) * _logsigmoid(-input))
    if weight is not None:
        losses = losses * weight
    return _reduced(losses.sum(-1) / input.shape[-1], reduction)


@autocast_rule(FP32)
def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return the mean over the other classes of max(0, margin - x[target] + x[class]) ** p."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    if p not in (1, 2):
        raise ValueError("only p == 1 and p == 2 supported")
    unbatched = input.dim() == 1
    x = input.unsqueeze(0) if unbatched else input
    y = target.reshape(-1)
    gaps = (margin - x.gather(1, y.unsqueeze(1)) + x).clamp(min=0)
    gaps = gaps if p == 1 else gaps * gaps
    if weight is not None:
        gaps = gaps * weight.index_select(0, y).unsqueeze(1)
    classes = x.shape[1]
    others = webtorch.arange(classes, device=x.device).unsqueeze(0) != y.unsqueeze(1)
    losses = webtorch.where(others, gaps, 0.0).sum(1) / classes
    return _reduced(losses.squeeze(0) if unbatched and target.dim() == 0 else losses, reduction)


def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """Return max(0, d(anchor, positive) - d(anchor, negative) + margin) for any distance."""
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    if not anchor.dim() == positive.dim() == negative.dim():
        raise RuntimeError(
            "The anchor, positive, and negative tensors are expected to have the same number of "
            f"dimensions, but got: anchor {anchor.dim()}D, positive {positive.dim()}D, and "
            f"negative {negative.dim()}D inputs"
        )
    distance = _pairwise_distance if distance_function is None else distance_function
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = webtorch.minimum(far, distance(positive, negative))
    return _reduced((near - far + margin).clamp(min=0), reduction)
