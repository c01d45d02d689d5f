"""The captured functions that the browser tests export."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import webtorch as torch
from webtorch import nn

F = nn.functional


class MLP(nn.Module):
    """Linear, GELU, layer norm, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 48)
        self.norm = nn.LayerNorm(48)
        self.last = nn.Linear(48, 5)

    def forward(self, x: Any) -> Any:
        return self.last(self.norm(F.gelu(self.first(x))))


def batches(count: int, device: str) -> list[tuple[Any, Any]]:
    """Return batches whose labels can be learned from the inputs."""
    torch.manual_seed(7)
    with torch.device(device):
        rule = torch.randn(12, 5)
        out = []
        for _ in range(count):
            x = torch.randn(16, 12)
            out.append((x, (x @ rule).argmax(1)))
        return out


def training(device: str) -> tuple[MLP, Any, Callable[[Any, Any], Any]]:
    """Return the same model each time, its optimizer, and a training step."""
    torch.manual_seed(3)
    with torch.device(device):
        model = MLP()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def train(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return model, optimizer, train


def rate(step: int) -> float:
    """Return the learning rate of a step: it changes at each."""
    return 1e-2 * (0.9**step) + 1e-3 * (step % 3)
