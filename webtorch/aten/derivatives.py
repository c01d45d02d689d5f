"""Derivatives of PyTorch's operators that are other operators, as PyTorch's own code has them. Floor 6.

Each is called with which results are needed, the gradients, what the operator gave (one result or a tuple), and its
arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from webtorch.aten.dispatch import BACKWARD, aten
from webtorch.tensors.tensor import Tensor

Function = Callable[..., Any]


def _scaled(x: object, factor: object) -> object:
    return x if factor == 1 else aten.mul(x, factor)


def _summed(g: Any, shape: Sequence[int]) -> object:
    """Return a cotangent summed over the dims along which a tensor of this shape was expanded."""
    lead = g.ndim - len(shape)
    wide = [d for d, n in enumerate(g.shape) if d < lead or (shape[d - lead] == 1 and n != 1)]
    if wide:
        g = aten.sum.dim_IntList(g, wide, True)
    return aten.view(g, list(shape)) if lead else g


def _added(product: str) -> Function:
    """Return the derivative of a sum of a tensor and a product of matrices, both scaled."""
    multiply = getattr(aten, product)

    def rule(
        needs: Sequence[bool],
        g: Tensor,
        _out: object,
        x: Tensor,
        a: Tensor,
        b: object,
        *,
        beta: object = 1,
        alpha: object = 1,
    ) -> object:
        """Return the gradients of the tensor and of both matrices."""
        return (
            _summed(_scaled(g, beta), x._shape) if needs[0] else None,
            _scaled(multiply(g, aten.transpose(b, -2, -1)), alpha) if needs[1] else None,
            _scaled(multiply(aten.transpose(a, -2, -1), g), alpha) if needs[2] else None,
        )

    return rule


def _mv_backward(needs: Sequence[bool], g: object, _out: object, a: object, v: object) -> object:
    outer = aten.mul(aten.unsqueeze(g, 1), v) if needs[0] else None
    return outer, aten.mv(aten.t(a), g) if needs[1] else None


def _mul_backward(
    needs: Sequence[bool], g: object, _out: object, x: object, y: object
) -> tuple[object, ...]:
    """What the operands give each other, which a number has no part in."""

    def to(operand: Tensor, other: object) -> object:
        """Return the gradient to one factor of a product."""
        is_complex = isinstance(other, complex) or getattr(other, "is_complex", bool)()
        factor = aten.conj(other) if is_complex and isinstance(other, Tensor) else other
        factor = factor.conjugate() if isinstance(factor, complex) else factor
        return _summed(aten.mul(g, factor), operand._shape)

    pairs = [(a, b) for a, b in ((x, y), (y, x)) if isinstance(a, Tensor)]
    return tuple([to(a, b) if need else None for need, (a, b) in zip(needs, pairs, strict=True)])


def _needs(needs: Sequence[bool], *given: object) -> list[bool]:
    """Return which of three optional tensors need a gradient, of which those that there are have one of `needs`."""
    rest = iter(needs)
    return [isinstance(x, Tensor) and next(rest) for x in given]


def _present(found: Sequence[object], *given: object) -> tuple[object, ...]:
    """Return the cotangents of the tensors that there are."""
    return tuple([f for f, x in zip(found, given, strict=True) if isinstance(x, Tensor)])


def _convolution_backward(
    needs: Sequence[bool],
    g: object,
    _out: object,
    x: object,
    w: Tensor,
    b: Tensor | None,
    *rest: object,
) -> object:
    sizes = [b.shape[0]] if b is not None else None
    mask = _needs(needs, x, w, b)
    return _present(aten.convolution_backward(g, x, w, sizes, *rest, mask), x, w, b)


def _layer_norm_backward(
    needs: Sequence[bool],
    gs: Sequence[object],
    out: Sequence[object],
    x: object,
    shape: object,
    w: object,
    b: object,
    _eps: float,
) -> object:
    mask = _needs(needs, x, w, b)
    return _present(aten.native_layer_norm_backward(gs[0], x, shape, *out[1:], w, b, mask), x, w, b)


def _group_norm_backward(
    needs: Sequence[bool],
    gs: Sequence[object],
    out: Sequence[object],
    x: object,
    w: object,
    b: object,
    *rest: object,
) -> object:
    mask = _needs(needs, x, w, b)
    return _present(
        aten.native_group_norm_backward(gs[0], x, *out[1:], w, *rest[:-1], mask), x, w, b
    )


def _batch_norm_backward(
    needs: Sequence[bool], gs: Sequence[object], out: Sequence[object], x: object, w: object,
    b: object, mean: object, var: object, training: bool, _momentum: float, eps: float,
) -> object:  # fmt: skip
    mask = _needs(needs, x, w, b)
    found = aten.native_batch_norm_backward(gs[0], x, w, mean, var, *out[1:], training, eps, mask)
    return *_present(found, x, w, b), *_present((None, None), mean, var)


def _flash_backward_of(
    _needs: object, gs: Sequence[object], out: Sequence[object], *args: object, **options: object
) -> object:
    name = "_scaled_dot_product_flash_attention_for_cpu_backward"
    return getattr(aten, name)(gs[0], *args[:3], *out, *args[3:], **options)


def _efficient_backward_of(
    _needs: object, gs: Sequence[object], out: Sequence[object], q: object, k: object,
    v: object, mask: object, _sums: object, p: float, causal: bool, **options: object,
) -> object:  # fmt: skip
    name = "_scaled_dot_product_efficient_attention_backward"
    found = getattr(aten, name)(
        gs[0], q, k, v, mask, *out, p, [True, True, True, False], causal, **options
    )
    return found[: 3 + isinstance(mask, Tensor)]


def _nll_loss_backward(
    _needs: object,
    gs: Sequence[object],
    out: Sequence[object],
    x: object,
    target: object,
    weight: object,
    *rest: object,
) -> object:
    found = aten.nll_loss_backward(gs[0], x, target, weight, *rest, out[1])
    return (found, *_present((None, None), target, weight))


def _permuted_back(
    _needs: object, g: object, _out: object, _x: object, dims: Sequence[int]
) -> object:
    inverse = sorted(range(len(dims)), key=lambda i: dims[i] % len(dims))
    return aten.permute(g, inverse)


# Of views only where a class computes; others are differentiated as views.
for _name in ("view", "_unsafe_view", "reshape", "squeeze"):
    BACKWARD[f"aten.{_name}.default"] = lambda _n, g, _out, x, *_: aten.reshape(g, list(x.shape))
BACKWARD.update({
    "aten.clone.default": lambda _n, g, _out, _x, **_: g,
    "aten.sum.default": lambda _n, g, _out, x, **_: aten.expand(g, list(x.shape)),
    "aten.mul.Tensor": _mul_backward,
    "aten.t.default": lambda _n, g, _out, _x: aten.t(g),
    "aten.transpose.int": lambda _n, g, _out, _x, *dims: aten.transpose(g, *dims),
    "aten.permute.default": _permuted_back,
    "aten.expand.default": lambda _n, g, _out, x, *_, **__: _summed(g, x._shape),
    "aten.unsqueeze.default": lambda _n, g, _out, _x, dim: aten.squeeze.dim(g, dim),
    "aten.squeeze.dim": lambda _n, g, _out, x, _dim: aten.reshape(g, list(x.shape)),
    "aten.select.int": lambda _n, g, _out, x, dim, index: aten.select_backward(g, list(x.shape), dim, index),
    "aten.slice.Tensor": lambda _n, g, _out, x, *rest: aten.slice_backward(g, list(x.shape), *rest),
    "aten.addmm.default": _added("mm"),
    "aten.baddbmm.default": _added("bmm"),
    "aten.mv.default": _mv_backward,
    "aten.convolution.default": _convolution_backward,
    "aten.native_layer_norm.default": _layer_norm_backward,
    "aten.native_group_norm.default": _group_norm_backward,
    "aten.native_batch_norm.default": _batch_norm_backward,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _flash_backward_of,
    "aten._scaled_dot_product_efficient_attention.default": _efficient_backward_of,
    "aten.nll_loss_forward.default": _nll_loss_backward,
    "aten.relu.default": lambda _n, g, out, _x: aten.threshold_backward(g, out, 0),
    "aten._softmax.default": lambda _n, g, out, x, dim, _h: aten._softmax_backward_data(g, out, dim, x.dtype),
    "aten._log_softmax.default": lambda _n, g, out, x, dim, _h: aten._log_softmax_backward_data(g, out, dim, x.dtype),
    "aten.embedding.default": lambda _n, g, _out, w, i, place, scale, _sparse: (
        aten.embedding_dense_backward(g, i, w.shape[0], place, scale), None
    ),
    "aten._adaptive_avg_pool2d.default": lambda _n, g, _out, x, _size: aten._adaptive_avg_pool2d_backward(g, x),
    "aten.native_dropout.default": lambda _n, gs, out, _x, p, _train: (
        aten.native_dropout_backward(gs[0], out[1], 1.0 / (1.0 - p) if p < 1 else 0.0)
    ),
    "aten.max_pool2d_with_indices.default": lambda _n, gs, out, x, *rest: (
        aten.max_pool2d_with_indices_backward(gs[0], x, *rest, out[1])
    ),
})  # fmt: skip
