"""A sequence turned round by GRU encoders and an LSTM decoder with attention (Bahdanau et al., 2015).

    python examples/seq2seq_attention.py            # --device cpu or webgpu, --compile, --quick

Sequences have different lengths: they are padded, and each is read backwards from its own end.
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

PAD, START, SYMBOLS, LONGEST = 0, 1, 10, 7


class Encoder(nn.Module):
    """Two GRUs over padded sequences, one of them backwards."""

    def __init__(self, width: int) -> None:
        """Make the layers."""
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, width, padding_idx=PAD)
        self.ahead = nn.GRU(width, width, batch_first=True)
        self.back = nn.GRU(width, width, batch_first=True)

    def forward(self, x: Any, lengths: Any) -> tuple[Any, Any]:
        """Return (N, T, 2 width), and what was read backwards up to the first symbol (N, width)."""
        # Each sequence turned round in its place, the padding behind it; twice, it is as before.
        turned = (lengths.unsqueeze(1) - 1 - torch.arange(LONGEST, device=x.device)) % LONGEST
        ahead, _ = self.ahead(self.embedding(x))
        back, _ = self.back(self.embedding(x.gather(1, turned)))
        back = back.gather(1, turned.unsqueeze(2).expand_as(back))
        return torch.cat([ahead, back], 2), back[:, 0]


class Decoder(nn.Module):
    """One LSTM cell that looks back at the encoder's steps."""

    def __init__(self, width: int) -> None:
        """Make the layers."""
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, width)
        self.start = nn.Linear(width, width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(2 * width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)
        self.cell = nn.LSTMCell(3 * width, width)
        self.logits = nn.Linear(width, SYMBOLS)

    def forward(self, memory: Any, last: Any, hidden: Any, y: Any) -> tuple[Any, Any]:
        """Return logits (N, T, symbols), given the right symbols before, and attention (N, T, T)."""
        h = torch.tanh(self.start(last))
        c = torch.zeros_like(h)
        keys, out, looked = self.key(memory), [], []
        for symbol in y.unbind(1):
            scores = self.score(torch.tanh(keys + self.query(h).unsqueeze(1))).squeeze(2)  # (N, T)
            weights = scores.masked_fill(hidden, float("-inf")).softmax(1)
            context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)  # (N, 2 width)
            h, c = self.cell(torch.cat([self.embedding(symbol), context], 1), (h, c))
            out.append(self.logits(h))
            looked.append(weights)
        return torch.stack(out, 1), torch.stack(looked, 1)


class Reverser(nn.Module):
    """Encoder and decoder."""

    def __init__(self, width: int = 48) -> None:
        """Make both."""
        super().__init__()
        self.encoder, self.decoder = Encoder(width), Decoder(width)

    def forward(self, x: Any, lengths: Any, y: Any) -> tuple[Any, Any]:
        """Return the logits of the turned sequence, and where the decoder looked."""
        memory, last = self.encoder(x, lengths)
        return self.decoder(memory, last, x == PAD, y)


def build() -> Reverser:
    """Return the model."""
    return Reverser()


def batch(step: int, size: int = 32) -> tuple[Any, Any, Any]:
    """Return sequences (N, T), their turned form (N, T), both padded, and their lengths (N,)."""
    draw = random.Random(step)
    rows = [
        [draw.randrange(2, SYMBOLS) for _ in range(draw.randint(3, LONGEST))] for _ in range(size)
    ]
    x, y = (
        [r + [PAD] * (LONGEST - len(r)) for r in some] for some in (rows, [r[::-1] for r in rows])
    )
    return torch.tensor(x), torch.tensor(y), torch.tensor([len(r) for r in rows])


def loss_of(model: Any, x: Any, y: Any, lengths: Any) -> Any:
    """Return the cross entropy of the symbols that are no padding."""
    before = F.pad(y[:, :-1], (1, 0), value=START)
    logits, _ = model(x, lengths, before)
    return F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=PAD)


def train(steps: int, device: str, compiled: bool = False) -> tuple[Any, list[float]]:
    """Return the trained model and the loss of each step."""
    torch.manual_seed(0)
    model = build().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def update(x: Any, y: Any, lengths: Any) -> Any:
        loss = loss_of(model, x, y, lengths)
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
                f"[{'#' * done:30}] {step + 1}/{steps}  loss {losses[-1]:.3f}", end=END, flush=True
            )
    print()
    return model, losses


def main() -> None:
    """Train, and draw what the decoder said, and where it looked for each symbol."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or webgpu")
    parser.add_argument("--compile", action="store_true", help="capture the training step")
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    options = parser.parse_args()
    model, _ = train(60 if options.quick else 400, options.device, options.compile)
    x, y, lengths = (t.to(options.device) for t in batch(10**6))
    with torch.no_grad():
        logits, looked = model(x, lengths, F.pad(y[:, :-1], (1, 0), value=START))
    said = logits.argmax(2)
    one = int(lengths.argmax())
    print("read  " + "  ".join(map(str, x[one].tolist())) + "\nsaid")
    for symbol, row in zip(said[one].tolist(), looked[one].tolist(), strict=True):
        print(f"{symbol:4}  " + "  ".join(" .:+#"[min(4, int(8 * v))] for v in row))
    right = ((said == y) & (y != PAD)).sum() / (y != PAD).sum()
    print(f"symbols that are right: {right.item():.3f}")


if __name__ == "__main__":
    main()
