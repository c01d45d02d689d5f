"""A program laid out, its last form before a device. Floor 2; imports floor 0.

`lay_out_memory` gives every buffer of a program a piece of memory: the processor's backends, WebAssembly
and the memory report need no more. `lay_out` adds what WebGPU binds: every pass with its pieces, where
its arguments lie in the uniform buffer, the copies between passes. The WebGPU backend replays that, and
a page replays the same as JSON (web/program_json.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from webtorch.errors import KernelError
from webtorch.ir.dtype import DType, Scalar, float64, int32, int64, wide_int64
from webtorch.ir.kernel import Routine
from webtorch.ir.program import Copy, Dispatch, Program

if TYPE_CHECKING:
    from webtorch.lower.wgsl_shader import WgslPass

# Bindings are whole vec4s, so that a kernel may load four words at the end of a buffer.
ALIGN = 16
# Uniform offsets: the largest alignment that the specification allows a device to ask for.
CHUNK = 256

UniformType = Literal["f32", "f64", "i32", "i64", "u32"]


def aligned(nbytes: int) -> int:
    """Return `nbytes` rounded up to whole vec4s."""
    return -(-nbytes // ALIGN) * ALIGN


def host_bytes(dtype: DType, elements: int) -> int:
    """Return the bytes of `elements` values in the processor's memory."""
    return elements * dtype.itemsize


def device_bytes(dtype: DType, elements: int) -> int:
    """Return the bytes of `elements` values on a WebGPU device, which holds int64 as 32 bits, where they are enough."""
    return elements * (4 if dtype is int64 else dtype.itemsize)


def binding_bytes(dtype: DType, elements: int) -> int:
    """Return the size at which a WebGPU buffer is made, bound and copied: whole vec4s, never 0."""
    return max(ALIGN, aligned(device_bytes(dtype, elements)))


def uniform_type(dtype: DType) -> UniformType:
    """Return how a runtime argument lies in the uniform buffer: in 32 bits, wide types in two words."""
    if dtype is float64 or dtype is wide_int64:
        return "f64" if dtype is float64 else "i64"
    return "f32" if dtype.kind == "float" else "u32" if dtype.kind in ("uint", "bool") else "i32"


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of the memory of a run, and the program's buffers that lie in it.

    Several buffers share a piece where one takes over another's memory (an output an input's), or
    where they are temporaries that are not needed at the same time. "scratch" is what kernels work in.
    """

    role: Literal["input", "output", "temporary", "scratch"]
    nbytes: int
    buffers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Memory:
    """The pieces of a run's memory: inputs as the program names them, new outputs, temporaries, scratch.

    `places` is the piece of each of the program's buffers, `outputs` that of each of its outputs.
    """

    pieces: tuple[Piece, ...]
    places: tuple[int, ...]
    outputs: tuple[int, ...]

    def count(self, role: str) -> int:
        """Return how many pieces have a role."""
        return sum(p.role == role for p in self.pieces)

    def nbytes(self, role: str) -> int:
        """Return the bytes of the pieces of a role."""
        return sum(p.nbytes for p in self.pieces if p.role == role)

    def __str__(self) -> str:
        return "\n".join(
            f"  @{i}: {p.role} {p.nbytes} bytes{''.join(f' #{b}' for b in p.buffers)}"
            for i, p in enumerate(self.pieces)
        )


def lay_out_memory(program: Program, nbytes: Callable[[DType, int], int] = host_bytes) -> Memory:
    """Return the pieces of memory of a program, where a buffer takes `nbytes(dtype, elements)`."""
    found: list[tuple[Literal["input", "output", "temporary"], list[int]]] = []
    places: dict[int, int] = {}
    slots: dict[int, int] = {}
    temporaries = [i for i, b in enumerate(program.buffers) if b.role == "temporary"]
    for buffer in (*program.inputs, *program.outputs, *temporaries):
        declared = program.buffers[buffer]
        if buffer in places:
            continue
        shared = None
        if declared.alias is not None:
            shared = (places if declared.role == "output" else slots).get(declared.alias)
        if shared is None:
            shared = len(found)
            found.append((declared.role, []))
        if declared.role == "temporary" and declared.alias is not None:
            slots[declared.alias] = shared
        found[shared][1].append(buffer)
        places[buffer] = shared
    sizes = [nbytes(b.dtype, b.elements) for b in program.buffers]
    return Memory(
        tuple([Piece(role, max(sizes[b] for b in users), tuple(users)) for role, users in found]),
        tuple([places[b] for b in range(len(program.buffers))]),
        tuple([places[b] for b in program.outputs]),
    )


@dataclass(frozen=True, slots=True)
class Rendered:
    """A routine's pass as WGSL, and the values of the sizes that it takes as arguments, if it does."""

    shader: WgslPass
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Pass:
    """A dispatch of one compute shader: pass `part` of the routine of the program's step `step`.

    `memory` are (piece, bytes, first byte) in binding order; then come the arguments, the status words and the
    sizes, as far as there are any. `uniform` and `sizes` are (offset, bytes) in the uniform buffer.
    """

    step: int
    routine: int
    part: int
    shader: WgslPass
    memory: tuple[tuple[int, int, int], ...]
    uniform: tuple[int, int] | None = None
    sizes: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """A copy of bytes from one piece to another."""

    source: int
    target: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Field:
    """An argument in the uniform buffer: its offset, its number among the program's, its type there."""

    offset: int
    argument: int
    type: UniformType


