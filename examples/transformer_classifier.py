"""A Transformer encoder that classifies sequences of different lengths, with a warm-up schedule.

    python examples/transformer_classifier.py       # --device cpu or webgpu, --compile, --quick

The question: are there more odd symbols than even ones? Change the first import to `import torch` and the
file runs in PyTorch.
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

PAD, SYMBOLS, LONGEST = 0, 12, 12


class Classifier(nn.Module):
    """Embedding with positions, encoder layers, and the mean over what is no padding."""

    def __init__(self, width: int = 32, dropout: float = 0.1) -> None:
        """Make the layers."""
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, width, padding_idx=PAD)
        place = torch.arange(LONGEST).unsqueeze(1)
        rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        self.register_buffer(
            "positions", torch.stack([(place * rate).sin(), (place * rate).cos()], 2).flatten(1)
        )
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(
            layer, 2, nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.logits = nn.Linear(width, 2)

    def forward(self, x: Any) -> Any:
        """Return logits (N, 2) of symbols (N, T)."""
        padding = x == PAD
        out = self.encoder(self.embedding(x) + self.positions, src_key_padding_mask=padding)
        real = (~padding).unsqueeze(2).to(out.dtype)
        return self.logits((out * real).sum(1) / real.sum(1))


def build() -> Classifier:
    """Return the model."""
    return Classifier()


def batch(step: int, size: int = 64) -> tuple[Any, Any]:
    """Return sequences (N, T), padded, and whether most of their symbols are odd (N,)."""
    draw, rows, answers = random.Random(step), [], []
    for _ in range(size):
        row = [draw.randrange(1, SYMBOLS) for _ in range(draw.choice([3, 5, 7, 9, 11]))]
        rows.append(row + [PAD] * (LONGEST - len(row)))
        answers.append(int(2 * sum(symbol % 2 for symbol in row) > len(row)))
    return torch.tensor(rows), torch.tensor(answers)


def loss_of(model: Any, x: Any, y: Any) -> Any:
    """Return the cross entropy."""
    return F.cross_entropy(model(x), y)


def train(steps: int, device: str, compiled: bool = False) -> tuple[Any, list[float]]:
    """Return the trained model and the loss of each step."""
    torch.manual_seed(0)
    model = build().to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=steps // 10)
    cool = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - steps // 10)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cool], [steps // 10])

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
    """Train, and show how the answer turns from even to odd on new sequences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or webgpu")
    parser.add_argument("--compile", action="store_true", help="capture the training step")
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    options = parser.parse_args()
    model, _ = train(150 if options.quick else 600, options.device, options.compile)
    x, y = (t.to(options.device) for t in batch(10**6, 256))
    with torch.no_grad():
        odd = model.eval()(x).softmax(1)[:, 1]
    more = (x % 2 - ((x != PAD) & (x % 2 == 0)).long()).sum(1)  # Odd symbols less even ones.
    print("odd - even | probability of odd")
    for least in range(-7, 8, 2):
        if (more == least).any():
            print(f"{least:+10} | {'#' * round(50 * odd[more == least].mean().item())}")
    print(f"accuracy: {((odd > 0.5) == y.bool()).float().mean().item():.3f}")


if __name__ == "__main__":
    main()
