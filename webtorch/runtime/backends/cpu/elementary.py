"""Elementary functions, each written once for every machine that runs them. Standard library, and
NumPy inside one class.

A function takes a machine and values. The machine says how to select, to reinterpret bits and to
convert; arithmetic is the values' own operators. `NumpyMachine` works on arrays and scalars (NumPy
source, debug.step); the compiler's machine in `jit.py` writes LLVM instructions, so that whole
loops become vector code without a mathematics library.
"""

from __future__ import annotations

from typing import Any, Protocol

Value = Any


class Machine(Protocol):
    """What the functions need besides +, -, *, /, comparisons, &, |, ^, << and >>."""

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """Return `a` where the condition holds, else `b`."""
        ...

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return a * b + c, rounded once where that is cheap."""
        ...

    def cast(self, x: Value, kind: str) -> Value:
        """Convert to "float32", "float64", "int32", "int64", "uint32" or "uint64"; floats truncate."""
        ...

    def bits(self, x: Value, kind: str) -> Value:
        """Reinterpret as a type of the same size."""
        ...

    def rint(self, x: Value) -> Value:
        """Round to the nearest integer, ties to even."""
        ...

    def sqrt(self, x: Value) -> Value:
        """Return the square root."""
        ...

    def constant(self, number: float, kind: str) -> Value:
        """Return a typed constant."""
        ...


class NumpyMachine:
    """The functions' operations on NumPy arrays and scalars."""

    def __init__(self) -> None:
        import numpy

        self.np = numpy

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """Return `a` where the condition holds, else `b`."""
        return self.np.where(condition, a, b)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return a * b + c, rounded twice."""
        return a * b + c

    def cast(self, x: Value, kind: str) -> Value:
        """Convert to a named type."""
        return self.np.asarray(x).astype(kind)

    def bits(self, x: Value, kind: str) -> Value:
        """Reinterpret as a type of the same size."""
        return self.np.asarray(x).view(kind)

    def rint(self, x: Value) -> Value:
        """Round to the nearest integer, ties to even."""
        return self.np.rint(x)

    def sqrt(self, x: Value) -> Value:
        """Return the square root."""
        return self.np.sqrt(x)

    def constant(self, number: float, kind: str) -> Value:
        """Return a typed scalar."""
        return self.np.dtype(kind).type(number)


def philox(
    m: Machine, seed_low: Value, seed_high: Value, counter_low: Value, counter_high: Value
) -> list[Value]:
    """Return the four uint32 lanes of Philox4x32-10 (Salmon et al., 2011) for counter (counter_low,
    counter_high, 0, 0).
    """
    zero = m.constant(0, "uint32")
    return philox4x32(m, (seed_low, seed_high), (counter_low, counter_high, zero, zero))


def philox4x32(
    m: Machine, key: tuple[Value, Value], counter: tuple[Value, Value, Value, Value]
) -> list[Value]:
    """Return the four uint32 lanes of Philox4x32-10 for any key and counter."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    first, second = m.constant(0xD2511F53, "uint64"), m.constant(0xCD9E8D57, "uint64")
    shift = m.constant(32, "uint64")
    for _ in range(10):
        p0, p1 = m.cast(c0, "uint64") * first, m.cast(c2, "uint64") * second
        high0, low0 = m.cast(p0 >> shift, "uint32"), m.cast(p0, "uint32")
        high1, low1 = m.cast(p1 >> shift, "uint32"), m.cast(p1, "uint32")
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + m.constant(0x9E3779B9, "uint32"), k1 + m.constant(0xBB67AE85, "uint32")
    return [c0, c1, c2, c3]


# -- building blocks ---------------------------
# Polynomials are our own fits: weighted least squares, reweighted towards equal error, computed in float64.


def _polynomial(m: Machine, x: Value, coefficients: tuple[float, ...]) -> Value:
    """Return c0 + c1 x + c2 x^2 + ..., by Horner's rule."""
    kind = _kind(x)
    total = m.constant(coefficients[-1], kind)
    for c in reversed(coefficients[:-1]):
        total = m.fma(total, x, m.constant(c, kind))
    return total


def _kind(x: Value) -> str:
    kind = getattr(x, "kind", None)
    return kind if kind is not None else str(x.dtype)


def _absolute(m: Machine, x: Value) -> Value:
    if _kind(x) == "float32":
        return m.bits(m.bits(x, "int32") & m.constant(0x7FFFFFFF, "int32"), "float32")
    return m.bits(m.bits(x, "int64") & m.constant(0x7FFFFFFFFFFFFFFF, "int64"), "float64")


