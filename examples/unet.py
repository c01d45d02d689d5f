"""A U-Net that finds discs in noisy images (Ronneberger et al., 2015), with an averaged model.

    python examples/unet.py                         # --device cpu or webgpu, --compile, --quick

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

SIZE = 24


def block(inner: int, outer: int) -> Any:
    """Return two convolutions, normed."""
    return nn.Sequential(
        nn.Conv2d(inner, outer, 3, padding=1, bias=False),
        nn.BatchNorm2d(outer),
        nn.ReLU(inplace=True),
        nn.Conv2d(outer, outer, 3, padding=1),
        nn.GroupNorm(4, outer),
        nn.SiLU(),
    )


class UNet(nn.Module):
    """Two levels down, two up, with what was seen on the way down put beside."""

    def __init__(self, width: int = 8) -> None:
        """Make the levels."""
        super().__init__()
        self.first, self.second = block(1, width), block(width, 2 * width)
        self.bottom = block(2 * width, 4 * width)
        self.up_second = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.join_second = block(4 * width, 2 * width)
        self.up_first = nn.Upsample(scale_factor=2, mode="bilinear")
        self.join_first = block(3 * width, width)
        self.logits = nn.Conv2d(width, 1, 1)

    def forward(self, x: Any) -> Any:
        """Return logits (N, 1, H, W) of images (N, 1, H, W)."""
        first = self.first(x)
        second = self.second(F.max_pool2d(first, 2))
        bottom = self.bottom(F.avg_pool2d(second, 2))
        up = self.join_second(torch.cat([self.up_second(bottom), second], 1))
        up = self.join_first(torch.cat([self.up_first(up), first], 1))
        return self.logits(up)


def build() -> UNet:
    """Return the model."""
    return UNet()


def batch(step: int, size: int = 8) -> tuple[Any, Any]:
    """Return noisy images (N, 1, H, W) and where the discs are, 0 or 1."""
    draw, images, masks = random.Random(step), [], []
    for _ in range(size):
        discs = [
            (draw.uniform(4, SIZE - 4), draw.uniform(4, SIZE - 4), draw.uniform(2, 5))
            for _ in range(2)
        ]
        mask = [
            [
                float(any((r - a) ** 2 + (c - b) ** 2 < d * d for a, b, d in discs))
                for c in range(SIZE)
            ]
            for r in range(SIZE)
        ]
        images.append([[[v + draw.gauss(0, 0.4) for v in row] for row in mask]])
        masks.append([mask])
    return torch.tensor(images), torch.tensor(masks)


def loss_of(model: Any, x: Any, y: Any) -> Any:
    """Return binary cross entropy plus the Dice loss."""
    logits = model(x)
    found = torch.sigmoid(logits)
    overlap = 2 * (found * y).sum() / (found.sum() + y.sum() + 1e-6)
    return F.binary_cross_entropy_with_logits(logits, y) + 1 - overlap


def train(steps: int, device: str, compiled: bool = False) -> tuple[Any, list[float]]:
    """Return the average of the model over training, and the loss of each step."""
    torch.manual_seed(0)
    model = build().to(device)
    swa = torch.optim.swa_utils
    average = swa.AveragedModel(model, multi_avg_fn=swa.get_ema_multi_avg_fn(0.9), use_buffers=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

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
        average.update_parameters(model)
        if (done := 30 * (step + 1) // steps) > 30 * step // steps:
            print(
                f"[{'#' * done:30}] {step + 1}/{steps}  loss {losses[-1]:.3f}", end=END, flush=True
            )
    print()
    return average, losses


def main() -> None:
    """Train, and draw an image, its discs, and what is found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or webgpu")
    parser.add_argument("--compile", action="store_true", help="capture the training step")
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    options = parser.parse_args()
    model, _ = train(30 if options.quick else 200, options.device, options.compile)
    x, y = (t.to(options.device) for t in batch(10**6, 16))
    with torch.no_grad():
        found = (model.eval()(x) > 0).float()
    overlap = (found * y).sum() / torch.maximum(found, y).sum()
    for rows in zip(*(images[0, 0].tolist() for images in (x, y, found)), strict=True):
        print(" | ".join("".join(" .:+#"[max(0, min(4, int(5 * v)))] for v in row) for row in rows))
    print(f"intersection over union: {overlap.item():.3f}")


if __name__ == "__main__":
    main()
