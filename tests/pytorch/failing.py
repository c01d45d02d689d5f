"""What test_failing_ranks.py runs: ranks that are killed, hang, or find no room for their checkpoint.

torchrun --nproc-per-node=2 --max-restarts=1 -m tests.pytorch.failing killed FOLDER
python -m tests.pytorch.failing dies FOLDER
python -m tests.pytorch.failing hangs FOLDER
python -m tests.pytorch.failing kept FOLDER
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.patience import PATIENCE
from webtorch.distributed import shared
from webtorch.pytorch.distributed import _lanes

STEPS = 6
# How a rank is lost; "shared": where gradients go through memory that processes share.
LOST = ("dies", "dies, shared", "hangs, shared")


def _net(width: int = 8) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 2))


def _batch(step: int, rank: int) -> torch.Tensor:
    return torch.randn(3, 8, generator=torch.Generator().manual_seed(10 * step + rank))


def alone() -> list[float]:
    """Return the weights that one process with the whole batch ends with."""
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.cat([_batch(step, 0), _batch(step, 1)])).square().mean().backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).tolist()


def _killed(folder: Path) -> None:
    """Train with a checkpoint each step; rank 1 is killed in a backward pass of its first life."""
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    dist.init_process_group(timeout=timedelta(seconds=PATIENCE))
    rank, kept = dist.get_rank(), folder / "kept.pt"
    model = _net().to("webgpu")
    optimizer, begin = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), 0
    if kept.exists():
        state = torch.load(kept, map_location="webgpu")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begin = state["step"]
    wrapped = nn.parallel.DistributedDataParallel(model)
    for step in range(begin, STEPS):
        optimizer.zero_grad()
        out = wrapped(_batch(step, rank).to("webgpu"))
        if first and step == 3 and rank:
            out.register_hook(lambda gradient: os.kill(os.getpid(), signal.SIGKILL))
        out.square().mean().backward()
        optimizer.step()
        if not rank:
            torch.save(
                {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "step": step + 1,
                },
                folder / "new.pt",
            )
            (folder / "new.pt").rename(kept)
        # The other rank would be killed before this one has saved.
        dist.barrier()
    if not rank:
        weights = nn.utils.parameters_to_vector(model.parameters()).tolist()
        (folder / "found").write_text(json.dumps({"begin": begin, "weights": weights}))
    dist.destroy_process_group()


def _start(rank: int, size: int, folder: Path, name: str, seconds: float) -> None:
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))
    method = f"file://{folder}/{name}"
    dist.init_process_group(
        init_method=method, rank=rank, world_size=size, timeout=timedelta(seconds=seconds)
    )


def _lost(rank: int, folder: Path, dies: bool) -> None:
    """Wait for the gradients of a backward pass for a rank that dies, or hangs, in its own."""
    if folder.name.endswith("shared"):
        shared.LEAST = 4
    _start(rank, 2, folder, "store", PATIENCE)
    wrapped = nn.parallel.DistributedDataParallel(_net().to("webgpu"))
    for step in range(2):
        out = wrapped(_batch(step, rank).to("webgpu"))
        if step and rank:
            out.register_hook(lambda gradient: _stop(folder, dies))
        if step and not dies:
            # One that is dead is missed long before the timeout, one that hangs only then. The first step may take
            # longer than this.
            for lane in _lanes.values():
                lane.shared._timeout = 1.5
        start, message = time.monotonic(), ""
        try:
            out.square().mean().backward()
            # As with CUDA, what reads a sum waits for it.
            next(wrapped.parameters()).grad.sum().item()
        except RuntimeError as error:
            message = str(error)
    seconds, sent = time.monotonic() - start, ""
    if dies:
        try:
            dist.send(torch.ones(2, 3).to("webgpu"), 1)
        except RuntimeError as error:
            sent = str(error)
    found = {"message": message, "seconds": seconds, "sent": sent}
    (folder / "new").write_text(json.dumps(found))
    (folder / "new").rename(folder / "0.json")
    os._exit(0)


def _stop(folder: Path, dies: bool) -> None:
    while not dies and not (folder / "0.json").exists():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)


def _sharded() -> tuple[nn.Module, dict[str, Any]]:
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    model = _net(64).to("webgpu")
    fully_shard(model)
    return model, get_model_state_dict(model)


def _kept(rank: int, folder: Path) -> None:
    """Save on four ranks, where one then finds the disk full, and load on two."""
    import torch.distributed.checkpoint as files

    _start(rank, 4, folder, "four", PATIENCE)
    model, state = _sharded()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2.0)
    files.save(state, checkpoint_id=folder / "kept")
    if rank == 3:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    message = ""
    try:
        files.save(state, checkpoint_id=folder / "full")
    except BaseException as error:
        message = str(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    dist.destroy_process_group()
    far = -1.0
    if rank < 2:
        _start(rank, 2, folder, "two", PATIENCE)
        model, state = _sharded()
        files.load(state, checkpoint_id=folder / "kept")
        pairs = zip(model.parameters(), _net(64).parameters(), strict=True)
        whole: list[Any] = [(a.detach(), b.detach()) for a, b in pairs]
        far = max(float((a.full_tensor().cpu() - 2 * b).abs().max()) for a, b in whole)
        dist.destroy_process_group()
    (folder / f"{rank}.json").write_text(json.dumps({"message": message, "far": far}))


def _ranks(count: int, run: Any, *args: Any) -> None:
    # Nothing has opened the device yet.
    context = torch.multiprocessing.get_context("fork")
    ranks = [context.Process(target=run, args=(rank, *args)) for rank in range(count)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()


def _all(folder: Path) -> None:
    # What each rank would import by itself.
    for name in ("webtorch.pytorch.copying", "torch.distributed.fsdp"):
        importlib.import_module(name)
    for name in (*LOST, "kept"):
        (folder / name).mkdir()
    for name in LOST:
        _ranks(2, _lost, folder / name, name.startswith("dies"))
    _ranks(4, _kept, folder / "kept")


if __name__ == "__main__":
    {"killed": _killed, "all": _all}[sys.argv[1]](Path(sys.argv[2]))
