"""Parts of the float32 expansions: accurate functions written with arithmetic, bit operations and
selection.

They are for targets whose own functions are missing or too inexact: WGSL promises exp only to 3 + 2|x|
units in the last place and sin only to 2^-11. Every expansion is meant to be within 4 units of the true
value over its whole domain, special points as in PyTorch. A target renders each one once as a function,
or expands it in place with `expand`.

Rules that keep the formulas right on every compiler:
* Sums may be reassociated, so no error term is computed as (a + b) - a; parts are split off by
masking bits (`head_of`).
* fma may or may not be used: products that must be exact have factors with few bits.
* Division may be 2.5 units off: it only enters where that is damped.

Coefficients are minimax fits (iteratively reweighted least squares on Chebyshev nodes, 40-digit
arithmetic), rounded to float32. Methods: Cody and Waite, Software Manual for the Elementary Functions
(1980); Payne and Hanek, Radian Reduction for Trigonometric Functions (1983).
"""

from __future__ import annotations

from collections.abc import Collection

from webtorch.ir.dtype import float32, uint32
from webtorch.ir.expr.arithmetic import shl, shr
from webtorch.ir.expr.node import Expr, bitcast, const, rewrite
from webtorch.ir.expr.record import FUNCTIONS


def f32(value: float) -> Expr:
    """Return a constant."""
    return const(value, float32)


def poly(x: Expr, coefficients: tuple[float, ...]) -> Expr:
    """Return c0 + c1 x + c2 x^2 + ... by Horner's rule."""
    out = f32(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        out = out * x + c
    return out


def odd(x: Expr, coefficients: tuple[float, ...]) -> Expr:
    """Return x + x^3 P(x^2)."""
    z = x * x
    return x + x * (z * poly(z, coefficients))


def bits_of(x: Expr) -> Expr:
    """Return the bits of a float32."""
    return bitcast(x, uint32)


def power_of_two(n: Expr) -> Expr:
    """Return 2^n for an int32 `n` from -126 to 127."""
    return bitcast(shl(n + 127, 23), float32)


def scaled(p: Expr, n: Expr) -> Expr:
    """Return p * 2^n for an int32 `n` from -252 to 254: in two steps, so that neither factor
    overflows."""
    half = shr(n, 1)
    return p * power_of_two(half) * power_of_two(n - half)


def expand(root: Expr, names: Collection[str]) -> Expr:
    """Return `root` with every float32 use of the functions `names` replaced by its expansion."""

    def rule(node: Expr, args: tuple[Expr, ...]) -> Expr | None:
        """Return the expansion of a node; None leaves it."""
        if node.op not in names or args[0].dtype is not float32:
            return None
        expansion = FUNCTIONS[node.op].expansion
        return None if expansion is None else expansion(*args)

    return rewrite(root, rule)
