"""What test_distributed.py runs in two processes: collectives on the CPU and on the device, and models that train.

    python -m tests.pytorch.ranks FOLDER

Each rank writes what it found into the folder as JSON: names -> [value on the CPU, value on the device], and names of
models -> the largest distance of a weight from that of one process with the whole batch.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from tests.patience import PATIENCE
from webtorch.distributed import shared
from webtorch.runtime import arrivals
from webtorch.runtime.realize import Runtime

RANKS = 2
DTYPES = ("float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool")


def _all_reduce(device: str, dtype: str, **options: Any) -> Any:
    x = (torch.arange(3) + 1 + dist.get_rank()).to(getattr(torch, dtype)).to(device)
    dist.all_reduce(x, **options)
    return x.tolist()


def _work(device: str) -> Any:
    x = torch.arange(4.0, device=device)
    work = dist.all_reduce(x[1:3], async_op=True)
    assert work is not None
    y = torch.ones(2, device=device) * 3
    work.wait()
    return [x.tolist(), y.tolist(), work.is_completed()]


def _broadcast(device: str) -> Any:
    x = torch.full((2, 3), dist.get_rank(), dtype=torch.float16, device=device).t()
    dist.broadcast(x, 1)
    return [x.tolist(), x.stride()]


def _gathers(device: str) -> Any:
    x = torch.full((2,), float(dist.get_rank()), device=device)
    lists = [torch.zeros(2, device=device) for _ in range(RANKS)]
    dist.all_gather(lists, x)
    whole = torch.zeros(4, device=device)
    dist.all_gather_single(whole, x)
    rooted = [torch.zeros(2, device=device) for _ in range(RANKS)] if dist.get_rank() else None
    dist.gather(x + 1, rooted, dst=1)
    return [t.tolist() for t in (*lists, whole, *(rooted or []))]


def _scatters(device: str) -> Any:
    out, part = torch.zeros(2, device=device), torch.zeros(2, device=device)
    dist.scatter(
        out,
        [torch.full((2,), i + 0.5, device=device) for i in range(RANKS)]
        if not dist.get_rank()
        else None,
    )
    dist.reduce_scatter_single(part, torch.arange(4.0, device=device))
    parts = torch.zeros(2, device=device)
    dist.reduce_scatter(parts, [torch.arange(2.0, device=device) + dist.get_rank()] * RANKS)
    return [out.tolist(), part.tolist(), parts.tolist()]


def _reduce(device: str) -> Any:
    x = torch.arange(2.0, device=device) + dist.get_rank()
    dist.reduce(x, 1, op=dist.ReduceOp.MAX)
    return x.tolist() if dist.get_rank() == 1 else None


def _all_to_all(device: str) -> Any:
    rank = dist.get_rank()
    out = [torch.zeros(2, device=device) for _ in range(RANKS)]
    dist.all_to_all(out, [torch.full((2,), rank * 10.0 + i, device=device) for i in range(RANKS)])
    whole, sizes = torch.zeros(3, 2, device=device), [1, 2] if rank == 0 else [2, 1]
    dist.all_to_all_single(whole, torch.full((3, 2), float(rank), device=device), sizes, sizes)
    return [t.tolist() for t in (*out, whole)]


def _messages(device: str) -> Any:
    rank = dist.get_rank()
    x = torch.full((2,), float(rank), device=device)
    if rank == 0:
        dist.send(x + 7, 1)
        y = torch.zeros(2, device=device)
        source = dist.recv(y)
    else:
        y, source = torch.zeros(2, device=device), dist.recv(x, 0)
        dist.send(x + 1, 0)
    z = torch.zeros(2, device=device)
    both = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, z, 1 - rank)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    return [x.tolist(), y.tolist(), z.tolist(), source]


def _answers(device: str) -> Any:
    """A message that is asked for first, and sent when a later one has been answered."""
    x, y = torch.zeros(2, device=device), torch.ones(2, device=device)
    if dist.get_rank():
        dist.send(y, 0, tag=2)
        dist.recv(x, 0)
        dist.send(x + 1, 0, tag=1)
        return x.tolist()
    first, second = dist.irecv(x, 1, tag=1), dist.irecv(y, 1, tag=2)
    assert first is not None
    assert second is not None
    second.wait()
    dist.send(y * 3, 1)
    first.wait()
    return x.tolist()


def _groups(device: str) -> Any:
    alone = dist.new_group([0])
    x = torch.ones(2, device=device)
    if dist.get_rank() == 0:
        dist.all_reduce(x, group=alone)
    found: list[Any] = [None] * RANKS
    dist.all_gather_object(found, {"rank": dist.get_rank()})
    dist.barrier()
    many = [torch.ones(2, device=device), torch.ones(3, device=device)]
    with dist._coalescing_manager():
        for t in many:
            dist.all_reduce(t)
    return [x.tolist(), found, [t.tolist() for t in many]]


def _coalesced(device: str) -> Any:
    """Tensors of two types become those of rank 1, three times: as it is found, learned and known."""
    found = []
    for turn in range(3):
        first = float(10 * dist.get_rank() + turn)
        many = [torch.arange(n, dtype=torch.float32, device=device) + first for n in (3, 5, 1)]
        count = torch.tensor(7 * dist.get_rank() + turn, device=device)
        dist._broadcast_coalesced(dist.group.WORLD, [*many, count], 1 << 20, 1)
        found.append([x.tolist() for x in (*many, count)])
    return found


def _mixed(device: str) -> Any:
    """Collectives of both devices in turn, none of which waits for the one before."""
    x, host = torch.ones(1000, device=device), torch.full((3,), float(dist.get_rank()))
    work = dist.all_reduce(x, async_op=True)
    dist.all_reduce(host)
    assert work is not None
    work.wait()
    return [float(x.sum()), host.tolist()]


def _sparse(device: str) -> Any:
    rank = dist.get_rank()
    x = torch.sparse_coo_tensor([[rank, 2]], torch.tensor([1.0, 2.0]), (3,), check_invariants=True)
    x = x.to(device)
    dist.all_reduce(x)
    return [x.is_coalesced(), x.coalesce().indices().tolist(), x.coalesce().values().tolist()]


def _profiled(device: str) -> Any:
    x = torch.ones(2, 3, device=device)
    with torch.autograd.profiler.profile(record_shapes=True) as found:
        dist.all_reduce(x)
    events = [e for e in found.function_events if e.name.startswith("gloo:")]
    return [(e.name, e.is_async, e.input_shapes) for e in events]


def _refused(device: str) -> Any:
    try:
        dist.all_reduce(torch.ones(2, device=device), op=dist.ReduceOp.BAND)
    except RuntimeError as error:
        return str(error).split(": ")[-1]
    return "taken"


COLLECTIVES: dict[str, Callable[[str], Any]] = {
    **{f"all_reduce {d}": lambda device, d=d: _all_reduce(device, d) for d in DTYPES},  # type: ignore[misc]
    "work": _work, "broadcast": _broadcast, "gathers": _gathers, "scatters": _scatters, "reduce": _reduce,
    "all_to_all": _all_to_all, "messages": _messages, "answers": _answers, "groups": _groups, "mixed": _mixed,
    "refused": _refused, "sparse": _sparse, "profiled": _profiled, "coalesced": _coalesced,
}  # fmt: skip
# What Gloo's CPU has not.
OURS: dict[str, Callable[[str], Any]] = {
    "int16": lambda device: _all_reduce(device, "int16"),
    "mean of integers": lambda device: _all_reduce(device, "int32", op=dist.ReduceOp.AVG),
    "mean": lambda device: _all_reduce(device, "float16", op=dist.ReduceOp.AVG),
}


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)
    )


def _parallel(kind: str, model: nn.Sequential) -> nn.Module:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    if kind.startswith("fsdp"):
        options = {"offload_policy": CPUOffloadPolicy()} if "offloaded" in kind else {}
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, **options)
        fully_shard(model, **options)
        return model
    if kind == "tensor parallel":
        mesh = dist.init_device_mesh("webgpu", (RANKS,))
        ways = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        return parallelize_module(model, mesh, ways)
    wrapped = nn.parallel.DistributedDataParallel(
        model, device_ids=[dist.get_rank()], gradient_as_bucket_view=kind == "views"
    )
    if kind == "bfloat16":
        wrapped.register_comm_hook(None, default_hooks.bf16_compress_hook)
    elif kind == "PowerSGD":
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=16, start_powerSGD_iter=2
        )
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return wrapped


def _several(kind: str) -> float:
    """Return how far gradients are from those of the CPU."""
    rank, found = dist.get_rank(), []
    torch.manual_seed(3)
    x, start = torch.randn(2 * RANKS, 6)[2 * rank : 2 * rank + 2], torch.randn(4, 6)
    for device in ("cpu", "webgpu"):
        a, b = nn.Linear(6, 4, bias=False), nn.Linear(6, 4, bias=False)
        model = nn.ModuleList([a, b]).to(device)
        for weight in model.parameters():
            weight.data.copy_(start)
        options = {"static_graph": True} if kind == "static graph" else {}
        if kind == "unused":
            options = {"find_unused_parameters": True}
        wrapped = nn.parallel.DistributedDataParallel(_First(model, kind == "unused"), **options)
        for _ in range(2):
            wrapped(x.to(device), rank).square().mean().backward()
        found.append([p.grad.cpu() for p in model.parameters() if p.grad is not None])
    here, there = found
    assert len(here) == len(there)
    return max(float((u - v).abs().max()) for u, v in zip(here, there, strict=True))


class _First(nn.Module):
    """Two layers, of which a rank may use one."""

    def __init__(self, layers: nn.ModuleList, alone: bool) -> None:
        super().__init__()
        self.layers, self.alone = layers, alone

    def forward(self, x: torch.Tensor, rank: int) -> torch.Tensor:
        """Return what one layer, or both, make of it."""
        if self.alone:
            return self.layers[rank % 2](x)  # type: ignore[no-any-return]
        return self.layers[0](x) + self.layers[1](x.cos())  # type: ignore[no-any-return]


def _synchronized() -> float:
    """Return how far a norm over the batches of all ranks, with gradients, is from that over the whole batch."""
    torch.manual_seed(4)
    x = torch.randn(RANKS * 3, 2, 4)
    mine = slice(3 * dist.get_rank(), 3 * dist.get_rank() + 3)
    alone, norm = nn.BatchNorm1d(2), nn.SyncBatchNorm(2).to("webgpu")
    whole, part = x.clone().requires_grad_(), x[mine].to("webgpu").requires_grad_()
    out, there = alone(whole), norm(part)
    (out * x.cos()).square().sum().backward()
    (there * x[mine].cos().to("webgpu")).square().sum().backward()
    weight = norm.weight.grad
    dist.all_reduce(weight)
    pairs = [
        (there, out[mine]), (part.grad, whole.grad[mine]), (weight, alone.weight.grad),
        (norm.running_mean, alone.running_mean), (norm.running_var, alone.running_var),
    ]  # fmt: skip
    return max(float(((u.cpu() - v).abs().max() / v.abs().max()).detach()) for u, v in pairs)


def _split() -> float:
    """Return how far DTensor's results and gradients are from the CPU's, of operators that are the device's own."""
    mesh, far = dist.init_device_mesh("webgpu", (RANKS,)), 0.0
    torch.manual_seed(5)
    host, mask = (
        [torch.randn(2 * RANKS, 2 * RANKS, 3, 4) for _ in range(3)],
        torch.rand(2 * RANKS, 1, 3, 3),
    )
    attend = nn.functional.scaled_dot_product_attention

    def place(x: torch.Tensor, dim: int | None, needed: bool) -> torch.Tensor:
        how = Replicate() if dim is None else Shard(dim)
        made: torch.Tensor = distribute_tensor(x.to("webgpu"), mesh, [how])
        return made.requires_grad_(needed)

    def linear(x: torch.Tensor, weight: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, weight) + other

    compiled = torch.compile(linear)
    products = [host[0][0, 0], torch.randn(4, 4), torch.zeros(4)]
    # Whether the first needs a gradient, by how operands are split.
    for dim, first in ((0, False), (0, True), (1, True)):
        functions = ((attend, host, (mask,)), (linear, products, ()), (compiled, products, ()))
        for function, given, more in functions:
            dims = (dim, dim, dim) if function is attend else (None, 0, None)
            there = [
                place(x, d, first or i > 0)
                for i, (x, d) in enumerate(zip(given, dims, strict=True))
            ]
            here = [x.clone().requires_grad_(first or i > 0) for i, x in enumerate(given)]
            out: Any = function(*there, *[place(x, None, needed=False) for x in more])
            wanted = (attend if function is attend else linear)(*here, *more)
            out.square().sum().backward()
            wanted.square().sum().backward()
            pairs = [(out.detach(), wanted.detach())]
            pairs += [
                (a.grad, b.grad) for a, b in zip(there, here, strict=True) if b.grad is not None
            ]
            far = max(far, *[float((a.full_tensor().cpu() - b).abs().max()) for a, b in pairs])
    return far


