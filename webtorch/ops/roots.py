"""Roots of unity, which Fourier transforms multiply with. May import floors 0 and 1."""

from __future__ import annotations

import functools
import math
from typing import Any

from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType
from webtorch.ir.expr import Expr
from webtorch.ops.record import Elementwise


def _root(m: Expr, n: int, inverse: bool, dtype: DType) -> tuple[Expr, Expr]:
    """Return the cosine and the sine of -+2 pi m / n, for integers 0 <= m < n, to the last bit but one.

    The integer is brought to an eighth of the circle exactly; the functions of the device need not be exact.
    """
    eighths = m * 8
    octant = ex.truncdiv(eighths, n)
    rest = eighths - octant * n
    odd = ex.eq(ex.truncmod(octant, 2), 1)
    rest = ex.where(odd, n - rest, rest)
    t = ex.cast(rest, dtype) * (math.pi / 4 / n)
    square = t * t
    sine = ex.const(1 / math.factorial(11), dtype)
    cosine = ex.const(-1 / math.factorial(10), dtype)
    for k in (9, 7, 5, 3, 1):
        sine = 1 / math.factorial(k) - square * sine
    for k in (8, 6, 4, 2, 0):
        sign = 1.0 if k % 4 == 0 else -1.0
        cosine = sign / math.factorial(k) + square * cosine
    turn = ex.truncmod(octant + 1, 4)
    swap = turn >= 2
    c, s = ex.where(swap, sine * t, cosine), ex.where(swap, cosine, sine * t)
    c = ex.where((octant >= 2) & (octant < 6), -c, c)
    s = ex.where(octant >= 4, -s, s)
    return c, s if inverse else -s


def _entry(name: str, expr: Any) -> Elementwise:
    return Elementwise(
        name=name, family="elementwise", signature="", doc="Of a Fourier transform.", expr=expr,
        tensors=(), function_in=(),
    )  # fmt: skip


@functools.lru_cache(maxsize=1024)
def matrix_of_roots(n: int, inverse: bool, dtype: DType) -> Elementwise:
    """Return the map that makes the matrix of a discrete Fourier transform of `n` numbers, as real parts."""

    def expr(position: Expr) -> Expr:
        """Return one part of the root of unity at a position of the matrix."""
        # (part, k, part of the source, i)
        i, source = ex.truncmod(position, n), ex.truncmod(ex.truncdiv(position, n), 2)
        k = ex.truncmod(ex.truncdiv(position, 2 * n), n)
        part = ex.truncdiv(position, 2 * n * n)
        c, s = _root(ex.truncmod(i * k, n), n, inverse, dtype)
        return ex.where(ex.eq(part, source), c, ex.where(ex.eq(part, 0), -s, s))

    return _entry(f"_roots{n}", expr)


@functools.lru_cache(maxsize=1024)
def turn(first: int, rest: int, inverse: bool) -> Elementwise:
    """Return the map between the two steps of a transform of `first` * `rest` numbers."""

    def expr(position: Expr, re: Expr, im: Expr) -> Expr:
        """Return one part of a number turned by its root of unity."""
        # (batch, i, part, j)
        j, part = ex.truncmod(position, rest), ex.truncmod(ex.truncdiv(position, rest), 2)
        i = ex.truncmod(ex.truncdiv(position, 2 * rest), first)
        c, s = _root(i * j, first * rest, inverse, re.dtype)
        return ex.where(ex.eq(part, 0), re * c - im * s, re * s + im * c)

    return _entry(f"_turn{first}x{rest}", expr)
