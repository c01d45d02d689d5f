"""Capability rows I: modules as users write them, against PyTorch with the same weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch
from tests.capabilities.same import close, ours, rows, same, values

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")

nn = webtorch.nn


def pair(make: Callable[[Any], Any], device: str) -> tuple[Any, Any]:
    """Return a module of ours and PyTorch's, with PyTorch's weights in both."""
    torch.manual_seed(0)
    theirs, mine = make(torch.nn).double(), make(nn)
    mine.load_state_dict({k: ours(v, "cpu") for k, v in theirs.state_dict().items()})
    return mine.to(device), theirs


def same_module(
    make: Callable[[Any], Any], *inputs: torch.Tensor, device: str, tolerance: float = 1e-4
) -> None:
    """Assert equal outputs and gradients of all parameters."""
    mine, theirs = pair(make, device)
    a, b = mine(*[ours(x, device) for x in inputs]), theirs(*inputs)
    a, b = (x[0] if isinstance(x, tuple) else x for x in (a, b))
    close(a, b, tolerance, tolerance)
    (a * a).sum().backward()
    (b * b).sum().backward()
    for (name, p), (other, q) in zip(
        mine.named_parameters(), theirs.named_parameters(), strict=True
    ):
        assert name == other
        if q.grad is not None:
            close(p.grad, q.grad, 10 * tolerance, 10 * tolerance)


LAYERS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "I7 I9": (lambda n: n.Sequential(n.Linear(6, 8), n.ReLU(), n.Linear(8, 3, bias=False)), (4, 6)),
    "I11": (lambda n: n.LayerNorm((4, 6)), (3, 4, 6)),
    "I12": (lambda n: n.RMSNorm(6), (3, 4, 6)),
    "I13": (lambda n: n.GroupNorm(2, 4), (3, 4, 6)),
    "I14": (lambda n: n.InstanceNorm2d(4, affine=True), (2, 4, 5, 6)),
    "I15": (lambda n: n.Conv2d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2), (2, 4, 9, 8)),
    "I16": (
        lambda n: n.Sequential(
            n.Conv1d(4, 6, 3, padding="same"), n.ConvTranspose1d(6, 2, 4, 2, output_padding=1)
        ),
        (2, 4, 9),
    ),
    "I18": (
        lambda n: n.Sequential(
            n.ReLU(), n.GELU(), n.SiLU(), n.Tanh(), n.Sigmoid(), n.Softplus(), n.LeakyReLU(0.1), n.ELU(), n.Softmax(1),
            n.Linear(4, 2),
        ),
        (3, 4),
    ),
    "I26": (
        lambda n: n.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True),
        (2, 5, 8),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", rows(LAYERS))
def test_layer(case: tuple[Callable[[Any], Any], tuple[int, ...]], device: str) -> None:
    make, shape = case
    same_module(make, values(*shape, seed=1), device=device)


class Net(nn.Module):
    """A small tree with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 2)])
        self.scale = nn.Parameter(webtorch.ones(2))
        self.register_buffer("count", webtorch.zeros(1))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.drop(x * self.scale)


@pytest.mark.covers("I1", "I2", "I3", "I8", "I34")
def test_the_tree_and_its_names() -> None:
    net = Net()
    names = ["scale", "layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"]
    assert [n for n, _ in net.named_parameters()] == names
    assert [n for n, _ in net.named_buffers()] == ["count"]
    assert [n for n, _ in net.named_children()] == ["layers", "drop"]
    assert [n for n, _ in net.named_modules()] == ["", "layers", "layers.0", "layers.1", "drop"]
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in net.parameters())


@pytest.mark.covers("I4", "I17")
def test_train_and_eval(device: str) -> None:
    webtorch.manual_seed(0)
    net = Net().to(device)
    x = webtorch.ones(64, 3, device=device)
    assert (net.train()(x) == 0).any().item()
    assert (net.eval()(x) != 0).all().item()
    assert not net.drop.training