def _kept() -> int:
    """Return how many more bytes are held after some sums, before Python looks for cycles."""
    x = torch.ones(4096, device="webgpu")
    for turn in range(8):
        dist.all_reduce(x)
        if turn == 2:
            before = torch.webgpu.memory_allocated()
    x.cpu()
    end = time.monotonic() + PATIENCE
    # Threads of the group let go a moment after the sum is there.
    while (more := torch.webgpu.memory_allocated() - before) > 0 and time.monotonic() < end:
        time.sleep(0.001)
    return more


def _put() -> list[str]:
    """Return by which threads six tensors are copied for the other, which comes later."""
    names, original = [], shared.Exchange.put

    def put(self: shared.Exchange, *args: Any, **options: Any) -> shared.Put | None:
        names.append(threading.current_thread().name)
        return original(self, *args, **options)

    many = [torch.full((n + 1,), 1.0 + n, device="webgpu") for n in range(6)]
    dist.barrier()
    shared.Exchange.put = put  # type: ignore[method-assign]
    works = [dist.all_reduce(x, async_op=True) for x in many]
    shared.Exchange.put = original  # type: ignore[method-assign]
    for work in works:
        assert work is not None
        work.wait()
    assert [x.tolist() for x in many] == [[2.0 + 2 * n] * (n + 1) for n in range(6)]
    return names


