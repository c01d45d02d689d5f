"""Weights of few bits: packing, unpacking, and products that unpack as they read.

A weight (out, in) is cut along `in` into groups, each with a scale and, for 4 bits, a zero point:
w = (q - zero) * scale. The numbers lie in int32 words (out, in * bits / 32). A group of S numbers
with L of them in a word has S / L words, and number l of word j is the group's number l * S / L + j:
neighbouring words hold neighbouring numbers, so that a few words, and the inputs they meet, are read
at once. Unpacking is made of elementwise operations: a matrix-vector product is one kernel that reads
the packed words and no other weight.
"""

from __future__ import annotations

from webtorch.errors import DTypeError, ShapeError
from webtorch.functions.contract import check_tensor, rows_times
from webtorch.ir.dtype import FLOATS, float32, int32, int64
from webtorch.ops.packed import LANES, WORD, itself
from webtorch.ops.primitive import cast_to
from webtorch.ops.record import LOWER, TABLE, composite
from webtorch.tensors.tensor import Tensor

# Rows of input up to which every output is a sum of its own: for more, unpacking once and a matrix
# product is less work.
_FEW_ROWS = 4


def groups_of(columns: int, bits: int, group_size: int) -> int:
    """Return how many groups a row of `columns` has; -1 means one. Raises ValueError for a size that does not fit."""
    if bits not in (4, 8):
        raise ValueError(f"quantized weights have 4 or 8 bits, not {bits}")
    size = columns if group_size == -1 else group_size
    if size < 1 or columns % size:
        raise ValueError(
            f"group_size={group_size} does not divide the {columns} input features: choose a divisor "
            "of them, or -1 for one group in each row"
        )
    if size * bits % WORD:
        raise ValueError(
            f"groups of {size} do not fill 32-bit words with {bits}-bit numbers: their size must be a "
            f"multiple of {WORD // bits}"
        )
    return columns // size


