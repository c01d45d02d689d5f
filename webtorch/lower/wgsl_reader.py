"""What the text of a shader that a user wrote declares: entry points, their workgroups and bindings. Floor 2; the
standard library only.

This is no parser: the device's compiler checks the text. What is read here is what has to be known to call it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

Access = Literal["read", "read_write", "uniform"]

_ATTRIBUTES = r"(?P<attributes>(?:@\w+\s*(?:\([^()]*\))?\s*)*)"
_VARIABLE = re.compile(
    _ATTRIBUTES + r"var\s*<\s*(?P<space>storage|uniform)\s*(?:,\s*(?P<access>\w+)\s*)?>\s*"
    r"(?P<name>\w+)\s*:\s*(?P<type>[^;]+?)\s*;"
)
_FUNCTION = re.compile(_ATTRIBUTES + r"fn\s+(?P<name>\w+)\s*\(")
_STRUCT = re.compile(r"\bstruct\s+(\w+)\s*\{([^}]*)\}")
_MEMBER = re.compile(r"(?:@\w+\s*\([^()]*\)\s*)*(\w+)\s*:\s*([\w<>\s]+)")
# What a function names: no members, and nothing that it declares itself.
_NAMED = re.compile(r"(?<![.\w])[A-Za-z_]\w*")
_LOCAL = re.compile(r"\b(?:let|var|const)\b\s*(?:<[^>]*>\s*)?(\w+)")
_PARAMETER = re.compile(r"(\w+)\s*:")
_CONSTANT = re.compile(r"\bconst\s+(\w+)\s*(?::\s*\w+\s*)?=\s*(\d+)[iu]?\s*;")
_SIZE = re.compile(r"@workgroup_size\s*\(([^()]*)\)")
_BINDING = re.compile(r"@binding\s*\(\s*(\d+)[iu]?\s*\)")
_GROUP = re.compile(r"@group\s*\(\s*(\d+)[iu]?\s*\)")
_WRAPPER = re.compile(r"^(?:array|atomic|vec[234]|mat[234]x[234])\s*<\s*(.*)>$", re.DOTALL)
_SHORT = re.compile(r"^(?:vec[234]|mat[234]x[234])([fhiu])$")
_SHORT_TYPES = {"f": "f32", "h": "f16", "i": "i32", "u": "u32"}


def without_comments(source: str) -> str:
    """Return a text with spaces in the place of its comments, so that all else stays where it is."""
    out, at, depth = list(source), 0, 0
    while at < len(source):
        pair = source[at : at + 2]
        if pair == "/*":
            depth += 1
            out[at : at + 2] = "  "
            at += 2
        elif depth and pair == "*/":
            depth -= 1
            out[at : at + 2] = "  "
            at += 2
        elif pair == "//" and not depth:
            end = source.find("\n", at)
            end = len(source) if end < 0 else end
            out[at:end] = " " * (end - at)
            at = end
        else:
            if depth and source[at] != "\n":
                out[at] = " "
            at += 1
    return "".join(out)


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable that a shader is given: `binding` is the number of the argument."""

    name: str
    binding: int
    access: Access
    type: str

    @property
    def element(self) -> str:
        """The scalar type that it is made of, such as "f32"; the name of a struct as it is."""
        return element_of(self.type)

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"


def element_of(kind: str) -> str:
    """Return the scalar type that arrays, vectors, matrices and atomics of a type are made of."""
    kind = kind.strip()
    while (found := _WRAPPER.match(kind)) is not None:
        kind = found[1].partition(",")[0].strip()
    short = _SHORT.match(kind)
    return kind if short is None else _SHORT_TYPES[short[1]]


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """A function that a dispatch begins with."""

    name: str
    # None where the text says it by what is only known when it is compiled.
    workgroup: tuple[int, int, int] | None
    # By binding: what it and the functions that it calls use.
    uses: dict[int, Variable]
    # Where in the text its workgroup is stated.
    place: tuple[int, int]


