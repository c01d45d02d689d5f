"""Times that were measured, and how they are told. May import floors 0 to 5."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

# Where a distribution is wider than this part of its median, its digits are doubtful.
_WIDE = 0.1
_VERY_WIDE = 0.25
_UNITS = (("ns", 1e-9, "nanosecond"), ("us", 1e-6, "microsecond"), ("ms", 1e-3, "millisecond"),
          ("s", 1.0, "second"))  # fmt: skip


def select_unit(t: float) -> tuple[str, float]:
    """Return the unit in which a time in seconds is told, and how many seconds it is."""
    unit, seconds, _ = next((u for u in reversed(_UNITS) if t >= u[1]), _UNITS[0])
    return unit, seconds


def unit_to_english(u: str) -> str:
    """Return the name of a unit: "us" is microsecond."""
    return {unit: name for unit, _, name in _UNITS}[u]


def trim_sigfig(x: float, n: int) -> float:
    """Return x with n significant digits."""
    if not x or not math.isfinite(x):
        return x
    return float(f"{x:.{max(n, 1) - 1}e}")


@dataclass(frozen=True)
class TaskSpec:
    """What was measured: the statement, and the words that a table has for it."""

    stmt: str
    setup: str
    global_setup: str = ""
    label: str | None = None
    sub_label: str | None = None
    description: str | None = None
    env: str | None = None
    num_threads: int = 1

    @property
    def title(self) -> str:
        """The label, or the statement where there is none."""
        if self.label is not None:
            return f"{self.label}: {self.sub_label}" if self.sub_label else self.label
        return self.stmt if "\n" not in self.stmt else f"stmt:\n{_indented(self.stmt)}"

    @property
    def setup_str(self) -> str:
        """The setup as it is printed; "" where there is none."""
        if self.setup in ("", "pass"):
            return ""
        return f"setup:\n{_indented(self.setup)}" if "\n" in self.setup else f"setup: {self.setup}"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


@dataclass(repr=False)
class Measurement:
    """Times of blocks of `number_per_run` runs each, in seconds."""

    number_per_run: int
    raw_times: list[float]
    task_spec: TaskSpec
    metadata: dict[Any, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        if name != "task_spec" and name in TaskSpec.__dataclass_fields__:
            return getattr(self.task_spec, name)
        raise AttributeError(f"'Measurement' object has no attribute {name!r}")

    @cached_property
    def times(self) -> list[float]:
        """Seconds per run, one number for each block."""
        return [t / self.number_per_run for t in self.raw_times]

    @property
    def median(self) -> float:
        """The median of the seconds per run."""
        return statistics.median(self.times)

    @property
    def mean(self) -> float:
        """The mean of the seconds per run."""
        return statistics.fmean(self.times)

    @property
    def iqr(self) -> float:
        """The distance from the first quartile to the third, in seconds."""
        if len(self.times) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.times, n=4, method="inclusive")
        return high - low

    @property
    def significant_figures(self) -> int:
        """How many digits of the median the spread of the times leaves."""
        if not self.iqr:
            return 3
        # As of normal numbers: the error of a median of n, 99 times in 100.
        sigma = 1.2533 * self.iqr / 1.349 / math.sqrt(max(len(self.times), 1))
        relative = 2.576 * sigma / self.median
        return min(max(math.floor(-math.log10(relative)) + 1, 1), 4) if relative < 1 else 1

    @property
    def has_warnings(self) -> bool:
        """Whether the times are spread so widely that something else was measured too."""
        return not self.meets_confidence(_WIDE)

    def meets_confidence(self, threshold: float = _WIDE) -> bool:
        """Return whether the interquartile range is below this part of the median."""
        return self.iqr / self.median < threshold

    @property
    def title(self) -> str:
        """What was measured."""
        return self.task_spec.title

    @property
    def as_row_name(self) -> str:
        """The name of the row of a table: the sub label, or the statement."""
        return self.task_spec.sub_label or self.task_spec.stmt

    @property
    def env(self) -> str:
        """What the environment was called."""
        return self.task_spec.env or "Unspecified env"

    def __repr__(self) -> str:
        unit, seconds = select_unit(self.median)
        lines = [object.__repr__(self), self.task_spec.title]
        lines += [t for t in (self.task_spec.description, self.task_spec.setup_str) if t]
        median = f"{trim_sigfig(self.median, 3) / seconds:.4g} {unit}"
        runs, threads = self.number_per_run, self.task_spec.num_threads
        count = len(self.raw_times)
        each = f"{runs} run{'s' * (runs > 1)}" + (" per measurement" if count > 1 else "")
        facts = (
            f"{count} measurement{'s' * (count > 1)}, {each}, {threads} thread{'s' * (threads > 1)}"
        )
        if count > 1:
            lines += [f"  Median: {median}", f"  IQR:    {self.iqr / seconds:.3g} {unit}"]
            if self.has_warnings:
                part = self.iqr / self.median
                word = "could indicate" if part < _VERY_WIDE else "suggests"
                lines.append(
                    f"  WARNING: Interquartile range is {part:.0%} of the median measurement.\n"
                    f"           This {word} that something else ran meanwhile."
                )
        else:
            lines.append(f"  {median}")
        return "\n".join([*lines, f"  {facts}"])

    @staticmethod
    def merge(measurements: Iterable[Measurement]) -> list[Measurement]:
        """Return one measurement for each task, with the times of all that measured it."""
        groups: dict[TaskSpec, list[Measurement]] = {}
        for m in measurements:
            groups.setdefault(m.task_spec, []).append(m)
        return [
            replace(group[0], number_per_run=1, raw_times=[t for m in group for t in m.times])
            for group in groups.values()
        ]
