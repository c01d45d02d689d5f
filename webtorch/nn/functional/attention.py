"""Multi-head attention as a function. May import floors 0 to 4.

Letters of shapes: N batch, H heads, L queries, S keys, E size of one head.
"""

from __future__ import annotations

import math
import warnings

from webtorch.dispatch.call import dispatched
from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType
from webtorch.ir.lines import user_depth
from webtorch.nn.functional.table import table
from webtorch.tensors.tensor import Tensor

__all__ = ["multi_head_attention_forward"]

linear, pad, softmax, dropout = table("linear"), table("pad"), table("softmax"), table("dropout")
scaled_dot_product_attention = table("scaled_dot_product_attention")


def canonical_mask(
    mask: Tensor | None,
    mask_name: str,
    other_type: DType | None,
    other_name: str,
    target_type: DType,
    check_other: bool = True,
) -> Tensor | None:
    """Return a mask in its additive form: -inf where a bool mask is true.

    Warns when the other mask has another dtype.
    """
    if mask is None:
        return None
    if mask.dtype != webtorch.bool and not mask.is_floating_point():
        raise AssertionError(f"only bool and floating types of {mask_name} are supported")
    if check_other and other_type is not None and mask.dtype != other_type:
        warnings.warn(
            f"Support for mismatched {mask_name} and {other_name} is deprecated. "
            "Use same type for both instead.",
            stacklevel=user_depth(),
        )
    if mask.is_floating_point():
        return mask
    zeros = webtorch.zeros(tuple(mask.shape), dtype=target_type, device=mask.device)
    return zeros.masked_fill(mask, float("-inf"))


def _check_shapes(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    num_heads: int,
) -> bool:
    """Return whether the inputs have a batch dimension; raise AssertionError on other ranks."""
    rank = query.dim()
    if rank not in (2, 3):
        raise AssertionError(
            f"query should be unbatched 2D or batched 3D tensor but received {rank}-D query tensor"
        )
    kind = "batched (3-D)" if rank == 3 else "unbatched (2-D)"
    if key.dim() != rank or value.dim() != rank:
        raise AssertionError(
            f"For {kind} `query`, expected `key` and `value` to be {rank}-D but found {key.dim()}-D "
            f"and {value.dim()}-D tensors respectively"
        )
    if key_padding_mask is not None and key_padding_mask.dim() != rank - 1:
        raise AssertionError(
            f"For {kind} `query`, expected `key_padding_mask` to be `None` or {rank - 1}-D but "
            f"found {key_padding_mask.dim()}-D tensor instead"
        )
    if attn_mask is not None:
        if attn_mask.dim() not in (2, 3):
            raise AssertionError(
                f"For {kind} `query`, expected `attn_mask` to be `None`, 2-D or 3-D but found "
                f"{attn_mask.dim()}-D tensor instead"
            )
        if rank == 2 and attn_mask.dim() == 3:
            expected = (num_heads, query.shape[0], key.shape[0])
            if tuple(attn_mask.shape) != expected:
                raise AssertionError(
                    f"Expected `attn_mask` shape to be {expected} but got {tuple(attn_mask.shape)}"
                )
    return rank == 3


