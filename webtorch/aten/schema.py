"""PyTorch's schemas of its operators: their overloads, arguments and results. Floor 6.

They stand in schemas.txt, in PyTorch's own words, written by tools/names.py; a star stands before what PyTorch writes
with others (CompositeImplicitAutograd), a plus before what takes numbers in the places of tensors.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NoReturn, Union, get_args, get_origin

from webtorch.ir.dtype import DType, by_name
from webtorch.tensors.device import device
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
    namespace: str = "aten"

    @property
    def is_mutable(self) -> bool:
        """Whether it writes to an argument."""
        return any(a.is_write for a in self.arguments)

    @property
    def is_view(self) -> bool:
        """Whether its results are views of an argument."""
        return not self.is_mutable and any(a.alias_info for a in self.arguments)

    def __str__(self) -> str:
        return f"{self.namespace}::{self.text}"

    __repr__ = __str__

    def check(self, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Raise RuntimeError for an argument of a call that is not of the type that is stated."""
        given = {**dict(zip([a.name for a in self.arguments], args, strict=False)), **kwargs}
        for place, argument in enumerate(self.arguments):
            value = given.get(argument.name, inspect.Parameter.empty)
            if value is inspect.Parameter.empty or _is_of(value, argument.type, False):
                continue
            # A bool is a number, and a tensor of one element may stand for one.
            kind = argument.type.rstrip("?")
            if kind in ("int", "SymInt", "float", "Scalar") and isinstance(value, (bool, Tensor)):
                continue
            raise RuntimeError(
                f"{self.namespace}::{self.name}() Expected a value of type '{argument.type.replace('SymInt', 'int')}' "
                f"for argument '{argument.name}' but instead found type '{type(value).__name__}'.\nPosition: {place}\n"
                f"Value: {value!r}\nDeclaration: {self}"
            )

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
# Types of Python, and what schemas call them.
_TYPES: dict[Any, str] = {
    Tensor: "Tensor", int: "SymInt", float: "float", bool: "bool", str: "str",
    int | float | bool: "Scalar", Number: "Scalar", DType: "ScalarType", device: "Device",
}  # fmt: skip
_ARGUMENT = re.compile(
    r"(?P<type>[A-Za-z]+)(?P<written>!)?(?:\((?P<alias>[^)]*)\))?(?P<rest>[\[\]?0-9]*)"
    r" ?(?P<name>\w+)?(?:=(?P<default>.*))?"
)


def _value_of(text: str) -> object:
    """Return a default that is no keyword: a number, a text, or the name of a type."""
    return by_name(text) if text.isidentifier() else ast.literal_eval(text)


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
        # "Tensor!" is written to, and shares memory with nothing that has a name.
        alias = "$!" if found["written"] else found["alias"]
        info = None
        if alias is not None:
            names = alias.partition(" ")[0].rstrip("!").split("|")
            info = AliasInfo(frozenset(names), "!" in alias)
        default = found["default"]
        value: object = inspect.Parameter.empty
        if default is not None:
            value = _WORDS[default] if default in _WORDS else _value_of(default)
        kind = found["type"] + found["rest"]
        if isinstance(value, int):
            value = _listed(value, kind)
        yield Argument(found["name"] or "", kind, value, kwarg_only, info)


def parsed(line: str, namespace: str = "aten") -> Schema:
    """Return a schema that is stated in PyTorch's words: "twice(Tensor x, int n=2) -> Tensor"."""
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
        namespace,
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
    found = [parsed(line) for line in _lines().get(name, ())]
    return {s.overload_name or "default": s for s in found}


def known(name: str) -> bool:
    """Whether PyTorch has an operator of this name."""
    return name in _lines()


def names() -> list[str]:
    """Return the names of all operators."""
    return list(_lines())


# ---- the schema of a function
# ------------------------------------------------------------------------------------------------------------


