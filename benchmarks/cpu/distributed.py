"""Two processes on the CPU engine: what staging costs, and how well a step's collectives overlap what is computed.

    python -m benchmarks.cpu.distributed [--quick]

Tensors are of real PyTorch's device "webgpu"; each process computes with one thread. Measured are

* an all-reduce of a tensor on the device, beside the time that its bytes take: a copy to the host's memory, Gloo's
  all-reduce there (whole or in parts that travel side by side, whichever is faster), and a copy back;
* a step of a GPT with DistributedDataParallel, beside the longer of computing (the step without collectives) and
  communicating (the same buckets' all-reduces, with nothing else to do), as the machine is, and over a link so slow
  that communicating takes half as long as computing: there a process waits for what is sent, where otherwise it moves
  it itself, on the processor that computes.

All take turns, and the fastest turn counts; of processor time (of both processes together) too.
"""

import copy
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from benchmarks.harness import Row
from benchmarks.harness import main as run_script
from benchmarks.models import characters, gpt

# What each way took, wall and processor's, by turns.
Times: TypeAlias = dict[str, list[tuple[float, float]]]
BUCKET_MB = 4


def alternate(ways: Mapping[str, Callable[[], object]], turns: int) -> Times:
    """Return what each way takes, which all processes run at once, turn by turn."""
    found: Times = {name: [] for name in ways}
    for turn in range(-2, turns):
        for name, run in ways.items():
            dist.barrier()
            start, used = time.perf_counter(), time.process_time()
            run()
            torch.webgpu.synchronize()
            dist.barrier()
            took = time.perf_counter() - start, time.process_time() - used
            if turn >= 0:
                found[name].append(took)
    return found


