"""Networks of known shapes in plain PyTorch modules, with random weights: what benchmarks of PyTorch run.

Shapes: B batch, T tokens, S places of the cache, D width, H heads, G key heads, E size of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class DecoderSizes:
    """Sizes of a language model of Qwen2's kind."""

    layers: int = 24
    width: int = 896
    heads: int = 14
    key_heads: int = 2
    inner: int = 4864
    vocabulary: int = 151936
    places: int = 640


class RMSNorm(nn.Module):
    """Division by the root of the mean square, in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class DecoderLayer(nn.Module):
    """Attention with a cache that is written in place, and a gated inner layer."""

    def __init__(self, s: DecoderSizes) -> None:
        super().__init__()
        self.s = s
        self.size = s.width // s.heads
        self.norm1, self.norm2 = RMSNorm(s.width), RMSNorm(s.width)
        self.q = nn.Linear(s.width, s.width)
        self.k = nn.Linear(s.width, s.key_heads * self.size)
        self.v = nn.Linear(s.width, s.key_heads * self.size)
        self.o = nn.Linear(s.width, s.width, bias=False)
        self.gate = nn.Linear(s.width, s.inner, bias=False)
        self.up = nn.Linear(s.width, s.inner, bias=False)
        self.down = nn.Linear(s.inner, s.width, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, s.key_heads, s.places, self.size))

    def forward(
        self, x: Tensor, at: Tensor | None, cos: Tensor, sin: Tensor, mask: Tensor | None
    ) -> Tensor:
        B, T, _ = x.shape
        y = self.norm1(x)
        q = _rotated(self.q(y).view(B, T, -1, self.size).transpose(1, 2), cos, sin)
        k = _rotated(self.k(y).view(B, T, -1, self.size).transpose(1, 2), cos, sin)
        v = self.v(y).view(B, T, -1, self.size).transpose(1, 2)
        if at is not None:
            self.keys.index_copy_(2, at, k)
            self.values.index_copy_(2, at, v)
            k, v = self.keys, self.values
        y = F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=at is None, enable_gqa=True
        )  # (B, H, T, E)
        x = x + self.o(y.transpose(1, 2).reshape(B, T, -1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """A language model: logits of a text, or the next token with what came before in the cache."""

    def __init__(self, s: DecoderSizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(s.vocabulary, s.width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.layers = nn.ModuleList([DecoderLayer(s) for _ in range(s.layers)])
        self.norm = RMSNorm(s.width)
        size = s.width // s.heads
        steps = 1e6 ** (-torch.arange(0, size, 2) / size)
        self.register_buffer("angles", torch.outer(torch.arange(s.places), steps).repeat(1, 2))
        self.register_buffer("places", torch.arange(s.places))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits (B, V) after a text (B, T)."""
        x = self.embedding(tokens)
        angles = self.angles[: tokens.shape[1]]
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, None, cos, sin, None)
        return F.linear(self.norm(x[:, -1]), self.embedding.weight)

    def step(self, token: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """Return the next token (1, 1) after `token` at place `at` (1,), and its place."""
        x = self.embedding(token)
        angles = self.angles[at]
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        mask = (self.places <= at)[None, None, None]
        for layer in self.layers:
            x = layer(x, at, cos, sin, mask)
        logits = F.linear(self.norm(x[:, -1]), self.embedding.weight)
        return logits.argmax(-1, keepdim=True), at + 1


class Bottleneck(nn.Module):
    """A residual block of ResNet-50."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.side: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            self.side = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.side(x))


def resnet(depths: tuple[int, ...] = (3, 4, 6, 3), width: int = 64) -> nn.Module:
    """Return ResNet-50."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    before = width
    for stage, depth in enumerate(depths):
        for i in range(depth):
            inner = width << stage
            layers.append(Bottleneck(before, inner, 2 if stage and not i else 1))
            before = 4 * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000))


class Block(nn.Module):
    """A pre-norm transformer block; with `context`, its second attention reads another sequence."""

    def __init__(self, width: int, heads: int, context: int = 0, gated: bool = False) -> None:
        super().__init__()
        self.heads, self.gated, self.crossed = heads, gated, bool(context)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.inner = nn.Linear(width, (8 if gated else 4) * width)
        self.outer = nn.Linear(4 * width, width)
        if context:
            self.norm3 = nn.LayerNorm(width)
            self.q = nn.Linear(width, width, bias=False)
            self.kv = nn.Linear(context, 2 * width, bias=False)
            self.out3 = nn.Linear(width, width)

    def _attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        x = x + self.out(self._attention(*self.qkv(self.norm1(x)).chunk(3, -1)))
        if self.crossed:
            k, v = self.kv(context).chunk(2, -1)
            x = x + self.out3(self._attention(self.q(self.norm3(x)), k, v))
        y = self.inner(self.norm2(x))
        if self.gated:
            y, gate = y.chunk(2, -1)
            return x + self.outer(y * F.gelu(gate))
        return x + self.outer(F.gelu(y))


