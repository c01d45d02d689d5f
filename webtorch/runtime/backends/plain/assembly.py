"""WebAssembly, written instruction by instruction: functions of values in locals, joined into a module. Standard
library only.

A `Value` is a local or a constant with the element type that it has in kernels: bools, and integers up to 32 bits,
are i32 within the bounds of their type; 16-bit floats are f32. The format is that of
https://webassembly.github.io/spec/core/binary.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from webtorch.ir.dtype import DType, bool_, by_name, float32, float64, int32
from webtorch.ir.expr import FUNCTIONS

# How element types are held, and the encoding of these.
_TYPES = {"i": 0x7F, "l": 0x7E, "f": 0x7D, "d": 0x7C, "v": 0x7B}
GET, SET = b"\x20", b"\x21"
IF, ELSE, END = b"\x04\x40", b"\x05", b"\x0b"
_LOOP = b"\x03\x40"
# Instructions by what they work on. Where integers have two forms, "_s" and "_u" tell them apart.
_INTEGERS = [
    "clz", "ctz", "popcnt", "add", "sub", "mul", "div_s", "div_u", "rem_s", "rem_u", "and", "or", "xor", "shl",
    "shr_s", "shr_u",
]  # fmt: skip
_TESTS = ["eqz", "eq", "ne", "lt_s", "lt_u", "gt_s", "gt_u", "le_s", "le_u", "ge_s", "ge_u"]
_FLOAT_TESTS = ["eq", "ne", "lt", "gt", "le", "ge"]
CODES = {
    f"{kind}.{name}": first + place
    for kind, first, names in (
        ("i", 0x45, _TESTS), ("l", 0x50, _TESTS), ("f", 0x5B, _FLOAT_TESTS), ("d", 0x61, _FLOAT_TESTS),
        ("i", 0x67, _INTEGERS), ("l", 0x79, _INTEGERS),
    )
    for place, name in enumerate(names)
} | {
    f"{kind}.{function.name}": function.wasm + further
    for function in FUNCTIONS.values() if function.wasm
    for kind, further in (("f", 0), ("d", 14))
}  # fmt: skip
# From one way of holding numbers to another; "_u" where the integer has no sign.
_CONVERSIONS = {
    "li": 0xA7, "il_s": 0xAC, "il_u": 0xAD, "if_s": 0xB2, "if_u": 0xB3, "lf_s": 0xB4, "lf_u": 0xB5, "df": 0xB6,
    "id_s": 0xB7, "id_u": 0xB8, "ld_s": 0xB9, "ld_u": 0xBA, "fd": 0xBB,
}  # fmt: skip
_BITS = {"fi": 0xBC, "dl": 0xBD, "if": 0xBE, "ld": 0xBF}
_LOADS = {
    "f": 0x2A,
    "d": 0x2B,
    "l": 0x29,
    "i4": 0x28,
    "i1s": 0x2C,
    "i1u": 0x2D,
    "i2s": 0x2E,
    "i2u": 0x2F,
}
_STORES = {"f": 0x38, "d": 0x39, "l": 0x37, "i4": 0x36, "i1": 0x3A, "i2": 0x3B}
_SELECT = b"\x1b"


def unsigned(value: int) -> bytes:
    """Return `value` as LEB128."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def signed(value: int) -> bytes:
    """Return `value` as signed LEB128."""
    out = bytearray()
    while not -64 <= value < 64:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value & 0x7F)
    return bytes(out)


def held(dtype: DType) -> str:
    """Return how values of a type are held: "i", "l", "f" or "d"."""
    if dtype.kind == "float":
        return "d" if dtype is float64 else "f"
    return "l" if dtype.itemsize == 8 else "i"


