"""Bessel and Airy functions, scaled error functions, quantiles. May import floors 0 and 1.

Near 0 a function is a Chebyshev series of what is left without its singular part; far away, its
asymptotic form with Chebyshev series for the slowly varying factors (`chebyshev.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from webtorch.ir import expr as ex
from webtorch.ir.dtype import float64
from webtorch.ir.expr import Expr
from webtorch.ops import chebyshev as table
from webtorch.ops.elementwise import exp
from webtorch.ops.record import Elementwise, elementwise
from webtorch.ops.special import SPECIAL, _erfinv, _horner, _i0, _i0_parts, _size

# What is below float32's resolution is not worth computing in it.
_SMALL = 1e-9


def _series(coefficients: Sequence[float], t: Expr) -> Expr:
    """Return the sum of coefficients[k] * T_k(t) by Clenshaw's recurrence, for t in -1..1."""
    if t.dtype is not float64:
        largest = max(abs(c) for c in coefficients)
        while abs(coefficients[-1]) < _SMALL * largest:
            coefficients = coefficients[:-1]
    twice = t * 2
    after, total = ex.const(0.0, t.dtype), ex.const(coefficients[-1], t.dtype)
    for c in reversed(coefficients[1:-1]):
        after, total = total, twice * total - after + c
    return t * total - after + coefficients[0]


def _on(coefficients: Sequence[float], x: Expr, low: float, high: float) -> Expr:
    """Return a series whose interval is low..high."""
    return _series(coefficients, (x - (low + high) / 2) * (2 / (high - low)))


def _special(
    name: str,
    formula: Callable[[Expr], Expr],
    doc: str,
    differentiable: bool = False,
    **fields: Any,
) -> Elementwise:
    return elementwise(
        name, formula, tensors=("input",), promotion="float", torch=f"special.{name}",
        function_in=SPECIAL, inplace=False, doc=doc, differentiable=differentiable, **fields,
    )  # fmt: skip


def _nan(x: Expr) -> Expr:
    return ex.const(math.nan, x.dtype)


# -- J and Y ------------------------------------------------------------------------------------------


def _far(a: Expr, order: int, second: bool) -> Expr:
    """Return J (or Y) of a >= 8: A&S 9.2.5 and 9.2.6."""
    p_table, q_table = ((table.P0, table.Q0), (table.P1, table.Q1))[order]
    inverse = 8 / a
    square = inverse * inverse
    p = _on(p_table, square, 0, 1)
    q = _on(q_table, square, 0, 1) / a
    angle = a - (0.25 + 0.5 * order) * math.pi
    c, s = ex.cos(angle), ex.sin(angle)
    wave = p * s + q * c if second else p * c - q * s
    value = wave * ex.sqrt((2 / math.pi) / a)
    # Of no value at infinity, as PyTorch has it.
    return ex.where(ex.isinf(a), _nan(a), value)


def _parts(x: Expr) -> tuple[Expr, Expr, Expr, Expr]:
    """Return |x|, whether it is below 8, and x within each range."""
    a = _size(x)
    near = a < 8
    return a, near, ex.where(near, x, 1.0), ex.where(near, ex.const(8.0, x.dtype), a)


def _j(order: int) -> Callable[[Expr], Expr]:
    def formula(x: Expr) -> Expr:
        """Return the function of x: a rational one near 0, an asymptotic one beyond."""
        a, near, inner, outer = _parts(x)
        square = inner * inner
        small = _on((table.J0, table.J1)[order], square, 0, 64)
        far = _far(outer, order, False)
        if order:
            small = small * inner
            far = ex.where(x < 0, -far, far)
        return ex.where(near, small, ex.where(ex.isnan(a), a, far))

    return formula


def _y(order: int) -> Callable[[Expr], Expr]:
    def formula(x: Expr) -> Expr:
        """Return the function of x > 0; minus infinity at 0, NaN below."""
        a, near, inner, outer = _parts(x)
        inner = ex.where(inner > 0, inner, 1.0)
        square = inner * inner
        log = ex.log(inner)
        if order:
            j = _on(table.J1, square, 0, 64) * inner
            small = inner * _on(table.Y1, square, 0, 64) + (log * j - 1 / inner) * (2 / math.pi)
        else:
            j = _on(table.J0, square, 0, 64)
            small = _on(table.Y0, square, 0, 64) + log * j * (2 / math.pi)
        value = ex.where(near, small, ex.where(ex.isnan(a), a, _far(outer, order, True)))
        zero = ex.where(ex.eq(x, 0), -ex.infinity(x.dtype), value)
        return ex.where(x < 0, _nan(x), zero)

    return formula


