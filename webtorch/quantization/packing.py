"""Making packed tensors of floats, block by block, as the gguf package does, and `quantize`. Floor 5.

Each function gets blocks of float32, (n, elements), and returns their bytes, uint8 (n, bytes). Scales are those of
llama.cpp's reference (ggml-quants.c): the element of the largest size becomes the end of the range, or the range is
cut into equal steps; numbers are rounded by adding a half and cutting off.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from webtorch.errors import DTypeError, ShapeError
from webtorch.functions import public as webtorch
from webtorch.ir.dtype import float16, float32, int32, uint8
from webtorch.ops.blocks import E2M1, FORMATS, NF4
from webtorch.quantization.tensor import PackedTensor
from webtorch.tensors.modes import no_grad
from webtorch.tensors.tensor import Tensor

PACKING: dict[str, Callable[[Tensor], Tensor]] = {}


def packs(name: str) -> Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Tensor]]:
    """Declare what makes blocks of a format."""

    def declare(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Put it into the table."""
        PACKING[name] = function
        return function

    return declare


def halves(x: Tensor) -> Tensor:
    """Return the bytes of numbers (n, 1) as float16."""
    return x.to(float16).view(uint8).reshape(x.shape[0], 2)


def inverse(d: Tensor) -> Tensor:
    """Return 1 / d, and 0 where d is 0."""
    return webtorch.where(d == 0, 0.0, 1.0 / d)


def whole(x: Tensor, most: int) -> Tensor:
    """Return numbers cut off, as bytes within 0 and a largest one."""
    return webtorch.trunc(x).clamp(0, most).to(int32)


def together(q: Tensor, axes: tuple[int, ...], bits: tuple[int, ...]) -> Tensor:
    """Return the bytes in which small numbers of blocks (n, elements) lie: `axes` are the sizes of a block, and a step
    along each moves by as many bits, or, with 0, to another byte.
    """
    q = q.reshape(-1, *axes)
    dims = [i for i, b in enumerate(bits, 1) if b]
    for i in dims:
        count = axes[i - 1]
        places = webtorch.arange(count, device=q.device, dtype=int32) * bits[i - 1]
        q = q << places.reshape(count, *[1] * (len(axes) - i))
    return q.sum(dims, dtype=int32).to(uint8).flatten(1)


def _nibbles(q: Tensor) -> Tensor:
    """Return the low halves of 32 numbers: the second 16 above the first."""
    return together(q & 15, (2, 16), (4, 0))


def _fifth_bits(q: Tensor) -> Tensor:
    """Return the fifth bits of 32 numbers, in four bytes."""
    return together(q >> 4, (4, 8), (0, 1))


def largest(x: Tensor) -> Tensor:
    """Return of each block the element of the largest size, the first of several."""
    return x.gather(-1, x.abs().argmax(-1, keepdim=True))


@packs("Q8_0")
def _q8_0(x: Tensor) -> Tensor:
    d = x.abs().amax(-1, keepdim=True) / 127.0
    scaled = x * inverse(d)
    size = scaled.abs()
    floor = size.floor()
    # Halves are rounded away from zero.
    q = scaled.sign() * (floor + (2.0 * (size - floor)).floor())
    return webtorch.cat([halves(d), (q.to(int32) & 255).to(uint8)], -1)


@packs("Q4_0")
def _q4_0(x: Tensor) -> Tensor:
    d = largest(x) / -8.0
    return webtorch.cat([halves(d), _nibbles(whole(x * inverse(d) + 8.5, 15))], -1)


@packs("Q4_1")
def _q4_1(x: Tensor) -> Tensor:
    low = x.amin(-1, keepdim=True)
    d = (x.amax(-1, keepdim=True) - low) / 15.0
    q = whole((x - low) * inverse(d) + 0.5, 15)
    return webtorch.cat([halves(d), halves(low), _nibbles(q)], -1)


@packs("Q5_0")
def _q5_0(x: Tensor) -> Tensor:
    d = largest(x) / -16.0
    q = whole(x * inverse(d) + 16.5, 31)
    return webtorch.cat([halves(d), _fifth_bits(q), _nibbles(q)], -1)


@packs("Q5_1")
def _q5_1(x: Tensor) -> Tensor:
    low = x.amin(-1, keepdim=True)
    d = (x.amax(-1, keepdim=True) - low) / 31.0
    q = whole((x - low) * inverse(d) + 0.5, 31)
    return webtorch.cat([halves(d), halves(low), _fifth_bits(q), _nibbles(q)], -1)


@packs("MXFP4")
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


@packs("NF4")
def _nf4(x: Tensor) -> Tensor:
    absmax = x.abs().amax(-1, keepdim=True)
    scaled, q = x * (1.0 / absmax.clamp(min=1e-38)), webtorch.zeros_like(x, dtype=int32)
    for a, b in itertools.pairwise(NF4):
        q = q + (scaled > (a + b) / 2).to(int32)
    return webtorch.cat([absmax.view(uint8), together(q, (2, 32), (4, 0))], -1)


# Elements that are packed at a time: what is computed with takes some times their memory.
_AT_ONCE = 1 << 22


def quantize(input: Tensor, format: str) -> PackedTensor:
    """Return a tensor of floats (*, columns) packed in a format: the bytes that the gguf package's `quantize` gives,
    and for formats that it does not write those of llama.cpp's quantize, but where two scales are as good; NF4 as
    bitsandbytes' `quantize_4bit`.

    The result is on the input's device and stands for its dtype. No gradients.

    Raises ValueError for a format that nothing is packed in here (Q8_K, FP4 and the groups INT4_* and INT8_* are read
    only) and for columns that blocks do not fill, DTypeError for other types than floats, ShapeError for a tensor
    without dimensions.
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
        blocks = input.detach().reshape(-1, form.elements)
        data = []
        for part in blocks.split(_AT_ONCE // form.elements):
            data.append(PACKING[format](part.to(float32)))
            # What one is computed with is gone before the next.
            webtorch.realize(data[-1])
        return PackedTensor(webtorch.cat(data), format, input.shape, input.dtype)
