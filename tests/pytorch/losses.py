"""What test_losses_of_ranks.py runs: models that several processes train, beside one process with the whole batch.

    python -m tests.pytorch.losses RANKS STEPS MODELS FOLDER

The first rank writes, by model and way, the largest relative distance of a step's loss as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

BATCH = 8


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the next hidden states."""
        rows, length, width = x.shape
        parts = self.query(self.norm(x)).view(rows, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, width))
        hidden: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.after(x))))
        return hidden


def _gpt() -> nn.Module:
    return nn.Sequential(nn.Embedding(16, 16), Block(16), Block(16), nn.Linear(16, 16))


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 16)
    )  # fmt: skip


def _embedding() -> nn.Module:
    return nn.Sequential(nn.EmbeddingBag(16, 16), nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))


MODELS: dict[str, Callable[[], nn.Module]] = {"gpt": _gpt, "cnn": _cnn, "embedding": _embedding}
# What tensor parallelism splits: by outputs, then by inputs.
SPLIT = {
    "gpt": ("1.up", "1.down", "2.up", "2.down"),
    "cnn": ("4", "6"),
    "embedding": ("1", "3"),
}
WAYS = ("ddp", "compiled before", "compiled after", "fsdp", "tensor parallel")


def _batch(kind: str, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(step)
    if kind == "cnn":
        x = torch.randn(BATCH, 1, 8, 8, generator=random)
    else:
        x = torch.randint(0, 16, (BATCH, 6), generator=random)
    shape = (BATCH, 6) if kind == "gpt" else (BATCH,)
    return x, torch.randint(0, 16, shape, generator=random)


def _wrapped(kind: str, way: str, model: nn.Module) -> nn.Module:
    if way == "fsdp":
        fully_shard: Any = importlib.import_module("torch.distributed.fsdp").fully_shard
        for layer in model.children():
            if next(layer.parameters(), None) is not None:
                fully_shard(layer)
        fully_shard(model)
        return model
    if way == "tensor parallel":
        parallel: Any = importlib.import_module("torch.distributed.tensor.parallel")
        ways = (parallel.ColwiseParallel, parallel.RowwiseParallel)
        plan = {name: ways[i % 2]() for i, name in enumerate(SPLIT[kind])}
        mesh = dist.init_device_mesh("webgpu", (dist.get_world_size(),))
        made: nn.Module = parallel.parallelize_module(model, mesh, plan)
        return made
    if way == "compiled before":
        model = torch.compile(model)  # type: ignore[assignment]
    wrapped: nn.Module = nn.parallel.DistributedDataParallel(model)
    return torch.compile(wrapped) if way == "compiled after" else wrapped  # type: ignore[return-value]


def _losses(kind: str, way: str, steps: int) -> torch.Tensor:
    """Return the losses of the whole batch."""
    torch.manual_seed(0)
    model, rank, size = MODELS[kind](), dist.get_rank(), dist.get_world_size()
    device = "cpu" if way == "alone" else "webgpu"
    model = model.to(device)
    run = model if way == "alone" else _wrapped(kind, way, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, foreach=False)
    share = BATCH // size
    mine = (
        slice(None) if way in ("alone", "tensor parallel") else slice(share * rank, share * rank + share)
    )  # fmt: skip
    found = []
    for step in range(steps):
        x, y = (t[mine].to(device) for t in _batch(kind, step))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(run(x).flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    losses = torch.stack(found).cpu()
    dist.all_reduce(losses)
    return losses / size


def run(rank: int, size: int, steps: int, kinds: list[str], folder: Path) -> None:
    """Train everything as one rank."""
    warnings.simplefilter("ignore")
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))
    dist.init_process_group(init_method=f"file://{folder}/store", rank=rank, world_size=size)
    found = {}
    for kind in kinds:
        alone = _losses(kind, "alone", steps)
        for way in WAYS:
            far = (_losses(kind, way, steps) - alone).abs() / alone
            found[f"{kind} {way}"] = float(far.max())
    if not rank:
        (folder / "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    # Nothing has opened the device yet.
    importlib.import_module("webtorch.pytorch.copying")
    count, many, kinds = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(",")
    torch.multiprocessing.start_processes(
        run, (count, many, kinds, Path(sys.argv[4])), nprocs=count, start_method="fork"
    )
