"""Attention on WebGPU, scores of the forward pass never in memory: which kernels serve. Floor 2; imports
floor 0 and attention's kernels.

Counted for B batches of H heads, T positions and heads of E: a product over all scores is 2 B H T^2 E
FLOP, half of that with `causal`. Forward two products, backward five, two of which compute the scores
and what comes to their weights (again).
"""

from __future__ import annotations

from webtorch.errors import KernelError
from webtorch.ir.kernel import Attention
from webtorch.ir.limits import Limits
from webtorch.lower.templates import (
    attention_again,
    attention_backward,
    attention_tiles,
    attention_units,
)
from webtorch.lower.wgsl_shader import Engine, WgslPass


def fits(r: Attention, limits: Limits) -> bool:
    """Whether there are kernels for the forward pass and the gradients of `r`: of heads that are too
    large not one tile goes into workgroup memory."""
    return attention_tiles.choose_forward(r, limits) is not None and all(
        attention_again.choose(one, limits) is not None for one, _ in attention_backward.split(r)
    )


def render(routine: Attention, limits: Limits, engine: Engine) -> list[WgslPass]:
    """Return the dispatches of an attention or of its gradients.

    Raises KernelError where a tile of its heads exceeds workgroup memory: then it was recorded for
    a processor.
    """
    if routine.part == "forward":
        served = attention_tiles.choose_forward(routine, limits) is not None
    else:
        split = attention_backward.split(routine)
        served = all(attention_again.choose(one, limits) is not None for one, _ in split)
    if not served:
        raise KernelError(
            f"{routine.name}: heads of {max(routine.size, routine.width)} elements do not fit into "
            f"{limits.workgroup_memory_bytes} bytes of workgroup memory: capture the function where it is to "
            "run, or give export its example_inputs, with which it is captured anew"
        )
    if routine.part == "backward":
        return attention_backward.render(routine, limits, engine)
    found = attention_units.forward(routine, limits, engine)
    return [found or attention_tiles.forward(routine, limits)]
