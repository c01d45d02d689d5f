"""Elementwise operations: arithmetic, powers, exponentials, rounding, the logistic function. May import floors 0 and 1.

An entry is one formula over scalar expressions; the function, the method, the kernels and, unless a rule is given, the
derivative follow from it. A rule is called as vjp(g, out, *tensors, *numbers) and returns one cotangent per tensor.

A formula is written so that its derivative is right too: a choice is a `where` between smooth branches (never abs or
max of something that is differentiated again), and conventions at special points are PyTorch's.
Names that begin with an underscore are parts of a public composite; names that end with _backward are gradient rules
in one kernel, under PyTorch's names.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from webtorch.errors import DTypeError
from webtorch.ir import expr as ex
from webtorch.ir.dtype import (
    FLOATS,
    INTEGERS,
    DType,
    Scalar,
    bool_,
)
from webtorch.ir.expr import Expr
from webtorch.ops.record import (
    NOT_FLOATS,
    Autocast,
    Elementwise,
    OutRule,
    elementwise,
)

if TYPE_CHECKING:
    from webtorch.tensors.promotion import Operand
    from webtorch.tensors.tensor import Tensor

NUMERIC: tuple[DType, ...] = (*FLOATS, *INTEGERS)
BITS: tuple[DType, ...] = (*INTEGERS, bool_)
# Where an op is found when it is a function of nn.functional as well.
EVERYWHERE = ("torch", "Tensor", "nn.functional")


def plain(value: object, *equal_to: Scalar) -> bool:
    """Whether `value` is a Python number equal to one of `equal_to`: a plain one, or one that is compared anew when the
    program runs, but none that is only read then.
    """
    kind = type(value)
    return (kind in (bool, int, float) or getattr(kind, "compared", False)) and value in equal_to


def is_tensor(value: object) -> bool:
    """Whether `value` is a tensor, not a Python number."""
    return not isinstance(value, (bool, int, float, complex))


# -- parts of formulas -----------------------------------------------------------------------------


def truth(x: Expr) -> Expr:
    """Return x as a bool: whether it is not zero."""
    if x.dtype is bool_:
        return x
    if x.op == "cast" and x.args[0].dtype is bool_:
        return x.args[0]
    return ex.ne(x, 0)


def is_nan(x: Expr) -> Expr:
    """Return whether x is NaN; never true of an integer."""
    return ex.isnan(x) if x.dtype.kind == "float" else ex.const(False, bool_)


def is_inf(x: Expr) -> Expr:
    """Return whether x is infinite; never true of an integer."""
    return ex.isinf(x) if x.dtype.kind == "float" else ex.const(False, bool_)


def is_finite(x: Expr) -> Expr:
    """Return whether x is neither NaN nor infinite."""
    if x.dtype.kind != "float":
        return ex.const(True, bool_)
    return ~(ex.isnan(x) | ex.isinf(x))


def less(x: Expr, y: Expr) -> Expr:
    """Return x < y, also of bools, which no shading language orders."""
    return ~x & y if x.dtype is bool_ else x < y


def less_equal(x: Expr, y: Expr) -> Expr:
    """Return x <= y, also of bools."""
    return ~x | y if x.dtype is bool_ else x <= y


def minus_abs(x: Expr) -> Expr:
    """Return -|x| with the slope of one side at 0, so that smooth functions of it have right derivatives there."""
    return ex.where(x >= 0, -x, x)


def logistic(x: Expr) -> Expr:
    """Return 1 / (1 + exp(-x)); the exponential never overflows."""
    z = ex.exp(minus_abs(x))
    return ex.where(x >= 0, ex.const(1.0, x.dtype), z) / (z + 1)


def log1pexp(x: Expr) -> Expr:
    """Return log(1 + exp(x)); the exponential never overflows."""
    return ex.where(x >= 0, x, 0.0) + ex.log1p(ex.exp(minus_abs(x)))


def abs_less(x: Expr, bound: float) -> Expr:
    """Return |x| < bound."""
    return ex.unary("abs", x) < bound


# -- arithmetic ------------------------------------------------------------------------------------

_add = elementwise(
    "_add",
    lambda x, y: x | y if x.dtype is bool_ else x + y,
    torch="add",
    function_in=(),
    operator="add",
    on_parts="alike",
    onnx="Add",
    numbers_as_tensors=True,
    doc="input + other.",
)
_add_scaled = elementwise(
    "_add_scaled",
    lambda x, y, alpha: x | (alpha & y) if x.dtype is bool_ else x + alpha * y,
    numbers=("alpha",),
    function_in=(),
    gradient_name="AddBackward0",
    doc="input + alpha * other.",
)


def check_subtraction(name: str, *operands: Any) -> None:
    """Raise PyTorch's errors for a subtraction in which a bool takes part."""
    if all(is_tensor(x) and x.dtype is bool_ for x in operands):
        raise DTypeError(
            "Subtraction, the `-` operator, with two bool tensors is not supported. "
            f"Use the `^` or `logical_xor()` operator instead. ({name})"
        )
    if any((is_tensor(x) and x.dtype is bool_) or type(x) is bool for x in operands):
        raise DTypeError(
            "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a mask, "
            f"use the `~` or `logical_not()` operator instead. ({name})"
        )