def _with_sign_of(m: Machine, x: Value, sign: Value) -> Value:
    """Return non-negative `x` with the sign of `sign`, both float32."""
    bit = m.bits(sign, "int32") & m.constant(-0x80000000, "int32")
    return m.bits(m.bits(x, "int32") | bit, "float32")


_ROUND32, _ROUND64 = (
    12582912.0,
    6755399441055744.0,
)  # 1.5 * 2^23 and 1.5 * 2^52: adding one rounds to an integer
_LOG2E = 1.4426950408889634
_EXP = (
    1.0,
    1.0,
    0.5000000096659385,
    0.1666651730820333,
    0.04166620106201825,
    0.008369073115281156,
    0.0013950807172420966,
)
_LOG = (
    0.3333331679079299, -0.25000811128381695, 0.20002280645912476, -0.16624520928843575, 0.14181309214160848,
    -0.13129237088891532, 0.12880961062437465, -0.07857310686499751,
)  # fmt: skip


def exp(m: Machine, x: Value) -> Value:
    """Return e^x for float32: x = n ln 2 + r, a polynomial in r, and 2^n in two steps for results below 2^-126."""
    f, i = "float32", "int32"
    x = m.select(x > m.constant(89.0, f), m.constant(89.0, f), x)
    x = m.select(x < m.constant(-104.0, f), m.constant(-104.0, f), x)
    magic = m.constant(_ROUND32, f)
    shifted = m.fma(x, m.constant(_LOG2E, f), magic)
    n = shifted - magic
    r = m.fma(n, m.constant(-0.693145751953125, f), x)
    r = m.fma(n, m.constant(-1.4286068203094173e-06, f), r)
    p = _polynomial(m, r, _EXP)
    whole = m.bits(shifted, i) - m.constant(0x4B400000, i)
    half = whole >> m.constant(1, i)
    return p * _power_of_two(m, half) * _power_of_two(m, whole - half)


def exp_of_negative(m: Machine, x: Value) -> Value:
    """Return e^x for float32 below 88: 0 where it is less than 2^-126."""
    f, i = "float32", "int32"
    shifted = m.fma(x, m.constant(_LOG2E, f), m.constant(_ROUND32, f))
    n = shifted - m.constant(_ROUND32, f)
    r = m.fma(n, m.constant(-0.693145751953125, f), x)
    r = m.fma(n, m.constant(-1.4286068203094173e-06, f), r)
    p = _polynomial(m, r, _EXP)
    found = p * _power_of_two(m, m.bits(shifted, i) - m.constant(0x4B400000, i))
    return m.select(x < m.constant(-87.33654, f), m.constant(0.0, f), found)


_EXP2 = (
    1.0,
    0.6931472134901656,
    0.24022240462677796,
    0.05550309951063165,
    0.009671605075219266,
    0.0013406850648353108,
)


def _exp2_between(m: Machine, x: Value) -> Value:
    """Return 2^x for float32 between -126 and 127, to 1e-7: a part of functions where it is a small term."""
    f, i = "float32", "int32"
    magic = m.constant(_ROUND32, f)
    shifted = x + magic
    p = _polynomial(m, x - (shifted - magic), _EXP2)
    return p * _power_of_two(m, m.bits(shifted, i) - m.constant(0x4B400000, i))


def _power_of_two(m: Machine, n: Value) -> Value:
    return m.bits((n + m.constant(127, "int32")) << m.constant(23, "int32"), "float32")


def log(m: Machine, x: Value) -> Value:
    """Return the natural logarithm for float32: x = 2^e (1 + f) with 1 + f between sqrt(1/2) and sqrt(2)."""
    f, i = "float32", "int32"
    small = x < m.constant(1.1754943508222875e-38, f)
    scaled = m.select(small, x * m.constant(8388608.0, f), x)
    pivot = m.constant(0x3F3504F3, i)
    offset = m.bits(scaled, i) - pivot
    e = m.cast(offset >> m.constant(23, i), f)
    e = m.select(small, e - m.constant(23.0, f), e)
    g = m.bits((offset & m.constant(0x7FFFFF, i)) + pivot, f) - m.constant(1.0, f)
    square = g * g
    p = _polynomial(m, g, _LOG) * (square * g)
    p = m.fma(e, m.constant(-2.1219444e-4, f), p)
    p = m.fma(square, m.constant(-0.5, f), p)
    result = m.fma(e, m.constant(0.693359375, f), g + p)
    return _log_ends(m, x, result)


