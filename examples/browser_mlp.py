"""Write a training step in Python, and train it in a browser tab.

    python examples/browser_mlp.py site
    webtorch serve site

A small network learns two interleaved spirals. The step below (forward, backward, Adam) is captured
once and exported; the page needs no Python, and starts from the weights that Python had.
"""

from __future__ import annotations

import math
import sys

import webtorch as torch
from webtorch import Tensor, nn

BATCHES, BATCH = 8, 128


def spirals(count: int) -> tuple[Tensor, Tensor]:
    """Return points (count, 2) on two spiral arms, and the number of each point's arm (count,)."""
    arm = torch.randint(0, 2, (count,))
    along = torch.rand(count).sqrt() * 3 * math.pi
    turn = along + arm * math.pi
    x = torch.stack([along * turn.cos(), along * turn.sin()], 1) / (3 * math.pi)
    return x + 0.01 * torch.randn(count, 2), arm


def main(folder: str) -> None:
    """Capture the step on two batches and write the page."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(2, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2)
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    @torch.compile
    def train(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        optimizer.zero_grad()
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        loss.backward()
        optimizer.step()
        return {"loss": loss, "accuracy": (logits.argmax(1) == y).float().mean()}

    batches = [spirals(BATCH) for _ in range(BATCHES)]
    for batch in batches[:2]:
        train(*batch)
    torch.export(train, folder, examples=batches, title="Two spirals")
    print(f"wrote {folder}: serve it with  webtorch serve {folder}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "site")