_sub = elementwise(
    "_sub",
    lambda x, y: x - y,
    dtypes=NUMERIC,
    torch="sub",
    function_in=(),
    operator="sub",
    operands_fit=functools.partial(check_subtraction, "sub"),
    on_parts="alike",
    onnx="Sub",
    numbers_as_tensors=True,
    doc="input - other.",
)
_sub_scaled = elementwise(
    "_sub_scaled",
    lambda x, y, alpha: x - alpha * y,
    numbers=("alpha",),
    dtypes=NUMERIC,
    function_in=(),
    gradient_name="SubBackward0",
    doc="input - alpha * other.",
)


mul = elementwise(
    "mul",
    lambda x, y: x & y if x.dtype is bool_ else x * y,
    aliases=("multiply",),
    numbers_for="both",
    foreach=True,
    operator="mul",
    asks=("__mul__", "__rmul__", "__imul__"),
    once=True,
    on_parts="scaled",
    direct=("mul.Tensor",),
    numbers_as_tensors=True,
    doc="input * other; of bools, and.",
)
_div = elementwise(
    "_div",
    lambda x, y: x / y,
    promotion="float",
    torch="div",
    function_in=(),
    domain=(0.5, 3.0),
    operator="truediv",
    on_parts="scaled",
    onnx="Div",
    once=True,
    numbers_as_tensors=True,
    doc="input / other, as floats.",
)


def _floor_quotient(x: Expr, y: Expr) -> Expr:
    """Return Python's x // y. Of floats: from the exact remainder, so that 1 // 0.1 is 9."""
    if x.dtype.kind != "float":
        return ex.floordiv(x, y)
    remainder = ex.truncmod(x, y)
    exact = (x - remainder) / y
    exact = ex.where(ex.ne(remainder, 0) & ((y < 0) ^ (remainder < 0)), exact - 1, exact)
    whole = ex.floor(exact)
    rounded = ex.where(exact - whole > 0.5, whole + 1, whole)
    signed_zero = ex.copysign(ex.const(0.0, x.dtype), x / y)
    quotient = ex.where(ex.eq(exact, 0), signed_zero, rounded)
    # All of these are whole or not finite already: the floor says that the slope is zero.
    return ex.floor(ex.where(ex.eq(y, 0), x / y, quotient))


def _trunc_quotient(x: Expr, y: Expr) -> Expr:
    return ex.trunc(x / y) if x.dtype.kind == "float" else ex.truncdiv(x, y)


def no_derivative(name: str) -> Callable[..., object]:
    """Return the gradient of an operation that has none: as in PyTorch, only asking for it raises."""

    def refuse(_g: Tensor, _out: Tensor, *_inputs: object) -> Tensor:
        """Raise NotImplementedError."""
        raise NotImplementedError(
            f"derivative for aten::{name} is not implemented: it is 0 almost everywhere. "
            "Detach its inputs."
        )

    return refuse


floor_divide = elementwise(
    "floor_divide",
    _floor_quotient,
    vjp=no_derivative("floor_divide"),
    dtypes=NUMERIC,
    domain=(0.5, 9.0),
    divides=True,
    numbers_for="both",
    operator="floordiv",
    reflects_numbers=True,
    asks=("__ifloordiv__",),
    doc="The quotient rounded down, as Python's //. No backward, as in PyTorch.",
)
_div_floor = elementwise(
    "_div_floor",
    _floor_quotient,
    dtypes=NUMERIC,
    function_in=(),
    domain=(0.5, 9.0),
    divides=True,
    once=True,
    doc="The quotient rounded down; its gradient is zero.",
)
_div_trunc = elementwise(
    "_div_trunc",
    _trunc_quotient,
    dtypes=NUMERIC,
    function_in=(),
    domain=(0.5, 9.0),
    divides=True,
    once=True,
    doc="The quotient rounded to zero; its gradient is zero.",
)