@pytest.mark.covers("I5", "I6")
def test_state_dict_round_trip(device: str) -> None:
    one, two = Net().to(device).eval(), Net().eval()
    assert str(two.load_state_dict(one.state_dict())) == "<All keys matched successfully>"
    x = values(4, 3)
    close(two(ours(x, "cpu")), torch.tensor(one(ours(x, device)).tolist()).double())
    broken = one.state_dict()
    del broken["scale"]
    with pytest.raises(RuntimeError, match="scale"):
        two.load_state_dict(broken)
    assert two.load_state_dict(broken, strict=False).missing_keys == ["scale"]


@pytest.mark.covers("I10")
def test_embedding(device: str) -> None:
    same_module(
        lambda n: n.Embedding(7, 4, padding_idx=2), torch.tensor([[1, 2], [6, 1]]), device=device
    )


@pytest.mark.covers("I19")
def test_multi_head_attention(device: str) -> None:
    x, y = values(2, 5, 8), values(2, 3, 8, seed=1)
    same_module(lambda n: n.MultiheadAttention(8, 2, batch_first=True), x, y, y, device=device)


@pytest.mark.one_in(2)
@pytest.mark.covers("I20")
def test_attention_with_masks_and_fewer_key_heads(device: str) -> None:
    def attend(t: Any, q: Any, k: Any, v: Any, bias: Any) -> Any:
        attention = t.nn.functional.scaled_dot_product_attention
        causal = t.ones(5, 5, dtype=t.bool, device=q.device).tril()
        return (
            attention(q, k, v, enable_gqa=True),
            attention(q, k, v, is_causal=True, enable_gqa=True),
            attention(q, k, v, attn_mask=causal, scale=0.3, enable_gqa=True),
            attention(q, k, v, attn_mask=bias, enable_gqa=True),
        )

    shapes = [(2, 4, 5, 6), (2, 2, 5, 6), (2, 2, 5, 6), (5, 5)]
    same(
        attend,
        *[values(*s, seed=i) for i, s in enumerate(shapes)],
        device=device,
        rtol=1e-4,
        atol=1e-4,
    )


