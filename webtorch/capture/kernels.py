"""The kernels of a program, as texts for people. Floor 5."""

from __future__ import annotations

from dataclasses import dataclass

from webtorch.errors import DeviceError, DTypeError, KernelError
from webtorch.ir.kernel import Routine
from webtorch.ir.limits import Limits
from webtorch.ir.program import Dispatch, Program
from webtorch.lower.wgsl import render
from webtorch.runtime.meta import COMMON_GPU


@dataclass(frozen=True, slots=True)
class KernelText:
    """One kernel of a program: its loops as text, its WGSL, and where it comes from."""

    name: str
    # The loop nest, or the template's parameters.
    text: str
    # One shader for each dispatch of the kernel; "" where WGSL has no such type or function.
    wgsl: str
    # The user's lines that its results come from, "file:line".
    lines: tuple[str, ...]
    # How many steps of the program run it.
    steps: int

    def __str__(self) -> str:
        lines = "".join(f"// {line}\n" for line in self.lines)
        return f"// {self.name}, {self.steps} steps\n{lines}{self.wgsl or self.text}"


def kernel_texts(program: Program, limits: Limits | None = None) -> list[KernelText]:
    """Return the kernels of a program; their WGSL is for a device with `limits`."""
    lines: list[dict[str, None]] = [{} for _ in program.routines]
    counts = [0] * len(program.routines)
    for step in program.steps:
        if isinstance(step, Dispatch):
            counts[step.routine] += 1
            if step.line:
                lines[step.routine][step.line] = None
    return [
        KernelText(r.name, str(r), wgsl_text(r, limits or COMMON_GPU), tuple(found), count)
        for r, found, count in zip(program.routines, lines, counts, strict=True)
    ]


def wgsl_text(routine: Routine, limits: Limits) -> str:
    """Return the WGSL of a routine, its dispatches one after the other; "" where there is none."""
    try:
        return "\n".join(part.source for part in render(routine, limits, "dawn"))
    except (DTypeError, DeviceError, KernelError, OverflowError):
        return ""
