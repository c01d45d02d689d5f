"""A sequence turned round by a GRU encoder and an LSTM decoder with attention (Bahdanau et al., 2015).

    python examples/seq2seq_attention.py            # --device cpu or webgpu, --quick

Sequences have different lengths: the encoder reads them packed. Change the first import to
`import torch` and the file runs in PyTorch.
"""

from __future__ import annotations

import argparse
import random
from typing import Any

import webtorch as torch

nn, F = torch.nn, torch.nn.functional

PAD, START, SYMBOLS, LONGEST = 0, 1, 10, 7


class Encoder(nn.Module):
    """A bidirectional GRU over packed sequences."""

    def __init__(self, width: int) -> None:
        """Make the layers."""
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, width, padding_idx=PAD)
        self.gru = nn.GRU(width, width, batch_first=True, bidirectional=True)

    def forward(self, x: Any, lengths: Any) -> tuple[Any, Any]:
        """Return (N, T, 2 width) and the last state of both directions (N, 2 width)."""
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(x), lengths, batch_first=True, enforce_sorted=False
        )
        out, last = self.gru(packed)
        padded, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=LONGEST)
        return padded, last.transpose(0, 1).flatten(1)


class Decoder(nn.Module):
    """One LSTM cell that looks back at the encoder's steps."""

    def __init__(self, width: int) -> None:
        """Make the layers."""
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, width)
        self.start = nn.Linear(2 * width, width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(2 * width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)
        self.cell = nn.LSTMCell(3 * width, width)
        self.logits = nn.Linear(width, SYMBOLS)

    def forward(self, memory: Any, last: Any, hidden: Any, y: Any) -> Any:
        """Return logits (N, T, symbols) when each step is given the right symbol before it."""
        h = torch.tanh(self.start(last))
        c = torch.zeros_like(h)
        keys, out = self.key(memory), []
        for symbol in y.unbind(1):
            scores = self.score(torch.tanh(keys + self.query(h).unsqueeze(1))).squeeze(2)  # (N, T)
            weights = scores.masked_fill(hidden, float("-inf")).softmax(1)
            context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)  # (N, 2 width)
            h, c = self.cell(torch.cat([self.embedding(symbol), context], 1), (h, c))
            out.append(self.logits(h))
        return torch.stack(out, 1)


class Reverser(nn.Module):
    """Encoder and decoder."""

    def __init__(self, width: int = 48) -> None:
        """Make both."""
        super().__init__()
        self.encoder, self.decoder = Encoder(width), Decoder(width)

    def forward(self, x: Any, lengths: Any, y: Any) -> Any:
        """Return the logits of the turned sequence."""
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
    return F.cross_entropy(model(x, lengths, before).flatten(0, 1), y.flatten(), ignore_index=PAD)


def train(steps: int, device: str) -> tuple[Any, list[float]]:
    """Return the trained model and the loss of each step."""
    torch.manual_seed(0)
    model = build().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    for step in range(steps):
        x, y, lengths = batch(step)
        loss = loss_of(model, x.to(device), y.to(device), lengths)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        done = 30 * (step + 1) // steps
        print(f"\r[{'#' * done:30}] {step + 1}/{steps}  loss {losses[-1]:.3f}", end="", flush=True)
    print()
    return model, losses


def main() -> None:
    """Train, and show how many symbols are right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or webgpu")
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    options = parser.parse_args()
    model, _ = train(60 if options.quick else 400, options.device)
    x, y, lengths = batch(10**6)
    x, y = x.to(options.device), y.to(options.device)
    with torch.no_grad():
        said = model(x, lengths, F.pad(y[:, :-1], (1, 0), value=START)).argmax(2)
    right = ((said == y) & (y != PAD)).sum() / (y != PAD).sum()
    print(f"symbols that are right: {right.item():.3f}")


if __name__ == "__main__":
    main()