def _cut() -> list[bool]:
    """Return whether Dynamo is to cut the graph of a module on the device, and on the CPU, at its buckets."""
    found = []
    for device in ("webgpu", "cpu"):
        model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8).to(device))
        with model._inside_ddp_forward():
            found.append(type(model)._get_active_ddp_module() is model)
    return found


def _events() -> list[str]:
    """Return what the thread that computes does in a step: wait for the other, or run a program, perhaps "known"."""
    from webtorch.pytorch import distributed

    torch.manual_seed(0)
    layers = [m for _ in range(8) for m in (nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers).to("webgpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, events = torch.randn(4, 8).to("webgpu"), []
    me, places = threading.get_ident(), ((arrivals, "settle"), (Runtime, "_run"))

    def noted(name: str, original: Any) -> Any:
        def call(*args: Any) -> Any:
            if threading.get_ident() == me:
                known = name == "_run" and args[3] is not None and args[3].known is not None
                events.append("known" if known else name.strip("_"))
            return original(*args)

        return call

    class Slow(distributed._Call):
        """Gives Gloo its call when the thread that computes has gone on, on a busy machine too."""

        def issue(self, group: Any) -> Any:
            time.sleep(0.02)
            return super().issue(group)

    distributed._Call, call_class = Slow, distributed._Call  # type: ignore[misc]
    for turn in range(12):
        if turn == 10:
            before = [getattr(of, name) for of, name in places]
            for (of, name), original in zip(places, before, strict=True):
                setattr(of, name, noted(name, original))
        if turn == 11:
            events.clear()
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for (of, name), original in zip(places, before, strict=True):
        setattr(of, name, original)
    distributed._Call = call_class  # type: ignore[misc]
    return events


def _in_ring() -> float:
    """Return how far attention of sequences that are cut is from that of the whole, with and without gradients."""
    from torch.distributed.tensor.experimental import _attention, context_parallel

    mesh = dist.init_device_mesh("webgpu", (RANKS,))
    torch.manual_seed(6)
    layer, x = nn.Linear(8, 16), torch.randn(2, 4 * RANKS, 8)

    def attend(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        heads = net(x).unflatten(-1, (4, 4)).transpose(1, 2)
        query, key, value = heads[:, :2], heads[:, 2:3], heads[:, 3:]
        sdpa = nn.functional.scaled_dot_product_attention
        # Two heads share a key.
        return sdpa(query, key, value, is_causal=True, enable_gqa=True)

    wanted = attend(layer, x)
    wanted.square().sum().backward()
    there = nn.Linear(8, 16).to("webgpu")
    there.load_state_dict(layer.state_dict())
    far, cut = 0.0, x.to("webgpu")
    with context_parallel(mesh, buffers=[cut], buffer_seq_dims=[1]):
        found = attend(there, cut)
        found.square().sum().backward()
        with torch.no_grad():
            again = attend(there, cut)
        for part in (found.detach(), again):
            (whole,) = _attention.context_parallel_unshard(mesh, [part], [2])
            far = max(far, float((whole.cpu() - wanted.detach()).abs().max()))
    assert there.weight.grad is not None and layer.weight.grad is not None
    dist.all_reduce(there.weight.grad)
    return max(far, float((there.weight.grad.cpu() - layer.weight.grad).abs().max()) / 10)


class _Normed(nn.Module):
    """A module of a program's own: Dynamo passes over frames of PyTorch's containers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layers' result."""
        found: torch.Tensor = self.layers(x)
        return found


def _compiled_later() -> float:
    """Return how far the loss of a module is when it is compiled after steps that have packed its buffers."""
    torch.manual_seed(0)
    layers = _Normed().to("webgpu")
    model, x = nn.parallel.DistributedDataParallel(layers), torch.randn(4, 8).to("webgpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(x).square().mean().backward()
        optimizer.step()
    wanted = model(x).cos().mean()
    found = torch.compile(model)(x).cos().mean()
    found.backward()
    return abs(float(found.detach() - wanted.detach()))


MODELS = (
    "ddp",
    "views",
    "accumulated",
    "bfloat16",
    "PowerSGD",
    "fsdp",
    "fsdp, offloaded",
    "tensor parallel",
)


def _train(kind: str, folder: Path) -> float:
    """Return how far weights are from those of one process that has the whole batch."""
    model, alone = _net().to("webgpu"), _net()
    wrapped = _parallel(kind, model)
    steps = [
        # Adam reads each gradient twice.
        (torch.optim.Adam(m.parameters(), foreach=True, eps=1e-3), m)
        if kind == "views"
        else (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, foreach=False), m)
        for m in (model, alone)
    ]
    generator = torch.Generator().manual_seed(1)
    rank, loss = dist.get_rank(), nn.functional.cross_entropy
    for _ in range(6):
        x = torch.randn(4 * RANKS, 8, generator=generator)
        y = torch.randint(0, 3, (4 * RANKS,), generator=generator)
        mine = slice(0, None) if kind == "tensor parallel" else slice(4 * rank, 4 * rank + 4)
        for optimizer, _ in steps:
            optimizer.zero_grad()
        there = x[mine].to("webgpu"), y[mine].to("webgpu")
        if kind == "accumulated":
            with wrapped.no_sync():  # type: ignore[operator]
                (loss(wrapped(there[0][:2]), there[1][:2]) / 2).backward()
            (loss(wrapped(there[0][2:]), there[1][2:]) / 2).backward()
        else:
            loss(wrapped(there[0]), there[1]).backward()
        loss(alone(x), y).backward()
        for optimizer, _ in steps:
            optimizer.step()
    if kind.startswith("fsdp"):
        import torch.distributed.checkpoint as files

        kept = get_model_state_dict(model)
        files.save(kept, checkpoint_id=folder / "model")
        files.load(kept, checkpoint_id=folder / "model")
    far = 0.0
    for a, b in zip(model.parameters(), alone.parameters(), strict=True):
        whole: Any = a.detach()
        whole = whole.full_tensor() if hasattr(whole, "full_tensor") else whole
        far = max(far, float((whole.cpu() - b.detach()).abs().max()))
    return far


def run(rank: int, folder: Path) -> None:
    """Do everything as one rank."""
    warnings.simplefilter("ignore")
    # As a launcher says it.
    os.environ["LOCAL_RANK"] = str(rank)
    dist.init_process_group(init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    found: dict[str, Any] = {}
    for name, collective in COLLECTIVES.items():
        found[name] = [collective("cpu"), collective("webgpu")]
    for name, collective in OURS.items():
        found[name] = collective("webgpu")
    # From here on through memory that the processes share, as small as tensors are.
    shared.LEAST = 4
    for name, collective in COLLECTIVES.items():
        found[f"{name}, shared"] = collective("webgpu")
    with torch.autograd.profiler.profile() as profile:
        dist.all_reduce(torch.ones(2, device="webgpu"))
    found["profiled names"] = [e.name for e in profile.function_events]
    for kind in MODELS:
        found[kind] = _train(kind, folder)
    for kind in ("unused", "static graph"):
        found[kind] = _several(kind)
    gc.disable()
    found["kept"] = _kept()
    gc.enable()
    found["put by"], found["cut"] = _put(), _cut()
    found["events"] = _events()
    found["norm"] = _synchronized()
    found["DTensor"] = _split()
    found["cut sequences"] = _in_ring()
    found["compiled later"] = _compiled_later()
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    # Nothing has opened the device yet.
    import webtorch.pytorch.copying  # noqa: F401

    torch.multiprocessing.start_processes(
        run, (Path(sys.argv[1]),), nprocs=RANKS, start_method="fork"
    )
