"""Losses of nn.functional.

Each is an elementwise formula, weights, and one of the reductions "none", "mean" and "sum". Classification losses
pick the target's entry by a masked sum over the classes, not by a gather: it joins the row kernel of log_softmax,
and its gradient needs no scatter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from webtorch.errors import DTypeError, ShapeError
from webtorch.functions import gather_scatter
from webtorch.functions.check import demand
from webtorch.functions.composite import log_softmax, pairwise_distance
from webtorch.functions.reduce import mean, positions, sum
from webtorch.ir.dtype import FLOATS, int64, uint8
from webtorch.ir.view import broadcast_shapes
from webtorch.ops.activation import FUNCTIONAL
from webtorch.ops.comparison import _where, clamp_min, eq, ge, le, logical_and, ne
from webtorch.ops.elementwise import exp, log, sqrt, xlogy
from webtorch.ops.layout import of_operands
from webtorch.ops.loss import (
    absolute_error,
    bce_error,
    bce_logits_error,
    bce_logits_weighted_error,
    huber_error,
    smooth_error,
    soft_margin,
    squared_error,
)
from webtorch.ops.precision import computed_wide, to_type, widened
from webtorch.ops.primitive import cast_to, fill, in_memory, take
from webtorch.ops.purity import warn
from webtorch.ops.record import (
    ANEW,
    BOOL,
    FP32,
    NOT_FLOATS,
    Autocast,
    composite,
)
from webtorch.ops.splits import of_loss
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.values import at_hand_or_written, check_places, check_range

_REDUCTIONS: tuple[Any, ...] = (
    ((), {}),
    ((), {"reduction": "sum"}),
    ((), {"reduction": "none"}),
)


def legacy_reduction(size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    """Return `reduction`, or what PyTorch's older arguments ask for, with a warning."""
    if size_average is None and reduce is None:
        return reduction
    chosen = "none" if reduce is False else "sum" if size_average is False else "mean"
    warn(
        f"size_average and reduce args will be deprecated, please use reduction='{chosen}' instead."
    )
    return chosen


