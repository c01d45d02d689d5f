"""bitsandbytes' operators on "webgpu": products and weights of 4 bits, products of int8. Floor 6.

They are registered whether or not bitsandbytes is there, as torchvision's (`regions`). What it computes with PyTorch's
operators alone (`quantize_4bit`, `quantize_blockwise`, `int8_vectorwise_quant`, ...) it computes here, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from webtorch.aten.packed import CODES, product, upper_first
from webtorch.aten.table import Function, op
from webtorch.ir.dtype import DType, int32, int64, uint8
from webtorch.ops.primitive import cast_to
from webtorch.tensors.tensor import Tensor
from webtorch_autoload.device import hide, libraries


def _weight(data: Tensor, absmax: Tensor, size: int, kind: str, shape: Sequence[int]) -> Tensor:
    """Return the weight (rows, ...) as it is computed where it is read; its dims but the first are the columns."""
    data = (data if data.dtype is uint8 else data.contiguous().view(uint8)).reshape(-1)
    count, rows = math.prod(shape), shape[0]
    columns = count // rows
    if columns % size == 0 and size % 2 == 0:
        lead = (rows, columns // size, size // 2)
        return op.mul(
            upper_first(data.reshape(lead), CODES[kind]), absmax.reshape((*lead[:2], 1, 1))
        )
    # Blocks go on in the next row.
    flat = upper_first(data, CODES[kind]).reshape(-1)[:count]
    scale = op.repeat_interleave(absmax, size)[:count]
    return op.mul(flat, scale).reshape((rows, columns))


def _dequantize_4bit(
    data: Tensor, absmax: Tensor, size: int, kind: str, shape: Sequence[int], dtype: DType
) -> Tensor:
    return cast_to(_weight(data, absmax, size, kind, shape), dtype).reshape(tuple(shape))


def _gemm_4bit(
    x: Tensor,
    data: Tensor,
    shape: Sequence[int],
    absmax: Tensor,
    size: int,
    kind: str,
    bias: Tensor | None = None,
    absmax_8bit: Tensor | None = None,
    absmax_code: Tensor | None = None,
    absmax_offset: Tensor | None = None,
) -> Tensor:
    if absmax_8bit is not None:
        # Scales are packed themselves, by 256.
        assert absmax_code is not None and absmax_offset is not None
        nested = op.repeat_interleave(absmax, 256)[: absmax_8bit.numel()]
        found = absmax_code[cast_to(absmax_8bit.reshape(-1), int64)]
        absmax = op.add(op.mul(found, nested), absmax_offset)
    out = product(x, _weight(data, absmax, size, kind, shape))
    return out if bias is None else op.add(out, bias)


def _gemv_4bit(
    x: Tensor, data: Tensor, shape: Sequence[int], absmax: Tensor, code: Tensor, size: int
) -> Tensor:
    # The code is the only word of its kind; the second number of NF4 is below zero.
    kind = "fp4" if float(code[1].item()) > 0 else "nf4"
    return product(x, _weight(data, absmax, size, kind, shape))


def _int8_linear_matmul(x: Tensor, weight: Tensor) -> Tensor:
    lead = x._shape[:-1]
    found = op.mm(cast_to(x.reshape((-1, x._shape[-1])), int32), cast_to(weight, int32).t())
    return found.reshape((*lead, weight._shape[0]))


_KERNELS: dict[str, Function] = {
    "dequantize_4bit": _dequantize_4bit, "gemm_4bit": _gemm_4bit, "gemv_4bit": _gemv_4bit,
    "int8_linear_matmul": _int8_linear_matmul,
}  # fmt: skip


def register(functional: Callable[[str, Function], Function]) -> None:
    """Register the kernels; `functional` makes one of a name and a meaning."""
    library = torch.library.Library("bitsandbytes", "IMPL")
    libraries.append(library)
    for name, function in _KERNELS.items():
        library.impl(name, hide(functional(name, function)), "PrivateUse1")
