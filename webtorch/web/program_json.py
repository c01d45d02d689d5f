"""A planned program as JSON data with its WGSL: what `runtime.js` replays. Floor 6; may import floors 0 to 2.

Everything that can be known before the page opens is decided here: which memory each dispatch
binds, how the arguments lie in the uniform buffer, which grid it has, which buffers share a
temporary. What is left to JavaScript is to make the buffers and pipelines, and to walk the steps.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from webtorch.errors import DTypeError, KernelError
from webtorch.ir.dtype import DType, Scalar, int64
from webtorch.ir.graph import Graph
from webtorch.ir.program import Copy, Dispatch, Program
from webtorch.lower.compiler import compile_graph
from webtorch.lower.wgsl import WgslPass, render
from webtorch.runtime.backend import Limits

Json = dict[str, Any]

# Bindings that `max_buffers_per_kernel` leaves free: scratch memory and the status words of index
# checks take one each, in the few kernels that have them.
_RESERVED_BINDINGS = 2
# What every WebGPU implementation must offer (https://www.w3.org/TR/webgpu/#limits), so that a page
# runs on any adapter: 8 storage buffers.
BROWSER_LIMITS = Limits(
    max_binding_bytes=128 << 20,
    max_buffers_per_kernel=6,
    max_workgroup_invocations=256,
    max_workgroups_per_dim=65535,
    workgroup_memory_bytes=16384,
    has_f16=False,
    is_gpu=True,
    has_epilogues=True,
    has_joint_products=True,
)
# Software adapters: SwiftShader has 10 storage buffers, the others more. Where one has not, the
# kernels for graphics cards run.
SOFTWARE_LIMITS = replace(
    BROWSER_LIMITS, is_gpu=False, max_buffers_per_kernel=8, has_joint_products=False
)
_DEFAULT_STORAGE_BUFFERS = 8
_DEFAULT_UNIFORM_BYTES = 64 << 10
_DEFAULT_BUFFER_BYTES = 256 << 20
# The alignment of uniform offsets that every device accepts.
_CHUNK = 256
# Bindings are whole vec4s, so that a kernel may load four words at the end of a buffer.
_ALIGN = 16
_ENTRY = re.compile(r"@compute[^{}]*?\bfn\s+(\w+)", re.DOTALL)


def device_bytes(dtype: DType, elements: int) -> int:
    """Return the bytes of `elements` values in device memory, where int64 is held as 32 bits."""
    return elements * (4 if dtype is int64 else dtype.itemsize)


def binding_bytes(dtype: DType, elements: int) -> int:
    """Return the size at which a buffer is made and bound: whole vec4s, never 0."""
    return max(_ALIGN, -(-device_bytes(dtype, elements) // _ALIGN) * _ALIGN)


def uniform_type(dtype: DType) -> str:
    """Return the WGSL type in which a runtime argument of `dtype` lies in the uniform buffer."""
    return "f32" if dtype.kind == "float" else "u32" if dtype.kind in ("uint", "bool") else "i32"


def short_line(line: str) -> str:
    """Return "file:line" without its folder: a public page does not tell how its author's disk is arranged."""
    return re.split(r"[/\\]", line)[-1]


@dataclass(slots=True)
class Kernels:
    """The kernels of an export, each once, however many dispatches of however many programs use it."""

    items: list[Json] = field(default_factory=list)
    numbers: dict[tuple[str, tuple[str, ...]], int] = field(default_factory=dict)

    def number(self, part: WgslPass, name: str) -> int:
        """Return the kernel's number, adding it when it is new."""
        key = part.source, part.bindings
        found = self.numbers.get(key)
        if found is None:
            found = self.numbers[key] = len(self.items)
            entry = _ENTRY.search(part.source)
            self.items.append(
                {
                    "name": name,
                    "entry": entry.group(1) if entry else "main",
                    "bindings": list(part.bindings),
                    "code": part.source,
                }
            )
        return found


