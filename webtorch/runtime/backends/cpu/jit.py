"""Machine code from the loop text of `lower/pysource.py`, through llvmlite (which numba installs).
Imports llvmlite lazily.

One pass over the text's syntax tree writes LLVM instructions; LLVM's own passes then keep variables
in registers and turn the inner loops into vector code. Compared with numba this skips type
inference and Python's boxing: a kernel takes some 20 ms instead of 200, and machine code kept on
disk loads in under a millisecond without importing numba at all.

Every function has the form `void f(int64 begin, int64 end, int64 *block)`; `block` holds the
buffers' addresses, then the arguments (integers, or float64), then the address of the status words.
"""

from __future__ import annotations

import ast
import ctypes
import ctypes.util
import hashlib
import importlib.util
import math
import os
import platform
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from webtorch.ir import expr as ex
from webtorch.ir.dtype import float16, float32
from webtorch.ir.expr import FUNCTIONS, Expr
from webtorch.runtime.backends.cpu import lane_loops, philox
from webtorch.runtime.disk import CODE
from webtorch.runtime.interrupt import firm

# Part of the key of code on disk: raise it when this file or lane_loops.py changes what is generated.
_VERSION = 11

# Loops of so many turns fill vectors; shorter ones are better written out, longer ones never are.
_VECTOR_TURNS = range(12, 65)
_FLOATS = {"float32", "float64"}
_HALVES = {"float16", "bfloat16"}
_BITS = {
    "bool": 1,
    "int8": 8,
    "uint8": 8,
    "int16": 16,
    "float16": 16,
    "bfloat16": 16,
    "int32": 32,
    "uint32": 32,
    "float32": 32,
    "int64": 64,
    "uint64": 64,
    "float64": 64,
    "int": 64,
}
_UNSIGNED = {"bool", "uint8", "uint32", "uint64", "float16", "bfloat16"}
_BYTES = {name: max(bits // 8, 1) for name, bits in _BITS.items()}


@cache
def available() -> bool:
    """Whether kernels can be compiled here. WEBTORCH_CPU_JIT=0 says no."""
    if os.environ.get("WEBTORCH_CPU_JIT", "1") == "0":
        return False
    return importlib.util.find_spec("llvmlite") is not None


class _Value:
    """A value while code is written: LLVM's value and the name of its type ("int" is a position,
    without wraparound).
    """

    __slots__ = ("kind", "machine", "value")

    def __init__(self, machine: LlvmMachine, value: Any, kind: str) -> None:
        self.machine, self.value, self.kind = machine, value, kind

    def __add__(self, other: _Value) -> _Value:
        return self.machine.arithmetic("add", self, other)

    def __sub__(self, other: _Value) -> _Value:
        return self.machine.arithmetic("sub", self, other)

    def __mul__(self, other: _Value) -> _Value:
        return self.machine.arithmetic("mul", self, other)

    def __truediv__(self, other: _Value) -> _Value:
        return self.machine.wrap(self.machine.builder.fdiv(self.value, other.value), self.kind)

    def __neg__(self) -> _Value:
        if self.kind in _FLOATS:
            return self.machine.wrap(self.machine.builder.fneg(self.value), self.kind)
        return self.machine.constant(0, self.kind) - self

    def __and__(self, other: _Value) -> _Value:
        return self.machine.wrap(self.machine.builder.and_(self.value, other.value), self.kind)

    def __or__(self, other: _Value) -> _Value:
        return self.machine.wrap(self.machine.builder.or_(self.value, other.value), self.kind)

    def __xor__(self, other: _Value) -> _Value:
        return self.machine.wrap(self.machine.builder.xor(self.value, other.value), self.kind)

    def __lshift__(self, other: _Value) -> _Value:
        return self.machine.wrap(self.machine.builder.shl(self.value, other.value), self.kind)

    def __rshift__(self, other: _Value) -> _Value:
        builder = self.machine.builder
        shift = builder.lshr if self.kind in _UNSIGNED else builder.ashr
        return self.machine.wrap(shift(self.value, other.value), self.kind)

    def __lt__(self, other: _Value) -> _Value:
        return self.machine.compare("<", self, other)

    def __le__(self, other: _Value) -> _Value:
        return self.machine.compare("<=", self, other)

    def __gt__(self, other: _Value) -> _Value:
        return self.machine.compare(">", self, other)

    def __ge__(self, other: _Value) -> _Value:
        return self.machine.compare(">=", self, other)

    def __eq__(self, other: object) -> Any:
        assert isinstance(other, _Value)
        return self.machine.compare("==", self, other)

    def __ne__(self, other: object) -> Any:
        assert isinstance(other, _Value)
        return self.machine.compare("!=", self, other)

    __hash__ = None  # type: ignore[assignment]


class LlvmMachine:
    """Writes instructions for scalar functions, and for what the text calls."""

    def __init__(self, module: Any, fused: bool, position_bits: int = 64) -> None:
        from llvmlite import ir

        self.ir = ir
        self.module = module
        self.fused = fused
        self.builder: Any = None
        self.widths = {**_BITS, "int": position_bits}
        self.types = {
            "float32": ir.FloatType(), "float64": ir.DoubleType(),
        } | {k: ir.IntType(b) for k, b in self.widths.items() if k not in _FLOATS}  # fmt: skip

    def wrap(self, value: Any, kind: str) -> _Value:
        """Return a typed value."""
        return _Value(self, value, kind)

    def constant(self, number: float, kind: str) -> _Value:
        """Return a typed constant."""
        if kind == "float16":
            number = int.from_bytes(float16.to_bytes([number]), "little")
        number = float(number) if kind in _FLOATS else int(number)
        if isinstance(number, int) and kind != "bool":
            number &= (1 << self.widths[kind]) - 1
        if kind == "float32" and math.isfinite(number):
            number = ctypes.c_float(number).value
        return self.wrap(self.ir.Constant(self.types[kind], number), kind)

    def intrinsic(self, name: str, kind: str, *args: _Value) -> _Value:
        """Call an LLVM intrinsic or a function of the C library on values of one type."""
        number = self.types[kind]
        full = f"{name}.f{self.widths[kind]}" if name.startswith("llvm.") else name
        function = self.module.globals.get(full)
        if function is None:
            function = self.ir.Function(
                self.module, self.ir.FunctionType(number, [number] * len(args)), full
            )
            if not name.startswith("llvm."):
                function.attributes.add("nounwind")
                _known_symbol(full)
        return self.wrap(self.builder.call(function, [a.value for a in args]), kind)

    # -- scalar functions ---------------------------

    def select(self, condition: _Value, a: _Value, b: _Value) -> _Value:
        """Return `a` where the condition holds, else `b`."""
        return self.wrap(self.builder.select(condition.value, a.value, b.value), a.kind)

    def fma(self, a: _Value, b: _Value, c: _Value) -> _Value:
        """Return a * b + c, rounded once where the processor can."""
        if self.fused:
            return self.intrinsic("llvm.fma", a.kind, a, b, c)
        return a * b + c

    def bits(self, x: _Value, kind: str) -> _Value:
        """Reinterpret as a type of the same size."""
        if self.types[kind] == x.value.type:
            return self.wrap(x.value, kind)
        return self.wrap(self.builder.bitcast(x.value, self.types[kind]), kind)

    def rint(self, x: _Value) -> _Value:
        """Round to the nearest integer, ties to even."""
        return self.intrinsic("llvm.rint", x.kind, x)

    def sqrt(self, x: _Value) -> _Value:
        """Return the square root."""
        return self.intrinsic("llvm.sqrt", x.kind, x)

    def cast(self, x: _Value, kind: str) -> _Value:
        """Convert as PyTorch does on the usual processors: floats out of range become the smallest integer."""
        source = x.kind
        if source == kind:
            return x
        builder, target = self.builder, self.types[kind]
        if source in _HALVES or kind in _HALVES:
            return self.cast_half(x, kind)
        if kind == "bool":
            return x != self.constant(0, source)
        if source in _FLOATS and kind in _FLOATS:
            convert = builder.fpext if self.widths[kind] > self.widths[source] else builder.fptrunc
            return self.wrap(convert(x.value, target), kind)
        if kind in _FLOATS:
            convert = builder.uitofp if source in _UNSIGNED else builder.sitofp
            return self.wrap(convert(x.value, target), kind)
        if source in _FLOATS:
            # Small types go through int32 and uint32 through int64, as C compilers do it.
            wide = "int64" if kind in ("int64", "uint32", "uint64") else "int32"
            wide = "int64" if kind == "int" and self.widths["int"] == 64 else wide
            edge = self.constant(-(2.0 ** (self.widths[wide] - 1)), source)
            fits = (x >= edge) & (x < -edge)
            whole = self.wrap(
                builder.fptosi(self.select(fits, x, edge).value, self.types[wide]), wide
            )
            return self.cast(whole, kind)
        if self.widths[kind] < self.widths[source]:
            return self.wrap(builder.trunc(x.value, target), kind)
        if self.widths[kind] == self.widths[source]:
            return self.wrap(x.value, kind)
        extend = builder.zext if source in _UNSIGNED else builder.sext
        return self.wrap(extend(x.value, target), kind)

    def cast_half(self, x: _Value, kind: str) -> _Value:
        """Convert between float16 or bfloat16 and other types, by their bits."""
        if x.kind in _HALVES:
            wide = self.from_bfloat16(x) if x.kind == "bfloat16" else self.from_float16(x)
            return self.cast(wide, kind)
        x = self.cast(x, "float32")
        return self.to_bfloat16(x) if kind == "bfloat16" else self.to_float16(x)

    # -- arithmetic ---------------------------

    def arithmetic(self, op: str, a: _Value, b: _Value) -> _Value:
        """Add, subtract or multiply; typed integers wrap around."""
        a, b = self.common(a, b)
        builder = self.builder
        if a.kind in _FLOATS:
            return self.wrap(getattr(builder, "f" + op)(a.value, b.value), a.kind)
        if a.kind == "bool":
            return a & b if op == "mul" else a | b
        flags = ("nsw",) if a.kind == "int" else ()
        return self.wrap(getattr(builder, op)(a.value, b.value, flags=flags), a.kind)

    def common(self, a: _Value, b: _Value) -> tuple[_Value, _Value]:
        """Give a position and a typed integer one type."""
        if a.kind != b.kind:
            if a.kind == "int":
                a = self.cast(a, b.kind)
            elif b.kind == "int":
                b = self.cast(b, a.kind)
            else:
                raise TypeError(f"{a.kind} and {b.kind} in one operation")
        return a, b

    def compare(self, sign: str, a: _Value, b: _Value) -> _Value:
        """Compare; anything but != is false for NaN."""
        a, b = self.common(a, b)
        builder = self.builder
        if a.kind in _FLOATS:
            compare = builder.fcmp_unordered if sign == "!=" else builder.fcmp_ordered
        else:
            compare = builder.icmp_unsigned if a.kind in _UNSIGNED else builder.icmp_signed
        return self.wrap(compare(sign, a.value, b.value), "bool")

    def isnan(self, x: _Value) -> _Value:
        """Whether x is NaN."""
        if x.kind not in _FLOATS:
            return self.constant(0, "bool")
        return self.wrap(self.builder.fcmp_unordered("uno", x.value, x.value), "bool")

    def isinf(self, x: _Value) -> _Value:
        """Whether x is infinite."""
        if x.kind not in _FLOATS:
            return self.constant(0, "bool")
        return self.intrinsic("llvm.fabs", x.kind, x) == self.constant(math.inf, x.kind)

    def maximum(self, a: _Value, b: _Value) -> _Value:
        """Return the larger, NaN if either is."""
        a, b = self.common(a, b)
        return self.select((a > b) | self.isnan(a) if a.kind in _FLOATS else a > b, a, b)

    def minimum(self, a: _Value, b: _Value) -> _Value:
        """Return the smaller, NaN if either is."""
        a, b = self.common(a, b)
        return self.select((a < b) | self.isnan(a) if a.kind in _FLOATS else a < b, a, b)

    def logical_not(self, x: _Value) -> _Value:
        """Return not x."""
        return self.wrap(self.builder.not_(x.value), "bool")

    def invert(self, x: _Value) -> _Value:
        """Flip all bits."""
        return self.wrap(self.builder.not_(x.value), x.kind)

    def abs(self, x: _Value) -> _Value:
        """Return the absolute value."""
        if x.kind in _FLOATS:
            return self.intrinsic("llvm.fabs", x.kind, x)
        return x if x.kind in _UNSIGNED else self.select(x < self.constant(0, x.kind), -x, x)

    def sign(self, x: _Value) -> _Value:
        """Return -1, 0 or 1; 0 for NaN."""
        zero, one = self.constant(0, x.kind), self.constant(1, x.kind)
        up = self.select(x > zero, one, zero)
        if x.kind in _UNSIGNED:
            return up
        return self.select(x < zero, self.constant(-1, x.kind), up)

    def rsqrt(self, x: _Value) -> _Value:
        """Return 1 / sqrt(x)."""
        return self.constant(1.0, x.kind) / self.sqrt(x)

    def rounded(self, name: str, x: _Value) -> _Value:
        """Round to an integral value; integers are that already."""
        return self.intrinsic(f"llvm.{name}", x.kind, x) if x.kind in _FLOATS else x

    def copysign(self, a: _Value, b: _Value) -> _Value:
        """Return the size of `a` with the sign of `b`."""
        return self.intrinsic("llvm.copysign", a.kind, a, b)

    def divide(self, op: str, a: _Value, b: _Value) -> _Value:
        """Do one of the integer divisions; by zero they give 0, and nothing traps."""
        a, b = self.common(a, b)
        if a.kind in _FLOATS:
            return self.divide_floats(op, a, b)
        builder, kind = self.builder, a.kind
        zero, one = self.constant(0, kind), self.constant(1, kind)
        if kind in _UNSIGNED:
            safe = self.select(b == zero, one, b)
            if op in ("mod", "truncmod"):
                return self.select(
                    b == zero, zero, self.wrap(builder.urem(a.value, safe.value), kind)
                )
            return self.select(b == zero, zero, self.wrap(builder.udiv(a.value, safe.value), kind))
        minus = b == self.constant(-1, kind)
        # The smallest integer divided by -1 would trap.
        safe = self.select((b == zero) | minus, one, b)
        quotient = self.wrap(builder.sdiv(a.value, safe.value), kind)
        rest = self.wrap(builder.srem(a.value, safe.value), kind)
        crooked = (rest != zero) & ((rest ^ safe) < zero)
        match op:
            case "truncmod":
                return rest
            case "mod":
                return self.select(crooked, rest + safe, rest)
            case "floordiv":
                quotient = self.select(crooked, quotient - one, quotient)
        return self.select(b == zero, zero, self.select(minus, -a, quotient))

    def divide_floats(self, op: str, a: _Value, b: _Value) -> _Value:
        """Do one of the divisions that round, on floats."""
        kind = a.kind
        if op == "truncdiv":
            return self.rounded("trunc", a / b)
        zero, one = self.constant(0.0, kind), self.constant(1.0, kind)
        rest = self.remainder(a, b)
        if op == "truncmod":
            return rest
        crooked = (rest != zero) & ((b < zero) != (rest < zero))
        if op == "mod":
            return self.select(crooked, rest + b, rest)
        quotient = (a - rest) / b
        quotient = self.select(crooked, quotient - one, quotient)
        whole = self.rounded("floor", quotient)
        whole = self.select(quotient - whole > self.constant(0.5, kind), whole + one, whole)
        whole = self.select(quotient != zero, whole, self.copysign(zero, a / b))
        return self.select(b == zero, a / b, whole)

    def remainder(self, a: _Value, b: _Value) -> _Value:
        """Return what is left of a float, with its sign."""
        if a.kind == "float32" and self.widths["int"] == 64:
            return self.looped("remainder", a, b)
        return self.wrap(self.builder.frem(a.value, b.value), a.kind)

    def gcd(self, a: _Value, b: _Value) -> _Value:
        """Return the greatest common divisor of two integers."""
        return self.looped("gcd", self.abs(a), self.abs(b))

    def looped(self, name: str, a: _Value, b: _Value) -> _Value:
        """Call a function that loops; loops over elements call its form for vectors."""
        number = self.types[a.kind]
        vectors = self.widths["int"] == 64
        function = lane_loops.define(
            self.module, self.ir, name, number, self.widths[a.kind] // 8, vectors
        )
        return self.wrap(self.builder.call(function, [a.value, b.value]), a.kind)

    def shift(self, op: str, a: _Value, b: _Value) -> _Value:
        """Shift; a count of the type's size or more shifts everything out."""
        bits = self.constant(self.widths[a.kind], a.kind)
        inside = self.wrap(self.builder.icmp_unsigned("<", b.value, bits.value), "bool")
        count = self.select(inside, b, self.constant(0, a.kind))
        if op == "shl":
            return self.select(inside, a << count, self.constant(0, a.kind))
        if a.kind in _UNSIGNED:
            return self.select(inside, a >> count, self.constant(0, a.kind))
        return a >> self.select(inside, b, self.constant(self.widths[a.kind] - 1, a.kind))

    def pow_of_integers(self, a: _Value, b: _Value) -> _Value:
        """Raise an integer to a power."""
        if a.kind == "bool":
            return a | self.logical_not(b)
        # Squaring, with one step for each bit of the exponent.
        kind = a.kind
        zero, one = self.constant(0, kind), self.constant(1, kind)
        result, base, rest = one, a, b
        for _ in range(self.widths[kind]):
            result = self.select((rest & one) != zero, result * base, result)
            base, rest = base * base, self.wrap(self.builder.lshr(rest.value, one.value), kind)
        if kind in _UNSIGNED:
            return result
        minus = self.constant(-1, kind)
        small = self.select(
            a == one, one, self.select(a == minus, self.select((b & one) != zero, minus, one), zero)
        )
        return self.select(b < zero, small, result)

    # -- by name ---------------------------

    def apply(self, name: str, args: Sequence[_Value]) -> _Value:
        """Compute the scalar function that loop texts call `name`."""
        match name:
            case "where":
                return self.select(args[0], *self.common(*args[1:]))
            case "floordiv" | "truncdiv" | "mod" | "truncmod":
                return self.divide(name, *args)
            case "shl" | "shr":
                return self.shift(name, *args)
            case "floor" | "ceil" | "trunc" | "round":
                return self.rounded(_ROUNDINGS[name], args[0])
        if name in _INSTRUCTIONS:
            return getattr(self, name)(*args)
        function = FUNCTIONS.get(name)
        if function is None or function.expansion_cpu is None:
            raise TypeError(f"no such function in kernels: {name}")
        if args[0].kind == "float32":
            return self.evaluate(_expansion(name), args)
        if args[0].kind not in _FLOATS:
            return getattr(self, f"{name}_of_integers")(*args)
        return self.intrinsic(function.libm, "float64", *args)

    def evaluate(self, root: Expr, inputs: Sequence[_Value]) -> _Value:
        """Compute an expression of formula inputs."""
        made: dict[Expr, _Value] = {}
        for node in ex.walk(root):
            made[node] = self.node(node, [made[a] for a in node.args], inputs)
        return made[root]

    def node(self, node: Expr, args: list[_Value], inputs: Sequence[_Value]) -> _Value:
        match node.op:
            case "input":
                return inputs[node.value]
            case "const":
                return self.constant(node.value, node.dtype.name)
            case "cast":
                return self.cast(args[0], node.dtype.name)
            case "bitcast":
                return self.bits(args[0], node.dtype.name)
            case "neg":
                return -args[0]
            case "div":
                return args[0] / args[1]
            case "shl" | "shr" if node.args[1].op == "const":
                # The count is known to be less than the type's size.
                return args[0] << args[1] if node.op == "shl" else args[0] >> args[1]
        function = FUNCTIONS[node.op]
        if function.infix:
            return self.infix(function.infix, *args)
        return self.apply(function.loops, args)

    def infix(self, sign: str, a: _Value, b: _Value) -> _Value:
        """Compute what an operator of the text stands for."""
        match sign:
            case "+":
                return a + b
            case "-":
                return a - b
            case "*":
                return a * b
            case "/":
                return a / b
            case "&":
                return a & b
            case "|":
                return a | b
            case "^":
                return a ^ b
        return self.compare(sign, a, b)

    # -- 16-bit floats ---------------------------

    def from_bfloat16(self, x: _Value) -> _Value:
        """Widen to float32."""
        wide = self.wrap(self.builder.zext(x.value, self.types["uint32"]), "uint32")
        return self.bits(wide << self.constant(16, "uint32"), "float32")

    def to_bfloat16(self, x: _Value) -> _Value:
        """Round to nearest, ties to even; NaN stays NaN."""
        u = "uint32"
        bits = self.bits(x, u)
        odd = (bits >> self.constant(16, u)) & self.constant(1, u)
        rounded = (bits + (self.constant(0x7FFF, u) + odd)) >> self.constant(16, u)
        chosen = self.select(self.isnan(x), self.constant(0x7FC0, u), rounded)
        return self.wrap(self.builder.trunc(chosen.value, self.types["bfloat16"]), "bfloat16")

    def from_float16(self, x: _Value) -> _Value:
        """Widen to float32: the exponent is moved by a multiplication, which is right for small numbers too."""
        u = "uint32"
        wide = self.wrap(self.builder.zext(x.value, self.types[u]), u)
        size = wide & self.constant(0x7FFF, u)
        number = self.bits(size << self.constant(13, u), "float32") * self.constant(
            2.0**112, "float32"
        )
        bits = self.bits(number, u)
        special = size >= self.constant(0x7C00, u)
        bits = self.select(special, bits | self.constant(0x7F800000, u), bits)
        return self.bits(
            bits | ((wide & self.constant(0x8000, u)) << self.constant(16, u)), "float32"
        )

    def to_float16(self, x: _Value) -> _Value:
        """Round to nearest, ties to even; NaN stays NaN and large numbers become infinite."""
        u = "uint32"
        bits = self.bits(x, u)
        sign = (bits >> self.constant(16, u)) & self.constant(0x8000, u)
        size = bits & self.constant(0x7FFFFFFF, u)
        odd = (size >> self.constant(13, u)) & self.constant(1, u)
        # Normal results: move the exponent by 112 and round on the 13 bits that go.
        normal = (size - self.constant(0x38000000 - 0xFFF, u) + odd) >> self.constant(13, u)
        # Small ones: adding 1/2 lines up the last bit at 2^-24, and the addition rounds.
        aligned = self.bits(self.bits(size, "float32") + self.constant(0.5, "float32"), u)
        tiny = aligned - self.constant(0x3F000000, u)
        half = self.select(size < self.constant(0x38800000, u), tiny, normal)
        half = self.select(size >= self.constant(0x477FF000, u), self.constant(0x7C00, u), half)
        half = self.select(size > self.constant(0x7F800000, u), self.constant(0x7E00, u), half)
        return self.wrap(self.builder.trunc((half | sign).value, self.types["float16"]), "float16")

    # -- orders: extremes as integers, whose maximum LLVM can vectorise ---------------------------------------------

    def order(self, x: _Value, nan: int) -> _Value:
        """Return an integer that orders like float `x`; `nan` is what stands for NaN."""
        kind = "int32" if x.kind == "float32" else "int64"
        bits = self.bits(x, kind)
        top = self.widths[kind] - 1
        mapped = bits ^ ((bits >> self.constant(top, kind)) & self.constant((1 << top) - 1, kind))
        return self.select(
            self.isnan(x), self.constant((1 << top) - 1 if nan > 0 else -(1 << top), kind), mapped
        )

    def unorder(self, x: _Value, kind: str) -> _Value:
        """Return the float that `order` mapped."""
        top = self.widths[x.kind] - 1
        bits = x ^ ((x >> self.constant(top, x.kind)) & self.constant((1 << top) - 1, x.kind))
        return self.bits(bits, kind)

    def order_position(self, acc: _Value) -> _Value:
        """Return the position that an argmax key holds."""
        low = self.constant(0xFFFFFFFF, "int64")
        return low - (acc & low)

    def order_pair(self, x: _Value, position: _Value, largest: bool) -> _Value:
        """Return value and position in one int64 whose maximum is the first extreme."""
        if x.kind == "float32":
            # -0 and 0 are equal: adding 0 makes them one.
            key = self.cast(
                self.order(x + self.constant(0.0, x.kind), 1 if largest else -1), "int64"
            )
        else:
            key = self.cast(x, "int64")
            if x.kind == "uint32":
                key = key - self.constant(1 << 31, "int64")
        if not largest:
            key = self.invert(key)
        low = self.constant(0xFFFFFFFF, "int64") - self.cast(position, "int64")
        return (key << self.constant(32, "int64")) | low


# What the machine has a method for, by its name in loop texts.
_INSTRUCTIONS = frozenset((
    "maximum", "minimum", "logical_not", "invert", "abs", "sign", "rsqrt", "isnan", "isinf", "copysign",
    "gcd", "sqrt", "fma",
))  # fmt: skip
_ROUNDINGS = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "rint"}


@cache
def _expansion(name: str) -> Expr:
    """Return the form of a float32 function for processors, of formula inputs."""
    function = FUNCTIONS[name]
    assert function.expansion_cpu is not None
    return function.expansion_cpu(*(ex.input_(i, float32) for i in range(function.arity)))


class _Compiler:
    """Writes one function."""

    def __init__(
        self, module: Any, tree: ast.FunctionDef, fused: bool, position_bits: int = 64
    ) -> None:
        self.m = LlvmMachine(module, fused, position_bits)
        self.ir = self.m.ir
        ir = self.ir
        self.module = module
        self.index = self.m.types["int"]
        self.pointer = ir.PointerType()
        self.function = ir.Function(
            module,
            ir.FunctionType(ir.VoidType(), [self.index, self.index, self.pointer]),
            tree.name,
        )
        self.entry = self.function.append_basic_block("entry")
        self.b = self.m.builder = ir.IRBuilder(self.entry)
        # Variables live in memory here; LLVM's first pass puts them in registers.
        self.variables: dict[str, tuple[Any, str]] = {}
        self.buffers: dict[str, tuple[Any, str, Any, Any]] = {}
        self.arrays: dict[str, tuple[Any, str]] = {}
        self.tuples: dict[str, list[_Value]] = {}
        self.parameters(tree)
        # Allocations go to the entry block, before its last jump.
        start = self.function.append_basic_block("start")
        self.jump = self.b.branch(start)
        self.b.position_at_end(start)
        self.block(tree.body)
        self.b.ret_void()

    def parameters(self, tree: ast.FunctionDef) -> None:
        """Load the buffers' addresses and the arguments from the call's cells."""
        b, ir = self.b, self.ir
        i64 = ir.IntType(64)
        begin, end, cells = self.function.args
        slots: list[tuple[str, str, Any]] = []
        for number, parameter in enumerate(tree.args.args[2:]):
            kind = parameter.annotation.id if isinstance(parameter.annotation, ast.Name) else ""
            cell = b.gep(cells, [ir.Constant(i64, number)], source_etype=i64)
            name = parameter.arg
            if name == "status" or name.startswith("b"):
                pointer = b.load(cell, typ=self.pointer)
                if name == "status":
                    self.status = pointer
                else:
                    slots.append((name, kind, pointer))
            elif kind in _FLOATS:
                number_value = self.m.wrap(b.load(cell, typ=ir.DoubleType()), "float64")
                self.let(name, self.m.cast(number_value, kind))
            elif kind == "int":
                # A number that stands for a literal.
                self.let(name, self.m.wrap(b.load(cell, typ=i64), "int"))
            else:
                self.let(name, self.m.cast(self.m.wrap(b.load(cell, typ=i64), "int64"), kind))
        # Buffers never overlap: each has a scope, and its accesses are known not to touch the others.
        domain = self.module.add_metadata([f"{tree.name}.buffers"])
        scopes = [self.module.add_metadata([f"{tree.name}.{name}", domain]) for name, _, _ in slots]
        for (name, kind, pointer), scope in zip(slots, scopes):
            others = [s for s in scopes if s is not scope]
            mine = self.module.add_metadata([scope])
            self.buffers[name] = (
                pointer,
                kind,
                mine,
                self.module.add_metadata(others) if others else None,
            )
        self.let("begin", self.m.wrap(begin, "int"))
        self.let("end", self.m.wrap(end, "int"))

    # -- statements ---------------------------

    def let(self, name: str, value: _Value) -> None:
        """Store a value in the variable of a name, made at its first use."""
        if name not in self.variables:
            self.variables[name] = (self.allocate(value.value.type), value.kind)
        place, kind = self.variables[name]
        if kind != value.kind:
            # A name may hold another type in another loop.
            place, kind = self.variables[name] = (self.allocate(value.value.type), value.kind)
        self.b.store(value.value, place)

    def allocate(self, kind: Any, count: Any = None) -> Any:
        """Return a place on the stack, made at the function's entry."""
        # Parameters come before the entry block has its jump.
        jump = getattr(self, "jump", None)
        if jump is None:
            return self.b.alloca(kind, count)
        with self.b.goto_block(self.entry):
            self.b.position_before(jump)
            return self.b.alloca(kind, count)

    def block(self, body: list[ast.stmt]) -> None:
        """Compile statements."""
        for statement in body:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        """Compile one statement of the subset that the renderers write."""
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(func=ast.Name(id="local"), args=[kind, count]),
            ):
                assert isinstance(kind, ast.Name) and isinstance(count, ast.Constant)
                element = self.m.types[kind.id] if kind.id != "bool" else self.ir.IntType(8)
                place = self.allocate(element, count.value)
                place.align = 64
                self.arrays[name] = (place, kind.id)
            case ast.Assign(
                targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id="philox"), args=args)
            ):
                self.tuples[name] = philox.philox(self.m, *[self.value(a) for a in args])
            case ast.Assign(targets=[ast.Name(id="n" as name)], value=value):
                self.let(name, self.hidden(self.value(value)))
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.let(name, self.value(value))
            case ast.Assign(targets=[ast.Subscript() as target], value=value):
                self.store(target, self.value(value))
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                self.let(name, self.accumulated(op, self.variable(name), self.value(value)))
            case ast.For(target=ast.Name(id=name), iter=ast.Call(args=args), body=body):
                branch = self.loop(name, [self.value(a) for a in args], body)
                turns = args[0].value if isinstance(args[0], ast.Constant) else 0
                if len(args) == 1 and turns in _VECTOR_TURNS:
                    self.keep_rolled(branch)
            case ast.While(test=test, body=body):
                self.while_loop(test, body)
            case ast.If(test=ast.Constant(value=True), body=body):
                self.block(body)
            case ast.If(test=test, body=body):
                with self.b.if_then(self.value(test).value):
                    self.block(body)
            case ast.Expr(value=ast.Call(func=ast.Name(id="report"), args=[_, site, value])):
                # A kernel for any sizes takes even the number of the check as an argument.
                self.report(self.value(site), self.value(value))
            case ast.Pass():
                pass
            case _:
                raise TypeError(f"no such statement in kernels: {ast.unparse(node)}")

    def hidden(self, turns: _Value) -> _Value:
        """Return a number of turns, of which LLVM sees no bounds where it has none of this processor's kind:
        loops known to be short get masks, and WebAssembly has no vectors with masks.
        """
        if self.m.widths["int"] == 64:
            return turns
        kind = self.ir.FunctionType(self.index, [self.index])
        return self.m.wrap(self.b.asm(kind, "", "=r,0", [turns.value], False), turns.kind)

    def accumulated(self, op: ast.operator, old: _Value, new: _Value) -> _Value:
        """Add or multiply where the order is free, so that LLVM may keep several partial results."""
        name = "add" if isinstance(op, ast.Add) else "mul"
        if old.kind in _FLOATS:
            return self.m.wrap(
                getattr(self.b, "f" + name)(old.value, new.value, flags=("reassoc",)), old.kind
            )
        return self.m.arithmetic(name, old, new)

    def keep_rolled(self, branch: Any) -> None:
        """Keep LLVM from writing a loop out before its vectoriser sees it: a row's sum of 16 then takes a
        quarter of the time, of 64 a seventh.
        """
        if self.m.widths["int"] != 64:
            return
        mark = self.module.add_metadata(["llvm.loop.unroll.disable"])
        node = self.ir.values.MDValue(self.module, (), str(len(self.module.metadata)))
        # The first part of a loop's name is the name itself.
        node.operands = (node, mark)
        branch.set_metadata("llvm.loop", node)

    def loop(self, name: str, bounds: list[_Value], body: list[ast.stmt]) -> Any:
        """Write a loop; return the jump back to its start."""
        b = self.b
        zero = self.ir.Constant(self.index, 0)
        start, stop, step = zero, bounds[0].value, self.ir.Constant(self.index, 1)
        if len(bounds) > 1:
            start, stop = bounds[0].value, bounds[1].value
        if len(bounds) > 2:
            step = bounds[2].value
        before = b.block
        inside = self.function.append_basic_block("loop")
        after = self.function.append_basic_block("done")
        b.cbranch(b.icmp_signed("<", start, stop), inside, after)
        b.position_at_end(inside)
        counter = b.phi(self.index)
        counter.add_incoming(start, before)
        self.let(name, self.m.wrap(counter, "int"))
        self.block(body)
        following = b.add(counter, step, flags=("nsw",))
        counter.add_incoming(following, b.block)
        back = b.cbranch(b.icmp_signed("<", following, stop), inside, after)
        b.position_at_end(after)
        return back

    def while_loop(self, test: ast.expr, body: list[ast.stmt]) -> None:
        """Compile a loop."""
        b = self.b
        head = self.function.append_basic_block("while")
        inside = self.function.append_basic_block("body")
        after = self.function.append_basic_block("end")
        b.branch(head)
        b.position_at_end(head)
        b.cbranch(self.value(test).value, inside, after)
        b.position_at_end(inside)
        self.block(body)
        b.branch(head)
        b.position_at_end(after)

    def report(self, site: _Value, value: _Value) -> None:
        """Note a failed check, if it is the first."""
        i32 = self.ir.IntType(32)
        b = self.b
        old = b.cmpxchg(
            self.status,
            self.ir.Constant(i32, 0),
            b.add(self.m.cast(site, "int32").value, self.ir.Constant(i32, 1)),
            "monotonic",
            "monotonic",
        )
        with b.if_then(b.extract_value(old, 1)):
            i64 = self.ir.IntType(64)
            place = b.gep(self.status, [self.ir.Constant(i64, 1)], source_etype=i64)
            b.store(self.m.cast(value, "int64").value, place)

    # -- memory ---------------------------

    def place(self, node: ast.Subscript) -> tuple[Any, str, Any, Any]:
        """Return an element's address, type and alias scopes."""
        assert isinstance(node.value, ast.Name)
        name = node.value.id
        position = self.m.cast(self.value(node.slice), "int").value
        if name in self.buffers:
            pointer, kind, mine, others = self.buffers[name]
        else:
            pointer, kind = self.arrays[name]
            mine = others = None
        element = self.ir.IntType(8) if kind == "bool" else self.m.types[kind]
        return (
            self.b.gep(pointer, [position], inbounds=True, source_etype=element),
            kind,
            mine,
            others,
        )

    def mark(self, access: Any, mine: Any, others: Any) -> None:
        """Say that an access meets no other buffer."""
        if mine is not None:
            access.set_metadata("alias.scope", mine)
        if others is not None:
            access.set_metadata("noalias", others)

    def load(self, node: ast.Subscript) -> _Value:
        """Return an element; bools are bytes in memory."""
        pointer, kind, mine, others = self.place(node)
        element = self.ir.IntType(8) if kind == "bool" else self.m.types[kind]
        loaded = self.b.load(pointer, typ=element, align=_BYTES[kind])
        self.mark(loaded, mine, others)
        if kind == "bool":
            return self.m.wrap(
                self.b.icmp_unsigned("!=", loaded, self.ir.Constant(element, 0)), "bool"
            )
        return self.m.wrap(loaded, kind)

    def store(self, node: ast.Subscript, value: _Value) -> None:
        """Store an element, converted to its array's type."""
        pointer, kind, mine, others = self.place(node)
        value = self.m.cast(value, kind)
        stored = value.value if kind != "bool" else self.b.zext(value.value, self.ir.IntType(8))
        self.mark(self.b.store(stored, pointer, align=_BYTES[kind]), mine, others)

    # -- expressions ---------------------------

    def variable(self, name: str) -> _Value:
        """Return the value of a variable."""
        place, kind = self.variables[name]
        return self.m.wrap(self.b.load(place, typ=self.m.types[kind]), kind)

    def value(self, node: ast.expr) -> _Value:
        """Return the value of an expression."""
        match node:
            case ast.Name(id=name):
                return self.variable(name)
            case ast.Constant(value=int(number)):
                return self.m.constant(number, "int")
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=lane)) if (
                name in self.tuples
            ):
                return self.tuples[name][lane]  # type: ignore[index]
            case ast.Subscript():
                return self.load(node)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.value(operand)
            case ast.BinOp(left=left, op=op, right=right):
                return self.m.infix(_SIGNS[type(op)], self.value(left), self.value(right))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self.m.compare(_SIGNS[type(op)], self.value(left), self.value(right))
            case ast.IfExp(test=test, body=body, orelse=other):
                return self.choice(test, body, other)
            case ast.Call(func=ast.Name(id=name), args=args):
                return self.call(name, args)
        raise TypeError(f"no such expression in kernels: {ast.unparse(node)}")

    def choice(self, test: ast.expr, body: ast.expr, other: ast.expr) -> _Value:
        """A load that happens only where it is valid."""
        condition = self.value(test)
        alternative = self.value(other)
        b = self.b
        before = b.block
        inside = self.function.append_basic_block("valid")
        after = self.function.append_basic_block("chosen")
        b.cbranch(condition.value, inside, after)
        b.position_at_end(inside)
        value = self.value(body)
        last = b.block
        b.branch(after)
        b.position_at_end(after)
        phi = b.phi(value.value.type)
        phi.add_incoming(value.value, last)
        phi.add_incoming(alternative.value, before)
        return self.m.wrap(phi, value.kind)

    def call(self, name: str, args: list[ast.expr]) -> _Value:
        """Return the result of a function that the renderers use."""
        m = self.m
        if name in _BITS or name == "int":
            return self.typed(name, args[0])
        if name in ("bitcast", "unorder"):
            kind = args[1]
            assert isinstance(kind, ast.Name)
            x = self.value(args[0])
            return m.bits(x, kind.id) if name == "bitcast" else m.unorder(x, kind.id)
        values = [self.value(a) for a in args]
        match name:
            case "div" | "rem":
                # Non-negative numbers below 2^31: 32 bits divide faster, and in vectors.
                a, b = (m.cast(v, "uint32").value for v in values)
                result = m.wrap((self.b.udiv if name == "div" else self.b.urem)(a, b), "uint32")
                return m.cast(result, "int")
            case "min" | "max":
                return (m.minimum if name == "min" else m.maximum)(*values)
            case "from_bfloat16" | "to_bfloat16" | "order_position":
                return getattr(m, name)(*values)
            case "order_max" | "order_min":
                return m.order(values[0], 1 if name == "order_max" else -1)
            case "order_argmax" | "order_argmin":
                return m.order_pair(values[0], values[1], name == "order_argmax")
        return m.apply(name, values)

    def typed(self, kind: str, node: ast.expr) -> _Value:
        """A constant or a conversion: `float32(0.5)`, `float32(-inf)`, `int64(t3)`."""
        number = _literal(node)
        if number is not None:
            return self.m.constant(number, kind)
        return self.m.cast(self.value(node), kind)


