"""Resizing and sampling of images. Floor 6; needs NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy

from webtorch.functions import public as webtorch
from webtorch.nn import functional as F
from webtorch.onnx.operators.table import Attrs, Context, Host, Numbers, ints, op
from webtorch.onnx.operators.windows import pad_sides
from webtorch.tensors.tensor import Tensor


@op("Resize", "Upsample", host=(1, 2, 3))
def _resize(
    c: Context,
    a: Attrs,
    n: int,
    x: Tensor,
    roi: Numbers | None = None,
    scales: Numbers | None = None,
    sizes: Numbers | None = None,
) -> Tensor:
    if scales is None and sizes is None:
        # Upsample, and Resize of opset 10
        scales = roi if roi is not None else numpy.array(a["scales"])
    axes = [d % x.ndim for d in a.get("axes") or range(x.ndim)]
    mode = a.get("mode", "nearest")
    where = a.get("coordinate_transformation_mode", "half_pixel" if c.opset >= 11 else "asymmetric")
    wanted = ints(sizes) if sizes is not None and sizes.size else None
    factors = [float(s) for s in scales.reshape(-1)] if scales is not None and scales.size else None
    if where == "tf_crop_and_resize":
        raise NotImplementedError(
            "load: Resize with tf_crop_and_resize is not available; crop first"
        )
    if wanted is not None and a.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        choose = max if a["keep_aspect_ratio_policy"] == "not_smaller" else min
        ratio = choose(w / x.shape[d] for w, d in zip(wanted, axes, strict=True))
        wanted = [int(ratio * x.shape[d] + 0.5) for d in axes]
        factors = [ratio] * len(axes)
    for i, d in enumerate(axes):
        size = x.shape[d]
        target = (
            wanted[i]
            if wanted is not None
            else math.floor(size * factors[i] + 1e-9)
            if factors
            else size
        )
        scale = factors[i] if factors is not None else target / size
        if target == size and scale == 1:
            continue
        x = _resampled(c, x, d, target, scale, mode, where, a)
    return x


_ROUNDINGS: dict[str, Callable[[Host], Host]] = {
    "floor": numpy.floor, "ceil": numpy.ceil, "round_prefer_ceil": lambda v: numpy.floor(v + 0.5),
    "round_prefer_floor": lambda v: numpy.ceil(v - 0.5),
}  # fmt: skip


def _resampled(
    c: Context, x: Tensor, d: int, target: int, scale: float, mode: str, where: str, a: Attrs
) -> Tensor:
    """Return x with another size of one dim: a product with the weights of the old elements."""
    size = x.shape[d]
    i = numpy.arange(target, dtype=numpy.float64)
    match where:
        case "asymmetric":
            at = i / scale
        case "align_corners":
            length = scale * size
            at = i * (size - 1) / (length - 1) if length > 1 else i * 0
        case "pytorch_half_pixel":
            at = (i + 0.5) / scale - 0.5 if target > 1 else i * 0
        case "half_pixel_symmetric":
            adjust = target / (scale * size)
            at = size / 2 * (1 - adjust) + (i + 0.5) / scale - 0.5
        case "tf_half_pixel_for_nn":
            at = (i + 0.5) / scale
        case _:
            at = (i + 0.5) / scale - 0.5
    if mode == "nearest":
        default = "round_prefer_floor" if c.opset >= 11 else "floor"
        place = _ROUNDINGS[a.get("nearest_mode", default)](at)
        place = numpy.clip(place, 0, size - 1).astype(numpy.int64)
        return x.index_select(d, webtorch.from_numpy(place).to(x.device))
    weights = numpy.zeros((target, size))
    cubic = a.get("cubic_coeff_a", -0.75)
    stretch = max(1.0, 1.0 / scale) if a.get("antialias") else 1.0
    reach = (2 if mode == "cubic" else 1) * stretch
    outside = bool(a.get("exclude_outside"))
    for row, center in enumerate(at):
        taps = numpy.arange(math.floor(center - reach) + 1, math.ceil(center + reach) + 1)
        w = _kernel((taps - center) / stretch, mode, cubic)
        inside = (taps >= 0) & (taps < size)
        if outside:
            taps, w = taps[inside], w[inside]
            w = w / w.sum()
        if stretch > 1:
            w = w / w.sum()
        numpy.add.at(weights[row], numpy.clip(taps, 0, size - 1), w)
    matrix = webtorch.from_numpy(weights.astype(numpy.float32)).to(x.device).to(x.dtype)
    return webtorch.tensordot(x, matrix, ([d], [1])).movedim(-1, d)


def _kernel(t: Host, mode: str, a: float) -> Host:
    t = numpy.abs(t)
    if mode == "linear":
        return numpy.maximum(0, 1 - t)
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return numpy.where(t <= 1, near, numpy.where(t < 2, far, 0))


@op("GridSample")
def _grid_sample(c: Context, a: Attrs, n: int, x: Tensor, grid: Tensor) -> Tensor:
    mode: str = a.get("mode", "linear")
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    return F.grid_sample(
        x, grid, mode, a.get("padding_mode", "zeros"), bool(a.get("align_corners", 0))
    )


@op("AffineGrid", host=(1,))
def _affine_grid(c: Context, a: Attrs, n: int, theta: Tensor, size: Numbers) -> Tensor:
    return F.affine_grid(theta, ints(size) or [], bool(a.get("align_corners", 0)))


@op("Col2Im", host=(1, 2))
def _col2im(c: Context, a: Attrs, n: int, x: Tensor, image: Numbers, block: Numbers) -> Tensor:
    size, kernel = ints(image) or [], ints(block) or []
    rank = len(size)
    pads = a.get("pads") or [0] * 2 * rank
    low, high = pads[:rank], pads[rank:]
    if rank != 2:
        raise NotImplementedError("load: Col2Im of other than images is not available")
    wide = [s + p + q for s, p, q in zip(size, low, high, strict=True)]
    out = F.fold(x, wide, kernel, a.get("dilations") or 1, 0, a.get("strides") or 1)
    return pad_sides(out, [-p for p in low], [-p for p in high])