@dataclass(slots=True)
class Layout:
    """A program with its memory laid out.

    `memory` has the bytes of each entry: the program's inputs first, in order, then everything that the program owns.
    `outputs` are the entries that hold the program's outputs, in order.
    """

    memory: list[int]
    outputs: list[int]
    steps: list[Json]
    uniform_bytes: int
    # (byte offset, number of the program argument)
    uniform_fields: list[tuple[int, int]]
    argument_types: list[str]
    # The values of the last arguments, which are always the same.
    constants: tuple[Scalar, ...]
    has_status: bool
    # The most storage buffers that a kernel binds.
    storage_buffers: int
    limits: dict[str, int]

    def own(self, nbytes: int) -> int:
        """Add an entry of the program's own memory and return its number."""
        self.memory.append(nbytes)
        return len(self.memory) - 1


def compile_for_page(graph: Graph, limits: Limits, kernels: Kernels) -> tuple[Program, Layout]:
    """Compile a graph and lay it out. Raises what `lay_out` raises.

    Few kernels need the bindings that are kept for scratch memory and status words. So kernels get
    more buffers than `limits` says as long as all of them fit: an optimizer's update of one
    parameter, say, is one dispatch then, and not three.
    """
    most = limits.max_buffers_per_kernel + _RESERVED_BINDINGS
    # The fuser keeps one buffer in reserve too.
    for buffers in range(most + 1, limits.max_buffers_per_kernel, -1):
        program = compile_graph(graph, replace(limits, max_buffers_per_kernel=buffers))
        trial = Kernels(list(kernels.items), dict(kernels.numbers))
        layout = lay_out(program, limits, trial)
        if layout.storage_buffers <= most:
            kernels.items, kernels.numbers = trial.items, trial.numbers
            return program, layout
    program = compile_graph(graph, limits)
    return program, lay_out(program, limits, kernels)


def lay_out(program: Program, limits: Limits, kernels: Kernels) -> Layout:
    """Render `program` to WGSL and decide where everything lies.

    Raises DTypeError for a type that WebGPU does not have, OverflowError for a constant beyond 32
    bits, KernelError for a grid or buffer beyond `limits`.
    """
    return _LayOut(program, limits, kernels).layout()


