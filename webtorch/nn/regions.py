"""Operators on regions of images, torchvision's compiled ones: nms, pooling, deformable convolution. Floor 5.

Arguments are those of `torch.ops.torchvision`. What they are made of is differentiable. Regions have no gradient,
as there.
"""

from __future__ import annotations

from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType
from webtorch.nn import functional as F
from webtorch.tensors.tensor import Tensor

__all__ = ["deform_conv2d", "nms", "ps_roi_align", "ps_roi_pool", "roi_align", "roi_pool"]

# Rows of the matrix of overlaps that are in memory at once, and regions that are pooled at once.
_ROWS, _REGIONS = 1024, 64


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """The places of the boxes (N, 4) that no better one overlaps by more than the threshold, best first."""
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise RuntimeError(f"boxes should be a 2d tensor of (N, 4), got {tuple(boxes.shape)}")
    if tuple(scores.shape) != (boxes.shape[0],):
        raise RuntimeError(
            f"boxes and scores should have same number of elements in dimension 0, got {boxes.shape[0]} and "
            f"{tuple(scores.shape)}"
        )
    with webtorch.no_grad():
        order = scores.argsort(dim=0, descending=True, stable=True)
        sorted_boxes = boxes[order]
        count = len(order)
        low, high = sorted_boxes[:, :2], sorted_boxes[:, 2:]
        areas = (high - low).prod(1)
        # One bit of `gone` for each box, in order.
        gone, kept = 0, []
        for first in range(0, count, _ROWS):
            part = slice(first, first + _ROWS)
            corner = webtorch.minimum(high[part, None], high[None])
            inner = (corner - webtorch.maximum(low[part, None], low[None])).clamp(min=0).prod(2)
            over = inner / (areas[part, None] + areas[None] - inner) > iou_threshold
            rows = _bits(over)
            for row, at in zip(rows, range(first, count), strict=False):
                if not gone >> at & 1:
                    kept.append(at)
                    gone |= row
        return order[webtorch.tensor(kept, dtype=webtorch.int64, device=boxes.device)]