@composite(name="_quantize_weight", function_in=(), differentiable=False)
def quantize_weight(
    weight: Tensor, bits: int, group_size: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return (packed, scales, zeros) of a weight (out, in): words, and float32 (out, groups) twice.

    8 bits are symmetric, -127 to 127, and zeros is None; 4 bits span each group from its least to
    its largest value.
    """
    if weight.ndim != 2 or weight.dtype.kind != "float":
        raise ShapeError(
            f"quantize_weight: a weight is a float matrix (out, in), not {weight.dtype} of shape "
            f"{tuple(weight.shape)}"
        )
    rows, columns = weight.shape
    count = groups_of(columns, bits, group_size)
    w = cast_to(weight.detach(), float32).reshape(rows, count, columns // count)
    if bits == 8:
        scale = w.abs().amax(-1, keepdim=True) / 127.0
        # A group of zeros: any scale will do.
        scale = scale.masked_fill(scale == 0.0, 1.0)
        q, zeros = (w / scale).round().clamp(-127, 127), None
    else:
        # Zero is always a number of its own: padding and pruned weights stay exact.
        low = w.amin(-1, keepdim=True).clamp(max=0.0)
        high = w.amax(-1, keepdim=True).clamp(min=0.0)
        scale = (high - low) / 15.0
        scale = scale.masked_fill(scale == 0.0, 1.0)
        zero = (-low / scale).round().clamp(0, 15)
        q, zeros = ((w / scale).round() + zero).clamp(0, 15), zero.squeeze(-1)
    lanes = q.to(int32).reshape(rows, count, WORD // bits, -1)
    packed = None
    for lane in range(WORD // bits):
        part = (lanes[:, :, lane] & ((1 << bits) - 1)) << (bits * lane)
        packed = part if packed is None else packed | part
    assert packed is not None
    return packed.reshape(rows, -1), scale.squeeze(-1), zeros


@composite(name="_dequantize_weight", function_in=(), differentiable=False)
def dequantize_weight(packed: Tensor, scales: Tensor, zeros: Tensor | None, bits: int) -> Tensor:
    """Return the float32 weight (out, in) that packed numbers stand for."""
    rows, count = scales.shape
    words = packed.reshape(rows, count, -1)
    w = TABLE["stack"]([take(words) for take in LANES[bits]], 2).to(float32)
    w = w.reshape(rows, count, -1)
    if zeros is not None:
        w = w - zeros.unsqueeze(-1)
    return (w * scales.unsqueeze(-1)).reshape(rows, -1)


def _few_rows(x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor | None, bits: int) -> Tensor:
    """Return x @ w.T in float32 for few rows x (M, in), as sums over the words."""
    rows, count = scales.shape
    words = packed.reshape(1, rows, count, -1)
    x = itself(cast_to(x, float32)).reshape(x.shape[0], 1, count, WORD // bits, -1)
    total = None
    for lane, take in enumerate(LANES[bits]):
        q = take(words) if zeros is None else take(words) - zeros.unsqueeze(-1)
        product = q * x[:, :, :, lane]
        total = product if total is None else total + product
    assert total is not None
    return (total * scales.unsqueeze(-1)).sum((-2, -1))


@composite(name="_lower_precision", function_in=(), autocast=LOWER)
def _lowered(input: Tensor) -> Tensor:
    """The input in the precision that products have under autocast."""
    return input


def _cotangents(
    g: Tensor,
    _out: Tensor,
    _input: Tensor,
    packed: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    _bias: Tensor | None,
    bits: int,
) -> tuple[Tensor | None, ...]:
    weight = cast_to(dequantize_weight(packed, scales, zeros, bits), g.dtype)
    rows = g.reshape((-1, g.shape[-1]))
    return rows_times(g, weight), None, None, None, rows.sum(0)


@composite(name="_quantized_product", function_in=(), vjp=_cotangents)
def _quantized_product(
    input: Tensor,
    packed: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    bias: Tensor | None,
    bits: int,
) -> Tensor:
    lead, columns = tuple(input.shape[:-1]), input.shape[-1]
    x = input.reshape((-1, columns))
    if 0 < x.shape[0] <= _FEW_ROWS and columns:
        out = _few_rows(x, packed, scales, zeros, bits)
    else:
        weight = dequantize_weight(packed, scales, zeros, bits)
        out = rows_times(x, cast_to(weight, input.dtype), True)
    if bias is not None:
        out = out + bias
    return cast_to(out, input.dtype).reshape((*lead, packed.shape[0]))


@composite(name="_quantized_linear", function_in=())
def quantized_linear(
    input: Tensor,
    packed: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    bias: Tensor | None = None,
    bits: int = 8,
) -> Tensor:
    """Return input @ w.T + bias for input (*, in) and the weight that `packed` stands for.

    The result has the input's type. Differentiable in input and bias.
    """
    check_tensor("quantized_linear", "packed", 2, packed)
    columns = packed.shape[1] * WORD // bits
    if not input.ndim or input.shape[-1] != columns:
        raise ShapeError(
            f"quantized_linear: the input {tuple(input.shape)} needs {columns} features in its last "
            f"dimension, the weight's in_features"
        )
    if input.dtype.kind != "float":
        raise DTypeError(
            f"quantized_linear: the input must be a float tensor, not {input.dtype}: use x.float()"
        )
    return _quantized_product(_lowered(input), packed, scales, zeros, bias, bits)


# ---- quantisation that training sees ----------------------------------------------------------------


def _levels(name: str, x: Tensor, low: int, high: int) -> None:
    """Raise for a tensor that is no float tensor, and for levels that are none."""
    check_tensor(name, "input", 1, x)
    if x.dtype.kind != "float":
        raise DTypeError(f"{name}: expected a float tensor, but input is {x.dtype}")
    if low > high:
        raise ValueError(
            f"{name}: `quant_min` should be less than or equal to `quant_max`, but they are {low} and {high}."
        )


def rounded_to_levels(
    x: Tensor, scale: Tensor | float, zero_point: Tensor | float, low: int, high: int
) -> tuple[Tensor, Tensor]:
    """Return x rounded to the numbers `(level - zero_point) * scale`, and where its level was within low and high."""
    level = x * (1.0 / scale)
    if isinstance(zero_point, Tensor) and zero_point.dtype.kind == "float":
        level = TABLE["round"](level + zero_point)
    else:
        level = TABLE["round"](level) + zero_point
    # NaN is the lowest level, as in PyTorch.
    kept = TABLE["where"](level >= low, TABLE["clamp"](level, max=high), float(low))
    return cast_to((kept - zero_point) * scale, x.dtype), (level >= low) & (level <= high)


def _within(
    g: Tensor,
    _out: Tensor,
    x: Tensor,
    scale: Tensor | float,
    zero_point: Tensor | float,
    low: int,
    high: int,
) -> Tensor:
    """The gradient goes through where nothing was cut off, as if nothing had been rounded."""
    return g * rounded_to_levels(x, scale, zero_point, low, high)[1]


@composite(
    name="_fake_quantize",
    function_in=(),
    vjp=(_within,),
    gradient_name="FakeQuantizePerTensorAffineCachemaskBackward0",
)
def _fake_quantize(
    x: Tensor, scale: Tensor | float, zero_point: Tensor | float, low: int, high: int
) -> Tensor:
    return rounded_to_levels(x, scale, zero_point, low, high)[0]


@composite(dtypes=FLOATS, aten=("fake_quantize_per_tensor_affine",))
def fake_quantize_per_tensor_affine(
    input: Tensor,
    scale: Tensor | float,
    zero_point: Tensor | int,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """Return `input` rounded to `(level - zero_point) * scale` with whole levels from quant_min to quant_max.

    The gradient goes straight through where the level was within them, and is 0 elsewhere.
    Raises ValueError for levels or a zero point out of order.
    """
    name = "fake_quantize_per_tensor_affine"
    _levels(name, input, quant_min, quant_max)
    if isinstance(scale, Tensor):
        scale = scale.detach().reshape(())
    if isinstance(zero_point, Tensor):
        zero_point = zero_point.detach().reshape(())
    elif not quant_min <= zero_point <= quant_max:
        raise ValueError(
            f"{name}: `zero_point` must be between `quant_min` and `quant_max`, but is {zero_point}."
        )
    return _fake_quantize(input, scale, zero_point, quant_min, quant_max)


@composite(dtypes=FLOATS, aten=("fake_quantize_per_channel_affine",))
def fake_quantize_per_channel_affine(
    input: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
) -> Tensor:
    """Return `fake_quantize_per_tensor_affine` with a scale and a zero point for each place along `axis`.

    Scales are float32 (n,), zero points int32 or floats (n,), where n is the size of `input` along `axis`.
    Raises ShapeError for others.
    """
    name = "fake_quantize_per_channel_affine"
    _levels(name, input, quant_min, quant_max)
    if not 0 <= axis < input.ndim:
        raise IndexError(
            f"{name}: `axis` must be between 0 and number of dimensions of input, but is {axis} of {input.ndim}"
        )
    if zero_point.dtype == int64:
        raise DTypeError("Zero-point must be Int32, Float or Half, found Long")
    if tuple(scale.shape) != tuple(zero_point.shape):
        raise ShapeError(
            f"{name}: scale and zero-point need to have the same dimensions, but have {tuple(scale.shape)} and "
            f"{tuple(zero_point.shape)}"
        )
    if tuple(scale.shape) != (input.shape[axis],):
        raise ShapeError(
            f"{name}: dimensions of scale and zero-point are not consistent with input tensor: {tuple(scale.shape)} "
            f"for dim {axis} of {tuple(input.shape)}"
        )
    shape = [1] * input.ndim
    shape[axis] = -1
    scale, zero_point = scale.detach().reshape(shape), zero_point.detach().reshape(shape)
    return _fake_quantize(input, scale, zero_point, quant_min, quant_max)
