"""Scalar functions in WebAssembly: what `arithmetic` has in Python, with the same results. Imports floor 0.

A function of the table is a method here, the C library's function of that name, or its expansion for processors.
Functions of float32 that are rounded at the end are computed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from webtorch.ir.dtype import (
    DType,
    bfloat16,
    bool_,
    float32,
    float64,
    int32,
    int64,
    integer_limits,
    uint16,
    uint32,
    uint64,
)
from webtorch.ir.expr import FUNCTIONS, Expr, ScalarFunction
from webtorch.runtime.backends.philox import philox
from webtorch.runtime.backends.plain.assembly import END, IF, Function, Value, has_sign

# Functions that every module brings, and their arity: the C library's of the table, and the one of divisions.
LIBRARY = {f.libm: f.arity for f in FUNCTIONS.values() if f.libm} | {"fmod": 2}
_NUMBERS = {name: number for number, name in enumerate(LIBRARY)}
_INFIX = {
    "+": "add", "-": "sub", "*": "mul", "&": "and", "|": "or", "^": "xor", "<": "lt", "<=": "le", "==": "eq",
    "!=": "ne",
}  # fmt: skip


class UnwritableError(Exception):
    """What is not written in WebAssembly, and runs as plain Python."""


class Scalars(Function):
    """A function that computes the table's scalar functions. Kernels have methods `f_...` of floats and `i_...` of
    integers by their names there.
    """

    # -- between types

    def cast(self, x: Value, dtype: DType | str) -> Value:
        """Convert to a type as PyTorch does."""
        dtype = self.constant(0, dtype).dtype
        source = x.dtype
        if source is dtype:
            return x
        if dtype is bool_:
            return self.test("ne", x, self.constant(0, source))
        if dtype.kind == "float":
            x = self.converted(x, dtype)
            if dtype.itemsize == 2:
                x = self.typed(self.from_bits(self.to_bits(x, dtype), dtype), dtype)
            return x
        if source.kind == "float":
            x = self.whole(self.converted(x, float64), dtype)
        return self.wrapped(self.converted(x, dtype))

    def whole(self, x: Value, dtype: DType) -> Value:
        """Truncate a float64; for uint64 what int64 does not hold is moved down, and the top bit set."""
        if dtype is not uint64:
            return self.truncated(x, int64)
        half = self.constant(2.0**63, float64)
        large = self.op(bool_, "d.ge", x, half)
        moved = self.truncated(self.op(float64, "d.sub", x, half), uint64)
        return self.select(large, moved ^ self.constant(1 << 63, uint64), self.truncated(x, uint64))

    def to_bits(self, x: Value, dtype: DType) -> Value:
        """Return the bits of the nearest 16-bit float, of a float32."""
        bits = self.bits(x, uint32)
        c = self._c
        if dtype is bfloat16:
            odd = (bits >> c(16)) & c(1)
            near = (bits + (c(0x7FFF) + odd)) >> c(16)
            return self.select(self.f_isnan(x), c(0x7FC0), near)
        sign = (bits >> c(16)) & c(0x8000)
        size = bits & c(0x7FFFFFFF)
        odd = (size >> c(13)) & c(1)
        # Normal results: move the exponent by 112 and round on the 13 bits that go.
        normal = ((size - c(0x38000000 - 0xFFF)) + odd) >> c(13)
        # Small ones: adding 1/2 lines up the last bit at 2^-24, and the addition rounds.
        tiny = self.bits(self.bits(size, float32) + self.constant(0.5, float32), uint32)
        half = self.select(self.test("lt", size, c(0x38800000)), tiny - c(0x3F000000), normal)
        half = self.select(self.test("ge", size, c(0x477FF000)), c(0x7C00), half)
        half = self.select(self.test("gt", size, c(0x7F800000)), c(0x7E00), half)
        return half | sign

    def from_bits(self, x: Value, dtype: DType) -> Value:
        """Return the number that 16 bits are, as a float32."""
        c, bits = self._c, self.typed(x, uint32)
        if dtype is bfloat16:
            return self.bits(bits << c(16), float32)
        size = bits & c(0x7FFF)
        # The exponent is moved by a multiplication, which is right for small numbers too.
        number = self.bits(size << c(13), float32) * self.constant(2.0**112, float32)
        wide = self.bits(number, uint32)
        special = self.test("ge", size, c(0x7C00))
        wide = self.select(special, wide | c(0x7F800000), wide)
        return self.bits(wide | ((bits & c(0x8000)) << c(16)), float32)

    def _c(self, number: int) -> Value:
        return self.constant(number, uint32)

    def bitcast(self, x: Value, dtype: DType) -> Value:
        """Reinterpret the bits of a value."""
        if x.dtype.itemsize == 2:
            bits = self.to_bits(x, x.dtype) if x.dtype.kind == "float" else self.cast(x, uint16)
            if dtype.kind == "float":
                return self.typed(self.from_bits(bits, dtype), dtype)
            return self.wrapped(self.typed(bits, dtype))
        return self.wrapped(self.bits(x, dtype)) if dtype.kind != "float" else self.bits(x, dtype)

    # -- by name

    def apply(self, op: str, dtype: DType, args: Sequence[Value]) -> Value:
        """Compute a function of the table, of values of one type."""
        function = FUNCTIONS[op]
        if function.infix:
            name = _INFIX[function.infix]
            if function.gives_bool:
                return self.test(name, args[0], args[1])
            return self.infix(name, args[0], args[1])
        if op == "where":
            return self.select(*args)
        source = args[0].dtype
        method = getattr(self, f"{'f' if source.kind == 'float' else 'i'}_{op}", None)
        found: Value
        if function.wasm and source.kind == "float":
            found = self.arithmetic(op, *args)
        elif method is not None:
            found = method(*args)
        elif source.kind != "float":
            raise UnwritableError(f"{op} of {source.name}")
        else:
            found = self.of_library(function, args)
        # Results in float64 are rounded; small integers wrap.
        return found if found.dtype is dtype else self.cast(found, dtype)

    def infix(self, name: str, a: Value, b: Value) -> Value:
        """Compute what Python has an operator for."""
        if a.dtype is bool_ and name in ("add", "mul"):
            name = "or" if name == "add" else "and"
        return self.arithmetic(name, a, b)

    def of_library(self, function: ScalarFunction, args: Sequence[Value]) -> Value:
        """Call the C library's function of float64."""
        if function.libm not in LIBRARY:
            raise UnwritableError(f"{function.name} of {args[0].dtype.name}")
        return self.library(function.libm, *args)

    def library(self, name: str, *args: Value) -> Value:
        """Call a function of float64 of the C library."""
        wide = [self.converted(a, float64) for a in args]
        found = self.call(_NUMBERS[name], float64, *wide)
        assert found is not None
        return found

    def philox(self, *args: Value) -> list[Value]:
        """Return the four lanes of random bits."""
        return philox(self, *[self.cast(a, uint32) for a in args])

    # -- floats

    def f_not(self, x: Value) -> Value:
        """Whether a number is 0."""
        return self.test("eq", x, self.constant(0, x.dtype))

    i_not = f_not

    def f_isnan(self, x: Value) -> Value:
        """Whether x is no number."""
        return self.test("ne", x, x)

    def f_isinf(self, x: Value) -> Value:
        """Whether x is infinite."""
        return self.test("eq", self.arithmetic("abs", x), self.constant(math.inf, x.dtype))

    def f_rsqrt(self, x: Value) -> Value:
        """Return 1 / sqrt(x), whose sign is that of a 0."""
        root = self.arithmetic("sqrt", self.converted(x, float64))
        return self.arithmetic("div", self.constant(1.0, float64), root)

    def f_sign(self, x: Value) -> Value:
        """Return -1, 0 or 1; 0 for NaN."""
        zero = self.constant(0, x.dtype)
        more, less = (self.typed(self.test(t, x, zero), int32) for t in ("gt", "lt"))
        return self.converted(more - less, x.dtype)

    def f_fma(self, x: Value, y: Value, z: Value) -> Value:
        """Return x * y + z."""
        x, y, z = (self.converted(v, float64) for v in (x, y, z))
        return x * y + z

    def f_max(self, x: Value, y: Value) -> Value:
        """Return the larger; NaN if either is."""
        return self.select(self.test("gt", x, y) | self.f_isnan(x), x, y)

    def f_min(self, x: Value, y: Value) -> Value:
        """Return the smaller; NaN if either is."""
        return self.select(self.test("lt", x, y) | self.f_isnan(x), x, y)

    def f_truncmod(self, x: Value, y: Value) -> Value:
        """Return the rest with the sign of x."""
        return self.library("fmod", x, y)

    def f_mod(self, x: Value, y: Value) -> Value:
        """Return the rest with the sign of y."""
        rest, y = self.f_truncmod(x, y), self.converted(y, float64)
        zero = self.constant(0.0, float64)
        other = self.test("lt", rest, zero) ^ self.test("lt", y, zero)
        moved = self.select(other, rest + y, rest)
        return self.select(self.test("eq", rest, zero), self.arithmetic("copysign", zero, y), moved)

    def f_truncdiv(self, x: Value, y: Value) -> Value:
        """Divide, rounding to zero."""
        return self.arithmetic(
            "trunc", self.arithmetic("div", *(self.converted(v, float64) for v in (x, y)))
        )

    def f_floordiv(self, x: Value, y: Value) -> Value:
        """Divide, rounding down."""
        x, y = (self.converted(v, float64) for v in (x, y))
        near = self.arithmetic("round", self.arithmetic("div", x - self.f_mod(x, y), y))
        return self.select(self.f_not(y), self.arithmetic("div", x, y), near)

    # -- integers

    def _wide(self, x: Value) -> Value:
        return self.converted(x, int64 if has_sign(x.dtype) else uint64)

    def _narrow(self, x: Value, dtype: DType) -> Value:
        return self.wrapped(self.converted(x, dtype))

    def i_neg(self, x: Value) -> Value:
        """Return -x."""
        return self.constant(0, x.dtype) - x

    def i_bitnot(self, x: Value) -> Value:
        """Return ~x."""
        return x ^ self.constant(1 if x.dtype is bool_ else -1, x.dtype)

    def i_abs(self, x: Value) -> Value:
        """Return |x|."""
        return self.select(self.test("lt", x, self.constant(0, x.dtype)), self.i_neg(x), x)

    def i_sign(self, x: Value) -> Value:
        """Return -1, 0 or 1."""
        zero = self.constant(0, x.dtype)
        more, less = (self.typed(self.test(t, x, zero), int32) for t in ("gt", "lt"))
        return self._narrow(more - less, x.dtype)

    def i_max(self, x: Value, y: Value) -> Value:
        """Return the larger."""
        return self.select(self.test("gt", x, y), x, y)

    def i_min(self, x: Value, y: Value) -> Value:
        """Return the smaller."""
        return self.select(self.test("lt", x, y), x, y)

    def i_shl(self, x: Value, y: Value) -> Value:
        """Shift left; by 64 and more, or less than 0, everything out."""
        wide, zero = self._wide(x), self.constant(0, x.dtype)
        moved = self._narrow(wide << self.typed(self._wide(y), wide.dtype), x.dtype)
        return self.select(self._shifts(y), moved, zero)

    def i_shr(self, x: Value, y: Value) -> Value:
        """Shift right."""
        wide, zero = self._wide(x), self.constant(0, x.dtype)
        moved = self._narrow(wide >> self.typed(self._wide(y), wide.dtype), x.dtype)
        out = self.select(
            self.test("lt", x, zero), self._narrow(self.constant(-1, int64), x.dtype), zero
        )
        return self.select(self._shifts(y), moved, out)

    def _shifts(self, y: Value) -> Value:
        return self.test("lt", self.typed(self._wide(y), uint64), self.constant(64, uint64))

    def _divided(self, x: Value, y: Value) -> tuple[Value, Value, Value]:
        """Return x in 64 bits, the divisor and the quotient rounded to zero; by zero it is 0."""
        x, y = self._wide(x), self._wide(y)
        kind, signs = x.dtype, has_sign(x.dtype)
        one, zero = self.constant(1, kind), self.constant(0, kind)
        none = self.test("eq", y, zero)
        back = self.test("eq", y, self.constant(-1, kind)) if signs else none
        safe = self.select(none | back, one, y)
        quotient = self.op(kind, "l.div_s" if signs else "l.div_u", x, safe)
        # The smallest integer has no opposite: the instruction would trap.
        quotient = self.select(back, zero - x, quotient) if signs else quotient
        return x, y, self.select(none, zero, quotient)

    def i_truncdiv(self, x: Value, y: Value) -> Value:
        """Divide, rounding to zero; by zero gives 0."""
        return self._narrow(self._divided(x, y)[2], x.dtype)

    def i_truncmod(self, x: Value, y: Value) -> Value:
        """Return the rest with the sign of x; by zero gives 0."""
        wide, divisor, quotient = self._divided(x, y)
        rest = wide - quotient * divisor
        zero = self.constant(0, wide.dtype)
        return self._narrow(self.select(self.test("eq", divisor, zero), zero, rest), x.dtype)

    def i_floordiv(self, x: Value, y: Value) -> Value:
        """Divide, rounding down; by zero gives 0."""
        wide, divisor, quotient = self._divided(x, y)
        lower = self._lower(wide, divisor, quotient)
        one = self.constant(1, wide.dtype)
        return self._narrow(self.select(lower, quotient - one, quotient), x.dtype)

    def i_mod(self, x: Value, y: Value) -> Value:
        """Return the rest with the sign of y; by zero gives 0."""
        wide, divisor, quotient = self._divided(x, y)
        rest = wide - quotient * divisor
        rest = self.select(self._lower(wide, divisor, quotient), rest + divisor, rest)
        zero = self.constant(0, wide.dtype)
        return self._narrow(self.select(self.test("eq", divisor, zero), zero, rest), x.dtype)

    def _lower(self, x: Value, y: Value, quotient: Value) -> Value:
        """Whether a quotient rounded down is one less."""
        rest, zero = x - quotient * y, self.constant(0, x.dtype)
        apart = self.test("lt", rest ^ y, zero)
        some = self.test("ne", rest, zero) & self.test("ne", y, zero)
        return some & apart

    def small_divisor(self, op: str, x: Value, y: int) -> Value:
        """Divide an i32 that is not negative by a constant: "floordiv", "truncdiv" the quotient, else the rest."""
        name = "i.div_u" if op.endswith("div") else "i.rem_u"
        return self.op(x.dtype, name, x, self.constant(y, x.dtype))

    def _turns(self, rest: Value, body: bytes) -> None:
        """Run instructions while an integer is not 0."""
        test = rest.code + self.constant(0, rest.dtype).code + b"\x52"
        self.emit(b"\x02\x40\x03\x40", test, b"\x45\x0d\x01", body, b"\x0c\x00", END, END)

    def i_pow(self, x: Value, y: Value) -> Value:
        """Raise to a power; a negative power is 0 unless the base is 1 or -1."""
        kind = x.dtype
        wide, rest = self.variable(self._wide(x)), self.variable(self._wide(y))
        one, zero = self.constant(1, wide.dtype), self.constant(0, wide.dtype)
        first, power = self._wide(x), self._wide(y)
        result = self.variable(one)
        outside, self.out = self.out, bytearray()
        odd = self.test("ne", rest & one, zero)
        self.put(result, self.select(odd, result * wide, result))
        self.put(wide, wide * wide)
        self.put(rest, self.op(rest.dtype, "l.shr_u", rest, one))
        body, self.out = bytes(self.out), outside
        self._turns(rest, body)
        if not has_sign(kind):
            return self._narrow(result, kind)
        minus = self.constant(-1, wide.dtype)
        odd = self.test("ne", power & one, zero)
        back = self.select(self.test("eq", first, minus), self.select(odd, minus, one), zero)
        small = self.select(self.test("eq", first, one), one, back)
        return self._narrow(self.select(self.test("lt", power, zero), small, result), kind)

    def i_gcd(self, x: Value, y: Value) -> Value:
        """Return the largest common divisor, by Euclid's algorithm."""
        kind = x.dtype
        a, b = (self.variable(self.typed(self.i_abs(self._wide(v)), uint64)) for v in (x, y))
        outside, self.out = self.out, bytearray()
        rest = self.op(uint64, "l.rem_u", a, b)
        self.put(a, b)
        self.put(b, rest)
        body, self.out = bytes(self.out), outside
        self._turns(b, body)
        return self._narrow(a, kind)

    def beats(self, op: str, x: Value, best: Value) -> Value:
        """Whether x, which comes later, is a larger ("argmax") or smaller extreme than the best; NaN is the most."""
        better = self.test("gt" if op == "argmax" else "lt", x, best)
        if x.dtype.kind != "float":
            return better
        return better | (self.f_isnan(x) & self.test("eq", best, best))

    # -- leaves

    def number(self, node: Expr) -> Value:
        """Return a constant of an expression."""
        return self.constant(node.value, node.dtype)

    def report(self, status: Value, site: int, value: Value, low: int, high: int) -> None:
        """Note the first value outside low..high-1 in two int64 of memory."""
        least, most = integer_limits(value.dtype)
        bad = self.constant(0, bool_)
        if low > least:
            bad = bad | self.test("lt", value, self.constant(low, value.dtype))
        if high <= most:
            bad = bad | self.test("ge", value, self.constant(high, value.dtype))
        found = self._wide(value)
        self.emit(bad, IF)
        none = self.test("eq", self.load(int64, status), self.constant(0, int64))
        self.emit(none, IF)
        self.store(int64, status, self.constant(site + 1, int64))
        self.store(int64, status + self.constant(8, int32), found)
        self.emit(END, END)

    def guarded(self, test: Value, dtype: DType, address: Value, other: Value) -> Value:
        """Return what lies at an address where the test holds, else the other value."""
        result = self.variable(other)
        self.emit(test, IF)
        self.put(result, self.element(dtype, address))
        self.emit(END)
        return result

    def element(self, dtype: DType, address: Value) -> Value:
        """Read an element; 16-bit floats become float32s."""
        found = self.load(dtype, address)
        if dtype.kind == "float" and dtype.itemsize == 2:
            return self.typed(self.from_bits(found, dtype), dtype)
        return found

    def put_element(self, dtype: DType, address: Value, value: Value) -> None:
        """Write an element."""
        value = self.cast(value, dtype)
        if dtype.kind == "float" and dtype.itemsize == 2:
            value = self.to_bits(value, dtype)
        self.store(dtype, address, value)
