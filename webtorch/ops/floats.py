"""The parts of a float and its neighbours, from the bits. May import floors 0 and 1."""

from __future__ import annotations

import math
from collections.abc import Callable

from webtorch.ir import expr as ex
from webtorch.ir.dtype import FLOATS, bfloat16, float16, float32, float64, int32, int64
from webtorch.ir.expr import Expr
from webtorch.ops.comparison import _where
from webtorch.ops.primitive import fill
from webtorch.ops.record import elementwise


def _next_of_16_bits(
    dropped: int, tiny: float, least: float, largest: float
) -> Callable[[Expr, Expr], Expr]:
    """Return the formula for a type of 16 bits, computed in float32: its numbers lie 2 ** dropped
    patterns apart there, and `least` apart below `tiny`; infinity comes after `largest`.
    """

    def formula(x: Expr, y: Expr) -> Expr:
        """Return the number after x towards y."""
        bits, step = ex.bitcast(x, int32), ex.const(1 << dropped, int32)
        grows = (y > x) ^ (x < 0)
        value = ex.bitcast(ex.where(grows, bits + step, bits - step), x.dtype)
        size, one = ex.unary("abs", x), ex.const(least, x.dtype)
        small = (size < tiny) | (ex.eq(size, tiny) & ~grows)
        value = ex.where(small, ex.where(y > x, x + one, x - one), value)
        end = ex.const(largest, x.dtype)
        value = ex.where(size > end, ex.where(x > 0, end, -end), value)
        value = ex.where(ex.eq(x, y), y, value)
        return ex.where(ex.isnan(x) | ex.isnan(y), ex.const(math.nan, x.dtype), value)

    return formula


def _next(x: Expr, y: Expr) -> Expr:
    """Step by one in the ordered sequence of bit patterns."""
    whole = int64 if x.dtype is float64 else int32
    bits = ex.bitcast(x, whole)
    # Away from 0 the pattern grows, towards 0 it shrinks.
    grows = (y > x) ^ (x < 0)
    one = ex.const(1, whole)
    stepped = ex.bitcast(ex.where(grows, bits + one, bits - one), x.dtype)
    least = 5e-324 if x.dtype is float64 else 1.401298464324817e-45
    from_zero = ex.where(y > 0, ex.const(least, x.dtype), ex.const(-least, x.dtype))
    value = ex.where(ex.eq(x, 0), from_zero, stepped)
    value = ex.where(ex.eq(x, y), y, value)
    return ex.where(ex.isnan(x) | ex.isnan(y), ex.const(math.nan, x.dtype), value)


nextafter_wide, nextafter_half, nextafter_bfloat16 = (
    elementwise(
        name,
        formula,
        # PyTorch's convention: as if the result were the input.
        vjp=lambda g, _out, x, y: (_where(x == y, 0.0, g), fill(g._shape, 0, g.dtype, g.device)),
        saves_values=True,
        dtypes=dtypes,
        function_in=(),
        doc="The next number of the type after input, towards other.",
    )
    for name, formula, dtypes in (
        ("_nextafter", _next, (float32, float64)),
        ("_nextafter_half", _next_of_16_bits(13, 2.0**-14, 2.0**-24, 65504.0), (float16,)),
        # Steps below the normal numbers are those above them, as patterns.
        (
            "_nextafter_bfloat16",
            _next_of_16_bits(16, 2.0**-133, 2.0**-133, 3.3895313892515355e38),
            (bfloat16,),
        ),
    )
)


def _exponent(x: Expr) -> Expr:
    """Return the e with 0.5 <= |x| / 2 ** e < 1, as a float; 0 for 0, infinities and NaN."""
    a = ex.unary("abs", x)
    ok = ~(ex.eq(a, 0) | ex.isinf(a) | ex.isnan(a))
    a = ex.where(ok, a, 1.0)
    # Numbers below the normal ones are brought among them first.
    tiny = a < 1e-30
    a = ex.where(tiny, a * 2.0**100, a)
    e = ex.floor(ex.log2(a)) + 1
    # The logarithm may round to the wrong side of a power of two.
    scaled = a * ex.exp2(-e)
    e = ex.where(scaled >= 1, e + 1, ex.where(scaled < 0.5, e - 1, e))
    return ex.where(ok, ex.where(tiny, e - 100, e), 0.0)


frexp_exponent = elementwise(
    "_frexp_exponent", _exponent, tensors=("input",), dtypes=FLOATS, function_in=(),
    differentiable=False, doc="The binary exponent.",
)  # fmt: skip
