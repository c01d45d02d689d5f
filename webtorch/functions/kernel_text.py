"""Formulas written as WGSL: a function, or an expression, read as calls of the table's operations.

The subset is what a formula needs: parameters and `let` of one scalar type, a `return`, WGSL's operators and its
scalar functions. What is read here is called with tensors, as a formula in Python is.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from webtorch.ir.expr import FUNCTIONS
from webtorch.ops.record import TABLE

_TOKEN = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]+[iu]?|(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?[fhiu]?)"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<sign>&&|\|\||<<|>>|<=|>=|==|!=|->|[-+*/%<>=!~&|^(),;:{}]))"
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
# Types of a formula's values: what tensors it takes.
KINDS = ("f32", "f16", "i32", "u32")

Value = Any


def _is_number(x: Value) -> bool:
    return isinstance(x, (bool, int, float))


def _op(name: str, plain: Callable[..., object] | None = None) -> Callable[..., Value]:
    """Return an operation of values, some of which may be numbers, or all."""

    def apply(*args: Value) -> Value:
        """Apply it to tensors of one shape, or compute in Python what is numbers only."""
        first = next((x for x in args if not _is_number(x)), None)
        if first is None:
            return plain(*args) if plain is not None else FUNCTIONS[name].of_floats(*args)
        return TABLE[name](*[TABLE["full_like"](first, x) if _is_number(x) else x for x in args])

    return apply


def _quotient(x: Value, y: Value) -> Value:
    whole = all(isinstance(v, int) if _is_number(v) else v.dtype.is_integral for v in (x, y))
    if not whole:
        return x / y
    if _is_number(x) and _is_number(y):
        return int(x / y)
    return TABLE["div"](x, y, rounding_mode="trunc")


def _select(no: Value, yes: Value, condition: Value) -> Value:
    return TABLE["where"](condition, yes, no)


def _smoothstep(low: Value, high: Value, x: Value) -> Value:
    t = _clamp((x - low) / (high - low), 0.0, 1.0)
    return t * t * (3.0 - 2.0 * t)


def _clamp(x: Value, low: Value, high: Value) -> Value:
    return TABLE["clamp"](x, low, high)


# By how tightly they bind: WGSL asks for brackets where it does not say.
_BINARY: list[dict[str, Callable[[Value, Value], Value]]] = [
    {"||": _op("logical_or", lambda x, y: x or y)},
    {"&&": _op("logical_and", lambda x, y: x and y)},
    {"|": operator.or_},
    {"^": operator.xor},
    {"&": operator.and_},
    {"==": operator.eq, "!=": operator.ne},
    {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge},
    {"<<": operator.lshift, ">>": operator.rshift},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": _quotient, "%": _op("fmod", math.fmod)},
]
_UNARY: dict[str, Callable[[Value], Value]] = {
    "-": operator.neg, "~": operator.invert, "!": _op("logical_not", operator.not_),
}  # fmt: skip
_SAME = """abs acos acosh asin asinh atan atanh atan2 ceil cos cosh exp exp2 floor log log2 round sign sin sinh
    sqrt tan tanh trunc"""
_CALLS: dict[str, Callable[..., Value]] = {
    **{name: _op(name) for name in _SAME.split()},
    "pow": lambda x, y: x**y,
    "inverseSqrt": _op("rsqrt"),
    "degrees": _op("rad2deg", math.degrees), "radians": _op("deg2rad", math.radians),
    "max": _op("maximum", max), "min": _op("minimum", min), "clamp": _clamp, "select": _select,
    "fract": lambda x: x - TABLE["floor"](x),
    "mix": lambda x, y, t: x * (1.0 - t) + y * t,
    "step": lambda edge, x: TABLE["where"](x >= edge, 1.0, x * 0.0),
    "smoothstep": _smoothstep,
    "fma": lambda x, y, z: x * y + z,
    "saturate": lambda x: _clamp(x, 0.0, 1.0),
    **dict.fromkeys(KINDS, lambda x: x),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Text:
    """A formula as it was read."""

    name: str
    # In order.
    parameters: tuple[str, ...]
    # The type of its values in WGSL.
    kind: str
    # What it gives of its parameters, by their names.
    formula: Callable[[Mapping[str, Value]], Value]


def read(source: str) -> Text:
    """Read a function, `fn name(x: f32, y: f32) -> f32 { return ...; }`, or an expression, whose parameters are its
    names in the order in which they come. Raises SyntaxError with the line and a mark at the place.
    """
    return _Reader(source).text()


class _Reader:
    """A formula's tokens, and where the next one is."""

    def __init__(self, source: str) -> None:
        self.source = source
        # What stands in the place of comments keeps all else where it is.
        plain = _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), source)
        self.tokens: list[tuple[str, str, int]] = []
        at = 0
        while plain[at:].strip():
            found = _TOKEN.match(plain, at)
            if found is None:
                at += len(plain[at:]) - len(plain[at:].lstrip())
                raise self.error(f"{plain[at]!r} is not WGSL", at)
            kind = str(found.lastgroup)
            self.tokens.append((kind, found[kind], found.start(kind)))
            at = found.end()
        self.at = 0
        # Names that are values; of an expression all that it has.
        self.names: list[str] = []
        self.is_open = False
        # The type of all values.
        self.kind = "f32"

    def error(self, message: str, place: int | None = None) -> SyntaxError:
        """Return the error for a place in the text: that of the next token unless given."""
        if place is None:
            place = self.tokens[self.at][2] if self.at < len(self.tokens) else len(self.source)
        line = self.source.count("\n", 0, place)
        column = place - (self.source.rfind("\n", 0, place) + 1)
        text = (self.source.splitlines() or [""])[min(line, self.source.count("\n"))]
        return SyntaxError(f"kernel: line {line + 1}: {message}\n    {text}\n    {' ' * column}^")

    def peek(self) -> str:
        """Return the next token, "" at the end."""
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        """Take the next token."""
        found = self.peek()
        if not found or (wanted and found != wanted):
            raise self.error(f"expected {wanted or 'more'}, found {found or 'the end'}")
        self.at += 1
        return found

    def word(self) -> str:
        """Take a name."""
        if self.at >= len(self.tokens) or self.tokens[self.at][0] != "name":
            raise self.error(f"expected a name, found {self.peek() or 'the end'}")
        return self.take()

    def text(self) -> Text:
        """Read all of it."""
        if self.peek() == "fn":
            found = self._function()
        else:
            self.is_open = True
            value = self._binary(0)
            found = Text("kernel", tuple(self.names), "f32", value)
        if self.peek():
            raise self.error(f"expected the end, found {self.peek()}")
        return found

    def _function(self) -> Text:
        self.take("fn")
        name = self.word()
        self.take("(")
        kinds = []
        while self.peek() != ")":
            self.names.append(self.word())
            self.take(":")
            kinds.append(self._kind())
            if self.peek() != ")":
                self.take(",")
        self.take(")")
        parameters = tuple(self.names)
        self.take("->")
        kind = self.word()
        if len(set(kinds)) != 1 or kind not in (kinds[0], "bool"):
            raise self.error("parameters and the result of a formula are of one type")
        self.kind = kinds[0]
        self.take("{")
        steps: list[tuple[str, Callable[[Mapping[str, Value]], Value]]] = []
        while self.peek() == "let":
            self.take()
            local = self.word()
            if self.peek() == ":":
                self.take()
                self._kind()
            self.take("=")
            steps.append((local, self._binary(0)))
            self.take(";")
            self.names.append(local)
        self.take("return")
        result = self._binary(0)
        self.take(";")
        self.take("}")

        def formula(values: Mapping[str, Value]) -> Value:
            """Return the result."""
            known = dict(values)
            for local, value in steps:
                known[local] = value(known)
            return result(known)

        return Text(name, parameters, kinds[0], formula)

    def _kind(self) -> str:
        if self.peek() not in (*KINDS, "bool"):
            raise self.error(f"a formula's values are f32, f16, i32 or u32, not {self.peek()}")
        return self.take()

    def _binary(self, level: int) -> Callable[[Mapping[str, Value]], Value]:
        if level == len(_BINARY):
            return self._unary()
        left = self._binary(level + 1)
        while (sign := self.peek()) in _BINARY[level]:
            self.take()
            left = _applied(_BINARY[level][sign], left, self._binary(level + 1))
        return left

    def _unary(self) -> Callable[[Mapping[str, Value]], Value]:
        sign = self.peek()
        if sign in _UNARY:
            self.take()
            return _applied(_UNARY[sign], self._unary())
        return self._primary()

    def _primary(self) -> Callable[[Mapping[str, Value]], Value]:
        if self.peek() == "(":
            self.take()
            inner = self._binary(0)
            self.take(")")
            return inner
        if self.at < len(self.tokens) and self.tokens[self.at][0] == "number":
            return _constant(_number(self.take()))
        place = self.at
        name = self.word()
        if self.peek() == "(":
            return self._call(name, place)
        if name in ("true", "false"):
            return _constant(name == "true")
        if name not in self.names:
            if not self.is_open:
                self.at = place
                raise self.error(f"{name} is no parameter, and nothing that was named before")
            self.names.append(name)
        return operator.itemgetter(name)

    def _call(self, name: str, place: int) -> Callable[[Mapping[str, Value]], Value]:
        if name not in _CALLS:
            self.at = place
            raise self.error(
                f"a formula has no function {name}: it has {', '.join(sorted(_CALLS))}"
            )
        if name in KINDS and name != self.kind:
            self.at = place
            raise self.error(
                f"a formula's values are of one type, here {self.kind}: see floor, round and trunc"
            )
        self.take("(")
        args = []
        while self.peek() != ")":
            args.append(self._binary(0))
            if self.peek() != ")":
                self.take(",")
        self.take(")")
        return _applied(_CALLS[name], *args)


def _applied(
    function: Callable[..., Value], *args: Callable[[Mapping[str, Value]], Value]
) -> Callable[[Mapping[str, Value]], Value]:
    return lambda known: function(*[a(known) for a in args])


def _constant(value: Value) -> Callable[[Mapping[str, Value]], Value]:
    return lambda known: value


def _number(text: str) -> int | float:
    if text[:2] in ("0x", "0X"):
        return int(text.rstrip("iu"), 16)
    plain = text.rstrip("fhiu")
    if text[-1] in "iu":
        return int(plain)
    return float(plain) if text[-1] in "fh" or not plain.isdigit() else int(plain)
