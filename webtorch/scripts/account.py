"""What became of steps: how many followed a script, why others did not, and what that cost."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass

from webtorch.ir.lines import line_text, source_text, user_line
from webtorch.runtime.trace import debug_level, show_reason

# How many reasons are kept.
_MOST = 1000


@dataclass(slots=True)
class Cost:
    """How often something happened, how many calls were made again for it, and how long that took."""

    times: int = 0
    calls: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        """Return it in words."""
        times = "once" if self.times == 1 else f"{self.times} times"
        return f"{times}, {_again(self.calls, self.seconds)}" if self.calls else times


class Account:
    """What became of the steps of one thread. A step is what is called between two computations."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        # Why steps did not become scripts, or left them, and the user's line -> what that cost.
        self.reasons: dict[tuple[str, str], Cost] = {}
        self._last = Cost()

    def note(self, why: str) -> None:
        """Keep why calls do not follow a script, at the user's line."""
        line = user_line()
        where = "" if line is None else line_text(line)
        found = self.reasons.get((why, where))
        if found is None:
            found = Cost()
            if len(self.reasons) < _MOST:
                self.reasons[why, where] = found
                if debug_level():
                    show_reason(why, where)
        found.times += 1
        self._last = found

    def left(self, calls: int, seconds: float) -> None:
        """Take notice that a script was left for the reason that was noted last, and what that cost."""
        self.counts["left"] += 1
        self._last.calls += calls
        self._last.seconds += seconds

    def text(self) -> str:
        """Say it all, what cost most first."""
        counts, reasons = self.counts, self.reasons
        calls = sum(c.calls for c in reasons.values())
        lines = [
            f"{counts['followed']} of {counts['steps']} steps followed one of {_many(counts['scripts'], 'script')}, "
            f"{counts['left']} left theirs"
            + (f" ({_again(calls, sum(c.seconds for c in reasons.values()))})" if calls else "")
        ]
        for (why, where), cost in sorted(
            reasons.items(), key=lambda item: (-item[1].seconds, -item[1].times)
        )[:20]:
            lines.append(f"  {cost}: {why}" + (f" ({_shown(where)})" if where else ""))
        return "\n".join(lines)


def _shown(where: str) -> str:
    """Return "train.py:12: loss = loss * 2" of a path and a line."""
    text = source_text(where)
    return os.path.basename(where) + (f": {text}" if text else "")


def _again(calls: int, seconds: float) -> str:
    return f"{_many(calls, 'call')} made again in {seconds * 1e3:.1f} ms"


def _many(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number != 1)
