"""Attention on WebGPU, scores of the forward pass never in memory: which kernels serve. Floor 2; imports
floor 0 and attention's kernels.

Counted for B batches of H heads, T positions and heads of E: a product over all scores is 2 B H T^2 E
FLOP, half of that with `causal`. Forward two products, backward five, two of which compute the scores
and what comes to their weights (again).
"""

from __future__ import annotations

from webtorch.ir.kernel import Attention
from webtorch.lower.templates import (
    attention_again,
    attention_backward,
    attention_tiles,
    attention_units,
)
from webtorch.lower.wgsl_shader import Engine, WgslPass
from webtorch.runtime.backend import Limits


def fits(r: Attention, limits: Limits) -> bool:
    """Whether there are kernels for the forward pass and the gradients of `r`: of heads that are too
    large not one tile goes into workgroup memory."""
    return attention_tiles.choose_forward(r, limits) is not None and all(
        attention_again.choose(one, limits) is not None for one, _ in attention_backward.split(r)
    )


def render(routine: Attention, limits: Limits, engine: Engine) -> list[WgslPass]:
    """Return the dispatches of an attention or of its gradients."""
    if routine.part == "backward":
        return attention_backward.render(routine, limits, engine)
    found = attention_units.forward(routine, limits, engine)
    return [found or attention_tiles.forward(routine, limits)]
