"""Symbolic derivatives of scalar expressions. May import floor 0 only.

A zero derivative is None, so no rule ever multiplies by a written-out zero: infinities and NaN of
an untaken branch stay
out of the result. Ties follow PyTorch: maximum and minimum give half to each side, abs gives 0 at
0.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from webtorch.ir import expr as ex
from webtorch.ir.expr import Expr

_LN2 = math.log(2.0)
_LN10 = math.log(10.0)
_TWO_OVER_SQRT_PI = 2.0 / math.sqrt(math.pi)

# d op(x) / dx, given x and out = op(x). Functions not listed here and not constant are an error.
UNARY: dict[str, Callable[[Expr, Expr], Expr]] = {
    "abs": lambda x, out: ex.sign(x),
    "exp": lambda x, out: out,
    "exp2": lambda x, out: out * _LN2,
    # Not out + 1, which has no digits left where out is near -1.
    "expm1": lambda x, out: ex.exp(x),
    "log": lambda x, out: 1.0 / x,
    "log2": lambda x, out: 1.0 / (x * _LN2),
    "log10": lambda x, out: 1.0 / (x * _LN10),
    "log1p": lambda x, out: 1.0 / (x + 1.0),
    "sqrt": lambda x, out: 0.5 / out,
    "rsqrt": lambda x, out: -0.5 * out * out * out,
    "sin": lambda x, out: ex.cos(x),
    "cos": lambda x, out: -ex.sin(x),
    "tan": lambda x, out: 1.0 + out * out,
    "asin": lambda x, out: ex.rsqrt(1.0 - x * x),
    "acos": lambda x, out: -ex.rsqrt(1.0 - x * x),
    "atan": lambda x, out: 1.0 / (x * x + 1.0),
    "sinh": lambda x, out: ex.cosh(x),
    "cosh": lambda x, out: ex.sinh(x),
    "tanh": lambda x, out: 1.0 - out * out,
    "asinh": lambda x, out: ex.rsqrt(x * x + 1.0),
    # Two roots: also right for complex numbers left of the imaginary axis.
    "acosh": lambda x, out: ex.rsqrt(x - 1.0) * ex.rsqrt(x + 1.0),
    "atanh": lambda x, out: 1.0 / (1.0 - x * x),
    "erf": lambda x, out: ex.exp(-(x * x)) * _TWO_OVER_SQRT_PI,
    "erfc": lambda x, out: ex.exp(-(x * x)) * -_TWO_OVER_SQRT_PI,
}
# Piecewise constant, or not real-valued: no derivative.
FLAT = frozenset(
    [
        "const",
        "arg",
        "index",
        "reduced",
        "load",
        "sign",
        "floor",
        "ceil",
        "trunc",
        "round",
        "not",
        "bitnot",
        "isnan",
        "isinf",
        "bitcast",
        "lt",
        "le",
        "eq",
        "ne",
        "and",
        "or",
        "xor",
        "shl",
        "shr",
        "floordiv",
        "truncdiv",
        "philox",
    ]
)


def derivative(root: Expr, variable: Expr) -> Expr | None:
    """Return d root / d variable, or None when it is zero everywhere."""
    slopes: dict[Expr, Expr | None] = {}
    for node in ex.walk(root):
        slopes[node] = (
            ex.const(1.0, variable.dtype)
            if node is variable
            else _slope(node, [slopes[a] for a in node.args])
        )
    return slopes[root]


def _slope(node: Expr, parts: list[Expr | None]) -> Expr | None:
    if node.op in FLAT or all(p is None for p in parts):
        return None
    if node.op in UNARY:
        (x,), (dx,) = node.args, parts
        assert dx is not None
        return _times(dx, UNARY[node.op](x, node))
    match node.op:
        case "neg":
            return -_present(parts[0])
        case "cast":
            return (
                ex.cast(_present(parts[0]), node.dtype)
                if node.dtype.kind == "float" and node.args[0].dtype.kind == "float"
                else None
            )
        case "where":
            condition, a, _ = node.args
            zero = ex.const(0.0, a.dtype)
            return ex.where(condition, parts[1] or zero, parts[2] or zero)
        case "add":
            return _plus(parts[0], parts[1])
        case "sub":
            return _plus(parts[0], None if parts[1] is None else -parts[1])
        case op if op in _BINARY:
            x, y = node.args
            left, right = _BINARY[op](x, y, node)
            return _plus(
                None if parts[0] is None or left is None else _times(parts[0], left()),
                None if parts[1] is None or right is None else _times(parts[1], right()),
            )
    raise NotImplementedError(f"no derivative is known for {node.op}")


def _present(x: Expr | None) -> Expr:
    assert x is not None
    return x


def _plus(x: Expr | None, y: Expr | None) -> Expr | None:
    return y if x is None else x if y is None else x + y


def _times(outer: Expr, inner: Expr) -> Expr:
    if inner.op == "const" and inner.value == -1.0:
        return -outer
    if outer.op == "const" and outer.value == -1.0:
        return -inner
    return outer * inner


Slope = Callable[[], Expr]


def _share(x: Expr, y: Expr) -> tuple[Slope, Slope]:
    """The larger side takes the slope, ties share it; `x` is the side that wins when x > y.

    Beside a NaN neither side loses: both take it, as in PyTorch.
    """
    share = ex.where(ex.eq(x, y), ex.const(0.5, x.dtype), 1.0)
    return (lambda: ex.where(x < y, 0.0, share)), (lambda: ex.where(y < x, 0.0, share))


def _pow(x: Expr, y: Expr, out: Expr) -> tuple[Slope, Slope]:
    def base() -> Expr:
        """Return the derivative by the base, 0 for the exponent 0."""
        return ex.where(ex.eq(y, 0.0), ex.const(0.0, x.dtype), y * ex.pow_(x, y - 1.0))

    def exponent() -> Expr:
        """Return the derivative by the exponent, 0 at 0 for exponents of at least 0."""
        # At x == 0 the slope is 0 for y >= 0 (PyTorch's convention), not 0 * log(0).
        return ex.where(ex.eq(x, 0.0) & (y >= 0.0), ex.const(0.0, x.dtype), out * ex.log(x))

    return base, exponent


_BINARY: dict[str, Callable[[Expr, Expr, Expr], tuple[Slope | None, Slope | None]]] = {
    "mul": lambda x, y, out: (lambda: y, lambda: x),
    "div": lambda x, y, out: (lambda: 1.0 / y, lambda: -(out / y)),
    "max": lambda x, y, out: _share(x, y),
    # The smaller side takes the slope: minimum(x, y) is -maximum(-x, -y).
    "min": lambda x, y, out: _share(-x, -y),
    "pow": _pow,
    "atan2": lambda x, y, out: (
        lambda: ex.where(
            ex.eq(x, 0.0) & ex.eq(y, 0.0), ex.const(0.0, x.dtype), y / (x * x + y * y)
        ),
        lambda: ex.where(
            ex.eq(x, 0.0) & ex.eq(y, 0.0), ex.const(0.0, x.dtype), -x / (x * x + y * y)
        ),
    ),
    "hypot": lambda x, y, out: (lambda: x / out, lambda: y / out),
    # d/dx copysign(x, y): the sign that was changed or kept; 0 at x == 0.
    "copysign": lambda x, y, out: (
        lambda: ex.where(ex.eq(x, 0.0), ex.const(0.0, x.dtype), out / x),
        None,
    ),
    "mod": lambda x, y, out: (lambda: ex.const(1.0, x.dtype), lambda: -ex.floor(x / y)),
    "truncmod": lambda x, y, out: (lambda: ex.const(1.0, x.dtype), lambda: -ex.trunc(x / y)),
}
