"""A program compiled for one WebGPU device, and the loop that replays it. Imports floor 0 and this package.

What can be known before the first run is worked out once (lower/layout.py). A run then takes memory
from the pool, finds the bind groups that were made for exactly this memory (a training loop gets the
same blocks again and again), and encodes everything into one command buffer.
"""

from __future__ import annotations

import array
import struct
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from webtorch.errors import DeviceError
from webtorch.ir.dtype import DType, float64, wide_int64
from webtorch.ir.kernel import Kernel, Routine, Several
from webtorch.ir.program import Dispatch, Program
from webtorch.lower.in_parts import within_bindings
from webtorch.lower.layout import Move, Pass, Rendered, aligned, lay_out
from webtorch.lower.widening import Needs, Widths, held_by, widen
from webtorch.runtime.backend import Buffer
from webtorch.runtime.backends.webgpu.encoding import FIRST_ROWS, CopyRow, encode_pass
from webtorch.runtime.backends.webgpu.loop import MachineLoop, Row
from webtorch.runtime.backends.webgpu.memory import Block, DeviceBuffer, moves
from webtorch.runtime.backends.webgpu.native import COPY_DST, UNIFORM, Pointer
from webtorch.runtime.backends.webgpu.pipeline import Pipeline
from webtorch.runtime.backends.webgpu.timestamps import run_timed
from webtorch.runtime.backends.webgpu.transfer import argument_value
from webtorch.runtime.watch import watch

if TYPE_CHECKING:
    from webtorch.lower.wgsl_shader import WgslPass
    from webtorch.runtime.backends.webgpu.device import WebGPUBackend

_number = attrgetter("number")
# struct's codes of the types in the uniform buffer.
_CODES = {"f32": "f", "f64": "d", "i32": "i", "i64": "q", "u32": "I"}
# Sets of memory for which an executable keeps its bind groups: more where they are few, as a program of one layer or
# of one operation is run on the memory of each layer in turn.
_PLANS = 32
_PLANNED = 2048
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
    """A pass of the layout with its pipeline, and the bind groups that were made for it."""

    __slots__ = ("groups", "layout", "pipeline")

    def __init__(self, layout: Pass, pipeline: Pipeline) -> None:
        self.layout = layout
        self.pipeline = pipeline
        self.groups: OrderedDict[tuple[int, ...], Owned] = OrderedDict()


class _Plan:
    """The encoded form of a program for one set of memory, and the bind groups that it keeps alive."""

    __slots__ = ("keep", "replay", "runs", "segments", "tables")

    def __init__(self, segments: list[tuple[list[Row], list[CopyRow]]], keep: list[Owned]) -> None:
        self.segments = segments
        self.keep = keep
        self.runs = 0
        # The rows of each segment as the loop in machine code reads them.
        self.tables: list[array.array[int]] | None = None
        # All of it as the browser replays it.
        self.replay: Owned | None = None

    def loop(
        self, device: WebGPUBackend
    ) -> tuple[MachineLoop | None, list[array.array[int]] | None]:
        """Count a run, and return what encodes it in machine code, once it has come often."""
        self.runs += 1
        loop = None
        if self.runs >= _MACHINE_RUNS and len(self.keep) >= _MACHINE_ROWS:
            loop = device.machine_loop
            if loop is not None and self.tables is None:
                self.tables = [loop.table(rows) for rows, _ in self.segments]
        return loop, self.tables


class _Reserved(NamedTuple):
    """What a run takes beside its inputs, and its bind groups."""

    # Those of the inputs, of new outputs, and from `temporary` on of temporaries.
    blocks: list[Block]
    temporary: int
    fresh: list[DeviceBuffer]
    plan: _Plan
    # What it was prepared with: its arguments, these as bytes, and the commands, which wait to be submitted.
    args: object
    packed: bytes
    commands: list[Pointer]


