"""What memory a program takes, known before it runs. Floor 5; imports floors 0 and 2.

>>> step.memory_plan()          # doctest: +SKIP
peak 31.2 MiB at step 93 of 195 ...
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from webtorch.ir.program import Copy, Program
from webtorch.lower.layout import lay_out_memory

_SHOWN = 12
_UNITS = (
    ("kib", 1 << 10), ("mib", 1 << 20), ("gib", 1 << 30), ("kb", 10**3), ("mb", 10**6),
    ("gb", 10**9), ("b", 1),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Held:
    """A buffer of a program: what it holds, its bytes, and the steps from which to which it does."""

    buffer: int
    # Its name if it is an input, else the kernel that writes it.
    name: str
    role: str
    dtype: str
    elements: int
    nbytes: int
    first: int
    last: int
    # The user's line that it comes from, "file:line", or "".
    line: str

    def __str__(self) -> str:
        place = f"  {self.line}" if self.line else ""
        form = f"{self.dtype}[{self.elements}]"
        return f"{size_text(self.nbytes):>10}  {self.role:9}  {form:18}  {self.name}{place}"


@dataclass(frozen=True, slots=True, repr=False)
class MemoryPlan:
    """The memory of one run of a program, in bytes.

    `inputs` are there before the run (parameters, state, arguments), `outputs` are new and stay
    (results, gradients), `temporaries` is the memory in which the values in between share their
    places, `scratch` is what kernels work in beside them (parts of sums, transformed tiles; on WebGPU,
    where it is shared by all kernels of a program and held during a run). `peak` is the sum of the
    four, what a run takes at once. `timeline[i]` is what holds a value that is still needed while
    step i runs, `at_peak` the buffers where that is the most, the largest first.

    Not counted are uniforms, status words, and what CPU kernels allocate while they run.
    """

    inputs: int
    outputs: int
    temporaries: int
    timeline: tuple[int, ...]
    buffers: tuple[Held, ...]
    scratch: int = 0

    @property
    def peak(self) -> int:
        """The bytes that a run takes at once."""
        return self.inputs + self.outputs + self.temporaries + self.scratch

    @property
    def peak_step(self) -> int:
        """The step at which most values are held."""
        return max(range(len(self.timeline)), key=self.timeline.__getitem__, default=0)

    @property
    def at_peak(self) -> tuple[Held, ...]:
        """The buffers that hold values at `peak_step`, the largest first."""
        step = self.peak_step
        held = (h for h in self.buffers if h.first <= step <= h.last)
        return tuple(sorted(held, key=lambda h: (-h.nbytes, h.buffer)))

    def __str__(self) -> str:
        scratch = f", {size_text(self.scratch)} of scratch memory" if self.scratch else ""
        lines = [
            f"peak {size_text(self.peak)}: {size_text(self.inputs)} of inputs, "
            f"{size_text(self.outputs)} of new outputs, {size_text(self.temporaries)} in between"
            f"{scratch}",
            f"most values are held at step {self.peak_step} of {len(self.timeline)}: "
            f"{size_text(max(self.timeline, default=self.inputs))}",
            *map(str, self.at_peak[:_SHOWN]),
        ]
        rest = self.at_peak[_SHOWN:]
        if rest:
            lines.append(f"{size_text(sum(h.nbytes for h in rest)):>10}  {len(rest)} more")
        return "\n".join(lines)

    __repr__ = __str__


def bytes_of(budget: int | str, what: str = "compile: memory_budget") -> int:
    """Return a number of bytes given as such or as a text like "512 MiB". Raises ValueError, naming `what`."""
    if isinstance(budget, str):
        number, unit = budget.strip(), 1
        for name, factor in _UNITS:
            if number.lower().endswith(name):
                number, unit = number[: -len(name)], factor
                break
        try:
            budget = int(float(number) * unit)
        except ValueError:
            raise ValueError(
                f"{what}={budget!r} is neither a number of bytes nor a text like '512 MiB'"
            ) from None
    if budget <= 0:
        raise ValueError(f"{what} must be positive, not {budget}")
    return budget


def size_text(nbytes: int) -> str:
    """Return a number of bytes for people, such as "1.5 MiB"."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{nbytes} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError


def memory_plan(
    program: Program, names: Mapping[int, str] | None = None, scratch: int = 0
) -> MemoryPlan:
    """Return what memory a program takes; `names` gives the names of inputs by their number, and
    `scratch` the bytes that its kernels work in, which only those who have rendered them know."""
    names = names or {}
    count = len(program.steps)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    writer: dict[int, tuple[str, str]] = {}
    for i, step in enumerate(program.steps):
        for b in step.buffers:
            first.setdefault(b, i)
            last[b] = i
        if isinstance(step, Copy):
            writer.setdefault(step.target, ("copy", ""))
        else:
            routine = program.routines[step.routine]
            for b, used_as in zip(step.buffers, routine.buffers, strict=True):
                if used_as.access != "read":
                    writer.setdefault(b, (routine.name, step.line))
    number = {b: i for i, b in enumerate(program.inputs)}
    held: list[Held] = []
    for b, declared in enumerate(program.buffers):
        nbytes = declared.elements * declared.dtype.itemsize
        name, line = writer.get(b, ("", ""))
        start, end = first.get(b, 0), last.get(b, -1)
        if declared.role == "input":
            name, line = names.get(number.get(b, -1), f"input {number.get(b, b)}"), ""
            start, end = 0, count - 1
        elif declared.role == "output":
            if declared.alias is not None:
                continue
            end = count - 1
        dtype = declared.dtype.name
        held.append(
            Held(b, name, declared.role, dtype, declared.elements, nbytes, start, end, line)
        )
    change = [0] * (count + 1)
    for h in held:
        if h.first <= h.last:
            change[h.first] += h.nbytes
            change[h.last + 1] -= h.nbytes
    timeline: list[int] = []
    for c in change[:count]:
        timeline.append((timeline[-1] if timeline else 0) + c)
    memory = lay_out_memory(program)
    return MemoryPlan(
        memory.nbytes("input"),
        memory.nbytes("output"),
        memory.nbytes("temporary"),
        tuple(timeline),
        tuple(held),
        scratch,
    )
