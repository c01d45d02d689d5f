"""Graphs and programs of small functions, for tests that compare texts. No device is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import webtorch
from webtorch.ir.graph import Graph
from webtorch.ir.limits import Limits
from webtorch.ir.program import Program
from webtorch.lower.compiler import compile_graph
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