def _log_ends(m: Machine, x: Value, result: Value) -> Value:
    """Put in what a logarithm gives at 0, infinity, NaN and below 0."""
    kind = _kind(x)
    zero, inf = m.constant(0.0, kind), m.constant(float("inf"), kind)
    result = m.select(x < inf, result, x)
    result = m.select(x < zero, m.constant(float("nan"), kind), result)
    return m.select(x == zero, -inf, result)


def _exp64(m: Machine, x: Value) -> Value:
    """Return e^x for float64 between -700 and 700, to 1e-15; the ends are clamped."""
    f, i = "float64", "int64"
    x = m.select(x > m.constant(700.0, f), m.constant(700.0, f), x)
    x = m.select(x < m.constant(-700.0, f), m.constant(-700.0, f), x)
    magic = m.constant(_ROUND64, f)
    shifted = m.fma(x, m.constant(_LOG2E, f), magic)
    n = shifted - magic
    r = m.fma(n, m.constant(-0.693147180369123816490, f), x)
    r = m.fma(n, m.constant(-1.90821492927058770002e-10, f), r)
    p = _polynomial(m, r, _TAYLOR)
    # The magic number's low bits are 0, so n sits in the low bits of `shifted`.
    return p * m.bits((m.bits(shifted, i) + m.constant(1023, i)) << m.constant(52, i), f)


def _factorials(count: int) -> tuple[float, ...]:
    terms = [1.0]
    for k in range(1, count):
        terms.append(terms[-1] / k)
    return tuple(terms)


_TAYLOR = _factorials(13)
_ATANH = tuple(2.0 / (2 * k + 1) for k in range(11))


def _log64(m: Machine, x: Value) -> Value:
    """Return the natural logarithm for normal float64, to 1e-15, by log((1+s)/(1-s)) = 2 s (1 + s^2/3 + ...)."""
    f, i = "float64", "int64"
    pivot = m.constant(0x3FE6A09E667F3BCD, i)
    offset = m.bits(x, i) - pivot
    e = m.cast(m.cast(offset >> m.constant(52, i), "int32"), f)
    g = m.bits((offset & m.constant(0xFFFFFFFFFFFFF, i)) + pivot, f)
    one = m.constant(1.0, f)
    s = (g - one) / (g + one)
    result = m.fma(e, m.constant(0.6931471805599453, f), s * _polynomial(m, s * s, _ATANH))
    return _log_ends(m, x, result)


def _log1p64(m: Machine, x: Value) -> Value:
    """Return log(1 + x) for float64 arguments that came from float32."""
    f = "float64"
    series = x * _polynomial(m, x, (1.0, -0.5, 1 / 3, -0.25))
    near = _absolute(m, x) < m.constant(1e-3, f)
    return m.select(near, series, _log64(m, x + m.constant(1.0, f)))


def _expm1_64(m: Machine, x: Value) -> Value:
    f = "float64"
    series = x * _polynomial(m, x, (1.0, 0.5, 1 / 6, 1 / 24))
    near = _absolute(m, x) < m.constant(1e-3, f)
    return m.select(near, series, _exp64(m, x) - m.constant(1.0, f))


def _through64(function: Any) -> Any:
    """Compute a float32 function in float64, where cancellation does not show."""

    def apply(m: Machine, *args: Value) -> Value:
        """Return the function of float32 values, rounded once."""
        return m.cast(function(m, *[m.cast(a, "float64") for a in args]), "float32")

    apply.__doc__ = function.__doc__
    return apply


# -- float32 functions ---------------------------


@_through64
def exp2(m: Machine, x: Value) -> Value:
    """Return 2^x."""
    return _exp64(m, x * m.constant(0.6931471805599453, "float64"))


@_through64
def expm1(m: Machine, x: Value) -> Value:
    """Return e^x - 1."""
    return _expm1_64(m, x)


@_through64
def log2(m: Machine, x: Value) -> Value:
    """Return the logarithm to base 2."""
    return _log64(m, x) * m.constant(_LOG2E, "float64")


@_through64
def log10(m: Machine, x: Value) -> Value:
    """Return the logarithm to base 10."""
    return _log64(m, x) * m.constant(0.4342944819032518, "float64")


@_through64
def log1p(m: Machine, x: Value) -> Value:
    """Return log(1 + x)."""
    return _log1p64(m, x)


