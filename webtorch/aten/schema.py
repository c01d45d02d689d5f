"""PyTorch's schemas of its operators: their overloads, arguments and results. Floor 6.

They stand in schemas.txt, in PyTorch's own words, written by tools/names.py; a star stands before what PyTorch writes
with others (CompositeImplicitAutograd), a plus before what takes numbers in the places of tensors.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from webtorch.ir.dtype import DType
from webtorch.tensors.tensor import Tensor


@dataclass(frozen=True, slots=True)
class AliasInfo:
    """What a result or an argument shares memory with, and whether that is written."""

    before_set: frozenset[str]
    is_write: bool


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument, or one result, of an operator."""

    name: str
    # In PyTorch's words, "Tensor", "SymInt[]", "Scalar?".
    type: str
    default_value: Any
    kwarg_only: bool
    alias_info: AliasInfo | None

    def has_default_value(self) -> bool:
        """Whether a call may leave it out."""
        return self.default_value is not inspect.Parameter.empty

    @property
    def is_out(self) -> bool:
        """Whether it is given to hold a result: no operator here has such."""
        return False

    @property
    def is_write(self) -> bool:
        """Whether the operator writes to it."""
        return self.alias_info is not None and self.alias_info.is_write


@dataclass(frozen=True, slots=True)
class Schema:
    """One overload of an operator."""

    name: str
    overload_name: str
    arguments: tuple[Argument, ...]
    returns: tuple[Argument, ...]
    text: str
    # Whether PyTorch writes it with other operators; whether it takes numbers in the places of tensors.
    composite: bool
    numbers: bool

    @property
    def is_mutable(self) -> bool:
        """Whether it writes to an argument."""
        return any(a.is_write for a in self.arguments)

    @property
    def is_view(self) -> bool:
        """Whether its results are views of an argument."""
        return not self.is_mutable and any(a.alias_info for a in self.arguments)

    def __str__(self) -> str:
        return f"aten::{self.text}"

    __repr__ = __str__

    def bind(
        self, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]] | None:
        """Return the arguments of a call as PyTorch hands them to kernels: those by place without the defaults that
        they end in, those that have only names unless they are the defaults. None where they do not fit.
        """
        places = [a for a in self.arguments if not a.kwarg_only]
        kwargs, args = dict(kwargs), _gathered(places, args)
        if len(args) > len(places):
            return None
        found: list[object] = []
        for i, argument in enumerate(places):
            if i < len(args):
                value = args[i]
            elif argument.name in kwargs:
                value = kwargs.pop(argument.name)
            else:
                value = argument.default_value
            found.append(value)
        named = {}
        for argument in self.arguments[len(places) :]:
            value = kwargs.pop(argument.name, argument.default_value)
            given = value is inspect.Parameter.empty or isinstance(value, Tensor)
            if given or value != argument.default_value:
                named[argument.name] = value
        # What is left is no argument of this overload, unless it says nothing.
        if any(v is not None and v is not False for v in kwargs.values()):
            return None
        for i, argument in enumerate(places):
            if not _is_of(found[i], argument.type, self.numbers and i > 0):
                return None
            found[i] = _listed(found[i], argument.type)
        for argument in self.arguments[len(places) :]:
            if argument.name in named and not _is_of(named[argument.name], argument.type, False):
                return None
        while found and _is_default(found[-1], places[len(found) - 1].default_value):
            found.pop()
        return tuple(found), named


def _gathered(places: Sequence[Argument], args: Sequence[object]) -> Sequence[object]:
    """Return the arguments with the sizes or dims that end them as one list: `x.view(2, 3)`."""
    for i, argument in enumerate(places[:2]):
        if (
            argument.type in ("SymInt[]", "int[]")
            and args[i:]
            and all(_is_of(x, "int", False) for x in args[i:])
        ):
            return [*args[:i], list(args[i:])]
    return args


def _is_default(value: object, default: object) -> bool:
    return type(value) in (type(default), list) and value == default