class _LayOut:
    def __init__(self, program: Program, limits: Limits, kernels: Kernels) -> None:
        self.program = program
        self.limits = limits
        self.kernels = kernels
        self.memory: list[int] = []
        self.entry: dict[int, int] = {}
        self.chunks: dict[tuple[tuple[int, str, int], ...], int] = {}
        self.uniform_bytes = 0
        self.scratch: list[int] = []
        self.storage_buffers = 0
        self.has_status = False

    def layout(self) -> Layout:
        """Return the finished layout."""
        self._number_memory()
        steps: list[Json] = []
        # (bind list, position in it, scratch number): scratch entries are numbered when all their sizes are known.
        waiting: list[tuple[list[list[int]], int, int]] = []
        rendered: dict[int, Sequence[WgslPass]] = {}
        for step in self.program.steps:
            if isinstance(step, Copy):
                self._copy(step, steps)
                continue
            routine = self.program.routines[step.routine]
            if step.routine not in rendered:
                rendered[step.routine] = render(routine, self.limits, "dawn")
            for part in rendered[step.routine]:
                steps.append(self._dispatch(step, part, routine.name, waiting))
        first = len(self.memory)
        self.memory += self.scratch
        for bind, position, number in waiting:
            bind[position][0] = first + number
        fields = [
            (start + offset, number)
            for chunk, start in self.chunks.items()
            for offset, _, number in chunk
        ]
        return Layout(
            self.memory,
            [self.entry[b] for b in self.program.outputs],
            steps,
            self.uniform_bytes,
            fields,
            [uniform_type(d) for d in self.program.args],
            self.program.constants,
            self.has_status,
            self.storage_buffers,
            self._needed(),
        )

    def _bytes(self, buffer: int) -> int:
        declared = self.program.buffers[buffer]
        if not declared.dtype.webgpu:
            raise DTypeError(
                f"export: a {declared.role} of the program has type {declared.dtype}, which does not exist on WebGPU: "
                f"convert it in Python, as in x.to(torch.float32)"
            )
        return binding_bytes(declared.dtype, declared.elements)

    def _number_memory(self) -> None:
        program = self.program
        for buffer in program.inputs:
            self.entry[buffer] = len(self.memory)
            self.memory.append(self._bytes(buffer))
        slots: dict[int, int] = {}
        for buffer, declared in enumerate(program.buffers):
            if buffer in self.entry:
                continue
            nbytes = self._bytes(buffer)
            if declared.alias is None:
                self.entry[buffer] = len(self.memory)
                self.memory.append(nbytes)
            elif declared.role == "output":
                self.entry[buffer] = self.entry[declared.alias]
            else:
                if declared.alias not in slots:
                    slots[declared.alias] = len(self.memory)
                    self.memory.append(0)
                number = self.entry[buffer] = slots[declared.alias]
                self.memory[number] = max(self.memory[number], nbytes)

    def _copy(self, step: Copy, steps: list[Json]) -> None:
        source, target = self.entry[step.source], self.entry[step.target]
        if source != target:
            steps.append({"copy": [source, target, self._bytes(step.source)]})

    def _dispatch(
        self,
        step: Dispatch,
        part: WgslPass,
        name: str,
        waiting: list[tuple[list[list[int]], int, int]],
    ) -> Json:
        most = self.limits.max_workgroups_per_dim
        if max(part.grid) > most or min(part.grid) < 1:
            raise KernelError(f"export {name}: the grid {part.grid} has a side outside 1..{most}")
        bind = [[self.entry[step.buffers[s]], self._bytes(step.buffers[s])] for s in part.slots]
        for number, nbytes in enumerate(part.scratch):
            size = -(-nbytes // _ALIGN) * _ALIGN
            if number == len(self.scratch):
                self.scratch.append(0)
            self.scratch[number] = max(self.scratch[number], size)
            waiting.append((bind, len(bind), number))
            bind.append([-1, size])
        out: Json = {
            "kernel": self.kernels.number(part, name),
            "grid": list(part.grid),
            "bind": bind,
        }
        if part.args:
            chunk = tuple(
                sorted((offset, uniform_type(t), step.args[n]) for offset, t, n in part.args)
            )
            if chunk not in self.chunks:
                self.chunks[chunk] = self.uniform_bytes
                self.uniform_bytes += -(-part.args_bytes // _CHUNK) * _CHUNK
            out["uniform"] = [self.chunks[chunk], -(-part.args_bytes // _ALIGN) * _ALIGN]
        if part.has_status:
            out["status"] = self.has_status = True
        if step.line:
            out["line"] = short_line(step.line)
        self.storage_buffers = max(self.storage_buffers, len(bind) + part.has_status)
        return out

    def _needed(self) -> dict[str, int]:
        """Return the limits that the program needs beyond what every device has."""
        largest = max(self.memory, default=0)
        needed = {
            "maxStorageBufferBindingSize": (largest, 128 << 20),
            "maxBufferSize": (max(largest, self.uniform_bytes), _DEFAULT_BUFFER_BYTES),
            "maxStorageBuffersPerShaderStage": (self.storage_buffers, _DEFAULT_STORAGE_BUFFERS),
            "maxComputeInvocationsPerWorkgroup": (self.limits.max_workgroup_invocations, 256),
            "maxComputeWorkgroupSizeX": (self.limits.max_workgroup_invocations, 256),
            "maxComputeWorkgroupStorageSize": (self.limits.workgroup_memory_bytes, 16384),
        }
        return {name: value for name, (value, default) in needed.items() if value > default}
