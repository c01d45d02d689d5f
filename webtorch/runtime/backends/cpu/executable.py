"""Programs on the CPU: routines made ready once, then a straight-line Python function that calls them.

Imports NumPy, floors 0-2 and this backend's own modules.
"""

from __future__ import annotations

import functools
import os
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from weakref import WeakValueDictionary

import numpy as np

from webtorch.ir.checks import first_checks
from webtorch.ir.dtype import DType, int32, int64, uint8
from webtorch.ir.expr import cost_cpu, walk
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
from webtorch.ir.program import Copy, Dispatch, Program
from webtorch.lower.coarsening import THREADS, coarsened
from webtorch.lower.layout import lay_out_memory
from webtorch.lower.loopnest import split as split_reduction
from webtorch.lower.loopnest import tile
from webtorch.lower.numpysource import numpy_source
from webtorch.lower.pysource import python_source
from webtorch.lower.scansource import scan_source
from webtorch.lower.sizes import Families, Family
from webtorch.lower.templates.generic import conv_kernel, without_epilogue
from webtorch.runtime.backend import Ready, compiling
from webtorch.runtime.backends.cpu import (
    attention,
    contraction,
    direct,
    flash,
    fourier,
    gemm,
    integers,
    jit,
    lapack,
    launch,
    native_threads,
    numpy_math,
    order,
    single,
    smallproduct,
)
from webtorch.runtime.backends.cpu.memory import (
    MEMORY,
    Again,
    Array,
    CpuBuffer,
    PartBuffer,
    array_type,
)
from webtorch.runtime.backends.cpu.threads import get_num_threads, run_parallel, split
from webtorch.runtime.backends.cpu.timing import run_timed
from webtorch.runtime.watch import watch

Scalar = bool | int | float


class Bound(Protocol):
    """What a program is run with (`runtime/known`)."""

    order: list[int] | None
    args: list[Scalar] | None
    moved: list[tuple[int, int]]


# Its functions are found by their names.
assert fourier.fft_c2c is not None
# Elements that one block of NumPy work covers: some temporaries of this size fit a core's second-level cache.
_BLOCK = 1 << 15
# Work is counted in operations on one element. Compiling pays from about here on (some 6 ms), and
# calling NumPy for one operation costs as much as this many elements.
_COMPILE_WORK = 6_000_000
_CALL_COST = 4000
# What compiles for longer is a long formula: it takes as long as NumPy takes for about so many elements of it.
_COMPILE_ELEMENTS = 200_000
# Two threads share a kernel from this much work on, some 4 us of one thread, and all of them from so much: there some
# 10 us of each of several.
_SHARED_WORK = 130_000
_PARALLEL_WORK = 800_000
# Other threads run Python meanwhile from this much work on.
_LONG_WORK = 400_000
# Work in one part of a kernel that threads take in turns.
_CHUNK_WORK = 500_000
# Up to this many bytes that a program overwrites before it has checked all indices are kept until then.
_SAVED_BYTES = 1 << 22
# Temporaries up to this many bytes stay with their program, while all programs together do not keep more than the pool
# lets them; others come from the pool at each run.
_KEPT_BYTES = 1 << 22


class Runner:
    """One routine, ready to run on buffers."""

    routine: Routine
    # Its machine code, for points 0 to `count`, once there is some; the sizes that this takes as arguments, and
    # whether threads share it.
    native: jit.Native | None = None
    count = 0
    sizes: tuple[int, ...] = ()
    parallel = False
    # Whether there may be machine code one day.
    compiles = False

    @property
    def will_be_one_call(self) -> bool:
        """Whether it is one call of machine code, once there is some."""
        return self.compiles and not self.parallel

    def kernels(self) -> list[KernelRunner]:
        """Return the generic kernels that it runs."""
        return []

    def run(self, buffers: Sequence[CpuBuffer], args: Sequence[Scalar], status: Array) -> None:
        """Run on bound buffers; checks that fail are noted in `status`."""
        raise NotImplementedError

    @property
    def is_one_call(self) -> bool:
        """Whether `run` is nothing but one call of machine code, from now on."""
        return self.native is not None and not self.parallel

    def one_call(self, status: int) -> launch.Call:
        """Return that call of addresses, arguments and sizes."""
        assert self.native is not None
        kinds = "Q" * (len(self.routine.buffers) + len(self.sizes))
        return launch.Call(self.native, self.count, kinds, 0)


