"""Special functions: inverse error function, gamma functions, Bessel functions, entropies. May import floors 0 and 1.

Each is a formula of elementary functions that is accurate to a few units in the last place in float64 as in float32.
Expansions are those of Abramowitz and Stegun, "Handbook of Mathematical Functions" (1964), by their numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from webtorch.ir import expr as ex
from webtorch.ir.dtype import FLOATS, float64
from webtorch.ir.expr import Expr
from webtorch.ops.elementwise import log, mul
from webtorch.ops.record import Autocast, Elementwise, elementwise

SPECIAL = ("special",)
EULER = 0.57721566490153286061


def _horner(coefficients: Sequence[float], x: Expr) -> Expr:
    """Return coefficients[0] + coefficients[1] * x + ..."""
    total = ex.const(coefficients[-1], x.dtype)
    for c in reversed(coefficients[:-1]):
        total = total * x + c
    return total


def _size(x: Expr) -> Expr:
    return ex.where(x < 0, -x, x)


# -- the error function's relatives -----------------------------------------------------------------------------------


# erfinv(x) / x, as M. Giles has it (Approximating the erfinv function, GPU Computing Gems, 2011): of
# w = -log(1 - x^2), fitted anew at Chebyshev's points over w < 1, over 1 <= w < 5 as of w - 3, and beyond as of
# sqrt(w) - 3, to 2e-9 of float32's range. What is subtracted from the first coefficient is multiplied by x
# exactly, so that only the smaller rest is rounded on its way.
_ERFINV_NEAR = (
    0.886226925, 0.232013667, 0.0115493426, -0.00233510805, -0.00012800957, 4.65116738e-05, 2.19380025e-06,
    -1.18993502e-06, 6.11574907e-08,
)  # fmt: skip
_ERFINV_MIDDLE = (
    1.62354201, 0.241630402, -0.00573815824, -0.000836173208, 0.000195108101, -1.2724377e-05, -1.78148873e-06,
    4.52866508e-07, -1.37273257e-08, -5.90117104e-09,
)  # fmt: skip
_ERFINV_TAIL = (
    2.8329768, 1.00167525, 0.00944528473, -0.00764304764, 0.00568786114, -0.00356558141, 0.00147436489,
    -0.000123056944, -0.000275806665, 0.000162597152, -3.0872333e-05,
)  # fmt: skip


def _erfinv(x: Expr) -> Expr:
    """Polynomials; in float64, whose range they do not cover, an iteration."""
    a = _size(x)
    if x.dtype is float64:
        z = _erfinv_iterated(a)
    else:
        w = -ex.log((1 - a) * (1 + a))
        near, middle, tail = (
            a * exact + a * _horner((first - exact, *rest), t)
            for exact, (first, *rest), t in (
                (1.0, _ERFINV_NEAR, w),
                (1.0, _ERFINV_MIDDLE, w - 3),
                (2.0, _ERFINV_TAIL, ex.sqrt(w) - 3),
            )
        )
        z = ex.where(w < 1, near, ex.where(w < 5, middle, tail))
    z = ex.where(ex.eq(a, 1), ex.infinity(x.dtype), z)
    return ex.where(a > 1, ex.const(math.nan, x.dtype), ex.where(x < 0, -z, z))


def _erfinv_iterated(a: Expr) -> Expr:
    """Winitzki's approximation (to 2e-3), then two of Halley's steps, each of which cubes the error."""
    rest = 1 - a
    w = ex.log1p(-a) + ex.log1p(a)
    t = w * 0.5 + 2 / (math.pi * 0.147)
    scaled = w * (1 / 0.147)
    z = ex.sqrt(-scaled / (ex.sqrt(t * t - scaled) + t))
    for _ in range(2):
        # Towards 1 the complement is what has digits.
        error = ex.where(a < 0.5, ex.erf(z) - a, rest - ex.erfc(z))
        step = error * ex.exp(z * z) * (math.sqrt(math.pi) / 2)
        z = z - step / (z * step + 1)
    return z


erfinv = elementwise(
    "erfinv",
    _erfinv,
    tensors=("input",),
    vjp=lambda g, out, _x: (_erfinv_backward(g, out),),
    promotion="float",
    domain=(-0.95, 0.95),
    also=("special.erfinv",),
    doc="The inverse of the error function, NaN outside -1..1.",
    autocast=Autocast(gpu="fp32"),
    saves_values=True,
)
_erfinv_backward: Elementwise = elementwise(
    "_erfinv_backward",
    lambda g, out: g * ex.exp(out * out) * (math.sqrt(math.pi) / 2),
    tensors=("grad_output", "output"),
    dtypes=FLOATS,
    function_in=(),
    domain=(-2.0, 2.0),
    doc="The gradient of erfinv from its result.",
)
ndtr = elementwise(
    "ndtr",
    lambda x: ex.erfc(x * -math.sqrt(0.5)) * 0.5,
    promotion="float",
    function_in=SPECIAL,
    inplace=False,
    gradient_name="MulBackward1",
    doc="The normal distribution function.",
    saves_values=True,
)

# -- gamma functions --------------------------------------------------------------------------------------------------

# zeta(k) - 1 for k = 2, 3, ...
ZETA_LESS_1 = (
    0.6449340668482264,
    0.2020569031595943,
    0.08232323371113819,
    0.03692775514336993,
    0.01734306198444914,
    0.008349277381922827,
    0.00407735619794434,
    0.0020083928260822143,
    0.0009945751278180853,
    0.0004941886041194645,
    0.0002460865533080483,
    0.00012271334757848915,
    6.124813505870483e-05,
    3.058823630702049e-05,
    1.528225940865187e-05,
    7.637197637899763e-06,
    3.81729326499984e-06,
    1.908212716553939e-06,
    9.539620338727962e-07,
    4.769329867878064e-07,
    2.38450502727733e-07,
    1.1921992596531106e-07,
    5.960818905125948e-08,
    2.980350351465228e-08,
    1.4901554828365043e-08,
)
# (-1)**k * (zeta(k) - 1) / k: A&S 6.1.33, log gamma(2 + z) = z (1 - gamma) + sum of these times z**k.
_LOG_GAMMA = tuple((-1) ** k * zeta / k for k, zeta in enumerate(ZETA_LESS_1, 2))
# Stirling's series, A&S 6.1.41, in 1 / x**2.
_STIRLING = (
    1 / 12,
    -1 / 360,
    1 / 1260,
    -1 / 1680,
    1 / 1188,
    -691 / 360360,
    1 / 156,
    -3617 / 122400,
)
# A&S 6.3.18 and 6.4.12, in 1 / x**2.
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
_TRIGAMMA = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)


def _log_gamma_positive(x: Expr) -> Expr:
    # Below 8: to 1.5..2.5 by gamma(x) = (x - 1) gamma(x - 1), where the series, zero at 2, keeps its digits.
    y, product = x, ex.const(1.0, x.dtype)
    for _ in range(6):
        high = y > 2.5
        product = ex.where(high, product * (y - 1), product)
        y = ex.where(high, y - 1, y)
    below_half, below = y < 0.5, y < 1.5
    # gamma(y) = gamma(y + 1) / y; the second y is taken with log1p, which is exact near 1.
    z = ex.where(below_half, y, ex.where(below, y - 1, y - 2))
    series = z * (1 - EULER) + z * z * _horner(_LOG_GAMMA, z)
    series = ex.where(below, series - ex.log1p(z), series)
    small = ex.log(product) + ex.where(below_half, series - ex.log(y), series)
    large = (
        (x - 0.5) * ex.log(x)
        - x
        + 0.5 * math.log(2 * math.pi)
        + _horner(_STIRLING, 1 / (x * x)) / x
    )
    return ex.where(x < 8, small, ex.where(ex.isinf(x), x, large))


def _sine_of_pi(x: Expr) -> Expr:
    """Return |sin(pi x)|, exact at integers."""
    return ex.sin(_size(x - ex.round_(x)) * math.pi)


def _lgamma(x: Expr) -> Expr:
    # A&S 6.1.17, the reflection; at 0, -1, -2, ... the sine is 0 and the result infinite.
    reflected = math.log(math.pi) - ex.log(_sine_of_pi(x)) - _log_gamma_positive(1 - x)
    # Every number beyond 2**53 is an integer; the parts overflow to infinities of both signs there.
    reflected = ex.where(x < -(2.0**53), ex.infinity(x.dtype), reflected)
    return ex.where(x < 0, reflected, _log_gamma_positive(x))


lgamma = elementwise(
    "lgamma",
    _lgamma,
    tensors=("input",),
    vjp=lambda g, _out, x: (mul(g, digamma(x)),),
    promotion="float",
    domain=(0.1, 12.0),
    foreach=True,
    also=("special.gammaln",),
    doc="log(|gamma(input)|).",
)


def _shifted_up(x: Expr, term: Any) -> tuple[Expr, Expr]:
    """Return a point above 10 for x > 0, and the sum of term(x + k) that the recurrence adds on the way."""
    low = x < 10
    total = term(x)
    for k in range(1, 10):
        total = total + term(x + k)
    return ex.where(low, x + 10, x), ex.where(low, total, ex.const(0.0, x.dtype))


def _digamma(x: Expr) -> Expr:
    left = x <= 0
    y, lower = _shifted_up(ex.where(left, 1 - x, x), lambda v: 1 / v)
    value = ex.log(y) - 0.5 / y - _horner(_DIGAMMA, 1 / (y * y)) / (y * y) - lower
    away = x - ex.round_(x)
    # A&S 6.3.7, the reflection; not a number at negative integers, the pole at 0 has a sign.
    value = ex.where(left, value - math.pi / ex.tan(away * math.pi), value)
    pole = ex.where(ex.eq(x, 0), -ex.copysign(ex.infinity(x.dtype), x), ex.const(math.nan, x.dtype))
    return ex.where(left & (ex.eq(away, 0) | ex.isinf(x)), pole, value)


digamma: Elementwise = elementwise(
    "digamma",
    _digamma,
    tensors=("input",),
    vjp=lambda g, _out, x: (g * _trigamma(x),),
    promotion="float",
    domain=(0.1, 12.0),
    also=("special.digamma", "special.psi"),
    doc="The derivative of lgamma.",
)


def _trigamma_formula(x: Expr) -> Expr:
    left = x < 0.5
    y, lower = _shifted_up(ex.where(left, 1 - x, x), lambda v: 1 / (v * v))
    inverse = 1 / y
    square = inverse * inverse
    value = inverse + square * 0.5 + _horner(_TRIGAMMA, square) * square * inverse + lower
    # A&S 6.4.7, the reflection. At negative integers the result is large and no more: as PyTorch's, which multiplies by
    # a rounded pi everywhere.
    near = ex.round_(x)
    sine = ex.sin(ex.where(ex.eq(x, near), x, x - near) * math.pi)
    return ex.where(left, math.pi**2 / (sine * sine) - value, value)


_trigamma: Elementwise = elementwise(
    "_trigamma",
    _trigamma_formula,
    tensors=("input",),
    promotion="float",
    function_in=(),
    domain=(0.1, 12.0),
    doc="The derivative of digamma.",
)


# -- Bessel functions -------------------------------------------------------------------------------------------------

# A&S 9.6.12 in (x / 2)**2, and 9.7.1 in 1 / x.
_I0_SERIES = tuple(1 / math.factorial(k) ** 2 for k in range(40))
_I0_TAIL = tuple(
    math.prod((2 * j - 1) ** 2 for j in range(1, k + 1)) / (math.factorial(k) * 8.0**k)
    for k in range(26)
)


def _i0_parts(x: Expr) -> tuple[Expr, Expr, Expr]:
    """Return |x|, whether it is near 0, and I0(x) there, or I0(x) * exp(-|x|) * sqrt(2 pi |x|) far away."""
    a = _size(x)
    # Where the tail's smallest term is below the type's resolution, and the powers of a stay within its range.
    bound, terms, tail = (20.0, 40, 26) if x.dtype is float64 else (10.0, 22, 10)
    near = a < bound
    half = ex.where(near, x, 0.0) * 0.5
    inverse = 1 / ex.where(near, ex.const(bound, x.dtype), a)
    return (
        a,
        near,
        ex.where(near, _horner(_I0_SERIES[:terms], half * half), _horner(_I0_TAIL[:tail], inverse)),
    )


def _i0(x: Expr) -> Expr:
    """NaN at infinity, as in PyTorch."""
    a, near, value = _i0_parts(x)
    # In two factors: exp(a) alone overflows before I0 does.
    root = ex.exp(a * 0.5)
    far = root * (value * (ex.rsqrt(a) * (2 * math.pi) ** -0.5)) * root
    return ex.where(near, value, far)


i0 = elementwise(
    "i0",
    _i0,
    tensors=("input",),
    promotion="float",
    inplace_functions=("torch.i0_",),
    also=("special.i0",),
    doc="The modified Bessel function of the first kind, of order 0.",
)


def _i0e(x: Expr) -> Expr:
    a, near, value = _i0_parts(x)
    return ex.where(near, value * ex.exp(-a), value * (ex.rsqrt(a) * (2 * math.pi) ** -0.5))


i0e = elementwise(
    "i0e",
    _i0e,
    tensors=("input",),
    promotion="float",
    function_in=SPECIAL,
    inplace=False,
    doc="i0(input) * exp(-|input|).",
)

# -- entropies --------------------------------------------------------------------------------------------------------

xlog1py = elementwise(
    "xlog1py",
    lambda x, y: ex.where(ex.eq(x, 0) & ~ex.isnan(y), ex.const(0.0, x.dtype), x * ex.log1p(y)),
    promotion="float",
    function_in=SPECIAL,
    inplace=False,
    domain=(0.1, 3.0),
    numbers_for="both",
    doc="input * log1p(other), 0 where input is 0.",
)
entr = elementwise(
    "entr",
    lambda x: ex.where(
        x > 0,
        -x * ex.log(x),
        ex.where(ex.eq(x, 0), ex.const(0.0, x.dtype), ex.where(x < 0, -ex.infinity(x.dtype), x)),
    ),
    # Below 0 there is none, and at 0 it is infinite: the derived rule would give 0 for both.
    vjp=lambda g, _out, x: (-g * (1 + log(x)),),
    promotion="float",
    function_in=SPECIAL,
    inplace=False,
    domain=(0.1, 3.0),
    doc="-input * log(input), 0 at 0, -infinity below.",
)
