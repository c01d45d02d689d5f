"""Training steps of webtorch and of PyTorch from the same weights, on the same batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.models import Array, Work

# A step: takes a batch that is on the device, returns the loss, a tensor.
Step = Callable[[Any, Any], Any]


def make_step(torch: Any, model: Any, optimizer: Any, kind: str = "", dtype: Any = None) -> Step:
    """Return a step of Adam on cross entropy; with a dtype, under autocast on devices of `kind`."""
    functional = torch.nn.functional

    def loss_of(x: Any, y: Any) -> Any:
        return functional.cross_entropy(model(x), y)

    def step(x: Any, y: Any) -> Any:
        if dtype is None:
            loss = loss_of(x, y)
        else:
            with torch.autocast(kind, dtype=dtype):
                loss = loss_of(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def initial_weights(work: Work, seed: int = 0) -> dict[str, Array]:
    """Return the weights that both sides start from, drawn by PyTorch on the CPU."""
    import torch

    torch.manual_seed(seed)
    return {k: v.detach().numpy().copy() for k, v in work.build(torch).state_dict().items()}


def torch_step(work: Work, weights: dict[str, Array], device: str, autocast: Any = None) -> Step:
    """Return PyTorch's step. On CUDA: fused Adam."""
    import torch

    model = work.build(torch)
    model.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in weights.items()})
    model = model.to(device)
    on_cuda = device.startswith("cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=work.lr, fused=True if on_cuda else None)
    return make_step(torch, model, optimizer, device.partition(":")[0], autocast)


def our_step(
    work: Work, weights: dict[str, Array], device: str, compiled: bool, autocast: Any = None
) -> Step:
    """Return webtorch's step, lazy or compiled as a whole; with a dtype, under autocast."""
    import webtorch

    with webtorch.device(device):
        model = work.build(webtorch)
        model.load_state_dict({k: webtorch.tensor(v, device=device) for k, v in weights.items()})
    optimizer = webtorch.optim.Adam(model.parameters(), lr=work.lr)
    step = make_step(webtorch, model, optimizer, device.partition(":")[0], autocast)
    return webtorch.compile(step) if compiled else step


def batches(work: Work, count: int, seed: int = 1) -> list[tuple[Array, Array]]:
    """Return `count` batches."""
    rng = np.random.default_rng(seed)
    return [work.batch(rng) for _ in range(count)]


def to_torch(data: list[tuple[Array, Array]], device: str) -> list[tuple[Any, Any]]:
    """Return batches as PyTorch's tensors."""
    import torch

    return [(torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)) for x, y in data]


def to_ours(data: list[tuple[Array, Array]], device: str) -> list[tuple[Any, Any]]:
    """Return batches as webtorch's tensors."""
    import webtorch

    return [(webtorch.tensor(x, device=device), webtorch.tensor(y, device=device)) for x, y in data]


def losses(step: Step, data: list[tuple[Any, Any]]) -> list[float]:
    """Return the losses of a step on each batch in turn."""
    return [float(step(x, y).item()) for x, y in data]


def furthest(ours: list[float], theirs: list[float]) -> float:
    """Return the largest relative difference of two runs' losses; NaN if one has a NaN."""
    a, b = np.asarray(ours), np.asarray(theirs)
    return float(np.max(np.abs(a - b) / np.abs(b)))
