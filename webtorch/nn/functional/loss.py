"""Losses as functions. May import the tensor floor and the op table.

All take `reduction`: "none", "mean" or "sum"; `size_average` and `reduce` are PyTorch's old form.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import webtorch
from webtorch import Tensor
from webtorch.nn.functional.activation import log_softmax, logsigmoid
from webtorch.nn.functional.projection import cosine_similarity, pairwise_distance
from webtorch.nn.functional.table import composite

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cross_entropy",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "margin_ranking_loss",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
    "poisson_nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
]


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


def _broadcast(name: str, input: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return both with one shape; warn as PyTorch does when they had two."""
    if tuple(input.shape) == tuple(target.shape):
        return input, target
    warnings.warn(
        f"Using a target size ({target.size()}) that is different to the input size "
        f"({input.size()}). This will likely lead to incorrect results due to broadcasting. "
        "Please ensure they have the same size.",
        stacklevel=4,
    )
    return webtorch.broadcast_tensors(input, target)


def _weighted(values: Tensor, weight: Tensor | None, reduction: str) -> Tensor:
    """Reduce, with each element counting as much as its `weight`."""
    if weight is None:
        return _reduced(values, reduction)
    weighted = values * weight
    if reduction == "mean":
        return weighted.sum() / weight.expand_as(values).sum()
    return _reduced(weighted, reduction)


@composite
def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """Return the squared difference."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    input, target = _broadcast("mse_loss", input, target)
    difference = input - target
    return _weighted(difference * difference, weight, reduction)


@composite
def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """Return the absolute difference."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    input, target = _broadcast("l1_loss", input, target)
    return _weighted((input - target).abs(), weight, reduction)


@composite
def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    """Return the absolute difference less beta / 2, and a parabola within `beta`."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    if beta < 0:
        raise RuntimeError("smooth_l1_loss does not support negative values for beta.")
    input, target = _broadcast("smooth_l1_loss", input, target)
    if beta == 0:
        return _reduced((input - target).abs(), reduction)
    size = (input - target).abs()
    return _reduced(
        webtorch.where(size < beta, size * size * (0.5 / beta), size - 0.5 * beta), reduction
    )


@composite
def huber_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Tensor | None = None,
) -> Tensor:
    """Return half the squared difference, and a straight line beyond `delta`."""
    if delta <= 0:
        raise RuntimeError("huber_loss does not support non-positive values for delta.")
    input, target = _broadcast("huber_loss", input, target)
    size = (input - target).abs()
    values = webtorch.where(size <= delta, size * size * 0.5, (size - 0.5 * delta) * delta)
    return _weighted(values, weight, reduction)


def _class_weights(weight: Tensor | None, index: Tensor, like: Tensor) -> Tensor:
    """Return the weight of each target's class, 1 where there are no weights."""
    if weight is None:
        return webtorch.ones_like(index, dtype=like.dtype)
    return weight.index_select(0, index.reshape(-1)).reshape(index.shape)


