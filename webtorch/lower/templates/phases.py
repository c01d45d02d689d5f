"""Which taps of a strided convolution reach which places of its input. Floor 2; imports floor 0 only."""

from __future__ import annotations

import math
from dataclasses import dataclass

from webtorch.ir import expr as ex
from webtorch.ir.kernel import Convolution, Kernel, Store
from webtorch.lower.templates.generic import at_points


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a strided dimension: `places` of the input, and `taps` kernel places first,
    first + stride, ...; tap j
    meets output place start + (place number) - j * back."""

    places: int
    taps: int
    first: int
    stride: int
    start: int
    back: int


def phase(size: int, kernel: int, step: int, pad: int, dilation: int, number: int) -> Phase:
    """Return which taps reach the input places number, number + step, ... of one dimension."""
    taps = [k for k in range(kernel) if (number + pad - k * dilation) % step == 0]
    if not taps:
        return Phase(-(-(size - number) // step), 0, 0, 0, 0, 0)
    stride = step // math.gcd(step, dilation)
    start = (number + pad - taps[0] * dilation) // step
    return Phase(
        -(-(size - number) // step), len(taps), taps[0], stride, start, stride * dilation // step
    )


def untouched(r: Convolution, places: tuple[int, int], number: tuple[int, int]) -> Kernel:
    """Return the kernel of the input's places of a phase that no tap reaches."""
    n, c, h, w = r.input_shape
    (sy, sx), (ry, rx) = r.stride, number
    sizes = (n * c, *places)
    i = [ex.index(d, s) for d, s in enumerate(sizes)]
    spot = (i[1] * sy + ry) * w + i[2] * sx + rx
    stores: tuple[Store, ...] = (Store(2, i[0] * (h * w) + spot, ex.const(0, r.buffers[2].dtype)),)
    if r.epilogue:
        points = (ex.floordiv(i[0], c), ex.mod(i[0], c), spot)
        stores = at_points(r, points, ex.const(0, r.accumulates))
    return Kernel(r.name, sizes, (), r.buffers, r.args, (), stores)
