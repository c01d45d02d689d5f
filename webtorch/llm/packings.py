"""Weights as other packers write them into safetensors: GPTQ, AWQ, HQQ and bitsandbytes, as packed tensors.

Each has numbers of some bits with a scale and a zero for each group of neighbours in a row, laid out in its own way;
here they become blocks of INT4_*, INT8_*, NF4 or FP4 (`ops/blocks`). What no blocks hold (groups of other sizes or
across rows, columns in another order) is unpacked.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType, float16, float32, int32, uint8
from webtorch.llm.config import ModelError, checked
from webtorch.quantization import PackedTensor
from webtorch.quantization.packing import together
from webtorch.tensors.tensor import Tensor

Config = dict[str, Any]
# Reads the tensor of a layer ("qweight") on the CPU, or None where there is none.
Parts = Callable[[str], Tensor | None]
Weight = PackedTensor | Tensor
# More would be no block but a damaged number.
_MOST = 1 << 20


def _wanted(parts: Parts, name: str) -> Tensor:
    found = parts(name)
    if found is None:
        raise ModelError(f"a packed weight has no {name!r}")
    return found


def _number(told: Config, name: str, default: int | None = None) -> int:
    """Return an entry that is a number of bits or the size of a block."""
    value = checked(name, told.get(name, default), "int", positive=True)
    if value > _MOST:
        raise ModelError(f"{name} is {value}; at most {_MOST} is read")
    return int(value)


# ---- numbers in groups


def _bytes_of(x: Tensor, dtype: DType) -> Tensor:
    """Return the bytes (*, n) of numbers (*) of a type."""
    return x.to(dtype).contiguous().view(uint8).reshape(*x.shape, dtype.itemsize)


def _grouped(q: Tensor, scale: Tensor, zero: Tensor, bits: int, dtype: DType) -> Weight:
    """Return the weight (rows, columns) of numbers from 0 on, with scales and zeros (rows, groups)."""
    rows, columns = q.shape
    size = columns // scale.shape[1]
    block = next((n for n in (128, 64, 32) if size % n == 0), 0)
    if not block or columns % scale.shape[1]:
        groups = q.reshape(rows, scale.shape[1], -1).float()
        found = (groups - zero.float().unsqueeze(-1)) * scale.float().unsqueeze(-1)
        return found.reshape(rows, columns).to(dtype)
    exact = all(bool((x.to(float16).float() == x.float()).all()) for x in (scale, zero))
    name = f"INT{4 if bits <= 4 and exact else 8}_{block}"
    kind = float16 if name.startswith("INT4") else float32
    blocks = q.reshape(-1, block)
    data = together(blocks, (2, block // 2), (4, 0)) if kind is float16 else blocks.to(uint8)
    head = [
        _bytes_of(x.repeat_interleave(size // block, 1).reshape(-1), kind) for x in (scale, zero)
    ]
    return PackedTensor(webtorch.cat([*head, data], -1), name, (rows, columns), dtype)


def _cut(words: Tensor, bits: int) -> Tensor:
    """Return the numbers (*, n) of 2, 3, 4 or 8 bits that lie in words (*, n) of 32, the lowest first."""
    if 32 % bits == 0:
        places = webtorch.arange(0, 32, bits, dtype=int32)
        return ((words.unsqueeze(-1) >> places) & ((1 << bits) - 1)).flatten(-2)
    each = ((words.unsqueeze(-1) >> webtorch.arange(32, dtype=int32)) & 1).to(uint8).flatten(-2)
    whole = each.unflatten(-1, (-1, bits)) << webtorch.arange(bits, dtype=uint8)
    return whole.sum(-1, dtype=int32)


def _gptq(parts: Parts, told: Config, dtype: DType) -> Weight | None:
    """Words along a column (inputs, outputs); zeros are one less than they are, but for version 2."""
    if parts("qweight") is None:
        return None
    bits = _number(told, "bits", 4)
    if bits not in (2, 3, 4, 8):
        raise ModelError(f"GPTQ of {bits} bits is not read here: 2, 3, 4 and 8 are")
    q = _cut(_wanted(parts, "qweight").t().contiguous(), bits)
    zero = _cut(_wanted(parts, "qzeros"), bits)
    if told.get("checkpoint_format", "gptq") != "gptq_v2":
        zero = (zero + 1) & ((1 << bits) - 1)
    scale, zero, order = _wanted(parts, "scales").t(), zero.t(), parts("g_idx")
    size = q.shape[1] // scale.shape[1]
    if order is None or webtorch.equal(
        order, (webtorch.arange(len(order)) // size).to(order.dtype)
    ):
        return _grouped(q, scale, zero, bits, dtype)
    # Each column says its group.
    order = order.long()
    return ((q.float() - zero.float()[:, order]) * scale.float()[:, order]).to(dtype)


def _awq(parts: Parts, told: Config, dtype: DType) -> Weight | None:
    """Words along a row (inputs, outputs), of which even places come first."""
    if parts("qweight") is None:
        return None
    bits = _number(told, "bits" if told.get("bits") else "w_bit", 4)
    version = str(told.get("version", told.get("format", "gemm"))).lower()
    if bits != 4 or version != "gemm":
        raise ModelError(
            f"AWQ of {bits} bits, version {version!r}, is not read here: 4 and gemm are"
        )

    def turned(x: Tensor) -> Tensor:
        """Return numbers (outputs, n) of words (n, outputs / 8)."""
        each = _cut(x, 4).unflatten(-1, (-1, 2, 4)).transpose(-1, -2)
        return each.flatten(-3).t()

    q, zero = turned(_wanted(parts, "qweight")), turned(_wanted(parts, "qzeros"))
    return _grouped(q, _wanted(parts, "scales").t(), zero, bits, dtype)


# Where the numbers of a byte begin, the first part of the rows first.
_HQQ = {8: (0,), 4: (4, 0), 2: (6, 4, 2, 0), 1: (7, 6, 5, 4, 3, 2, 1, 0)}


def _hqq(parts: Parts, told: Config, dtype: DType) -> Weight | None:
    """Groups of the flat matrix (groups, size), parts of whose rows share bytes."""

    def said(name: str) -> int:
        """Return a number that the layer says."""
        found = parts(name)
        return 0 if found is None or not found.numel() else int(found.reshape(-1)[0].item())

    packed = parts("W_q")
    if packed is None:
        return None
    bits, axis = said("nbits"), said("axis")
    rows, columns = (int(n) for n in _wanted(parts, "shape").tolist())
    scale, zero = _wanted(parts, "scale"), _wanted(parts, "zero")
    if bits not in _HQQ or packed.dtype is not uint8:
        raise ModelError(
            f"HQQ of {bits} bits in {packed.dtype} is not read here: 8, 4, 2 and 1 are"
        )
    places = _HQQ[bits]
    q = webtorch.cat([(packed >> at) & ((1 << bits) - 1) for at in places]).to(int32)
    if axis == 0 or columns % q.shape[1]:
        found = (q.float() - zero.float()) * scale.float()
        return found.reshape(rows, columns).to(dtype)
    q, scale, zero = (x.reshape(rows, -1) for x in (q, scale, zero))
    return _grouped(q, scale, zero, bits, dtype)


# ---- bitsandbytes


def _bitsandbytes(parts: Parts, told: Config, dtype: DType) -> Weight | None:
    """Bytes of a row with one scale; or halves of bytes, the upper ones first, with scales that may be packed."""
    del told
    weight, rows = _wanted(parts, "weight"), parts("SCB")
    if weight.is_floating_point():
        return None
    if rows is not None:
        scale = (rows.float() / 127.0).unsqueeze(-1)
        zero = webtorch.full_like(scale, 128.0)
        return _grouped(weight.to(int32) + 128, scale, zero, 8, dtype)
    for kind in ("nf4", "fp4"):
        state = parts(f"weight.quant_state.bitsandbytes__{kind}")
        if state is not None:
            break
    else:
        raise ModelError("a weight of bitsandbytes has no quant_state of nf4 or fp4")
    said = json.loads(bytes(state.tolist()).decode())
    scale = _wanted(parts, "weight.absmax")
    if scale.dtype is uint8:
        scale = _wanted(parts, "weight.nested_quant_map")[scale.long()]
        nested = _wanted(parts, "weight.nested_absmax")
        each = nested.repeat_interleave(_number(said, "nested_blocksize"))[: len(scale)]
        scale = scale * each + float(said["nested_offset"])
    shape, size = tuple(said["shape"]), _number(said, "blocksize")
    q = webtorch.stack([weight.reshape(-1) >> 4, weight.reshape(-1) & 15], -1).flatten()
    if size % 64 or shape[-1] % 64:
        code = _wanted(parts, "weight.quant_map")[q.long()]
        return (code * scale.repeat_interleave(size)[: len(code)]).reshape(shape).to(dtype)
    scale = scale.repeat_interleave(size // 64)[: len(q) // 64]
    data = [_bytes_of(scale, float32), together(q.reshape(-1, 64).to(int32), (2, 32), (4, 0))]
    return PackedTensor(webtorch.cat(data, -1), kind.upper(), shape, dtype)


# A method of quantization_config -> what makes a weight of a layer's tensors, or None of a layer that is not packed.
METHODS: dict[str, Callable[[Parts, Config, DType], Weight | None]] = {
    "gptq": _gptq, "awq": _awq, "hqq": _hqq, "bitsandbytes": _bitsandbytes,
}  # fmt: skip