def _rotate(t: Any, x: Any) -> Any:
    length, width = x.shape[-2:]
    position = t.arange(length, device=x.device, dtype=x.dtype)[:, None]
    frequency = 10_000 ** (-t.arange(0, width, 2, device=x.device, dtype=x.dtype) / width)
    angle = position * frequency
    a, b = x[..., ::2], x[..., 1::2]
    return t.stack(
        [a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1
    ).flatten(-2)


@pytest.mark.covers("I22")
def test_rotary_positions_make_scores_relative(device: str) -> None:
    same(_rotate, values(2, 3, 5, 8), device=device)
    x = _rotate(webtorch, webtorch.ones(6, 8, device=device))
    scores = x @ x.t()
    assert (scores[0, 2] - scores[3, 5]).abs().item() < 1e-4


@pytest.mark.covers("I23")
def test_sinusoidal_positions(device: str) -> None:
    place = webtorch.arange(50, device=device)[:, None]
    rate = webtorch.exp(webtorch.arange(0, 16, 2, device=device) * (-math.log(10_000) / 16))
    table = webtorch.stack([(place * rate).sin(), (place * rate).cos()], -1).flatten(1)
    expected = torch.tensor(
        [
            [(math.sin, math.cos)[i % 2](p / 10_000 ** (2 * (i // 2) / 16)) for i in range(16)]
            for p in range(50)
        ],
        dtype=torch.float64,
    )
    close(table, expected, atol=1e-5)


@pytest.mark.covers("I24")
def test_a_swiglu_mlp(device: str) -> None:
    def mlp(n: Any) -> Any:
        functional = nn.functional if n is nn else torch.nn.functional

        class MLP(n.Module):
            def __init__(self) -> None:
                super().__init__()
                self.gate, self.up = n.Linear(6, 10, bias=False), n.Linear(6, 10, bias=False)
                self.down = n.Linear(10, 6, bias=False)

            def forward(self, x: Any) -> Any:
                return self.down(functional.silu(self.gate(x)) * self.up(x))

        return MLP()

    same_module(mlp, values(3, 6), device=device)


@pytest.mark.covers("I27")
def test_a_key_value_cache_gives_what_the_whole_sequence_gives(device: str) -> None:
    attention = nn.functional.scaled_dot_product_attention
    q, k, v = (ours(values(2, 2, 6, 4, seed=i), device) for i in range(3))
    whole = attention(q, k, v, is_causal=True)
    keys, vals = (
        webtorch.zeros(2, 2, 6, 4, device=device),
        webtorch.zeros(2, 2, 6, 4, device=device),
    )
    seen = webtorch.arange(6, device=device)
    for i in range(6):
        keys[:, :, i : i + 1], vals[:, :, i : i + 1] = k[:, :, i : i + 1], v[:, :, i : i + 1]
        step = attention(q[:, :, i : i + 1], keys, vals, attn_mask=(seen <= i)[None])
        close(step, torch.tensor(whole[:, :, i : i + 1].tolist()).double())


@pytest.mark.covers("I30", "I31", "I32", "I33")
def test_initial_values_have_pytorchs_spread() -> None:
    webtorch.manual_seed(0)
    gain = nn.init.calculate_gain("relu")
    assert gain == torch.nn.init.calculate_gain("relu")
    for name, deviation in [
        ("kaiming_normal_", gain / math.sqrt(400)),
        ("kaiming_uniform_", math.sqrt(2 / 400)),
        ("xavier_normal_", math.sqrt(2 / 700)),
        ("xavier_uniform_", math.sqrt(2 / 700)),
    ]:
        w = getattr(nn.init, name)(webtorch.empty(300, 400))
        assert w.std().item() == pytest.approx(deviation, rel=0.03), name
    q = nn.init.orthogonal_(webtorch.empty(10, 20))
    close(q @ q.t(), torch.eye(10).double(), atol=1e-5)
    assert nn.init.zeros_(webtorch.ones(3)).sum().item() == 0
    assert nn.init.ones_(webtorch.empty(3)).sum().item() == 3
    assert nn.init.normal_(webtorch.empty(5000), 1.0, 0.1).std().item() == pytest.approx(
        0.1, rel=0.1
    )


def _time_embedding(t: Any, steps: Any, width: int) -> Any:
    angles = steps[:, None] * t.exp(
        -math.log(1e4) * t.arange(width // 2, device=steps.device) / (width // 2)
    )
    return t.cat([angles.sin(), angles.cos()], -1).to(steps.dtype)


@pytest.mark.long
@pytest.mark.covers("I28")
def test_a_conditional_unet_of_diffusion_models(device: str) -> None:
    """Residual blocks with a time embedding, attention to the picture and to a text, skips between the halves."""

    def unet(n: Any) -> Any:
        t = webtorch if n is nn else torch
        functional = n.functional

        class Block(n.Module):
            def __init__(self, before: int, after: int) -> None:
                super().__init__()
                self.first, self.time = n.GroupNorm(2, before), n.Linear(8, after)
                self.a = n.Conv2d(before, after, 3, padding=1)
                self.second, self.b = n.GroupNorm(2, after), n.Conv2d(after, after, 3, padding=1)
                self.skip = n.Conv2d(before, after, 1) if before != after else n.Identity()

            def forward(self, x: Any, time: Any) -> Any:
                h = self.a(functional.silu(self.first(x)))
                h = h + self.time(functional.silu(time))[:, :, None, None]
                return self.skip(x) + self.b(functional.silu(self.second(h)))

        class Attention(n.Module):
            def __init__(self, width: int) -> None:
                super().__init__()
                self.norms = n.ModuleList(n.LayerNorm(width) for _ in range(3))
                self.own = n.MultiheadAttention(width, 2, batch_first=True)
                self.cross = n.MultiheadAttention(width, 2, kdim=6, vdim=6, batch_first=True)
                self.up, self.down = n.Linear(width, 4 * width), n.Linear(2 * width, width)

            def forward(self, x: Any, text: Any) -> Any:
                h = x.flatten(2).transpose(1, 2)
                y = self.norms[0](h)
                h = h + self.own(y, y, y, need_weights=False)[0]
                h = h + self.cross(self.norms[1](h), text, text, need_weights=False)[0]
                value, gate = self.up(self.norms[2](h)).chunk(2, -1)
                h = h + self.down(value * functional.gelu(gate))
                return h.transpose(1, 2).reshape(x.shape)

        class UNet(n.Module):
            def __init__(self) -> None:
                super().__init__()
                self.time = n.Sequential(n.Linear(8, 8), n.SiLU(), n.Linear(8, 8))
                self.start, self.down1 = n.Conv2d(3, 4, 3, padding=1), Block(4, 4)
                self.pool, self.down2 = n.Conv2d(4, 4, 3, 2, 1), Block(4, 8)
                self.attention, self.middle = Attention(8), Block(8, 8)
                self.grow, self.up = n.Conv2d(8, 4, 3, padding=1), Block(8, 4)
                self.end = n.Sequential(n.GroupNorm(2, 4), n.SiLU(), n.Conv2d(4, 3, 3, padding=1))

            def forward(self, x: Any, steps: Any, text: Any) -> Any:
                time = self.time(_time_embedding(t, steps, 8))
                high = self.down1(self.start(x), time)
                low = self.attention(self.down2(self.pool(high), time), text)
                low = self.middle(low, time)
                wide = self.grow(functional.interpolate(low, scale_factor=2.0, mode="nearest"))
                return self.end(self.up(t.cat([wide, high], 1), time))

        return UNet()

    steps = torch.tensor([3.0, 700.0], dtype=torch.float64)
    text = values(2, 5, 6, seed=2)
    same_module(unet, values(2, 3, 8, 8), steps, text, device=device, tolerance=2e-3)


@pytest.mark.long
@pytest.mark.covers("I29")
def test_a_deep_signed_distance_function_learns_shapes(device: str) -> None:
    """A decoder of (code, point) to distance; codes and decoder are learnt together, as DeepSDF does."""

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = [(6, 32), (32, 26), (32, 32), (32, 1)]
            self.layers = nn.ModuleList(
                nn.utils.parametrizations.weight_norm(nn.Linear(*s)) for s in sizes
            )

        def forward(self, code: Any, point: Any) -> Any:
            given = webtorch.cat([code, point], -1)
            h = given
            for i, layer in enumerate(self.layers):
                h = layer(webtorch.cat([h, given], -1) if i == 2 else h)
                h = h.relu() if i < 3 else h.tanh()
            return h.squeeze(-1)

    webtorch.manual_seed(0)
    decoder = Decoder().to(device)
    codes = nn.Embedding(2, 4, max_norm=1.0).to(device)
    nn.init.normal_(codes.weight, std=0.1)
    optimizer = webtorch.optim.Adam(
        [{"params": decoder.parameters(), "lr": 3e-3}, {"params": codes.parameters(), "lr": 3e-2}]
    )
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(128, 2, generator=generator) * 2 - 1
    shape = torch.arange(128) % 2
    # A disc of radius 0.5 and a square of half side 0.4.
    disc = points.norm(dim=1) - 0.5
    square = points.abs().amax(1) - 0.4
    target = ours(torch.where(shape == 0, disc, square).clamp(-0.2, 0.2).double(), device)
    x, which = ours(points.double(), device), ours(shape, device)
    losses = []
    for _ in range(60):
        code = codes(which)
        loss = nn.functional.l1_loss(decoder(code, x).clamp(-0.2, 0.2), target)
        loss = loss + 1e-4 * code.square().sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.35 * losses[0], losses[::10]
    assert (codes.weight[0] - codes.weight[1]).abs().max().item() > 0.05