def _batched_classes(name: str, input: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return input (N, C, ...) and target (N, ...), checked against each other."""
    if input.dim() == 1:
        input, target = input.unsqueeze(0), target.unsqueeze(0)
    expected = (input.shape[0], *tuple(input.shape)[2:])
    if tuple(target.shape) != expected:
        if tuple(target.shape)[:1] != expected[:1]:
            raise ValueError(
                f"Expected input batch_size ({input.shape[0]}) to match target batch_size "
                f"({target.shape[0] if target.dim() else 0})."
            )
        raise RuntimeError(
            f"{name}: expected target size {list(expected)}, got {list(target.shape)}"
        )
    return input, target


@composite
def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return minus the log probability, in `input` (N, C, ...), of each class in `target`.

    The mean counts each example by its class's weight; `ignore_index` does not count.
    """
    reduction = legacy_reduction(size_average, reduce, reduction)
    unbatched = input.dim() == 1
    input, target = _batched_classes("nll_loss", input, target)
    kept = target != ignore_index
    index = webtorch.where(kept, target, 0)
    picked = input.gather(1, index.unsqueeze(1)).squeeze(1)
    weights = webtorch.where(kept, _class_weights(weight, index, input), 0.0)
    # where, not a product: an ignored example's log probability may be infinite.
    losses = webtorch.where(kept, -picked * weights, 0.0)
    if reduction == "mean":
        return losses.sum() / weights.sum()
    return _reduced(losses.squeeze(0) if unbatched else losses, reduction)


@composite
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return the cross entropy of logits (N, C, ...) and classes (N, ...) or probabilities.

    A floating point target of the input's shape holds probabilities. `label_smoothing` mixes the
    target with the uniform distribution.
    """
    reduction = legacy_reduction(size_average, reduce, reduction)
    if not 0.0 <= label_smoothing <= 1.0:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    dim = 0 if input.dim() == 1 else 1
    classes = input.shape[dim]
    logp = log_softmax(input, dim)
    if tuple(input.shape) == tuple(target.shape) and target.is_floating_point():
        return _probability_loss(logp, target, weight, reduction, label_smoothing, dim)
    if not label_smoothing:
        return nll_loss(logp, target, weight, ignore_index=ignore_index, reduction=reduction)
    losses = nll_loss(logp, target, weight, ignore_index=ignore_index, reduction="none")
    kept = target != ignore_index
    smooth = -(logp if weight is None else logp * _along(weight, logp, dim)).sum(dim)
    smooth = webtorch.where(kept, smooth, 0.0)
    total = losses * (1 - label_smoothing) + smooth * (label_smoothing / classes)
    if reduction == "mean":
        index = webtorch.where(kept, target, 0)
        weights = webtorch.where(kept, _class_weights(weight, index, logp), 0.0)
        return total.sum() / weights.sum()
    return _reduced(total, reduction)


def _along(values: Tensor, like: Tensor, dim: int) -> Tensor:
    """Return a (C,) tensor shaped to broadcast along `dim` of `like`."""
    shape = [1] * like.dim()
    shape[dim] = -1
    return values.reshape(shape)


def _probability_loss(
    logp: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: str,
    label_smoothing: float,
    dim: int,
) -> Tensor:
    """Return the cross entropy with a distribution over classes as the target."""
    if label_smoothing:
        target = target * (1 - label_smoothing) + label_smoothing / logp.shape[dim]
    terms = logp * target
    if weight is not None:
        terms = terms * _along(weight, logp, dim)
    losses = -terms.sum(dim)
    if reduction == "mean":
        # Over examples, whatever the weights: this is how PyTorch defines it.
        return losses.sum() / max(losses.numel(), 1)
    return _reduced(losses, reduction)


@composite
def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """Return target * (log target - input), with `input` in log space; "batchmean" is the KL."""
    if reduction == "mean" and size_average is None and reduce is None:
        warnings.warn(
            "reduction: 'mean' divides the total loss by both the batch size and the support "
            "size.'batchmean' divides only by the batch size, and aligns with the KL div math "
            "definition.'mean' will be changed to behave the same as 'batchmean' in the next "
            "major release.",
            stacklevel=2,
        )
    if size_average is not None or reduce is not None:
        reduction = legacy_reduction(size_average, reduce, reduction)
    if log_target:
        values = target.exp() * (target - input)
    else:
        values = webtorch.xlogy(target, target) - target * input
    if reduction == "batchmean":
        return values.sum() / input.shape[0] if input.dim() else values.sum()
    return _reduced(values, reduction)


_bce: list[type] = []


def _bce_function() -> Any:
    """Return the autograd Function of binary cross entropy; made at first use.

    Its own gradient, (p - t) / (p (1 - p)) with a bounded divisor, is finite where that of the
    clamped logarithms is not.
    """
    if not _bce:

        class _BinaryCrossEntropy(webtorch.autograd.Function):
            """-(t log p + (1 - t) log(1 - p)), the logarithms at least -100."""

            @staticmethod
            def forward(ctx: Any, p: Tensor, t: Tensor) -> Tensor:
                ctx.save_for_backward(p, t)
                return -(t * p.log().clamp(min=-100) + (1 - t) * webtorch.log1p(-p).clamp(min=-100))

            @staticmethod
            def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
                p, t = ctx.saved_tensors
                for_p = g * (p - t) / ((1 - p) * p).clamp(min=1e-12)
                for_t = g * (webtorch.log1p(-p).clamp(min=-100) - p.log().clamp(min=-100))
                return for_p, for_t

        _bce.append(_BinaryCrossEntropy)
    return _bce[0]


@composite
def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return -(t log p + (1 - t) log(1 - p)), each logarithm at least -100.

    Probabilities outside [0, 1] give NaN: checking them would read from the device.
    """
    reduction = legacy_reduction(size_average, reduce, reduction)
    if tuple(target.shape) != tuple(input.shape):
        raise ValueError(
            f"Using a target size ({target.size()}) that is different to the input size "
            f"({input.size()}) is deprecated. Please ensure they have the same size."
        )
    losses = _bce_function().apply(input, target)
    return _reduced(losses if weight is None else losses * weight, reduction)


@composite
def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """Return binary cross entropy of sigmoid(input), computed without overflow.

    `pos_weight` weighs the positive term, one value for each class in the last dimensions.
    """
    reduction = legacy_reduction(size_average, reduce, reduction)
    if tuple(target.shape) != tuple(input.shape):
        raise ValueError(
            f"Target size ({target.size()}) must be the same as input size ({input.size()})"
        )
    positive = logsigmoid(input)
    if pos_weight is not None:
        positive = positive * ((pos_weight - 1) * target + 1)
    losses = (1 - target) * input - positive
    return _reduced(losses if weight is None else losses * weight, reduction)


def margin_ranking_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return max(0, -target * (input1 - input2) + margin)."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    if input1.dim() != input2.dim() or input1.dim() != target.dim():
        raise RuntimeError(
            "margin_ranking_loss : All input tensors should have same dimension but got sizes: "
            f"input1: {input1.size()}, input2: {input2.size()}, target: {target.size()} "
        )
    return _reduced((-target * (input1 - input2) + margin).clamp(min=0), reduction)


def hinge_embedding_loss(
    input: Tensor,
    target: Tensor,
    margin: float = 1.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return the input where the target is 1 and max(0, margin - input) where it is -1."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    apart = webtorch.where(target != 1, (margin - input).clamp(min=0), 0.0)
    near = webtorch.where(target != -1, input, 0.0)
    return _reduced(apart + near, reduction)


def soft_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return log(1 + exp(-target * input))."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    return _reduced(-logsigmoid(target * input), reduction)


def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return 1 - cos where the target is 1 and max(0, cos - margin) where it is -1."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    if not (target.dim() + 1 == input1.dim() == input2.dim()):
        raise RuntimeError(
            f"{target.dim()}D target tensor expects {target.dim() + 1}D input tensors, but found "
            f"inputs with sizes {list(input1.shape)} and {list(input2.shape)}."
        )
    cos = cosine_similarity(input1, input2, target.dim(), eps=1e-6)
    alike = webtorch.where(target == 1, 1 - cos, 0.0)
    unlike = webtorch.where(target == -1, (cos - margin).clamp(min=0), 0.0)
    return _reduced(alike + unlike, reduction)


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return max(0, |anchor - positive| - |anchor - negative| + margin).

    `swap` also takes |positive - negative| if that is less.
    """
    reduction = legacy_reduction(size_average, reduce, reduction)
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    near = pairwise_distance(anchor, positive, p, eps)
    far = pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = webtorch.minimum(far, pairwise_distance(positive, negative, p, eps))
    return _reduced((near - far + margin).clamp(min=0), reduction)


def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    size_average: bool | None = None,
    eps: float = 1e-8,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return minus the log likelihood of Poisson counts; `full` adds Stirling's term."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    if log_input:
        losses = input.exp() - target * input
    else:
        losses = input - target * (input + eps).log()
    if full:
        many = target.clamp(min=1)
        stirling = many * many.log() - many + 0.5 * (2 * math.pi * many).log()
        losses = losses + webtorch.where(target > 1, stirling, 0.0)
    return _reduced(losses, reduction)


def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """Return minus the log likelihood of normal values with the given variance, at least `eps`."""
    if isinstance(var, float):
        if var < 0:
            raise ValueError("var has negative entry/entries")
        var = webtorch.full_like(input, var)
    size, given = tuple(input.shape), tuple(var.shape)
    if given != size:
        if size[:-1] == given:
            var = var.unsqueeze(-1)
        elif not (size[:-1] == given[:-1] and given[-1] == 1):
            raise ValueError("var is of incorrect size")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not valid")
    # The floor changes the value, not the gradient: PyTorch clamps without autograd.
    var = var + (var.detach().clamp(min=eps) - var.detach())
    losses = 0.5 * (var.log() + (input - target) ** 2 / var)
    if full:
        losses = losses + 0.5 * math.log(2 * math.pi)
    return _reduced(losses, reduction)


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
    losses = -(target * logsigmoid(input) + (1 - target) * logsigmoid(-input))
    if weight is not None:
        losses = losses * weight
    return _reduced(losses.sum(-1) / input.shape[-1], reduction)


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
