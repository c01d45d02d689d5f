"""Programs of the kind that users bring, small: each runs with PyTorch, here, compiled here, and on WebGPU."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import webtorch
from tests.compile.test_users import World
from tests.conftest import need_device


def maml(w: World) -> Iterator[Any]:
    """Finn et al., 2017: a step on each task, and the derivative through the steps."""
    t, f = w.t, w.f
    shapes = ((1, 16), (16,), (16, 1), (1,))
    params = [(w.numbers(*s) * 0.4).requires_grad_() for s in shapes]
    optimizer = t.optim.Adam(params, 0.01)

    def net(ps: Any, x: Any) -> Any:
        return t.tanh(x @ ps[0] + ps[1]) @ ps[2] + ps[3]

    @w.compile
    def step(xs: Any, ys: Any, queries: Any, targets: Any) -> Any:
        optimizer.zero_grad()
        total = 0
        for i in range(xs.shape[0]):
            inner = f.mse_loss(net(params, xs[i]), ys[i])
            grads = t.autograd.grad(inner, params, create_graph=True)
            adapted = [p - 0.1 * g for p, g in zip(params, grads, strict=True)]
            total = total + f.mse_loss(net(adapted, queries[i]), targets[i])
        total.backward()
        optimizer.step()
        return total

    for _ in range(4):
        phase = w.numbers(3, 1, 1)
        x, q = w.numbers(3, 5, 1), w.numbers(3, 6, 1)
        yield step(x, t.sin(x + phase), q, t.sin(q + phase))
    yield from params


def pinn(w: World) -> Iterator[Any]:
    """A network that solves u'' = -pi^2 sin(pi x) with u(0) = u(1) = 0."""
    t = w.t
    net = w.mlp(1, 12, 12, 1)
    optimizer = t.optim.Adam(net.parameters(), 0.01)

    @w.compile
    def step(x: Any) -> Any:
        x = x.clone().requires_grad_()
        u = net(x)
        (slope,) = t.autograd.grad(u.sum(), x, create_graph=True)
        (curve,) = t.autograd.grad(slope.sum(), x, create_graph=True)
        residual = curve + math.pi**2 * t.sin(math.pi * x)
        ends = net(t.tensor([[0.0], [1.0]]))
        loss = residual.pow(2).mean() + 10 * ends.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(5):
        yield step(t.sigmoid(w.numbers(16, 1)))
    yield net(t.linspace(0, 1, 5).unsqueeze(1))


def neural_ode(w: World) -> Iterator[Any]:
    """Chen et al., 2018, with Runge and Kutta's fourth-order steps, fitted to a spiral."""
    t = w.t
    field = w.mlp(2, 16, 2)
    optimizer = t.optim.RMSprop(field.parameters(), 1e-2)

    def solve(y: Any, times: Any) -> Any:
        path = [y]
        for a, b in itertools.pairwise(times):
            h = b - a
            k1 = field(y**3)
            k2 = field((y + h / 2 * k1) ** 3)
            k3 = field((y + h / 2 * k2) ** 3)
            k4 = field((y + h * k3) ** 3)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            path.append(y)
        return t.stack(path)

    times = [0.1 * i for i in range(6)]

    @w.compile
    def step(start: Any, target: Any) -> Any:
        optimizer.zero_grad()
        loss = (solve(start, times) - target).abs().mean()
        loss.backward()
        t.nn.utils.clip_grad_norm_(field.parameters(), 1.0)
        optimizer.step()
        return loss

    for _ in range(4):
        start = t.tanh(w.numbers(4, 2))
        turned = [start * math.exp(-0.1 * s) * math.cos(2 * s) for s in times]
        yield step(start, t.stack(turned))
    yield from field.parameters()


