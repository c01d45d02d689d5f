"""A diffusion model turns noise into a spiral, point by point (DDPM; Ho et al., 2020).

    python examples/diffusion.py                    # --device cpu or webgpu, --compile, --quick

Change the first import to `import torch` and the file runs in PyTorch.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from typing import Any

import webtorch as torch

nn, F = torch.nn, torch.nn.functional

# A bar that moves on a terminal, lines elsewhere.
END = "\r" if sys.stdout.isatty() else "\n"

TIMES, WIDTH = 60, 96


class Denoiser(nn.Module):
    """Says which noise was put on points, given how long ago it began."""

    def __init__(self) -> None:
        """Make the layers, and how much of a point is left at each time."""
        super().__init__()
        self.first, self.time = nn.Linear(2, WIDTH), nn.Linear(32, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.last = nn.Linear(WIDTH, 2)
        # The cosine schedule of Nichol and Dhariwal, 2021.
        t = torch.arange(TIMES + 1) / TIMES
        left = torch.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2
        betas = (1 - left[1:] / left[:-1]).clamp(max=0.999)
        self.register_buffer("betas", betas)
        self.register_buffer("left", torch.cumprod(1 - betas, 0))

    def forward(self, x: Any, t: Any) -> Any:
        """Return the noise (N, 2) in points (N, 2) at times (N,)."""
        rates = torch.exp(torch.arange(16, device=x.device) * (-math.log(1000.0) / 16))
        angles = t.unsqueeze(1) * rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        out = self.first(x)
        for layer in self.layers:
            out = out + layer(F.silu(out + time))
        return self.last(F.silu(out))

    @torch.no_grad()
    def sample(self, count: int) -> list[Any]:
        """Return points (count, 2): noise first, then after each time, backwards."""
        device = self.betas.device
        x = torch.randn(count, 2, device=device)
        found = [x]
        for t in reversed(range(TIMES)):
            beta, left = self.betas[t], self.left[t]
            noise = self(x, torch.full((count,), t, device=device))
            x = (x - beta / (1 - left).sqrt() * noise) / (1 - beta).sqrt()
            if t:
                x = x + beta.sqrt() * torch.randn(count, 2, device=device)
            found.append(x)
        return found


def build() -> Denoiser:
    """Return the model."""
    return Denoiser()


def batch(step: int, size: int = 256) -> tuple[Any, Any, Any]:
    """Return points of a spiral (N, 2), times (N,) and noise (N, 2)."""
    draw, points = random.Random(step), []
    for _ in range(size):
        angle = 3 * math.pi * math.sqrt(draw.random())
        far = 0.2 * angle
        points.append([far * math.cos(angle), far * math.sin(angle)])
    times = [draw.randrange(TIMES) for _ in range(size)]
    noise = [[draw.gauss(0, 1), draw.gauss(0, 1)] for _ in range(size)]
    return torch.tensor(points), torch.tensor(times), torch.tensor(noise)


def loss_of(model: Any, x: Any, t: Any, noise: Any) -> Any:
    """Return how far the noise found is from the noise put on."""
    left = model.left[t].unsqueeze(1)
    return F.mse_loss(model(left.sqrt() * x + (1 - left).sqrt() * noise, t), noise)


def train(steps: int, device: str, compiled: bool = False) -> tuple[Any, list[float]]:
    """Return the trained model and the loss of each step."""
    torch.manual_seed(0)
    model = build().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    def update(x: Any, t: Any, noise: Any) -> Any:
        loss = loss_of(model, x, t, noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    if compiled:
        update = torch.compile(update)
    losses = []
    for step in range(steps):
        losses.append(update(*(t.to(device) for t in batch(step))).item())
        schedule.step()
        if (done := 30 * (step + 1) // steps) > 30 * step // steps:
            print(
                f"[{'#' * done:30}] {step + 1}/{steps}  loss {losses[-1]:.3f}", end=END, flush=True
            )
    print()
    return model, losses


def plot(points: Any) -> list[str]:
    """Return points (N, 2) as lines of text."""
    rows = [[0] * 42 for _ in range(21)]
    for x, y in points.tolist():
        row, column = round(10 - 5 * y), round(20.5 + 10 * x)
        if 0 <= row < 21 and 0 <= column < 42:
            rows[row][column] += 1
    return ["".join(" .:+#"[min(4, count)] for count in row) for row in rows]


def main() -> None:
    """Train, and draw noise on its way to the spiral."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or webgpu")
    parser.add_argument("--compile", action="store_true", help="capture the training step")
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    options = parser.parse_args()
    model, _ = train(200 if options.quick else 2000, options.device, options.compile)
    found = model.sample(600)
    for rows in zip(*(plot(found[TIMES * i // 3]) for i in (0, 2, 3)), strict=True):
        print(" | ".join(rows))


if __name__ == "__main__":
    main()
