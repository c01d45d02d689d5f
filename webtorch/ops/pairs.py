"""Complex numbers as pairs of scalar expressions: the algebra and the complex forms of elementwise
entries. May import floor 0 and the records.

Kernels know no complex type. A complex form is a formula over `Pair`s; what is recorded is a map over real
numbers whose last dimension (of size 2) says which part of the result is wanted. Where an entry's own formula
holds for complex numbers it is evaluated over pairs, derivatives included; `FORMS` names those entries and
holds the formulas that had to be arranged so that nothing overflows or cancels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType
from webtorch.ir.expr import Expr
from webtorch.ops.record import Elementwise


class NotComplex(Exception):
    """A formula has no meaning for complex numbers."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A complex number: two expressions of one float type."""

    re: Expr
    im: Expr

    # A real number leaves the imaginary part as it is, the sign of a zero included: it says on which side of a
    # branch cut a number is.
    def __add__(self, other: Any) -> Pair:
        if not isinstance(other, Pair):
            return Pair(self.re + other, self.im)
        return Pair(self.re + other.re, self.im + other.im)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Pair:
        if not isinstance(other, Pair):
            return Pair(self.re - other, self.im)
        return Pair(self.re - other.re, self.im - other.im)

    def __rsub__(self, other: Any) -> Pair:
        return Pair(other - self.re, -self.im)

    def __mul__(self, other: Any) -> Pair:
        if not isinstance(other, Pair):
            return Pair(self.re * other, self.im * other)
        return Pair(
            self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re
        )

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Pair:
        return _quotient(self, other) if isinstance(other, Pair) else self * (1.0 / other)

    def __rtruediv__(self, other: Any) -> Pair:
        return _quotient(_pair(other, self), self)

    def __neg__(self) -> Pair:
        return Pair(-self.re, -self.im)


Complex = Pair | Expr
Form = Callable[..., Complex]


def _pair(value: Any, like: Pair) -> Pair:
    if isinstance(value, Pair):
        return value
    if isinstance(value, Expr):
        return Pair(value, ex.const(0.0, value.dtype))
    number = complex(value)
    return Pair(ex.const(number.real, like.re.dtype), ex.const(number.imag, like.re.dtype))


def select(condition: Expr, a: Any, b: Any) -> Pair:
    """Return `a` where the condition holds, else `b`; one of them is a Pair."""
    like = a if isinstance(a, Pair) else b
    a, b = _pair(a, like), _pair(b, like)
    return Pair(ex.where(condition, a.re, b.re), ex.where(condition, a.im, b.im))


def equal(a: Pair, b: Pair) -> Expr:
    """Return whether both parts are equal."""
    return ex.eq(a.re, b.re) & ex.eq(a.im, b.im)


def is_zero(z: Pair) -> Expr:
    """Return whether z is zero."""
    return ex.eq(z.re, 0.0) & ex.eq(z.im, 0.0)


def times_i(z: Pair) -> Pair:
    """Return i * z."""
    return Pair(-z.im, z.re)


def conj(z: Pair) -> Pair:
    """Return the conjugate."""
    return Pair(z.re, -z.im)


def modulus(z: Pair) -> Expr:
    """Return |z| without overflow."""
    return ex.hypot(z.re, z.im)


def _quotient(x: Pair, y: Pair) -> Pair:
    # Smith, 1962: scaled by the larger part of the divisor.
    first = ex.unary("abs", y.re) >= ex.unary("abs", y.im)
    large, small = ex.where(first, y.re, y.im), ex.where(first, y.im, y.re)
    nothing = ex.eq(large, 0.0)
    ratio = ex.where(nothing, 0.0, small / large)
    scale = 1.0 / ex.where(nothing, ex.unary("abs", large), large + small * ratio)
    a, b = ex.where(first, x.re, x.im), ex.where(first, x.im, x.re)
    return Pair(
        (a + b * ratio) * scale, ex.where(first, x.im - x.re * ratio, x.im * ratio - x.re) * scale
    )


# ---- functions
# ---------------------------------------------------------------------------------------------


def exp(z: Pair) -> Pair:
    """Return e to the power z; real where z is."""
    size = ex.exp(z.re)
    return Pair(size * ex.cos(z.im), ex.where(ex.eq(z.im, 0.0), z.im, size * ex.sin(z.im)))


def log(z: Pair) -> Pair:
    """Return the principal logarithm."""
    size = modulus(z)
    a, b = ex.unary("abs", z.re), ex.unary("abs", z.im)
    m, n = ex.maximum(a, b), ex.minimum(a, b)
    # Near |z| = 1 the logarithm of the rounded modulus has no correct digits.
    near = ex.log1p((m - 1.0) * (m + 1.0) + n * n) * 0.5
    return Pair(ex.where((size > 0.5) & (size < 2.0), near, ex.log(size)), ex.atan2(z.im, z.re))