def chosen_reduction(size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    """Return the reduction, given PyTorch's older arguments too. Raises ValueError."""
    reduction = legacy_reduction(size_average, reduce, reduction)
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    return reduction


def reduced(loss: Tensor, reduction: str) -> Tensor:
    """Return the losses, their mean or their sum."""
    if reduction == "none":
        return loss
    return mean(loss) if reduction == "mean" else sum(loss)


def _weighted(loss: Tensor, weight: Tensor | None, reduction: str) -> Tensor:
    """Return the reduction of loss * weight; a weighted mean divides by the weights' sum."""
    if weight is None:
        return reduced(loss, reduction)
    loss = loss * weight
    if reduction == "mean":
        return sum(loss) / sum(weight.expand(loss.shape))
    return reduced(loss, reduction)


def _last_part(each: str, other: str = "", flag: str = "") -> Callable[..., str]:
    """Return the `gradient_name` of what PyTorch makes of other functions: that of the reduction, and without one
    `each`, or `other` where the argument `flag` is given.
    """

    def title(*args: object, **kwargs: object) -> str:
        """Return the name for a call."""
        weighted = kwargs.get("weight") is not None
        reduction = next((a for a in (*args, *kwargs.values()) if isinstance(a, str)), "mean")
        if reduction == "none":
            return "MulBackward0" if weighted else other if kwargs.get(flag) else each
        mean = "DivBackward0" if weighted or reduction == "batchmean" else "MeanBackward0"
        return "SumBackward0" if reduction == "sum" else mean

    return title


def _check_pair(name: str, input: Tensor, target: Tensor, both: bool = False) -> None:
    """Check types, and warn as PyTorch does when shapes differ and will be broadcast. One of the two may be an integer
    tensor, unless `both` must be floats.
    """
    floats = [x.dtype.kind == "float" for x in (input, target)]
    for x, is_float in zip((input, target), floats, strict=True):
        if not is_float and (both or not any(floats) or x.dtype.kind == "complex"):
            raise DTypeError(f"{name}: not implemented for {x.dtype}. Convert it with .float().")
    if tuple(input.shape) != tuple(target.shape):
        warn(
            f"Using a target size (torch.Size({list(target.shape)})) that is different to the input size "
            f"(torch.Size({list(input.shape)})). This will likely lead to incorrect results due to broadcasting. "
            f"Please ensure they have the same size.",
        )


# -- regression -------------------------------------------------------------------------------------------------------


@composite(
    splits=of_loss,
    function_in=FUNCTIONAL,
    dtypes=FLOATS,
    samples=_REDUCTIONS,
    autocast=FP32,
    gradient_name="MseLossBackward0",
    vjp=ANEW,
    out="cast",
)
def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """Return the mean (or sum, or each) of (input - target) ** 2."""
    _check_pair("mse_loss", input, target)
    reduction = chosen_reduction(size_average, reduce, reduction)
    return _weighted(squared_error(input, target), weight, reduction)


@composite(
    splits=of_loss,
    function_in=FUNCTIONAL,
    dtypes=FLOATS,
    samples=_REDUCTIONS,
    autocast=FP32,
    gradient_name=_last_part("AbsBackward0"),
    vjp=ANEW,
    saves_values=True,
)
def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """Return the mean (or sum, or each) of |input - target|."""
    if input.dtype.is_complex or target.dtype.is_complex:
        return _weighted(
            (input - target).abs(), weight, chosen_reduction(size_average, reduce, reduction)
        )
    _check_pair("l1_loss", input, target)
    reduction = chosen_reduction(size_average, reduce, reduction)
    return _weighted(absolute_error(input, target), weight, reduction)


@composite(
    splits=of_loss,
    function_in=FUNCTIONAL,
    dtypes=FLOATS,
    samples=(*_REDUCTIONS, ((), {"beta": 0.5})),
    autocast=FP32,
    gradient_name="SmoothL1LossBackward0",
    vjp=ANEW,
    out="cast",
)
def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    """Return the mean of d ** 2 / (2 beta) where |d| = |input - target| < beta, and of |d| - beta / 2 elsewhere."""
    _check_pair("smooth_l1_loss", input, target)
    reduction = chosen_reduction(size_average, reduce, reduction)
    if beta < 0:
        raise RuntimeError(f"smooth_l1_loss does not support negative values for beta. Got {beta}.")
    loss = absolute_error(input, target) if beta == 0 else smooth_error(input, target, beta)
    return reduced(loss, reduction)


@composite(
    splits=of_loss,
    function_in=FUNCTIONAL,
    dtypes=FLOATS,
    samples=(*_REDUCTIONS, ((), {"delta": 0.5})),
    autocast=FP32,
    gradient_name="HuberLossBackward0",
    vjp=ANEW,
    layout=of_operands,
    out="cast",
)
def huber_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Tensor | None = None,
) -> Tensor:
    """Return the mean of d ** 2 / 2 where |d| < delta, of delta * (|d| - delta / 2) elsewhere; d = input - target."""
    # Its result is of input's type.
    _check_pair("huber_loss", input, target, both=input.dtype.kind != "float")
    reduction = chosen_reduction(None, None, reduction)
    if delta <= 0:
        raise RuntimeError(
            f"huber_loss does not support non-positive values for delta. Got {delta}."
        )
    return _weighted(to_type(huber_error(input, target, delta), input.dtype), weight, reduction)


# -- probabilities ----------------------------------------------------------------------------------------------------

_NEGATIVE = "var has negative entry/entries"
_NO_PROBABILITY = "all elements of {} should be between 0 and 1"


def _probabilities(input: Tensor, target: Tensor, *_: object, **__: object) -> None:
    """Raise for what is no probability, of operands that lie alike."""
    if input._shape != target._shape:
        return
    for x, name in ((input, "input"), (target, "target")):
        check_range(x, 0, 1, _NO_PROBABILITY.format(name))