class Reader:
    """A shader's text, and what it declares."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._plain = without_comments(source)

    @cached_property
    def variables(self) -> list[Variable]:
        """Every variable with a binding. Raises ValueError for one in another group than 0."""
        found = []
        for m in _VARIABLE.finditer(self._plain):
            group, binding = _GROUP.search(m["attributes"]), _BINDING.search(m["attributes"])
            if group is None or binding is None:
                # The device's compiler says so.
                continue
            if int(group[1]):
                raise ValueError(
                    f"'{m['name']}' is in @group({group[1]}): arguments are the bindings of @group(0)"
                )
            access: Access = "read"
            if m["space"] == "uniform":
                access = "uniform"
            elif m["access"] == "read_write":
                access = "read_write"
            kind = re.sub(r"\s+", " ", m["type"])
            found.append(Variable(m["name"], int(binding[1]), access, kind))
        return found

    @cached_property
    def structs(self) -> dict[str, list[tuple[str, str]]]:
        """Name and type of each member of each struct."""
        return {
            m[1]: [(p[1], p[2].strip()) for p in _MEMBER.finditer(m[2])]
            for m in _STRUCT.finditer(self._plain)
        }

    @cached_property
    def entries(self) -> dict[str, EntryPoint]:
        """The entry points by name."""
        functions = list(self._functions())
        bodies = {name: body for _, name, body in functions}
        return {
            name: self._entry(attributes, name, bodies)
            for attributes, name, _ in functions
            if re.search(r"@compute\b", attributes[0])
        }

    def _functions(self) -> Iterator[tuple[tuple[str, int], str, set[str]]]:
        """Yield each function: its attributes and where they begin, its name, the words of its body."""
        text = self._plain
        for m in _FUNCTION.finditer(text):
            begin = text.find("{", m.end())
            depth, end = 0, begin
            while 0 <= end < len(text):
                depth += {"{": 1, "}": -1}.get(text[end], 0)
                if not depth:
                    break
                end += 1
            body = text[begin : end + 1] if begin >= 0 else ""
            own = {*_LOCAL.findall(body), *_PARAMETER.findall(text[m.end() : begin])}
            yield (m["attributes"], m.start()), m["name"], set(_NAMED.findall(body)) - own

    def _entry(
        self, attributes: tuple[str, int], name: str, bodies: dict[str, set[str]]
    ) -> EntryPoint:
        text, start = attributes
        reached, waiting = set(), [name]
        words: set[str] = set()
        while waiting:
            one = waiting.pop()
            if one in reached:
                continue
            reached.add(one)
            words |= bodies[one]
            waiting += [w for w in bodies[one] if w in bodies]
        uses = {v.binding: v for v in self.variables if v.name in words}
        stated = _SIZE.search(text)
        if stated is None:
            return EntryPoint(name, None, uses, (start, start))
        place = start + stated.start(), start + stated.end()
        return EntryPoint(name, self._workgroup(stated[1]), uses, place)

    def _workgroup(self, stated: str) -> tuple[int, int, int] | None:
        constants = {m[1]: int(m[2]) for m in _CONSTANT.finditer(self._plain)}
        sizes: list[int] = []
        for part in stated.strip().rstrip(",").split(","):
            number = re.fullmatch(r"(\d+)[iu]?", part.strip())
            if number is not None:
                sizes.append(int(number[1]))
            elif part.strip() in constants:
                sizes.append(constants[part.strip()])
            else:
                return None
        x, y, z = (*sizes, 1, 1)[:3]
        return x, y, z

    def bound(self, entry: EntryPoint, count: int) -> dict[int, Variable]:
        """Return what the arguments of a call are, by number: what the entry point uses, else what is declared."""
        declared = {v.binding: v for v in reversed(self.variables) if v.binding < count}
        return {**declared, **entry.uses}

    def with_workgroup(self, entry: EntryPoint, sizes: Sequence[int]) -> tuple[str, EntryPoint]:
        """Return the text with another workgroup for one entry point, on the same lines, and this entry point."""
        x, y, z = (*sizes, 1, 1)[:3]
        start, end = entry.place
        text = f"@workgroup_size({x}, {y}, {z})"
        source = f"{self.source[:start]}{text}{self.source[end:]}"
        return source, replace(entry, workgroup=(x, y, z))
