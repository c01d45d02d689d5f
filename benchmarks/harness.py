"""Measures two ways of doing one thing, turn by turn, and says how they compare.

A shared machine is never quiet for long: the two sides take turns, so that both meet the same
noise, and the figure is the ratio of the fastest turns, with the ratio of the medians beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Run = Callable[[], object]


@dataclass(slots=True)
class Row:
    """One comparison. Times are seconds for one piece of work; `reach` is the ratio aimed at."""

    name: str
    ours: float
    ours_median: float
    peer: float | None = None
    peer_median: float | None = None
    reach: float | None = None
    note: str = ""
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Our fastest time over the peer's fastest."""
        return self.ours / self.peer if self.peer else None

    @property
    def median_ratio(self) -> float | None:
        """Our median time over the peer's median."""
        return self.ours_median / self.peer_median if self.peer_median else None


def _turn(run: Run, count: int) -> float:
    started = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - started) / count


def _count_for(run: Run, seconds: float) -> int:
    """Return how many runs fill `seconds`, after warming up."""
    run()
    run()
    once = min(_turn(run, 1) for _ in range(3))
    return max(1, min(10_000, round(seconds / max(once, 1e-7))))


def compare(
    name: str,
    ours: Run,
    peer: Run | None = None,
    *,
    reach: float | None = None,
    turns: int = 12,
    seconds: float = 0.03,
    note: str = "",
) -> Row:
    """Time `ours` and `peer`, which do the work once and wait for it, in `turns` alternating turns.

    A turn repeats the work for about `seconds`. Between turns the thread pools of the other side
    fall asleep: threads that spin for work would be measured too.
    """
    runs = [ours] if peer is None else [ours, peer]
    counts = [_count_for(run, seconds) for run in runs]
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(turns):
        for run, count, found in zip(runs, counts, times):
            time.sleep(0.01)
            run()
            found.append(_turn(run, count))
    best, middle = [min(t) for t in times], [statistics.median(t) for t in times]
    row = Row(name, best[0], middle[0], reach=reach, note=note)
    if peer is not None:
        row.peer, row.peer_median = best[1], middle[1]
    return row


def time_text(seconds: float | None) -> str:
    """Return a time with three digits and its unit."""
    if seconds is None:
        return "-"
    for limit, scale, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s"


def show(rows: Sequence[Row]) -> None:
    """Print rows as a table in the form that README.md keeps."""
    print("| work | webtorch | PyTorch | ratio | of medians | reach | |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        middle = "-" if row.median_ratio is None else f"{row.median_ratio:.2f}"
        reach = "" if row.reach is None else f"{row.reach:g}"
        print(
            f"| {row.name} | {time_text(row.ours)} | {time_text(row.peer)} | {ratio} | {middle} "
            f"| {reach} | {row.note} |"
        )
    sys.stdout.flush()


def machine() -> dict[str, Any]:
    """Return what the figures were measured on."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else -1.0
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "load": round(load, 2),
        "date": time.strftime("%Y-%m-%d"),
    }


def options(text: str, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse a script's options: --quick (sizes that only show that it runs), --out FILE (JSON)."""
    parser = argparse.ArgumentParser(description=text.strip().splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--out", metavar="FILE", help="also write the figures as JSON")
    return parser.parse_args(argv)


def write(path: str | None, rows: Sequence[Row], **more: Any) -> None:
    """Write rows and what they were measured on as JSON, where a path was given."""
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"machine": machine(), "rows": [asdict(r) for r in rows], **more}, file)


def main(text: str, measure: Callable[[bool], list[Row]]) -> None:
    """Run a script: parse the options, measure, print the table, write the JSON."""
    chosen = options(text)
    print(f"{text.strip().splitlines()[0]}  {machine()}", flush=True)
    rows = measure(chosen.quick)
    show(rows)
    write(chosen.out, rows)
