"""Arithmetic, rounding, comparison, choice and bits: what every language has or a backend writes itself.

Integer division: `floordiv` rounds to minus infinity, `truncdiv` and `truncmod` to zero, `mod` has the
divisor's sign (Python's rule). `max` and `min` return NaN when either side is NaN. A shift by the type's
size or more shifts everything out.
"""

from __future__ import annotations

import math

from webtorch.ir.dtype import bool_, float32, uint32
from webtorch.ir.expr.node import (
    Expr,
    Operand,
    binary,
    binary_function,
    bitcast,
    const,
    make,
    unary,
    unary_function,
    where,
)
from webtorch.ir.expr.pair import Pair, equal
from webtorch.ir.expr.record import Range, declare, wgsl, wgsl_integers


def _one(x: Expr, *rest: Expr) -> Expr:
    return const(1.0, x.dtype)


def _minus_one(x: Expr, *rest: Expr) -> Expr:
    return const(-1.0, x.dtype)


# -- choice and random bits: their renderers are written for them


declare(
    "where", 3, exact=True, onnx="Where",
    bounds=lambda test, x, y: (min(x[0], y[0]), max(x[1], y[1])),
)  # fmt: skip
# philox(seed_low, seed_high, counter_low, counter_high): lane `value` (0..3) of Philox4x32-10, a uint32.
declare("philox", 4, cost=12, cost_cpu=50)


# -- tests


def _either(z: Pair, test: str) -> Expr:
    return unary(test, z.re) | unary(test, z.im)


def _never(x: Expr) -> Expr:
    return const(False, bool_)


isnan = unary_function(
    "isnan", gives_bool=True, of_integers=_never, pairs=lambda z: _either(z, "isnan"),
    wgsl={"f32": "wt_isnan({0})"}, numpy="isnan", python=math.isnan, onnx="IsNaN",
)  # fmt: skip
isinf = unary_function(
    "isinf", gives_bool=True, of_integers=_never, pairs=lambda z: _either(z, "isinf"),
    wgsl={"f32": "wt_isinf({0})"}, numpy="isinf", python=math.isinf, onnx="IsInf",
)  # fmt: skip


def unbounded(x: Expr) -> Expr:
    """Return whether x is infinite or no number."""
    return isnan(x) | isinf(x)


# Conditions that choose between two forms of one function look at the real part.
lt = binary_function(
    "lt", gives_bool=True, infix="<", pairs=lambda x, y: x.re < y.re, fold=lambda x, y: x < y,
    wgsl=wgsl("({0} < {1})", bool="(!{0} && {1})"), numpy="less", onnx="Less",
)  # fmt: skip
le = binary_function(
    "le", gives_bool=True, infix="<=", pairs=lambda x, y: x.re <= y.re, fold=lambda x, y: x <= y,
    wgsl=wgsl("({0} <= {1})", bool="(!{0} || {1})"), numpy="less_equal", onnx="LessOrEqual",
)  # fmt: skip
eq = binary_function(
    "eq", gives_bool=True, infix="==", pairs=equal, fold=lambda x, y: x == y,
    wgsl=wgsl("({0} == {1})", bool="({0} == {1})"), numpy="equal", onnx="Equal",
)  # fmt: skip
ne = binary_function(
    "ne", gives_bool=True, infix="!=", pairs=lambda x, y: ~equal(x, y), fold=lambda x, y: x != y,
    wgsl=wgsl_integers("({0} != {1})", f32="wt_ne({0}, {1})", bool="({0} != {1})"),
    numpy="not_equal", onnx=lambda x, y: ~eq(x, y),
)  # fmt: skip


def gt(x: Operand, y: Operand) -> Expr:
    """Return x > y."""
    return binary("lt", y, x)


def ge(x: Operand, y: Operand) -> Expr:
    """Return x >= y."""
    return binary("le", y, x)


# -- rounding


def _identity(x: Expr) -> Expr:
    return x


def _toward_zero(x: Expr) -> Expr:
    return where(x < 0, ceil(x), floor(x))


def _near(x: Range) -> Range:
    return x[0] - 1, x[1] + 1