remainder = elementwise(
    "remainder",
    lambda x, y: ex.mod(x, y),
    dtypes=NUMERIC,
    domain=(0.5, 9.0),
    divides=True,
    numbers_for="both",
    operator="mod",
    reflects_numbers=True,
    asks=("__mod__", "__imod__"),
    doc="What is left of input by other, with the sign of other (Python's %).",
)
fmod = elementwise(
    "fmod",
    lambda x, y: ex.truncmod(x, y),
    dtypes=NUMERIC,
    domain=(0.5, 9.0),
    divides=True,
    doc="What is left of input by other, with the sign of input (C's fmod).",
)
_pow = elementwise(
    "_pow",
    lambda x, y: ex.pow_(x, y),
    dtypes=NUMERIC,
    torch="pow",
    function_in=(),
    domain=(0.1, 3.0),
    numbers_fit=True,
    onnx="Pow",
    doc="input to the power other.",
)
_cube = elementwise(
    "_cube", lambda x: x * x * x, dtypes=NUMERIC, function_in=(), doc="input to the power 3."
)


def _check_negation(input: Any) -> None:
    if is_tensor(input) and input.dtype is bool_:
        raise DTypeError(
            "Negation, the `-` operator, on a bool tensor is not supported. If you are trying to invert a mask, "
            "use the `~` or `logical_not()` operator instead."
        )


neg = elementwise(
    "neg",
    lambda x: -x,
    operands_fit=_check_negation,
    aliases=("negative",),
    dtypes=NUMERIC,
    out="exact",
    inplace_functions=("torch.neg_", "torch.negative_"),
    foreach=True,
    operator="neg",
    asks=("__neg__",),
    on_parts="alike",
    direct=("neg",),
    doc="-input.",
)


abs = elementwise(
    "abs",
    lambda x: x if x.dtype.kind == "uint" else ex.unary("abs", x),
    aliases=("absolute",),
    dtypes=NUMERIC,
    out=lambda input: "cast" if input.dtype.is_complex else "exact",
    inplace_functions=("torch.abs_",),
    foreach=True,
    operator="abs",
    asks=("__abs__",),
    direct=("abs",),
    doc="The absolute value; its derivative at 0 is 0.",
)
sign = elementwise(
    "sign",
    lambda x: x if x.dtype is bool_ else ex.sign(x),
    out="exact",
    foreach=True,
    doc="-1, 0 or 1.",
)
signbit = elementwise(
    "signbit",
    lambda x: (
        ex.copysign(ex.const(1.0, x.dtype), x) < 0
        if x.dtype.kind == "float"
        else x < 0
        if x.dtype.kind == "int"
        else ex.const(False, bool_)
    ),
    promotion="bool",
    out="exact",
    doc="Whether the sign bit is set; true of -0.0.",
)
_square = elementwise(
    "_square",
    lambda x: x * x,
    dtypes=NUMERIC,
    torch="square",
    function_in=(),
    autocast=Autocast(gpu="fp32"),
    doc="input * input.",
)


reciprocal = elementwise(
    "reciprocal",
    lambda x: 1 / x,
    promotion="float",
    domain=(0.3, 3.0),
    inplace_functions=("torch.reciprocal_",),
    foreach=True,
    direct=("reciprocal",),
    onnx="Reciprocal",
    doc="1 / input.",
    autocast=Autocast(gpu="fp32"),
    saves_values=True,
)


def _out_of_lerp(input: Tensor, end: Tensor, weight: Operand) -> OutRule:
    return "exact" if is_tensor(weight) else "cast"


def _lerp_takes(input: Any, end: Any, weight: Any) -> None:
    """Raise PyTorch's error for operands of several types."""
    for x, name in ((end, "end"), (weight, "weight")):
        if is_tensor(x) and x.dtype is not input.dtype and (name == "end" or x._shape):
            raise DTypeError(
                f"expected dtype {input.dtype.c_name} for `{name}` but got dtype {x.dtype.c_name}"
            )


