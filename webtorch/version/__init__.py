"""`webtorch.version`: which PyTorch's API this is. Floor 5. PyTorch programs compare `torch.__version__`."""

from __future__ import annotations

import re
from itertools import zip_longest

# The version of webtorch itself: packages are built with it, and a release's tag must be it.
PACKAGE = "0.1.0"
# The release whose documentation, names and defaults are followed.
PYTORCH = "2.13.0"


class TorchVersion(str):
    """A version as text that compares as a version: with text, and with tuples of numbers."""

    def _key(self, other: object) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if isinstance(other, tuple | list):
            theirs = tuple([int(x) for x in other])
        elif isinstance(other, str):
            theirs = _numbers(other)
        else:
            raise TypeError(f"a version cannot be compared with {type(other).__name__}")
        pairs = list(zip_longest(_numbers(self), theirs, fillvalue=0))
        return tuple([a for a, _ in pairs]), tuple([b for _, b in pairs])

    def __lt__(self, other: object) -> bool:
        a, b = self._key(other)
        return a < b

    def __le__(self, other: object) -> bool:
        a, b = self._key(other)
        return a <= b

    def __gt__(self, other: object) -> bool:
        a, b = self._key(other)
        return a > b

    def __ge__(self, other: object) -> bool:
        a, b = self._key(other)
        return a >= b

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) if isinstance(other, str) else self._equals(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def _equals(self, other: object) -> bool:
        if not isinstance(other, tuple | list):
            return False
        a, b = self._key(other)
        return a == b

    __hash__ = str.__hash__


def _numbers(text: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", text)
    if found is None:
        raise ValueError(f"{text!r} is no version")
    return tuple([int(x) for x in found[0].split(".")])


__version__ = TorchVersion(f"{PYTORCH}+webtorch.{PACKAGE}")
debug = False
cuda: str | None = None
hip: str | None = None
xpu: str | None = None
git_version = "unknown"