floor = unary_function(
    "floor", of_integers=_identity, exact=True, bounds=_near, wgsl={"f32": "floor({0})"},
    numpy="floor", wasm=0x8E, llvm="llvm.floor", onnx="Floor",
)  # fmt: skip
ceil = unary_function(
    "ceil", of_integers=_identity, exact=True, bounds=_near, wgsl={"f32": "ceil({0})"},
    numpy="ceil", wasm=0x8D, llvm="llvm.ceil", onnx="Ceil",
)  # fmt: skip
trunc = unary_function(
    "trunc", of_integers=_identity, exact=True, bounds=_near, wgsl={"f32": "trunc({0})"},
    numpy="trunc", wasm=0x8F, llvm="llvm.trunc", onnx=_toward_zero,
)  # fmt: skip
# To nearest, ties to even.
round_ = unary_function(
    "round", of_integers=_identity, exact=True, bounds=_near, wgsl={"f32": "round({0})"},
    numpy="rint", wasm=0x90, llvm="llvm.rint", onnx="Round",
)  # fmt: skip


# -- arithmetic


_UNKNOWN: Range = (-math.inf, math.inf)


def _product(x: Range, y: Range) -> Range:
    ends = [a * b for a in x for b in y]
    # Infinity times zero tells nothing.
    return _UNKNOWN if any(e != e for e in ends) else (min(ends), max(ends))


