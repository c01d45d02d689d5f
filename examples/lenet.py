"""LeNet-5 reads digits (LeCun et al., 1998): strokes of a pocket calculator, moved, slanted and noisy.

    python examples/lenet.py                        # --device cpu or webgpu, --compile, --quick

Change the first import to `import torch` and the file runs in PyTorch.
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

SIZE = 28
# Segments: top, upper left, upper right, middle, lower left, lower right, bottom.
DIGITS = (
    *("1110111", "0010010", "1011101", "1011011", "0111010"),
    *("1101011", "1101111", "1010010", "1111111", "1111011"),
)
STROKES = (  # From row and column to row and column.
    *((0, 0, 0, 1), (0, 0, 1, 0), (0, 1, 1, 1), (1, 0, 1, 1)),
    *((1, 0, 2, 0), (1, 1, 2, 1), (2, 0, 2, 1)),
)


def build() -> Any:
    """Return the model: images (N, 1, 28, 28) to logits (N, 10)."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.Tanh(),
        nn.Linear(120, 84),
        nn.Tanh(),
        nn.Linear(84, 10),
    )


def picture(draw: random.Random, digit: int) -> list[list[float]]:
    """Return one digit, (28, 28) in [0, 1]."""
    image = [[0.1 * draw.random() for _ in range(SIZE)] for _ in range(SIZE)]
    top, left = draw.uniform(3, 8), draw.uniform(6, 12)
    height, width, slant = draw.uniform(6, 8), draw.uniform(6, 9), draw.uniform(-0.2, 0.2)
    for lit, (a, b, c, d) in zip(DIGITS[digit], STROKES, strict=True):
        for i in range(11 if lit == "1" else 0):
            row = top + height * (a + (c - a) * i / 10)
            column = left + width * (b + (d - b) * i / 10) - slant * (row - SIZE / 2)
            for r in (int(row), int(row) + 1):
                for k in (int(column), int(column) + 1):
                    image[r][k] = max(image[r][k], draw.uniform(0.6, 1.0))
    return image


def batch(step: int, size: int = 32) -> tuple[Any, Any]:
    """Return images (N, 1, 28, 28) and their digits (N,)."""
    draw = random.Random(step)
    digits = [draw.randrange(10) for _ in range(size)]
    return torch.tensor([[picture(draw, digit)] for digit in digits]), torch.tensor(digits)


def loss_of(model: Any, x: Any, y: Any) -> Any:
    """Return the cross entropy."""
    return F.cross_entropy(model(x), y)


def train(steps: int, device: str, compiled: bool = False) -> tuple[Any, list[float]]:
    """Return the trained model and the loss of each step."""
    torch.manual_seed(0)
    model = build().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

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
    """Train, and show what new digits are read as."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or webgpu")
    parser.add_argument("--compile", action="store_true", help="capture the training step")
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    options = parser.parse_args()
    model, _ = train(60 if options.quick else 300, options.device, options.compile)
    x, y = batch(10**6, 100)
    with torch.no_grad():
        read = model(x.to(options.device)).argmax(1).cpu()
    shown = x[:4, 0, 2:26].tolist()
    for rows in zip(*shown, strict=True):
        print("  ".join("".join(" .:+#"[min(4, int(5 * v))] for v in row) for row in rows))
    print("  ".join(f"{f'read as {digit}':^{SIZE}}" for digit in read[:4].tolist()))
    print(f"accuracy: {(read == y).float().mean().item():.3f}")


if __name__ == "__main__":
    main()