_SIGNS: dict[type[ast.cmpop | ast.operator], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.BitAnd: "&", ast.BitOr: "|",
    ast.BitXor: "^",
}  # fmt: skip


def _literal(node: ast.expr) -> float | int | None:
    match node:
        case ast.Constant(value=bool() | int() | float() as number):
            return number
        case ast.Name(id="inf"):
            return math.inf
        case ast.Name(id="nan"):
            return math.nan
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _literal(operand)
            return None if inner is None else -inner
    return None


# -- LLVM ---------------------------


def _known_symbol(name: str) -> None:
    """Tell LLVM where a function of the C mathematics library is."""
    import llvmlite.binding as llvm

    library = _libm()
    if library is not None and llvm.address_of_symbol(name) is None:
        llvm.add_symbol(name, ctypes.cast(getattr(library, name), ctypes.c_void_p).value)


@cache
def _libm() -> Any:
    name = ctypes.util.find_library("m") or ("msvcrt" if os.name == "nt" else None)
    return ctypes.CDLL(name)


class _Engine:
    """LLVM for this processor: compiles modules to object code, and loads object code."""

    def __init__(self) -> None:
        import llvmlite.binding as llvm

        self.llvm = llvm
        for start in ("initialize", "initialize_native_target", "initialize_native_asmprinter"):
            # Newer versions initialise themselves and raise when asked.
            try:
                getattr(llvm, start)()
            except (AttributeError, RuntimeError):
                continue
        self.triple = llvm.get_process_triple()
        self.cpu = llvm.get_host_cpu_name()
        # Left to itself LLVM uses half of the vectors of Intel's processors that have 512 bits.
        self.features = llvm.get_host_cpu_features().flatten()
        if "+avx512f" in self.features.split(","):
            self.features += ",-prefer-256-bit"
        # Code for x86 that is loaded into a running process needs static relocation: numba's rule.
        processor = self.triple.split("-")[0]
        self.reloc = "static" if processor in ("x86_64", "i686", "i386") else "default"
        # A library for each kernel: what no program holds any more is unloaded.
        # (LLVM's newer linker takes 30 KB for a kernel, the older 45; Windows has only that one.)
        self.loader = llvm.create_lljit_compiler(
            self.new_machine(), use_jit_link=sys.platform in ("linux", "darwin")
        )
        self.loaded = 0
        self.of_thread = threading.local()
        self.fused = "+fma," in self.features + "," or platform.machine().lower() in (
            "arm64",
            "aarch64",
        )
        # Code may call these of libm.
        self.symbols: dict[str, int] = {}
        for name in {f.libm for f in FUNCTIONS.values() if f.libm} | {"fmod", "fmodf"}:
            try:
                found = ctypes.cast(getattr(_libm(), name), ctypes.c_void_p).value
            except (AttributeError, OSError):
                continue
            if found:
                self.symbols[name] = found

    def new_machine(self) -> Any:
        """Return what writes object code; a thread needs its own."""
        return self.llvm.Target.from_triple(self.triple).create_target_machine(
            cpu=self.cpu,
            features=self.features,
            opt=3,
            reloc=self.reloc,
            codemodel="jitdefault",
            jit=True,
        )

    def object_code(self, text: str, unroll: bool = True) -> bytes:
        """Return the object code of a module's text; threads work side by side."""
        machine = getattr(self.of_thread, "machine", None)
        if machine is None:
            machine = self.of_thread.machine = self.new_machine()
        code, self.optimised = _object_code(machine, self.triple, text, unroll)
        return code

    def load(self, code: bytes, names: tuple[str, ...]) -> tuple[list[int], Any]:
        """Return the addresses of functions, and what keeps their code in the process."""
        builder = self.llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
        for symbol, address in self.symbols.items():
            if symbol.encode() in code:
                builder.import_symbol(symbol, address)
        for name in names:
            builder.export_symbol(name)
        self.loaded += 1
        library = builder.link(self.loader, f"kernel{self.loaded}")
        return [library[name] for name in names], library


