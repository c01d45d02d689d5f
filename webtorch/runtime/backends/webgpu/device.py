"""The WebGPU `Backend`: one device, one queue, one lock. Imports floors 0 and 2 (on demand), the
errors and this package.

The native library aborts the process when a submitted command buffer uses a destroyed or a mapped
buffer, was submitted before, or belongs to a lost device. Hence the rules kept here: buffers are
never destroyed, only released; only staging buffers are ever mapped, and one is unmapped before it
is used again; a command buffer is made, submitted and released in one place; and nothing is
submitted when the device is known to be lost or anything was reported while encoding.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from webtorch.dispatch.call import settle_scripts
from webtorch.errors import (
    DeviceCheckError,
    DeviceError,
    DeviceLostError,
    DTypeError,
    IndexOutOfRangeError,
    KernelError,
    OutOfMemoryError,
)
from webtorch.ir.dtype import DType, uint32
from webtorch.ir.kernel import Convolution, Matmul, Routine
from webtorch.ir.limits import Limits
from webtorch.ir.program import Program
from webtorch.lower.in_parts import within_bindings
from webtorch.lower.layout import host_bytes
from webtorch.lower.templates.tuning import family_of
from webtorch.lower.widening import Widths, least_wide
from webtorch.runtime.backend import Buffer, webgpu_bounds
from webtorch.runtime.backends.webgpu import tuner
from webtorch.runtime.backends.webgpu.adapter import (
    AdapterInfo,
    Engine,
    adapters,
    binding,
    has_matrix_units,
    quiet_loader,
    subgroup_size,
    unused,
)
from webtorch.runtime.backends.webgpu.binding import Adapter, Device
from webtorch.runtime.backends.webgpu.encoding import Encoding
from webtorch.runtime.backends.webgpu.executable import ExecutableSet, Trash, WebGPUExecutable
from webtorch.runtime.backends.webgpu.loop import MachineLoop, machine_loop
from webtorch.runtime.backends.webgpu.memory import Block, DeviceBuffer, HostBlock, Pool
from webtorch.runtime.backends.webgpu.native import (
    HOST_MEMORY,
    Pointer,
    Problem,
    Ticket,
    is_lost,
    is_out_of_memory,
    open_native,
    tidy,
)
from webtorch.runtime.backends.webgpu.pipeline import PipelineCache
from webtorch.runtime.backends.webgpu.shader import UserShader
from webtorch.runtime.backends.webgpu.staging import Staging
from webtorch.runtime.backends.webgpu.transfer import (
    LARGE,
    Bytes,
    copy_large,
    from_device,
    new_memory,
    to_device,
)
from webtorch.runtime.churn import Churn

if TYPE_CHECKING:
    from webtorch.lower.wgsl_shader import WgslPass

    Renderer = Callable[[Routine, Limits, Engine], Sequence[WgslPass]]

# Asked for where the adapter has them. Dawn is not thread-safe without the last one.
_FEATURES = (
    "shader-f16",
    "timestamp-query",
    "subgroup",
    "subgroups",
    "chromium-experimental-subgroup-matrix",
    "implicit-device-synchronization",
    HOST_MEMORY,
)
_LIMITS = (
    "max-buffer-size",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "max-uniform-buffer-binding-size",
    "max-bindings-per-bind-group",
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
    "max-compute-workgroup-size-y",
    "max-compute-workgroup-size-z",
    "max-compute-workgroups-per-dimension",
)
# Bindings that the backend adds to a kernel's own buffers: scratch and the status words.
_RESERVED_BINDINGS = 2
# A queued write holds a copy of its data until something is submitted.
_WRITE_PIECE = 64 << 20
# Submissions between two waits that keep Python from running away from the device.
_BURST = 64


class _Read:
    """A download under way: what was asked for, and where it arrives."""

    __slots__ = (
        "capacity",
        "checked",
        "dtype",
        "elements",
        "into",
        "nbytes",
        "parts",
        "problem",
        "staging",
        "ticket",
    )

    def __init__(
        self, dtype: DType, elements: int, nbytes: int, into: memoryview | None = None
    ) -> None:
        self.dtype = dtype
        self.into = into
        self.elements = elements
        self.nbytes = nbytes
        self.checked: list[WebGPUExecutable] = []
        # The same as several, where it is more than one staging buffer can be.
        self.parts: list[_Read] = []
        self.staging: Pointer = None
        self.capacity = 0
        self.ticket: Ticket | None = None
        self.problem: Exception | None = None


class PendingRead:
    """What `download_async` returns: await it for the bytes. It goes to the device before all that comes later.

    Nobody waits until then, not even a thread: while Dawn waits it holds the list that each submission adds its fence
    to, so that what comes later would be submitted when this has been read.
    """

    def __init__(self, read: Callable[[], Bytes], threads: ThreadPoolExecutor) -> None:
        self._read, self._threads = read, threads

    def __await__(self) -> Generator[object, None, Bytes]:
        return asyncio.wrap_future(self._threads.submit(self._read)).__await__()

    def result(self) -> Bytes:
        """Wait for the bytes."""
        return self._read()


class WebGPUBackend:
    """One WebGPU device. Every method may be called from any thread."""

    name = "webgpu"
    stops = reads_parts = False
    singles = interpret = None

    def __init__(self, adapter: AdapterInfo, renderer: Renderer | None = None) -> None:
        self.index = adapter.index
        self.bounds = webgpu_bounds()
        self.adapter = adapter
        self._renderer = renderer
        device = _request_device(adapter)
        self.features: frozenset[str] = frozenset(device.features)
        self.native = open_native(binding(), device)
        self.engine: Engine = "dawn" if self.native.engine == "dawn" else "naga"
        self.limits = _limits(dict(device.limits), adapter, self.features)
        self.lock = threading.RLock()
        self.lost: str | None = None
        self.executables = ExecutableSet()
        self.trash: Trash = deque()
        self.pool = Pool(
            self.native,
            self.limits.max_buffer_bytes,
            self.limits.row_step,
            self._forget_memory,
            self.error,
        )
        self.pipelines = PipelineCache(self.native)
        self.bindings = Churn(
            "Bind groups on webgpu",
            "Copy the data into one tensor, as in x.copy_(batch), and use that in the loop.",
            in_a_row=None,
            again=4096,
        )
        # Programs that ran since the last read and may have reported a bad index, in the order of their runs.
        self.checks: dict[WebGPUExecutable, None] = {}
        self.submits = 0
        # The last read that was begun.
        self._reading: Ticket | None = None
        self.waited = 0
        self.encoding = Encoding(self)
        self._rendered: OrderedDict[Routine, Sequence[WgslPass]] = OrderedDict()
        # Kernels that were measured on this adapter (tuner.py); the limits show them to the renderer.
        self.tuned: dict[str, tuple[int, ...]] = {}
        self.limits = replace(self.limits, tuned=self.tuned)
        self._tunes = tuner.tuning_mode() == "on"
        if tuner.tuning_mode() != "off":
            self.tuned.update(tuner.load(self))
        self.staging = Staging(self.native, self.limits.max_buffer_bytes)
        self._unflushed = 0
        self._marks: deque[object] = deque()
        # Reads that were asked for asynchronously and not submitted yet, see `settle`.
        self._deferred: deque[tuple[DeviceBuffer, _Read]] = deque()
        self._threads: ThreadPoolExecutor | None = None

    def description(self) -> str:
        """Return the adapter's name and interface, such as "NVIDIA H200 (Vulkan)"."""
        return str(self.adapter)

    def __repr__(self) -> str:
        return f"<webgpu:{self.index} {self.description()}>"

    # -- compiling

    @property
    def kernels_compiled(self) -> int:
        """How many kernels the device's compiler has compiled; a cache hit does not count."""
        return self.pipelines.compiled

    def render(self, routine: Routine, varying: bool = False) -> Sequence[WgslPass]:
        """Return the WGSL passes of a routine, rendered once; `varying` is as in `compile`."""
        if varying:
            return self._text(routine, replace(self.limits, varying=True))
        found = self._rendered.get(routine)
        if found is None:
            if self._tunes and isinstance(routine, Matmul | Convolution):
                self._tune(routine)
            found = self._rendered[routine] = self._text(routine, self.limits)
            if len(self._rendered) > 4096:
                self._rendered.popitem(last=False)
        return found

    def _text(self, routine: Routine, limits: Limits) -> Sequence[WgslPass]:
        if self._renderer is None:
            from webtorch.lower.wgsl import render

            self._renderer = render
        return self._renderer(routine, limits, self.engine)

    def kept_key(self) -> str | None:
        """Return what programs and kernels depend on besides `limits`."""
        if self._tunes:
            # Rendering measures, and what it finds changes the key.
            return None
        return f"{tuner.adapter_key(self)} {sorted(self.tuned.items())}"

    def kept_form(self, program: Program) -> Sequence[Sequence[WgslPass]]:
        """Return the passes of each routine."""
        return [self.render(routine) for routine in self._least(program).routines]

    def put_kept(self, program: Program, rendered: Sequence[Sequence[WgslPass]]) -> None:
        """Use these passes for a program's routines."""
        for routine, passes in zip(self._least(program).routines, rendered, strict=True):
            self._rendered.setdefault(routine, passes)

    def _least(self, program: Program) -> Program:
        """Return a program as it is run where its values have 32 bits."""
        return within_bindings(least_wide(program), self.limits)

    def caches(self) -> dict[str, dict[str, int]]:
        """Return the counters of the caches of compiled work, by name."""
        plans = sum(executable.plan_count for executable in self.executables)
        return {
            "kernels": self.pipelines.churn.counts(len(self.pipelines)),
            "bind groups": self.bindings.counts(plans),
        }

    def put_rendered(self, routine: Routine, passes: Sequence[WgslPass] | None) -> None:
        """Use these passes for a routine, or render it anew next time if None."""
        if passes is None:
            self._rendered.pop(routine, None)
        else:
            self._rendered[routine] = passes

    def _tune(self, routine: Routine) -> None:
        """Measure the kernels of a routine's class, once."""
        # What is compiled meanwhile must not be tuned itself.
        self._tunes = False
        try:
            if tuner.class_name(self, routine) not in self.tuned:
                with self.encoding.apart():
                    tuner.tune(self, routine)
        except OSError:
            # The folder cannot be written: what was found serves this process.
            pass
        finally:
            self._tunes = True

    def source(self, routine: Routine) -> str:
        """Return the WGSL of a routine, its passes one after the other."""
        return "\n\n".join(part.source for part in self.render(routine))

    def compile(self, program: Program, varying: bool = False) -> WebGPUExecutable:
        """Make a program ready. Raises KernelError with the source when the device refuses a kernel.

        The kernels of a `varying` program take its sizes as arguments.
        """
        with self.lock:
            self.settle()
            return WebGPUExecutable(self, program, varying, Widths(program))

    def shader(self, source: str) -> UserShader:
        """Compile a text of WGSL that a user wrote. Raises ShaderError with the compiler's message."""
        return UserShader(self, source)

    def foresee(self, program: Program) -> None:
        """Note the texts of a varying program's kernels."""
        with self.lock:
            for routine in self._least(program).routines:
                for part in self.render(routine, varying=True):
                    self.pipelines.family(part)

    @contextmanager
    def together(self) -> Iterator[Encoding]:
        """Submit the programs that run within in few pieces, or on failure those that ran. The first read that is asked
        for within is submitted with them.
        """
        with self.lock, self.encoding.together():
            yield self.encoding
            self.settle()

    # -- memory

    def allocate(self, dtype: DType, elements: int) -> DeviceBuffer:
        """Return uninitialised memory. Raises OutOfMemoryError; DTypeError for a type that there is not."""
        if self.bounds.get(dtype, 0) < 0:
            raise DTypeError(
                f"allocate: {dtype} does not exist on WebGPU; convert it first, or use device 'cpu'"
            )
        with self.lock:
            self.settle()
            return self.pool.buffer(dtype, elements)

    def on_host(self, memory: memoryview) -> HostBlock | None:
        """Return the host's memory as some of this device's; None where it cannot be (other engines than Dawn)."""
        made = self.native.buffer_on(memory)
        return None if made is None else HostBlock(self.pool, made, memory.nbytes)

    def fence(self) -> Callable[[], None]:
        """Return what waits until all that was enqueued by now is done, in any thread."""
        with self.lock:
            self.settle()
            self.encoding.send()
            self._probe()
            mark = self.native.mark()
        return partial(self.native.wait_beside, mark)

    def memory_allocated(self) -> int:
        """Return the bytes held by live buffers."""
        settle_scripts("memory is asked for")
        with self.lock:
            self.pool.collect()
            return self.pool.allocated

    def max_memory_allocated(self) -> int:
        """Return the largest `memory_allocated`, with programs' temporaries, since the start or the last reset."""
        return self.pool.peak

    def memory_reserved(self) -> int:
        """Return the bytes held by live and by pooled buffers."""
        return self.pool.reserved

    def reset_peak_memory(self) -> None:
        """Start the peak count anew."""
        with self.lock:
            self.pool.collect()
            self.pool.peak = self.pool.allocated

    def empty_cache(self) -> None:
        """Give pooled, unused memory back to the system."""
        with self.lock:
            self.settle()
            self.pool.release_unused()
            self._forget_memory()

    def _forget_memory(self) -> None:
        """Drop what keeps unused memory alive: bind groups and staging buffers."""
        for executable in list(self.executables):
            executable.forget_memory()
        self.staging.release()
        self._take_out_trash()

    def _take_out_trash(self) -> None:
        trash = self.trash
        while trash:
            release, pointer = trash.popleft()
            release(pointer)

    def status_words(self) -> DeviceBuffer:
        """Return a zeroed pair of status words for a program with index checks."""
        words = self.pool.buffer(uint32, 2)
        words.label = "index checks"
        self.write(words.block.pointer, bytes(8))
        return words

    # -- upload

    def upload(self, data: Bytes, dtype: DType, elements: int) -> DeviceBuffer:
        """Return a new buffer that holds `data` (contiguous, little-endian, in the type's PyTorch size).

        Raises ValueError when the size of `data` is wrong.
        """
        if self.bounds.get(dtype, 0) < 0:
            raise DTypeError(
                f"upload: {dtype} does not exist on WebGPU; convert it first, or use device 'cpu'"
            )
        found, stored, held = to_device(data, dtype, elements)
        with self.lock:
            self.settle()
            buffer = self.pool.buffer(stored, elements)
            buffer.held = held
            if len(found) < LARGE or not self.native.maps_writes:
                if elements:
                    self._write_parts(buffer.block, found)
                return buffer
        if not self._write_mapped(buffer.block, memoryview(found)):
            with self.lock:
                self._write_parts(buffer.block, found)
        return buffer

    def _write_parts(self, block: Block, data: Bytes) -> None:
        """Queue a write to the start of a block. Needs the lock."""
        if not block.row:
            self.write(block.pointer, data)
            return
        for pointer, _, first, count in block.parts(len(data), len(data)):
            self.write(pointer, memoryview(data)[first : first + count])

    def _write_mapped(self, block: Block, data: memoryview) -> bool:
        """Write to the start of a block through mapped memory, which is filled while others use the device.

        False where there is no such memory.
        """
        native = self.native
        for pointer, start, first, count in block.parts(len(data), _WRITE_PIECE):
            piece = data[first : first + count]
            whole = (len(piece) + 3) & ~3
            capacity = self.staging.capacity(whole)
            with self.lock:
                self.settle()
                taken = self.staging.take_writable(capacity)
            if taken is None:
                return False
            staged, ticket = taken
            if ticket is not None:
                native.wait_map(ticket)
                if ticket.error is not None:
                    # The buffer is not given back: what became of it is not known.
                    self.staging.lose(capacity)
                    return False
            target = native.writable(staged, whole)
            copy_large(target, piece)
            target[len(piece) :] = bytes(whole - len(piece))
            with self.lock:
                self.settle()
                native.unmap(staged)
                native.capture()
                try:
                    encoder = native.create_encoder()
                    native.copy(encoder, staged, 0, pointer, start, whole)
                    commands = native.finish(encoder)
                finally:
                    problem = native.captured()
                self.submit(commands, problem, "upload")
                self.staging.give_back(capacity, staged)
        return True

    def write(self, pointer: Pointer, data: Bytes) -> None:
        """Queue a write to the start of a native buffer, padding the tail to a word. Needs the lock.

        Programs that wait to be submitted may use the same memory: they come first. Raises OutOfMemoryError when there
        is no room for the copy that is queued.
        """
        self.encoding.send()
        self.write_ahead(pointer, data)

    def write_ahead(self, pointer: Pointer, data: Bytes) -> None:
        """Queue the same before what waits to be submitted, which must not use this memory."""
        problem = self._write(pointer, data)
        if problem is not None and is_out_of_memory(problem):
            self.pool.release_unused()
            problem = self._write(pointer, data)
        if problem is not None:
            raise self.error(problem, "upload")

    def _write(self, pointer: Pointer, data: Bytes) -> Problem | None:
        native = self.native
        whole = len(data) & ~3
        native.capture()
        try:
            view = memoryview(data)
            for start in range(0, whole, _WRITE_PIECE):
                piece = view[start : min(start + _WRITE_PIECE, whole)]
                native.write(pointer, start, piece)
                self._unflushed += len(piece)
                if self._unflushed >= _WRITE_PIECE:
                    # An empty submission aborts the process on a lost device, as any other does.
                    self._probe()
                    native.flush_writes()
                    self._unflushed = 0
            if whole != len(data):
                native.write(pointer, whole, bytes(view[whole:]).ljust(4, b"\0"))
        finally:
            problem = native.captured()
        return problem

    # -- download

    def download(self, buffer: Buffer, *, into: memoryview | None = None) -> Bytes:
        """Wait for all work that writes `buffer`, and return its contents in the type's PyTorch size.

        They lie in `into`, memory of that size, where it is given.

        Raises IndexOutOfRangeError when a program since the last read reported a bad index; the GIL
        is free while waiting.
        """
        mine = self._own(buffer)
        self.native.may_wait("read a tensor")
        self.waited += self.limits.is_gpu
        with self.lock:
            self.settle()
            read = _Read(mine.stored, mine.elements, mine.nbytes, into)
            self._start(mine, read)
        return self._finish(read)

    def download_async(self, buffer: Buffer, *, into: memoryview | None = None) -> Awaitable[Bytes]:
        """Return an awaitable of what `download` returns; other coroutines run meanwhile.

        The contents are those at the time of this call, whatever runs before it is awaited.
        """
        mine = self._own(buffer)
        read = _Read(mine.stored, mine.elements, mine.nbytes, into)
        if self.native.engine == "browser":
            # There are no threads, and a submission does not block.
            with self.lock:
                self.settle()
                self._start(mine, read)
            return asyncio.ensure_future(self._arrive(read))
        if self._threads is None:
            self._threads = ThreadPoolExecutor(4, thread_name_prefix="webtorch-read")
        # Even the submission may block (lavapipe finishes running work first), so it is left to who
        # waits. It keeps its place in line: whoever takes the lock first submits what is deferred.
        self._deferred.append((mine, read))
        return PendingRead(lambda: self._awaited(read), self._threads)

    async def _arrive(self, read: _Read) -> Bytes:
        native: Any = self.native
        for part in read.parts or (read,):
            if part.ticket is not None:
                await native.arrival(part.ticket)
        return self._finish(read)

    def _awaited(self, read: _Read) -> Bytes:
        with self.lock:
            if read.ticket is None and not read.parts and read.problem is None:
                self.settle()
        if read.problem is not None:
            raise read.problem
        return self._finish(read)

    def _own(self, buffer: Buffer) -> DeviceBuffer:
        if not isinstance(buffer, DeviceBuffer) or buffer.pool is not self.pool:
            raise DeviceError(f"download: {buffer!r} is not a buffer of {self.description()}")
        return buffer

    def _start(self, buffer: DeviceBuffer | None, read: _Read) -> None:
        """Submit the copy of a read into staging memory, with the status words of the programs that may have failed."""
        read.checked = list(self.checks)
        if buffer is None:
            self._copy_out(read)
        elif read.nbytes + 8 * (len(read.checked) + 1) <= self.limits.row_step:
            self._copy_out(read, buffer.block.pointer)
        else:
            words = _Read(uint32, 0, 0)
            words.checked, read.checked = read.checked, []
            read.parts.append(words)
            self._copy_out(words)
            for pointer, at, _, count in buffer.block.parts(read.nbytes, self.limits.row_step):
                elements = count * read.elements // read.nbytes
                read.parts.append(_Read(read.dtype, elements, count))
                self._copy_out(read.parts[-1], pointer, at)

    def _copy_out(self, read: _Read, source: Pointer = None, at: int = 0) -> None:
        """Submit what waits and the copy of a read that goes into one staging buffer, from byte `at` of a native buffer
        on.
        """
        native = self.native
        data = (read.nbytes + 7) & ~7
        total = data + 8 * len(read.checked)
        if total == 0:
            self.encoding.send()
            return
        read.capacity = self.staging.capacity(total)
        read.staging = self._take_staging(read.capacity)
        native.capture()
        try:
            encoder = self.encoding.taken()
            if read.nbytes:
                native.copy(encoder, source, at, read.staging, 0, (read.nbytes + 3) & ~3)
            for number, executable in enumerate(read.checked):
                assert executable.status is not None
                words = executable.status.block.pointer
                native.copy(encoder, words, 0, read.staging, data + 8 * number, 8)
                native.clear(encoder, words, 0, 8)
            commands = native.finish(encoder)
        finally:
            problem = native.captured()
        self.submit(commands, problem, "download")
        self.checks.clear()
        native.capture()
        try:
            read.ticket = self._reading = native.begin_map(read.staging, total)
        finally:
            problem = native.captured()
        if problem is not None:
            raise self.error(problem, "download")

    @property
    def is_read(self) -> bool:
        """Whether a read is under way: until it has arrived the device works."""
        return self._reading is not None and not self._reading.ready.is_set()

    def _finish(self, read: _Read) -> Bytes:
        """Wait for a read; give its bytes, or raise what the device reported."""
        if read.parts:
            return self._finish_parts(read)
        if read.ticket is None:
            return b""
        native = self.native
        native.wait_map(read.ticket)
        if read.ticket.error is not None:
            # The staging buffer is not given back: what became of it is not known.
            with self.lock:
                raise self.error(("Map", read.ticket.error), "download")
        data = native.mapped(read.staging, 0, read.nbytes) if read.nbytes else b""
        found = from_device(data, read.dtype, read.elements, read.into)
        words: list[int] = []
        if read.checked:
            start = (read.nbytes + 7) & ~7
            status = native.mapped(read.staging, start, 8 * len(read.checked))
            words = status.cast("i").tolist()
        with self.lock:
            native.unmap(read.staging)
            self.staging.keep(read.capacity, read.staging)
        for number, executable in enumerate(read.checked):
            site, value = words[2 * number : 2 * number + 2]
            if site:
                raise _check_error(executable.program, site - 1, value)
        return found

    def _finish_parts(self, read: _Read) -> Bytes:
        """Do the same for a read in parts: all are waited for, whatever the first ones report."""
        whole = read.into
        if whole is None:
            whole = new_memory(host_bytes(read.dtype, read.elements))
        problem: Exception | None = None
        at = 0
        for part in read.parts:
            count = host_bytes(part.dtype, part.elements)
            part.into = whole[at : at + count]
            at += count
            try:
                self._finish(part)
            except Exception as error:
                problem = problem or error
        if problem is not None:
            raise problem
        return whole

    def _take_staging(self, capacity: int) -> Pointer:
        made = self.staging.take(capacity)
        if made[1] is not None:
            self.pool.release_unused()
            made = self.staging.take(capacity)
        return self.check(made, "download")

    # -- the queue

    @cached_property
    def machine_loop(self) -> MachineLoop | None:
        """What encodes passes of many dispatches; None where Python has to."""
        return machine_loop(self.native)

    def settle(self) -> None:
        """Do what has to happen before anything else on the device. The caller holds the lock.

        Raises DeviceLostError when the device is gone. Submits deferred reads, so that they see
        what they were asked to.
        """
        if self.lost is not None:
            self._fail_deferred()
            raise self._lost_error()
        if self.trash:
            self._take_out_trash()
        while self._deferred:
            buffer, read = self._deferred.popleft()
            try:
                self._start(buffer, read)
            except Exception as error:
                read.problem = error

    def _fail_deferred(self) -> None:
        while self._deferred:
            self._deferred.popleft()[1].problem = self._lost_error()

    def submit(self, commands: Pointer, problem: Problem | None, doing: str) -> None:
        """Submit a finished command buffer, unless something was reported while it was encoded. Holds the lock."""
        native = self.native
        if problem is not None:
            native.drop(commands)
            raise self.error(problem, doing)
        native.capture()
        try:
            native.submit(commands)
        finally:
            problem = native.captured()
        self.submitted(problem, doing)

    def submitted(self, problem: Problem | None, doing: str) -> None:
        """Take note of a submission: raise what it reported, and keep Python from running away."""
        native = self.native
        if problem is not None:
            raise self.error(problem, doing)
        self._unflushed = 0
        self.submits += 1
        if self.submits % _BURST == 0:
            self._marks.append(native.mark())
            if len(self._marks) > 2:
                native.wait(self._marks.popleft())

    @property
    def has_failed(self) -> bool:
        """False: reads alone tell."""
        return False

    def synchronize(self) -> None:
        """Wait until all enqueued work is done. Raises IndexOutOfRangeError, DeviceLostError."""
        self.waited += self.limits.is_gpu
        with self.lock:
            self.settle()
            read = _Read(uint32, 0, 0)
            self._start(None, read)
            if read.ticket is None:
                self._probe()
            mark = self.native.mark() if read.ticket is None else None
        if read.ticket is not None:
            self._finish(read)
        elif mark is not None:
            self.native.wait(mark)

    def _probe(self) -> None:
        """Raise DeviceLostError if the device is gone, which the library says when an encoder is finished."""
        native = self.native
        native.capture()
        try:
            native.drop(native.finish(native.create_encoder()))
        finally:
            problem = native.captured()
        if problem is not None:
            raise self.error(problem, "probe")

    # -- failure

    def check(self, made: tuple[Pointer, Problem | None], doing: str) -> Pointer:
        """Return a created object, or raise the problem that came with it."""
        pointer, problem = made
        if problem is not None:
            raise self.error(problem, doing)
        return pointer

    def error(self, problem: Problem, doing: str) -> Exception:
        """Return the typed error for what the library reported, and note it when the device is gone."""
        message = tidy(problem[1])
        if is_lost(problem):
            self.lost = self.lost or message
            return self._lost_error()
        if is_out_of_memory(problem):
            return OutOfMemoryError(f"{doing}: {self.description()} has no memory left: {message}")
        return KernelError(f"{doing}: {self.description()} refused the program: {message}")

    def _lost_error(self) -> DeviceLostError:
        return DeviceLostError(
            f"webgpu:{self.index} ({self.description()}) was lost: {self.lost}. Its tensors cannot be used any more: "
            "start the process again and load a checkpoint, or go on with tensors on device 'cpu'"
        )

    def destroy(self) -> None:
        """Close the device. Every later use of it or its buffers raises DeviceLostError."""
        with self.lock:
            if self.lost is None:
                # Waiting first: readers in other threads must not be left with a mapping that never comes.
                self.native.wait(self.native.mark())
                self.lost = "it was destroyed"
                self._fail_deferred()
                self.native.wrapper.destroy()


