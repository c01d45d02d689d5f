"""Small models as users write them. Each goes through every mode; recipes are training steps of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.meet.library import Face, Input

Recipe = Callable[[Face, Any, int], Any]


@dataclass(frozen=True)
class Model:
    """A case that is written by hand."""

    name: str
    make: Callable[[Any], Any]
    inputs: tuple[Input, ...]
    low: str = "float32"
    drawn: bool = False
    recipe: Recipe | None = None

    def module(self, t: Any) -> Any:
        """The module, made with `t`."""
        return self.make(t)

    def pasted(self) -> str:
        """Its source."""
        return inspect.getsource(self.recipe or self.make)


MODELS: dict[str, Model] = {}
ROWS = Input("x", (4, 6), grad=True)
WORDS = Input("x", (2, 3, 4), grad=True)
PIXELS = Input("x", (2, 2, 6, 6), grad=True)
TOKENS = Input("x", (2, 5), "int64", below=7)


def model(
    *inputs: Input, low: str = "float32"
) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Add a model."""

    def add(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        MODELS[make.__name__] = Model(make.__name__, make, inputs, low)
        return make

    return add


def recipe(of: str, **other: Any) -> Callable[[Recipe], Recipe]:
    """Add a training step of a model."""

    def add(function: Recipe) -> Recipe:
        base = MODELS[of]
        name = function.__name__
        MODELS[name] = Model(name, base.make, base.inputs, recipe=function, **other)
        return function

    return add


@model(ROWS)
def mlp(t: Any) -> Any:
    return t.nn.Sequential(t.nn.Linear(6, 8), t.nn.GELU(), t.nn.LayerNorm(8), t.nn.Linear(8, 3))


@model(WORDS)
def encoder(t: Any) -> Any:
    return t.nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)


@model(WORDS, Input("y", (2, 5, 4)))
def decoder(t: Any) -> Any:
    return t.nn.TransformerDecoderLayer(4, 2, 6, dropout=0.0, batch_first=True)


@model(WORDS)
def lstm(t: Any) -> Any:
    return t.nn.LSTM(4, 3, num_layers=2, batch_first=True)


