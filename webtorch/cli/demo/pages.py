"""`webtorch demo --export`: what a demo trained becomes a page in which it trains on, and answers."""

from __future__ import annotations

import os
import random
from pathlib import Path

import webtorch.nn.functional as F
from webtorch import nn, optim
from webtorch.cli.demo import digits, gpt
from webtorch.cli.demo.corpus import Corpus
from webtorch.functions import public as torch
from webtorch.web.export import export

# Batches that the page trains on, and pictures that it shows.
BATCHES = 16
SHOWN = 16


def export_digits(
    model: digits.Net,
    optimizer: optim.Optimizer,
    data: digits.Digits,
    path: str | os.PathLike[str],
) -> Path:
    """Write the page of the digits: training goes on, and a drawn digit is read."""
    device = next(model.parameters()).device
    side, size = digits.SIDE, digits.BATCH

    def train(images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Take a training step; return loss and accuracy."""
        optimizer.zero_grad()
        logits = model(images)
        loss = F.cross_entropy(logits, labels, label_smoothing=digits.LABEL_SMOOTHING)
        loss.backward()
        optimizer.step()
        return {"loss": loss, "accuracy": (logits.argmax(1) == labels).float().mean()}

    count = min(BATCHES, len(data.train_labels) // size)
    batches = []
    for i in range(count):
        part = slice(i * size, (i + 1) * size)
        images = torch.tensor(data.train_images[part], device=device).view(-1, 1, side, side)
        batches.append((images, torch.tensor(data.train_labels[part], device=device)))
    unseen = torch.tensor(data.test_images[:SHOWN], device=device).view(-1, 1, side, side)
    for group in optimizer.param_groups:
        # The schedule has ended near zero; in the page there is a slider.
        group["lr"] = digits.LR / 4
    model.train()
    return export(
        {"train": train, "infer": model},
        path,
        {"train": batches[0], "infer": unseen},
        examples={"train": batches},
        initial=digits.Net().to(device),
        labels=[str(i) for i in range(10)],
        targets=data.test_labels[:SHOWN],
        title="Handwritten digits",
        single_file=Path(path).suffix == ".html",
    )


def export_gpt(
    model: gpt.GPT,
    optimizer: optim.Optimizer,
    corpus: Corpus,
    preset: gpt.Preset,
    path: str | os.PathLike[str],
) -> Path:
    """Write the page of the GPT: training goes on, and it writes on from a prompt."""
    device = next(model.parameters()).device

    def train(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Take a training step; return the loss."""
        optimizer.zero_grad()
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), gpt.CLIP)
        optimizer.step()
        return loss

    draw = random.Random(0)
    batches = []
    for _ in range(BATCHES):
        starts = [
            draw.randrange(max(1, len(corpus.train) - preset.context)) for _ in range(preset.batch)
        ]
        rows = torch.tensor([list(corpus.train[s : s + preset.context + 1]) for s in starts])
        batches.append((rows[:, :-1].contiguous().to(device), rows[:, 1:].contiguous().to(device)))
    window = torch.tensor([list(corpus.held_out[: preset.context])], device=device)
    model.train()
    return export(
        {"train": train, "infer": model},
        path,
        {"train": batches[0], "infer": window},
        examples={"train": batches},
        outputs={"train": ["loss"], "infer": ["logits"]},
        initial=gpt.GPT(preset, len(corpus.characters)).to(device),
        vocabulary=list(corpus.characters),
        title="A GPT of characters",
        single_file=Path(path).suffix == ".html",
    )
