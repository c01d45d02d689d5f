"""When a device that computes by itself begins with what is pending. Floor 3."""

from __future__ import annotations

from dataclasses import dataclass

from webtorch.runtime.backend import Backend

# Recorded but unrealized results are bounded: at this number they are computed.
MAX_PENDING = 8192
# Where a thread waits each time for what it has recorded, the results of so many calls are computed ahead...
_AHEAD = 48
# ... once it has waited so often for at least so many and all was known, and never recorded so many without waiting.
_AHEAD_AFTER = 1
_MUCH = 96
_FAR = 4096
# How often something may be compiled for that until it is given up.
_NEWS = 8
# How many times longer it then takes to begin again.
_LONGER = 24


@dataclass(slots=True)
class Counters:
    """How often the program cache was asked, and how often it had to compile."""

    realized: int = 0
    hits: int = 0
    misses: int = 0


class Ahead:
    """Decides when a device that computes by itself begins with what is pending.

    A thread that waits for each result leaves the device idle while it records, and is idle while that computes. Where
    it does not wait, a whole step is one program, which works while the next one is recorded. Numbers of calls decide
    and no times, so that a loop has the same programs in each run.
    """

    def __init__(self, backend: Backend, counters: Counters) -> None:
        self.backend, self.counters = backend, counters
        # With the results of how many calls it begins, and how many have been recorded since it last did. Numbers of
        # pending results would be others while calls are learned, and so would all programs after them.
        self.most = MAX_PENDING
        self.calls = 0
        self._waited, self._missed = backend.waited, counters.misses
        self._count = self._times = 0
        self._after, self._news = _AHEAD_AFTER, _NEWS

    def take(self, count: int) -> None:
        """Note that `count` results are computed."""
        waited = self.backend.waited
        if waited != self._waited:
            self._waited = waited
            if self._count >= _MUCH:
                self._turn(self.counters.misses)
            self._count = 0
        elif self._count >= _FAR:
            self._times, self.most = 0, MAX_PENDING
        self._count += count
        self.calls = 0

    def divide(self) -> None:
        """Note that something was computed in parts of its own, since its sizes change."""
        self._missed = -1

    def _turn(self, missed: int) -> None:
        """Note that a thread has waited for much, and how many programs were compiled so far."""
        new, self._missed = missed != self._missed, missed
        if self.most == MAX_PENDING:
            self._times = 0 if new else self._times + 1
            if self._times >= self._after:
                self.most, self._news = _AHEAD, _NEWS
        elif new:
            self._news -= 1
            if not self._news:
                # Sizes that change, as of a growing cache, would make all parts anew.
                self._times, self.most, self._after = 0, MAX_PENDING, _LONGER * self._after
