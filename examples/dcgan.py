"""A DCGAN of small discs (Radford et al., 2016), its discriminator under spectral norm.

    python examples/dcgan.py                        # --device cpu or webgpu, --compile, --quick

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

SIZE, LATENT = 16, 16


def build() -> tuple[Any, Any]:
    """Return the generator, (N, LATENT, 1, 1) to (N, 1, H, W), and the discriminator, to (N,)."""
    norm = nn.utils.parametrizations.spectral_norm
    generator = nn.Sequential(
        nn.ConvTranspose2d(LATENT, 32, 4, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(True),
        nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(True),
        nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1),
        nn.Tanh(),
    )
    discriminator = nn.Sequential(
        norm(nn.Conv2d(1, 16, 4, stride=2, padding=1)),
        nn.LeakyReLU(0.2),
        norm(nn.Conv2d(16, 32, 4, stride=2, padding=1)),
        nn.LeakyReLU(0.2),
        norm(nn.Conv2d(32, 1, 4)),
        nn.Flatten(0),
    )
    return generator, discriminator


def batch(step: int, size: int = 32) -> tuple[Any, Any, Any]:
    """Return pictures (N, 1, H, W) of one disc each in [-1, 1], and two batches of noise."""
    draw, images = random.Random(step), []
    for _ in range(size):
        a, b, d = draw.uniform(5, 11), draw.uniform(5, 11), draw.uniform(3, 5)
        images.append(
            [[[1.0 if (r - a) ** 2 + (c - b) ** 2 < d * d else -1.0 for c in range(SIZE)]
              for r in range(SIZE)]]
        )  # fmt: skip
    noise = [[[draw.gauss(0, 1)] for _ in range(LATENT)] for _ in range(2 * size)]
    both = torch.tensor(noise).unsqueeze(3)
    return torch.tensor(images), both[:size], both[size:]


class Game:
    """Both networks and their optimizers."""

    def __init__(self, device: str) -> None:
        """Make them."""
        self.generator, self.discriminator = (one.to(device) for one in build())
        options = {"lr": 2e-3, "betas": (0.5, 0.999)}
        self.of_generator = torch.optim.Adam(self.generator.parameters(), **options)
        self.of_discriminator = torch.optim.Adam(self.discriminator.parameters(), **options)

    def step(self, real: Any, noise: Any, more_noise: Any) -> tuple[Any, Any]:
        """Train the discriminator, then the generator; return both losses (hinge)."""
        fake = self.generator(noise).detach()
        judged = F.relu(1 - self.discriminator(real)).mean()
        judged = judged + F.relu(1 + self.discriminator(fake)).mean()
        self.of_discriminator.zero_grad()
        judged.backward()
        self.of_discriminator.step()
        made = -self.discriminator(self.generator(more_noise)).mean()
        self.of_generator.zero_grad()
        made.backward()
        self.of_generator.step()
        return judged, made


def train(steps: int, device: str, compiled: bool = False) -> tuple[Any, list[float]]:
    """Return the trained generator, and how far its pictures' mean brightness is off at each step."""
    torch.manual_seed(0)
    game = Game(device)
    update = torch.compile(game.step) if compiled else game.step
    gaps = []
    for step in range(steps):
        real, noise, more_noise = (t.to(device) for t in batch(step))
        judged, made = update(real, noise, more_noise)
        with torch.no_grad():
            gaps.append((game.generator(noise).mean() - real.mean()).abs().item())
        if (done := 30 * (step + 1) // steps) > 30 * step // steps:
            print(
                f"[{'#' * done:30}] {step + 1}/{steps}  discriminator {judged.item():6.3f}  "
                f"generator {made.item():6.3f}",
                end=END,
                flush=True,
            )
    print()
    return game.generator, gaps


def main() -> None:
    """Train, and draw a few pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or webgpu")
    parser.add_argument("--compile", action="store_true", help="capture the training step")
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    options = parser.parse_args()
    generator, _ = train(60 if options.quick else 800, options.device, options.compile)
    with torch.no_grad():
        noise = torch.randn(3, LATENT, 1, 1, device=options.device)
        pictures = generator.eval()(noise)[:, 0].tolist()
    for rows in zip(*pictures, strict=True):
        print("   ".join("".join(" .:#"[int(1.99 * (v + 1))] for v in row) for row in rows))


if __name__ == "__main__":
    main()
