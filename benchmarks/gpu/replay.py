"""What replaying the compiled training step of a GPT (of an MLP, where it is to be quick) costs the host: processor
time of the calling thread, in all, in the native library (encoding, finishing, submitting), and in Python.
"""

from __future__ import annotations

import time
from typing import Any

import webtorch
from benchmarks.gpu.device import OURS
from benchmarks.harness import Row, main
from benchmarks.models import work
from benchmarks.training import batches, initial_weights, our_step, to_ours

# Replays before the first that counts: memory, bind groups and the machine loop are there then.
WARM = 12


def measure(quick: bool = False, count: int = 200) -> list[Row]:
    """Return the rows: microseconds a dispatch, in a row's `figures`."""
    job = work("mlp" if quick else "gpt", quick)
    (batch,) = to_ours(batches(job, 1), OURS)
    step: Any = our_step(job, initial_weights(job), OURS, compiled=True)
    for _ in range(WARM):
        step(*batch)
    executable = step.latest().executable
    encode, inside = executable._encode, 0.0

    def timed(plan: Any) -> None:
        nonlocal inside
        started = time.thread_time()
        encode(plan)
        inside += time.thread_time() - started

    executable._encode = timed
    dispatches = len(executable.labels)
    rows = []
    # In a row, as a training loop does, and each after waiting for the one before, when little of what
    # Python needs is in the processor's caches.
    for name, turns, each in (("in a row", count // 10, 10), ("after waiting", count, 1)):
        found: list[tuple[float, float]] = []
        for _ in range(turns):
            webtorch.synchronize()
            inside, started = 0.0, time.thread_time()
            for _ in range(each):
                step(*batch)
            found.append(((time.thread_time() - started) / each, inside / each))
        for part, times in (
            ("in all", sorted(a for a, _ in found)),
            ("native library", sorted(b for _, b in found)),
            ("Python", sorted(a - b for a, b in found)),
        ):
            least, median = times[0], times[len(times) // 2]
            row = Row(f"{job.name}, replays {name}, {part}", least, median)
            row.figures["a_dispatch"] = least / dispatches
            row.note = (
                f"{dispatches} dispatches, {least / dispatches * 1e6:.2f} us each "
                f"({median / dispatches * 1e6:.2f} in the median)"
            )
            rows.append(row)
    executable._encode = encode
    return rows


if __name__ == "__main__":
    main(__doc__ or "", measure)
