"""How far training goes on more devices than there are here: a model of its collectives, fitted to what is measured.

On 1, 2 and 4 processes of this machine (real PyTorch's device "webgpu") it measures the bytes that a step sends, the
time of staging (from the device to the host's memory and back), and how long a step with DistributedDataParallel waits
for its gradients. Latency, bandwidth, staging and what a step hides are fitted to 1 and 2 processes; what these tell of
4, which have no part in the fit, is printed beside what 4 take. Then it tells the efficiency of 8 to 1,024 devices over
links of 1, 10 and 100 Gbit/s.

    WEBTORCH_PYTORCH_ENGINE=cpu python -m benchmarks.scale [--quick] [--parameters 124e6] [--step 0.25] [--staging 10]
        [--hidden 1]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import nn

MEASURED = (1, 2, 4)
DEVICES = (8, 16, 64, 256, 1024)
GBITS = (1, 10, 100)
# Steps from one exchange of DiLoCo to the next.
EVERY = 500
# Of a step, the backward pass, which communication may hide behind.
BACKWARD = 2 / 3
# Between machines; within one it is measured.
NETWORK_LATENCY = 50e-6
BUCKET = 25 * 2**20

# What a process measured, by name.
Times: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Fit:
    """What a ring of processes takes."""

    # Seconds for one message.
    latency: float
    # Bytes a second: of one machine that all processes share, or of each link.
    bandwidth: float
    # Bytes a second from the device to the host; it goes back at the same rate.
    staging: float
    # Which part of the backward pass hides what is sent.
    hidden: float
    # Whether the processes share one machine, which is each one's link too.
    shared: bool
    # How many times as long it all takes within a step, where processes compute meanwhile.
    stretch: float = 1.0

    def crowd(self, n: int) -> float:
        """Return how many processes there are for each processor: each waits for the others."""
        return max(1.0, n / len(os.sched_getaffinity(0))) if self.shared else 1.0

    def stage(self, size: int, passes: int, n: int) -> float:
        """Return the seconds of so many copies between the device and the host."""
        return passes * size / self.staging * self.crowd(n)

    def ring(self, size: int, n: int, passes: int = 2) -> float:
        """Return the seconds of an all-reduce (two passes around) or of one pass."""
        sent = passes * (n - 1) / n * size * (n if self.shared else 1)
        return sent / self.bandwidth + passes * (n - 1) * self.latency * self.crowd(n)


def waits(way: str, fit: Fit, size: int, n: int, step: float) -> float:
    """Return how many seconds of a step are waited, by `way` of parallelism, for `size` bytes of parameters."""
    buckets = max(1, round(size / BUCKET))
    if way == "DiLoCo":
        return (fit.ring(size, n) + fit.stage(size, 2, n)) / EVERY
    if way == "DDP":
        whole = buckets * fit.ring(size // buckets, n) + fit.stage(size, 2, n)
        # The last bucket begins when the pass is over.
        shown = fit.stretch * whole - fit.hidden * BACKWARD * step
        return max(shown, whole / buckets if buckets > 1 else 0.0)
    # FSDP2 gathers parameters in the forward and in the backward pass, and scatters gradients.
    whole = 3 * buckets * fit.ring(size // buckets, n, 1) + fit.stage(size, 3, n)
    return max(whole - fit.hidden * step, whole / buckets if buckets > 1 else 0.0)


def best(run: Callable[[], object], turns: int) -> float:
    """Return the seconds of the fastest of some turns: a shared machine is never quiet for long."""
    found = []
    for _ in range(turns):
        dist.barrier()
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return min(found)


def measure(folder: str, rank: int, n: int, quick: bool) -> None:
    """Measure as one of n processes."""
    torch.set_num_threads(1)
    dist.init_process_group(init_method=f"file://{folder}/store{n}", rank=rank, world_size=n)
    turns, width = (7, 384) if quick else (15, 1024)
    torch.manual_seed(0)
    net = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(width, width), nn.ReLU())])
    model = nn.parallel.DistributedDataParallel(net.to("webgpu"), bucket_cap_mb=1)
    x = torch.randn(64, width, device="webgpu")
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.webgpu.synchronize()

    def alone() -> None:
        with model.no_sync():
            step()

    for _ in range(3):
        step()
        alone()
    found: Times = {"step": best(step, turns), "alone": best(alone, turns)}
    size = found["size"] = sum(p.numel() * 4 for p in model.parameters())
    found["sent"] = 2 * (n - 1) / n * size
    there, here = torch.zeros(size // 4, device="webgpu"), torch.zeros(size // 4)
    found["staging"] = best(lambda: there.cpu(), turns) + best(
        lambda: (there.copy_(here), torch.webgpu.synchronize()), turns
    )
    found["rings"] = []
    for count in (1024, 2**16, 2**18, size // 4) if n > 1 else ():
        host = torch.zeros(count)
        found["rings"].append((count * 4, best(lambda: dist.all_reduce(host), turns)))  # noqa: B023
    if rank == 0:
        Path(folder, f"{n}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def fitted(one: Times, two: Times) -> Fit:
    """Return latency and bandwidth from the all-reduces of two processes, staging from one process, and what is hidden
    from their steps.
    """
    # seconds = 2 * latency + bytes / bandwidth * 2, by least squares of relative errors.
    rows = [(2 / t, 2 * size / t) for size, t in two["rings"]]
    matrix = torch.tensor(rows, dtype=torch.float64)
    latency, slow = torch.linalg.lstsq(
        matrix, torch.ones(len(rows), 1, dtype=torch.float64)
    ).solution.flatten()
    staging = 2 * one["size"] / one["staging"]
    fit = Fit(max(float(latency), 1e-6), 1 / max(float(slow), 1e-12), staging, 0.0, True)
    whole = waits("DDP", fit, two["size"], 2, 0.0)
    waited = two["step"] - two["alone"]
    hidden = min(1.0, max(0.0, (whole - waited) / (BACKWARD * two["alone"])))
    return Fit(fit.latency, fit.bandwidth, staging, hidden, True, max(1.0, waited / whole))


def processes(n: int, quick: bool, folder: str) -> Times:
    """Return what n processes measure."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "benchmarks.scale",
        f"--folder={folder}",
        f"--size={n}",
    ]
    started = [
        subprocess.Popen([*command, f"--rank={rank}", *(["--quick"] if quick else [])])
        for rank in range(n)
    ]
    codes = [each.wait() for each in started]
    if any(codes):
        raise SystemExit(f"a process of {n} has failed")
    return json.loads(Path(folder, f"{n}.json").read_text())


