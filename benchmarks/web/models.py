"""The two networks that the browser benchmarks compare, small enough for a software adapter."""

from __future__ import annotations

import math
from typing import Any

import webtorch as torch
from webtorch import nn

F = nn.functional
BATCH, SIDE, CLASSES = 16, 8, 10
ROWS, LENGTH, VOCABULARY, WIDTH, HEADS, LAYERS = 4, 64, 64, 64, 4, 4
LR = 1e-3


class Digits(nn.Module):
    """The demo's CNN without its dropout: every library must compute the same."""

    def __init__(self) -> None:
        super().__init__()
        self.conv0, self.norm0 = nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.conv1, self.norm1 = nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64)
        self.conv2, self.norm2 = nn.Conv2d(64, 128, 3, padding=1), nn.BatchNorm2d(128)
        self.fc0, self.fc1 = nn.Linear(128 * 2 * 2, 128), nn.Linear(128, CLASSES)

    def forward(self, images: Any) -> Any:
        """Map pictures (N, 1, 8, 8) to scores (N, 10)."""
        x = F.relu(self.norm0(self.conv0(images)))
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        return self.fc1(F.relu(self.fc0(x.flatten(1))))


class Block(nn.Module):
    """Attention and a two-layer network, each after a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm0, self.norm1 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        """Map (N, T, width) to the same shape."""
        n, t, w = x.shape
        parts = self.qkv(self.norm0(x)).view(n, t, 3, HEADS, w // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, t, w))
        return x + self.down(F.gelu(self.up(self.norm1(x)), approximate="tanh"))


class GPT(nn.Module):
    """Four layers of width 64 over 64 characters."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Any) -> Any:
        """Map tokens (N, T) to scores (N, T, vocabulary)."""
        x = self.token(tokens) + self.place.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def made(name: str) -> tuple[Any, Any, tuple[Any, Any]]:
    """Return a model, its training step and a batch: "digits" or "gpt"."""
    torch.manual_seed(0)
    if name == "digits":
        model: Any = Digits()
        batch = torch.rand(BATCH, 1, SIDE, SIDE), torch.randint(0, CLASSES, (BATCH,))
    else:
        model = GPT()
        tokens = torch.randint(0, VOCABULARY, (ROWS, LENGTH + 1))
        batch = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)

    def train(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        scores = model(x)
        loss = F.cross_entropy(scores.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    return model, train, batch


def flops(name: str) -> float:
    """Return the operations of one forward pass."""
    if name == "digits":
        macs = 64 * 9 * 32 + 64 * 9 * 32 * 64 + 16 * 9 * 64 * 128 + 512 * 128 + 1280
        return 2.0 * BATCH * macs
    each = 12 * WIDTH * WIDTH + 2 * LENGTH * WIDTH
    return 2.0 * ROWS * LENGTH * (LAYERS * each + WIDTH * VOCABULARY)


def chance() -> float:
    """Return the loss of guessing among the characters."""
    return math.log(VOCABULARY)