def _object_code(
    machine: Any, triple: str, text: str, unroll: bool, interleave: bool = True
) -> tuple[bytes, str]:
    """Return the object code of a module for a processor, and under WEBTORCH_CPU_DUMP the optimised text."""
    import llvmlite.binding as llvm

    # A context of its own goes with the module.
    module = llvm.parse_assembly(text, llvm.create_context())
    module.triple = triple
    module.data_layout = str(machine.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    options.loop_interleaving = interleave
    options.slp_vectorization = False
    options.loop_unrolling = unroll
    builder = llvm.create_pass_builder(machine, options)
    passes = builder.getModulePassManager()
    _unlocked("LLVMPY_RunNewModulePassManager")(passes, module, builder)
    _dispose(passes)
    optimised = str(module) if os.environ.get("WEBTORCH_CPU_DUMP") else ""
    return _emitted(machine, module), optimised


def _unlocked(name: str) -> Callable[..., Any]:
    """Return a function of LLVM's that threads may run side by side, on modules and machines of their
    own: llvmlite lets only one in at a time.
    """
    from llvmlite.binding import ffi

    wrapped = getattr(ffi.lib, name)
    found: Callable[..., Any] = getattr(wrapped, "_cfn", wrapped)
    return found


def _emitted(machine: Any, module: Any) -> bytes:
    from llvmlite.binding import ffi

    with ffi.OutputString() as error:
        buffer = _unlocked("LLVMPY_TargetMachineEmitToMemory")(machine, module, 1, error)
        if not buffer:
            raise RuntimeError(str(error))
    try:
        start, size = ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer)
        return ctypes.string_at(start, size)
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


