"""Compare: measurements side by side. May import floors 0 to 5."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from webtorch.utils.benchmark.measurement import (
    Measurement,
    select_unit,
    trim_sigfig,
    unit_to_english,
)

_BEST, _GOOD, _BAD, _PLAIN = "\033[92m\033[1m", "\033[32m", "\033[31m", "\033[0m"


class Colorize(enum.Enum):
    """What a time is compared with when it is given a colour."""

    NONE = "none"
    COLUMNWISE = "columnwise"
    ROWWISE = "rowwise"


class Compare:
    """A table for each label: rows are sub labels (by environment and threads), columns are descriptions.

    Measurements of one task are one entry, the median of all of their times.
    """

    def __init__(self, results: list[Measurement]) -> None:
        """Take measurements; `extend_results` takes more."""
        self._results: list[Measurement] = []
        self.extend_results(results)
        self._trim = self._warns = False
        self._colorize = Colorize.NONE

    def extend_results(self, results: Iterable[Measurement]) -> None:
        """Add measurements. Raises ValueError for anything else."""
        given = list(results)
        for r in given:
            if not isinstance(r, Measurement):
                raise ValueError(f"Expected an instance of `Measurement`, got {type(r)} instead.")
        self._results += given

    def trim_significant_figures(self) -> None:
        """Show no more digits than the spread of the times leaves."""
        self._trim = True

    def colorize(self, rowwise: bool = False) -> None:
        """Show the best of each column, or row, in green, and what takes twice as long in red."""
        self._colorize = Colorize.ROWWISE if rowwise else Colorize.COLUMNWISE

    def highlight_warnings(self) -> None:
        """Mark times that are widely spread with (!)."""
        self._warns = True

    def print(self) -> None:
        """Print the tables."""
        print(str(self))  # noqa: T201

    def __str__(self) -> str:
        labels = dict.fromkeys(r.task_spec.label for r in self._results)
        return "\n".join(
            [
                self._table([r for r in self._results if r.task_spec.label == label])
                for label in labels
            ]
        )

    def _table(self, results: list[Measurement]) -> str:
        merged = Measurement.merge(results)
        columns = list(dict.fromkeys(m.task_spec.description or "" for m in merged))
        several = len({m.task_spec.env for m in merged}) > 1
        rows = list(
            dict.fromkeys((m.task_spec.num_threads, m.task_spec.env, m.as_row_name) for m in merged)
        )
        rows.sort(key=lambda row: row[0])
        entries = {
            (
                (m.task_spec.num_threads, m.task_spec.env, m.as_row_name),
                m.task_spec.description or "",
            ): m
            for m in merged
        }
        unit, seconds = select_unit(min(m.median for m in merged))
        cells = {place: self._cell(m, seconds) for place, m in entries.items()}
        names = [f"({row[1]}) {row[2]}" if several and row[1] else row[2] for row in rows]
        first = max(len(n) for n in names) + 6
        widths = {c: max(len(c), *(len(cells.get((r, c), "")) for r in rows)) for c in columns}

        def line(start: str, texts: Iterable[str]) -> str:
            """Return a line of the table."""
            return "  |  ".join([start.ljust(first), *texts]).rstrip()

        lines = [line("", [c.center(widths[c]) for c in columns])]
        threads = None
        for row, name in zip(rows, names, strict=True):
            if row[0] != threads:
                threads = row[0]
                lines.append(f"{threads} thread{'s' * (threads > 1)}:")
            shown = [
                self._coloured(cells.get((row, c), "").rjust(widths[c]), row, c, entries)
                for c in columns
            ]
            lines.append(line(f"      {name}", shown))
        total = first + sum(w + 5 for w in widths.values())
        lines = [
            f"{text} {'-' * (total - len(text) - 1)}" if text.endswith(":") else text
            for text in lines
        ]
        label = merged[0].task_spec.label or merged[0].task_spec.stmt.splitlines()[0]
        head = f"[{f' {label} '.center(total - 2, '-')}]"
        return "\n".join([head, *lines, "", f"Times are in {unit_to_english(unit)}s ({unit}).", ""])

    def _cell(self, m: Measurement, seconds: float) -> str:
        digits = m.significant_figures if self._trim else 3
        value = trim_sigfig(m.median / seconds, digits)
        whole = self._trim and (value >= 100 or digits <= 1)
        text = f"{value:.{0 if whole else 1}f}"
        return text + (f" (! {m.iqr / m.median:.0%})" if self._warns and m.has_warnings else "")

    def _coloured(
        self,
        text: str,
        row: tuple[int, str | None, str],
        column: str,
        entries: dict[tuple[tuple[int, str | None, str], str], Measurement],
    ) -> str:
        found = entries.get((row, column))
        if self._colorize is Colorize.NONE or found is None:
            return text
        rowwise = self._colorize is Colorize.ROWWISE
        best = min(
            m.median for (r, c), m in entries.items() if (r == row if rowwise else c == column)
        )
        part = found.median / best
        colour = _BEST if part <= 1.05 else _GOOD if part <= 1.25 else _BAD if part >= 2 else ""
        return f"{colour}{text}{_PLAIN}" if colour else text
