"""Graph -> Program: the whole of floor 2 in one call. May import floors 0 and 1."""

from __future__ import annotations

from webtorch.ir.graph import Graph
from webtorch.ir.program import Program
from webtorch.lower.passes import run_passes
from webtorch.lower.plan import plan_program
from webtorch.runtime.backend import Limits


def compile_graph(graph: Graph, limits: Limits) -> Program:
    """Return the planned program of `graph` for a device with these limits.

    The graph's "buffer" nodes are the program's inputs, in order; its outputs are the graph's
    outputs, in order.
    """
    graph.verify()
    return plan_program(run_passes(graph, limits), limits)