@composite(
    splits=of_loss,
    function_in=FUNCTIONAL,
    dtypes=FLOATS,
    domain=(0.02, 0.98),
    samples=_REDUCTIONS,
    autocast=Autocast("fp32", "refuse"),
    gradient_name="BinaryCrossEntropyBackward0",
    vjp=ANEW,
    values=_probabilities,
)
def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return the mean of -(target * log(input) + (1 - target) * log(1 - input)); input and target in 0..1."""
    reduction = chosen_reduction(size_average, reduce, reduction)
    if tuple(target.shape) != tuple(input.shape):
        raise ValueError(
            f"Using a target size (torch.Size({list(target.shape)})) that is different to the input size "
            f"(torch.Size({list(input.shape)})) is deprecated. Please ensure they have the same size."
        )
    if target.dtype is not input.dtype:
        raise RuntimeError(
            f"Found dtype {target.dtype.legacy} but expected {input.dtype.legacy}: binary_cross_entropy "
            "takes a target of its input's type"
        )
    _check_pair("binary_cross_entropy", input, target, both=True)
    loss = bce_error(input, target)
    for x, name in ((input, "input"), (target, "target")):
        inside = logical_and(ge(x.detach(), 0), le(x.detach(), 1))
        loss = demand(loss, inside, _NO_PROBABILITY.format(name))
    return reduced(loss if weight is None else loss * weight, reduction)


@composite(
    splits=of_loss,
    function_in=FUNCTIONAL,
    dtypes=FLOATS,
    samples=_REDUCTIONS,
    autocast=FP32,
    gradient_name="BinaryCrossEntropyWithLogitsBackward0",
    vjp=ANEW,
)
def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """Return binary_cross_entropy(sigmoid(input), target), computed so that nothing overflows."""
    reduction = chosen_reduction(size_average, reduce, reduction)
    if tuple(target.shape) != tuple(input.shape):
        raise ValueError(
            f"Target size (torch.Size({list(target.shape)})) must be the same as input size "
            f"(torch.Size({list(input.shape)}))"
        )
    target = target if target.dtype.kind == "float" else to_type(target, input.dtype)
    _check_pair("binary_cross_entropy_with_logits", input, target, both=True)
    if pos_weight is None:
        loss = bce_logits_error(input, target)
    else:
        loss = bce_logits_weighted_error(input, target, pos_weight)
    return reduced(loss if weight is None else loss * weight, reduction)


@composite(
    function_in=("torch", "nn.functional"),
    dtypes=FLOATS,
    autocast=FP32,
    refuses=NOT_FLOATS,
    gradient_name=_last_part("SubBackward0", "MulBackward0", "log_target"),
    vjp=ANEW,
)
def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """Return target * (log(target) - input), with log-probabilities as input; "batchmean" divides by the batch."""
    if reduction == "mean" and size_average is None and reduce is None:
        warn(
            "reduction: 'mean' divides the total loss by both the batch size and the support size."
            "'batchmean' divides only by the batch size, and aligns with the KL div math definition."
            "'mean' will be changed to behave the same as 'batchmean' in the next major release.",
        )
    if (
        "float" not in (input.dtype.kind, target.dtype.kind)
        or input.dtype.kind != target.dtype.kind
    ):
        raise RuntimeError("kl_div: Integral inputs not supported.")
    if log_target:
        loss = exp(target) * (target - input)
    else:
        loss = xlogy(target, target) - target * input
    if reduction == "batchmean":
        return sum(loss) / (input.shape[0] if input.ndim else 1)
    return reduced(loss, chosen_reduction(size_average, reduce, reduction))


@composite(
    function_in=FUNCTIONAL,
    dtypes=FLOATS,
    gradient_name=_last_part("MulBackward0", "AddBackward0", "full"),
    vjp=ANEW,
)
def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-06,
    reduction: str = "mean",
) -> Tensor:
    """Return (log(var) + (input - target) ** 2 / var) / 2, with var at least eps; full adds log(2 pi) / 2."""
    if isinstance(var, Tensor):
        if tuple(var.shape) != tuple(input.shape):
            if tuple(input.shape[:-1]) == tuple(var.shape):
                var = var.unsqueeze(-1)
            # PyTorch's rule: the sizes that differ add up to 1, so there is one, and it is 1.
            elif (
                input.ndim != var.ndim
                or math.fsum(b for a, b in zip(input.shape, var.shape, strict=True) if a != b) != 1
            ):
                raise ValueError(
                    f"gaussian_nll_loss: var is of incorrect size: {tuple(var.shape)} with input {tuple(input.shape)}."
                )
        given, known = var, at_hand_or_written(var)
        if known is not None and (known < 0).any():
            raise ValueError(_NEGATIVE)
        # The bound itself has no gradient: PyTorch clamps outside autograd.
        var = var + (clamp_min(var.detach(), eps) - var.detach())
        loss = (log(var) + squared_error(input, target) / var) * 0.5
        loss = demand(loss, ge(given.detach(), 0), _NEGATIVE)
    else:
        if var < 0:
            raise ValueError(_NEGATIVE)
        bound = max(var, eps)
        loss = (squared_error(input, target) / bound + math.log(bound)) * 0.5
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return reduced(loss, chosen_reduction(None, None, reduction))


@composite(
    function_in=("torch", "nn.functional"),
    dtypes=FLOATS,
    autocast=FP32,
    refuses=BOOL,
    gradient_name=_last_part("SubBackward0", "AddBackward0", "full"),
    vjp=ANEW,
)
def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    size_average: bool | None = None,
    eps: float = 1e-08,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return exp(input) - target * input, or input - target * log(input + eps); full adds Stirling's term."""
    reduction = chosen_reduction(size_average, reduce, reduction)
    if log_input:
        loss = exp(input) - target * input
    else:
        loss = input - target * log(input + eps)
    if full:
        stirling = xlogy(target, target) - target + log(target * (2 * math.pi)) * 0.5
        loss = loss + _where(target > 1, stirling, 0.0)
    return reduced(loss, reduction)


