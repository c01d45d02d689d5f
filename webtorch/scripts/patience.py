"""Whether to look at calls: from how many runs of a program on, and for how many runs not where that was in vain."""

from __future__ import annotations

import math
import os
from time import process_time

from webtorch.scripts.run import Run

# For tests: whatever is computed twice.
_ALWAYS = os.environ.get("WEBTORCH_SCRIPTS") == "always"
# A program of fewer operations is not worth a script.
FEWEST = 1 if _ALWAYS else 8
# How often a program runs before the calls that make it are recorded.
_REPEATS = 1 if _ALWAYS else 2
# After so many runs in which nothing was learned or followed nobody looks any more, until the same programs have
# run so many times as often.
_PATIENCE = 1 << 60 if _ALWAYS else 8
_LONGER = 4
_LONGEST = 512
_OFTEN = 16
# Nor where, in so many times as many runs, more calls were recorded than were answered, and again in as many: then for
# so many runs from here on, and four times as many at each time, whatever programs they are.
_WINDOW = 8
_HOLD, _LONGEST_HOLD = 256, 1 << 14
# Nor where more than this share of the processor's time since something was computed first has gone by in calls that
# were recorded or made again, beside so many seconds: a program that never follows takes about that much longer.
_SHARE, _FREE = 0.05, math.inf if _ALWAYS else 0.25
# As many calls could be recorded in the time that a run takes by itself.
_A_RUN = 10
# Of how many programs it is known how often they have run.
_MOST_SEEN = 4096


class Patience:
    """What looking at the calls of one thread has cost and gained."""

    def __init__(self) -> None:
        # How many runs in a row were in vain.
        self.in_vain = 0
        # When something was computed first, and when the last run ended that was looked at, if that is known; and the
        # seconds of calls that were recorded or made again, less those of runs that were followed.
        self.first = self.last = process_time()
        self.spent = 0.0
        # In how many runs, since these were counted last, how many calls were recorded or made again, and how many
        # were answered and computed; and how often in a row the former were more.
        self.runs = self.lost = self.gained = self.losses = 0
        # For how many runs from here on nobody looks because that has cost more than it gained, and how many it were.
        self.hold = self.held = 0
        # How often programs have run, by id, and how often they must before calls are looked at (again).
        self.seen: dict[int, int] = {}
        self.needed: dict[int, int] = {}
        # The programs that have run since calls are looked at.
        self.tried: set[int] = set()
        # How many runs from here on nobody looks, and how many it were the last time that looking was in vain: programs
        # may be many, as where sizes change at each step, and each be new to the figures above.
        self.wait = self.waited = 0

    def ends(self, number: int, operations: int) -> bool:
        """Count a run of a program, whose calls nobody has looked at; return whether to look from now on."""
        if operations < FEWEST:
            return False
        count = self.seen[number] = self.seen.get(number, 0) + 1
        needed = self.needed.get(number, _REPEATS)
        self.wait -= 1
        self.hold -= 1
        if len(self.seen) > _MOST_SEEN:
            self.seen.clear()
            self.needed.clear()
        # One that comes again and again does not wait for a pause that others have caused.
        often = self.hold < 0 and count >= needed and (self.wait < 0 or count >= _OFTEN)
        # Nobody begins to look for a few runs.
        return often and self.affords(2 * self.spent, process_time())

    def affords(self, seconds: float, now: float) -> bool:
        """Whether so much may have been spent."""
        return seconds <= _FREE + _SHARE * (now - self.first)

    def begin(self) -> None:
        """Count anew, as calls are looked at from now on."""
        self.in_vain = self.runs = self.lost = self.gained = self.losses = 0
        self.last = 0.0
        self.tried.clear()

    def pause(self) -> None:
        """Wait until programs have run often again."""
        for number in self.tried:
            self.needed[number] = _LONGER * max(_REPEATS, self.seen.get(number, 0))
        self.wait = self.waited = min(_LONGER * max(self.waited, _PATIENCE), _LONGEST)

    def run_ended(self, followed: bool) -> None:
        """Count a run that was looked at."""
        self.in_vain = 0 if followed else self.in_vain + 1
        self.waited -= followed and self.waited > 0
        # To ask takes a microsecond.
        now = process_time() if self.spent else 0.0
        if followed and self.last and now:
            self.spent = max(0.0, self.spent - (now - self.last))
        self.last = now
        self.runs += 1
        if self.runs >= _WINDOW * _PATIENCE:
            if self.lost > self.gained:
                self.losses += 1
            else:
                self.losses = self.held = 0
            self.runs = self.lost = self.gained = 0

    def gives_up(self) -> bool:
        """Return whether looking has cost more than it gained, after which nobody looks for long."""
        if self.losses > 1:
            self.hold = self.held = min(max(_HOLD, 4 * self.held), _LONGEST_HOLD)
            return True
        return self.in_vain > _PATIENCE or not self.affords(self.spent, self.last or math.inf)

    def gain(self, run: Run) -> None:
        """Count what a run that was followed has gained: the calls that it answered, less what a run costs as well. A
        backward pass and an optimizer's step are worth more than that, and records of gradients take as long as calls.
        """
        gained = 1 + len(run.slots) - run.first
        large = run.differentiated or run.at.kind == "step"
        gained = 2 * gained if large else gained - _A_RUN
        self.gained += max(0, gained)
        self.lost -= min(0, gained)
