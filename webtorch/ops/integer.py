"""Divisors and multiples of integers. May import floors 0 and 1."""

from __future__ import annotations

from webtorch.ir import expr as ex
from webtorch.ir.dtype import INTEGERS, int32
from webtorch.ir.expr import Expr
from webtorch.ops.record import elementwise


def _size(x: Expr) -> Expr:
    return x if x.dtype.kind == "uint" else ex.unary("abs", x)


gcd = elementwise(
    "gcd",
    ex.gcd,
    dtypes=INTEGERS,
    differentiable=False,
    numbers_for="none",
    inplace_functions=("torch.gcd_",),
    doc="The greatest common divisor; gcd(0, 0) is 0.",
)


def _lcm(x: Expr, y: Expr) -> Expr:
    if x.dtype.kind == "int" and x.dtype.itemsize < 4:
        # As in C: the size is taken of an int, before it is cut.
        return ex.cast(_lcm(ex.cast(x, int32), ex.cast(y, int32)), x.dtype)
    divisor = ex.gcd(x, y)
    zero = ex.eq(divisor, 0)
    safe = ex.where(zero, ex.const(1, x.dtype), divisor)
    return ex.where(zero, ex.const(0, x.dtype), _size(ex.truncdiv(x, safe) * y))


lcm = elementwise(
    "lcm",
    _lcm,
    dtypes=INTEGERS,
    differentiable=False,
    numbers_for="none",
    inplace_functions=("torch.lcm_",),
    doc="The least common multiple; 0 where one operand is 0.",
)