def _compiles_long(routine: Routine) -> bool:
    """Whether a device compiles it for so long that other sizes are to share what it made: float64 is computed from its
    bits, in hundreds of instructions each time, and drivers take seconds for some.
    """
    return isinstance(routine, Kernel | Several) and any(
        b.dtype is float64 for b in routine.buffers
    )


class WebGPUExecutable:
    """A program made ready for one WebGPU device. Made by `WebGPUBackend.compile`."""

    reuses = True
    tells = False

    def __init__(
        self,
        device: WebGPUBackend,
        program: Program,
        varying: bool = False,
        widths: Widths | None = None,
    ) -> None:
        # What int64 values need, where there are such: others than the least are computed by programs of their own.
        self._widths = widths if widths is not None and widths.uses else None
        if self._widths is not None:
            self._least = self._widths.least()
            program = widen(program, self._least)
            self._others: dict[tuple[frozenset[int], ...], WebGPUExecutable] = {}
            self._varying = varying
        program = self.program = within_bindings(program, device.limits)
        self._device = device
        self._plans: OrderedDict[tuple[int, ...], _Plan] = OrderedDict()
        pipelines: dict[int, list[Pipeline]] = {}
        texts: dict[int, tuple[bool, Sequence[WgslPass]]] = {}

        def text(routine: Routine) -> tuple[bool, Sequence[WgslPass]]:
            """Return whether a routine is compiled for any sizes, and its shaders."""
            if id(routine) not in texts:
                any_size = varying or _compiles_long(routine)
                texts[id(routine)] = any_size, device.render(routine, any_size)
            return texts[id(routine)]

        used = dict.fromkeys(s.routine for s in program.steps if isinstance(s, Dispatch))
        routines = [program.routines[n] for n in used]
        device.pipelines.prepare([(p, r.name, text(r)[0]) for r in routines for p in text(r)[1]])

        def render(routine: Routine) -> list[Rendered]:
            """Return a routine's shaders, and make their pipelines."""
            any_size, parts = text(routine)
            made = [self._pipeline(part, routine.name, any_size) for part in parts]
            pipelines[id(routine)] = [pipeline for pipeline, _ in made]
            return [rendered for _, rendered in made]

        self.layout = lay_out(program, render, device.limits.max_workgroups_per_dim)
        self._steps = [
            s
            if isinstance(s, Move)
            else _Dispatch(s, pipelines[id(program.routines[s.routine])][s.part])
            for s in self.layout.steps
        ]
        # For each dispatch the program's step and the routine's name: what a profiler shows.
        self.labels = [(p.step, self.layout.name(p)) for p in self.layout.passes]
        self._lay_out_blocks()
        self._lay_out_arguments()
        # What was taken for the next run, if it has the same inputs.
        self._reserved: _Reserved | None = None
        self.status: DeviceBuffer | None = None
        if self.layout.has_status:
            self.status = device.status_words()
        device.executables.add(self)

    # -- compile time

    def _pipeline(self, part: WgslPass, name: str, varying: bool) -> tuple[Pipeline, Rendered]:
        """Compile a pass, for any sizes or for its own."""
        pipelines = self._device.pipelines
        if not varying:
            return pipelines.get(part, name), Rendered(part)
        pipeline, sizes = pipelines.of_any_size(part, name)
        return pipeline, Rendered(part, tuple(sizes))

    def _lay_out_blocks(self) -> None:
        """Note what a run takes from the pool beside its inputs: new outputs, then temporaries and scratch."""
        program, memory = self.program, self.layout.memory
        self.scratch_bytes = memory.nbytes("scratch")
        first = len(program.inputs)
        # Of each new output: its bytes, type, elements, and the first of the program's outputs that it is.
        self._fresh: list[tuple[int, DType, int, int]] = []
        self._temporary: list[int] = []
        for number, piece in enumerate(memory.pieces[first:], first):
            if piece.role == "output":
                declared = program.buffers[piece.buffers[0]]
                shown = memory.outputs.index(number)
                self._fresh.append((piece.nbytes, declared.dtype, declared.elements, shown))
            else:
                self._temporary.append(piece.nbytes)
        # The blocks that results and temporaries had before: with the same, the bind groups fit.
        self._fresh_blocks: list[list[Block]] = [[] for _ in self._fresh]
        self._temporary_blocks: list[list[Block]] = [[] for _ in self._temporary]
        # Temporaries wait in the pool under this name, all together.
        self._parking = object()
        self._temporary_bytes = sum(self._temporary)

    def _lay_out_arguments(self) -> None:
        """Make one struct that packs the arguments of all dispatches."""
        text, at = "<", 0
        for field in self.layout.fields:
            text += f"{field.offset - at}x{_CODES[field.type]}"
            at = field.offset + (8 if field.type in ("f64", "i64") else 4)
        total = aligned(at)
        self._pack = struct.Struct(text + f"{total - at}x")
        self._order = tuple([field.argument for field in self.layout.fields])
        self._packed = b""
        self._uniform: Owned | None = None
        if self._order:
            device = self._device
            size = self.layout.uniform_bytes
            pointer = device.check(device.native.create_buffer(size, UNIFORM | COPY_DST), "compile")
            self._uniform = Owned(pointer, device.native.release_buffer, device.trash)

    # -- run time

    def run(
        self,
        inputs: Sequence[Buffer],
        args: Sequence[bool | int | float],
        into: Mapping[int, Buffer] | None = None,
        ready: object = None,
    ) -> list[Buffer]:
        """Enqueue the program and return its output buffers, those of `into` among them. Does not wait.

        Raises DeviceLostError, OutOfMemoryError; OverflowError or TypeError for an argument that
        does not fit its type.
        """
        if self._widths is not None:
            return self._run_wide(self._widths, inputs, args, into)
        return self._run(inputs, args, into)

    def _run_wide(
        self,
        widths: Widths,
        inputs: Sequence[Buffer],
        args: Sequence[bool | int | float],
        into: Mapping[int, Buffer] | None,
    ) -> list[Buffer]:
        """Run the program that computes these int64 values in as many bits as they need."""
        needs = self._needs(widths, inputs, args)
        buffers = self._fitting(widths, needs)._run(inputs, args, into)
        for i in widths.outputs:
            found = buffers[i]
            assert type(found) is DeviceBuffer
            found.held = needs.held[i]
        return buffers

    def _needs(
        self, widths: Widths, inputs: Sequence[Buffer], args: Sequence[bool | int | float]
    ) -> Needs:
        """Return in how many bits int64 values are to be computed."""
        held, wide = [], []
        for i in widths.inputs:
            buffer = inputs[i]
            assert type(buffer) is DeviceBuffer
            held.append(buffer.held or held_by(buffer.stored))
            if buffer.stored is wide_int64:
                wide.append(i)
        return widths.needs(held, [args[n] for n in widths.args], wide)

    def _fitting(self, widths: Widths, needs: Needs) -> WebGPUExecutable:
        """Return the executable of what is needed, this one where that is the least."""
        key = needs.buffers, needs.inputs, needs.steps
        if key == (self._least.buffers, self._least.inputs, self._least.steps):
            return self
        found = self._others.get(key)
        if found is None:
            with self._device.lock:
                self._device.settle()
                program = widen(widths.program, needs)
                found = self._others[key] = WebGPUExecutable(self._device, program, self._varying)
        return found

    def _run(
        self,
        inputs: Sequence[Buffer],
        args: Sequence[bool | int | float],
        into: Mapping[int, Buffer] | None = None,
    ) -> list[Buffer]:
        """Run this very program."""
        device = self._device
        with device.lock:
            device.settle()
            blocks = self._blocks_of(inputs)
            reserved = self._reserved
            if reserved is not None and reserved.args is args:
                packed = reserved.packed
            else:
                packed = self._pack_arguments(args) if self._order else b""
            if reserved is not None and (into or reserved.blocks[: len(blocks)] != blocks):
                self._drop()
                reserved = None
            if reserved is None:
                reserved = self._reserve(blocks, into)
            self._reserved = None
            try:
                if packed != self._packed:
                    assert self._uniform is not None
                    if device.encoding.holds(self):
                        # What is written comes before all that is submitted after it.
                        device.encoding.send()
                    device.write_ahead(self._uniform.pointer, packed)
                    self._packed = packed
                if reserved.commands and watch.listener is None:
                    device.encoding.send_ahead(reserved.commands)
                else:
                    self._encode(reserved.plan)
            finally:
                device.encoding.drop_ahead(reserved.commands)
                self._release(reserved.blocks[reserved.temporary :])
            if self.status is not None:
                device.checks[self] = None
        first, fresh = len(inputs), reserved.fresh
        return [inputs[n] if n < first else fresh[n - first] for n in self.layout.memory.outputs]

    def prepare(
        self, inputs: Sequence[Buffer], args: Sequence[bool | int | float]
    ) -> Callable[[], None]:
        """Take memory, make bind groups and encode the next run, if it has these inputs. Return what gives back what
        was not used then.

        Raises DeviceLostError, OutOfMemoryError.
        """
        with self._device.lock:
            self._device.settle()
            widths, fitting = self._widths, self
            if widths is not None:
                fitting = self._fitting(widths, self._needs(widths, inputs, args))
            fitting._drop()
            made = fitting._reserved = fitting._reserve(fitting._blocks_of(inputs), None)
            try:
                packed = fitting._pack_arguments(args) if fitting._order else b""
                fitting._reserved = made._replace(args=args, packed=packed)
                if watch.listener is None and not self._device.native.replays:
                    encoding = self._device.encoding
                    made.commands.extend(
                        encoding.ahead(made.plan.segments, *made.plan.loop(self._device))
                    )
            except BaseException:
                fitting._drop()
                raise
            return fitting._drop

    def _drop(self) -> None:
        """Give back what was taken for a run that is not to come."""
        with self._device.lock:
            reserved, self._reserved = self._reserved, None
            if reserved is not None:
                self._device.encoding.drop_ahead(reserved.commands)
                self._release(reserved.blocks[reserved.temporary :])

    def _reserve(self, blocks: list[Block], into: Mapping[int, Buffer] | None) -> _Reserved:
        """Take what a run needs beside these inputs, whose blocks are added to. Needs the device's lock."""
        device, fresh = self._device, []
        pool = device.pool
        for (nbytes, dtype, elements, output), preferred in zip(
            self._fresh, self._fresh_blocks, strict=True
        ):
            known = into.get(output) if into else None
            if (
                type(known) is DeviceBuffer
                and known.pool is pool
                and known.stored is dtype
                and known.elements == elements
            ):
                fresh.append(known)
                blocks.append(known.block)
                continue
            block = pool.take(nbytes, dtype, elements, preferred)
            fresh.append(DeviceBuffer(pool, block, dtype, elements))
            blocks.append(block)
        temporary = len(blocks)
        try:
            waiting = pool.parked(self._parking) if self._temporary else []
            if waiting is not None:
                blocks += waiting
            else:
                for nbytes, preferred in zip(self._temporary, self._temporary_blocks, strict=True):
                    blocks.append(pool.take(nbytes, None, 0, preferred))
            key = tuple(map(_number, blocks))
            plan = self._plans.get(key)
            if plan is None:
                plan = self._plan(key, blocks)
            else:
                device.bindings.hits += 1
        except BaseException:
            self._release(blocks[temporary:])
            raise
        return _Reserved(blocks, temporary, fresh, plan, None, b"", [])

    def _release(self, taken: list[Block]) -> None:
        """Give back temporaries, all of them or those that were taken before memory ran out."""
        pool = self._device.pool
        if len(taken) < len(self._temporary):
            for block in reversed(taken):
                pool.give_back(block)
        elif taken:
            pool.park(self._parking, taken, self._temporary_bytes)

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
        constants, types = self.layout.constants, self.layout.types
        given = len(types) - len(constants)
        if len(args) != given:
            raise ValueError(f"run: the program has {given} arguments, {len(args)} were given")
        if constants:
            args = [*args, *constants]
        try:
            return self._pack.pack(*[args[n] for n in self._order])
        except (struct.error, OverflowError):
            return self._pack.pack(*[argument_value(args[n], types[n], n) for n in self._order])

    def _plan(self, key: tuple[int, ...], blocks: list[Block]) -> _Plan:
        """Make the bind groups for this memory, and remember them."""
        device = self._device
        segments: list[tuple[list[Row], list[CopyRow]]] = [([], [])]
        keep: list[Owned] = []
        last: Pointer = None
        most = FIRST_ROWS
        device.native.capture()
        try:
            for step in self._steps:
                if isinstance(step, Move):
                    segments[-1][1].extend(
                        moves(blocks[step.source], blocks[step.target], step.nbytes)
                    )
                    continue
                if segments[-1][1] or len(segments[-1][0]) == most:
                    # A new pass, in which no pipeline is set yet: after copies, and where the device may begin.
                    most = 2 * most if len(segments[-1][0]) == most else most
                    segments.append(([], []))
                    last = None
                group = self._group(step, key, blocks)
                keep.append(group)
                pointer = step.pipeline.pointer
                segments[-1][0].append(
                    (None if pointer == last else pointer, group.pointer, *step.layout.shader.grid)
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
        if len(self._plans) > max(_PLANS, _PLANNED // max(len(self._steps), 1)):
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
        place = step.layout
        used = tuple([key[piece] for piece, _, _ in place.memory])
        found = step.groups.get(used)
        if found is not None:
            step.groups.move_to_end(used)
            return found
        bindings = [(*blocks[p].at(first, nbytes), nbytes) for p, nbytes, first in place.memory]
        if place.uniform is not None:
            assert self._uniform is not None
            bindings.append((self._uniform.pointer, *place.uniform))
        if place.shader.has_status:
            assert self.status is not None
            bindings.append((self.status.block.pointer, 0, 8))
        if place.sizes is not None:
            assert self._uniform is not None
            bindings.append((self._uniform.pointer, *place.sizes))
        native = self._device.native
        pointer = native.create_bind_group(step.pipeline.layout, bindings)
        group = Owned(pointer, native.release_bind_group, self._device.trash)
        step.groups[used] = group
        if len(step.groups) > _GROUPS:
            step.groups.popitem(last=False)
        return group

    def _encode(self, plan: _Plan) -> None:
        device = self._device
        native = device.native
        listener = watch.listener
        if listener is not None:
            device.encoding.send()
            run_timed(self, plan, listener)
            return
        if native.replays:
            if plan.replay is None:
                made = native.plan(plan.segments)
                plan.replay = Owned(made, native.release_plan, device.trash)
            native.replay(plan.replay.pointer)
            device.submitted(native.captured(), "run")
            return
        device.encoding.add(self, plan.segments, *plan.loop(device))

    def forget_memory(self) -> None:
        """Drop the bind groups, which keep memory alive."""
        self._plans.clear()
        for step in self._steps:
            if isinstance(step, _Dispatch):
                step.groups.clear()


def encode_rows(device: WebGPUBackend, rows: list[Row], doing: str) -> None:
    """Encode and submit dispatches of one pass, once. Needs the device's lock."""
    native = device.native
    native.capture()
    try:
        encoder = native.create_encoder()
        part = native.begin_pass(encoder, native.null)
        encode_pass(native, part, rows)
        native.end_pass(part)
        native.release_pass(part)
        commands = native.finish(encoder)
    finally:
        problem = native.captured()
    device.submit(commands, problem, doing)


ExecutableSet = weakref.WeakSet[WebGPUExecutable]
