"""Elementwise functions whose arguments choose the formula: `alpha`, rounding modes, exponents, bounds."""

from __future__ import annotations

import math
from typing import Any

from webtorch.errors import DTypeError, ShapeError
from webtorch.functions.check import dynamic
from webtorch.ir.dtype import (
    FLOATS,
    DType,
    Number,
    Scalar,
    bfloat16,
    bool_,
    complex128,
    float16,
    float32,
    float64,
    int64,
    uint8,
)
from webtorch.ir.view import wrap_dim
from webtorch.ops.activation import (
    FUNCTIONAL,
    _gate,
    _gelu_erf,
    _gelu_tanh,
    _prelu,
    _softshrink,
    leaky_relu,
)
from webtorch.ops.comparison import (
    _clamp,
    _nan_to_num,
    _where,
    clamp_max,
    clamp_min,
    eq,
    isfinite,
    isnan,
    le,
)
from webtorch.ops.elementwise import (
    EVERYWHERE,
    NUMERIC,
    _add,
    _add_scaled,
    _cube,
    _div,
    _div_floor,
    _div_trunc,
    _half_power,
    _logit,
    _logit_clamped,
    _pow,
    _round,
    _round_fraction,
    _round_multiple,
    _square,
    _sub,
    _sub_scaled,
    abs,
    check_subtraction,
    is_tensor,
    plain,
    reciprocal,
    rsqrt,
    sqrt,
)
from webtorch.ops.gamma import _igamma, _igammac, _polygamma, _zeta
from webtorch.ops.layout import of_operands, row_major
from webtorch.ops.primitive import cast_to, iota, paired, pairs
from webtorch.ops.purity import warn_once
from webtorch.ops.record import LOWER, NOT_FLOATS, Autocast, Example, composite
from webtorch.ops.special import SPECIAL, _trigamma, digamma, lgamma
from webtorch.ops.splits import aligned, along, of_where
from webtorch.tensors.modes import mode, transforms
from webtorch.tensors.promotion import Operand, get_default_dtype
from webtorch.tensors.tensor import Tensor

# Element by element, unless an entry says otherwise.
SPLITS = aligned
LARGEST: dict[DType, float] = {
    float64: 1.7976931348623157e308,
    float32: 3.4028234663852886e38,
    float16: 65504.0,
    bfloat16: 3.3895313892515355e38,
}


def _check_alpha(name: str, alpha: Scalar, *operands: Any) -> None:
    """Raise PyTorch's errors for an alpha that the result's type cannot hold."""
    kinds = [x.dtype.kind if is_tensor(x) else type(x).__name__ for x in operands]
    if isinstance(alpha, complex) and "complex" not in kinds:
        raise DTypeError(
            f"{name}: For non-complex input tensors, argument alpha must not be a complex number: got {alpha}."
        )
    if isinstance(alpha, float) and "float" not in kinds and "complex" not in kinds:
        raise DTypeError(
            f"{name}: For integral input tensors, argument alpha must not be a floating point number: got {alpha}. "
            f"Convert a tensor with .float(), or pass an integer."
        )
    if isinstance(alpha, bool) and any(kind != "bool" for kind in kinds):
        raise DTypeError(
            f"{name}: Boolean alpha only supported for Boolean results: got {alpha}. Pass 0 or 1."
        )


@composite(
    inplace=True,
    overloads=("Tensor input, Number alpha, Operand other",),
    out="cast",
    foreach=True,
    alone=_add,
    asks=("__add__", "__radd__", "__iadd__"),
    layout=of_operands,
    direct=("add.Tensor",),
    numbers_as_tensors=True,
    aten=("add",),
    overlap="whole",
)
def add(input: Operand, other: Operand, *, alpha: Scalar = 1) -> Tensor:
    """Return input + alpha * other; of bools, or."""
    if alpha is not True and plain(alpha, 1):
        return _add(input, other)
    _check_alpha("add", alpha, input, other)
    return _add_scaled(input, other, alpha)


@composite(
    inplace=True,
    overloads=("Tensor input, Number alpha, Operand other",),
    dtypes=NUMERIC,
    out="cast",
    foreach=True,
    alone=_sub,
    asks=("__sub__", "__isub__"),
    layout=of_operands,
    direct=("sub.Tensor",),
    numbers_as_tensors=True,
    aten=("sub",),
    overlap="whole",
)
def sub(input: Operand, other: Operand, *, alpha: Scalar = 1) -> Tensor:
    """Return input - alpha * other."""
    check_subtraction("sub", input, other)
    if alpha is not True and plain(alpha, 1):
        return _sub(input, other)
    _check_alpha("sub", alpha, input, other)
    return _sub_scaled(input, other, alpha)


