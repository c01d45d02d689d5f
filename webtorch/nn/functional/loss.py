"""Losses that the op table does not have. May import floors 0 to 4."""

from __future__ import annotations

from collections.abc import Callable

from webtorch.dispatch.call import dispatched
from webtorch.errors import DTypeError, ShapeError
from webtorch.functions import public as webtorch
from webtorch.functions.loss import chosen_reduction, reduced
from webtorch.nn.functional.table import table
from webtorch.ops.record import FP32
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.values import check_range

__all__ = [
    "linear_cross_entropy",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "triplet_margin_with_distance_loss",
]

_logsigmoid, _pairwise_distance = table("logsigmoid"), table("pairwise_distance")
_linear, _cross_entropy = table("linear"), table("cross_entropy")


def _check_float(name: str, input: Tensor) -> None:
    """Raise PyTorch's error for integers and bools."""
    if not input.dtype.is_floating_point:
        raise DTypeError(f"{name}: not implemented for {input.dtype}. Convert it with .float().")


@dispatched()
def multilabel_soft_margin_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return binary cross entropy with logits, averaged over the classes (last dimension)."""
    reduction = chosen_reduction(size_average, reduce, reduction)
    losses = -(target * _logsigmoid(input) + (1 - target) * _logsigmoid(-input))
    if weight is not None:
        losses = losses * weight
    return reduced(losses.sum(-1) / input.shape[-1], reduction)


@dispatched(autocast=FP32)
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
    reduction = chosen_reduction(size_average, reduce, reduction)
    _check_float("multi_margin_loss", input)
    count = input.shape[-1] if input.dim() else 1
    if weight is not None and (weight.dim() != 1 or weight.numel() != count):
        # PyTorch looks at the rank in Python and at the size in C++.
        raise (ShapeError if weight.dim() == 1 else ValueError)(
            f"multi_margin_loss: weight must be one-dimensional with a number for each of the "
            f"{count} classes, got {list(weight.shape)}"
        )
    if p not in (1, 2):
        raise ValueError("only p == 1 and p == 2 supported")
    unbatched = input.dim() < 2
    if input.dim() > 2 or (not input.numel() and (unbatched or not input.shape[1])):
        raise ShapeError(
            "Expected non-empty vector or matrix with optional 0-dim batch size, but got: "
            f"{list(input.shape)}"
        )
    x = input.reshape(1, -1) if unbatched else input
    y = target.reshape(-1)
    if target.dim() > 1 or y.numel() != x.shape[0]:
        raise ShapeError(
            f"multi_margin_loss: target must have one class for each of the {x.shape[0]} samples, got "
            f"{list(target.shape)} for an input of {list(input.shape)}"
        )
    check_range(y, 0, x.shape[1] - 1, "multi_margin_loss: target out of range")
    gaps = (margin - x.gather(1, y.unsqueeze(1)) + x).clamp(min=0)
    gaps = gaps if p == 1 else gaps * gaps
    if weight is not None:
        gaps = gaps * weight.index_select(0, y).unsqueeze(1)
    classes = x.shape[1]
    others = webtorch.arange(classes, device=x.device).unsqueeze(0) != y.unsqueeze(1)
    losses = webtorch.where(others, gaps, 0.0).sum(1) / classes
    return reduced(losses.squeeze(0) if unbatched and target.dim() == 0 else losses, reduction)


@dispatched(autocast=FP32)
def multilabel_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return the mean over classes of max(0, 1 - (x[label] - x[class])), summed over the labels.

    `target` has the shape of the input, (N, C) or (C): the labels of a sample, those before its
    first -1. Pairs of two labels do not count.
    """
    reduction = chosen_reduction(size_average, reduce, reduction)
    _check_float("multilabel_margin_loss", input)
    if input.dim() > 2 or (not input.numel() and (input.dim() < 2 or not input.shape[1])):
        raise RuntimeError(
            "Expected non-empty vector or matrix with optional 0-dim batch size, but got: "
            f"{list(input.shape)}"
        )
    if tuple(target.shape) != tuple(input.shape):
        raise RuntimeError(
            f"inconsistent target size: {list(target.shape)} for input of size: {list(input.shape)}"
        )
    classes = int(input.shape[-1]) if input.dim() else 1
    x, y = input.reshape(-1, classes), target.reshape(-1, classes)
    labels = ((y < 0).to(webtorch.int32).cumsum(1) == 0) & (y >= 0)
    index = y.clamp(min=0)
    marks = webtorch.zeros_like(x).scatter_reduce(1, index, labels.to(x.dtype), "amax")
    # (N, label, class)
    gaps = (1 - x.gather(1, index).unsqueeze(2) + x.unsqueeze(1)).clamp(min=0)
    counted = labels.unsqueeze(2) & (marks == 0).unsqueeze(1)
    losses = webtorch.where(counted, gaps, 0.0).sum((1, 2)) / classes
    return reduced(losses if input.dim() == 2 else losses.squeeze(0), reduction)


