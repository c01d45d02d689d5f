"""Real PyTorch on WebGPU: a text generation loop with a cache, compiled, with sampling.

A small GPT learns a sentence, then writes. One step of generation is one program, for whatever place in
the text: keys and values lie in a cache that the program writes in place, and the next token is drawn on
the device, so that nothing is read back before the end.

    pip install ".[torch]"
    python examples/pytorch/generate.py [--quick] [--eager]
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F

TEXT = "the quick brown fox jumps over the lazy dog and runs away from the slow grey wolf. "
LETTERS = sorted(set(TEXT))
CONTEXT, WIDTH, HEADS, LAYERS = 96, 64, 4, 2


class Layer(nn.Module):
    """A transformer block; with a place, one new token reads the cache. E is the size of a head."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.inner = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )
        for name in ("keys", "values"):
            cache = torch.zeros(1, HEADS, CONTEXT, WIDTH // HEADS)
            self.register_buffer(name, cache, persistent=False)

    def forward(
        self, x: torch.Tensor, at: torch.Tensor | None, mask: torch.Tensor | None
    ) -> torch.Tensor:
        q, k, v = (
            y.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for y in self.qkv(self.norm1(x)).chunk(3, -1)
        )  # (B, H, T, E)
        if at is not None:
            self.keys.index_copy_(2, at, k)
            self.values.index_copy_(2, at, v)
            k, v = self.keys, self.values
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.inner(self.norm2(x))


class GPT(nn.Module):
    """Logits of a text, or of the token after one more."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(len(LETTERS), WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: torch.Tensor, at: torch.Tensor | None = None) -> torch.Tensor:
        every = torch.arange(CONTEXT, device=tokens.device)
        places = every[: tokens.shape[1]] if at is None else at
        mask = None if at is None else (every <= at)[None, None, None]
        x = self.tokens(tokens) + self.places(places)
        for layer in self.layers:
            x = layer(x, at, mask)
        return F.linear(self.norm(x), self.tokens.weight)  # (B, T, V)


def train(model: GPT, steps: int, compiled: bool) -> None:
    """Teach the model the text, from random places in it."""
    device = model.tokens.weight.device
    letters = torch.tensor([LETTERS.index(c) for c in TEXT * 4])
    forward = torch.compile(model, backend="webgpu") if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        starts = torch.randint(0, len(TEXT), (8, 1))
        rows = letters[starts + torch.arange(CONTEXT + 1)].to(device)
        loss = F.cross_entropy(forward(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step:3}  loss {loss.item():.4f}", flush=True)


@torch.no_grad()
def generate(model: GPT, prompt: str, count: int, temperature: float, compiled: bool) -> str:
    """Return the prompt and `count` more letters; at temperature 0 the likeliest."""
    device = model.tokens.weight.device

    def step(token: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = model(token, at)[:, -1]
        if not temperature:
            return logits.argmax(-1, keepdim=True), at + 1
        best, places = (logits / temperature).topk(5)
        # Gumbel's trick: the largest of logits plus noise is a draw from their softmax.
        noise = -torch.log(-torch.log(torch.rand_like(best).clamp(1e-6, 1 - 1e-6)))
        return places.gather(1, (best + noise).argmax(-1, keepdim=True)), at + 1

    run = torch.compile(step, backend="webgpu") if compiled else step
    at = torch.zeros(1, dtype=torch.int64, device=device)
    given = torch.tensor([[LETTERS.index(c)] for c in prompt]).to(device)
    out, token = [], given[:1]
    for i in range(len(prompt) + count - 1):
        token, at = run(given[i : i + 1] if i < len(prompt) else token, at)
        if i >= len(prompt) - 1:
            out.append(token)
    return prompt + "".join(LETTERS[i] for i in torch.cat(out).flatten().tolist())


def main(argv: list[str] | None = None) -> str:
    """Train and write; return the likeliest text."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few steps")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument("--device", default="webgpu")
    options = parser.parse_args(argv)
    compiled = options.device == "webgpu" and not options.eager
    torch.manual_seed(0)
    model = GPT().to(options.device)
    train(model, 8 if options.quick else 200, compiled)
    count = 12 if options.quick else 70
    text = generate(model, "the quick", count, 0.0, compiled)
    started = time.perf_counter()
    print("sampled:  ", generate(model, "the quick", count, 0.8, compiled))
    print(f"           {count} letters in {time.perf_counter() - started:.2f} s")
    print("likeliest:", text)
    return text


if __name__ == "__main__":
    main()
