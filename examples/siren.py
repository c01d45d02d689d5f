"""A SIREN, a network of sines (Sitzmann et al., 2020), becomes a picture; its gradient is one too.

    python examples/siren.py                        # --device cpu or webgpu, --compile, --quick

Change the first import to `import torch` and the file runs in PyTorch.
"""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any

import webtorch as torch

nn, F = torch.nn, torch.nn.functional

# A bar that moves on a terminal, lines elsewhere.
END = "\r" if sys.stdout.isatty() else "\n"

SIZE, WIDTH, DEPTH, OMEGA = 48, 64, 3, 15.0


class Sine(nn.Module):
    """sin(OMEGA * (weight x + bias)), with the weights that keep its values spread out."""

    def __init__(self, inner: int, outer: int, first: bool = False) -> None:
        """Make the layer."""
        super().__init__()
        self.linear = nn.Linear(inner, outer)
        bound = 1 / inner if first else math.sqrt(6 / inner) / OMEGA
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x: Any) -> Any:
        """Return (N, outer)."""
        return torch.sin(OMEGA * self.linear(x))


def build() -> Any:
    """Return the model: places (N, 2) in [-1, 1] to brightness (N, 1)."""
    inner = [Sine(WIDTH, WIDTH) for _ in range(DEPTH - 1)]
    last = nn.Linear(WIDTH, 1)
    nn.init.uniform_(last.weight, -math.sqrt(6 / WIDTH) / OMEGA, math.sqrt(6 / WIDTH) / OMEGA)
    return nn.Sequential(Sine(2, WIDTH, first=True), *inner, last)


def brightness(y: float, x: float) -> float:
    """Return the picture at a place: a face under a striped hat."""
    if math.hypot(y - 0.25, x) < 0.6:
        eyes = min(math.hypot(y - 0.1, x - 0.22), math.hypot(y - 0.1, x + 0.22)) < 0.09
        mouth = abs(math.hypot(y - 0.2, x) - 0.36) < 0.05 and y > 0.36
        return -0.8 if eyes or mouth else 0.8
    if y < -0.25 and abs(x) < 0.35 + 0.3 * (y + 0.9):
        return math.sin(20 * y + 4 * x)
    return -0.5 + 0.3 * y


def batch(step: int, size: int = SIZE) -> tuple[Any, Any]:
    """Return all places (size * size, 2) and how bright they are (size * size, 1)."""
    line = [2 * (i + 0.5) / size - 1 for i in range(size)]
    places = [[y, x] for y in line for x in line]
    return torch.tensor(places), torch.tensor([[brightness(y, x)] for y, x in places])


def loss_of(model: Any, x: Any, y: Any) -> Any:
    """Return the mean square error."""
    return F.mse_loss(model(x), y)


def train(steps: int, device: str, compiled: bool = False) -> tuple[Any, list[float]]:
    """Return the trained model and the loss of each step."""
    torch.manual_seed(0)
    model = build().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, y = (t.to(device) for t in batch(0))

    def update() -> Any:
        loss = loss_of(model, x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    if compiled:
        update = torch.compile(update)
    losses = []
    for step in range(steps):
        losses.append(update().item())
        if (done := 30 * (step + 1) // steps) > 30 * step // steps:
            print(
                f"[{'#' * done:30}] {step + 1}/{steps}  loss {losses[-1]:.4f}", end=END, flush=True
            )
    print()
    return model, losses


def main() -> None:
    """Train, and draw the picture, what the network says, and where it changes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or webgpu")
    parser.add_argument("--compile", action="store_true", help="capture the training step")
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    options = parser.parse_args()
    model, _ = train(60 if options.quick else 500, options.device, options.compile)
    x, wanted = (t.to(options.device) for t in batch(0))
    x.requires_grad_()
    found = model(x)
    (slope,) = torch.autograd.grad(found.sum(), x)
    edges = slope.norm(dim=1, keepdim=True) / 6 - 1
    pictures = torch.stack([wanted, found.detach(), edges]).reshape(3, SIZE // 2, 2, SIZE).mean(2)
    for rows in zip(*pictures.tolist(), strict=True):
        shades = ([" .:+#"[max(0, min(4, int(2.5 * v + 2.5)))] for v in row] for row in rows)
        print(" | ".join("".join(row) for row in shades))
    error = F.mse_loss(found, wanted).item()
    print(f"peak signal to noise: {10 * math.log10(4 / error):.1f} dB")


if __name__ == "__main__":
    main()
