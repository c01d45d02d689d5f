"""The C calls of webgpu.h, the same for both engines, with errors captured and no Python object per call.

The wrappers of wgpu-py cost 5 to 90 us a call; a program's replay cannot afford that. They are
still used for what happens once (adapter, device, shader module, pipeline). Both bindings expose
the C library through cffi under the same names; what differs (error collection, waiting, callbacks)
is in the two subclasses at the end. Imports no binding at the top.
"""

from __future__ import annotations

import importlib
import logging
import mmap
import re
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeAlias

from webtorch.runtime.backends.webgpu.binding import Device, LibraryDevice, Made, Pointer

# (kind, message) of an error that the library reported: kind is "Validation", "OutOfMemory", "Internal", ...
Problem: TypeAlias = tuple[str, str]

STORAGE, UNIFORM, COPY_DST, COPY_SRC, MAP_WRITE, MAP_READ = 0x80, 0x40, 0x08, 0x04, 0x02, 0x01
# The feature by which buffers lie in the host's memory (Dawn).
HOST_MEMORY = "host-mapped-pointer"
# Buffers of this size lie there, in whole pages; some systems count these by 64 KiB.
_LARGE = _PAGE = 1 << 16
# Seconds between looks of a thread that waits beside others: each takes Python's lock from them.
_LOOK = 2e-4
# wgpu-native: "Parent device is lost"; Dawn: "[Device] is lost".
_LOST = re.compile(r"\bdevice\b[^.\n]{0,40} (is|was) (lost|destroyed)", re.IGNORECASE)
_NO_MEMORY = re.compile(
    r"not enough memory|out of memory|OUT_OF_DEVICE_MEMORY|OUT_OF_HOST_MEMORY", re.IGNORECASE
)


def is_lost(problem: Problem) -> bool:
    """Return whether an error says that the device is gone."""
    return _LOST.search(problem[1]) is not None


def is_out_of_memory(problem: Problem) -> bool:
    """Return whether an error says that memory ran out. wgpu-native reports this as a validation error."""
    return problem[0] == "OutOfMemory" or _NO_MEMORY.search(problem[1]) is not None


def tidy(message: str) -> str:
    """Return an engine's message on one line, without the words that every message has."""
    lines = [line.strip() for line in message.splitlines()]
    return ": ".join(x for x in lines if x not in ("", "Validation Error", "Caused by:"))


class Ticket:
    """A map request under way: `ready` is set once, then `error` says whether it failed."""

    __slots__ = ("error", "mark", "ready")

    def __init__(self) -> None:
        self.ready = threading.Event()
        self.error: str | None = None
        self.mark: object = None


