"""An eager training step of PyTorch, on "webgpu" or on CUDA, in a process of its own.

PyTorch's autograd knows one kind of GPU a process: once "webgpu" is registered, a backward on CUDA stops with an
internal error. So each side has its process. Prints one line of JSON.

    python -m benchmarks.gpu.training_step gpt-foreach|gpt-fused|resnet DEVICE [--quick]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.gpu.device import enqueued, peer_device, wait
from benchmarks.gpu.networks import resnet
from benchmarks.models import work
from benchmarks.training import batches, initial_weights, losses, to_torch

KINDS = ("gpt-foreach", "gpt-fused", "resnet")
Optimizer = Callable[[Any], torch.optim.Optimizer]


def _gpt(quick: bool, option: str) -> tuple[str, nn.Module, Optimizer, list[tuple[Any, Any]]]:
    job = work("gpt", quick)
    model = job.build(torch)
    model.load_state_dict({k: torch.from_numpy(v) for k, v in initial_weights(job).items()})
    choice: dict[str, Any] = {option: True}
    return (
        f"{job.name}, training step, AdamW ({option})",
        model,
        lambda p: torch.optim.AdamW(p, lr=job.lr, **choice),
        batches(job, 3),
    )


def _resnet(quick: bool) -> tuple[str, nn.Module, Optimizer, list[tuple[Any, Any]]]:
    torch.manual_seed(0)
    batch, side = (2, 32) if quick else (32, 224)
    model = resnet((1, 1), 8) if quick else resnet()
    data = (torch.randn(batch, 3, side, side).numpy(), torch.randint(0, 1000, (batch,)).numpy())
    return (
        f"ResNet-50, training step, batch {batch}, SGD with momentum",
        model,
        lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
        [data] * 2,
    )


def measure(kind: str, device: str, quick: bool) -> dict[str, Any]:
    """Return the name, losses and times in seconds of steps on a device: `first`, `fastest`, `median`, and what
    one step takes of the calling thread's processor time, `thread`.
    """
    option = kind.rpartition("-")[2]
    name, model, optimizer, data = _resnet(quick) if kind == "resnet" else _gpt(quick, option)
    model.to(device)
    stepper = optimizer(model.parameters())

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        stepper.zero_grad()
        loss.backward()
        stepper.step()
        return loss.detach()

    given = to_torch(data, device)
    started = time.perf_counter()
    found = losses(step, given[:1])
    first = time.perf_counter() - started
    found += losses(step, given[1:])
    fastest, median = enqueued(lambda: step(*given[0]), 0.02 if quick else 0.5)
    thread = time.thread_time()
    for _ in range(5):
        step(*given[0])
    thread = (time.thread_time() - thread) / 5
    wait()
    return {
        "name": name, "losses": found, "first": first, "fastest": fastest, "median": median,
        "thread": thread,
    }  # fmt: skip


def measure_apart(kind: str, device: str, quick: bool) -> dict[str, Any]:
    """Return what `measure` does, of a process of its own. Raises CalledProcessError with its output."""
    command = [sys.executable, "-m", "benchmarks.gpu.training_step", kind, device]
    known = {} if device == "webgpu" else {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(
        command + ["--quick"] * quick,
        env={**os.environ, **known},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure one side."""
    kind, device = sys.argv[1:3]
    peer_device()
    if device == "webgpu":
        import webtorch.pytorch  # noqa: F401  (registers the device)
    print(json.dumps(measure(kind, device, "--quick" in sys.argv)))


if __name__ == "__main__":
    main()