@dataclass(frozen=True, slots=True)
class Layout:
    """A program as a WebGPU device replays it.

    `fields` lie in the uniform buffer in order of their offsets. `types` are those of the arguments:
    those of a run, then those whose values `constants` are the same in each.
    """

    program: Program
    memory: Memory
    steps: tuple[Pass | Move, ...]
    uniform_bytes: int
    fields: tuple[Field, ...]
    types: tuple[DType, ...]
    constants: tuple[Scalar, ...]

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The dispatches, in order."""
        return tuple([s for s in self.steps if isinstance(s, Pass)])

    @property
    def has_status(self) -> bool:
        """Whether a pass notes failed checks."""
        return any(p.shader.has_status for p in self.passes)

    @property
    def storage_buffers(self) -> int:
        """The most storage buffers that a pass binds."""
        return max((len(p.memory) + p.shader.has_status for p in self.passes), default=0)

    def name(self, p: Pass) -> str:
        """Return the name of a pass's routine."""
        return self.program.routines[p.routine].name

    def line(self, p: Pass) -> str:
        """Return the user's line that a pass comes from, or ""."""
        step = self.program.steps[p.step]
        return step.line if isinstance(step, Dispatch) else ""

    def __str__(self) -> str:
        lines = [f"layout  {len(self.memory.pieces)} pieces, {len(self.steps)} steps"]
        lines += [str(self.memory)] if self.memory.pieces else []
        for f in self.fields:
            lines.append(f"  uniform +{f.offset}: {f.type} argument {f.argument}")
        for s in self.steps:
            if isinstance(s, Move):
                lines.append(f"  copy @{s.source} -> @{s.target}, {s.nbytes} bytes")
                continue
            bound = [f"@{p}{f'+{start}' if start else ''}[{n}]" for p, n, start in s.memory]
            bound += [f"uniform +{place[0]}" for place in (s.uniform,) if place]
            bound += ["status"] if s.shader.has_status else []
            bound += [f"sizes +{place[0]}" for place in (s.sizes,) if place]
            grid = " x ".join(map(str, s.shader.grid))
            lines.append(f"  {self.name(s)}({', '.join(bound)}) on {grid}")
        return "\n".join(lines)


def _whole(program: Program, memory: Memory, buffer: int) -> tuple[int, int, int]:
    """Return the place of a buffer in memory, its bytes and its first byte."""
    declared = program.buffers[buffer]
    return memory.places[buffer], binding_bytes(declared.dtype, declared.elements), 0


def _bound(program: Program, memory: Memory, step: Dispatch, slot: int) -> tuple[int, int, int]:
    """Return the place of what a slot binds, its bytes and its first byte."""
    buffer = step.buffers[slot]
    if not step.starts:
        return _whole(program, memory, buffer)
    dtype = program.buffers[buffer].dtype
    elements = program.routines[step.routine].buffers[slot].elements
    first = device_bytes(dtype, step.starts[slot])
    return memory.places[buffer], binding_bytes(dtype, elements), first