lerp = elementwise(
    "lerp",
    # Both forms are exact at the end that they are near.
    lambda x, end, weight: ex.where(
        abs_less(weight, 0.5), x + weight * (end - x), end - (end - x) * (1 - weight)
    ),
    tensors=("input", "end", "weight"),
    dtypes=FLOATS,
    refuses=NOT_FLOATS,
    operands_fit=_lerp_takes,
    out=_out_of_lerp,
    foreach=True,
    doc="input + weight * (end - input).",
)
addcmul = elementwise(
    "addcmul",
    lambda x, y, z, value: x + value * y * z,
    tensors=("input", "tensor1", "tensor2"),
    numbers=("value",),
    signature="(input, tensor1, tensor2, *, value=1)",
    overloads=("Tensor input, Number value, Tensor tensor1, Tensor tensor2",),
    dtypes=NUMERIC,
    defaults={"value": 1},
    foreach=True,
    doc="input + value * tensor1 * tensor2.",
    autocast=Autocast(gpu="promote"),
)
_fma = elementwise(
    "_fma",
    lambda x, y, z: ex.fma(x, y, z),
    tensors=("input", "other", "added"),
    dtypes=FLOATS,
    function_in=(),
    doc="input * other + added, rounded once where the device can.",
)


def _addcdiv_takes(input: Any, tensor1: Any, tensor2: Any) -> None:
    """Raise PyTorch's error for a division of integers."""
    if not any(is_tensor(x) and x.dtype.has_gradient for x in (tensor1, tensor2)):
        # The words are PyTorch's.
        raise DTypeError(
            "Integer division with addcdiv is no longer supported, and in a future  release addcdiv will perform a "
            "true division of tensor1 and tensor2. The historic addcdiv behavior can be implemented as (input + "
            "value * torch.trunc(tensor1 / tensor2)).to(input.dtype) for integer inputs and as (input + value * "
            "tensor1 / tensor2) for float inputs. The future addcdiv behavior is just the latter implementation: "
            "(input + value * tensor1 / tensor2), for all dtypes."
        )


addcdiv = elementwise(
    "addcdiv",
    lambda x, y, z, value: x + value * y / z,
    tensors=("input", "tensor1", "tensor2"),
    numbers=("value",),
    signature="(input, tensor1, tensor2, *, value=1)",
    overloads=("Tensor input, Number value, Tensor tensor1, Tensor tensor2",),
    dtypes=FLOATS,
    operands_fit=_addcdiv_takes,
    domain=(0.5, 3.0),
    defaults={"value": 1},
    foreach=True,
    doc="input + value * tensor1 / tensor2; of floats only.",
    autocast=Autocast(gpu="promote"),
)
ldexp = elementwise(
    "ldexp",
    lambda x, y: x * ex.exp2(y),
    promotion="float",
    numbers_for="none",
    inplace_functions=("torch.ldexp_",),
    doc="input * 2 ** other.",
    saves_values=True,
)

# -- powers, exponentials, logarithms --------------------------------------------------------------

sqrt = elementwise(
    "sqrt",
    lambda x: ex.sqrt(x),
    vjp=lambda g, out, _x: (g / (out * 2),),
    promotion="float",
    domain=(0.01, 9.0),
    inplace_functions=("torch.sqrt_",),
    foreach=True,
    direct=("sqrt",),
    doc="The square root.",
)
# Its gradient reads the operand, as that of a power: the result may be written.
_half_power = elementwise(
    "_half_power",
    lambda x: ex.sqrt(x),
    promotion="float",
    function_in=(),
    domain=(0.01, 9.0),
    autocast=Autocast(gpu="fp32"),
    doc="input to the power 0.5.",
)
rsqrt = elementwise(
    "rsqrt",
    lambda x: ex.rsqrt(x),
    promotion="float",
    domain=(0.1, 9.0),
    inplace_functions=("torch.rsqrt_",),
    foreach=True,
    direct=("rsqrt",),
    doc="1 / sqrt(input).",
    autocast=Autocast(gpu="fp32"),
    saves_values=True,
)
exp = elementwise(
    "exp",
    lambda x: ex.exp(x),
    vjp=lambda g, out, _x: (g * out,),
    promotion="float",
    inplace_functions=("torch.exp_",),
    foreach=True,
    direct=("exp",),
    doc="e to the power input.",
    autocast=Autocast(gpu="fp32"),
)
exp2 = elementwise(
    "exp2",
    lambda x: ex.exp2(x),
    promotion="float",
    inplace_functions=("torch.exp2_",),
    also=("special.exp2",),
    doc="2 to the power input.",
    saves_values=True,
)
expm1 = elementwise(
    "expm1",
    lambda x: ex.expm1(x),
    # Not g * (out + 1), which loses all digits where out is near -1.
    vjp=lambda g, _out, x: (g * exp(x),),
    promotion="float",
    inplace_functions=("torch.expm1_",),
    foreach=True,
    also=("special.expm1",),
    doc="exp(input) - 1, exact near 0.",
    autocast=Autocast(gpu="fp32"),
    saves_values=True,
)
log = elementwise(
    "log",
    lambda x: ex.log(x),
    promotion="float",
    domain=(0.01, 9.0),
    inplace_functions=("torch.log_",),
    foreach=True,
    direct=("log",),
    doc="The natural logarithm.",
    autocast=Autocast(gpu="fp32"),
)
log2 = elementwise(
    "log2",
    lambda x: ex.log2(x),
    promotion="float",
    domain=(0.01, 9.0),
    inplace_functions=("torch.log2_",),
    foreach=True,
    doc="The logarithm to base 2.",
    autocast=Autocast(gpu="fp32"),
)
log10 = elementwise(
    "log10",
    lambda x: ex.log10(x),
    promotion="float",
    domain=(0.01, 9.0),
    inplace_functions=("torch.log10_",),
    foreach=True,
    doc="The logarithm to base 10.",
    autocast=Autocast(gpu="fp32"),
)
log1p = elementwise(
    "log1p",
    lambda x: ex.log1p(x),
    promotion="float",
    domain=(-0.9, 9.0),
    inplace_functions=("torch.log1p_",),
    foreach=True,
    also=("special.log1p",),
    doc="log(1 + input), exact near 0.",
    autocast=Autocast(gpu="fp32"),
)


