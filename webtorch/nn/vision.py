"""Layers that resize, pad and rearrange. May import the tensor floor and nn's base files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webtorch.nn import functional as F
from webtorch.nn.module import Module
from webtorch.nn.size import Sizes, repeat
from webtorch.tensors.tensor import Tensor

__all__ = [
    "ChannelShuffle",
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
    "Flatten",
    "Fold",
    "PixelShuffle",
    "PixelUnshuffle",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReflectionPad3d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ReplicationPad3d",
    "Unflatten",
    "Unfold",
    "Upsample",
    "UpsamplingBilinear2d",
    "UpsamplingNearest2d",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
]


class Flatten(Module):
    """Make one dimension of `start_dim` to `end_dim`."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        """Take the first and the last dimension."""
        super().__init__()
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, input: Tensor) -> Tensor:
        """Return the input with the dimensions made one."""
        return input.flatten(self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        """Return the dimensions."""
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """Make several dimensions of one."""

    def __init__(self, dim: int | str, unflattened_size: Sequence[int]) -> None:
        """Take the dimension and the sizes that it is split into."""
        super().__init__()
        if not isinstance(dim, int):
            raise TypeError(
                f"invalid argument type {type(dim).__name__} for dim: named dimensions are not "
                "supported; give the dimension's number"
            )
        if not isinstance(unflattened_size, (tuple, list)):
            raise TypeError(
                "unflattened_size must be a tuple of ints, but found type "
                f"{type(unflattened_size).__name__}"
            )
        for position, size in enumerate(unflattened_size):
            if not isinstance(size, int):
                raise TypeError(
                    "unflattened_size must be tuple of ints, but found element of type "
                    f"{type(size).__name__} at pos {position}"
                )
        self.dim = dim
        self.unflattened_size = unflattened_size

    def forward(self, input: Tensor) -> Tensor:
        """Return the input with the dimension split."""
        return input.unflatten(self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        """Return the dimension and the sizes."""
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class Upsample(Module):
    """Resize the spatial dimensions of (N, C, ...)."""

    def __init__(
        self,
        size: Sizes | None = None,
        scale_factor: float | tuple[float, ...] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        """Take the sizes or the factors, and the mode of `interpolate`."""
        super().__init__()
        self.name = type(self).__name__
        self.size = size
        if isinstance(scale_factor, tuple):
            self.scale_factor: Any = tuple(float(factor) for factor in scale_factor)
        else:
            self.scale_factor = float(scale_factor) if scale_factor else None
        self.mode = mode
        self.align_corners = align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, input: Tensor) -> Tensor:
        """Return the resized input."""
        return F.interpolate(
            input,
            self.size,
            self.scale_factor,
            self.mode,
            self.align_corners,
            recompute_scale_factor=self.recompute_scale_factor,
        )

    def extra_repr(self) -> str:
        """Return the sizes and the mode."""
        if self.scale_factor is not None:
            return f"scale_factor={self.scale_factor!r}, mode={self.mode!r}"
        return f"size={self.size!r}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Resize (N, C, H, W) to the nearest pixels."""

    def __init__(
        self, size: Sizes | None = None, scale_factor: float | tuple[float, ...] | None = None
    ) -> None:
        """Take the sizes or the factors."""
        super().__init__(size, scale_factor, mode="nearest")


class UpsamplingBilinear2d(Upsample):
    """Resize (N, C, H, W) bilinearly, corners on corners."""

    def __init__(
        self, size: Sizes | None = None, scale_factor: float | tuple[float, ...] | None = None
    ) -> None:
        """Take the sizes or the factors."""
        super().__init__(size, scale_factor, mode="bilinear", align_corners=True)


class PixelShuffle(Module):
    """(*, C r r, H, W) to (*, C, H r, W r)."""

    def __init__(self, upscale_factor: int) -> None:
        """Take the factor r."""
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: Tensor) -> Tensor:
        """Return the rearranged input."""
        return F.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self) -> str:
        """Return the factor."""
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """(*, C, H r, W r) to (*, C r r, H, W)."""

    def __init__(self, downscale_factor: int) -> None:
        """Take the factor r."""
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: Tensor) -> Tensor:
        """Return the rearranged input."""
        return F.pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self) -> str:
        """Return the factor."""
        return f"downscale_factor={self.downscale_factor}"


class ChannelShuffle(Module):
    """Deal the channels out anew: one of each group after the other."""

    def __init__(self, groups: int) -> None:
        """Take the number of groups."""
        super().__init__()
        self.groups = groups

    def forward(self, input: Tensor) -> Tensor:
        """Return the rearranged input."""
        return F.channel_shuffle(input, self.groups)

    def extra_repr(self) -> str:
        """Return the number of groups."""
        return f"groups={self.groups}"


