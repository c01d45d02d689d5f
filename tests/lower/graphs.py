"""Graphs and programs of small functions, for tests that compare texts. No device is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import webtorch
from webtorch.ir.dtype import DType, float32
from webtorch.ir.graph import Graph, GraphNode, Output
from webtorch.ir.limits import Limits
from webtorch.ir.program import Program
from webtorch.ir.view import contiguous_strides
from webtorch.lower.compiler import compile_graph
from webtorch.ops.primitive import IDENTITY
from webtorch.ops.record import TABLE
from webtorch.runtime.meta import COMMON_GPU

GPU = COMMON_GPU
# Threads of a processor: products take nothing in, rows are few.
CPU = replace(GPU, is_gpu=False, has_epilogues=False, has_several=False, has_joint_products=False)


def graph_of(function: Callable[..., Any], *tensors: Any) -> Graph:
    """Return the graph that a function of these tensors records."""
    compiled = webtorch.compile(function, device="meta")
    compiled(*tensors)
    graph: Graph = compiled.latest().graph
    return graph


def program_of(
    function: Callable[..., Any], *tensors: Any, limits: Limits = GPU, **more: Any
) -> Program:
    """Return the program of a function for a device with these limits, with `more` of them."""
    return compile_graph(graph_of(function, *tensors), replace(limits, **more))


def steps_of(program: Program) -> list[str]:
    """Return the names of the routines of a program's steps."""
    return [
        program.routines[s.routine].name if hasattr(s, "routine") else "copy" for s in program.steps
    ]


class Builder:
    """Writes a graph node by node; what a method returns is the number of its node."""

    def __init__(self) -> None:
        self.nodes: list[GraphNode] = []
        self.args: list[DType] = []

    def add(
        self,
        kind: str,
        srcs: tuple[int, ...],
        attrs: tuple[Any, ...],
        shape: tuple[int, ...],
        dtype: DType = float32,
        args: tuple[DType, ...] = (),
    ) -> int:
        """Add any node; `args` are the types of its runtime arguments."""
        first = len(self.args)
        self.args += args
        numbers = tuple(range(first, len(self.args)))
        self.nodes.append(GraphNode(kind, srcs, attrs, numbers, shape, dtype))
        return len(self.nodes) - 1

    def buffer(self, *shape: int, dtype: DType = float32) -> int:
        """Add an input."""
        return self.add("buffer", (), (), shape, dtype)

    def map(self, name: str, *srcs: int, dtype: DType | None = None) -> int:
        """Add an operation of the table on tensors of one shape; `copy` is the one that changes nothing."""
        op = IDENTITY if name == "copy" else TABLE[name]
        first = self.nodes[srcs[0]]
        kind = dtype or first.dtype
        return self.add("map", srcs, (op, "t" * len(srcs), kind.compute), first.shape, kind)

    def view(
        self, source: int, *shape: int, strides: tuple[int, ...] | None = None, offset: int = 0
    ) -> int:
        """Add a window; without strides it is a reshape."""
        strides = contiguous_strides(shape) if strides is None else strides
        return self.add("view", (source,), (strides, offset), shape, self.nodes[source].dtype)

    def reduce(self, op: str, source: int, *dims: int) -> int:
        """Add a reduction."""
        node = self.nodes[source]
        shape = tuple(1 if d in dims else s for d, s in enumerate(node.shape))
        return self.add("reduce", (source,), (op, dims), shape, node.dtype)

    def update(self, base: int, values: int, offset: int) -> int:
        """Add `base` with a window of consecutive elements set to `values`."""
        shape = self.nodes[values].shape
        attrs = (shape, contiguous_strides(shape), offset)
        return self.add("update", (base, values), attrs, self.nodes[base].shape)

    def graph(self, *outputs: int | tuple[int, int]) -> Graph:
        """Return the graph; an output may be a pair with the input that it takes over."""
        found = tuple(Output(*o) if isinstance(o, tuple) else Output(o) for o in outputs)
        graph = Graph(tuple(self.nodes), found, tuple(self.args))
        graph.verify()
        return graph