def sqrt(z: Pair) -> Pair:
    """Return the square root with a real part that is not negative."""
    a, b = ex.unary("abs", z.re), ex.unary("abs", z.im)
    t = ex.sqrt(modulus(z) * 0.5 + a * 0.5)
    other = ex.where(ex.eq(t, 0.0), 0.0, b / (t + t))
    right = z.re >= 0.0
    found = Pair(ex.where(right, t, other), ex.copysign(ex.where(right, other, t), z.im))
    return select(ex.isinf(z.im), Pair(b, z.im), found)


def log1p(z: Pair) -> Pair:
    """Return log(1 + z), also near 0."""
    near = ex.log1p(z.re * (z.re + 2.0) + z.im * z.im) * 0.5
    far = log(z + 1.0)
    small = (ex.unary("abs", z.re) < 0.5) & (ex.unary("abs", z.im) < 0.5)
    return Pair(ex.where(small, near, far.re), ex.atan2(z.im, z.re + 1.0))


def expm1(z: Pair) -> Pair:
    """Return e**z - 1, also near 0."""
    half = ex.sin(z.im * 0.5)
    return Pair(
        ex.expm1(z.re) * ex.cos(z.im) - 2.0 * half * half,
        ex.where(ex.eq(z.im, 0.0), z.im, ex.exp(z.re) * ex.sin(z.im)),
    )


def _scaled_sine(x: Expr, size: Expr) -> Expr:
    """Return sin(x) * size; zero where x is, whatever the size."""
    sine = ex.sin(x)
    zero = ex.copysign(ex.const(1.0, x.dtype), size) * x
    return ex.where(ex.eq(x, 0.0), zero, sine * size)


def sin(z: Pair) -> Pair:
    """Return the sine."""
    return Pair(_scaled_sine(z.re, ex.cosh(z.im)), ex.cos(z.re) * ex.sinh(z.im))


def cos(z: Pair) -> Pair:
    """Return the cosine."""
    return Pair(ex.cos(z.re) * ex.cosh(z.im), -_scaled_sine(z.re, ex.sinh(z.im)))


def sinh(z: Pair) -> Pair:
    """Return the hyperbolic sine."""
    return Pair(ex.sinh(z.re) * ex.cos(z.im), _scaled_sine(z.im, ex.cosh(z.re)))


def cosh(z: Pair) -> Pair:
    """Return the hyperbolic cosine."""
    return Pair(ex.cosh(z.re) * ex.cos(z.im), _scaled_sine(z.im, ex.sinh(z.re)))


def tanh(z: Pair) -> Pair:
    """Return the hyperbolic tangent. Kahan, 1987."""
    far = ex.unary("abs", z.re) > 15.0
    x = ex.where(far, 0.0, z.re)
    t, s = ex.tan(z.im), ex.sinh(x)
    beta = 1.0 + t * t
    below = 1.0 + beta * s * s
    tail = 4.0 * ex.sin(z.im) * ex.cos(z.im) * ex.exp(ex.unary("abs", z.re) * -2.0)
    tail = ex.where(ex.isinf(z.re), ex.const(0.0, x.dtype), tail)
    return select(
        far,
        Pair(ex.copysign(ex.const(1.0, x.dtype), z.re), tail),
        Pair(beta * ex.sqrt(1.0 + s * s) * s / below, t / below),
    )


def tan(z: Pair) -> Pair:
    """Return the tangent."""
    return -times_i(tanh(times_i(z)))


# Kahan, 1987: the inverse functions from square roots and real inverses, exact on their branch cuts.


def acos(z: Pair) -> Pair:
    """Return the inverse cosine."""
    below, above = sqrt(1.0 - z), sqrt(1.0 + z)
    return Pair(2.0 * ex.atan2(below.re, above.re), ex.asinh((conj(above) * below).im))


def asin(z: Pair) -> Pair:
    """Return the inverse sine."""
    below, above = sqrt(1.0 - z), sqrt(1.0 + z)
    return Pair(ex.atan2(z.re, (below * above).re), ex.asinh((conj(below) * above).im))


def acosh(z: Pair) -> Pair:
    """Return the inverse hyperbolic cosine."""
    below, above = sqrt(z - 1.0), sqrt(z + 1.0)
    return Pair(ex.asinh((conj(below) * above).re), 2.0 * ex.atan2(below.im, above.re))


def asinh(z: Pair) -> Pair:
    """Return the inverse hyperbolic sine."""
    return -times_i(asin(times_i(z)))