# -- classification ---------------------------------------------------------------------------------------------------


def _check_classes(name: str, input: Tensor, target: Tensor, weight: Tensor | None) -> int:
    """Return the class dim. Raises PyTorch's errors about shapes and types."""
    if input.dtype.kind != "float":
        raise DTypeError(f"{name}: not implemented for {input.dtype}. Convert it with .float().")
    if not input.ndim:
        raise ValueError("Expected 1 or more dimensions (got 0)")
    dim = 0 if input.ndim == 1 else 1
    expected = tuple(s for d, s in enumerate(input.shape) if d != dim)
    if input.ndim == target.ndim == 1:
        if target.numel() != 1:
            raise ValueError(
                f"For 1D input, 1D target must have size 1, but got target size: {target.numel()}"
            )
        raise ShapeError(
            f"size mismatch (got input: {list(input.shape)}, target: {list(target.shape)}): {name} of one row takes a "
            "target without dims"
        )
    if tuple(target.shape) != expected:
        if input.ndim > 1 and (not target.ndim or target.shape[0] != input.shape[0]):
            raise ValueError(
                f"Expected input batch_size ({input.shape[0]}) to match target batch_size "
                f"({target.shape[0] if target.ndim else 1})."
            )
        if input.ndim == 2:
            raise ShapeError(
                f"0D or 1D target tensor expected, multi-target not supported ({name}: got {list(target.shape)} "
                f"with input {list(input.shape)})"
            )
        raise ShapeError(
            f"Expected target size {list(expected)}, got {list(target.shape)} with input {list(input.shape)}."
        )
    if target.dtype not in (int64, uint8):
        raise DTypeError(
            f"expected target dtype to be Long or Byte, but got {target.dtype.legacy}. {name}: convert it with .long()."
        )
    _check_class_weight(name, input.shape[dim], weight)
    return dim


def _check_class_weight(name: str, classes: int, weight: Tensor | None) -> None:
    if weight is not None and tuple(weight.shape) != (classes,):
        raise ShapeError(
            f"weight tensor should be defined either for all {classes} classes or no classes but got weight "
            f"tensor of shape: {list(weight.shape)} ({name})"
        )


def _check_weight_type(name: str, input: Tensor, weight: Tensor | None) -> None:
    if weight is not None and weight.dtype is not input.dtype:
        raise RuntimeError(
            f"expected scalar type {input.dtype.legacy} but found {weight.dtype.legacy}: the weight of {name}. Convert "
            "it with .to()."
        )


def _along_classes(weight: Tensor, dim: int, rank: int) -> Tensor:
    return weight.reshape((1,) * dim + (-1,) + (1,) * (rank - dim - 1))


def _negative_log_likelihood(
    name: str,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    smoothing: float,
    dim: int,
    gathered: bool = False,
) -> Tensor:
    """Return the loss of log-probabilities x for class numbers, with label smoothing.

    The comparison with every class fuses with what computes x; `gathered` reads one class of each row.
    """
    classes = x.shape[dim]
    counted = ne(target, ignore_index)
    if gathered and weight is None and 0 not in target.shape:
        # All weights are 1: reading the class checks its number.
        places = _where(counted, target, 0).unsqueeze(dim)
        chosen = gather_scatter.gather_along(x, dim, cast_to(places, int64), name).squeeze(dim)
        loss = _where(counted, -chosen, 0.0)
        if reduction == "none":
            return loss
        return sum(loss) / sum(counted) if reduction == "mean" else sum(loss)
    # Also without weights the class number is looked up in them: that is where it is checked.
    table = fill((classes,), 1, x.dtype, x.device) if weight is None else to_type(weight, x.dtype)
    if 0 in target.shape:
        weights = fill(target.shape, 0, x.dtype, x.device)
    else:
        found = take(table, (_where(counted, target, 0),), name, dims=(dim,))
        weights = _where(counted, found, 0.0)
    if gathered and 0 not in target.shape:
        places = _where(counted, target, 0).unsqueeze(dim)
        chosen = x.gather(dim, places.long()).squeeze(dim)
    else:
        chosen = sum(_where(eq(positions(x, dim), target.unsqueeze(dim)), x, 0.0), dim)
    # Not times the weight 0, which makes NaN of an infinity.
    loss = _where(counted, -(chosen * weights), 0.0)
    if smoothing:
        spread = x if weight is None else x * _along_classes(table, dim, x.ndim)
        even = _where(counted, -sum(spread, dim), 0.0)
        loss = loss * (1.0 - smoothing) + even * (smoothing / classes)
    if reduction == "none":
        return loss
    total = sum(loss)
    if reduction != "mean":
        return total
    # Where everything is ignored the mean is NaN, but, as in PyTorch, its gradient is zero.
    count = sum(weights)
    nothing = eq(count, 0)
    return total / _where(nothing, 1.0, count) + _where(nothing, math.nan, 0.0)


