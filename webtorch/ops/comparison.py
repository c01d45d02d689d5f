"""Elementwise comparisons, predicates, logic, bits, and choice between values."""

from __future__ import annotations

from typing import Any

from webtorch.ir import expr as ex
from webtorch.ir.dtype import (
    FLOATS,
    INTEGERS,
    bool_,
)
from webtorch.ir.expr import Expr
from webtorch.ops.elementwise import (
    BITS,
    NUMERIC,
    is_finite,
    is_inf,
    is_nan,
    is_tensor,
    less,
    less_equal,
    no_derivative,
    truth,
)
from webtorch.ops.record import (
    Elementwise,
    elementwise,
)

# -- comparisons and predicates --------------------------------------------------------------------

eq = elementwise(
    "eq",
    lambda x, y: ex.eq(x, y),
    promotion="bool",
    inplace=True,
    operator="eq",
    direct=("eq.Scalar", "eq.Tensor"),
    doc="input == other.",
)
ne: Elementwise = elementwise(
    "ne",
    lambda x, y: ex.ne(x, y),
    aliases=("not_equal",),
    promotion="bool",
    inplace=True,
    operator="ne",
    asks=("__ne__",),
    direct=("ne.Scalar", "ne.Tensor"),
    doc="input != other.",
)
lt = elementwise(
    "lt",
    less,
    aliases=("less",),
    tensors=("input", "other"),
    promotion="bool",
    inplace=True,
    operator="lt",
    asks=("__lt__",),
    direct=("lt.Scalar", "lt.Tensor"),
    doc="input < other.",
)
le = elementwise(
    "le",
    less_equal,
    aliases=("less_equal",),
    promotion="bool",
    inplace=True,
    operator="le",
    asks=("__le__",),
    direct=("le.Scalar", "le.Tensor"),
    doc="input <= other.",
)
gt = elementwise(
    "gt",
    lambda x, y: less(y, x),
    aliases=("greater",),
    promotion="bool",
    inplace=True,
    operator="gt",
    asks=("__gt__",),
    direct=("gt.Scalar", "gt.Tensor"),
    onnx="Greater",
    doc="input > other.",
)
ge = elementwise(
    "ge",
    lambda x, y: less_equal(y, x),
    aliases=("greater_equal",),
    promotion="bool",
    inplace=True,
    operator="ge",
    asks=("__ge__",),
    direct=("ge.Scalar", "ge.Tensor"),
    onnx="GreaterOrEqual",
    doc="input >= other.",
)
isnan = elementwise("isnan", is_nan, promotion="bool", doc="Whether input is NaN.")
isinf = elementwise("isinf", is_inf, promotion="bool", doc="Whether input is infinite.")
isfinite = elementwise(
    "isfinite", is_finite, promotion="bool", doc="Whether input is neither NaN nor infinite."
)
isposinf = elementwise(
    "isposinf", lambda x: is_inf(x) & less(ex.const(0, x.dtype), x), promotion="bool",
    out="exact", doc="Whether input is +infinity.",
)  # fmt: skip
isneginf = elementwise(
    "isneginf", lambda x: is_inf(x) & less(x, ex.const(0, x.dtype)), promotion="bool",
    out="exact", doc="Whether input is -infinity.",
)  # fmt: skip
isreal = elementwise(
    "isreal",
    lambda x: ex.const(True, bool_),
    promotion="bool",
    doc="True: no type here is complex.",
)


logical_and = elementwise(
    "logical_and",
    lambda x, y: truth(x) & truth(y),
    promotion="bool",
    numbers_for="none",
    inplace=True,
    doc="Whether neither is zero.",
)
logical_or = elementwise(
    "logical_or",
    lambda x, y: truth(x) | truth(y),
    promotion="bool",
    numbers_for="none",
    inplace=True,
    doc="Whether one is not zero.",
)
logical_xor = elementwise(
    "logical_xor",
    lambda x, y: truth(x) ^ truth(y),
    promotion="bool",
    numbers_for="none",
    inplace=True,
    doc="Whether exactly one is not zero.",
)
logical_not = elementwise(
    "logical_not", lambda x: ~truth(x), promotion="bool", inplace=True, doc="Whether input is zero."
)

