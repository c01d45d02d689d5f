"""Zeta, polygamma and the incomplete gamma functions. May import floors 0 and 1.

Sums and fractions have a fixed number of terms, enough for the type; A&S is Abramowitz and Stegun,
"Handbook of Mathematical Functions" (1964).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from webtorch.ir import expr as ex
from webtorch.ir.dtype import float64
from webtorch.ir.expr import Expr
from webtorch.ops.elementwise import exp, log
from webtorch.ops.record import Elementwise, elementwise
from webtorch.ops.special import _horner, _log_gamma_positive, lgamma

if TYPE_CHECKING:
    from webtorch.tensors.tensor import Tensor

# -- Hurwitz's zeta -----------------------------------------------------------------------------------

# Bernoulli numbers B2, B4, ... over (2 k)!.
_BERNOULLI = tuple(
    b / math.factorial(2 * k)
    for k, b in enumerate(
        (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798), 1
    )
)
_ZETA_TERMS = 12


def _zeta_formula(x: Expr, q: Expr) -> Expr:
    """Euler's and Maclaurin's formula (A&S 23.1.30, 23.2.3) from where q + k >= 12 on."""
    # Terms of negative q are added one by one until q is positive.
    total, at = ex.const(0.0, x.dtype), q
    for _ in range(2 * _ZETA_TERMS):
        low = at < _ZETA_TERMS
        total = ex.where(low, total + ex.pow_(ex.where(low, at, 1.0), -x), total)
        at = ex.where(low, at + 1, at)
    power = ex.pow_(at, -x)
    total = total + power * at / (x - 1) + power * 0.5
    factor, inverse = x * power / at, 1 / (at * at)
    for k, b in enumerate(_BERNOULLI, 1):
        total = total + factor * b
        factor = factor * (x + (2 * k - 1)) * (x + 2 * k) * inverse
    nan, inf = ex.const(math.nan, x.dtype), ex.infinity(x.dtype)
    whole = ex.eq(ex.floor(q), q)
    pole = ex.where(whole, inf, ex.where(ex.eq(ex.floor(x), x), total, nan))
    value = ex.where(q <= 0, pole, total)
    value = ex.where((x < 1) | ex.isnan(x) | ex.isnan(q), nan, value)
    return ex.where(ex.eq(x, 1), inf, value)


_zeta: Elementwise = elementwise(
    "_zeta",
    _zeta_formula,
    vjp=lambda g, _out, x, q: (None, -g * x * _zeta(x + 1, q)),
    promotion="float",
    function_in=(),
    doc="The sum of (other + k) ** -input over k = 0, 1, ...",
)


_polygamma: Elementwise = elementwise(
    "_polygamma",
    lambda x, n: (
        ex.where(ex.eq(ex.mod(n, 2), 0), -1.0, ex.const(1.0, x.dtype)) * _zeta_formula(n + 1, x)
    ),
    vjp=lambda g, _out, x, n: (g * _polygamma(x, n + 1) * (n + 1),),
    tensors=("input",),
    numbers=("n",),
    promotion="float",
    function_in=(),
    doc="polygamma(n, input) / n!, for n >= 1.",
)


# -- incomplete gamma functions -----------------------------------------------------------------------

# Temme, "The asymptotic expansion of the incomplete gamma functions", 1979: coefficients in eta of the
# first terms in 1 / a, for eta near 0.
_TEMME = (
    (
        -1 / 3, 1 / 12, -2 / 135, 1 / 864, 1 / 2835, -139 / 777600, 1 / 25515, -571 / 261273600,
        -281 / 151559100,
    ),
    (-1 / 540, -1 / 288, 1 / 378, -77 / 77760, 1 / 4860),
    (25 / 6048, -139 / 51840, 101 / 136080),
)  # fmt: skip
_TEMME_FROM = 150.0


def _log_density(a: Expr, x: Expr, log_gamma: Expr) -> Expr:
    """Return log(x ** a * exp(-x) / gamma(a))."""
    return a * ex.log(x) - x - log_gamma


def _igamma_parts(a: Expr, x: Expr, log_gamma: Expr) -> tuple[Expr, Expr, Expr]:
    """Return whether the lower function is the one computed, and the value of that one."""
    series_terms, fraction_terms = (240, 120) if a.dtype is float64 else (90, 60)
    ok = (a > 0) & (x > 0) & ~ex.isinf(a) & ~ex.isinf(x)
    a, x = ex.where(ok, a, 1.0), ex.where(ok, x, 1.0)
    lower = x < a + 1
    density = ex.exp(_log_density(a, x, log_gamma))
    # A&S 6.5.29, from its end.
    inner = ex.where(lower, x, a)
    total = ex.const(1.0, a.dtype)
    for k in range(series_terms, 0, -1):
        total = total * inner / (a + k) + 1
    below = density * total / a
    # A&S 6.5.31, its even part, from its end.
    outer = ex.where(lower, a + 2, x)
    fraction = outer + (2 * fraction_terms + 1) - a
    for k in range(fraction_terms, 0, -1):
        fraction = outer + (2 * k - 1) - a - (k - a) * k / fraction
    above = density / fraction
    return lower, below, above


def _temme(a: Expr, x: Expr, upper: bool) -> Expr:
    """Return the upper (lower) function for large a and x near it."""
    mu = (x - a) / a
    # eta**2 / 2 = mu - log(1 + mu), with the sign of mu.
    half = ex.where(ex.unary("abs", mu) < 1e-2, _horner(
        (0.0, 0.0, 1 / 2, -1 / 3, 1 / 4, -1 / 5, 1 / 6, -1 / 7, 1 / 8, -1 / 9, 1 / 10), mu,
    ), mu - ex.log1p(mu))  # fmt: skip
    size = ex.sqrt(ex.where(half > 0, half, 0.0) * 2)
    eta = ex.where(mu < 0, -size, size)
    inverse = 1 / a
    total = ex.const(0.0, a.dtype)
    for coefficients in reversed(_TEMME):
        total = total * inverse + _horner(coefficients, eta)
    rest = ex.exp(-a * half) * total * ex.rsqrt(a * (2 * math.pi))
    edge = eta * ex.sqrt(a * 0.5)
    if upper:
        return ex.erfc(edge) * 0.5 + rest
    return ex.erfc(-edge) * 0.5 - rest


def _incomplete(upper: bool) -> Callable[..., Expr]:
    def formula(a: Expr, x: Expr) -> Expr:
        """Return the regularised incomplete gamma function: a series, a continued fraction, or Temme's expansion."""
        nan = ex.const(math.nan, a.dtype)
        log_gamma = _log_gamma_positive(ex.where(a > 0, a, 1.0))
        lower, below, above = _igamma_parts(a, x, log_gamma)
        value = ex.where(lower, 1 - below if upper else below, above if upper else 1 - above)
        near = (a > _TEMME_FROM) & (ex.unary("abs", x - a) < a * 0.3)
        safe_a = ex.where(near, a, 200.0)
        value = ex.where(near, _temme(safe_a, ex.where(near, x, 200.0), upper), value)
        one, zero = (0.0, 1.0) if upper else (1.0, 0.0)
        value = ex.where(ex.eq(x, 0), ex.where(ex.eq(a, 0), nan, ex.const(zero, a.dtype)), value)
        value = ex.where(ex.eq(a, 0) & (x > 0), ex.const(one, a.dtype), value)
        value = ex.where(ex.isinf(x) & ~ex.isinf(a), ex.const(one, a.dtype), value)
        value = ex.where(ex.isinf(a), ex.where(ex.isinf(x), nan, ex.const(zero, a.dtype)), value)
        return ex.where((a < 0) | (x < 0) | ex.isnan(a) | ex.isnan(x), nan, value)

    return formula


def _slope(g: Tensor, a: Tensor, x: Tensor) -> Tensor:
    return g * exp((a - 1) * log(x) - x - lgamma(a))


_igamma: Elementwise = elementwise(
    "_igamma",
    _incomplete(False),
    tensors=("input", "other"),
    vjp=lambda g, _out, a, x: (None, _slope(g, a, x)),
    promotion="float",
    function_in=(),
    doc="The regularised lower incomplete gamma function.",
)
_igammac: Elementwise = elementwise(
    "_igammac",
    _incomplete(True),
    tensors=("input", "other"),
    vjp=lambda g, _out, a, x: (None, -_slope(g, a, x)),
    promotion="float",
    function_in=(),
    doc="The regularised upper incomplete gamma function.",
)