def _nll_name(input: Tensor, target: Tensor | None = None, *_: object, **__: object) -> str:
    if target is not None and target.dtype.is_floating_point:
        return "DivBackward1"
    return "NllLoss2DBackward0" if input.ndim > 2 else "NllLossBackward0"


def _targets(op: str) -> Callable[..., None]:
    """Return what checks the classes of a loss."""

    def check(
        input: Tensor, target: Tensor, *rest: Any, ignore_index: int | None = None, **_: object
    ) -> None:
        """Raise for a class that there is not."""
        if target.dtype.kind == "int":
            ignored = (
                ignore_index if ignore_index is not None else rest[2] if len(rest) > 2 else -100
            )
            dim = 1 if len(input._shape) > 1 else 0
            text = "Target {index} is out of bounds. "
            check_places(op, target, input._shape[dim], text, dim=dim, ignored=ignored)

    return check


@composite(
    function_in=FUNCTIONAL,
    dtypes=FLOATS,
    autocast=FP32,
    gradient_name=_nll_name,
    vjp=ANEW,
    operators=("nll_loss2d", "nll_loss_nd"),
    values=_targets("nll_loss"),
)
def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return -weight[target] * input[target] of log-probabilities (C), (N, C) or (N, C, ...); a weighted mean."""
    reduction = chosen_reduction(size_average, reduce, reduction)
    dim = _check_classes("nll_loss", input, target, weight)
    _check_weight_type("nll_loss", input, weight)
    loss = _negative_log_likelihood(
        "nll_loss", widened(input), target, weight, ignore_index, reduction, 0.0, dim,
        gathered=in_memory(input),
    )  # fmt: skip
    return to_type(loss, input.dtype)


@composite(
    function_in=FUNCTIONAL,
    dtypes=FLOATS,
    autocast=FP32,
    gradient_name=_nll_name,
    vjp=ANEW,
    saves_values=True,
    operators=("cross_entropy_loss",),
    values=_targets("cross_entropy"),
)
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
    """Return the cross entropy of logits (C), (N, C) or (N, C, ...) and classes, as numbers or probabilities."""
    reduction = chosen_reduction(size_average, reduce, reduction)
    if not 0.0 <= label_smoothing <= 1.0:
        raise RuntimeError(
            f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing:g} (cross_entropy)"
        )
    if input.ndim and target._shape == input._shape:
        if target.dtype.kind != "float":
            raise RuntimeError(
                "Expected floating point type for target with class probabilities, got "
                + target.dtype.legacy
            )
        loss = _soft_cross_entropy(input, target, weight, ignore_index, reduction, label_smoothing)
    else:
        dim = _check_classes("cross_entropy", input, target, weight)
        _check_weight_type("cross_entropy", input, weight)
        loss = _negative_log_likelihood(
            "cross_entropy", log_softmax(widened(input), dim), target, weight, ignore_index,
            reduction, label_smoothing, dim,
        )  # fmt: skip
    return to_type(loss, input.dtype)


def _soft_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    smoothing: float,
) -> Tensor:
    """Return the cross entropy with class probabilities as targets; its mean is over all but the class dim."""
    if ignore_index >= 0:
        raise RuntimeError(
            f"cross_entropy: ignore_index is not supported for floating point target: got {ignore_index}. "
            f"Use class numbers, or leave it out."
        )
    dim = 0 if input.ndim == 1 else 1
    classes = input.shape[dim]
    _check_class_weight("cross_entropy", classes, weight)
    x = log_softmax(widened(input), dim)
    if smoothing:
        target = target * (1.0 - smoothing) + smoothing / classes
    if weight is not None:
        x = x * _along_classes(weight, dim, x.ndim)
    loss = -sum(x * target, dim)
    if reduction == "mean":
        count = math.prod(s for d, s in enumerate(input.shape) if d != dim)
        return sum(loss) / count
    return reduced(loss, reduction)


# -- margins and embeddings -------------------------------------------------------------------------------------------


@composite(
    function_in=("torch", "nn.functional"),
    dtypes=FLOATS,
    autocast=FP32,
    refuses=BOOL,
    gradient_name=_last_part("AddBackward0"),
    vjp=ANEW,
    saves_values=True,
)
def hinge_embedding_loss(
    input: Tensor,
    target: Tensor,
    margin: float = 1.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return input where target is 1, and max(0, margin - input) where it is -1."""
    loss = _where(ne(target, 1), clamp_min(margin - input, 0), 0.0)
    loss = loss + _where(ne(target, -1), input, 0.0)
    return reduced(loss, chosen_reduction(size_average, reduce, reduction))


