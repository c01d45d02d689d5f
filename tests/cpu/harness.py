"""Run one kernel in each of the CPU's three executions. For tests only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from webtorch.ir.dtype import DType, bfloat16
from webtorch.ir.kernel import BufferSlot, Kernel, Routine
from webtorch.ir.program import BufferDecl, Dispatch, Program, Site
from webtorch.lower.pysource import python_source
from webtorch.runtime.backends.cpu.executable import KernelRunner
from webtorch.runtime.backends.cpu.memory import CpuBuffer, array_type

EXECUTIONS = ("numpy", "native", "plain")


def slot(dtype: DType, elements: int, access: str = "read") -> BufferSlot:
    return BufferSlot(dtype, access, elements)  # type: ignore[arg-type]


def buffer(dtype: DType, values: Any) -> CpuBuffer:
    """Return a buffer that holds `values`; bfloat16 takes float32 values."""
    array = np.asarray(values)
    made = CpuBuffer(dtype, array.size)
    if dtype is bfloat16 and array.dtype != np.uint16:
        array = np.frombuffer(dtype.to_bytes(array.ravel().tolist()), np.uint16)
    made.array[:] = array.astype(array_type(dtype)).ravel()
    return made


def run(
    kernel: Kernel,
    arrays: Sequence[Any],
    args: Sequence[Any] = (),
    execution: str = "numpy",
    threads: int = 1,
    varying: bool = False,
) -> list[Any]:
    """Return the buffers that the kernel writes, as arrays. `arrays` has an entry for every slot;
    None starts as zeros.
    """
    from webtorch.debug import step

    buffers = [
        buffer(s.dtype, np.zeros(s.elements) if a is None else a)
        for s, a in zip(kernel.buffers, arrays)
    ]
    status = np.zeros(2, np.int32)
    runner = KernelRunner(kernel, varying)
    if execution == "numpy":
        runner.run_numpy(buffers, args, status)
    elif execution == "native":
        runner.compile()
        runner.parallel = runner.parallel and threads > 1
        runner.run(buffers, args, status)
    else:
        for i in range(kernel.outer_count):
            step(kernel, i, buffers, args)
    return [b.array.copy() for b, s in zip(buffers, kernel.buffers) if s.access != "read"]


def program(routine: Routine, sites: Sequence[Site] = ()) -> Program:
    """Return a program of one routine; what it only writes is its output."""
    decls = [
        BufferDecl("output" if b.access == "write" else "input", b.dtype, b.elements)
        for b in routine.buffers
    ]
    inputs = [i for i, d in enumerate(decls) if d.role == "input"]
    outputs = [i for i, d in enumerate(decls) if d.role == "output"]
    for i, b in enumerate(routine.buffers):
        if b.access == "read_write":
            outputs.append(len(decls))
            decls.append(BufferDecl("output", b.dtype, b.elements, alias=i))
    args = tuple(range(len(routine.args)))
    step = Dispatch(0, tuple(range(len(routine.buffers))), args)
    return Program(
        (routine,), tuple(decls), (step,), routine.args, tuple(inputs), tuple(outputs), tuple(sites)
    )


def text(kernel: Kernel) -> str:
    return python_source(kernel)
