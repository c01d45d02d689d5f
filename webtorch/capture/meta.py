"""Compiling without a device: programs that are planned, read and measured, but never run. Floor
5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from webtorch.capture.kernels import COMMON_GPU
from webtorch.errors import DeviceError
from webtorch.ir.graph import Graph, Node
from webtorch.ir.program import Program
from webtorch.lower.compiler import compile_graph
from webtorch.runtime.backend import Limits
from webtorch.runtime.realize import Runtime
from webtorch.tensors.tensor import Tensor

_REFUSAL = (
    "device 'meta' holds no data: what was compiled for it can be looked at (program(), kernels(), "
    "graph(), memory_plan()), and not run. Compile the function without device='meta' to run it"
)


class MetaExecutable:
    """A planned program that no device runs."""

    scratch_bytes = 0

    def __init__(self, program: Program) -> None:
        self.program = program

    def run(self, inputs: Sequence[Any], args: Sequence[Any]) -> NoReturn:
        """Raise DeviceError."""
        raise DeviceError(_REFUSAL)


class _MetaBackend:
    name = "meta"
    index = 0
    limits = COMMON_GPU
    unsupported: frozenset[Any] = frozenset()

    def description(self) -> str:
        """Return the device's name."""
        return "no device"

    def compile(self, program: Program) -> NoReturn:
        """Raise DeviceError."""
        raise DeviceError(_REFUSAL)

    download = allocate = upload = compile


_runtime: list[Runtime] = []


def meta_runtime() -> Runtime:
    """Return the runtime of tensors that have a shape and a type, but no values."""
    if not _runtime:
        backend: Any = _MetaBackend()
        _runtime.append(Runtime(backend))
    return _runtime[0]


def compile_for_nothing(runtime: Runtime, key: Any, graph: Graph) -> MetaExecutable:
    """Return the program of a graph for a common GPU."""
    limits: Limits = COMMON_GPU
    return MetaExecutable(compile_graph(graph, limits))


def without_values(shape: tuple[int, ...], dtype: Any) -> Tensor:
    """Return a tensor of the device "meta"."""
    return Tensor._from_node(Node("empty", (), (), (), shape, dtype), meta_runtime())
