"""The networks that the tests train, small enough for a software adapter. Imports PyTorch only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


def mlp() -> nn.Module:
    """The MLP of the thin thread: linear, gelu, layer norm."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 10))


class CNN(nn.Module):
    """Convolutions, batch norm, max and average pooling, dropout in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        # No biases before batch norm: their gradient is rounding noise, which Adam would magnify.
        self.first = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.first(x))), 2)
        x = F.avg_pool2d(F.relu(self.norm2(self.second(x))), 2, padding=1)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Block(nn.Module):
    """A transformer block before whose parts stand layer norms."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (
            y.view(b, t, self.heads, d // self.heads).transpose(1, 2)
            for y in self.qkv(self.norm1(x)).split(d, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).contiguous().view(b, t, d))
        return x + self.inner(self.norm2(x))


class GPT(nn.Module):
    """A GPT whose head is its embedding: tied weights."""

    def __init__(self, vocabulary: int = 32, width: int = 32, context: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(Block(width, 4), Block(width, 4))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.places(places))))


def rows(seed: int = 1) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    """Return a source of batches for the MLP."""
    g = torch.Generator().manual_seed(seed)
    return lambda: (torch.randn(8, 16, generator=g), torch.randint(0, 10, (8,), generator=g))


def images(seed: int = 1) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    """Return a source of batches for the CNN."""
    g = torch.Generator().manual_seed(seed)
    return lambda: (torch.randn(4, 1, 12, 12, generator=g), torch.randint(0, 10, (4,), generator=g))


def texts(seed: int = 1) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    """Return a source of batches for the GPT."""
    g = torch.Generator().manual_seed(seed)
    return lambda: (
        torch.randint(0, 32, (2, 16), generator=g),
        torch.randint(0, 32, (2, 16), generator=g),
    )


def train(
    model: nn.Module,
    batches: Callable[[], tuple[torch.Tensor, torch.Tensor]],
    device: str,
    steps: int = 20,
    optimizer: str = "Adam",
    clip: float | None = None,
    compiled: bool = False,
    **options: Any,
) -> list[float]:
    """Train with a learning rate that changes at every step; return the losses."""
    model = model.to(device)
    forward = torch.compile(model, backend="webgpu") if compiled else model
    opt = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-2, **options)
    losses = []
    for step in range(steps):
        for group in opt.param_groups:
            group["lr"] = 1e-2 * (1 - step / (2 * steps))
        x, y = (t.to(device) for t in batches())
        loss = F.cross_entropy(forward(x).flatten(0, -2), y.flatten())
        opt.zero_grad()
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
        losses.append(loss.item())
    return losses