def _quotient(x: Range, y: Range) -> Range:
    return (x[0] // y[0], x[1] // y[0]) if y[0] == y[1] > 0 else _UNKNOWN


def _rest(x: Range, y: Range) -> Range:
    if not y[0] == y[1] > 0:
        return _UNKNOWN
    most = y[0] - 1 if isinstance(y[0], int) else y[0]
    return (0, min(x[1], most)) if x[0] >= 0 else (0, most)


def _positive_quotient(x: Range, y: Range) -> Range:
    return _quotient(x, y) if x[0] >= 0 else _UNKNOWN


def _positive_rest(x: Range, y: Range) -> Range:
    return _rest(x, y) if x[0] >= 0 else _UNKNOWN


Integers = tuple[int, int]


def _least_and_most(*ends: int) -> Integers:
    return min(ends), max(ends)


def _quotients(x: Integers, y: Integers) -> Integers:
    # What is divided by 0 is 0; a divisor of 1 or -1 leaves the most.
    near = [d for d in (*y, 1, -1) if d and y[0] <= d <= y[1]]
    return _least_and_most(0, *(a // d for a in x for d in near))


def _rests(x: Integers, y: Integers) -> Integers:
    # Less than the divisor, whose sign it has; a dividend that lies below it, of one sign, is what it was.
    most = max(y[1] - 1, 0)
    return min(y[0] + 1, 0), min(most, x[1]) if x[0] >= 0 <= y[0] else most


def _truncated_rests(x: Integers, y: Integers) -> Integers:
    most = max(abs(y[0]), abs(y[1]), 1) - 1
    return -min(most, max(-x[0], 0)), min(most, max(x[1], 0))


def _divisors(x: Integers, y: Integers) -> Integers:
    return 0, max(map(abs, (*x, *y)))


def _bits(x: Integers, y: Integers) -> Integers:
    """Bounds of what has the bits of two numbers."""
    most = (1 << max(v.bit_length() if v >= 0 else (~v).bit_length() for v in (*x, *y))) - 1
    return (0 if x[0] >= 0 <= y[0] else -most - 1), most


def _common_bits(x: Integers, y: Integers) -> Integers:
    tops = [v[1] for v in (x, y) if v[0] >= 0]
    return (0, min(tops)) if tops else _bits(x, y)


def _shifted_up(x: Integers, y: Integers) -> Integers:
    # What is shifted by 64 and more, or by less than 0, is nothing: by 63 no number of more than 1 bit fits.
    count = min(max(y[1], 0), 64)
    return _least_and_most(0, *x, *(v << count for v in x))


def _shifted_down(x: Integers, y: Integers) -> Integers:
    if y[0] < 0:
        return _least_and_most(0, *x)
    counts = [min(c, 64) for c in y]
    return _least_and_most(*(v >> c for v in x for c in counts))


declare(
    "neg", 1, slopes=(_minus_one,), pairs=lambda z: -z, exact=True, wraps=True, numpy="negative",
    bounds=lambda x: (-x[1], -x[0]),
    wgsl={"f32": "(-{0})", "i32": "(0 - {0})", "u32": "(0u - {0})"}, wasm=0x8C, onnx="Neg",
)  # fmt: skip
sign = unary_function(
    "sign",
    exact=True,
    bounds_integers=lambda x: (-1 if x[0] < 0 else 0, 1 if x[1] > 0 else 0),
    wgsl={"f32": "wt_sign({0})", "i32": "sign({0})", "u32": "min({0}, 1u)"},
    onnx="Sign",
)
declare(
    "add", 2, infix="+", slopes=(_one, _one), pairs=lambda x, y: x + y, wraps=True,
    bounds=lambda x, y: (x[0] + y[0], x[1] + y[1]), fold=lambda x, y: x + y,
    wgsl=wgsl("({0} + {1})", bool="({0} || {1})"), numpy="add", wasm=0x92, onnx="Add",
)  # fmt: skip
declare(
    "sub", 2, infix="-", slopes=(_one, _minus_one), pairs=lambda x, y: x - y, wraps=True,
    bounds=lambda x, y: (x[0] - y[1], x[1] - y[0]), fold=lambda x, y: x - y,
    wgsl=wgsl("({0} - {1})"), numpy="subtract", wasm=0x93, onnx="Sub",
)  # fmt: skip
declare(
    "mul", 2, infix="*", slopes=(lambda x, y, out: y, lambda x, y, out: x),
    pairs=lambda x, y: x * y, wraps=True, bounds=_product, fold=lambda x, y: x * y,
    wgsl=wgsl("({0} * {1})", bool="({0} && {1})"), numpy="multiply", wasm=0x94, onnx="Mul",
)  # fmt: skip
declare(
    "div", 2, sign="/", slopes=(lambda x, y, out: 1.0 / y, lambda x, y, out: -(out / y)),
    pairs=lambda x, y: x / y, cost=2, cost_cpu=5, wgsl={"f32": "({0} / {1})"}, numpy="divide",
    wasm=0x95, onnx="Div",
)  # fmt: skip


def head_of(x: Expr, kept: int = 0xFFFFF000) -> Expr:
    """Return a float32 with the other bits cleared; 12 significant bits remain by default, and x - head is exact."""
    return bitcast(bitcast(x, uint32) & kept, float32)


def fma_f32(x: Expr, y: Expr, z: Expr) -> Expr:
    """Return x * y + z, rounded once: WGSL's own may round the product as well.

    Dekker, "A floating-point technique for extending the available precision" (1971).
    """
    short = 0xFFFFFFFE
    product = head_of(x * y, short)
    x0, y0 = head_of(x), head_of(y)
    x1, y1 = x - x0, y - y0
    lost = (((x0 * y0 - product) + x0 * y1) + x1 * y0) + x1 * y1
    larger = gt(abs(product), abs(z))
    big, small = where(larger, product, z), where(larger, z, product)
    total = head_of(big + small, short)
    exact = total + ((small - (total - big)) + lost)
    plain = x * y + z
    return where(unbounded(plain), plain, exact)


declare(
    "fma", 3, slopes=(lambda x, y, z, out: y, lambda x, y, z, out: x, _one),
    pairs=lambda x, y, z: x * y + z, expansion=fma_f32,
    python=lambda x, y, z: x * y + z, onnx=lambda x, y, z: x * y + z,
)  # fmt: skip


def fma(x: Expr, y: Operand, z: Operand) -> Expr:
    """Return x * y + z, rounded once where that is cheap."""
    y, z = (v if isinstance(v, Expr) else const(v, x.dtype) for v in (y, z))
    return make("fma", x.dtype, (x, y, z))


def product(x: Expr) -> tuple[Expr, Expr, Expr | None] | None:
    """Return a, b and c where `x` is a * b + c in one, c None where it is a * b; None where it is something else."""
    if x.op == "mul":
        return x.args[0], x.args[1], None
    return (x.args[0], x.args[1], x.args[2]) if x.op == "fma" else None


def _remainder(x: Expr, y: Expr) -> Expr:
    # The remainder has the sign of the divisor.
    rest = truncmod(x, y)
    return where(rest * y < 0, rest + y, rest)


# Processors have no vectors of integer divisions.
_INTEGERS = 25
mod = binary_function(
    "mod", bounds=_rest, bounds_integers=_rests, sign="%", slopes=(_one, lambda x, y, out: -floor(x / y)),
    cost=2, cost_cpu=5, cost_cpu_integers=_INTEGERS,
    fold=lambda x, y: x % y if isinstance(x, int) and y else None, numpy="remainder",
    wgsl={"f32": "wt_mod({0}, {1})", "i32": "wt_i32_mod({0}, {1})", "u32": "wt_u32_rem({0}, {1})"},
    onnx=_remainder,
)  # fmt: skip
floordiv = binary_function(
    "floordiv", bounds=_quotient, bounds_integers=_quotients, sign="//", wraps=True,
    cost=2, cost_cpu=5, cost_cpu_integers=_INTEGERS,
    fold=lambda x, y: x // y if isinstance(x, int) and y else None, numpy="floor_divide",
    wgsl={
        "f32": "wt_floordiv({0}, {1})",
        "i32": "wt_i32_floordiv({0}, {1})",
        "u32": "wt_u32_div({0}, {1})",
    },
    onnx=lambda x, y: floor(x / y) if x.dtype.kind == "float" else (x - mod(x, y)) / y,
)  # fmt: skip
truncdiv = binary_function(
    "truncdiv", wraps=True, bounds=_positive_quotient, bounds_integers=_quotients,
    cost=2, cost_cpu=5, cost_cpu_integers=_INTEGERS,
    fold=lambda x, y: x // y if isinstance(x, int) and x >= 0 < y else None,
    wgsl={
        "f32": "wt_truncdiv({0}, {1})",
        "i32": "wt_i32_div({0}, {1})",
        "u32": "wt_u32_div({0}, {1})",
    },
    onnx=lambda x, y: trunc(x / y),
)  # fmt: skip
truncmod = binary_function(
    "truncmod", slopes=(_one, lambda x, y, out: -trunc(x / y)), exact=True, bounds=_positive_rest,
    bounds_integers=_truncated_rests, cost=2, cost_cpu=5, cost_cpu_integers=_INTEGERS, numpy="fmod",
    fold=lambda x, y: x % y if isinstance(x, int) and x >= 0 < y else None,
    wgsl={"f32": "wt_fmod({0}, {1})", "i32": "wt_i32_rem({0}, {1})", "u32": "wt_u32_rem({0}, {1})"},
)  # fmt: skip


def _euclid(a: Expr, b: Expr) -> Expr:
    """Euclid's algorithm. Numbers of n bits need at most 1.44 n steps (Lame, 1844)."""
    a, b = abs(a), abs(b)
    for _ in range(int(a.dtype.bits * 1.4405) + 2):
        done = eq(b, 0)
        a, b = where(done, a, b), where(done, 0, mod(a, where(done, 1, b)))
    return a


gcd = binary_function(
    "gcd", wraps=True, bounds_integers=_divisors, cost=12, cost_cpu=50, numpy="gcd", onnx=_euclid,
    wgsl={
        "i32": "bitcast<i32>(wt_u32_gcd(bitcast<u32>(abs({0})), bitcast<u32>(abs({1}))))",
        "u32": "wt_u32_gcd({0}, {1})",
    },
)  # fmt: skip


def _negative(y: Expr) -> Expr:
    # -0 is negative too: its reciprocal is.
    return (y < 0) | (1 / y < 0)


copysign = binary_function(
    "copysign",
    # The sign that was changed or kept; 0 at x == 0.
    slopes=(lambda x, y, out: where(eq(x, 0.0), const(0.0, x.dtype), out / x), None),
    exact=True, wgsl={"f32": "wt_copysign({0}, {1})"}, numpy="copysign", python=math.copysign, wasm=0x98,
    onnx=lambda x, y: where(_negative(y), -abs(x), abs(x)),
)  # fmt: skip


# -- extremes


def _share(x: Expr, y: Expr) -> tuple[Expr, Expr]:
    """The larger side takes the slope, ties share it.

    Beside a NaN neither side loses: both take it, as in PyTorch.
    """
    share = where(eq(x, y), const(0.5, x.dtype), 1.0)
    return where(x < y, 0.0, share), where(y < x, 0.0, share)


maximum = binary_function(
    "max", slopes=(lambda x, y, out: _share(x, y)[0], lambda x, y, out: _share(x, y)[1]),
    exact=True, wgsl=wgsl_integers("max({0}, {1})", f32="wt_max({0}, {1})", bool="({0} || {1})"),
    bounds=lambda x, y: (max(x[0], y[0]), max(x[1], y[1])), loops="maximum", numpy="maximum", onnx="Max",
)  # fmt: skip
# minimum(x, y) is -maximum(-x, -y).
minimum = binary_function(
    "min", slopes=(lambda x, y, out: _share(-x, -y)[0], lambda x, y, out: _share(-x, -y)[1]),
    exact=True, wgsl=wgsl_integers("min({0}, {1})", f32="wt_min({0}, {1})", bool="({0} && {1})"),
    bounds=lambda x, y: (min(x[0], y[0]), min(x[1], y[1])), loops="minimum", numpy="minimum", onnx="Min",
)  # fmt: skip


# -- logic and bits


logical_not = unary_function(
    "not", gives_bool=True, loops="logical_not", numpy="logical_not", onnx="Not",
    wgsl=wgsl("({0} == 0)", f32="({0} == 0f)", u32="({0} == 0u)", bool="(!{0})"),
)  # fmt: skip
# ONNX's nodes for bits are newer than those for logic: its writer chooses.
bitwise_not = unary_function(
    "bitnot", wraps=True, bounds_integers=lambda x: (~x[1], ~x[0]), loops="invert", numpy="invert",
    wgsl=wgsl_integers("(~{0})", bool="(!{0})"),
)  # fmt: skip
declare(
    "and", 2, infix="&", fold=lambda x, y: x and y if isinstance(x, bool) else None,
    wgsl=wgsl_integers("({0} & {1})", bool="({0} && {1})"), numpy="bitwise_and",
    bounds_integers=_common_bits,
)  # fmt: skip
declare(
    "or", 2, infix="|", fold=lambda x, y: x or y if isinstance(x, bool) else None,
    wgsl=wgsl_integers("({0} | {1})", bool="({0} || {1})"), numpy="bitwise_or",
    bounds_integers=_bits,
)  # fmt: skip
declare(
    "xor", 2, infix="^", wgsl=wgsl_integers("({0} ^ {1})", bool="({0} != {1})"), numpy="bitwise_xor",
    bounds_integers=_bits,
)  # fmt: skip
shl = binary_function(
    "shl", sign="<<", wraps=True, bounds_integers=_shifted_up, numpy="left_shift",
    wgsl={
        "i32": "bitcast<i32>(wt_shl(bitcast<u32>({0}), bitcast<u32>({1})))",
        "u32": "wt_shl({0}, {1})",
    },
)  # fmt: skip
shr = binary_function(
    "shr", sign=">>", fold=lambda x, y: x >> y if 0 <= y < 32 else None,
    bounds_integers=_shifted_down, numpy="right_shift",
    wgsl={"i32": "wt_shr_i32({0}, {1})", "u32": "wt_shr_u32({0}, {1})"},
)  # fmt: skip


def dot4(x: Expr, y: Expr) -> Expr:
    """Return the sum of the products of the four signed bytes of two words of int32: languages that have an
    instruction for it know it by `dotted`.
    """
    products = []
    for up in (24, 16, 8, 0):
        one, other = (shr(shl(word, up) if up else word, 24) for word in (x, y))
        products.append(one * other)
    return (products[0] + products[1]) + (products[2] + products[3])


def dotted(x: Expr) -> tuple[Expr, Expr] | None:
    """Return the words of which `x` is the `dot4`, or None."""
    if x.op != "add" or x.args[1].op != "add" or x.args[1].args[1].op != "mul":
        return None
    # The last bytes of the words are shifted once.
    tops = x.args[1].args[1].args
    words = [t.args[0] for t in tops if t.op == "shr"]
    return (words[0], words[1]) if len(words) == 2 and dot4(*words) is x else None