def crf(w: World) -> Iterator[Any]:
    """A linear chain over an LSTM: forward algorithm, Viterbi, and ragged lengths by masks."""
    t, nn = w.t, w.nn
    tags, batch, length = 4, 3, 6

    class Tagger(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(11, 5)
            self.lstm = nn.LSTM(5, 3, bidirectional=True, batch_first=True)
            self.out = nn.Linear(6, tags)
            self.move = nn.Parameter(t.zeros(tags, tags))

        def scores(self, words: Any) -> Any:
            return self.out(self.lstm(self.embed(words))[0])

        def loss(self, words: Any, gold: Any, mask: Any) -> Any:
            scores = self.scores(words)
            alpha = scores[:, 0]
            path = scores[:, 0].gather(1, gold[:, :1]).squeeze(1)
            for i in range(1, words.shape[1]):
                spread = t.logsumexp(alpha.unsqueeze(2) + self.move, 1) + scores[:, i]
                alpha = t.where(mask[:, i : i + 1], spread, alpha)
                part = self.move[gold[:, i - 1], gold[:, i]]
                part = part + scores[:, i].gather(1, gold[:, i : i + 1]).squeeze(1)
                path = path + part * mask[:, i]
            return (t.logsumexp(alpha, 1) - path).mean()

        def decode(self, words: Any) -> Any:
            scores = self.scores(words)
            best, back = scores[:, 0], []
            for i in range(1, words.shape[1]):
                values, where = (best.unsqueeze(2) + self.move).max(1)
                best = values + scores[:, i]
                back.append(where)
            tag = best.argmax(1, keepdim=True)
            found = [tag]
            for where in reversed(back):
                tag = where.gather(1, tag)
                found.append(tag)
            return t.cat(found[::-1], 1)

    model = w.filled(Tagger())
    optimizer = t.optim.AdamW(model.parameters(), 0.05)

    @w.compile
    def step(words: Any, gold: Any, mask: Any) -> Any:
        optimizer.zero_grad()
        loss = model.loss(words, gold, mask)
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(4):
        words = t.tensor(w.random.randint(0, 11, (batch, length)))
        mask = t.arange(length) < t.tensor(w.random.randint(2, length + 1, (batch, 1)))
        yield step(words, words % tags, mask)
    yield w.compile(model.decode)(words)


def wavenet(w: World) -> Iterator[Any]:
    """Van den Oord et al., 2016: dilated causal convolutions with gates, residuals and skips."""
    t, nn, f = w.t, w.nn, w.f

    class Block(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self, width: int, dilation: int) -> None:
            super().__init__()
            self.pad = dilation
            self.conv = nn.utils.parametrizations.weight_norm(
                nn.Conv1d(width, 2 * width, 2, dilation=dilation)
            )
            self.out = nn.Conv1d(width, 2 * width, 1)

        def forward(self, x: Any) -> Any:
            a, b = self.conv(f.pad(x, (self.pad, 0))).chunk(2, 1)
            y, skip = self.out(t.tanh(a) * t.sigmoid(b)).chunk(2, 1)
            return x + y, skip

    class WaveNet(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Embedding(16, 6)
            self.blocks = nn.ModuleList(Block(6, 2**i) for i in range(3))
            self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(6, 8, 1), nn.ReLU(), nn.Conv1d(8, 16, 1))

        def forward(self, x: Any) -> Any:
            x, total = self.first(x).transpose(1, 2), 0
            for block in self.blocks:
                x, skip = block(x)
                total = total + skip
            return self.head(total)

    model = w.filled(WaveNet())
    optimizer = t.optim.Adam(model.parameters(), 0.01)
    schedule = t.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    @w.compile
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = f.cross_entropy(model(x[:, :-1]), x[:, 1:])
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss

    for _ in range(4):
        yield step(t.tensor(w.random.randint(0, 16, (2, 12))))
    heard = t.tensor([[3]])
    with t.no_grad():
        for _ in range(4):
            heard = t.cat([heard, model(heard)[:, :, -1].argmax(1, keepdim=True)], 1)
    yield heard


def simclr(w: World) -> Iterator[Any]:
    """Chen et al., 2020: two views of each picture, and the normalised temperature-scaled loss."""
    t, nn, f = w.t, w.nn, w.f
    encoder = w.filled(
        nn.Sequential(
            nn.Conv2d(3, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4),
        )
    )  # fmt: skip
    optimizer = t.optim.SGD(encoder.parameters(), 0.05, momentum=0.9, nesterov=True)

    @w.compile
    def step(a: Any, b: Any) -> Any:
        n = a.shape[0]
        z = f.normalize(encoder(t.cat([a, b])), dim=1)
        near = z @ z.t() / 0.5
        near = near.masked_fill(t.eye(2 * n, dtype=t.bool), float("-inf"))
        loss = f.cross_entropy(near, (t.arange(2 * n) + n) % (2 * n))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(4):
        x = w.numbers(4, 3, 8, 8)
        yield step(x.flip(3), t.roll(x, (1, -1), (2, 3)) * 0.9)
    yield encoder[1].running_mean
    yield encoder.eval()(x)


def mixture_of_experts(w: World) -> Iterator[Any]:
    """Top-2 routing with a loss that balances the load (Shazeer et al., 2017)."""
    t, nn, f = w.t, w.nn, w.f

    class Mixture(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self, width: int, experts: int) -> None:
            super().__init__()
            self.gate = nn.Linear(width, experts, bias=False)
            self.up = nn.Parameter(t.zeros(experts, width, 2 * width))
            self.down = nn.Parameter(t.zeros(experts, 2 * width, width))

        def forward(self, x: Any) -> Any:
            probabilities = self.gate(x).softmax(-1)
            weights, chosen = probabilities.topk(2, -1)
            weights = weights / weights.sum(-1, keepdim=True)
            out = t.zeros_like(x)
            for e in range(self.up.shape[0]):
                share = (weights * (chosen == e)).sum(-1, keepdim=True)
                out = out + share * (f.gelu(x @ self.up[e]) @ self.down[e])
            load = f.one_hot(chosen, self.up.shape[0]).float().mean((0, 1))
            return x + out, (load * probabilities.mean(0)).sum() * self.up.shape[0]

    model = w.filled(Mixture(6, 4))
    optimizer = t.optim.Adam(model.parameters(), 0.02)

    @w.compile
    def step(x: Any, y: Any) -> Any:
        out, balance = model(x)
        loss = f.smooth_l1_loss(out, y) + 0.01 * balance
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        return loss, balance

    for _ in range(4):
        x = w.numbers(10, 6)
        yield from step(x, x.cumsum(1).tanh())


def lora(w: World) -> Iterator[Any]:
    """Hu et al., 2021: a frozen network, low-rank changes of its layers, merged in the end."""
    t, nn, f = w.t, w.nn, w.f

    class Adapted(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self, layer: Any, rank: int) -> None:
            super().__init__()
            self.layer = layer.requires_grad_(False)
            self.a = nn.Parameter(w.numbers(rank, layer.in_features) * 0.3)
            self.b = nn.Parameter(t.zeros(layer.out_features, rank))

        def forward(self, x: Any) -> Any:
            return self.layer(x) + f.linear(f.linear(x, self.a), self.b) * 2.0

        def merge(self) -> Any:
            with t.no_grad():
                self.layer.weight += 2.0 * self.b @ self.a
            return self.layer

    model = w.mlp(5, 8, 8, 3)
    for name, child in list(model.named_children()):
        if isinstance(child, nn.Linear):
            setattr(model, name, Adapted(child, 2))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = t.optim.AdamW(trained, 0.05, weight_decay=0.1)
    step = w.step(model, optimizer)
    for _ in range(4):
        x = w.numbers(6, 5)
        yield step(x, x[:, :3] * 2)
    before = model(x)
    for name, child in list(model.named_children()):
        if isinstance(child, Adapted):
            setattr(model, name, child.merge())
    yield (model(x) - before).abs().max()
    yield len(trained) + 0 * before.sum()


def detector(w: World) -> Iterator[Any]:
    """A loss of the kind that YOLO has, on a grid of cells, and non-maximum suppression."""
    t, nn, f = w.t, w.nn, w.f
    cells, classes = 3, 2
    net = w.filled(
        nn.Sequential(
            nn.Conv2d(1, 4, 3, 2, 1), nn.LeakyReLU(0.1), nn.Conv2d(4, 8, 3, 2, 1), nn.SiLU(),
            nn.Conv2d(8, 5 + classes, 1),
        )
    )  # fmt: skip
    optimizer = t.optim.Adam(net.parameters(), 0.01)

    def boxes_of(raw: Any) -> Any:
        rows, columns = t.meshgrid(t.arange(cells), t.arange(cells), indexing="ij")
        x = (raw[..., 0].sigmoid() + columns) / cells
        y = (raw[..., 1].sigmoid() + rows) / cells
        size = raw[..., 2:4].clamp(max=2).exp() / cells
        middle = t.stack([x, y], -1)
        return t.cat([middle - size / 2, middle + size / 2], -1)

    def overlap(a: Any, b: Any) -> Any:
        low, high = t.maximum(a[..., :2], b[..., :2]), t.minimum(a[..., 2:], b[..., 2:])
        inner = (high - low).clamp(min=0).prod(-1)
        areas = [(x[..., 2:] - x[..., :2]).prod(-1) for x in (a, b)]
        return inner / (areas[0] + areas[1] - inner + 1e-6)

    @w.compile
    def step(pictures: Any, boxes: Any, labels: Any, there: Any) -> Any:
        raw = net(pictures).permute(0, 2, 3, 1)
        iou = overlap(boxes_of(raw), boxes)
        found = f.binary_cross_entropy_with_logits(raw[..., 4], iou.detach().clamp(0) * there)
        kind = f.cross_entropy(raw[..., 5:].flatten(0, 2), labels.flatten(), reduction="none")
        kind = (kind * there.flatten()).sum() / there.sum()
        loss = ((1 - iou) * there).sum() / there.sum() + found + kind
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(3):
        pictures = w.numbers(2, 1, 10, 10)
        there = t.tensor(w.random.rand(2, cells, cells) < 0.4)
        low = t.tensor(w.random.rand(2, cells, cells, 2).astype(np.float32)) * 0.6
        boxes = t.cat([low, low + 0.3], -1)
        yield step(
            pictures, boxes, t.tensor(w.random.randint(0, classes, (2, cells, cells))), there
        )
    with t.no_grad():
        raw = net(pictures)[0].permute(1, 2, 0)
        boxes, scores = boxes_of(raw).flatten(0, 1), raw[..., 4].sigmoid().flatten()
        order, kept = scores.argsort(descending=True), []
        while order.numel():
            kept.append(int(order[0]))
            order = order[1:][overlap(boxes[order[0]], boxes[order[1:]]) < 0.3]
        yield boxes[kept]


def graph_network(w: World) -> Iterator[Any]:
    """Graph convolutions and attention over edges by scattering (Kipf and Welling; Velickovic et al.)."""
    t, nn, f = w.t, w.nn, w.f
    nodes = 9
    ends = t.tensor(np.concatenate([w.random.randint(0, nodes, (2, 20)), [range(nodes)] * 2], 1))

    class Attention(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.lin = nn.Linear(inputs, outputs, bias=False)
            self.score = nn.Linear(2 * outputs, 1)

        def forward(self, x: Any) -> Any:
            h = self.lin(x)
            source, target = ends
            e = f.leaky_relu(self.score(t.cat([h[source], h[target]], 1)).squeeze(1), 0.2)
            top = t.full((nodes,), -1e9).scatter_reduce(0, target, e, "amax")
            weight = (e - top[target]).exp()
            total = t.zeros(nodes).index_add(0, target, weight)
            weight = weight / total[target]
            return t.zeros(nodes, h.shape[1]).index_add(0, target, weight.unsqueeze(1) * h[source])

    model = w.filled(nn.Sequential(Attention(4, 8), nn.ELU(), Attention(8, 3)))
    optimizer = t.optim.Adam(model.parameters(), 0.02, weight_decay=5e-4)
    x, labels = w.numbers(nodes, 4), t.tensor(w.random.randint(0, 3, nodes))
    known = t.tensor([True] * 5 + [False] * 4)

    @w.compile
    def step() -> Any:
        optimizer.zero_grad()
        loss = f.nll_loss(model(x).log_softmax(1), t.where(known, labels, -100))
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(5):
        yield step()
    yield model(x).argmax(1)


def unsupervised(w: World) -> Iterator[Any]:
    """k-means, principal components and a t-SNE in tensor code."""
    t = w.t
    x = t.cat([w.numbers(8, 5) + 4, w.numbers(8, 5) - 4, w.numbers(8, 5)])

    @w.compile
    def assign(centres: Any) -> Any:
        near = t.cdist(x, centres).argmin(1)
        chosen = (near.unsqueeze(1) == t.arange(3)).float()
        return chosen.t() @ x / chosen.sum(0).clamp(min=1).unsqueeze(1), near

    centres = x[[0, 8, 16]]
    for _ in range(4):
        centres, near = assign(centres)
    yield from (centres, near)

    centred = x - x.mean(0)
    # LAPACK's: WebGPU has no eigenvalues of its own.
    values, vectors = t.linalg.eigh((centred.t() @ centred).cpu() / (len(x) - 1))
    vectors = vectors.to(x.device)
    yield values
    plane = centred @ vectors[:, -2:]
    yield plane.abs()
    squares = t.cdist(x, x).square()
    p = (-squares / 20).exp() * (1 - t.eye(len(x)))
    p = p / p.sum(1, keepdim=True)
    p = ((p + p.t()) / (2 * len(x))).clamp(min=1e-12)
    y = (0.1 * plane.abs()).clone().requires_grad_()
    optimizer = t.optim.SGD([y], 5.0, momentum=0.5)

    @w.compile
    def embed() -> Any:
        optimizer.zero_grad()
        q = 1 / (1 + t.cdist(y, y).square()) * (1 - t.eye(len(x)))
        q = (q / q.sum()).clamp(min=1e-12)
        loss = (p * (p / q).log()).sum()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(4):
        yield embed()


PROGRAMS: tuple[Callable[[World], Iterator[Any]], ...] = (
    maml, pinn, neural_ode, crf, wavenet, simclr, mixture_of_experts, lora, detector, graph_network,
    unsupervised,
)  # fmt: skip


def _run(program: Callable[[World], Iterator[Any]], world: World) -> list[Any]:
    return [np.array(v.tolist()) for v in program(world)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("how", ["eager", "compiled", "webgpu"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_a_program_computes_what_it_computes_with_pytorch(program: Any, how: str) -> None:
    place = "webgpu" if how == "webgpu" else "cpu"
    need_device(place)
    expected = _run(program, World(torch, lambda f: f))
    with webtorch.device(place):
        found = _run(
            program, World(webtorch, (lambda f: f) if how == "eager" else webtorch.compile)
        )
    assert len(found) == len(expected)
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-5, err_msg=f"value {number}")
