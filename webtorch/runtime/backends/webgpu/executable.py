"""A program compiled for one WebGPU device, and the loop that replays it. Imports floor 0 and this package.

What can be known before the first run is worked out once: which memory each dispatch binds, how the
arguments lie in the uniform buffer, which grid it has. A run then takes memory from the pool, finds
the bind groups that were made for exactly this memory (a training loop gets the same blocks again
and again), and encodes everything into one command buffer.
"""

from __future__ import annotations

import array
import struct
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from webtorch.errors import DeviceError, KernelError
from webtorch.ir.dtype import DType, int32
from webtorch.ir.kernel import Routine
from webtorch.ir.program import Copy, Dispatch, Program
from webtorch.runtime.backend import Buffer
from webtorch.runtime.backends.webgpu.loop import Row
from webtorch.runtime.backends.webgpu.memory import Block, DeviceBuffer, binding_bytes
from webtorch.runtime.backends.webgpu.native import COPY_DST, UNIFORM, Native, Pointer
from webtorch.runtime.backends.webgpu.pipeline import Pass, Pipeline
from webtorch.runtime.backends.webgpu.timestamps import run_timed
from webtorch.runtime.backends.webgpu.transfer import argument_format, argument_value
from webtorch.runtime.watch import watch

if TYPE_CHECKING:
    from webtorch.runtime.backends.webgpu.device import WebGPUBackend

_number = attrgetter("number")
# Uniform offsets: the largest alignment that the specification allows a device to ask for.
_CHUNK = 256
# Sets of memory for which an executable keeps its bind groups.
_PLANS = 32
_GROUPS = 16
# From this run on, a plan of this many dispatches is encoded by machine code, which takes a tenth of
# a second to make once in a process.
_MACHINE_RUNS = 8
_MACHINE_ROWS = 16

Release = Callable[[Pointer], None]
Trash = deque[tuple[Release, Pointer]]


class Owned:
    """A native object that is released, later and under the device's lock, when the last reference goes."""

    __slots__ = ("_release", "_trash", "pointer")

    def __init__(self, pointer: Pointer, release: Release, trash: Trash) -> None:
        self.pointer = pointer
        self._release = release
        self._trash = trash

    def __del__(self) -> None:
        self._trash.append((self._release, self.pointer))


class _Dispatch:
    """One prepared dispatch: its pipeline, grid, and where each binding comes from.

    `memory` are (entry number, bytes) of the run's memory list, in binding order; then the uniform
    chunk and the status words.
    """

    __slots__ = (
        "chunk",
        "chunk_bytes",
        "extra",
        "grid",
        "groups",
        "has_status",
        "memory",
        "name",
        "pipeline",
    )

    def __init__(
        self,
        name: str,
        pipeline: Pipeline,
        grid: tuple[int, int, int],
        memory: tuple[tuple[int, int], ...],
        chunk: int | None,
        chunk_bytes: int,
        has_status: bool,
        extra: tuple[int, int] | None = None,
    ) -> None:
        self.name = name
        self.pipeline = pipeline
        self.grid = grid
        self.memory = memory
        self.chunk = chunk
        self.chunk_bytes = chunk_bytes
        self.has_status = has_status
        # Where the sizes are, and their bytes, if they are arguments.
        self.extra = extra
        self.groups: OrderedDict[tuple[int, ...], Owned] = OrderedDict()


# What the replay loop walks are rows of one pass, or copies as (source, target, bytes).
_CopyRow = tuple[Pointer, Pointer, int]


class _Plan:
    """The encoded form of a program for one set of memory, and the bind groups that it keeps alive."""

    __slots__ = ("keep", "replay", "runs", "segments", "tables")

    def __init__(self, segments: list[tuple[list[Row], list[_CopyRow]]], keep: list[Owned]) -> None:
        self.segments = segments
        self.keep = keep
        self.runs = 0
        # The rows of each segment as the loop in machine code reads them.
        self.tables: list[array.array[int]] | None = None
        # All of it as the browser replays it.
        self.replay: Owned | None = None


