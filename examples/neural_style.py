"""Neural style (Gatys et al., 2016): the shapes of one picture in the texture of another.

    python examples/neural_style.py                 # --device cpu or webgpu, --compile, --quick

Features come from a small convolutional network with random weights, which is enough for textures
(Ustyuzhaninov et al., 2016). Change the first import to `import torch` and the file runs in PyTorch.
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

SIZE = 48


class Features(nn.Module):
    """Convolutions of several sizes; their weights are never trained."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        sizes = ((1, 24, 5), (24, 32, 5), (32, 32, 3))
        self.layers = nn.ModuleList(
            nn.Conv2d(inner, outer, kernel, padding=kernel // 2, padding_mode="reflect")
            for inner, outer, kernel in sizes
        )
        for layer in self.layers:
            nn.init.orthogonal_(layer.weight, math.sqrt(2))
            layer.requires_grad_(False)

    def forward(self, x: Any) -> list[Any]:
        """Return the features (N, C, H, W) of each layer of pictures (N, 1, H, W)."""
        found = []
        for layer in self.layers:
            x = F.relu(layer(x))
            found.append(x)
            x = F.avg_pool2d(x, 2)
        return found


class Style(nn.Module):
    """A picture that is trained, and the network that looks at it."""

    def __init__(self) -> None:
        """Begin with noise."""
        super().__init__()
        self.features = Features()
        draw = random.Random(0)
        noise = [[draw.gauss(0, 0.1) for _ in range(SIZE)] for _ in range(SIZE)]
        self.picture = nn.Parameter(torch.tensor([[noise]]))

    def forward(self) -> list[Any]:
        """Return the features of the picture."""
        return self.features(self.picture)


def build() -> Style:
    """Return the model."""
    return Style()


def batch(step: int, size: int = 1) -> tuple[Any, Any]:
    """Return a picture of a ring and a bar, and a texture of slanted waves, (1, 1, H, W) each."""
    content = [
        [
            1.0 if 0.25 < math.hypot(r - 0.42, c - 0.5) < 0.36 or (0.8 < r < 0.92) else -1.0
            for c in (i / SIZE for i in range(SIZE))
        ]
        for r in (i / SIZE for i in range(SIZE))
    ]
    texture = [
        [math.tanh(3 * math.sin(0.9 * (r + c) + 0.8 * math.sin(0.35 * (r - c)))) for c in range(SIZE)]
        for r in range(SIZE)
    ]  # fmt: skip
    return torch.tensor([[content]]), torch.tensor([[texture]])


def gram(features: Any) -> Any:
    """Return how often two features are seen together, (N, C, C)."""
    flat = features.flatten(2)
    return flat @ flat.transpose(1, 2) / flat.shape[2]


def loss_of(model: Any, content: Any, texture: Any) -> Any:
    """Return how far the picture is from the shapes of one and the texture of the other."""
    found = model()
    with torch.no_grad():
        shapes, textures = model.features(content), model.features(texture)
    style = sum(
        F.mse_loss(gram(a), gram(b)) / gram(b).pow(2).mean()
        for a, b in zip(found, textures, strict=True)
    )
    shape = F.mse_loss(found[-1], shapes[-1]) / shapes[-1].pow(2).mean()
    x = model.picture
    rough = (x[..., 1:] - x[..., :-1]).pow(2).mean() + (x[..., 1:, :] - x[..., :-1, :]).pow(2).mean()  # fmt: skip
    return style + shape + 0.01 * rough


def train(steps: int, device: str, compiled: bool = False) -> tuple[Any, list[float]]:
    """Return the model with its picture, and the loss of each step."""
    torch.manual_seed(0)
    model = build().to(device)
    optimizer = torch.optim.Adam([model.picture], lr=0.05)
    content, texture = (t.to(device) for t in batch(0))

    def update() -> Any:
        loss = loss_of(model, content, texture)
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
                f"[{'#' * done:30}] {step + 1}/{steps}  loss {losses[-1]:.3f}", end=END, flush=True
            )
    print()
    return model, losses


def main() -> None:
    """Paint, and show all three pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or webgpu")
    parser.add_argument("--compile", action="store_true", help="capture the training step")
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    options = parser.parse_args()
    model, _ = train(60 if options.quick else 400, options.device, options.compile)
    pictures = torch.cat([*batch(0), model.picture.detach().cpu()])[:, 0]
    # Letters are twice as high as wide.
    for rows in zip(*pictures.unflatten(1, (-1, 2)).mean(2).tolist(), strict=True):
        shades = ([" .:+#"[max(0, min(4, int(2.5 * v + 2.5)))] for v in row] for row in rows)
        print(" | ".join("".join(row) for row in shades))


if __name__ == "__main__":
    main()