# What every browser with WebGPU has, and those of some years before.
WASM_FEATURES = (
    "+simd128,+atomics,+bulk-memory,+nontrapping-fptoint,+sign-ext,+mutable-globals,+multivalue"
)
_WASM_TRIPLE = "wasm32-unknown-unknown"


@cache
def _wasm_machine() -> Any:
    import llvmlite.binding as llvm

    _engine()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(_WASM_TRIPLE).create_target_machine(
        cpu="generic", features=WASM_FEATURES, opt=3, reloc="static"
    )


def wasm_object(
    text: str | Callable[[], str], key: str = "", unroll: bool = True, interleave: bool = True
) -> bytes:
    """Return the relocatable WebAssembly object of a module in LLVM's own language.

    `interleave` lets loops work on several vectors at once, which sums gain from and short loops do not.

    With a `key` that says all that the text depends on, a `text` that is a function is called only
    where there is no code on disk.
    """
    known = key or text
    assert isinstance(known, str)
    parts = [
        str(_VERSION),
        _expansions(),
        _llvmlite_version(),
        WASM_FEATURES,
        str((unroll, interleave)),
        known,
    ]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
    with _LOCK:
        code = CODE.read(digest)
        if code is None:
            written = text if isinstance(text, str) else text()
            code, _ = _object_code(_wasm_machine(), _WASM_TRIPLE, written, unroll, interleave)
            CODE.write(digest, code)
    return code


