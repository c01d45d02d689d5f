"""What a profile looks like: a table as text, a page, a trace. Imports the theme and the standard library."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from webtorch.runtime.realize import runtime_named
from webtorch.show.theme import style

if TYPE_CHECKING:
    from webtorch.profiler.timeline import Average, profile

# More events than this make a page that no browser likes to open: the first ones are shown.
_MAX_EVENTS = 60_000
_MAX_SOURCE = 20_000
_COLUMNS = ("kernel", "line", "calls", "total", "%", "mean", "GB/s", "GFLOP/s", "of peak")
# PyTorch's names of what a table may be sorted by.
_SORT = {
    "count": lambda one: one.count,
    "nbytes": lambda one: one.nbytes,
    "flops": lambda one: one.flops,
    "share": lambda one: one.share,
    "mean": lambda one: one.device_time,
}


def short_line(line: str) -> str:
    """Return "file.py:12" of a path and a line."""
    return os.path.basename(line)


def duration(seconds: float) -> str:
    """Return a time with three digits and its unit."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1.0 or unit == "µs":
            value = seconds * factor
            digits = 0 if value >= 100 else 1 if value >= 10 else 2
            return f"{value:.{digits}f} {unit}"
    return ""


def _rate(amount: float, seconds: float) -> str:
    value = amount / seconds / 1e9 if seconds else 0.0
    if not value:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}" if value < 10 else f"{value:.1f}"


def table(averages: Sequence[Average], sort_by: str | None, row_limit: int) -> str:
    """Return averages as lines of text. Raises ValueError for an order that does not exist."""
    total = sum(one.seconds for one in averages) or 1.0
    if sort_by == "key":
        chosen = sorted(averages, key=lambda one: one.key)
    elif sort_by is None or "time" in sort_by:
        chosen = sorted(averages, key=lambda one: -one.seconds)
    elif sort_by in _SORT:
        chosen = sorted(averages, key=_SORT[sort_by], reverse=True)
    else:
        raise ValueError(
            f"table: cannot sort by {sort_by!r}: it is time, key, {', '.join(_SORT)}, or one of "
            "PyTorch's names with time in it"
        )
    rows = [
        (
            one.key if len(one.key) <= 40 else one.key[:37] + "...",
            short_line(one.line),
            f"{one.count}",
            duration(one.seconds),
            f"{one.seconds / total * 100:.1f}",
            duration(one.seconds / max(one.count, 1)),
            _rate(one.nbytes, one.seconds),
            _rate(one.flops, one.seconds),
            f"{one.share * 100:.0f}% {one.bound}" if one.bound else "",
        )
        for one in (chosen if row_limit < 0 else chosen[:row_limit])
    ]
    widths = [max(len(r[i]) for r in (_COLUMNS, *rows)) for i in range(len(_COLUMNS))]
    lines = [_aligned(_COLUMNS, widths), _aligned(["-" * w for w in widths], widths)]
    lines += [_aligned(r, widths) for r in rows]
    left = len(averages) - len(rows)
    if left > 0:
        lines.append(f"... and {left} more")
    return "\n".join(lines)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    # Names to the left, numbers to the right.
    parts = [c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths))]
    return "  ".join(parts).rstrip()


def summary(found: profile) -> str:
    """Return what a profile says in one line."""
    busy = sum(e.seconds for e in found.events)
    compiling = sum(s.seconds for s in found.spans if s.kind == "compile")
    devices = ", ".join(dict.fromkeys(e.device for e in found.events)) or "no device"
    followed, counted = found.steps
    scripts = f"; {followed} of {counted} steps followed a script" if counted > 0 else ""
    return (
        f"{len(found.events)} dispatch{'es' * (len(found.events) != 1)} on {devices}: {duration(busy)} in kernels of "
        f"{duration(found.seconds)}, {duration(compiling)} compiling{scripts}"
    )


# ---- the page


def text_of_page(found: profile) -> str:
    """Return the page of a profile, which needs nothing else."""
    page = resources.files("webtorch.profiler").joinpath("page.html").read_text(encoding="utf-8")
    title = f"webtorch profile: {', '.join(_device_names(found)) or 'nothing ran'}"
    # No text of a kernel or a path may end the script that it stands in.
    data = json.dumps(_data(found), separators=(",", ":")).replace("<", "\\u003c")
    page = page.replace("{{theme}}", style()).replace("{{title}}", escape(title))
    return page.replace("{{data}}", data)


def _device_names(found: profile) -> list[str]:
    return list(dict.fromkeys(e.device for e in found.events))


def _data(found: profile) -> dict[str, object]:
    averages = found.key_averages()
    numbers = {(a.key, a.line, a.device): i for i, a in enumerate(averages)}
    devices = _device_names(found)
    described = []
    for name in devices:
        runtime = runtime_named(name)
        described.append([name, runtime.backend.description() if runtime is not None else ""])
    roofs = {
        f"{device} {a.dtype.name}": [roof.bandwidth, roof.flops]
        for device in devices
        for a in averages
        if a.device == device and a.dtype.kind == "float" and a.dtype.itemsize in (2, 4)
        and (roof := found.peaks(device, a.dtype)) is not None
    }  # fmt: skip
    sources: dict[int, str] = {}
    for a in averages:
        if a.routine >= 0 and a.routine not in sources:
            sources[a.routine] = found.source(a.routine)[:_MAX_SOURCE]
    return {
        "seconds": found.seconds,
        "devices": described,
        "roofs": roofs,
        "kernels": [
            {
                "name": a.key, "kind": a.kind, "line": a.line, "device": a.device, "dtype": a.dtype.name,
                "count": a.count, "seconds": a.seconds, "nbytes": a.nbytes, "flops": a.flops,
                "share": a.share, "bound": a.bound, "source": a.routine,
            }
            for a in averages
        ],
        "sources": sources,
        "events": [
            [numbers[e.name, e.line, e.device], round(e.start * 1e9), round(e.seconds * 1e9), e.run]
            for e in found.events[:_MAX_EVENTS]
        ],
        "left_out": max(0, len(found.events) - _MAX_EVENTS),
        "spans": [
            [s.name, s.kind, round(s.start * 1e9), round(s.seconds * 1e9), s.thread]
            for s in found.spans[:_MAX_EVENTS]
        ],
    }  # fmt: skip


# ---- the trace


def save_trace(found: profile, path: Path) -> None:
    """Write the trace of a profile: Chrome's JSON format, which Perfetto reads too."""
    events: list[dict[str, object]] = [
        {"ph": "M", "pid": 0, "tid": 0, "name": "process_name", "args": {"name": "host"}}
    ]
    for number, device in enumerate(_device_names(found), start=1):
        events.append(
            {"ph": "M", "pid": number, "tid": 0, "name": "process_name", "args": {"name": device}}
        )
    pids = {device: i for i, device in enumerate(_device_names(found), start=1)}
    for s in found.spans:
        events.append(
            {
                "ph": "X", "pid": 0, "tid": s.thread, "name": s.name, "cat": s.kind,
                "ts": s.start * 1e6, "dur": s.seconds * 1e6,
            }
        )  # fmt: skip
    for e in found.events:
        events.append(
            {
                "ph": "X", "pid": pids[e.device], "tid": 0, "name": e.name, "cat": e.kind,
                "ts": e.start * 1e6, "dur": e.seconds * 1e6,
                "args": {"line": e.line, "bytes": e.nbytes, "flops": e.flops, "run": e.run},
            }
        )  # fmt: skip
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
