"""Functions of nn.functional and nn.utils that PyTorch also has in torch itself, with its native arguments.

A reduction is a number here: 0 none, 1 mean, 2 sum; 0 where none is given, whatever PyTorch's schemas say.
May import floors 0 to 4 and nn.functional.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webtorch import linalg
from webtorch.dispatch.call import dispatched
from webtorch.functions import public as webtorch
from webtorch.nn import functional as F
from webtorch.tensors.tensor import Tensor

__all__ = [
    "adaptive_max_pool1d",
    "affine_grid_generator",
    "binary_cross_entropy_with_logits",
    "convolution",
    "ctc_loss",
    "embedding_bag",
    "embedding_renorm_",
    "feature_dropout",
    "max_pool1d_with_indices",
    "native_dropout",
    "norm_except_dim",
]
_REDUCTIONS = ("none", "mean", "sum")


def _reduction(name: str, number: int) -> str:
    if number not in (0, 1, 2):
        raise ValueError(f"{name}: reduction is 0 (none), 1 (mean) or 2 (sum), not {number!r}")
    return _REDUCTIONS[number]


@dispatched()
def adaptive_max_pool1d(input: Tensor, output_size: Any) -> tuple[Tensor, Tensor]:
    """Return the largest values of an output_size of windows along the last dim, and where they are."""
    return F.adaptive_max_pool1d(input, output_size, return_indices=True)


@dispatched()
def affine_grid_generator(theta: Tensor, size: Sequence[int], align_corners: bool) -> Tensor:
    """Return nn.functional.affine_grid(theta, size, align_corners)."""
    return F.affine_grid(theta, size, align_corners)


@dispatched()
def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = 0,
) -> Tensor:
    """Return nn.functional.binary_cross_entropy_with_logits."""
    how = _reduction("binary_cross_entropy_with_logits", reduction)
    return F.binary_cross_entropy_with_logits(
        input, target, weight, reduction=how, pos_weight=pos_weight
    )


@dispatched()
def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: object,
    padding: object,
    dilation: object,
    transposed: bool,
    output_padding: object,
    groups: int,
) -> Tensor:
    """Return the convolution, or the transposed one, of as many dims as the weight has beyond two."""
    rank = weight.dim() - 2
    if rank not in (1, 2, 3):
        raise RuntimeError(
            f"convolution: the weight must have 3, 4 or 5 dims, but its shape is {tuple(weight.shape)}"
        )
    if transposed:
        function = getattr(F, f"conv_transpose{rank}d")
        return function(input, weight, bias, stride, padding, output_padding, groups, dilation)
    return getattr(F, f"conv{rank}d")(input, weight, bias, stride, padding, dilation, groups)


@dispatched()
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    reduction: int = 0,
    zero_infinity: bool = False,
) -> Tensor:
    """Return nn.functional.ctc_loss."""
    how = _reduction("ctc_loss", reduction)
    return F.ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, how, zero_infinity)


@dispatched()
def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the sums (mode 0), means (1) or largest (2) of rows, each index's bag, bag sizes, where the largest are.

    `indices` and `offsets` have one dim. PyTorch may leave the last three empty where it does not need them.
    """
    if mode not in (0, 1, 2):
        raise ValueError(f"embedding_bag: mode is 0 (sum), 1 (mean) or 2 (max), not {mode!r}")
    out = F.embedding_bag(
        indices, weight, offsets, scale_grad_by_freq=scale_grad_by_freq,
        mode=("sum", "mean", "max")[mode], sparse=sparse, per_sample_weights=per_sample_weights,
        include_last_offset=include_last_offset, padding_idx=padding_idx,
    )  # fmt: skip
    with webtorch.no_grad():
        count = indices.shape[0]
        starts = offsets[:-1] if include_last_offset else offsets
        position = webtorch.arange(count, device=indices.device)
        bag = (position.unsqueeze(-1) >= starts).sum(-1) - 1
        counted = webtorch.ones_like(bag)
        if padding_idx is not None:
            counted = (indices != padding_idx % weight.shape[0]).to(bag.dtype)
        sizes = webtorch.zeros_like(starts).scatter_add(0, bag, counted.to(starts.dtype))
        if mode != 2:
            return out, bag, sizes, sizes.clone()
        rows = weight.detach()[indices]
        found = (rows == out.detach()[bag]) & (counted != 0).unsqueeze(-1)
        place = webtorch.where(found, position.unsqueeze(-1), count)
        first = webtorch.full(tuple(out.shape), count, dtype=place.dtype, device=place.device)
        first = first.scatter_reduce(0, bag.unsqueeze(-1).expand_as(place), place, "amin")
        padded = F.pad(indices, [0, 1])
        return out, bag, sizes, padded[first].to(indices.dtype)


@dispatched()
def embedding_renorm_(input: Tensor, indices: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """Scale the rows that are looked up, in place, to a norm of at most max_norm. Returns the table."""
    with webtorch.no_grad():
        rows = indices.reshape(-1).unique()
        chosen = input[rows]
        norms = linalg.vector_norm(chosen, norm_type, dim=1, keepdim=True)
        scale = webtorch.where(norms > max_norm, max_norm / (norms + 1e-7), 1.0)
        input[rows] = chosen * scale
    return input


@dispatched()
def feature_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """Set whole channels, the second dim, to 0 with probability p, and scale the others."""
    if input.dim() < 2:
        raise RuntimeError("Feature dropout requires at least 2 dimensions in the input")
    if not 0 <= p <= 1:
        raise RuntimeError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not train or p == 0:
        return input
    shape = (*input.shape[:2], *([1] * (input.dim() - 2)))
    kept = webtorch.rand(shape, device=input.device) >= p
    return input * (kept.to(input.dtype) * (0.0 if p == 1 else 1 / (1 - p)))


@dispatched()
def max_pool1d_with_indices(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] = (),
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the largest values of windows along the last dim, and where they are."""
    return F.max_pool1d(
        input, kernel_size, stride or None, padding, dilation, ceil_mode, return_indices=True
    )


@dispatched()
def native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Return dropout's result, and which elements were kept."""
    if train is False or p == 0:
        return input.clone(), webtorch.ones_like(input, dtype=webtorch.bool)
    kept = webtorch.rand(tuple(input.shape), device=input.device) >= p
    return input * (kept.to(input.dtype) * (0.0 if p == 1 else 1 / (1 - p))), kept


@dispatched()
def norm_except_dim(v: Tensor, pow: int = 2, dim: int = 0) -> Tensor:
    """Return the norm over all dims but one, which keep size 1; over all of them for dim -1."""
    if dim == -1:
        return linalg.vector_norm(v, pow)
    others = [d for d in range(v.dim()) if d != dim % v.dim()]
    return linalg.vector_norm(v, pow, dim=others, keepdim=True)