def _dispose(passes: Any) -> None:
    """Free a list of passes.

    In llvmlite (0.50 at least) its own `close` finds the empty method of the wrong base class: a
    hundred kilobytes and more stay with each compiled kernel.
    """
    from llvmlite.binding import ffi, newpassmanagers

    if type(passes)._dispose is ffi.ObjectRef._dispose:
        newpassmanagers.NewPassManager._dispose(passes)
        passes.detach()
    else:
        passes.close()


class Native:
    """A compiled kernel: `call(begin, end, block)` runs it without the interpreter's lock. `library`
    keeps its code in the process: who runs `call` or the code at `address` holds this object.
    """

    __slots__ = ("__weakref__", "address", "call", "library")

    def __init__(self, address: int, library: Any = None) -> None:
        self.address, self.library = address, library
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_char_p)
        self.call: Callable[[int, int, bytes], None] = prototype(address)


_ENGINE: _Engine | None = None
_LOCK = threading.Lock()
# By the text without its name: those that a program holds, and the latest, which a program made anew
# finds again.
_FUNCTIONS: WeakValueDictionary[str, Native] = WeakValueDictionary()
_LATEST: deque[Native] = deque(maxlen=256)
# Those that a thread is compiling.
_WAITING: dict[str, Future[Native]] = {}
# Functions that are never dropped, as few as there are of them.
_KEPT: list[Any] = []
_COUNTS = {"hits": 0, "misses": 0}


