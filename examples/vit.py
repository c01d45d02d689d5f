"""A vision transformer that counts dots (Dosovitskiy et al., 2021), trained with Muon and AdamW.

    python examples/vit.py                          # --device cpu or webgpu, --compile, --quick

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

SIZE, PATCH, MOST = 16, 4, 3


class ViT(nn.Module):
    """Patches by a convolution, a class token, positions, encoder layers, a head."""

    def __init__(self, width: int = 32, depth: int = 2) -> None:
        """Make the layers."""
        super().__init__()
        patches = (SIZE // PATCH) ** 2
        self.patches = nn.Conv2d(1, width, PATCH, stride=PATCH)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, patches + 1, width))
        nn.init.trunc_normal_(self.positions, std=0.02)
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, MOST + 1))

    def forward(self, x: Any) -> Any:
        """Return logits (N, MOST + 1) of images (N, 1, H, W)."""
        patches = self.patches(x).flatten(2).transpose(1, 2)  # (N, patches, width)
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), patches], 1)
        return self.head(self.encoder(tokens + self.positions)[:, 0])


def build() -> ViT:
    """Return the model."""
    return ViT()


def batch(step: int, size: int = 64) -> tuple[Any, Any]:
    """Return images (N, 1, H, W) with dots in different patches, and how many (N,)."""
    draw, images, counts = random.Random(step), [], []
    side = SIZE // PATCH
    for _ in range(size):
        image = [[draw.gauss(0, 0.1) for _ in range(SIZE)] for _ in range(SIZE)]
        count = draw.randint(0, MOST)
        for place in draw.sample(range(side * side), count):
            row, column = place // side * PATCH + 1, place % side * PATCH + 1
            for r in (row, row + 1):
                for c in (column, column + 1):
                    image[r][c] += 1.0
        images.append([image])
        counts.append(count)
    return torch.tensor(images), torch.tensor(counts)


def loss_of(model: Any, x: Any, y: Any) -> Any:
    """Return the cross entropy."""
    return F.cross_entropy(model(x), y)


def train(steps: int, device: str, compiled: bool = False) -> tuple[Any, list[float]]:
    """Return the trained model and the loss of each step."""
    torch.manual_seed(0)
    model = build().to(device)
    inner = [p for p in model.encoder.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if all(p is not q for q in inner)]
    optimizers = (torch.optim.Muon(inner, lr=5e-3), torch.optim.AdamW(others, lr=3e-3))

    def update(x: Any, y: Any) -> Any:
        loss = loss_of(model, x, y)
        model.zero_grad()
        loss.backward()
        for optimizer in optimizers:
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
    """Train, and show what is counted on new images."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or webgpu")
    parser.add_argument("--compile", action="store_true", help="capture the training step")
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    options = parser.parse_args()
    model, _ = train(60 if options.quick else 400, options.device, options.compile)
    x, y = (t.to(options.device) for t in batch(10**6, 256))
    with torch.no_grad():
        counted = model.eval()(x).argmax(1)
    for rows in zip(*x[:4, 0].tolist(), strict=True):
        print("  ".join("".join(" .:+#"[max(0, min(4, int(5 * v)))] for v in row) for row in rows))
    print("  ".join(f"{f'counted {count}':^{SIZE}}" for count in counted[:4].tolist()))
    print(f"accuracy: {(counted == y).float().mean().item():.3f}")


if __name__ == "__main__":
    main()