@dispatched()
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
    reduction = chosen_reduction(None, None, reduction)
    return reduced((near - far + margin).clamp(min=0), reduction)


def _check_options(input: Tensor, sums: object) -> None:
    """Refuse the types for which PyTorch's computation in chunks has no sums."""
    if sums is None and not input.is_floating_point():
        raise ValueError(
            f"linear_cross_entropy: options are for floating-point inputs, got {input.dtype}. "
            "Convert the input with .float()."
        )
    if sums not in (None, input.dtype) and not (
        sums is webtorch.float32 and input.dtype in (webtorch.float16, webtorch.bfloat16)
    ):
        raise RuntimeError(
            "linear_cross_entropy supports float32 acc_dtype with float16/bfloat16 inputs, but got "
            f"{sums} acc_dtype and {input.dtype} inputs. Leave acc_dtype=None."
        )


@dispatched()
def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: object = None,
) -> Tensor:
    """Return the cross entropy of `input @ linear_weight.T + linear_bias`.

    (N, features) or (features), and weights (classes, *, features), to a target (N, *) of class
    numbers or (N, classes, *) of probabilities. `options` (`nn.LinearCrossEntropyOptions`) says how
    PyTorch computes the logits; here the compiler decides that, and the result is the same.
    """
    if input.dim() not in (1, 2):
        raise RuntimeError(f"expected input with dimensionality 1 or 2, got {input.dim()}")
    if linear_weight.dim() < 2:
        raise RuntimeError(
            f"expected linear_weight with dimensionality at least 2, got {linear_weight.dim()}"
        )
    features = linear_weight.shape[-1]
    if input.shape[-1] != features:
        raise RuntimeError(
            "expected equal input and linear_weight last dimensions (in_features), got "
            f"{input.shape[-1]} and {features}, respectively"
        )
    rows = tuple(linear_weight.shape[:-1])
    if linear_bias is not None and tuple(linear_bias.shape) != rows:
        raise RuntimeError(f"expected linear_bias shape {rows}, got {tuple(linear_bias.shape)}")
    if len(rows) > 1 and input.dim() == 1:
        raise RuntimeError(
            "K-dimensional loss defined by linear_weight shape "
            f"{tuple(linear_weight.shape)} requires batched input, (N, {features}), got unbatched "
            f"input with shape {tuple(input.shape)}"
        )
    shape = (*input.shape[:-1], *rows)
    if input.dim() == 2 and target.dim() and target.shape[0] != input.shape[0]:
        raise ValueError(
            f"Expected input batch_size ({input.shape[0]}) to match target batch_size ({target.shape[0]})."
        )
    if tuple(target.shape) == shape and ignore_index is not None:
        raise RuntimeError("ignore_index cannot be specified when target contains probabilities")
    # Where PyTorch would not take the options, it does not look at them either.
    chunked = reduction in ("mean", "sum", "none") and not label_smoothing and len(rows) == 1
    if options is not None and chunked and target.dtype is webtorch.int64:
        _check_options(input, getattr(options, "acc_dtype", None))
    flat = None if linear_bias is None else linear_bias.reshape(-1)
    logits = _linear(input, linear_weight.reshape(-1, features), flat).reshape(shape)
    return _cross_entropy(
        logits,
        target,
        weight=weight,
        ignore_index=-100 if ignore_index is None else ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )
