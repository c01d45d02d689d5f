"""Models that several processes train, on either face: each step's loss beside one process with the whole batch.

    python -m tests.distributed.losses [--faces webtorch,torch] [--devices cpu,webgpu] [--ranks 2,4] [--steps 50]
        [--models gpt,cnn,embedding]

prints the table of docs/distributed.md: the largest relative distance of a step's loss, by model and way. "cpu" is
webtorch's CPU engine, on PyTorch's device "webgpu" too; on "webgpu" (a software adapter, as a rule) there are three
steps, unless --steps says how many.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

# PyTorch or webtorch, and what either makes.
Either: TypeAlias = Any
ROOT = Path(__file__).parents[2]
BATCH = 8


def _block(nn: Either, width: int) -> Either:
    """Return a layer of a transformer."""

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
            self.query, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Either) -> Either:
            """Return the next hidden states."""
            rows, length, _ = x.shape
            parts = self.query(self.norm(x)).view(rows, length, 3, 2, width // 2)
            seen = nn.functional.scaled_dot_product_attention(
                *parts.permute(2, 0, 3, 1, 4).unbind(0), is_causal=True
            )
            x = x + self.out(seen.transpose(1, 2).reshape(rows, length, width))
            return x + self.down(nn.functional.gelu(self.up(self.after(x))))

    return Block()


def _gpt(nn: Either) -> Either:
    return nn.Sequential(nn.Embedding(16, 16), _block(nn, 16), _block(nn, 16), nn.Linear(16, 16))


def _cnn(nn: Either) -> Either:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 16)
    )  # fmt: skip


def _embedding(nn: Either) -> Either:
    return nn.Sequential(nn.EmbeddingBag(16, 16), nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))


MODELS: dict[str, Callable[[Either], Either]] = {"gpt": _gpt, "cnn": _cnn, "embedding": _embedding}
# What tensor parallelism splits: by outputs, then by inputs.
SPLIT = {
    "gpt": ("1.up", "1.down", "2.up", "2.down"),
    "cnn": ("4", "6"),
    "embedding": ("1", "3"),
}
WAYS = ("ddp", "compiled before", "compiled after", "fsdp", "tensor parallel")


class _Rank:
    """One process of several."""

    def __init__(self, torch: Either, device: str) -> None:
        self.torch, self.device, self.dist = torch, device, torch.distributed
        self.rank, self.size = self.dist.get_rank(), self.dist.get_world_size()

    def _batch(self, kind: str, step: int) -> tuple[Either, Either]:
        torch, random = self.torch, self.torch.Generator().manual_seed(step)
        if kind == "cnn":
            x = torch.randn(BATCH, 1, 8, 8, generator=random)
        else:
            x = torch.randint(0, 16, (BATCH, 6), generator=random)
        shape = (BATCH, 6) if kind == "gpt" else (BATCH,)
        return x, torch.randint(0, 16, shape, generator=random)

    def _of(self, name: str) -> Either:
        return importlib.import_module(f"{self.torch.__name__}.{name}")

    def _wrapped(self, kind: str, way: str, model: Either) -> Either:
        torch = self.torch
        if way == "fsdp":
            fully_shard = self._of("distributed.fsdp").fully_shard
            for layer in model.children():
                if next(layer.parameters(), None) is not None:
                    fully_shard(layer)
            fully_shard(model)
            return model
        if way == "tensor parallel":
            parallel = self._of("distributed.tensor.parallel")
            ways = (parallel.ColwiseParallel, parallel.RowwiseParallel)
            plan = {name: ways[i % 2]() for i, name in enumerate(SPLIT[kind])}
            meshes = self._of("distributed.device_mesh")
            mesh = meshes.init_device_mesh(self.device, (self.size,))
            return parallel.parallelize_module(model, mesh, plan)
        if way == "compiled before":
            model = torch.compile(model)
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        return torch.compile(wrapped) if way == "compiled after" else wrapped

    def losses(self, kind: str, way: str, steps: int) -> Either:
        """Return the losses of the whole batch. "alone" is one process, on the CPU."""
        torch, functional = self.torch, self.torch.nn.functional
        torch.manual_seed(0)
        device = "cpu" if way == "alone" else self.device
        model = MODELS[kind](torch.nn).to(device)
        run = model if way == "alone" else self._wrapped(kind, way, model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, foreach=False)
        share = BATCH // self.size
        mine = slice(share * self.rank, share * self.rank + share)
        mine = slice(None) if way in ("alone", "tensor parallel") else mine
        found = []
        for step in range(steps):
            x, y = (t[mine].to(device) for t in self._batch(kind, step))
            optimizer.zero_grad()
            loss = functional.cross_entropy(run(x).flatten(0, -2), y.flatten())
            loss.backward()
            optimizer.step()
            found.append(loss.detach())
        losses = torch.stack(found).cpu()
        self.dist.all_reduce(losses)
        return losses / self.size


def _run(
    library: str, device: str, rank: int, size: int, steps: int, kinds: str, folder: str
) -> None:
    """Train everything as one rank; the first writes what it found."""
    warnings.simplefilter("ignore")
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))
    torch = importlib.import_module(library)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size
    )
    one = _Rank(torch, "webgpu" if library == "torch" else device)
    found = {}
    for kind in kinds.split(","):
        alone = one.losses(kind, "alone", steps)
        for way in WAYS:
            far = (one.losses(kind, way, steps) - alone).abs() / alone
            found[f"{kind} {way}"] = float(far.max())
    if not rank:
        Path(folder, "found.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


def farthest(
    library: str, device: str, ranks: int, steps: int, kinds: str, timeout: float
) -> dict[str, float]:
    """Return by model and way how far the losses of so many processes are from those of one."""
    environment = dict(os.environ)
    environment.pop("WEBTORCH_PYTORCH_ENGINE", None)
    if device == "cpu":
        environment["WEBTORCH_PYTORCH_ENGINE"] = "cpu"
    with tempfile.TemporaryDirectory() as folder:
        rest = [str(ranks), str(steps), kinds, folder]
        command = [sys.executable, "-m", "tests.distributed.losses", "--rank", library, device]
        started = [
            subprocess.Popen(
                [*command, str(rank), *rest], cwd=ROOT, env=environment, stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]  # fmt: skip
        try:
            said = [process.communicate(timeout=timeout)[1] for process in started]
        finally:
            for process in started:
                process.kill()
        assert not any(process.returncode for process in started), "".join(said)[-3000:]
        found: dict[str, float] = json.loads(Path(folder, "found.json").read_text())
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, usual in (("faces", "webtorch,torch"), ("devices", "cpu,webgpu"), ("ranks", "2,4"),
                        ("models", ",".join(MODELS))):  # fmt: skip
        parser.add_argument(f"--{name}", default=usual)
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    print("| face, device, processes, steps | model |", " | ".join(WAYS), "|")
    print("|---|---|" + "---|" * len(WAYS), flush=True)
    for device in options.devices.split(","):
        for library in options.faces.split(","):
            for ranks in map(int, options.ranks.split(",")):
                steps = options.steps or (50 if device == "cpu" else 3)
                found = farthest(library, device, ranks, steps, options.models, 3600)
                for kind in options.models.split(","):
                    cells = [f"{found[f'{kind} {way}']:.1e}" for way in WAYS]
                    row = f"{library}, {device}, {ranks}, {steps} | {kind}"
                    print(f"| {row} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    if "--rank" in sys.argv:
        library, device, rank, size, steps, kinds, folder = sys.argv[2:]
        _run(library, device, int(rank), int(size), int(steps), kinds, folder)
    else:
        main()
