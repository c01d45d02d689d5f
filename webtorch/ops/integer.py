"""Divisors and multiples of integers, and the steps of a binary search. May import floors 0 and 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from webtorch.ir import expr as ex
from webtorch.ir.dtype import INTEGERS, int32
from webtorch.ir.expr import Expr
from webtorch.ops.record import Elementwise, elementwise


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


def _search_step(name: str, expr: Callable[..., Expr], doc: str, **options: Any) -> Elementwise:
    return elementwise(
        name, expr, dtypes=INTEGERS, differentiable=False, function_in=(), doc=doc,
        **options,
    )  # fmt: skip


search_probe = _search_step(
    "_search_probe",
    lambda low, high, last: ex.minimum(ex.shr(low + high, 1), last),
    "The middle between two positions, at most `last`.",
    numbers=("last",),
)
search_low = _search_step(
    "_search_low",
    lambda low, high, stop: ex.where(
        ex.lt(low, high) & ex.eq(stop, 0), ex.shr(low + high, 1) + 1, low
    ),
    "Past the middle, unless the search stops there or is done.",
    tensors=("low", "high", "stop"),
)
search_high = _search_step(
    "_search_high",
    lambda low, high, stop: ex.where(
        ex.lt(low, high) & ex.ne(stop, 0), ex.shr(low + high, 1), high
    ),
    "The middle, if the search stops there.",
    tensors=("low", "high", "stop"),
)
