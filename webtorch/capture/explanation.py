"""What a compiled function tells of itself: which kernels it has and why they are not one, why it was
captured, and what holds its memory. Floor 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from webtorch.capture.memory import MemoryPlan
from webtorch.ir.lines import source_text
from webtorch.ir.program import Copy, Program, Separation
from webtorch.runtime.compilations import Compilation, counted


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """A program explained; printed, it is text for people.

    `separations` say of each step why it is not one with another; `compilations` are those of the function,
    each with what had changed; `memory` names what is held. `backward` is that of the second program, where
    the results are differentiated outside.
    """

    title: str
    device: str
    program: Program
    memory: MemoryPlan
    compilations: tuple[Compilation, ...] = ()
    backward: Explanation | None = field(default=None)

    @property
    def separations(self) -> tuple[Separation, ...]:
        """Why steps of the program are not one."""
        return self.program.separations

    def why_apart(self, step: int, other: int) -> str:
        """Return why two steps are not one; "" where nothing kept them apart but that neither reads what
        the other does.
        """
        pair = max(step, other), min(step, other)
        found = (s.reason for s in self.separations if (s.step, s.other) == pair)
        return next(found, "")

    def __str__(self) -> str:
        return "\n".join(self._lines())

    __repr__ = __str__

    def _lines(self) -> Iterator[str]:
        count = sum(not c.ran_as_usual for c in self.compilations)
        times = f", compiled {count} times" if count > 1 else ""
        yield f"{self.title} on {self.device}: {counted(len(self.program.steps), 'step')}{times}"
        if self.compilations:
            yield "compiled"
            yield from (f"  {c.text}" for c in self.compilations)
        yield "steps, and why they are not one"
        yield from self._steps()
        yield "memory"
        yield from (f"  {line}" for line in str(self.memory).splitlines())
        if self.backward is not None:
            yield from self.backward._lines()

    def _steps(self) -> Iterator[str]:
        program = self.program
        width = len(str(len(program.steps)))
        shown: Sequence[str] = [
            "copy" if isinstance(s, Copy) else program.routines[s.routine].name
            for s in program.steps
        ]
        column = min(max(map(len, shown), default=0), 40)
        for number, (step, name) in enumerate(zip(program.steps, shown, strict=True)):
            place = "" if isinstance(step, Copy) else _place(step.line)
            yield f"  {number:>{width}}  {name:{column}}  {place}".rstrip()
            reasons: dict[str, list[str]] = {}
            for s in self.separations:
                if s.step == number:
                    reasons.setdefault(s.reason, []).append(str(s.other))
            for reason, others in reasons.items():
                yield f"  {'':{width}}    not with {', '.join(others)}: {reason}"


def _place(line: str) -> str:
    """Return a user's line for people: the file's name, the number, and the text."""
    file, _, number = line.rpartition(":")
    if not file:
        return ""
    text = source_text(line)
    return f"{Path(file).name}:{number}" + (f"  {text}" if text else "")
