"""Real PyTorch on WebGPU: train a small network, eagerly and compiled.

    pip install ".[torch]"
    python examples/pytorch/mlp.py            # on "webgpu"
    python examples/pytorch/mlp.py cpu        # the same numbers from PyTorch's own CPU kernels

Nothing of webtorch is imported here: `import torch` finds the installed device by itself.
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn import functional as F


def spiral(count: int, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Return points on `classes` spiral arms, and the number of each point's arm."""
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % classes
    radius = torch.rand(count, generator=g)
    angle = labels * (2 * torch.pi / classes) + radius * 4 + torch.randn(count, generator=g) * 0.1
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), labels


def train(device: str, compiled: bool, steps: int = 200) -> float:
    """Train on the spiral; return the share of points that are classified rightly."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(2, 64),
        nn.GELU(),
        nn.LayerNorm(64),
        nn.Linear(64, 64),
        nn.GELU(),
        nn.Linear(64, 3),
    ).to(device)
    forward = torch.compile(model, backend="webgpu") if compiled else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    x, y = (t.to(device) for t in spiral(600))
    for step in range(steps):
        loss = F.cross_entropy(forward(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"  step {step:3}  loss {loss.item():.4f}")
    return (forward(x).argmax(1) == y).float().mean().item()


def main() -> None:
    """Train on the device named on the command line."""
    device = sys.argv[1] if len(sys.argv) > 1 else "webgpu"
    for compiled in (False, True) if device == "webgpu" else (False,):
        print(f"{device}, {'compiled' if compiled else 'eager'}")
        print(f"  accuracy {train(device, compiled):.3f}")


if __name__ == "__main__":
    main()
