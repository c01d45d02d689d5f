"""Programs on the CPU: routines made ready once, then a straight-line Python function that calls them.

Imports NumPy, floors 0-2 and this backend's own modules.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from webtorch.ir.dtype import DType
from webtorch.ir.expr import walk
from webtorch.ir.kernel import Convolution, Kernel, Matmul, Routine, Scan
from webtorch.ir.program import Copy, Program
from webtorch.lower.numpysource import numpy_source
from webtorch.runtime.backends.cpu import contraction, numpy_math
from webtorch.runtime.backends.cpu.memory import CpuBuffer, array_type

Array = npt.NDArray[Any]
Scalar = bool | int | float

# Elements that one block of NumPy work covers: some temporaries of this size fit a core's second-level cache.
_BLOCK = 1 << 15
# Temporaries up to this many bytes stay with their program; larger ones come from the pool at each run.
_KEPT_BYTES = 1 << 20


class Runner:
    """One routine, ready to run on buffers."""

    routine: Routine

    def run(self, buffers: Sequence[CpuBuffer], args: Sequence[Scalar], status: Array) -> None:
        """Run on bound buffers; checks that fail are noted in `status`."""
        raise NotImplementedError


class KernelRunner(Runner):
    """A generic kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.routine = self.kernel = kernel
        self.points = kernel.outer_count * kernel.inner_count
        self.rows = kernel.outer[0] if kernel.outer else 1
        if not kernel.outer and kernel.inner:
            self.rows = kernel.inner[0]
        self.types = [array_type(d).type for d in kernel.args]
        self.limits = [(1 << d.bits) - 1 if d.is_integral else 0 for d in kernel.args]
        self.numpy: Callable[..., None] | None = None
        per_row = max(self.points // max(self.rows, 1), 1)
        self.block = max(_BLOCK // per_row, 1) if kernel.outer else self.rows

    def run(self, buffers: Sequence[CpuBuffer], args: Sequence[Scalar], status: Array) -> None:
        """Run on bound buffers."""
        self.run_numpy(buffers, args, status)

    def run_numpy(
        self, buffers: Sequence[CpuBuffer], args: Sequence[Scalar], status: Array
    ) -> None:
        """Run the NumPy form, in blocks of rows."""
        kernel = self.numpy
        if kernel is None:
            kernel = self.numpy = compile_numpy(self.kernel)
        arrays = [b.array for b in buffers]
        values = [t(_fit(a, m)) for t, a, m in zip(self.types, args, self.limits)]
        with np.errstate(all="ignore"):
            if self.rows <= self.block:
                kernel(0, self.rows, *arrays, *values, status)
                return
            for begin in range(0, self.rows, self.block):
                kernel(begin, min(begin + self.block, self.rows), *arrays, *values, status)


def _fit(value: Scalar, mask: int) -> Scalar:
    """Wrap an integer argument to the bits of its type."""
    if not mask or 0 <= value <= mask >> 1:
        return value
    value = int(value) & mask
    return value


def compile_numpy(kernel: Kernel) -> Callable[..., None]:
    """Return the kernel's NumPy form as a function."""
    namespace = dict(numpy_math.NAMESPACE)
    exec(compile(numpy_source(kernel), f"<numpy {kernel.name}>", "exec"), namespace)
    function: Callable[..., None] = namespace["kernel"]
    return function


class ArrayRunner(Runner):
    """A routine that is a function of flat arrays."""

    def __init__(self, routine: Routine, function: Callable[..., None]) -> None:
        self.routine = routine
        self.function = function

    def run(self, buffers: Sequence[CpuBuffer], args: Sequence[Scalar], status: Array) -> None:
        """Run on bound buffers."""
        with np.errstate(all="ignore"):
            self.function(*[b.array for b in buffers])


_RUNNERS: WeakValueDictionary[Routine, Runner] = WeakValueDictionary()


def runner(routine: Routine) -> Runner:
    """Return the one runner of a routine."""
    found = _RUNNERS.get(routine)
    if found is None:
        match routine:
            case Kernel():
                found = KernelRunner(routine)
            case Matmul():
                found = ArrayRunner(routine, contraction.matmul(routine))
            case Convolution():
                found = ArrayRunner(routine, contraction.convolution(routine))
            case Scan():
                found = ArrayRunner(routine, contraction.scan(routine))
        _RUNNERS[routine] = found
    return found


def copy(source: CpuBuffer, target: CpuBuffer) -> None:
    """Copy all elements."""
    target.array[...] = source.array


class CpuExecutable:
    """A program ready for the CPU."""

    def __init__(self, program: Program, failed: Callable[[Program, int, int], None]) -> None:
        self.program = program
        self.failed = failed
        self.runners = [runner(r) for r in program.routines]
        self.status: Array = np.zeros(2, np.int32)
        # Temporaries and argument blocks are shared by the runs of one program.
        self.lock = threading.Lock()
        self.call = self._compile()

    def run(self, inputs: Sequence[CpuBuffer], args: Sequence[Scalar]) -> list[CpuBuffer]:
        """Run the program and return its output buffers."""
        with self.lock:
            outputs: list[CpuBuffer] = self.call(inputs, args)
            if self.program.sites and self.status[0]:
                site, value = int(self.status[0]) - 1, int(self.status[1])
                self.status[:] = 0
                self.failed(self.program, site, value)
        return outputs

    def source(self) -> str:
        """Return the Python text that runs the steps."""
        return self.text

    def _compile(self) -> Callable[..., list[CpuBuffer]]:
        program = self.program
        names: dict[str, Any] = {"new": CpuBuffer, "copy": copy, "status": self.status}
        lines = ["def run(inputs, args):"]
        if program.inputs:
            lines.append(f"    {', '.join(f'x{i}' for i in program.inputs)}, = inputs")
        names |= {f"d{d.name}": d for d in {b.dtype for b in program.buffers}}
        self._temporaries(names, lines)
        for i, decl in enumerate(program.buffers):
            if decl.role == "output":
                value = (
                    f"x{decl.alias}"
                    if decl.alias is not None
                    else f"new(d{decl.dtype.name}, {decl.elements})"
                )
                lines.append(f"    x{i} = {value}")
        for step in program.steps:
            if isinstance(step, Copy):
                lines.append(f"    copy(x{step.source}, x{step.target})")
                continue
            names[f"k{step.routine}"] = self.runners[step.routine].run
            buffers = "".join(f"x{b}, " for b in step.buffers)
            args = "".join(f"args[{a}], " for a in step.args)
            lines.append(f"    k{step.routine}(({buffers}), ({args}), status)")
        lines.append(f"    return [{', '.join(f'x{i}' for i in program.outputs)}]")
        self.text = "\n".join(lines) + "\n"
        exec(compile(self.text, "<program>", "exec"), names)
        call: Callable[..., list[CpuBuffer]] = names["run"]
        return call

    def _temporaries(self, names: dict[str, Any], lines: list[str]) -> None:
        """Give each pool slot one block, as large as the largest temporary that uses it."""
        slots: dict[object, list[int]] = {}
        for i, decl in enumerate(self.program.buffers):
            if decl.role == "temporary":
                slots.setdefault(i if decl.alias is None else ("slot", decl.alias), []).append(i)
        buffers = self.program.buffers
        sizes = {
            key: max(buffers[i].elements * buffers[i].dtype.itemsize for i in users)
            for key, users in slots.items()
        }
        keep = sum(sizes.values()) <= _KEPT_BYTES
        for number, (key, users) in enumerate(slots.items()):
            if keep:
                owner = CpuBuffer(_BYTE, sizes[key])
                for i in users:
                    names[f"x{i}"] = CpuBuffer(buffers[i].dtype, buffers[i].elements, owner)
            else:
                names["dbyte"] = _BYTE
                lines.append(f"    s{number} = new(dbyte, {sizes[key]})")
                lines += [
                    f"    x{i} = new(d{buffers[i].dtype.name}, {buffers[i].elements}, s{number})"
                    for i in users
                ]


def _byte() -> DType:
    from webtorch.ir.dtype import uint8

    return uint8


_BYTE = _byte()


def expression_count(kernel: Kernel) -> int:
    """Return how many distinct operations one point of the kernel does."""
    return sum(1 for _ in walk(*kernel.expressions()))
