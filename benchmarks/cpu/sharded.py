"""A step of `fully_shard` beside one of DistributedDataParallel, in turns, and the memory that each holds.

    python -m benchmarks.cpu.sharded [--processes 2] [--width 256] [--layers 8] [--turns 9]

Each process trains the same layers (AdamW), on its own engine. Times are medians of turns, memory is the most that
a step has held in one process.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import webtorch as torch
from webtorch import distributed as dist
from webtorch.distributed.fsdp import fully_shard
from webtorch.nn.parallel import DistributedDataParallel
from webtorch.runtime.realize import runtime_for

nn = torch.nn
MIB = 1 << 20


def _model(width: int, layers: int) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(*[
        nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(layers)
    ])  # fmt: skip


def _step(model: Any, width: int) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(128, width)

    def step() -> None:
        """Train once."""
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        float(next(model.parameters()).detach().sum())

    return step


def _measured(options: argparse.Namespace) -> None:
    """Measure, as one process."""
    backend = runtime_for("cpu", 0).backend
    found: dict[str, tuple[Callable[[], None], list[float], list[float], float]] = {}
    for name in ("DDP", "FSDP2"):
        before = backend.memory_allocated()
        model = _model(options.width, options.layers)
        if name == "FSDP2":
            for layer in model:
                fully_shard(layer)
            fully_shard(model)
        else:
            model = DistributedDataParallel(model)
        step = _step(model, options.width)
        for _ in range(4):
            step()
        dist.barrier()
        backend.reset_peak_memory()
        step()
        peak = (backend.max_memory_allocated() - before) / MIB
        found[name] = step, [], [], peak
    for _ in range(options.turns):
        for step, times, worked, _ in found.values():
            dist.barrier()
            start, used = time.perf_counter(), time.process_time()
            step()
            times.append(time.perf_counter() - start)
            worked.append(time.process_time() - used)
    if dist.get_rank() == 0:
        whole = sum(p.numel() for p in _model(options.width, options.layers).parameters()) * 4 / MIB
        print(f"{dist.get_world_size()} processes, parameters of {whole:.1f} MiB")
        print("| | step (ms) | of the processor's time (ms) | most memory (MiB) |")
        print("|---|---|---|---|")
        for name, (_, times, worked, peak) in found.items():
            ms, busy = (1e3 * statistics.median(t) for t in (times, worked))
            print(f"| {name} | {ms:.1f} | {busy:.1f} | {peak:.1f} |")


def main() -> None:
    """Start the processes, or be one."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, number in (("processes", 2), ("width", 256), ("layers", 8), ("turns", 9)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--folder")
    options = parser.parse_args()
    if options.rank is not None:
        dist.init_process_group(
            "gloo", f"file://{options.folder}/store", rank=options.rank, world_size=options.processes
        )  # fmt: skip
        _measured(options)
        dist.destroy_process_group()
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "benchmarks.cpu.sharded",
            *sys.argv[1:],
            "--folder",
            folder,
        ]
        started = [
            subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(options.processes)
        ]
        sys.exit(max(process.wait() for process in started))


if __name__ == "__main__":
    main()
