"""LLVM instructions from functions in Python's syntax that work on addresses: on the interpreter's objects, through its
C API, and on rows of words. Imports the standard library.

Parameters, variables and results are addresses but where an annotation says `int` (64 bits) or `bool`, or a first value
is one. A class as annotation says what lies at an address: `node.kind` is the word at the place of this slot, or of
this field of a struct, and may be set; `int(plan.size)` reads it as a number. `row[i]` is a word of a row, `row + n`
the address n bytes on, `room(n)` n words on the stack, `address(x.y)` a place itself. References are counted by hand,
as in C. Functions whose names begin with `wt_` are seen from outside.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# What code may call of the interpreter's: its result, then its parameters.
_LETTERS = {"p": "ptr", "n": "i64", "i": "i32", "d": "double", "v": "void"}
INTERPRETER = {
    "PyBytes_AsString": "pp", "PyCFunction_GetSelf": "pp", "PyDict_GetItemWithError": "ppp",
    "PyDict_SetItem": "ippp", "PyErr_BadArgument": "v", "PyErr_Clear": "v", "PyErr_ExceptionMatches": "ip",
    "PyErr_Occurred": "p", "PyEval_GetFrame": "p", "PyEval_RestoreThread": "vp", "PyEval_SaveThread": "p",
    "PyFloat_AsDouble": "dp", "PyFrame_GetBack": "pp", "PyFrame_GetCode": "pp", "PyFrame_GetLasti": "ip",
    "PyIter_Next": "pp", "PyList_Append": "ipp", "PyList_AsTuple": "pp", "PyList_GetItem": "ppn",
    "PyList_New": "pn", "PyList_SetSlice": "ipnnp", "PyList_Size": "np", "PyLong_AsSsize_t": "np",
    "PyLong_AsUnsignedLongLongMask": "np", "PyLong_AsVoidPtr": "pp", "PyLong_FromLong": "pn",
    "PyLong_FromSsize_t": "pn", "PyLong_FromVoidPtr": "pp", "PyNumber_Add": "ppp", "PyObject_Call": "pppp",
    "PyObject_CallNoArgs": "pp", "PyObject_CallOneArg": "ppp", "PyObject_GetAttr": "ppp",
    "PyObject_RichCompareBool": "ippi", "PyObject_SetAttr": "ippp", "PyObject_Size": "np", "PyObject_Str": "pp",
    "PyObject_Vectorcall": "pppnp", "PyObject_VectorcallMethod": "pppnp", "PyTuple_GetItem": "ppn",
    "PyTuple_New": "pn", "PyTuple_SetItem": "ipnp", "PyTuple_Size": "np", "PyType_GenericAlloc": "ppn",
    "PyType_IsSubtype": "ipp", "PyWeakref_NewRef": "ppp", "Py_DecRef": "vp", "Py_IncRef": "vp",
}  # fmt: skip
_COMPARED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Is: ("eq", "oeq"), ast.IsNot: ("ne", "une"), ast.Eq: ("eq", "oeq"), ast.NotEq: ("ne", "une"),
    ast.Lt: ("slt", "olt"), ast.LtE: ("sle", "ole"), ast.Gt: ("sgt", "ogt"), ast.GtE: ("sge", "oge"),
}  # fmt: skip
_SIGNS: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.BitAnd: "and", ast.LShift: "shl", ast.RShift: "lshr",
}  # fmt: skip


class _Value(NamedTuple):
    """A value: LLVM's type and text of it. A number that is written out has the type "int", and fits any."""

    kind: str
    text: str


class _Signature(NamedTuple):
    """What a function gives and takes, in LLVM's types."""

    result: str
    parameters: Sequence[str]


def written(
    tree: ast.Module, fields: Mapping[str, Mapping[str, int]], numbers: Mapping[str, int]
) -> str:
    """Return the functions of a text as LLVM's.

    `fields` say where the slots of classes and the fields of structs lie, `numbers` what other names mean. Raises
    LookupError for a slot that is nowhere.
    """
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    known = {
        name: _Signature(_LETTERS[letters[0]], [_LETTERS[letter] for letter in letters[1:]])
        for name, letters in INTERPRETER.items()
    }
    declared = [
        f"declare {s.result} @{name}({', '.join(s.parameters)})" for name, s in known.items()
    ]
    for f in functions:
        result = "void" if f.returns is None else _kind(f.returns)
        known[f.name] = _Signature(result, [_kind(p.annotation) for p in f.args.args])
    return "\n".join([*declared, *(_Writer(f, known, fields, numbers).text() for f in functions)])


