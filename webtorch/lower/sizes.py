"""Kernels of several sizes as one: the integers in which their texts differ become arguments. Floor 2;
imports nothing.

Two kernels that come from one graph at two sizes mostly have one text, but for some of its numbers. A
`Family` is all texts that are equal but for numbers that may be computed when the kernel runs; it knows
which of these have been seen to differ. A kernel with arguments in their place serves every size.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

# An integer that is no part of a name or of a float.
_INTEGER = re.compile(r"(?<![\w.])(\d+u?)(?![\w.])")
# The length of an array must be known when a kernel is compiled.
_ARRAY = re.compile(r"array<[^;=(]*>|local\([^)]*\)")
_DIGITS = str.maketrans("0123456789", "".join(chr(0xE000 + d) for d in range(10)))
_UNDONE = {v: k for k, v in _DIGITS.items()}
_MOST_FAMILIES = 4096


class Family:
    """Texts that are equal but for numbers."""

    def __init__(self, pieces: Sequence[str], numbers: tuple[str, ...]) -> None:
        self.pieces = pieces
        # The numbers of the first text, and the places where others had other numbers.
        self.first = numbers
        self.places: set[int] = set()
        # What was compiled, by the places that are arguments in it.
        self.made: dict[tuple[int, ...], Any] = {}
        # How much its kernels have worked.
        self.work = 0

    def see(self, numbers: tuple[str, ...]) -> None:
        """Note the numbers of one more text."""
        if numbers != self.first:
            self.places.update(
                i for i, (a, b) in enumerate(zip(self.first, numbers, strict=True)) if a != b
            )

    def arguments(self, numbers: tuple[str, ...]) -> tuple[list[str], list[int]]:
        """Return a name for each distinct argument, in order, and their values for these numbers."""
        names: dict[int, str] = {}
        values: list[int] = []
        for i in sorted(self.places):
            names[i] = f"size{len(values)}"
            values.append(int(numbers[i].rstrip("u")))
        return list(names.values()), values

    def text(self, argument: str) -> str:
        """Return the text with arguments in the places; `argument` is what stands before their names."""
        out = [self.pieces[0]]
        count = 0
        for i, number in enumerate(self.first):
            if i in self.places:
                name = f"{argument}size{count}"
                count += 1
                number = f"u32({name})" if number.endswith("u") else name
            out += [number, self.pieces[i + 1]]
        return "".join(out)


class Families:
    """The families of a device, found by text. Bounded: the least recently used goes first."""

    def __init__(self) -> None:
        self._known: OrderedDict[object, Family] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, text: str, key: object) -> tuple[Family, tuple[str, ...]]:
        """Return the family of a text and the text's numbers, which the family has then seen.

        Texts of different `key` are of different families.
        """
        parts = _INTEGER.split(_ARRAY.sub(lambda m: m.group().translate(_DIGITS), text))
        pieces = tuple([p.translate(_UNDONE) for p in parts[::2]])
        numbers = tuple(parts[1::2])
        signs = tuple([n.endswith("u") for n in numbers])
        found = self._known.get((pieces, signs, key))
        if found is None:
            found = self._known[pieces, signs, key] = Family(pieces, numbers)
            if len(self._known) > _MOST_FAMILIES:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end((pieces, signs, key))
            found.see(numbers)
        return found, numbers


def size_class(size: int) -> int:
    """Return the power of four that is not below `size`: by it, and not by the size, kernels of varying
    sizes are chosen.
    """
    bits = max(size - 1, 0).bit_length()
    return 1 << (bits + (bits & 1))
