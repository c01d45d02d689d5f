"""Compiling without a device: programs that are planned, read and measured, but never run. Floor
5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from webtorch.errors import NoValuesError
from webtorch.ir.dtype import DType
from webtorch.ir.graph import Graph, Node
from webtorch.ir.program import Program
from webtorch.lower.compiler import compile_graph
from webtorch.runtime.meta import COMMON_GPU, NOT_RUN, meta_runtime
from webtorch.runtime.realize import Runtime
from webtorch.tensors.tensor import Tensor


class MetaExecutable:
    """A planned program that no device runs."""

    scratch_bytes = 0
    reuses = tells = False
    prepare = None

    def __init__(self, program: Program) -> None:
        self.program = program

    def run(
        self,
        inputs: Sequence[object],
        args: Sequence[object],
        into: object = None,
        ready: object = None,
    ) -> NoReturn:
        """Raise NoValuesError."""
        raise NoValuesError(NOT_RUN)


def compile_for_nothing(runtime: Runtime, key: object, graph: Graph) -> MetaExecutable:
    """Return the program of a graph for a common GPU."""
    return MetaExecutable(compile_graph(graph, COMMON_GPU))


def without_values(shape: tuple[int, ...], dtype: DType) -> Tensor:
    """Return a tensor of the device "meta"."""
    return Tensor._from_node(Node("empty", (), (), (), shape, dtype), meta_runtime())
