"""A program: the planned steps that executors replay, as data that prints and serialises. Standard
library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from webtorch.ir import serial
from webtorch.ir.dtype import DType, Scalar
from webtorch.ir.kernel import Routine

Role = Literal["input", "output", "temporary"]


@serial.register
@dataclass(frozen=True, slots=True)
class BufferDecl:
    """One buffer of a program. Inputs are bound by the caller; an output may take over an input's
    memory (`alias`).
    """

    role: Role
    dtype: DType
    elements: int
    # For an output: the input buffer whose memory it reuses. For a temporary: the pool slot that it
    # shares with others.
    alias: int | None = None


@serial.register
@dataclass(frozen=True, slots=True)
class Dispatch:
    """Run routine number `routine` on the buffers, with the program arguments named by number in
    `args`.

    No buffer is named twice: a kernel that works in place has one "read_write" slot for it. Where there are `starts`,
    the routine's slots are windows of the buffers, from these elements on (lower/windows.py); several may be of one.
    """

    routine: int
    buffers: tuple[int, ...]
    args: tuple[int, ...]
    line: str = ""
    starts: tuple[int, ...] = ()


@serial.register
@dataclass(frozen=True, slots=True)
class Copy:
    """Copy all elements of one buffer to another of the same type and size."""

    source: int
    target: int

    @property
    def buffers(self) -> tuple[int, int]:
        """The buffers that it reads and writes."""
        return self.source, self.target


Step = Dispatch | Copy


@serial.register
@dataclass(frozen=True, slots=True)
class Site:
    """Where a checked index came from: the op, what was indexed, and the user's line, for the error
    message. Where `dim` is -1 it is no index but a rule about values, and `op` is the whole text.
    """

    op: str
    dim: int
    size: int
    line: str

    @property
    def is_index(self) -> bool:
        """Whether an index is checked, not a rule about values."""
        return self.dim >= 0

    def message(self, value: int) -> str:
        """Return what is wrong with index `value`."""
        where = f" ({self.line})" if self.line else ""
        if not self.is_index:
            return f"{self.op}{where}"
        return (
            f"{self.op}: index {value} is out of bounds for dimension {self.dim} with size "
            f"{self.size}{where}"
        )


@serial.register
@dataclass(frozen=True, slots=True)
class Separation:
    """Why two steps are not one: fusion's rule of that name said no, for this reason. `other` comes
    before `step`.
    """

    step: int
    other: int
    rule: str
    reason: str

    def __str__(self) -> str:
        return f"step {self.step} apart from step {self.other} ({self.rule}): {self.reason}"


@serial.register
@dataclass(frozen=True, slots=True, repr=False)
class Program:
    """Routines, buffers and steps in order. `args` are the types of the arguments: the last of them
    have the values `constants`, the others come at run time. `separations` say why steps are not one,
    and change nothing.
    """

    routines: tuple[Routine, ...]
    buffers: tuple[BufferDecl, ...]
    steps: tuple[Step, ...]
    args: tuple[DType, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    sites: tuple[Site, ...] = ()
    constants: tuple[Scalar, ...] = ()
    separations: tuple[Separation, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        lines = [
            f"program  {len(self.steps)} steps, {len(self.routines)} routines, "
            f"{len(self.args) - len(self.constants)} arguments"
        ]
        for i, b in enumerate(self.buffers):
            alias = (
                ""
                if b.alias is None
                else f" in #{b.alias}"
                if b.role == "output"
                else f" slot {b.alias}"
            )
            lines.append(f"  #{i}: {b.role} {b.dtype.name}[{b.elements}]{alias}")
        for step in self.steps:
            if isinstance(step, Copy):
                lines.append(f"  copy #{step.source} -> #{step.target}")
            else:
                starts = [f"+{s}" if s else "" for s in step.starts] or [""] * len(step.buffers)
                buffers = ", ".join(f"#{b}{s}" for b, s in zip(step.buffers, starts, strict=True))
                args = "".join(f", {self.argument(a)}" for a in step.args)
                lines.append(f"  {self.routines[step.routine].name}({buffers}{args})")
        return "\n".join(lines)

    # What a notebook shows at the end of a cell.
    __repr__ = __str__

    def argument(self, number: int) -> str:
        """Return what is passed as argument `number`: its value where that is fixed, else a name."""
        given = len(self.args) - len(self.constants)
        return f"a{number}" if number < given else repr(self.constants[number - given])

    def overwriting(self) -> list[set[int]]:
        """Return for each step the inputs that it overwrites."""
        inputs = {*self.inputs}
        found = []
        for step in self.steps:
            if isinstance(step, Copy):
                written = {step.target}
            else:
                slots = self.routines[step.routine].buffers
                written = {b for b, slot in zip(step.buffers, slots) if slot.access != "read"}
            found.append(written & inputs)
        return found

    def to_json(self) -> str:
        """Return the program as text that `from_json` reads, here or in another process."""
        return serial.dump(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Program:
        """Return the program that `to_json` wrote. Raises ValueError for anything else."""
        program = serial.load(text)
        if not isinstance(program, cls):
            raise ValueError(f"Program.from_json: this is a {type(program).__name__}")
        return program
