"""`scaled_dot_product_attention` as one operator, forward and backward, eagerly and in graphs. Floor 6.

PyTorch composes attention of matrix products on outside devices. Here it becomes one node of its own
operators, `webgpu::attention` and `webgpu::attention_backward`, which the op table computes: by a kernel
that keeps no scores in memory, or by products, whichever serves better. PyTorch's composition stays for
what the node does not take: dropout, masks that want gradients, second derivatives, and transforms of
functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from webtorch.aten.table import Function, aten, op
from webtorch.functions.attention import _by_groups, _safe_softmax, _scores, by_rank_four
from webtorch.functions.contract import matmul
from webtorch.ir.dtype import float32
from webtorch.ir.view import contiguous_strides
from webtorch.ops.elementwise import exp
from webtorch.ops.layout import Forms, Sizes
from webtorch.ops.primitive import copy, reduce_dims
from webtorch.pytorch import device
from webtorch.pytorch.kernels import functional, is_plain, is_transformed, own, structured
from webtorch.pytorch.sharding import is_cut, is_split
from webtorch.tensors.attention import Parts, suits_shapes
from webtorch.tensors.tensor import Tensor
from webtorch_autoload.device import hide, libraries

_NAME = "scaled_dot_product_attention"
_FORWARD = "_scaled_dot_product_fused_attention_overrideable"
_FLASH = "_scaled_dot_product_flash_attention"


# ---- meanings, on webtorch tensors of rank 4 ----------------------------------------------------


@aten("attention")
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float,
    keeps: str,
) -> tuple[Tensor, Tensor]:
    """Return the attention (B, L, H, V) of (B, H, L, E), (B, G, S, E) and (B, G, S, V), and what backward needs.

    Heads come last but one, as PyTorch's fused kernels lay them in memory: code that was traced on
    another device relies on it. `keeps`: "nothing", "statistics" (B, H, L, 2) of a kernel without
    scores, or "weights" (B, H, L, S).
    """
    if keeps == "nothing":
        out = op.scaled_dot_product_attention(query, key, value, mask, 0.0, is_causal, scale, True)
        return copy(out.transpose(1, 2)), query[:0, 0, 0, 0]
    if keeps == "statistics":
        parts = _parts(query, key, value, mask, is_causal, scale)
        out = parts.result()
        return copy(out.transpose(1, 2)), parts.statistics(out)
    weights = _safe_softmax(_scores(query, key, mask, is_causal, scale, True)).to(query.dtype)
    return copy(_by_groups(weights, value, True).transpose(1, 2)), weights


@aten("attention_backward")
def attention_backward(
    g: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    out: Tensor | None,
    kept: Tensor,
    is_causal: bool,
    scale: float,
    keeps: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the cotangents of query, key and value. `g` and `out` (B, L, H, V) are laid as `attention` says.

    `out` is read where it keeps "statistics".
    """
    g = g.transpose(1, 2)
    if keeps == "statistics":
        assert out is not None
        parts = _parts(query, key, value, mask, is_causal, scale)
        grads = parts.gradients(out.transpose(1, 2), kept, g, (True,) * 3)
        assert grads[0] is not None and grads[1] is not None and grads[2] is not None
        return grads[0], grads[1], grads[2]
    change = _by_groups(g, value.transpose(-2, -1), True)
    total = reduce_dims((change * kept).to(query.dtype.compute), "sum", (3,))
    return _gradients(g, query, key, value, kept, change, total, scale)


