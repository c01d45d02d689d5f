"""Products with weights of 4 and 8 bits that PyTorch lays out: `_weight_int4pack_mm`, `_weight_int8pack_mm`. Floor 6.

A product of a few rows is one kernel that unpacks as it reads; for more the weight is unpacked first.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from webtorch.aten.table import aten, op
from webtorch.functions.contract import rows_times
from webtorch.ir import expr as ex
from webtorch.ir.dtype import float32, int32, uint8
from webtorch.ir.expr import Expr
from webtorch.ops.blocks import FP4, NF4, chosen
from webtorch.ops.primitive import cast_to, formula, iota, reduce_dims
from webtorch.ops.record import Elementwise
from webtorch.tensors.tensor import Tensor

_FEW_ROWS = 4


def product(x: Tensor, weight: Tensor) -> Tensor:
    """Return x @ weight.T, in the type of x (*, columns), for a weight (rows, ...) that is computed where it is read:
    its dims but the first are the columns.
    """
    lead, rows, inner = x._shape[:-1], weight._shape[0], weight._shape[1:]
    count = math.prod(lead)
    if not 0 < count <= _FEW_ROWS:
        whole = cast_to(weight, x.dtype).reshape((rows, x._shape[-1]))
        return rows_times(x, whole, True)
    parts = op.mul(cast_to(x, float32).reshape((count, 1, *inner)), weight.unsqueeze(0))
    found = reduce_dims(parts, "sum", tuple(range(2, parts.ndim)))
    return cast_to(found, x.dtype).reshape((*lead, rows))


@aten("_weight_int8pack_mm")
def _weight_int8pack_mm(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    return cast_to(op.mul(product(x, cast_to(weight, float32)), scales), x.dtype)


# ---- four bits


def _cut_op(name: str, value: Callable[[Expr], Expr]) -> Elementwise:
    """Return the operation that makes a number of 4 bits of a word, which begin at a place."""
    return Elementwise(
        name=name,
        family="elementwise",
        signature="",
        doc="Unpacks four bits.",
        expr=lambda _position, word, place: value(ex.shr(word, place) & 15),
        tensors=(),
        function_in=(),
    )


_WHOLE = _cut_op("_four_bits", lambda q: ex.cast(q, float32))
CODES = {
    "nf4": _cut_op("_four_bits_nf4", lambda q: chosen(NF4, q)),
    "fp4": _cut_op("_four_bits_fp4", lambda q: chosen(FP4, q)),
}


def upper_first(data: Tensor, code: Elementwise) -> Tensor:
    """Return the float32 numbers (*, 2) that bytes (*) hold two of, the upper one first."""
    places = (1 - iota(2, 0, 1, int32, data.device)) * 4
    shape = (*data._shape, 2)
    operands = [cast_to(data, int32).unsqueeze(-1).expand(shape), places.expand(shape)]
    return formula(code, operands, shape, float32, data.device, compute=int32)


@aten("_convert_weight_to_int4pack")
def _convert_weight_to_int4pack(weight: Tensor, inner_k_tiles: int) -> Tensor:
    # The shape is that of CUDA; the order is that of the rows.
    rows, half = weight._shape
    shape = (rows // 8, half * 2 // (inner_k_tiles * 16), 32, inner_k_tiles // 2)
    return weight.contiguous().view(int32).reshape(shape)


def _int4_product(x: Tensor, packed: Tensor, group: int, scales: Tensor, zeros: Tensor) -> Tensor:
    """Return the product for scales and zeros, of which the number 8 has one, (groups, rows)."""
    rows, columns = scales._shape[1], x._shape[-1]
    data = packed.contiguous().view(uint8).reshape((rows, columns // group, group // 2))
    whole = upper_first(data, _WHOLE)
    scale, zero = (cast_to(p, float32).t().unsqueeze(-1).unsqueeze(-1) for p in (scales, zeros))
    return product(x, op.add(op.mul(op.sub(whole, 8.0), scale), zero))


@aten("_weight_int4pack_mm")
def _weight_int4pack_mm(x: Tensor, packed: Tensor, group: int, both: Tensor) -> Tensor:
    return _int4_product(x, packed, group, both[..., 0], both[..., 1])


@aten("_weight_int4pack_mm_with_scales_and_zeros")
def _weight_int4pack_mm_with_scales_and_zeros(
    x: Tensor, packed: Tensor, group: int, scales: Tensor, zeros: Tensor
) -> Tensor:
    return _int4_product(x, packed, group, scales, zeros)
