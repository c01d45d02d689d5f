"""What `fully_shard` does, as a program of either library, in two or four processes: results are lists of numbers.

    python -m tests.distributed.sharded FOLDER webtorch cpu 0 2

Each rank writes what it found into the folder as JSON, by name. Weights are those of the whole model.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from tests.distributed import models

# PyTorch or webtorch, and what either makes.
Either: TypeAlias = Any
# Rprop, too, but with PyTorch's DTensors.
OPTIMIZERS = (
    "SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "ASGD",
)  # fmt: skip


def _fsdp(torch: Either) -> Either:
    """Return the module of `fully_shard`, in the library that the program is of."""
    from importlib import import_module

    return import_module(f"{torch.__name__}.distributed.fsdp")


def _mesh(torch: Either, device: str, shape: tuple[int, ...], names: tuple[str, ...]) -> Either:
    from importlib import import_module

    made = import_module(f"{torch.__name__}.distributed.device_mesh")
    return made.init_device_mesh(device, shape, mesh_dim_names=names)


def _set(torch: Either, model: Either) -> Either:
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_(torch.sin(torch.arange(p.numel()) * 0.7 + i).reshape(p.shape))
    return model


def _net(torch: Either) -> Either:
    """Return layers whose rows do not divide by the processes."""
    nn = torch.nn
    layers = [nn.Sequential(nn.Linear(6, 7), nn.Tanh()), nn.Sequential(nn.Linear(7, 6), nn.Tanh())]
    return _set(torch, nn.Sequential(*layers, nn.Linear(6, 3)))


def _shard(torch: Either, model: Either, **options: Either) -> Either:
    full = _fsdp(torch).fully_shard
    for layer in list(model)[:-1]:
        full(layer, **options)
    return full(model, **options)


def _input(torch: Either, step: int = 0, rows: int = 5) -> Either:
    rank = torch.distributed.get_rank()
    return torch.cos(torch.arange(6.0 * rows) * (step + 1) + rank).reshape(rows, 6)


def _weights(torch: Either, model: Either) -> list[float]:
    parts = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return torch.cat([p.detach().float().cpu().flatten() for p in parts]).tolist()  # type: ignore[no-any-return]


def _train(torch: Either, model: Either, steps: int = 3, optimizer: Either = None) -> list[float]:
    """Return the weights after some steps."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
    for step in range(steps):
        optimizer.zero_grad()
        model(_input(torch, step)).float().square().mean().backward()
        optimizer.step()
    return _weights(torch, model)


def _plain(torch: Either) -> list[float]:
    return _train(torch, _shard(torch, _net(torch)))


def _root_alone(torch: Either) -> list[float]:
    return _train(torch, _fsdp(torch).fully_shard(_net(torch)))


def _after_forward(torch: Either) -> list[float]:
    """Parameters stay, are let go of, or lie in smaller groups between forward and backward."""
    found = []
    for how in (False, True, torch.distributed.get_world_size()):
        found += _train(torch, _shard(torch, _net(torch), reshard_after_forward=how))
    return found


def _accumulated(torch: Either) -> list[float]:
    """Gradients of passes that send none, and of some that keep parameters."""
    found = []
    for keeps in (False, True):
        model = _shard(torch, _net(torch))
        model.set_reshard_after_backward(not keeps)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            last = step % 2 == 1
            model.set_is_last_backward(last)
            model.set_requires_gradient_sync(last)
            model(_input(torch, step)).square().mean().backward()
            if last:
                model.set_reshard_after_backward(True)
                optimizer.step()
                optimizer.zero_grad()
        found += _weights(torch, model)
    return found


def _twice(torch: Either) -> list[float]:
    """Two passes that send, whose gradients are added; two forwards before one backward."""
    model = _shard(torch, _net(torch))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(_input(torch, 1)).square().mean().backward()
        model(_input(torch, 2)).square().mean().backward()
        (model(_input(torch, 3)).sum() + model(_input(torch, 4)).square().sum()).backward()
        optimizer.step()
    return _weights(torch, model)