def counts() -> dict[str, int]:
    """Return how many compiled functions there are, how often one was found and how many were made."""
    return {"entries": len(_FUNCTIONS), **_COUNTS}


def _engine() -> _Engine:
    """Return LLVM; the caller holds the lock."""
    global _ENGINE
    if _ENGINE is None:
        _ENGINE = _Engine()
    return _ENGINE


# Python 3.11 counts the depth of trees in one place for all threads: two at once, or one that a finaliser
# interrupts, may find the count wrong and raise SystemError.
_PARSING = threading.Lock()


def _parsed(source: str) -> ast.Module:
    with _PARSING:
        try:
            return ast.parse(source)
        except SystemError:
            return ast.parse(source)


def llvm_text(source: str, name: str, fused: bool, position_bits: int = 64) -> str:
    """Return LLVM's text for the one function of `source`, under the name `name`. Positions and the
    parameters begin and end are integers of `position_bits`.
    """
    from llvmlite import ir

    tree = _parsed(source).body[0]
    assert isinstance(tree, ast.FunctionDef)
    tree.name = name
    module = ir.Module(name)
    compiler = _Compiler(module, tree, fused, position_bits)
    compiler.function.attributes.add("nounwind")
    lane_loops.keep(module, ir)
    return str(module)


def function(source: str) -> Native:
    """Return the compiled form of a loop text."""
    # The name is no part of what the text does.
    _, rest = source.split("(", 1)
    # An interrupt in the middle of LLVM's functions would leave objects behind that end the process
    # when they are collected.
    with firm:
        return _function(rest)