# -- bits ------------------------------------------------------------------------------------------

bitwise_and = elementwise(
    "bitwise_and",
    lambda x, y: x & y,
    dtypes=BITS,
    numbers_for="both",
    operator="and",
    asks=("__rand__",),
    direct=("bitwise_and.Tensor",),
    doc="The bits set in both.",
)
bitwise_or = elementwise(
    "bitwise_or",
    lambda x, y: x | y,
    dtypes=BITS,
    numbers_for="both",
    operator="or",
    asks=("__ror__",),
    direct=("bitwise_or.Tensor",),
    doc="The bits set in one.",
)
bitwise_xor = elementwise(
    "bitwise_xor",
    lambda x, y: x ^ y,
    dtypes=BITS,
    numbers_for="both",
    operator="xor",
    asks=("__rxor__",),
    doc="The bits set in exactly one.",
)
bitwise_not = elementwise(
    "bitwise_not",
    lambda x: ~x,
    dtypes=BITS,
    out="exact",
    operator="invert",
    direct=("bitwise_not",),
    doc="All bits inverted.",
)


def _shift_out_of_range(x: Expr, count: Expr) -> Expr:
    """Whether a shift count is one that hardware would take modulo the width."""
    too_far = count >= x.dtype.bits
    return (count < 0) | too_far if x.dtype.kind == "int" else too_far


bitwise_left_shift = elementwise(
    "bitwise_left_shift",
    lambda x, y: ex.where(_shift_out_of_range(x, y), ex.const(0, x.dtype), ex.shl(x, y)),
    dtypes=INTEGERS,
    domain=(0, 7),
    numbers_for="both",
    operator="lshift",
    doc="input * 2 ** other, on bits; 0 when all are shifted out.",
)
bitwise_right_shift = elementwise(
    "bitwise_right_shift",
    lambda x, y: ex.where(
        _shift_out_of_range(x, y),
        ex.shr(x, ex.const(x.dtype.bits - 1, x.dtype))
        if x.dtype.kind == "int"
        else ex.const(0, x.dtype),
        ex.shr(x, y),
    ),
    dtypes=INTEGERS,
    domain=(0, 7),
    numbers_for="both",
    operator="rshift",
    doc="input shifted right; the sign is kept.",
)

# -- choice ----------------------------------------------------------------------------------------

_where: Elementwise = elementwise(
    "_where",
    lambda condition, x, y: ex.where(truth(condition), x, y),
    tensors=("condition", "input", "other"),
    vjp=lambda g, _out, condition, _x, _y: (
        None,
        _where(condition, g, 0.0),
        _where(condition, 0.0, g),
    ),
    inplace=False,
    torch="where",
    function_in=(),
    numbers_fit=True,
    chooses=True,
    doc="input where condition, else other.",
)


maximum = elementwise(
    "maximum",
    lambda x, y: x | y if x.dtype is bool_ else ex.maximum(x, y),
    inplace=False,
    numbers_for="none",
    foreach=True,
    direct=("maximum",),
    onnx="Max",
    doc="The larger one; NaN if one is NaN. Ties share the gradient.",
)
minimum = elementwise(
    "minimum",
    lambda x, y: x & y if x.dtype is bool_ else ex.minimum(x, y),
    inplace=False,
    numbers_for="none",
    foreach=True,
    direct=("minimum",),
    onnx="Min",
    doc="The smaller one; NaN if one is NaN. Ties share the gradient.",
)
fmax = elementwise(
    "fmax",
    lambda x, y: x | y if x.dtype is bool_ else ex.where((x >= y) | is_nan(y), x, y),
    inplace=False,
    numbers_for="none",
    doc="The larger one; a NaN loses against a number.",
)
fmin = elementwise(
    "fmin",
    lambda x, y: x & y if x.dtype is bool_ else ex.where((x <= y) | is_nan(y), x, y),
    inplace=False,
    numbers_for="none",
    doc="The smaller one; a NaN loses against a number.",
)


