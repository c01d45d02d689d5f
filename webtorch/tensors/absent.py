"""What to say of a name that PyTorch has and webtorch does not. Floor 4.

The names stand in pytorch_names.txt, written by tools/names.py and read when such an error is shown.
"""

from __future__ import annotations

import difflib
import functools
import sys
from pathlib import Path
from typing import Any


@functools.cache
def _listed() -> dict[str, frozenset[str]]:
    text = Path(__file__).with_name("pytorch_names.txt").read_text(encoding="utf-8")
    parts = (part.partition("]") for part in text.split("[")[1:])
    return {head: frozenset(names.split()) for head, _, names in parts}


@functools.cache
def pytorch_names() -> dict[str, frozenset[str]]:
    """Return PyTorch's public names by place: "" for torch itself, "Tensor", "linalg" and so on."""
    return {place: names for place, names in _listed().items() if not place.startswith("= ")}


def reasons() -> tuple[str, ...]:
    """Return the reasons for which names of PyTorch's are missing, as docs/differences.md gives them."""
    return tuple(head[2:] for head in _listed() if head.startswith("= "))


def why_missing(place: str, name: str) -> str:
    """Return what to say of a name of PyTorch's that webtorch does not have; "" if PyTorch has no such name."""
    if name not in _listed().get(place, ()):
        return ""
    entry = f"{place}:{name}"
    reason = next((head[2:] for head, names in _listed().items() if entry in names), "")
    return f"PyTorch has it, webtorch does not. {reason}".rstrip(" .")


def missing_names(module: str, place: str) -> Any:
    """Return the `__getattr__` of a module of the public surface: it says what is known of names that are not there."""

    def find(name: str) -> object:
        """Raise MissingName."""
        raise MissingName(sys.modules[module], place, name)

    return find


class Absent:
    """Stands in a class for a name of PyTorch's that webtorch does not have: whoever looks is told.

    A class with `__getattr__` could tell as well, and make every look at an attribute slower, also of those that
    are there.
    """

    __slots__ = ("name", "place")

    def __init__(self, place: str, name: str) -> None:
        self.place, self.name = place, name

    def __get__(self, holder: object, owner: type[object]) -> Any:
        raise MissingName(owner, self.place, self.name)


class MissingName(AttributeError):
    """A name that does not exist; says whether PyTorch has it, and the nearest one that exists.

    The text is made when it is read: `hasattr` asks often and reads nothing.
    """

    def __init__(self, owner: object, place: str, name: str) -> None:
        super().__init__(place, name)
        self.owner, self.place, self.missing = owner, place, name

    def __str__(self) -> str:
        place, name = self.place, self.missing
        path = f".{place}" if place else ""
        what = "'Tensor' object" if place == "Tensor" else f"module 'webtorch{path}'"
        text = f"{what} has no attribute '{name}'"
        if why := why_missing(place, name):
            return f"{text}: {why}."
        present = [n for n in dir(self.owner) if not n.startswith("_")]
        near = difflib.get_close_matches(name, present, 1, 0.7)
        return f"{text}. The nearest that exists is '{near[0]}'." if near else text
