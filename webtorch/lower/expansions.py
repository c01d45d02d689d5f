"""Accurate float32 functions written with arithmetic, bit operations and selection. Floor 2;
imports floor 0 only.

For targets whose own functions are missing or too inexact: WGSL promises exp only to 3 + 2|x| units
in the last place and sin
only to 2^-11. Every function here is meant to be within 4 units of the true value over its whole
domain, special points as in
PyTorch. A target renders each one once as a function, or expands it in place with `expand`.

Rules that keep the formulas right on every compiler:
* Sums may be reassociated, so no error term is computed as (a + b) - a; parts are split off by
masking bits (`_head`).
* fma may or may not be used: products that must be exact have factors with few bits.
* Division may be 2.5 units off: it only enters where that is damped.

Coefficients are minimax fits (iteratively reweighted least squares on Chebyshev nodes, 40-digit
arithmetic), rounded to
float32. Methods: Cody and Waite, Software Manual for the Elementary Functions (1980); Payne and
Hanek, Radian Reduction
for Trigonometric Functions (1983).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from webtorch.ir import expr as ex
from webtorch.ir.dtype import float32, int32, uint32
from webtorch.ir.expr import Expr

_EXP = (0.5, 0.166666672, 0.0416662619, 0.00833326392, 0.00139466487, 0.000199185961)
_EXP2 = (
    0.693147182, 0.240226507, 0.0555041097, 0.00961803459, 0.00133334275, 0.000154678768, 1.5315698e-05,
)  # fmt: skip
_LOG = (0.666666627, 0.400003791, 0.285343856, 0.236399829)
_LOG2 = (0.961796701, 0.577077985, 0.412203938, 0.320114672, 0.28009361)
_SIN = (-0.166666672, 0.00833332911, -0.000198392561, 2.71756448e-06)
_COS = (0.0416666679, -0.00138888834, 2.47994358e-05, -2.7203302e-07)
_TAN = (
    0.333333552, 0.133324966, 0.0540785268, 0.021187339, 0.0110792117, -0.000216626882, 0.00452638231,
)  # fmt: skip
_ATAN = (-0.333333164, 0.199984878, -0.142438024, 0.105956383, -0.0608248636)
_ASIN = (0.166666597, 0.0750051364, 0.0445152223, 0.0318220332, 0.0143849887, 0.0375911295)
_ATANH = (
    0.333333373, 0.199997172, 0.142951101, 0.109640785, 0.103016481, 0.0239522159, 0.176611841,
)  # fmt: skip
_TANH = (-0.333333313, 0.133332476, -0.0539524741, 0.0217344388, -0.00826708786, 0.00223106099)
_SINH = (0.166666672, 0.00833335146, 0.000198359616, 2.81806342e-06)
_ERF = (
    -5.90802003e-08, -0.376126349, 0.112836972, -0.0268595014, 0.00520128664, -0.000814560161, 8.38239430e-05,
)  # fmt: skip
# The logarithm to base 2 of erfc, from 0.88 to 4, and 2^r - 1 over r for |r| up to a half.
_LOG2_ERFC = (
    0.000235859057, -1.62946689, -0.913887441, -0.156035945, 0.0361225866, -0.00597268948, 0.000617455866,
    -2.96197467e-05,
)  # fmt: skip
_EXP2_SHORT = (0.693146944, 0.240221202, 0.0555071346, 0.00967554096, 0.00132764084)
_ERFCX = (
    1.27697837, -0.0927638263, -0.166030407, 0.164051205, -0.0542197935, -0.00803288538, 0.00872067455, 0.00126325584,
    -0.00144873245, -0.000425751932, 0.000193118118, 0.000101099686,
)  # fmt: skip

# ln 2 and log10 2 in two parts, the first with so few bits that its product with an exponent is
# exact.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_LG2_HIGH, _LG2_LOW = 0.30078125, 2.487456639811952e-4
# pi/2 in parts of 9 bits (the last one has 24), so that products with a quotient below 2^15 are
# exact.
_HALF_PI = (
    1.5703125, 0.00048351287841796875, 3.1385570764541626e-07, 6.070877134334296e-11, 6.223371969669989e-14,
)  # fmt: skip
# 2/pi as a fraction, after one word of zeros.
_TWO_OVER_PI = (
    0,
    0xA2F9836E,
    0x4E441529,
    0xFC2757D1,
    0xF534DDC0,
    0xDB629599,
    0x3C439041,
    0xFE5163AB,
)
_NAN, _INF = math.nan, math.inf


def _f(value: float) -> Expr:
    return ex.const(value, float32)


def _poly(x: Expr, coefficients: tuple[float, ...]) -> Expr:
    """Return c0 + c1 x + c2 x^2 + ... by Horner's rule."""
    out = _f(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        out = out * x + c
    return out


def _odd(x: Expr, coefficients: tuple[float, ...]) -> Expr:
    """Return x + x^3 P(x^2)."""
    z = x * x
    return x + x * (z * _poly(z, coefficients))


def _bits(x: Expr) -> Expr:
    return ex.bitcast(x, uint32)


def _head(x: Expr) -> Expr:
    """Return `x` with its last 12 bits cleared: 12 significant bits remain, and x - head is
    exact."""
    return ex.bitcast(_bits(x) & 0xFFFFF000, float32)


def _power_of_two(n: Expr) -> Expr:
    """Return 2^n for an int32 `n` from -126 to 127."""
    return ex.bitcast(ex.shl(n + 127, 23), float32)


def _scale(p: Expr, n: Expr) -> Expr:
    """Return p * 2^n for an int32 `n` from -252 to 254: in two steps, so that neither factor
    overflows."""
    half = ex.shr(n, 1)
    return p * _power_of_two(half) * _power_of_two(n - half)


def _exp_parts(x: Expr) -> tuple[Expr, Expr]:
    """Return (p, n) with exp(x) = p * 2^n, for `x` clamped to where float32 has an answer."""
    x = ex.minimum(ex.maximum(x, -106.0), 91.0)
    n = ex.round_(x * math.log2(math.e))
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    return r * r * _poly(r, _EXP) + r + 1.0, ex.cast(n, int32)


def exp(x: Expr) -> Expr:
    """Return e^x."""
    return _scale(*_exp_parts(x))


def exp2(x: Expr) -> Expr:
    """Return 2^x."""
    x = ex.minimum(ex.maximum(x, -152.0), 129.0)
    n = ex.round_(x)
    r = x - n
    return _scale(r * _poly(r, _EXP2) + 1.0, ex.cast(n, int32))


def expm1(x: Expr) -> Expr:
    """Return e^x - 1 without cancellation: 2^n (e^r - 1) + (2^n - 1), where the last term is
    exact."""
    y = ex.minimum(ex.maximum(x, -18.0), 18.0)
    n = ex.round_(y * math.log2(math.e))
    r = y - n * _LN2_HIGH - n * _LN2_LOW
    t = _power_of_two(ex.cast(n, int32))
    # r itself is added last, so that small arguments keep all their digits.
    near = ex.where(
        ex.eq(n, 0.0), r * r * _poly(r, _EXP) + r, t * (r * r * _poly(r, _EXP) + r) + (t - 1.0)
    )
    return ex.where(
        ex.lt(abs(x), 2.0**-13), x + x * x * 0.5, ex.where(ex.gt(x, 17.0), exp(x), near)
    )


def _log_parts(x: Expr) -> tuple[Expr, Expr]:
    """Return (f, k) with x = 2^k (1 + f) and 1 + f in [sqrt(1/2), sqrt 2), for positive finite
    `x`."""
    small = ex.lt(x, 2.0**-126)
    bits = _bits(ex.where(small, x * 2.0**25, x))
    # Adding moves the cut between exponents from 1 to sqrt 2.
    shifted = bits + (0x3F800000 - 0x3F3504F3)
    k = ex.cast(ex.shr(shifted, 23), int32) - ex.where(small, ex.const(127 + 25, int32), 127)
    m = ex.bitcast((shifted & 0x007FFFFF) + 0x3F3504F3, float32)
    return m - 1.0, ex.cast(k, float32)


def _log1p_core(f: Expr) -> Expr:
    """Return log(1 + f) - f for f in [-0.293, 0.415], from atanh's series in s = f / (2 + f)."""
    s = f / (f + 2.0)
    h = f * f * 0.5
    return s * (h + s * s * _poly(s * s, _LOG)) - h


def _log_special(x: Expr, value: Expr) -> Expr:
    value = ex.where(ex.eq(x, _INF), x, value)
    value = ex.where(ex.lt(x, 0.0), _NAN, value)
    return ex.where(ex.isnan(x), x, ex.where(ex.eq(x, 0.0), -_INF, value))


def log(x: Expr) -> Expr:
    """Return the natural logarithm."""
    f, k = _log_parts(x)
    return _log_special(x, k * _LN2_HIGH + (f + (k * _LN2_LOW + _log1p_core(f))))


def log2(x: Expr) -> Expr:
    """Return the logarithm to base 2; exact for powers of two."""
    f, k = _log_parts(x)
    core = _log1p_core(f)
    # 1/ln 2 = 1.4375 + 0.00519...: the first product keeps the head of f exact.
    head = _head(f)
    rest = (f - head) + core
    c_low = math.log2(math.e) - 1.4375
    return _log_special(x, k + (head * 1.4375 + (rest * 1.4375 + (head + rest) * c_low)))


def log10(x: Expr) -> Expr:
    """Return the logarithm to base 10."""
    f, k = _log_parts(x)
    core = _log1p_core(f)
    head = _head(f)
    rest = (f - head) + core
    c_low = math.log10(math.e) - 0.43359375
    low = rest * 0.43359375 + (head + rest) * c_low + k * _LG2_LOW
    return _log_special(x, k * _LG2_HIGH + (head * 0.43359375 + low))


def log1p(x: Expr) -> Expr:
    """Return log(1 + x) without cancellation."""
    near = x + _log1p_core(x)
    return ex.where(ex.gt(x, -0.2925) & ex.lt(x, 0.4142), near, log(x + 1.0))


# --- trigonometric functions ---


def _mul_wide(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Return the (high, low) words of a * b for uint32; 16-bit halves, since no target here has the
    high word."""
    al, ah, bl, bh = a & 0xFFFF, ex.shr(a, 16), b & 0xFFFF, ex.shr(b, 16)
    mid = ah * bl + ex.shr(al * bl, 16)
    mid2 = al * bh + (mid & 0xFFFF)
    return ah * bh + ex.shr(mid, 16) + ex.shr(mid2, 16), a * b


def _carry(total: Expr, part: Expr) -> Expr:
    return ex.cast(ex.lt(total, part), uint32)


def _reduce_large(x: Expr) -> tuple[Expr, Expr]:
    """Return (r, q) with |x| = q pi/2 + r, |r| <= pi/4, q modulo 4, exactly for any finite |x| >= 2
    (Payne-Hanek).

    Only the bits of 2/pi that reach the quadrant and 70 bits of fraction are multiplied.
    """
    bits = _bits(x) & 0x7FFFFFFF
    m = (bits & 0x007FFFFF) | 0x00800000
    # x 2/pi = m 2^(e-23) 0.T; bits of T with weight 4 and more in the product are skipped.
    start = ex.shr(bits, 23) - (127 + 23 - 30)
    word, offset = ex.shr(start, 5), start & 31

    def table(shift: int) -> Expr:
        """Return the word of 2/pi, from `shift` bits below the argument's exponent on."""
        out = ex.const(_TWO_OVER_PI[min(4 + shift, 7)], uint32)
        for i in range(3, -1, -1):
            out = ex.where(ex.eq(word, i), ex.const(_TWO_OVER_PI[i + shift], uint32), out)
        return out

    words = [table(i) for i in range(4)]
    # shr by 32 gives 0 (the shift of this IR), which is what an offset of 0 needs.
    a = [ex.shl(words[i], offset) | ex.shr(words[i + 1], 32 - offset) for i in range(3)]
    h2, r2 = _mul_wide(m, a[2])
    h1, l1 = _mul_wide(m, a[1])
    r1 = l1 + h2
    r0 = m * a[0] + h1 + _carry(r1, h2)
    f = ex.shl(r0, 2) | ex.shr(r1, 30)
    g = ex.shl(r1, 2) | ex.shr(r2, 30)
    negative = ex.ge(f, 0x80000000)
    q = ex.shr(r0, 30) + ex.cast(negative, uint32)
    # Two's complement of the 64-bit fraction where the nearest multiple is above.
    g = ex.where(negative, ~g + 1, g)
    f = ex.where(negative, ~f + ex.cast(ex.eq(g, 0), uint32), f)
    value = ex.cast(f, float32) * 2.0**-32 + ex.cast(g, float32) * 2.0**-64
    r = value * (math.pi / 2)
    return ex.where(negative, -r, r), ex.cast(q & 3, int32)


def _reduce_small(x: Expr) -> tuple[Expr, Expr]:
    """Return (r, q) with x = q pi/2 + r for |x| below 2^15 (Cody-Waite)."""
    n = ex.round_(x * (2 / math.pi))
    r = x
    for part in _HALF_PI:
        r = r - n * part
    return r, ex.cast(n, int32) & 3


def _sin_core(r: Expr) -> Expr:
    return _odd(r, _SIN)


def _cos_core(r: Expr) -> Expr:
    z = r * r
    return 1.0 - (z * 0.5 - z * z * _poly(z, _COS))


_LARGE = 30000.0


def _sin_of(r: Expr, q: Expr) -> Expr:
    """Return sin(r + q pi/2)."""
    value = ex.where(ex.eq(q & 1, 0), _sin_core(r), _cos_core(r))
    return ex.where(ex.ge(q & 3, 2), -value, value)


def _invalid(x: Expr, value: Expr) -> Expr:
    """Return NaN where `x` is infinite or NaN."""
    return ex.where(ex.ge(_bits(x) & 0x7FFFFFFF, 0x7F800000), _NAN, value)


def sin(x: Expr) -> Expr:
    """Return the sine."""
    r, q = _reduce_large(x)
    big = _sin_of(r, q)
    big = ex.where(ex.lt(x, 0.0), -big, big)
    return ex.where(
        ex.ge(abs(x), _LARGE) | ex.isnan(x), _invalid(x, big), _sin_of(*_reduce_small(x))
    )


def cos(x: Expr) -> Expr:
    """Return the cosine."""
    r, q = _reduce_large(x)
    small, n = _reduce_small(x)
    return ex.where(
        ex.ge(abs(x), _LARGE) | ex.isnan(x), _invalid(x, _sin_of(r, q + 1)), _sin_of(small, n + 1)
    )


def _tan_of(r: Expr, q: Expr) -> Expr:
    t = _odd(r, _TAN)
    return ex.where(ex.eq(q & 1, 0), t, -1.0 / t)


def tan(x: Expr) -> Expr:
    """Return the tangent."""
    big = _tan_of(*_reduce_large(x))
    big = ex.where(ex.lt(x, 0.0), -big, big)
    return ex.where(
        ex.ge(abs(x), _LARGE) | ex.isnan(x), _invalid(x, big), _tan_of(*_reduce_small(x))
    )


def _atan_core(t: Expr) -> Expr:
    """Return atan(t) for t in [0, 1]: above tan(pi/8) through the difference to pi/4."""
    far = ex.gt(t, 0.41421357)
    y = ex.where(far, (t - 1.0) / (t + 1.0), t)
    value = _odd(y, _ATAN)
    return ex.where(far, value + math.pi / 4, value)


def atan(x: Expr) -> Expr:
    """Return the arc tangent."""
    a = abs(x)
    far = ex.gt(a, 1.0)
    value = _atan_core(ex.where(far, 1.0 / a, a))
    return ex.where(ex.isnan(x), x, ex.copysign(ex.where(far, math.pi / 2 - value, value), x))


def atan2(y: Expr, x: Expr) -> Expr:
    """Return the angle of the point (x, y), with C's rules for signed zeros and infinities."""
    ax, ay = abs(x), abs(y)
    high, low = ex.maximum(ax, ay), ex.minimum(ax, ay)
    # Division may be wrong beyond 2^126.
    shrink = ex.where(ex.gt(high, 2.0**120), _f(2.0**-20), 1.0)
    t = (low * shrink) / (high * shrink)
    # 0/0 and inf/inf are the angles 0 and pi/4.
    t = ex.where(ex.eq(high, 0.0), 0.0, ex.where(ex.eq(low, _INF), 1.0, t))
    value = _atan_core(t)
    value = ex.where(ex.gt(ay, ax), math.pi / 2 - value, value)
    value = ex.where(ex.ne(ex.shr(_bits(x), 31), 0), math.pi - value, value)
    return ex.where(ex.isnan(x) | ex.isnan(y), _NAN, ex.copysign(value, y))


def asin(x: Expr) -> Expr:
    """Return the arc sine; NaN outside [-1, 1]."""
    a = abs(x)
    far = ex.gt(a, 0.5)
    z = (1.0 - a) * 0.5
    t = ex.where(far, ex.sqrt(z), a)
    value = _odd(t, _ASIN)
    value = ex.where(far, math.pi / 2 - 2.0 * value, value)
    return ex.where(ex.gt(a, 1.0) | ex.isnan(x), _NAN, ex.copysign(value, x))


def acos(x: Expr) -> Expr:
    """Return the arc cosine; NaN outside [-1, 1]."""
    a = abs(x)
    far = ex.gt(a, 0.5)
    t = ex.where(far, ex.sqrt((1.0 - a) * 0.5), x)
    value = _odd(t, _ASIN)
    end = ex.where(ex.lt(x, 0.0), math.pi - 2.0 * value, 2.0 * value)
    # pi/2 in two parts: acos near 0.5 would show the error of one.
    middle = 1.57079637 - (value - -4.37113883e-8)
    return ex.where(ex.gt(a, 1.0) | ex.isnan(x), _NAN, ex.where(far, end, middle))


# --- hyperbolic functions ---


def _half_exp(x: Expr) -> Expr:
    """Return e^x / 2, finite wherever that is."""
    p, n = _exp_parts(x)
    return _scale(p, n - 1)


def sinh(x: Expr) -> Expr:
    """Return the hyperbolic sine."""
    a = abs(x)
    h = _half_exp(a)
    far = ex.copysign(h - 0.25 / h, x)
    return ex.where(ex.lt(a, 1.0), _odd(x, _SINH), ex.where(ex.isnan(x), x, far))


def cosh(x: Expr) -> Expr:
    """Return the hyperbolic cosine."""
    h = _half_exp(abs(x))
    return h + 0.25 / h


def tanh(x: Expr) -> Expr:
    """Return the hyperbolic tangent; the argument is clamped, since e^2x may overflow."""
    a = ex.minimum(abs(x), 10.0)
    far = ex.copysign(1.0 - 2.0 / (exp(a * 2.0) + 1.0), x)
    return ex.where(ex.lt(a, 0.55), _odd(x, _TANH), ex.where(ex.isnan(x), x, far))


def asinh(x: Expr) -> Expr:
    """Return the inverse hyperbolic sine."""
    a = abs(x)
    z = a * a
    near = log1p(a + z / (1.0 + ex.sqrt(1.0 + z)))
    value = ex.where(ex.gt(a, 4096.0), log(a) + math.log(2), near)
    return ex.where(ex.isnan(x), x, ex.copysign(value, x))


def acosh(x: Expr) -> Expr:
    """Return the inverse hyperbolic cosine; NaN below 1."""
    t = x - 1.0
    near = log1p(t + ex.sqrt(2.0 * t + t * t))
    value = ex.where(ex.gt(x, 4096.0), log(x) + math.log(2), near)
    return ex.where(ex.ge(x, 1.0), value, _NAN)


def atanh(x: Expr) -> Expr:
    """Return the inverse hyperbolic tangent; NaN outside [-1, 1]."""
    a = abs(x)
    far = ex.copysign(0.5 * log1p(2.0 * a / (1.0 - a)), x)
    value = ex.where(ex.eq(a, 1.0), ex.copysign(_f(_INF), x), far)
    value = ex.where(ex.le(a, 0.5), _odd(x, _ATANH), value)
    return ex.where(ex.gt(a, 1.0) | ex.isnan(x), _NAN, value)


# --- error function ---


def erf(x: Expr) -> Expr:
    """Return the error function within 2.5 units in the last place: a polynomial up to 0.92, then
    1 - 2^polynomial. Both are computed and one is chosen: a branch that neighbours take differently
    costs more, and keeps the four values of a vector from being worked on at once."""
    a = abs(x)
    z = x * x
    # 2/sqrt(pi) |x|, plus a correction.
    near = a * 1.12837923 + a * _poly(z, _ERF)
    y = _poly(ex.where(ex.lt(a, 4.0), a, 4.0), _LOG2_ERFC)
    n = ex.round_(y)
    r = y - n
    far = 1.0 - (r * _poly(r, _EXP2_SHORT) + 1.0) * _power_of_two(ex.cast(n, int32))
    value = ex.where(ex.lt(a, 0.92), near, ex.where(ex.isnan(x), x, far))
    return ex.copysign(value, x)


def erfc(x: Expr) -> Expr:
    """Return 1 - erf(x), with all its digits in the right tail."""
    a = ex.minimum(abs(x), 10.5)
    # exp(-a^2): the square of the head is exact, the rest of the square is small.
    head = _head(a)
    p, n = _exp_parts(-(head * head))
    square = p * (1.0 + expm1((head - a) * (head + a)))
    t = (a - 2.0) / (a + 2.0)
    tail = _scale(square * _poly(t, _ERFCX) / (1.0 + 2.0 * a), n)
    far = ex.where(ex.lt(x, 0.0), 2.0 - tail, tail)
    return ex.where(ex.lt(a, 0.45), 1.0 - erf(x), ex.where(ex.isnan(x), x, far))


# --- powers ---


def hypot(x: Expr, y: Expr) -> Expr:
    """Return sqrt(x^2 + y^2), without overflow on the way."""
    ax, ay = abs(x), abs(y)
    high = ex.maximum(ax, ay)
    big, small = ex.gt(high, 2.0**60), ex.lt(high, 2.0**-40)
    scale = ex.where(big, _f(2.0**-80), ex.where(small, _f(2.0**80), 1.0))
    back = ex.where(big, _f(2.0**80), ex.where(small, _f(2.0**-80), 1.0))
    sx, sy = ax * scale, ay * scale
    value = ex.sqrt(sx * sx + sy * sy) * back
    return ex.where(ex.eq(ax, _INF) | ex.eq(ay, _INF), _INF, value)


def pow_(x: Expr, y: Expr) -> Expr:
    """Return x^y with C's rules: pow(x, 0) = pow(1, y) = 1; negative bases only with integer
    exponents.

    log2|x| is computed to 36 bits in two parts, so that its product with y still has an exact
    fraction.
    """
    ax = abs(x)
    f, k = _log_parts(ax)
    # s = f / (2 + f) in two parts, the head exact with 12 bits, so its products are exact.
    m = f + 1.0
    t = m + 1.0
    s = f / t
    s_head = _head(s)
    t_head = _head(t)
    t_tail = m - (t_head - 1.0)
    s_tail = ((f - s_head * t_head) - s_head * t_tail) / t
    c = 2 / math.log(2)
    c_head = 2.884765625
    z = s * s
    low = s_head * (c - c_head) + s_tail * c + s * z * _poly(z, _LOG2)
    top = s_head * c_head
    log_head = _head(k + (top + low))
    log_tail = ((k - log_head) + top) + low
    limited = ex.minimum(ex.maximum(y, -(2.0**100)), 2.0**100)
    y_head = _head(limited)
    y_tail = limited - y_head
    p_head = y_head * log_head
    p_tail = y_tail * log_head + limited * log_tail
    p = ex.minimum(ex.maximum(p_head + p_tail, -152.0), 129.0)
    n = ex.round_(p)
    r = ex.minimum(ex.maximum((p_head - n) + p_tail, -1.0), 1.0)
    general = _scale(r * _poly(r, _EXP2) + 1.0, ex.cast(n, int32))

    is_integer = ex.eq(ex.trunc(y), y)
    half = y * 0.5
    # From 2^24 on every float is even.
    is_odd = is_integer & ex.ne(ex.trunc(half), half) & ex.lt(abs(y), 2.0**24)
    negative = ex.ne(ex.shr(_bits(x), 31), 0)
    up = ex.gt(y, 0.0)
    value = ex.where(ex.eq(ax, 0.0), ex.where(up, _f(0.0), _INF), general)
    value = ex.where(ex.eq(ax, _INF), ex.where(up, _f(_INF), 0.0), value)
    y_infinite = ex.eq(abs(y), _INF)
    at_infinity = ex.where(ex.eq(ex.gt(ax, 1.0), up), _f(_INF), 0.0)
    value = ex.where(y_infinite, ex.where(ex.eq(ax, 1.0), 1.0, at_infinity), value)
    value = ex.where(negative & is_odd, -value, value)
    value = ex.where(ex.lt(x, 0.0) & ~is_integer & ~ex.isinf(x), _NAN, value)
    # Whole powers of whole numbers are exact as products as long as they stay below 2^24.
    product = _f(1.0)
    base = x
    exponent = ex.cast(ex.minimum(ex.maximum(y, 0.0), 31.0), int32)
    for bit in range(5):
        product = product * ex.where(ex.ne(exponent & (1 << bit), 0), base, 1.0)
        base = base * base
    whole = (
        is_integer
        & ex.ge(y, 0.0)
        & ex.le(y, 24.0)
        & ex.eq(ex.trunc(x), x)
        & ex.le(abs(product), 2.0**24)
    )
    value = ex.where(whole, product, value)
    value = ex.where(ex.isnan(x) | ex.isnan(y), _NAN, value)
    value = ex.where(ex.eq(y, 1.0), x, ex.where(ex.eq(y, 2.0), x * x, value))
    return ex.where(ex.eq(x, 1.0) | ex.eq(y, 0.0), 1.0, value)


# op -> (formula, number of arguments)
EXPANSIONS: dict[str, tuple[Callable[..., Expr], int]] = {
    "exp": (exp, 1),
    "exp2": (exp2, 1),
    "expm1": (expm1, 1),
    "log": (log, 1),
    "log2": (log2, 1),
    "log10": (log10, 1),
    "log1p": (log1p, 1),
    "sin": (sin, 1),
    "cos": (cos, 1),
    "tan": (tan, 1),
    "asin": (asin, 1),
    "acos": (acos, 1),
    "atan": (atan, 1),
    "sinh": (sinh, 1),
    "cosh": (cosh, 1),
    "tanh": (tanh, 1),
    "asinh": (asinh, 1),
    "acosh": (acosh, 1),
    "atanh": (atanh, 1),
    "erf": (erf, 1),
    "erfc": (erfc, 1),
    "pow": (pow_, 2),
    "atan2": (atan2, 2),
    "hypot": (hypot, 2),
}


def expand(root: Expr, ops: Collection[str]) -> Expr:
    """Return `root` with every float32 use of `ops` replaced by its expansion."""

    def rule(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
        """Return the expansion of a float32 node, None for others."""
        if node.op in ops and node.op in EXPANSIONS and args[0].dtype is float32:
            return EXPANSIONS[node.op][0](*args)
        return None

    return ex.rewrite(root, rule)