@model(WORDS)
def gru(t: Any) -> Any:
    class Last(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.head = t.nn.GRU(4, 3, bidirectional=True), t.nn.Linear(6, 2)

        def forward(self, x: Any) -> Any:
            out, h = self.gru(x)
            return self.head(out[-1]), h

    return Last()


@model(WORDS)
def cells(t: Any) -> Any:
    class Cells(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = t.nn.LSTMCell(4, 3)

        def forward(self, x: Any) -> Any:
            h = c = x.new_zeros(x.shape[0], 3)
            out = x.new_zeros(x.shape[0], x.shape[1], 3)
            for i in range(x.shape[1]):
                h, c = self.cell(x[:, i], (h, c))
                out[:, i] = h
            return out, c

    return Cells()


@model(PIXELS)
def cnn(t: Any) -> Any:
    return t.nn.Sequential(
        t.nn.Conv2d(2, 3, 3, padding=1),
        t.nn.BatchNorm2d(3),
        t.nn.ReLU(),
        t.nn.MaxPool2d(2),
        t.nn.Flatten(),
        t.nn.Linear(27, 4),
    )


@model(PIXELS)
def resnet(t: Any) -> Any:
    class Block(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (t.nn.Conv2d(2, 2, 3, padding=1, bias=False) for _ in range(2))
            self.n, self.m = t.nn.BatchNorm2d(2), t.nn.BatchNorm2d(2)
            self.act = t.nn.ReLU(inplace=True)

        def forward(self, x: Any) -> Any:
            h = self.act(self.n(self.a(x)))
            h = self.m(self.b(h))
            h += x
            return self.act(h)

    return Block()


@model(TOKENS)
def gpt(t: Any) -> Any:
    class Gpt(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = t.nn.Embedding(7, 4), t.nn.Embedding(8, 4)
            self.norm, self.qkv = t.nn.LayerNorm(4), t.nn.Linear(4, 12)
            self.out = t.nn.Linear(4, 4)
            self.head = t.nn.Linear(4, 7, bias=False)
            self.head.weight = self.tokens.weight
            self.register_buffer("mask", t.ones(8, 8).tril().bool(), persistent=False)

        def forward(self, x: Any) -> Any:
            n = x.shape[1]
            h = self.tokens(x) + self.places(t.arange(n, device=x.device))
            q, k, v = self.qkv(self.norm(h)).unflatten(-1, (3, 2, 2)).permute(2, 0, 3, 1, 4)
            s = (q @ k.mT / 2**0.5).masked_fill(~self.mask[:n, :n], float("-inf"))
            h = h + self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
            return self.head(h)

    return Gpt()


@model(ROWS)
def autoencoder(t: Any) -> Any:
    class Auto(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.up = t.nn.Linear(6, 2), t.nn.Linear(2, 6)

        def forward(self, x: Any) -> Any:
            z = self.down(x).tanh()
            return {"z": z, "loss": t.nn.functional.mse_loss(self.up(z), x)}

    return Auto()


@model(ROWS, Input("noise", (4, 2)))
def vae(t: Any) -> Any:
    class Vae(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.up = t.nn.Linear(6, 4), t.nn.Linear(2, 6)

        def forward(self, x: Any, noise: Any) -> Any:
            mu, log = self.down(x).chunk(2, -1)
            out = self.up(mu + noise * (log / 2).exp())
            kl = -0.5 * (1 + log - mu**2 - log.exp()).sum(-1).mean()
            return out, kl

    return Vae()


@model(ROWS)
def weight_norm(t: Any) -> Any:
    p = t.nn.utils.parametrizations
    return t.nn.Sequential(
        p.weight_norm(t.nn.Linear(6, 4)), t.nn.Tanh(), p.weight_norm(t.nn.Linear(4, 2), dim=None)
    )


@model(ROWS)
def spectral_norm(t: Any) -> Any:
    p = t.nn.utils.parametrizations
    return t.nn.Sequential(
        p.spectral_norm(t.nn.Linear(6, 4)),
        t.nn.Tanh(),
        p.orthogonal(t.nn.Linear(4, 4), orthogonal_map="cayley"),
    )


@model(TOKENS, Input("w", (2, 5)))
def bag(t: Any) -> Any:
    class Bag(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = t.nn.EmbeddingBag(7, 3, mode="sum", padding_idx=1)
            self.other = t.nn.EmbeddingBag(7, 3, mode="mean")

        def forward(self, x: Any, w: Any) -> Any:
            return self.bag(x, per_sample_weights=w) * self.other(x)

    return Bag()


@model(ROWS)
def experts(t: Any) -> Any:
    class Experts(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = t.nn.Linear(6, 3)
            self.parts = t.nn.ModuleList(t.nn.Linear(6, 2) for _ in range(3))

        def forward(self, x: Any) -> Any:
            p, which = self.gate(x).softmax(-1).topk(2)
            every = t.stack([part(x) for part in self.parts], 1)
            chosen = every.gather(1, which[..., None].expand(-1, -1, 2))
            return (p[..., None] * chosen).sum(1), which

    return Experts()


@model(ROWS)
def checkpointed_mlp(t: Any) -> Any:
    class Mlp(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = t.nn.Linear(6, 6), t.nn.Linear(6, 2)
            self.norm = t.nn.BatchNorm1d(6)

        def part(self, x: Any) -> Any:
            return self.norm(self.a(x)).tanh()

        def forward(self, x: Any) -> Any:
            return self.b(t.utils.checkpoint.checkpoint(self.part, x, use_reentrant=False))

    return Mlp()


@model(ROWS)
def custom(t: Any) -> Any:
    class Clipped(t.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x.clamp(-0.5, 0.5)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return g * (1 - x.tanh() ** 2)

    class Custom(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = t.nn.Linear(6, 4)

        def forward(self, x: Any) -> Any:
            return Clipped.apply(self.a(x)).sum(0)

    return Custom()


@model(ROWS)
def lora(t: Any) -> Any:
    class Lora(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = t.nn.Linear(6, 4).requires_grad_(False)
            self.a, self.b = t.nn.Parameter(t.zeros(2, 6)), t.nn.Parameter(t.zeros(4, 2))

        def forward(self, x: Any) -> Any:
            return self.base(x) + 0.5 * (x @ self.a.T @ self.b.T)

    return Lora()


@model(ROWS)
def averages(t: Any) -> Any:
    class Averages(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = t.nn.Linear(6, 4)
            self.register_buffer("mean", t.zeros(4))
            self.register_buffer("count", t.tensor(0))

        def forward(self, x: Any) -> Any:
            h = self.a(x)
            if self.training:
                with t.no_grad():
                    self.mean.lerp_(h.mean(0), 0.1)
                    self.count += 1
            return h - self.mean

    return Averages()


@model(PIXELS)
def unet(t: Any) -> Any:
    class Unet(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = t.nn.Conv2d(2, 3, 3, 2, 1), t.nn.ConvTranspose2d(3, 2, 2, 2)
            self.norm, self.end = t.nn.GroupNorm(1, 3), t.nn.Conv2d(4, 1, 1)

        def forward(self, x: Any) -> Any:
            h = t.nn.functional.silu(self.norm(self.a(x)))
            return self.end(t.cat([x, self.b(h)], 1))

    return Unet()


@model(PIXELS)
def patches(t: Any) -> Any:
    class Vit(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch = t.nn.Conv2d(2, 4, 3, 3)
            self.first = t.nn.Parameter(t.zeros(1, 1, 4))
            self.attend = t.nn.MultiheadAttention(4, 2, batch_first=True)
            self.norm, self.head = t.nn.LayerNorm(4), t.nn.Linear(4, 3)

        def forward(self, x: Any) -> Any:
            h = self.patch(x).flatten(2).transpose(1, 2)
            h = self.norm(t.cat([self.first.expand(len(x), -1, -1), h], 1))
            out, weights = self.attend(h, h, h)
            return self.head((h + out)[:, 0]), weights

    return Vit()


@model(ROWS, low="bfloat16")
def half(t: Any) -> Any:
    class Half(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = t.nn.Linear(6, 8), t.nn.Linear(8, 2)

        def forward(self, x: Any) -> Any:
            h = t.nn.functional.linear(x.to(t.bfloat16), self.a.weight.to(t.bfloat16))
            return self.b(h.relu().to(x.dtype))

    return Half()


@model(Input("x", (3, 4), "complex64", True))
def spectrum(t: Any) -> Any:
    class Spectrum(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = t.nn.Parameter(t.zeros(4, 2))

        def forward(self, x: Any) -> Any:
            y = t.fft.ifft(t.fft.fft(x) * t.view_as_complex(self.w))
            return y.abs().sum(-1), y

    return Spectrum()


@model(Input("x", (4, 4), grad=True))
def solver(t: Any) -> Any:
    class Solver(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.b = t.nn.Parameter(t.zeros(4, 2))

        def forward(self, x: Any) -> Any:
            a = x @ x.mT + 4 * t.eye(4, device=x.device, dtype=x.dtype)
            return t.linalg.solve(a, self.b), t.linalg.cholesky(a), t.logdet(a)

    return Solver()


@model(ROWS)
def shared(t: Any) -> Any:
    class Shared(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = t.nn.ModuleList([t.nn.Linear(6, 6)] * 2)
            self.scale = t.nn.ParameterDict({"a": t.nn.Parameter(t.ones(6))})

        def forward(self, x: Any) -> Any:
            out = []
            for cell in self.cells:
                x = cell(x).sin() * self.scale["a"]
                out.append(x)
            return {"last": x, "all": out}

    return Shared()


@model(ROWS)
def graph(t: Any) -> Any:
    class Graph(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = t.nn.Linear(6, 3)
            self.register_buffer("edges", t.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]]))

        def forward(self, x: Any) -> Any:
            h = self.a(x)
            there, to = self.edges
            messages = t.zeros_like(h).index_add_(0, to, h[there])
            degree = t.bincount(to, minlength=len(x)).to(h.dtype)
            return (messages / degree[:, None]).relu()

    return Graph()


def trained(face: Face, base: Model, seed: int) -> tuple[Any, list[Any]]:
    """The model, and batches."""
    m = face.fill(base.module(face.t), seed)
    data = [
        [face.tensor(Input(x.name, x.shape, x.dtype, below=x.below), seed + k) for x in base.inputs]
        for k in range(4)
    ]
    return m, data


@recipe("mlp")
def gan(face: Face, base: Model, seed: int) -> Any:
    t = face.t
    judge, ((noise,), *_) = trained(face, base, seed)
    maker = face.fill(t.nn.Sequential(t.nn.Linear(6, 6), t.nn.Tanh()), seed + 1)
    a, b = (
        t.optim.Adam(maker.parameters(), 0.01, eps=1e-2),
        t.optim.Adam(judge.parameters(), 0.02, eps=1e-2),
    )
    bce = t.nn.functional.binary_cross_entropy_with_logits

    def step(real: Any, noise: Any) -> Any:
        b.zero_grad()
        yes, no = judge(real), judge(maker(noise).detach())
        first = bce(yes, t.ones_like(yes)) + bce(no, t.zeros_like(no))
        first.backward()
        b.step()
        a.zero_grad()
        found = judge(maker(noise))
        second = bce(found, t.ones_like(found))
        second.backward()
        a.step()
        return first, second

    call = face.compile(step)
    _, data = trained(face, base, seed + 2)
    losses = [call(x, noise) for (x,) in data]
    return losses, list(maker.parameters()), list(judge.parameters())


@recipe("mlp")
def accumulated(face: Face, base: Model, seed: int) -> Any:
    m, data = trained(face, base, seed)
    optimizer = face.t.optim.AdamW(m.parameters(), 0.01, eps=1e-2)

    def part(x: Any) -> Any:
        loss = m(x).square().mean() / 2
        loss.backward()
        return loss

    call = face.compile(part)
    losses = []
    for k, (x,) in enumerate(data):
        losses.append(call(x))
        if k % 2:
            face.t.nn.utils.clip_grad_norm_(m.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
    return losses, list(m.parameters())


@recipe("cnn")
def clipped_and_averaged(face: Face, base: Model, seed: int) -> Any:
    t = face.t
    m, data = trained(face, base, seed)
    ema = t.optim.swa_utils.AveragedModel(
        m, multi_avg_fn=t.optim.swa_utils.get_ema_multi_avg_fn(0.8)
    )
    optimizer = t.optim.SGD(m.parameters(), 0.1, momentum=0.9, nesterov=True)
    schedule = t.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)

    def step(x: Any) -> Any:
        optimizer.zero_grad(set_to_none=False)
        loss = t.nn.functional.cross_entropy(m(x), t.tensor([0, 2], device=x.device))
        loss.backward()
        norm = t.nn.utils.clip_grad_norm_(m.parameters(), 0.5)
        optimizer.step()
        return loss, norm

    call = face.compile(step)
    found = []
    for (x,) in data:
        found.append(call(x))
        schedule.step()
        ema.update_parameters(m)
    return found, m.state_dict(), ema.state_dict()


@recipe("lstm")
def truncated(face: Face, base: Model, seed: int) -> Any:
    """Backpropagation through time, in pieces: the state goes on, its gradient does not."""
    m, data = trained(face, base, seed)
    optimizer = face.t.optim.RMSprop(m.parameters(), 0.01, eps=1e-2)

    def step(x: Any, h: Any, c: Any) -> Any:
        optimizer.zero_grad()
        out, (h, c) = m(x, (h, c))
        loss = out.square().mean()
        loss.backward()
        optimizer.step()
        return loss, h.detach(), c.detach()

    call = face.compile(step)
    h = c = face.t.zeros(2, 2, 3, device=face.device)
    losses = []
    for (x,) in data:
        loss, h, c = call(x, h, c)
        losses.append(loss)
    return losses, h, c, list(m.parameters())


@recipe("mlp")
def resumed(face: Face, base: Model, seed: int) -> Any:
    """Training goes on from what was saved, module and optimizer."""
    import copy

    t = face.t
    m, data = trained(face, base, seed)

    def steps(m: Any, optimizer: Any, batches: Any) -> Any:
        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = m(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        call = face.compile(step)
        return [call(x) for (x,) in batches]

    optimizer = t.optim.Adam(m.parameters(), 0.02, eps=1e-2, amsgrad=True)
    first = steps(m, optimizer, data[:2])
    other = face.fill(base.module(t), seed + 5)
    again = t.optim.Adam(other.parameters(), 0.5, eps=1e-2, amsgrad=True)
    other.load_state_dict(copy.deepcopy(m.state_dict()))
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return (
        first,
        steps(other, again, data[2:]),
        steps(m, optimizer, data[2:]),
        list(other.parameters()),
    )


@recipe("mlp")
def scaled(face: Face, base: Model, seed: int) -> Any:
    """A gradient penalty: gradients of inputs are part of the loss."""
    t = face.t
    m, data = trained(face, base, seed)
    optimizer = t.optim.SGD(m.parameters(), 0.1)

    def step(x: Any) -> Any:
        x = x.detach().requires_grad_()
        optimizer.zero_grad()
        (g,) = t.autograd.grad(m(x).square().sum(), x, create_graph=True)
        loss = (g.norm(dim=1) - 1).square().mean()
        loss.backward()
        optimizer.step()
        return loss, g

    call = face.compile(step)
    return [call(x)[0] for (x,) in data], list(m.parameters())


@recipe("mlp")
def newton(face: Face, base: Model, seed: int) -> Any:
    """LBFGS, whose closure runs the model several times."""
    m, ((x,), *_) = trained(face, base, seed)
    optimizer = face.t.optim.LBFGS(m.parameters(), lr=0.1, max_iter=3)
    call = face.compile(m)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = call(x).square().mean()
        loss.backward()
        return loss

    return [optimizer.step(closure) for _ in range(2)], list(m.parameters())