def _kind(annotation: ast.expr | None) -> str:
    name = annotation.id if isinstance(annotation, ast.Name) else ""
    return {"int": "i64", "bool": "i1"}.get(name, "ptr")


class _Writer:
    """Writes one function. Variables live in memory: LLVM's first pass puts them in registers."""

    def __init__(
        self,
        tree: ast.FunctionDef,
        known: Mapping[str, _Signature],
        fields: Mapping[str, Mapping[str, int]],
        numbers: Mapping[str, int],
    ) -> None:
        self.tree, self.known, self.fields, self.numbers = tree, known, fields, numbers
        self.count = 0
        self.rooms: list[str] = []
        self.lines: list[str] = []
        self.variables: dict[str, str] = {}
        self.classes: dict[str, str] = {}
        # Where `continue` and `break` go, of the loops around.
        self.loops: list[tuple[str, str]] = []
        # Whether what is written next is reached.
        self.open = True

    def text(self) -> str:
        """Return the function's text."""
        tree, signature = self.tree, self.known[self.tree.name]
        for parameter, kind in zip(tree.args.args, signature.parameters, strict=True):
            self.let(parameter.arg, _Value(kind, f"%{parameter.arg}"), parameter.annotation)
        self.block(tree.body)
        if self.open:
            # What ends without a result gives none: a text that should would not be LLVM's.
            self.lines.append("ret void" if signature.result == "void" else "unreachable")
        parameters = ", ".join(
            f"{kind} %{p.arg}" for kind, p in zip(signature.parameters, tree.args.args, strict=True)
        )
        linkage = "" if tree.name.startswith("wt_") else "internal "
        head = f"define {linkage}{signature.result} @{tree.name}({parameters}) {{"
        return "\n".join([head, *self.rooms, *self.lines, "}"])

    # -- statements ---------------------------

    def block(self, body: Sequence[ast.stmt]) -> None:
        """Write statements."""
        for statement in body:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        """Write one statement."""
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.let(name, self.value(value))
            case ast.AnnAssign(target=ast.Name(id=name), annotation=of, value=ast.expr() as value):
                self.let(name, self.value(value), of)
            case ast.AugAssign(target=ast.Name(id=name) as target, op=op, value=value):
                read = ast.Name(id=target.id, ctx=ast.Load())
                self.let(name, self.infix(op, self.value(read), self.value(value)))
            case ast.Assign(targets=[(ast.Attribute() | ast.Subscript()) as target], value=value):
                stored = self.full(self.value(value))
                self.put(f"store {stored.kind} {stored.text}, ptr {self.place(target)}")
            case ast.If(test=test, body=body, orelse=other):
                self.choice(test, body, other)
            case ast.While(test=test, body=body):
                self.loop(test, body, [])
            case ast.For(target=ast.Name(id=name), iter=ast.Call(args=[end]), body=body):
                self.let(name, _Value("i64", "0"))
                test = ast.Compare(ast.Name(id=name), [ast.Lt()], [end])
                self.loop(
                    test, body, [ast.AugAssign(ast.Name(id=name), ast.Add(), ast.Constant(1))]
                )
            case ast.Return(value=None):
                self.end("ret void")
            case ast.Return(value=ast.expr() as value):
                result = self.known[self.tree.name].result
                self.end(f"ret {result} {self.cast(self.value(value), result)}")
            case ast.Break():
                self.end(f"br label %{self.loops[-1][1]}")
            case ast.Continue():
                self.end(f"br label %{self.loops[-1][0]}")
            case ast.Expr(value=ast.Call() as call):
                self.call(call)
            case ast.Expr(value=ast.Constant()):
                pass
            case _:
                raise TypeError(f"no such statement here: {ast.unparse(node)}")

    def let(self, name: str, value: _Value, of: ast.expr | None = None) -> None:
        """Store a value in a variable, which is made at its first use; `of` is the class of what it points to."""
        value = self.full(value)
        kind = self.variables.setdefault(name, value.kind)
        if isinstance(of, ast.Name) and of.id in self.fields:
            self.classes[name] = of.id
        room = f"%{name}.room = alloca {kind}"
        if room not in self.rooms:
            self.rooms.append(room)
        self.put(f"store {kind} {self.cast(value, kind)}, ptr %{name}.room")

    def choice(self, test: ast.expr, body: list[ast.stmt], other: list[ast.stmt]) -> None:
        """Write one of two blocks of statements."""
        yes, no, after = self.label(), self.label(), self.label()
        self.branch(test, yes, no if other else after)
        self.begin(yes)
        self.block(body)
        self.end(f"br label %{after}")
        if other:
            self.begin(no)
            self.block(other)
            self.end(f"br label %{after}")
        self.begin(after)

    def loop(self, test: ast.expr, body: list[ast.stmt], step: list[ast.stmt]) -> None:
        """Write a loop, and what is done before each turn but the first."""
        head, inside, following, after = (self.label() for _ in range(4))
        self.end(f"br label %{head}")
        self.begin(head)
        self.branch(test, inside, after)
        self.begin(inside)
        self.loops.append((following, after))
        self.block(body)
        self.loops.pop()
        self.end(f"br label %{following}")
        self.begin(following)
        self.block(step)
        self.end(f"br label %{head}")
        self.begin(after)

    # -- instructions ---------------------------

    def label(self) -> str:
        """Return a new name."""
        self.count += 1
        return f"l{self.count}"

    def put(self, line: str) -> None:
        """Write an instruction, where it may be reached."""
        if not self.open:
            self.begin(self.label())
        self.lines.append(line)

    def end(self, line: str) -> None:
        """Write the last instruction of a block."""
        if self.open:
            self.lines.append(line)
        self.open = False

    def begin(self, label: str) -> None:
        """Begin a block."""
        self.lines.append(f"{label}:")
        self.open = True

    def new(self, kind: str, text: str) -> _Value:
        """Write an instruction that gives a value."""
        name = f"%{self.label()}"
        self.put(f"{name} = {text}")
        return _Value(kind, name)

    def branch(self, test: ast.expr, yes: str, no: str) -> None:
        """Go where a condition says; of several only those are asked that decide."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self.branch(operand, no, yes)
            case ast.BoolOp(op=op, values=values):
                for value in values[:-1]:
                    following = self.label()
                    ways = (following, no) if isinstance(op, ast.And) else (yes, following)
                    self.branch(value, *ways)
                    self.begin(following)
                self.branch(values[-1], yes, no)
            case _:
                self.end(f"br i1 {self.cast(self.value(test), 'i1')}, label %{yes}, label %{no}")

    # -- values ---------------------------

    def full(self, value: _Value) -> _Value:
        """Return a value that has a type of LLVM's."""
        return _Value("i64", value.text) if value.kind == "int" else value

    def cast(self, value: _Value, kind: str) -> str:
        """Return the text of a value as another type; as a bool, whether it is not 0."""
        if value.kind == kind or (value.kind == "int" and kind != "i1"):
            return value.text
        if kind == "i1":
            none = "null" if value.kind == "ptr" else "0"
            return self.new(kind, f"icmp ne {self.full(value).kind} {value.text}, {none}").text
        how = {
            ("i1", "i64"): "zext", ("i1", "i32"): "zext", ("i32", "i64"): "sext", ("i64", "i32"): "trunc",
            ("ptr", "i64"): "ptrtoint", ("i64", "ptr"): "inttoptr",
        }[value.kind, kind]  # fmt: skip
        return self.new(kind, f"{how} {value.kind} {value.text} to {kind}").text

    def place(self, node: ast.expr) -> str:
        """Return the address of a slot, a field, or a word of a row."""
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in self.classes:
                at = self.fields[self.classes[name]][attribute]
                return self.new(
                    "ptr", f"getelementptr i8, ptr {self.variable(name).text}, i64 {at}"
                ).text
            case ast.Subscript(value=row, slice=index):
                start, number = self.value(row).text, self.cast(self.value(index), "i64")
                return self.new("ptr", f"getelementptr i64, ptr {start}, i64 {number}").text
        raise TypeError(f"no such place here: {ast.unparse(node)}")

    def load(self, node: ast.expr, kind: str) -> _Value:
        """Return the word at a place."""
        return self.new(kind, f"load {kind}, ptr {self.place(node)}")

    def variable(self, name: str) -> _Value:
        """Return the value of a variable."""
        kind = self.variables[name]
        return self.new(kind, f"load {kind}, ptr %{name}.room")

    def value(self, node: ast.expr) -> _Value:
        """Return the value of an expression."""
        match node:
            case ast.Constant(value=bool(yes)):
                return _Value("i1", str(yes).lower())
            case ast.Constant(value=int(number)):
                return _Value("int", str(number))
            case ast.Constant(value=float(number)):
                return _Value("double", str(number))
            case ast.Name(id="null"):
                return _Value("ptr", "null")
            case ast.Name(id=name):
                if name in self.variables:
                    return self.variable(name)
                if name not in self.numbers:
                    raise NameError(f"{self.tree.name}: {name} is neither a variable nor a number")
                return _Value("int", str(self.numbers[name]))
            case ast.Attribute() | ast.Subscript():
                return self.load(node, "ptr")
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(number))):
                return _Value("int", str(-number))
            case ast.BinOp(left=left, op=op, right=right):
                return self.infix(op, self.value(left), self.value(right))
            case ast.Compare(left=left, ops=[sign], comparators=[right]):
                return self.compared(sign, self.value(left), self.value(right))
            case ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                return self.chosen(node, ast.Constant(True), ast.Constant(False))
            case ast.IfExp(test=test, body=body, orelse=other):
                return self.chosen(test, body, other)
            case ast.Call():
                return self.call(node)
        raise TypeError(f"no such expression here: {ast.unparse(node)}")

    def infix(self, op: ast.operator, a: _Value, b: _Value) -> _Value:
        """Return what two numbers make, or an address and a number of bytes."""
        if a.kind == "ptr":
            return self.new("ptr", f"getelementptr i8, ptr {a.text}, i64 {self.cast(b, 'i64')}")
        left, right = self.cast(a, "i64"), self.cast(b, "i64")
        return self.new("i64", f"{_SIGNS[type(op)]} i64 {left}, {right}")

    def compared(self, sign: ast.cmpop, a: _Value, b: _Value) -> _Value:
        """Return whether two values compare so; numbers have signs."""
        kind = self.full(b if a.kind == "int" else a).kind
        whole, real = _COMPARED[type(sign)]
        how = f"fcmp {real}" if kind == "double" else f"icmp {whole}"
        return self.new("i1", f"{how} {kind} {self.cast(a, kind)}, {self.cast(b, kind)}")

    def chosen(self, test: ast.expr, body: ast.expr, other: ast.expr) -> _Value:
        """Return one of two values, of which only this is worked out."""
        name = self.label()
        target: list[ast.expr] = [ast.Name(id=name)]
        self.choice(test, [ast.Assign(target, body)], [ast.Assign(target, other)])
        return self.variable(name)

    def call(self, node: ast.Call) -> _Value:
        """Write a call, and return its result."""
        assert isinstance(node.func, ast.Name)
        match node.func.id, node.args:
            case "int", [(ast.Attribute() | ast.Subscript()) as word]:
                return self.load(word, "i64")
            case "int", [number]:
                return _Value("i64", self.cast(self.value(number), "i64"))
            case "room", [words]:
                name = f"%{self.label()}"
                self.rooms.append(f"{name} = alloca [{self.value(words).text} x i64], align 16")
                return _Value("ptr", name)
            case name, args if name in self.variables:
                # The address of a function that gives nothing.
                values = [self.full(self.value(arg)) for arg in args]
                given = ", ".join(f"{v.kind} {v.text}" for v in values)
                self.put(f"call void {self.variable(name).text}({given})")
                return _Value("void", "")
            case "address", [place]:
                return _Value("ptr", self.place(place))
            case name, args:
                if name not in self.known:
                    raise NameError(f"{self.tree.name}: {name} is no function")
                result, kinds = self.known[name]
                given = ", ".join(
                    f"{kind} {self.cast(self.value(arg), kind)}"
                    for kind, arg in zip(kinds, args, strict=True)
                )
                text = f"call {result} @{name}({given})"
                if result == "void":
                    self.put(text)
                    return _Value("void", "")
                return self.new(result, text)