def _log_add(x: Expr, y: Expr, power: Any, scale: float) -> Expr:
    """Return the larger side plus log(1 + power(-|x - y|)) * scale; infinities of one sign give that infinity."""
    x_larger = x >= y
    larger, distance = ex.where(x_larger, x, y), ex.where(x_larger, y - x, x - y)
    return ex.where(ex.isinf(x) & ex.eq(x, y), x, larger + ex.log1p(power(distance)) * scale)


logaddexp = elementwise(
    "logaddexp",
    lambda x, y: _log_add(x, y, ex.exp, 1.0),
    vjp=lambda g, _out, x, y: (g * sigmoid(x - y), g * sigmoid(y - x)),
    dtypes=FLOATS,
    inplace=False,
    numbers_for="none",
    doc="log(exp(input) + exp(other)); never overflows.",
)
logaddexp2 = elementwise(
    "logaddexp2",
    lambda x, y: _log_add(x, y, ex.exp2, 1 / math.log(2)),
    vjp=lambda g, _out, x, y: (
        g * sigmoid((x - y) * math.log(2)),
        g * sigmoid((y - x) * math.log(2)),
    ),
    dtypes=FLOATS,
    inplace=False,
    numbers_for="none",
    doc="log2(2 ** input + 2 ** other); never overflows.",
)
xlogy: Elementwise = elementwise(
    "xlogy",
    lambda x, y: ex.where(ex.eq(x, 0) & ~ex.isnan(y), ex.const(0.0, x.dtype), x * ex.log(y)),
    vjp=lambda g, _out, x, y: (_xlogy_backward(g, x, y), g * (x / y)),
    promotion="float",
    domain=(0.1, 3.0),
    numbers_for="both",
    inplace_functions=("torch.xlogy_",),
    also=("special.xlogy",),
    doc="input * log(other), 0 where input is 0.",
)
_xlogy_backward: Elementwise = elementwise(
    "_xlogy_backward",
    # At input 0 PyTorch gives log(other), but 0 where that is not finite.
    lambda g, x, y: ex.where(ex.eq(x, 0) & (y <= 0), ex.const(0.0, x.dtype), g * ex.log(y)),
    tensors=("grad_output", "input", "other"),
    dtypes=FLOATS,
    function_in=(),
    domain=(0.1, 3.0),
    doc="The gradient of xlogy in input.",
)

# -- rounding --------------------------------------------------------------------------------------


def _integral(op: Callable[[Expr], Expr]) -> Callable[..., Expr]:
    return lambda x: op(x) if x.dtype.kind == "float" else x


