"""Sizes, roots, exponentials, logarithms and powers: for each its forms, and the record that names them."""

from __future__ import annotations

import math
from collections.abc import Callable

from webtorch.ir.dtype import float32, int32, int64
from webtorch.ir.expr.arithmetic import (
    copysign,
    eq,
    fma,
    ge,
    gt,
    head_of,
    isinf,
    isnan,
    le,
    lt,
    maximum,
    minimum,
    ne,
    round_,
    shr,
    sign,
    trunc,
    unbounded,
)
from webtorch.ir.expr.float32 import bits_of, f32, poly, power_of_two, scaled
from webtorch.ir.expr.float64 import (
    LOG2E,
    ROUND32,
    exp2_64,
    exp64,
    expm1_64,
    fused,
    log1p64,
    log64,
    log_ends,
    through64,
)
from webtorch.ir.expr.node import (
    Expr,
    binary_function,
    bitcast,
    cast,
    const,
    unary,
    unary_function,
    where,
)
from webtorch.ir.expr.pair import Pair, angle, cosine_and_sine, is_zero, modulus, select

_LN2, _LN10 = math.log(2.0), math.log(10.0)
_NAN, _INF = math.nan, math.inf


# -- sizes and roots


unary_function(
    "abs", slopes=(lambda x, out: sign(x),), pairs=modulus, exact=True, wraps=True,
    bounds=lambda x: (max(0, x[0], -x[1]), max(-x[0], x[1])),
    wgsl={"f32": "abs({0})", "i32": "abs({0})", "u32": "{0}", "bool": "{0}"}, numpy="absolute",
    python=abs, wasm=0x8B, onnx="Abs",
)  # fmt: skip


def sqrt_pair(z: Pair) -> Pair:
    """Return the square root with a real part that is not negative."""
    a, b = abs(z.re), abs(z.im)
    t = sqrt(modulus(z) * 0.5 + a * 0.5)
    other = where(eq(t, 0.0), 0.0, b / (t + t))
    right = z.re >= 0.0
    found = Pair(where(right, t, other), copysign(where(right, other, t), z.im))
    return select(isinf(z.im), Pair(b, z.im), found)


sqrt = unary_function(
    "sqrt", slopes=(lambda x, out: 0.5 / out,), pairs=sqrt_pair, cost=2, cost_cpu=5,
    wgsl={"f32": "sqrt({0})"}, numpy="sqrt", python=math.sqrt, wasm=0x91, onnx="Sqrt",
)  # fmt: skip
rsqrt = unary_function(
    "rsqrt", slopes=(lambda x, out: -0.5 * out * out * out,), pairs=lambda z: 1.0 / sqrt_pair(z),
    cost=2, cost_cpu=5, wgsl={"f32": "inverseSqrt({0})"},
    python=lambda x: 1.0 / math.sqrt(x) if x else math.copysign(_INF, x), onnx=lambda x: 1.0 / sqrt(x),
)  # fmt: skip


def hypot_f32(x: Expr, y: Expr) -> Expr:
    """Return sqrt(x^2 + y^2), without overflow on the way."""
    ax, ay = abs(x), abs(y)
    high = maximum(ax, ay)
    big, small = gt(high, 2.0**60), lt(high, 2.0**-40)
    scale = where(big, f32(2.0**-80), where(small, f32(2.0**80), 1.0))
    back = where(big, f32(2.0**80), where(small, f32(2.0**-80), 1.0))
    sx, sy = ax * scale, ay * scale
    value = sqrt(sx * sx + sy * sy) * back
    return where(eq(ax, _INF) | eq(ay, _INF), _INF, value)


@through64
def hypot_cpu(x: Expr, y: Expr) -> Expr:
    """Return sqrt(x^2 + y^2); infinite if either side is, NaN or not."""
    infinite = eq(abs(x), _INF) | eq(abs(y), _INF)
    return where(infinite, _INF, sqrt(x * x + y * y))


hypot = binary_function(
    "hypot", slopes=(lambda x, y, out: x / out, lambda x, y, out: y / out), cost=4, cost_cpu=5,
    expansion=hypot_f32, expansion_cpu=hypot_cpu, numpy="hypot", python=math.hypot, libm="hypot",
    onnx=lambda x, y: sqrt(x * x + y * y),
)  # fmt: skip


# -- exponentials


