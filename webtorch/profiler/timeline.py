"""`profile`: records which kernels run, when, and for which of the user's lines. Floor 5."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from time import perf_counter
from typing import Any

from webtorch.ir.dtype import DType, float16, float32
from webtorch.ir.kernel import (
    Attention,
    Convolution,
    Host,
    Kernel,
    Matmul,
    Products,
    Routine,
    Scan,
    Several,
    Sort,
)
from webtorch.ir.lines import user_depth
from webtorch.ir.program import Copy, Program
from webtorch.profiler import report
from webtorch.profiler.operators import profiling
from webtorch.profiler.roofline import Cost, Peaks, cost, peaks
from webtorch.runtime.realize import open_runtimes, runtime_named
from webtorch.runtime.watch import Run, watch
from webtorch.scripts import steps
from webtorch.show.theme import framed

__all__ = [
    "Average",
    "Averages",
    "Event",
    "ProfilerAction",
    "ProfilerActivity",
    "Span",
    "profile",
    "record_function",
    "schedule",
    "supported_activities",
    "tensorboard_trace_handler",
]


class ProfilerActivity(Enum):
    """What PyTorch's profiler may be asked to record; here everything always is."""

    CPU = "CPU"
    CUDA = "CUDA"
    XPU = "XPU"
    PrivateUse1 = "PrivateUse1"


class ProfilerAction(Enum):
    """What a schedule says of a step."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


@dataclass(frozen=True, slots=True)
class Event:
    """One dispatch of a kernel. Times in seconds since the profile began."""

    name: str
    kind: str
    line: str
    device: str
    start: float
    end: float
    nbytes: int
    flops: int
    dtype: DType
    # Number of the run of a program, and of the routine among the profile's routines.
    run: int
    routine: int

    @property
    def seconds(self) -> float:
        """How long the kernel ran."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Span:
    """Something on the host: a compilation, the enqueueing of a program, a range of the user's."""

    name: str
    kind: str
    start: float
    end: float
    thread: int

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start


@dataclass(slots=True)
class Average:
    """The dispatches of one kernel from one line, together."""

    key: str
    kind: str
    line: str
    device: str
    dtype: DType
    routine: int
    count: int = 0
    seconds: float = 0.0
    nbytes: int = 0
    flops: int = 0
    # How near the kernel came to what the device can do, and which side of the roof is nearer.
    share: float = 0.0
    bound: str = ""

    @property
    def device_time_total(self) -> float:
        """Microseconds, as PyTorch counts them."""
        return self.seconds * 1e6

    cuda_time_total = self_cuda_time_total = self_device_time_total = device_time_total
    cpu_time_total = self_cpu_time_total = device_time_total

    @property
    def device_time(self) -> float:
        """Microseconds of one dispatch, on average."""
        return self.seconds * 1e6 / max(self.count, 1)


class Averages(list[Average]):
    """Averages, longest first; `table` shows them."""

    def table(self, sort_by: str | None = None, row_limit: int = 100, **_unused: object) -> str:
        """Return a table as text, sorted by time or by "count", "nbytes", "flops", "share", "key"."""
        return report.table(self, sort_by, row_limit)

    def total_average(self) -> Average:
        """Return the sum of all."""
        total = Average("Total", "", "", "", float32, -1)
        for one in self:
            total.count += one.count
            total.seconds += one.seconds
            total.nbytes += one.nbytes
            total.flops += one.flops
        return total

    def __str__(self) -> str:
        return self.table()

    __repr__ = __str__


@dataclass(slots=True)
class _Record:
    """What the listener is told; it is looked at when the profile ends."""

    runs: list[Run] = field(default_factory=list)
    compiled: list[tuple[Program, str, float, float]] = field(default_factory=list)
    ranges: list[Span] = field(default_factory=list)


