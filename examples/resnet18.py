"""ResNet-18 names shapes in colour (He et al., 2016), under a one-cycle schedule.

    python examples/resnet18.py                     # --device cpu or webgpu, --compile, --quick

The layers and their names are torchvision's; width 16 instead of 64 keeps it quick. Change the first
import to `import torch` and the file runs in PyTorch.
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

SIZE, SHAPES = 32, ("disc", "ring", "square", "cross", "stripes")


class BasicBlock(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        """Make the layers."""
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.downsample = None
        if stride != 1 or inner != outer:
            self.downsample = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, x: Any) -> Any:
        """Return (N, outer, H / stride, W / stride)."""
        around = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + around)


class ResNet18(nn.Module):
    """Eight blocks in four layers, the mean over space, and a linear head."""

    def __init__(self, classes: int, width: int = 16) -> None:
        """Make the layers."""
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        inner = width
        for number in range(4):
            outer = width * 2**number
            first = BasicBlock(inner, outer, 1 if number == 0 else 2)
            setattr(self, f"layer{number + 1}", nn.Sequential(first, BasicBlock(outer, outer, 1)))
            inner = outer
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(inner, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Any) -> Any:
        """Return logits (N, classes) of images (N, 3, H, W)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def build() -> ResNet18:
    """Return the model."""
    return ResNet18(len(SHAPES))


def inside(shape: str, y: float, x: float) -> bool:
    """Whether a point relative to the middle, in units of the size, is part of a shape."""
    far = (y * y + x * x) ** 0.5
    return {
        "disc": far < 1,
        "ring": 0.6 < far < 1,
        "square": max(abs(y), abs(x)) < 0.85,
        "cross": min(abs(y), abs(x)) < 0.3 and max(abs(y), abs(x)) < 1,
        "stripes": max(abs(y), abs(x)) < 0.9 and int(3 * (y + 1)) % 2 == 0,
    }[shape]


def batch(step: int, size: int = 32) -> tuple[Any, Any]:
    """Return images (N, 3, H, W) and the numbers of their shapes (N,)."""
    draw, images, shapes = random.Random(step), [], []
    for _ in range(size):
        shape = draw.randrange(len(SHAPES))
        scale, a, b = draw.uniform(6, 11), draw.uniform(12, 20), draw.uniform(12, 20)
        mask = [
            [inside(SHAPES[shape], (r - a) / scale, (c - b) / scale) for c in range(SIZE)]
            for r in range(SIZE)
        ]
        front = [draw.uniform(0.2, 1) for _ in range(3)]
        back = [draw.uniform(-1, -0.2) for _ in range(3)]
        images.append(
            [
                [[f if v else b for v in row] for row in mask]
                for f, b in zip(front, back, strict=True)
            ]
        )
        shapes.append(shape)
    x = torch.tensor(images)
    noise = torch.tensor([draw.gauss(0, 0.2) for _ in range(997)])
    places = torch.arange(x.numel()) % 997
    return x + noise[places].reshape(x.shape), torch.tensor(shapes)


def loss_of(model: Any, x: Any, y: Any) -> Any:
    """Return the cross entropy with smoothed labels."""
    return F.cross_entropy(model(x), y, label_smoothing=0.05)


def train(steps: int, device: str, compiled: bool = False) -> tuple[Any, list[float]]:
    """Return the trained model and the loss of each step."""
    torch.manual_seed(0)
    model = build().to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)

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
                f"[{'#' * done:30}] {step + 1}/{steps}  loss {losses[-1]:.3f}", end=END, flush=True
            )
    print()
    return model, losses


def main() -> None:
    """Train, and show new shapes with their names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or webgpu")
    parser.add_argument("--compile", action="store_true", help="capture the training step")
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    options = parser.parse_args()
    model, _ = train(40 if options.quick else 200, options.device, options.compile)
    x, y = batch(10**6, 100)
    with torch.no_grad():
        found = model.eval()(x.to(options.device)).argmax(1).cpu()
    shown = x[:4, :, ::2].mean(1).tolist()
    for rows in zip(*shown, strict=True):
        shades = ([" .:+#"[max(0, min(4, int(2.5 * v + 2.5)))] for v in row] for row in rows)
        print("  ".join("".join(row) for row in shades))
    print("  ".join(f"{SHAPES[shape]:^{SIZE}}" for shape in found[:4].tolist()))
    print(f"accuracy: {(found == y).float().mean().item():.3f}")


if __name__ == "__main__":
    main()