@dispatched()
def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return multi-head attention of query (L, N, E_q), key and value (S, N, ...), and its weights.

    The weights are (N, L, S), or (N, H, L, S) without averaging, or None. Unbatched inputs lack N.
    """
    batched = _check_shapes(query, key, value, key_padding_mask, attn_mask, num_heads)
    if not batched:
        query, key, value = query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)
        if key_padding_mask is not None:
            key_padding_mask = key_padding_mask.unsqueeze(0)
    length, batch, embed = query.shape
    key_padding_mask, attn_mask, is_causal = _additive_masks(
        key_padding_mask, attn_mask, is_causal, need_weights, query.dtype
    )
    head = _size_of_head(embed, embed_dim_to_check, num_heads)
    weights: Tensor | tuple[Tensor, ...]
    if use_separate_proj_weight:
        weights = _separate_weights(key, value, (q_proj_weight, k_proj_weight, v_proj_weight))
    else:
        weights = _joint_weight(key, value, in_proj_weight)
    q, k, v = _projected(query, key, value, weights, in_proj_bias)
    if attn_mask is not None:
        attn_mask = _shaped_mask(attn_mask, batch, num_heads, length, key.shape[0])
    appended = 0
    if bias_k is not None or bias_v is not None:
        if static_k is not None or static_v is not None:
            raise AssertionError("bias cannot be added to static key or value.")
        k, v = _appended(k, bias_k, batch), _appended(v, bias_v, batch)
        appended += 1
    heads = (batch, num_heads, head)
    q = _of_heads(q, heads)
    k = _of_heads(k, heads) if static_k is None else _static("key", static_k, heads)
    v = _of_heads(v, heads) if static_v is None else _static("value", static_v, heads)
    if add_zero_attn:
        zeros = webtorch.zeros((batch, num_heads, 1, head), dtype=k.dtype, device=k.device)
        k, v = webtorch.cat([k, zeros], 2), webtorch.cat([v, zeros], 2)
        appended += 1
    mask = _joint_mask(attn_mask, key_padding_mask, appended, (batch, k.shape[2]))
    dropout_p = dropout_p if training else 0.0
    attn_weights: Tensor | None = None
    if need_weights:
        out, attn_weights = _with_weights(q, k, v, mask, dropout_p)
        if average_attn_weights:
            attn_weights = attn_weights.mean(1)
    else:
        out = scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal)
    # (N, H, L, E) -> (L, N, H E)
    out = out.permute(2, 0, 1, 3).reshape(length, batch, embed)
    out = linear(out, out_proj_weight, out_proj_bias)
    if not batched:
        out = out.squeeze(1)
        attn_weights = None if attn_weights is None else attn_weights.squeeze(0)
    return out, attn_weights


def _additive_masks(
    padding: Tensor | None,
    mask: Tensor | None,
    is_causal: bool,
    need_weights: bool,
    dtype: DType,
) -> tuple[Tensor | None, Tensor | None, bool]:
    """Return both masks in their additive forms, and whether the kernel shall mask what comes later."""
    if is_causal and mask is None:
        raise RuntimeError(
            "Need attn_mask if specifying the is_causal hint. You may use the Transformer module "
            "method `generate_square_subsequent_mask` to create this mask."
        )
    other = None if mask is None else mask.dtype
    padding = canonical_mask(padding, "key_padding_mask", other, "attn_mask", dtype)
    if is_causal and padding is None and not need_weights:
        # The attention kernel knows the causal mask by itself.
        return None, None, True
    return padding, canonical_mask(mask, "attn_mask", None, "", dtype, False), False


def _appended(x: Tensor, bias: Tensor | None, batch: int) -> Tensor:
    """Return keys or values (S, N, H E) with a bias (1, 1, H E) as the last."""
    if bias is None:
        raise AssertionError("bias_k and bias_v are given together or not at all")
    return webtorch.cat([x, bias.repeat(1, batch, 1)])


def _size_of_head(embed: int, expected: int, heads: int) -> int:
    if embed != expected:
        raise AssertionError(f"was expecting embedding dimension of {expected}, but got {embed}")
    if embed % heads:
        raise AssertionError(f"embed_dim {embed} not divisible by num_heads {heads}")
    return embed // heads


def _separate_weights(
    key: Tensor, value: Tensor, weights: tuple[Tensor | None, ...]
) -> tuple[Tensor, ...]:
    """Return the weights of query, key and value; raise AssertionError where one is missing."""
    if tuple(key.shape[:2]) != tuple(value.shape[:2]):
        raise AssertionError(
            f"key's sequence and batch dims {key.shape[:2]} do not match value's {value.shape[:2]}"
        )
    for name, weight in zip("qkv", weights, strict=True):
        if weight is None:
            raise AssertionError(f"use_separate_proj_weight is True but {name}_proj_weight is None")
    return tuple(weight for weight in weights if weight is not None)


def _joint_weight(key: Tensor, value: Tensor, weight: Tensor | None) -> Tensor:
    if tuple(key.shape) != tuple(value.shape):
        raise AssertionError(f"key shape {key.shape} does not match value shape {value.shape}")
    if weight is None:
        raise AssertionError("use_separate_proj_weight is False but in_proj_weight is None")
    return weight


def _of_heads(x: Tensor, heads: tuple[int, int, int]) -> Tensor:
    """Return (L, N, H E) as (N, H, L, E); `heads` is (N, H, E)."""
    return x.reshape(x.shape[0], *heads).permute(1, 2, 0, 3)


def _joint_mask(
    mask: Tensor | None, padding: Tensor | None, appended: int, shape: tuple[int, int]
) -> Tensor | None:
    """Return the sum of both masks, for keys of which the last were appended; `shape` is (N, keys)."""
    if appended:
        # What was appended is visible to every query.
        mask = None if mask is None else pad(mask, (0, appended))
        padding = None if padding is None else pad(padding, (0, appended))
    if padding is None:
        return mask
    if tuple(padding.shape) != shape:
        raise AssertionError(
            f"expecting key_padding_mask shape of {shape}, but got {tuple(padding.shape)}"
        )
    batch, keys = shape
    padding = padding.reshape(batch, 1, 1, keys)
    return padding if mask is None else mask + padding


def _with_weights(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float
) -> tuple[Tensor, Tensor]:
    """Return attention and its weights (N, H, L, S)."""
    scores = (q * math.sqrt(1.0 / q.shape[-1])).matmul(k.transpose(-2, -1))
    if mask is not None:
        scores = scores + mask
    weights = softmax(scores, -1)
    if dropout_p > 0.0:
        weights = dropout(weights, dropout_p)
    return weights.matmul(v), weights


def _projected(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: Tensor | tuple[Tensor, ...],
    bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the three projections; one product for all where one tensor is all three inputs."""
    if isinstance(weights, Tensor):
        if query is key and key is value:
            q, k, v = linear(query, weights, bias).chunk(3, -1)
            return q, k, v
        weights = weights.chunk(3)
    biases = (None, None, None) if bias is None else bias.chunk(3)
    q, k, v = (
        linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True)
    )
    return q, k, v


def _shaped_mask(mask: Tensor, batch: int, heads: int, length: int, source: int) -> Tensor:
    """Return the mask so that it broadcasts to (N, H, L, S); raise RuntimeError if it cannot."""
    if mask.dim() == 2:
        if tuple(mask.shape) != (length, source):
            raise RuntimeError(
                f"The shape of the 2D attn_mask is {mask.shape}, but should be {(length, source)}."
            )
        return mask.reshape(1, 1, length, source)
    if tuple(mask.shape) != (batch * heads, length, source):
        raise RuntimeError(
            f"The shape of the 3D attn_mask is {mask.shape}, but should be "
            f"{(batch * heads, length, source)}."
        )
    return mask.reshape(batch, heads, length, source)


def _static(name: str, given: Tensor, heads: tuple[int, int, int]) -> Tensor:
    """Return a static key or value (N H, S, E) as (N, H, S, E)."""
    batch, count, head = heads
    if given.shape[0] != batch * count or given.shape[2] != head:
        raise AssertionError(
            f"expecting static {name} of size ({batch * count}, *, {head}), but got "
            f"{tuple(given.shape)}"
        )
    return given.reshape(batch, count, given.shape[1], head)