def _gradients(
    g: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: Tensor,
    change: Tensor,
    total: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the cotangents of query, key and value from that of the weights, and its mean by them (B, H, L, 1)."""
    change = weights * (change - total.to(query.dtype)) * scale
    return (
        _by_groups(change, key, True),
        _summed(matmul(change.transpose(-2, -1), query), key),
        _summed(matmul(weights.transpose(-2, -1), g), value),
    )


def _heads_last(forms: Forms, shape: Sizes) -> Sizes:
    """Return the strides of a result (B, H, L, V) whose heads come last but one in memory."""
    if len(shape) < 4:
        return contiguous_strides(shape)
    _, heads, length, width = shape
    return heads * length * width, width, heads * width, 1


def _fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the attention (B, H, L, V), and what its gradient reads in three dims."""
    keeps = _keeps_of(query, value)
    out, kept = attention(query, key, value, mask, is_causal, _factor(query, scale), keeps)
    return out.transpose(1, 2), kept.flatten(0, 1)


def _fused_backward(
    g: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    wanted: Sequence[bool],
    out: Tensor,
    kept: Tensor,
    *rest: object,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    is_causal = rest[5]
    return attention_backward(
        g.transpose(1, 2), query, key, value, mask, out.transpose(1, 2),
        kept.reshape((*query.shape[:2], *kept.shape[1:])), is_causal, _factor(query, scale),
        _keeps_of(query, value),
    )  # fmt: skip


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the attention to some of all keys, and logarithms of sums of exponentials (B, H, L): by these the
    processes of `context_parallel` add up what each has of a sequence.
    """
    scores = _scores(query, key, None, is_causal, _factor(query, scale), True)
    sums: Tensor = op.logsumexp(scores, (3,), False)
    return _by_groups(_weights(scores, sums, query), value, True), sums.to(float32)


def _weights(scores: Tensor, sums: Tensor, query: Tensor) -> Tensor:
    return exp(scores - sums.unsqueeze(3).to(scores.dtype)).to(query.dtype)


def _flash_backward(
    g: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    sums: Tensor,
    *rest: object,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the cotangents, where `out` and `sums` are of all keys and these are some of them."""
    factor, wide = _factor(query, scale), query.dtype.compute
    weights = _weights(_scores(query, key, None, rest[5] is True, factor, True), sums, query)
    change = _by_groups(g, value.transpose(-2, -1), True)
    total = reduce_dims(g.to(wide) * out.to(wide), "sum", (3,))
    return _gradients(g, query, key, value, weights, change, total, factor)


def _alone(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return the attention without what its gradient reads, as `_fused` lays it."""
    out = op.scaled_dot_product_attention(
        query, key, value, mask, 0.0, is_causal, scale, enable_gqa
    )
    heads_last: Tensor = copy(out.transpose(-3, -2)).transpose(-3, -2) if out.ndim == 4 else out
    return heads_last


def _factor(query: Tensor, scale: float | None) -> float:
    return 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale


def _keeps_of(query: Tensor, value: Tensor) -> str:
    fused = suits_shapes(device.runtime(), query.dtype, query.shape, value.shape)
    return "statistics" if fused else "weights"


def _parts(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, scale: float
) -> Parts:
    operands = by_rank_four(query, key, value, mask, True)
    return Parts([x for x in operands if x is not None], is_causal, scale)


def _summed(x: Tensor, like: Tensor) -> Tensor:
    """Sum over the query heads that share a key head."""
    batch, shared, source, width = like.shape
    if x.shape[1] == shared:
        return x
    split = x.reshape((batch, shared, x.shape[1] // shared, source, width))
    return reduce_dims(split, "sum", (2,)).reshape((batch, shared, source, width))


# ---- the operators ------------------------------------------------------------------------------


def _keeps(query: torch.Tensor, value: torch.Tensor) -> str:
    """Return what backward is to get. Where sizes are symbols, it is what is right for all of them."""
    sizes = (*query.shape, *value.shape)
    if not all(isinstance(n, int) for n in sizes):
        return "weights"
    kind = device.TO_WEBTORCH[query.dtype]
    fused = suits_shapes(device.runtime(), kind, query.shape, value.shape)
    return "statistics" if fused else "weights"


def _fake_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    scale: float,
    keeps: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = query.shape[:3]
    batch, heads, length = rows
    out = query.new_empty((batch, length, heads, value.shape[3]))
    if keeps == "nothing":
        return out, query.new_empty((0,))
    if keeps == "statistics":
        return out, query.new_empty((*rows, 2), dtype=torch.float32)
    return out, query.new_empty((*rows, value.shape[2]))


def _fake_backward(
    g: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    out: torch.Tensor | None,
    kept: torch.Tensor,
    *rest: object,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


class _Attention(torch.autograd.Function):
    """Ties the two operators together for autograd."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        is_causal: bool,
        scale: float,
    ) -> torch.Tensor:
        """Compute the attention, and keep what its gradient reads."""
        keeps = _keeps(query, value)
        out, kept = torch.ops.webgpu.attention(query, key, value, mask, is_causal, scale, keeps)
        needed = out if keeps == "statistics" else None
        ctx.save_for_backward(query, key, value, mask, needed, kept)
        ctx.is_causal, ctx.scale, ctx.keeps = is_causal, scale, keeps
        # Not transposed: a view that was made here could not be written in place.
        return out

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of query, key, value and mask."""
        query, key, value, mask, out, kept = ctx.saved_tensors
        if torch.is_grad_enabled():
            grads = _again(g.transpose(1, 2), query, key, value, mask, ctx.is_causal, ctx.scale)
        else:
            grads = torch.ops.webgpu.attention_backward(
                g, query, key, value, mask, out, kept, ctx.is_causal, ctx.scale, ctx.keeps
            )
        return (*grads, None, None, None)


_attend: Callable[..., torch.Tensor] = _Attention.apply


def _again(
    g: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> list[torch.Tensor | None]:
    """Return the gradients of query, key and value, to be differentiated again: by PyTorch's composition."""
    # As tensors of their own, since one may be, or be computed from, another.
    operands = [t.view_as(t) for t in (query, key, value)]
    wanted = [t for t in operands if t.requires_grad]
    gqa = query.shape[1] != key.shape[1]
    again = composed(*operands, mask, 0.0, is_causal, scale=scale, enable_gqa=gqa)
    found = iter(torch.autograd.grad(again, wanted, g, create_graph=True))
    return [next(found) if t.requires_grad else None for t in operands]


def composed(*args: object, **kwargs: object) -> torch.Tensor:
    """`scaled_dot_product_attention` as PyTorch composes it."""
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    return torch.ops.aten.scaled_dot_product_attention.default._op_dk(composite, *args, **kwargs)


def _composed_or_one(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    mask = attn_mask
    operands = (query, key, value)
    split = is_split(query)
    if split and is_cut():
        return _in_ring(query, key, value, mask, dropout_p, is_causal, scale)
    if dropout_p or not _takes(query, key, value, mask, is_causal, enable_gqa) or is_transformed():
        return composed(
            query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    rank = query.dim()
    factor = scale if scale is not None else 1.0 / math.sqrt(query.shape[-1])
    if rank < 4:
        query, key, value = (t[(None,) * (4 - rank)] for t in operands)
    if not (torch.is_grad_enabled() and any(t.requires_grad for t in operands)):
        out, _ = torch.ops.webgpu.attention(query, key, value, mask, is_causal, factor, "nothing")
        out = out.transpose(1, 2)
    elif rank == 4 and is_plain() and not split:
        # The operator of PyTorch's for devices from outside: its gradient is one of C++, which keeps the result.
        out = _forward(query, key, value, mask, 0.0, is_causal, False, scale=scale)[0]
    else:
        out = _attend(query, key, value, mask, is_causal, factor).transpose(1, 2)
    if rank == 4:
        return out
    # Of lower rank PyTorch's may be overwritten: its gradient does not read it, but one of rank 4 may.
    out = out[(0,) * (4 - rank)]
    return out.clone() if out.requires_grad else out


def _in_ring(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    """Attention of sequences of which each process has a part: PyTorch passes keys and values round."""
    if mask is not None or dropout_p or query.dim() != 4:
        raise NotImplementedError(
            f"scaled_dot_product_attention: under context_parallel queries have four dims, and there is no mask and "
            f"no dropout, but got {query.dim()} dims, {'no mask' if mask is None else 'a mask'} and "
            f"dropout_p={dropout_p}; use is_causal=True for a causal mask, and dropout outside"
        )
    out: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention(
        query, key, value, 0.0, is_causal, scale=scale
    )[0]
    return out


_overload = torch.ops.aten.scaled_dot_product_attention.default
_as_one = structured(_overload, _alone, _composed_or_one)
_forward = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default._op
_known_forward = functional(_FORWARD, _fused, rule=_heads_last)
_known_backward = functional(f"{_FORWARD}_backward", _fused_backward)
_known_flash = functional(_FLASH, _flash)
_known_flash_backward = functional(f"{_FLASH}_backward", _flash_backward)


def _scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    *rest: Any,
    **options: Any,
) -> torch.Tensor:
    one = not dropout_p and is_plain()
    if one and torch.is_grad_enabled():
        operands = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
        one = not any(x.requires_grad for x in operands)
    run = _as_one if one else _composed_or_one
    out: torch.Tensor = run(query, key, value, attn_mask, dropout_p, *rest, **options)
    return out


@own(_FORWARD)
def _attention_forward(*args: Any, **options: Any) -> tuple[object, ...]:
    out, kept = _known_forward(*args, **options)
    return out, kept, None, None, args[0].shape[2], args[1].shape[2], None, None, None


@own(f"{_FORWARD}_backward")
def _attention_backward(
    g: torch.Tensor | None, *args: object, scale: float | None = None
) -> object:
    # PyTorch hands over no gradient where the rest of the program gives none.
    if g is None:
        return (None,) * 4
    return *_known_backward(g, *args, scale=scale), None


@own(_FLASH)
def _flash_forward(*args: Any, **options: Any) -> tuple[object, ...]:
    out, sums = _known_flash(*args, **options)
    return out, sums, None, None, args[0].shape[2], args[1].shape[2], None, None, None


own(f"{_FLASH}_backward")(_known_flash_backward)


def _differentiable_backward(
    g: torch.Tensor | None, *args: Any, scale: float | None = None
) -> object:
    """The backward pass, by PyTorch's composition where it is to be differentiated again."""
    if g is None or not torch.is_grad_enabled():
        return _attention_backward(g, *args, scale=scale)
    query, key, value, mask = args[:4]
    return *_again(g, query, key, value, mask, args[12], scale), None


def _takes(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    enable_gqa: bool,
) -> bool:
    """Whether the node takes these; PyTorch's composition says what is wrong with others."""
    operands = query, key, value
    q, k, v = query.shape, key.shape, value.shape
    if not all(map(device.on_device, operands)) or not _fit(q, k, v, enable_gqa):
        return False
    if not query.dtype is key.dtype is value.dtype or not query.is_floating_point():
        return False
    if mask is None:
        return True
    if is_causal or mask.requires_grad or not device.on_device(mask) or mask.dim() > len(q):
        return False
    if mask.dtype is not torch.bool and mask.dtype not in (query.dtype, torch.float32):
        return False
    wanted = (*q[:-1], k[-2])
    return all(a in (1, b) for a, b in zip(mask.shape[::-1], wanted[::-1]))


def _fit(q: Sizes, k: Sizes, v: Sizes, enable_gqa: bool) -> bool:
    """Whether the node takes a query, a key and a value of these sizes."""
    rank = len(q)
    if not 2 <= rank <= 4 or not len(k) == len(v) == rank:
        return False
    if q[-1] != k[-1] or k[-2] != v[-2] or k[:-2] != v[:-2]:
        return False
    if rank > 3 and q[:-3] != k[:-3]:
        return False
    if rank > 2 and q[-3] != k[-3] and not (enable_gqa and k[-3] and q[-3] % k[-3] == 0):
        return False
    return all((*q, *k, *v))


def register(make_kernel: Callable[[OpOverload, Function], Function]) -> None:
    """Declare the operators, and let `scaled_dot_product_attention` on the device be them."""
    library = torch.library.Library("webgpu", "DEF")
    operands = "Tensor query, Tensor key, Tensor value, Tensor? mask"
    library.define(
        f"attention({operands}, bool is_causal, float scale, str keeps) -> (Tensor, Tensor)"
    )
    library.define(
        f"attention_backward(Tensor g, {operands}, Tensor? out, Tensor kept, bool is_causal, "
        "float scale, str keeps) -> (Tensor, Tensor, Tensor)"
    )
    for name, function, fake in (
        ("attention", attention, _fake_attention),
        ("attention_backward", attention_backward, _fake_backward),
    ):
        operator = getattr(torch.ops.webgpu, name).default
        library.impl(name, hide(make_kernel(operator, function)), "PrivateUse1")
        torch.library.register_fake(f"webgpu::{name}", fake, lib=library)
    table = torch.library.Library("aten", "IMPL")
    for key in ("PrivateUse1", "AutogradPrivateUse1"):
        table.impl(_NAME, hide(_scaled_dot_product_attention), key)
    table.impl(f"{_FORWARD}_backward", hide(_differentiable_backward), "AutogradPrivateUse1")
    libraries.extend((library, table))
