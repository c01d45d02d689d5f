"""Resizing and rearranging of images as functions. May import the tensor floor and the op table."""

from __future__ import annotations

import math
import struct
from typing import Any

import webtorch
from webtorch import Tensor
from webtorch.nn.functional.table import composite, table
from webtorch.nn.size import repeat

__all__ = [
    "channel_shuffle",
    "interpolate",
    "pixel_shuffle",
    "pixel_unshuffle",
    "upsample",
]


@composite
def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """Return (*, C r r, H, W) as (*, C, H r, W r). Shi et al., 2016."""
    r = upscale_factor
    *lead, channels, height, width = input.shape
    if r <= 0 or channels % (r * r) != 0:
        raise RuntimeError(
            "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square "
            f"of upscale_factor, but input.size(-3)={channels} is not divisible by {r * r}"
        )
    c = channels // (r * r)
    n = len(lead)
    out = input.reshape((*lead, c, r, r, height, width))
    out = out.permute((*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return out.reshape((*lead, c, height * r, width * r))


@composite
def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """Return (*, C, H r, W r) as (*, C r r, H, W): the inverse of pixel_shuffle."""
    r = downscale_factor
    *lead, channels, height, width = input.shape
    if r <= 0 or height % r != 0 or width % r != 0:
        raise RuntimeError(
            "pixel_unshuffle expects height and width to be divisible by downscale_factor, but "
            f"input.size(-2)={height}, input.size(-1)={width} and downscale_factor={r}"
        )
    n = len(lead)
    out = input.reshape((*lead, channels, height // r, r, width // r, r))
    out = out.permute((*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return out.reshape((*lead, channels * r * r, height // r, width // r))


@composite
def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Return the channels (dimension 1) dealt out anew: one of each group after the other."""
    n, channels, *rest = input.shape
    if channels % groups != 0:
        raise RuntimeError("Number of channels must be divisible by groups")
    out = input.reshape((n, groups, channels // groups, *rest)).transpose(1, 2)
    return out.reshape((n, channels, *rest))


def upsample(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    """Resize: the old name of `interpolate`."""
    return interpolate(input, size, scale_factor, mode, align_corners)


# The mode that each number of spatial dimensions has.
_RANKS = {"linear": (1,), "bilinear": (2,), "bicubic": (2,), "trilinear": (3,)}


@composite
def interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Resize the spatial dimensions of (N, C, ...) to `size` or by `scale_factor`.

    `mode`: nearest, nearest-exact, linear, bilinear, bicubic, trilinear or area.
    """
    rank = input.dim() - 2
    smooth = mode in _RANKS
    if not smooth and mode not in ("nearest", "nearest-exact", "area"):
        raise NotImplementedError(f"interpolate: unknown mode {mode!r}")
    if align_corners is not None and not smooth:
        raise ValueError(
            "align_corners option can only be set with the interpolating modes: linear | bilinear "
            "| bicubic | trilinear"
        )
    if smooth and rank not in _RANKS[mode]:
        raise NotImplementedError(
            "Input Error: Only 3D, 4D and 5D input Tensors supported (got "
            f"{input.dim()}D) for the modes: nearest | linear | bilinear | bicubic | trilinear | "
            f"area | nearest-exact (got {mode})"
        )
    if antialias:
        raise NotImplementedError(
            "interpolate: antialias=True is not supported. Blur first, or use mode='area'."
        )
    sizes = tuple(input.shape)[2:]
    if (size is None) == (scale_factor is None):
        raise ValueError(
            "only one of size or scale_factor should be defined"
            if size is not None
            else "either size or scale_factor should be defined"
        )
    factors: tuple[float, ...] | None = None
    if size is not None:
        if recompute_scale_factor:
            raise ValueError("recompute_scale_factor is not meaningful with an explicit size.")
        wanted = repeat(size, rank)
        if len(wanted) != rank:
            raise ValueError(
                "Input and output must have the same number of spatial dimensions, but got input "
                f"with spatial dimensions of {list(sizes)} and output size of {size}. Please "
                "provide input tensor in (N, C, d1, d2, ...,dK) format and output size in "
                "(o1, o2, ...,oK) format."
            )
    else:
        factors = tuple(float(f) for f in repeat(scale_factor, rank))
        wanted = tuple(math.floor(sizes[i] * factors[i]) for i in range(rank))
        if recompute_scale_factor:
            factors = None
    if mode == "area":
        return table(f"adaptive_avg_pool{rank}d")(input, wanted)
    out = input
    for i in range(rank):
        step = sizes[i] / wanted[i] if factors is None else 1.0 / factors[i]
        out = _resized(out, 2 + i, int(wanted[i]), step, mode, bool(align_corners))
    return out


def _float32(x: float) -> float:
    """Return `x` rounded to float32, in which PyTorch computes the positions."""
    return struct.unpack("f", struct.pack("f", x))[0]


def _resized(
    input: Tensor, dim: int, count: int, step: float, mode: str, align_corners: bool
) -> Tensor:
    """Resize one dimension to `count`; `step` is the distance of neighbours in the input."""
    size = input.shape[dim]
    if mode in ("nearest", "nearest-exact"):
        if size == count:
            return input
        if count % size == 0 and step == size / count:
            # Whole factors repeat: a view and a copy, whose gradient is a plain sum.
            factor = count // size
            shape = [*input.shape[: dim + 1], factor, *input.shape[dim + 1 :]]
            flat = [*input.shape[:dim], count, *input.shape[dim + 1 :]]
            return input.unsqueeze(dim + 1).expand(shape).reshape(flat)
        step = _float32(step)
        shift = 0.5 if mode == "nearest-exact" else 0.0
        index = [min(int(_float32((i + shift) * step)), size - 1) for i in range(count)]
        return input.index_select(dim, webtorch.tensor(index, device=input.device))
    if align_corners:
        step = (size - 1) / (count - 1) if count > 1 else 0.0
        places = [i * step for i in range(count)]
    else:
        places = [(i + 0.5) * step - 0.5 for i in range(count)]
    if mode == "bicubic":
        taps = [_cubic(place) for place in places]
    else:
        taps = [_linear(max(place, 0.0)) for place in places]
    shape = [1] * input.dim()
    shape[dim] = count
    out = None
    for k in range(len(taps[0])):
        index = [min(max(tap[k][0], 0), size - 1) for tap in taps]
        weights = webtorch.tensor(
            [tap[k][1] for tap in taps], dtype=input.dtype, device=input.device
        )
        part = input.index_select(dim, webtorch.tensor(index, device=input.device))
        part = part * weights.reshape(shape)
        out = part if out is None else out + part
    assert out is not None
    return out


def _linear(place: float) -> list[tuple[int, float]]:
    """Return the (position, weight) of the two neighbours of `place`."""
    low = math.floor(place)
    return [(low, 1 - (place - low)), (low + 1, place - low)]


def _cubic(place: float) -> list[tuple[int, float]]:
    """Return the (position, weight) of the four neighbours: Keys' kernel with a = -0.75."""
    low = math.floor(place)
    t = place - low
    a = -0.75

    def near(x: float) -> float:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: float) -> float:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [
        (low - 1, far(t + 1)),
        (low, near(t)),
        (low + 1, near(1 - t)),
        (low + 2, far(2 - t)),
    ]