@composite(inplace=True, dtypes=NUMERIC, overlap="whole")
def subtract(input: Tensor, other: Operand, *, alpha: Scalar = 1) -> Tensor:
    """Return input - alpha * other."""
    return sub(input, other, alpha=alpha)


@composite(
    function_in=("torch",),
    overloads=("Tensor input, Number other, Number alpha",),
    dtypes=NUMERIC,
    layout=of_operands,
    aten=("rsub",),
)
def rsub(input: Tensor, other: Operand, *, alpha: Scalar = 1) -> Tensor:
    """Return other - alpha * input."""
    if not is_tensor(input):
        raise TypeError(
            f"rsub(): argument 'input' (position 1) must be Tensor, not {type(input).__name__}"
        )
    return sub(other, input, alpha=alpha)


@composite(
    inplace=True,
    aliases=("divide",),
    domain=(0.5, 3.0),
    out="cast",
    foreach=True,
    alone=_div,
    asks=("__truediv__", "__itruediv__"),
    layout=of_operands,
    direct=("div.Tensor",),
    numbers_as_tensors=True,
    once=True,
    aten=("div",),
    overlap="whole",
)
def div(
    input: Tensor | Number, other: Tensor | Number, *, rounding_mode: str | None = None
) -> Tensor:
    """Return input / other; rounding_mode None (a float result), "trunc" or "floor"."""
    if rounding_mode is None:
        return _div(input, other)
    if rounding_mode == "floor":
        return _div_floor(input, other)
    if rounding_mode == "trunc":
        return _div_trunc(input, other)
    raise RuntimeError(
        f"div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '{rounding_mode}'"
    )


@composite(inplace=True, domain=(0.5, 3.0), out="cast", overlap="whole", once=True)
def true_divide(input: Tensor | Number, other: Tensor) -> Tensor:
    """Return input / other, as floats."""
    return _div(input, other)


def _check_one_tensor(name: str, input: Tensor, exponent: object) -> None:
    if not is_tensor(input) and not is_tensor(exponent):
        raise TypeError(f"{name}(): one argument must be Tensor, not two numbers")


def _power_name(input: Tensor, exponent: object) -> str:
    if not is_tensor(input):
        return "PowBackward2"
    return "PowBackward1" if is_tensor(exponent) else "PowBackward0"


@composite(
    inplace=True,
    dtypes=NUMERIC,
    domain=(0.1, 3.0),
    autocast=Autocast(gpu="fp32"),
    out="cast",
    gradient_name=_power_name,
    foreach=True,
    operator="pow",
    reflects_numbers=True,
    asks=("__pow__",),
    layout=of_operands,
    direct=("pow.Tensor_Scalar",),
    aten=("pow",),
    overlap="whole",
)
def pow(input: Operand, exponent: Operand) -> Tensor:
    """Return input to the power exponent; either may be a number. An integer to a negative number is an error."""
    base: Any = input
    _check_one_tensor("pow", base, exponent)
    if is_tensor(exponent) or not is_tensor(base):
        return _pow(base, exponent)
    if isinstance(exponent, complex):
        return _pow(base, exponent)
    if not base.dtype.has_gradient:
        if isinstance(exponent, int) and exponent < 0:
            raise RuntimeError(
                f"pow: Integers to negative integer powers are not allowed: got {exponent} with a {base.dtype} "
                f"tensor. Convert it with .float()."
            )
    elif plain(exponent, 0.5):
        return sqrt(base) if base.dtype.is_complex else _half_power(base)
    elif plain(exponent, -0.5):
        return rsqrt(base)
    elif plain(exponent, -1):
        return reciprocal(base)
    elif plain(exponent, 2):
        return _square(base)
    elif plain(exponent, 3):
        return _cube(base)
    return _pow(base, exponent)


