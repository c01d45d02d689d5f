"""What DistributedDataParallel can beside the mean of gradients, in both libraries: results are lists of numbers."""

from __future__ import annotations

from importlib import import_module
from typing import Any, TypeAlias

# PyTorch or webtorch, and what either makes.
Either: TypeAlias = Any


def _set(torch: Either, model: Either) -> Either:
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_(torch.sin(torch.arange(p.numel()) * 0.7 + i).reshape(p.shape))
    return model


def _net(torch: Either) -> Either:
    nn = torch.nn
    return _set(
        torch, nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))
    )


def _wrapped(torch: Either, model: Either, **options: Either) -> Either:
    return torch.nn.parallel.DistributedDataParallel(model, **{"bucket_cap_mb": 1e-4, **options})


def _input(torch: Either, step: int) -> Either:
    rank = torch.distributed.get_rank()
    return torch.cos(torch.arange(30.0) * (step + 1) + rank).reshape(5, 6)


def _train(torch: Either, model: Either, steps: int) -> list[float]:
    """Return all there is of the model after some steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
    for step in range(steps):
        optimizer.zero_grad()
        model(_input(torch, step)).square().mean().backward()
        optimizer.step()
    tensors = [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]
    return torch.cat([x.detach().float().flatten() for x in tensors]).tolist()  # type: ignore[no-any-return]


def _join(torch: Either) -> list[float]:
    """Train on inputs that end early on one process, with and without parameters that nobody uses."""
    found, rank = [], torch.distributed.get_rank()
    for divides in (True, False):
        model = _wrapped(torch, _net(torch), find_unused_parameters=divides)
        with model.join(divide_by_initial_world_size=divides):
            found += _train(torch, model, 2 + 2 * rank)
        # Means are those of all processes again.
        found += _train(torch, model, 2)
        # The parameters and buffers are those of the last.
        tensors = [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]
        found += torch.cat([x.detach().flatten() for x in tensors]).tolist()
    model = _wrapped(torch, _net(torch))
    try:
        with model.join(throw_on_early_termination=True):
            _train(torch, model, 2 + rank)
    except RuntimeError as error:
        found.append(float("exhausted" in str(error)))
    return found


def _sparse(torch: Either) -> list[float]:
    """Embeddings whose gradients are sparse."""
    nn, rank = torch.nn, torch.distributed.get_rank()
    model = _set(torch, nn.Sequential(nn.Embedding(7, 3, sparse=True), nn.Linear(3, 2)))
    wrapped, weight = _wrapped(torch, model), model[0].weight
    for _ in range(2):
        wrapped(torch.arange(3 + rank) + rank).square().sum().backward()
    grad = weight.grad.coalesce()
    assert grad.is_sparse
    return [float(n) for n in (*grad.indices().flatten(), *grad.values().flatten())]


def _sparse_sums(torch: Either) -> list[float]:
    """Sums of sparse tensors, of other numbers of values on each process, and of none; what is refused."""
    dist, rank, found = torch.distributed, torch.distributed.get_rank(), []
    places = torch.tensor([[0, 2, 2 + rank], [1, 0, 1]])
    for op in ("SUM", "MAX"):
        x = torch.sparse_coo_tensor(places, torch.tensor([1.0, 2.0, 3.0]) * (rank + 1), (5, 3))
        try:
            dist.all_reduce(x, op=getattr(dist.ReduceOp, op))
            found += x.to_dense().flatten().tolist()
        except RuntimeError as error:
            found.append(float("only works with ReduceOp.SUM" in str(error)))
    for count in (2 * rank, 0):
        rows = torch.zeros(1, count, dtype=torch.int64) + 3
        y = torch.sparse_coo_tensor(rows, torch.ones(count, 2), (5, 2))
        work = dist.all_reduce(y, async_op=True)
        work.wait()
        found += [*y.to_dense().flatten().tolist(), y._nnz(), float(work.is_completed())]
    z = torch.sparse_coo_tensor(places, torch.ones(3), (5, 3 + rank))
    try:
        dist.all_reduce(z)
    except RuntimeError as error:
        found.append(float("Sparse dimensions do not match" in str(error)))
    return found


def _functional(torch: Either) -> list[float]:
    """Collectives with gradients."""
    functional = import_module(f"{torch.__name__}.distributed.nn.functional")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    found, weight = [], torch.arange(4.0) + 1

    def ends(outs: Either, *leaves: Either) -> None:
        """Take results and gradients."""
        sum((x * weight * (i + 1 + rank)).sum() for i, x in enumerate(outs)).backward()
        for x in (*outs, *(leaf.grad for leaf in leaves)):
            found.extend(x.detach().flatten().tolist())

    def made(count: int = 1) -> list[Either]:
        """Return leaves."""
        return [(torch.arange(4.0) * (i + 1) + rank).requires_grad_() for i in range(count)]

    for call in (functional.all_reduce, lambda x: functional.broadcast(x, 1)):
        (x,) = made()
        ends([call(x)], x)
    (x,) = made()
    out = functional.reduce(x, 1)
    # On other processes PyTorch's result is what the sum has left there.
    (out * weight * rank).sum().backward()
    found += x.grad.tolist() + (out.tolist() if rank else [])
    (x,) = made()
    out = functional.gather(x, 1)
    sum((y * weight * (i + 1)).sum() for i, y in enumerate(out)).backward()
    found += x.grad.tolist() + torch.stack(out).flatten().tolist()
    xs = made(ranks)
    out = functional.scatter(xs, 0)
    (out * weight * (rank + 1)).sum().backward()
    found += [n for x in (out, *(x.grad for x in xs)) for n in x.flatten().tolist()]
    xs, given = made(ranks), [torch.zeros(4) for _ in range(ranks)]
    ends(functional.all_to_all(given, xs), *xs)
    found += torch.stack(given).flatten().tolist()
    x, given = torch.arange(6.0).reshape(3, 2).requires_grad_(), torch.zeros(3, 2)
    sizes = [2, 1] if rank else [1, 2]
    out = functional.all_to_all_single(given, x, sizes, sizes)
    (out * torch.arange(2.0) * (rank + 1)).sum().backward()
    found += [n for y in (out, given, x.grad) for n in y.flatten().tolist()]
    return found


def _groups(torch: Either) -> list[float]:
    """Lists of tensors of all, errors of stores, and what groups can."""
    dist, rank = torch.distributed, torch.distributed.get_rank()
    found = [float(issubclass(dist.DistStoreError, dist.DistError))]
    found += [float(dist.supports_complex(op)) for op in (dist.ReduceOp.MAX, dist.ReduceOp.SUM)]
    found.append(float(dist.get_default_backend_for_device("cpu") == "gloo"))
    lists = [[torch.zeros(2), torch.zeros(3)] for _ in range(2)]
    dist.all_gather_coalesced(lists, [torch.ones(2) + rank, torch.ones(3) * 5 - rank])
    return found + torch.cat([x for of_rank in lists for x in of_rank]).tolist()


def _zero(torch: Either) -> list[float]:
    """States of an optimizer that are shared out, saved whole and loaded again; inputs that end early."""
    if torch.__name__ == "torch":
        optimizers = import_module("torch.distributed.optim")
    else:
        optimizers = import_module("webtorch.optim.zero_redundancy_optimizer")
    shared_out = optimizers.ZeroRedundancyOptimizer
    join = import_module(f"{torch.__name__}.distributed.algorithms.join").Join
    dist, rank, found = torch.distributed, torch.distributed.get_rank(), []

    def steps(model: Either, optimizer: Either, count: int) -> None:
        """Train."""
        for step in range(count):
            optimizer.zero_grad()
            model(_input(torch, step)).square().mean().backward()
            optimizer.step()
        found.extend(n for p in model.parameters() for n in p.flatten().tolist())

    model = _wrapped(torch, _net(torch))
    optimizer = shared_out(model.parameters(), torch.optim.AdamW, lr=0.01, eps=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    steps(model, optimizer, 3)
    schedule.step()
    steps(model, optimizer, 2)
    try:
        optimizer.state_dict()
    except RuntimeError as error:
        found.append(float("has not been consolidated on this rank" in str(error)))
    optimizer.consolidate_state_dict(0)
    box = [None if rank else optimizer.state_dict()]
    dist.broadcast_object_list(box, 0)
    state = box[0]["state"]
    found += [n for key in sorted(state) for n in state[key]["exp_avg"].flatten().tolist()]
    other = _wrapped(torch, _net(torch))
    other.load_state_dict(model.state_dict())
    again = shared_out(other.parameters(), torch.optim.AdamW, lr=0.3, eps=1e-3)
    again.load_state_dict(box[0])
    steps(other, again, 2)
    found.append(again.param_groups[0]["lr"])
    last = _wrapped(torch, _net(torch))
    optimizer = shared_out(last.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9)
    with join([last, optimizer]):
        steps(last, optimizer, 2 + rank)
    found += [n for p in last.parameters() for n in p.flatten().tolist()]
    return found


def _power(torch: Either) -> list[float]:
    """PowerSGD of matrices that are compressed without loss."""
    hooks = import_module(f"{torch.__name__}.distributed.algorithms.ddp_comm_hooks.powerSGD_hook")
    found = []
    for hook in (hooks.powerSGD_hook, hooks.batched_powerSGD_hook):
        # In one bucket: PyTorch's hook waits for its collectives in callbacks, whose order differs between processes.
        model = _wrapped(torch, _net(torch), bucket_cap_mb=1)
        state = hooks.PowerSGDState(
            None, matrix_approximation_rank=8, start_powerSGD_iter=2, min_compression_rate=0
        )
        model.register_comm_hook(state, hook)
        found.append(_train(torch, model, 5))
        if torch.__name__ == "torch":
            # PyTorch's other hook refuses as many columns as rows, which lose nothing.
            return found[0]
    assert max(abs(a - b) for a, b in zip(*found, strict=True)) < 1e-3
    return found[0]


def _hooks(torch: Either) -> list[float]:
    """Gradients of a process alone, from the beginning or later."""
    found, home = [], f"{torch.__name__}.distributed.algorithms.ddp_comm_hooks"
    model = _wrapped(torch, _net(torch))
    model.register_comm_hook(None, import_module(f"{home}.debugging_hooks").noop_hook)
    found += _train(torch, model, 2)
    local = import_module(f"{home}.post_localSGD_hook")
    for reduces in (True, False):
        model = _wrapped(torch, _net(torch))
        group = torch.distributed.group.WORLD
        state = local.PostLocalSGDState(group, group, 1, post_local_gradient_allreduce=reduces)
        model.register_comm_hook(state, local.post_localSGD_hook)
        found += _train(torch, model, 3)
    return found


def _averaged(torch: Either) -> list[float]:
    """Parameters that are averaged once in some steps, by hand and after an optimizer's, in groups of two sizes."""
    found, home = [], f"{torch.__name__}.distributed.algorithms.model_averaging"
    averagers = import_module(f"{home}.averagers")
    levels = import_module(f"{home}.hierarchical_model_averager")
    makers: list[Any] = [
        lambda: averagers.PeriodicModelAverager(2, warmup_steps=1),
        lambda: levels.HierarchicalModelAverager({1: 1, 3: 2}),
    ]
    for make in makers:
        model, averager = _net(torch), make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        if torch.__name__ == "torch":
            kind = import_module("torch.distributed.optim").PostLocalSGDOptimizer
        else:
            kind = import_module("webtorch.optim.post_localSGD_optimizer").PostLocalSGDOptimizer
        wrapped = kind(optimizer, averager)
        for step in range(5):
            wrapped.zero_grad()
            model(_input(torch, step)).square().mean().backward()
            wrapped.step()
            found += [float(p.sum()) for p in model.parameters()]
        state = wrapped.state_dict()
        found.append(state["step"])
        averager.step = 0
        wrapped.load_state_dict(state)
        found.append(averager.step)
    return found


