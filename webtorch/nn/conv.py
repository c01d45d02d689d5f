"""Convolutions: Conv1d/2d/3d and their transposes. May import the tensor floor and nn's base files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType
from webtorch.nn import functional as F
from webtorch.nn import init
from webtorch.nn.module import Module
from webtorch.nn.parameter import Parameter
from webtorch.nn.size import repeat
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.tensor import Tensor

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
]

_PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


class _ConvNd(Module):
    """What all convolutions share: sizes, parameters and the printed form."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: tuple[int, ...],
        stride: tuple[int, ...],
        padding: str | tuple[int, ...],
        dilation: tuple[int, ...],
        transposed: bool,
        output_padding: tuple[int, ...],
        groups: int,
        bias: bool,
        padding_mode: str,
        device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:
        """Check the sizes and make weight and bias."""
        super().__init__()
        if groups <= 0:
            raise ValueError("groups must be a positive integer")
        if in_channels % groups != 0:
            raise ValueError("in_channels must be divisible by groups")
        if out_channels % groups != 0:
            raise ValueError("out_channels must be divisible by groups")
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ValueError(
                    f"Invalid padding string {padding!r}, should be one of ('same', 'valid')"
                )
            if padding == "same" and any(s != 1 for s in stride):
                raise ValueError("padding='same' is not supported for strided convolutions")
        if padding_mode not in _PADDING_MODES:
            raise ValueError(
                f"padding_mode must be one of {_PADDING_MODES}, but got "
                f"padding_mode='{padding_mode}'"
            )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = kernel_size
        self.stride = stride
        self.padding = padding
        self.dilation = dilation
        self.transposed = transposed
        self.output_padding = output_padding
        self.groups = groups
        self.padding_mode = padding_mode
        self._pads = _pads(padding, dilation, kernel_size)
        channels = (
            (in_channels, out_channels // groups)
            if transposed
            else (out_channels, in_channels // groups)
        )
        self.weight = Parameter(
            webtorch.empty((*channels, *kernel_size), device=device, dtype=dtype)
        )
        if bias:
            self.bias = Parameter(webtorch.empty(out_channels, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values: uniform in +-1/sqrt(fan_in)."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in, _ = init._calculate_fan_in_and_fan_out(self.weight)
            if fan_in != 0:
                bound = 1 / math.sqrt(fan_in)
                init.uniform_(self.bias, -bound, bound)

    def _padded(self, input: Tensor) -> tuple[Tensor, Any]:
        """Return the input and the padding left to the convolution, as the padding mode wants."""
        if self.padding_mode == "zeros":
            return input, self.padding
        padded = F.pad(input, self._pads, mode=self.padding_mode)
        return padded, (0,) * len(self.kernel_size)

    def extra_repr(self) -> str:
        """Return channels and kernel, and what differs from the defaults."""
        count = len(self.kernel_size)
        text = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}"
        )
        if self.padding != (0,) * count:
            text += f", padding={self.padding}"
        if self.dilation != (1,) * count:
            text += f", dilation={self.dilation}"
        if self.output_padding != (0,) * count:
            text += f", output_padding={self.output_padding}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        if self.bias is None:
            text += ", bias=False"
        if self.padding_mode != "zeros":
            text += f", padding_mode={self.padding_mode}"
        return text


def _pads(
    padding: str | tuple[int, ...], dilation: tuple[int, ...], kernel_size: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the padding as `F.pad` takes it: last dimension first, both sides."""
    out: list[int] = []
    for i in reversed(range(len(kernel_size))):
        if padding == "same":
            total = dilation[i] * (kernel_size[i] - 1)
            out += [total // 2, total - total // 2]
        elif isinstance(padding, str):
            out += [0, 0]
        else:
            out += [padding[i], padding[i]]
    return tuple(out)


class _Conv(_ConvNd):
    """A convolution over `_rank` dimensions."""

    _rank: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: str | int | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:
        """Make weight (out, in / groups, *kernel_size) and, if `bias`, bias (out,)."""
        rank = self._rank
        super().__init__(
            in_channels,
            out_channels,
            repeat(kernel_size, rank),
            repeat(stride, rank),
            padding if isinstance(padding, str) else repeat(padding, rank),
            repeat(dilation, rank),
            False,
            (0,) * rank,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of (N, C, *sizes) or (C, *sizes)."""
        return self._conv_forward(input, self.weight, self.bias)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the convolution with other weights: layers that derive theirs call this, or replace it."""
        function = (F.conv1d, F.conv2d, F.conv3d)[self._rank - 1]
        padded, padding = self._padded(input)
        return function(padded, weight, bias, self.stride, padding, self.dilation, self.groups)


class Conv1d(_Conv):
    """Convolve (N, C_in, L) with `out_channels` kernels of length `kernel_size`."""

    _rank = 1


class Conv2d(_Conv):
    """Convolve (N, C_in, H, W) with `out_channels` kernels of `kernel_size`."""

    _rank = 2


class Conv3d(_Conv):
    """Convolve (N, C_in, D, H, W) with `out_channels` kernels of `kernel_size`."""

    _rank = 3


class _ConvTransposeNd(_ConvNd):
    """A transposed convolution (the gradient of a convolution) over `_rank` dimensions."""

    _rank: int
    padding: tuple[int, ...]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] = 0,
        output_padding: int | tuple[int, ...] = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | tuple[int, ...] = 1,
        padding_mode: str = "zeros",
        device: DeviceLike = None,
        dtype: DType | None = None,
    ) -> None:
        """Make weight (in, out / groups, *kernel_size) and, if `bias`, bias (out,)."""
        if padding_mode != "zeros":
            raise ValueError(f'Only "zeros" padding mode is supported for {type(self).__name__}')
        rank = self._rank
        super().__init__(
            in_channels,
            out_channels,
            repeat(kernel_size, rank),
            repeat(stride, rank),
            repeat(padding, rank),
            repeat(dilation, rank),
            True,
            repeat(output_padding, rank),
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """Return the transposed convolution; `output_size` picks among the possible sizes."""
        function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[self._rank - 1]
        padding: Any = self.padding
        output_padding = self._output_padding(
            input, output_size, self.stride, padding, self.kernel_size, self._rank, self.dilation
        )
        return function(
            input,
            self.weight,
            self.bias,
            self.stride,
            padding,
            output_padding,
            self.groups,
            self.dilation,
        )

    def _output_padding(
        self,
        input: Tensor,
        output_size: Sequence[int] | None,
        stride: Sequence[int],
        padding: Sequence[int],
        kernel_size: Sequence[int],
        num_spatial_dims: int,
        dilation: Sequence[int] | None = None,
    ) -> list[int]:
        """Return the output padding that makes the output `output_size`; layers derived from this one ask too."""
        if output_size is None:
            return [*self.output_padding]
        rank = num_spatial_dims
        spatial = tuple(input.shape)[-rank:]
        leading = input.dim() - rank
        output_size = tuple(output_size)
        if len(output_size) == leading + rank:
            output_size = output_size[leading:]
        if len(output_size) != rank:
            raise ValueError(
                f"ConvTranspose{rank}D: for {input.dim()}D input, output_size must have {rank} or "
                f"{leading + rank} elements (got {len(output_size)})"
            )
        spans = [
            (1 if dilation is None else dilation[i]) * (kernel_size[i] - 1) + 1 for i in range(rank)
        ]
        low = [(spatial[i] - 1) * stride[i] - 2 * padding[i] + spans[i] for i in range(rank)]
        high = [low[i] + stride[i] - 1 for i in range(rank)]
        if any(not low[i] <= output_size[i] <= high[i] for i in range(rank)):
            raise ValueError(
                f"requested an output size of {output_size}, but valid sizes range from {low} to {high} "
                f"(for an input of {input.shape[2:]})"
            )
        return [output_size[i] - low[i] for i in range(rank)]


class ConvTranspose1d(_ConvTransposeNd):
    """Transposed convolution of (N, C_in, L)."""

    _rank = 1


class ConvTranspose2d(_ConvTransposeNd):
    """Transposed convolution of (N, C_in, H, W)."""

    _rank = 2


class ConvTranspose3d(_ConvTransposeNd):
    """Transposed convolution of (N, C_in, D, H, W)."""

    _rank = 3
