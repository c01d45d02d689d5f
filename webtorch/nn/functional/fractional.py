"""Fractional max pooling. May import floors 0 to 4."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from webtorch.dispatch.call import dispatched
from webtorch.functions import public as webtorch
from webtorch.nn.size import Sizes
from webtorch.tensors.tensor import Tensor

__all__ = [
    "fractional_max_pool2d",
    "fractional_max_pool2d_with_indices",
    "fractional_max_pool3d",
    "fractional_max_pool3d_with_indices",
]


_COUNTS = {2: "two", 3: "three"}
_SIDES = ("time", "height", "width")


def _each(value: object, rank: int) -> tuple[Any, ...]:
    """Return one number for each dimension."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * rank


def _starts(samples: Tensor, size: int, window: int, out: int) -> Tensor:
    """Return where the windows of a dimension begin, (N, C, out), by the method of Graham, 2014."""
    end = webtorch.full(
        (*samples.shape, 1), size - window, dtype=webtorch.int64, device=samples.device
    )
    if out == 1:
        return end
    ratio = (size - window) / (out - 1)
    steps = webtorch.arange(out - 1, device=samples.device).to(samples.dtype)
    shift = samples.unsqueeze(2)
    begun = ((steps + shift) * ratio).to(webtorch.int64) - (shift * ratio).to(webtorch.int64)
    return webtorch.cat([begun, end], 2)


def _check_samples(samples: Tensor, batch: int, channels: int, rank: int) -> None:
    """Raise RuntimeError unless there is a sample for each channel of each example, and each dim."""
    if samples.shape[0] < batch:
        raise RuntimeError("Expect _random_samples.size(0) no less then input batch size.")
    if samples.shape[1] != channels:
        raise RuntimeError("Expect _random_samples.size(1) equals to input channel size.")
    if samples.shape[2] != rank:
        raise RuntimeError(
            f"Expect _random_samples.size(2) equals to {rank}; got {samples.shape[2]}."
        )


def _pooled(
    rank: int,
    input: Tensor,
    kernel_size: Sizes,
    output_size: Sizes | None,
    output_ratio: float | Sequence[float] | None,
    samples: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return the maxima and where they are in the input's last dimensions, counted as one."""
    name = f"fractional_max_pool{rank}d"
    if samples is not None and samples.dim() != 3:
        raise RuntimeError(f"Expect _random_samples to have 3 dimensions, got {samples.dim()}")
    for what, given in (("kernel_size", kernel_size), ("output_size", output_size)):
        if isinstance(given, (tuple, list)) and len(given) != rank:
            raise RuntimeError(
                f"{name}: {what} must either be a single Int or tuple of {_COUNTS[rank]} Ints"
            )
    if output_size is None and output_ratio is None:
        raise ValueError(f"{name} requires specifying either an output_size or an output_ratio")
    if output_size is None and len(_each(output_ratio, rank)) != rank:
        raise ValueError(
            f"{name} requires output_ratio to either be a single Int or tuple of Ints."
        )
    if input.dim() not in (rank + 1, rank + 2):
        raise RuntimeError(
            f"Expected {rank + 1}D or {rank + 2}D tensor, but got: {list(input.shape)}"
        )
    for dim in range(input.dim() - rank - 1, input.dim()):
        if not input.shape[dim]:
            raise RuntimeError(
                f"{name}(): Expected input to have non-zero size for non-batch dimensions, but "
                f"got{list(input.shape)} with dimension {dim} being empty."
            )
    x = input if input.dim() == rank + 2 else input.unsqueeze(0)
    batch, channels, *sizes = x.shape
    window = _each(kernel_size, rank)
    if output_size is None:
        outs = tuple(int(s * r) for s, r in zip(sizes, _each(output_ratio, rank), strict=True))
    else:
        outs = _each(output_size, rank)
    for side, size, k, out in zip(_SIDES[-rank:], sizes, window, outs, strict=True):
        if out + k - 1 > size:
            raise RuntimeError(
                f"{name}(): pool {side} {k} too large relative to input {side} {size}: with an output of "
                f"{out}, output + window - 1 must be at most the input's size"
            )
    if samples is None:
        samples = webtorch.rand((batch, channels, rank), dtype=x.dtype, device=x.device)
    _check_samples(samples, batch, channels, rank)
    if not batch or 0 in outs:
        shape = (*input.shape[:-rank], *outs)
        return x.new_zeros(shape) + x.sum() * 0, x.new_zeros(shape, dtype=webtorch.int64)
    if samples.shape[0] != batch:
        # PyTorch takes those of the first of several batches.
        samples = samples[:batch]
    # PyTorch's samples are (width, height) in two dimensions, (time, height, width) in three.
    order = (1, 0) if rank == 2 else (0, 1, 2)
    index: Any = 0
    for dim in range(rank):
        start = _starts(samples[..., order[dim]], sizes[dim], window[dim], outs[dim])
        inside = webtorch.arange(window[dim], device=x.device)
        place = (start.unsqueeze(3) + inside).reshape(
            batch, channels,
            *(outs[d] if d == dim else 1 for d in range(rank)),
            *(window[d] if d == dim else 1 for d in range(rank)),
        )  # fmt: skip
        index = index * sizes[dim] + place
    full = (batch, channels, *outs, *window)
    index = index.expand(full).reshape(batch, channels, *outs, math.prod(window))
    flat = index.reshape(batch, channels, math.prod(outs) * math.prod(window))
    values = x.flatten(2).gather(2, flat).reshape(index.shape)
    best, position = values.max(-1)
    where = index.gather(-1, position.unsqueeze(-1)).squeeze(-1)
    if input.dim() == rank + 1:
        return best.squeeze(0), where.squeeze(0)
    return best, where


@dispatched()
def fractional_max_pool2d_with_indices(
    input: Tensor,
    kernel_size: Sizes,
    output_size: Sizes | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the maxima of windows at random distances, and where they are: (N, C, H, W)."""
    return _pooled(2, input, kernel_size, output_size, output_ratio, _random_samples)


@dispatched()
def fractional_max_pool3d_with_indices(
    input: Tensor,
    kernel_size: Sizes,
    output_size: Sizes | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the maxima of windows at random distances, and where they are: (N, C, T, H, W)."""
    return _pooled(3, input, kernel_size, output_size, output_ratio, _random_samples)


@dispatched()
def fractional_max_pool2d(
    input: Tensor,
    kernel_size: Sizes,
    output_size: Sizes | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Return the maxima of windows at random distances, and where they are if `return_indices`."""
    found = _pooled(2, input, kernel_size, output_size, output_ratio, _random_samples)
    return found if return_indices else found[0]


@dispatched()
def fractional_max_pool3d(
    input: Tensor,
    kernel_size: Sizes,
    output_size: Sizes | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Return the maxima of windows at random distances, and where they are if `return_indices`."""
    found = _pooled(3, input, kernel_size, output_size, output_ratio, _random_samples)
    return found if return_indices else found[0]
