"""Formulas that reductions map with: roots, slopes of norms, running logarithms of sums. May import floors 0 and 1."""

from __future__ import annotations

from webtorch.ir import expr as ex
from webtorch.ir.dtype import FLOATS
from webtorch.ops.elementwise import logaddexp, logistic
from webtorch.ops.record import Elementwise, elementwise

root: Elementwise = elementwise(
    "_root",
    lambda x: ex.sqrt(x),
    vjp=lambda g, out, _x: (_root_backward(g, out),),
    dtypes=FLOATS,
    function_in=(),
    domain=(0.01, 9.0),
    doc="The square root, with derivative 0 at 0.",
)
_root_backward: Elementwise = elementwise(
    "_root_backward",
    lambda g, out: ex.where(ex.eq(out, 0), ex.const(0.0, out.dtype), g / (out + out)),
    tensors=("grad_output", "output"),
    dtypes=FLOATS,
    function_in=(),
    doc="The gradient of _root from its result.",
)
is_nonzero_part = elementwise(
    "_is_nonzero",
    lambda x: ex.cast(ex.ne(x, 0), x.dtype),
    dtypes=FLOATS,
    function_in=(),
    doc="1 where input is not zero; its gradient is zero.",
)
norm_slope = elementwise(
    "_norm_slope",
    # As a ratio, so that no power of a large element overflows.
    lambda x, norm, p: ex.where(
        ex.eq(x, 0) | ex.eq(norm, 0),
        ex.const(0.0, x.dtype),
        ex.sign(x) * ex.pow_(ex.where(x < 0, -x, x) / norm, p - 1),
    ),
    tensors=("input", "norm"),
    numbers=("p",),
    dtypes=FLOATS,
    function_in=(),
    doc="The derivative of a p-norm in one element.",
)
log_add: Elementwise = elementwise(
    "_log_add",
    logaddexp.expr,
    vjp=lambda g, _out, x, y: (_log_add_backward(g, x, y), _log_add_backward(g, y, x)),
    dtypes=FLOATS,
    tensors=("input", "other"),
    function_in=(),
    doc="logaddexp with a finite gradient at two equal infinities.",
)
_log_add_backward: Elementwise = elementwise(
    "_log_add_backward",
    lambda g, x, y: (
        g * logistic(ex.where(ex.isinf(x) & ex.eq(x, y), ex.const(0.0, x.dtype), x - y))
    ),
    tensors=("grad_output", "input", "other"),
    dtypes=FLOATS,
    function_in=(),
    doc="The gradient of _log_add for its first operand.",
)
