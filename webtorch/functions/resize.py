"""Resizing, rearranging and sampling of images.

Resizing one dimension is a sparse matrix: every output position reads a few input positions. The
transpose of such a matrix is another one, so gradients are resizes too: they gather, need no atomic
writes, and are exact to every order.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from webtorch.errors import DTypeError, ShapeError
from webtorch.functions.pointwise import where
from webtorch.functions.pooling import adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d
from webtorch.ir.dtype import DType, int32, int64, uint8
from webtorch.ir.view import numel
from webtorch.ops.grid import CORNERS, clipped, neighbour, unnormalised
from webtorch.ops.layout import ChannelsLastAs
from webtorch.ops.primitive import cast_to, fill, iota, take
from webtorch.ops.purity import warn
from webtorch.ops.record import NOT_FLOATS, Anew, Autocast, Example, composite
from webtorch.tensors.creation import from_bytes
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.modes import no_grad
from webtorch.tensors.tape import attach
from webtorch.tensors.tensor import Tensor

FUNCTIONAL = ("nn.functional",)
EVERYWHERE = ("torch", "nn.functional")
_SPATIAL = {
    "linear": (1,), "bilinear": (2,), "bicubic": (2,), "trilinear": (3,), "lanczos": (2,), "nearest": (1, 2, 3),
    "nearest-exact": (1, 2, 3), "area": (1, 2, 3),
}  # fmt: skip
_SMOOTH = ("linear", "bilinear", "bicubic", "trilinear", "lanczos")


# ---- one dimension -------------------------------------------------------------------------------

# (input position, weight) of everything one output position reads.
Row = tuple[tuple[int, float], ...]


class Taps:
    """A sparse matrix from `size` input to `count` output positions, as rows of equal length."""

    __slots__ = (
        "_packed",
        "_transposed",
        "count",
        "plain",
        "positions",
        "ragged",
        "size",
        "weights",
        "width",
    )

    def __init__(self, rows: Sequence[Row], size: int) -> None:
        self.count, self.size = len(rows), size
        self.width = max((len(r) for r in rows), default=1) or 1
        # Short rows are filled up with weights of 0, which count as nothing even where the input is infinite.
        self.ragged = any(len(r) != self.width for r in rows)
        filled = [(*r, *(((r[-1][0] if r else 0), 0.0),) * (self.width - len(r))) for r in rows]
        self.positions = [p for r in filled for p, _ in r]
        self.weights = [w for r in filled for _, w in r]
        # Whether every output position is a copy of one input position.
        self.plain = self.width == 1 and not self.ragged and all(w == 1.0 for w in self.weights)
        self._packed: dict[DType, bytes] = {}
        self._transposed: Taps | None = None

    @property
    def transposed(self) -> Taps:
        """The matrix from output to input positions."""
        if self._transposed is None:
            rows: list[list[tuple[int, float]]] = [[] for _ in range(self.size)]
            for i, (p, w) in enumerate(zip(self.positions, self.weights, strict=True)):
                if w != 0.0:
                    rows[p].append((i // self.width, w))
            self._transposed = Taps([tuple(r) for r in rows], self.count)
            self._transposed._transposed = self
        return self._transposed

    def tensors(self, dtype: DType, device: DeviceLike) -> tuple[Tensor, Any]:
        """Return positions and weights, (count, width), on a device."""
        shape = (self.count, self.width)
        if int64 not in self._packed:
            self._packed[int64] = int64.to_bytes(list(self.positions))
        positions = from_bytes(self._packed[int64], shape, int64, device)
        if self.plain:
            return positions, None
        if dtype not in self._packed:
            self._packed[dtype] = dtype.to_bytes(self.weights)
        return positions, from_bytes(self._packed[dtype], shape, dtype, device)


def resample(x: Tensor, dim: int, taps: Taps) -> Tensor:
    """Return x with dimension `dim` multiplied by a sparse matrix. Differentiable."""
    with no_grad():
        positions, weights = taps.tensors(x.dtype, x.device)
        order = (dim, *(d for d in range(x.ndim) if d != dim))
        moved = x.detach().permute(order)
        if taps.plain:
            out = take(moved, (positions.reshape(taps.count),), "interpolate")
        else:
            seen = take(moved, (positions,), "interpolate")
            factor = weights.reshape((taps.count, taps.width) + (1,) * (x.ndim - 1))
            terms = where(factor == 0, 0.0, seen * factor) if taps.ragged else seen * factor
            out = terms.sum(1)
        back = (*range(1, dim + 1), 0, *range(dim + 1, x.ndim))
        out = out.permute(back).contiguous().detach()
    return attach(out, "Upsample", (x,), _resample_back, (), (dim, taps))


def _resample_back(g: Tensor, dim: int, taps: Taps) -> tuple[Tensor]:
    return (resample(g, dim, taps.transposed),)


def _resample_bytes(x: Tensor, dim: int, taps: Taps) -> Tensor:
    """Return uint8 x resampled along `dim` with weights in fixed point, as Pillow and PyTorch do: as many
    bits as fit 16 with the largest weight.
    """
    largest, bits = max(taps.weights), 0
    while bits < 22 and int(0.5 + largest * (1 << (bits + 1))) < 1 << 15:
        bits += 1
    rows: list[Any] = []
    for i in range(0, len(taps.weights), taps.width):
        # A position that counts twice, at the border, has one weight.
        row: dict[int, float] = {}
        for k in range(i, i + taps.width):
            row[taps.positions[k]] = row.get(taps.positions[k], 0.0) + taps.weights[k]
        whole = [(p, int(w * (1 << bits) + math.copysign(0.5, w))) for p, w in row.items()]
        rows.append((*whole, *((0, 0) for _ in range(taps.width - len(whole)))))
    positions, weights = Taps(rows, taps.size).tensors(int32, x.device)
    order = (dim, *(d for d in range(x.ndim) if d != dim))
    seen = take(x.permute(order).to(int32), (positions,), "interpolate")
    terms = seen * weights.reshape((taps.count, taps.width) + (1,) * (x.ndim - 1))
    total = (terms.sum(1, dtype=int32) + (1 << (bits - 1))) >> bits
    back = (*range(1, dim + 1), 0, *range(dim + 1, x.ndim))
    return total.clamp(0, 255).to(uint8).permute(back).contiguous()


def _float32(x: float) -> float:
    return float(struct.unpack("f", struct.pack("f", x))[0])


def _nearest(size: int, count: int, step: float, exact: bool) -> list[int]:
    """Return the source of each output position, in PyTorch's 32-bit arithmetic."""
    if size == count:
        return list(range(count))
    if not exact and count == 2 * size:
        return [i // 2 for i in range(count)]
    step, shift = _float32(step), 0.5 if exact else 0.0
    return [min(math.floor(_float32((i + shift) * step)), size - 1) for i in range(count)]


def _cubic(x: float, a: float) -> float:
    """Keys' kernel: cubic pieces over |x| < 2 (Keys, 1981)."""
    x = abs(x)
    if x < 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0


def _lanczos(x: float) -> float:
    """A windowed sinc with three lobes."""
    if x == 0:
        return 1.0
    if abs(x) >= 3:
        return 0.0
    return 3 * math.sin(math.pi * x) * math.sin(math.pi * x / 3) / (math.pi * x) ** 2


# Half width and shape of each smooth filter when it also has to blur.
_FILTERS: dict[str, tuple[float, Callable[[float], float]]] = {
    "bilinear": (1.0, lambda x: max(1.0 - abs(x), 0.0)),
    "bicubic": (2.0, lambda x: _cubic(x, -0.5)),
    "lanczos": (3.0, _lanczos),
}


@lru_cache(maxsize=256)
def taps_of(
    mode: str, size: int, count: int, step: float, align_corners: bool, antialias: bool
) -> Taps:
    """Return the matrix that resizes `size` positions to `count`, which lie `step` input positions apart."""
    if mode in ("nearest", "nearest-exact"):
        return Taps(
            [((p, 1.0),) for p in _nearest(size, count, step, mode == "nearest-exact")], size
        )
    if align_corners:
        step = (size - 1) / (count - 1) if count > 1 else 0.0
    rows: list[Row] = []
    for i in range(count):
        if antialias:
            rows.append(_blurred_row(mode, size, step, i))
            continue
        place = i * step if align_corners else (i + 0.5) * step - 0.5
        if mode == "bicubic":
            low = math.floor(place)
            found = [
                (min(max(low + k, 0), size - 1), _cubic(place - low - k, -0.75))
                for k in (-1, 0, 1, 2)
            ]
        elif size == count:
            found = [(i, 1.0)]
        else:
            place = max(place, 0.0)
            low = min(math.floor(place), size - 1)
            t = min(max(place - low, 0.0), 1.0)
            found = [(low, 1 - t), (min(low + 1, size - 1), t)]
        rows.append(tuple(found))
    return Taps(rows, size)


def _blurred_row(mode: str, size: int, step: float, i: int) -> Row:
    """Return what one output position reads when the filter widens with the step (antialias)."""
    half, shape = _FILTERS[mode]
    scale = max(step, 1.0)
    support, center = half * scale, step * (i + 0.5)
    low = max(int(center - support + 0.5), 0)
    high = min(int(center + support + 0.5), size)
    weights = [shape((p - center + 0.5) / scale) for p in range(low, high)]
    total = sum(weights)
    return tuple(
        (p, w / total if total else w) for p, w in zip(range(low, high), weights, strict=True)
    )


# ---- interpolate ---------------------------------------------------------------------------------


def _wanted(
    input: Tensor, size: Any, scale_factor: Any, recompute: bool
) -> tuple[tuple[int, ...], tuple[float, ...] | None]:
    """Return the output sizes and, where they fix the positions, the factors."""
    sizes = tuple(input.shape[2:])
    rank = len(sizes)
    if size is not None and scale_factor is not None:
        raise ValueError("only one of size or scale_factor should be defined")
    if size is not None:
        given = (size,) * rank if isinstance(size, int) else tuple(size)
        if len(given) != rank:
            raise ValueError(
                "Input and output must have the same number of spatial dimensions, "
                "but got input "
                f"with spatial dimensions of {list(sizes)} and output size of {size}. Please "
                f"provide input "
                "tensor in (N, C, d1, d2, ...,dK) format and output size in (o1, o2, ...,oK) "
                "format."
            )
        if recompute:
            raise ValueError("recompute_scale_factor is not meaningful with an explicit size.")
        if any(
            isinstance(n, float) or (isinstance(n, Tensor) and n.dtype.has_gradient) for n in given
        ):
            raise TypeError(
                "expected size to be one of int or Tuple[int] or Tuple[int, int] or Tuple[int, int, int], but got size "
                f"with types {[type(n) for n in given]}"
            )
        return tuple(int(n) for n in given), None
    if scale_factor is None:
        raise ValueError("either size or scale_factor should be defined")
    factors = (
        (scale_factor,) * rank if isinstance(scale_factor, (int, float)) else tuple(scale_factor)
    )
    if len(factors) != rank:
        raise ValueError(
            "Input and scale_factor must have the same number of spatial "
            "dimensions, but got "
            f"input with spatial dimensions of {list(sizes)} and scale_factor of shape "
            f"{scale_factor}. Please "
            "provide input tensor in (N, C, d1, d2, ...,dK) format and scale_factor in (s1, s2, "
            "...,sK) format."
        )
    wanted = tuple(math.floor(s * float(f)) for s, f in zip(sizes, factors, strict=True))
    if any(abs(n) >= 2**63 for n in wanted):
        raise RuntimeError(f"Overflow: {scale_factor} gives sizes that no tensor has")
    return wanted, None if recompute else tuple(float(f) for f in factors)


def _interpolate_name(
    input: Tensor,
    size: object = None,
    scale_factor: object = None,
    mode: str = "nearest",
    *_: object,
    **__: object,
) -> str:
    if mode == "area":
        return f"AdaptiveAvgPool{input.ndim - 2}DBackward0"
    kind = "".join([part.capitalize() for part in mode.split("-")])
    return f"Upsample{kind}{input.ndim - 2}DBackward0"


def _pools(
    input: Tensor,
    size: object = None,
    scale_factor: object = None,
    mode: str = "nearest",
    *_: object,
    **__: object,
) -> bool:
    """Whether this is adaptive pooling, and not a mean."""
    return mode == "area" and set(_wanted(input, size, scale_factor, size is None)[0]) != {1}


@composite(
    family="composite",
    function_in=FUNCTIONAL,
    autocast=Autocast(gpu="fp32"),
    gradient_name=_interpolate_name,
    once=_pools,
    vjp=Anew(unread=("input",)),
    operators=(
        "upsample_nearest1d",
        "upsample_nearest2d",
        "upsample_nearest3d",
        "_upsample_nearest_exact1d",
        "_upsample_nearest_exact2d",
        "_upsample_nearest_exact3d",
        "upsample_linear1d",
        "upsample_bilinear2d",
        "upsample_bicubic2d",
        "upsample_trilinear3d",
        "_upsample_bilinear2d_aa",
        "_upsample_bicubic2d_aa",
    ),
    layout=ChannelsLastAs(0),
)
def interpolate(
    input: Tensor,
    size: Sequence[int] | int | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Resize the spatial dimensions of (N, C, ...) to `size` or by `scale_factor`.

    `mode`: nearest, nearest-exact, area, linear (3-d input), bilinear, bicubic, lanczos (4-d), trilinear (5-d).
    `antialias` widens the filter when the image shrinks (bilinear, bicubic, lanczos).
    """
    rank = input.ndim - 2
    if mode not in _SPATIAL or rank not in (1, 2, 3):
        raise NotImplementedError(
            f"Input Error: Only 3D, 4D and 5D input Tensors supported (got "
            f"{input.ndim}D) for the modes: "
            f"nearest | linear | bilinear | bicubic | trilinear | lanczos | area | nearest-exact "
            f"(got {mode})"
        )
    if mode not in _SMOOTH and align_corners is not None:
        raise ValueError(
            "align_corners option can only be set with the interpolating modes: "
            "linear | bilinear | bicubic | trilinear"
        )
    wanted, factors = _wanted(
        input, size, scale_factor, bool(recompute_scale_factor) or (mode == "area" and size is None)
    )
    if antialias and mode not in _FILTERS:
        raise ValueError(
            "Anti-alias option is restricted to bilinear, bicubic, and lanczos "
            "modes and requires a 4-D tensor as input"
        )
    if rank not in _SPATIAL[mode]:
        needed = _SPATIAL[mode][0] + 2
        raise NotImplementedError(f"Got {input.ndim}D input, but {mode} mode needs {needed}D input")
    if mode == "lanczos" and not antialias:
        raise NotImplementedError("interpolate: mode 'lanczos' needs antialias=True")
    steps = tuple(
        s / max(n, 1) if factors is None else 1.0 / factors[d]
        for d, (s, n) in enumerate(zip(input.shape[2:], wanted, strict=True))
    )
    return resized(input, wanted, steps, mode, bool(align_corners), antialias)


def resized(
    input: Tensor,
    wanted: tuple[int, ...],
    steps: tuple[float, ...],
    mode: str,
    align_corners: bool,
    antialias: bool,
) -> Tensor:
    """Resize to the sizes `wanted`, one element of the result being `steps` of the input further."""
    rank = input.ndim - 2
    if any(n <= 0 for n in wanted) or 0 in input.shape[1:]:
        raise ShapeError(
            f"Input and output sizes should be greater than 0, but got input "
            f"{list(input.shape)} and output sizes {list(wanted)}"
        )
    if mode.startswith("nearest") and input.dtype.kind != "float" and input.dtype is not uint8:
        raise DTypeError(
            f"interpolate: mode {mode!r} is not implemented for {input.dtype}; use .float(), or uint8"
        )
    if mode == "area":
        return (adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d)[rank - 1](
            input, wanted
        )
    if mode in _SMOOTH and not (
        input.dtype.is_floating_point or (input.dtype is uint8 and mode in ("bilinear", "bicubic"))
    ):
        raise DTypeError(
            f"interpolate: mode {mode!r} is not implemented for {input.dtype}; use input.float() "
            f"and round the result"
        )
    sizes = tuple(input.shape[2:])
    if mode.startswith("nearest"):
        whole = _repeated(input, sizes, wanted, steps, mode)
        if whole is not None:
            # Of one element each nothing was made: the result is no view.
            return whole.clone() if tuple(whole.shape) == tuple(input.shape) else whole
    if not input.numel():
        return fill((*input.shape[:2], *wanted), 0, input.dtype, input.device)
    x = input.to(input.dtype.compute) if mode in _SMOOTH else input
    of_bytes = input.dtype is uint8 and mode in _SMOOTH
    # PyTorch resizes images of bytes row by row first, and rounds in between.
    for d in reversed(range(rank)) if of_bytes else range(rank):
        taps = taps_of(mode, sizes[d], wanted[d], steps[d], align_corners, antialias)
        if taps.plain and taps.positions == list(range(sizes[d])):
            continue
        x = (_resample_bytes if of_bytes else resample)(x, 2 + d, taps)
    x = x.to(input.dtype)
    return x.clone() if x is input else x


def _repeated(
    x: Tensor, sizes: tuple[int, ...], wanted: tuple[int, ...], steps: tuple[float, ...], mode: str
) -> Tensor | None:
    """Return x with every element repeated whole times, where that is what nearest means; else None."""
    factors = []
    for s, n, step in zip(sizes, wanted, steps, strict=True):
        exact = mode == "nearest-exact"
        simple = n == s or (n == 2 * s and not exact)
        if not simple and (
            n % s or _nearest(s, n, step, exact) != [i // (n // s) for i in range(n)]
        ):
            return None
        factors.append(n // s)
    lead = tuple(x.shape[:2])
    # (N, C, H, 1, W, 1) -> (N, C, H, f, W, f): one view, one copy; its gradient is a plain sum.
    apart = tuple(n for s in sizes for n in (s, 1))
    spread = tuple(n for s, f in zip(sizes, factors, strict=True) for n in (s, f))
    return (
        x.reshape((*lead, *apart)).expand((*lead, *spread)).reshape((*lead, *wanted)).contiguous()
    )


def _old(name: str) -> None:
    warn(f"`nn.functional.{name}` is deprecated. Use `nn.functional.interpolate` instead.")


def _aligned(align_corners: bool | None) -> bool:
    if align_corners is None:
        warn(
            "Default grid_sample and affine_grid behavior has changed to align_corners=False since 1.3.0. "
            "Please specify align_corners=True if the old behavior is desired. See the documentation of "
            "grid_sample for details."
        )
    return bool(align_corners)


@composite(
    family="composite",
    function_in=FUNCTIONAL,
    example=Example(((1, 2, 4, 5),), (), {"scale_factor": 2}),
)
def upsample(
    input: Tensor,
    size: Sequence[int] | int | None = None,
    scale_factor: float | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    """Resize: the old name of `interpolate`."""
    _old("upsample")
    return interpolate(input, size, scale_factor, mode, align_corners)


@composite(family="composite", function_in=FUNCTIONAL)
def upsample_nearest(
    input: Tensor, size: Sequence[int] | int | None = None, scale_factor: float | None = None
) -> Tensor:
    """Resize with the nearest input position: an old name."""
    _old("upsample_nearest")
    return interpolate(input, size, scale_factor, "nearest")


@composite(family="composite", function_in=FUNCTIONAL)
def upsample_bilinear(
    input: Tensor,
    size: Sequence[int] | int | None = None,
    scale_factor: float | Sequence[float] | None = None,
) -> Tensor:
    """Resize bilinearly with aligned corners: an old name."""
    _old("upsample_bilinear")
    return interpolate(input, size, scale_factor, "bilinear", True)


# ---- rearranging ---------------------------------------------------------------------------------


@composite(
    family="movement",
    function_in=EVERYWHERE,
    gradient_name="PixelShuffleBackward0",
    layout=ChannelsLastAs(0),
    direct=("pixel_shuffle",),
    aten=("pixel_shuffle",),
)
def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """Return (*, C r r, H, W) as (*, C, H r, W r) (Shi et al., 2016)."""
    r = upscale_factor
    if input.ndim < 3:
        raise ShapeError(
            f"pixel_shuffle expects input to have at least 3 dimensions, but got input with "
            f"{input.ndim} dimension(s)"
        )
    if r <= 0:
        raise ShapeError(f"pixel_shuffle expects a positive upscale_factor, but got {r}")
    *lead, channels, height, width = input.shape
    if channels % (r * r):
        raise ShapeError(
            "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square "
            "of upscale_factor, but "
            f"input.size(-3)={channels} is not divisible by {r * r}"
        )
    n, c = len(lead), channels // (r * r)
    out = input.reshape((*lead, c, r, r, height, width)).permute(
        (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    )
    return out.reshape((*lead, c, height * r, width * r))


@composite(
    family="movement",
    function_in=EVERYWHERE,
    gradient_name="PixelUnshuffleBackward0",
    layout=ChannelsLastAs(0),
    direct=("pixel_unshuffle",),
    aten=("pixel_unshuffle",),
)
def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """Return (*, C, H r, W r) as (*, C r r, H, W): the inverse of pixel_shuffle."""
    r = downscale_factor
    if input.ndim < 3:
        raise ShapeError(
            f"pixel_unshuffle expects input to have at least 3 dimensions, but got input with "
            f"{input.ndim} dimension(s)"
        )
    if r <= 0:
        raise ShapeError(f"pixel_unshuffle expects a positive downscale_factor, but got {r}")
    *lead, channels, height, width = input.shape
    for name, at, size in (("height", -2, height), ("width", -1, width)):
        if size % r:
            raise ShapeError(
                f"pixel_unshuffle expects {name} to be divisible by downscale_factor, but "
                f"input.size({at})={size} is not divisible by {r}"
            )
    n = len(lead)
    out = input.reshape((*lead, channels, height // r, r, width // r, r)).permute(
        (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    )
    return out.reshape((*lead, channels * r * r, height // r, width // r))


@composite(
    family="movement",
    function_in=EVERYWHERE,
    aliases=("native_channel_shuffle",),
    gradient_name="ChannelShuffleBackward0",
    layout=ChannelsLastAs(0),
)
def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Return the channels (dimension 1) dealt out anew: one of each group after the other (Zhang et al., 2018)."""
    if input.ndim < 3:
        raise ShapeError(
            f"channel_shuffle expects input with > 2 dims, but got input with sizes "
            f"{list(input.shape)}"
        )
    if groups <= 0:
        raise ShapeError(
            f"channel_shuffle: Number of groups to divide channels in must be positive. Value of "
            f"groups:{groups}"
        )
    n, channels, *rest = input.shape
    if channels % groups:
        raise ShapeError(
            f"channel_shuffle: Number of channels must be divisible by groups. Got {channels} "
            f"channels and {groups} groups."
        )
    out = input.reshape((n, groups, channels // groups, *rest)).transpose(1, 2)
    # One group, or one channel in each, would leave a view.
    return (
        out.contiguous().reshape((n, channels, *rest)) if 1 < groups < channels else input.clone()
    )


# ---- sampling at any place -----------------------------------------------------------------------


@composite(
    family="composite",
    function_in=FUNCTIONAL,
    example=Example(((2, 2, 3),), ((2, 3, 4, 5),), {"align_corners": False}),
    gradient_name="AffineGridGeneratorBackward0",
)
def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """Return the places (N, H, W, 2), in [-1, 1], that matrices (N, 2, 3) map an image of `size` (N, C, H, W) to.

    For `size` (N, C, D, H, W) the matrices are (N, 3, 4) and the result (N, D, H, W, 3).
    """
    align_corners = _aligned(align_corners)
    sizes = tuple(int(s) for s in size)
    rank = len(sizes) - 2
    if not theta.dtype.is_floating_point:
        raise ValueError(
            f"affine_grid: Expected theta to have floating point type, but got {theta.dtype}"
        )
    if rank not in (2, 3):
        raise NotImplementedError(
            f"affine_grid only supports 4D and 5D sizes, for 2D and 3D affine transforms, "
            f"respectively. Got size {sizes}."
        )
    if tuple(theta.shape) != (sizes[0], rank, rank + 1):
        raise ValueError(
            f"affine_grid: Expected a batch of {rank}D affine matrices of shape "
            f"Nx{rank}x{rank + 1} for size {sizes}. Got {tuple(theta.shape)}."
        )
    if min(sizes) <= 0:
        raise ValueError(f"affine_grid: Expected non-zero, positive output size. Got {sizes}")
    spatial = sizes[2:]
    if align_corners and min(spatial) == 1:
        warn(
            "Since version 1.3.0, affine_grid behavior has changed for unit-size grids when align_corners=True. This "
            "is not an intended use case of affine_grid. See the documentation of affine_grid for details."
        )
    dtype, device = theta.dtype, theta.device
    total: Any = None
    # x is the last coordinate of the image and the first of the grid.
    for axis in range(rank):
        d = rank - 1 - axis
        n = spatial[d]
        if align_corners:
            start, step = (-1.0, 2.0 / (n - 1)) if n > 1 else (0.0, 0.0)
        else:
            start, step = (1.0 - n) / n, 2.0 / n
        places = iota(n, start, step, dtype, device).reshape(
            (1,) + (1,) * d + (n,) + (1,) * (rank - d)
        )
        column = theta.select(2, axis).reshape((sizes[0],) + (1,) * rank + (rank,))
        total = places * column if total is None else total + places * column
    offset = theta.select(2, rank).reshape((sizes[0],) + (1,) * rank + (rank,))
    return total + offset


def _reflect(x: Tensor, low2: int, high2: int) -> Tensor:
    """Return x reflected between low2 / 2 and high2 / 2 until it is inside."""
    if low2 == high2:
        return x * 0.0
    low, span = low2 / 2, (high2 - low2) / 2
    x = (x - low).abs()
    extra = x.fmod(span)
    flips = (x.detach() / span).floor()
    return where(flips % 2 == 0, extra + low, span - extra + low)


def _placed(x: Tensor, size: int, padding_mode: str, align_corners: bool, volume: bool) -> Tensor:
    """Return positions brought inside, as the padding mode says.

    What is no number is nowhere in a `volume` padded with zeros, and at the end with another padding; in a
    picture it is at the start, as PyTorch's two kernels have it.
    """
    if padding_mode == "reflection":
        x = _reflect(x, 0, 2 * (size - 1)) if align_corners else _reflect(x, -1, 2 * size - 1)
    if volume:
        if padding_mode == "zeros":
            x = where(x.isfinite(), x, -2.0)
        else:
            x = where(x.isnan(), float(size - 1), x)
    return x if padding_mode == "zeros" else clipped(x, float(size - 1))


def _corner(
    image: Tensor, batch: Tensor, places: Sequence[Tensor], weight: Tensor | None
) -> Tensor:
    """Return weight * image at whole positions, 0 outside: image (N, H, W, C), places each (N, *out)."""
    inside: Any = None
    index = []
    for d, place in enumerate(places):
        size = image.shape[1 + d]
        within = (place >= 0) & (place <= size - 1)
        inside = within if inside is None else inside & within
        # Not clamped: NaN is no index.
        index.append(where(within, place, 0.0).to(int64))
    value = take(image, (batch, *index), "grid_sample")
    value = where(inside.unsqueeze(-1), value, 0.0)
    return value if weight is None else value * weight.unsqueeze(-1)


_MODES = ("bilinear", "nearest", "bicubic")
_PADDINGS = ("zeros", "border", "reflection")


@composite(
    family="composite",
    function_in=FUNCTIONAL,
    autocast=Autocast("fp32", "promote"),
    refuses=NOT_FLOATS,
)
def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """Return the values of (N, C, H, W) at the places (N, OH, OW, 2) of `grid`: x and y, -1 and 1 at the edges.

    Also (N, C, D, H, W) at (N, OD, OH, OW, 3). `mode`: bilinear, nearest, bicubic (4-d only); outside
    the image the value is 0, that of the border, or that of the image reflected (`padding_mode`:
    zeros, border, reflection).
    """
    if mode not in _MODES:
        raise ValueError(
            f"nn.functional.grid_sample(): expected mode to be 'bilinear', 'nearest' or "
            f"'bicubic', but got: '{mode}'"
        )
    if padding_mode not in _PADDINGS:
        raise ValueError(
            f"nn.functional.grid_sample(): expected padding_mode to be 'zeros', 'border', or "
            f"'reflection', but got: '{padding_mode}'"
        )
    rank = input.ndim - 2
    if rank > 0 and grid.ndim and grid.shape[-1] != rank and grid.shape[0] == input.shape[0]:
        raise ShapeError(
            f"grid_sampler(): expected grid to have size {rank} in last dimension, but got grid "
            f"with sizes {list(grid.shape)}"
        )
    if rank not in (2, 3) or grid.ndim != input.ndim:
        raise ShapeError(
            "grid_sampler(): expected 4D or 5D input and grid with same number of dimensions, "
            "but got input with sizes "
            f"{list(input.shape)} and grid with sizes {list(grid.shape)}"
        )
    if input.shape[0] != grid.shape[0]:
        raise ShapeError(
            f"grid_sampler(): expected grid and input to have same batch size, but got input with "
            f"sizes {list(input.shape)} and grid with "
            f"sizes {list(grid.shape)}"
        )
    if input.dtype is not grid.dtype:
        raise DTypeError(
            f"grid_sampler(): expected input and grid to have same dtype, but input has "
            f"{input.dtype} and grid has {grid.dtype}"
        )
    if mode == "bicubic" and rank == 3:
        raise ShapeError("grid_sampler(): bicubic interpolation only supports 4D input")
    if 0 in input.shape[2:]:
        raise ShapeError(
            f"grid_sampler(): expected input to have non-empty spatial dimensions, but input has "
            f"sizes {list(input.shape)}"
        )
    align, dtype = _aligned(align_corners), input.dtype
    # 16-bit floats do not hold positions.
    input, grid = input.to(dtype.compute), grid.to(dtype.compute)
    sizes, out_sizes = tuple(input.shape[2:]), tuple(grid.shape[1:-1])
    n = input.shape[0]
    image = input.permute((0, *range(2, rank + 2), 1))
    batch = iota(n, 0, 1, int64, input.device).reshape((n,) + (1,) * rank).expand((n, *out_sizes))
    places = []
    for d in range(rank):
        at = grid.select(-1, rank - 1 - d)
        at = unnormalised(at, float(sizes[d] - align), float(not align))
        places.append(
            at if mode == "bicubic" else _placed(at, sizes[d], padding_mode, align, rank == 3)
        )
    if not numel((*out_sizes, n)) or not input.shape[1]:
        return input.new_zeros((n, input.shape[1], *out_sizes), dtype=dtype)
    if mode == "nearest":
        out = _corner(image, batch, [p.detach().round() for p in places], None)
        # The sum of none of its numbers: its gradient is 0, whatever the numbers are.
        out = out + grid.narrow(-1, 0, 0).sum() if grid.requires_grad else out
    elif mode == "bilinear":
        out = _linear_corners(image, batch, places)
    else:
        out = _cubic_corners(image, batch, places, sizes, padding_mode, align)
    return out.permute((0, rank + 1, *range(1, rank + 1))).contiguous().to(dtype)


def _linear_corners(image: Tensor, batch: Tensor, places: list[Tensor]) -> Any:
    rank = len(places)
    last = [image.shape[1 + d] - 1 for d in range(rank)]
    sides = [
        [cast_to(neighbour(p.detach(), float(up), float(end)), int64) for up in (0, 1)]
        for p, end in zip(places, last, strict=True)
    ]
    values = []
    for number in range(2**rank):
        index = [side[number >> d & 1] for d, side in enumerate(sides)]
        values.append(take(image, (batch, *index), "grid_sample"))
    at = [p.unsqueeze(-1) for p in places]
    total: Any = None
    for n, corners in enumerate(CORNERS[rank]):
        found = corners(*values[4 * n : 4 * n + 4], *at, *map(float, last))
        total = found if total is None else total + found
    return total


def _cubic_weights(t: Tensor) -> list[Tensor]:
    """Return Keys' weights (a = -0.75) of the four neighbours of a place t past the second."""
    a = -0.75

    def near(x: Tensor) -> Tensor:
        """Return the weight of a neighbour within distance 1."""
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Tensor) -> Tensor:
        """Return the weight of a neighbour between distance 1 and 2."""
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _cubic_corners(
    image: Tensor,
    batch: Tensor,
    places: list[Tensor],
    sizes: tuple[int, ...],
    padding_mode: str,
    align: bool,
) -> Tensor:
    y, x = places
    low_y, low_x = y.detach().floor(), x.detach().floor()
    weights_y, weights_x = _cubic_weights(y - low_y), _cubic_weights(x - low_x)
    total: Any = None
    for i in range(4):
        at_y = _placed(low_y + (i - 1), sizes[0], padding_mode, align, False)
        for j in range(4):
            at_x = _placed(low_x + (j - 1), sizes[1], padding_mode, align, False)
            # Reflected places between positions are cut to whole ones, as PyTorch does.
            value = _corner(image, batch, [at_y.trunc(), at_x.trunc()], weights_y[i] * weights_x[j])
            total = value if total is None else total + value
    return total
