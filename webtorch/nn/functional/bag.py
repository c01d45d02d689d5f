"""Bags of embeddings. May import floors 0 to 4; `embedding` itself is the op table's."""

from __future__ import annotations

import math

from webtorch.dispatch.call import dispatched
from webtorch.functions import public as webtorch
from webtorch.functions.check import demand
from webtorch.nn.functional.table import table
from webtorch.ops.purity import warn
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.values import at_hand_or_written, check_places

__all__ = ["embedding_bag"]

_embedding = table("embedding")
_BEGINNING = "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0"
_FAR = "Expected idx >= 0 && idx < num_embeddings but found idx to be {index}. "
_END = "offsets[-1] can not be greater than input's length"


@dispatched()
def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Return the sum, mean or max of the rows of each bag: (bags, embedding_dim).

    `input` is (bags, length), or (*) with `offsets` (bags,), the positions where the bags begin;
    empty bags give zeros. Gradients are dense, also with `sparse`.
    """
    if weight.dtype in (webtorch.int64, webtorch.int32) and input.is_floating_point():
        warn(
            "Argument order of nn.functional.embedding_bag was changed. "
            "Usage `embedding_bag(weight, input, ...)` is deprecated, "
            "and should now be `embedding_bag(input, weight, ...)`."
        )
        input, weight = weight, input
    _check_options(input, weight, mode, scale_grad_by_freq, sparse, per_sample_weights, padding_idx)
    if input.dim() == 2:
        if offsets is not None:
            raise ValueError(
                "if input is 2D, then offsets has to be None, as input is treated is a mini-batch "
                "of fixed length sequences. However, found offsets of type "
                f"{type(offsets)}"
            )
        count, length = input.shape
        bags = webtorch.arange(count, device=input.device).repeat_interleave(length)
    elif input.dim() == 1:
        if offsets is None:
            raise ValueError("offsets has to be a 1D Tensor but got None")
        if offsets.dim() != 1:
            raise ValueError("offsets has to be a 1D Tensor")
        count = int(offsets.shape[0]) - (1 if include_last_offset else 0)
        # The bag of a position is how many bags began at or before it.
        starts = offsets[:count]
        positions = webtorch.arange(int(input.shape[0]), device=input.device)
        bags = webtorch.searchsorted(starts.to(positions.dtype), positions, right=True) - 1
        bags = _checked(bags, offsets, int(input.shape[0]))
    else:
        raise ValueError(
            f"input has to be 1D or 2D Tensor, but got Tensor of dimension {input.dim()}"
        )
    check_places("embedding_bag", input, int(weight.shape[0]), _FAR)
    flat = input.reshape(-1)
    rows = _embedding(flat, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    return _reduced(rows, flat, bags, count, mode, per_sample_weights, padding_idx, weight)


def _check_options(
    input: Tensor,
    weight: Tensor,
    mode: str,
    scale_grad_by_freq: bool,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int | None,
) -> None:
    """Raise as PyTorch does for options that do not go together."""
    if per_sample_weights is not None and input.size() != per_sample_weights.size():
        raise ValueError(
            f"embedding_bag: If per_sample_weights ({per_sample_weights.size()}) is not None, then "
            f"it must have the same shape as the input ({input.size()})"
        )
    if not weight.dim() == 2:
        raise ValueError(
            f"weight has to be a 2D Tensor, but got Tensor of dimension {weight.dim()}"
        )
    if mode not in ("sum", "mean", "max"):
        raise ValueError("mode has to be one of sum, mean or max")
    if mode == "max" and scale_grad_by_freq:
        raise ValueError("max mode does not support scaling the gradient by the frequency")
    if mode == "max" and sparse:
        raise ValueError("max mode does not support sparse weights")
    if per_sample_weights is not None and mode != "sum":
        raise NotImplementedError(
            "embedding_bag: per_sample_weights was not None. per_sample_weights is only supported "
            f"for mode='sum' (got mode='{mode}'). Please open a feature request on GitHub."
        )
    if per_sample_weights is not None and per_sample_weights.dtype is not weight.dtype:
        raise RuntimeError(
            "Expected tensor for argument #1 'weight' to have the same type as tensor for argument #1 "
            f"'per_sample_weights'; but type {weight.type()} does not equal {per_sample_weights.type()} (while "
            "checking arguments for embedding_bag)"
        )
    if padding_idx is not None:
        rows = int(weight.shape[0])
        if not -rows <= padding_idx < rows:
            raise RuntimeError(
                f"padding_idx must be within the number of embeddings, -{rows} through {rows - 1}, but got "
                f"{padding_idx}"
            )


def _checked(bags: Tensor, offsets: Tensor, length: int) -> Tensor:
    """Return the bags, which are right where the offsets begin with 0 and end within the input."""
    if not int(offsets.shape[0]) or not length:
        return bags
    known = at_hand_or_written(offsets)
    if known is not None and known[0]:
        raise RuntimeError(f"{_BEGINNING}. However, got {known[0]}")
    if known is not None and known[-1] > length:
        raise RuntimeError(f"{_END} {length} but got offsets[-1] of {known[-1]}")
    bags = demand(
        bags,
        offsets[0] == 0,
        _BEGINNING,
    )
    return demand(bags, offsets[-1] <= length, f"{_END} {length}")


def _reduced(
    rows: Tensor,
    flat: Tensor,
    bags: Tensor,
    count: int,
    mode: str,
    per_sample_weights: Tensor | None,
    padding_idx: int | None,
    weight: Tensor,
) -> Tensor:
    """Return the rows (n, dim) reduced by bag; padding counts as if it were not there."""
    shape = (count, int(rows.shape[1]))
    real = webtorch.ones_like(flat, dtype=webtorch.bool)
    if padding_idx is not None:
        real = flat != padding_idx % int(weight.shape[0])
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.reshape(-1, 1)
    index = bags.unsqueeze(1).expand(rows.shape[0], shape[1])
    if mode == "max":
        hidden = webtorch.where(real.unsqueeze(1), rows, -math.inf)
        start = webtorch.full(shape, -math.inf, dtype=rows.dtype, device=rows.device)
        out = start.scatter_reduce(0, index, hidden, "amax", include_self=True)
        return webtorch.where(out == -math.inf, 0.0, out)
    kept = webtorch.where(real.unsqueeze(1), rows, 0.0)
    out = webtorch.zeros(shape, dtype=rows.dtype, device=rows.device).index_add(0, bags, kept)
    if mode == "sum":
        return out
    ones = real.to(rows.dtype)
    lengths = webtorch.zeros(count, dtype=rows.dtype, device=rows.device).index_add(0, bags, ones)
    return out / lengths.clamp(min=1).unsqueeze(1)