_EXP = (0.5, 0.166666672, 0.0416662619, 0.00833326392, 0.00139466487, 0.000199185961)
_EXP2 = (
    0.693147182, 0.240226507, 0.0555041097, 0.00961803459, 0.00133334275, 0.000154678768, 1.5315698e-05,
)  # fmt: skip
# ln 2 in two parts, the first with so few bits that its product with an exponent is exact.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_EXP_CPU = (
    1.0,
    1.0,
    0.5000000096659385,
    0.1666651730820333,
    0.04166620106201825,
    0.008369073115281156,
    0.0013950807172420966,
)


def exp_parts(x: Expr) -> tuple[Expr, Expr]:
    """Return (p, n) with exp(x) = p * 2^n, for `x` clamped to where float32 has an answer."""
    x = minimum(maximum(x, -106.0), 91.0)
    n = round_(x * math.log2(math.e))
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    return r * r * poly(r, _EXP) + r + 1.0, cast(n, int32)


def exp_f32(x: Expr) -> Expr:
    """Return e^x."""
    return scaled(*exp_parts(x))


def exp_cpu(x: Expr) -> Expr:
    """Return e^x: x = n ln 2 + r, a polynomial in r, and 2^n in two steps for results below 2^-126."""
    x = where(x > 89.0, 89.0, x)
    x = where(x < -104.0, -104.0, x)
    return scaled(*_exp_cpu_parts(x))


def exp_of_negative(x: Expr) -> Expr:
    """Return e^x for float32 below 88: 0 where it is less than 2^-126."""
    p, n = _exp_cpu_parts(x)
    return where(x < -87.33654, 0.0, p * power_of_two(n))


def _exp_cpu_parts(x: Expr) -> tuple[Expr, Expr]:
    """Return (p, n) with e^x = p * 2^n."""
    shifted = fma(x, LOG2E, ROUND32)
    n = shifted - ROUND32
    r = fma(n, -0.693145751953125, x)
    r = fma(n, -1.4286068203094173e-06, r)
    return fused(r, _EXP_CPU), bitcast(shifted, int32) - 0x4B400000


def exp_pair(z: Pair) -> Pair:
    """Return e to the power z; real where z is. Where it is infinite, what C's Annex G says."""
    size = exp(z.re)
    cosine, sine = cosine_and_sine(z.im)
    # At infinity and 0 the size is known without an angle.
    without = unbounded(z.im)
    re = where(without & isinf(z.re), size, size * cosine)
    im = where(without & eq(z.re, -_INF), copysign(const(0.0, z.im.dtype), z.im), size * sine)
    return Pair(re, where(eq(z.im, 0.0), z.im, im))


exp = unary_function(
    "exp", slopes=(lambda x, out: out,), pairs=exp_pair, cost=4, cost_cpu=15, expansion=exp_f32,
    expansion_cpu=exp_cpu, numpy="exp", python=math.exp, libm="exp", onnx="Exp",
)  # fmt: skip


def exp2_f32(x: Expr) -> Expr:
    """Return 2^x."""
    x = minimum(maximum(x, -152.0), 129.0)
    n = round_(x)
    r = x - n
    return scaled(r * poly(r, _EXP2) + 1.0, cast(n, int32))


def _exp2_onnx(x: Expr) -> Expr:
    return pow_(2.0, x)


exp2 = unary_function(
    "exp2", slopes=(lambda x, out: out * _LN2,), pairs=lambda z: exp_pair(z * _LN2),
    cost=4, cost_cpu=15, expansion=exp2_f32, expansion_cpu=through64(exp2_64),
    numpy="exp2", python=lambda x: math.pow(2.0, x), libm="exp2", onnx=_exp2_onnx,
)  # fmt: skip


def expm1_f32(x: Expr) -> Expr:
    """Return e^x - 1 without cancellation: 2^n (e^r - 1) + (2^n - 1), where the last term is
    exact."""
    y = minimum(maximum(x, -18.0), 18.0)
    n = round_(y * math.log2(math.e))
    r = y - n * _LN2_HIGH - n * _LN2_LOW
    t = power_of_two(cast(n, int32))
    # r itself is added last, so that small arguments keep all their digits.
    near = where(eq(n, 0.0), r * r * poly(r, _EXP) + r, t * (r * r * poly(r, _EXP) + r) + (t - 1.0))
    return where(lt(abs(x), 2.0**-13), x + x * x * 0.5, where(gt(x, 17.0), exp_f32(x), near))


def expm1_pair(z: Pair) -> Pair:
    """Return e**z - 1, also near 0."""
    _, half = cosine_and_sine(z.im * 0.5)
    cosine, sine = cosine_and_sine(z.im)
    return Pair(
        expm1(z.re) * cosine - 2.0 * half * half,
        where(eq(z.im, 0.0), z.im, exp(z.re) * sine),
    )


