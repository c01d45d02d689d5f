"""Pooling as functions. May import the tensor floor and the op table.

The table has max_pool2d and avg_pool2d; the others are made from them.
"""

from __future__ import annotations

from typing import Any

import webtorch
from webtorch import Tensor
from webtorch.nn.functional.table import composite, table
from webtorch.nn.size import repeat

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "avg_pool1d",
    "avg_pool2d",
    "lp_pool1d",
    "lp_pool2d",
    "max_pool1d",
    "max_pool2d",
]

max_pool2d = table("max_pool2d")
avg_pool2d = table("avg_pool2d")


def _first(value: Any) -> int:
    """Return a one-dimensional size given as a number or as a tuple of one."""
    return int(repeat(value, 1)[0])


@composite
def max_pool1d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Return the maximum of each window of (N, C, L); `return_indices` adds where it was."""
    stride = kernel_size if stride is None else stride
    out = max_pool2d(
        input.unsqueeze(-2),
        (1, _first(kernel_size)),
        (1, _first(stride)),
        (0, _first(padding)),
        (1, _first(dilation)),
        ceil_mode,
        return_indices,
    )
    # One row: an index into the plane is an index into the row.
    return (out[0].squeeze(-2), out[1].squeeze(-2)) if return_indices else out.squeeze(-2)


@composite
def avg_pool1d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """Return the mean of each window of (N, C, L)."""
    stride = kernel_size if stride is None else stride
    return avg_pool2d(
        input.unsqueeze(-2),
        (1, _first(kernel_size)),
        (1, _first(stride)),
        (0, _first(padding)),
        ceil_mode,
        count_include_pad,
    ).squeeze(-2)


def _bins(size: int, count: int) -> list[tuple[int, int]]:
    """Return (start, end) of the `count` bins that cover `size` positions as evenly as possible."""
    return [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


def _output_sizes(output_size: Any, input: Tensor, rank: int) -> tuple[int, ...]:
    """Return the output sizes; None stands for the input's."""
    given = repeat(output_size, rank)
    sizes = tuple(input.shape)[-rank:]
    return tuple(sizes[i] if wanted is None else int(wanted) for i, wanted in enumerate(given))


def _mean_over_bins(input: Tensor, dim: int, count: int) -> Tensor:
    """Return the means of `count` bins along `dim`: a product with a small constant matrix."""
    size = input.shape[dim]
    if size == count:
        return input
    if size % count == 0:
        shape = list(input.shape)
        shape[dim : dim + 1] = [count, size // count]
        return input.reshape(shape).mean(dim + 1)
    rows = [
        [1.0 / (end - start) if start <= i < end else 0.0 for i in range(size)]
        for start, end in _bins(size, count)
    ]
    matrix = webtorch.tensor(rows, dtype=input.dtype, device=input.device)
    return input.transpose(dim, -1).matmul(matrix.t()).transpose(dim, -1)


@composite
def adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor:
    """Return the means of `output_size` bins of (N, C, L)."""
    (length,) = _output_sizes(output_size, input, 1)
    return _mean_over_bins(input, input.dim() - 1, length)


@composite
def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """Return the means of `output_size` bins of (N, C, H, W); None keeps a size."""
    height, width = _output_sizes(output_size, input, 2)
    out = _mean_over_bins(input, input.dim() - 2, height)
    return _mean_over_bins(out, input.dim() - 1, width)


@composite
def adaptive_max_pool2d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """Return the maxima of `output_size` bins of (N, C, H, W); None keeps a size."""
    height, width = input.shape[-2:]
    out_height, out_width = _output_sizes(output_size, input, 2)
    if height % out_height == 0 and width % out_width == 0:
        kernel = (height // out_height, width // out_width)
        return max_pool2d(input, kernel, kernel, 0, 1, False, return_indices)
    values, places = [], []
    for top, bottom in _bins(height, out_height):
        for left, right in _bins(width, out_width):
            region = input[..., top:bottom, left:right].flatten(-2)
            value, place = region.max(-1)
            values.append(value)
            row = webtorch.div(place, right - left, rounding_mode="floor")
            places.append((row + top) * width + (place - row * (right - left)) + left)
    shape = (*input.shape[:-2], out_height, out_width)
    pooled = webtorch.stack(values, -1).reshape(shape)
    return (pooled, webtorch.stack(places, -1).reshape(shape)) if return_indices else pooled


@composite
def adaptive_max_pool1d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """Return the maxima of `output_size` bins of (N, C, L)."""
    (length,) = _output_sizes(output_size, input, 1)
    out = adaptive_max_pool2d(input.unsqueeze(-2), (1, length), return_indices)
    return (out[0].squeeze(-2), out[1].squeeze(-2)) if return_indices else out.squeeze(-2)


def _lp(mean: Tensor, norm_type: float, count: int) -> Tensor:
    """Return (count * mean) ** (1 / p), which is 0 where the mean is not positive."""
    return (webtorch.sign(mean) * webtorch.relu(mean.abs()) * count) ** (1.0 / norm_type)


def lp_pool1d(
    input: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
) -> Tensor:
    """Return the p-norm of each window of (N, C, L)."""
    kernel = _first(kernel_size)
    mean = avg_pool1d(input**norm_type, kernel, stride, 0, ceil_mode)
    return _lp(mean, norm_type, kernel)


def lp_pool2d(
    input: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
) -> Tensor:
    """Return the p-norm of each window of (N, C, H, W)."""
    height, width = repeat(kernel_size, 2)
    mean = avg_pool2d(input**norm_type, (height, width), stride, 0, ceil_mode)
    return _lp(mean, norm_type, height * width)