def _quantized(torch: Either) -> list[float]:
    """Gradients in 8 bits. PyTorch's hooks know no other library than NCCL: what they do is done by hand."""
    found: list[float] = []
    name = "torch.distributed.algorithms.ddp_comm_hooks.quantization_hooks"
    hooks = import_module(name.replace("torch", torch.__name__, 1))
    for kind in ("tensor", "channel"):
        net = _net(torch)
        if torch.__name__ != "torch":
            model = _wrapped(torch, net, bucket_cap_mb=1)
            model.register_comm_hook(None, getattr(hooks, f"quantization_per{kind}_hook"))
            model(_input(torch, 0)).square().mean().backward()
            found += torch.cat([p.grad.flatten() for p in reversed([*net.parameters()])]).tolist()
            continue
        net(_input(torch, 0)).square().mean().backward()
        flat = torch.cat([p.grad.flatten() for p in reversed([*net.parameters()])])
        rows = torch.nn.functional.pad(flat, (0, 512 - len(flat)))[None]
        observers = torch.ao.quantization
        observer = (
            observers.MinMaxObserver() if kind == "tensor" else observers.PerChannelMinMaxObserver()
        )
        observer(rows)
        options = observer.calculate_qparams()
        there = getattr(hooks, f"_quantize_per_{kind}_backend")(rows, *options)
        mean = getattr(hooks, f"_dequantize_per_{kind}_backend")(there, *options)
        torch.distributed.all_reduce(mean)
        found += (mean[0, : len(flat)] / 2).tolist()
    return found


