"""Convolutions, pooling, padding and resizing of aten. Floor 6; imports the engine, not PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webtorch.aten.table import Function, Sizes, aten, op
from webtorch.functions.resize import resized
from webtorch.ir.view import numel
from webtorch.ops.layout import ChannelsLastAs
from webtorch.ops.primitive import fill
from webtorch.tensors.switches import alert
from webtorch.tensors.tensor import Tensor


@aten(
    "convolution",
    "convolution_overrideable",
    layout=ChannelsLastAs(0, 1),
    direct=("convolution_overrideable",),
)
def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
) -> Tensor:
    """Convolution over one to three dims, or its transpose."""
    rank = weight.ndim - 2
    if transposed:
        run = (op.conv_transpose1d, op.conv_transpose2d, op.conv_transpose3d)[rank - 1]
        return run(
            x,
            weight,
            bias,
            _sizes(stride, rank),
            _sizes(padding, rank),
            _sizes(output_padding, rank),
            groups,
            _sizes(dilation, rank),
        )
    run = (op.conv1d, op.conv2d, op.conv3d)[rank - 1]
    return run(
        x, weight, bias, _sizes(stride, rank), _sizes(padding, rank), _sizes(dilation, rank), groups
    )


def max_pool(rank: int) -> Function:
    """Return max pooling over `rank` dims with aten's arguments; gives values and positions."""

    def run(
        x: Tensor,
        kernel: Sizes,
        stride: Sizes = (),
        padding: Sizes = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
    ) -> tuple[Tensor, ...]:
        """Return the maxima and their positions."""
        pool = op.max_pool2d if rank == 2 else op.max_pool3d
        return tuple(
            pool(
                x,
                _sizes(kernel, rank),
                _sizes(stride, rank) or None,
                _sizes(padding, rank),
                _sizes(dilation, rank),
                ceil_mode,
                True,
            )
        )

    return run


def avg_pool(rank: int) -> Function:
    """Return average pooling over `rank` dims with aten's arguments."""

    def run(
        x: Tensor,
        kernel: Sizes,
        stride: Sizes = (),
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor: int | None = None,
    ) -> Tensor:
        """Return the means."""
        pool = op.avg_pool2d if rank == 2 else op.avg_pool3d
        return pool(
            x,
            _sizes(kernel, rank),
            _sizes(stride, rank) or None,
            _sizes(padding, rank),
            ceil_mode,
            count_include_pad,
            divisor,
        )

    return run


def _sizes(values: Sizes, rank: int) -> tuple[int, ...]:
    if isinstance(values, int):
        return (values,) * rank
    return tuple(values) * rank if len(values) == 1 else tuple(values)


for _rank in (2, 3):
    aten(f"max_pool{_rank}d_with_indices")(max_pool(_rank))
    aten(f"avg_pool{_rank}d")(avg_pool(_rank))


@aten("_adaptive_avg_pool2d", "adaptive_avg_pool2d", layout=ChannelsLastAs(0))
def adaptive_avg_pool2d(x: Tensor, output_size: Sizes) -> Tensor:
    """Average pooling to a given size."""
    return op.adaptive_avg_pool2d(x, _sizes(output_size, 2))


@aten("_adaptive_avg_pool3d", "adaptive_avg_pool3d")
def adaptive_avg_pool3d(x: Tensor, output_size: Sizes) -> Tensor:
    """Average pooling to a given size."""
    return op.adaptive_avg_pool3d(x, _sizes(output_size, 3))


@aten("adaptive_max_pool2d")
def adaptive_max_pool2d(x: Tensor, output_size: Sizes) -> tuple[Tensor, ...]:
    """Max pooling to a given size; values and positions."""
    return tuple(op.adaptive_max_pool2d(x, _sizes(output_size, 2), True))


@aten("adaptive_max_pool3d")
def adaptive_max_pool3d(x: Tensor, output_size: Sizes) -> tuple[Tensor, ...]:
    """Max pooling to a given size; values and positions."""
    return tuple(op.adaptive_max_pool3d(x, _sizes(output_size, 3), True))