class ViT(nn.Module):
    """A vision transformer; ViT-B/16 by default."""

    def __init__(
        self, layers: int = 12, width: int = 768, heads: int = 12, image: int = 224, patch: int = 16
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, (image // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)  # (B, T, D)
        x = torch.cat((self.first.expand(x.shape[0], -1, -1), x), 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


class Residual(nn.Module):
    """Two convolutions with group norm, told the time."""

    def __init__(self, before: int, after: int, time: int, groups: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(groups, before), nn.Conv2d(before, after, 3, 1, 1)
        self.time = nn.Linear(time, after)
        self.norm2, self.conv2 = nn.GroupNorm(groups, after), nn.Conv2d(after, after, 3, 1, 1)
        self.side = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.side(x) + self.conv2(F.silu(self.norm2(y)))


class Spatial(nn.Module):
    """A transformer block over the places of an image."""

    def __init__(self, width: int, heads: int, context: int, groups: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, width)
        self.into, self.out = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.block = Block(width, heads, context, gated=True)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        B, D, height, width = x.shape
        y = self.into(self.norm(x)).flatten(2).transpose(1, 2)
        y = self.block(y, context).transpose(1, 2).reshape(B, D, height, width)
        return x + self.out(y)


class UNet(nn.Module):
    """The noise predictor of Stable Diffusion 1.5 in shape: 0.86e9 parameters by default."""

    def __init__(
        self,
        widths: tuple[int, ...] = (320, 640, 1280, 1280),
        heads: int = 8,
        context: int = 768,
        groups: int = 32,
    ) -> None:
        super().__init__()
        first, time = widths[0], 4 * widths[0]
        self.first = first
        self.time = nn.Sequential(nn.Linear(first, time), nn.SiLU(), nn.Linear(time, time))
        self.into = nn.Conv2d(4, first, 3, 1, 1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        last = len(widths) - 1

        def stage(before: int, after: int, attends: bool) -> nn.ModuleList:
            parts: list[nn.Module] = [Residual(before, after, time, groups)]
            if attends:
                parts.append(Spatial(after, heads, context, groups))
            return nn.ModuleList(parts)

        kept, now = [first], first
        for i, width in enumerate(widths):
            for _ in range(2):
                self.down.append(stage(now, width, i < last))
                now = width
                kept.append(now)
            if i < last:
                self.down.append(nn.ModuleList([nn.Conv2d(now, now, 3, 2, 1)]))
                kept.append(now)
        self.middle = nn.ModuleList(
            [Residual(now, now, time, groups), Spatial(now, heads, context, groups),
             Residual(now, now, time, groups)]
        )  # fmt: skip
        for i, width in reversed(list(enumerate(widths))):
            for _ in range(3):
                self.up.append(stage(now + kept.pop(), width, i < last))
                now = width
            if i:
                self.up.append(nn.ModuleList([nn.Conv2d(now, now, 3, 1, 1)]))
        self.out = nn.Sequential(nn.GroupNorm(groups, now), nn.SiLU(), nn.Conv2d(now, 4, 3, 1, 1))

    def forward(self, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
        half = self.first // 2
        steps = torch.exp(-9.21034 * torch.arange(half, device=x.device) / half)
        angles = time[:, None].float() * steps
        t = self.time(torch.cat((angles.cos(), angles.sin()), -1).to(x.dtype))

        def through(parts: nn.ModuleList, x: Tensor) -> Tensor:
            for part in parts:
                if isinstance(part, Residual):
                    x = part(x, t)
                elif isinstance(part, Spatial):
                    x = part(x, context)
                else:
                    x = part(x)
            return x

        x = self.into(x)
        kept = [x]
        for parts in self.down:
            x = through(parts, x)
            kept.append(x)
        x = through(self.middle, x)
        for parts in self.up:
            if isinstance(parts[0], nn.Conv2d):
                x = through(parts, F.interpolate(x, scale_factor=2.0))
            else:
                x = through(parts, torch.cat((x, kept.pop()), 1))
        return self.out(x)
