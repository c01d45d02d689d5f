"""`torch.autograd.profiler.profile`: which operators a program calls, and how long the calls take. Floor 5."""

from __future__ import annotations

import threading
from pathlib import Path
from time import perf_counter
from typing import Any

from webtorch.dispatch.call import Args, Callee, Kwargs, Run, active, install, refuse_scripts
from webtorch.profiler.events import EventList, FunctionEvent, FunctionEventAvg
from webtorch.tensors.tensor import Tensor


class _Profiling(threading.local):
    """The interpreter that notes calls of operators."""

    running: OperatorProfile | None = None
    # How many calls are being made: those that a call is made of belong to it.
    depth = 0

    @property
    def on(self) -> bool:
        """Whether this thread's calls are noted."""
        return self.running is not None

    watches = on
    inside = False

    def call(self, callee: Callee, run: Run, args: Args, kwargs: Kwargs) -> Any:
        """Make a call, and note it."""
        running = self.running
        # What has no entry is written with others, which are noted.
        if running is None or self.depth or callee.op is None:
            return run(args, kwargs)
        start, self.depth = perf_counter(), self.depth + 1
        try:
            out = run(args, kwargs)
        finally:
            self.depth -= 1
        shapes = [list(a._shape) if isinstance(a, Tensor) else [] for a in args]
        fn = getattr(out, "_grad_fn", None)
        running.note(_name(callee), start, shapes, -1 if fn is None else fn.sequence)
        return out


profiling = _Profiling()
install("profile", profiling)


def _name(callee: Callee) -> str:
    """Return what PyTorch calls the operator of a call."""
    name, entry = callee.name, callee.op
    if name.startswith("__i"):
        name = f"{name[3:-2]}_"
    elif entry.aten:
        name = entry.aten[0]
    elif name.startswith("__"):
        name = entry.name.strip("_")
    # What adds two tensors is a part of what adds with a factor, and named after it.
    return f"aten::{name.lstrip('_')}"


class OperatorProfile:
    """A block whose calls of operators are noted, with the host's time of each: they are computed later, and
    `webtorch.profiler.profile` says when. What is not about operators is accepted and changes nothing.
    """

    def __init__(
        self, enabled: bool = True, *, record_shapes: bool = False, **_more: object
    ) -> None:
        self.enabled, self.record_shapes = enabled, record_shapes
        self.function_events: EventList | None = None
        self._events: list[FunctionEvent] = []

    def note(
        self, name: str, started: float, shapes: list[list[int]] | None = None, sequence: int = -1
    ) -> None:
        """Note something that began at a time of time.perf_counter, and has just ended."""
        thread = threading.get_ident()
        self._events.append(
            FunctionEvent(
                len(self._events),
                name,
                thread,
                (started - self._began) * 1e6,
                (perf_counter() - self._began) * 1e6,
                input_shapes=shapes if self.record_shapes else None,
                sequence_nr=sequence,
                fwd_thread=0,
                is_user_annotation=shapes is None,
            )
        )

    def __enter__(self) -> OperatorProfile | None:
        if not self.enabled:
            return None
        if profiling.running is not None:
            raise RuntimeError("Profiler is already enabled on this thread")
        refuse_scripts("calls of operators are noted")
        self._began = perf_counter()
        profiling.running = self
        active.add(1)
        return self

    def __exit__(self, *_: object) -> None:
        if not self.enabled:
            return
        active.add(-1)
        profiling.running = None
        self.function_events = EventList(
            sorted(self._events, key=lambda e: (e.time_range.start, -e.time_range.end))
        )
        self.function_events._populate_cpu_children()

    def _found(self) -> EventList:
        if self.function_events is None:
            raise RuntimeError("Profiler didn't finish running")
        return self.function_events

    def table(self, *args: Any, **kwargs: Any) -> str:
        """Return the events as lines of text, see `EventList.table`."""
        return self._found().table(*args, **kwargs)

    def key_averages(
        self, group_by_input_shape: bool = False, group_by_stack_n: int = 0
    ) -> EventList:
        """Return the events of each name together."""
        return self._found().key_averages(group_by_input_shape, group_by_stack_n)

    def total_average(self) -> FunctionEventAvg:
        """Return all events together."""
        return self._found().total_average()

    @property
    def self_cpu_time_total(self) -> float:
        """How long all took, each without those within it."""
        return self._found().self_cpu_time_total

    def export_chrome_trace(self, path: str | Path) -> None:
        """Write the events as a trace."""
        self._found().export_chrome_trace(path)

    def __str__(self) -> str:
        return "<unfinished profile>" if self.function_events is None else self.table()

    __repr__ = __str__