@aten("max_unpool2d", layout=ChannelsLastAs(0))
def _max_unpool2d(x: Tensor, indices: Tensor, output_size: Sequence[int]) -> Tensor:
    return _unpool(x, indices, output_size, 2)


@aten("max_unpool3d")
def _max_unpool3d(
    x: Tensor, indices: Tensor, output_size: Sequence[int], stride: Sizes, padding: Sizes
) -> Tensor:
    return _unpool(x, indices, output_size, 3)


def _unpool(x: Tensor, indices: Tensor, output_size: Sequence[int], rank: int) -> Tensor:
    """Return zeros with each value at its position in the last `rank` dims."""
    alert(f"max_unpooling{rank}d_forward_out")
    lead, sizes = x._shape[: x.ndim - rank], tuple(output_size)
    zeros = fill((*lead, numel(sizes)), 0, x.dtype, x.device)
    window = (*lead, numel(x._shape[x.ndim - rank :]))
    flat = op.scatter(zeros, len(lead), indices.reshape(window), x.reshape(window))
    return flat.reshape((*lead, *sizes))


@aten("im2col")
def im2col(x: Tensor, kernel: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes) -> Tensor:
    """Windows as columns."""
    return op.functional_unfold(
        x, _sizes(kernel, 2), _sizes(dilation, 2), _sizes(padding, 2), _sizes(stride, 2)
    )


@aten("col2im")
def col2im(
    x: Tensor, output_size: Sizes, kernel: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> Tensor:
    """Columns added up to an image."""
    return op.functional_fold(
        x,
        _sizes(output_size, 2),
        _sizes(kernel, 2),
        _sizes(dilation, 2),
        _sizes(padding, 2),
        _sizes(stride, 2),
    )


def padding(mode: str) -> Function:
    """Return padding of the last dims by reflection or repetition."""
    return lambda x, pad: op.pad(x, tuple(pad), mode)


for _rank in (1, 2, 3):
    for _name, _mode in (("reflection", "reflect"), ("replication", "replicate")):
        # Of rows, and of reflected images, PyTorch makes it of the out= form.
        _made = _rank == 1 or (_rank, _mode) == (2, "reflect")
        _name = f"{_name}_pad{_rank}d"
        _layout = None if _rank == 1 else ChannelsLastAs(0)
        aten(_name, direct=() if _made else (_name,), layout=_layout)(padding(_mode))


@aten("constant_pad_nd", layout=ChannelsLastAs(0), direct=("constant_pad_nd",))
def _constant_pad_nd(x: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    return op.pad(x, tuple(pad), "constant", value)


# PyTorch's operator -> interpolate's mode, whether it takes align_corners, and whether it widens the filter.
RESIZES: dict[str, tuple[str, bool, bool]] = {
    **{f"upsample_nearest{r}d": ("nearest", False, False) for r in (1, 2, 3)},
    **{f"_upsample_nearest_exact{r}d": ("nearest-exact", False, False) for r in (1, 2, 3)},
    "upsample_linear1d": ("linear", True, False),
    "upsample_bilinear2d": ("bilinear", True, False),
    "upsample_bicubic2d": ("bicubic", True, False),
    "upsample_trilinear3d": ("trilinear", True, False),
    **{f"_upsample_{m}2d_aa": (m, True, True) for m in ("bilinear", "bicubic", "lanczos")},
}


def resize(mode: str, has_corners: bool, antialias: bool) -> Function:
    """Return resizing with aten's arguments: output size, align_corners if there is a choice, the scales asked for."""

    def run(x: Tensor, output_size: Sequence[int], *rest: Any) -> Tensor:
        """Return the resized images."""
        corners, scales = (rest[0], rest[1:]) if has_corners else (False, rest)
        wanted = tuple(output_size)
        # PyTorch leaves out the last arguments where they are None.
        given = scales + (None,) * (len(wanted) - len(scales))
        # A scale that was asked for, not the quotient of the sizes, places the samples.
        steps = tuple(
            [
                1.0 / f if f else s / max(n, 1)
                for s, n, f in zip(x.shape[2:], wanted, given, strict=True)
            ]
        )
        return resized(x, wanted, steps, mode, bool(corners), antialias)

    return run


for _name, _how in RESIZES.items():
    aten(_name, out="exact")(resize(*_how))