def has_sign(dtype: DType) -> bool:
    """Whether integers of a type are compared and divided with a sign; small ones without one fit either way."""
    return dtype.kind == "int"


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A number that is there: what pushes it, and the function that works with it."""

    function: Function
    dtype: DType
    code: bytes

    def __add__(self, other: Value) -> Value:
        return self.function.arithmetic("add", self, other)

    def __sub__(self, other: Value) -> Value:
        return self.function.arithmetic("sub", self, other)

    def __mul__(self, other: Value) -> Value:
        return self.function.arithmetic("mul", self, other)

    def __and__(self, other: Value) -> Value:
        return self.function.arithmetic("and", self, other)

    def __or__(self, other: Value) -> Value:
        return self.function.arithmetic("or", self, other)

    def __xor__(self, other: Value) -> Value:
        return self.function.arithmetic("xor", self, other)

    def __rshift__(self, other: Value) -> Value:
        return self.function.arithmetic("shr_s" if has_sign(self.dtype) else "shr_u", self, other)

    def __lshift__(self, other: Value) -> Value:
        return self.function.arithmetic("shl", self, other)


class Function:
    """A function under way. Instructions go to the end of `out`, which may be changed to write elsewhere."""

    def __init__(self, params: Sequence[DType], results: Sequence[DType] = ()) -> None:
        self.params = "".join(map(held, params))
        self.results = "".join(map(held, results))
        self.kinds = list(self.params)
        self.out = bytearray()
        self.given = [
            Value(self, dtype, GET + unsigned(place)) for place, dtype in enumerate(params)
        ]

    def local(self, kind: str) -> bytes:
        """Return the number of a new local."""
        self.kinds.append(kind)
        return unsigned(len(self.kinds) - 1)

    def emit(self, *parts: bytes | Value) -> None:
        """Write instructions, and what pushes values."""
        for part in parts:
            self.out += part.code if isinstance(part, Value) else part

    def keep(self, dtype: DType) -> Value:
        """Take what lies on the stack into a local."""
        number = self.local(held(dtype))
        self.out += SET + number
        return Value(self, dtype, GET + number)

    def variable(self, first: Value) -> Value:
        """Return a local of its own with this value."""
        self.emit(first)
        return self.keep(first.dtype)

    def put(self, variable: Value, value: Value) -> None:
        """Set a local."""
        self.emit(value, SET + variable.code[1:])

    def constant(self, number: float, dtype: DType | str) -> Value:
        """Return a number of a type, given or named."""
        dtype = by_name(dtype) if isinstance(dtype, str) else dtype
        kind = held(dtype)
        if kind == "f":
            code = b"\x43" + float32.to_bytes([float(number)])
        elif kind == "d":
            code = b"\x44" + struct.pack("<d", number)
        else:
            bits = 64 if kind == "l" else 32
            whole = int(number) & ((1 << bits) - 1)
            whole -= whole >> (bits - 1) << bits
            code = (b"\x41" if kind == "i" else b"\x42") + signed(whole)
        return Value(self, dtype, code)

    def op(self, dtype: DType, name: str, *args: Value) -> Value:
        """Compute an instruction, named as in `CODES`."""
        self.emit(*args, bytes((CODES[name],)))
        return self.keep(dtype)

    def arithmetic(self, name: str, *args: Value) -> Value:
        """Compute an instruction of values of one type, wrapped into it."""
        dtype = args[0].dtype
        return self.wrapped(self.op(dtype, f"{held(dtype)}.{name}", *args))

    def test(self, name: str, a: Value, b: Value) -> Value:
        """Compare: "lt", "le", "gt", "ge", "eq" or "ne"."""
        kind = held(a.dtype)
        if kind in "il" and name not in ("eq", "ne"):
            name += "_s" if has_sign(a.dtype) else "_u"
        return self.op(bool_, f"{kind}.{name}", a, b)

    def select(self, test: Value, a: Value, b: Value) -> Value:
        """Return `a` where the test holds, else `b`."""
        self.emit(a, b, test, _SELECT)
        return self.keep(a.dtype)

    def wrapped(self, x: Value) -> Value:
        """Return an i32 within the bounds of its type."""
        dtype = x.dtype
        if dtype.kind == "bool":
            return self.op(dtype, "i.ne", x, self.constant(0, int32))
        if dtype.kind not in ("int", "uint") or dtype.itemsize >= 4:
            return x
        if dtype.kind == "uint":
            return self.op(dtype, "i.and", x, self.constant((1 << dtype.bits) - 1, int32))
        self.emit(x, b"\xc0" if dtype.itemsize == 1 else b"\xc1")
        return self.keep(dtype)

    def typed(self, x: Value, dtype: DType) -> Value:
        """Return the same local under another type that is held alike."""
        return Value(self, dtype, x.code)

    def converted(self, x: Value, dtype: DType) -> Value:
        """Convert between ways of holding numbers; integers are cut off, floats are not made integers."""
        source, target = held(x.dtype), held(dtype)
        if source == target:
            return self.typed(x, dtype)
        name = source + target
        if name not in _CONVERSIONS:
            name += "_s" if has_sign(x.dtype) else "_u"
        self.emit(x, bytes((_CONVERSIONS[name],)))
        return self.keep(dtype)

    def bits(self, x: Value, dtype: DType) -> Value:
        """Reinterpret what is held."""
        name = held(x.dtype) + held(dtype)
        if name not in _BITS:
            return self.typed(x, dtype)
        self.emit(x, bytes((_BITS[name],)))
        return self.keep(dtype)

    def truncated(self, x: Value, dtype: DType) -> Value:
        """Return a float64 as int64; what that does not hold, NaN too, gives the smallest such integer."""
        self.emit(x, b"\xfc\x06")
        near = self.keep(dtype)
        size = self.op(float64, "d.abs", x)
        fits = self.op(bool_, "d.lt", size, self.constant(2.0**63, float64))
        return self.select(fits, near, self.constant(-(1 << 63), dtype))

    def load(self, dtype: DType, address: Value, offset: int = 0) -> Value:
        """Read an element as it lies, so many bytes behind an address: 16-bit floats as their bits."""
        kind = held(dtype)
        if kind in "il" or dtype.itemsize == 2:
            kind = "l" if dtype.itemsize == 8 else f"i{dtype.itemsize}"
            kind += ("s" if has_sign(dtype) else "u") if dtype.itemsize < 4 else ""
        self.emit(address, bytes((_LOADS[kind], 0)) + unsigned(offset))
        return self.keep(int32 if dtype.kind == "float" and dtype.itemsize == 2 else dtype)

    def store(self, dtype: DType, address: Value, value: Value) -> None:
        """Write an element as it lies."""
        kind = held(value.dtype)
        kind = f"i{dtype.itemsize}" if kind == "i" else kind
        self.emit(address, value, bytes((_STORES[kind], 0, 0)))

    def loop(self, variable: Value, end: Value, step: int, body: bytes) -> None:
        """Run `body` for the values of a local from what it is up to `end`, at least once."""
        self.emit(
            _LOOP, body, variable, self.constant(step, int32), b"\x6a\x22" + variable.code[1:]
        )
        self.emit(end, b"\x49\x0d\x00", END)

    def call(self, number: int, dtype: DType | None, *args: Value) -> Value | None:
        """Call a function by its number."""
        self.emit(*args, b"\x10" + unsigned(number))
        return None if dtype is None else self.keep(dtype)

    @property
    def signature(self) -> bytes:
        """The function's type."""
        return _signature(self.params, self.results)

    @property
    def body(self) -> bytes:
        """The function as the code section holds it."""
        groups: list[tuple[int, str]] = []
        for kind in self.kinds[len(self.params) :]:
            if groups and groups[-1][1] == kind:
                groups[-1] = groups[-1][0] + 1, kind
            else:
                groups.append((1, kind))
        head = _vector([unsigned(n) + bytes((_TYPES[kind],)) for n, kind in groups])
        code = head + bytes(self.out) + END
        return unsigned(len(code)) + code