bessel_j0 = _special("bessel_j0", _j(0), "The Bessel function of the first kind, of order 0.")
bessel_j1 = _special("bessel_j1", _j(1), "The Bessel function of the first kind, of order 1.")
bessel_y0 = _special(
    "bessel_y0", _y(0), "The Bessel function of the second kind, of order 0.", domain=(0.1, 12.0)
)
bessel_y1 = _special(
    "bessel_y1", _y(1), "The Bessel function of the second kind, of order 1.", domain=(0.1, 12.0)
)
spherical_bessel_j0 = _special(
    "spherical_bessel_j0",
    lambda x: ex.where(
        ex.isinf(x),
        0.0,
        # Near 0 the quotient of sine and x loses nothing but is 0 / 0 at 0 itself.
        ex.where(ex.eq(x, 0), 1.0, ex.sin(x) / ex.where(ex.eq(x, 0), 1.0, x)),
    ),
    "sin(input) / input, 1 at 0.",
)

# -- I and K ------------------------------------------------------------------------------------------

# A&S 9.6.10 in (x / 2)**2, and 9.7.1 in 1 / x, for order 1.
_I1_SERIES = tuple(1 / (math.factorial(k) * math.factorial(k + 1)) for k in range(40))
_I1_TAIL = tuple(
    (-1) ** k
    * math.prod(4 - (2 * j - 1) ** 2 for j in range(1, k + 1))
    / (math.factorial(k) * 8.0**k)
    for k in range(26)
)


def _i1_parts(x: Expr) -> tuple[Expr, Expr, Expr]:
    """Return |x|, whether it is near 0, and I1(x) there, or I1(x) * exp(-|x|) * sqrt(2 pi |x|) far away."""
    a = _size(x)
    bound, terms, tail = (20.0, 40, 26) if x.dtype is float64 else (10.0, 22, 10)
    near = a < bound
    half = ex.where(near, x, 0.0) * 0.5
    inverse = 1 / ex.where(near, ex.const(bound, x.dtype), a)
    far = _horner(_I1_TAIL[:tail], inverse)
    value = ex.where(
        near, half * _horner(_I1_SERIES[:terms], half * half), ex.where(x < 0, -far, far)
    )
    return a, near, value


def _i1(x: Expr) -> Expr:
    a, near, value = _i1_parts(x)
    # In two factors: exp(a) alone overflows before I1 does.
    root = ex.exp(a * 0.5)
    return ex.where(near, value, root * (value * (ex.rsqrt(a) * (2 * math.pi) ** -0.5)) * root)


def _i1e(x: Expr) -> Expr:
    a, near, value = _i1_parts(x)
    # The slope of |x| at 0 is 0, as PyTorch has it: the second derivative is then 0, between -1 and 1.
    return ex.where(near, value * ex.exp(-abs(x)), value * (ex.rsqrt(a) * (2 * math.pi) ** -0.5))


_I1_DOC = "The modified Bessel function of the first kind, of order 1."
i1 = _special("i1", _i1, _I1_DOC, differentiable=True)
i1e = _special("i1e", _i1e, "i1(input) * exp(-|input|).", differentiable=True)
modified_bessel_i0 = _special(
    "modified_bessel_i0", _i0, "The modified Bessel function of the first kind, of order 0."
)
modified_bessel_i1 = _special("modified_bessel_i1", _i1, _I1_DOC)


def _k(order: int, scaled: bool) -> Callable[[Expr], Expr]:
    def formula(x: Expr) -> Expr:
        """Return the function of x > 0; infinity at 0, NaN below."""
        near = x <= 2
        inner = ex.where(near & (x > 0), x, 1.0)
        outer = ex.where(near, ex.const(2.0, x.dtype), x)
        square = inner * inner
        # Half of the smallest number is 0.
        log = ex.log(inner) - math.log(2)
        if order:
            small = _on(table.K1, square, 0, 4) * inner + log * _i1_parts(inner)[2] + 1 / inner
        else:
            small = _on(table.K0, square, 0, 4) - log * _i0_parts(inner)[2]
        far = _on((table.K0_FAR, table.K1_FAR)[order], 2 / outer, 0, 1) * ex.rsqrt(outer)
        if scaled:
            small = small * ex.exp(inner)
        else:
            far = far * ex.exp(-outer)
        value = ex.where(near, small, far)
        value = ex.where(ex.eq(x, 0), ex.infinity(x.dtype), value)
        return ex.where(ex.isnan(x), x, ex.where(x < 0, _nan(x), value))

    return formula


for _order in (0, 1):
    _what = f"The modified Bessel function of the second kind, of order {_order}"
    _special(f"modified_bessel_k{_order}", _k(_order, False), f"{_what}.", domain=(0.1, 9.0))
    _special(
        f"scaled_modified_bessel_k{_order}", _k(_order, True), f"{_what}, times exp(input).",
        domain=(0.1, 9.0),
    )  # fmt: skip

