"""Scaled dot-product attention.

Letters of shapes: H query heads, G groups of them that share a key head, L queries, S keys, E size of a head.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from webtorch.errors import DTypeError, ShapeError
from webtorch.functions.composite import dropout
from webtorch.functions.contract import matmul
from webtorch.functions.random import default_generator
from webtorch.ir.dtype import bool_, float32, float64, int64
from webtorch.ir.view import Shape, numel
from webtorch.ops.activation import threshold_backward
from webtorch.ops.circular import tanh
from webtorch.ops.comparison import _where, clamp_min, maximum
from webtorch.ops.elementwise import exp
from webtorch.ops.primitive import (
    attention,
    iota,
    multiplies_narrow,
    philox,
    reduce_dims,
)
from webtorch.ops.record import LOWER, composite
from webtorch.ops.splits import of_attention
from webtorch.tensors.attention import Parts, suits_shapes
from webtorch.tensors.modes import mode
from webtorch.tensors.recorders import sum_to
from webtorch.tensors.tape import needs_grad
from webtorch.tensors.tensor import Tensor

# The lowest float32.
_LOWEST = -3.4028234663852886e38
# Queries that share a key, up to which they are sums (as `lower/passes` makes them); keys of a part; workgroups that
# keep a card at work.
_FEW, _PART, _LEAST_PART, _GROUPS = 8, 256, 64, 512
# Parts up to which they are put together in little time, where they need not be more; keys, and workgroups without
# parts, from which parts take less time than products.
_PARTS, _LONG, _MANY_GROUPS = 128, 512, 64


@composite(
    name="_safe_softmax",
    function_in=(),
    vjp=lambda g, out, x: ((g - reduce_dims(g * out, "sum", (x.ndim - 1,))) * out,),
)
def _safe_softmax(x: Tensor) -> Tensor:
    """Return the softmax over the last dimension; a row of only -inf gives zeros, not the NaN of 0 / 0."""
    last = (x.ndim - 1,)
    top = reduce_dims(x, "max", last)
    # The largest term is exp(0), so a sum is at least 1 unless every score is -inf: then -inf minus
    # the lowest finite number stays -inf, all terms are 0 and the sum counts as 1.
    e = exp(x - clamp_min(top, _LOWEST))
    return e / clamp_min(reduce_dims(e, "sum", last), 1.0)


def _check(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float
) -> None:
    if not query.dtype is key.dtype is value.dtype:
        raise DTypeError(
            f"Expected query, key, and value to have the same dtype, but got query.dtype: {query.dtype.c_name} "
            f"key.dtype: {key.dtype.c_name} and value.dtype: {value.dtype.c_name} instead. "
            f"scaled_dot_product_attention: convert them, as in key.to({query.dtype})."
        )
    if not query.dtype.is_floating_point:
        raise DTypeError(
            f"scaled_dot_product_attention: not implemented for {query.dtype}; use .float()"
        )
    if min(query.ndim, key.ndim, value.ndim) < 2:
        raise ShapeError(
            f"Expected query, key, and value to all be at least 2 dimensional, but got query.dim: {query.ndim} "
            f"key.dim: {key.ndim} and value.dim: {value.ndim} instead. (scaled_dot_product_attention)"
        )
    if query.shape[-1] != key.shape[-1]:
        raise ShapeError(
            "scaled_dot_product_attention: the last dims of query and key must be equal, but the "
            "shapes "
            f"are {tuple(query.shape)} and {tuple(key.shape)}"
        )
    if key.shape[-2] != value.shape[-2]:
        raise ShapeError(
            "scaled_dot_product_attention: key and value must have as many positions (dim -2), "
            "but the "
            f"shapes are {tuple(key.shape)} and {tuple(value.shape)}"
        )
    if (
        mask is not None
        and mask.dtype is not bool_
        and mask.dtype is not query.dtype
        and mask.dtype.name != "float32"
    ):
        raise DTypeError(
            "Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: "
            f"{mask.dtype.c_name} and  query.dtype: {query.dtype.c_name} instead. (scaled_dot_product_attention)"
        )
    if not 0.0 <= dropout_p <= 1.0:
        raise ShapeError(f"dropout probability has to be between 0 and 1, but got {dropout_p}")


def _by_groups(x: Tensor, y: Tensor, enable_gqa: bool) -> Tensor:
    """Return x @ y, where G heads of x in a row meet one head of y.

    (.., H G, L, E) and (.., H, E, S) give (.., H G, L, S).
    """
    if not enable_gqa or x.shape[-3] == y.shape[-3]:
        return matmul(x, y)
    heads, shared = x.shape[-3], y.shape[-3]
    # (.., H, G, L, E) @ (.., H, 1, E, S): the product folds G into the rows; no key is copied.
    split = x.reshape((*x.shape[:-3], shared, heads // shared, *x.shape[-2:]))
    out = matmul(split, y.unsqueeze(-3))
    return out.reshape((*out.shape[:-4], heads, *out.shape[-2:]))


@composite(
    splits=of_attention,
    family="contract",
    function_in=("nn.functional",),
    autocast=LOWER,
    gradient_name="ScaledDotProductAttentionBackward0",
)
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return softmax(query key^T scale + mask) value for query (.., L, E), key (.., S, E) and value (.., S, V).

    A bool mask keeps what is True, a float one is added; a query that may see no key gets zeros.
    `is_causal` lets position i see keys 0..i (of those that the mask keeps). `scale` is 1 / sqrt(E)
    unless given. `enable_gqa` lets several query heads (dim -3) share a key head.
    """
    _check(query, key, value, attn_mask, dropout_p)
    if enable_gqa:
        heads = query.shape[-3] if query.ndim > 2 else 1
        if min(query.ndim, key.ndim, value.ndim) < 3:
            raise IndexError(
                "scaled_dot_product_attention: Dimension out of range: enable_gqa needs a dim of "
                "heads (-3) in "
                "query, key and value"
            )
        if heads % key.shape[-3] or heads % value.shape[-3]:
            raise ShapeError(
                "scaled_dot_product_attention: Number of heads in key and value must divide the "
                "number of "
                f"heads in query, but they are {key.shape[-3]}, {value.shape[-3]} and {heads}"
            )
    size = query.shape[-1]
    factor = (1.0 / math.sqrt(size) if size else 1.0) if scale is None else scale
    out = _without_scores(query, key, value, attn_mask, dropout_p, is_causal, factor, enable_gqa)
    if out is not None:
        return out
    dtype = query.dtype
    parts = 0 if is_causal or dropout_p > 0.0 else part_count(query, key, value, attn_mask)
    if parts:
        return attention_in_parts(query, key, value, attn_mask, factor, parts)
    if dtype.itemsize < 4 and not multiplies_narrow(query, key):
        # Scores of 16 bits are off by half where they are large. As PyTorch's own products do it.
        query, key, value = (t.to(dtype.compute) for t in (query, key, value))
    scores = _scores(query, key, attn_mask, is_causal, factor, enable_gqa)
    if not key.shape[-2] or not scores.numel():
        return _by_groups(scores, value, enable_gqa).to(dtype)
    weights = _safe_softmax(scores).to(query.dtype)
    if dropout_p > 0.0:
        weights = dropout(weights, dropout_p)
    return _by_groups(weights, value, enable_gqa).to(dtype)


