"""Look inside: run one invocation of a generated kernel as plain Python. NumPy is imported when a function is called.

    >>> import webtorch
    >>> webtorch.debug.step(kernel, 3, [x, y])          # doctest: +SKIP
    {1: {3: 0.25}}

Put `breakpoint()` before the call and step in, or set a breakpoint with `stop=True`: the kernel's
text is known to debuggers.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from webtorch.ir.dtype import DType, bfloat16
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
from webtorch.lower.passes import PassResult, run_passes
from webtorch.lower.pysource import python_source
from webtorch.lower.templates.generic import conv_kernel, matmul_kernel, scan_kernel
from webtorch.runtime.compilations import compilations as compilations
from webtorch.runtime.realize import open_runtimes
from webtorch.scripts import report
from webtorch.tensors.host import tracing
from webtorch.tensors.numerics import check_numerics as check_numerics

if TYPE_CHECKING:
    import numpy.typing as npt

Scalar = bool | int | float
Written = dict[int, dict[int, Scalar]]


def capture(name: str, tensor: object) -> Any:
    """Name an intermediate result of a compiled function; returns it as it is.

    It costs nothing unless `webtorch.compile(..., captures=...)` asks for the name: then
    `captured()` of the compiled function gives its value of the latest call.
    """
    tracing.keep(name, tensor)
    return tensor


def passes(compiled: Any) -> list[PassResult]:
    """Return what each optimisation pass did to the latest graph of a compiled function.

    Printed, a result is the graph before and after.
    """
    captured = compiled.latest()
    found: list[PassResult] = []
    run_passes(captured.graph, captured.runtime.backend.limits, found.append)
    return found


def generic(routine: Routine) -> Kernel:
    """Return a routine as a generic loop nest: a template's reference form, or the kernel itself."""
    match routine:
        case Kernel():
            return routine
        case Matmul():
            return matmul_kernel(routine)
        case Convolution():
            return conv_kernel(routine)
        case Scan():
            return scan_kernel(routine)
        case Several() | Products() | Attention() | Sort() | Host():
            raise TypeError(f"{routine.name} is no loop nest: it has no invocations")


def source(routine: Routine) -> str:
    """Return the Python text that `step` runs, with line numbers as a debugger shows them."""
    return python_source(generic(routine))


def step(
    routine: Routine,
    invocation: int = 0,
    buffers: Sequence[object] | None = None,
    args: Sequence[Scalar] = (),
    *,
    stop: bool = False,
) -> Written:
    """Run one invocation (one outer point) of a kernel as plain Python, and return what it wrote.

    `buffers` are one flat array, CPU buffer or sequence for each slot of the kernel, and None for
    one of zeros; arrays and buffers are written in place. `args` are the runtime arguments (zeros
    where missing). The result maps slot to {position: value}. With `stop`, the debugger opens on
    the kernel's first line. Raises IndexError for an invocation or a position out of range; the
    text, the names and the line numbers are those of `source(routine)`.
    """
    import numpy as np

    kernel = generic(routine)
    if not 0 <= invocation < kernel.outer_count:
        raise IndexError(
            f"debug.step: {kernel.name} has invocations 0 to {kernel.outer_count - 1}, not {invocation}"
        )
    given = list(buffers) if buffers is not None else []
    if len(given) > len(kernel.buffers):
        raise ValueError(
            f"debug.step: {kernel.name} has {len(kernel.buffers)} buffers, {len(given)} were given"
        )
    given += [None] * (len(kernel.buffers) - len(given))
    memories = [
        _Memory(number, _flat(value, slot.dtype, slot.elements))
        for number, (value, slot) in enumerate(zip(given, kernel.buffers))
    ]
    function, names = _load(kernel)
    values = [names[d.name](a) for d, a in zip(kernel.args, [*args, *[0] * len(kernel.args)])]
    status = np.zeros(2, np.int64)
    with np.errstate(all="ignore"):
        if stop:
            import pdb

            pdb.runcall(function, invocation, invocation + 1, *memories, *values, status)
        else:
            function(invocation, invocation + 1, *memories, *values, status)
    if status[0]:
        raise IndexError(
            f"debug.step: {kernel.name}: index {status[1]} failed check number {status[0] - 1} of the kernel"
        )
    return {
        m.slot: {p: _shown(v, kernel.buffers[m.slot].dtype) for p, v in m.written.items()}
        for m in memories
        if m.written
    }


def _load(kernel: Kernel) -> tuple[Callable[..., None], dict[str, Any]]:
    """Compile the text under a file name that debuggers and tracebacks can show."""
    from webtorch.runtime.backends.cpu import plain

    text = python_source(kernel)
    file = f"<webtorch kernel {kernel.name} {hash(text) & 0xFFFFFFFF:08x}>"
    # No time stamp: linecache then never looks for the file.
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names = dict(plain.NAMESPACE)
    # A kernel may be called like one of the functions that it uses.
    defined: dict[str, Callable[..., None]] = {}
    exec(compile(text, file, "exec"), names, defined)
    (function,) = defined.values()
    return function, names


class _Memory:
    """One buffer as the kernel's text sees it: elements by position, and a note of what was written."""

    def __init__(self, slot: int, array: npt.NDArray[Any]) -> None:
        self.slot = slot
        self.array = array
        self.written: dict[int, Any] = {}

    def __getitem__(self, position: int) -> Any:
        return self.array[self._checked(position)]

    def __setitem__(self, position: int, value: object) -> None:
        position = self._checked(position)
        self.array[position] = value
        self.written[position] = self.array[position]

    def _checked(self, position: int) -> int:
        if not 0 <= position < self.array.size:
            raise IndexError(f"b{self.slot}[{position}]: the buffer has {self.array.size} elements")
        return int(position)

    def __repr__(self) -> str:
        return f"b{self.slot} = {self.array!r}"


def _flat(value: object, dtype: DType, elements: int) -> npt.NDArray[Any]:
    import numpy as np

    from webtorch.runtime.backends.cpu.memory import CpuBuffer, array_type

    kind = array_type(dtype)
    if value is None:
        return np.zeros(elements, kind)
    if isinstance(value, CpuBuffer):
        return value.array
    array = np.asarray(value)
    if dtype is bfloat16 and array.dtype != kind:
        array = np.frombuffer(dtype.to_bytes(array.ravel().tolist()), kind).copy()
    elif array.dtype != kind:
        array = array.astype(kind)
    if not array.flags.c_contiguous or not array.flags.writeable:
        array = array.copy()
    if array.size != elements:
        raise ValueError(
            f"debug.step: the kernel's buffer has {elements} elements, {array.size} were given"
        )
    return array.reshape(-1)


def _shown(value: Any, dtype: DType) -> Scalar:
    if dtype is bfloat16:
        return dtype.from_bytes(value.tobytes())[0]
    number: Scalar = value.item()
    return number


def scripts() -> str:
    """Return how many steps of uncompiled loops followed a script, why and where others did not, and what that cost."""
    return report()


def caches() -> dict[str, dict[str, dict[str, int]]]:
    """Return the counters of every cache of compiled work, by device and name.

    `entries` are kept now; `hits` were found, `misses` made; `evictions` were dropped to make room,
    `made_again` of them were made anew. A cache that makes new entries in a loop and never uses
    them again warns once (`webtorch.errors.CacheChurnWarning`), and says what changes.
    """
    return {f"{r.kind}:{r.index}" if r.index else r.kind: r.caches() for r in open_runtimes()}