def _mixed(torch: Either) -> list[float]:
    policy = _fsdp(torch).MixedPrecisionPolicy
    found = []
    for given in (
        {"param_dtype": torch.bfloat16},
        {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32},
        {"param_dtype": torch.bfloat16, "output_dtype": torch.float32},
    ):
        model, full = _net(torch), _fsdp(torch).fully_shard
        for layer in (model[0], model[1]):
            full(layer, mp_policy=policy(torch.bfloat16))
        full(model, mp_policy=policy(**given))
        out = model(_input(torch))
        found += [float(out.dtype is torch.bfloat16)]
        # Of the outermost module they stay until a backward pass.
        model.reshard()
        found += _train(torch, model)
    return found


def _mixed_accumulated(torch: Either) -> list[float]:
    policy = _fsdp(torch).MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    model = _shard(torch, _net(torch), mp_policy=policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        model.set_requires_gradient_sync(step == 2)
        model(_input(torch, step)).float().square().mean().backward()
    optimizer.step()
    return _weights(torch, model)


def _frozen(torch: Either) -> list[float]:
    """A layer is not trained, and one that is frozen later."""
    model = _net(torch)
    model[0].requires_grad_(False)
    model = _shard(torch, model)
    found = _train(torch, model)
    model[1].requires_grad_(False)
    return found + _train(torch, model)


class _Tied:
    """Makes a model whose first and last layer share a weight."""

    def __new__(cls, torch: Either) -> Either:
        """Return it."""
        nn = torch.nn

        class Tied(nn.Module):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.tokens, self.middle = nn.Embedding(6, 5), nn.Linear(5, 5)
                self.head = nn.Linear(5, 6, bias=False)
                self.head.weight = self.tokens.weight

            def forward(self, x: Either) -> Either:
                return self.head(self.middle(self.tokens(x)).tanh())

            def score(self, x: Either) -> Either:
                return self(x).logsumexp(-1).mean()

        return _set(torch, Tied())


def _tied(torch: Either) -> list[float]:
    model = _Tied(torch)
    _fsdp(torch).fully_shard(model.middle)
    _fsdp(torch).fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rank = torch.distributed.get_rank()
    for step in range(3):
        optimizer.zero_grad()
        x = (torch.arange(8) * (step + 1) + rank) % 6
        torch.nn.functional.cross_entropy(model(x), (x + 1) % 6).backward()
        optimizer.step()
    assert model.head.weight is model.tokens.weight
    return _weights(torch, model)


def _method(torch: Either) -> list[float]:
    """A method that gathers as forward does."""
    model = _Tied(torch)
    fsdp = _fsdp(torch)
    fsdp.fully_shard(model.middle)
    fsdp.fully_shard(model)
    fsdp.register_fsdp_forward_method(model, "score")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rank = torch.distributed.get_rank()
    for step in range(2):
        optimizer.zero_grad()
        model.score((torch.arange(8) * (step + 1) + rank) % 6).backward()
        optimizer.step()
    return _weights(torch, model)


def _meta(torch: Either) -> list[float]:
    """A model without memory, sharded, made and initialized."""
    with torch.device("meta"):
        nn = torch.nn
        model = nn.Sequential(nn.Sequential(nn.Linear(6, 7), nn.Tanh()), nn.Linear(7, 3))
    model = _shard(torch, model)
    model.to_empty(device="cpu")
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            local = p.to_local()
            local.copy_(torch.sin(torch.arange(local.numel()) * 0.7 + i).reshape(local.shape))
    return _train(torch, model)


def _checkpointed(torch: Either) -> list[float]:
    """Layers that are computed again within the backward pass, inside and around what is sharded."""
    from importlib import import_module

    checkpoint = import_module(f"{torch.__name__}.utils.checkpoint").checkpoint
    found = []
    for reentrant in (False, True):
        for outside in (False, True):
            model = _net(torch)
            full = _fsdp(torch).fully_shard
            full(model[0])
            full(model[1])
            layer = model[1]
            if not outside:
                own = layer[0].forward
                layer[0].forward = lambda x, own=own, r=reentrant: checkpoint(
                    own, x, use_reentrant=r
                )
            full(model)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(2):
                optimizer.zero_grad()
                x = _input(torch, step)
                if outside:
                    h = model[0](x)
                    h = checkpoint(model[1], h, use_reentrant=reentrant)
                    loss = h.square().mean()
                else:
                    loss = model(x).square().mean()
                loss.backward()
                optimizer.step()
            found += _weights(torch, model)
    return found


def _clipped(torch: Either) -> list[float]:
    model = _shard(torch, _net(torch))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    found = []
    for step in range(3):
        optimizer.zero_grad()
        (model(_input(torch, step)).square().mean() * 9).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        found.append(float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm))
        optimizer.step()
    return found + _weights(torch, model)