_TANH = (
    1.0,
    -0.33333272080756055,
    0.13331152762796478,
    -0.0537141042278666,
    0.020551710653691702,
    -0.005603905454037327,
)


def tanh(m: Machine, x: Value) -> Value:
    """Return the hyperbolic tangent: 1 - 2 / (e^2|x| + 1), or an odd polynomial near 0."""
    f = "float32"
    size = _absolute(m, x)
    two = m.constant(2.0, f)
    # From 9.1 on the result is 1.
    top = m.constant(9.5, f)
    bounded = m.select(size > top, top, size)
    power = _exp2_between(m, m.constant(2.0 * _LOG2E, f) * bounded)
    far = m.constant(1.0, f) - two / (power + m.constant(1.0, f))
    near = size * _polynomial(m, size * size, _TANH)
    return _with_sign_of(m, m.select(size < m.constant(0.625, f), near, far), x)


_ERF = (
    0.12837915003693587, -0.37612494316785383, 0.11281802772333238, -0.026765567000183118, 0.004990980253304297,
    -0.0005976893799094341,
)  # fmt: skip
_ERF_LOG = (
    -0.0002560603177013121, -1.6269987473610246, -0.919082862325316, -0.15009426290470226, 0.03213908488274998,
    -0.004408321228887555, 0.0002844743490340635,
)  # fmt: skip
_ERFCX = (
    0.25539567631062166,
    -0.42718584741434024,
    0.24165819421766924,
    -0.07897858096928083,
    0.003732893278600433,
    0.006997460599212588,
    -0.0008471552847669786,
    -0.0009819669282805797,
    4.363991231814122e-05,
    0.00017432650517240666,
    2.7192214668148864e-05,
    -2.757395314040498e-05,
    -1.321279912709807e-05,
    1.647281267791012e-06,
    2.8703206424928055e-06,
    5.774808871676096e-07,
    -5.556958284142693e-08,
)


def erf(m: Machine, x: Value) -> Value:
    """Return the error function: x + x P(x^2) near 0, 1 - 2^Q(|x|) elsewhere."""
    f = "float32"
    size = _absolute(m, x)
    near = m.fma(size, _polynomial(m, size * size, _ERF), size)
    # Past 3.93 the result is 1; the polynomial was not fitted there.
    top = m.constant(3.95, f)
    bounded = m.select(size > top, top, size)
    far = m.constant(1.0, f) - _exp2_between(m, _polynomial(m, bounded, _ERF_LOG))
    return _with_sign_of(m, m.select(size < m.constant(0.925, f), near, far), x)


@_through64
def erfc(m: Machine, x: Value) -> Value:
    """Return 1 - erf(x): e^-x^2 times a polynomial in (|x| - 2) / (|x| + 2)."""
    f = "float64"
    two = m.constant(2.0, f)
    size = _absolute(m, x)
    top = m.constant(10.2, f)
    size = m.select(size > top, top, size)
    tail = _exp64(m, -(size * size)) * _polynomial(m, (size - two) / (size + two), _ERFCX)
    # Both sides of the comparison fail for NaN, whose size is NaN.
    return m.select(x < m.constant(0.0, f), two - tail, tail)


_SIN = (
    -0.16666666666631555,
    0.008333333325267426,
    -0.0001984126382147348,
    2.755535756635834e-06,
    -2.4761645237580052e-08,
)
_COS = (
    0.04166666666659367,
    -0.0013888888877242665,
    2.4801580551284684e-05,
    -2.755549621895882e-07,
    2.0643484600945153e-09,
)


# 1 / (2 pi), 28 bits at a time: the product of each part with a float32 is exact in float64.
_TURN = (
    0.15915494039654732, 2.6953480142255515e-09, 4.038449450981451e-18, 1.9241762118391763e-26,
    4.1707168783816406e-35, 3.8770419007437455e-43, 1.7634897189248905e-52,
)  # fmt: skip


