"""A multilayer perceptron that tells three arms of a spiral apart, and draws what it learned.

    python examples/mlp.py                          # --device cpu or webgpu, --compile, --quick

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

ARMS = 3


def build() -> Any:
    """Return the model: points (N, 2) to logits (N, ARMS)."""
    return nn.Sequential(
        nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, ARMS)
    )


def batch(step: int, size: int = 128) -> tuple[Any, Any]:
    """Return points (N, 2) on the arms, a little off, and their arms (N,)."""
    draw, points, arms = random.Random(step), [], []
    for _ in range(size):
        arm, far = draw.randrange(ARMS), draw.random()
        angle = 4 * far + 2 * math.pi * arm / ARMS + draw.gauss(0, 0.15)
        points.append([far * math.cos(angle), far * math.sin(angle)])
        arms.append(arm)
    return torch.tensor(points), torch.tensor(arms)


def loss_of(model: Any, x: Any, y: Any) -> Any:
    """Return the cross entropy."""
    return F.cross_entropy(model(x), y)


def train(steps: int, device: str, compiled: bool = False) -> tuple[Any, list[float]]:
    """Return the trained model and the loss of each step."""
    torch.manual_seed(0)
    model = build().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)

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
        if (done := 30 * (step + 1) // steps) > 30 * step // steps:
            print(
                f"[{'#' * done:30}] {step + 1}/{steps}  loss {losses[-1]:.3f}", end=END, flush=True
            )
    print()
    return model, losses


def main() -> None:
    """Train, and draw which arm every point of the plane is taken for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or webgpu")
    parser.add_argument("--compile", action="store_true", help="capture the training step")
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    options = parser.parse_args()
    model, _ = train(200 if options.quick else 1000, options.device, options.compile)
    rows, columns = torch.linspace(1, -1, 24), torch.linspace(-1, 1, 56)
    plane = torch.cartesian_prod(rows, columns).flip(1).to(options.device)
    with torch.no_grad():
        arms = model(plane).argmax(1).reshape(len(rows), len(columns)).tolist()
        x, y = (t.to(options.device) for t in batch(10**6, 1000))
        accuracy = (model(x).argmax(1) == y).float().mean()
    print("\n".join("".join(".+#"[arm] for arm in row) for row in arms))
    print(f"accuracy: {accuracy.item():.3f}")


if __name__ == "__main__":
    main()
