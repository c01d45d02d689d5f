"""Complex numbers as pairs of expressions: the algebra that complex forms of functions are written in."""

from __future__ import annotations

from dataclasses import dataclass

from webtorch.ir.expr.node import Expr, Operand, binary, const, unary, where


@dataclass(frozen=True, slots=True)
class Pair:
    """A complex number: two expressions of one float type."""

    re: Expr
    im: Expr

    # A real number leaves the imaginary part as it is, the sign of a zero included: it says on which side of a
    # branch cut a number is.
    def __add__(self, other: Pair | Operand) -> Pair:
        if not isinstance(other, Pair):
            return Pair(self.re + other, self.im)
        return Pair(self.re + other.re, self.im + other.im)

    __radd__ = __add__

    def __sub__(self, other: Pair | Operand) -> Pair:
        if not isinstance(other, Pair):
            return Pair(self.re - other, self.im)
        return Pair(self.re - other.re, self.im - other.im)

    def __rsub__(self, other: Operand) -> Pair:
        return Pair(other - self.re, -self.im)

    def __mul__(self, other: Pair | Operand) -> Pair:
        if not isinstance(other, Pair):
            return Pair(self.re * other, self.im * other)
        return Pair(
            self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re
        )

    __rmul__ = __mul__

    def __truediv__(self, other: Pair | Operand) -> Pair:
        return _quotient(self, other) if isinstance(other, Pair) else self * (1.0 / other)

    def __rtruediv__(self, other: Operand) -> Pair:
        return _quotient(as_pair(other, self), self)

    def __neg__(self) -> Pair:
        return Pair(-self.re, -self.im)


def as_pair(value: Pair | Operand | complex, like: Pair) -> Pair:
    """Return a Pair, or a real expression or number as one of the type of `like`."""
    if isinstance(value, Pair):
        return value
    if isinstance(value, Expr):
        return Pair(value, const(0.0, value.dtype))
    number = complex(value)
    return Pair(const(number.real, like.re.dtype), const(number.imag, like.re.dtype))


def select(condition: Expr, a: Pair | Operand, b: Pair | Operand) -> Pair:
    """Return `a` where the condition holds, else `b`; one of them is a Pair."""
    like = a if isinstance(a, Pair) else b
    assert isinstance(like, Pair)
    a, b = as_pair(a, like), as_pair(b, like)
    return Pair(where(condition, a.re, b.re), where(condition, a.im, b.im))


def equal(a: Pair, b: Pair) -> Expr:
    """Return whether both parts are equal."""
    return binary("eq", a.re, b.re) & binary("eq", a.im, b.im)


def is_zero(z: Pair) -> Expr:
    """Return whether z is zero."""
    return binary("eq", z.re, 0.0) & binary("eq", z.im, 0.0)


def is_infinite(z: Pair) -> Expr:
    """Return whether a part is infinite, whatever the other one is."""
    return unary("isinf", z.re) | unary("isinf", z.im)


def times_i(z: Pair) -> Pair:
    """Return i * z."""
    return Pair(-z.im, z.re)


def conj(z: Pair) -> Pair:
    """Return the conjugate."""
    return Pair(z.re, -z.im)


def modulus(z: Pair) -> Expr:
    """Return |z| without overflow."""
    return binary("hypot", z.re, z.im)


def angle(z: Pair) -> Expr:
    """Return the angle of z, from -pi to pi."""
    return binary("atan2", z.im, z.re)


def cosine_and_sine(angle: Expr) -> tuple[Expr, Expr]:
    """Return the point of the unit circle at an angle."""
    return unary("cos", angle), unary("sin", angle)


def _quotient(x: Pair, y: Pair) -> Pair:
    # Smith, 1962: scaled by the larger part of the divisor.
    first = abs(y.re) >= abs(y.im)
    large, small = where(first, y.re, y.im), where(first, y.im, y.re)
    nothing = is_zero(y)
    ratio = where(nothing, 0.0, small / large)
    scale = 1.0 / where(nothing, abs(large), large + small * ratio)
    a, b = where(first, x.re, x.im), where(first, x.im, x.re)
    return Pair(
        (a + b * ratio) * scale, where(first, x.im - x.re * ratio, x.im * ratio - x.re) * scale
    )