class _Windows(Module):
    """The options of sliding windows."""

    def __init__(
        self, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
    ) -> None:
        """Take the windows' sizes."""
        super().__init__()
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride

    def extra_repr(self) -> str:
        """Return the windows' sizes."""
        return (
            f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, "
            f"stride={self.stride}"
        )


class Unfold(_Windows):
    """The windows of (N, C, H, W) as columns: (N, C kh kw, number of windows)."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the windows."""
        return F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)


class Fold(_Windows):
    """Columns added back into an image."""

    def __init__(
        self,
        output_size: Sizes,
        kernel_size: Sizes,
        dilation: Sizes = 1,
        padding: Sizes = 0,
        stride: Sizes = 1,
    ) -> None:
        """Take the image's and the windows' sizes."""
        super().__init__(kernel_size, dilation, padding, stride)
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        """Return the image."""
        return F.fold(
            input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride
        )

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"output_size={self.output_size}, {super().extra_repr()}"


class _Pad(Module):
    """Padding of `_rank` dimensions in one mode."""

    _rank: int
    _mode: str
    # Whether PyTorch's module looks at the rank itself.
    _strict = False

    def __init__(self, padding: Sizes) -> None:
        """Take one size for all sides, or (before, after) pairs, last dimension first."""
        super().__init__()
        self.padding = repeat(padding, 2 * self._rank)

    def forward(self, input: Tensor) -> Tensor:
        """Return the padded input."""
        low = self._rank + 1
        if self._strict and input.dim() not in (low, low + 1):
            raise ValueError(f"expected {low}D or {low + 1}D input (got {input.dim()}D input)")
        return F.pad(input, self.padding, self._mode)

    def extra_repr(self) -> str:
        """Return the padding."""
        return f"{self.padding}"


class _ConstantPadNd(Module):
    """Padding of `_rank` dimensions with a value."""

    _rank: int

    def __init__(self, padding: Sizes, value: float) -> None:
        """Take the padding and the value."""
        super().__init__()
        self.padding = repeat(padding, 2 * self._rank)
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        """Return the padded input."""
        return F.pad(input, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        """Return the padding and the value."""
        return f"padding={self.padding}, value={self.value}"


class _ZeroPad(_ConstantPadNd):
    """Padding of `_rank` dimensions with zeros."""

    def __init__(self, padding: Sizes) -> None:
        """Take the padding."""
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        """Return the padding."""
        return f"{self.padding}"


class _CircularPadNd(_Pad):
    """Padding with the other end of the input."""

    _mode, _strict = "circular", True


class _ReflectionPadNd(_Pad):
    """Padding with the input's mirror image."""

    _mode = "reflect"


class _ReplicationPadNd(_Pad):
    """Padding with the input's edges."""

    _mode = "replicate"


class CircularPad1d(_CircularPadNd):
    """Pad (N, C, L) as if it went round."""

    _rank = 1


class CircularPad2d(_CircularPadNd):
    """Pad (N, C, H, W) as if it went round."""

    _rank = 2


class CircularPad3d(_CircularPadNd):
    """Pad (N, C, D, H, W) as if it went round."""

    _rank = 3


class ReflectionPad1d(_ReflectionPadNd):
    """Pad (N, C, L) with its mirror image."""

    _rank = 1


class ReflectionPad2d(_ReflectionPadNd):
    """Pad (N, C, H, W) with its mirror image."""

    _rank = 2


class ReflectionPad3d(_ReflectionPadNd):
    """Pad (N, C, D, H, W) with its mirror image."""

    _rank = 3


class ReplicationPad1d(_ReplicationPadNd):
    """Pad (N, C, L) with its edges."""

    _rank = 1


class ReplicationPad2d(_ReplicationPadNd):
    """Pad (N, C, H, W) with its edges."""

    _rank = 2


class ReplicationPad3d(_ReplicationPadNd):
    """Pad (N, C, D, H, W) with its edges."""

    _rank = 3


class ConstantPad1d(_ConstantPadNd):
    """Pad the last dimension with a value."""

    _rank = 1


class ConstantPad2d(_ConstantPadNd):
    """Pad the last 2 dimensions with a value."""

    _rank = 2


class ConstantPad3d(_ConstantPadNd):
    """Pad the last 3 dimensions with a value."""

    _rank = 3


class ZeroPad1d(_ZeroPad, ConstantPad1d):
    """Pad the last dimension with zeros."""


class ZeroPad2d(_ZeroPad, ConstantPad2d):
    """Pad the last 2 dimensions with zeros."""


class ZeroPad3d(_ZeroPad, ConstantPad3d):
    """Pad the last 3 dimensions with zeros."""