class profile:
    """Record every kernel that runs inside a `with` block.

    On WebGPU a kernel's time is the device's own, from timestamps; on the CPU it is wall time. Each
    kernel comes with the user's line that it was recorded from, the bytes and operations it needs,
    and how near that is to the copy and matrix product speeds measured on this device. Each dispatch
    is a pass of its own while this is on, so that a whole program takes longer than without.

    Print it or call `table()`; `save("profile.html")` writes a page with a timeline, and
    `export_chrome_trace("trace.json")` a file for Perfetto or chrome://tracing. PyTorch's arguments
    are accepted: `schedule` and `on_trace_ready` with `step()` as there, the others change nothing.
    Raises RuntimeError inside another profile.
    """

    def __init__(
        self,
        activities: Iterable[object] | None = None,
        *,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[[Any], object] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        use_cuda: bool | None = None,
        acc_events: bool = False,
    ) -> None:
        self.schedule = schedule
        self.on_trace_ready = on_trace_ready
        self.step_num = 0
        self.events: list[Event] = []
        self.spans: list[Span] = []
        self.routines: list[tuple[Routine, str]] = []
        self.seconds = 0.0
        self._record: _Record | None = None
        self._lock = threading.Lock()
        self._began = self._step_began = 0.0
        self._peaks: dict[tuple[str, DType], Peaks] = {}
        self._inside = False
        # Steps of uncompiled loops that followed a script, and all of them, while scripts were looked for.
        self.steps = self._steps = (0, 0)

    # -- recording ------------------------------------------------------------------------------

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to record, once what was pending before has run."""
        if watch.listener is not None or self._inside:
            raise RuntimeError("profile: another profile is recording already; end it first")
        self._inside = True
        self._apply(self._action(self.step_num))

    def stop(self) -> None:
        """Run what is pending, and stop."""
        if not self._inside:
            raise RuntimeError("profile: stop() without start()")
        self._inside = False
        recording = self._record is not None
        self._apply(ProfilerAction.NONE)
        if recording and self.on_trace_ready is not None:
            self.on_trace_ready(self)

    def step(self) -> None:
        """Say that the next step begins: what a `schedule` counts."""
        last = self._action(self.step_num)
        if self._record is not None:
            self._end_step()
        self.step_num += 1
        coming = self._action(self.step_num)
        if last is ProfilerAction.RECORD_AND_SAVE:
            self._apply(ProfilerAction.NONE)
            if self.on_trace_ready is not None:
                self.on_trace_ready(self)
        self._apply(coming)

    def _action(self, step: int) -> ProfilerAction:
        return ProfilerAction.RECORD if self.schedule is None else self.schedule(step)

    def _apply(self, action: ProfilerAction) -> None:
        wanted = action in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
        if wanted and self._record is None:
            _finish_work()
            self.events, self.spans, self.routines = [], [], []
            self._record = _Record()
            self._began = self._step_began = perf_counter()
            self._steps = steps()
            watch.listener = self
        elif not wanted and self._record is not None:
            _finish_work()
            ended = perf_counter()
            watch.listener = None
            record, self._record = self._record, None
            self.seconds = ended - self._began
            followed, counted = steps()
            self.steps = followed - self._steps[0], counted - self._steps[1]
            self._read(record)

    def _end_step(self) -> None:
        now = perf_counter()
        self.add_range(f"ProfilerStep#{self.step_num}", "step", self._step_began, now)
        self._step_began = now

    def ran(self, run: Run) -> None:
        """Note a run of a program (called by the backends)."""
        with self._lock:
            if self._record is not None:
                self._record.runs.append(run)
                self._range("run", "run", run.started, run.enqueued)

    def compiled(self, program: Program, device: str, started: float, ended: float) -> None:
        """Note a compilation (called by the runtime)."""
        with self._lock:
            if self._record is not None:
                count = len(program.routines)
                kernels = "1 kernel" if count == 1 else f"{count} kernels"
                self._range(f"compile {kernels}", "compile", started, ended)

    def add_range(self, name: str, kind: str, started: float, ended: float) -> None:
        """Note a range of time on the host, by time.perf_counter."""
        with self._lock:
            if self._record is not None:
                self._range(name, kind, started, ended)

    def _range(self, name: str, kind: str, started: float, ended: float) -> None:
        assert self._record is not None
        # A page has one thread, and no name for it.
        thread = getattr(threading, "get_native_id", threading.get_ident)()
        span = Span(name, kind, started - self._began, ended - self._began, thread)
        self._record.ranges.append(span)

    def _read(self, record: _Record) -> None:
        """Wait for the device's times, and put everything on one clock."""
        self.spans = record.ranges
        times = [run.times() for run in record.runs]
        offsets: dict[str, float] = {}
        for run, found in zip(record.runs, times, strict=True):
            if found:
                # No kernel runs before its program was enqueued: the clocks differ by at least this.
                least = 0.0 if run.host_clock else run.started - found[0].start
                offsets[run.device] = max(offsets.get(run.device, least), least)
        numbers: dict[tuple[int, str], int] = {}
        for number, (run, found) in enumerate(zip(record.runs, times, strict=True)):
            shift = offsets.get(run.device, 0.0) - self._began
            parts: dict[int, int] = {}
            for timing in found:
                parts[timing.step] = parts.get(timing.step, 0) + 1
            for timing in found:
                step = run.program.steps[timing.step]
                if isinstance(step, Copy):
                    declared = run.program.buffers[step.source]
                    moved = 2 * declared.elements * declared.dtype.itemsize
                    self.events.append(
                        Event(
                            "copy", "copy", "", run.device, timing.start + shift,
                            timing.end + shift, moved, 0, declared.dtype, number, -1,
                        )
                    )  # fmt: skip
                    continue
                routine = run.program.routines[step.routine]
                key = (id(routine), run.device)
                if key not in numbers:
                    numbers[key] = len(self.routines)
                    self.routines.append((routine, run.device))
                # A routine of several passes shares its cost among them.
                needs, of = cost(routine), parts[timing.step]
                self.events.append(
                    Event(
                        timing.name, kind_of(routine), run.line(step), run.device,
                        timing.start + shift, timing.end + shift, needs.nbytes // of,
                        needs.flops // of, routine.buffers[-1].dtype, number, numbers[key],
                    )
                )  # fmt: skip

    # -- reading --------------------------------------------------------------------------------

    def key_averages(self, *_unused: object, **_more: object) -> Averages:
        """Return the kernels, one entry for each line that they come from, longest first."""
        found: dict[tuple[str, str, str], Average] = {}
        for e in self.events:
            key = (e.name, e.line, e.device)
            if key not in found:
                found[key] = Average(e.name, e.kind, e.line, e.device, e.dtype, e.routine)
            one = found[key]
            one.count += 1
            one.seconds += e.seconds
            one.nbytes += e.nbytes
            one.flops += e.flops
        for one in found.values():
            roof = self.peaks(one.device, one.dtype)
            if roof is not None:
                one.share, one.bound = roof.share(Cost(one.nbytes, one.flops), one.seconds)
        return Averages(sorted(found.values(), key=lambda one: -one.seconds))

    def peaks(self, device: str, dtype: DType) -> Peaks | None:
        """Return the speeds measured of a device; None where the device is not open any more."""
        kind = float16 if dtype is float16 else float32
        if (device, kind) not in self._peaks:
            runtime = runtime_named(device)
            if runtime is None:
                return None
            self._peaks[device, kind] = peaks(runtime, kind)
        return self._peaks[device, kind]

    def table(self, sort_by: str | None = None, row_limit: int = 30) -> str:
        """Return a table of the kernels as text, see `Averages.table`."""
        return report.summary(self) + "\n" + self.key_averages().table(sort_by, row_limit)

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return f"<profile: {report.summary(self)}>"

    def save(self, path: str | Path) -> Path:
        """Write a page that needs nothing else: timeline, roofline, kernels with their source."""
        path = Path(path)
        path.write_text(report.text_of_page(self), encoding="utf-8")
        return path

    def _repr_html_(self) -> str:
        """Return that page for a notebook."""
        return framed(report.text_of_page(self))

    def export_chrome_trace(self, path: str | Path) -> None:
        """Write the timeline as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing."""
        report.save_trace(self, Path(path))

    def source(self, routine: int) -> str:
        """Return the text of one of the profile's routines on its device."""
        found, device = self.routines[routine]
        runtime = runtime_named(device)
        return str(found) if runtime is None else runtime.backend.source(found)


