"""One log of what has been compiled, by which cache, and why. Floor 3; standard library only.

Three caches keep programs: that of lazy runs (one for each device), that of a function under
`webtorch.compile`, and that of a graph under PyTorch's compiler. Each says here what it made and what
differs from the nearest that it had, in plain words. WEBTORCH_DEBUG prints the same sentences.

>>> print(changes([Input("x", {"shape": (4, 8)})], [Input("x", {"shape": (5, 8)})])[0])
argument `x` changed shape from (4, 8) to (5, 8)
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# Compilations that the log remembers; each cache remembers its own beside.
REMEMBERED = 256
# Why a cache compiled when it had nothing yet.
FIRST = "the first call"
# Differences that are told; what differs in more is another thing.
_TOLD = 3
# Facts that may change without another program. They are told of where nothing else differs.
_FREE = "number"


@dataclass(frozen=True, slots=True)
class Compilation:
    """One entry of the log: `cache` compiled `what` as its program `number` (from 1), for this `reason`.

    `steps` are those of the program, `seconds` what recording and compiling took. Where no program could be
    made, `ran_as_usual` is true.
    """

    cache: str
    what: str
    number: int
    reason: str
    steps: int = 0
    seconds: float = 0.0
    ran_as_usual: bool = False

    @property
    def text(self) -> str:
        """The entry without the names of the cache and of what was compiled."""
        if self.ran_as_usual:
            return f"ran as usual: {self.reason}"
        return f"program {self.number} ({counted(self.steps, 'step')}, {self.seconds * 1e3:.0f} ms): {self.reason}"

    def __str__(self) -> str:
        return f"{self.cache}: {self.what}: {self.text}"


class _Log:
    def __init__(self) -> None:
        self.entries: deque[Compilation] = deque(maxlen=REMEMBERED)
        self.lock = threading.Lock()


_log = _Log()


def note(entry: Compilation, shown: bool) -> None:
    """Add an entry to the log; `shown`: print it too, on standard error."""
    with _log.lock:
        _log.entries.append(entry)
    if shown:
        sys.stderr.write(f"webtorch: {entry}\n")


def compilations() -> list[Compilation]:
    """Return what has been compiled in this process, the latest last (a few hundred are remembered)."""
    with _log.lock:
        return list(_log.entries)


@dataclass(frozen=True, slots=True)
class Input:
    """What a cache knows an input by: its name ("" for what is around the call) and its facts."""

    name: str
    facts: Mapping[str, object]

    @property
    def form(self) -> str:
        """The input for people: "float32[4, 8]", or its value."""
        if "shape" in self.facts:
            return f"{self.facts['dtype']}{list(self.facts['shape'])}"  # type: ignore[call-overload]
        return str(self.facts.get("value", ""))


def counted(count: int, what: str) -> str:
    """Return "1 step" or "2 steps"."""
    return f"{count} {what}" + "s" * (count != 1)


def changes(before: Sequence[Input], now: Sequence[Input]) -> list[str]:
    """Return what differs between the inputs of two calls, each in a sentence's words."""
    known = {i.name: i.facts for i in before}
    found: list[str] = []
    free: list[str] = []
    for one in now:
        was = known.pop(one.name, None)
        subject = f"argument `{one.name}`" if one.name else ""
        if was is None:
            found.append(f"{subject} is new: {one.form or one.facts.get(_FREE)}")
            continue
        for fact, value in one.facts.items():
            if fact not in was or was[fact] != value:
                what = "" if fact in ("value", _FREE) else f" {fact}"
                text = f"{subject} changed{what}" if one.name else f"{fact} changed"
                text += f" from {was.get(fact, 'nothing')} to {value}"
                (free if fact == _FREE else found).append(text)
    found += [f"argument `{name}` is gone" for name in known if name]
    return found or free


def nearest(
    earlier: Iterable[Sequence[Input]], now: Sequence[Input]
) -> tuple[Sequence[Input], list[str]]:
    """Return the inputs of the nearest of earlier calls, the latest last, and what differs from them."""
    best: Sequence[Input] = ()
    least: list[str] = []
    for inputs in earlier:
        found = changes(inputs, now)
        if not best or len(found) <= len(least):
            best, least = inputs, found
    return best, least


def told(differences: Sequence[str]) -> str:
    """Return differences as one text."""
    more = len(differences) - _TOLD
    return "; ".join(differences[:_TOLD]) + (f"; and {more} more" if more > 0 else "")


def grown(before: Sequence[Input], now: Sequence[Input]) -> dict[str, list[int]]:
    """Return the dimensions in which inputs differ from those of another call, by name, of those that
    differ in sizes alone.
    """
    known = {i.name: i.facts.get("shape") for i in before}
    found: dict[str, list[int]] = {}
    for one in now:
        was, shape = known.get(one.name), one.facts.get("shape")
        if (
            isinstance(was, tuple)
            and isinstance(shape, tuple)
            and len(was) == len(shape)
            and was != shape
        ):
            found[one.name] = [d for d, (a, b) in enumerate(zip(was, shape)) if a != b]
    return found
