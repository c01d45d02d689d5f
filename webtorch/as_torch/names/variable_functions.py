"""torch._VF: functions that are not among the names of `torch`."""

from __future__ import annotations

from webtorch.functions import public as webtorch
from webtorch.tensors.tensor import Tensor


def unique_dim(
    input: Tensor,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """Return the different slices along a dimension, where each went and how often it occurs."""
    return webtorch.unique(input, sorted, True, True, dim)