def _stated(kind: Any) -> str | None:
    """Return what schemas call a type of an argument; None of others."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind in _TYPES:
        return _TYPES[kind]
    if origin in (Union, UnionType) and len(inner) == 2 and NoneType in inner:
        found = _stated(inner[inner[0] is NoneType])
        return found and f"{found}?"
    if origin in (list, Sequence) and len(inner) == 1:
        found = _stated(inner[0])
        return found and f"{found}[]"
    return None


def infer_schema(
    prototype_function: Callable[..., object],
    /,
    *,
    mutates_args: str | Iterable[str],
    op_name: str | None = None,
    tags: object = (),
) -> str:
    """Return the schema of an operator that does what a function does, by its annotations: "(Tensor x) -> Tensor".

    `mutates_args` names the tensors that it writes to, or is "unknown". Raises ValueError for what schemas do not have.
    """
    signature = inspect.signature(prototype_function)
    unknown = mutates_args == "unknown"
    written = () if isinstance(mutates_args, str) else tuple(mutates_args)
    if isinstance(mutates_args, str) and not unknown:
        raise ValueError(
            "mutates_args must either be a sequence of the names of the arguments that are mutated or the string "
            "'unknown'. "
        )

    def refuse(what: str) -> NoReturn:
        """Raise ValueError in PyTorch's words."""
        raise ValueError(f"infer_schema(func): {what} Got func with signature {signature})")

    def meant(annotation: object) -> Any:
        """Return an annotation that may be a text as what it means where the function is written."""
        if not isinstance(annotation, str):
            return annotation
        try:
            return eval(annotation, prototype_function.__globals__)
        except Exception as error:
            refuse(f"Unsupported type annotation {annotation}. It is not a type. ({error}).")

    parts: list[str] = []
    for place, (name, parameter) in enumerate(signature.parameters.items()):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            refuse("We do not support positional-only args, varargs, or varkwargs.")
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        if parameter.annotation is parameter.empty:
            refuse(f"Parameter {name} must have a type annotation.")
        kind = _stated(meant(parameter.annotation))
        if kind is None:
            tuples = "We do not support Tuple inputs in schema. As a workaround, please try to use List instead. "
            of_tuple = get_origin(meant(parameter.annotation)) is tuple
            refuse(
                f"Parameter {name} has unsupported type {parameter.annotation}. {tuples * of_tuple}"
                f"The valid types are: {list(_TYPES)}, lists of them, and each or None."
            )
        if name in written and not kind.startswith("Tensor"):
            refuse(
                f"Parameter {name} is in mutable_args but only Tensors or collections of Tensors can be mutated"
            )
        if kind.startswith("Tensor") and (unknown or name in written):
            kind = kind.replace("Tensor", f"Tensor(a{place}!)", 1)
        default: Any = parameter.default
        if default is parameter.empty:
            parts.append(f"{kind} {name}")
            continue
        if isinstance(default, (str, device)):
            default = f'"{default}"'
        elif isinstance(default, DType):
            default = str(default).removeprefix("torch.")
        elif not (default is None or isinstance(default, (int, float))):
            refuse(f"Parameter {name} has an unsupported default value type {type(default)}.")
        parts.append(f"{kind} {name}={default}")
    if missing := set(written) - signature.parameters.keys():
        refuse(
            f"{missing} in mutates_args were not found in the custom op's signature. mutates_args should contain the "
            "names of all args that the custom op mutates, or just the string 'unknown' if you don't know."
        )
    return f"{op_name or ''}({', '.join(parts)}) -> {_returned(meant(signature.return_annotation), refuse)}"


def _returned(kind: Any, refuse: Callable[[str], NoReturn]) -> str:
    """Return what schemas call the results of a function."""
    if kind is None:
        return "()"
    if kind is inspect.Signature.empty:
        refuse("No return type annotation was provided. Please add one.")
    several = get_origin(kind) is tuple
    found = [_stated(one) for one in (get_args(kind) if several else (kind,))]
    if not all(one in _RESULTS for one in found):
        refuse(f"Return has unsupported type {kind}. The valid types are: {_RESULTS}.")
    text = ", ".join(map(str, found))
    return f"({text})" if several else text


_RESULTS = ("Tensor", "Tensor[]", "SymInt", "float", "bool", "Scalar")
