"""Training steps of an MLP, a CNN and a GPT on a real GPU, float32, against PyTorch with CUDA.

Both sides start from the same weights and see the same batches. The losses of the first steps must
agree; times are of steps enqueued in a row, and the note has the time on the device alone.
"""

from __future__ import annotations

import traceback
from collections import defaultdict

import webtorch
from benchmarks.gpu.device import OURS, device_seconds, enqueued, peer_device, timeline
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

# Over the first steps; Adam magnifies what rounding differs where gradients are near zero.
STEPS = 5
AGREEMENT = {"mlp": 1e-3, "cnn": 2e-2, "gpt": 1e-3}


def measure(quick: bool = False, names: tuple[str, ...] = ("mlp", "cnn", "gpt")) -> list[Row]:
    """Return rows for each network, lazy and compiled."""
    return [row for name in names for row in one(name, quick)[0]]


def one(name: str, quick: bool) -> tuple[list[Row], str]:
    """Return the rows of one network, and its compiled program with the time of every dispatch."""
    job = work(name, quick)
    weights = initial_weights(job)
    data = batches(job, STEPS)
    peer = peer_device()
    theirs = to_torch(data, peer or "cpu")
    step = torch_step(job, weights, peer or "cpu")
    expected = losses(step, theirs)
    times = enqueued(lambda: step(*theirs[0]), 0.5) if peer else (None, None)
    rows: list[Row] = []
    text = ""
    mine = to_ours(data, OURS)
    for compiled in (False, True):
        label = f"{job.name}, {'compiled' if compiled else 'lazy'}"
        try:
            run = our_step(job, weights, OURS, compiled)
            found = losses(run, mine)
            far = furthest(found, expected)
            seconds = enqueued(lambda run=run: run(*mine[0]), 0.02 if quick else 0.5)  # type: ignore[misc]
            row = Row(label, *seconds, *times, figures={"loss_difference": far})
            correct = far <= AGREEMENT[name]
            row.note = f"losses differ by {far:.0e}{'' if correct else ', TOO MUCH'}"
            rows.append(row)
            if compiled:
                executable = run.latest().executable  # type: ignore[attr-defined]
                alone = device_seconds(executable, 0.02 if quick else 0.2)
                row.figures["device_seconds"] = alone
                row.note += f"; device {alone * 1e3:.2f} ms"
                text = report(label, executable, alone)
        except Exception as error:
            traceback.print_exc()
            rows.append(Row(label, float("nan"), float("nan"), note=f"FAILED: {error!s:.300}"))
        webtorch.webgpu.empty_cache()
    return rows, text


def report(label: str, executable: object, alone: float) -> str:
    """Return the dispatches of a program by their time, the longest first, then in order."""
    shares = timeline(executable)
    total = sum(s.seconds for s in shares)
    lines = [
        f"{label}: {len(shares)} dispatches, {alone * 1e3:.2f} ms together, "
        f"{total * 1e3:.2f} ms one by one"
    ]
    kinds: dict[str, list[float]] = defaultdict(list)
    for s in shares:
        kinds[f"{s.name} {s.grid}"].append(s.seconds)
    for kind, seconds in sorted(kinds.items(), key=lambda k: -sum(k[1])):
        lines.append(f"{sum(seconds) * 1e6:9.1f} us {len(seconds):4} x {kind}")
    lines.append("in order:")
    lines += [f"{s.step:4} {s.seconds * 1e6:9.1f} us {s.name} {s.grid}" for s in shares]
    lines.append(str(executable.program))  # type: ignore[attr-defined]
    lines += [str(r) for r in executable.program.routines]  # type: ignore[attr-defined]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(__doc__ or "", measure)