def _expm1_onnx(x: Expr) -> Expr:
    # expm1(x) = 2 t / (1 - t), t = tanh(x / 2): exact where exp(x) - 1 loses its digits.
    t = unary("tanh", x * 0.5)
    return where(abs(x) < 0.5, (t + t) / (1.0 - t), exp(x) - 1.0)


expm1 = unary_function(
    # Not out + 1, which has no digits left where out is near -1.
    "expm1", slopes=(lambda x, out: exp(x),), pairs=expm1_pair, cost=6, cost_cpu=25,
    expansion=expm1_f32, expansion_cpu=through64(expm1_64), numpy="expm1", python=math.expm1,
    libm="expm1", onnx=_expm1_onnx,
)  # fmt: skip


# -- logarithms


_LOG = (0.666666627, 0.400003791, 0.285343856, 0.236399829)
# log10 2 in two parts, as ln 2.
_LG2_HIGH, _LG2_LOW = 0.30078125, 2.487456639811952e-4
_LOG_CPU = (
    0.3333331679079299, -0.25000811128381695, 0.20002280645912476, -0.16624520928843575, 0.14181309214160848,
    -0.13129237088891532, 0.12880961062437465, -0.07857310686499751,
)  # fmt: skip


def log_parts(x: Expr) -> tuple[Expr, Expr]:
    """Return (f, k) with x = 2^k (1 + f) and 1 + f in [sqrt(1/2), sqrt 2), for positive finite
    `x`."""
    small = lt(x, 2.0**-126)
    bits = bits_of(where(small, x * 2.0**25, x))
    # Adding moves the cut between exponents from 1 to sqrt 2.
    shifted = bits + (0x3F800000 - 0x3F3504F3)
    k = cast(shr(shifted, 23), int32) - where(small, const(127 + 25, int32), 127)
    m = bitcast((shifted & 0x007FFFFF) + 0x3F3504F3, float32)
    return m - 1.0, cast(k, float32)


def _log1p_core(f: Expr) -> Expr:
    """Return log(1 + f) - f for f in [-0.293, 0.415], from atanh's series in s = f / (2 + f)."""
    s = f / (f + 2.0)
    h = f * f * 0.5
    return s * (h + s * s * poly(s * s, _LOG)) - h


def _log_special(x: Expr, value: Expr) -> Expr:
    value = where(eq(x, _INF), x, value)
    value = where(lt(x, 0.0), _NAN, value)
    return where(isnan(x), x, where(eq(x, 0.0), -_INF, value))


def log_f32(x: Expr) -> Expr:
    """Return the natural logarithm."""
    f, k = log_parts(x)
    return _log_special(x, k * _LN2_HIGH + (f + (k * _LN2_LOW + _log1p_core(f))))


def log_cpu(x: Expr) -> Expr:
    """Return the natural logarithm: x = 2^e (1 + f) with 1 + f between sqrt(1/2) and sqrt(2)."""
    small = x < 1.1754943508222875e-38
    pivot = 0x3F3504F3
    offset = bitcast(where(small, x * 8388608.0, x), int32) - pivot
    e = cast(shr(offset, 23), float32)
    e = where(small, e - 23.0, e)
    g = bitcast((offset & 0x7FFFFF) + pivot, float32) - 1.0
    square = g * g
    p = fused(g, _LOG_CPU) * (square * g)
    p = fma(e, -2.1219444e-4, p)
    p = fma(square, -0.5, p)
    return log_ends(x, fma(e, 0.693359375, g + p))


def log_pair(z: Pair) -> Pair:
    """Return the principal logarithm."""
    size = modulus(z)
    a, b = abs(z.re), abs(z.im)
    m, n = maximum(a, b), minimum(a, b)
    # Near |z| = 1 the logarithm of the rounded modulus has no correct digits.
    near = log1p((m - 1.0) * (m + 1.0) + n * n) * 0.5
    return Pair(where((size > 0.5) & (size < 2.0), near, log(size)), angle(z))


def _python_log(function: Callable[[float], float], pole: float = 0.0) -> Callable[[float], float]:
    return lambda x: -_INF if x == pole else function(x)


log = unary_function(
    "log", slopes=(lambda x, out: 1.0 / x,), pairs=log_pair, cost=4, cost_cpu=15,
    expansion=log_f32, expansion_cpu=log_cpu, numpy="log", python=_python_log(math.log),
    libm="log", onnx="Log",
)  # fmt: skip