# What each gives, in both libraries.
FEATURES = {
    "averaged": _averaged,
    "quantized": _quantized,
    "join": _join,
    "sparse": _sparse,
    "sparse sums": _sparse_sums,
    "functional": _functional,
    "groups": _groups,
    "ZeRO": _zero,
    "PowerSGD": _power,
    "hooks": _hooks,
}


def mixed(torch: Either) -> list[float]:
    """Return parameters that were trained in bfloat16, whose gradients travelled as that or whole, and less those of a
    model in bfloat16 whose gradients are averaged.
    """
    types = import_module(torch.nn.parallel.DistributedDataParallel.__module__)._MixedPrecision
    found = []
    for reduced in (torch.float32, None):
        net = _net(torch)
        model = _wrapped(torch, net, mixed_precision=types(torch.bfloat16, reduced, torch.bfloat16))
        model(_input(torch, 0)).float().square().sum().backward()
        assert all(p.dtype is p.grad.dtype is torch.float32 for p in model.parameters())
        low = _net(torch).to(torch.bfloat16)
        low(_input(torch, 0).to(torch.bfloat16)).float().square().sum().backward()
        for p, q in zip(model.parameters(), low.parameters(), strict=True):
            mean = q.grad.float()
            torch.distributed.all_reduce(mean, op=torch.distributed.ReduceOp.SUM)
            mean = mean / torch.distributed.get_world_size()
            found.append(float((p.grad - mean).abs().max() / mean.abs().max()))
    return found
