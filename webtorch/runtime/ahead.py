"""When a device that computes by itself begins with what is pending. Floor 3."""

from __future__ import annotations

from dataclasses import dataclass

from webtorch.ir.graph import Node
from webtorch.runtime.backend import Backend

# Recorded but unrealized results are bounded: at this number they are computed.
MAX_PENDING = 8192
# Once that has happened, they are computed at the same place of the program when there are so many.
_SOME = 1024
# So many places are kept, and each is told by so many calls.
_PLACES = 16
_CONTEXT = 8
# As many calls are never recorded.
_NEVER = 1 << 40
# Where a thread waits each time for what it has recorded, the results of so many calls are computed ahead...
_AHEAD = 48
# ... once it has waited so often for at least so many and all was known, and never recorded so many without waiting.
_AHEAD_AFTER = 1
_MUCH = 96
_FAR = 4096
# How often something may be compiled for that until it is given up.
_NEWS = 8
# In so few parts sizes may change, and so few programs are compiled for a new size, of as many times more.
_FEW, _SHARE = 4, 3
# How many times longer it then takes to begin again.
_LONGER = 24


@dataclass(slots=True)
class Counters:
    """How often the program cache was asked, and how often it had to compile."""

    realized: int = 0
    hits: int = 0
    misses: int = 0


def _mark(node: Node) -> object:
    """Return what tells a call from most others of a loop."""
    return node.kind, id(node.form), node.line, node.shape


def _context(node: Node) -> tuple[object, ...]:
    """Return what tells it from the others: what it was computed from, a layer from the next by its weights."""
    found: list[object] = []
    waiting = [node]
    for n in waiting:
        for s in n.srcs:
            if s.kind == "buffer":
                found.append(id(s))
            elif len(waiting) < _CONTEXT:
                waiting.append(s)
                found.append(_mark(s))
    return tuple(found)


class Ahead:
    """Decides when a device that computes by itself begins with what is pending.

    A thread that waits for each result leaves the device idle while it records, and is idle while that computes. Where
    it does not wait, a whole step is one program, which works while the next one is recorded. Numbers of calls decide
    and no times, so that a loop has the same programs in each run.
    """

    __slots__ = ("__dict__", "bound", "calls", "most")

    def __init__(self, backend: Backend, counters: Counters) -> None:
        self.backend, self.counters = backend, counters
        # With the results of how many calls it begins, and how many have been recorded since it last did. Numbers of
        # pending results would be others while calls are learned, and so would all programs after them.
        self.most = _NEVER
        self.calls = 0
        # From how many pending results on each further one is looked at, and where too many were met: a loop that never
        # reads has the same programs only if they begin and end at the same places of it.
        self.bound = MAX_PENDING
        # Whether it is computed for that, and not since something looks at it.
        self.full = False
        self._places: dict[object, tuple[object, ...]] = {}
        self._waited, self._missed = backend.waited, counters.misses
        self._ran, self._divided = counters.misses + counters.hits, False
        self._count = self._times = 0
        self._after, self._news = _AHEAD_AFTER, _NEWS

    def take(self, count: int) -> None:
        """Note that `count` results are computed."""
        waited = self.backend.waited
        if waited != self._waited:
            self._waited = waited
            # Who waits after so many calls seldom waits.
            if _MUCH <= self._count < _FAR:
                self._turn()
            self._count = 0
        elif self._count >= _FAR:
            self._times, self.most = 0, _NEVER
        self._count += count
        self.calls = 0

    def is_full(self, node: Node, count: int) -> bool:
        """Whether the `count` results that are pending are to be computed now, that of `node` being the last."""
        mark = _mark(node)
        full = count > MAX_PENDING
        before = self._places.get(mark)
        if before is None and not full:
            return False
        context = _context(node)
        if full:
            self.bound, self._places[mark] = _SOME, context
            if len(self._places) > _PLACES:
                del self._places[next(iter(self._places))]
        return full or before == context

    def divide(self, varying: int) -> None:
        """Note that something was computed in parts, and in how many of them sizes change."""
        self._divided |= varying > _FEW

    def _turn(self) -> None:
        """Note that a thread has waited for much."""
        misses, ran = self.counters.misses, self.counters.misses + self.counters.hits
        new, of = misses - self._missed, ran - self._ran
        self._missed, self._ran = misses, ran
        # Each part whose size changes would be compiled anew with the calls that meet in it.
        divided, self._divided = self._divided, False
        if self.most == _NEVER:
            self._times = 0 if new or divided else self._times + 1
            self._after = max(self._after, _LONGER * divided)
            if self._times >= self._after:
                self.most, self._news = _AHEAD, _NEWS
        elif new > _FEW or new * _SHARE > of or divided:
            self._news -= 1
            if not self._news:
                # Sizes that change, as of a growing cache, would make all parts anew.
                self._times, self.most, self._after = 0, _NEVER, _LONGER * self._after
