"""Loop texts -> WebAssembly: scans, sorts and attention, as `lower` writes them for processors. Imports floors 0-2.

The language is that of `lower/pysource.py`; `runtime/backends/cpu/loopcode.py` writes LLVM's instructions from it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from webtorch.ir.dtype import ALL, DType, int32, uint32
from webtorch.ir.expr import FUNCTIONS
from webtorch.ir.kernel import Attention, Routine, Scan, Sort
from webtorch.lower.pysource import literal
from webtorch.lower.scansource import scan_source
from webtorch.lower.templates import loops
from webtorch.lower.templates.attention_backward import split
from webtorch.runtime.backends.plain.assembly import END, IF, Function, Value
from webtorch.runtime.backends.plain.scalars import Scalars, UnwritableError

_KINDS = {d.name: d for d in ALL} | {"int": int32}
_FUNCTIONS = {f.loops: f.name for f in FUNCTIONS.values()}
_SIGNS: dict[type[ast.operator] | type[ast.cmpop], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor",
    ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne",
}  # fmt: skip
# Bytes to which arrays are aligned.
_ALIGN = 16


class Text(Scalars):
    """The function of a loop text: it takes what `Loops` takes, and does all of `units`.

    `room` are buffers that the text has beyond the routine's, in elements; they and its arrays lie in scratch memory.
    `numbers` are the values of its parameters that are no buffers.
    """

    def __init__(
        self,
        text: str,
        routine: Routine,
        units: int,
        room: Sequence[int] = (),
        numbers: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__([int32] * len(routine.buffers) + list(routine.args) + [int32, int32])
        (tree,) = ast.parse(text).body
        assert isinstance(tree, ast.FunctionDef)
        self.scratch, self.nbytes = self.given[-1], 0
        self.names: dict[str, Value] = {}
        self.arrays: dict[str, tuple[Value, DType]] = {}
        self.lanes: dict[str, list[Value]] = {}
        given = iter(self.given)
        beyond = iter(room)
        for parameter in tree.args.args[2:]:
            kind = parameter.annotation
            assert isinstance(kind, ast.Name)
            dtype, name = _KINDS[kind.id], parameter.arg
            if name.startswith("b"):
                number = int(name[1:])
                if number < len(routine.buffers):
                    self.arrays[name] = next(given), dtype
                else:
                    self.reserve(name, dtype, next(beyond))
            elif kind.id == "int":
                assert numbers is not None
                self.let(name, self.constant(numbers[name], int32))
            else:
                self.let(name, next(given))
        self.let("begin", self.constant(0, int32))
        self.let("end", self.constant(units, int32))
        self.block(tree.body)

    def reserve(self, name: str, dtype: DType, count: int) -> None:
        """Give an array its place in scratch memory."""
        place = self.variable(self.scratch + self.constant(self.nbytes, int32))
        self.arrays[name] = place, dtype
        self.nbytes += -(-count * dtype.itemsize // _ALIGN) * _ALIGN

    # -- statements

    def let(self, name: str, value: Value) -> None:
        """Set the variable of a name, made at its first use. A name may hold another type in another loop."""
        found = self.names.get(name)
        if found is not None and found.dtype is value.dtype:
            self.put(found, value)
        else:
            self.names[name] = self.variable(value)

    def block(self, body: Sequence[ast.stmt]) -> None:
        """Write statements."""
        for statement in body:
            self.statement(statement)

    def apart(self, body: Sequence[ast.stmt]) -> bytes:
        """Return the instructions of statements."""
        outside, self.out = self.out, bytearray()
        self.block(body)
        inside, self.out = bytes(self.out), outside
        return inside

    def statement(self, node: ast.stmt) -> None:
        """Write one statement."""
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(
                    func=ast.Name(id="local"),
                    args=[ast.Name(id=kind), ast.Constant(value=int(count))],
                ),
            ):
                self.reserve(name, _KINDS[kind], count)
            case ast.Assign(
                targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id="philox"), args=args)
            ):
                self.lanes[name] = self.philox(*[self.value(a) for a in args])
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.let(name, self.value(value))
            case ast.Assign(targets=[ast.Subscript() as target], value=value):
                address, dtype = self.place(target)
                self.put_element(dtype, address, self.value(value))
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                self.let(name, self.binary(_SIGNS[type(op)], self.names[name], self.value(value)))
            case ast.For(target=ast.Name(id=name), iter=ast.Call(args=args), body=body):
                self.turns(name, [self.variable(self.value(a)) for a in args[:2]], args[2:], body)
            case ast.While(test=test, body=body):
                outside, self.out = self.out, bytearray()
                self.emit(self.f_not(self.value(test)), b"\x0d\x01")
                self.block(body)
                inside, self.out = bytes(self.out), outside
                self.emit(b"\x02\x40\x03\x40", inside, b"\x0c\x00", END, END)
            case ast.If(test=test, body=body):
                self.emit(self.value(test), IF)
                self.block(body)
                self.emit(END)
            case _:
                raise UnwritableError(ast.unparse(node))

    def turns(
        self, name: str, bounds: list[Value], step: Sequence[ast.expr], body: list[ast.stmt]
    ) -> None:
        """Write a loop."""
        start, stop = bounds if len(bounds) > 1 else (self.constant(0, int32), bounds[0])
        by = 1
        for one in step:
            assert isinstance(one, ast.Constant) and isinstance(one.value, int)
            by = one.value
        counter = self.variable(start)
        self.emit(self.test("lt", counter, stop), IF)
        outside, self.out = self.out, bytearray()
        self.let(name, counter)
        self.block(body)
        inside, self.out = bytes(self.out), outside
        self.loop(counter, stop, by, inside)
        self.emit(END)

    # -- expressions

    def place(self, node: ast.Subscript) -> tuple[Value, DType]:
        """Return the address and the type of an element."""
        assert isinstance(node.value, ast.Name)
        start, dtype = self.arrays[node.value.id]
        position = self.value(node.slice)
        return start + position * self.constant(dtype.itemsize, int32), dtype

    def common(self, a: Value, b: Value) -> tuple[Value, Value]:
        """Return two numbers in one type: positions take that of other integers."""
        if a.dtype is b.dtype:
            return a, b
        if a.dtype is int32 and b.dtype.is_integral:
            return self.cast(a, b.dtype), b
        if b.dtype is int32 and a.dtype.is_integral:
            return a, self.cast(b, a.dtype)
        raise UnwritableError(f"{a.dtype.name} with {b.dtype.name}")

    def binary(self, name: str, a: Value, b: Value) -> Value:
        """Compute an operator."""
        a, b = self.common(a, b)
        if name in self.comparisons:
            return self.test(name, a, b)
        return self.infix(name, a, b)

    comparisons = frozenset(name for sign, name in _SIGNS.items() if issubclass(sign, ast.cmpop))

    def value(self, node: ast.expr) -> Value:
        """Return the value of an expression."""
        match node:
            case ast.Name(id=name):
                return self.names[name]
            case ast.Constant(value=int(number)):
                return self.constant(number, int32)
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=int(lane))) if (
                name in self.lanes
            ):
                return self.lanes[name][lane]
            case ast.Subscript():
                address, dtype = self.place(node)
                return self.element(dtype, address)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                x = self.value(operand)
                return self.apply("neg", x.dtype, [x])
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return self.arithmetic("div", *self.common(self.value(left), self.value(right)))
            case ast.BinOp(left=left, op=op, right=right):
                return self.binary(_SIGNS[type(op)], self.value(left), self.value(right))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self.binary(_SIGNS[type(op)], self.value(left), self.value(right))
            case ast.Call(func=ast.Name(id=name), args=args):
                return self.computed(name, args)
        raise UnwritableError(ast.unparse(node))

    def computed(self, name: str, args: Sequence[ast.expr]) -> Value:
        """Return the result of a function that texts use."""
        if name in _KINDS:
            number = literal(args[0])
            if number is not None:
                return self.constant(number, _KINDS[name])
            return self.cast(self.value(args[0]), _KINDS[name])
        if name == "bitcast":
            kind = args[1]
            assert isinstance(kind, ast.Name)
            return self.bitcast(self.value(args[0]), _KINDS[kind.id])
        values = [self.value(a) for a in args]
        match name:
            case "div" | "rem":
                a, b = (self.typed(v, uint32) for v in values)
                return self.typed(self.op(uint32, f"i.{name}_u", a, b), int32)
            case "min" | "max":
                return self.apply(name, int32, values)
            case "where":
                return self.select(values[0], *self.common(values[1], values[2]))
        found = FUNCTIONS[_FUNCTIONS[name]]
        if found.arity == 2:
            values = list(self.common(*values))
        return self.apply(found.name, self.result(found.gives_bool, values[0]), values)

    def result(self, gives_bool: bool, x: Value) -> DType:
        """Return the type that a function gives of a value."""
        return _KINDS["bool"] if gives_bool else x.dtype


def texts(routine: Routine) -> list[tuple[Function, tuple[int, ...], int]]:
    """Return the functions of a routine that is no kernel, the numbers of their buffers, and the bytes of scratch
    memory that each needs. Raises UnwritableError.
    """
    match routine:
        case Scan():
            sizes = {"length": routine.length, "inner": routine.inner}
            text = Text(scan_source(routine), routine, routine.outer * routine.inner, (), sizes)
        case Sort():
            counts = {"length": routine.length, "first": routine.first, "count": routine.count}
            room = [routine.rows * routine.length] * 4
            text = Text(loops.sort(routine), routine, routine.rows, room, counts)
        case Attention(part="backward"):
            return [
                (function, tuple(numbers[n] for n in own), nbytes)
                for one, numbers in split(routine)
                for function, own, nbytes in texts(one)
            ]
        case Attention() if all(b.dtype.itemsize < 8 for b in routine.buffers):
            of_keys = routine.part == "key"
            lines = routine.shared * routine.source if of_keys else routine.heads * routine.length
            text = Text(loops.attention(routine), routine, routine.batch * lines)
        case _:
            raise UnwritableError(type(routine).__name__.lower())
    return [(text, tuple(range(len(routine.buffers))), text.nbytes)]
