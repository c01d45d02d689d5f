"""The CPU backend where there is no NumPy, as in a page: plain Python, right and slow, and WebAssembly where Python
itself is that. Floors 0-2, standard library.

`webtorch.runtime.backends` opens it as device "cpu" when NumPy cannot be imported. Every routine is run as a
loop nest, in WebAssembly (`loops`) or in Python (`lower/plainsource.py`), with the same results; what needs LAPACK
says so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from webtorch.errors import DeviceError, OutOfMemoryError
from webtorch.ir.dtype import DType, uint8
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
from webtorch.ir.program import Copy, Program
from webtorch.lower.layout import lay_out_memory
from webtorch.lower.plainsource import plain_source
from webtorch.lower.templates.generic import conv_kernel, matmul_kernel
from webtorch.runtime.backends.on_processor import ProcessorBackend
from webtorch.runtime.backends.plain import templates, webassembly
from webtorch.runtime.backends.plain.arithmetic import NAMESPACE, f32

_CODES = {"float16": "H", "bfloat16": "H"}
Call = Callable[..., None]


class _Memory:
    """Bytes that live buffers hold."""

    live = 0
    peak = 0


_MEMORY = _Memory()


class PlainBuffer:
    """Memory for `elements` values, of its own or part of `data`; `view` is indexed by element."""

    def __init__(self, dtype: DType, elements: int, data: memoryview | None = None) -> None:
        self.dtype = dtype
        self.elements = elements
        self.nbytes = 0
        self.place = -1
        try:
            self.data = bytearray(elements * dtype.itemsize) if data is None else data
        except (MemoryError, OverflowError):
            raise OutOfMemoryError(
                f"allocate: {dtype.name}[{elements}] is more memory than there is"
            ) from None
        if data is None:
            self.nbytes = len(self.data)
        code: Any = _CODES.get(dtype.name, dtype.code)
        self.view: Any = memoryview(self.data).cast(code)
        _MEMORY.live += self.nbytes
        _MEMORY.peak = max(_MEMORY.peak, _MEMORY.live)

    def __del__(self) -> None:
        _MEMORY.live -= self.nbytes

    @property
    def address(self) -> int:
        """Where the memory lies."""
        if self.place < 0:
            self.place = webassembly.address_of(self.data)
        return self.place


def _generic(routine: Routine) -> Kernel | None:
    match routine:
        case Kernel():
            return routine
        case Matmul():
            return matmul_kernel(routine)
        case Convolution():
            return conv_kernel(routine)
    return None


def _call(routine: Routine) -> Call:
    """Return the function that runs a routine on views, arguments and the status words."""
    kernel = _generic(routine)
    if kernel is not None:
        names = dict(NAMESPACE)
        exec(compile(plain_source(kernel), f"<kernel {kernel.name}>", "exec"), names)
        found: Call = names["kernel"]
        return found
    match routine:
        case Scan():
            return templates.scan(routine)
        case Sort():
            return templates.sort(routine)
        case Attention():
            return templates.attention(routine)
        case Host():
            raise DeviceError(
                f"{routine.function}: this needs LAPACK, which the CPU backend has through NumPy, and NumPy is not "
                "installed here"
            )
        case Several() | Products():
            raise TypeError("plain Python runs kernels one by one")
    raise TypeError(f"{type(routine).__name__} is no routine")


class PlainExecutable:
    """A program ready to run in Python."""

    scratch_bytes = 0
    reuses = tells = False
    prepare = None

    def __init__(self, program: Program, failed: Callable[[Program, int, int, bool], None]) -> None:
        self.program = program
        self.failed = failed
        self.memory = lay_out_memory(program)
        self.lock = threading.Lock()
        self.stop = next((n for n, w in enumerate(program.overwriting()) if w), -1)
        self.written: webassembly.Written | None = None
        on = webassembly.machine()
        if on is not None:
            generic = {n: _generic(routine) for n, routine in enumerate(program.routines)}
            kernels = {n: kernel for n, kernel in generic.items() if kernel is not None}
            self.written = webassembly.Written(on, program, kernels, self.stop)
        there = () if self.written is None else self.written.numbers
        self.calls = {
            n: _call(routine) for n, routine in enumerate(program.routines) if n not in there
        }

    def run(
        self,
        inputs: Sequence[PlainBuffer],
        args: Sequence[bool | int | float],
        into: object = None,
        ready: object = None,
    ) -> list[Any]:
        """Run the program and return its output buffers."""
        program = self.program
        values = [
            f32(a) if t.kind == "float" and t.itemsize < 8 else a
            for a, t in zip([*args, *program.constants], program.args, strict=True)
        ]
        buffers: dict[int, PlainBuffer] = {}
        given, kept = iter(inputs), []
        for piece in self.memory.pieces:
            first = program.buffers[piece.buffers[0]]
            if piece.role == "temporary":
                shared = PlainBuffer(uint8, piece.nbytes)
                kept.append(shared)
                for number in piece.buffers:
                    decl = program.buffers[number]
                    part = memoryview(shared.data)[: decl.elements * decl.dtype.itemsize]
                    buffers[number] = PlainBuffer(decl.dtype, decl.elements, part)
                continue
            one = next(given) if piece.role == "input" else PlainBuffer(first.dtype, first.elements)
            buffers |= dict.fromkeys(piece.buffers, one)
        status = [0, 0]
        written, done = self.written, 0
        with self.lock:
            if written is not None and written.runs:
                written.prepare([buffers[n].address for n in range(len(program.buffers))], values)
            for place, step in enumerate(program.steps):
                if place < done:
                    continue
                if place == self.stop and status[0]:
                    self.failed(program, status[0] - 1, status[1], True)
                if written is not None and (run := written.runs.get(place)):
                    run.call(written.base)
                    done = run.last
                    if program.sites and not status[0]:
                        status[:] = written.reported()
                    continue
                if isinstance(step, Copy):
                    buffers[step.target].data[:] = buffers[step.source].data
                    continue
                views = [buffers[b].view for b in step.buffers]
                self.calls[step.routine](*views, *[values[a] for a in step.args], status)
        if status[0]:
            self.failed(program, status[0] - 1, status[1], False)
        return [buffers[number] for number in program.outputs]


class PlainBackend(ProcessorBackend):
    """The processor without NumPy, as device "cpu"."""

    def __init__(self, index: int) -> None:
        super().__init__(index, _MEMORY)

    def description(self) -> str:
        """Return what runs the kernels, and what runs as plain Python beside WebAssembly."""
        on = webassembly.machine()
        if on is None:
            return "plain Python (no NumPy)"
        left = ", ".join(f"{name} ({count})" for name, count in sorted(on.refused.items()))
        return "WebAssembly (one thread)" + (f"; plain Python: {left}" if left else "")

    def allocate(self, dtype: DType, elements: int) -> PlainBuffer:
        """Return memory of zeros. Raises OutOfMemoryError."""
        return PlainBuffer(dtype, elements)

    def upload(
        self, data: bytes | bytearray | memoryview, dtype: DType, elements: int
    ) -> PlainBuffer:
        """Return a new buffer that holds `data`."""
        buffer = PlainBuffer(dtype, elements)
        buffer.data[:] = memoryview(data).cast("B") if elements else b""
        return buffer

    def download(
        self,
        buffer: PlainBuffer,
        first: int = 0,
        count: int | None = None,
        *,
        into: memoryview | None = None,
    ) -> memoryview:
        """Return a copy of the contents, or of `count` elements from `first` on, in `into` if it is given. Raises what
        `synchronize` raises.
        """
        self.synchronize()
        size = buffer.dtype.itemsize
        end = None if count is None else (first + count) * size
        source = buffer.data[first * size : end]
        if into is None:
            return memoryview(bytes(source))
        into[:] = memoryview(source).cast("B")
        return into

    def lend(self, buffer: PlainBuffer, before: object) -> object:
        """Raise ImportError: only NumPy arrays see memory."""
        raise ImportError("this needs NumPy, which is not installed here; use x.tolist()")

    adopt = lend

    def on_host(self, memory: memoryview) -> None:
        """There is none without NumPy."""

    def compile(self, program: Program, varying: bool = False) -> PlainExecutable:
        """Make a program ready."""
        return PlainExecutable(program, self.failed)

    def foresee(self, program: Program) -> None:
        """Do nothing: nothing is compiled."""

    def source(self, routine: Routine) -> str:
        """Return the Python text of a routine."""
        kernel = _generic(routine)
        return str(routine) if kernel is None else plain_source(kernel)

    def kept_key(self) -> str | None:
        """Return what programs depend on besides `limits`."""
        return "plain"

    def caches(self) -> dict[str, dict[str, int]]:
        """Return how many routines run as WebAssembly and as plain Python."""
        on = webassembly.machine()
        if on is None:
            return {}
        return {"routines": {"webassembly": on.routines, "plain": sum(on.refused.values())}}

    def empty_cache(self) -> None:
        """Give scratch memory back: nothing else is pooled."""
        on = webassembly.machine()
        if on is not None:
            on.scratch = bytearray()


def vectors() -> str:
    """Return "DEFAULT": there are none."""
    return "DEFAULT"


def get_num_threads() -> int:
    """Return 1: Python runs on one thread."""
    return 1


def set_num_threads(number: int) -> None:
    """Do nothing: there is one thread. Raises RuntimeError for less than one."""
    if number < 1:
        raise RuntimeError("set_num_threads expects a positive integer")


def open_backend(index: int) -> PlainBackend:
    """Return the processor without NumPy as device "cpu"; `index` is 0."""
    return PlainBackend(index)
