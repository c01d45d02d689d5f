"""A program's layout as JSON data with its WGSL: what `runtime.js` replays. Floor 6; may import floors 0 to 2.

Everything that can be known before the page opens is decided in the layout (lower/layout.py). What is
left to JavaScript is to make the buffers and pipelines, and to walk the steps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from webtorch.errors import DTypeError, OutOfMemoryError
from webtorch.ir.graph import Graph
from webtorch.ir.limits import Limits
from webtorch.ir.program import Program
from webtorch.lower.compiler import compile_graph
from webtorch.lower.in_parts import within_bindings
from webtorch.lower.layout import Layout, Move, Rendered, lay_out
from webtorch.lower.wgsl import WgslPass, render

Json = dict[str, Any]

# Bindings that `max_buffers_per_kernel` leaves free: scratch memory and the status words of index
# checks take one each, in the few kernels that have them.
_RESERVED_BINDINGS = 2
_DEFAULT_BUFFER_BYTES = 256 << 20
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
    max_buffer_bytes=_DEFAULT_BUFFER_BYTES,
)
# Software adapters: SwiftShader has 10 storage buffers, the others more. Where one has not, the
# kernels for graphics cards run.
SOFTWARE_LIMITS = replace(
    BROWSER_LIMITS, is_gpu=False, max_buffers_per_kernel=8, has_joint_products=False
)
_DEFAULT_STORAGE_BUFFERS = 8
_ENTRY = re.compile(r"@compute[^{}]*?\bfn\s+(\w+)", re.DOTALL)


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


def compile_for_page(graph: Graph, limits: Limits) -> Layout:
    """Compile a graph and lay it out. Raises what `lay_out_for_page` raises.

    Few kernels need the bindings that are kept for scratch memory and status words. So kernels get
    more buffers than `limits` says as long as all of them fit: an optimizer's update of one
    parameter, say, is one dispatch then, and not three.
    """
    most = limits.max_buffers_per_kernel + _RESERVED_BINDINGS
    # The fuser keeps one buffer in reserve too.
    for buffers in range(most + 1, limits.max_buffers_per_kernel, -1):
        program = compile_graph(graph, replace(limits, max_buffers_per_kernel=buffers))
        layout = lay_out_for_page(program, limits)
        if layout.storage_buffers <= most:
            return layout
    return lay_out_for_page(compile_graph(graph, limits), limits)


def lay_out_for_page(program: Program, limits: Limits) -> Layout:
    """Render `program` to WGSL and lay it out.

    Raises DTypeError for a type that WebGPU does not have, OverflowError for a constant beyond 32
    bits, KernelError for a grid beyond `limits`, OutOfMemoryError for memory that cannot be spread over buffers.
    """
    for declared in program.buffers:
        if not declared.dtype.webgpu:
            raise DTypeError(
                f"export: a {declared.role} of the program has type {declared.dtype}, which does not exist on WebGPU: "
                f"convert it in Python, as in x.to(torch.float32)"
            )
    layout = lay_out(
        within_bindings(program, limits),
        lambda routine: [Rendered(shader) for shader in render(routine, limits, "dawn")],
        limits.max_workgroups_per_dim,
    )
    step = limits.row_step
    for one in layout.passes:
        if any(first % step + nbytes > step for _, nbytes, first in one.memory):
            raise OutOfMemoryError(
                f"export: {layout.name(one)} needs memory in one buffer that is larger than {step} bytes, "
                "which is all that each browser has; use smaller tensors there"
            )
    return layout


def steps_json(layout: Layout, kernels: Kernels) -> list[Json]:
    """Return the steps of a layout as runtime.js replays them; new kernels are added to `kernels`."""
    steps: list[Json] = []
    for step in layout.steps:
        if isinstance(step, Move):
            steps.append({"copy": [step.source, step.target, step.nbytes]})
            continue
        shown: Json = {
            "kernel": kernels.number(step.shader, layout.name(step)),
            "grid": list(step.shader.grid),
            "bind": [
                [piece, nbytes, first] if first else [piece, nbytes]
                for piece, nbytes, first in step.memory
            ],
        }
        if step.uniform is not None:
            shown["uniform"] = list(step.uniform)
        if step.shader.has_status:
            shown["status"] = True
        line = layout.line(step)
        if line:
            shown["line"] = short_line(line)
        steps.append(shown)
    return steps


def needed_limits(layout: Layout, limits: Limits) -> dict[str, int]:
    """Return the limits that a program needs beyond what every device has."""
    largest = min(max((p.nbytes for p in layout.memory.pieces), default=0), limits.row_step)
    bound = max((nbytes for p in layout.passes for _, nbytes, _ in p.memory), default=0)
    needed = {
        "maxStorageBufferBindingSize": (bound, 128 << 20),
        "maxBufferSize": (max(largest, layout.uniform_bytes), _DEFAULT_BUFFER_BYTES),
        "maxStorageBuffersPerShaderStage": (layout.storage_buffers, _DEFAULT_STORAGE_BUFFERS),
        "maxComputeInvocationsPerWorkgroup": (limits.max_workgroup_invocations, 256),
        "maxComputeWorkgroupSizeX": (limits.max_workgroup_invocations, 256),
        "maxComputeWorkgroupStorageSize": (limits.workgroup_memory_bytes, 16384),
    }
    return {name: value for name, (value, default) in needed.items() if value > default}