@composite(
    function_in=("torch", "nn.functional"),
    dtypes=FLOATS,
    autocast=FP32,
    gradient_name=_last_part("ClampMinBackward0"),
    vjp=ANEW,
)
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
    loss = clamp_min(-target * (input1 - input2) + margin, 0)
    return reduced(loss, chosen_reduction(size_average, reduce, reduction))


@composite(
    function_in=("torch", "nn.functional"),
    dtypes=FLOATS,
    autocast=FP32,
    gradient_name=_last_part("AddBackward0"),
    vjp=ANEW,
)
@computed_wide
def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return 1 - cos(input1, input2) where target is 1, and max(0, cos - margin) where it is -1."""
    if target.ndim > 1:
        raise ShapeError(
            "0D or 1D target tensor expected, multi-target not supported. cosine_embedding_loss: "
            f"got {list(target.shape)}"
        )
    if not input1.ndim == input2.ndim == target.ndim + 1:
        raise ShapeError(
            f"{target.ndim}D target tensor expects {target.ndim + 1}D input tensors, but found inputs with sizes "
            f"{list(input1.shape)} and {list(input2.shape)}."
        )
    # The small number belongs under the root: that makes gradients at zero vectors.
    dim = target.ndim
    lengths = [(x * x).sum(dim) + 1e-12 for x in (input1, input2)]
    cosine = (input1 * input2).sum(dim) / sqrt(lengths[0] * lengths[1])
    loss = _where(eq(target, 1), 1 - cosine, 0.0)
    loss = loss + _where(eq(target, -1), clamp_min(cosine - margin, 0), 0.0)
    return reduced(loss, chosen_reduction(size_average, reduce, reduction))


@composite(
    function_in=("torch", "nn.functional"),
    dtypes=FLOATS,
    autocast=FP32,
    gradient_name=_last_part("ClampMinBackward0"),
    vjp=ANEW,
    saves_values=True,
)
@computed_wide
def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-06,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return max(0, |anchor - positive| - |anchor - negative| + margin), in the p-norm (Balntas et al., 2016)."""
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    if not anchor.ndim == positive.ndim == negative.ndim:
        raise ShapeError(
            "The anchor, positive, and negative tensors are expected to have the same number of dimensions, but got: "
            f"anchor {anchor.ndim}D, positive {positive.ndim}D, and negative {negative.ndim}D inputs"
        )
    near = pairwise_distance(anchor, positive, p, eps)
    far = pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = far.minimum(pairwise_distance(positive, negative, p, eps))
    return reduced(
        clamp_min(near - far + margin, 0), chosen_reduction(size_average, reduce, reduction)
    )


@composite(
    splits=of_loss,
    function_in=FUNCTIONAL,
    dtypes=FLOATS,
    autocast=FP32,
    gradient_name="SoftMarginLossBackward0",
    vjp=ANEW,
)
def soft_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return log(1 + exp(-target * input))."""
    if broadcast_shapes(tuple(input.shape), tuple(target.shape)) != tuple(input.shape):
        raise ShapeError(
            f"soft_margin_loss: output with shape {list(input.shape)} doesn't match the broadcast shape "
            f"{list(broadcast_shapes(tuple(input.shape), tuple(target.shape)))}"
        )
    # Its result is of input's type.
    loss = to_type(soft_margin(input, target), input.dtype)
    return reduced(loss, chosen_reduction(size_average, reduce, reduction))
