"""A variational autoencoder of small pictures of bars (Kingma and Welling, 2014).

    python examples/vae.py                          # --device cpu or webgpu, --compile, --quick

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

SIZE, LATENT = 8, 4


class VAE(nn.Module):
    """Convolutions down to a Gaussian, and transposed ones back to a picture."""

    def __init__(self) -> None:
        """Make both halves."""
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1),
            nn.LeakyReLU(0.1),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.LeakyReLU(0.1),
            nn.Flatten(),
        )
        self.mean, self.log_variance = nn.Linear(128, LATENT), nn.Linear(128, LATENT)
        self.up = nn.Sequential(
            nn.Linear(LATENT, 128),
            nn.ReLU(),
            nn.Unflatten(1, (32, 2, 2)),
            nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1),
        )

    def forward(self, x: Any, noise: Any) -> tuple[Any, Any, Any]:
        """Return logits like x, and mean and log variance (N, LATENT); noise is (N, LATENT)."""
        hidden = self.down(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        return self.up(mean + noise * torch.exp(0.5 * log_variance)), mean, log_variance


def build() -> VAE:
    """Return the model."""
    return VAE()


def batch(step: int, size: int = 32) -> tuple[Any, Any]:
    """Return pictures (N, 1, H, W) of one bar each, and the noise of the latent space."""
    draw, images = random.Random(step), []
    for _ in range(size):
        place, upright = draw.randrange(SIZE), draw.random() < 0.5
        images.append(
            [[[float((c if upright else r) == place) for c in range(SIZE)] for r in range(SIZE)]]
        )
    noise = [[draw.gauss(0, 1) for _ in range(LATENT)] for _ in range(size)]
    return torch.tensor(images), torch.tensor(noise)


def loss_of(model: Any, x: Any, noise: Any) -> Any:
    """Return minus the evidence lower bound, for each picture."""
    logits, mean, log_variance = model(x, noise)
    missed = F.binary_cross_entropy_with_logits(logits, x, reduction="sum")
    apart = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum()
    return (missed + apart) / x.shape[0]


def train(steps: int, device: str, compiled: bool = False) -> tuple[Any, list[float]]:
    """Return the trained model and the loss of each step."""
    torch.manual_seed(0)
    model = build().to(device)
    optimizer = torch.optim.NAdam(model.parameters(), lr=3e-3)

    def update(x: Any, noise: Any) -> Any:
        loss = loss_of(model, x, noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    if compiled:
        update = torch.compile(update)
    losses = []
    for step in range(steps):
        x, noise = (t.to(device) for t in batch(step))
        losses.append(update(x, noise).item())
        if (done := 30 * (step + 1) // steps) > 30 * step // steps:
            print(
                f"[{'#' * done:30}] {step + 1}/{steps}  loss {losses[-1]:.2f}", end=END, flush=True
            )
    print()
    return model, losses


def main() -> None:
    """Train, and draw pictures from nothing but noise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or webgpu")
    parser.add_argument("--compile", action="store_true", help="capture the training step")
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    options = parser.parse_args()
    model, _ = train(100 if options.quick else 1000, options.device, options.compile)
    with torch.no_grad():
        pictures = model.up(torch.randn(4, LATENT, device=options.device)).sigmoid()[:, 0].tolist()
    for rows in zip(*pictures, strict=True):
        print("   ".join("".join(" .:#"[int(3.99 * v)] for v in row) for row in rows))


if __name__ == "__main__":
    main()
