"""Making packed tensors of floats, block by block, as the gguf package does. Floor 5.

Each function gets blocks of float32, (n, elements), and returns their bytes, uint8 (n, bytes). Scales are those of
llama.cpp's reference (ggml-quants.c): the element of the largest size becomes the end of the range, or the range is
cut into equal steps; numbers are rounded by adding a half and cutting off.
"""

from __future__ import annotations

from collections.abc import Callable

from webtorch.errors import DTypeError, ShapeError
from webtorch.functions import public as webtorch
from webtorch.ir.dtype import float16, float32, int32, uint8
from webtorch.ops.blocks import E2M1, FORMATS
from webtorch.quantization.tensor import PackedTensor
from webtorch.tensors.modes import no_grad
from webtorch.tensors.tensor import Tensor

PACKING: dict[str, Callable[[Tensor], Tensor]] = {}


def _packs(name: str) -> Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Tensor]]:
    """Declare what makes blocks of a format."""

    def declare(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Put it into the table."""
        PACKING[name] = function
        return function

    return declare


def _halves(x: Tensor) -> Tensor:
    """Return the bytes of numbers (n, 1) as float16."""
    return x.to(float16).view(uint8).reshape(x.shape[0], 2)


def _inverse(d: Tensor) -> Tensor:
    return webtorch.where(d == 0, 0.0, 1.0 / d)


def _whole(x: Tensor, most: int) -> Tensor:
    """Return numbers cut off, as bytes within 0 and a largest one."""
    return webtorch.trunc(x).clamp(0, most).to(int32)


def _nibbles(q: Tensor) -> Tensor:
    """Return the low halves of 32 numbers: the second 16 above the first."""
    low, high = (q & 15).chunk(2, -1)
    return (low | (high << 4)).to(uint8)


def _fifth_bits(q: Tensor) -> Tensor:
    """Return the fifth bits of 32 numbers, in four bytes."""
    bits = (q >> 4).reshape(q.shape[0], 4, 8) << webtorch.arange(8, device=q.device, dtype=int32)
    return bits.sum(-1).to(uint8)


def _largest(x: Tensor) -> Tensor:
    """Return of each block the element of the largest size, the first of several."""
    return x.gather(-1, x.abs().argmax(-1, keepdim=True))


@_packs("Q8_0")
def _q8_0(x: Tensor) -> Tensor:
    d = x.abs().amax(-1, keepdim=True) / 127.0
    scaled = x * _inverse(d)
    size = scaled.abs()
    floor = size.floor()
    # Halves are rounded away from zero.
    q = scaled.sign() * (floor + (2.0 * (size - floor)).floor())
    return webtorch.cat([_halves(d), (q.to(int32) & 255).to(uint8)], -1)


@_packs("Q4_0")
def _q4_0(x: Tensor) -> Tensor:
    d = _largest(x) / -8.0
    return webtorch.cat([_halves(d), _nibbles(_whole(x * _inverse(d) + 8.5, 15))], -1)


@_packs("Q4_1")
def _q4_1(x: Tensor) -> Tensor:
    low = x.amin(-1, keepdim=True)
    d = (x.amax(-1, keepdim=True) - low) / 15.0
    q = _whole((x - low) * _inverse(d) + 0.5, 15)
    return webtorch.cat([_halves(d), _halves(low), _nibbles(q)], -1)


@_packs("Q5_0")
def _q5_0(x: Tensor) -> Tensor:
    d = _largest(x) / -16.0
    q = _whole(x * _inverse(d) + 16.5, 31)
    return webtorch.cat([_halves(d), _fifth_bits(q), _nibbles(q)], -1)


@_packs("Q5_1")
def _q5_1(x: Tensor) -> Tensor:
    low = x.amin(-1, keepdim=True)
    d = (x.amax(-1, keepdim=True) - low) / 31.0
    q = _whole((x - low) * _inverse(d) + 0.5, 31)
    return webtorch.cat([_halves(d), _halves(low), _fifth_bits(q), _nibbles(q)], -1)


@_packs("MXFP4")
def _mxfp4(x: Tensor) -> Tensor:
    size = x.abs().amax(-1, keepdim=True)
    # The exponent of the largest number, as its bits have it, brings that to the top of the range.
    e = ((size.view(int32) >> 23) - 2).clamp(min=0)
    e = webtorch.where(size > 0, e, 0)
    low = webtorch.tensor(0x200000, dtype=int32, device=x.device) << e.clamp(max=1)
    d = webtorch.where(e < 2, low, (e - 1) << 23).view(float32)
    values = webtorch.tensor(E2M1, dtype=float32, device=x.device)
    q = (d.unsqueeze(-1) * values - x.unsqueeze(-1)).abs().argmin(-1)
    return webtorch.cat([e.to(uint8), _nibbles(q.to(int32))], -1)


def quantize(input: Tensor, format: str) -> PackedTensor:
    """Return a tensor of floats (*, columns) packed in a format: the bytes that the gguf package's `quantize` gives.

    The result is on the input's device and stands for its dtype. No gradients.

    Raises ValueError for a format that nothing is packed in here (Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 and MXFP4 are) and for
    columns that blocks do not fill, DTypeError for other types than floats, ShapeError for a tensor without dimensions.
    """
    if format not in PACKING:
        raise ValueError(f"quantize: {format!r} is not written here; {', '.join(PACKING)} are")
    if input.dtype.kind != "float":
        raise DTypeError("quantize: the input is a tensor of floats")
    if not input.ndim:
        raise ShapeError("quantize: the input has at least one dimension")
    form = FORMATS[format]
    form.row_bytes(input.shape[-1])
    with no_grad():
        blocks = input.detach().to(float32).reshape(-1, form.elements)
        data = PACKING[format](blocks)
        return PackedTensor(data, format, input.shape, input.dtype)
