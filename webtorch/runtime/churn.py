"""Bounded caches that make the same kind of entry anew again and again: counted, and warned about once. Floor 3.

A cache entry belongs to a family: what stays equal when only shapes change. A loop in which every
step has another shape makes a new entry at every step and never finds one; so does a loop that
needs more entries than the cache holds.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from webtorch.errors import CacheChurnWarning

_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
# New entries of one family in a row, none of them found again, after which a loop is certain.
_IN_A_ROW = 64
# Entries that were dropped and made again, after which the cache is too small for the loop.
_MADE_AGAIN = 64
# ... if no more than this many others were asked for meanwhile, for each: then it is one loop.
_BETWEEN = 32
_FAMILIES = 512
_REMEMBERED = 4096


@dataclass(slots=True)
class Family:
    """Entries that differ in their shapes: what one loop makes."""

    in_a_row: int = 0
    since: int = 0
    last: object = None


@dataclass(slots=True)
class Churn:
    """The counters of one cache, and what tells that it churns.

    `cache` names it, `remedy` says what the user can do. It churns when `in_a_row` new entries of a
    family follow each other (None: that is no sign), or `again` entries were dropped and made again.
    """

    cache: str
    remedy: str
    in_a_row: int | None = _IN_A_ROW
    again: int = _MADE_AGAIN
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    made_again: int = 0
    warned: bool = False
    _families: OrderedDict[Hashable, Family] = field(default_factory=OrderedDict)
    _dropped: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def known(self, family: Hashable) -> Family | None:
        """Return what is known of a family."""
        return self._families.get(family)

    def found(self, family: Family | None) -> None:
        """Count a hit: the loop that made this entry comes back to it."""
        self.hits += 1
        if family is not None:
            family.in_a_row = 0

    def made(
        self,
        key: Hashable,
        family: Hashable,
        entry: object,
        difference: Callable[[object, object], str],
    ) -> Family:
        """Count a miss; return what `found` is told when the entry is found again.

        `difference(before, now)` says what differs between two entries of a family.
        """
        self.misses += 1
        known, before = self.met(family, entry)
        again = hash(key) in self._dropped
        self.made_again += again
        if self.warned or before is None:
            return known
        if self.in_a_row is not None and known.in_a_row >= self.in_a_row:
            self._warn(
                f"{self.cache}: {known.in_a_row} were made in a row and none was used again. From "
                f"one to the next, {difference(before, entry)}."
            )
        elif again and self.made_again >= self.again:
            self._warn(
                f"{self.cache}: {self.made_again} had to be made that had been dropped before: the "
                f"loop needs more of them than are kept. From one to the next, "
                f"{difference(before, entry)}."
            )
        return known

    def met(self, family: Hashable, entry: object) -> tuple[Family, object]:
        """Note one more entry of a family, even if it is not made. Return the family, and its last entry before."""
        known = self._families.get(family)
        if known is None:
            known = self._families[family] = Family()
            if len(self._families) > _FAMILIES:
                self._families.popitem(last=False)
        else:
            self._families.move_to_end(family)
        before, known.last = known.last, entry
        asked = self.hits + self.misses
        if not known.in_a_row or asked - known.since > _BETWEEN * (self.in_a_row or 1):
            known.in_a_row, known.since = 0, asked
        # The very same again is no new shape: it was dropped.
        known.in_a_row = 0 if entry == before else known.in_a_row + 1
        return known, before

    def dropped(self, key: Hashable) -> None:
        """Count an entry that was dropped to make room."""
        self.evictions += 1
        self._dropped[hash(key)] = None
        if len(self._dropped) > _REMEMBERED:
            self._dropped.popitem(last=False)

    def counts(self, entries: int) -> dict[str, int]:
        """Return the counters and the number of `entries` that are kept now."""
        return {
            "entries": entries,
            "hits": self.hits,
            "misses": self.misses,
            "evictions": self.evictions,
            "made_again": self.made_again,
        }

    def _warn(self, text: str) -> None:
        self.warned = True
        # The line to name is the first outside this package.
        depth, frame = 1, sys._getframe()
        while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
            depth, frame = depth + 1, frame.f_back
        warnings.warn(f"{text} {self.remedy}", CacheChurnWarning, stacklevel=depth)
