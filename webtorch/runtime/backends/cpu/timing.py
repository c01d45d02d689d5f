"""Runs of a CPU program with each step timed, for a profiler. Imports floor 0 and this backend's modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from types import FunctionType
from typing import TYPE_CHECKING, Any

from webtorch.ir.program import Copy
from webtorch.runtime.watch import Listener, Run, Timing, watch

if TYPE_CHECKING:
    from webtorch.runtime.backends.cpu.executable import CpuExecutable
    from webtorch.runtime.backends.cpu.memory import CpuBuffer

Function = Callable[..., Any]


def run_timed(
    executable: CpuExecutable,
    listener: Listener,
    inputs: Sequence[CpuBuffer],
    args: Sequence[object],
    ready: Function | None = None,
) -> list[CpuBuffer]:
    """Run a program, tell the listener, and return the output buffers."""
    program = executable.program
    times: list[tuple[float, float]] = []

    def timed(function: Function) -> Function:
        """Return the function, whose calls are timed."""

        def call(*values: object) -> None:
            """Call the function, and note when it began and ended."""
            start = perf_counter()
            function(*values)
            times.append((start, perf_counter()))

        return call

    # The program's own straight-line function, with its steps timed: they are its names k0, k1, ...
    names = {
        name: timed(value) if name == "copy" or name.startswith("k") else value
        for name, value in executable.call.__globals__.items()
    }
    run = FunctionType(executable.call.__code__, names)
    lines, started = watch.taken(), perf_counter()
    outputs: list[CpuBuffer] = run(inputs, args, ready)
    ended = perf_counter()
    shown = [
        "copy" if isinstance(s, Copy) else program.routines[s.routine].name for s in program.steps
    ]
    found = [Timing(i, shown[i], *pair) for i, pair in enumerate(times)]
    listener.ran(Run(program, "cpu", started, ended, lambda: found, True, lines))
    return outputs
