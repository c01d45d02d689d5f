"""Events of operators as `torch.autograd.profiler` gives them: lists, averages and tables of these. Floor 5."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple


def _format_time(time_us: float) -> str:
    """Return microseconds as text with a unit."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if time_us >= size:
            return f"{time_us / size:.3f}{unit}"
    return f"{time_us:.3f}us"


class Interval(NamedTuple):
    """A range of time in microseconds."""

    start: float
    end: float

    def elapsed_us(self) -> float:
        """Return how long it is."""
        return self.end - self.start


class FunctionEvent:
    """One call of an operator, or a range that the user named. Times in microseconds; the host's alone."""

    def __init__(
        self,
        id: int,
        name: str,
        thread: int,
        start_us: float,
        end_us: float,
        *,
        node_id: int = -1,
        overload_name: str | None = None,
        fwd_thread: int | None = None,
        input_shapes: list[list[int]] | None = None,
        sequence_nr: int = -1,
        is_async: bool = False,
        is_user_annotation: bool = False,
        **_more: object,
    ) -> None:
        self.id, self.node_id, self.name, self.thread = id, node_id, name, thread
        self.overload_name = overload_name or ""
        self.time_range = Interval(start_us, end_us)
        self.fwd_thread, self.sequence_nr, self.is_async = fwd_thread, sequence_nr, is_async
        self.is_user_annotation = is_user_annotation
        self.input_shapes = input_shapes or []
        self.stack: list[str] = []
        self.count = 1
        self.cpu_children: list[FunctionEvent] = []
        self.cpu_parent: FunctionEvent | None = None
        self.device_time_total = self.self_device_time_total = 0.0

    def append_cpu_child(self, child: FunctionEvent) -> None:
        """Take a call that was made within this one."""
        self.cpu_children.append(child)
        child.cpu_parent = self

    @property
    def key(self) -> str:
        """The name, by which averages are taken."""
        return self.name

    @property
    def cpu_time_total(self) -> float:
        """How long the call took."""
        return self.time_range.elapsed_us()

    @property
    def self_cpu_time_total(self) -> float:
        """How long it took without those made within it."""
        return self.cpu_time_total - sum(child.cpu_time_total for child in self.cpu_children)

    @property
    def cpu_time(self) -> float:
        """How long it took."""
        return self.cpu_time_total

    def __repr__(self) -> str:
        return (
            f"<FunctionEvent id={self.id} name={self.name} thread={self.thread} cpu_time="
            f"{_format_time(self.cpu_time)} input_shapes={self.input_shapes}>"
        )


class FunctionEventAvg:
    """Events of one name together."""

    def __init__(self) -> None:
        self.key: str | None = None
        self.count = 0
        self.input_shapes: list[list[int]] = []
        self.stack: list[str] = []
        self.cpu_time_total = self.self_cpu_time_total = 0.0
        self.device_time_total = self.self_device_time_total = 0.0
        self.cpu_parent: FunctionEvent | None = None

    def add(self, other: FunctionEvent | FunctionEventAvg) -> FunctionEventAvg:
        """Add an event, or others together."""
        if self.key is None:
            self.key, self.input_shapes = other.key, other.input_shapes
            self.cpu_parent = other.cpu_parent
        count, total, alone = other.count, other.cpu_time_total, other.self_cpu_time_total
        self.count += count
        self.cpu_time_total += total
        self.self_cpu_time_total += alone
        return self

    __iadd__ = add

    @property
    def cpu_time(self) -> float:
        """How long one took, on average."""
        return self.cpu_time_total / self.count if self.count else 0.0

    device_time = 0.0

    def __repr__(self) -> str:
        return (
            f"<FunctionEventAvg key={self.key} self_cpu_time={_format_time(self.self_cpu_time_total)} cpu_time="
            f"{_format_time(self.cpu_time)} input_shapes={self.input_shapes}>"
        )