@composite(inplace=True, dtypes=NUMERIC, domain=(0.1, 3.0), aten=("float_power",), overlap="whole")
def float_power(input: Operand, exponent: Operand) -> Tensor:
    """Return input to the power exponent, computed in float64."""
    operands: tuple[Any, Any] = input, exponent
    _check_one_tensor("float_power", *operands)
    if any((is_tensor(x) and x.dtype.is_complex) or isinstance(x, complex) for x in operands):
        return pow(*[x.to(complex128) if is_tensor(x) else complex(x) for x in operands])
    wide = [x.to(float64) if is_tensor(x) else float(x) for x in operands]
    return pow(*wide)


@composite(dtypes=NUMERIC, operator="pos", asks=("__pos__",))
def positive(input: Tensor) -> Tensor:
    """Return input itself."""
    if not is_tensor(input):
        raise TypeError(
            f"positive(): argument 'input' (position 1) must be Tensor, not {type(input).__name__}"
        )
    if input.dtype is bool_:
        raise DTypeError(
            "The `+` operator, on a bool tensor is not supported. Use .int() for numbers."
        )
    return input


@composite(
    inplace=True,
    dtypes=NUMERIC,
    out="cast",
    overlap="whole",
    inplace_functions=("torch.square_",),
    on_values=True,
    gradient_name="PowBackward0",
)
def square(input: Tensor) -> Tensor:
    """Return input * input; of bools, as int64."""
    return _pow(input, 2) if input.dtype is bool_ else _square(input)


@composite(
    inplace=True,
    dtypes=NUMERIC,
    inplace_functions=("torch.round_",),
    on_values=True,
    foreach=True,
    also=("special.round",),
    aten=("round",),
    overlap="whole",
)
def round(input: Tensor, *, decimals: int | None = None) -> Tensor:
    """Rounded to `decimals` digits after the point (0), halves to the even one. Integers stay as they are
    where no `decimals` are given.
    """
    if decimals is None or (decimals == 0 and input.dtype.kind == "float"):
        return _round(input)
    if input.dtype.kind != "float":
        raise DTypeError(
            f"round: decimals={decimals} is for floating-point tensors: got {input.dtype}. Convert it with .float()."
        )
    if decimals > 0:
        return _round_fraction(input, 10.0**decimals)
    return _round_multiple(input, 10.0**-decimals)


