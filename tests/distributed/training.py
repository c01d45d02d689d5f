"""Random programs that train a model in several processes, each beside one process with the whole batch.

    python -m tests.distributed.programs --kind training --count 200 --seed 0 --ranks 2 [--library torch]
        [--device webgpu]

What is drawn: the model, how it is shared out, what is compiled, the optimizer, accumulation, clipping, autocast,
checkpoints, hooks, writes in place, and what is saved and loaded midway.
"""

from __future__ import annotations

import contextlib
import copy
import io
import random
import traceback
from collections.abc import Callable
from typing import Any, TypeAlias

# PyTorch or webtorch, and what either makes.
Either: TypeAlias = Any
WIDTH, LENGTH, MICRO = 8, 4, 8
WAYS = ("ddp", "ddp", "fsdp", "fsdp", "fsdp bfloat16", "tp", "sp", "hsdp", "both")
OPTIMIZERS: dict[str, dict[str, Either]] = {
    "SGD": {"lr": 0.05}, "SGD momentum": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01},
    "SGD nesterov": {"lr": 0.05, "momentum": 0.9, "nesterov": True, "foreach": True},
    "AdamW": {"lr": 0.01, "eps": 1e-2}, "AdamW foreach": {"lr": 0.01, "eps": 1e-2, "foreach": True},
    "Adam fused": {"lr": 0.01, "eps": 1e-2, "fused": True}, "Adam": {"lr": 0.01, "eps": 1e-2, "foreach": False},
    "Adagrad": {"lr": 0.02, "eps": 1e-2}, "RMSprop": {"lr": 0.005, "eps": 1e-1, "momentum": 0.5},
    "NAdam": {"lr": 0.01, "eps": 1e-2},
}  # fmt: skip


class Drawn:
    """What is drawn of a seed: the same on all processes, and beside them."""

    def __init__(self, seed: int, ranks: int) -> None:
        rng = random.Random(seed)
        self.seed, self.ranks = seed, ranks
        self.way = rng.choice([w for w in WAYS if ranks == 4 or w != "both"])
        split = self.way in ("tp", "sp", "both")
        self.layers = rng.choice((1, 2, 3))
        self.act = rng.choice(("gelu", "relu", "tanh", "silu"))
        self.attends, self.norm = rng.random() < 0.5, rng.choice(("LayerNorm", "RMSNorm"))
        self.embeds, self.ties = rng.random() < 0.4, rng.random() < 0.3 and not split
        self.optimizer = rng.choice(list(OPTIMIZERS))
        if split and ("foreach" in self.optimizer or "nesterov" in self.optimizer):
            self.optimizer = "AdamW"
        self.groups, self.schedules = rng.random() < 0.3, rng.random() < 0.3
        self.accumulates = rng.choice((1, 1, 2, 3))
        self.clips = rng.choice((None, None, 2.0, float("inf"), "value"))
        if self.way in ("tp", "both") and self.clips != "value":
            # Norms are whole there, or on another mesh: PyTorch, too, has no norm of both kinds at once.
            self.clips = None
        self.casts = rng.random() < 0.2
        self.again = rng.choice((None, None, None, "new", "reentrant", "wrapped"))
        self.hook = rng.choice((None, None, "forward", "tensor", "parameter", "module", "post"))
        sharded = self.way in ("fsdp", "hsdp", "fsdp bfloat16", "both")
        if sharded and (self.hook == "parameter" or (self.hook == "post" and self.accumulates > 1)):
            # Of a parameter in shards only what comes after its gradient is called, once it has been sent.
            self.hook = None
        self.writes = rng.choice((None, None, "forward", "view", "weights", "averages"))
        self.frozen = rng.random() < 0.2
        self.saves = rng.choice((None, None, "deepcopy", "file", "whole", "new"))
        self.compiles = rng.choice((None, None, None, "model", "block", "step"))
        self.keeps = rng.random() < 0.3
        self.steps, self.reads = rng.choice((3, 5, 8)), rng.random() < 0.5
        self.options: dict[str, Either] = {}
        if self.way == "ddp":
            self.options["bucket_cap_mb"] = rng.choice((25, 1e-3))
            for name in ("gradient_as_bucket_view", "static_graph", "find_unused_parameters"):
                self.options[name] = rng.random() < 0.25
            if self.options["static_graph"] or self.again:
                self.options["find_unused_parameters"] = False
            # A graph that changes: only the first of several passes would reach what is accumulated.
            self.options["static_graph"] &= self.accumulates == 1
        elif "fsdp" in self.way or self.way == "hsdp":
            self.options["reshard_after_forward"] = rng.random() < 0.6

    def __str__(self) -> str:
        return str({k: v for k, v in vars(self).items() if v is not None and v is not False})