def lay_out(
    program: Program,
    render: Callable[[Routine], Sequence[Rendered]],
    max_workgroups_per_dim: int,
) -> Layout:
    """Lay a program out for WebGPU. `render` is asked once for each routine that a step uses.

    Raises KernelError for a grid that no dispatch can have.
    """
    memory = lay_out_memory(program, binding_bytes)
    uniforms = _Uniforms()
    types, constants = list(program.args), list(program.constants)
    # Passes share scratch memory by number: piece `first + number` is as large as any of them asks.
    first = len(memory.pieces)
    scratch: list[int] = []
    steps: list[Pass | Move] = []
    rendered: dict[int, list[tuple[WgslPass, tuple[int, ...], tuple[int, ...]]]] = {}

    # Own numbers of passes that repeat lie in the uniform buffer once.
    numbers: dict[tuple[int, ...], tuple[int, ...]] = {}

    def passed(values: Sequence[int]) -> tuple[int, ...]:
        """Return the numbers of new arguments with these values."""
        new = tuple(range(len(types), len(types) + len(values)))
        types.extend([int32] * len(new))
        constants.extend(values)
        return new

    def parts_of(number: int) -> list[tuple[WgslPass, tuple[int, ...], tuple[int, ...]]]:
        """Return a routine's shaders, each with the arguments that are its own numbers and its sizes."""
        out = []
        for one in render(program.routines[number]):
            own = one.shader.numbers
            if own not in numbers:
                numbers[own] = passed(own)
            out.append((one.shader, numbers[own], passed(one.sizes)))
        return out

    for number, step in enumerate(program.steps):
        if isinstance(step, Copy):
            source, nbytes, _ = _whole(program, memory, step.source)
            target = memory.places[step.target]
            if source != target:
                steps.append(Move(source, target, nbytes))
            continue
        if step.routine not in rendered:
            rendered[step.routine] = parts_of(step.routine)
        for part, (shader, own, sizes) in enumerate(rendered[step.routine]):
            _check_grid(program.routines[step.routine], shader, max_workgroups_per_dim)
            bindings = [_bound(program, memory, step, slot) for slot in shader.slots]
            for place, nbytes in enumerate(map(aligned, shader.scratch)):
                scratch.extend([0] * (place + 1 - len(scratch)))
                scratch[place] = max(scratch[place], nbytes)
                bindings.append((first + place, nbytes, 0))
            steps.append(
                Pass(
                    number,
                    step.routine,
                    part,
                    shader,
                    tuple(bindings),
                    uniforms.arguments(shader, step) or uniforms.sizes(own),
                    uniforms.sizes(sizes),
                )
            )
    pieces = (*memory.pieces, *[Piece("scratch", n) for n in scratch])
    return Layout(
        program,
        Memory(pieces, memory.places, memory.outputs),
        tuple(steps),
        uniforms.nbytes,
        uniforms.fields(),
        tuple(types),
        tuple(constants),
    )


def _check_grid(routine: Routine, shader: WgslPass, most: int) -> None:
    if not 1 <= min(shader.grid) <= max(shader.grid) <= most:
        raise KernelError(
            f"compile {routine.name}: the grid {shader.grid} has a side outside 1..{most}"
        )


class _Uniforms:
    """The uniform buffer: one chunk for each set of arguments, however many passes take them."""

    def __init__(self) -> None:
        # (offset in the chunk, type, argument number) of each field -> the chunk's offset.
        self.chunks: dict[tuple[tuple[int, UniformType, int], ...], int] = {}
        self.nbytes = 0

    def arguments(self, shader: WgslPass, step: Dispatch) -> tuple[int, int] | None:
        """Return where the arguments of a pass lie, and their bytes."""
        if not shader.args:
            return None
        key = sorted((offset, uniform_type(t), step.args[n]) for offset, t, n in shader.args)
        return self._place(tuple(key), shader.args_bytes)

    def sizes(self, numbers: tuple[int, ...]) -> tuple[int, int] | None:
        """Return where sizes that are arguments lie, and their bytes."""
        if not numbers:
            return None
        return self._place(
            tuple([(4 * i, "i32", n) for i, n in enumerate(numbers)]), 4 * len(numbers)
        )

    def _place(self, key: tuple[tuple[int, UniformType, int], ...], nbytes: int) -> tuple[int, int]:
        if key not in self.chunks:
            self.chunks[key] = self.nbytes
            self.nbytes += -(-nbytes // CHUNK) * CHUNK
        return self.chunks[key], aligned(nbytes)

    def fields(self) -> tuple[Field, ...]:
        """Return where each argument stands in the buffer, with its number and type."""
        return tuple(
            [Field(at + offset, n, t) for key, at in self.chunks.items() for offset, t, n in key]
        )
