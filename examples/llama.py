"""A Llama (Touvron et al., 2023) that learns sums in words: RMSNorm, rotary places, grouped heads, SwiGLU.

    python examples/llama.py                        # --device cpu or webgpu, --compile, --quick

It answers with a cache of keys and values, one symbol at a time, and draws from the likeliest (top-p).
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

DIGITS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
)
SYMBOLS = [*DIGITS, "plus", "is", "."]
CONTEXT, WIDTH, HEADS, GROUPS, DEPTH = 30, 48, 6, 2, 2


class RMSNorm(nn.Module):
    """Divide by the root mean square (Zhang and Sennrich, 2019)."""

    def __init__(self) -> None:
        """Make the weight."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Any) -> Any:
        """Return what has the shape of x."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def turn(x: Any, angles: Any) -> Any:
    """Turn each pair of channels of x (N, heads, T, C) by its angle (T, C / 2) (Su et al., 2021)."""
    a, b = x.chunk(2, -1)
    c, s = angles.cos(), angles.sin()
    return torch.cat([a * c - b * s, b * c + a * s], -1)


class Attention(nn.Module):
    """Attention in which several heads of queries share keys and values (Ainslie et al., 2023)."""

    def __init__(self) -> None:
        """Make the projections."""
        super().__init__()
        size = WIDTH // HEADS
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, GROUPS * size, bias=False)
        self.value = nn.Linear(WIDTH, GROUPS * size, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Any, angles: Any, cache: Any) -> Any:
        """Return (N, T, WIDTH). cache: keys and values (N, groups, CONTEXT, C) and the place, or None."""
        n, t, _ = x.shape
        q = turn(self.query(x).view(n, t, HEADS, -1).transpose(1, 2), angles)
        k = turn(self.key(x).view(n, t, GROUPS, -1).transpose(1, 2), angles)
        v = self.value(x).view(n, t, GROUPS, -1).transpose(1, 2)
        mask = None
        if cache is not None:
            keys, values, place = cache
            keys[:, :, place : place + t] = k
            values[:, :, place : place + t] = v
            k, v = keys, values
            seen = torch.arange(place, place + t, device=x.device)
            mask = torch.arange(CONTEXT, device=x.device) <= seen.unsqueeze(1)  # (T, CONTEXT)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=cache is None, enable_gqa=True
        )
        return self.out(out.transpose(1, 2).reshape(n, t, WIDTH))


class Block(nn.Module):
    """Attention and SwiGLU (Shazeer, 2020), each added to what comes in."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.before, self.attention, self.between = RMSNorm(), Attention(), RMSNorm()
        self.gate = nn.Linear(WIDTH, 128, bias=False)
        self.up = nn.Linear(WIDTH, 128, bias=False)
        self.down = nn.Linear(128, WIDTH, bias=False)

    def forward(self, x: Any, angles: Any, cache: Any = None) -> Any:
        """Return (N, T, WIDTH)."""
        x = x + self.attention(self.before(x), angles, cache)
        normed = self.between(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Llama(nn.Module):
    """Symbols to blocks to logits."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.symbols = nn.Embedding(len(SYMBOLS), WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm, self.logits = RMSNorm(), nn.Linear(WIDTH, len(SYMBOLS), bias=False)
        size = WIDTH // HEADS
        rates = 10000.0 ** (-torch.arange(0, size, 2) / size)
        self.register_buffer("angles", torch.outer(torch.arange(CONTEXT), rates), persistent=False)

    def forward(self, x: Any, caches: Any = None, place: int = 0) -> Any:
        """Return logits (N, T, symbols) of symbols (N, T), of which the first is at `place`."""
        angles, out = self.angles[place : place + x.shape[1]], self.symbols(x)
        for i, block in enumerate(self.blocks):
            out = block(out, angles, None if caches is None else (*caches[i], place))
        return self.logits(self.norm(out))

    def empty_caches(self, size: int) -> list[tuple[Any, Any]]:
        """Return keys and values for each block, for `size` texts."""
        shape = (size, GROUPS, CONTEXT, WIDTH // HEADS)
        like = self.angles
        return [(like.new_zeros(shape), like.new_zeros(shape)) for _ in self.blocks]


def build() -> Llama:
    """Return the model."""
    return Llama()


def batch(step: int, size: int = 32) -> tuple[Any, Any]:
    """Return sums (N, CONTEXT), one after the other, and the same one symbol later."""
    draw, rows = random.Random(step), []
    plus, equals, stop = len(DIGITS), len(DIGITS) + 1, len(DIGITS) + 2
    for _ in range(size):
        row: list[int] = []
        while len(row) <= CONTEXT:
            a, b = draw.randrange(10), draw.randrange(10)
            row += [a, plus, b, equals, a + b, stop]
        rows.append(row[: CONTEXT + 1])
    x = torch.tensor(rows)
    return x[:, :-1], x[:, 1:]


def loss_of(model: Any, x: Any, y: Any) -> Any:
    """Return the mean cross entropy of the next symbol."""
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def train(steps: int, device: str, compiled: bool = False) -> tuple[Any, list[float]]:
    """Return the trained model and the loss of each step."""
    torch.manual_seed(0)
    model = build().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=1e-3)

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
        schedule.step()
        if (done := 30 * (step + 1) // steps) > 30 * step // steps:
            print(
                f"[{'#' * done:30}] {step + 1}/{steps}  loss {losses[-1]:.3f}", end=END, flush=True
            )
    print()
    return model, losses


@torch.no_grad()
def answer(model: Any, asked: Any, count: int, part: float = 0.9) -> Any:
    """Return the `count` symbols (N, count) that follow `asked` (N, T), drawn from the likeliest.

    The likeliest are the fewest whose probabilities add up to `part` (Holtzman et al., 2020).
    """
    caches, place, new, found = model.empty_caches(asked.shape[0]), 0, asked, []
    for _ in range(count):
        chances = F.softmax(model(new, caches, place)[:, -1], -1)
        place += new.shape[1]
        ordered, which = chances.sort(-1, descending=True)
        kept = ordered.masked_fill(ordered.cumsum(-1) - ordered > part, 0.0)
        new = which.gather(1, torch.multinomial(kept, 1))
        found.append(new)
    return torch.cat(found, 1)


def main() -> None:
    """Train, and show which sums are answered rightly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or webgpu")
    parser.add_argument("--compile", action="store_true", help="capture the training step")
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    options = parser.parse_args()
    model, _ = train(100 if options.quick else 400, options.device, options.compile)
    sums = [[a, len(DIGITS), b, len(DIGITS) + 1] for a in range(10) for b in range(10)]
    found = answer(model.eval(), torch.tensor(sums, device=options.device), 2).tolist()
    for (a, _, b, _), (said, _) in list(zip(sums, found, strict=True))[3:100:12]:
        mark = "" if said == a + b else f"   (it is {DIGITS[a + b]})"
        print(f"{DIGITS[a]} plus {DIGITS[b]} is {SYMBOLS[said]}.{mark}")
    right = [said == a + b for (a, _, b, _), (said, _) in zip(sums, found, strict=True)]
    for a in range(10):
        print("".join(" #"[one] * 2 for one in right[10 * a : 10 * a + 10]))
    print(f"right: {sum(right)} of {len(right)}")


if __name__ == "__main__":
    main()
