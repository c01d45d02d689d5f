"""Functions that loop until every lane is done, or that branch where some lane asks for more: remainders of floats,
greatest common divisors, sines of far angles.

LLVM turns a loop over elements into vector code only where each element is straight code. A function
here is written for one number and for vectors of them, and carries the attribute by which LLVM's vectoriser takes the
vector form for the other.
"""

from __future__ import annotations

from collections.abc import Callable

from webtorch.runtime.backends.cpu.llvmtypes import (
    Builder,
    Ir,
    IrFunction,
    IrModule,
    Kind,
    Llvm,
    declared,
)

# Writes a function for a type of number and a count of lanes.
Writer = Callable[[Llvm, Builder, Kind, int], None]
# Lanes of the vector forms that are offered, by the bytes of a number.
_LANES = {1: (16, 32, 64), 2: (8, 16, 32), 4: (4, 8, 16), 8: (2, 4, 8)}


def define(
    module: IrModule,
    ir: Llvm,
    name: str,
    number: Kind,
    nbytes: int,
    vectors: bool,
    write: Writer | None = None,
    arity: int = 2,
) -> IrFunction:
    """Return the function `name` of numbers of a type, which is put into the module: one of FORMS, or what `write`
    writes.

    Without `vectors` there is only the form for one number: WebAssembly's vectors have no masks.
    """
    write = write or FORMS[name]
    scalar = f"wt_{name}_{number.intrinsic_name}"
    found = module.globals.get(scalar)
    if found is not None:
        return found
    forms = {1: number}
    if vectors:
        forms |= {n: ir.VectorType(number, n) for n in _LANES[nbytes]}
    functions = []
    for lanes, kind in forms.items():
        symbol = scalar if lanes == 1 else f"{scalar}_{lanes}"
        function = ir.Function(module, ir.FunctionType(kind, [kind] * arity), symbol)
        function.attributes.add("nounwind")
        # Other linkages let LLVM specialise the function for a constant argument, before the vectors.
        function.linkage = "linkonce_odr" if vectors else "internal"
        write(ir, ir.IRBuilder(function.append_basic_block("entry")), number, lanes)
        functions.append(function)
    if vectors:
        # llvmlite knows no attributes with values, and none of these.
        known = functions[0].attributes
        names = ",".join(
            f"_ZGV_LLVM_N{lanes}{'v' * arity}_{scalar}({scalar}_{lanes})"
            for lanes in list(forms)[1:]
        )
        for attribute in (
            "noinline",
            "willreturn",
            "memory(none)",
            f'"vector-function-abi-variant"="{names}"',
        ):
            set.add(known, attribute)
    return functions[0]


def keep(module: IrModule, ir: Llvm) -> None:
    """Keep the vector forms until the vectoriser has run, though nothing calls them yet."""
    forms = [f for f in module.functions if f.linkage == "linkonce_odr"]
    if forms:
        pointers = ir.ArrayType(ir.PointerType(), len(forms))
        used = ir.GlobalVariable(module, pointers, "llvm.compiler.used")
        used.linkage = "appending"
        used.section = "llvm.metadata"
        used.initializer = ir.Constant(pointers, forms)


def some_lane(ir: Llvm, b: Builder, test: Ir, lanes: int) -> Ir:
    """Return whether a test holds in some lane."""
    if lanes == 1:
        return test
    bits = ir.IntType(lanes)
    return b.icmp_unsigned("!=", b.bitcast(test, bits), ir.Constant(bits, 0))


def _splat(ir: Llvm, number: Kind, lanes: int, value: float) -> Ir:
    one = ir.Constant(number, value)
    return one if lanes == 1 else ir.Constant(ir.VectorType(number, lanes), [one] * lanes)


def _called(ir: Llvm, b: Builder, name: str, kind: Kind, *args: Ir) -> Ir:
    """Call an intrinsic of LLVM's on values of one type; `args` may end with flags."""
    # Vectors alone have a count.
    count = getattr(kind, "count", 0)
    suffix = f"v{count}{kind.element.intrinsic_name}" if count else kind.intrinsic_name
    types = [a.type for a in args]
    return b.call(declared(ir, b.function.module, f"llvm.{name}.{suffix}", kind, types), args)