def _optimized(torch: Either) -> list[float]:
    found = []
    for name in OPTIMIZERS:
        model = _shard(torch, _net(torch))
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01)
        found += _train(torch, model, 2, optimizer)
    for options in ({"foreach": True}, {"fused": True}, {"amsgrad": True}):
        model = _shard(torch, _net(torch))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, **options)
        found += _train(torch, model, 2, optimizer)
    return found


def _in_backward(torch: Either) -> list[float]:
    """An optimizer for each parameter, which steps in the backward pass."""
    model = _shard(torch, _net(torch))
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step(p: Either) -> None:
        """Step, and forget the gradient."""
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    for k in range(3):
        model(_input(torch, k)).square().mean().backward()
    return _weights(torch, model)


def _prefetched(torch: Either) -> list[float]:
    model = _shard(torch, _net(torch))
    model.set_modules_to_forward_prefetch([model[0], model[1]])
    model[1].set_modules_to_backward_prefetch([model[0]])
    return _train(torch, model)


def _unsharded(torch: Either) -> list[float]:
    """Parameters that are gathered and let go of by hand, and read there."""
    model = _shard(torch, _net(torch))
    model[0].unshard()
    found = [*map(float, model[0][0].weight.shape), float(model[0][0].weight.sum())]
    model[0].reshard()
    handle = model[1].unshard(async_op=True)
    handle.wait()
    found.append(float(model[1][0].bias.sum()))
    with torch.no_grad():
        found.append(float(model(_input(torch)).sum()))
    model.reshard()
    found += _train(torch, model)
    return found


def _factor(torch: Either) -> list[float]:
    found = []
    for sums in (False, True):
        model = _shard(torch, _net(torch))
        for m in (model, model[0], model[1]):
            m.set_force_sum_reduction_for_comms(True)
            if sums:
                m.set_gradient_divide_factor(3.0)
        found += _train(torch, model)
    return found


def _dims(torch: Either) -> list[float]:
    """Parameters that are cut along another dim."""
    from importlib import import_module

    shard = import_module(f"{torch.__name__}.distributed.tensor").Shard
    nn, full = torch.nn, _fsdp(torch).fully_shard
    model = _set(torch, nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 8), nn.Linear(8, 3)))
    place = lambda p: shard(1) if p.ndim == 2 and p.shape[1] == 4 else None  # noqa: E731
    full(model[2], shard_placement_fn=place)
    full(model, shard_placement_fn=place)
    return _train(torch, model)


def _ignored(torch: Either) -> list[float]:
    model, full = _net(torch), _fsdp(torch).fully_shard
    kept = {model[2].bias}
    full(model[0])
    full(model, ignored_params=kept)
    assert model[2].bias in kept
    return _train(torch, model)[:-3]


