"""A training step of the digits CNN, an MLP and a small GPT: at most 1.5 times PyTorch's time.

Both sides start from the same weights and see the same batches; their losses must agree.
"""

from __future__ import annotations

from typing import Any

import torch

import webtorch
from benchmarks.harness import Row, Run, compare, main
from benchmarks.models import work
from benchmarks.training import (
    Step,
    batches,
    furthest,
    initial_weights,
    losses,
    our_step,
    to_ours,
    to_torch,
    torch_step,
)

AGREEMENT = 1e-3


def measure(quick: bool = False) -> list[Row]:
    """Return the time of a step, lazy and compiled."""
    torch.set_num_threads(2)
    webtorch.set_num_threads(2)
    rows: list[Row] = []
    for name in ("mlp",) if quick else ("digits", "mlp", "gpt-tiny"):
        job = work(name, quick)
        weights = initial_weights(job)
        data = batches(job, 4)
        theirs, ours = to_torch(data, "cpu"), to_ours(data, "cpu")
        for compiled in (False, True):
            step, peer = our_step(job, weights, "cpu", compiled), torch_step(job, weights, "cpu")
            far = furthest(losses(step, ours), losses(peer, theirs))
            if not far <= AGREEMENT:
                raise AssertionError(
                    f"{job.name}: the losses differ by {far:.1e} from PyTorch's; at most "
                    f"{AGREEMENT:.0e} is allowed"
                )
            row = compare(
                f"{job.name}, {'compiled' if compiled else 'lazy'}",
                _reading(step, ours[0]),
                _reading(peer, theirs[0]),
                reach=1.5,
                turns=2 if quick else 15,
                seconds=0.01 if quick else 0.1,
            )
            row.figures = {"loss_difference": far}
            row.note = f"losses agree to {far:.0e}"
            rows.append(row)
    return rows


def _reading(step: Step, batch: tuple[Any, Any]) -> Run:
    """Return a run of one step that reads the loss, and so waits."""
    return lambda: step(*batch).item()


if __name__ == "__main__":
    main(__doc__ or "", measure)
