"""Word2vec (Mikolov et al., 2013) finds out which words are alike, from sentences and nothing else.

    python examples/word2vec.py                     # --device cpu or webgpu, --compile, --quick

Skip-grams with negative samples. Change the first import to `import torch` and the file runs in PyTorch.
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

KINDS = {
    "animal": ["cat", "dog", "horse", "cow", "goat", "duck"],
    "food": ["bread", "soup", "cheese", "rice", "apple", "cake"],
    "place": ["river", "forest", "hill", "garden", "field", "lake"],
    "person": ["anna", "peter", "maria", "john", "lucy", "paul"],
}
SENTENCES = (
    "the animal drinks at the place",
    "person eats food with a spoon",
    "person feeds the animal",
    "the animal sleeps near the place",
    "person walks to the place today",
    "person cooks food for person",
    "there is fresh food on the table",
)
PLAIN = sorted({w for s in SENTENCES for w in s.split() if w not in KINDS})
WORDS = [*(w for kind in KINDS.values() for w in kind), *PLAIN]
WINDOW, WRONG, WIDTH = 2, 6, 24


class Word2Vec(nn.Module):
    """A vector for each word in the middle, and one for each word around it."""

    def __init__(self) -> None:
        """Make both tables."""
        super().__init__()
        self.middle = nn.Embedding(len(WORDS), WIDTH)
        self.around = nn.Embedding(len(WORDS), WIDTH)
        nn.init.uniform_(self.middle.weight, -0.5 / WIDTH, 0.5 / WIDTH)
        nn.init.zeros_(self.around.weight)

    def forward(self, middle: Any, around: Any) -> Any:
        """Return logits (N, M) of words (N, M) being around words (N,)."""
        return torch.einsum("nc,nmc->nm", self.middle(middle), self.around(around))


def build() -> Word2Vec:
    """Return the model."""
    return Word2Vec()


def batch(step: int, size: int = 256) -> tuple[Any, Any]:
    """Return words (N,), and beside each a word near it and WRONG random ones (N, 1 + WRONG)."""
    draw, middles, others = random.Random(step), [], []
    while len(middles) < size:
        words = [draw.choice(KINDS.get(w, [w])) for w in draw.choice(SENTENCES).split()]
        codes = [WORDS.index(w) for w in words]
        for i, code in enumerate(codes):
            for j in range(max(0, i - WINDOW), min(len(codes), i + WINDOW + 1)):
                if i != j:
                    middles.append(code)
                    others.append([codes[j], *(draw.randrange(len(WORDS)) for _ in range(WRONG))])
    return torch.tensor(middles[:size]), torch.tensor(others[:size])


def loss_of(model: Any, middle: Any, around: Any) -> Any:
    """Return how badly near words are told from random ones."""
    logits = model(middle, around)
    return -F.logsigmoid(logits[:, 0]).mean() - F.logsigmoid(-logits[:, 1:]).sum(1).mean()


def train(steps: int, device: str, compiled: bool = False) -> tuple[Any, list[float]]:
    """Return the trained model and the loss of each step."""
    torch.manual_seed(0)
    model = build().to(device)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.3)

    def update(middle: Any, around: Any) -> Any:
        loss = loss_of(model, middle, around)
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


@torch.no_grad()
def nearest(model: Any, word: str, count: int = 4) -> list[str]:
    """Return the words whose vectors point most nearly the same way."""
    vectors = F.normalize(model.middle.weight, dim=1)
    alike = vectors @ vectors[WORDS.index(word)]
    return [WORDS[i] for i in alike.topk(count + 1).indices.tolist() if WORDS[i] != word][:count]


def main() -> None:
    """Train, and draw the words in the plane in which they differ most."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or webgpu")
    parser.add_argument("--compile", action="store_true", help="capture the training step")
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    options = parser.parse_args()
    model, _ = train(100 if options.quick else 600, options.device, options.compile)
    for kind in KINDS.values():
        print(f"{kind[0]:8}{', '.join(nearest(model, kind[0]))}")
    count = sum(len(kind) for kind in KINDS.values())
    vectors = F.normalize(model.middle.weight.detach().cpu()[:count], dim=1)
    centred = vectors - vectors.mean(0)
    plane = centred @ torch.linalg.svd(centred, full_matrices=False)[2][:2].T
    rows = [[" "] * 76 for _ in range(22)]
    low, high = plane.amin(0), plane.amax(0)
    for word, (x, y) in zip(WORDS, ((plane - low) / (high - low)).tolist(), strict=False):
        row, column = round(21 * y), round(68 * x)
        # A free place for the word, as near as there is one.
        for free in sorted(range(22), key=lambda r: abs(r - row)):
            if not "".join(rows[free][column : column + len(word) + 1]).strip():
                row = free
                break
        rows[row][column : column + len(word)] = word
    print("\n".join("".join(row).rstrip() for row in rows))


if __name__ == "__main__":
    main()