def _model(torch: Either, drawn: Drawn) -> Either:
    """Return a network whose layers have the names that plans know."""
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm = getattr(nn, drawn.norm)(WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
            if drawn.attends:
                self.before = getattr(nn, drawn.norm)(WIDTH)
                self.q, self.k, self.v, self.o = (
                    nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
                )

        def attention(self, x: Either) -> Either:
            """Return what positions see of each other."""
            q, k, v = (
                f(x).unflatten(-1, (-1, 2)).transpose(1, 2) for f in (self.q, self.k, self.v)
            )
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.o(seen.transpose(1, 2).flatten(2))

        def forward(self, x: Either) -> Either:
            """Return the next hidden states."""
            if drawn.attends:
                x = x + self.attention(self.before(x))
            h = self.up(self.norm(x))
            if drawn.hook == "tensor" and h.requires_grad:
                h.register_hook(lambda g: g * 0.5)
            if drawn.writes == "forward":
                h = h * 1.0
                h.mul_(0.5).add_(0.1)
            h = getattr(functional, drawn.act)(h)
            if drawn.writes == "view":
                h = h.clone()
                h[:, 1:].mul_(2.0)
            return x + self.down(h)

    class Net(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Embedding(WIDTH, WIDTH) if drawn.embeds else nn.Linear(WIDTH, WIDTH)
            self.blocks = nn.ModuleList([Block() for _ in range(drawn.layers)])
            self.last = nn.Linear(WIDTH, WIDTH, bias=False)
            if drawn.ties:
                self.last.weight = self.first.weight

        def forward(self, x: Either) -> Either:
            """Return scores."""
            x = self.first(x)
            for block in self.blocks:
                if drawn.again in (None, "wrapped"):
                    x = block(x)
                else:
                    from torch.utils.checkpoint import checkpoint

                    x = checkpoint(block, x, use_reentrant=drawn.again == "reentrant")
            return self.last(x)

    torch.manual_seed(drawn.seed)
    net = Net()
    if drawn.frozen:
        net.blocks[0].down.bias.requires_grad_(False)
    if drawn.hook == "forward":
        net.blocks[0].register_forward_hook(lambda module, given, x: x * 0.5)
    if drawn.hook == "module":
        net.blocks[-1].register_full_backward_hook(
            lambda module, gi, go: tuple(g if g is None else g * 0.5 for g in gi)
        )
    if drawn.again == "wrapped":
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
            apply_activation_checkpointing,
        )

        apply_activation_checkpointing(net, check_fn=lambda module: isinstance(module, Block))
    return net


class Shared:
    """A model that processes share, or that one has for itself (`alone`), and its optimizer."""

    def __init__(self, torch: Either, drawn: Drawn, device: str, alone: bool) -> None:
        self.torch, self.drawn, self.device, self.alone = torch, drawn, device, alone
        self.net = _model(torch, drawn).to(device)
        self.run = self.net if alone else self._shared_out()
        if drawn.compiles == "block" and not alone:
            for block in self.net.blocks:
                block.compile()
        elif drawn.compiles == "model" and not alone:
            self.run = torch.compile(self.run)
        if drawn.hook == "parameter":
            for p in self.net.parameters():
                if p.requires_grad:
                    p.register_hook(lambda g: g * 0.5)
        self.seen = 0
        if drawn.hook == "post":
            for p in self.net.parameters():
                if p.requires_grad:
                    p.register_post_accumulate_grad_hook(self._see)
        self.optimizer, self.schedule = self._optimizer()
        self.averages = [p.detach().clone() for p in self.net.parameters()]

    def _see(self, p: Either) -> None:
        assert p.grad is not None
        self.seen += 1

    def _optimizer(self) -> tuple[Either, Either]:
        drawn, optim = self.drawn, self.torch.optim
        given: Either = [p for p in self.net.parameters() if p.requires_grad]
        if drawn.groups:
            few, many = ([p for p in given if (p.dim() > 1) == m] for m in (False, True))
            given = [{"params": many}, {"params": few, "weight_decay": 0.1, "lr": 0.02}]
            given = [g for g in given if g["params"]]
        made = getattr(optim, drawn.optimizer.split()[0])(given, **OPTIMIZERS[drawn.optimizer])
        schedules = optim.lr_scheduler
        return made, schedules.CosineAnnealingLR(
            made, 10
        ) if drawn.schedules else schedules.ConstantLR(made, 0.7, 2)

    def _shared_out(self) -> Either:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        torch, drawn, net, n = self.torch, self.drawn, self.net, self.drawn.ranks
        options = dict(drawn.options)
        if drawn.way == "ddp":
            return torch.nn.parallel.DistributedDataParallel(net, **options)
        if drawn.way in ("tp", "sp", "both"):
            shape, names = ((2, 2), ("dp", "tp")) if drawn.way == "both" else ((n,), ("tp",))
            mesh = init_device_mesh(self.device, shape, mesh_dim_names=names)
            self._split(mesh["tp"])
            if drawn.way != "both":
                return net
            options["mesh"] = mesh["dp"]
        elif drawn.way == "hsdp":
            options["mesh"] = init_device_mesh(self.device, (2, n // 2), mesh_dim_names=("r", "s"))
        elif drawn.way == "fsdp bfloat16":
            options["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        if not drawn.ties:
            for block in net.blocks:
                fully_shard(block, **options)
        return fully_shard(net, **options)

    def _split(self, mesh: Either) -> None:
        from torch.distributed.tensor import Replicate, Shard
        from torch.distributed.tensor import parallel as p

        rows = self.drawn.way == "sp"
        out = {"output_layouts": Shard(1)} if rows else {}
        for block in self.net.blocks:
            plan: dict[str, Either] = {"up": p.ColwiseParallel(), "down": p.RowwiseParallel(**out)}
            plan |= {"q": p.ColwiseParallel(), "k": p.ColwiseParallel(), "v": p.ColwiseParallel()}
            plan["o"] = p.RowwiseParallel(**out)
            if rows:
                plan = {
                    k: p.ColwiseParallel(input_layouts=Shard(1)) if k in "upqkv" and k != "o" else v
                    for k, v in plan.items()
                }
                plan |= {"norm": p.SequenceParallel(), "before": p.SequenceParallel()}
            # Plans name the parts of a module, not of one around it.
            inner = getattr(block, "_checkpoint_wrapped_module", block)
            plan = {k: v for k, v in plan.items() if hasattr(inner, k)}
            p.parallelize_module(inner, mesh, plan)
        first = (
            p.RowwiseParallel(input_layouts=Replicate(), **out)
            if self.drawn.embeds
            else p.ColwiseParallel(output_layouts=Shard(1) if rows else Replicate())
        )
        last = p.ColwiseParallel(
            output_layouts=Replicate(), **({"input_layouts": Shard(1)} if rows else {})
        )
        p.parallelize_module(self.net, mesh, {"first": first, "last": last})

    # ---- a step

    def _batch(self, step: int, k: int) -> tuple[Either, Either]:
        """Return this process's share of a batch."""
        torch, drawn = self.torch, self.drawn
        torch.manual_seed(1000 * drawn.seed + 10 * step + k)
        x = (
            torch.randint(0, WIDTH, (MICRO, LENGTH))
            if drawn.embeds
            else torch.randn(MICRO, LENGTH, WIDTH)
        )
        y = torch.randint(0, WIDTH, (MICRO, LENGTH))
        if not self.alone and drawn.way not in ("tp", "sp"):
            parts, rank = drawn.ranks, torch.distributed.get_rank()
            if drawn.way == "both":
                parts, rank = 2, rank // 2
            x, y = (t.chunk(parts)[rank] for t in (x, y))
        return x.to(self.device), y.to(self.device)

    def _accumulate(self, step: int) -> Either:
        """Run the backward passes of a step; return the sum of losses."""
        torch, drawn, total = self.torch, self.drawn, 0
        for k in range(drawn.accumulates):
            last, context = k == drawn.accumulates - 1, contextlib.nullcontext()
            if not self.alone and drawn.way == "ddp" and not last:
                context = self.run.no_sync()
            elif not self.alone and drawn.way in ("fsdp", "hsdp", "both", "fsdp bfloat16"):
                self.net.set_requires_gradient_sync(last)
            x, y = self._batch(step, k)
            kind = self.device.split(":")[0]
            with context:
                with (
                    torch.autocast(kind, torch.bfloat16)
                    if drawn.casts
                    else contextlib.nullcontext()
                ):
                    scores = self.run(x)
                loss = torch.nn.functional.cross_entropy(scores.float().flatten(0, 1), y.flatten())
                (loss / drawn.accumulates).backward()
            total = total + loss.detach()
        return total

    def step(self, step: int) -> Either:
        """Train once; return the loss."""
        torch, drawn = self.torch, self.drawn
        loss = self._accumulate(step)
        parameters = [p for p in self.net.parameters() if p.requires_grad]
        if drawn.clips == "value":
            torch.nn.utils.clip_grad_value_(parameters, 0.05)
        elif drawn.clips is not None:
            norm = torch.nn.utils.clip_grad_norm_(parameters, 0.3, norm_type=drawn.clips)
            if drawn.reads:
                self.whole(norm).item()
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad(set_to_none=not drawn.keeps)
        with torch.no_grad():
            if drawn.writes == "weights":
                for p in parameters:
                    p.mul_(0.99)
            if drawn.writes == "averages":
                for mean, p in zip(self.averages, self.net.parameters(), strict=True):
                    mean.lerp_(p, 0.1)
        return loss

    def renew(self) -> None:
        """Save all, and go on with what is loaded."""
        torch, drawn = self.torch, self.drawn
        if drawn.saves in ("deepcopy", "file"):
            kept = self.net.state_dict(), self.optimizer.state_dict()
            if drawn.saves == "file":
                file = io.BytesIO()
                torch.save(kept, file)
                file.seek(0)
                kept = torch.load(file, weights_only=False)
            else:
                kept = copy.deepcopy(kept)
            with torch.no_grad():
                for p in self.net.parameters():
                    p.zero_()
            self.net.load_state_dict(kept[0])
            self.optimizer.load_state_dict(kept[1])
        elif drawn.saves is not None:
            from torch.distributed.checkpoint import state_dict as states

            options = states.StateDictOptions(
                full_state_dict=drawn.saves == "whole", cpu_offload=drawn.saves == "whole"
            )
            kept = states.get_state_dict(self.run, self.optimizer, options=options)
            kept = copy.deepcopy(kept)
            rate = [group["lr"] for group in self.optimizer.param_groups]
            with torch.no_grad():
                for p in self.net.parameters():
                    p.zero_()
            if drawn.saves == "whole" and torch.distributed.get_rank():
                kept = {}, {}
            options = states.StateDictOptions(
                full_state_dict=drawn.saves == "whole", broadcast_from_rank0=drawn.saves == "whole"
            )
            states.set_state_dict(
                self.run,
                self.optimizer,
                model_state_dict=kept[0],
                optim_state_dict=kept[1],
                options=options,
            )
            assert rate == [group["lr"] for group in self.optimizer.param_groups]

    def whole(self, x: Either) -> Either:
        """Return a tensor that has no parts, on the CPU."""
        return (x.full_tensor() if hasattr(x, "full_tensor") else x).detach().float().cpu()


def run(torch: Either, device: str, seed: int) -> str:
    """Run one program; return what went wrong, with what was drawn."""
    drawn = Drawn(seed, torch.distributed.get_world_size())
    low = drawn.casts or "bfloat16" in drawn.way
    try:
        both = [Shared(torch, drawn, device, alone) for alone in (True, False)]
        for step in range(drawn.steps):
            found = []
            for one in both:
                if drawn.saves and step == drawn.steps // 2 and not one.alone:
                    one.renew()
                act: Callable[[int], Either] = one.step
                if drawn.compiles == "step" and not one.alone and "bfloat16" not in drawn.way:
                    one.compiled = getattr(one, "compiled", None) or torch.compile(one.step)
                    act = one.compiled
                found.append(one.whole(act(step)))
            mean = found[1].clone()
            torch.distributed.all_reduce(mean)
            _close(f"loss of step {step}", found[0], mean / drawn.ranks, 0.05 if low else 2e-5)
        for (name, p), (_, q) in zip(*(one.net.named_parameters() for one in both), strict=True):
            _close(name, both[0].whole(p), both[1].whole(q), 0.2 if low else 2e-4)
        for k, (p, q) in enumerate(zip(*(one.averages for one in both), strict=True)):
            _close(f"average {k}", both[0].whole(p), both[1].whole(q), 0.2 if low else 2e-4)
        if both[0].seen != both[1].seen:
            return f"hooks were called {both[1].seen} times, not {both[0].seen}\n    {drawn}"
    except Exception as error:
        return f"{type(error).__name__}: {error}\n    {drawn}\n{traceback.format_exc(limit=-7)}"
    return ""


def _close(name: str, x: Either, y: Either, most: float) -> None:
    far = float((x - y).abs().max()) / max(float(x.abs().max()), 1e-2)
    if not far <= most:
        raise AssertionError(f"{name} differs by {far:.1e}")
