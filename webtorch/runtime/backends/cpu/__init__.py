"""The CPU backend: generated vector code on threads, NumPy and its BLAS. Imports NumPy and floors 0-2.

`open_backend` is what `webtorch.runtime.backends` calls.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from webtorch.ir.dtype import DType
from webtorch.ir.kernel import Kernel, Routine
from webtorch.ir.program import Program
from webtorch.lower.numpysource import numpy_source
from webtorch.lower.pysource import python_source
from webtorch.runtime.backend import Singles
from webtorch.runtime.backends.cpu import jit, single
from webtorch.runtime.backends.cpu.executable import CpuExecutable, runner
from webtorch.runtime.backends.cpu.interpret import interpret
from webtorch.runtime.backends.cpu.jit import vectors
from webtorch.runtime.backends.cpu.memory import (
    MEMORY,
    Array,
    ArrayBuffer,
    CpuBuffer,
    HostBlock,
    lend,
)
from webtorch.runtime.backends.cpu.threads import get_num_threads, set_num_threads
from webtorch.runtime.backends.on_processor import LIMITS, ProcessorBackend

__all__ = ["CpuBackend", "get_num_threads", "open_backend", "set_num_threads", "vectors"]


class CpuBackend(ProcessorBackend):
    """The processor, as a device. Work is done when `run` returns, so nothing ever waits."""

    singles = Singles(CpuExecutable.plan, single.function)
    interpret = staticmethod(interpret)

    def __init__(self, index: int) -> None:
        super().__init__(index, MEMORY)
        self.limits = replace(LIMITS, has_attention=jit.available())

    def description(self) -> str:
        """Return the processor's name and the number of threads, and what would make it faster."""
        name = f"{_processor()} ({get_num_threads()} threads)"
        if jit.available() or sys.platform == "emscripten":
            return name
        return f"{name}, by NumPy; `pip install numba scipy` makes it several times faster"

    def allocate(self, dtype: DType, elements: int) -> CpuBuffer:
        """Return uninitialised memory. Raises OutOfMemoryError."""
        return CpuBuffer(dtype, elements)

    def upload(
        self, data: bytes | bytearray | memoryview, dtype: DType, elements: int
    ) -> CpuBuffer:
        """Return a new buffer that holds `data`."""
        buffer = CpuBuffer(dtype, elements)
        if elements:
            buffer.array.view(np.uint8)[:] = np.frombuffer(data, np.uint8, buffer.nbytes)
        return buffer

    def download(
        self,
        buffer: CpuBuffer,
        first: int = 0,
        count: int | None = None,
        *,
        into: memoryview | None = None,
    ) -> memoryview:
        """Return a copy of the contents, or of `count` elements from `first` on, in `into` if it is given. Raises what
        `synchronize` raises.
        """
        self.synchronize()
        array = buffer.array if count is None else buffer.array[first : first + count]
        source = array.view(np.uint8)
        if into is None:
            return memoryview(source.copy().data)
        np.copyto(np.frombuffer(into, np.uint8), source)
        return into

    def at_hand(
        self,
        buffer: CpuBuffer,
        shape: Sequence[int] | None = None,
        strides: Sequence[int] = (),
        first: int = 0,
    ) -> Array:
        """Return a view of the contents as an array, flat where no shape is given."""
        array = buffer.array
        if shape is None:
            return array
        if 0 in shape:
            # NumPy compares strides with the memory, even where there is none.
            return np.empty(tuple(shape), array.dtype)
        width = array.itemsize
        steps = [s * width for s in strides]
        return np.ndarray(tuple(shape), array.dtype, array, first * width, steps)

    def adopt(self, array: Array, dtype: DType) -> ArrayBuffer:
        """Return the memory of a NumPy array as a buffer."""
        return ArrayBuffer(dtype, array)

    def on_host(self, memory: memoryview) -> HostBlock:
        """Return the host's memory as this device's."""
        return HostBlock(memory)

    def lend(
        self, buffer: CpuBuffer, before: Callable[[], object] | None
    ) -> tuple[Array, Callable[[], object]]:
        """Return a buffer's memory as a flat NumPy array, and what tells whether it is still seen.

        Raises what `download` raises.
        """
        self.synchronize()
        return lend(buffer, before)

    def compile(self, program: Program, varying: bool = False) -> CpuExecutable:
        """Make a program ready."""
        return CpuExecutable(program, self.failed, varying)

    def foresee(self, program: Program) -> None:
        """Note the texts of a varying program's kernels."""
        for routine in program.routines:
            runner(routine, varying=True)

    def source(self, routine: Routine) -> str:
        """Return the source text of a routine: loops where they are compiled, else NumPy."""
        if not isinstance(routine, Kernel):
            return str(routine)
        return python_source(routine) if jit.available() else numpy_source(routine)

    def kept_key(self) -> str | None:
        """Return what programs depend on besides `limits`."""
        return "cpu"

    def caches(self) -> dict[str, dict[str, int]]:
        """Return the counters of the caches of compiled work, by name."""
        return {"kernels": jit.counts()}

    def empty_cache(self) -> None:
        """Give pooled, unused memory back to the system."""
        MEMORY.release()


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or os.name


def open_backend(index: int) -> CpuBackend:
    """Return the CPU as a device; `index` is 0."""
    return CpuBackend(index)