ceil = elementwise(
    "ceil",
    _integral(ex.ceil),
    dtypes=NUMERIC,
    out="exact",
    inplace_functions=("torch.ceil_",),
    foreach=True,
    doc="Rounded up.",
)
floor = elementwise(
    "floor",
    _integral(ex.floor),
    dtypes=NUMERIC,
    out="exact",
    inplace_functions=("torch.floor_",),
    foreach=True,
    doc="Rounded down.",
)
trunc = elementwise(
    "trunc",
    _integral(ex.trunc),
    aliases=("fix",),
    dtypes=NUMERIC,
    out="exact",
    inplace_functions=("torch.trunc_", "torch.fix_"),
    foreach=True,
    doc="Rounded to zero.",
)
frac = elementwise(
    "frac",
    lambda x: x - ex.trunc(x),
    dtypes=FLOATS,
    out="exact",
    inplace_functions=("torch.frac_",),
    foreach=True,
    doc="input - trunc(input).",
)
_round = elementwise(
    "_round",
    _integral(ex.round_),
    dtypes=NUMERIC,
    torch="round",
    function_in=(),
    onnx="Round",
    doc="Rounded to the nearest integer, halves to the even one.",
)
_round_fraction = elementwise(
    "_round_fraction",
    lambda x, scale: ex.round_(x * scale) / scale,
    numbers=("scale",),
    dtypes=FLOATS,
    function_in=(),
    doc="Rounded to multiples of 1 / scale.",
)
_round_multiple = elementwise(
    "_round_multiple",
    lambda x, scale: ex.round_(x / scale) * scale,
    numbers=("scale",),
    dtypes=FLOATS,
    function_in=(),
    doc="Rounded to multiples of scale.",
)

# -- logistic --------------------------------------------------------------------------------------

sigmoid: Elementwise = elementwise(
    "sigmoid",
    logistic,
    vjp=lambda g, out, _x: (sigmoid_backward(g, out),),
    promotion="float",
    function_in=EVERYWHERE,
    domain=(-100.0, 100.0),
    inplace_functions=("torch.sigmoid_",),
    foreach=True,
    also=("special.expit",),
    direct=("sigmoid",),
    gain=1.0,
    onnx="Sigmoid",
    doc="1 / (1 + exp(-input)).",
)
sigmoid_backward: Elementwise = elementwise(
    "sigmoid_backward",
    lambda g, out: g * (1 - out) * out,
    tensors=("grad_output", "output"),
    dtypes=FLOATS,
    function_in=(),
    doc="The gradient of sigmoid from its result.",
)


def _logit_formula(x: Expr) -> Expr:
    # Near a half the logarithm's argument is near 1: take the distance from it, which is exact.
    middle = abs_less(x - 0.5, 0.25)
    return ex.where(middle, ex.log1p((x + x - 1) / (1 - x)), ex.log(x / (1 - x)))


_logit = elementwise(
    "_logit",
    _logit_formula,
    vjp=lambda g, _out, x: (_logit_backward(g, x),),
    promotion="float",
    torch="logit",
    function_in=(),
    domain=(0.02, 0.98),
    doc="log(input / (1 - input)).",
)
_logit_backward: Elementwise = elementwise(
    "_logit_backward",
    lambda g, x: ex.where((x < 0) | (x > 1), ex.const(math.nan, x.dtype), g / (x * (1 - x))),
    tensors=("grad_output", "input"),
    dtypes=FLOATS,
    function_in=(),
    doc="The gradient of logit.",
)
_logit_clamped = elementwise(
    "_logit_clamped",
    lambda x, eps: ex.where(
        x < eps,
        _logit_formula(eps),
        ex.where(x > 1 - eps, _logit_formula(1 - eps), _logit_formula(x)),
    ),
    numbers=("eps",),
    promotion="float",
    function_in=(),
    domain=(0.02, 0.98),
    doc="log(z / (1 - z)) of z = input kept in eps..1 - eps.",
)


erf = elementwise(
    "erf",
    lambda x: ex.erf(x),
    promotion="float",
    inplace_functions=("torch.erf_",),
    foreach=True,
    also=("special.erf",),
    direct=("erf",),
    doc="The error function.",
)
erfc = elementwise(
    "erfc",
    lambda x: ex.erfc(x),
    promotion="float",
    inplace_functions=("torch.erfc_",),
    foreach=True,
    also=("special.erfc",),
    doc="1 - erf(input).",
)
angle = elementwise(
    "angle",
    lambda x: ex.where(
        ex.isnan(x),
        ex.const(math.nan, x.dtype),
        ex.where(x < 0, ex.const(math.pi, x.dtype), ex.const(0.0, x.dtype)),
    ),
    tensors=("input",),
    promotion="float",
    inplace=False,
    once=True,
    doc="The angle of a real number as a complex one: pi of negative ones, else 0.",
)
