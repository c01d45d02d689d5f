"""Pooling layers. May import the tensor floor and nn's base files."""

from __future__ import annotations

from collections.abc import Sequence

from webtorch.nn import functional as F
from webtorch.nn.module import Module
from webtorch.nn.size import Sizes, repeat
from webtorch.tensors.tensor import Tensor

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "FractionalMaxPool2d",
    "FractionalMaxPool3d",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "MaxUnpool3d",
]


class _MaxPoolNd(Module):
    """The maximum of each window."""

    _rank: int

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        """Take the windows' sizes; `stride` is the kernel's size by default."""
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = stride if stride is not None else kernel_size
        self.padding = padding
        self.dilation = dilation
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode

    def forward(self, input: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return the maxima, with their indices if `return_indices`."""
        return (F.max_pool1d, F.max_pool2d, F.max_pool3d)[self._rank - 1](
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.ceil_mode,
            self.return_indices,
        )

    def extra_repr(self) -> str:
        """Return the windows' sizes."""
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPoolNd):
    """The maximum of each window of (N, C, L)."""

    _rank = 1


class MaxPool2d(_MaxPoolNd):
    """The maximum of each window of (N, C, H, W)."""

    _rank = 2


class MaxPool3d(_MaxPoolNd):
    """The maximum of each window of (N, C, D, H, W)."""

    _rank = 3


class _MaxUnpoolNd(Module):
    """Maxima put back to where max pooling found them, zeros elsewhere."""

    _rank: int

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0) -> None:
        """Take the pooling's sizes; `stride` is the kernel's size by default."""
        super().__init__()
        self.kernel_size = repeat(kernel_size, self._rank)
        self.stride = repeat(stride if stride is not None else kernel_size, self._rank)
        self.padding = repeat(padding, self._rank)

    def forward(
        self, input: Tensor, indices: Tensor, output_size: Sequence[int] | None = None
    ) -> Tensor:
        """Return the maxima at their places; `output_size` picks among the possible sizes."""
        return (F.max_unpool1d, F.max_unpool2d, F.max_unpool3d)[self._rank - 1](
            input, indices, self.kernel_size, self.stride, self.padding, output_size
        )

    def extra_repr(self) -> str:
        """Return the pooling's sizes."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_MaxUnpoolNd):
    """Maxima of (N, C, L) put back."""

    _rank = 1


class MaxUnpool2d(_MaxUnpoolNd):
    """Maxima of (N, C, H, W) put back."""

    _rank = 2


class MaxUnpool3d(_MaxUnpoolNd):
    """Maxima of (N, C, D, H, W) put back."""

    _rank = 3


class _AvgPoolNd(Module):
    """The mean of each window."""

    kernel_size: Sizes
    stride: Sizes
    padding: Sizes

    def extra_repr(self) -> str:
        """Return the windows' sizes."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool1d(_AvgPoolNd):
    """The mean of each window of (N, C, L)."""

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        """Take the windows' sizes; `stride` is the kernel's size by default."""
        super().__init__()
        self.kernel_size = repeat(kernel_size, 1)
        self.stride = repeat(stride if stride is not None else kernel_size, 1)
        self.padding = repeat(padding, 1)
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        """Return the means."""
        return F.avg_pool1d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
        )


class _WideAvgPool(_AvgPoolNd):
    """The mean of each window of 2 or 3 dimensions, which may be divided by another number."""

    _rank: int

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        """Take the windows' sizes; `stride` is the kernel's size by default."""
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = stride if stride is not None else kernel_size
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override

    def forward(self, input: Tensor) -> Tensor:
        """Return the means."""
        return (F.avg_pool2d, F.avg_pool3d)[self._rank - 2](
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )


class AvgPool2d(_WideAvgPool):
    """The mean of each window of (N, C, H, W)."""

    _rank = 2


class AvgPool3d(_WideAvgPool):
    """The mean of each window of (N, C, D, H, W)."""

    _rank = 3


class _LPPoolNd(Module):
    """The p-norm of each window."""

    _rank: int

    def __init__(
        self,
        norm_type: float,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        ceil_mode: bool = False,
    ) -> None:
        """Take p and the windows' sizes; `stride` is the kernel's size by default."""
        super().__init__()
        self.norm_type = norm_type
        self.kernel_size = kernel_size
        self.stride = stride
        self.ceil_mode = ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        """Return the norms."""
        return (F.lp_pool1d, F.lp_pool2d, F.lp_pool3d)[self._rank - 1](
            input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode
        )

    def extra_repr(self) -> str:
        """Return the windows' sizes."""
        return (
            f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"ceil_mode={self.ceil_mode}"
        )


