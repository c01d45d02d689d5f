"""What test_distributed.py runs in two processes, on either library: a program of PyTorch's.

    python -m tests.distributed.ranks FOLDER webtorch cpu 0

Each rank writes what it found into the folder as JSON, by name.
"""

from __future__ import annotations

import datetime
import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.distributed import features, models
from tests.patience import PATIENCE

RANKS = 2
DTYPES = ("float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "complex64")


class Program:
    """The collectives of one library on one device."""

    def __init__(self, torch: Any, device: str) -> None:
        self.torch, self.dist, self.device = torch, torch.distributed, device
        self.rank = self.dist.get_rank()

    def arange(self, n: int, dtype: str = "float32") -> Any:
        """Return numbers that differ by rank."""
        x = self.torch.arange(n) + 1 + self.rank
        return x.to(getattr(self.torch, dtype)).to(self.device)

    def values(self, x: Any) -> Any:
        """Return a tensor's values as JSON knows them."""
        return repr(x.tolist())

    def reductions(self) -> Any:
        """all_reduce of each type, and of each kind."""
        found = {}
        for dtype in DTYPES:
            x = self.arange(3, dtype)
            self.dist.all_reduce(x)
            found[dtype] = self.values(x)
        for op in ("SUM", "PRODUCT", "MIN", "MAX"):
            x = self.arange(3)
            self.dist.all_reduce(x, op=getattr(self.dist.ReduceOp, op))
            found[op] = self.values(x)
        y = self.arange(2, "int64")
        self.dist.reduce(y, 1, op=self.dist.ReduceOp.MAX)
        found["reduce"] = self.values(y) if self.rank else ""
        return found

    def works(self) -> Any:
        """A view that is reduced while its base is used, views in another order, futures."""
        x = self.torch.arange(4.0, device=self.device)
        work = self.dist.all_reduce(x[1:3], async_op=True)
        work.wait()
        y = self.torch.arange(6.0, device=self.device).reshape(2, 3).t()
        future = self.dist.all_reduce(y, async_op=True).get_future()
        summed = future.then(lambda f: f.value()[0].sum()).wait()
        return [self.values(x), work.is_completed(), self.values(y), self.values(summed)]

    def gathers(self) -> Any:
        """all_gather, gather, scatter and broadcast."""
        zeros, x = lambda n=2: self.torch.zeros(n, device=self.device), self.arange(2)
        lists = [zeros() for _ in range(RANKS)]
        self.dist.all_gather(lists, x)
        whole = zeros(4)
        self.dist.all_gather_into_tensor(whole, x)
        rooted = [zeros() for _ in range(RANKS)] if self.rank else None
        self.dist.gather(x + 1, rooted, dst=1)
        part = zeros()
        self.dist.scatter(part, None if self.rank else [x, x + 0.5])
        sent = (
            self.arange(2, "bool")
            if self.rank
            else self.torch.zeros(2, dtype=self.torch.bool).to(self.device)
        )
        self.dist.broadcast(sent, 1)
        return [self.values(t) for t in (*lists, whole, *(rooted or []), part, sent)]

    def scatters(self) -> Any:
        """reduce_scatter and all_to_all."""
        zeros = functools.partial(self.torch.zeros, device=self.device)
        part, other = zeros(2), zeros(2)
        self.dist.reduce_scatter_tensor(part, self.arange(4))
        self.dist.reduce_scatter(other, [self.arange(2), self.arange(2) * 3])
        out = [zeros(2) for _ in range(RANKS)]
        self.dist.all_to_all(out, [self.arange(2) * 10, self.arange(2) * 100])
        whole, sizes = zeros(3, 2), [2, 1] if self.rank else [1, 2]
        self.dist.all_to_all_single(whole, zeros(3, 2) + self.rank, sizes, sizes)
        return [self.values(t) for t in (part, other, *out, whole)]

    def messages(self) -> Any:
        """send, recv from any, and both at once."""
        x, z = self.arange(2), self.torch.zeros(2, device=self.device)
        if self.rank:
            source = self.dist.recv(z)
            self.dist.send(z * 2, 0)
        else:
            self.dist.send(x + 7, 1)
            source = self.dist.recv(z, 1)
        y = self.torch.zeros(2, device=self.device)
        other = 1 - self.rank
        both = [
            self.dist.P2POp(self.dist.isend, x, other),
            self.dist.P2POp(self.dist.irecv, y, other),
        ]
        for work in self.dist.batch_isend_irecv(both):
            work.wait()
        return [self.values(z), source, self.values(y)]

    def objects(self) -> Any:
        """Objects, groups and barriers."""
        d, found = self.dist, [None] * RANKS
        d.all_gather_object(found, {"rank": self.rank})
        sent: list[Any] = ["a", (1, 2)] if self.rank else [None, None]
        d.broadcast_object_list(sent, 1)
        got: list[Any] = [None]
        d.scatter_object_list(got, None if self.rank else ["for 0", "for 1"])
        gathered = [None] * RANKS if self.rank == 0 else None
        d.gather_object(self.rank, gathered)
        alone = d.new_group([0])
        x = self.torch.ones(2, device=self.device)
        if self.rank == 0:
            d.all_reduce(x, group=alone)
        d.barrier()
        d.monitored_barrier(timeout=datetime.timedelta(seconds=PATIENCE))
        return [found, sent, got, gathered, self.values(x), d.get_rank(alone), d.get_world_size(alone),
                d.get_process_group_ranks(d.group.WORLD), d.get_backend()]  # fmt: skip

    def errors(self) -> Any:
        """Calls that are refused."""
        d, x = self.dist, self.torch.ones(2, device=self.device)
        calls: dict[str, Callable[[], object]] = {
            "tensor": lambda: d.all_reduce(3),
            "list": lambda: d.all_gather([1], x),
            "type": lambda: d.all_gather([x.int()], x),
            "twice": lambda: d.init_process_group("gloo"),
            "p2p": lambda: d.P2POp(d.all_reduce, x, 0),
            "ranks": lambda: d.new_group([0, 5]),
            "gather": lambda: d.gather(x, [x, x], dst=1 - self.rank),
        }
        found = {}
        for name, call in calls.items():
            try:
                call()
                found[name] = "taken"
            except Exception as error:
                found[name] = f"{type(error).__name__}: {str(error).replace('webtorch', 'torch')}"
        return found


NAMES = ("reductions", "works", "gathers", "scatters", "messages", "objects", "errors")


def main(folder: str, library: str, device: str, rank: str, *rest: str) -> None:
    """Run as one rank."""
    if library == "webtorch":
        import webtorch as torch
    else:
        import torch
    dist: Any = torch.distributed
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=int(rank),
        world_size=int(rest[0]) if rest else RANKS,
    )
    found = {}
    if not rest:
        program = Program(torch, device)
        for name in NAMES:
            found[name] = getattr(program, name)()
        if library == "webtorch":
            from webtorch.distributed import shared

            # From here on through memory that the processes share, as small as tensors are.
            shared.LEAST = 4
            for name in NAMES:
                found[f"{name}, shared"] = getattr(program, name)()
            found["calls"] = dist.group.WORLD.lane().shared._number
    if device == "cpu" and not rest:
        found |= {name: train(torch) for name, train in features.FEATURES.items()}
        if library == "webtorch":
            found["mixed"] = features.mixed(torch)
    steps = int(rest[1]) if rest else 4 if device == "cpu" else 2
    for name in models.MODELS if library == "webtorch" else ():
        found[name] = models.train(torch, name, device, steps)
    for kind in models.KINDS if (library, device) == ("webtorch", "cpu") and not rest else ():
        found[kind] = models.train(torch, "small", device, 3, kind)
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
