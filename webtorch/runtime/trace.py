"""What WEBTORCH_DEBUG=1..4 shows: programs, kernels, source text, timings. Floor 3; may import
floors 0 to 2.

1: each program when it is compiled, and why it was (`runtime/compilations`); why steps follow no script.
2: also its kernels, and why they are not one (`Program.separations`). 3: also their source text on the
device, and the graph before and after each pass. 4: also how long each run takes to enqueue. Everything
goes to standard error.
"""

from __future__ import annotations

import os
import sys

from webtorch.ir.program import Program
from webtorch.lower.passes import PassResult
from webtorch.runtime.backend import Backend


def debug_level() -> int:
    """Return the level that WEBTORCH_DEBUG asks for; 0 when it is not set."""
    text = os.environ.get("WEBTORCH_DEBUG", "0")
    return int(text) if text.isdigit() else 0


def show_program(program: Program, backend: Backend, seconds: float, level: int) -> None:
    """Write a newly compiled program to standard error, as detailed as the level says."""
    parts = [
        f"webtorch: compiled for {backend.name}:{backend.index} in {seconds * 1e3:.1f} "
        f"ms\n{program}"
    ]
    if level >= 2:
        parts += [str(routine) for routine in program.routines]
        parts += map(str, program.separations)
    if level >= 3:
        parts += [backend.source(routine) for routine in program.routines]
    sys.stderr.write("\n".join(parts) + "\n")


def show_pass(result: PassResult) -> None:
    """Write what an optimisation pass did to standard error."""
    sys.stderr.write(f"webtorch: {result}\n")


def show_run(steps: int, seconds: float) -> None:
    """Write how long a run took to enqueue to standard error."""
    sys.stderr.write(f"webtorch: {steps} steps enqueued in {seconds * 1e6:.0f} us\n")


def show_reason(why: str, where: str) -> None:
    """Write why a step that comes again follows no script to standard error."""
    sys.stderr.write(f"webtorch: no script: {why}" + (f" ({where})" if where else "") + "\n")
