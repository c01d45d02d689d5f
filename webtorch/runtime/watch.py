"""Whoever wants to see what runs: nobody, or a profiler. Floor 3; imports floor 0 only.

Executables ask `watch.listener` once per run and runtimes `watch.before`; while there is none nothing
else is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from webtorch.ir.lines import line_of
from webtorch.ir.program import Dispatch, Program


@dataclass(frozen=True, slots=True)
class Timing:
    """When one dispatch of a program ran, in seconds of the device's clock.

    `step` is the number of the program's step; a step of several passes has several timings. `name`
    is that of the routine.
    """

    step: int
    name: str
    start: float
    end: float


@dataclass(slots=True)
class Run:
    """One run of a program.

    `started` and `enqueued` are when the call began and came back, by time.perf_counter. `times`
    waits for the device and returns the timings in order. `host_clock`: whether their clock is
    time.perf_counter too. `sources` returns the text of a routine on the device.
    """

    program: Program
    device: str
    started: float
    enqueued: float
    times: Callable[[], list[Timing]]
    host_clock: bool
    # Of each node of the graph that ran, where they are known: the program may be another graph's, too.
    lines: Sequence[object] | None = None

    def line(self, step: Dispatch) -> str:
        """Return the user's line of a step."""
        return line_of(step.line, self.lines)


class Listener(Protocol):
    """What is told about each run and each compilation."""

    def ran(self, run: Run) -> None:
        """A program has been enqueued."""
        ...

    def compiled(self, program: Program, device: str, started: float, ended: float) -> None:
        """A graph has become a program ready to run, between two times of time.perf_counter."""
        ...


class _Watch:
    listener: Listener | None = None
    # What the run that begins next is to tell of its nodes; set while somebody listens, with the device's lock.
    lines: Sequence[object] | None = None
    # Called with a runtime and the owners whose pending values it is about to compute.
    before: Callable[[Any, list[Any]], None] | None = None

    def taken(self) -> Sequence[object] | None:
        """Return the lines of the run that begins, which are no other's."""
        lines, self.lines = self.lines, None
        return lines


watch = _Watch()
