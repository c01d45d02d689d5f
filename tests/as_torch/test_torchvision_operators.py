"""torchvision's compiled operators as webtorch has them, against loops written from their definitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import webtorch
from webtorch.as_torch.names import torchvision_operators as ops
from webtorch.autograd import gradcheck
from webtorch.nn import regions

Array = npt.NDArray[np.float64]
GENERATOR = np.random.default_rng(3)


def boxes(count: int, size: float) -> Array:
    first = GENERATOR.uniform(0, size * 0.7, (count, 2))
    return np.concatenate([first, first + GENERATOR.uniform(0.5, size * 0.5, (count, 2))], 1)


def bilinear(picture: Array, y: float, x: float, edge: bool) -> Array:
    """Return the value at a place of (C, H, W); at the edge it goes on (`edge`), or is 0."""
    height, width = picture.shape[1:]
    if edge:
        if not (-1 <= y <= height and -1 <= x <= width):
            return np.zeros(picture.shape[0])
        y, x = min(max(y, 0.0), height - 1), min(max(x, 0.0), width - 1)
    total = np.zeros(picture.shape[0])
    for i in (math.floor(y), math.floor(y) + 1):
        for j in (math.floor(x), math.floor(x) + 1):
            if 0 <= i < height and 0 <= j < width:
                total += picture[:, i, j] * (1 - abs(y - i)) * (1 - abs(x - j))
    return total


@pytest.mark.parametrize("count", [0, 1, 7, 1500])
def test_nms_keeps_what_no_better_box_overlaps(count: int) -> None:
    some, scores = boxes(count, 40.0), np.round(GENERATOR.uniform(size=count), 2)
    some = some.reshape(count, 4).astype(np.float32)
    kept: list[int] = []
    areas = (some[:, 2] - some[:, 0]) * (some[:, 3] - some[:, 1])
    for i in sorted(range(count), key=lambda i: -scores[i]):
        corner = np.minimum(some[i, 2:], some[kept, 2:]) - np.maximum(some[i, :2], some[kept, :2])
        inner = corner.clip(0).prod(1)
        if not (inner / (areas[i] + areas[kept] - inner) > np.float32(0.4)).any():
            kept.append(i)
    found = regions.nms(webtorch.from_numpy(some), webtorch.from_numpy(scores), 0.4)
    assert found.dtype is webtorch.int64 and found.tolist() == kept


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("ratio", [-1, 2])
def test_roi_align_is_the_mean_of_its_samples(ratio: int, aligned: bool) -> None:
    input = GENERATOR.normal(size=(2, 3, 9, 7))
    rois = np.concatenate([GENERATOR.integers(0, 2, (5, 1)), boxes(5, 16.0)], 1)
    rois[0, 1:] = [-6, -4, 30, 40]
    bins, scale = (3, 2), 0.5
    wanted = np.zeros((5, 3, *bins))
    for k, (picture, *corners) in enumerate(rois):
        x1, y1, x2, y2 = (c * scale - 0.5 * aligned for c in corners)
        size = [y2 - y1, x2 - x1] if aligned else [max(y2 - y1, 1.0), max(x2 - x1, 1.0)]
        many = [ratio if ratio > 0 else math.ceil(s / b) for s, b in zip(size, bins, strict=True)]
        for p, q in np.ndindex(*bins):
            for i, j in np.ndindex(*many):
                y = y1 + (p + (i + 0.5) / many[0]) * size[0] / bins[0]
                x = x1 + (q + (j + 0.5) / many[1]) * size[1] / bins[1]
                wanted[k, :, p, q] += bilinear(input[int(picture)], y, x, True)
        wanted[k] /= max(many[0] * many[1], 1)
    x = webtorch.from_numpy(input)
    found = regions.roi_align(x, webtorch.from_numpy(rois), scale, *bins, ratio, aligned)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6, atol=1e-8)


def test_roi_pool_is_the_largest_of_whole_pixels() -> None:
    input = GENERATOR.normal(size=(2, 3, 9, 7))
    rois = np.concatenate([GENERATOR.integers(0, 2, (6, 1)), boxes(6, 16.0)], 1)
    rois[0, 1:] = [40, 40, 60, 60]
    bins, scale = (3, 2), 0.5
    wanted = np.zeros((6, 3, *bins))
    for k, (picture, *corners) in enumerate(rois):
        x1, y1, x2, y2 = (math.floor(c * scale + 0.5) for c in corners)
        high, wide = max(y2 - y1 + 1, 1), max(x2 - x1 + 1, 1)
        for p, q in np.ndindex(*bins):
            rows = [math.floor(p * high / bins[0]) + y1, math.ceil((p + 1) * high / bins[0]) + y1]
            columns = [
                math.floor(q * wide / bins[1]) + x1,
                math.ceil((q + 1) * wide / bins[1]) + x1,
            ]
            (a, b), (c, d) = np.clip(rows, 0, 9), np.clip(columns, 0, 7)
            if a < b and c < d:
                wanted[k, :, p, q] = input[int(picture), :, a:b, c:d].max((1, 2))
    found, _ = regions.roi_pool(webtorch.from_numpy(input), webtorch.from_numpy(rois), scale, *bins)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12)


@pytest.mark.parametrize(("groups", "offset_groups", "use_mask"), [(1, 1, False), (2, 2, True)])
def test_deform_conv2d_moves_every_tap(groups: int, offset_groups: int, use_mask: bool) -> None:
    n, channels, out, kernel = 2, 4, 6, (3, 2)
    stride, pad, dilation = (2, 1), (1, 2), (1, 2)
    input = GENERATOR.normal(size=(n, channels, 7, 8))
    weight = GENERATOR.normal(size=(out, channels // groups, *kernel))
    high = (7 + 2 * pad[0] - dilation[0] * (kernel[0] - 1) - 1) // stride[0] + 1
    wide = (8 + 2 * pad[1] - dilation[1] * (kernel[1] - 1) - 1) // stride[1] + 1
    offset = GENERATOR.normal(size=(n, offset_groups * 2 * 6, high, wide)) * 2
    mask = GENERATOR.uniform(size=(n, offset_groups * 6, high, wide))
    bias = GENERATOR.normal(size=out)
    wanted = np.zeros((n, out, high, wide)) + bias[:, None, None]
    each = channels // offset_groups
    for b, p, q in np.ndindex(n, high, wide):
        columns = np.zeros((channels, *kernel))
        for g in range(offset_groups):
            for i, j in np.ndindex(*kernel):
                tap = (g * 6 + i * kernel[1] + j) * 2
                y = p * stride[0] - pad[0] + i * dilation[0] + offset[b, tap, p, q]
                x = q * stride[1] - pad[1] + j * dilation[1] + offset[b, tap + 1, p, q]
                value = bilinear(input[b, g * each : (g + 1) * each], y, x, False)
                if use_mask:
                    value = value * mask[b, tap // 2, p, q]
                columns[g * each : (g + 1) * each, i, j] = value
        for o in range(out):
            first = o // (out // groups) * (channels // groups)
            wanted[b, o, p, q] += (columns[first : first + channels // groups] * weight[o]).sum()
    tensors: list[Any] = [webtorch.from_numpy(a) for a in (input, weight, offset, mask, bias)]
    found = regions.deform_conv2d(
        *tensors, *stride, *pad, *dilation, groups, offset_groups, use_mask
    )
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-7, atol=1e-9)


def test_gradients_follow_from_what_they_are_made_of() -> None:
    x = webtorch.randn(1, 2, 5, 4, dtype=webtorch.float64, requires_grad=True)
    rois = webtorch.tensor([[0, 0.3, 0.2, 3.1, 3.7]], dtype=webtorch.float64)
    assert gradcheck(lambda x: regions.roi_align(x, rois, 1.0, 2, 2, 2, True), (x,))
    assert gradcheck(lambda x: regions.roi_pool(x, rois, 1.0, 2, 2)[0], (x,))
    offset = (webtorch.rand(1, 18, 3, 2, dtype=webtorch.float64) * 0.6 + 0.2).requires_grad_()
    weight = webtorch.randn(2, 2, 3, 3, dtype=webtorch.float64, requires_grad=True)
    zero = webtorch.zeros(2, dtype=webtorch.float64)
    assert gradcheck(
        lambda x, w, o: regions.deform_conv2d(x, w, o, zero, zero, 1, 1, 0, 0, 1, 1, 1, 1, False),
        (x, weight, offset),
    )


def test_operators_that_are_not_written_here_say_which_are() -> None:
    with pytest.raises(NotImplementedError, match="deform_conv2d, nms, ps_roi_align"):
        ops._absent("qroi_align")(webtorch.ones(1))
    with pytest.raises(RuntimeError, match=r"Tensor\[K, 5\]"):
        regions.roi_pool(webtorch.ones(1, 1, 4, 4), webtorch.ones(1, 4), 1.0, 2, 2)
