"""Linear maps, embeddings and distances as functions. May import the tensor floor and the op table."""

from __future__ import annotations

import webtorch
from webtorch import Tensor
from webtorch.nn.functional.table import composite, table

__all__ = [
    "bilinear",
    "cosine_similarity",
    "embedding",
    "linear",
    "normalize",
    "one_hot",
    "pairwise_distance",
]

one_hot = table("one_hot")
_embedding = table("embedding")


@composite
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `input @ weight.T + bias`."""
    out = input.matmul(weight.t())
    return out if bias is None else out + bias


@composite
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `input1 @ weight[k] @ input2 + bias[k]` for every k, along the last dimensions."""
    out_features, in1, in2 = weight.shape
    # (*, in1) @ (in1, out * in2) -> (*, out, in2), then a dot product with (*, 1, in2).
    half = input1.matmul(weight.permute(1, 0, 2).reshape(in1, out_features * in2))
    half = half.reshape((*input1.shape[:-1], out_features, in2))
    out = (half * input2.unsqueeze(-2)).sum(-1)
    return out if bias is None else out + bias


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Return the rows of `weight` that `input` names; row `padding_idx` gets no gradient."""
    for name, given in (
        ("max_norm", max_norm is not None),
        ("scale_grad_by_freq", scale_grad_by_freq),
        ("sparse", sparse),
    ):
        if given:
            raise NotImplementedError(
                f"embedding: {name} is not supported: it changes the weight, or the form of its "
                "gradient, on every read. Leave it out and renormalize the weight after the step."
            )
    if padding_idx is None:
        return _embedding(input, weight)
    rows = weight.shape[0]
    if not -rows <= padding_idx < rows:
        raise AssertionError("Padding_idx must be within num_embeddings")
    out = _embedding(input, weight)
    # Values are those of the row; cutting the gradient here keeps it out of the weight's one.
    mask = (input == padding_idx % rows).unsqueeze(-1)
    return webtorch.where(mask, out.detach(), out)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Return the dot product along `dim` over the product of the norms, each at least `eps`."""
    x1, x2 = webtorch.broadcast_tensors(x1, x2)
    # Under the square root, so that the norm's gradient at 0 (0 / 0) never arises.
    norm1 = (x1 * x1).sum(dim, keepdim=True).clamp(min=eps * eps).sqrt()
    norm2 = (x2 * x2).sum(dim, keepdim=True).clamp(min=eps * eps).sqrt()
    return ((x1 / norm1) * (x2 / norm2)).sum(dim)


def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """Return the p-norm of `x1 - x2 + eps` along the last dimension."""
    return webtorch.norm(x1 - x2 + eps, p, -1, keepdim)


def normalize(
    input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None
) -> Tensor:
    """Return x over its p-norm along `dim`, which counts as at least `eps`."""
    result = input / webtorch.norm(input, p, dim, keepdim=True).clamp(min=eps)
    return result if out is None else out.copy_(result)
