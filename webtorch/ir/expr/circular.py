"""Circular and hyperbolic functions and their inverses: for each its forms, and the record that names them.

Complex inverse functions are Kahan's (1987): from square roots and real inverses, exact on their branch cuts.
"""

from __future__ import annotations

import math
from functools import partial

from webtorch.ir.dtype import float32, int32, int64, uint32
from webtorch.ir.expr.arithmetic import (
    copysign,
    eq,
    fma,
    ge,
    gt,
    isinf,
    isnan,
    le,
    lt,
    maximum,
    minimum,
    ne,
    round_,
    shl,
    shr,
    sign,
    unbounded,
)
from webtorch.ir.expr.exponential import (
    exp,
    exp_f32,
    exp_parts,
    hypot,
    log,
    log1p,
    log1p_f32,
    log_f32,
    rsqrt,
    sqrt,
    sqrt_pair,
)
from webtorch.ir.expr.float32 import bits_of, f32, odd, poly, scaled
from webtorch.ir.expr.float64 import (
    LOG2E,
    ROUND64,
    exp2_between,
    exp64,
    expm1_64,
    fused,
    log1p64,
    odd64,
    through64,
    with_sign_of,
)
from webtorch.ir.expr.node import (
    Expr,
    binary_function,
    bitcast,
    cast,
    const,
    unary_function,
    where,
)
from webtorch.ir.expr.pair import Pair, conj, is_infinite, select, times_i
from webtorch.ir.expr.record import Formula

_NAN, _INF = math.nan, math.inf


# -- sine, cosine, tangent


_SIN = (-0.166666672, 0.00833332911, -0.000198392561, 2.71756448e-06)
_COS = (0.0416666679, -0.00138888834, 2.47994358e-05, -2.7203302e-07)
_TAN = (
    0.333333552, 0.133324966, 0.0540785268, 0.021187339, 0.0110792117, -0.000216626882, 0.00452638231,
)  # fmt: skip
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
_LARGE = 30000.0
_FAR = 1048576.0
_SIN_CPU = (
    -0.16666666666631555,
    0.008333333325267426,
    -0.0001984126382147348,
    2.755535756635834e-06,
    -2.4761645237580052e-08,
)
_COS_CPU = (
    0.04166666666659367,
    -0.0013888888877242665,
    2.4801580551284684e-05,
    -2.755549621895882e-07,
    2.0643484600945153e-09,
)
# 1 / (2 pi), 28 bits at a time: the product of each part with a float32 is exact in float64.
_TURN = (
    0.15915494039654732, 2.6953480142255515e-09, 4.038449450981451e-18, 1.9241762118391763e-26,
    4.1707168783816406e-35, 3.8770419007437455e-43, 1.7634897189248905e-52,
)  # fmt: skip


