"""Losses of aten, and the scale of mixed precision. Floor 6; imports the engine, not PyTorch."""

from __future__ import annotations

from webtorch.aten.table import FUNCTIONS, REDUCTIONS, Function, aten, op
from webtorch.errors import DTypeError, ShapeError
from webtorch.functions import indexing
from webtorch.ir.dtype import int64, uint8
from webtorch.ops.layout import of_operands
from webtorch.ops.primitive import cast_to, fill
from webtorch.ops.record import TABLE
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.values import check_places


def class_weights(
    x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """Return the class numbers, ignored ones as 0, and each one's weight (0 where ignored), looked up with a check."""
    dim = 1 if x.ndim > 1 else 0
    classes = x._shape[dim]
    if len(target._shape) > 1 and len(x._shape) < 3:
        raise ShapeError("0D or 1D target tensor expected, multi-target not supported (nll_loss)")
    if len(x._shape) == 1 and target.numel() != 1:
        raise ValueError(
            f"For 1D input, 1D target must have size 1, but got target size: {target.numel()}"
        )
    if target.dtype not in (int64, uint8):
        raise DTypeError(
            f"expected target dtype to be Long or Byte, but got {target.dtype.legacy}. nll_loss: use target.long()"
        )
    if weight is not None and weight._shape != (classes,):
        raise ShapeError(
            f"weight tensor should be defined either for all {classes} classes or no classes but got weight tensor "
            f"of shape: {list(weight._shape)} (nll_loss)"
        )
    words = "Target {index} is out of bounds. "
    check_places("nll_loss", target, classes, words, dim=dim, ignored=ignore_index)
    target = cast_to(target, int64)
    counted = op.ne(target, ignore_index)
    safe = op.where(counted, target, 0)
    table = fill((classes,), 1, x.dtype, x.device) if weight is None else weight
    weights = (
        indexing.take_at(table, {0: safe})
        if target.numel()
        else fill(target._shape, 0, x.dtype, x.device)
    )
    return safe, op.where(counted, weights, 0.0)


@aten(
    "nll_loss_forward",
    "nll_loss2d_forward",
    direct=("nll_loss_forward",),
)
def _nll_loss(
    x: Tensor, target: Tensor, weight: Tensor, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    safe, weights = class_weights(x, target, weight, ignore_index)
    dim = 1 if x.ndim > 1 else 0
    if x.ndim > 1 or target.ndim == 0:
        picked = op.gather(x, dim, safe.unsqueeze(dim)).squeeze(dim)
    else:
        picked = op.gather(x, 0, safe)
    # An ignored row counts nothing, also where it holds infinities.
    loss = op.where(op.ne(target, ignore_index), -(picked * weights), 0.0)
    if reduction == 0:
        return loss, fill((), 0, x.dtype, x.device)
    total = op.sum(weights)
    loss = op.sum(loss)
    return (loss / total if reduction == 1 else loss), total


def _pair(name: str) -> Function:
    def run(x: Tensor, y: Tensor, reduction: int = 1, *numbers: float) -> Tensor:
        """Return the loss of two tensors; `reduction` is PyTorch's number."""
        return TABLE[name].function(x, y, **_extra(name, numbers), reduction=REDUCTIONS[reduction])

    return run


def _extra(name: str, numbers: tuple[float, ...]) -> dict[str, float]:
    names = {"smooth_l1_loss": "beta", "huber_loss": "delta"}
    return {names[name]: numbers[0]} if numbers else {}


for _name in ("mse_loss", "smooth_l1_loss", "huber_loss"):
    FUNCTIONS[_name] = _pair(_name)


@aten("binary_cross_entropy", layout=of_operands)
def binary_cross_entropy(
    x: Tensor, y: Tensor, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    """The loss of probabilities."""
    return op.binary_cross_entropy(x, y, weight, reduction=REDUCTIONS[reduction])


@aten("_amp_update_scale_")
def _amp_update_scale(
    scale: Tensor,
    growth_tracker: Tensor,
    found_inf: Tensor,
    growth: float,
    backoff: float,
    interval: int,
) -> Tensor:
    failed = op.ne(found_inf, 0.0)
    grown = op.eq(growth_tracker + 1, interval)
    tracker = op.where(op.logical_or(failed, grown), 0, growth_tracker + 1)
    larger = scale * growth
    # It does not grow past what its type has.
    larger = op.where(op.logical_and(grown, op.isfinite(larger)), larger, scale)
    new = op.where(failed, scale * backoff, larger)
    op.copy_(growth_tracker, cast_to(tracker, growth_tracker.dtype))
    return new
