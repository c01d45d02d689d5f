"""Scalar operations as LLVM instructions: what the loop text, the tiles written by hand, and expressions
are made of. Imports llvmlite lazily.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import math
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

from webtorch.ir import expr as ex
from webtorch.ir.dtype import ALL, float16, float32
from webtorch.ir.expr import FUNCTIONS, Expr
from webtorch.ir.expr.record import Formula, ScalarFunction
from webtorch.runtime.backends.cpu import lane_loops
from webtorch.runtime.backends.cpu.llvmtypes import (
    Builder,
    Ir,
    IrModule,
    Kind,
    Llvm,
    declared,
)

FLOATS = {"float32", "float64"}
HALVES = {"float16", "bfloat16"}
BITS = {dtype.name: dtype.bits for dtype in ALL} | {"bool": 1, "int": 64}
_UNSIGNED = HALVES | {dtype.name for dtype in ALL if dtype.kind in ("bool", "uint")}
BYTES = {name: max(bits // 8, 1) for name, bits in BITS.items()}


class Value:
    """A value while code is written: LLVM's value and the name of its type ("int" is a position,
    without wraparound).
    """

    __slots__ = ("kind", "machine", "value")

    def __init__(self, machine: LlvmMachine, value: Ir, kind: str) -> None:
        self.machine, self.value, self.kind = machine, value, kind

    def __add__(self, other: Value) -> Value:
        return self.machine.arithmetic("add", self, other)

    def __sub__(self, other: Value) -> Value:
        return self.machine.arithmetic("sub", self, other)

    def __mul__(self, other: Value) -> Value:
        return self.machine.arithmetic("mul", self, other)

    def __truediv__(self, other: Value) -> Value:
        return self.machine.wrap(self.machine.builder.fdiv(self.value, other.value), self.kind)

    def __neg__(self) -> Value:
        if self.kind in FLOATS:
            return self.machine.wrap(self.machine.builder.fneg(self.value), self.kind)
        return self.machine.constant(0, self.kind) - self

    def __and__(self, other: Value) -> Value:
        return self.machine.wrap(self.machine.builder.and_(self.value, other.value), self.kind)

    def __or__(self, other: Value) -> Value:
        return self.machine.wrap(self.machine.builder.or_(self.value, other.value), self.kind)

    def __xor__(self, other: Value) -> Value:
        return self.machine.wrap(self.machine.builder.xor(self.value, other.value), self.kind)

    def __lshift__(self, other: Value) -> Value:
        return self.machine.wrap(self.machine.builder.shl(self.value, other.value), self.kind)

    def __rshift__(self, other: Value) -> Value:
        builder = self.machine.builder
        shift = builder.lshr if self.kind in _UNSIGNED else builder.ashr
        return self.machine.wrap(shift(self.value, other.value), self.kind)

    def __lt__(self, other: Value) -> Value:
        return self.machine.compare("<", self, other)

    def __le__(self, other: Value) -> Value:
        return self.machine.compare("<=", self, other)

    def __gt__(self, other: Value) -> Value:
        return self.machine.compare(">", self, other)

    def __ge__(self, other: Value) -> Value:
        return self.machine.compare(">=", self, other)

    def __eq__(self, other: object) -> Any:
        assert isinstance(other, Value)
        return self.machine.compare("==", self, other)

    def __ne__(self, other: object) -> Any:
        assert isinstance(other, Value)
        return self.machine.compare("!=", self, other)

    __hash__ = None  # type: ignore[assignment]


# What the machine has a method for, by its name in loop texts.
_INSTRUCTIONS: set[str] = set()
_Method = TypeVar("_Method", bound=Callable[..., Value])


def _instruction(method: _Method) -> _Method:
    _INSTRUCTIONS.add(method.__name__)
    return method


class LlvmMachine:
    """Writes instructions for scalar functions, and for what the text calls."""

    builder: Builder

    def __init__(self, module: IrModule, fused: bool, position_bits: int = 64) -> None:
        from llvmlite import ir

        self.ir: Llvm = ir
        self.module = module
        self.fused = fused
        self.widths = {**BITS, "int": position_bits}
        self.types: dict[str, Kind] = {
            "float32": ir.FloatType(), "float64": ir.DoubleType(),
        } | {k: ir.IntType(b) for k, b in self.widths.items() if k not in FLOATS}  # fmt: skip

    def wrap(self, value: Ir, kind: str) -> Value:
        """Return a typed value."""
        return Value(self, value, kind)

    def constant(self, number: float, kind: str) -> Value:
        """Return a typed constant."""
        if kind == "float16":
            number = int.from_bytes(float16.to_bytes([number]), "little")
        number = float(number) if kind in FLOATS else int(number)
        if isinstance(number, int) and kind != "bool":
            number &= (1 << self.widths[kind]) - 1
        if kind == "float32" and math.isfinite(number):
            number = ctypes.c_float(number).value
        return self.wrap(self.ir.Constant(self.types[kind], number), kind)

    def intrinsic(self, name: str, kind: str, *args: Value) -> Value:
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

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """Return `a` where the condition holds, else `b`."""
        return self.wrap(self.builder.select(condition.value, a.value, b.value), a.kind)

    @_instruction
    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return a * b + c, rounded once where the processor can."""
        if self.fused:
            return self.intrinsic("llvm.fma", a.kind, a, b, c)
        return a * b + c

    def bits(self, x: Value, kind: str) -> Value:
        """Reinterpret as a type of the same size."""
        if self.types[kind] == x.value.type:
            return self.wrap(x.value, kind)
        return self.wrap(self.builder.bitcast(x.value, self.types[kind]), kind)

    def rint(self, x: Value) -> Value:
        """Round to the nearest integer, ties to even."""
        return self.intrinsic("llvm.rint", x.kind, x)

    @_instruction
    def sqrt(self, x: Value) -> Value:
        """Return the square root."""
        return self.intrinsic("llvm.sqrt", x.kind, x)

    def cast(self, x: Value, kind: str) -> Value:
        """Convert as PyTorch does on the usual processors: floats out of range become the smallest integer."""
        source = x.kind
        if source == kind:
            return x
        builder, target = self.builder, self.types[kind]
        if source in HALVES or kind in HALVES:
            return self.cast_half(x, kind)
        if kind == "bool":
            return x != self.constant(0, source)
        if source in FLOATS and kind in FLOATS:
            convert = builder.fpext if self.widths[kind] > self.widths[source] else builder.fptrunc
            return self.wrap(convert(x.value, target), kind)
        if kind in FLOATS:
            convert = builder.uitofp if source in _UNSIGNED else builder.sitofp
            return self.wrap(convert(x.value, target), kind)
        if source in FLOATS and kind == "uint64":
            # The upper half of the type is beyond int64: it is moved down, and the top bit set.
            half = self.constant(2.0**63, source)
            upper = x >= half
            whole = self.cast(self.select(upper, x - half, x), "int64")
            top = self.constant(-(1 << 63), "int64")
            return self.cast(self.select(upper, whole ^ top, whole), kind)
        if source in FLOATS:
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

    def cast_half(self, x: Value, kind: str) -> Value:
        """Convert between float16 or bfloat16 and other types, by their bits."""
        if x.kind in HALVES:
            wide = self.from_bfloat16(x) if x.kind == "bfloat16" else self.from_float16(x)
            return self.cast(wide, kind)
        x = self.cast(x, "float32")
        return self.to_bfloat16(x) if kind == "bfloat16" else self.to_float16(x)

    # -- arithmetic ---------------------------

    def arithmetic(self, op: str, a: Value, b: Value) -> Value:
        """Add, subtract or multiply; typed integers wrap around."""
        a, b = self.common(a, b)
        builder = self.builder
        if a.kind in FLOATS:
            return self.wrap(getattr(builder, "f" + op)(a.value, b.value), a.kind)
        if a.kind == "bool":
            return a & b if op == "mul" else a | b
        flags = ("nsw",) if a.kind == "int" else ()
        return self.wrap(getattr(builder, op)(a.value, b.value, flags=flags), a.kind)

    def common(self, a: Value, b: Value) -> tuple[Value, Value]:
        """Give a position and a typed integer one type."""
        if a.kind != b.kind:
            if a.kind == "int":
                a = self.cast(a, b.kind)
            elif b.kind == "int":
                b = self.cast(b, a.kind)
            else:
                raise TypeError(f"{a.kind} and {b.kind} in one operation")
        return a, b

    def compare(self, sign: str, a: Value, b: Value) -> Value:
        """Compare; anything but != is false for NaN."""
        a, b = self.common(a, b)
        builder = self.builder
        if a.kind in FLOATS:
            compare = builder.fcmp_unordered if sign == "!=" else builder.fcmp_ordered
        else:
            compare = builder.icmp_unsigned if a.kind in _UNSIGNED else builder.icmp_signed
        return self.wrap(compare(sign, a.value, b.value), "bool")

    @_instruction
    def isnan(self, x: Value) -> Value:
        """Whether x is NaN."""
        if x.kind not in FLOATS:
            return self.constant(0, "bool")
        return self.wrap(self.builder.fcmp_unordered("uno", x.value, x.value), "bool")

    @_instruction
    def isinf(self, x: Value) -> Value:
        """Whether x is infinite."""
        if x.kind not in FLOATS:
            return self.constant(0, "bool")
        return self.intrinsic("llvm.fabs", x.kind, x) == self.constant(math.inf, x.kind)

    @_instruction
    def maximum(self, a: Value, b: Value) -> Value:
        """Return the larger, NaN if either is."""
        a, b = self.common(a, b)
        return self.select((a > b) | self.isnan(a) if a.kind in FLOATS else a > b, a, b)

    @_instruction
    def minimum(self, a: Value, b: Value) -> Value:
        """Return the smaller, NaN if either is."""
        a, b = self.common(a, b)
        return self.select((a < b) | self.isnan(a) if a.kind in FLOATS else a < b, a, b)

    @_instruction
    def logical_not(self, x: Value) -> Value:
        """Return not x."""
        return self.wrap(self.builder.not_(x.value), "bool")

    @_instruction
    def invert(self, x: Value) -> Value:
        """Flip all bits."""
        return self.wrap(self.builder.not_(x.value), x.kind)

    @_instruction
    def abs(self, x: Value) -> Value:
        """Return the absolute value."""
        if x.kind in FLOATS:
            return self.intrinsic("llvm.fabs", x.kind, x)
        return x if x.kind in _UNSIGNED else self.select(x < self.constant(0, x.kind), -x, x)

    @_instruction
    def sign(self, x: Value) -> Value:
        """Return -1, 0 or 1; 0 for NaN."""
        zero, one = self.constant(0, x.kind), self.constant(1, x.kind)
        up = self.select(x > zero, one, zero)
        if x.kind in _UNSIGNED:
            return up
        return self.select(x < zero, self.constant(-1, x.kind), up)

    @_instruction
    def rsqrt(self, x: Value) -> Value:
        """Return 1 / sqrt(x)."""
        return self.constant(1.0, x.kind) / self.sqrt(x)

    def rounded(self, name: str, x: Value) -> Value:
        """Round to an integral value; integers are that already."""
        return self.intrinsic(name, x.kind, x) if x.kind in FLOATS else x

    @_instruction
    def copysign(self, a: Value, b: Value) -> Value:
        """Return the size of `a` with the sign of `b`."""
        return self.intrinsic("llvm.copysign", a.kind, a, b)

    def divide(self, op: str, a: Value, b: Value) -> Value:
        """Do one of the integer divisions; by zero they give 0, and nothing traps."""
        a, b = self.common(a, b)
        if a.kind in FLOATS:
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

    def divide_floats(self, op: str, a: Value, b: Value) -> Value:
        """Do one of the divisions that round, on floats."""
        kind = a.kind
        if op == "truncdiv":
            return self.rounded("llvm.trunc", a / b)
        zero, one = self.constant(0.0, kind), self.constant(1.0, kind)
        rest = self.remainder(a, b)
        if op == "truncmod":
            return rest
        crooked = (rest != zero) & ((b < zero) != (rest < zero))
        if op == "mod":
            return self.select(crooked, rest + b, rest)
        quotient = (a - rest) / b
        quotient = self.select(crooked, quotient - one, quotient)
        whole = self.rounded("llvm.floor", quotient)
        whole = self.select(quotient - whole > self.constant(0.5, kind), whole + one, whole)
        whole = self.select(quotient != zero, whole, self.copysign(zero, a / b))
        return self.select(b == zero, a / b, whole)

    def remainder(self, a: Value, b: Value) -> Value:
        """Return what is left of a float, with its sign."""
        if a.kind == "float32" and self.widths["int"] == 64:
            return self.looped("remainder", a, b)
        return self.wrap(self.builder.frem(a.value, b.value), a.kind)

    @_instruction
    def gcd(self, a: Value, b: Value) -> Value:
        """Return the greatest common divisor of two integers."""
        return self.looped("gcd", self.abs(a), self.abs(b))

    def looped(self, name: str, a: Value, b: Value) -> Value:
        """Call a function that loops; loops over elements call its form for vectors."""
        number = self.types[a.kind]
        vectors = self.widths["int"] == 64
        function = lane_loops.define(
            self.module, self.ir, name, number, self.widths[a.kind] // 8, vectors
        )
        return self.wrap(self.builder.call(function, [a.value, b.value]), a.kind)

    def branching(self, function: ScalarFunction, args: Sequence[Value]) -> Value:
        """Call a function that computes its usual form where no lane is rare."""
        rare, usual, all_ = function.rare, function.expansion_usual, function.expansion_cpu
        assert rare is not None and usual is not None and all_ is not None

        def write(ir: Llvm, b: Builder, number: Kind, lanes: int) -> None:
            """Write it for some lanes."""
            machine = LaneMachine(self.module, self.fused, lanes)
            machine.builder = b
            inputs = [machine.wrap(x, "float32") for x in b.function.args]

            def of(formula: Formula) -> Ir:
                """Return the value of a formula."""
                return machine.evaluate(_form(formula, len(inputs)), inputs).value

            some = lane_loops.some_lane(ir, b, of(rare), lanes)
            plain, seldom = (b.function.append_basic_block(n) for n in ("usual", "rare"))
            b.cbranch(some, seldom, plain)
            for block, formula in ((plain, usual), (seldom, all_)):
                b.position_at_end(block)
                b.ret(of(formula))

        called = lane_loops.define(
            self.module, self.ir, function.name, self.types["float32"], 4, True, write, len(args)
        )
        return self.wrap(self.builder.call(called, [a.value for a in args]), "float32")

    def shift(self, op: str, a: Value, b: Value) -> Value:
        """Shift; a count of the type's size or more shifts everything out."""
        bits = self.constant(self.widths[a.kind], a.kind)
        inside = self.wrap(self.builder.icmp_unsigned("<", b.value, bits.value), "bool")
        count = self.select(inside, b, self.constant(0, a.kind))
        if op == "shl":
            return self.select(inside, a << count, self.constant(0, a.kind))
        if a.kind in _UNSIGNED:
            return self.select(inside, a >> count, self.constant(0, a.kind))
        return a >> self.select(inside, b, self.constant(self.widths[a.kind] - 1, a.kind))

    # -- by name ---------------------------

    def apply(self, name: str, args: Sequence[Value]) -> Value:
        """Compute the scalar function that loop texts call `name`."""
        match name:
            case "where":
                return self.select(args[0], *self.common(*args[1:]))
            case "floordiv" | "truncdiv" | "mod" | "truncmod":
                return self.divide(name, *args)
            case "shl" | "shr":
                return self.shift(name, *args)
        if name in _INSTRUCTIONS:
            found: Value = getattr(self, name)(*args)
            return found
        function = FUNCTIONS.get(name)
        if function is not None and function.llvm:
            return self.rounded(function.llvm, args[0])
        if function is None or function.expansion_cpu is None:
            raise TypeError(f"no such function in kernels: {name}")
        if args[0].kind == "float32":
            if function.rare is not None and self.widths["int"] == 64:
                return self.branching(function, args)
            if function.expansion_fused is not None and self.fused:
                return self.evaluate(_form(function.expansion_fused, len(args)), args)
            return self.evaluate(_form(function.expansion_cpu, len(args)), args)
        if args[0].kind not in FLOATS:
            return getattr(self, f"{name}_of_integers")(*args)
        return self.intrinsic(function.libm, "float64", *args)

    def evaluate(self, root: Expr, inputs: Sequence[Value]) -> Value:
        """Compute an expression of formula inputs."""
        made: dict[Expr, Value] = {}
        for node in ex.walk(root):
            made[node] = self.node(node, [made[a] for a in node.args], inputs)
        return made[root]

    def node(self, node: Expr, args: list[Value], inputs: Sequence[Value]) -> Value:
        """Write the instruction of one node, of its operands' values."""
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

    def infix(self, sign: str, a: Value, b: Value) -> Value:
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

    def from_bfloat16(self, x: Value) -> Value:
        """Widen to float32."""
        wide = self.wrap(self.builder.zext(x.value, self.types["uint32"]), "uint32")
        return self.bits(wide << self.constant(16, "uint32"), "float32")

    def to_bfloat16(self, x: Value) -> Value:
        """Round to nearest, ties to even; NaN stays NaN."""
        u = "uint32"
        bits = self.bits(x, u)
        odd = (bits >> self.constant(16, u)) & self.constant(1, u)
        rounded = (bits + (self.constant(0x7FFF, u) + odd)) >> self.constant(16, u)
        chosen = self.select(self.isnan(x), self.constant(0x7FC0, u), rounded)
        return self.wrap(self.builder.trunc(chosen.value, self.types["bfloat16"]), "bfloat16")

    def from_float16(self, x: Value) -> Value:
        """Widen to float32."""
        if self.fused:
            half = self.builder.bitcast(x.value, self.ir.HalfType())
            return self.wrap(self.builder.fpext(half, self.types["float32"]), "float32")
        # The exponent is moved by a multiplication, which is right for small numbers too.
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

    def to_float16(self, x: Value) -> Value:
        """Round to nearest, ties to even; NaN stays NaN and large numbers become infinite."""
        if self.fused:
            narrow = self.builder.fptrunc(x.value, self.ir.HalfType())
            return self.wrap(self.builder.bitcast(narrow, self.types["float16"]), "float16")
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

    def order(self, x: Value, nan: int) -> Value:
        """Return an integer that orders like float `x`; `nan` is what stands for NaN."""
        kind = "int32" if x.kind == "float32" else "int64"
        bits = self.bits(x, kind)
        top = self.widths[kind] - 1
        mapped = bits ^ ((bits >> self.constant(top, kind)) & self.constant((1 << top) - 1, kind))
        return self.select(
            self.isnan(x), self.constant((1 << top) - 1 if nan > 0 else -(1 << top), kind), mapped
        )

    def unorder(self, x: Value, kind: str) -> Value:
        """Return the float that `order` mapped."""
        top = self.widths[x.kind] - 1
        bits = x ^ ((x >> self.constant(top, x.kind)) & self.constant((1 << top) - 1, x.kind))
        return self.bits(bits, kind)

    def order_position(self, acc: Value) -> Value:
        """Return the position that an argmax key holds."""
        low = self.constant(0xFFFFFFFF, "int64")
        return low - (acc & low)

    def order_pair(self, x: Value, position: Value, largest: bool) -> Value:
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