def kind_of(routine: Routine) -> str:
    """Return what sort of kernel a routine is, in a word."""
    match routine:
        case Kernel():
            return "reduce" if routine.reduces else "map"
        case Several():
            return "map"
        case Matmul() | Products():
            return "matmul"
        case Convolution():
            return "conv"
        case Scan():
            return "scan"
        case Attention():
            return "attention"
        case Sort():
            return "sort"
        case Host():
            return "host"


def _finish_work() -> None:
    for runtime in open_runtimes():
        runtime.realize()
        runtime.backend.synchronize()


class record_function(contextlib.ContextDecorator):
    """Give a range of a program a name in the running profile. A context manager and a decorator."""

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name = name if args is None else f"{name} {args}"
        self._started: list[float] = []

    def __enter__(self) -> record_function:
        self._started.append(perf_counter())
        return self

    def __exit__(self, *error: object) -> None:
        started, listener = self._started.pop(), watch.listener
        if profiling.running is not None:
            profiling.running.note(self.name, started)
        if isinstance(listener, profile):
            listener.add_range(self.name, "range", started, perf_counter())


def schedule(
    *,
    wait: int,
    warmup: int,
    active: int,
    repeat: int = 0,
    skip_first: int = 0,
    skip_first_wait: int = 0,
) -> Callable[[int], ProfilerAction]:
    """Return a schedule: after `skip_first` steps wait, warm up and record, `repeat` times (0: always).

    `skip_first_wait`: whether the first time does not wait. Raises AssertionError for counts below 0.
    """
    if min(wait, warmup, repeat, skip_first) < 0 or active < 1:
        raise AssertionError(
            f"Invalid profiler schedule arguments. Got wait={wait} (need >= 0), warmup={warmup} "
            f"(need >= 0), active={active} (need > 0), repeat={repeat} (need >= 0), "
            f"skip_first={skip_first} (need >= 0)."
        )
    if warmup == 0:
        warnings.warn(
            "Profiler won't be using warmup, this can skew profiler results",
            stacklevel=user_depth(),
        )
    cycle = wait + warmup + active

    def action(step: int) -> ProfilerAction:
        """Return what the profiler does at a step: nothing, warm up, record, or record and save."""
        if step < skip_first:
            return ProfilerAction.NONE
        step += (wait if skip_first_wait else 0) - skip_first
        if repeat and step >= repeat * cycle:
            return ProfilerAction.NONE
        place = step % cycle
        if place < wait:
            return ProfilerAction.NONE
        if place < wait + warmup:
            return ProfilerAction.WARMUP
        last = place == cycle - 1
        return ProfilerAction.RECORD_AND_SAVE if last else ProfilerAction.RECORD

    return action


def tensorboard_trace_handler(
    dir_name: str | Path, worker_name: str | None = None, use_gzip: bool = False
) -> Callable[[profile], None]:
    """Return an `on_trace_ready` that writes each trace to a folder, as TensorBoard's profiler plugin reads it.

    `worker_name`: this process in the files' names, by default the host's name and the process's number.
    """
    worker = worker_name or f"{socket.gethostname()}_{os.getpid()}"

    def write(found: profile) -> None:
        """Write the trace of a profile."""
        folder = Path(dir_name)
        folder.mkdir(parents=True, exist_ok=True)
        suffix = ".pt.trace.json.gz" if use_gzip else ".pt.trace.json"
        found.export_chrome_trace(folder / f"{worker}.{time.time_ns()}{suffix}")

    return write


def supported_activities() -> set[ProfilerActivity]:
    """Return what is measured: the host, and devices."""
    return set(ProfilerActivity)
