"""Real PyTorch on WebGPU: fine-tune a small transformer on a new task.

The transformer first learns to fill in letters of short texts; then its head is replaced and it learns
to tell two kinds of text apart, its lower half frozen. Weights go through a file, as one would load
published ones; with transformers installed, any of its models takes the network's place.

    pip install ".[torch]"
    python examples/pytorch/fine_tune.py [--quick] [--eager]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

LENGTH, WIDTH, MASK = 24, 64, 27


def texts(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return texts of letters 0..25 (count, LENGTH) that run up (1) or down (0) the alphabet."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (count,), generator=g)
    start = torch.randint(0, 26, (count, 1), generator=g)
    steps = torch.arange(LENGTH) * (2 * labels[:, None] - 1)
    letters = (start + steps) % 26
    noise = torch.rand(count, LENGTH, generator=g) < 0.1
    return torch.where(noise, torch.randint(0, 26, (count, LENGTH), generator=g), letters), labels


class Encoder(nn.Module):
    """A transformer that reads a text and gives a vector for each letter."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(28, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True, activation="gelu"
        )
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.layers(self.letters(tokens) + self.places(places))  # (B, T, D)


def learn(model: nn.Module, loss_of: object, steps: int, rate: float, compiled: bool) -> float:
    """Train what is not frozen; return the last loss. `loss_of(forward, step)` gives each loss."""
    forward = torch.compile(model, backend="webgpu") if compiled else model
    wanted = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(wanted, lr=rate)
    for step in range(steps):
        loss = loss_of(forward, step)  # type: ignore[operator]
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(wanted, 1.0)
        optimizer.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"  step {step:3}  loss {loss.item():.4f}", flush=True)
    return loss.item()


def main(argv: list[str] | None = None) -> float:
    """Train on letters, then fine-tune; return the accuracy on texts not seen."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few steps")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument("--device", default="webgpu")
    options = parser.parse_args(argv)
    compiled = options.device == "webgpu" and not options.eager
    torch.manual_seed(0)
    steps = 6 if options.quick else 150

    def letters(forward: nn.Module, step: int) -> torch.Tensor:
        tokens, _ = texts(32, step)
        hidden = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(step)) < 0.2
        seen = tokens.masked_fill(hidden, MASK).to(options.device)
        wanted = tokens.masked_fill(~hidden, -100).to(options.device)
        return F.cross_entropy(forward(seen).flatten(0, 1), wanted.flatten(), ignore_index=-100)

    print("letters that are hidden:")
    encoder = Encoder().to(options.device)
    learn(
        nn.Sequential(encoder, nn.Linear(WIDTH, 28).to(options.device)),
        letters,
        steps,
        1e-3,
        compiled,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "encoder.pt"
        torch.save(encoder.state_dict(), path)
        encoder = Encoder()
        encoder.load_state_dict(torch.load(path, map_location="cpu"))
    for part in (encoder.letters, encoder.places, *encoder.layers.layers[:2]):
        part.requires_grad_(False)

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = encoder, nn.Linear(WIDTH, 2)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.encoder(tokens).mean(1))

    def kinds(forward: nn.Module, step: int) -> torch.Tensor:
        tokens, labels = (t.to(options.device) for t in texts(32, 1000 + step))
        return F.cross_entropy(forward(tokens), labels)

    print("up or down:")
    classifier = Classifier().to(options.device)
    learn(classifier, kinds, steps, 1e-3, compiled)
    tokens, labels = texts(256, 5000)
    with torch.no_grad():
        found = classifier(tokens.to(options.device)).argmax(1).cpu()
    right = (found == labels).float().mean().item()
    print(f"accuracy on texts not seen: {right:.3f}")
    return right


if __name__ == "__main__":
    main()