def part_count(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> int:
    """Return in how many parts of the keys few queries (.., H, L, E) are computed by `attention_in_parts`; 0 where
    products serve better.
    """
    limits = query._storage.runtime.backend.limits
    tensors = (query, key, value) if mask is None else (query, key, value, mask)
    ranked = 3 <= query.ndim == key.ndim == value.ndim
    if not (limits.has_turns and ranked) or query.dtype is float64 or needs_grad(tensors):
        return 0
    *batch, heads, length, _ = query._shape
    shared, source = key._shape[-3:-1]
    if not query.numel() or not value.numel() or value._shape[:-1] != key._shape[:-1]:
        return 0
    if heads % shared or length * (heads // shared) > _FEW or list(key._shape[:-3]) != batch:
        return 0
    groups = numel(tuple(batch)) * shared
    if source < (_LONG if groups < _MANY_GROUPS else 2 * _LEAST_PART):
        return 0
    few = groups < _GROUPS // 2
    fewest = min(_GROUPS // groups, source // _LEAST_PART, _PARTS) if few else 1
    least = max(source // _PART, fewest, 1)
    fitting = (n for n in range(least, 2 * least) if source % (4 * n) == 0)
    return next(fitting, 0)


def attention_in_parts(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    factor: float,
    parts: int,
    cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return the attention of few queries (.., H, L, E), the keys (.., G, S, E) of each head in so many parts, whose
    results are put together by their largest scores and sums (Milakov and Gimelshein, 2018).

    Of a part that a mask hides no key and no value is read. cap: scores are cap * tanh(score / cap). sinks: (H,), a
    score of each head that takes its part and gives nothing.
    """
    (*batch, heads, length, size), (shared, source) = query._shape, key._shape[-3:-1]
    shape = (*batch, shared, parts, heads // shared, length)
    last, across = len(shape), len(shape) - 3
    q = query.reshape((*batch, shared, 1, heads // shared, length, 1, size)).float() * factor
    k, v = (x.unflatten(-2, (parts, -1)).unsqueeze(-3).unsqueeze(-3).float() for x in (key, value))
    terms, seen, bias = q * k, None, None
    if mask is not None:
        m = mask.expand((*batch, heads, length, source)).unflatten(-3, (shared, -1))
        m = m.unflatten(-1, (parts, -1)).movedim(-2, -4)  # (*shape, source / parts)
        seen, bias = (m, None) if mask.dtype is bool_ else (None, m.float())
    if seen is not None:
        terms = threshold_backward(terms, seen.unsqueeze(-1).float(), 0.0)
    scores = reduce_dims(terms, "sum", (last + 1,)).squeeze(-1)
    if cap is not None:
        scores = tanh(scores / cap) * cap
    if bias is not None:
        scores = scores + bias
    if seen is not None:
        scores = _where(seen, scores, -math.inf)
    top = clamp_min(reduce_dims(scores, "max", (last,)), _LOWEST)
    e = exp(scores - top)
    total = reduce_dims(e, "sum", (last,))
    terms = threshold_backward(e.unsqueeze(-1) * v, total.unsqueeze(-1), 0.0)
    found = reduce_dims(terms, "sum", (last,)).squeeze(-2)  # (*shape, width)
    if parts > 1 or sinks is not None:
        # Each channel by itself, so that it is one kernel.
        top, total = (
            x.unsqueeze(-1).expand(found._shape) for x in (top.squeeze(-1), total.squeeze(-1))
        )
        whole = reduce_dims(top, "max", (across,))
        sink = None if sinks is None else sinks.float().reshape((shared, 1, -1, 1, 1))
        whole = whole if sink is None else maximum(whole, sink)
        share = exp(top - whole)
        found = reduce_dims(found * share, "sum", (across,))
        total = reduce_dims(total * share, "sum", (across,))
        total = total if sink is None else total + exp(sink - whole)
    out = found / clamp_min(total, 1.0)
    return out.reshape((*batch, heads, length, value._shape[-1])).to(query.dtype)


def _scores(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    factor: float,
    enable_gqa: bool,
) -> Tensor:
    """Return query key^T factor + mask, in the type that 16 bits compute in."""
    length, source = query.shape[-2], key.shape[-2]
    narrow = query.dtype.itemsize < 4
    # In 16 bits the products would overflow before they are scaled.
    scores = _by_groups(query * factor if narrow else query, key.transpose(-2, -1), enable_gqa)
    if not narrow:
        scores = scores * factor
    if not source or not scores.numel():
        return scores
    scores = scores.to(query.dtype.compute)
    if mask is not None:
        scores = (
            _where(mask, scores, -math.inf)
            if mask.dtype is bool_
            else scores + mask.to(scores.dtype)
        )
    if is_causal:
        # Both numbers at the shape of the scores, so that the mask is computed where it is used.
        rows = iota(length, 0, 1, int64, query.device).reshape(length, 1).expand(scores.shape)
        columns = iota(source, 0, 1, int64, query.device).expand(scores.shape)
        scores = _where(columns <= rows, scores, -math.inf)
    return scores


def _without_scores(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    factor: float,
    enable_gqa: bool,
) -> Tensor | None:
    """Return the attention of a kernel that keeps no scores, or None where products serve better."""
    if dropout_p == 1.0 or not _has_kernel(query, key, value, mask, enable_gqa):
        return None
    if dropout_p == 0.0:
        return _attended(query, key, value, mask, is_causal, factor, enable_gqa)[0]
    q, k, v, m = by_rank_four(query, key, value, mask, enable_gqa)
    count = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
    drawn = (dropout_p, *default_generator(query.device).advance(count))
    out = attention(q, k, v, m, is_causal, factor, drawn, _gradients)
    rank = max(t.ndim for t in (query, key, value))
    return out.reshape(out.shape[4 - rank :])


def _has_kernel(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, enable_gqa: bool
) -> bool:
    """Whether a kernel that keeps scores out of memory takes the operands, and serves better than products."""
    shown = None if mask is None else mask._shape
    shapes = _four_dims(query._shape, key._shape, value._shape, shown, enable_gqa)
    # The kernels compute no gradient of a mask.
    if shapes is None or (mask is not None and needs_grad((mask,))):
        return False
    return suits_shapes(query._storage.runtime, query.dtype, shapes[0], shapes[2])


def _attended_back(
    gs: Sequence[Tensor],
    results: Sequence[Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    factor: float,
    enable_gqa: bool,
) -> list[Tensor]:
    """Return the cotangents of query, key and value."""
    q, k, v, m = by_rank_four(query, key, value, mask, enable_gqa)
    (out, statistics), shape = results, (*q._shape[:3], v._shape[3])
    g = gs[0].reshape(shape)
    if mode.grad or needs_grad((query, key, value, g)):
        # To be differentiated again, backwards or forwards: with products.
        found: Sequence[Tensor | None] = _gradients(q, k, v, m, causal, factor, None, g)
    else:
        operands = [q, k, v] if m is None else [q, k, v, m]
        parts = Parts(operands, causal, factor)
        found = parts.gradients(out.reshape(shape), statistics, g, (True, True, True))
    cotangents = []
    for x, c in zip((query, key, value), found, strict=True):
        assert c is not None
        ranked = (*(1,) * (4 - x.ndim), *x._shape)
        cotangents.append(sum_to(c, ranked).reshape(x._shape))
    return cotangents


@composite(name="_attended", function_in=(), vjp=_attended_back, outputs=2)
def _attended(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    factor: float,
    enable_gqa: bool,
) -> tuple[Tensor, Tensor]:
    """Return the attention of a kernel that keeps no scores, and what backward needs of them."""
    q, k, v, m = by_rank_four(query, key, value, mask, enable_gqa)
    parts = Parts([q, k, v] if m is None else [q, k, v, m], causal, factor)
    out = parts.result()
    statistics = parts.statistics(out)
    rank = max(t.ndim for t in (query, key, value))
    return out if rank == 4 else out.reshape(out._shape[4 - rank :]).detach(), statistics


@functools.lru_cache(maxsize=1024)
def _four_dims(
    query: Shape, key: Shape, value: Shape, mask: Shape | None, enable_gqa: bool
) -> tuple[Shape, Shape, Shape, Shape | None] | None:
    """Return the shapes (batch, heads, .., ..) of query, key, value and mask, as the kernels take them.

    None where there are no such views: more dims, no elements, or shapes that do not fit.
    """
    if 0 in (*query, *key, *value):
        return None
    rank = max(map(len, (query, key, value)))
    if rank > 4 or (mask is not None and len(mask) > rank):
        return None
    q, k, v = ((*(1,) * (4 - len(s)), *s) for s in (query, key, value))
    batches = {s[0] for s in (q, k, v)} - {1}
    heads, shared = q[1], k[1]
    if enable_gqa:
        if shared != v[1]:
            return None
    elif not shared == v[1] == 1:
        several = {s[1] for s in (q, k, v)} - {1}
        if len(several) > 1:
            return None  # products say what is wrong
        heads = shared = max(several, default=1)
    if len(batches) > 1:
        return None
    batch = max(batches, default=1)
    m = None
    if mask is not None:
        m = (batch, heads, q[2], k[2])
        if any(a not in (1, b) for a, b in zip((1,) * (4 - len(mask)) + mask, m, strict=True)):
            return None
    return (batch, heads, *q[2:]), (batch, shared, *k[2:]), (batch, shared, *v[2:]), m


def by_rank_four(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, enable_gqa: bool
) -> Any:
    """Return query, key, value and mask expanded to (batch, heads, .., ..), as the kernels take them, or None."""
    shown = None if mask is None else mask._shape
    shapes = _four_dims(query._shape, key._shape, value._shape, shown, enable_gqa)
    if shapes is None:
        return None
    return [
        x if x is None or shape is None or x._shape == shape else x.expand(shape)
        for x, shape in zip((query, key, value, mask), shapes, strict=True)
    ]


def _gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    factor: float,
    drawn: tuple[float, int, int] | None,
    g: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the cotangents of query, key and value, all of rank 4, by operations that can be
    differentiated again."""
    batch, heads = q.shape[:2]
    shared, source = k.shape[1:3]
    weights = _safe_softmax(_scores(q, k, mask, is_causal, factor, True)).to(q.dtype)
    change = _by_groups(g, v.transpose(-2, -1), True)
    used = weights
    if drawn is not None:
        p, seed, counter = drawn
        uniform = philox(weights.shape, seed, counter, float32, q.device)
        kept = (uniform >= p).to(q.dtype) * (1.0 / (1.0 - p))
        change, used = change * kept, weights * kept
    change = weights * (change - reduce_dims(change * weights, "sum", (3,))) * factor

    def summed(x: Tensor) -> Tensor:
        """Return the sum over heads of queries that share one of keys."""
        split = x.reshape((batch, shared, heads // shared, source, x.shape[-1]))
        return reduce_dims(split, "sum", (2,)).reshape((batch, shared, source, x.shape[-1]))

    return (
        _by_groups(change, k, True),
        summed(matmul(change.transpose(-2, -1), q)),
        summed(matmul(used.transpose(-2, -1), g)),
    )