def _quadrant(m: Machine, x: Value) -> tuple[Value, Value, Value]:
    """Return the quadrant number of float64 `x`, and the sine and cosine of what is left.

    Cody and Waite's reduction up to 2^20; past that, whole turns are taken off part by part, without rounding. Infinity
    gives NaN by inf - inf.
    """
    f, i = "float64", "int64"
    magic = m.constant(_ROUND64, f)
    shifted = m.fma(x, m.constant(0.6366197723675814, f), magic)
    n = shifted - magic
    # The first part has 33 bits: its products with n below 2^20 are exact even without a fused multiply-add.
    r = m.fma(n, m.constant(-1.57079632673412561417, f), x)
    r = m.fma(n, m.constant(-6.07710050630396597660e-11, f), r)
    r = m.fma(n, m.constant(-2.02226624879595063154e-21, f), r)
    turns = m.constant(0.0, f)
    for part in _TURN:
        product = x * m.constant(part, f)
        turns = turns + (product - m.rint(product))
    quarters = (turns - m.rint(turns)) * m.constant(4.0, f)
    far = quarters + magic
    near = _absolute(m, x) < m.constant(1048576.0, f)
    shifted = m.select(near, shifted, far)
    r = m.select(near, r, (quarters - (far - magic)) * m.constant(1.5707963267948966, f))
    z = r * r
    sine = m.fma(r * z, _polynomial(m, z, _SIN), r)
    cosine = m.fma(
        z * z, _polynomial(m, z, _COS), m.fma(z, m.constant(-0.5, f), m.constant(1.0, f))
    )
    return m.bits(shifted, i), sine, cosine


def _turned(m: Machine, quadrant: Value, a: Value, b: Value) -> Value:
    """Return a, b, -a, -b for quadrants 0 to 3."""
    i = "int64"
    zero = m.constant(0, i)
    value = m.select((quadrant & m.constant(1, i)) == zero, a, b)
    return m.select((quadrant & m.constant(2, i)) == zero, value, -value)


@_through64
def sin(m: Machine, x: Value) -> Value:
    """Return the sine."""
    quadrant, sine, cosine = _quadrant(m, x)
    # -0 has no other way through the additions.
    return m.select(x == m.constant(0.0, "float64"), x, _turned(m, quadrant, sine, cosine))


@_through64
def cos(m: Machine, x: Value) -> Value:
    """Return the cosine."""
    quadrant, sine, cosine = _quadrant(m, x)
    return _turned(m, quadrant, cosine, -sine)


@_through64
def tan(m: Machine, x: Value) -> Value:
    """Return the tangent."""
    quadrant, sine, cosine = _quadrant(m, x)
    odd = (quadrant & m.constant(1, "int64")) != m.constant(0, "int64")
    ratio = m.select(odd, -cosine, sine) / m.select(odd, sine, cosine)
    return m.select(x == m.constant(0.0, "float64"), x, ratio)


_ATAN = (
    0.9999999999999987, -0.33333333333264226, 0.19999999984493075, -0.14285712978819, 0.11111057249070953,
    -0.09089657271710497, 0.07674688329899686, -0.06512148251404287, 0.050427310313302255, -0.02553658661947971,
)  # fmt: skip


def _angle(m: Machine, y: Value, x: Value) -> Value:
    """Return the angle of the point (x, y) for float64, with the signs of zeros and infinities as
    C's atan2 has them.
    """
    f, i = "float64", "int64"
    tall, wide = _absolute(m, y), _absolute(m, x)
    zero, one, inf = m.constant(0.0, f), m.constant(1.0, f), m.constant(float("inf"), f)
    steep = tall > wide
    low, high = m.select(steep, wide, tall), m.select(steep, tall, wide)
    t = low / high
    t = m.select(high == zero, zero, t)
    t = m.select(low == inf, one, t)
    t = m.select((tall != tall) | (wide != wide), tall + wide, t)
    # atan t = pi/4 + atan((t - 1) / (t + 1)) brings t below tan(pi / 8).
    upper = t > m.constant(0.4142135623730951, f)
    s = m.select(upper, (t - one) / (t + one), t)
    angle = s * _polynomial(m, s * s, _ATAN)
    angle = m.select(upper, angle + m.constant(0.7853981633974483, f), angle)
    angle = m.select(steep, m.constant(1.5707963267948966, f) - angle, angle)
    sign_bit = m.constant(-0x8000000000000000, i)
    left = m.bits(x, i) < m.constant(0, i)
    angle = m.select(left, m.constant(3.141592653589793, f) - angle, angle)
    # NaN keeps its sign bit through this, and stays NaN.
    return m.bits(m.bits(angle, i) | (m.bits(y, i) & sign_bit), f)


@_through64
def atan2(m: Machine, y: Value, x: Value) -> Value:
    """Return the angle of the point (x, y)."""
    return _angle(m, y, x)


@_through64
def atan(m: Machine, x: Value) -> Value:
    """Return the inverse tangent."""
    return _angle(m, x, m.constant(1.0, "float64"))