class Link:
    """A hook of DistributedDataParallel: the mean of gradients, no sooner than a link of that speed could bring it."""

    def __init__(self) -> None:
        self.seconds_a_byte, self._free, self._lock = 0.0, 0.0, threading.Lock()

    def hook(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Return a future of a bucket's mean."""
        coming: torch.futures.Future[torch.Tensor] = self.mean(bucket.buffer()).then(
            lambda found: found.value()[0]
        )
        return coming

    def mean(self, x: torch.Tensor) -> Any:
        """Return a future of the mean of a tensor, in a list."""
        with self._lock:
            # One after the other.
            self._free = max(self._free, time.perf_counter())
            self._free += x.numel() * x.element_size() * self.seconds_a_byte
            end = self._free
        coming = dist.all_reduce(x.div_(dist.get_world_size()), async_op=True).get_future()

        def arrive(found: Any) -> Any:
            time.sleep(max(0.0, end - time.perf_counter()))
            return found.value()

        return coming.then(arrive)


def staging(quick: bool) -> Times:
    """Return what an all-reduce on the device takes, and its bytes."""
    count, turns = (1 << 18, 3) if quick else (1 << 24, 12)
    there, here, other = torch.ones(count, device="webgpu"), torch.ones(count), torch.ones(count)

    def parts() -> None:
        for work in [dist.all_reduce(part, async_op=True) for part in here.chunk(8)]:
            work.wait()

    return alternate(
        {
            "device": lambda: dist.all_reduce(there),
            "copy": lambda: np.copyto(other.numpy(), here.numpy()),
            "whole": lambda: dist.all_reduce(here),
            "parts": parts,
        },
        turns,
    )


def steps(quick: bool) -> Times:
    """Return what a step takes with and without collectives, and these alone."""
    layers, width, length, batch, turns = (2, 32, 16, 2, 3) if quick else (4, 256, 128, 8, 10)
    torch.manual_seed(0)
    net = gpt(torch, layers, width, 4, length, 96).to("webgpu")
    link = Link()
    model, linked = (
        nn.parallel.DistributedDataParallel(
            copy.deepcopy(net), bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True
        )
        for _ in range(2)
    )
    linked.register_comm_hook(None, link.hook)
    made = characters(batch, length, 96)(np.random.default_rng(dist.get_rank()))
    x, y = (torch.from_numpy(part).to("webgpu") for part in made)
    optimizers = {of: torch.optim.SGD(of.parameters(), 1e-3) for of in (net, model, linked)}

    def step(of: nn.Module) -> None:
        nn.functional.cross_entropy(of(x), y).backward()
        optimizers[of].step()
        optimizers[of].zero_grad()

    size = sum(p.numel() for p in net.parameters())
    cap = BUCKET_MB * 2**18
    buckets = [torch.zeros(min(cap, size - i), device="webgpu") for i in range(0, size, cap)]

    def send(slow: bool) -> None:
        coming = [
            link.mean(b) if slow else dist.all_reduce(b, async_op=True).get_future()
            for b in buckets
        ]
        for each in coming:
            each.wait()

    plain = {
        "step": lambda: step(model),
        "compute": lambda: step(net),
        "send": lambda: send(slow=False),
    }
    found = alternate(plain, turns)
    # All ranks have the same link.
    half = torch.tensor(min(found["compute"])[0] / 2 / (4 * size))
    dist.broadcast(half, 0)
    link.seconds_a_byte = float(half)
    slow = {
        "step": lambda: step(linked),
        "compute": lambda: step(net),
        "send": lambda: send(slow=True),
    }
    return found | {f"linked {name}": took for name, took in alternate(slow, turns).items()}


def work(folder: Path, rank: int, quick: bool) -> None:
    """Measure as one of two processes."""
    torch.set_num_threads(1)
    dist.init_process_group(init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found = staging(quick) | {f"GPT {name}": took for name, took in steps(quick).items()}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def row(name: str, ours: list[float], bound: list[float], reach: float | None, note: str) -> Row:
    """Return a row of the fastest turns and of the medians."""
    return Row(
        name, min(ours), float(np.median(ours)), min(bound), float(np.median(bound)), reach, note
    )


def measure(quick: bool = False) -> list[Row]:
    """Return the rows: ours, and what it is compared with."""
    settings = {
        "WEBTORCH_PYTORCH_ENGINE": "cpu",
        "OMP_NUM_THREADS": "1",
        "WEBTORCH_NUM_THREADS": "1",
    }
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.cpu.distributed", "--rank"]
    with tempfile.TemporaryDirectory() as folder:
        started = [
            subprocess.Popen([*command, folder, str(int(quick)), rank], env=os.environ | settings)
            for rank in "01"
        ]
        codes = [each.wait() for each in started]
        if any(codes):
            raise SystemExit("a process has failed")
        both = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in (0, 1)]
    # Wall of the first (both wait for each other), processor's of both.
    wall = {name: np.array(took)[:, 0] for name, took in both[0].items()}
    used = {name: sum(np.array(each[name])[:, 1] for each in both) for name in both[0]}
    rows = []
    for what, took in (("", wall), (", processor's time", used)):
        gloo = min(took["whole"], took["parts"], key=lambda t: min(t))
        rows.append(
            row(f"all-reduce{what}", [*took["device"]], [*(2 * took["copy"] + gloo)],
                None if what else 1.3, "beside two copies and Gloo's")
        )  # fmt: skip
        for link, how in (("", "the machine as it is"), ("linked ", "over a slow link")):
            compute, send = took[f"GPT {link}compute"], took[f"GPT {link}send"]
            bound = compute + send if what else max(compute, send, key=lambda t: min(t))
            rows.append(
                row(f"GPT step, {how}{what}", [*took[f"GPT {link}step"]], [*bound],
                    None if what else 1.15,
                    f"computing {1e3 * min(compute):.1f} ms, communicating {1e3 * min(send):.1f}; beside "
                    + ("both" if what else "the longer"))
            )  # fmt: skip
    return rows


if __name__ == "__main__":
    if "--rank" in sys.argv:
        work(Path(sys.argv[2]), int(sys.argv[4]), sys.argv[3] == "1")
    else:
        run_script(__doc__ or "", measure)