def _at_least(x: Expr, bound: Expr) -> Expr:
    # Not ex.maximum, which would share the gradient at the bound: there x keeps all of it. NaN passes.
    if x.dtype is bool_:
        return x | bound
    below = x < bound
    return ex.where(below if x.dtype.kind != "float" else below | ex.isnan(bound), bound, x)


def _at_most(x: Expr, bound: Expr) -> Expr:
    if x.dtype is bool_:
        return x & bound
    above = x > bound
    return ex.where(above if x.dtype.kind != "float" else above | ex.isnan(bound), bound, x)


def _kept_between(x: Expr, low: Expr, high: Expr) -> Expr:
    # At NaN all slopes are 0; of equal bounds the higher one counts.
    none = ex.const(0, x.dtype)
    beyond = ex.where((x > high) | (low > high), high, none)
    beyond = ex.where((x < low) & (low < high), low, beyond)
    return ex.where((x >= low) & (x <= high), x, beyond)


clamp_min = elementwise(
    "clamp_min",
    _at_least,
    derived_from=lambda x, low: ex.where(x >= low, x, ex.where(x < low, low, ex.const(0, x.dtype))),
    tensors=("input", "min"),
    numbers_fit=True,
    inplace_functions=("torch.clamp_min_",),
    foreach=True,
    onnx="Max",
    doc="input, or min where it is less. At the bound the gradient goes to input.",
)
clamp_max = elementwise(
    "clamp_max",
    _at_most,
    derived_from=lambda x, high: ex.where(
        x <= high, x, ex.where(x > high, high, ex.const(0, x.dtype))
    ),
    tensors=("input", "max"),
    numbers_fit=True,
    inplace_functions=("torch.clamp_max_",),
    foreach=True,
    onnx="Min",
    doc="input, or max where it is more. At the bound the gradient goes to input.",
)
_clamp = elementwise(
    "_clamp",
    lambda x, low, high: _at_most(_at_least(x, low), high),
    derived_from=_kept_between,
    tensors=("input", "min", "max"),
    dtypes=NUMERIC,
    function_in=(),
    numbers_fit=True,
    doc="input kept in min..max; max where min > max.",
)


_nan_to_num = elementwise(
    "_nan_to_num",
    lambda x, nan, high, low: ex.where(
        ex.isnan(x), nan, ex.where(ex.isinf(x), ex.where(x > 0, high, low), x)
    ),
    tensors=("input",),
    numbers=("nan", "posinf", "neginf"),
    dtypes=FLOATS,
    function_in=(),
    doc="input with NaN and infinities replaced.",
)


copysign = elementwise(
    "copysign",
    lambda x, y: ex.copysign(x, y),
    promotion="float",
    doc="The size of input with the sign of other.",
    saves_values=True,
)


def _check_one_type(x: Any, values: Any) -> None:
    if is_tensor(x) and is_tensor(values) and x.dtype is not values.dtype:
        raise RuntimeError("heaviside is not yet implemented for tensors with different dtypes.")


heaviside = elementwise(
    "heaviside",
    lambda x, values: (
        x | values & ~x
        if x.dtype is bool_
        else ex.where(ex.eq(x, 0), values, ex.cast(x > 0, x.dtype))
    ),
    tensors=("input", "values"),
    vjp=no_derivative("heaviside"),
    operands_fit=_check_one_type,
    out="exact",
    numbers_for="none",
    doc="0 for negative input, 1 for positive, values at 0. No backward, as in PyTorch.",
)