def _function(rest: str) -> Native:
    with _LOCK:
        found = _FUNCTIONS.get(rest)
        if found is not None:
            _COUNTS["hits"] += 1
            return found
        # Where there is no LLVM this raises: nobody must wait for what will not be made.
        engine = _engine()
        mine = Future[Native]()
        made = _WAITING.setdefault(rest, mine)
        _COUNTS["misses"] += made is mine
    if made is not mine:
        # Another thread is at it.
        return made.result()
    try:
        found = _compile(engine, f"def kernel({rest}")
    except BaseException as error:
        mine.set_exception(error)
        raise
    else:
        with _LOCK:
            _FUNCTIONS[rest] = found
            _LATEST.append(found)
        mine.set_result(found)
    finally:
        with _LOCK:
            del _WAITING[rest]
    return found


def _compile(engine: _Engine, source: str) -> Native:
    digest = _digest(engine, source)
    name = f"wt_{digest}"
    code = CODE.read(digest)
    if code is None:
        code = engine.object_code(llvm_text(source, name, engine.fused))
        CODE.write(digest, code)
    with _LOCK:
        (address,), library = engine.load(code, (name,))
    return Native(address, library)


def _digest(engine: _Engine, text: str) -> str:
    key = "\n".join(
        [
            str(_VERSION),
            _expansions(),
            _llvmlite_version(),
            engine.triple,
            engine.cpu,
            engine.features,
            text,
        ]
    )
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def assemble(text: str | Callable[[], str], names: tuple[str, ...], key: str = "") -> list[int]:
    """Return the addresses of functions of a module in LLVM's own language; their loops are not unrolled.

    With a `key` that says all that the text depends on, a `text` that is a function is called only
    where there is no machine code on disk.
    """
    with firm:
        return _assemble(text, names, key)


def _assemble(text: str | Callable[[], str], names: tuple[str, ...], key: str) -> list[int]:
    with _LOCK:
        engine = _engine()
        known = key or text
        assert isinstance(known, str)
        digest = _digest(engine, known)
        code = CODE.read(digest)
        if code is None:
            code = engine.object_code(text if isinstance(text, str) else text(), unroll=False)
            CODE.write(digest, code)
        addresses, library = engine.load(code, names)
        _KEPT.append(library)
        return addresses


def processor() -> tuple[str, bool]:
    """Return LLVM's features of this processor, and whether it multiplies and adds in one."""
    with _LOCK:
        engine = _engine()
        return engine.features, engine.fused


@cache
def _expansions() -> str:
    """Return a digest of the files that declare scalar functions: code on disk holds their forms."""
    files = sorted(Path(ex.__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


@cache
def _llvmlite_version() -> str:
    import llvmlite

    return str(llvmlite.__version__)


def forget() -> None:
    """Drop compiled functions, so that the next use compiles or loads anew; for tests."""
    with _LOCK:
        _FUNCTIONS.clear()
        _LATEST.clear()


def interpreter() -> str:
    """Return a text that names the machine, for reports."""
    return f"{sys.platform} {platform.machine()}"
