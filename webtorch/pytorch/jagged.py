"""What nested tensors of rows of different lengths (`torch.jagged`) are made dense by, and of. Floor 6."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from webtorch.pytorch.kernels import own


def _starts(offsets: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return where the rows begin, and the last one ends."""
    if len(offsets) != 1:
        raise NotImplementedError(f"webgpu: {len(offsets)} dims of different lengths: use one")
    return offsets[0]


def _where(inside: torch.Tensor, x: torch.Tensor, other: float) -> torch.Tensor:
    """Return x, and a number in the rows that are not `inside`."""
    inside = inside.reshape(*inside.shape, *[1] * (x.dim() - inside.dim()))
    return x.masked_fill(inside.logical_not(), other)


@own("_jagged_to_padded_dense_forward")
def _padded(
    values: torch.Tensor,
    offsets: Sequence[torch.Tensor],
    max_lengths: Sequence[int],
    padding_value: float = 0.0,
) -> torch.Tensor:
    """Return the rows side by side, each as long as the longest may be."""
    starts, (length,) = _starts(offsets), max_lengths
    if not values.shape[0] or not length:
        shape = (starts.shape[0] - 1, length, *values.shape[1:])
        return values.new_full(shape, padding_value)
    places = torch.arange(length, device=starts.device, dtype=starts.dtype)
    at = (starts[:-1, None] + places).clamp(max=values.shape[0] - 1)
    return _where(places < starts.diff()[:, None], values[at], padding_value)


@own("_padded_dense_to_jagged_forward")
def _jagged(
    dense: torch.Tensor, offsets: Sequence[torch.Tensor], total_L: int | None = None
) -> torch.Tensor:
    """Return the rows one after the other, without what lies behind each; what is missing is 0."""
    starts = _starts(offsets)
    count, length = int(starts[-1]) if total_L is None else total_L, dense.shape[1]
    if not count or not dense.numel():
        return dense.new_zeros((count, *dense.shape[2:]))
    elements = torch.arange(count, device=starts.device, dtype=starts.dtype)
    rows = (torch.searchsorted(starts, elements, right=True) - 1).clamp(max=dense.shape[0] - 1)
    places = elements - starts[rows]
    return _where(places < length, dense[rows, places.clamp(max=length - 1)], 0)
