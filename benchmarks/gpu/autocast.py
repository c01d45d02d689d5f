"""The GPT step under float16 autocast against the same step in float32, both compiled.

Matrix units want Dawn: WEBTORCH_WEBGPU=dawn. PyTorch's own pair is measured beside it. The losses
of the first steps must agree with float32's within what float16 gives.
"""

from __future__ import annotations

from typing import Any

import webtorch
from benchmarks.gpu.device import OURS, device_seconds, enqueued, peer_device
from benchmarks.gpu.train import STEPS, report
from benchmarks.harness import Row, main
from benchmarks.models import work
from benchmarks.training import (
    batches,
    furthest,
    initial_weights,
    losses,
    our_step,
    to_ours,
    to_torch,
    torch_step,
)

# Of the first losses, relative: float16 has 11 bits, and Adam magnifies.
AGREEMENT = 2e-2
REACH = 1 / 2.5


def measure(quick: bool = False) -> list[Row]:
    """Return the row of our pair and of PyTorch's: the step under autocast over that in float32."""
    return both(quick)[0]


def both(quick: bool = False) -> tuple[list[Row], str]:
    """Return the rows, and our program with the time of each of its dispatches."""
    job = work("gpt", quick)
    weights = initial_weights(job)
    data = batches(job, STEPS)
    span = 0.02 if quick else 0.5
    rows: list[Row] = []
    mine = to_ours(data, OURS)
    found: dict[bool, tuple[list[float], tuple[float, float], float]] = {}
    text = ""
    for half in (False, True):
        run: Any = our_step(job, weights, OURS, True, webtorch.float16 if half else None)
        first = losses(run, mine)
        seconds = enqueued(lambda run=run: run(*mine[0]), span)  # type: ignore[misc]
        executable = run.latest().executable
        found[half] = first, seconds, device_seconds(executable, span / 3)
        if half:
            text = report(job.name, executable, found[half][2])
        webtorch.webgpu.empty_cache()
    far = furthest(found[True][0], found[False][0])
    row = Row(f"{job.name}, autocast over f32", *found[True][1], *found[False][1], reach=REACH)
    agree = "" if far <= AGREEMENT else ", TOO MUCH"
    row.note = (
        f"losses differ by {far:.0e}{agree}; device {found[True][2] * 1e3:.2f} of "
        f"{found[False][2] * 1e3:.2f} ms, {found[False][2] / found[True][2]:.2f} times as fast"
    )
    rows.append(row)
    peer = peer_device()
    if peer:
        import torch

        theirs = to_torch(data, peer)
        pair = [
            enqueued(lambda step=step: step(*theirs[0]), span)  # type: ignore[misc]
            for step in (torch_step(job, weights, peer, dtype) for dtype in (torch.float16, None))
        ]
        rows.append(Row("the same, PyTorch", *pair[0], *pair[1]))
    return rows, text


if __name__ == "__main__":
    main(__doc__ or "", measure)
