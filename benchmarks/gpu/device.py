"""Which devices the GPU benchmarks compare, and how work on them is timed.

A GPU works on while Python goes on: many runs are enqueued, then waited for once. Time on the
device alone, without Python, comes from a program's dispatches encoded many times over into one
command buffer; the difference of two such lengths leaves out what a submission costs.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch

import webtorch
from benchmarks.harness import Run
from webtorch.runtime.backends import get_backend

OURS = "webgpu"


def peer_device() -> str | None:
    """Return PyTorch's GPU, or None where it has none; its float32 is then not TF32."""
    if not torch.cuda.is_available():
        return None
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return "cuda"


def describe() -> dict[str, str]:
    """Return what both sides run on."""
    found = {"webgpu": get_backend("webgpu", 0).description(), "torch": torch.__version__}
    if torch.cuda.is_available():
        found["cuda"] = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    return found


def wait() -> None:
    """Wait for both sides."""
    webtorch.synchronize()
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def enqueued(run: Run, seconds: float = 0.15, turns: int = 5) -> tuple[float, float]:
    """Return the fastest and the median time of one `run`, many of which are enqueued in a row."""
    run()
    run()
    wait()
    started = time.perf_counter()
    run()
    wait()
    count = max(1, min(500, round(seconds / max(time.perf_counter() - started, 1e-5))))
    times = []
    for _ in range(turns):
        started = time.perf_counter()
        for _ in range(count):
            run()
        wait()
        times.append((time.perf_counter() - started) / count)
    return min(times), statistics.median(times)


@dataclass(frozen=True, slots=True)
class Share:
    """What one dispatch of a program takes on the device."""

    name: str
    seconds: float
    grid: tuple[int, int, int]
    step: int


def _rows(executable: Any) -> list[tuple[str, tuple[Any, ...]]]:
    """Return (name, encoded dispatch) of a WebGPU executable that has run, each with its pipeline."""
    # What ran last may be the program of wider integers.
    executable = next(
        e for e in (executable, *getattr(executable, "_others", {}).values()) if e._plans
    )
    plan = next(reversed(executable._plans.values()))
    names = [name for _, name in executable.labels]
    rows, last = [], None
    for segment, _copies in plan.segments:
        for pipeline, *rest in segment:
            last = last if pipeline is None else pipeline
            rows.append((last, *rest))
    return list(zip(names, rows))


def _submit(executable: Any, rows: list[tuple[Any, ...]], count: int) -> float:
    """Encode `rows` `count` times into one pass, run it, and return the seconds until it is done."""
    device = executable._device
    native = device.native
    with device.lock:
        native.capture()
        encoder = native.create_encoder()
        part = native.begin_pass(encoder, native.null)
        for _ in range(count):
            for pipeline, group, x, y, z in rows:
                native.set_pipeline(part, pipeline)
                native.set_bind_group(part, 0, group, 0, native.null)
                native.dispatch(part, x, y, z)
        native.end_pass(part)
        native.release_pass(part)
        commands = native.finish(encoder)
        problem = native.captured()
        device.synchronize()
        started = time.perf_counter()
        device.submit(commands, problem, "benchmark")
        device.synchronize()
        return time.perf_counter() - started


def _slope(executable: Any, rows: list[tuple[Any, ...]], seconds: float) -> float:
    once = min(_submit(executable, rows, 1) for _ in range(2))
    few = max(1, min(100, round(seconds / max(once, 1e-5))))
    short = min(_submit(executable, rows, few) for _ in range(3))
    long = min(_submit(executable, rows, 3 * few) for _ in range(3))
    slope = (long - short) / (2 * few)
    # On a busy machine the longer one may come out shorter: then the submission is counted too.
    return slope if slope > 0 else long / (3 * few)


def device_seconds(executable: Any, seconds: float = 0.02, warm: float = 0.3) -> float:
    """Return what one run of a program takes on the device, dispatches back to back, after working
    for up to `warm` seconds."""
    rows = [row for _, row in _rows(executable)]
    # The clock of a card that was idle is low: an H200 at 345 MHz takes a second to reach 1980.
    once = _submit(executable, rows, 1)
    started = last = time.perf_counter()
    while (now := time.perf_counter()) - started < warm:
        last, before = _submit(executable, rows, max(1, min(100, round(0.02 / once)))), last
        if now - started > 0.1 and abs(last - before) < 0.02 * last:
            break
    return _slope(executable, rows, seconds)


def timeline(executable: Any, seconds: float = 0.002) -> list[Share]:
    """Return each dispatch's own time on the device. The program's data are garbage afterwards."""
    return [
        Share(name, _slope(executable, [row], seconds), tuple(row[2:]), number)
        for number, (name, row) in enumerate(_rows(executable))
    ]
