"""A Kolmogorov-Arnold network (Liu et al., 2024): what is learned are curves, and here they are drawn.

    python examples/kan.py                          # --device cpu or webgpu, --compile, --quick

It fits exp(sin(pi a) + b^2), and its curves look like the parts. Change the first import to
`import torch` and the file runs in PyTorch.
"""

from __future__ import annotations

import argparse
import random
import sys
from typing import Any

import webtorch as torch

nn, F = torch.nn, torch.nn.functional

# A bar that moves on a terminal, lines elsewhere.
END = "\r" if sys.stdout.isatty() else "\n"

GRID, DEGREE = 6, 3


class KANLayer(nn.Module):
    """Every output is a sum of learned curves, one of each input: B-splines plus a bit of SiLU."""

    def __init__(self, inner: int, outer: int, low: float, high: float) -> None:
        """Make curves over [low, high]."""
        super().__init__()
        step = (high - low) / GRID
        knots = torch.arange(-DEGREE, GRID + DEGREE + 1) * step + low
        self.register_buffer("knots", knots)
        self.curves = nn.Parameter(0.1 * torch.randn(outer, inner, GRID + DEGREE))
        self.plain = nn.Parameter(torch.randn(outer, inner) / inner**0.5)

    def bases(self, x: Any) -> Any:
        """Return the B-splines (N, inner, GRID + DEGREE) at x (N, inner), by Cox and de Boor."""
        x, t = x.unsqueeze(-1), self.knots
        found = ((x >= t[:-1]) & (x < t[1:])).to(x.dtype)
        for d in range(1, DEGREE + 1):
            rising = (x - t[: -d - 1]) / (t[d:-1] - t[: -d - 1])
            falling = (t[d + 1 :] - x) / (t[d + 1 :] - t[1:-d])
            found = rising * found[..., :-1] + falling * found[..., 1:]
        return found

    def forward(self, x: Any) -> Any:
        """Return (N, outer)."""
        return torch.einsum("nik,oik->no", self.bases(x), self.curves) + F.silu(x) @ self.plain.T


def build() -> Any:
    """Return the model: (N, 2) to (N, 1) over one curve in the middle."""
    return nn.Sequential(KANLayer(2, 1, -1.0, 1.0), KANLayer(1, 1, -3.0, 3.0))


def batch(step: int, size: int = 256) -> tuple[Any, Any]:
    """Return places (N, 2) in [-1, 1] and the function there (N, 1)."""
    draw = random.Random(step)
    x = torch.tensor([[draw.uniform(-1, 1), draw.uniform(-1, 1)] for _ in range(size)])
    return x, torch.exp(torch.sin(torch.pi * x[:, :1]) + x[:, 1:] ** 2)


def loss_of(model: Any, x: Any, y: Any) -> Any:
    """Return the mean square error."""
    return F.mse_loss(model(x), y)


def train(steps: int, device: str, compiled: bool = False) -> tuple[Any, list[float]]:
    """Return the trained model and the loss of each step."""
    torch.manual_seed(0)
    model = build().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=1e-3)

    def update(x: Any, y: Any) -> Any:
        loss = loss_of(model, x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    if compiled:
        update = torch.compile(update)
    losses = []
    for step in range(steps):
        x, y = (t.to(device) for t in batch(step))
        losses.append(update(x, y).item())
        schedule.step()
        if (done := 30 * (step + 1) // steps) > 30 * step // steps:
            print(
                f"[{'#' * done:30}] {step + 1}/{steps}  loss {losses[-1]:.4f}", end=END, flush=True
            )
    print()
    return model, losses


@torch.no_grad()
def curve(layer: Any, input: int) -> list[float]:
    """Return the curve from an input of a layer to its output, at 40 places."""
    low, high = layer.knots[DEGREE].item(), layer.knots[-DEGREE - 1].item()
    x = torch.linspace(low, high - 1e-4, 40, device=layer.knots.device)
    x = x.unsqueeze(1).expand(-1, layer.plain.shape[1])
    both = torch.einsum("nik,oik->nio", layer.bases(x), layer.curves)[:, input, 0]
    return (both + F.silu(x[:, input]) * layer.plain[0, input]).tolist()


def main() -> None:
    """Train, and draw the curves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or webgpu")
    parser.add_argument("--compile", action="store_true", help="capture the training step")
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    options = parser.parse_args()
    model, losses = train(150 if options.quick else 1000, options.device, options.compile)
    curves = [curve(model[0], 0), curve(model[0], 1), curve(model[1], 0)]
    drawn = []
    for values in curves:
        low, high = min(values), max(values)
        rows = [[" "] * len(values) for _ in range(12)]
        for column, value in enumerate(values):
            rows[round(11 * (high - value) / (high - low + 1e-9))][column] = "#"
        drawn.append(["".join(row) for row in rows])
    for rows in zip(*drawn, strict=True):
        print(" | ".join(rows))
    print("   ".join(f"{name:40}" for name in ("of a", "of b", "of their sum")))
    print(f"mean square error: {sum(losses[-20:]) / 20:.5f}")


if __name__ == "__main__":
    main()