class WebGPUExecutable:
    """A program made ready for one WebGPU device. Made by `WebGPUBackend.compile`."""

    reuses = True

    def __init__(self, device: WebGPUBackend, program: Program, varying: bool = False) -> None:
        self.program = program
        self._device = device
        self._varying = varying
        # Arguments that no run gives: the program's own, and sizes.
        self._constants: list[Any] = list(program.constants)
        self._plans: OrderedDict[tuple[int, ...], _Plan] = OrderedDict()
        self._layout_memory()
        self._prepare()
        self._layout_arguments()
        self.status: DeviceBuffer | None = None
        if any(d.has_status for d in self._steps if isinstance(d, _Dispatch)):
            self.status = device.status_words()
        device.executables.add(self)

    # -- compile time

    def _layout_memory(self) -> None:
        """Number the run's memory: inputs, then fresh outputs, then temporary slots (scratch follows in `_prepare`)."""
        program = self.program
        entry: dict[int, int] = {buffer: i for i, buffer in enumerate(program.inputs)}
        self._fresh: list[tuple[int, DType, int]] = []
        # For each output: the input that is returned in its place, or the number of the fresh buffer.
        self._returned: list[tuple[bool, int]] = []
        placed: dict[int, tuple[bool, int]] = {}
        for buffer in program.outputs:
            declared = program.buffers[buffer]
            if buffer not in placed:
                if declared.role == "input":
                    placed[buffer] = True, entry[buffer]
                elif declared.alias is not None:
                    entry[buffer] = entry[declared.alias]
                    placed[buffer] = True, entry[buffer]
                else:
                    entry[buffer] = len(program.inputs) + len(self._fresh)
                    placed[buffer] = False, len(self._fresh)
                    nbytes = binding_bytes(declared.dtype, declared.elements)
                    self._fresh.append((nbytes, declared.dtype, declared.elements))
            self._returned.append(placed[buffer])
        # For each fresh buffer the first output that it is.
        self._shown = [self._returned.index((False, n)) for n in range(len(self._fresh))]
        first = len(program.inputs) + len(self._fresh)
        slots: dict[object, int] = {}
        self._temporary: list[int] = []
        for buffer, declared in enumerate(program.buffers):
            if declared.role != "temporary":
                continue
            slot: object = ("own", buffer) if declared.alias is None else declared.alias
            if slot not in slots:
                slots[slot] = len(self._temporary)
                self._temporary.append(0)
            number = slots[slot]
            nbytes = binding_bytes(declared.dtype, declared.elements)
            self._temporary[number] = max(self._temporary[number], nbytes)
            entry[buffer] = first + number
        self._entry = entry
        self._scratch_first = first + len(self._temporary)

    def _prepare(self) -> None:
        """Compile every routine and resolve every step."""
        device, program = self._device, self.program
        most = device.limits.max_workgroups_per_dim
        self._steps: list[_Dispatch | tuple[int, int, int]] = []
        # Uniform chunks by content: (layout of the pass, the program's argument numbers) -> byte offset.
        self._chunks: dict[tuple[tuple[int, str, int], ...], int] = {}
        self._uniform_bytes = 0
        scratch: list[int] = []
        compiled: dict[int, list[tuple[Pass, Pipeline, tuple[int, ...]]]] = {}
        # For each dispatch the program's step and the routine's name: what a profiler shows.
        self.labels: list[tuple[int, str]] = []
        used = dict.fromkeys(s.routine for s in program.steps if isinstance(s, Dispatch))
        routines = [program.routines[n] for n in used]
        if not self._varying:
            device.pipelines.prepare([(p, r.name) for r in routines for p in device.render(r)])
        for number, step in enumerate(program.steps):
            if isinstance(step, Copy):
                self._prepare_copy(step)
                continue
            routine = program.routines[step.routine]
            parts = compiled.get(step.routine)
            if parts is None:
                parts = compiled[step.routine] = self._pipelines(routine)
            for part, pipeline, sizes in parts:
                if max(part.grid) > most or min(part.grid) < 1:
                    raise KernelError(
                        f"compile {routine.name}: the grid {part.grid} has a side outside 1..{most}"
                    )
                for place, nbytes in enumerate(part.scratch):
                    if place == len(scratch):
                        scratch.append(0)
                    scratch[place] = max(scratch[place], (nbytes + 15) & -16)
                self.labels.append((number, routine.name))
                self._steps.append(self._prepare_pass(step, routine.name, part, pipeline, sizes))
        self.scratch_bytes = sum(scratch)
        self._temporary += scratch
        # The blocks that results and temporaries had before: with the same, the bind groups fit.
        self._fresh_blocks: list[list[Block]] = [[] for _ in self._fresh]
        self._temporary_blocks: list[list[Block]] = [[] for _ in self._temporary]
        # Temporaries wait in the pool under this name, all together.
        self._parking = object()
        self._temporary_bytes = sum(self._temporary)

    def _pipelines(self, routine: Routine) -> list[tuple[Pass, Pipeline, tuple[int, ...]]]:
        """Return a routine's passes with their pipelines, and the arguments that are sizes."""
        device = self._device
        if not self._varying:
            return [(p, device.pipelines.get(p, routine.name), ()) for p in device.render(routine)]
        out = []
        for part in device.render(routine, varying=True):
            pipeline, values = device.pipelines.of_any_size(part, routine.name)
            first = len(self.program.args) - len(self.program.constants) + len(self._constants)
            self._constants += values
            out.append((part, pipeline, tuple(range(first, first + len(values)))))
        return out

    def _prepare_copy(self, step: Copy) -> None:
        source, target = self._entry[step.source], self._entry[step.target]
        declared = self.program.buffers[step.source]
        if source != target:
            self._steps.append((source, target, binding_bytes(declared.dtype, declared.elements)))

    def _prepare_pass(
        self, step: Dispatch, name: str, part: Pass, pipeline: Pipeline, sizes: tuple[int, ...]
    ) -> _Dispatch:
        memory = []
        for slot in part.slots:
            buffer = step.buffers[slot]
            declared = self.program.buffers[buffer]
            memory.append((self._entry[buffer], binding_bytes(declared.dtype, declared.elements)))
        for number, nbytes in enumerate(part.scratch):
            memory.append((self._scratch_first + number, (nbytes + 15) & -16))
        chunk = None
        if part.args:
            key = tuple(
                sorted((offset, argument_format(t), step.args[n]) for offset, t, n in part.args)
            )
            chunk = self._chunk(key, part.args_bytes)
        nbytes = (part.args_bytes + 15) & -16
        extra = None
        if sizes:
            key = tuple([(4 * i, "i", number) for i, number in enumerate(sizes)])
            extra = self._chunk(key, 4 * len(sizes)), (4 * len(sizes) + 15) & -16
        return _Dispatch(
            name, pipeline, part.grid, tuple(memory), chunk, nbytes, part.has_status, extra
        )

    def _chunk(self, key: tuple[tuple[int, str, int], ...], nbytes: int) -> int:
        """Return where arguments are in the uniform buffer."""
        if key not in self._chunks:
            self._chunks[key] = self._uniform_bytes
            self._uniform_bytes += -(-nbytes // _CHUNK) * _CHUNK
        return self._chunks[key]

    def _layout_arguments(self) -> None:
        """Make one struct that packs the arguments of all dispatches."""
        text, order, at = "<", [], 0
        for key, start in self._chunks.items():
            for offset, code, number in key:
                text += f"{start + offset - at}x{code}"
                at = start + offset + 4
                order.append(number)
        total = (at + 15) & -16
        self._pack = struct.Struct(text + f"{total - at}x")
        self._order = tuple(order)
        self._packed = b""
        self._uniform: Owned | None = None
        if order:
            device = self._device
            size = self._uniform_bytes
            pointer = device.check(device.native.create_buffer(size, UNIFORM | COPY_DST), "compile")
            self._uniform = Owned(pointer, device.native.release_buffer, device.trash)

    # -- run time

    def run(
        self,
        inputs: Sequence[Buffer],
        args: Sequence[bool | int | float],
        into: Mapping[int, Buffer] | None = None,
    ) -> list[Buffer]:
        """Enqueue the program and return its output buffers, those of `into` among them. Does not wait.

        Raises DeviceLostError, OutOfMemoryError; OverflowError or TypeError for an argument that
        does not fit its type.
        """
        device = self._device
        pool = device.pool
        with device.lock:
            device.settle()
            packed = self._pack_arguments(args) if self._order else b""
            blocks = self._blocks_of(inputs)
            fresh: list[DeviceBuffer] = []
            for (nbytes, dtype, elements), preferred, output in zip(
                self._fresh, self._fresh_blocks, self._shown, strict=True
            ):
                known = into.get(output) if into else None
                if (
                    type(known) is DeviceBuffer
                    and known.pool is pool
                    and known.dtype is dtype
                    and known.elements == elements
                ):
                    fresh.append(known)
                    blocks.append(known.block)
                    continue
                block = pool.take(nbytes, dtype, elements, preferred)
                fresh.append(DeviceBuffer(pool, block, dtype, elements))
                blocks.append(block)
            permanent = len(blocks)
            try:
                waiting = pool.parked(self._parking) if self._temporary else []
                if waiting is not None:
                    blocks += waiting
                else:
                    for nbytes, preferred in zip(
                        self._temporary, self._temporary_blocks, strict=True
                    ):
                        blocks.append(pool.take(nbytes, None, 0, preferred))
                key = tuple(map(_number, blocks))
                plan = self._plans.get(key)
                if plan is None:
                    plan = self._plan(key, blocks)
                else:
                    device.bindings.hits += 1
                if packed != self._packed:
                    assert self._uniform is not None
                    device.write(self._uniform.pointer, packed)
                    self._packed = packed
                self._encode(plan)
            finally:
                taken = blocks[permanent:]
                if len(taken) == len(self._temporary):
                    if taken:
                        pool.park(self._parking, taken, self._temporary_bytes)
                else:
                    # Memory ran out on the way.
                    for block in reversed(taken):
                        pool.give_back(block)
            if self.status is not None:
                device.checks[self] = None
        return [inputs[n] if kept else fresh[n] for kept, n in self._returned]

    def _blocks_of(self, inputs: Sequence[Buffer]) -> list[Block]:
        """Return the blocks of inputs."""
        device = self._device
        pool = device.pool
        blocks = [b.block for b in inputs if type(b) is DeviceBuffer and b.pool is pool]
        if len(blocks) != len(inputs):
            other = next(b for b in inputs if type(b) is not DeviceBuffer or b.pool is not pool)
            raise DeviceError(f"run: {other!r} is not a buffer of {device.description()}")
        if len(blocks) != len(self.program.inputs):
            raise ValueError(
                f"run: the program has {len(self.program.inputs)} inputs, {len(blocks)} were given"
            )
        return blocks

    def _pack_arguments(self, args: Sequence[bool | int | float]) -> bytes:
        constants = self._constants
        given = len(self.program.args) - len(self.program.constants)
        if len(args) != given:
            raise ValueError(f"run: the program has {given} arguments, {len(args)} were given")
        if constants:
            args = [*args, *constants]
        try:
            return self._pack.pack(*[args[n] for n in self._order])
        except (struct.error, OverflowError):
            types = [*self.program.args, *[int32] * (len(args) - len(self.program.args))]
            return self._pack.pack(*[argument_value(args[n], types[n], n) for n in self._order])

    def _plan(self, key: tuple[int, ...], blocks: list[Block]) -> _Plan:
        """Make the bind groups for this memory, and remember them."""
        device = self._device
        segments: list[tuple[list[Row], list[_CopyRow]]] = [([], [])]
        keep: list[Owned] = []
        last: Pointer = None
        device.native.capture()
        try:
            for step in self._steps:
                if isinstance(step, tuple):
                    source, target, nbytes = step
                    segments[-1][1].append((blocks[source].pointer, blocks[target].pointer, nbytes))
                    continue
                if segments[-1][1]:
                    # After copies a new pass begins, in which no pipeline is set yet.
                    segments.append(([], []))
                    last = None
                group = self._group(step, key, blocks)
                keep.append(group)
                pointer = step.pipeline.pointer
                segments[-1][0].append(
                    (None if pointer == last else pointer, group.pointer, *step.grid)
                )
                last = pointer
        finally:
            problem = device.native.captured()
        if problem is not None:
            for step in self._steps:
                if isinstance(step, _Dispatch):
                    step.groups.clear()
            raise device.error(problem, "bind")
        plan = self._plans[key] = _Plan(segments, keep)
        device.bindings.made((id(self), key), id(self), key, self._moved)
        if len(self._plans) > _PLANS:
            device.bindings.dropped((id(self), self._plans.popitem(last=False)[0]))
        return plan

    @property
    def plan_count(self) -> int:
        """For how many sets of memory bind groups are kept."""
        return len(self._plans)

    def _moved(self, before: object, now: object) -> str:
        """Say which tensors of a run were elsewhere in the run before."""
        assert isinstance(before, tuple) and isinstance(now, tuple)
        program = self.program
        numbers = [n for n, (a, b) in enumerate(zip(before, now, strict=True)) if a != b]
        shown = [
            f"{program.buffers[b].dtype.name}[{program.buffers[b].elements}]"
            for n, b in enumerate(program.inputs)
            if n in numbers
        ]
        name = program.routines[0].name if program.routines else "a copy"
        if not shown:
            return f"results of the program of {name} are in other memory"
        return f"inputs of the program of {name} are in other memory: {', '.join(shown[:4])}"

    def _group(self, step: _Dispatch, key: tuple[int, ...], blocks: list[Block]) -> Owned:
        used = tuple([key[entry] for entry, _ in step.memory])
        found = step.groups.get(used)
        if found is not None:
            step.groups.move_to_end(used)
            return found
        bindings = [(blocks[entry].pointer, 0, nbytes) for entry, nbytes in step.memory]
        if step.chunk is not None:
            assert self._uniform is not None
            bindings.append((self._uniform.pointer, step.chunk, step.chunk_bytes))
        if step.has_status:
            assert self.status is not None
            bindings.append((self.status.block.pointer, 0, 8))
        if step.extra is not None:
            assert self._uniform is not None
            bindings.append((self._uniform.pointer, *step.extra))
        native = self._device.native
        pointer = native.create_bind_group(step.pipeline.layout, bindings)
        group = Owned(pointer, native.release_bind_group, self._device.trash)
        step.groups[used] = group
        if len(step.groups) > _GROUPS:
            step.groups.popitem(last=False)
        return group

    def _encode(self, plan: _Plan) -> None:
        listener = watch.listener
        if listener is not None:
            run_timed(self, plan, listener)
            return
        device = self._device
        native = device.native
        null = native.null
        if native.replays:
            if plan.replay is None:
                made = native.plan(plan.segments)
                plan.replay = Owned(made, native.release_plan, device.trash)
            native.replay(plan.replay.pointer)
            device.submitted(native.captured(), "run")
            return
        plan.runs += 1
        loop = None
        if plan.runs >= _MACHINE_RUNS and len(plan.keep) >= _MACHINE_ROWS:
            loop = device.machine_loop
            if loop is not None and plan.tables is None:
                plan.tables = [loop.table(rows) for rows, _ in plan.segments]
        native.capture()
        try:
            encoder = native.create_encoder()
            for number, (rows, copies) in enumerate(plan.segments):
                if rows:
                    part = native.begin_pass(encoder, null)
                    if loop is None or plan.tables is None:
                        _encode_rows(native, part, rows)
                    else:
                        loop.encode(part, plan.tables[number])
                    native.end_pass(part)
                    native.release_pass(part)
                for source, target, nbytes in copies:
                    native.copy(encoder, source, 0, target, 0, nbytes)
            commands = native.finish(encoder)
        finally:
            problem = native.captured()
        device.submit(commands, problem, "run")

    def forget_memory(self) -> None:
        """Drop the bind groups, which keep memory alive."""
        self._plans.clear()
        for step in self._steps:
            if isinstance(step, _Dispatch):
                step.groups.clear()


def _encode_rows(native: Native, part: Pointer, rows: list[Row]) -> None:
    """Encode the dispatches of a pass."""
    set_pipeline, set_bind_group, dispatch, null = (
        native.set_pipeline,
        native.set_bind_group,
        native.dispatch,
        native.null,
    )
    for pipeline, group, x, y, z in rows:
        if pipeline is not None:
            set_pipeline(part, pipeline)
        set_bind_group(part, 0, group, 0, null)
        dispatch(part, x, y, z)


ExecutableSet = weakref.WeakSet[WebGPUExecutable]