@composite(differentiable=False, aten=("isclose",))
def isclose(
    input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Tensor:
    """Whether |input - other| <= atol + rtol * |other|, elementwise; infinities are close to themselves only."""
    for place, (name, bound) in enumerate((("rtol", rtol), ("atol", atol)), 3):
        if isinstance(bound, Tensor) and bound.requires_grad:
            raise TypeError(
                f"isclose(): argument '{name}' (position {place}) must be float, not Tensor"
            )
    if input.dtype is not other.dtype:
        raise RuntimeError(
            f"isclose: {input.dtype} and {other.dtype} did not match: both tensors need one type. "
            f"Convert one with .to()."
        )
    if rtol < 0 or atol < 0:
        raise RuntimeError(
            f"isclose: rtol and atol must not be negative: got rtol={rtol}, atol={atol}."
        )
    if input.dtype is bool_:
        input, other = input.to(float32), other.to(float32)
    elif input.dtype.kind == "uint":
        # Their differences wrap around. Integers below 2**24 are exact as floats.
        wide = float32 if input.dtype.itemsize < 4 else int64
        input, other = input.to(wide), other.to(wide)
    close = eq(input, other)
    if equal_nan and input.dtype.has_gradient:
        close = close | (isnan(input) & isnan(other))
    if rtol == 0 and atol == 0:
        return close
    distance = abs(input - other)
    return close | (isfinite(distance) & le(distance, abs(other) * float(rtol) + float(atol)))


# What PyTorch says of a mask that is no bool tensor.
_MASK_RULES = {
    "where": "where expected condition to be a boolean tensor, but got a tensor with dtype {}",
    "masked_fill": "masked_fill_ only supports boolean masks, but got mask with dtype {}",
    "masked_scatter": "masked_scatter_ only supports boolean masks, but got mask with dtype {}",
    "masked_select": "masked_select: expected BoolTensor for mask, but got {}",
}


def check_mask(name: str, mask: Tensor) -> None:
    """Raise PyTorch's error when a condition is not a bool tensor."""
    if not is_tensor(mask) or mask.dtype is not bool_:
        found = mask.dtype if is_tensor(mask) else type(mask).__name__
        raise DTypeError(
            f"{_MASK_RULES[name].format(found)}: compare first, as in {name}(x != 0, ...)."
        )


@composite(
    splits=of_where,
    # As a method, input comes first: Tensor.where(condition, other).
    function_in=("torch",),
    example=Example(("b", (3, 5), (5,))),
    aten=("where",),
    overlap="whole",
    forms=(
        "(condition: Tensor) -> tuple[Tensor, ...]",
        "(condition: Tensor, input: Operand, other: Operand) -> Tensor",
    ),
)
def where(condition: Tensor, input: Operand | None = None, other: Operand | None = None) -> Any:
    """Return input where condition, else other; with condition alone, the indices of its true elements."""
    if input is None and other is None:
        if condition._levels:
            raise RuntimeError(dynamic("where"))
        return condition.nonzero(as_tuple=True)
    if is_tensor(condition) and condition.dtype is uint8:
        warn_once(
            "where received a uint8 condition tensor. This behavior is deprecated and will be removed in a "
            "future version of PyTorch. Use a boolean condition instead."
        )
        condition = cast_to(condition, bool_)
    check_mask("where", condition)
    return _where(condition, input, other)


def _masked_once(memory: Tensor, mask: Tensor, value: object) -> tuple[object, ...]:
    """A place is filled where one of the elements that share it is."""
    check_mask("masked_fill", mask)
    lead = mask.ndim - memory.ndim
    shared = [d for d in range(mask.ndim) if d >= lead and memory._shape[d - lead] == 1]
    return mask.any(shared, keepdim=True) if shared else mask, value


@composite(
    inplace=True,
    overlap="whole",
    once_in_place=_masked_once,
    gradient_name="MaskedFillBackward0",
    direct=("masked_fill.Scalar", "masked_fill.Tensor"),
    aten=("masked_fill",),
    layout=row_major,
)
def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """Return input with `value` (a number or a 0-d tensor) where mask is true."""
    check_mask("masked_fill", mask)
    if isinstance(value, complex) and not input.dtype.is_complex:
        raise RuntimeError(
            f"masked_fill: value cannot be converted to type {input.dtype} without overflow: {value}"
        )
    if is_tensor(value):
        if value.ndim:
            raise RuntimeError(
                f"masked_fill: only supports a 0-dimensional value tensor, but got tensor "
                f"with {value.ndim} dimension(s). Use where(mask, value, input)."
            )
        if value.dtype.is_complex and not input.dtype.is_complex:
            raise RuntimeError(
                f"masked_fill: value cannot be converted to type {input.dtype} without overflow: it is "
                f"{value.dtype}"
            )
        value = value.to(input.dtype)
    elif input.dtype.is_integral:
        # As PyTorch does: a fraction is dropped, and the result keeps the tensor's type.
        if not math.isfinite(value):
            raise RuntimeError(
                f"masked_fill: value {value} cannot be converted to type {input.dtype} without overflow"
            )
        value = int(value)
    elif input.dtype is bool_:
        value = bool(value)
    return _where(mask, value, input)


@composite(
    inplace=True,
    aliases=("clip",),
    dtypes=NUMERIC,
    samples=(((-1.0, 1.0), {}), ((), {"min": 0.5}), ((), {"max": 0.5}), ((1.0, -1.0), {})),
    out="cast",
    inplace_functions=("torch.clamp_", "torch.clip_"),
    aten=("clamp",),
    overlap="whole",
    layout=of_operands,
    gradient_name=lambda input, min=None, max=None: (
        f"ClampBackward{int(not (isinstance(min, Tensor) or isinstance(max, Tensor)))}"
    ),
)
def clamp(
    input: Tensor, min: Tensor | Number | None = None, max: Tensor | Number | None = None
) -> Tensor:
    """Return input kept in min..max (numbers, tensors or None); gradients pass inside and at the bounds."""
    if min is None and max is None:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")
    if max is None:
        return clamp_min(input, min)
    if min is None:
        return clamp_max(input, max)
    return _clamp(input, min, max)


@composite(
    inplace=True,
    inplace_functions=("torch.nan_to_num_",),
    on_values=True,
    aten=("nan_to_num",),
    overlap="whole",
)
def nan_to_num(
    input: Tensor,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Tensor:
    """Return input with NaN (0 by default) and infinities (the type's largest numbers by default) replaced."""
    if input.dtype.is_complex:
        return paired(nan_to_num(pairs(input), nan, posinf, neginf))
    if input.dtype.kind != "float":
        return input.clone()
    largest = LARGEST[input.dtype]
    return _nan_to_num(
        input,
        0.0 if nan is None else nan,
        largest if posinf is None else posinf,
        -largest if neginf is None else neginf,
    )


@composite(
    inplace=True,
    domain=(0.02, 0.98),
    samples=(((), {}), ((1e-3,), {})),
    out="cast",
    inplace_functions=("torch.logit_",),
    also=("special.logit",),
    layout=of_operands,
    aten=("logit",),
    overlap="whole",
)
def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """log(z / (1 - z)) of z = input, or of input kept in eps..1 - eps; NaN outside 0..1."""
    return _logit(input) if eps is None else _logit_clamped(input, eps)


@composite(
    splits=None,
    function_in=("torch", "nn.functional"),
    dtypes=FLOATS,
    drawn=True,
    gradient_name="RreluWithNoiseBackward0",
    layout=row_major,
)
def rrelu(
    input: Tensor,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    """Return input, times a random slope in lower..upper where it is negative; the mean slope outside training."""
    if lower > upper:
        raise RuntimeError(
            f"rrelu: lower must be less than or equal to upper: got {lower} and {upper}."
        )
    if not (training or inplace):
        return leaky_relu(input, (lower + upper) / 2)
    slope: Operand = (lower + upper) / 2
    if training:
        slope = input.new_empty(input.shape).uniform_(lower, upper)
    # A product with what is kept: an input that is overwritten need not live until the backward pass.
    factor = _where(input.detach() > 0, 1.0, slope)
    return input.mul_(factor) if inplace else input * factor


@composite(
    splits=None,
    function_in=EVERYWHERE,
    dtypes=FLOATS,
    torch="nn.functional.prelu",
    autocast=LOWER,
    gradient_name="PreluKernelBackward0",
    layout=of_operands,
)
def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """Return input, times weight (one number, or one for each channel in dim 1) where it is not positive."""
    if weight.numel() != 1:
        channels = input.shape[1] if input.ndim > 1 else 1
        if weight.ndim != 1 or weight.shape[0] != channels:
            raise ShapeError(
                f"prelu: Mismatch of parameter numbers and input channel size. Found parameter numbers = "
                f"{weight.numel()} and channel size = {channels}: weight is {tuple(weight.shape)}, input is "
                f"{tuple(input.shape)}. Pass one number, or one for each channel."
            )
        weight = weight.reshape((1, channels) + (1,) * (input.ndim - 2))
    else:
        weight = weight.reshape((1,) * input.ndim)
    return _prelu(input, weight)


@composite(
    function_in=FUNCTIONAL,
    dtypes=FLOATS,
    samples=(((), {}), ((), {"approximate": "tanh"})),
    takes_out=True,
    gradient_name="GeluBackward0",
    layout=of_operands,
    direct=("gelu",),
    aten=("gelu",),
    overlap="whole",
)
def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """Return input times the normal distribution function of input; approximate="tanh" uses a tanh for it."""
    if approximate == "none":
        return _gelu_erf(input)
    if approximate == "tanh":
        return _gelu_tanh(input)
    raise RuntimeError(
        f"gelu: approximate argument must be either none or tanh: got '{approximate}'."
    )


@composite(
    dtypes=FLOATS,
    overlap="whole",
    function_in=FUNCTIONAL,
    samples=(((), {}), ((1.0,), {})),
    takes_out=True,
)
def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """Return input moved towards 0 by lambd (>= 0), 0 where it is nearer."""
    if lambd < 0:
        raise RuntimeError(
            f"lambda must be in range [0, {LARGEST[input.dtype]:g}] for input dtype {input.dtype}, "
            f"but found {lambd}"
        )
    return _softshrink(input, lambd)


@composite(
    splits=along("dim"),
    function_in=FUNCTIONAL,
    dtypes=FLOATS,
    samples=(((-1,), {}),),
    gradient_name="GluBackward0",
    aten=("glu",),
    out="cast",
)
def glu(input: Tensor, dim: int = -1) -> Tensor:
    """Return a * sigmoid(b), where a and b are the halves of input along `dim`."""
    if not input.ndim:
        raise ShapeError("glu does not support 0-dimensional tensors. Unsqueeze a dim first.")
    dim = wrap_dim("glu", dim, input.ndim)
    size = input.shape[dim]
    if size % 2:
        raise ShapeError(
            f"Halving dimension must be even, but dimension {dim} is size {size}: input is {tuple(input.shape)}."
        )
    return _gate(input.narrow(dim, 0, size // 2), input.narrow(dim, size // 2, size // 2))


def _no_derivative(_g: Tensor, _out: Tensor, _x: Tensor, what: str) -> Tensor:
    raise NotImplementedError(f"the derivative for '{what}' is not implemented.")


@composite(name="_constant", function_in=(), vjp=_no_derivative)
def _constant(x: Tensor, what: str) -> Tensor:
    """Return x; a gradient that arrives here raises NotImplementedError."""
    return x.clone()


def _both_tensors(name: str, *operands: object) -> None:
    for where_, x in zip(("input", "other"), operands, strict=True):
        if not is_tensor(x):
            raise TypeError(f"{name}(): argument '{where_}' must be Tensor, not {type(x).__name__}")


def undifferentiable(x: Tensor, what: str) -> Tensor:
    """Return an operand for which there is no derivative: asking for it raises, as in PyTorch."""
    if transforms.count and any(x in level for level in mode.forward):
        raise NotImplementedError(
            f"Trying to use forward AD with {what.partition(':')[0]} that does not support it because it has not been "
            "implemented yet."
        )
    return _constant(x, what) if getattr(x, "requires_grad", False) else x


@composite(
    function_in=SPECIAL,
    dtypes=FLOATS,
    domain=(1.1, 6.0),
    out="cast",
    overlap="whole",
    gradient_name="SpecialZetaBackward0",
    aten=("special_zeta",),
)
def zeta(input: Tensor, other: Tensor) -> Tensor:
    """Hurwitz's zeta function: the sum of (other + k) ** -input over k = 0, 1, ..."""
    if not is_tensor(input) and not is_tensor(other):
        raise TypeError("zeta(): one argument must be Tensor, not two numbers")
    return _zeta(undifferentiable(input, "special_zeta: self"), other)


# No oracle: the order comes before the tensor.
@composite(
    function_in=("torch", "special"), torch="", dtypes=FLOATS, out="cast", aten=("polygamma",)
)
def polygamma(n: int, input: Tensor) -> Tensor:
    """Return the n-th derivative of digamma."""
    if n < 0:
        raise RuntimeError("polygamma(n, x) does not support negative n.")
    if n == 0:
        return digamma(input)
    if n == 1:
        return _trigamma(input)
    return _polygamma(input, float(n)) * float(math.factorial(n))


@composite(dtypes=FLOATS, torch="", inplace=True, out="cast", also=("special.multigammaln",))
def mvlgamma(input: Tensor, p: int) -> Tensor:
    """The logarithm of the multivariate gamma function of dimension p."""
    if p < 1:
        raise RuntimeError("p has to be greater than or equal to 1")
    if input.dtype.kind == "bool":
        raise DTypeError("mvlgamma: the input must be a number, not torch.bool")
    # One logarithm of gamma of all shifts: it is a long program.
    dtype = input.dtype if input.dtype.kind == "float" else get_default_dtype()
    shifts = iota(p, (1 - p) * 0.5, 0.5, dtype, input.device)
    total: Tensor = lgamma(input.unsqueeze(-1) + shifts).sum(-1)
    return total + p * (p - 1) * 0.25 * math.log(math.pi)


@composite(
    dtypes=FLOATS,
    inplace=True,
    domain=(0.2, 9.0),
    refuses=NOT_FLOATS,
    out="cast",
    also=("special.gammainc",),
    overlap="whole",
    aten=("igamma",),
)
def igamma(input: Tensor, other: Tensor) -> Tensor:
    """The regularised lower incomplete gamma function of order `input` at `other`."""
    _both_tensors("igamma", input, other)
    return _igamma(undifferentiable(input, "igamma: input"), other)


@composite(
    dtypes=FLOATS,
    inplace=True,
    domain=(0.2, 9.0),
    refuses=NOT_FLOATS,
    out="cast",
    also=("special.gammaincc",),
    overlap="whole",
    aten=("igammac",),
)
def igammac(input: Tensor, other: Tensor) -> Tensor:
    """The regularised upper incomplete gamma function of order `input` at `other`."""
    _both_tensors("igammac", input, other)
    return _igammac(undifferentiable(input, "igammac: input"), other)
