"""LLVM instructions from the loop text of `lower/pysource.py`: one pass over its syntax tree.

Every function has the form `void f(int64 begin, int64 end, int64 *block)`; `block` holds the
buffers' addresses, then the arguments (integers, or float64), then the address of the status words.
"""

from __future__ import annotations

import ast

from webtorch.lower.pysource import literal
from webtorch.runtime.backends import philox
from webtorch.runtime.backends.cpu.llvmtypes import Instruction, Ir, IrModule, Kind, Metadata, Place
from webtorch.runtime.backends.cpu.machine import BITS, BYTES, FLOATS, LlvmMachine, Value


class LoopCompiler:
    """Writes one function."""

    def __init__(
        self, module: IrModule, tree: ast.FunctionDef, fused: bool, position_bits: int = 64
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
        self.variables: dict[str, tuple[Ir, str]] = {}
        self.buffers: dict[str, tuple[Ir, str, Metadata | None, Metadata | None]] = {}
        self.arrays: dict[str, tuple[Ir, str]] = {}
        self.tuples: dict[str, list[Value]] = {}
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
        slots: list[tuple[str, str, Ir]] = []
        for number, parameter in enumerate(tree.args.args[2:]):
            kind = parameter.annotation.id if isinstance(parameter.annotation, ast.Name) else ""
            cell = b.gep(cells, [ir.Constant(i64, number)], source_etype=i64)
            name = parameter.arg
            if name == "status" or name.startswith("b"):
                pointer: Ir = b.load(cell, typ=self.pointer)
                if name == "status":
                    self.status = pointer
                else:
                    slots.append((name, kind, pointer))
            elif kind in FLOATS:
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

    def let(self, name: str, value: Value) -> None:
        """Store a value in the variable of a name, made at its first use."""
        if name not in self.variables:
            self.variables[name] = (self.allocate(value.value.type), value.kind)
        place, kind = self.variables[name]
        if kind != value.kind:
            # A name may hold another type in another loop.
            place, kind = self.variables[name] = (self.allocate(value.value.type), value.kind)
        self.b.store(value.value, place)

    def allocate(self, kind: Kind, count: int | None = None) -> Place:
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
                assert isinstance(count.value, int)
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
            case ast.For(
                target=ast.Name(id=name),
                iter=ast.Call(func=ast.Name(id="unrolled"), args=[ast.Constant(value=int(turns))]),
                body=body,
            ):
                for turn in range(turns):
                    self.let(name, self.m.wrap(self.ir.Constant(self.index, turn), "int"))
                    self.block(body)
            case ast.For(target=ast.Name(id=name), iter=ast.Call(args=args), body=body):
                self.loop(name, [self.value(a) for a in args], body)
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

    def hidden(self, turns: Value) -> Value:
        """Return a number of turns, of which LLVM sees no bounds where it has none of this processor's kind:
        loops known to be short get masks, and WebAssembly has no vectors with masks.
        """
        if self.m.widths["int"] == 64:
            return turns
        kind = self.ir.FunctionType(self.index, [self.index])
        return self.m.wrap(self.b.asm(kind, "", "=r,0", [turns.value], False), turns.kind)

    def accumulated(self, op: ast.operator, old: Value, new: Value) -> Value:
        """Add or multiply where the order is free, so that LLVM may keep several partial results."""
        name = "add" if isinstance(op, ast.Add) else "mul"
        if old.kind in FLOATS:
            return self.m.wrap(
                getattr(self.b, "f" + name)(old.value, new.value, flags=("reassoc",)), old.kind
            )
        return self.m.arithmetic(name, old, new)

    def loop(self, name: str, bounds: list[Value], body: list[ast.stmt]) -> None:
        """Write a loop."""
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
        b.cbranch(b.icmp_signed("<", following, stop), inside, after)
        b.position_at_end(after)

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

    def report(self, site: Value, value: Value) -> None:
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

    def place(self, node: ast.Subscript) -> tuple[Ir, str, Metadata | None, Metadata | None]:
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

    def mark(self, access: Instruction, mine: Metadata | None, others: Metadata | None) -> None:
        """Say that an access meets no other buffer."""
        if mine is not None:
            access.set_metadata("alias.scope", mine)
        if others is not None:
            access.set_metadata("noalias", others)

    def load(self, node: ast.Subscript) -> Value:
        """Return an element; bools are bytes in memory."""
        pointer, kind, mine, others = self.place(node)
        element = self.ir.IntType(8) if kind == "bool" else self.m.types[kind]
        loaded = self.b.load(pointer, typ=element, align=BYTES[kind])
        self.mark(loaded, mine, others)
        if kind == "bool":
            return self.m.wrap(
                self.b.icmp_unsigned("!=", loaded, self.ir.Constant(element, 0)), "bool"
            )
        return self.m.wrap(loaded, kind)

    def store(self, node: ast.Subscript, value: Value) -> None:
        """Store an element, converted to its array's type."""
        pointer, kind, mine, others = self.place(node)
        value = self.m.cast(value, kind)
        stored = value.value if kind != "bool" else self.b.zext(value.value, self.ir.IntType(8))
        self.mark(self.b.store(stored, pointer, align=BYTES[kind]), mine, others)

    # -- expressions ---------------------------

    def variable(self, name: str) -> Value:
        """Return the value of a variable."""
        place, kind = self.variables[name]
        return self.m.wrap(self.b.load(place, typ=self.m.types[kind]), kind)

    def value(self, node: ast.expr) -> Value:
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

    def choice(self, test: ast.expr, body: ast.expr, other: ast.expr) -> Value:
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

    def call(self, name: str, args: list[ast.expr]) -> Value:
        """Return the result of a function that the renderers use."""
        m = self.m
        if name in BITS or name == "int":
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

    def typed(self, kind: str, node: ast.expr) -> Value:
        """A constant or a conversion: `float32(0.5)`, `float32(-inf)`, `int64(t3)`."""
        number = literal(node)
        if number is not None:
            return self.m.constant(number, kind)
        return self.m.cast(self.value(node), kind)


_SIGNS: dict[type[ast.cmpop | ast.operator], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.BitAnd: "&", ast.BitOr: "|",
    ast.BitXor: "^",
}  # fmt: skip
