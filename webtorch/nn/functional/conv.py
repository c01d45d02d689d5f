"""Convolutions as functions. May import the tensor floor and the op table.

The table has conv1d and conv2d; the others are made from them.
"""

from __future__ import annotations

from typing import Any

from webtorch import Tensor
from webtorch.nn.functional.padding import pad
from webtorch.nn.functional.table import composite, table
from webtorch.nn.size import repeat

__all__ = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
]

conv1d = table("conv1d")
conv2d = table("conv2d")


@composite
def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve (N, C, D, H, W): the sum of one conv2d for each depth of the kernel."""
    stride, dilation = repeat(stride, 3), repeat(dilation, 3)
    kernel = tuple(weight.shape)[2:]
    if padding == "valid":
        padding = 0
    if padding == "same":
        total = [dilation[i] * (kernel[i] - 1) for i in range(3)]
        sides = [(n // 2, n - n // 2) for n in total]
        input = pad(input, [n for side in reversed(sides) for n in side])
        padding = 0
    padding = repeat(padding, 3)
    unbatched = input.dim() == 4
    x = input.unsqueeze(0) if unbatched else input
    x = pad(x, (0, 0, 0, 0, padding[0], padding[0]))
    n, c, depth, h, w = x.shape
    depth_out = (depth - dilation[0] * (kernel[0] - 1) - 1) // stride[0] + 1
    if depth_out <= 0:
        raise RuntimeError(
            f"conv3d: Kernel size can't be greater than actual input size: depth {depth} (padded), "
            f"kernel {kernel[0]} with dilation {dilation[0]}"
        )
    out = None
    for k in range(kernel[0]):
        first = k * dilation[0]
        planes = x[:, :, first : first + stride[0] * (depth_out - 1) + 1 : stride[0]]
        planes = planes.permute(0, 2, 1, 3, 4).reshape(n * depth_out, c, h, w)
        part = conv2d(planes, weight[:, :, k], None, stride[1:], padding[1:], dilation[1:], groups)
        out = part if out is None else out + part
    assert out is not None
    _, c_out, h_out, w_out = out.shape
    out = out.reshape(n, depth_out, c_out, h_out, w_out).permute(0, 2, 1, 3, 4)
    if bias is not None:
        out = out + bias.reshape(1, -1, 1, 1, 1)
    return out.squeeze(0) if unbatched else out


def _conv_transpose(
    rank: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: int,
    dilation: Any,
) -> Tensor:
    """Convolve the input, spread out by `stride`, with the kernel turned around."""
    stride, padding = repeat(stride, rank), repeat(padding, rank)
    output_padding, dilation = repeat(output_padding, rank), repeat(dilation, rank)
    kernel = tuple(weight.shape)[2:]
    for i in range(rank):
        if output_padding[i] >= max(stride[i], dilation[i]):
            raise RuntimeError(
                "output padding must be smaller than either stride or dilation, but got "
                f"output_padding: {output_padding}, stride: {stride}, dilation: {dilation}"
            )
    unbatched = input.dim() == rank + 1
    x = input.unsqueeze(0) if unbatched else input
    pads: list[int] = []
    for i in range(rank):
        dim = 2 + i
        if stride[i] > 1:
            size = x.shape[dim]
            # (..., L, ...) -> (..., L, s, ...) -> (..., L * s, ...), without the last s - 1 zeros.
            spread = pad(x.unsqueeze(dim + 1), (0, 0) * (x.dim() - dim - 1) + (0, stride[i] - 1))
            shape = list(x.shape)
            shape[dim] = size * stride[i]
            x = spread.reshape(shape).narrow(dim, 0, size * stride[i] - stride[i] + 1)
        edge = dilation[i] * (kernel[i] - 1) - padding[i]
        pads = [edge, edge + output_padding[i], *pads]
    x = pad(x, pads)
    c_in, c_out = weight.shape[0], weight.shape[1]
    turned = weight.flip(tuple(range(2, 2 + rank)))
    turned = turned.reshape((groups, c_in // groups, c_out, *kernel)).transpose(1, 2)
    turned = turned.reshape((groups * c_out, c_in // groups, *kernel))
    convolve = (conv1d, conv2d, conv3d)[rank - 1]
    out = convolve(x, turned, bias, (1,) * rank, (0,) * rank, dilation, groups)
    return out.squeeze(0) if unbatched else out


@composite
def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """Return the transposed convolution of (N, C, L) with weight (C, C_out / groups, k)."""
    return _conv_transpose(
        1, input, weight, bias, stride, padding, output_padding, groups, dilation
    )


@composite
def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """Return the transposed convolution of (N, C, H, W) with weight (C, C_out / groups, kh, kw)."""
    return _conv_transpose(
        2, input, weight, bias, stride, padding, output_padding, groups, dilation
    )


@composite
def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """Return the transposed convolution of (N, C, D, H, W)."""
    return _conv_transpose(
        3, input, weight, bias, stride, padding, output_padding, groups, dilation
    )