def _mul_wide(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Return the (high, low) words of a * b for uint32; 16-bit halves, since no target here has the
    high word."""
    al, ah, bl, bh = a & 0xFFFF, shr(a, 16), b & 0xFFFF, shr(b, 16)
    mid = ah * bl + shr(al * bl, 16)
    mid2 = al * bh + (mid & 0xFFFF)
    return ah * bh + shr(mid, 16) + shr(mid2, 16), a * b


def _carry(total: Expr, part: Expr) -> Expr:
    return cast(lt(total, part), uint32)


def _reduce_large(x: Expr) -> tuple[Expr, Expr]:
    """Return (r, q) with |x| = q pi/2 + r, |r| <= pi/4, q modulo 4, exactly for any finite |x| >= 2
    (Payne-Hanek).

    Only the bits of 2/pi that reach the quadrant and 70 bits of fraction are multiplied.
    """
    bits = bits_of(x) & 0x7FFFFFFF
    m = (bits & 0x007FFFFF) | 0x00800000
    # x 2/pi = m 2^(e-23) 0.T; bits of T with weight 4 and more in the product are skipped.
    start = shr(bits, 23) - (127 + 23 - 30)
    word, offset = shr(start, 5), start & 31

    def table(shift: int) -> Expr:
        """Return a word of the bits of 2 / pi."""
        out = const(_TWO_OVER_PI[min(4 + shift, 7)], uint32)
        for i in range(3, -1, -1):
            out = where(eq(word, i), const(_TWO_OVER_PI[i + shift], uint32), out)
        return out

    words = [table(i) for i in range(4)]
    # shr by 32 gives 0 (the shift of this IR), which is what an offset of 0 needs.
    a = [shl(words[i], offset) | shr(words[i + 1], 32 - offset) for i in range(3)]
    h2, r2 = _mul_wide(m, a[2])
    h1, l1 = _mul_wide(m, a[1])
    r1 = l1 + h2
    r0 = m * a[0] + h1 + _carry(r1, h2)
    f = shl(r0, 2) | shr(r1, 30)
    g = shl(r1, 2) | shr(r2, 30)
    negative = ge(f, 0x80000000)
    q = shr(r0, 30) + cast(negative, uint32)
    # Two's complement of the 64-bit fraction where the nearest multiple is above.
    g = where(negative, ~g + 1, g)
    f = where(negative, ~f + cast(eq(g, 0), uint32), f)
    value = cast(f, float32) * 2.0**-32 + cast(g, float32) * 2.0**-64
    r = value * (math.pi / 2)
    return where(negative, -r, r), cast(q & 3, int32)


def _reduce_small(x: Expr) -> tuple[Expr, Expr]:
    """Return (r, q) with x = q pi/2 + r for |x| below 2^15 (Cody-Waite)."""
    n = round_(x * (2 / math.pi))
    r = x
    for part in _HALF_PI:
        r = r - n * part
    return r, cast(n, int32) & 3


def _sin_core(r: Expr) -> Expr:
    return odd(r, _SIN)


def _cos_core(r: Expr) -> Expr:
    z = r * r
    return 1.0 - (z * 0.5 - z * z * poly(z, _COS))


def _sin_of(r: Expr, q: Expr) -> Expr:
    """Return sin(r + q pi/2)."""
    value = where(eq(q & 1, 0), _sin_core(r), _cos_core(r))
    return where(ge(q & 3, 2), -value, value)


def _invalid(x: Expr, value: Expr) -> Expr:
    """Return NaN where `x` is infinite or NaN."""
    return where(ge(bits_of(x) & 0x7FFFFFFF, 0x7F800000), _NAN, value)


def sin_f32(x: Expr) -> Expr:
    """Return the sine."""
    r, q = _reduce_large(x)
    big = _sin_of(r, q)
    big = where(lt(x, 0.0), -big, big)
    return where(ge(abs(x), _LARGE) | isnan(x), _invalid(x, big), _sin_of(*_reduce_small(x)))


def cos_f32(x: Expr) -> Expr:
    """Return the cosine."""
    r, q = _reduce_large(x)
    small, n = _reduce_small(x)
    return where(
        ge(abs(x), _LARGE) | isnan(x), _invalid(x, _sin_of(r, q + 1)), _sin_of(small, n + 1)
    )


def _tan_of(r: Expr, q: Expr) -> Expr:
    t = odd(r, _TAN)
    return where(eq(q & 1, 0), t, -1.0 / t)


def tan_f32(x: Expr) -> Expr:
    """Return the tangent."""
    big = _tan_of(*_reduce_large(x))
    big = where(lt(x, 0.0), -big, big)
    return where(ge(abs(x), _LARGE) | isnan(x), _invalid(x, big), _tan_of(*_reduce_small(x)))


def _quadrant(x: Expr, far: bool) -> tuple[Expr, Expr, Expr]:
    """Return the quadrant number of float64 `x`, and the sine and cosine of what is left.

    Cody and Waite's reduction up to 2^20; past that, where `far`, whole turns are taken off part by part, without
    rounding. Infinity gives NaN by inf - inf.
    """
    shifted = fma(x, 0.6366197723675814, ROUND64)
    n = shifted - ROUND64
    # The first part has 33 bits: its products with n below 2^20 are exact even without a fused multiply-add.
    r = fma(n, -1.57079632673412561417, x)
    r = fma(n, -6.07710050630396597660e-11, r)
    r = fma(n, -2.02226624879595063154e-21, r)
    if far:
        turns = const(0.0, x.dtype)
        for part in _TURN:
            product = x * part
            turns = turns + (product - round_(product))
        quarters = (turns - round_(turns)) * 4.0
        nearest = quarters + ROUND64
        near = abs(x) < _FAR
        shifted = where(near, shifted, nearest)
        r = where(near, r, (quarters - (nearest - ROUND64)) * 1.5707963267948966)
    z = r * r
    sine = fma(r * z, fused(z, _SIN_CPU), r)
    cosine = fma(z * z, fused(z, _COS_CPU), fma(z, -0.5, 1.0))
    return bitcast(shifted, int64), sine, cosine


def _turned(quadrant: Expr, a: Expr, b: Expr) -> Expr:
    """Return a, b, -a, -b for quadrants 0 to 3."""
    value = where(eq(quadrant & 1, 0), a, b)
    return where(eq(quadrant & 2, 0), value, -value)


def _sin64(x: Expr, far: bool) -> Expr:
    quadrant, sine, cosine = _quadrant(x, far)
    # -0 has no other way through the additions.
    return where(eq(x, 0.0), x, _turned(quadrant, sine, cosine))


def _cos64(x: Expr, far: bool) -> Expr:
    quadrant, sine, cosine = _quadrant(x, far)
    return _turned(quadrant, cosine, -sine)


def _tan64(x: Expr, far: bool) -> Expr:
    quadrant, sine, cosine = _quadrant(x, far)
    odd = ne(quadrant & 1, 0)
    ratio = where(odd, -cosine, sine) / where(odd, sine, cosine)
    return where(eq(x, 0.0), x, ratio)


def _forms_cpu(function: Formula) -> dict[str, Formula]:
    """Return the forms for processors of a function of an angle: for all, and for those that are not far."""
    return {
        "expansion_cpu": through64(partial(function, far=True)),
        "expansion_usual": through64(partial(function, far=False)),
        "rare": lambda x: ge(abs(x), _FAR) | isnan(x),
    }


# At infinities and NaN complex functions are what C says in its Annex G (PyTorch's are C's).


def _scaled_sine(x: Expr, size: Expr) -> Expr:
    """Return sin(x) * size; zero where x is, whatever the size, and where the size is, whatever the angle."""
    sine = sin(x)
    zero = copysign(const(1.0, x.dtype), size) * x
    found = where(unbounded(x) & eq(size, 0.0), size, sine * size)
    return where(eq(x, 0.0), zero, found)


def _scaled_cosine(x: Expr, size: Expr, argument: Expr) -> Expr:
    """Return cos(x) * size, the size of `argument`; where x is no angle, 0 or infinity if the size is that."""
    known = where(isinf(argument), _INF, where(eq(size, 0.0), size, _NAN))
    return where(unbounded(x), known, cos(x) * size)


def sin_pair(z: Pair) -> Pair:
    """Return the sine."""
    return Pair(_scaled_sine(z.re, cosh(z.im)), _scaled_cosine(z.re, sinh(z.im), z.im))


def cos_pair(z: Pair) -> Pair:
    """Return the cosine."""
    return Pair(_scaled_cosine(z.re, cosh(z.im), z.im), -_scaled_sine(z.re, sinh(z.im)))


def sinh_pair(z: Pair) -> Pair:
    """Return the hyperbolic sine."""
    return Pair(_scaled_cosine(z.im, sinh(z.re), z.re), _scaled_sine(z.im, cosh(z.re)))


def cosh_pair(z: Pair) -> Pair:
    """Return the hyperbolic cosine."""
    return Pair(_scaled_cosine(z.im, cosh(z.re), z.re), _scaled_sine(z.im, sinh(z.re)))


def tanh_pair(z: Pair) -> Pair:
    """Return the hyperbolic tangent. Kahan, 1987."""
    far = abs(z.re) > 15.0
    x = where(far, 0.0, z.re)
    t, s = tan(z.im), sinh(x)
    beta = 1.0 + t * t
    below = 1.0 + beta * s * s
    tail = 4.0 * sin(z.im) * cos(z.im) * exp(abs(z.re) * -2.0)
    tail = where(isinf(z.re) & unbounded(z.im), copysign(const(0.0, x.dtype), z.im), tail)
    near = Pair(
        where(eq(x, 0.0), x, beta * sqrt(1.0 + s * s) * s / below),
        where(eq(z.im, 0.0), z.im, t / below),
    )
    # Far from 0 and at no angle (infinite, or NaN) both parts are NaN.
    one = where(isnan(tail), tail, copysign(const(1.0, x.dtype), z.re))
    return select(far, Pair(one, tail), near)


def tan_pair(z: Pair) -> Pair:
    """Return the tangent."""
    return -times_i(tanh_pair(times_i(z)))


def _slope_of_sine(x: Expr, out: Expr) -> Expr:
    return cos(x)


sin = unary_function(
    "sin", slopes=(_slope_of_sine,), pairs=sin_pair, cost=6, cost_cpu=15,
    expansion=sin_f32, **_forms_cpu(_sin64), numpy="sin", python=math.sin, libm="sin", onnx="Sin",
)  # fmt: skip
cos = unary_function(
    "cos", slopes=(lambda x, out: -sin(x),), pairs=cos_pair, cost=6, cost_cpu=15,
    expansion=cos_f32, **_forms_cpu(_cos64), numpy="cos", python=math.cos, libm="cos", onnx="Cos",
)  # fmt: skip
tan = unary_function(
    "tan", slopes=(lambda x, out: 1.0 + out * out,), pairs=tan_pair, cost=8, cost_cpu=25,
    expansion=tan_f32, **_forms_cpu(_tan64), numpy="tan", python=math.tan, libm="tan", onnx="Tan",
)  # fmt: skip


# -- angles


_ATAN = (-0.333333164, 0.199984878, -0.142438024, 0.105956383, -0.0608248636)
_ASIN = (0.166666597, 0.0750051364, 0.0445152223, 0.0318220332, 0.0143849887, 0.0375911295)
# On [0, 1], to 4e-10.
_ATAN_CPU = (
    1.0, -0.33333327433815196, 0.19999692628507862, -0.14280130981792966, 0.11060246169860356, -0.08818854513761701,
    0.0675958647023702, -0.044946650271842595, 0.022760516651125835, -0.007422721175541746, 0.0011348951599815772,
)  # fmt: skip
# asin(t) / t - 1 on [0, 0.5], by t^2.
_ASIN_FUSED = (
    0.16666659712791443, 0.07500510662794113, 0.04451572149991989, 0.03181760758161545, 0.014402614906430244,
    0.037565186619758606,
)  # fmt: skip
# pi / 2 in two parts of float32.
_RIGHT = (1.5707963705062866, -4.371138828673793e-08)


def _atan_core(t: Expr) -> Expr:
    """Return atan(t) for t in [0, 1]: above tan(pi/8) through the difference to pi/4."""
    far = gt(t, 0.41421357)
    y = where(far, (t - 1.0) / (t + 1.0), t)
    value = odd(y, _ATAN)
    return where(far, value + math.pi / 4, value)


def atan_f32(x: Expr) -> Expr:
    """Return the arc tangent."""
    a = abs(x)
    far = gt(a, 1.0)
    value = _atan_core(where(far, 1.0 / a, a))
    return where(isnan(x), x, copysign(where(far, math.pi / 2 - value, value), x))


def atan2_f32(y: Expr, x: Expr) -> Expr:
    """Return the angle of the point (x, y), with C's rules for signed zeros and infinities."""
    ax, ay = abs(x), abs(y)
    high, low = maximum(ax, ay), minimum(ax, ay)
    # Division may be wrong beyond 2^126.
    shrink = where(gt(high, 2.0**120), f32(2.0**-20), 1.0)
    t = (low * shrink) / (high * shrink)
    # 0/0 and inf/inf are the angles 0 and pi/4.
    t = where(eq(high, 0.0), 0.0, where(eq(low, _INF), 1.0, t))
    value = _atan_core(t)
    value = where(gt(ay, ax), math.pi / 2 - value, value)
    value = where(ne(shr(bits_of(x), 31), 0), math.pi - value, value)
    return where(isnan(x) | isnan(y), _NAN, copysign(value, y))


def asin_f32(x: Expr) -> Expr:
    """Return the arc sine; NaN outside [-1, 1]."""
    a = abs(x)
    far = gt(a, 0.5)
    z = (1.0 - a) * 0.5
    t = where(far, sqrt(z), a)
    value = odd(t, _ASIN)
    value = where(far, math.pi / 2 - 2.0 * value, value)
    return where(gt(a, 1.0) | isnan(x), _NAN, copysign(value, x))


def acos_f32(x: Expr) -> Expr:
    """Return the arc cosine; NaN outside [-1, 1]."""
    a = abs(x)
    far = gt(a, 0.5)
    t = where(far, sqrt((1.0 - a) * 0.5), x)
    value = odd(t, _ASIN)
    end = where(lt(x, 0.0), math.pi - 2.0 * value, 2.0 * value)
    # pi/2 in two parts: acos near 0.5 would show the error of one.
    middle = 1.57079637 - (value - -4.37113883e-8)
    return where(gt(a, 1.0) | isnan(x), _NAN, where(far, end, middle))


def _angle(y: Expr, x: Expr) -> Expr:
    """Return the angle of the point (x, y) for float64, with the signs of zeros and infinities as
    C's atan2 has them.
    """
    tall, wide = abs(y), abs(x)
    steep = tall > wide
    low, high = where(steep, wide, tall), where(steep, tall, wide)
    t = low / high
    t = where(eq(high, 0.0), 0.0, t)
    t = where(eq(low, _INF), 1.0, t)
    t = where(isnan(tall) | isnan(wide), tall + wide, t)
    angle = t * fused(t * t, _ATAN_CPU)
    angle = where(steep, 1.5707963267948966 - angle, angle)
    left = bitcast(x, int64) < 0
    angle = where(left, 3.141592653589793 - angle, angle)
    # NaN keeps its sign bit through this, and stays NaN.
    return bitcast(bitcast(angle, int64) | (bitcast(y, int64) & -0x8000000000000000), x.dtype)


@odd64
def atan_cpu(x: Expr) -> Expr:
    """Return the inverse tangent."""
    steep = x > 1.0
    t = where(steep, 1.0 / x, x)
    angle = t * fused(t * t, _ATAN_CPU)
    return where(steep, 1.5707963267948966 - angle, angle)


@through64
def asin_cpu(x: Expr) -> Expr:
    """Return the inverse sine."""
    return _angle(x, sqrt((1.0 - x) * (1.0 + x)))


@through64
def acos_cpu(x: Expr) -> Expr:
    """Return the inverse cosine."""
    return _angle(sqrt((1.0 - x) * (1.0 + x)), x)


def _from_right_angle(t: Expr, less: Expr) -> Expr:
    """Return pi / 2 - t - less, where `less` is small, as if rounded once."""
    high = _RIGHT[0] - t
    lost = (_RIGHT[0] - high) - t
    return high + (lost + (_RIGHT[1] - less))


def _arc(x: Expr) -> tuple[Expr, Expr, Expr, Expr]:
    """Return whether |x| > 0.5, t, what asin(t) is beyond t, and what t lacks.

    There t is the root of (1 - |x|) / 2, whose rounding shows, and elsewhere |x|. 1 / t need only be near.
    """
    size = abs(x)
    far = size > 0.5
    half = fma(size, -0.5, 0.5)
    root = sqrt(half)
    inverse = bitcast(0x7EF311C7 - bitcast(root, int32), float32)
    lost = fma(-root, root, half) * (inverse * 0.5)
    t = where(far, root, size)
    z = where(far, half, size * size)
    return far, t, t * z * fused(z, _ASIN_FUSED), lost


def asin_fused(x: Expr) -> Expr:
    """Return the inverse sine."""
    far, t, more, lost = _arc(x)
    end = _from_right_angle(t + t, 2.0 * (more + lost))
    return copysign(where(far, end, t + more), x)


def acos_fused(x: Expr) -> Expr:
    """Return the inverse cosine."""
    far, t, more, lost = _arc(x)
    left = x < 0.0
    twice, rest = t + t, 2.0 * (more + lost)
    # pi less the angle; half of it is computed, which is exact.
    behind = 2.0 * _from_right_angle(t, more + lost)
    end = where(left, behind, twice + rest)
    return where(far, end, _from_right_angle(x, copysign(more, x)))


def _infinite_as(x: Expr) -> Expr:
    """Return the infinity with the sign of x."""
    return copysign(const(_INF, x.dtype), x)


def acos_pair(z: Pair) -> Pair:
    """Return the inverse cosine."""
    below, above = sqrt_pair(1.0 - z), sqrt_pair(1.0 + z)
    re = where(eq(z.re, 0.0) & isnan(z.im), math.pi / 2, 2.0 * atan2(below.re, above.re))
    found = Pair(re, asinh((conj(above) * below).im))
    return select(is_infinite(z), Pair(atan2(abs(z.im), z.re), _infinite_as(-z.im)), found)


def asin_pair(z: Pair) -> Pair:
    """Return the inverse sine."""
    below, above = sqrt_pair(1.0 - z), sqrt_pair(1.0 + z)
    re = where(eq(z.re, 0.0), z.re, atan2(z.re, (below * above).re))
    found = Pair(re, asinh((conj(below) * above).im))
    return select(is_infinite(z), Pair(atan2(z.re, abs(z.im)), _infinite_as(z.im)), found)


def acosh_pair(z: Pair) -> Pair:
    """Return the inverse hyperbolic cosine."""
    below, above = sqrt_pair(z - 1.0), sqrt_pair(z + 1.0)
    im = where(eq(z.re, 0.0) & isnan(z.im), math.pi / 2, 2.0 * atan2(below.im, above.re))
    found = Pair(asinh((conj(below) * above).re), im)
    return select(is_infinite(z), Pair(const(_INF, z.re.dtype), atan2(z.im, z.re)), found)


def asinh_pair(z: Pair) -> Pair:
    """Return the inverse hyperbolic sine."""
    return -times_i(asin_pair(times_i(z)))


def atanh_pair(z: Pair) -> Pair:
    """Return the inverse hyperbolic tangent."""
    # Of -z it is the opposite: on the left side the argument of log1p would be near -1.
    left, y = z.re < 0, z.im
    x = where(left, -z.re, z.re)
    distance = (1.0 - x) * (1.0 - x) + y * y
    # The square of a small distance underflows.
    near = (log(hypot(1.0 + x, y)) - log(hypot(1.0 - x, y))) * 0.5
    size = where(distance < 1e-12, near, log1p(4.0 * x / distance) * 0.25)
    right_angle = where(isnan(y), y, copysign(const(math.pi / 2, y.dtype), y))
    found = Pair(
        where(eq(x, 0.0), z.re, where(left, -size, size)),
        atan2(2.0 * y, (1.0 - x) * (1.0 + x) - y * y) * 0.5,
    )
    return select(is_infinite(z), Pair(copysign(const(0.0, y.dtype), z.re), right_angle), found)


def atan_pair(z: Pair) -> Pair:
    """Return the inverse tangent."""
    return -times_i(atanh_pair(times_i(z)))


asin = unary_function(
    "asin", slopes=(lambda x, out: rsqrt(1.0 - x * x),), pairs=asin_pair, cost=6, cost_cpu=25,
    expansion=asin_f32, expansion_cpu=asin_cpu, expansion_fused=asin_fused,
    numpy="arcsin", python=math.asin, libm="asin", onnx="Asin",
)  # fmt: skip
acos = unary_function(
    "acos", slopes=(lambda x, out: -rsqrt(1.0 - x * x),), pairs=acos_pair, cost=6, cost_cpu=25,
    expansion=acos_f32, expansion_cpu=acos_cpu, expansion_fused=acos_fused,
    numpy="arccos", python=math.acos, libm="acos", onnx="Acos",
)  # fmt: skip
atan = unary_function(
    "atan", slopes=(lambda x, out: 1.0 / (x * x + 1.0),), pairs=atan_pair, cost=6, cost_cpu=25,
    expansion=atan_f32, expansion_cpu=atan_cpu, numpy="arctan", python=math.atan, libm="atan",
    onnx="Atan",
)  # fmt: skip


def _of_point(x: Expr, y: Expr, value: Expr) -> Expr:
    return where(eq(x, 0.0) & eq(y, 0.0), const(0.0, x.dtype), value)


def _atan2_onnx(y: Expr, x: Expr) -> Expr:
    base = atan(y / x)
    turned = where(x < 0, where(y < 0, base - math.pi, base + math.pi), base)
    return where(eq(x, 0), sign(y) * (math.pi / 2), turned)


atan2 = binary_function(
    "atan2",
    slopes=(
        lambda x, y, out: _of_point(x, y, y / (x * x + y * y)),
        lambda x, y, out: _of_point(x, y, -x / (x * x + y * y)),
    ),
    cost=8, cost_cpu=25, expansion=atan2_f32, expansion_cpu=through64(_angle), numpy="arctan2",
    python=math.atan2, libm="atan2", onnx=_atan2_onnx,
)  # fmt: skip


# -- hyperbolic functions


_SINH = (0.166666672, 0.00833335146, 0.000198359616, 2.81806342e-06)
_TANH = (-0.333333313, 0.133332476, -0.0539524741, 0.0217344388, -0.00826708786, 0.00223106099)
_ATANH = (
    0.333333373, 0.199997172, 0.142951101, 0.109640785, 0.103016481, 0.0239522159, 0.176611841,
)  # fmt: skip
_TANH_CPU = (
    1.0,
    -0.33333272080756055,
    0.13331152762796478,
    -0.0537141042278666,
    0.020551710653691702,
    -0.005603905454037327,
)


def _half_exp(x: Expr) -> Expr:
    """Return e^x / 2, finite wherever that is."""
    p, n = exp_parts(x)
    return scaled(p, n - 1)


def sinh_f32(x: Expr) -> Expr:
    """Return the hyperbolic sine."""
    a = abs(x)
    h = _half_exp(a)
    far = copysign(h - 0.25 / h, x)
    return where(lt(a, 1.0), odd(x, _SINH), where(isnan(x), x, far))


def cosh_f32(x: Expr) -> Expr:
    """Return the hyperbolic cosine."""
    h = _half_exp(abs(x))
    return h + 0.25 / h


def tanh_f32(x: Expr) -> Expr:
    """Return the hyperbolic tangent; the argument is clamped, since e^2x may overflow."""
    a = minimum(abs(x), 10.0)
    far = copysign(1.0 - 2.0 / (exp_f32(a * 2.0) + 1.0), x)
    return where(lt(a, 0.55), odd(x, _TANH), where(isnan(x), x, far))


def asinh_f32(x: Expr) -> Expr:
    """Return the inverse hyperbolic sine."""
    a = abs(x)
    z = a * a
    near = log1p_f32(a + z / (1.0 + sqrt(1.0 + z)))
    value = where(gt(a, 4096.0), log_f32(a) + math.log(2), near)
    return where(isnan(x), x, copysign(value, x))


def acosh_f32(x: Expr) -> Expr:
    """Return the inverse hyperbolic cosine; NaN below 1."""
    t = x - 1.0
    near = log1p_f32(t + sqrt(2.0 * t + t * t))
    value = where(gt(x, 4096.0), log_f32(x) + math.log(2), near)
    return where(ge(x, 1.0), value, _NAN)


def atanh_f32(x: Expr) -> Expr:
    """Return the inverse hyperbolic tangent; NaN outside [-1, 1]."""
    a = abs(x)
    far = copysign(0.5 * log1p_f32(2.0 * a / (1.0 - a)), x)
    value = where(eq(a, 1.0), copysign(f32(_INF), x), far)
    value = where(le(a, 0.5), odd(x, _ATANH), value)
    return where(gt(a, 1.0) | isnan(x), _NAN, value)


@odd64
def sinh_cpu(x: Expr) -> Expr:
    """Return the hyperbolic sine."""
    e = expm1_64(x)
    return 0.5 * (e + e / (e + 1.0))


@through64
def cosh_cpu(x: Expr) -> Expr:
    """Return the hyperbolic cosine."""
    e = exp64(abs(x))
    return 0.5 * (e + 1.0 / e)


def tanh_cpu(x: Expr) -> Expr:
    """Return the hyperbolic tangent: 1 - 2 / (e^2|x| + 1), or an odd polynomial near 0."""
    size = abs(x)
    # From 9.1 on the result is 1.
    power = exp2_between(2.0 * LOG2E * where(size > 9.5, 9.5, size))
    far = 1.0 - 2.0 / (power + 1.0)
    near = size * fused(size * size, _TANH_CPU)
    return with_sign_of(where(size < 0.625, near, far), x)


@odd64
def asinh_cpu(x: Expr) -> Expr:
    """Return the inverse hyperbolic sine."""
    square = x * x
    t = x + square / (1.0 + sqrt(1.0 + square))
    return where(eq(x, _INF), x, log1p64(t))


@through64
def acosh_cpu(x: Expr) -> Expr:
    """Return the inverse hyperbolic cosine."""
    t = x - 1.0
    t = where(t < 0.0, _NAN, t)
    return log1p64(t + sqrt(t * (t + 2.0)))


@odd64
def atanh_cpu(x: Expr) -> Expr:
    """Return the inverse hyperbolic tangent."""
    return 0.5 * log1p64(2.0 * x / (1.0 - x))


def _python_sinh(x: float) -> float:
    return math.sinh(x) if abs(x) < 710.0 else math.copysign(_INF, x) if x == x else x


def _python_atanh(x: float) -> float:
    return math.copysign(_INF, x) if abs(x) == 1.0 else math.atanh(x)


def _slope_of_sinh(x: Expr, out: Expr) -> Expr:
    return cosh(x)


sinh = unary_function(
    "sinh", slopes=(_slope_of_sinh,), pairs=sinh_pair, cost=6, cost_cpu=25,
    expansion=sinh_f32, expansion_cpu=sinh_cpu, numpy="sinh", python=_python_sinh, libm="sinh",
    onnx="Sinh",
)  # fmt: skip
cosh = unary_function(
    "cosh", slopes=(lambda x, out: sinh(x),), pairs=cosh_pair, cost=6, cost_cpu=25,
    expansion=cosh_f32, expansion_cpu=cosh_cpu, numpy="cosh", python=math.cosh, libm="cosh",
    onnx="Cosh",
)  # fmt: skip
tanh = unary_function(
    "tanh", slopes=(lambda x, out: 1.0 - out * out,), pairs=tanh_pair, cost=6, cost_cpu=15,
    expansion=tanh_f32, expansion_cpu=tanh_cpu, numpy="tanh", python=math.tanh, libm="tanh",
    onnx="Tanh",
)  # fmt: skip
asinh = unary_function(
    "asinh", slopes=(lambda x, out: rsqrt(x * x + 1.0),), pairs=asinh_pair, cost=6, cost_cpu=25,
    expansion=asinh_f32, expansion_cpu=asinh_cpu, numpy="arcsinh", python=math.asinh, libm="asinh",
    onnx="Asinh",
)  # fmt: skip
acosh = unary_function(
    # Two roots: also right for complex numbers left of the imaginary axis.
    "acosh", slopes=(lambda x, out: rsqrt(x - 1.0) * rsqrt(x + 1.0),), pairs=acosh_pair,
    cost=6, cost_cpu=25, expansion=acosh_f32, expansion_cpu=acosh_cpu, numpy="arccosh",
    python=math.acosh, libm="acosh", onnx="Acosh",
)  # fmt: skip
atanh = unary_function(
    "atanh", slopes=(lambda x, out: 1.0 / (1.0 - x * x),), pairs=atanh_pair, cost=6, cost_cpu=25,
    expansion=atanh_f32, expansion_cpu=atanh_cpu, numpy="arctanh", python=_python_atanh,
    libm="atanh", onnx="Atanh",
)  # fmt: skip