def log2_f32(x: Expr) -> Expr:
    """Return the logarithm to base 2; exact for powers of two."""
    f, k = log_parts(x)
    core = _log1p_core(f)
    # 1/ln 2 = 1.4375 + 0.00519...: the first product keeps the head of f exact.
    head = head_of(f)
    rest = (f - head) + core
    c_low = math.log2(math.e) - 1.4375
    return _log_special(x, k + (head * 1.4375 + (rest * 1.4375 + (head + rest) * c_low)))


log2 = unary_function(
    "log2", slopes=(lambda x, out: 1.0 / (x * _LN2),), pairs=lambda z: log_pair(z) * (1.0 / _LN2),
    cost=4, cost_cpu=15, expansion=log2_f32, expansion_cpu=through64(lambda x: log64(x) * LOG2E),
    numpy="log2", python=_python_log(math.log2), libm="log2", onnx=lambda x: log(x) * (1 / _LN2),
)  # fmt: skip


def log10_f32(x: Expr) -> Expr:
    """Return the logarithm to base 10."""
    f, k = log_parts(x)
    core = _log1p_core(f)
    head = head_of(f)
    rest = (f - head) + core
    c_low = math.log10(math.e) - 0.43359375
    low = rest * 0.43359375 + (head + rest) * c_low + k * _LG2_LOW
    return _log_special(x, k * _LG2_HIGH + (head * 0.43359375 + low))


log10 = unary_function(
    "log10", slopes=(lambda x, out: 1.0 / (x * _LN10),),
    pairs=lambda z: log_pair(z) * (1.0 / _LN10), cost=4, cost_cpu=15, expansion=log10_f32,
    expansion_cpu=through64(lambda x: log64(x) * 0.4342944819032518), numpy="log10",
    python=_python_log(math.log10), libm="log10", onnx=lambda x: log(x) * (1 / _LN10),
)  # fmt: skip


def log1p_f32(x: Expr) -> Expr:
    """Return log(1 + x) without cancellation."""
    near = x + _log1p_core(x)
    return where(gt(x, -0.2925) & lt(x, 0.4142), near, log_f32(x + 1.0))


def log1p_pair(z: Pair) -> Pair:
    """Return log(1 + z), also near 0."""
    near = where(is_zero(z), z.re, log1p(z.re * (z.re + 2.0) + z.im * z.im) * 0.5)
    far = log_pair(z + 1.0)
    small = (abs(z.re) < 0.5) & (abs(z.im) < 0.5)
    return Pair(where(small, near, far.re), angle(z + 1.0))


def _log1p_onnx(x: Expr) -> Expr:
    # log1p(x) = 2 atanh(x / (2 + x)), exact where 1 + x loses the digits of x.
    t = unary("atanh", x / (x + 2.0))
    return where(abs(x) < 0.5, t + t, log(x + 1.0))


log1p = unary_function(
    "log1p", slopes=(lambda x, out: 1.0 / (x + 1.0),), pairs=log1p_pair, cost=6, cost_cpu=25,
    expansion=log1p_f32, expansion_cpu=through64(log1p64), numpy="log1p",
    python=_python_log(math.log1p, -1.0), libm="log1p", onnx=_log1p_onnx,
)  # fmt: skip


# -- powers


_LOG2 = (0.961796701, 0.577077985, 0.412203938, 0.320114672, 0.28009361)


