"""Steps with collectives, compiled and as they are: what test_compiled.py runs in several processes.

    python -m tests.distributed.compiled FOLDER 2 0

Each rank writes what it found into the folder as JSON, by name.
"""

from __future__ import annotations

import datetime
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import webtorch as torch
import webtorch.distributed as dist
from webtorch.distributed.group import Sending
from webtorch.nn import functional as F

STEPS, FEW = 30, 7
_SHORT = datetime.timedelta(seconds=3)


def _parts(step: Any) -> list[int]:
    """Return how many captures there are, and of the latest how many programs and collectives."""
    made = sum([not c.ran_as_usual for c in step.compilations])
    if not made:
        return [0, 0, 0]
    calls = step.latest().calls
    return [made, len(step.programs()), sum([isinstance(c, Sending) for c in calls])]


def _data(step: int, rows: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    rank = dist.get_rank()
    x = torch.sin(torch.arange(rows * 6) * 1.3 + 7 * step + rank).reshape(rows, 6)
    return x, (torch.arange(rows) * (step + 1) + rank) % 3


def _model(**options: Any) -> Any:
    torch.manual_seed(0)
    nn = torch.nn
    model = nn.Sequential(
        nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3)
    )
    return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1e-4, **options)


class Trainer:
    """A model, its optimizer and schedule, and steps of them."""

    def __init__(self, **options: Any) -> None:
        self.model = _model(**options)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.02, eps=1e-3)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.97)
        self.average = [p.detach().clone() for p in self.model.parameters()]

    def finish(self) -> None:
        """Clip, step, and average parameters."""
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        with torch.no_grad():
            for mean, p in zip(self.average, self.model.parameters(), strict=True):
                mean.lerp_(p, 0.1)

    def plain(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Take one step, and give the loss of all processes."""
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.finish()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        return mean

    def accumulated(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Take one step on halves of a batch."""
        self.optimizer.zero_grad()
        half = len(x) // 2
        with self.model.no_sync():
            (F.cross_entropy(self.model(x[:half]), y[:half]) / 2).backward()
        loss = F.cross_entropy(self.model(x[half:]), y[half:]) / 2
        loss.backward()
        self.finish()
        return loss

    def lower(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Take one step under autocast."""
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.plain(x, y)

    def backward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Take no step: only gradients."""
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


def _shown() -> list[str]:
    """Return what a function that is cut at two sums says of itself."""

    def summed(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum up twice."""
        y = x * 2
        dist.all_reduce(y)
        z = y + x
        dist.all_reduce(z)
        return z * 3, y

    step = torch.compile(summed)
    for _ in range(2):
        step(torch.ones(3))
    steps = [line.split()[1] for line in str(step.explain()).splitlines()[4:9]]
    return [str(step.program()), " ".join(steps), str(step.memory_plan()).splitlines()[0]]


def _trained(
    compiled: bool,
    kind: str,
    between: Callable[[Trainer, int], None] | None = None,
    sizes: tuple[int, ...] = (8,),
    steps: int = FEW,
    **options: Any,
) -> tuple[list[float], list[int]]:
    trainer = Trainer(**options)
    step: Any = getattr(trainer, kind)
    if compiled:
        step = torch.compile(step)
    torch.manual_seed(3 + dist.get_rank())
    losses = []
    for i in range(steps):
        losses.append(step(*_data(i, sizes[i % len(sizes)])).item())
        if between is not None:
            between(trainer, i)
    losses += [float(p.sum()) for p in (*trainer.model.parameters(), *trainer.average)]
    losses += [float(b.sum()) for b in trainer.model.buffers()]
    return losses, _parts(step) if compiled else []


def _written(trainer: Trainer, step: int) -> None:
    with torch.no_grad():
        for p in trainer.model.parameters():
            p.mul_(0.99)
    if step == 5:
        trainer.model.module[0].weight.data = trainer.model.module[0].weight.data * 0.9


def _outside(trainer: Trainer, step: int) -> None:
    if step % 3 == 2:
        trainer.finish()
        trainer.optimizer.zero_grad()
    trainer.model.require_backward_grad_sync = step % 3 == 1


def _step(model: Any, optimizer: Any, compiled: bool) -> Any:
    """Return what takes one step."""

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Take one step."""
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return torch.compile(step) if compiled else step


class Partly(torch.nn.Module):
    """A model with a layer that nobody uses, and one that the first process uses alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 3), torch.nn.Linear(6, 3)
        self.never = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Use what this process uses."""
        y = self.first(x)
        return y + self.second(x) if dist.get_rank() == 0 else y


def _partly(compiled: bool, **options: Any) -> tuple[list[float], list[int]]:
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(Partly(), bucket_cap_mb=1e-4, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)

    chosen = _step(model, optimizer, compiled)
    losses = [chosen(*_data(i)).item() for i in range(FEW)]
    assert model.module.never.weight.grad is None
    losses += [float(p.sum()) for p in model.parameters()]
    return losses, _parts(chosen) if compiled else []


def _each(x: torch.Tensor) -> list[torch.Tensor]:
    """Call every collective, and compute with what comes."""
    size, rank = dist.get_world_size(), dist.get_rank()
    following, before = (rank + 1) % size, (rank - 1) % size
    found = []
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX):
        y = x * 2
        dist.all_reduce(y, op=op)
        found.append(y + 1)
    z = x + 0
    work = dist.all_reduce(z[1:3], async_op=True)
    other = x.exp()
    assert work is not None
    work.wait()
    dist.all_reduce(z.reshape(2, 2).t())
    pairs = torch.complex(x, x * 3)
    dist.all_reduce(pairs)
    sent = x * 3 if rank == 0 else torch.zeros(4)
    dist.broadcast(sent, 0)
    rooted = x * 5
    dist.reduce(rooted, size - 1)
    lists = [torch.zeros(4) for _ in range(size)]
    dist.all_gather(lists, x + 1)
    whole = torch.zeros(4 * size)
    dist.all_gather_into_tensor(whole, x.sin())
    dist.barrier()
    gathered = [torch.zeros(4) for _ in range(size)] if rank == 0 else None
    dist.gather(x, gathered, dst=0)
    part, mine = torch.zeros(4), torch.zeros(4)
    dist.scatter(part, [x * i for i in range(size)] if rank == 0 else None)
    dist.reduce_scatter_tensor(mine, whole * x.sum())
    second = torch.zeros(4)
    dist.reduce_scatter(second, [x * i for i in range(size)])
    swapped = torch.zeros(4 * size)
    dist.all_to_all_single(swapped, whole + x.sum())
    whole_numbers = (x * 10).to(torch.int64)
    dist.all_reduce(whole_numbers)
    found += [*lists, *(gathered or []), part * 2, mine, second, swapped, whole_numbers]
    if size > 1:
        message = torch.zeros(4)
        ops = [dist.P2POp(dist.isend, x, following), dist.P2POp(dist.irecv, message, before)]
        for each in dist.batch_isend_irecv(ops):
            each.wait()
        found.append(message)
    return [*found, z, other, pairs.real, pairs.imag, sent, rooted if rank == size - 1 else other]


def _collectives() -> list[Any]:
    step: Any = torch.compile(_each)
    worst = 0.0
    for i in range(3):
        x = torch.arange(4.0) + i + dist.get_rank()
        for ours, plain in zip(step(x), _each(x), strict=True):
            worst = max(worst, float((ours - plain).abs().max()))
    return [worst, _parts(step)]


def _module(compiled: bool) -> tuple[list[float], list[int]]:
    """Train a model that is compiled with what sends its buffers and gradients; the loss is outside."""
    model = _model()
    called: Any = torch.compile(model) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    torch.manual_seed(3 + dist.get_rank())
    losses = []
    for i in range(FEW):
        x, y = _data(i)
        optimizer.zero_grad()
        loss = F.cross_entropy(called(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    losses += [float(p.sum()) for p in (*model.parameters(), *model.buffers())]
    return losses, _parts(called) if compiled else []


def _synchronized(compiled: bool) -> tuple[list[float], list[int]]:
    """Train a model whose forward and backward passes send tensors themselves."""
    torch.manual_seed(0)
    nn = torch.nn
    net = nn.Sequential(nn.Linear(6, 8), nn.SyncBatchNorm(8), nn.Tanh(), nn.Linear(8, 3))
    model = nn.parallel.DistributedDataParallel(net, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    chosen = _step(model, optimizer, compiled)
    losses = []
    for i in range(FEW):
        x, y = _data(i)
        if i > 3:
            torch.mark_dynamic(x, 0)
        losses.append(chosen(x, y).item())
    losses += [float(p.sum()) for p in (*model.parameters(), *model.buffers())]
    return losses, _parts(chosen) if compiled else []


def _says(call: Callable[[], Any]) -> str:
    try:
        call()
    except RuntimeError as error:
        return str(error).partition(" (group ")[0]
    return "nothing"


def _failures() -> dict[str, Any]:
    """Return what is said where ranks do not do the same, and what the next call on another group gives."""
    return {"compiled" if compiled else "plain": _failing(compiled) for compiled in (False, True)}


def _failing(compiled: bool) -> list[Any]:
    rank = dist.get_rank()
    group: Any = dist.new_group()

    def step(x: torch.Tensor, stop: float) -> torch.Tensor:
        """Sum up."""
        total = x * 2
        dist.all_reduce(total, group=group)
        return total / stop

    chosen: Any = torch.compile(step) if compiled else step
    first = chosen(torch.ones(2), 1.0).tolist()
    # Shapes that differ: rank 1 waits for an answer. Only it does not wait for long, and from here on, as a rank that
    # compiles may come later than that.
    if rank:
        group.lane().connection().set_timeout(_SHORT)
    dist.barrier()
    said = _says(lambda: chosen(torch.ones(2 + rank), 1.0).tolist())
    dist.barrier()
    group = dist.new_group()
    again = chosen(torch.ones(2), 1.0).tolist()
    group.lane().connection().set_timeout(_SHORT)
    # One that does not come.
    late = _says(lambda: chosen(torch.ones(2), 1.0).tolist()) if rank == 0 else ""
    dist.barrier()
    dist.destroy_process_group(group)
    gone = _says(lambda: chosen(torch.ones(2), 1.0))
    group = dist.new_group()
    return [first, said, again, late, gone, chosen(torch.ones(2), 1.0).tolist()]


def _decides() -> list[Any]:
    """Let a result decide: what is compiled runs as usual from there on, and no call is lost or made twice."""

    def step(x: torch.Tensor) -> torch.Tensor:
        """Choose by a sum."""
        total = x.sum()
        dist.all_reduce(total)
        y = x * 2 if total.item() > 10 else x * 3
        dist.all_reduce(y)
        return y

    chosen: Any = torch.compile(step)
    return [[chosen(x).tolist(), step(x).tolist()] for x in (torch.ones(3) * i for i in range(6))]


CASES: dict[str, Callable[[bool], tuple[list[float], list[int]]]] = {
    "plain": lambda c: _trained(c, "plain", steps=STEPS),
    "views": lambda c: _trained(c, "plain", gradient_as_bucket_view=True),
    "sizes": lambda c: _trained(c, "plain", sizes=(8, 4, 8, 6)),
    "written": lambda c: _trained(c, "plain", _written),
    "accumulated": lambda c: _trained(c, "accumulated"),
    "outside": lambda c: _trained(c, "backward", _outside),
    "autocast": lambda c: _trained(c, "lower"),
    "module": _module,
    "synchronized": _synchronized,
    "static": lambda c: _partly(c, static_graph=True),
    "unused": lambda c: _partly(c, find_unused_parameters=True),
}


def main(folder: str, size: str, rank: str) -> None:
    """Run as one rank."""
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=int(rank), world_size=int(size)
    )
    found: dict[str, Any] = {}
    for name, case in CASES.items():
        if int(size) == 1 and name != "plain":
            continue
        plain, _ = case(False)
        compiled, parts = case(True)
        worst = max(abs(a - b) / max(1, abs(a)) for a, b in zip(plain, compiled, strict=True))
        found[name] = [worst, parts]
    found["collectives"], found["decides"] = _collectives(), _decides()
    if int(size) == 2:
        found["failures"], found["shown"] = _failures(), _shown()
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