def _bits(rows: Tensor) -> list[int]:
    """Return the rows of a bool matrix as numbers whose bit i is column i."""
    width = -(-rows.shape[1] // 8) * 8
    padded = F.pad(rows.to(webtorch.int32), (0, width - rows.shape[1]))
    weights = webtorch.tensor([1 << i for i in range(8)], dtype=webtorch.int32, device=rows.device)
    packed = (padded.reshape(rows.shape[0], -1, 8) * weights).sum(2)
    return [int.from_bytes(bytes(row), "little") for row in packed.tolist()]


def _samples(
    start: Tensor, size: Tensor, bins: int, ratio: int, length: int, dtype: DType
) -> tuple[Tensor, Tensor]:
    """Return how much of each of `length` pixels is in each bin along one axis, (K, bins, length), and
    the number of samples in a bin, (K,): bilinear weights of evenly spaced points.
    """
    device = start.device
    step = size / bins
    grid = webtorch.full_like(size, float(ratio)) if ratio > 0 else webtorch.ceil(step)
    most = ratio if ratio > 0 else max(1, int(grid.max().item()))
    i = webtorch.arange(most, device=device, dtype=dtype)
    p = webtorch.arange(bins, device=device, dtype=dtype)
    at = (
        start[:, None, None]
        + p[None, :, None] * step[:, None, None]
        + (i + 0.5) * (step / grid.clamp(min=1))[:, None, None]
    )
    used = (i < grid[:, None, None]) & (at >= -1) & (at <= length)
    place = at.clamp(0, length - 1)
    pixels = webtorch.arange(length, device=device, dtype=dtype)
    near = (1 - (place[..., None] - pixels).abs()).clamp(min=0)
    return (near * used[..., None].to(dtype)).sum(2), grid


def roi_align(
    input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int,
    sampling_ratio: int, aligned: bool,
) -> Tensor:  # fmt: skip
    """The means of bilinear samples in bins of regions (K, 5: picture, x1, y1, x2, y2): (K, C, height, width)."""
    _check_rois(input, rois)
    if not len(rois):
        return input.new_zeros(0, input.shape[1], pooled_height, pooled_width)
    wide = input.float() if input.dtype in (webtorch.float16, webtorch.bfloat16) else input
    regions = rois.detach().to(wide.dtype)
    height, width = input.shape[2:]
    corners = regions[:, 1:] * spatial_scale - (0.5 if aligned else 0.0)
    sizes = corners[:, 2:] - corners[:, :2]
    if not aligned:
        sizes = sizes.clamp(min=1)
    rows, many = _samples(
        corners[:, 1], sizes[:, 1], pooled_height, sampling_ratio, height, wide.dtype
    )
    columns, much = _samples(
        corners[:, 0], sizes[:, 0], pooled_width, sampling_ratio, width, wide.dtype
    )
    rows = rows / (many * much).clamp(min=1)[:, None, None]
    found = []
    for part in range(0, len(rois), _REGIONS):
        some = slice(part, part + _REGIONS)
        pictures = wide[regions[some, 0].long()]
        found.append(rows[some, None] @ pictures @ columns[some, None].mT)
    return webtorch.cat(found).to(input.dtype)


def roi_pool(
    input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int
) -> tuple[Tensor, Tensor]:
    """The largest values in bins of whole pixels, 0 where a bin has none; and their places in the picture, row by
    row (-1: none).
    """
    _check_rois(input, rois)
    height, width = input.shape[2:]
    regions = rois.detach().to(webtorch.float32)
    corners = webtorch.floor(regions[:, 1:] * spatial_scale + 0.5)
    sizes = (corners[:, 2:] - corners[:, :2] + 1).clamp(min=1)
    rows = _bins(corners[:, 1], sizes[:, 1], pooled_height, height)
    columns = _bins(corners[:, 0], sizes[:, 0], pooled_width, width)
    lowest = float("-inf")
    values, places = [], []
    for part in range(0, len(rois), _REGIONS):
        some = slice(part, part + _REGIONS)
        pictures = input[regions[some, 0].long()]
        # The largest of each line first, then of the lines: of equal ones the first row, and its first column.
        line, column = webtorch.where(columns[some, None, None], pictures.unsqueeze(3), lowest).max(
            -1
        )
        bins = webtorch.where(rows[some, None, :, :, None], line.unsqueeze(2), lowest)
        value, row = bins.max(3)
        filled = webtorch.logical_and(
            rows[some].any(-1)[:, None, :, None], columns[some].any(-1)[:, None, None]
        )
        values.append(webtorch.where(filled, value, 0.0))
        place = row * width + column.gather(2, row)
        places.append(webtorch.where(filled, place, -1).to(webtorch.int32))
    if not values:
        shape = (0, input.shape[1], pooled_height, pooled_width)
        return input.new_zeros(shape), input.new_zeros(shape, dtype=webtorch.int32)
    return webtorch.cat(values), webtorch.cat(places)


def _bins(start: Tensor, size: Tensor, bins: int, length: int) -> Tensor:
    """Return which of `length` pixels are in each bin along one axis, (K, bins, length): floor to ceiling."""
    step = size / bins
    p = webtorch.arange(bins, device=start.device, dtype=start.dtype)
    low = webtorch.floor(p * step[:, None]) + start[:, None]
    high = webtorch.ceil((p + 1) * step[:, None]) + start[:, None]
    at = webtorch.arange(length, device=start.device, dtype=start.dtype)
    return (at >= low[..., None]) & (at < high[..., None])


def _split_channels(input: Tensor, pooled_height: int, pooled_width: int) -> int:
    """Return how many channels a position-sensitive pooling gives. Raises RuntimeError if that is no number."""
    cells = pooled_height * pooled_width
    if input.shape[1] % cells:
        raise RuntimeError(
            f"input channels must be a multiple of pooling height * pooling width, got {input.shape[1]} channels for "
            f"{pooled_height} * {pooled_width}"
        )
    return int(input.shape[1]) // cells


def _by_position(
    input: Tensor,
    rois: Tensor,
    rows: Tensor,
    columns: Tensor,
    pooled_height: int,
    pooled_width: int,
) -> tuple[Tensor, Tensor]:
    """Return sums over bins whose every cell reads channels of its own, (K, C, bins), and these channels."""
    channels = _split_channels(input, pooled_height, pooled_width)
    height, width = input.shape[2:]
    shape = (channels, pooled_height, pooled_width)
    parts = input.reshape(len(input), *shape, height, width)
    mapping = webtorch.arange(input.shape[1], dtype=webtorch.int32, device=input.device)
    mapping = mapping.reshape(shape).expand(len(rois), *shape).contiguous()
    found = []
    for part in range(0, len(rois), _REGIONS):
        some = slice(part, part + _REGIONS)
        pictures = parts[rois[some, 0].long()]
        lines = pictures @ columns[some, None, None, :, :, None]
        found.append((rows[some, None, :, None, None, :] @ lines)[..., 0, 0])
    out = webtorch.cat(found) if found else input.new_zeros(0, *shape)
    return out, mapping


def ps_roi_align(
    input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int, sampling_ratio: int
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`roi_align` where each bin has channels of its own; and the channel that each value is of."""
    _check_rois(input, rois)
    regions = rois.detach().to(input.dtype)
    corners = regions[:, 1:] * spatial_scale - 0.5
    sizes = corners[:, 2:] - corners[:, :2]
    height, width = input.shape[2:]
    rows, many = _samples(
        corners[:, 1], sizes[:, 1], pooled_height, sampling_ratio, height, input.dtype
    )
    columns, much = _samples(
        corners[:, 0], sizes[:, 0], pooled_width, sampling_ratio, width, input.dtype
    )
    rows = rows / (many * much)[:, None, None]
    return _by_position(input, regions, rows, columns, pooled_height, pooled_width)


def ps_roi_pool(
    input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int
) -> tuple[Tensor, Tensor]:
    """The means of bins of whole pixels, each bin of channels of its own; and the channel that each value is of.

    The last row and the last column of a picture are in no bin, as in torchvision.
    """
    _check_rois(input, rois)
    regions = rois.detach().to(input.dtype)
    scaled = regions[:, 1:] * spatial_scale
    # Half away from zero, as in C.
    corners = webtorch.sign(scaled) * webtorch.floor(scaled.abs() + 0.5)
    sizes = (corners[:, 2:] - corners[:, :2]).clamp(min=1)
    height, width = input.shape[2:]
    rows = _bins(corners[:, 1], sizes[:, 1], pooled_height, height - 1).to(input.dtype)
    columns = _bins(corners[:, 0], sizes[:, 0], pooled_width, width - 1).to(input.dtype)
    rows = rows / rows.sum(-1, keepdim=True).clamp(min=1)
    columns = columns / columns.sum(-1, keepdim=True).clamp(min=1)
    rows, columns = F.pad(rows, (0, 1)), F.pad(columns, (0, 1))
    return _by_position(input, regions, rows, columns, pooled_height, pooled_width)


def _check_rois(input: Tensor, rois: Tensor) -> None:
    if rois.ndim != 2 or rois.shape[1] != 5:
        raise RuntimeError(f"rois must have shape as Tensor[K, 5], got {tuple(rois.shape)}")
    if input.dtype != rois.dtype:
        raise RuntimeError(
            f"Expected tensor for input to have the same type as tensor for rois; but type {input.dtype} does not "
            f"equal {rois.dtype}"
        )


def deform_conv2d(
    input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor, stride_h: int, stride_w: int, pad_h: int,
    pad_w: int, dil_h: int, dil_w: int, groups: int, offset_groups: int, use_mask: bool,
) -> Tensor:  # fmt: skip
    """A convolution whose every tap is moved by `offset` (and weighted by `mask`): (N, out, height, width)."""
    n, channels, height, width = input.shape
    out_channels, _, kernel_h, kernel_w = weight.shape
    out_h, out_w = offset.shape[2:]
    taps = kernel_h * kernel_w
    moves = offset.reshape(n * offset_groups, taps, 2, out_h, out_w)

    def places(count: int, kernel: int, stride: int, pad: int, dilation: int, down: bool) -> Tensor:
        """Return each tap's position in each output, (taps, out_h, out_w), without its offset."""
        start = webtorch.arange(count, device=input.device, dtype=input.dtype) * stride - pad
        tap = webtorch.arange(kernel, device=input.device, dtype=input.dtype) * dilation
        if down:
            grid = tap[:, None, None, None] + start[:, None]
            return grid.expand(kernel, kernel_w, out_h, out_w).reshape(taps, out_h, out_w)
        grid = tap[:, None, None] + start
        return grid.expand(kernel_h, kernel, out_h, out_w).reshape(taps, out_h, out_w)

    y = places(out_h, kernel_h, stride_h, pad_h, dil_h, True) + moves[:, :, 0]
    x = places(out_w, kernel_w, stride_w, pad_w, dil_w, False) + moves[:, :, 1]
    grid = webtorch.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], -1)
    pictures = input.reshape(n * offset_groups, channels // offset_groups, height, width)
    sampled = F.grid_sample(
        pictures, grid.reshape(n * offset_groups, taps * out_h, out_w, 2), align_corners=False
    ).reshape(n * offset_groups, -1, taps, out_h * out_w)
    if use_mask:
        sampled = sampled * mask.reshape(n * offset_groups, 1, taps, out_h * out_w)
    columns = sampled.reshape(n, groups, channels // groups * taps, out_h * out_w)
    kernel = weight.reshape(groups, out_channels // groups, -1)
    out = (kernel @ columns).reshape(n, out_channels, out_h, out_w)
    return out + bias.reshape(-1, 1, 1)