class EventList(list[Any]):
    """Events, or averages of them; `table` shows them."""

    def _populate_cpu_children(self) -> None:
        """Find out which events lie within which, on each thread."""
        threads: dict[int, list[FunctionEvent]] = {}
        for event in self:
            if not event.is_async:
                threads.setdefault(event.thread, []).append(event)
        for events in threads.values():
            around: list[FunctionEvent] = []
            for event in sorted(events, key=lambda e: (e.time_range.start, -e.time_range.end)):
                start, end = event.time_range
                while around and (
                    start >= around[-1].time_range.end or end > around[-1].time_range.end
                ):
                    around.pop()
                if around:
                    around[-1].append_cpu_child(event)
                around.append(event)

    @property
    def self_cpu_time_total(self) -> float:
        """How long all took, each without those within it."""
        return float(sum(event.self_cpu_time_total for event in self))

    def key_averages(
        self, group_by_input_shapes: bool = False, group_by_stack_n: int = 0
    ) -> EventList:
        """Return the events of each name together; with `group_by_input_shapes` of each name and shapes."""
        found: dict[Any, FunctionEventAvg] = {}
        for event in self:
            key = event.key, str(event.input_shapes) if group_by_input_shapes else ""
            found.setdefault(key, FunctionEventAvg()).add(event)
        for one in found.values():
            if not group_by_input_shapes:
                one.input_shapes = []
        return EventList(found.values())

    def total_average(self) -> FunctionEventAvg:
        """Return all events together."""
        total = FunctionEventAvg()
        for event in self:
            total.add(event)
        total.key = None
        return total

    def table(
        self,
        sort_by: str | None = None,
        row_limit: int = 100,
        max_src_column_width: int = 75,
        max_name_column_width: int = 55,
        max_shapes_column_width: int = 80,
        header: str | None = None,
        top_level_events_only: bool = False,
    ) -> str:
        """Return the events as lines of text, sorted by one of their attributes, largest first."""
        events: Sequence[Any] = self
        if top_level_events_only:
            events = [e for e in events if e.cpu_parent is None]
        if sort_by is not None:
            events = sorted(events, key=lambda e: getattr(e, sort_by), reverse=True)
        total = sum(e.self_cpu_time_total for e in events) or 1.0
        titles = [
            "Name",
            "Self CPU %",
            "Self CPU",
            "CPU total %",
            "CPU total",
            "CPU time avg",
            "# of Calls",
        ]
        shapes = any(e.input_shapes for e in events)
        rows = [titles + ["Input Shapes"] * shapes]
        for e in events if row_limit < 0 else events[:row_limit]:
            row = [
                str(e.key)[:max_name_column_width],
                f"{100 * e.self_cpu_time_total / total:.2f}%",
                _format_time(e.self_cpu_time_total),
                f"{100 * e.cpu_time_total / total:.2f}%",
                _format_time(e.cpu_time_total),
                _format_time(e.cpu_time),
                str(e.count),
            ]
            rows.append(row + [str(e.input_shapes)[:max_shapes_column_width]] * shapes)
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        line = "  ".join("-" * w for w in widths)
        texts = ["  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
        lines = [line, texts[0], line, *texts[1:], line]
        if header is not None:
            lines.insert(0, header)
        return "\n".join(
            [*lines, f"Self CPU time total: {_format_time(self.self_cpu_time_total)}", ""]
        )

    def __str__(self) -> str:
        return self.table()

    def export_chrome_trace(self, path: str | Path) -> None:
        """Write the events as a trace for Perfetto or chrome://tracing."""
        events = [
            {
                "name": e.name, "ph": "X", "ts": e.time_range.start, "dur": e.cpu_time_total,
                "tid": e.thread, "pid": "CPU functions", "args": {},
            }
            for e in self
        ]  # fmt: skip
        Path(path).write_text(json.dumps(events), encoding="utf-8")