def _is_of(value: object, kind: str, number: bool) -> bool:
    """Whether a value is of a type of schemas; `number`: whether a number may stand for a tensor."""
    if value is inspect.Parameter.empty:
        return False
    if kind.endswith("?"):
        return value is None or _is_of(value, kind[:-1], number)
    if kind.endswith("]"):
        inner, _, size = kind[:-1].rpartition("[")
        if isinstance(value, (list, tuple)):
            return all(_is_of(v, inner, False) for v in value)
        return bool(size) and _is_of(value, inner, False)
    match kind:
        case "Tensor":
            return isinstance(value, Tensor) or (
                number and isinstance(value, (int, float, complex))
            )
        case "Scalar":
            return isinstance(value, (bool, int, float, complex))
        case "int" | "SymInt":
            return hasattr(value, "__index__") and not isinstance(value, (bool, Tensor))
        case "float":
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        case "bool":
            return isinstance(value, bool)
        case "str":
            return isinstance(value, str)
        case "ScalarType":
            return isinstance(value, DType)
    # Layouts, devices, formats of memory, generators.
    return not isinstance(value, (Tensor, bool, int, float, list, tuple))


def _listed(value: object, kind: str) -> Any:
    """Return a list for one number, or another sequence, where the schema says list."""
    kind = kind.removesuffix("?")
    if value is None or not kind.endswith("]"):
        return value
    size = kind[:-1].rpartition("[")[2]
    return list(value) if isinstance(value, (list, tuple)) else [value] * int(size)


_WORDS = {
    "None": None,
    "True": True,
    "False": False,
    "Mean": 1,
    "contiguous_format": None,
    "long": None,
}
_ARGUMENT = re.compile(
    r"(?P<type>[A-Za-z]+)(?:\((?P<alias>[^)]*)\))?(?P<rest>[\[\]?0-9]*) ?(?P<name>\w+)?(?:=(?P<default>.*))?"
)


def _arguments(text: str) -> Iterator[Argument]:
    """Give the arguments, or results, that a part of a schema states."""
    kwarg_only = False
    # Commas within brackets are those of a default.
    for part in re.split(r", (?![^\[]*\])", text) if text else ():
        if part == "*":
            kwarg_only = True
            continue
        found = _ARGUMENT.fullmatch(part)
        assert found is not None, part
        alias = found["alias"]
        info = None
        if alias is not None:
            names = alias.partition(" ")[0].rstrip("!").split("|")
            info = AliasInfo(frozenset(names), "!" in alias)
        default = found["default"]
        value: object = inspect.Parameter.empty
        if default is not None:
            value = _WORDS[default] if default in _WORDS else ast.literal_eval(default)
        kind = found["type"] + found["rest"]
        if isinstance(value, int):
            value = _listed(value, kind)
        yield Argument(found["name"] or "", kind, value, kwarg_only, info)


def _parsed(line: str) -> Schema:
    text = line.lstrip("*+")
    marks = line.removesuffix(text)
    title, _, rest = text.partition("(")
    arguments, _, returns = rest.rpartition(") -> ")
    name, _, overload = title.partition(".")
    returns = returns.removeprefix("(").removesuffix(")") if returns.startswith("(") else returns
    return Schema(
        name,
        overload,
        tuple(_arguments(arguments)),
        tuple(_arguments(returns)),
        text,
        "*" in marks,
        "+" in marks,
    )


@functools.cache
def _lines() -> dict[str, list[str]]:
    text = Path(__file__).with_name("schemas.txt").read_text(encoding="utf-8")
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        found.setdefault(re.split(r"[.(]", line.lstrip("*+"), maxsplit=1)[0], []).append(line)
    return found


@functools.cache
def overloads(name: str) -> dict[str, Schema]:
    """Return the overloads of an operator, in PyTorch's order: "default", "Tensor"; none if there is no such."""
    found = [_parsed(line) for line in _lines().get(name, ())]
    return {s.overload_name or "default": s for s in found}


def known(name: str) -> bool:
    """Whether PyTorch has an operator of this name."""
    return name in _lines()


def names() -> list[str]:
    """Return the names of all operators."""
    return list(_lines())