def _check_error(
    program: Program, number: int, value: int
) -> IndexOutOfRangeError | DeviceCheckError:
    if not 0 <= number < len(program.sites):
        return IndexOutOfRangeError(f"index {value} is out of bounds (unknown site {number})")
    site = program.sites[number]
    return (IndexOutOfRangeError if site.is_index else DeviceCheckError)(site.message(value))


def wanted(adapter: AdapterInfo | Adapter) -> tuple[list[str], dict[str, int]]:
    """Return the features and limits that a device of this adapter is asked for."""
    features = [f for f in _FEATURES if f in adapter.features]
    return features, {name: adapter.limits[name] for name in _LIMITS if name in adapter.limits}


def _request_device(adapter: AdapterInfo) -> Device:
    handle = adapter.handle
    features, limits = wanted(adapter)
    with quiet_loader():
        try:
            return handle.request_device_sync(required_features=features, required_limits=limits)
        except RuntimeError as error:
            raise DeviceError(
                f"webgpu:{adapter.index} ({adapter}): the driver gives no device: {error}"
            ) from error


def _limits(limits: dict[str, int], adapter: AdapterInfo, features: frozenset[str]) -> Limits:
    found = Limits(
        max_binding_bytes=min(limits["max-storage-buffer-binding-size"], limits["max-buffer-size"])
        & -16,
        max_buffer_bytes=limits["max-buffer-size"],
        max_buffers_per_kernel=min(limits["max-storage-buffers-per-shader-stage"], 32)
        - _RESERVED_BINDINGS,
        max_workgroup_invocations=limits["max-compute-invocations-per-workgroup"],
        max_workgroups_per_dim=min(limits["max-compute-workgroups-per-dimension"], 65535),
        workgroup_memory_bytes=limits["max-compute-workgroup-storage-size"],
        has_f16="shader-f16" in features,
        is_gpu=adapter.is_hardware,
        has_epilogues=True,
        # A software adapter compiles longer than it saves.
        has_several=adapter.is_hardware,
        has_turns=adapter.is_hardware,
        has_joint_products=adapter.is_hardware,
        family=family_of(adapter.name, adapter.adapter_type),
        has_matrix_units="subgroups" in features and has_matrix_units(adapter, features),
        subgroup=subgroup_size(adapter, features),
        # Others may be told an instruction that their driver takes apart.
        has_dots=adapter.adapter_type == "DiscreteGPU",
        # Drivers of others may take numbers below the normal ones for zeros.
        has_halves=adapter.name.startswith("NVIDIA"),
    )
    # A one-dimensional workgroup can be no wider than its first side.
    widest = min(found.max_workgroup_invocations, limits["max-compute-workgroup-size-x"])
    return replace(found, max_workgroup_invocations=widest)


def open_backend(index: int = 0) -> WebGPUBackend:
    """Open device "webgpu:`index`". Raises DeviceError, saying what to install, when there is none."""
    found = adapters()
    if not found:
        raise DeviceError(
            "webgpu: no adapter found. Install a graphics driver with Vulkan (for software rendering on Debian: "
            "apt-get install mesa-vulkan-drivers), or use device 'cpu'"
        )
    if not 0 <= index < len(found):
        names = "; ".join(f"webgpu:{a.index} is {a}" for a in found)
        raise DeviceError(f"webgpu:{index}: there is no such device; {names}")
    return WebGPUBackend(unused(found[index]))