class KernelRunner(Runner):
    """A generic kernel: NumPy at first, machine code once it has done enough work to pay for compiling.

    The rule counts work and looks at no clock, so that the same program gives the same bits every time.
    """

    compiles = True

    def __init__(self, kernel: Kernel, varying: bool = False) -> None:
        self.routine = kernel
        self.kernel = kernel = coarsened(kernel, THREADS, varying)
        self.varying = varying
        self.family: Family | None = None
        self.head = ""
        self.numbers: tuple[str, ...] = ()
        if varying and jit.available():
            self._join_family()
        self.points = kernel.outer_count * kernel.inner_count
        self.count = kernel.outer_count
        self.rows = kernel.outer[0] if kernel.outer else 1
        if not kernel.outer and kernel.inner:
            self.rows = kernel.inner[0]
        self.converters = [
            argument_converter(int64 if d is int32 and kernel.is_large else d) for d in kernel.args
        ]
        self.numpy: Callable[..., None] | None = None
        # Compiled before it is wanted, and kept until then.
        self.ahead: jit.Native | None = None
        per_row = max(self.points // max(self.rows, 1), 1)
        self.block = max(_BLOCK // per_row, 1) if kernel.outer else self.rows
        # One cell of 8 bytes for each buffer, each argument and the address of the status words.
        kinds = ["d" if d.kind == "float" else "Q" for d in kernel.args]
        self.pack = struct.Struct("Q" * len(kernel.buffers) + "".join(kinds) + "Q").pack
        self.masks = [0 if d.kind == "float" else _ALL_BITS for d in kernel.args]
        each = cost_cpu(*kernel.expressions()) + len(kernel.buffers)
        self.work = each * self.points
        self.spent = 0
        self.step = each * (self.points + _CALL_COST)
        self.enough = max(_COMPILE_WORK, each * _COMPILE_ELEMENTS)
        self.parallel = self.work >= _SHARED_WORK and self.count > 1 and not in_order(kernel)
        # Threads get whole cache lines where outer points are single elements.
        self.multiple = 64 if not kernel.inner else 16 if self.count >= 256 else 1

    def kernels(self) -> list[KernelRunner]:
        """Return itself."""
        return [self]

    def run(self, buffers: Sequence[CpuBuffer], args: Sequence[Scalar], status: Array) -> None:
        """Run on bound buffers."""
        native = self.native
        if native is None:
            if not self._pays() or not jit.available():
                self.run_numpy(buffers, args, status)
                return
            native = self.compile()
        values = [a & m if m else a for a, m in zip(args, self.masks)] if args else ()  # type: ignore[operator]
        block = self.pack(
            *[b.address for b in buffers],
            *values,
            *self.sizes,
            status.ctypes.data if self.kernel.checks else 0,
        )
        if not self.parallel:
            native.call(0, self.count, block)
            return
        threads = get_num_threads()
        if threads == 1:
            native.call(0, self.count, block)
        elif not native_threads.available() or not native_threads.run(
            native.address, 0, self.count, self.chunk(threads), block
        ):
            parts = split(0, self.count, threads, self.multiple)
            run_parallel(
                [functools.partial(native.call, begin, end, block) for begin, end in parts]
            )

    @property
    def is_one_call(self) -> bool:
        """Whether `run` is nothing but one call of machine code, from now on."""
        count = len(self.kernel.buffers) + len(self.kernel.args) + len(self.sizes)
        return self.native is not None and self.will_be_one_call and count <= launch.MOST

    @property
    def will_be_one_call(self) -> bool:
        """Whether it is one call of machine code, once there is some."""
        return not self.parallel or native_threads.available()

    def one_call(self, status: int) -> launch.Call:
        """Return that call."""
        assert self.native is not None
        args = ["d" if d.kind == "float" else "Q" for d in self.kernel.args]
        kinds = "Q" * len(self.kernel.buffers) + "".join(args) + "Q" * len(self.sizes)
        cell = status if self.kernel.checks else 0
        step = 0
        if self.parallel:
            native_threads.start()
            step = self.chunk(max(get_num_threads(), 2))
        return launch.Call(self.native, self.count, kinds, cell, self.work >= _LONG_WORK, step)

    def chunk(self, threads: int) -> int:
        """Return how many outer points a thread takes at a time: parts of some size, and a few for each thread."""
        parts = 2
        if self.work >= _PARALLEL_WORK:
            parts = max(threads, min(4 * threads, self.work // _CHUNK_WORK))
        return -(-self.count // (parts * self.multiple)) * self.multiple

    def _pays(self) -> bool:
        """Whether machine code pays for compiling, with one more run."""
        family = self.family
        if family is None:
            self.spent += self.step
            return compiling.at_once or self.spent >= self.enough
        # What was compiled for another size serves here too.
        family.work += self.step
        return compiling.at_once or family.work >= self.enough

    def compile(self) -> jit.Native:
        """Make and keep the machine code."""
        native: jit.Native
        if self.family is None:
            native = self.compiled()
            self.ahead = None
        else:
            with _FAMILIES_LOCK:
                native = self._of_any_size(self.family)
        self.native = native
        return native

    def compiled(self) -> jit.Native:
        """Return machine code for these sizes."""
        source = self.source()
        return integers.native(self.kernel, source) or jit.function(source)

    def source(self) -> str:
        """Return the loop text."""
        return python_source(tile(self.kernel))

    def _join_family(self) -> None:
        source = python_source(tile(self.kernel), varying=True)
        begin = source.index("\n")
        # The name is no part of what the text does.
        self.head = source[source.index("(") : begin]
        with _FAMILIES_LOCK:
            self.family, self.numbers = _FAMILIES.find(source[begin:], self.head)

    def _of_any_size(self, family: Family) -> jit.Native:
        names, values = family.arguments(self.numbers)
        places = tuple(sorted(family.places))
        found: jit.Native | None = family.made.get(places)
        if found is None:
            given = "".join(f"{n}: int, " for n in names)
            head = self.head.replace("status)", f"{given}status)")
            family.made.clear()
            found = family.made[places] = jit.function(f"def kernel{head}{family.text('')}")
        if values:
            self.sizes = tuple(values)
            kinds = ["d" if d.kind == "float" else "Q" for d in self.kernel.args]
            self.pack = struct.Struct(
                "Q" * len(self.kernel.buffers) + "".join(kinds) + "Q" * (len(values) + 1)
            ).pack
        return found

    def run_numpy(
        self, buffers: Sequence[CpuBuffer], args: Sequence[Scalar], status: Array
    ) -> None:
        """Run the NumPy form, in blocks of rows."""
        kernel = self.numpy
        if kernel is None:
            kernel = self.numpy = compile_numpy(self.kernel)
        arrays = [b.array for b in buffers]
        values = [convert(a) for convert, a in zip(self.converters, args)]
        with np.errstate(all="ignore"):
            if self.rows <= self.block:
                kernel(0, self.rows, *arrays, *values, status)
                return
            for begin in range(0, self.rows, self.block):
                kernel(begin, min(begin + self.block, self.rows), *arrays, *values, status)


def in_order(kernel: Kernel) -> bool:
    """Whether outer points must follow each other: scatters, whose positions may repeat."""
    return any(
        s.combine != "set" or any(n.op == "load" for n in walk(s.position)) for s in kernel.stores
    )


def argument_converter(dtype: DType) -> Callable[[Scalar], Any]:
    """Return what makes a typed NumPy scalar; integers wrap around."""
    kind = array_type(dtype).type
    if not dtype.is_integral:
        return kind
    return lambda value: np.uint64(int(value) & _ALL_BITS).astype(kind)


_ALL_BITS = (1 << 64) - 1


def compile_numpy(kernel: Kernel) -> Callable[..., None]:
    """Return the kernel's NumPy form as a function."""
    namespace = dict(numpy_math.NAMESPACE)
    exec(compile(numpy_source(kernel), f"<numpy {kernel.name}>", "exec"), namespace)
    function: Callable[..., None] = namespace["kernel"]
    return function


class SplitRunner(Runner):
    """A long reduction as several kernels, so that threads can share it."""

    def __init__(
        self,
        routine: Kernel,
        kernels: list[Kernel],
        scratch: list[tuple[DType, int]],
        bindings: list[tuple[int, ...]],
        varying: bool = False,
    ) -> None:
        self.routine = routine
        self.scratch = scratch
        self.steps = [(KernelRunner(k, varying), b) for k, b in zip(kernels, bindings)]

    def kernels(self) -> list[KernelRunner]:
        """Return the parts."""
        return [step for step, _ in self.steps]

    def run(self, buffers: Sequence[CpuBuffer], args: Sequence[Scalar], status: Array) -> None:
        """Run on bound buffers."""
        every = [*buffers, *[CpuBuffer(dtype, elements) for dtype, elements in self.scratch]]
        for step, binding in self.steps:
            step.run([every[n] for n in binding], args, status)


class ProductRunner(Runner):
    """A product, then what follows it."""

    def __init__(self, routine: Matmul | Convolution, varying: bool = False) -> None:
        self.routine = routine
        plain, after, self.order, self.scratch = without_epilogue(routine)
        self.product = runner(plain, varying)
        self.after = KernelRunner(after, varying)

    def kernels(self) -> list[KernelRunner]:
        """Return what follows the product."""
        return [*self.product.kernels(), self.after]

    def run(self, buffers: Sequence[CpuBuffer], args: Sequence[Scalar], status: Array) -> None:
        """Run on bound buffers."""
        every = list(buffers)
        if self.scratch is not None:
            every.append(CpuBuffer(self.scratch.dtype, self.scratch.elements))
        self.product.run((buffers[0], buffers[1], every[self.order[0]]), (), status)
        self.after.run([every[n] for n in self.order], args, status)


class ArrayRunner(Runner):
    """A routine that is a function of flat arrays."""

    def __init__(self, routine: Routine, function: Callable[..., None]) -> None:
        self.routine = routine
        self.function = function

    def run(self, buffers: Sequence[CpuBuffer], args: Sequence[Scalar], status: Array) -> None:
        """Run on bound buffers."""
        # The BLAS has threads of its own.
        native_threads.rest()
        with np.errstate(all="ignore"):
            self.function(*[b.array for b in buffers])


class SeveralRunner(Runner):
    """Kernels that run one after the other."""

    def __init__(self, routine: Several, varying: bool = False) -> None:
        self.routine = routine
        self.steps = [KernelRunner(part, varying) for part in routine.parts]

    def kernels(self) -> list[KernelRunner]:
        """Return the parts."""
        return self.steps

    def run(self, buffers: Sequence[CpuBuffer], args: Sequence[Scalar], status: Array) -> None:
        """Run on bound buffers."""
        for step in self.steps:
            step.run(buffers, args, status)


class ProductsRunner(Runner):
    """Products that run one after the other."""

    def __init__(self, routine: Products, varying: bool = False) -> None:
        self.routine: Products = routine
        self.steps = [runner(part, varying) for part in routine.parts]

    def kernels(self) -> list[KernelRunner]:
        """Return what follows the products."""
        return [kernel for step in self.steps for kernel in step.kernels()]

    def run(self, buffers: Sequence[CpuBuffer], args: Sequence[Scalar], status: Array) -> None:
        """Run on bound buffers."""
        r = self.routine
        for step, places, numbers in zip(self.steps, r.places, r.numbers, strict=True):
            step.run([buffers[n] for n in places], [args[n] for n in numbers], status)


class ArgumentRunner(ArrayRunner):
    """A routine that is a function of flat arrays and of arguments."""

    def run(self, buffers: Sequence[CpuBuffer], args: Sequence[Scalar], status: Array) -> None:
        """Run on bound buffers."""
        native_threads.rest()
        with np.errstate(all="ignore"):
            self.function([b.array for b in buffers], args)


class ScanRunner(ArrayRunner):
    """A scan: NumPy's at first, machine code once it has done enough work to pay for compiling."""

    compiles = True

    def __init__(self, routine: Scan) -> None:
        super().__init__(routine, contraction.scan(routine))
        self.source = scan_source(routine)
        self.count = routine.outer * routine.inner
        self.sizes = routine.length, routine.inner
        # An element waits for the one before it.
        work = 16 * self.count * routine.length
        self.spent, self.step = 0, work // 4 + _CALL_COST
        self.parallel = work >= _PARALLEL_WORK
        self.multiple = 16 if routine.inner >= 16 else 1

    def run(self, buffers: Sequence[CpuBuffer], args: Sequence[Scalar], status: Array) -> None:
        """Run on bound buffers."""
        if self.native is None:
            self.spent += self.step
            waits = self.spent < _COMPILE_WORK and not compiling.at_once
            if waits or not jit.available():
                super().run(buffers, args, status)
                return
            self.native = jit.function(self.source)
        block = _SCAN_BLOCK(*[b.address for b in buffers], *self.sizes)
        threads = get_num_threads() if self.parallel else 1
        parts = split(0, self.count, threads, self.multiple)
        if len(parts) == 1:
            self.native.call(0, self.count, block)
        elif not native_threads.available() or not native_threads.run(
            self.native.address, 0, self.count, parts[0][1], block
        ):
            run_parallel([functools.partial(self.native.call, *part, block) for part in parts])


_SCAN_BLOCK = struct.Struct("QQqq").pack


class SortRunner(ArrayRunner):
    """The order of few short rows: NumPy's at first, machine code once it has done enough work to pay for compiling."""

    compiles = True

    def __init__(self, routine: Sort, source: str) -> None:
        super().__init__(routine, order.sort(routine))
        self.source = source
        self.count = routine.rows
        self.sizes = routine.length, routine.first, routine.count
        # NumPy is called some ten times.
        self.spent, self.step = 0, 16 * routine.rows * routine.length + 10 * _CALL_COST

    def run(self, buffers: Sequence[CpuBuffer], args: Sequence[Scalar], status: Array) -> None:
        """Run on bound buffers."""
        if self.native is None:
            self.spent += self.step
            waits = self.spent < _COMPILE_WORK and not compiling.at_once
            if waits or not jit.available():
                super().run(buffers, args, status)
                return
            self.native = jit.function(self.source)
        self.native.call(0, self.count, _SORT_BLOCK(*[b.address for b in buffers], *self.sizes, 0))


_SORT_BLOCK = struct.Struct("QQqqqQ").pack


class SmallProductRunner(Runner):
    """A small product, by machine code for all sizes."""

    native: jit.Native

    def __init__(self, routine: Matmul, plan: smallproduct.Plan) -> None:
        self.routine = routine
        self.native, self.count, self.sizes = plan

    def run(self, buffers: Sequence[CpuBuffer], args: Sequence[Scalar], status: Array) -> None:
        """Run on bound buffers."""
        block = smallproduct.pack(*[b.address for b in buffers], *self.sizes, 0)
        self.native.call(0, self.count, block)


class BufferRunner(Runner):
    """A routine that is a function of buffers."""

    def __init__(self, routine: Routine, function: Callable[..., None]) -> None:
        self.routine = routine
        self.function = function

    def run(self, buffers: Sequence[CpuBuffer], args: Sequence[Scalar], status: Array) -> None:
        """Run on bound buffers."""
        self.function(*buffers)


class AddressRunner(BufferRunner):
    """A routine that is a function of buffers and of arguments."""

    def run(self, buffers: Sequence[CpuBuffer], args: Sequence[Scalar], status: Array) -> None:
        """Run on bound buffers."""
        self.function(buffers, args)


# By routine, and whether its sizes vary.
_RUNNERS: WeakValueDictionary[tuple[Routine, bool], Runner] = WeakValueDictionary()
_FAMILIES = Families()
_FAMILIES_LOCK = threading.RLock()


def runner(routine: Routine, varying: bool = False) -> Runner:
    """Return the one runner of a routine, among those whose sizes vary or those that have one."""
    found = _RUNNERS.get((routine, varying))
    if found is None:
        match routine:
            case Kernel():
                parts = split_reduction(routine) if jit.available() else None
                if parts is None:
                    found = KernelRunner(routine, varying)
                else:
                    found = SplitRunner(routine, *parts, varying)
            case Several():
                found = SeveralRunner(routine, varying)
            case Products():
                found = ProductsRunner(routine, varying)
            case Matmul() | Convolution() if routine.epilogue:
                found = ProductRunner(routine, varying)
            case Matmul() if (plan := smallproduct.plan(routine)) is not None:
                found = SmallProductRunner(routine, plan)
            case Matmul() if contraction.is_few_rows(routine):
                found = ArrayRunner(routine, contraction.few_rows(routine))
            case Matmul() if gemm.suits(routine):
                found = BufferRunner(routine, gemm.matmul(routine))
            case Matmul():
                found = ArrayRunner(routine, contraction.matmul(routine))
            case Convolution() if (
                routine.groups == routine.input_shape[1] > 1 and routine.kind != "weight"
            ):
                # Depthwise: no matrix product to speak of, so the loop nest itself is best.
                found = KernelRunner(conv_kernel(routine), varying)
            case Convolution() if direct.suits(routine):
                found = BufferRunner(routine, direct.convolution(routine))
            case Convolution():
                found = ArrayRunner(routine, contraction.convolution(routine))
            case Scan():
                found = ScanRunner(routine)
            case Attention() if flash.suits(routine):
                found = AddressRunner(routine, flash.Plan(routine).run)
            case Attention():
                found = ArgumentRunner(routine, attention.attention(routine))
            case Sort() if (text := order.merging(routine)) is not None:
                found = SortRunner(routine, text)
            case Sort():
                found = ArrayRunner(routine, order.sort(routine))
            case Host():
                found = ArrayRunner(routine, lapack.function(routine))
        _RUNNERS[routine, varying] = found
    return found


def compile_ahead(steps: Sequence[Runner]) -> None:
    """Compile the kernels that the first run of these steps will find worth it, on threads beside
    that run, in the order in which it comes to them.

    When machine code takes over is not changed by that.
    """
    threads = get_num_threads()
    if threads < 2 or not jit.available():
        return
    spent: dict[KernelRunner, int] = {}
    waiting: dict[KernelRunner, None] = {}
    for step in steps:
        for kernel in step.kernels():
            if kernel.family is None and kernel.native is None:
                spent[kernel] = spent.get(kernel, kernel.spent) + kernel.step
                if compiling.at_once or spent[kernel] >= kernel.enough:
                    waiting[kernel] = None
    if len(waiting) < 2:
        return
    # One iterator for all threads: each takes the next.
    order = iter(waiting)

    def work() -> None:
        """Compile one kernel after the other; stop when the process ends or forks."""
        for kernel in order:
            # At its end the process waits for threads, though for nothing that they make.
            if _FORKING.is_set() or not threading.main_thread().is_alive():
                break
            try:
                kernel.ahead = kernel.compiled()
            except Exception:
                # The run itself comes to it, and raises.
                break
        _COMPILING.discard(threading.current_thread())

    for n in range(min(threads, len(waiting))):
        thread = threading.Thread(target=work, name=f"webtorch-compile-{n}")
        _COMPILING.add(thread)
        thread.start()


_COMPILING: set[threading.Thread] = set()
_FORKING = threading.Event()


def _stop_compiling() -> None:
    """Wait until no thread compiles: a child process would never get the locks that one holds."""
    _FORKING.set()
    try:
        for thread in list(_COMPILING):
            # One that another thread is about to start has no lock yet, and cannot be waited for.
            if thread.ident is not None:
                thread.join()
    finally:
        _FORKING.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_stop_compiling)


def copy(source: CpuBuffer, target: CpuBuffer) -> None:
    """Copy all elements."""
    target.array[...] = source.array


def _report(
    program: Program,
    status: Array,
    failed: Callable[[Program, int, int, bool], None],
    now: bool = False,
) -> None:
    """Report the check that failed, and begin anew."""
    site, value = int(status[0]) - 1, int(status[1])
    status[:] = 0
    failed(program, site, value, now)


def _save(*buffers: CpuBuffer) -> list[Array]:
    return [b.array.copy() for b in buffers]


def _give_back(saved: list[Array], *buffers: CpuBuffer) -> None:
    for array, buffer in zip(saved, buffers):
        buffer.array[...] = array


class CpuExecutable:
    """A program ready for the CPU."""

    scratch_bytes = 0
    reuses = False
    prepare = None

    def __init__(
        self,
        program: Program,
        failed: Callable[[Program, int, int, bool], None],
        varying: bool = False,
    ) -> None:
        self.program = program
        self.runners = [runner(r, varying) for r in program.routines]
        compile_ahead([self.runners[s.routine] for s in program.steps if isinstance(s, Dispatch)])
        self.status: Array = np.zeros(2, np.int64)
        self.checks = bool(program.sites)
        # No method: nothing of an executable holds it.
        self.report = functools.partial(_report, program, self.status, failed)
        self.tells = not any(isinstance(r, Host) for r in program.routines)
        self.names, self.head = self._begin()
        # Kernels that are not machine code yet. Once all are, the steps are written anew.
        self.waiting = [k for k in self.runners if k.will_be_one_call] if jit.available() else []
        self.call = self._compile()

    def run(
        self,
        inputs: Sequence[CpuBuffer],
        args: Sequence[Scalar],
        into: object = None,
        ready: Ready | None = None,
    ) -> list[CpuBuffer]:
        """Run the program and return its output buffers, if `ready` is not given them. Whoever calls has the lock of
        the device: the runs of one program share temporaries.
        """
        listener = watch.listener
        outputs: list[CpuBuffer] = (
            self.call(inputs, args, ready)
            if listener is None
            else run_timed(self, listener, inputs, args, ready)
        )
        if self.checks and self.status[0]:
            self.report()
        if self.waiting:
            while self.waiting and self.waiting[-1].native is not None:
                self.waiting.pop()
            if not self.waiting:
                self.call = self._compile()
        return outputs

    def plan(
        self, kind: str, number: int | None, same: Sequence[int], numbers: int, known: Bound
    ) -> bytes | None:
        """Return how machine code computes a value, of which the program is known (`single.plan`); nothing where it
        cannot, None where it may later.
        """
        if self.waiting:
            return None
        program = self.program
        out = program.outputs[0]
        decl = program.buffers[out]
        if len(program.outputs) > 1 or decl.role != "output" or decl.alias is not None:
            return b""
        order = known.order if known.order is not None else range(len(program.inputs))
        where = {i: (single.SOURCE, n) for i, n in zip(program.inputs, order)}
        where |= {
            int(name[1:]): (single.CONSTANT, value.address)
            for name, value in self.names.items()
            if type(value) is PartBuffer
        }
        where[out] = single.RESULT, 0
        given = len(program.args) - len(program.constants)
        moved = {n: n for n in range(given)} if known.args is None else dict(known.moved)
        constants = [*(known.args or [0] * given), *program.constants]
        kernels: list[single.Kernel] = []
        for step in program.steps:
            made = self.runners[step.routine] if isinstance(step, Dispatch) else None
            if made is None or not made.is_one_call or not where.keys() >= {*step.buffers}:
                return b""
            assert isinstance(step, Dispatch)
            native, points, kinds, last, long, step_points = made.one_call(self.status.ctypes.data)
            if long:
                return b""
            cells = [where[b] for b in step.buffers]
            for a, letter in zip(step.args, kinds[len(cells) :]):
                if a in moved:
                    cells.append((single.FLOAT if letter == "d" else single.WHOLE, moved[a]))
                else:
                    cells.append((single.CONSTANT, single.bits(constants[a], letter)))
            cells += [(single.CONSTANT, n) for n in (*made.sizes, last)]
            kernels.append((native.address, points, step_points, cells))
        status = self.status.ctypes.data if self.checks else 0
        return single.plan(kind, number, same, numbers, decl.dtype, decl.elements, status, kernels)

    def source(self) -> str:
        """Return the Python text that runs the steps."""
        return self.text

    def _begin(self) -> tuple[dict[str, Any], list[str]]:
        """Return the names of the straight-line function, and its lines before the steps."""
        program = self.program
        names: dict[str, object] = {
            "new": CpuBuffer, "part": PartBuffer, "copy": copy, "status": self.status
        }  # fmt: skip
        if self.checks:
            names |= {"report": self.report, "save": _save, "give_back": _give_back}
        lines = ["def run(inputs, args, ready):"]
        if program.inputs:
            lines.append(f"    {', '.join(f'x{i}' for i in program.inputs)}, = inputs")
        names |= {f"d{d.name}": d for d in {b.dtype for b in program.buffers}}
        self._temporaries(names, lines)
        given = [(i, d) for i, d in enumerate(program.buffers) if d.role == "output"]
        fresh = [(i, d) for i, d in given if d.alias is None]
        lines += [f"    x{i} = x{d.alias}" for i, d in given if d.alias is not None]
        lines.append("    if ready is None:")
        lines += [f"        x{i} = new(d{d.dtype.name}, {d.elements})" for i, d in fresh]
        lines += ["        pass", "    else:"]
        if fresh:
            names["again"] = Again([(d.dtype, d.elements) for _, d in fresh])
            lines.append(f"        {', '.join([f'x{i}' for i, _ in fresh])}, = again.take()")
        lines.append(f"        ready([{', '.join([f'x{i}' for i in program.outputs])}])")
        return names, lines

    def _compile(self) -> Callable[..., list[CpuBuffer]]:
        """Return the straight-line function. What `run_timed` times has names that begin with k."""
        program = self.program
        # An interrupt on the way leaves the function before, with its own names.
        names, lines = dict(self.names), list(self.head)
        given = len(program.args) - len(program.constants)
        stops = self._stops() if self.checks else {}
        for place, step in enumerate(program.steps):
            lines += stops.get(place, ())
            if isinstance(step, Copy):
                lines.append(f"    copy(x{step.source}, x{step.target})")
                continue
            number, made = step.routine, self.runners[step.routine]
            values = [
                f"args[{a}]" if a < given else repr(program.constants[a - given]) for a in step.args
            ]
            if made.is_one_call:
                call = made.one_call(self.status.ctypes.data)
                names[f"k{number}"], names[f"w{number}"] = launch.launch(call)
                cells = [*[f"x{b}.address" for b in step.buffers], *values, *map(str, made.sizes)]
                lines.append(f"    k{number}({', '.join(cells)})")
                continue
            names[f"k{number}"] = made.run
            buffers = "".join(f"x{b}, " for b in step.buffers)
            lines.append(
                f"    k{number}(({buffers}), ({''.join(f'{v}, ' for v in values)}), status)"
            )
        lines += stops.get(len(program.steps), ())
        outputs = ", ".join([f"x{i}" for i in program.outputs])
        lines.append(f"    return [{outputs}] if ready is None else []")
        self.text = "\n".join(lines) + "\n"
        exec(compile(self.text, "<program>", "exec"), names)
        run: Callable[..., list[CpuBuffer]] = names["run"]
        return run

    def _stops(self) -> dict[int, list[str]]:
        """Return lines before steps that let a bad index end the program with what it was given as it was: before that
        is overwritten, or, where an index is checked later and it is little, with what was kept of it.
        """
        program = self.program
        overwriting = program.overwriting()
        first = next((n for n, written in enumerate(overwriting) if written), None)
        checks = first_checks(
            (program.routines[s.routine] if isinstance(s, Dispatch) else None, s.buffers)
            for s in program.steps
        )
        if first is None or not checks:
            return {}
        stops = {first: ["    if status[0]: report(now=True)"]} if min(checks) < first else {}
        last = max(checks)
        written = sorted(set().union(*overwriting[first : last + 1]))
        decls = [program.buffers[b] for b in written]
        if last >= first and sum(d.elements * d.dtype.itemsize for d in decls) <= _SAVED_BYTES:
            given = ", ".join([f"x{b}" for b in written])
            stops.setdefault(first, []).append(f"    saved = save({given})")
            stops[last + 1] = [f"    if status[0]: give_back(saved, {given}); report(now=True)"]
        return stops

    def _temporaries(self, names: dict[str, object], lines: list[str]) -> None:
        """Give each pool slot one block, as large as the largest temporary that uses it."""
        buffers = self.program.buffers
        shared = [p for p in lay_out_memory(self.program).pieces if p.role == "temporary"]
        total = sum(p.nbytes for p in shared)
        keep = total <= _KEPT_BYTES and MEMORY.keep(self, total)
        for number, piece in enumerate(shared):
            if keep:
                owner = CpuBuffer(uint8, piece.nbytes)
                for i in piece.buffers:
                    names[f"x{i}"] = PartBuffer(buffers[i].dtype, buffers[i].elements, owner)
            else:
                names["dbyte"] = uint8
                lines.append(f"    s{number} = new(dbyte, {piece.nbytes})")
                lines += [
                    f"    x{i} = part(d{buffers[i].dtype.name}, {buffers[i].elements}, s{number})"
                    for i in piece.buffers
                ]
