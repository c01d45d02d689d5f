"""A GPT that learns to write Python from a file of the standard library (Radford et al., 2019).

    python examples/gpt.py                          # --device cpu or webgpu, --compile, --quick

Change the first import to `import torch` and the file runs in PyTorch.
"""

from __future__ import annotations

import argparse
import inspect
import math
import random
import sys
from typing import Any

import webtorch as torch

nn, F = torch.nn, torch.nn.functional

# A bar that moves on a terminal, lines elsewhere.
END = "\r" if sys.stdout.isatty() else "\n"

TEXT = inspect.getsource(random)
LETTERS = sorted(set(TEXT))
CODES = [LETTERS.index(letter) for letter in TEXT]
CONTEXT, WIDTH, HEADS, DEPTH = 48, 64, 4, 3


class Attention(nn.Module):
    """Attention of each letter to the letters before it."""

    def __init__(self) -> None:
        """Make the projections."""
        super().__init__()
        self.attend, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        """Return (N, T, WIDTH)."""
        n, t, _ = x.shape
        q, k, v = self.attend(x).view(n, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)  # (N, heads, T, C)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.project(out.transpose(1, 2).reshape(n, t, WIDTH))


class Block(nn.Module):
    """Attention and two linear layers, each added to what comes in."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.before, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.between = nn.LayerNorm(WIDTH)
        self.think = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(approximate="tanh"), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Any) -> Any:
        """Return (N, T, WIDTH)."""
        x = x + self.attention(self.before(x))
        return x + self.think(self.between(x))


class GPT(nn.Module):
    """Letters and places to blocks to logits; the embedding is the last layer's weight too."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.letters, self.places = nn.Embedding(len(LETTERS), WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.logits = nn.Linear(WIDTH, len(LETTERS), bias=False)
        self.apply(self.start)
        self.logits.weight = self.letters.weight
        for name, weight in self.named_parameters():
            if name.endswith(("project.weight", "think.2.weight")):
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * DEPTH))

    @staticmethod
    def start(module: Any) -> None:
        """Set the first weights of a layer."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, x: Any) -> Any:
        """Return logits (N, T, letters) of letters (N, T)."""
        out = self.letters(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            out = block(out)
        return self.logits(self.norm(out))


def build() -> GPT:
    """Return the model."""
    return GPT()


def batch(step: int, size: int = 16) -> tuple[Any, Any]:
    """Return pieces of the text (N, T), and the same pieces one letter later."""
    draw = random.Random(step)
    starts = [draw.randrange(len(CODES) - CONTEXT - 1) for _ in range(size)]
    rows = torch.tensor([CODES[s : s + CONTEXT + 1] for s in starts])
    return rows[:, :-1], rows[:, 1:]


def loss_of(model: Any, x: Any, y: Any) -> Any:
    """Return the mean cross entropy of the next letter."""
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def train(steps: int, device: str, compiled: bool = False) -> tuple[Any, list[float]]:
    """Return the trained model and the loss of each step."""
    torch.manual_seed(0)
    model = build().to(device)
    weights = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
    warm = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda i: min((i + 1) / warm, 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, i / steps)))),
    )

    def update(x: Any, y: Any) -> Any:
        loss = loss_of(model, x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
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


@torch.no_grad()
def write(model: Any, start: str, count: int, device: str, top: int = 5) -> str:
    """Return `start` and letters that follow, each drawn from the `top` likeliest."""
    letters = torch.tensor([[LETTERS.index(letter) for letter in start]], device=device)
    for _ in range(count):
        logits = model(letters[:, -CONTEXT:])[:, -1] / 0.7
        least = logits.topk(top).values[:, -1:]
        chances = F.softmax(logits.masked_fill(logits < least, -math.inf), dim=-1)
        letters = torch.cat([letters, torch.multinomial(chances, 1)], 1)
    return "".join(LETTERS[code] for code in letters[0].tolist())


def main() -> None:
    """Train, draw the loss, and let the model write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or webgpu")
    parser.add_argument("--compile", action="store_true", help="capture the training step")
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    options = parser.parse_args()
    model, losses = train(80 if options.quick else 1000, options.device, options.compile)
    size = math.ceil(len(losses) / 60)
    means = [sum(part) / len(part) for part in (losses[i : i + size] for i in range(0, len(losses), size))]  # fmt: skip
    for level in range(8, 0, -1):
        at = means[-1] + (means[0] - means[-1]) * (level - 0.5) / 8
        print(f"{at:5.2f} |" + "".join("#" if mean >= at else " " for mean in means))
    print(write(model.eval(), "    def ", 60 if options.quick else 300, options.device))


if __name__ == "__main__":
    main()