# -- Airy ---------------------------------------------------------------------------------------------

# 1 / (2 / 3 * x**1.5) at the ends of the middle interval, x = -3 and 2.
_AIRY_LEFT, _AIRY_RIGHT = 1 / (2 / 3 * 3**1.5), 1 / (2 / 3 * 2**1.5)


def _airy(x: Expr) -> Expr:
    middle = _on(table.AI_NEAR, ex.where((x > -3) & (x < 2), x, 0.0), -3, 2)
    right = ex.where(x < 2, ex.const(2.0, x.dtype), x)
    z = right * ex.sqrt(right) * (2 / 3)
    decay = ex.exp(-z) * (0.5 / math.sqrt(math.pi)) * ex.rsqrt(ex.sqrt(right))
    above = _on(table.AI_RIGHT, 1 / z, 0, _AIRY_RIGHT) * decay
    left = ex.where(x > -3, ex.const(3.0, x.dtype), -x)
    z = left * ex.sqrt(left) * (2 / 3)
    inverse = 1 / z
    square = inverse * inverse
    p = _on(table.AI_P, square, 0, _AIRY_LEFT**2)
    q = _on(table.AI_Q, square, 0, _AIRY_LEFT**2) * inverse
    angle = z - math.pi / 4
    below = (p * ex.cos(angle) + q * ex.sin(angle)) * (ex.rsqrt(ex.sqrt(left)) / math.sqrt(math.pi))
    value = ex.where(x <= -3, below, ex.where(x >= 2, above, middle))
    return ex.where(ex.isnan(x) | ex.isinf(x), _nan(x), value)


airy_ai = _special("airy_ai", _airy, "The Airy function Ai.")

# -- the error function, scaled -----------------------------------------------------------------------


def _erfcx_formula(x: Expr) -> Expr:
    a = _size(x)
    positive = _series(table.ERFCX, ex.where(ex.isinf(a), 1.0, (a - 2) / (a + 2))) / (a * 2 + 1)
    # exp of a square needs the square's low digits.
    return ex.where(x < 0, ex.exp(x * x) * 2 - positive, positive)


erfcx: Elementwise = _special(
    "erfcx",
    _erfcx_formula,
    "exp(input**2) * erfc(input).",
    differentiable=True,
    vjp=lambda g, out, x: (g * (2 * x * out - 2 / math.sqrt(math.pi)),),
)


def _log_ndtr(x: Expr) -> Expr:
    scaled = x * math.sqrt(0.5)
    low = ex.where(x < -1, scaled, -1.0)
    high = ex.where(x < -1, ex.const(-1.0, x.dtype), scaled)
    tail = ex.log(_erfcx_formula(-low) * 0.5) - low * low
    return ex.where(x < -1, tail, ex.log1p(ex.erfc(high) * -0.5))


log_ndtr = _special(
    "log_ndtr",
    _log_ndtr,
    "The logarithm of the normal distribution function.",
    differentiable=True,
    vjp=lambda g, _out, x: (g / erfcx(x * -math.sqrt(0.5)) * math.sqrt(2 / math.pi),),
)


def _ndtri(p: Expr) -> Expr:
    upper = p > 0.5
    small = ex.where(upper, 1 - p, p)
    tail = small < 0.05
    # Towards 0 from the logarithm, in the middle from the error function's inverse.
    s = ex.sqrt(ex.log(ex.where(tail & (small > 0), small, 0.01)) * -2)
    u = 1 / s
    start = 1 / math.sqrt(-2 * math.log(0.05))
    near = _on(table.NDTRI_NEAR, ex.where(u > 0.125, u, 0.2), 0.125, start)
    far = _on(table.NDTRI_FAR, ex.where(u > 0.125, ex.const(0.1, p.dtype), u), 0.025, 0.125)
    far_out = s - ex.log(s) * u + ex.where(u > 0.125, near, far) * u
    middle = _erfinv(1 - ex.where(tail, ex.const(0.25, p.dtype), small) * 2) * math.sqrt(2)
    size = ex.where(tail, far_out, middle)
    size = ex.where(ex.eq(small, 0), ex.infinity(p.dtype), size)
    value = ex.where(upper, size, -size)
    return ex.where((p < 0) | (p > 1) | ex.isnan(p), _nan(p), value)


ndtri = _special(
    "ndtri",
    _ndtri,
    "The quantile of the normal distribution: the inverse of ndtr.",
    differentiable=True,
    vjp=lambda g, out, _x: (g * math.sqrt(2 * math.pi) * exp(out * out * 0.5),),
    domain=(0.02, 0.98),
)
