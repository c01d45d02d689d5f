"""Real PyTorch into a web page: the model and its training step run in the visitor's browser, on WebGPU.

    pip install ".[torch,cpu]"
    python examples/pytorch/to_page.py site     # writes the folder `site`
    webtorch serve site

The page trains on from the weights that it was exported with; no Python runs there.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional as F

import webtorch


def spiral(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return points on three spiral arms (count, 2), and the number of each point's arm."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    radius = torch.rand(count, generator=g)
    angle = labels * (2 * torch.pi / 3) + radius * 4 + torch.randn(count, generator=g) * 0.1
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), labels


def main(argv: list[str] | None = None) -> float:
    """Train a little, export, and return the loss that the page begins with."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", default="site")
    parser.add_argument("--quick", action="store_true", help="a few steps")
    options = parser.parse_args(argv)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(2, 64),
        nn.GELU(),
        nn.LayerNorm(64),
        nn.Linear(64, 64),
        nn.GELU(),
        nn.Linear(64, 3),
    ).to("webgpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def train(points: torch.Tensor, arm: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = model(points)
        loss = F.cross_entropy(logits, arm)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "accuracy": (logits.argmax(1) == arm).float().mean()}

    for step in range(2 if options.quick else 20):
        x, y = (t.to("webgpu") for t in spiral(96, step))
        loss = train(x, y)["loss"].item()
    batches = [spiral(96, 100 + i) for i in range(8)]
    # What `torch.export` returned goes in as well: webtorch.export(program, "site/").
    path = webtorch.export(
        {"train": train, "infer": model},
        options.folder,
        {"train": batches[0], "infer": batches[0][:1]},
        examples={"train": batches, "infer": [b[:1] for b in batches]},
        labels=["first arm", "second arm", "third arm"],
        title="Three arms of a spiral",
    )
    print(f"{path}: begins at loss {loss:.3f}; `webtorch serve {path}` shows it")
    return loss


if __name__ == "__main__":
    main()
