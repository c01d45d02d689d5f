"""Parts of the expansions for processors (`expansion_cpu`): straight code that fills vectors, with
fused multiply-adds, and in float64 where cancellation would show.

Why there are two forms of a function: a GPU has no float64 and need not fuse, so its form splits numbers
into parts and takes branches; on a processor float64 gives the same digits in a third of the
instructions and without a branch, and without a mathematics library, so that whole loops are vector code.

Polynomials are our own fits: weighted least squares, reweighted towards equal error, computed in float64.
"""

from __future__ import annotations

import math

from webtorch.ir.dtype import float32, float64, int32, int64
from webtorch.ir.expr.arithmetic import eq, fma, shl, shr
from webtorch.ir.expr.float32 import power_of_two
from webtorch.ir.expr.node import Expr, bitcast, cast, const, where
from webtorch.ir.expr.record import Formula

# 1.5 * 2^23 and 1.5 * 2^52: adding one rounds to an integer.
ROUND32, ROUND64 = 12582912.0, 6755399441055744.0
LOG2E = 1.4426950408889634
_EXP2 = (
    1.0, 0.6931472134901656, 0.24022240462677796, 0.05550309951063165, 0.009671605075219266, 0.0013406850648353108,
)  # fmt: skip
# 2^x on [-1/2, 1/2], to 4e-11.
_EXP2_64 = (
    0.999999999961682, 0.693147180728449, 0.2402265119815679, 0.055504103534414165, 0.00961802725377659,
    0.0013333922569321228, 0.00015469291109088, 1.5201920151765498e-05,
)  # fmt: skip
# e^x on [-ln(2)/2, ln(2)/2], and 2 atanh(s) / s by s^2 up to s = 0.172, to 3e-14: differences and powers want more.
_EXP_64 = (
    1.0000000000000144, 1.0000000000000075, 0.49999999999409994, 0.16666666666537375, 0.041666667054723036,
    0.008333333394189166, 0.0013888799616766066, 0.00019841157654761497, 2.488543382830863e-05, 2.764577251526008e-06,
)  # fmt: skip
_ATANH = (
    1.9999999999999465, 0.666666666796763, 0.399999948641585, 0.28572168917797497, 0.22174136993131502,
    0.19609700560343007,
)  # fmt: skip


def fused(x: Expr, coefficients: tuple[float, ...]) -> Expr:
    """Return c0 + c1 x + c2 x^2 + ..., by Horner's rule."""
    total = const(coefficients[-1], x.dtype)
    for c in reversed(coefficients[:-1]):
        total = fma(total, x, c)
    return total


def with_sign_of(x: Expr, sign: Expr) -> Expr:
    """Return non-negative `x` with the sign of `sign`, both float32."""
    return bitcast(bitcast(x, int32) | (bitcast(sign, int32) & -0x80000000), float32)


def through64(function: Formula) -> Formula:
    """Compute a float32 function in float64, where cancellation does not show."""

    def formula(*args: Expr) -> Expr:
        """Return the value in float32."""
        return cast(function(*[cast(a, float64) for a in args]), float32)

    return formula


def odd64(function: Formula) -> Formula:
    """Compute an odd float32 function in float64 from the size of its argument; the sign of -0 is kept."""

    def formula(x: Expr) -> Expr:
        """Return the value in float32, with the sign of `x`."""
        return with_sign_of(cast(function(cast(abs(x), float64)), float32), x)

    return formula


def exp2_between(x: Expr) -> Expr:
    """Return 2^x for float32 between -126 and 127, to 1e-7: a part of functions where it is a small term."""
    shifted = x + ROUND32
    p = fused(x - (shifted - ROUND32), _EXP2)
    return p * power_of_two(bitcast(shifted, int32) - 0x4B400000)


def log_ends(x: Expr, result: Expr) -> Expr:
    """Put in what a logarithm gives at 0, infinity, NaN and below 0."""
    result = where(x < math.inf, result, x)
    result = where(x < 0.0, math.nan, result)
    return where(eq(x, 0.0), -math.inf, result)


def exp64(x: Expr) -> Expr:
    """Return e^x for float64 between -700 and 700, to 2e-14; the ends are clamped."""
    x = where(x > 700.0, 700.0, x)
    x = where(x < -700.0, -700.0, x)
    shifted = fma(x, LOG2E, ROUND64)
    n = shifted - ROUND64
    r = fma(n, -0.693147180369123816490, x)
    r = fma(n, -1.90821492927058770002e-10, r)
    # The magic number's low bits are 0, so n sits in the low bits of `shifted`.
    power = bitcast(shl(bitcast(shifted, int64) + 1023, 52), float64)
    return fused(r, _EXP_64) * power


def exp2_64(x: Expr) -> Expr:
    """Return 2^x for float64 between -200 and 200, to 4e-11; the ends are clamped."""
    x = where(x > 200.0, 200.0, x)
    x = where(x < -200.0, -200.0, x)
    shifted = x + ROUND64
    power = bitcast(shl(bitcast(shifted, int64) + 1023, 52), float64)
    return fused(x - (shifted - ROUND64), _EXP2_64) * power


def log64(x: Expr) -> Expr:
    """Return the natural logarithm for normal float64, to 3e-14, by log((1+s)/(1-s)) = 2 s (1 + s^2/3 + ...)."""
    pivot = 0x3FE6A09E667F3BCD
    offset = bitcast(x, int64) - pivot
    e = cast(cast(shr(offset, 52), int32), float64)
    g = bitcast((offset & 0xFFFFFFFFFFFFF) + pivot, float64)
    s = (g - 1.0) / (g + 1.0)
    return log_ends(x, fma(e, 0.6931471805599453, s * fused(s * s, _ATANH)))


def log1p64(x: Expr) -> Expr:
    """Return log(1 + x) for float64 arguments that came from float32."""
    series = x * fused(x, (1.0, -0.5, 1 / 3, -0.25))
    return where(abs(x) < 1e-3, series, log64(x + 1.0))


def expm1_64(x: Expr) -> Expr:
    """Return e^x - 1 for float64 arguments that came from float32."""
    series = x * fused(x, (1.0, 0.5, 1 / 6, 1 / 24))
    return where(abs(x) < 1e-3, series, exp64(x) - 1.0)
