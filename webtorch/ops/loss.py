"""The losses of one element: formulas that the losses of `functions/loss` reduce. May import floors 0 and 1."""

from __future__ import annotations

from typing import Any

from webtorch.ir import expr as ex
from webtorch.ir.dtype import FLOATS
from webtorch.ir.expr import Expr
from webtorch.ops.elementwise import log1pexp, logistic
from webtorch.ops.record import Elementwise, elementwise


def _pair_loss(
    name: str, expr: Any, doc: str, numbers: tuple[str, ...] = (), **fields: Any
) -> Elementwise:
    return elementwise(
        name,
        expr,
        tensors=("input", "target"),
        numbers=numbers,
        dtypes=FLOATS,
        function_in=(),
        doc=doc,
        **fields,
    )


squared_error = _pair_loss(
    "_squared_error", lambda x, y: (x - y) * (x - y), "(input - target) ** 2."
)
absolute_error = _pair_loss(
    "_absolute_error", lambda x, y: ex.unary("abs", x - y), "|input - target|.", saves_values=True
)


def _smooth_l1(x: Expr, y: Expr, beta: Expr) -> Expr:
    d = x - y
    far = ex.unary("abs", d) >= beta
    # In d itself near 0, not in |d|, so that the second derivative is right at 0. NaN counts as near: its
    # gradient is NaN.
    return ex.where(far, ex.unary("abs", d) - beta * 0.5, d * d * 0.5 / beta)


def _huber(x: Expr, y: Expr, delta: Expr) -> Expr:
    d = x - y
    far = ex.unary("abs", d) >= delta
    return ex.where(far, (ex.unary("abs", d) - delta * 0.5) * delta, d * d * 0.5)


smooth_error = _pair_loss("_smooth_error", _smooth_l1, "smooth_l1_loss of one element.", ("beta",))
huber_error = _pair_loss("_huber_error", _huber, "huber_loss of one element.", ("delta",))


def _bce(x: Expr, y: Expr) -> Expr:
    # PyTorch keeps the logarithms above -100, so that a wrong certainty costs a finite amount.
    log_x, log_rest = ex.maximum(ex.log(x), -100.0), ex.maximum(ex.log1p(-x), -100.0)
    return (y - 1) * log_rest - y * log_x


bce_error: Elementwise = elementwise(
    "_bce_error",
    _bce,
    tensors=("input", "target"),
    vjp=lambda g, _out, x, y: (_bce_backward(g, x, y), _bce_target_backward(g, x)),
    dtypes=FLOATS,
    function_in=(),
    domain=(0.02, 0.98),
    doc="binary_cross_entropy of one element.",
)
_bce_backward: Elementwise = elementwise(
    "_bce_backward",
    lambda g, x, y: g * (x - y) / ex.maximum((1 - x) * x, 1e-12),
    tensors=("grad_output", "input", "target"),
    dtypes=FLOATS,
    function_in=(),
    doc="The gradient of binary_cross_entropy in input.",
)
_bce_target_backward: Elementwise = elementwise(
    "_bce_target_backward",
    lambda g, x: g * (ex.log1p(-x) - ex.log(x)),
    tensors=("grad_output", "input"),
    dtypes=FLOATS,
    function_in=(),
    doc="The gradient of binary_cross_entropy in target.",
)
bce_logits_error: Elementwise = elementwise(
    "_bce_logits_error",
    lambda x, y: (1 - y) * x + log1pexp(-x),
    tensors=("input", "target"),
    vjp=lambda g, _out, x, y: (_bce_logits_backward(g, x, y), -g * x),
    dtypes=FLOATS,
    function_in=(),
    doc="binary_cross_entropy_with_logits of one element.",
)
_bce_logits_backward: Elementwise = elementwise(
    "_bce_logits_backward",
    lambda g, x, y: g * (logistic(x) - y),
    tensors=("grad_output", "input", "target"),
    dtypes=FLOATS,
    function_in=(),
    doc="The gradient of binary_cross_entropy_with_logits in input.",
)
bce_logits_weighted_error = elementwise(
    "_bce_logits_weighted_error",
    lambda x, y, weight: (1 - y) * x + ((weight - 1) * y + 1) * log1pexp(-x),
    tensors=("input", "target", "pos_weight"),
    dtypes=FLOATS,
    function_in=(),
    doc="binary_cross_entropy_with_logits of one element, with a weight of positive examples.",
)
soft_margin = _pair_loss(
    "_soft_margin", lambda x, y: log1pexp(-(x * y)), "log(1 + exp(-target * input))."
)