@_through64
def asin(m: Machine, x: Value) -> Value:
    """Return the inverse sine."""
    one = m.constant(1.0, "float64")
    return _angle(m, x, m.sqrt((one - x) * (one + x)))


@_through64
def acos(m: Machine, x: Value) -> Value:
    """Return the inverse cosine."""
    one = m.constant(1.0, "float64")
    return _angle(m, m.sqrt((one - x) * (one + x)), x)


def _odd(function: Any) -> Any:
    """Compute an odd float32 function in float64 from the size of its argument; the sign of -0 is kept."""

    def apply(m: Machine, x: Value) -> Value:
        """Return the function of |x|, with the sign of x."""
        size = m.cast(_absolute(m, x), "float64")
        return _with_sign_of(m, m.cast(function(m, size), "float32"), x)

    apply.__doc__ = function.__doc__
    return apply


@_odd
def sinh(m: Machine, x: Value) -> Value:
    """Return the hyperbolic sine."""
    e = _expm1_64(m, x)
    return m.constant(0.5, "float64") * (e + e / (e + m.constant(1.0, "float64")))


@_through64
def cosh(m: Machine, x: Value) -> Value:
    """Return the hyperbolic cosine."""
    e = _exp64(m, _absolute(m, x))
    return m.constant(0.5, "float64") * (e + m.constant(1.0, "float64") / e)


@_odd
def asinh(m: Machine, x: Value) -> Value:
    """Return the inverse hyperbolic sine."""
    one = m.constant(1.0, "float64")
    square = x * x
    t = x + square / (one + m.sqrt(one + square))
    inf = m.constant(float("inf"), "float64")
    return m.select(x == inf, x, _log1p64(m, t))


@_through64
def acosh(m: Machine, x: Value) -> Value:
    """Return the inverse hyperbolic cosine."""
    one = m.constant(1.0, "float64")
    t = x - one
    t = m.select(t < m.constant(0.0, "float64"), m.constant(float("nan"), "float64"), t)
    return _log1p64(m, t + m.sqrt(t * (t + m.constant(2.0, "float64"))))


@_odd
def atanh(m: Machine, x: Value) -> Value:
    """Return the inverse hyperbolic tangent."""
    one = m.constant(1.0, "float64")
    return m.constant(0.5, "float64") * _log1p64(m, m.constant(2.0, "float64") * x / (one - x))


@_through64
def hypot(m: Machine, x: Value, y: Value) -> Value:
    """Return sqrt(x^2 + y^2); infinite if either side is, NaN or not."""
    inf = m.constant(float("inf"), "float64")
    size, other = _absolute(m, x), _absolute(m, y)
    return m.select((size == inf) | (other == inf), inf, m.sqrt(x * x + y * y))


@_through64
def pow(m: Machine, x: Value, y: Value) -> Value:
    """Return x^y with the special cases of C's pow."""
    f, i = "float64", "int64"
    zero, one, half = m.constant(0.0, f), m.constant(1.0, f), m.constant(0.5, f)
    size = _absolute(m, x)
    # A product past 800 overflows float32 on either side; infinities are told apart by the clamps of _exp64.
    result = _exp64(m, y * _log64(m, size))
    whole = m.rint(y) == y
    odd = whole & (m.rint(y * half) != y * half)
    sign_bit = m.bits(x, i) & m.constant(-0x8000000000000000, i)
    signed = m.bits(m.bits(result, i) | sign_bit, f)
    result = m.select(odd, signed, result)
    inf = m.constant(float("inf"), f)
    undefined = (x < zero) & (whole == (one == zero)) & (size < inf)
    result = m.select(undefined, m.constant(float("nan"), f), result)
    result = m.select((size == one) & (_absolute(m, y) == inf), one, result)
    return m.select((x == one) | (y == zero), one, result)


FUNCTIONS = {f.__name__: f for f in (exp, log, tanh, erf)} | {
    "exp2": exp2,
    "expm1": expm1,
    "log2": log2,
    "log10": log10,
    "log1p": log1p,
    "erfc": erfc,
    "sin": sin,
    "cos": cos,
    "tan": tan,
    "asin": asin,
    "acos": acos,
    "atan": atan,
    "atan2": atan2,
    "sinh": sinh,
    "cosh": cosh,
    "asinh": asinh,
    "acosh": acosh,
    "atanh": atanh,
    "hypot": hypot,
    "pow": pow,
}
"""The float32 functions by the name of their Expr op."""