def atanh(z: Pair) -> Pair:
    """Return the inverse hyperbolic tangent."""
    # Of -z it is the opposite: on the left side the argument of log1p would be near -1.
    left, y = z.re < 0, z.im
    x = ex.where(left, -z.re, z.re)
    distance = (1.0 - x) * (1.0 - x) + y * y
    # The square of a small distance underflows.
    near = (ex.log(ex.hypot(1.0 + x, y)) - ex.log(ex.hypot(1.0 - x, y))) * 0.5
    size = ex.where(distance < 1e-12, near, ex.log1p(4.0 * x / distance) * 0.25)
    return Pair(
        ex.where(left, -size, size),
        ex.atan2(2.0 * y, (1.0 - x) * (1.0 + x) - y * y) * 0.5,
    )


def atan(z: Pair) -> Pair:
    """Return the inverse tangent."""
    return -times_i(atanh(times_i(z)))


def power(x: Pair, y: Pair) -> Pair:
    """Return x to the power y: 1 where y is zero, 0 where only x is."""
    found = select(is_zero(x), 0.0, exp(y * log(x)))
    return select(is_zero(y), 1.0, found)


def _truth(z: Complex) -> Expr:
    return ex.logical_not(is_zero(z)) if isinstance(z, Pair) else ex.ne(z, 0.0)


def _both(z: Pair, question: Callable[[Expr], Expr], every: bool = False) -> Expr:
    a, b = question(z.re), question(z.im)
    return (a & b) if every else (a | b)


def _finite(x: Expr) -> Expr:
    return ex.logical_not(ex.isnan(x) | ex.isinf(x))


_LN2 = math.log(2.0)


# ---- formulas of the table over pairs
# --------------------------------------------------------------------------------------------

_FUNCTIONS: dict[str, Callable[[Pair], Pair]] = {
    "neg": lambda z: -z, "exp": exp, "expm1": expm1, "log": log, "log1p": log1p, "sqrt": sqrt,
    "exp2": lambda z: exp(z * _LN2), "log2": lambda z: log(z) * (1.0 / _LN2),
    "log10": lambda z: log(z) * (1.0 / math.log(10.0)), "rsqrt": lambda z: 1.0 / sqrt(z),
    "sin": sin, "cos": cos, "tan": tan, "sinh": sinh, "cosh": cosh, "tanh": tanh, "asin": asin,
    "acos": acos, "atan": atan, "asinh": asinh, "acosh": acosh, "atanh": atanh,
}  # fmt: skip
_OPERATORS: dict[str, Callable[[Any, Any], Pair]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "pow": power,
}


def over_pairs(op: Elementwise, values: tuple[Complex, ...]) -> Complex:
    """Return the entry's own formula applied to pairs. Raises NotComplex where it compares or rounds."""
    first = values[0]
    part = first.re.dtype if isinstance(first, Pair) else first.dtype
    root = op.build(tuple(ex.input_(i, part) for i in range(len(values))))
    found: dict[Expr, Any] = {}
    for node in ex.walk(root):
        args = [found[a] for a in node.args]
        found[node] = _evaluate(node, args, values)
    return found[root]


def _evaluate(node: Expr, args: list[Any], values: tuple[Complex, ...]) -> Any:
    if node.op == "input":
        return values[node.value]
    if not any(isinstance(a, Pair) for a in args):
        return ex.rebuild(node, tuple(args)) if node.args else node
    if node.op in _FUNCTIONS:
        return _FUNCTIONS[node.op](args[0])
    if node.op in _OPERATORS:
        like = args[0] if isinstance(args[0], Pair) else args[1]
        return _OPERATORS[node.op](_pair(args[0], like), _pair(args[1], like))
    if node.op in ("eq", "ne"):
        like = args[0] if isinstance(args[0], Pair) else args[1]
        same = equal(_pair(args[0], like), _pair(args[1], like))
        return same if node.op == "eq" else ex.logical_not(same)
    if node.op in ("lt", "le"):
        # Conditions that choose between two forms of one function look at the real part.
        left, right = (a.re if isinstance(a, Pair) else a for a in args)
        return ex.rebuild(node, (left, right))
    if node.op == "abs":
        return modulus(args[0])
    if node.op in ("isnan", "isinf"):
        return _both(args[0], ex.isnan if node.op == "isnan" else ex.isinf)
    if node.op == "where" and not isinstance(args[0], Pair):
        return select(*args)
    raise NotComplex(node.op)


# ---- the complex forms of entries
# --------------------------------------------------------------------------------------------