def pow_f32(x: Expr, y: Expr) -> Expr:
    """Return x^y with C's rules: pow(x, 0) = pow(1, y) = 1; negative bases only with integer
    exponents.

    log2|x| is computed to 36 bits in two parts, so that its product with y still has an exact
    fraction.
    """
    ax = abs(x)
    f, k = log_parts(ax)
    # s = f / (2 + f) in two parts, the head exact with 12 bits, so its products are exact.
    m = f + 1.0
    t = m + 1.0
    s = f / t
    s_head = head_of(s)
    t_head = head_of(t)
    t_tail = m - (t_head - 1.0)
    s_tail = ((f - s_head * t_head) - s_head * t_tail) / t
    c = 2 / math.log(2)
    c_head = 2.884765625
    z = s * s
    low = s_head * (c - c_head) + s_tail * c + s * z * poly(z, _LOG2)
    top = s_head * c_head
    log_head = head_of(k + (top + low))
    log_tail = ((k - log_head) + top) + low
    limited = minimum(maximum(y, -(2.0**100)), 2.0**100)
    y_head = head_of(limited)
    y_tail = limited - y_head
    p_head = y_head * log_head
    p_tail = y_tail * log_head + limited * log_tail
    p = minimum(maximum(p_head + p_tail, -152.0), 129.0)
    n = round_(p)
    r = minimum(maximum((p_head - n) + p_tail, -1.0), 1.0)
    general = scaled(r * poly(r, _EXP2) + 1.0, cast(n, int32))

    is_integer = eq(trunc(y), y)
    half = y * 0.5
    # From 2^24 on every float is even.
    is_odd = is_integer & ne(trunc(half), half) & lt(abs(y), 2.0**24)
    negative = ne(shr(bits_of(x), 31), 0)
    up = gt(y, 0.0)
    value = where(eq(ax, 0.0), where(up, f32(0.0), _INF), general)
    value = where(eq(ax, _INF), where(up, f32(_INF), 0.0), value)
    y_infinite = eq(abs(y), _INF)
    at_infinity = where(eq(gt(ax, 1.0), up), f32(_INF), 0.0)
    value = where(y_infinite, where(eq(ax, 1.0), 1.0, at_infinity), value)
    value = where(negative & is_odd, -value, value)
    value = where(lt(x, 0.0) & ~is_integer & ~isinf(x), _NAN, value)
    # Whole powers of whole numbers are exact as products as long as they stay below 2^24.
    product = f32(1.0)
    base = x
    exponent = cast(minimum(maximum(y, 0.0), 31.0), int32)
    for bit in range(5):
        product = product * where(ne(exponent & (1 << bit), 0), base, 1.0)
        base = base * base
    whole = is_integer & ge(y, 0.0) & le(y, 24.0) & eq(trunc(x), x) & le(abs(product), 2.0**24)
    value = where(whole, product, value)
    value = where(isnan(x) | isnan(y), _NAN, value)
    value = where(eq(y, 1.0), x, where(eq(y, 2.0), x * x, value))
    return where(eq(x, 1.0) | eq(y, 0.0), 1.0, value)


@through64
def pow_cpu(x: Expr, y: Expr) -> Expr:
    """Return x^y with the special cases of C's pow."""
    size = abs(x)
    # A product past 800 overflows float32 on either side; infinities are told apart by the clamps of exp64.
    result = exp64(y * log64(size))
    whole = eq(round_(y), y)
    odd = whole & ne(round_(y * 0.5), y * 0.5)
    signed = bitcast(bitcast(result, int64) | (bitcast(x, int64) & -0x8000000000000000), x.dtype)
    result = where(odd, signed, result)
    undefined = (x < 0.0) & ~whole & (size < _INF)
    result = where(undefined, _NAN, result)
    result = where(eq(size, 1.0) & eq(abs(y), _INF), 1.0, result)
    return where(eq(x, 1.0) | eq(y, 0.0), 1.0, result)


def pow_pair(x: Pair, y: Pair) -> Pair:
    """Return x to the power y: 1 where y is zero, 0 where only x is."""
    found = select(is_zero(x), 0.0, exp_pair(y * log_pair(x)))
    return select(is_zero(y), 1.0, found)


def _power_of_numbers(x: float, y: float) -> float:
    """Raise to a power, as C does."""
    try:
        return math.pow(x, y)
    except OverflowError:
        return -_INF if x < 0 and y % 2 == 1 else _INF
    except ValueError:
        if x == 0:
            return math.copysign(_INF, x) if y % 2 == 1 else _INF
        return _NAN


def _base(x: Expr, y: Expr, out: Expr) -> Expr:
    return where(eq(y, 0.0), const(0.0, x.dtype), y * pow_(x, y - 1.0))


def _exponent(x: Expr, y: Expr, out: Expr) -> Expr:
    # At x == 0 the slope is 0 for y >= 0 (PyTorch's convention), not 0 * log(0).
    return where(eq(x, 0.0) & (y >= 0.0), const(0.0, x.dtype), out * log(x))


def _powers(x: tuple[int, int], y: tuple[int, int]) -> tuple[int, int]:
    # By 64 all but 0, 1 and -1 are beyond every type.
    most = int(max(map(abs, x)) ** min(max(y[1], 1), 64))
    return (-most if x[0] < 0 else 0), max(most, 1)


pow_ = binary_function(
    "pow", slopes=(_base, _exponent), bounds_integers=_powers, pairs=pow_pair, wraps=True, cost=8, cost_cpu=50,
    expansion=pow_f32, expansion_cpu=pow_cpu,
    wgsl={"i32": "wt_i32_pow({0}, {1})", "u32": "wt_u32_pow({0}, {1})"},
    python=_power_of_numbers, libm="pow", onnx="Pow",
)  # fmt: skip