class Native:
    """Raw calls on one device. Not synchronised: the caller holds the device's lock, except in
    `wait_map` and `wait`.
    """

    engine: str
    # Whether `plan` and `replay` encode and submit a whole program in one call.
    replays = False
    # Whether memory for `map_write` can be written in place.
    maps_writes = True

    def __init__(self, module: ModuleType, package: str, device: LibraryDevice) -> None:
        self.wrapper: Device = device
        self.api: Any = importlib.import_module(f"{module.__name__}.backends.{package}._api")
        self.ffi: Any = importlib.import_module(f"{module.__name__}.backends.{package}._ffi").ffi
        self.lib: Any = importlib.import_module(f"{module.__name__}.backends.{package}._ffi").lib
        self.device: Pointer = device._internal
        self.queue: Pointer = device.queue._internal
        self.null: Pointer = self.ffi.NULL
        self._buffer_descriptor = self.ffi.new("WGPUBufferDescriptor *")
        self._submit_array = self.ffi.new("WGPUCommandBuffer[1]")
        lib = self.lib
        # Bound once: the replay loop calls these for every dispatch.
        self.set_pipeline: Callable[..., None] = lib.wgpuComputePassEncoderSetPipeline
        self.set_bind_group: Callable[..., None] = lib.wgpuComputePassEncoderSetBindGroup
        self.dispatch: Callable[..., None] = lib.wgpuComputePassEncoderDispatchWorkgroups
        self.begin_pass: Callable[..., Pointer] = lib.wgpuCommandEncoderBeginComputePass
        self.end_pass: Callable[..., None] = lib.wgpuComputePassEncoderEnd
        self.release_pass: Callable[..., None] = lib.wgpuComputePassEncoderRelease
        self.copy: Callable[..., None] = lib.wgpuCommandEncoderCopyBufferToBuffer
        self.clear: Callable[..., None] = lib.wgpuCommandEncoderClearBuffer
        self.release_buffer: Callable[..., None] = lib.wgpuBufferRelease
        self.release_bind_group: Callable[..., None] = lib.wgpuBindGroupRelease

    # Errors. `capture` ... `captured` brackets raw calls; what they reported comes back as a value.
    def capture(self) -> None:
        """Start collecting the errors of this thread's calls."""
        raise NotImplementedError

    def captured(self) -> Problem | None:
        """Stop collecting, and return the last error."""
        raise NotImplementedError

    def create_module(self, source: str, trusted_indices: bool, trusted_loops: bool) -> Made:
        """Compile a shader; raises the binding's error. What is trusted need not be checked as it runs."""
        # Only wgpu-native can leave its checks out for one module.
        del trusted_indices, trusted_loops
        return self.wrapper.create_shader_module(code=source)

    def create_buffer(
        self, size: int, usage: int, mapped: bool = False
    ) -> tuple[Pointer, Problem | None]:
        """Create a buffer of `size` bytes, mapped for writing if `mapped`; on failure the problem comes with it and the
        pointer is worthless.
        """
        descriptor = self._buffer_descriptor
        descriptor.size = size
        descriptor.usage = usage
        descriptor.mappedAtCreation = mapped
        self.capture()
        try:
            pointer = self.lib.wgpuDeviceCreateBuffer(self.device, descriptor)
        finally:
            problem = self.captured()
        if problem is None and pointer == self.ffi.NULL:
            problem = ("OutOfMemory", "the device returned no buffer: not enough memory")
        return pointer, problem

    def create_readable(self, size: int) -> tuple[Pointer, Problem | None]:
        """Create a buffer that the host reads by `begin_map` and `mapped`; a failure is told as by `create_buffer`."""
        return self.create_buffer(size, COPY_DST | MAP_READ)

    def buffer_on(self, memory: memoryview) -> Made | None:
        """Return the wrapper of a buffer that lies in the host's own memory, whole pages; None where there are none."""
        del memory
        return None

    def create_bind_group(
        self, layout: Pointer, bindings: list[tuple[Pointer, int, int]]
    ) -> Pointer:
        """Bind (buffer, offset, size) in order. Errors go to the enclosing capture."""
        entries = self.ffi.new("WGPUBindGroupEntry[]", len(bindings))
        for number, (buffer, offset, size) in enumerate(bindings):
            entry = entries[number]
            entry.binding = number
            entry.buffer = buffer
            entry.offset = offset
            entry.size = size
        descriptor = self.ffi.new("WGPUBindGroupDescriptor *")
        descriptor.layout = layout
        descriptor.entryCount = len(bindings)
        descriptor.entries = entries
        return self.lib.wgpuDeviceCreateBindGroup(self.device, descriptor)

    def write(self, buffer: Pointer, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Queue a write of `data` (a multiple of 4 bytes, copied at once) to `buffer`."""
        view = self.ffi.from_buffer(data)
        self.lib.wgpuQueueWriteBuffer(self.queue, buffer, offset, view, len(view))

    def flush_writes(self) -> None:
        """Submit nothing, so that queued writes start and their staging memory can be reused."""
        self.lib.wgpuQueueSubmit(self.queue, 0, self.null)

    def create_encoder(self) -> Pointer:
        """Return a new command encoder."""
        return self.lib.wgpuDeviceCreateCommandEncoder(self.device, self.null)

    def finish(self, encoder: Pointer) -> Pointer:
        """Finish and release an encoder; return the command buffer."""
        commands = self.lib.wgpuCommandEncoderFinish(encoder, self.null)
        self.lib.wgpuCommandEncoderRelease(encoder)
        return commands

    def plan(self, segments: object) -> Pointer:
        """Return a plan's rows and copies in the form that `replay` takes. Only where `replays`."""
        raise NotImplementedError

    def replay(self, plan: Pointer) -> None:
        """Encode and submit a plan in one call. Only where `replays`."""
        raise NotImplementedError

    def release_plan(self, plan: Pointer) -> None:
        """Forget what `plan` returned."""
        raise NotImplementedError

    def drop(self, commands: Pointer) -> None:
        """Release a command buffer that must not be submitted."""
        if commands != self.null:
            self.lib.wgpuCommandBufferRelease(commands)

    def submit(self, commands: Pointer) -> None:
        """Submit one finished, error-free command buffer, once: the library aborts the process otherwise."""
        array = self._submit_array
        array[0] = commands
        self._submit(array)
        self.lib.wgpuCommandBufferRelease(commands)

    def _submit(self, array: object) -> None:
        self.lib.wgpuQueueSubmit(self.queue, 1, array)

    def may_wait(self, doing: str) -> None:
        """Raise DeviceError where nothing may wait (a page whose browser cannot pause Python)."""

    def mark(self) -> object:
        """Return a token for everything submitted so far."""
        raise NotImplementedError

    def wait(self, mark: object) -> None:
        """Block, with the GIL released, until what `mark` stands for is done."""
        raise NotImplementedError

    def wait_beside(self, mark: object) -> None:
        """Do the same in a thread beside others, which must be able to submit meanwhile."""
        self.wait(mark)

    def begin_map(self, buffer: Pointer, size: int, mode: int = MAP_READ) -> Ticket:
        """Ask for `buffer` to be mapped when the work submitted so far is done: to be read, or written (MAP_WRITE)."""
        raise NotImplementedError

    def poll(self) -> None:
        """Look, without waiting, whether requests are answered."""
        raise NotImplementedError

    def wait_map(self, ticket: Ticket) -> None:
        """Block, with the GIL released, until the request of `ticket` is answered."""
        raise NotImplementedError

    def mapped(self, buffer: Pointer, start: int, size: int) -> memoryview:
        """Return a view of part of a mapped buffer, valid until `unmap`. Raises RuntimeError if it is not mapped."""
        address = self.lib.wgpuBufferGetConstMappedRange(buffer, 0, (start + size + 3) & ~3)
        if address == self.ffi.NULL:
            raise RuntimeError("the buffer is not mapped")
        return memoryview(self.ffi.buffer(self.ffi.cast("char *", address) + start, size))

    def writable(self, buffer: Pointer, size: int) -> memoryview:
        """Return the first bytes of a buffer that is mapped for writing. Raises RuntimeError if it is not."""
        address = self.lib.wgpuBufferGetMappedRange(buffer, 0, (size + 3) & ~3)
        if address == self.ffi.NULL:
            raise RuntimeError("the buffer is not mapped")
        return memoryview(self.ffi.buffer(self.ffi.cast("char *", address), size))

    def unmap(self, buffer: Pointer) -> None:
        """Give a mapped buffer back to the device."""
        self.lib.wgpuBufferUnmap(buffer)

    def _text(self, view: Any) -> str:
        """Decode a WGPUStringView."""
        if view.data == self.ffi.NULL or view.length == 0:
            return ""
        return str(self.ffi.string(view.data, view.length).decode(errors="replace"))


class _QuietLoss(logging.Filter):
    """Keep wgpu-py from printing that a device was lost: we raise DeviceLostError where it matters."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is printed."""
        text = record.getMessage()
        return not text.startswith(("DEVICE LOST", "The WGPU device was lost"))


class WgpuNative(Native):
    """wgpu-native through wgpu-py."""

    engine = "naga"

    def __init__(self, module: ModuleType, device: LibraryDevice) -> None:
        super().__init__(module, "wgpu_native", device)
        self._errors = self.api.error_handler
        self._last_index = self.ffi.new("WGPUSubmissionIndex *")
        self._submitted = False
        self._tickets: dict[int, Ticket] = {}
        self._next = 1
        ffi, tickets, success = self.ffi, self._tickets, self.lib.WGPUMapAsyncStatus_Success
        logger = logging.getLogger("wgpu")
        if not any(isinstance(f, _QuietLoss) for f in logger.filters):
            logger.addFilter(_QuietLoss())

        def on_map(status: int, message: object, key: object, _unused: object) -> None:
            """Note that a buffer is mapped, or why it is not."""
            ticket = tickets.pop(int(ffi.cast("uintptr_t", key)), None)
            if ticket is not None:
                if status != success:
                    ticket.error = self._text(message) or f"map status {status}"
                ticket.ready.set()

        # One callback for all maps: making one for each costs 20 us.
        self._on_map = ffi.callback(
            "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)", on_map
        )
        self._map_info = ffi.new("WGPUBufferMapCallbackInfo *")
        self._map_info.mode = self.lib.WGPUCallbackMode_AllowProcessEvents
        self._map_info.callback = self._on_map

    def capture(self) -> None:
        """Keep errors from here on for `captured`."""
        self._errors.capture("webtorch")

    def captured(self) -> Problem | None:
        """Return the first error since `capture`, None without one."""
        problem: Problem | None = self._errors.release("webtorch")
        return problem

    def create_module(self, source: str, trusted_indices: bool, trusted_loops: bool) -> Made:
        """Compile WGSL; trusted indices and loops are not checked again."""
        if not (trusted_indices or trusted_loops):
            return super().create_module(source, trusted_indices, trusted_loops)
        ffi, lib = self.ffi, self.lib
        checks = 0 if trusted_indices else lib.WGPUShaderRuntimeChecks_BoundsChecks
        checks |= 0 if trusted_loops else lib.WGPUShaderRuntimeChecks_ForceLoopBounding
        text = ffi.new("char[]", source.encode())
        chain = ffi.new("WGPUShaderSourceWGSL *")
        chain.chain.sType = lib.WGPUSType_ShaderSourceWGSL
        chain.code.data, chain.code.length = text, len(text) - 1
        descriptor = ffi.new("WGPUShaderModuleDescriptor *")
        descriptor.nextInChain = ffi.cast("WGPUChainedStruct *", chain)
        self.capture()
        try:
            pointer = lib.wgpuDeviceCreateShaderModuleTrusted(self.device, descriptor, checks)
        finally:
            problem = self.captured()
        if problem is not None:
            raise RuntimeError(problem[1])
        made: Made = self.api.GPUShaderModule("", pointer, self.wrapper)
        return made

    def _submit(self, array: object) -> None:
        self._last_index[0] = self.lib.wgpuQueueSubmitForIndex(self.queue, 1, array)
        self._submitted = True

    def mark(self) -> object:
        """Return the number of the last submission, null before the first."""
        # Before the first submission there is no index to wait for: NULL waits for everything.
        return (
            self.ffi.new("WGPUSubmissionIndex *", self._last_index[0])
            if self._submitted
            else self.null
        )

    def wait(self, mark: object) -> None:
        """Wait until the submission of a mark has run."""
        self.lib.wgpuDevicePoll(self.device, True, mark)

    def begin_map(self, buffer: Pointer, size: int, mode: int = MAP_READ) -> Ticket:
        """Begin to map a buffer; return its ticket."""
        # No empty submit before it, as the wrapper does: on lavapipe that blocks until running work is done.
        ticket = Ticket()
        ticket.mark = self.mark()
        key, self._next = self._next, self._next + 1
        self._tickets[key] = ticket
        info = self._map_info
        info.userdata1 = self.ffi.cast("void *", key)
        self.lib.wgpuBufferMapAsync(buffer, mode, 0, size, info[0])
        return ticket

    def poll(self) -> None:
        """Answer what has been done by now."""
        self.lib.wgpuDevicePoll(self.device, False, self.null)

    def wait_map(self, ticket: Ticket) -> None:
        """Poll until a buffer is mapped."""
        while not ticket.ready.is_set():
            self.lib.wgpuDevicePoll(self.device, True, ticket.mark)
            # Another thread's poll may have taken our callback and be about to run it.
            ticket.ready.wait(0.001)


class DawnNative(Native):
    """Dawn through wgpudawn."""

    engine = "dawn"

    def __init__(self, module: ModuleType, device: LibraryDevice) -> None:
        super().__init__(module, "dawn", device)
        helpers: Any = importlib.import_module(f"{module.__name__}.backends.dawn._helpers")
        binding: Any = importlib.import_module(f"{module.__name__}.backends.dawn._ffi")
        self._errors = self.api.error_handler
        self._callbacks = binding.callbacks
        self._instance = helpers.get_wgpu_instance()
        self._map_info = self.ffi.new("WGPUBufferMapCallbackInfo *")
        self._map_info.mode = binding.CALLBACK_MODE
        self._map_info.callback = binding.c_callback("WGPUBufferMapCallback")
        self._done_info = self.ffi.new("WGPUQueueWorkDoneCallbackInfo *")
        self._done_info.mode = binding.CALLBACK_MODE
        self._done_info.callback = binding.c_callback("WGPUQueueWorkDoneCallback")
        self._extras: Any = importlib.import_module(f"{module.__name__}.backends.dawn.extras")
        self._takes_host_memory = HOST_MEMORY in device.features
        # By address: memory of the host's that buffers to be read lie in, with their wrappers.
        self._readable: dict[int, tuple[memoryview, Made]] = {}
        self.release_buffer = self._release

    def capture(self) -> None:
        """Do nothing: Dawn's errors are kept as they come."""
        # Dawn's binding has one list of errors for all; what is in it when we look is ours.

    def captured(self) -> Problem | None:
        """Return the first error since the last call, None without one."""
        pending: list[Problem] = self._errors.pending
        if not pending:
            return None
        problem = pending[0]
        pending.clear()
        return problem

    def create_readable(self, size: int) -> tuple[Pointer, Problem | None]:
        """Create it in the host's own memory where that can be, and where it is large: what the driver maps is not in
        the processor's caches, and is read at 2 GB/s, where pages of the host's are at 40.
        """
        if size >= _LARGE and self._takes_host_memory:
            pages = memoryview(mmap.mmap(-1, -(-size // _PAGE) * _PAGE))
            made = self.buffer_on(pages)
            if made is not None:
                self._readable[self._address(made._internal)] = pages, made
                return made._internal, None
        return super().create_readable(size)

    def buffer_on(self, memory: memoryview) -> Made | None:
        """Let a buffer lie in this memory."""
        if not self._takes_host_memory:
            return None
        usage = STORAGE | COPY_SRC | COPY_DST
        self.capture()
        try:
            made: Made = self._extras.create_buffer_from_host_memory(
                self.wrapper, memory, usage=usage
            )
        except (RuntimeError, ValueError):
            return None
        return None if self.captured() is not None else made

    def _address(self, pointer: Pointer) -> int:
        return int(self.ffi.cast("uintptr_t", pointer))

    def _release(self, buffer: Pointer) -> None:
        # The wrapper of a buffer on pages of the host's releases it.
        if self._readable.pop(self._address(buffer), None) is None:
            self.lib.wgpuBufferRelease(buffer)

    def mapped(self, buffer: Pointer, start: int, size: int) -> memoryview:
        """Return a view of part of a buffer that was read."""
        found = self._readable.get(self._address(buffer))
        return (
            super().mapped(buffer, start, size) if found is None else found[0][start : start + size]
        )

    def unmap(self, buffer: Pointer) -> None:
        """Give a mapped buffer back to the device."""
        if self._address(buffer) not in self._readable:
            super().unmap(buffer)

    def _wait_future(self, number: int, ready: threading.Event, pause: float = 0.0) -> None:
        wait = self.ffi.new("WGPUFutureWaitInfo *")
        wait.future.id = number
        while not ready.is_set():
            # In pieces, so that Ctrl-C comes through.
            most = 0 if pause else 100_000_000
            status = self.lib.wgpuInstanceWaitAny(self._instance, 1, wait, most)
            if wait.completed:
                ready.wait(1.0)
                return
            if status not in (self.lib.WGPUWaitStatus_Success, self.lib.WGPUWaitStatus_TimedOut):
                raise RuntimeError(f"waiting for the device failed with status {status}")
            if pause:
                time.sleep(pause)

    def mark(self) -> tuple[int, threading.Event]:
        """Return a future of all that has been submitted."""
        ready = threading.Event()
        self._done_info.userdata1 = self._callbacks.register(lambda *_: ready.set())
        future = self.lib.wgpuQueueOnSubmittedWorkDone(self.queue, self._done_info[0])
        return int(future.id), ready

    def wait(self, mark: object) -> None:
        """Wait for the future of a mark."""
        assert isinstance(mark, tuple)
        self._wait_future(*mark)

    def wait_beside(self, mark: object) -> None:
        """Look again and again: while Dawn waits it holds the list that each submission adds its fence to."""
        assert isinstance(mark, tuple)
        number, ready = mark
        self._wait_future(number, ready, _LOOK)

    def begin_map(self, buffer: Pointer, size: int, mode: int = MAP_READ) -> Ticket:
        """Begin to map a buffer; return its ticket."""
        ticket = Ticket()
        if self._address(buffer) in self._readable:
            ticket.mark, ticket.ready = self.mark()
            return ticket
        success = self.lib.WGPUMapAsyncStatus_Success

        def on_map(status: int, message: object, *_unused: object) -> None:
            """Note that the buffer is mapped, or why it is not."""
            if status != success:
                ticket.error = self._text(message) or f"map status {status}"
            ticket.ready.set()

        self._map_info.userdata1 = self._callbacks.register(on_map)
        future = self.lib.wgpuBufferMapAsync(buffer, mode, 0, size, self._map_info[0])
        ticket.mark = int(future.id)
        return ticket

    def poll(self) -> None:
        """Answer what has been done by now."""
        self.lib.wgpuInstanceProcessEvents(self._instance)

    def wait_map(self, ticket: Ticket) -> None:
        """Wait until a buffer is mapped."""
        assert isinstance(ticket.mark, int)
        self._wait_future(ticket.mark, ticket.ready)


def open_native(module: ModuleType, device: Any) -> Native:
    """Return the raw calls for a wrapper's device."""
    if not hasattr(module, "gpu"):
        calls: Native = module.BrowserNative(device)
        return calls
    return (
        DawnNative(module, device) if module.__name__ == "wgpudawn" else WgpuNative(module, device)
    )
