"""Graph -> Program: the whole of floor 2 in one call. May import floors 0 and 1."""

from __future__ import annotations

from collections.abc import Callable

from webtorch.ir.garbage import not_collecting
from webtorch.ir.graph import Graph
from webtorch.ir.limits import Limits
from webtorch.ir.program import Program
from webtorch.lower.passes import PassResult, run_passes
from webtorch.lower.plan import plan_program
from webtorch.lower.rematerialise import fit_budget


def compile_graph(
    graph: Graph, limits: Limits, watch: Callable[[PassResult], object] | None = None
) -> Program:
    """Return the planned program of `graph` for a device with these limits.

    `watch` is shown what each pass did.

    The graph's "buffer" nodes are the program's inputs, in order; its outputs are the graph's
    outputs, in order.
    """
    with not_collecting():
        graph.verify()
        return plan_program(run_passes(graph, limits, watch), limits)


def compile_within(
    graph: Graph, limits: Limits, budget: int, peak: Callable[[Program], int]
) -> tuple[Program, int]:
    """Return the planned program of `graph` that takes at most `budget` bytes by `peak`, and what
    it takes: what does not fit is computed again instead of kept. It may take more where nothing is
    left to compute again.
    """
    with not_collecting():
        graph.verify()
        passed = run_passes(graph, limits)
        return fit_budget(passed, budget, lambda g: plan_program(g, limits), peak)
