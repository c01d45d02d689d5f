"""Flow matching (Lipman et al., 2023): a field of velocities carries noise to two moons.

    python examples/flow_matching.py                # --device cpu or webgpu, --compile, --quick

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

WIDTH, BATCH = 64, 256


def build() -> Any:
    """Return the model: places and times (N, 3) to velocities (N, 2)."""
    return nn.Sequential(
        nn.Linear(3, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 2)
    )


def moon(draw: random.Random) -> list[float]:
    """Return a place on one of two moons that hold each other."""
    angle, upper = draw.uniform(0, math.pi), draw.random() < 0.5
    x, y = math.cos(angle), math.sin(angle)
    x, y = (x - 0.5, y - 0.25) if upper else (0.5 - x, 0.25 - y)
    return [x + draw.gauss(0, 0.05), y + draw.gauss(0, 0.05)]


def batch(step: int, size: int = BATCH) -> tuple[Any, Any]:
    """Return places on straight ways from noise to the moons, with the time, (size, 3), and the ways (size, 2)."""
    draw = random.Random(step)
    places, ways = [], []
    for _ in range(size):
        noise, target, t = [draw.gauss(0, 1), draw.gauss(0, 1)], moon(draw), draw.random()
        places.append([n + t * (m - n) for n, m in zip(noise, target, strict=True)] + [t])
        ways.append([m - n for n, m in zip(noise, target, strict=True)])
    return torch.tensor(places), torch.tensor(ways)


def loss_of(model: Any, places: Any, ways: Any) -> Any:
    """Return the mean square error of the velocities."""
    return F.mse_loss(model(places), ways)


def train(steps: int, device: str, compiled: bool = False) -> tuple[Any, list[float]]:
    """Return the trained model and the loss of each step."""
    torch.manual_seed(0)
    model = build().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def update(places: Any, ways: Any) -> Any:
        loss = loss_of(model, places, ways)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    if compiled:
        update = torch.compile(update)
    losses = []
    for step in range(steps):
        losses.append(update(*(t.to(device) for t in batch(step))).item())
        if (done := 30 * (step + 1) // steps) > 30 * step // steps:
            print(
                f"[{'#' * done:30}] {step + 1}/{steps}  loss {losses[-1]:.4f}", end=END, flush=True
            )
    print()
    return model, losses


@torch.no_grad()
def flow(model: Any, places: Any, steps: int = 40) -> Any:
    """Return where the field carries places (N, 2) from time 0 to 1, by the midpoint rule."""
    one = torch.ones_like(places[:, :1])
    for i in range(steps):
        t = i / steps
        middle = places + model(torch.cat([places, t * one], 1)) / (2 * steps)
        places = places + model(torch.cat([middle, (t + 0.5 / steps) * one], 1)) / steps
    return places


def main() -> None:
    """Train, and draw where noise goes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or webgpu")
    parser.add_argument("--compile", action="store_true", help="capture the training step")
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    options = parser.parse_args()
    model, _ = train(150 if options.quick else 1500, options.device, options.compile)
    found = flow(model, torch.randn(1500, 2, device=options.device)).tolist()
    counts = [[0] * 64 for _ in range(24)]
    for x, y in found:
        row, column = int(12 - 12 * y / 1.2), int(32 + 32 * x / 2.0)
        if 0 <= row < 24 and 0 <= column < 64:
            counts[row][column] += 1
    print("\n".join("".join(" .:+#"[min(4, n)] for n in row) for row in counts))
    draw = random.Random(0)
    moons = [moon(draw) for _ in range(500)]
    off = [min(math.dist(p, m) for m in moons) for p in found[:300]]
    print(f"mean distance from the moons: {sum(off) / len(off):.3f}")


if __name__ == "__main__":
    main()
