"""Normalisations, softmax and attention. Floor 6."""

from __future__ import annotations

import math
from collections.abc import Callable

from webtorch import linalg
from webtorch.functions import public as webtorch
from webtorch.nn import functional as F
from webtorch.onnx.operators.table import Attrs, Context, Numbers, Result, ints, op
from webtorch.onnx.operators.windows import pad_sides
from webtorch.tensors.tensor import Tensor


@op("BatchNormalization")
def _batch_norm(
    c: Context, a: Attrs, n: int, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor
) -> Result:
    eps = a.get("epsilon", 1e-5)
    shape = (1, -1) + (1,) * (x.ndim - 2)
    if not a.get("training_mode"):
        unit = (x - mean.reshape(shape)) * webtorch.rsqrt(var.reshape(shape) + eps)
        return (unit * scale.reshape(shape) + bias.reshape(shape)).to(x.dtype)
    dims = (0, *range(2, x.ndim))
    now_mean, now_var = x.mean(dims), x.var(dims, correction=0)
    unit = (x - now_mean.reshape(shape)) * webtorch.rsqrt(now_var.reshape(shape) + eps)
    momentum = a.get("momentum", 0.9)
    out = unit * scale.reshape(shape) + bias.reshape(shape)
    rest = tuple(
        old * momentum + now * (1 - momentum) for old, now in ((mean, now_mean), (var, now_var))
    )
    return (out, *rest)[:n]