class LaneMachine(LlvmMachine):
    """Writes the same for vectors of some lanes."""

    def __init__(self, module: IrModule, fused: bool, lanes: int) -> None:
        super().__init__(module, fused)
        self.lanes = lanes
        if lanes > 1:
            self.types = {k: self.ir.VectorType(t, lanes) for k, t in self.types.items()}

    def intrinsic(self, name: str, kind: str, *args: Value) -> Value:
        """Call an LLVM intrinsic on vectors of one type."""
        if self.lanes == 1:
            return super().intrinsic(name, kind, *args)
        vector = self.types[kind]
        full = f"{name}.v{self.lanes}f{self.widths[kind]}"
        function = declared(self.ir, self.module, full, vector, [vector] * len(args))
        return self.wrap(self.builder.call(function, [a.value for a in args]), kind)


@cache
def _form(formula: Formula, arity: int) -> Expr:
    """Return a form of a float32 function, of formula inputs."""
    return formula(*(ex.input_(i, float32) for i in range(arity)))


def _known_symbol(name: str) -> None:
    """Tell LLVM where a function of the C mathematics library is."""
    import llvmlite.binding as llvm

    library = libm()
    if library is not None and llvm.address_of_symbol(name) is None:
        llvm.add_symbol(name, ctypes.cast(getattr(library, name), ctypes.c_void_p).value)


@cache
def libm() -> object:
    """Return the C mathematics library."""
    # On Windows Python's own: the older "msvcrt" lacks what C99 added (expm1, erf, fmodf, ...).
    name = "ucrtbase" if os.name == "nt" else ctypes.util.find_library("m")
    return ctypes.CDLL(name)
