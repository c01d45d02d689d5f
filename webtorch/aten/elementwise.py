"""Filling, activations, bounds and shifts of aten. Floor 6; imports the engine, not PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

from webtorch.aten.table import aten, op
from webtorch.errors import DTypeError
from webtorch.functions.creation import fits
from webtorch.ir.dtype import DType, Number, bool_
from webtorch.ops.layout import of_operands
from webtorch.ops.primitive import cast_to, fill
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.host import reads
from webtorch.tensors.tensor import Tensor


def filled(shape: Sequence[int], value: Number, dtype: DType, device: DeviceLike) -> Tensor:
    """Return a tensor of one number. Raises RuntimeError, as PyTorch does, where the dtype cannot hold it."""
    return fill(tuple(shape), fits(value, dtype), dtype, device)


@aten("fill", "fill_")
def filled_as(x: Tensor, value: Number) -> Tensor:
    """Return a tensor like x of one number, which may be a 0-d tensor."""
    if isinstance(value, (bool, int, float, complex)):
        return filled(x._shape, value, x.dtype, x.device)
    if value._shape:
        raise RuntimeError(
            "fill_ only supports 0-dimension value tensor but got tensor with "
            f"{len(value._shape)} dimensions."
        )
    return cast_to(value, x.dtype).expand(x._shape)


@aten("zero_")
def _zero(x: Tensor) -> Tensor:
    return fill(x._shape, 0, x.dtype, x.device)


@aten("elu", layout=of_operands)
def elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    """PyTorch's operator behind elu, selu and celu."""
    out = (
        op.elu(x, alpha)
        if input_scale == 1
        else op.where(op.gt(x, 0), x, op.expm1(x * input_scale) * alpha)
    )
    return out if scale == 1 else out * scale


@aten("_prelu_kernel", layout=of_operands)
def prelu_kernel(x: Tensor, weight: Tensor) -> Tensor:
    """X where positive, else x * weight."""
    return op.where(op.gt(x, 0), x, x * weight)


@aten("log_sigmoid_forward", out="exact")
def _log_sigmoid(x: Tensor) -> tuple[Tensor, Tensor]:
    return op.logsigmoid(x), fill((0,), 0, x.dtype, x.device)


@aten("clamp_max.Tensor", layout=of_operands)
def _clamp_max(x: Tensor, bound: Tensor) -> Tensor:
    return op.minimum(x, bound)


@aten("clamp_min.Tensor", layout=of_operands)
def _clamp_min(x: Tensor, bound: Tensor) -> Tensor:
    return op.maximum(x, bound)


@aten("hardtanh", layout=of_operands)
def _hardtanh(x: Tensor, low: float = -1, high: float = 1) -> Tensor:
    if x.dtype is bool_:
        raise DTypeError("Bool inputs not supported for hardtanh: use input.float()")
    if x.dtype.kind == "uint" and low < 0:
        raise DTypeError(
            f"cannot do hardtanh on an unsigned type with negative limits, got {x.dtype} and {low}"
        )
    return op.clamp(x, *((low, high) if x.dtype.is_floating_point else (int(low), int(high))))


@aten("__lshift__", "__ilshift__", "bitwise_left_shift")
def _left_shift(x: Tensor, y: Tensor) -> Tensor:
    return op.bitwise_left_shift(x, y)


@aten("__rshift__", "__irshift__", "bitwise_right_shift")
def _right_shift(x: Tensor, y: Tensor) -> Tensor:
    return op.bitwise_right_shift(x, y)


@aten("_assert_async")
def _assert_async(
    x: Tensor, message: str = "Expected Tensor with single nonzero value, but got zero"
) -> None:
    # A compiled program has no way to raise: nothing is checked there.
    if reads.possible and not bool(x):
        raise RuntimeError(message)