def check(fit: Fit, found: dict[int, Times]) -> None:
    """Print what 1 and 2 processes tell of 4, beside what 4 take: nothing measured on 4 goes into it."""
    two, four = found[2], found[4]
    # Each process computes as before, on its part of the processors.
    alone = two["alone"] * fit.crowd(4) / fit.crowd(2)
    waited = waits("DDP", fit, two["size"], 4, alone)
    rows = [
        ("step without collectives", alone, four["alone"]),
        ("step", alone + waited, four["step"]),
        ("waited", waited, four["step"] - four["alone"]),
        *[
            (f"all-reduce of {size / 1e6:.2f} MB", fit.ring(size, 4), t)
            for size, t in four["rings"]
        ],
    ]
    print("\n| 4 processes | told by 1 and 2 (ms) | measured (ms) | error (%) |\n|---|---|---|---|")
    for name, told, measured in rows:
        print(
            f"| {name} | {1e3 * told:.2f} | {1e3 * measured:.2f} | {100 * (told / measured - 1):+.0f} |"
        )


def predict(fit: Fit, options: argparse.Namespace) -> None:
    """Print efficiencies."""
    size, step = int(options.parameters * 4), options.step
    hidden = fit.hidden if options.hidden is None else options.hidden
    staging = options.staging * 1e9 if options.staging else fit.staging
    print(
        f"\nEfficiency (%) with {options.parameters / 1e6:.0f} million parameters in float32 and a step of {step} s; "
        f"staging {staging / 1e9:.1f} GB/s, {100 * hidden:.0f} % of the backward pass hides what is sent\n"
    )
    print("| | Gbit/s |" + "".join(f" {n} |" for n in DEVICES))
    print("|---|---|" + "---|" * len(DEVICES))
    for way in ("DDP", "FSDP2", "DiLoCo"):
        for gbit in GBITS:
            link = Fit(NETWORK_LATENCY, gbit * 1.25e8, staging, hidden, False)
            parts = [step / (step + waits(way, link, size, n, step)) for n in DEVICES]
            print(f"| {way} | {gbit} |" + "".join(f" {100 * p:.1f} |" for p in parts))


def main() -> None:
    """Measure, fit, compare and predict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--parameters", type=float, default=124e6)
    parser.add_argument("--step", type=float, default=0.25, help="seconds of a step on one device")
    parser.add_argument(
        "--staging", type=float, default=0.0, help="GB/s; as measured here without it"
    )
    parser.add_argument(
        "--hidden", type=float, help="of the backward pass, 0 to 1; as measured here without it"
    )
    for name in ("folder", "size", "rank"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        measure(options.folder, int(options.rank), int(options.size), options.quick)
        return
    with tempfile.TemporaryDirectory() as folder:
        found = {n: processes(n, options.quick, folder) for n in MEASURED}
    fit = fitted(found[1], found[2])
    print(
        "| processes | sent a step (MB) | staging (ms) | step without collectives (ms) | step (ms) | waited (ms) |"
    )
    print("|---|---|---|---|---|---|")
    for n, row in found.items():
        times = [
            1e3 * v for v in (row["staging"], row["alone"], row["step"], row["step"] - row["alone"])
        ]
        print(f"| {n} | {row['sent'] / 1e6:.2f} |" + "".join(f" {t:.2f} |" for t in times))
    print(
        f"\nlatency {1e6 * fit.latency:.0f} us, bandwidth {fit.bandwidth / 1e9:.2f} GB/s for all, staging "
        f"{fit.staging / 1e9:.2f} GB/s, {100 * fit.hidden:.0f} % of the backward pass hides, "
        f"{fit.stretch:.1f} times as long within a step"
    )
    check(fit, found)
    predict(fit, options)


if __name__ == "__main__":
    main()
