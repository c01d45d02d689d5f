"""A NeRF (Mildenhall et al., 2020), small: two spheres in fog are learned from rays, then seen from a new side.

    python examples/nerf.py                         # --device cpu or webgpu, --compile, --quick

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

WIDTH, BANDS, SAMPLES, RAYS = 48, 4, 24, 128
NEAR, FAR = 1.0, 3.0
# Centre, radius and brightness.
SPHERES = (((-0.35, 0.0, 0.1), 0.4, 1.0), ((0.4, 0.2, -0.2), 0.3, 0.45))


class Field(nn.Module):
    """Density and brightness at places."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(3 + 6 * BANDS, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, 2),
        )

    def forward(self, places: Any) -> tuple[Any, Any]:
        """Map places (..., 3) to densities and brightnesses (...)."""
        waves = [
            f(places * (2.0**i * math.pi / 2)) for i in range(BANDS) for f in (torch.sin, torch.cos)
        ]
        out = self.body(torch.cat([places, *waves], -1))
        return F.softplus(out[..., 0] + 1), torch.sigmoid(out[..., 1])


def build() -> Any:
    """Return the model."""
    return Field()


def rendered(model: Any, origins: Any, ways: Any) -> Any:
    """Return the brightness (N,) that rays from origins (N, 3) along ways (N, 3) gather."""
    depths = torch.linspace(NEAR, FAR, SAMPLES, device=origins.device)
    places = origins[:, None] + depths[:, None] * ways[:, None]
    density, brightness = model(places)
    clear = torch.exp(-density * ((FAR - NEAR) / SAMPLES))
    # What is left of the light that comes from each place.
    left = torch.cumprod(torch.cat([torch.ones_like(clear[:, :1]), clear[:, :-1]], 1), 1)
    return (left * (1 - clear) * brightness).sum(1)


def ray(angle: float, up: float, side: float) -> tuple[list[float], list[float]]:
    """Return origin and direction of a ray of the camera that looks at the middle from an angle."""
    back, right = (math.sin(angle), 0.0, math.cos(angle)), (math.cos(angle), 0.0, -math.sin(angle))
    origin = [2.0 * b for b in back]
    way = [0.45 * side * r - b for r, b in zip(right, back, strict=True)]
    way[1] += 0.45 * up
    length = math.hypot(*way)
    return origin, [w / length for w in way]


def seen(origin: list[float], way: list[float]) -> float:
    """Return the brightness of the nearest sphere on a ray, 0 where there is none."""
    nearest, brightness = FAR, 0.0
    for centre, radius, light in SPHERES:
        to = [c - o for c, o in zip(centre, origin, strict=True)]
        along = sum(t * w for t, w in zip(to, way, strict=True))
        inside = radius**2 - (sum(t * t for t in to) - along**2)
        if inside > 0 and NEAR < along - math.sqrt(inside) < nearest:
            nearest, brightness = along - math.sqrt(inside), light
    return brightness


def batch(step: int, size: int = RAYS) -> tuple[Any, Any, Any]:
    """Return origins and ways (size, 3) of rays from all sides, and what they see (size,)."""
    draw = random.Random(step)
    rays = [
        ray(draw.uniform(0, 2 * math.pi), draw.uniform(-1, 1), draw.uniform(-1, 1))
        for _ in range(size)
    ]
    origins, ways = zip(*rays, strict=True)
    return torch.tensor(origins), torch.tensor(ways), torch.tensor([seen(*r) for r in rays])


def loss_of(model: Any, origins: Any, ways: Any, wanted: Any) -> Any:
    """Return the mean square error."""
    return F.mse_loss(rendered(model, origins, ways), wanted)


def train(steps: int, device: str, compiled: bool = False) -> tuple[Any, list[float]]:
    """Return the trained model and the loss of each step."""
    torch.manual_seed(0)
    model = build().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def update(origins: Any, ways: Any, wanted: Any) -> Any:
        loss = loss_of(model, origins, ways, wanted)
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


def main() -> None:
    """Train, and draw what is there and what the field shows from a side between two others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or webgpu")
    parser.add_argument("--compile", action="store_true", help="capture the training step")
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    options = parser.parse_args()
    model, _ = train(120 if options.quick else 1500, options.device, options.compile)
    height, width = 18, 36
    rays = [
        ray(0.7, 1 - 2 * (i + 0.5) / height, 2 * (j + 0.5) / width - 1)
        for i in range(height)
        for j in range(width)
    ]
    origins, ways = (torch.tensor(part).to(options.device) for part in zip(*rays, strict=True))
    with torch.no_grad():
        found = rendered(model, origins, ways).tolist()
    wanted = [seen(*r) for r in rays]
    for i in range(height):
        row = slice(i * width, (i + 1) * width)
        shades = (
            "".join(" .:+#"[max(0, min(4, int(4.5 * v)))] for v in values[row])
            for values in (wanted, found)
        )
        print(" | ".join(shades))
    error = sum((a - b) ** 2 for a, b in zip(found, wanted, strict=True)) / len(found)
    print(f"peak signal to noise: {-10 * math.log10(error):.1f} dB")


if __name__ == "__main__":
    main()
