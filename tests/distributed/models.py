"""Models that several processes train, compared with one process that has the whole batch."""

from __future__ import annotations

from typing import Any, TypeAlias

# PyTorch or webtorch, and what either makes.
Either: TypeAlias = Any
BATCH = 8


def _gpt(torch: Either) -> Either:
    nn = torch.nn

    class GPT(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(17, 16), nn.Embedding(8, 16)
            self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
            self.head = nn.Linear(16, 17)

        def forward(self, x: Either) -> Either:
            h = self.tokens(x) + self.places(torch.arange(8, device=x.device))
            return self.head(self.block(h)).flatten(0, 1)

    return GPT()


def _cnn(torch: Either) -> Either:
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(72, 5),
    )  # fmt: skip


def _embedding(torch: Either) -> Either:
    return torch.nn.Sequential(torch.nn.EmbeddingBag(50, 8), torch.nn.Linear(8, 5))


def _small(torch: Either) -> Either:
    nn = torch.nn
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 5))


def _data(torch: Either, name: str, generator: Either) -> tuple[Either, Either]:
    if name == "gpt":
        x = torch.randint(0, 17, (BATCH, 9), generator=generator)
        return x[:, :-1], x[:, 1:]
    target = torch.randint(0, 5, (BATCH,), generator=generator)
    if name == "cnn":
        return torch.randn(BATCH, 3, 8, 8, generator=generator), target
    if name == "embedding":
        return torch.randint(0, 50, (BATCH, 4), generator=generator), target
    return torch.randn(BATCH, 6, generator=generator), target


_MAKE = {"gpt": _gpt, "cnn": _cnn, "embedding": _embedding, "small": _small}
MODELS = ("gpt", "cnn", "embedding")
# Ways to train the small one, whose batch norms are those of all processes.
KINDS = ("synchronized", "accumulated", "bfloat16", "views", "unused", "compiled", "AdamW")


def _wrapped(torch: Either, model: Either, kind: str) -> Either:
    options: dict[str, Either] = {"bucket_cap_mb": 0.004}
    if kind == "views":
        options["gradient_as_bucket_view"] = True
    if kind == "unused":
        options["find_unused_parameters"] = True
    if kind == "compiled":
        model = torch.compile(model)
    wrapped = torch.nn.parallel.DistributedDataParallel(model, **options)
    if kind == "bfloat16":
        from importlib import import_module

        hooks = import_module(
            f"{torch.__name__}.distributed.algorithms.ddp_comm_hooks.default_hooks"
        )
        wrapped.register_comm_hook(None, hooks.bf16_compress_hook)
    return wrapped


def _optimizer(torch: Either, model: Either, kind: str) -> Either:
    if kind == "AdamW":
        # Where a gradient's mean square is as small as its rounding, a step is of any sign: `eps` lies above.
        return torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(torch: Either, name: str, device: str, steps: int, kind: str = "") -> float:
    """Return how far the weights are, relatively, from those of one process with the whole batch."""
    nn, dist = torch.nn, torch.distributed
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(_MAKE[name](torch)).to(device)
    if kind == "unused":
        # A layer that nobody uses keeps its gradient None; another one only the last process uses.
        model.nobody, model.last = nn.Linear(2, 2).to(device), nn.Linear(6, 5).to(device)
        model.forward = lambda x: _forward(model, x, rank, size)
    wrapped = _wrapped(torch, model, kind)
    alone = _MAKE[name](torch).to(device)
    if kind == "unused":
        alone.nobody, alone.last = nn.Linear(2, 2).to(device), nn.Linear(6, 5).to(device)
    state = {n.removeprefix("module."): v for n, v in wrapped.state_dict().items()}
    alone.load_state_dict({n.removeprefix("_orig_mod."): v for n, v in state.items()})
    both = [_optimizer(torch, m, kind) for m in (wrapped, alone)]
    generator = torch.Generator().manual_seed(1)
    loss, part = nn.functional.cross_entropy, BATCH // size
    for _ in range(steps):
        x, y = (t.to(device) for t in _data(torch, name, generator))
        mine = slice(part * rank, part * rank + part)
        for optimizer in both:
            optimizer.zero_grad()
        if kind == "accumulated":
            # The same examples twice, at half the weight: norms are those of the whole batch.
            with wrapped.no_sync():
                (loss(wrapped(x[mine]), y[mine].flatten()) / 2).backward()
            (loss(wrapped(x[mine]), y[mine].flatten()) / 2).backward()
        else:
            loss(wrapped(x[mine]), y[mine].flatten()).backward()
        whole = _forward_whole(torch, alone, x, part * (size - 1)) if kind == "unused" else alone(x)
        loss(whole, y.flatten()).backward()
        for optimizer in both:
            optimizer.step()
    if kind == "unused":
        assert model.nobody.weight.grad is None
    a, b = (torch.cat([p.detach().cpu().flatten() for p in m.parameters()]) for m in (model, alone))
    return float((a - b).norm() / b.norm())


def _layers(model: Either, x: Either) -> Either:
    for name, layer in model.named_children():
        if name.isdigit():
            x = layer(x)
    return x


def _forward(model: Either, x: Either, rank: int, size: int) -> Either:
    out = _layers(model, x)
    return out + model.last(x) if rank == size - 1 else out


def _forward_whole(torch: Either, model: Either, x: Either, first: int) -> Either:
    out = _layers(model, x)
    return torch.cat([out[:first], out[first:] + model.last(x[first:])])
