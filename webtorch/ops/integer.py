"""Divisors and multiples of integers. May import floors 0 and 1."""

from __future__ import annotations

from webtorch.ir import expr as ex
from webtorch.ir.dtype import INTEGERS
from webtorch.ir.expr import Expr
from webtorch.ops.record import elementwise


def _size(x: Expr) -> Expr:
    return x if x.dtype.kind == "uint" else ex.unary("abs", x)


def _gcd(x: Expr, y: Expr) -> Expr:
    """Euclid's algorithm. Numbers of n bits need at most 1.44 n steps (Lame, 1844)."""
    a, b = _size(x), _size(y)
    for _ in range(int(x.dtype.bits * 1.4405) + 2):
        done = ex.eq(b, 0)
        rest = ex.truncmod(a, ex.where(done, ex.const(1, b.dtype), b))
        a, b = ex.where(done, a, b), ex.where(done, ex.const(0, b.dtype), rest)
    return a


gcd = elementwise(
    "gcd",
    _gcd,
    dtypes=INTEGERS,
    differentiable=False,
    doc="The greatest common divisor; gcd(0, 0) is 0.",
)


def _lcm(x: Expr, y: Expr) -> Expr:
    divisor = _gcd(x, y)
    zero = ex.eq(divisor, 0)
    safe = ex.where(zero, ex.const(1, x.dtype), divisor)
    return ex.where(zero, ex.const(0, x.dtype), _size(ex.truncdiv(x, safe) * y))


lcm = elementwise(
    "lcm",
    _lcm,
    dtypes=INTEGERS,
    differentiable=False,
    doc="The least common multiple; 0 where one operand is 0.",
)
