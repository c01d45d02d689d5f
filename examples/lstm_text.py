"""An LSTM that writes text, letter by letter: PyTorch's idiom, on WebGPU or the CPU.

    pip install webtorch
    python examples/lstm_text.py                    # --device cpu or webgpu, --compile, --quick

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

TEXT = (
    "the wind blew over the hill and the rain fell on the stone. the stone lay in the grass and "
    "the grass bent in the wind. a bird sat on the stone and sang in the rain, and the song went "
    "over the hill with the wind. "
) * 4
LETTERS = sorted(set(TEXT))
CODES = [LETTERS.index(letter) for letter in TEXT]


class Writer(nn.Module):
    """Embedding, two layers of LSTM, and the logits of the next letter."""

    def __init__(self, width: int = 64) -> None:
        """Make the layers."""
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS), 32)
        self.lstm = nn.LSTM(32, width, num_layers=2, batch_first=True)
        self.logits = nn.Linear(width, len(LETTERS))

    def forward(self, letters: Any, state: Any = None) -> tuple[Any, Any]:
        """Return logits (N, T, letters) and the state for the letters that follow."""
        out, state = self.lstm(self.embedding(letters), state)  # (N, T, width)
        return self.logits(out), state


def build() -> Writer:
    """Return the model."""
    return Writer()


def batch(step: int, size: int = 16, length: int = 32) -> tuple[Any, Any]:
    """Return pieces of the text, and the same pieces one letter later."""
    draw = random.Random(step)
    starts = [draw.randrange(len(CODES) - length - 1) for _ in range(size)]
    rows = torch.tensor([CODES[s : s + length + 1] for s in starts])
    return rows[:, :-1], rows[:, 1:]


def loss_of(model: Any, x: Any, y: Any) -> Any:
    """Return the mean cross entropy of the next letter."""
    logits, _ = model(x)
    return F.cross_entropy(logits.flatten(0, 1), y.flatten())


@torch.no_grad()
def write(model: Any, start: str, count: int, device: str) -> str:
    """Return `start` and the `count` likeliest letters that follow."""
    letters, state = [LETTERS.index(letter) for letter in start], None
    new = letters
    for _ in range(count):
        logits, state = model(torch.tensor([new], device=device), state)
        new = [int(logits[0, -1].argmax())]
        letters += new
    return "".join(LETTERS[code] for code in letters)


def train(steps: int, device: str, compiled: bool = False) -> tuple[Any, list[float]]:
    """Return the trained model and the loss of each step."""
    torch.manual_seed(0)
    model = build().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def update(x: Any, y: Any) -> Any:
        loss = loss_of(model, x, y)
        optimizer.zero_grad()
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
        if (done := 30 * (step + 1) // steps) > 30 * step // steps:
            print(
                f"[{'#' * done:30}] {step + 1}/{steps}  loss {losses[-1]:.3f}", end=END, flush=True
            )
    print()
    return model, losses


def main() -> None:
    """Train, let the model write, and show how sure it is of each letter of the text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or webgpu")
    parser.add_argument("--compile", action="store_true", help="capture the training step")
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    options = parser.parse_args()
    model, _ = train(60 if options.quick else 400, options.device, options.compile)
    print(write(model, "the ", 80, options.device))
    line = torch.tensor([CODES[:85]], device=options.device)
    with torch.no_grad():
        chances = model(line)[0].softmax(2)[0, :-1].gather(1, line[0, 1:, None])[:, 0].tolist()
    print(f"\n{TEXT[:85]}")
    for level in range(5, 0, -1):
        print(" " + "".join("#" if chance > (level - 0.5) / 5 else " " for chance in chances))


if __name__ == "__main__":
    main()