@op("InstanceNormalization")
def _instance_norm(c: Context, a: Attrs, n: int, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return F.instance_norm(x, weight=scale, bias=bias, eps=a.get("epsilon", 1e-5))


@op("LayerNormalization")
def _layer_norm(
    c: Context, a: Attrs, n: int, x: Tensor, scale: Tensor, bias: Tensor | None = None
) -> Result:
    axis = a.get("axis", -1) % x.ndim
    eps = a.get("epsilon", 1e-5)
    dims = tuple(range(axis, x.ndim))
    if n == 1 and tuple(scale.shape) == tuple(x.shape[axis:]):
        return F.layer_norm(x, tuple(x.shape[axis:]), scale, bias, eps)
    mean = x.mean(dims, keepdim=True)
    inverse = webtorch.rsqrt(((x - mean) ** 2).mean(dims, keepdim=True) + eps)
    out = (x - mean) * inverse * scale
    return ((out if bias is None else out + bias), mean, inverse)[:n]


@op("RMSNormalization")
def _rms_norm(c: Context, a: Attrs, n: int, x: Tensor, scale: Tensor) -> Tensor:
    axis = a.get("axis", -1) % x.ndim
    square = (x * x).mean(tuple(range(axis, x.ndim)), keepdim=True)
    return x * webtorch.rsqrt(square + a.get("epsilon", 1e-5)) * scale


@op("GroupNormalization")
def _group_norm(c: Context, a: Attrs, n: int, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    groups, eps = a["num_groups"], a.get("epsilon", 1e-5)
    if scale.shape[0] == x.shape[1]:
        return F.group_norm(x, groups, scale, bias, eps)
    # Before opset 21 the weights were per group.
    each = x.shape[1] // groups
    return F.group_norm(x, groups, scale.repeat_interleave(each), bias.repeat_interleave(each), eps)


@op("LRN")
def _lrn(c: Context, a: Attrs, n: int, x: Tensor) -> Tensor:
    size = a["size"]
    low = (size - 1) // 2
    square = pad_sides(x * x, [low] + [0] * (x.ndim - 2), [size - 1 - low] + [0] * (x.ndim - 2))
    total = sum(square.narrow(1, i, x.shape[1]) for i in range(size))
    return x / (a.get("bias", 1.0) + a.get("alpha", 1e-4) / size * total) ** a.get("beta", 0.75)


@op("LpNormalization")
def _lp_norm(c: Context, a: Attrs, n: int, x: Tensor) -> Tensor:
    norm = linalg.vector_norm(x, a.get("p", 2), a.get("axis", -1), True)
    return webtorch.where(norm == 0, 0.0, x / norm)


@op("MeanVarianceNormalization")
def _mvn(c: Context, a: Attrs, n: int, x: Tensor) -> Tensor:
    axes = tuple(a.get("axes") or (0, 2, 3))
    mean = x.mean(axes, keepdim=True)
    return (x - mean) / (((x - mean) ** 2).mean(axes, keepdim=True).sqrt() + 1e-9)


def _flat_softmax(function: Callable[[Tensor, int], Tensor]) -> Callable[..., Tensor]:
    def run(c: Context, a: Attrs, n: int, x: Tensor) -> Tensor:
        """Run over `axis`; before opset 13 over all dims from `axis` on."""
        if c.opset >= 13:
            return function(x, a.get("axis", -1))
        axis = a.get("axis", 1) % x.ndim
        flat = x.reshape((math.prod(x.shape[:axis]), -1))
        return function(flat, 1).reshape(x.shape)

    return run


op("Softmax")(_flat_softmax(webtorch.softmax))
op("LogSoftmax")(_flat_softmax(F.log_softmax))


@op("Hardmax")
def _hardmax(c: Context, a: Attrs, n: int, x: Tensor) -> Tensor:
    axis = a.get("axis", -1 if c.opset >= 13 else 1) % x.ndim
    best = x.argmax(axis, keepdim=True)
    where = webtorch.arange(x.shape[axis], device=x.device).reshape(
        (-1,) + (1,) * (x.ndim - axis - 1)
    )
    return (where == best).to(x.dtype)


@op("Attention", host=(6,))
def _attention(
    c: Context,
    a: Attrs,
    n: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    lengths: Numbers | None = None,
) -> Result:
    flat = q.ndim == 3
    if flat:
        # (N, L, heads * E) to (N, heads, L, E)
        heads, shared = a["q_num_heads"], a["kv_num_heads"]
        q = q.reshape(*q.shape[:2], heads, -1).transpose(1, 2)
        k, v = (x.reshape(*x.shape[:2], shared, -1).transpose(1, 2) for x in (k, v))
    if past_key is not None and past_value is not None:
        k, v = webtorch.cat([past_key, k], 2), webtorch.cat([past_value, v], 2)
    present = (k, v)
    if q.shape[1] != k.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    length, source = q.shape[2], k.shape[2]
    factor = a.get("scale", 1 / math.sqrt(q.shape[3])) ** 0.5
    products = (q * factor) @ (k * factor).transpose(-1, -2)
    cap = a.get("softcap", 0.0)
    capped = cap * webtorch.tanh(products / cap) if cap else products
    keys = webtorch.arange(source, device=q.device)
    # The place of a query among the keys: what was before it counts.
    offset: int | Tensor = 0 if past_key is None else past_key.shape[2]
    seen = None
    if lengths is not None:
        ends = webtorch.tensor(ints(lengths), device=q.device).reshape(-1, 1, 1, 1)
        seen = keys < ends
        offset = ends - length
    place = webtorch.arange(length, device=q.device).reshape(-1, 1) + offset
    left, right = a.get("left_window_size", -1), a.get("right_window_size", -1)
    limits = [keys <= place] if a.get("is_causal") else []
    limits += [keys >= place - left] if left >= 0 else []
    limits += [keys <= place + right] if right >= 0 else []
    for limit in limits:
        seen = limit if seen is None else seen & limit
    scores = capped
    if mask is not None:
        short = source - mask.shape[-1]
        if mask.dtype is webtorch.bool:
            mask = F.pad(mask, (0, short), value=False) if short else mask
            seen = mask if seen is None else seen & mask
        else:
            scores = scores + (F.pad(mask, (0, short), value=-math.inf) if short else mask)
    if seen is not None:
        scores = webtorch.where(seen, scores, -math.inf)
    wide = scores.float() if a.get("softmax_precision") == 1 else scores
    weights = webtorch.softmax(wide, -1).to(v.dtype)
    # A query that may see no key gets zeros.
    weights = webtorch.where(weights.isnan(), 0.0, weights)
    out = weights @ v
    if flat:
        out = out.transpose(1, 2).reshape(out.shape[0], length, -1)
    if n < 4:
        return (out, *present)[:n]
    shown = (products, capped, scores, weights)[a.get("qk_matmul_output_mode", 0)]
    return out, *present, shown


@op("RotaryEmbedding")
def _rotary(
    c: Context,
    a: Attrs,
    n: int,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
) -> Tensor:
    flat = x.ndim == 3
    if flat:
        x = x.reshape(*x.shape[:2], a["num_heads"], -1)
    else:
        x = x.transpose(1, 2)
    size = a.get("rotary_embedding_dim") or x.shape[-1]
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    cos, sin = (t.unsqueeze(2)[..., : size // 2] for t in (cos, sin))
    turned, rest = x[..., :size], x[..., size:]
    if a.get("interleaved"):
        first, second = turned[..., ::2], turned[..., 1::2]
    else:
        first, second = turned.chunk(2, -1)
    real, imaginary = cos * first - sin * second, sin * first + cos * second
    if a.get("interleaved"):
        out = webtorch.stack([real, imaginary], -1).reshape(turned.shape)
    else:
        out = webtorch.cat([real, imaginary], -1)
    out = webtorch.cat([out, rest], -1)
    return out.reshape(*out.shape[:2], -1) if flat else out.transpose(1, 2)
