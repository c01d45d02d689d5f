"""The error function and its complement: their forms, and the records that name them."""

from __future__ import annotations

import math

from webtorch.ir.dtype import int32
from webtorch.ir.expr.arithmetic import copysign, fma, head_of, isnan, lt, minimum, round_
from webtorch.ir.expr.exponential import exp, exp_parts, expm1_f32
from webtorch.ir.expr.float32 import poly, power_of_two, scaled
from webtorch.ir.expr.float64 import exp2_between, exp64, fused, through64, with_sign_of
from webtorch.ir.expr.node import Expr, cast, unary_function, where

_TWO_OVER_SQRT_PI = 2.0 / math.sqrt(math.pi)
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
_ERF_CPU = (
    0.12837915003693587, -0.37612494316785383, 0.11281802772333238, -0.026765567000183118, 0.004990980253304297,
    -0.0005976893799094341,
)  # fmt: skip
_ERF_LOG_CPU = (
    -0.0002560603177013121, -1.6269987473610246, -0.919082862325316, -0.15009426290470226, 0.03213908488274998,
    -0.004408321228887555, 0.0002844743490340635,
)  # fmt: skip
_ERFCX_CPU = (
    0.25539567631062166,
    -0.42718584741434024,
    0.24165819421766924,
    -0.07897858096928083,
    0.003732893278600433,
    0.006997460599212588,
    -0.0008471552847669786,
    -0.0009819669282805797,
    4.363991231814122e-05,
    0.00017432650517240666,
    2.7192214668148864e-05,
    -2.757395314040498e-05,
    -1.321279912709807e-05,
    1.647281267791012e-06,
    2.8703206424928055e-06,
    5.774808871676096e-07,
    -5.556958284142693e-08,
)


def erf_f32(x: Expr) -> Expr:
    """Return the error function within 2.5 units in the last place: a polynomial up to 0.92, then
    1 - 2^polynomial. Both are computed and one is chosen: a branch that neighbours take differently
    costs more, and keeps the four values of a vector from being worked on at once."""
    a = abs(x)
    z = x * x
    # 2/sqrt(pi) |x|, plus a correction.
    near = a * 1.12837923 + a * poly(z, _ERF)
    y = poly(where(lt(a, 4.0), a, 4.0), _LOG2_ERFC)
    n = round_(y)
    r = y - n
    far = 1.0 - (r * poly(r, _EXP2_SHORT) + 1.0) * power_of_two(cast(n, int32))
    value = where(lt(a, 0.92), near, where(isnan(x), x, far))
    return copysign(value, x)


def erfc_f32(x: Expr) -> Expr:
    """Return 1 - erf(x), with all its digits in the right tail."""
    a = minimum(abs(x), 10.5)
    # exp(-a^2): the square of the head is exact, the rest of the square is small.
    head = head_of(a)
    p, n = exp_parts(-(head * head))
    square = p * (1.0 + expm1_f32((head - a) * (head + a)))
    t = (a - 2.0) / (a + 2.0)
    tail = scaled(square * poly(t, _ERFCX) / (1.0 + 2.0 * a), n)
    far = where(lt(x, 0.0), 2.0 - tail, tail)
    return where(lt(a, 0.45), 1.0 - erf_f32(x), where(isnan(x), x, far))


def erf_cpu(x: Expr) -> Expr:
    """Return the error function: x + x P(x^2) near 0, 1 - 2^Q(|x|) elsewhere."""
    size = abs(x)
    near = fma(size, fused(size * size, _ERF_CPU), size)
    # Past 3.93 the result is 1; the polynomial was not fitted there.
    far = 1.0 - exp2_between(fused(where(size > 3.95, 3.95, size), _ERF_LOG_CPU))
    return with_sign_of(where(size < 0.925, near, far), x)


@through64
def erfc_cpu(x: Expr) -> Expr:
    """Return 1 - erf(x): e^-x^2 times a polynomial in (|x| - 2) / (|x| + 2)."""
    size = abs(x)
    size = where(size > 10.2, 10.2, size)
    tail = exp64(-(size * size)) * fused((size - 2.0) / (size + 2.0), _ERFCX_CPU)
    # Both sides of the comparison fail for NaN, whose size is NaN.
    return where(x < 0.0, 2.0 - tail, tail)


erf = unary_function(
    "erf", slopes=(lambda x, out: exp(-(x * x)) * _TWO_OVER_SQRT_PI,), cost=8, cost_cpu=25,
    expansion=erf_f32, expansion_cpu=erf_cpu, python=math.erf, libm="erf", onnx="Erf",
)  # fmt: skip
erfc = unary_function(
    "erfc", slopes=(lambda x, out: exp(-(x * x)) * -_TWO_OVER_SQRT_PI,), cost=8, cost_cpu=25,
    expansion=erfc_f32, expansion_cpu=erfc_cpu, python=math.erfc, libm="erfc",
    onnx=lambda x: 1.0 - erf(x),
)  # fmt: skip
