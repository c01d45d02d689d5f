"""Runs of a WebGPU program with each dispatch timed, for a profiler. Imports floor 0 and this package.

WebGPU writes timestamps where a pass begins and ends, so each dispatch gets a pass of its own. On a
device without timestamp queries each dispatch is waited for, which adds what it costs to submit one.
Copies between buffers are not timed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from webtorch.runtime.backends.webgpu.native import COPY_DST, COPY_SRC, MAP_READ, Pointer
from webtorch.runtime.watch import Listener, Run, Timing, watch

if TYPE_CHECKING:
    from webtorch.runtime.backends.webgpu.device import WebGPUBackend
    from webtorch.runtime.backends.webgpu.executable import WebGPUExecutable, _Plan

_QUERY_RESOLVE = 0x200
# The most queries that a set may have (WebGPU, 20.1): two for each dispatch.
_SET_SIZE = 4096
Pair = tuple[float, float]


class _QuerySets:
    """The query sets of one device, made when they are first needed; runs use them one after the other."""

    def __init__(self, device: WebGPUBackend) -> None:
        self._device = device.native
        self._sets: list[Pointer] = []
        # wgpu-native hands out ticks of the device, Dawn nanoseconds.
        period = getattr(device.native.lib, "wgpuQueueGetTimestampPeriod", None)
        self.seconds = (1.0 if period is None else float(period(device.native.queue))) * 1e-9
        # The first mark that was read: some devices count from 1970, in steps that a float cannot tell.
        self.origin: int | None = None

    def get(self, number: int) -> Pointer:
        """Return set `number`."""
        native = self._device
        while len(self._sets) <= number:
            descriptor = native.ffi.new("WGPUQuerySetDescriptor *")
            descriptor.type = native.lib.WGPUQueryType_Timestamp
            descriptor.count = _SET_SIZE
            self._sets.append(native.lib.wgpuDeviceCreateQuerySet(native.device, descriptor))
        return self._sets[number]


_QUERY_SETS: WeakKeyDictionary[WebGPUBackend, _QuerySets] = WeakKeyDictionary()


def run_timed(executable: WebGPUExecutable, plan: _Plan, listener: Listener) -> None:
    """Encode and submit a plan with every dispatch timed, and tell the listener. Needs the device's lock."""
    device, labels, lines = executable._device, executable.labels, watch.taken()
    started = perf_counter()
    stamped = "timestamp-query" in device.features
    pairs = _stamped(device, plan) if stamped else _waited(device, plan)

    def times() -> list[Timing]:
        """Return when each dispatch began and ended, in seconds."""
        return [
            Timing(step, name, *pair) for (step, name), pair in zip(labels, pairs(), strict=True)
        ]

    name = f"webgpu:{device.index}"
    ended = perf_counter()
    listener.ran(Run(executable.program, name, started, ended, times, not stamped, lines))


def _stamped(device: WebGPUBackend, plan: _Plan) -> Callable[[], list[Pair]]:
    """Submit the whole plan at once; the timestamps are read when they are asked for."""
    native = device.native
    null = native.null
    sets = _QUERY_SETS.get(device)
    if sets is None:
        sets = _QUERY_SETS[device] = _QuerySets(device)
    queries = 2 * sum(len(rows) for rows, _ in plan.segments)
    size = max(queries * 8, 16)
    resolved = device.check(native.create_buffer(size, _QUERY_RESOLVE | COPY_SRC), "profile")
    staging = device.check(native.create_buffer(size, MAP_READ | COPY_DST), "profile")
    writes = native.ffi.new("WGPUPassTimestampWrites *")
    timed = native.ffi.new("WGPUComputePassDescriptor *")
    timed.timestampWrites = writes
    at = 0
    native.capture()
    try:
        encoder = native.create_encoder()
        for rows, copies in plan.segments:
            pipeline: Pointer = None
            for changed, group, x, y, z in rows:
                pipeline = pipeline if changed is None else changed
                writes.querySet = sets.get(at // _SET_SIZE)
                writes.beginningOfPassWriteIndex = at % _SET_SIZE
                writes.endOfPassWriteIndex = at % _SET_SIZE + 1
                at += 2
                part = native.begin_pass(encoder, timed)
                native.set_pipeline(part, pipeline)
                native.set_bind_group(part, 0, group, 0, null)
                native.dispatch(part, x, y, z)
                native.end_pass(part)
                native.release_pass(part)
            for row in copies:
                native.copy(encoder, *row)
        for first in range(0, queries, _SET_SIZE):
            here = min(_SET_SIZE, queries - first)
            native.lib.wgpuCommandEncoderResolveQuerySet(
                encoder, sets.get(first // _SET_SIZE), 0, here, resolved, first * 8
            )
        if queries:
            native.copy(encoder, resolved, 0, staging, 0, size)
        commands = native.finish(encoder)
    finally:
        problem = native.captured()
    device.submit(commands, problem, "profile")
    ticket = native.begin_map(staging, size)
    found: list[Pair] | None = None

    def pairs() -> list[Pair]:
        """Return the timestamps in pairs, read once."""
        nonlocal found
        if found is None:
            native.wait_map(ticket)
            with device.lock:
                words = struct.unpack(f"<{queries}Q", native.mapped(staging, 0, queries * 8))
                native.unmap(staging)
                native.release_buffer(staging)
                native.release_buffer(resolved)
            if sets.origin is None:
                sets.origin = min(words, default=0)
            marks = [(word - sets.origin) * sets.seconds for word in words]
            found = list(zip(marks[::2], marks[1::2], strict=True))
        return found

    return pairs


def _waited(device: WebGPUBackend, plan: _Plan) -> Callable[[], list[Pair]]:
    """Submit the dispatches one by one, each when the one before is done."""
    native = device.native
    null = native.null
    found: list[Pair] = []
    for rows, copies in plan.segments:
        pipeline: Pointer = None
        for changed, group, x, y, z in rows:
            pipeline = pipeline if changed is None else changed
            native.capture()
            try:
                encoder = native.create_encoder()
                part = native.begin_pass(encoder, null)
                native.set_pipeline(part, pipeline)
                native.set_bind_group(part, 0, group, 0, null)
                native.dispatch(part, x, y, z)
                native.end_pass(part)
                native.release_pass(part)
                commands = native.finish(encoder)
            finally:
                problem = native.captured()
            start = perf_counter()
            device.submit(commands, problem, "profile")
            native.wait(native.mark())
            found.append((start, perf_counter()))
        native.capture()
        try:
            encoder = native.create_encoder()
            for row in copies:
                native.copy(encoder, *row)
            commands = native.finish(encoder)
        finally:
            problem = native.captured()
        device.submit(commands, problem, "profile")
    return lambda: found