def _signature(params: str, results: str) -> bytes:
    sides = [_vector([bytes((_TYPES[k],)) for k in side]) for side in (params, results)]
    return b"\x60" + b"".join(sides)


def _vector(items: Sequence[bytes]) -> bytes:
    return unsigned(len(items)) + b"".join(items)


def _section(number: int, items: Sequence[bytes]) -> bytes:
    body = _vector(items)
    return bytes((number,)) + unsigned(len(body)) + body


def _text(name: str) -> bytes:
    data = name.encode()
    return unsigned(len(data)) + data


def module(
    imports: Sequence[tuple[str, int]],
    functions: Sequence[Function],
    exports: Sequence[tuple[str, int]],
) -> bytes:
    """Return a module over the memory "env" "memory". `imports` are functions of so many float64 that give one, of
    "env"; functions are numbered after them.
    """
    kinds = [_signature("d" * arity, "d") for _, arity in imports] + [
        f.signature for f in functions
    ]
    types = list(dict.fromkeys(kinds))
    numbers = [unsigned(types.index(kind)) for kind in kinds]
    env = _text("env")
    brought = [env + _text("memory") + b"\x02\x00\x00"]
    brought += [
        env + _text(n) + b"\x00" + kind for (n, _), kind in zip(imports, numbers, strict=False)
    ]
    return b"".join((
        b"\0asm\x01\0\0\0",
        _section(1, types),
        _section(2, brought),
        _section(3, numbers[len(imports) :]),
        _section(7, [_text(name) + b"\x00" + unsigned(n) for name, n in exports]),
        _section(10, [f.body for f in functions]),
    ))  # fmt: skip
