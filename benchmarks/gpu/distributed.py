"""DistributedDataParallel on "webgpu", a process a card: how much of a card's speed is left with several.

Each process trains ResNet-50 on its own batch of 64, and all average their gradients. The efficiency of N cards is
the time of a step on one card, alone, over the time of a step on each of N. Where PyTorch has CUDA, the same is
measured there with NCCL.

    python -m benchmarks.gpu.distributed [--quick] [--cards 1 2 4] [--models resnet gpt]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from benchmarks.gpu.networks import resnet
from benchmarks.harness import Row, show

_REACH = 0.9
# What a rank found, by name.
_Found: TypeAlias = dict[str, Any]


def _network(quick: bool) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return the network, a batch for this rank, and its labels."""
    torch.manual_seed(0)
    net = resnet((1, 1, 1, 1), 8) if quick else resnet()
    torch.manual_seed(1 + dist.get_rank())
    batch, side = (4, 32) if quick else (64, 224)
    return net, torch.randn(batch, 3, side, side), torch.randint(1000, (batch,))


def _wait(device: str) -> None:
    torch.get_device_module(device).synchronize()


def _times(step: Callable[[], object], device: str, turns: int, count: int) -> list[float]:
    """Return the seconds of one step, in each of some turns."""
    found = []
    for _ in range(turns):
        _wait(device)
        dist.barrier()
        started = time.perf_counter()
        for _ in range(count):
            step()
        _wait(device)
        found.append((time.perf_counter() - started) / count)
    return found


def _rank(device: str, quick: bool, out: Path) -> None:
    """Train on one card, beside the others, and let rank 0 write what it took."""
    local = int(os.environ["LOCAL_RANK"])
    torch.get_device_module(device).set_device(local)
    dist.init_process_group("nccl" if device == "cuda" else None)
    net, x, y = _network(quick)
    net, x, y = net.to(device), x.to(device), y.to(device)
    plain = net
    if dist.get_world_size() > 1:
        net = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    last: list[torch.Tensor] = []

    def step() -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        last[:] = [loss.detach()]

    for _ in range(2 if quick else 8):
        step()
    _wait(device)
    times = _times(step, device, 3 if quick else 6, 1 if quick else 4)
    gradients = [p.grad for p in plain.parameters() if p.grad is not None]
    size = sum(g.numel() * g.element_size() for g in gradients)
    found: _Found = {"times": times, "bytes": size, "loss": float(last[0])}
    if dist.get_world_size() > 1:
        flat = torch.ones(size // 4, device=device)
        found["alone"] = _times(lambda: dist.all_reduce(flat), device, 3, 1)
        started = time.perf_counter()
        host = flat.cpu()
        found["read"] = time.perf_counter() - started
        started = time.perf_counter()
        flat.copy_(host)
        _wait(device)
        found["write"] = time.perf_counter() - started
        if device != "cuda":
            found["gloo"] = []
            for _ in range(3):
                started = time.perf_counter()
                dist.all_reduce(host)
                found["gloo"].append(time.perf_counter() - started)
    if dist.get_rank() == 0:
        out.write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def _measure(device: str, cards: int, quick: bool) -> _Found:
    """Return what rank 0 of some processes found."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "found.json")
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={cards}"]
        command += ["--standalone", "-m", "benchmarks.gpu.distributed"]
        command += ["--rank", str(out), "--device", device, *(["--quick"] if quick else [])]
        subprocess.run(command, check=True)
        found: _Found = json.loads(out.read_text())
        return found


def main() -> None:
    """Measure, or be one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small network, few steps")
    parser.add_argument("--cards", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--device", nargs="+", default=["webgpu"], help="webgpu, cuda")
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        _rank(options.device[0], options.quick, options.rank)
        return
    rows = []
    for device in options.device:
        alone: _Found | None = None
        for cards in options.cards:
            found = _measure(device, cards, options.quick)
            alone = alone or found
            best, median = min(found["times"]), statistics.median(found["times"])
            more = ", ".join(
                f"{name} {1e3 * (min(v) if isinstance(v, list) else v):.1f} ms"
                for name, v in found.items()
                if name in ("alone", "read", "write", "gloo")
            )
            rows.append(
                Row(
                    f"{device}: ResNet-50 on {cards}",
                    min(alone["times"]),
                    statistics.median(alone["times"]),
                    best,
                    median,
                    _REACH if cards > 1 else None,
                    f"{found['bytes'] / 1e6:.0f} MB of gradients; {more}",
                )
            )
            print(rows[-1], flush=True)
    show(rows)


if __name__ == "__main__":
    main()