def _remainder(ir: Llvm, b: Builder, number: Kind, lanes: int) -> None:
    """C's fmodf, exactly: in float64, whose products of 24 bits by 24 are exact.

    A quotient below 2^28 is never rounded to the next whole number, for x is a multiple of y's last
    bit. Of larger ones 24 bits are taken off at a time, which leaves a rest of at most 26 bits.
    """
    x, y = b.function.args
    double = ir.DoubleType()
    wide = double if lanes == 1 else ir.VectorType(double, lanes)
    i64 = ir.IntType(64)
    words = i64 if lanes == 1 else ir.VectorType(i64, lanes)
    zero, large = (_splat(ir, double, lanes, v) for v in (0.0, 2.0**28))
    infinity = _splat(ir, double, lanes, float("inf"))
    high_bits = _splat(ir, i64, lanes, -(1 << 29))
    a = _called(ir, b, "fabs", wide, b.fpext(x, wide))
    d = _called(ir, b, "fabs", wide, b.fpext(y, wide))
    before = b.block
    head, reduce, done = (b.function.append_basic_block(n) for n in ("head", "reduce", "done"))
    b.branch(head)
    b.position_at_end(head)
    rest = b.phi(wide)
    rest.add_incoming(a, before)
    quotient = b.fdiv(rest, d)
    size = _called(ir, b, "fabs", wide, quotient)
    more = b.and_(b.fcmp_ordered(">=", size, large), b.fcmp_ordered("<", size, infinity))
    b.cbranch(some_lane(ir, b, more, lanes), reduce, done)
    b.position_at_end(reduce)
    short = b.bitcast(b.and_(b.bitcast(quotient, words), high_bits), wide)
    less = b.fsub(rest, b.fmul(short, d))
    rest.add_incoming(b.select(more, less, rest), b.block)
    b.branch(head)
    b.position_at_end(done)
    last = b.fsub(rest, b.fmul(_called(ir, b, "trunc", wide, quotient), d))
    last = b.select(b.fcmp_ordered("<", last, zero), b.fadd(last, d), last)
    last = b.select(b.fcmp_ordered("<", a, d), a, last)
    kind = x.type
    b.ret(_called(ir, b, "copysign", kind, b.fptrunc(last, kind), x))


def _gcd(ir: Llvm, b: Builder, number: Kind, lanes: int) -> None:
    """The greatest common divisor of unsigned numbers, by halving and subtracting (Stein, 1967)."""
    x, y = b.function.args
    kind = x.type
    zero, mask = (_splat(ir, number, lanes, v) for v in (0, number.width - 1))
    no = ir.Constant(ir.IntType(1), 0)

    def twos(v: Ir) -> Ir:
        """How often 2 divides v; 0 for 0."""
        of = number.intrinsic_name if lanes == 1 else f"v{lanes}{number.intrinsic_name}"
        function = declared(ir, b.function.module, f"llvm.cttz.{of}", kind, [kind, no.type])
        return b.and_(b.call(function, [v, no]), mask)

    shift = twos(b.or_(x, y))
    start = b.select(b.icmp_unsigned("==", x, zero), y, x)
    start = b.lshr(start, twos(start))
    before = b.block
    head, step, done = (b.function.append_basic_block(n) for n in ("head", "step", "done"))
    b.branch(head)
    b.position_at_end(head)
    odd, other = b.phi(kind), b.phi(kind)
    odd.add_incoming(start, before)
    other.add_incoming(y, before)
    b.cbranch(some_lane(ir, b, b.icmp_unsigned("!=", other, zero), lanes), step, done)
    b.position_at_end(step)
    other_odd = b.lshr(other, twos(other))
    smaller = b.icmp_unsigned("<", odd, other_odd)
    # A lane that is done keeps what it has.
    going = b.icmp_unsigned("!=", other, zero)
    least = b.select(smaller, odd, other_odd)
    difference = b.select(smaller, b.sub(other_odd, odd), b.sub(odd, other_odd))
    odd.add_incoming(b.select(going, least, odd), b.block)
    other.add_incoming(b.select(going, difference, zero), b.block)
    b.branch(head)
    b.position_at_end(done)
    b.ret(b.shl(odd, shift))


# What is written for a type of number and a count of lanes.
FORMS: dict[str, Writer] = {
    "remainder": _remainder,
    "gcd": _gcd,
}