class LPPool1d(_LPPoolNd):
    """The p-norm of each window of (N, C, L)."""

    _rank = 1


class LPPool2d(_LPPoolNd):
    """The p-norm of each window of (N, C, H, W)."""

    _rank = 2


class LPPool3d(_LPPoolNd):
    """The p-norm of each window of (N, C, D, H, W)."""

    _rank = 3


class _AdaptivePool(Module):
    """Pooling into a given number of bins."""

    _rank: int

    def __init__(self, output_size: int | Sequence[int | None] | None) -> None:
        """Take the sizes of the output; None keeps the input's."""
        super().__init__()
        self.output_size = output_size

    def extra_repr(self) -> str:
        """Return the sizes of the output."""
        return f"output_size={self.output_size}"


class _AdaptiveAvgPoolNd(_AdaptivePool):
    """Means of a given number of bins."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the means."""
        functions = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)
        return functions[self._rank - 1](input, self.output_size)


class AdaptiveAvgPool1d(_AdaptiveAvgPoolNd):
    """The means of `output_size` bins of (N, C, L)."""

    _rank = 1


class AdaptiveAvgPool2d(_AdaptiveAvgPoolNd):
    """The means of `output_size` bins of (N, C, H, W)."""

    _rank = 2


class AdaptiveAvgPool3d(_AdaptiveAvgPoolNd):
    """The means of `output_size` bins of (N, C, D, H, W)."""

    _rank = 3


class _AdaptiveMaxPoolNd(_AdaptivePool):
    """Maxima of a given number of bins."""

    def __init__(
        self, output_size: int | Sequence[int | None] | None, return_indices: bool = False
    ) -> None:
        """Take the sizes of the output; `return_indices` adds where the maxima were."""
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, input: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return the maxima, with their indices if `return_indices`."""
        functions = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)
        return functions[self._rank - 1](input, self.output_size, self.return_indices)


class AdaptiveMaxPool1d(_AdaptiveMaxPoolNd):
    """The maxima of `output_size` bins of (N, C, L)."""

    _rank = 1


class AdaptiveMaxPool2d(_AdaptiveMaxPoolNd):
    """The maxima of `output_size` bins of (N, C, H, W)."""

    _rank = 2


class AdaptiveMaxPool3d(_AdaptiveMaxPoolNd):
    """The maxima of `output_size` bins of (N, C, D, H, W)."""

    _rank = 3


class _FractionalMaxPool(Module):
    """Maxima of windows at random distances, for outputs of any size. Graham, 2014."""

    _rank: int

    def __init__(
        self,
        kernel_size: Sizes,
        output_size: Sizes | None = None,
        output_ratio: object = None,
        return_indices: bool = False,
        _random_samples: Tensor | None = None,
    ) -> None:
        """Take the windows' size, and either the output's size or its ratio to the input's."""
        super().__init__()
        rank = self._rank
        self.kernel_size = repeat(kernel_size, rank)
        self.return_indices = return_indices
        self.register_buffer("_random_samples", _random_samples)
        self.output_size = None if output_size is None else repeat(output_size, rank)
        self.output_ratio = None if output_ratio is None else repeat(output_ratio, rank)
        if output_size is None and output_ratio is None:
            raise ValueError(
                f"FractionalMaxPool{rank}d requires specifying either an output size, or a "
                "pooling ratio"
            )
        if output_size is not None and output_ratio is not None:
            raise ValueError("only one of output_size and output_ratio may be specified")
        if self.output_ratio is not None and not all(0 < ratio < 1 for ratio in self.output_ratio):
            raise ValueError(f"output_ratio must be between 0 and 1 (got {output_ratio})")

    def forward(self, input: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return the maxima, and where they are if `return_indices`."""
        return (F.fractional_max_pool2d, F.fractional_max_pool3d)[self._rank - 2](
            input,
            self.kernel_size,
            self.output_size,
            self.output_ratio,
            self.return_indices,
            _random_samples=self._random_samples,
        )


class FractionalMaxPool2d(_FractionalMaxPool):
    """Fractional max pooling of (N, C, H, W) or (C, H, W)."""

    _rank = 2


class FractionalMaxPool3d(_FractionalMaxPool):
    """Fractional max pooling of (N, C, T, H, W) or (C, T, H, W)."""

    _rank = 3