def _together(torch: Either) -> list[float]:
    """Modules that travel together."""
    model, full = _net(torch), _fsdp(torch).fully_shard
    full([model[0], model[1]])
    full(model)
    return _train(torch, model)


def _unused(torch: Either) -> list[float]:
    """A layer that one process alone uses."""
    nn, rank = torch.nn, torch.distributed.get_rank()

    class Net(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.other, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)

        def forward(self, x: Either) -> Either:
            h = self.first(x)
            return self.last(self.other(h).tanh() if rank else h)

    model = _fsdp(torch).fully_shard(_set(torch, Net()))
    model.set_reduce_scatter_unused_params(True)
    return _train(torch, model)


@dataclasses.dataclass
class _Output:
    logits: Either
    more: Either


def _nested(torch: Either) -> list[float]:
    """Inputs by name, and outputs in a dataclass and in a dict."""
    nn = torch.nn

    class Inner(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 2)

        def forward(self, *, given: Either) -> Either:
            h = self.a(given["x"])
            return _Output(self.b(h), {"h": [h]})

    class Outer(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.before, self.inner = nn.Linear(6, 6), Inner()

        def forward(self, x: Either) -> Either:
            out = self.inner(given={"x": self.before(x)})
            return out.logits.sum(1) + out.more["h"][0].mean(1)

    model, full = _set(torch, Outer()), _fsdp(torch).fully_shard
    full(model.inner)
    full(model)
    return _train(torch, model)


def _state(torch: Either) -> list[float]:
    """The state dict of shards, loaded into another model; names, types and text of classes."""
    model, other = _shard(torch, _net(torch)), _shard(torch, _net(torch))
    _train(torch, model)
    state = model.state_dict()
    other.load_state_dict(state)
    whole = {n: p.full_tensor() for n, p in state.items()}
    assert list(whole) == [n for n, _ in _net(torch).named_parameters()]
    assert type(model).__name__ == "FSDPSequential" and type(model[0]).__name__ == "FSDPSequential"
    assert all(p.placements[0].dim == 0 for p in model.parameters())
    found = [float(p.to_local().numel()) for p in model.parameters()]
    return found + _train(torch, other)


def _autocast(torch: Either) -> list[float]:
    model = _shard(torch, _net(torch))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(_input(torch, step)).float().square().mean()
        loss.backward()
        optimizer.step()
    return _weights(torch, model)


def _recovered(torch: Either) -> list[float]:
    """A pass that fails, and the next ones."""
    model = _shard(torch, _net(torch))
    _train(torch, model, 1)
    own = model[1][0].forward

    def fail(x: Either) -> Either:
        """Raise an error."""
        raise KeyError("no")

    model[1][0].forward = fail
    try:
        model(_input(torch))
    except KeyError:
        model.reset_iter_state()
    model[1][0].forward = own
    return _train(torch, model)


def _offloaded(torch: Either) -> list[float]:
    policy = _fsdp(torch).CPUOffloadPolicy(pin_memory=False)
    return _train(torch, _shard(torch, _net(torch), offload_policy=policy))


def _embedded(torch: Either) -> list[float]:
    """Backward passes that gather an embedding's weight not again."""
    nn, full = torch.nn, _fsdp(torch).fully_shard
    model = _set(torch, nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 3)))
    full(model[0])
    model[0].set_unshard_in_backward(False)
    full(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rank = torch.distributed.get_rank()
    for step in range(2):
        optimizer.zero_grad()
        model((torch.arange(9) + step + rank) % 7).square().mean().backward()
        optimizer.step()
    return _weights(torch, model)


def _hybrid(torch: Either) -> list[float]:
    """Replicas, each of which is sharded; gradients that are kept before replicas sum them up."""
    mesh = _mesh(torch, "cpu", (2, torch.distributed.get_world_size() // 2), ("dp", "shard"))
    model = _shard(torch, _net(torch), mesh=mesh)
    found = _train(torch, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        model.set_requires_all_reduce(step % 2 == 1)
        model.set_is_last_backward(step % 2 == 1)
        model(_input(torch, step)).square().mean().backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
    return found + _weights(torch, model)


def _smaller(torch: Either) -> list[float]:
    """Shards of two processes between forward and backward."""
    return _train(torch, _shard(torch, _net(torch), reshard_after_forward=2))


def _both(torch: Either) -> list[float]:
    """Tensor parallel layers, whose parts are sharded: a mesh of two dims."""
    from importlib import import_module

    parallel = import_module(f"{torch.__name__}.distributed.tensor.parallel")
    mesh = _mesh(torch, "cpu", (2, 2), ("dp", "tp"))
    nn, full = torch.nn, _fsdp(torch).fully_shard
    model = _set(
        torch, nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4), nn.Linear(4, 3))
    )
    ways = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    model = parallel.parallelize_module(model, mesh["tp"], ways)
    full(model[0], mesh=mesh["dp"])
    full(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, eps=1e-3)
    for step in range(3):
        optimizer.zero_grad()
        # Processes along "tp" have the same part of the batch.
        x = torch.cos(torch.arange(30.0) * (step + 1) + mesh.get_local_rank("dp")).reshape(5, 6)
        model(x).square().mean().backward()
        optimizer.step()
    return _weights(torch, model)


def _errors(torch: Either) -> list[str]:
    """Return what is said of calls that are refused."""
    nn, full = torch.nn, _fsdp(torch).fully_shard
    twice = full(_net(torch))
    inner = full(nn.Linear(6, 3))
    later = nn.Sequential(inner)
    inner(_input(torch))
    full(later)
    scalar = nn.Linear(2, 2)
    scalar.scale = nn.Parameter(torch.tensor(1.0))
    with torch.device("meta"):
        on_meta = nn.Linear(6, 2)
    full(on_meta)
    lying = nn.Linear(6, 2)
    lying.weight = nn.Parameter(torch.ones(6, 2).t())
    uneven = import_shard(torch)
    calls: dict[str, Callable[[], object]] = {
        "list": lambda: full(nn.ModuleList([nn.Linear(2, 2)])),
        "twice": lambda: full(twice),
        "copy": lambda: __import__("copy").deepcopy(twice),
        "scalar": lambda: full(scalar),
        "meta": lambda: on_meta(_input(torch)),
        "later": lambda: later(_input(torch)),
        "not contiguous": lambda: full(lying),
        "reshard": lambda: twice.set_reshard_after_forward(3),
        "reshard to 3": lambda: full(nn.Linear(2, 2), reshard_after_forward=3),
        "reshard to x": lambda: full(nn.Linear(2, 2), reshard_after_forward="x"),
        "prefetch": lambda: twice.set_modules_to_forward_prefetch([nn.Linear(2, 2)]),
        "method": lambda: _fsdp(torch).register_fsdp_forward_method(twice, "none"),
        "uneven": lambda: full(nn.Linear(3, 2), shard_placement_fn=lambda p: uneven(p.ndim - 1)),
        "placement": lambda: full(nn.Linear(3, 2), shard_placement_fn=lambda p: 3),
        "buffers": lambda: twice.set_reduce_scatter_max_input_buffers(0),
        "reset": lambda: later[0].reset_iter_state(),
    }
    found = []
    for name, call in calls.items():
        try:
            call()
            found.append(f"{name}: taken")
        except Exception as error:
            # Modules of PyTorch's classes have other names.
            text = re.sub(r"<class '.*?'>", "class", str(error)).split("\n")[0]
            found.append(f"{name}: {type(error).__name__}: {text[:150]}")
    return found


def import_shard(torch: Either) -> Either:
    """Return the placement of shards."""
    from importlib import import_module

    return import_module(f"{torch.__name__}.distributed.tensor").Shard


def _compiled(torch: Either, kind: str) -> list[float]:
    """The plain one with something in it compiled: layers, a part of each, the model, or the step."""
    model = _net(torch)
    for layer in model[:2] if kind in ("layers", "parts") else ():
        (layer if kind == "layers" else layer[0]).compile()
    model = _shard(torch, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
    call = torch.compile(model) if kind == "model" else model

    def step(x: Either) -> None:
        """Train once."""
        optimizer.zero_grad()
        call(x).float().square().mean().backward()
        optimizer.step()

    run = torch.compile(step) if kind == "step" else step
    for number in range(3):
        run(_input(torch, number))
    return _weights(torch, model)


def _written(torch: Either) -> list[float]:
    """Shards that are written in place, loaded, and replaced by those that are loaded."""
    model = _shard(torch, _net(torch))
    _train(torch, model, 1)
    saved = {name: x.detach().clone() for name, x in model.state_dict().items()}
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.5)
            p.to_local().add_(0.01)
    for p in model.parameters():
        p.data.mul_(1.1)
    found = _train(torch, model, 1)
    model.load_state_dict(saved)
    found += _train(torch, model, 1)
    model.load_state_dict({k: x.detach().clone() for k, x in saved.items()}, assign=True)
    return found + _train(torch, model)


def _counted(torch: Either) -> list[float]:
    """A loss of shards while another shard is written: only its own counts."""
    model = _shard(torch, _net(torch))
    first, *others = model.parameters()
    found = []
    for parts in (others, [first, *others]):
        loss = sum([p.to_local().square().sum() for p in parts])
        with torch.no_grad():
            first.to_local().mul_(0.9)
        try:
            loss.backward()
            found.append(1.0)
        except RuntimeError:
            found.append(0.0)
    return [*found, *_weights(torch, model)]


def _called_twice(torch: Either) -> list[float]:
    """A module that is called twice in a forward, and one that every second forward leaves out."""
    nn = torch.nn

    class Net(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.other, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)
            self.calls = 0

        def forward(self, x: Either) -> Either:
            self.calls += 1
            h = self.first(x).tanh()
            h = self.other(h).tanh() if self.calls % 2 else h
            return self.last(self.first(h))

    model = _set(torch, Net())
    for layer in (model.first, model.other, model):
        _fsdp(torch).fully_shard(layer)
    return _train(torch, model, 4)


def _of_types(torch: Either) -> list[float]:
    """A group that has a frozen parameter of another type, and shards of nothing."""
    nn = torch.nn

    class Net(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 1), nn.Linear(1, 3)
            self.last.weight.requires_grad_(False)
            self.last.weight.data = self.last.weight.data.to(torch.bfloat16)

        def forward(self, x: Either) -> Either:
            linear = torch.nn.functional.linear
            return linear(self.first(x).tanh(), self.last.weight.float(), self.last.bias)

    model = _fsdp(torch).fully_shard(_set(torch, Net()))
    return _train(torch, model, 3, torch.optim.AdamW(model.parameters(), lr=0.05))


def _adapted(torch: Either) -> list[float]:
    """Adapters of frozen layers, whose scaled gradients are clipped, and an optimizer that takes another's place."""
    from importlib import import_module

    nn, scaler = torch.nn, import_module(f"{torch.__name__}.amp").GradScaler("cpu", init_scale=16.0)

    class Adapted(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, layer: Either) -> None:
            super().__init__()
            self.layer = layer.requires_grad_(False)
            self.down = nn.Parameter(torch.full((2, layer.in_features), 0.1))
            self.up = nn.Parameter(torch.full((layer.out_features, 2), 0.2))

        def forward(self, x: Either) -> Either:
            return self.layer(x) + x @ self.down.t() @ self.up.t()

    net = _net(torch)
    layers = [nn.Sequential(Adapted(part[0]), nn.Tanh()) for part in list(net)[:2]]
    model = _shard(torch, nn.Sequential(*layers, Adapted(net[2])))
    trained = [p for p in model.parameters() if p.requires_grad]
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        optimizer = kind(trained, lr=0.05)
        for step in range(2):
            optimizer.zero_grad()
            scaler.scale(model(_input(torch, step)).square().mean()).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(trained, 0.5, error_if_nonfinite=True)
            scaler.step(optimizer)
            scaler.update()
            with torch.no_grad():
                model(_input(torch, step))
    return _weights(torch, model)


# What is compiled.
COMPILED = ("layers", "parts", "model", "step")
# What two processes do, and four.
TWO: dict[str, Callable[[Any], Any]] = {
    "plain": _plain, "root alone": _root_alone, "after forward": _after_forward, "accumulated": _accumulated,
    "twice": _twice, "mixed": _mixed, "mixed accumulated": _mixed_accumulated, "frozen": _frozen, "tied": _tied,
    "method": _method, "meta": _meta, "checkpointed": _checkpointed, "clipped": _clipped, "optimized": _optimized,
    "in backward": _in_backward, "prefetched": _prefetched, "unsharded": _unsharded, "factor": _factor, "dims": _dims,
    "ignored": _ignored, "together": _together, "unused": _unused, "nested": _nested, "state": _state,
    "autocast": _autocast, "recovered": _recovered, "offloaded": _offloaded, "embedded": _embedded, "errors": _errors,
    "written": _written, "counted": _counted, "called twice": _called_twice, "of types": _of_types, "adapted": _adapted,
}  # fmt: skip
FOUR: dict[str, Callable[[Any], Any]] = {
    "plain": _plain,
    "hybrid": _hybrid,
    "smaller": _smaller,
    "both": _both,
}


def weights_of_models(
    torch: Either, name: str, device: str, steps: int, adam: bool = False
) -> float:
    """Return how far a sharded model's weights are, relatively, from one process's with the whole batch."""
    dist, full = torch.distributed, _fsdp(torch).fully_shard
    rank, size = dist.get_rank(), dist.get_world_size()
    both = []
    for _ in range(2):
        torch.manual_seed(0)
        both.append(models._MAKE[name](torch).to(device))
    model, alone = both
    for layer in list(model.children())[:-1]:
        if list(layer.parameters()):
            full(layer)
    full(model)
    optimizers = [models._optimizer(torch, m, "AdamW" if adam else "") for m in both]
    generator, loss = torch.Generator().manual_seed(1), torch.nn.functional.cross_entropy
    part = models.BATCH // size
    for _ in range(steps):
        x, y = (t.to(device) for t in models._data(torch, name, generator))
        mine = slice(part * rank, part * rank + part)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss(model(x[mine]), y[mine].flatten()).backward()
        loss(alone(x), y.flatten()).backward()
        for optimizer in optimizers:
            optimizer.step()
    a, b = (
        torch.cat([
            (p.full_tensor() if hasattr(p, "full_tensor") else p).detach().cpu().flatten()
            for p in m.parameters()
        ])
        for m in both
    )  # fmt: skip
    return float((a - b).norm() / b.norm())


def main(folder: str, library: str, device: str, rank: str, size: str, *steps: str) -> None:
    """Run as one rank."""
    if library == "webtorch":
        import webtorch as torch
    else:
        import torch
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=int(rank), world_size=int(size)
    )
    found: dict[str, Any] = {}
    features = (TWO if size == "2" else FOUR) if device == "cpu" else {"plain": _plain}
    for name, feature in features.items() if not steps else ():
        found[name] = feature(torch)
    if library == "webtorch" and device == "cpu" and size == "2" and not steps:
        found |= {f"compiled: {kind}": _compiled(torch, kind) for kind in COMPILED}
    if steps:
        for name in models.MODELS:
            found[name] = weights_of_models(torch, name, device, int(steps[0]))
        if device == "cpu":
            found["gpt, AdamW"] = weights_of_models(torch, "gpt", device, int(steps[0]), True)
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
