"""Quantised tensors: products of integers, scales and zero points. Floor 6."""

from __future__ import annotations

from webtorch.functions import public as webtorch
from webtorch.onnx.operators.table import Attrs, Context, Result, op
from webtorch.onnx.operators.windows import convolution
from webtorch.tensors.tensor import Tensor


def _integers(x: Tensor, zero: Tensor | None, axis: int) -> Tensor:
    """Return quantised numbers less their zero point, in float32, which holds their products exactly
    up to 2**24 and sums of them well beyond what a layer adds up.
    """
    wide = x.to(webtorch.int32)
    return (wide if zero is None else wide - _per_axis(zero, x, axis).to(webtorch.int32)).to(
        webtorch.float32
    )


def _requantised(x: Tensor, scale: Tensor, zero: Tensor, axis: int) -> Tensor:
    info = webtorch.iinfo(zero.dtype)
    out = webtorch.round(x / _per_axis(scale, x, axis)) + _per_axis(zero, x, axis).to(x.dtype)
    return out.clamp(info.min, info.max).to(zero.dtype)


@op("MatMulInteger")
def _matmul_integer(
    c: Context,
    a: Attrs,
    n: int,
    x: Tensor,
    y: Tensor,
    x_zero: Tensor | None = None,
    y_zero: Tensor | None = None,
) -> Tensor:
    left = _integers(x, x_zero, -2)
    return (left @ _integers(y, y_zero, -1)).to(webtorch.int32)


@op("QLinearMatMul")
def _qlinear_matmul(
    c: Context,
    a: Attrs,
    n: int,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    y: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    scale: Tensor,
    zero: Tensor,
) -> Tensor:
    product = _integers(x, x_zero, -2) @ _integers(y, y_zero, -1)
    return _requantised(product * (x_scale * y_scale).to(product.dtype), scale, zero, -1)


@op("ConvInteger")
def _conv_integer(
    c: Context,
    a: Attrs,
    n: int,
    x: Tensor,
    w: Tensor,
    x_zero: Tensor | None = None,
    w_zero: Tensor | None = None,
) -> Tensor:
    left = _integers(x, x_zero, 1)
    return convolution(c, a, 1, left, _integers(w, w_zero, 0)).to(webtorch.int32)


@op("QLinearConv")
def _qlinear_conv(
    c: Context,
    a: Attrs,
    n: int,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    scale: Tensor,
    zero: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    out = convolution(c, a, 1, _integers(x, x_zero, 1), _integers(w, w_zero, 0))
    if bias is not None:
        out = out + bias.to(out.dtype).reshape((1, -1) + (1,) * (out.ndim - 2))
    weights = _per_axis(w_scale, out, 1)
    return _requantised(out * (x_scale * weights), scale, zero, 1)


def _per_axis(v: Tensor, x: Tensor, axis: int) -> Tensor:
    if v.ndim != 1 or v.shape[0] == 1:
        return v
    return v.reshape((-1,) + (1,) * (x.ndim - axis % x.ndim - 1))


@op("DequantizeLinear")
def _dequantize(
    c: Context, a: Attrs, n: int, x: Tensor, scale: Tensor, zero: Tensor | None = None
) -> Tensor:
    axis = a.get("axis", 1)
    if a.get("block_size"):
        raise NotImplementedError("load: DequantizeLinear by blocks is not available")
    wide = x.to(webtorch.int32)
    if zero is not None:
        wide = wide - _per_axis(zero, x, axis).to(webtorch.int32)
    return wide.to(scale.dtype) * _per_axis(scale, x, axis)


@op("QuantizeLinear")
def _quantize(
    c: Context, a: Attrs, n: int, x: Tensor, scale: Tensor, zero: Tensor | None = None
) -> Tensor:
    axis = a.get("axis", 1)
    if a.get("block_size"):
        raise NotImplementedError("load: QuantizeLinear by blocks is not available")
    dtype = zero.dtype if zero is not None else webtorch.uint8
    info = webtorch.iinfo(dtype)
    scaled = webtorch.round(x / _per_axis(scale, x, axis))
    if zero is not None:
        scaled = scaled + _per_axis(zero, x, axis).to(scaled.dtype)
    return scaled.clamp(info.min, info.max).to(dtype)


@op("DynamicQuantizeLinear")
def _dynamic_quantize(c: Context, a: Attrs, n: int, x: Tensor) -> Result:
    low, high = x.min().clamp(max=0), x.max().clamp(min=0)
    scale = (high - low) / 255
    zero = webtorch.round(-low / scale).clamp(0, 255).to(webtorch.uint8)
    out = (webtorch.round(x / scale) + zero.to(x.dtype)).clamp(0, 255).to(webtorch.uint8)
    return out, scale, zero
