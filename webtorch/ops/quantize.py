"""Weights of few bits: packing, unpacking, and products that unpack as they read. May import floors 0 and 1.

A weight (out, in) is cut along `in` into groups, each with a scale and, for 4 bits, a zero point:
w = (q - zero) * scale. 8-bit numbers are an int8 tensor (out, in); of 4-bit numbers eight lie in one
int32 word, the first in the lowest bits: (out, in / 8). Unpacking is made of elementwise operations,
so that a matrix-vector product reads the packed words and nothing else: one kernel.
"""

from __future__ import annotations

from typing import Any

from webtorch.errors import DTypeError, ShapeError
from webtorch.ir import expr as ex
from webtorch.ir.dtype import float32, int8, int32
from webtorch.ops.contract import check_tensor, rows_times
from webtorch.ops.primitive import cast_to, iota
from webtorch.ops.record import LOWER, composite, elementwise

# Rows of input up to which every output is a sum of its own: for more, unpacking once and a matrix
# product is less work.
_FEW_ROWS = 4
_PER_WORD = 8


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
    if bits == 4 and size % _PER_WORD:
        raise ValueError(
            f"groups of {size} do not fill 32-bit words with 4-bit numbers: their size must be a "
            f"multiple of {_PER_WORD}; use bits=8"
        )
    return columns // size


@composite(name="_quantize_weight", function_in=(), torch="", differentiable=False)
def quantize_weight(weight: Any, bits: int, group_size: int) -> tuple[Any, Any, Any]:
    """Return (packed, scales, zeros) of a weight (out, in); scales and zeros are float32 (out, groups).

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
        packed = (w / scale).round().clamp(-127, 127).to(int8)
        return packed.reshape(rows, columns), scale.squeeze(-1), None
    # Zero is always a number of its own: padding and pruned weights stay exact.
    low = w.amin(-1, keepdim=True).clamp(max=0.0)
    high = w.amax(-1, keepdim=True).clamp(min=0.0)
    scale = (high - low) / 15.0
    scale = scale.masked_fill(scale == 0.0, 1.0)
    zero = (-low / scale).round().clamp(0, 15)
    q = ((w / scale).round() + zero).clamp(0, 15).to(int32)
    q = q.reshape(rows, columns // _PER_WORD, _PER_WORD)
    # The top number reaches into the sign bit, which a shift fills as it should.
    packed = (q << _shifts(q)).sum(-1, dtype=int32)
    return packed, scale.squeeze(-1), zero.squeeze(-1)


def _shifts(x: Any) -> Any:
    return iota(_PER_WORD, 0, 4, int32, x.device)


nibble = elementwise(
    "_nibble",
    lambda word, shift: ex.shr(word, shift) & 15,
    tensors=("word", "shift"),
    torch="",
    function_in=(),
    inplace=False,
    dtypes=(int32,),
    doc="The four bits of a word that begin at bit `shift`.",
)


@composite(name="_dequantize_weight", function_in=(), torch="", differentiable=False)
def dequantize_weight(packed: Any, scales: Any, zeros: Any, bits: int) -> Any:
    """Return the float32 weight (out, in) that packed numbers stand for."""
    rows, count = scales.shape
    if bits == 4:
        q = nibble(packed.unsqueeze(-1), _shifts(packed))
        w = cast_to(q, float32).reshape(rows, count, -1) - zeros.unsqueeze(-1)
    else:
        w = cast_to(packed, float32).reshape(rows, count, -1)
    return (w * scales.unsqueeze(-1)).reshape(rows, -1)


@composite(name="_lower_precision", function_in=(), torch="", autocast=LOWER)
def _lowered(input: Any) -> Any:
    """The input in the precision that products have under autocast."""
    return input


def _cotangents(
    g: Any,
    out: Any,
    input: Any,
    packed: Any,
    scales: Any,
    zeros: Any,
    bias: Any,
    bits: int,
) -> tuple[Any, ...]:
    weight = cast_to(dequantize_weight(packed, scales, zeros, bits), g.dtype)
    rows = g.reshape((-1, g.shape[-1]))
    return rows_times(g, weight), None, None, None, rows.sum(0)


@composite(name="_quantized_product", function_in=(), torch="", vjp=_cotangents)
def _quantized_product(
    input: Any, packed: Any, scales: Any, zeros: Any, bias: Any, bits: int
) -> Any:
    lead, columns = tuple(input.shape[:-1]), input.shape[-1]
    weight = dequantize_weight(packed, scales, zeros, bits)
    x = input.reshape((-1, columns))
    if 0 < x.shape[0] <= _FEW_ROWS and columns:
        out = (cast_to(x, float32).unsqueeze(1) * weight).sum(-1)
    else:
        out = rows_times(x, cast_to(weight, input.dtype), True)
    if bias is not None:
        out = out + bias
    return cast_to(out, input.dtype).reshape((*lead, packed.shape[0]))


@composite(name="_quantized_linear", function_in=(), torch="")
def quantized_linear(
    input: Any, packed: Any, scales: Any, zeros: Any = None, bias: Any = None, bits: int = 8
) -> Any:
    """Return input @ w.T + bias for input (*, in) and the weight that `packed` stands for.

    The result has the input's type. Differentiable in input and bias.
    """
    check_tensor("quantized_linear", "packed", 2, packed)
    columns = packed.shape[1] * (_PER_WORD if bits == 4 else 1)
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