# Entries whose own formula holds.
DERIVED = frozenset((
    "_add", "_add_scaled", "_sub", "_sub_scaled", "mul", "_div", "_cube", "_square", "reciprocal",
    "addcmul", "addcdiv", "neg", "lerp", "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2",
    "log10", "log1p", "logaddexp", "logaddexp2", "_log_add", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "silu", "sinc", "tanhshrink", "ldexp",
    "tanh_backward", "sigmoid_backward",
))  # fmt: skip
# The others. A form over pairs gives a Pair, or an Expr where the result is real.
FORMS: dict[str, Form] = {
    "_pow": power,
    "abs": modulus,
    "angle": lambda z: ex.atan2(z.im, z.re),
    "eq": equal,
    "ne": lambda x, y: ex.logical_not(equal(x, y)),
    "isnan": lambda z: _both(z, ex.isnan),
    "isinf": lambda z: _both(z, ex.isinf),
    "isfinite": lambda z: _both(z, _finite, every=True),
    "isreal": lambda z: ex.eq(z.im, 0.0),
    "logical_not": lambda z: is_zero(z),
    "logical_and": lambda x, y: _truth(x) & _truth(y),
    "logical_or": lambda x, y: _truth(x) | _truth(y),
    "logical_xor": lambda x, y: _truth(x) ^ _truth(y),
    # Constructions and parts: not entries of the table.
    "_complex": lambda x, y: Pair(x, y),
    "_polar": lambda r, t: Pair(r * ex.cos(t), r * ex.sin(t)),
    "_conj": conj,
    "_times_i": times_i,
    "_widen": lambda z: z,
}


def _form(name: str) -> Elementwise:
    """Return what stands for a form that is no entry of the table."""
    return Elementwise(name=name, family="elementwise", signature="", doc="", function_in=())


COMPLEX, POLAR, CONJ, TIMES_I, WIDEN = (
    _form(name) for name in ("_complex", "_polar", "_conj", "_times_i", "_widen")
)


def has_form(op: Elementwise) -> bool:
    """Whether the entry is defined for complex numbers; derivatives of those that are, are."""
    return op.name in FORMS or op.name in DERIVED


def evaluate(op: Elementwise, values: tuple[Complex, ...]) -> Complex:
    """Return the entry's complex form applied to `values`."""
    form = FORMS.get(op.name)
    return over_pairs(op, values) if form is None else form(*values)


# An operand of a recorded form: a complex tensor or number has two inputs, a real one has one.
Letter = str
_RECORDED: dict[tuple[Elementwise, str, bool], Elementwise] = {}


def recorded(op: Elementwise, kinds: str, real: bool) -> Elementwise:
    """Return the real entry that computes a form: (part wanted, inputs...) -> that part.

    kinds: "c" for each complex operand, whose two parts are inputs, "r" for each real one. `real`: the
    result is real, and there is no input that says which part is wanted.
    """
    key = (op, kinds, real)
    found = _RECORDED.get(key)
    if found is not None:
        return found

    def expr(*inputs: Expr) -> Expr:
        """Return one part of the form's result."""
        parts = iter(inputs if real else inputs[1:])
        takes_parts = op.name in ("_complex", "_polar")
        values: list[Complex] = []
        for kind in kinds:
            x = next(parts)
            y = next(parts) if kind == "c" else ex.const(0.0, x.dtype)
            values.append(x if takes_parts else Pair(x, y))
        out = evaluate(op, tuple(values))
        if isinstance(out, Expr):
            return out
        return ex.where(ex.eq(inputs[0], 0), out.re, out.im)

    found = Elementwise(
        name=f"{op.name.strip('_')}_{kinds}", family="elementwise", signature="", doc=op.doc,
        expr=expr, tensors=(), function_in=(), torch="",
    )  # fmt: skip
    _RECORDED[key] = found
    return found


FILL = Elementwise(
    name="_fill_pair", family="elementwise", signature="", doc="One complex number.",
    expr=lambda part, re, im: ex.where(ex.eq(part, 0), re, im), tensors=(), function_in=(),
)  # fmt: skip


_REAL: dict[tuple[Elementwise, str], bool] = {}


def gives_real(op: Elementwise, kinds: str, part: DType) -> bool:
    """Return whether the form of an entry gives real numbers. Raises NotComplex where it has none."""
    key = (op, kinds)
    if key not in _REAL:
        count = itertools.count()
        values = [
            Pair(ex.input_(next(count), part), ex.input_(next(count), part))
            if kind == "c"
            else _pair(ex.input_(next(count), part), Pair(ex.const(0.0, part), ex.const(0.0, part)))
            for kind in kinds
        ]
        _REAL[key] = isinstance(evaluate(op, tuple(values)), Expr)
    return _REAL[key]
