"""`webtorch demo digits`: a convolutional network learns to read handwritten digits.

The data are the UCI "optical recognition of handwritten digits" set in scikit-learn's copy: 1,797
pictures of 8 x 8 pixels, of which a fixed 360 are never trained on.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import webtorch.nn.functional as F
from webtorch import nn, optim
from webtorch.cli.demo.progress import Meter
from webtorch.errors import WebtorchError
from webtorch.functions import public as torch

EPOCHS = 20
BATCH = 64
LR = 6e-3
LABEL_SMOOTHING = 0.1
TEST_COUNT = 360
SIDE = 8


class DataError(WebtorchError):
    """The digits are not installed."""


@dataclass(frozen=True, slots=True)
class Digits:
    """Pictures as rows of 64 values from 0 to 1, and what they show."""

    train_images: list[list[float]]
    train_labels: list[int]
    test_images: list[list[float]]
    test_labels: list[int]


def load_digits() -> Digits:
    """Return the pictures in a fixed split. Raises DataError without scikit-learn."""
    try:
        from sklearn.datasets import load_digits as sklearn_digits
    except ImportError as error:
        raise DataError(
            "the digits are scikit-learn's, which is not installed: pip install scikit-learn. "
            "`webtorch demo gpt` needs nothing more than you have"
        ) from error
    data = sklearn_digits()
    images: list[list[float]] = (data.data / 16.0).tolist()
    labels: list[int] = data.target.tolist()
    order = list(range(len(labels)))
    # The split does not follow --seed, so that all runs are tested on the same pictures.
    random.Random(0).shuffle(order)
    test, train = order[:TEST_COUNT], order[TEST_COUNT:]
    return Digits(
        [images[i] for i in train],
        [labels[i] for i in train],
        [images[i] for i in test],
        [labels[i] for i in test],
    )


class Net(nn.Module):
    """Three convolutions with batch norm, two poolings, dropout, two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, kernel_size=3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, kernel_size=3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 128, kernel_size=3, padding=1),
            nn.BatchNorm2d(128),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Dropout(0.5),
            nn.Linear(128 * 2 * 2, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map pictures (B, 1, 8, 8) to the logits of ten digits (B, 10)."""
        return self.classifier(self.features(images))


@dataclass(frozen=True, slots=True)
class Mistake:
    """A test picture that was misread."""

    image: list[float]
    label: int
    prediction: int
    # What the network gave the ten digits.
    probabilities: list[float]


@dataclass(slots=True)
class DigitsResult:
    """All that the report and the JSON file say about a run."""

    seed: int
    epochs: int
    parameters: int
    train_count: int
    test_count: int
    losses: list[float] = field(default_factory=list)
    test_losses: list[float] = field(default_factory=list)
    train_accuracies: list[float] = field(default_factory=list)
    test_accuracies: list[float] = field(default_factory=list)
    epoch_seconds: list[float] = field(default_factory=list)
    # confusion[true][predicted], on the test pictures after the last epoch.
    confusion: list[list[int]] = field(default_factory=list)
    mistakes: list[Mistake] = field(default_factory=list)
    seconds: float = 0.0
    training_seconds: float = 0.0
    examples: int = 0
    quick: bool = False

    @property
    def accuracy(self) -> float:
        """Share of the test pictures read correctly."""
        return self.test_accuracies[-1] if self.test_accuracies else 0.0

    @property
    def examples_per_second(self) -> float:
        """Pictures trained on per second of training, compiling included."""
        return self.examples / self.training_seconds if self.training_seconds else 0.0


def train(
    device: str,
    *,
    epochs: int | None = None,
    seed: int = 0,
    quick: bool = False,
    meter: Meter,
    on_end: Callable[[Net, optim.Optimizer, Digits], object] | None = None,
) -> DigitsResult:
    """Train and return figures, curves and mistakes. The same seed starts alike on every device.

    `quick` shows every part at work in two epochs on 512 pictures.
    """
    data = load_digits()
    epochs = epochs if epochs is not None else 2 if quick else EPOCHS
    count = len(data.train_labels[:512] if quick else data.train_labels)
    started = time.perf_counter()

    # Drawn on the CPU and then moved: the same weights whatever the device.
    torch.manual_seed(seed)
    with torch.device("cpu"):
        model = Net()
    model = model.to(device)
    # The weights used up numbers of the CPU's generator only: dropout starts afresh on every device.
    torch.manual_seed(seed)
    result = DigitsResult(
        seed,
        epochs,
        sum(p.numel() for p in model.parameters()),
        count,
        len(data.test_labels),
        quick=quick,
    )
    images = torch.tensor(data.train_images[:count], device=device)
    labels = torch.tensor(data.train_labels[:count], device=device)
    test_images = torch.tensor(data.test_images, device=device).view(-1, 1, SIDE, SIDE)
    test_labels = torch.tensor(data.test_labels, device=device)

    # A last, smaller batch would be a second program to compile for 29 pictures: it is left out.
    steps = count // BATCH
    optimizer = optim.Adam(model.parameters(), lr=LR)
    scheduler = optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=LR, total_steps=max(1, steps * epochs)
    )
    draw = random.Random(seed)
    probabilities: list[list[float]] = []
    with meter.run("epoch", epochs, steps):
        for epoch in range(epochs):
            _train_epoch(epoch, model, optimizer, scheduler, images, labels, draw, result, meter)
            probabilities = _test(model, test_images, test_labels, data, result)
            meter.epoch(
                epoch,
                f"loss {result.losses[-1]:.3f}",
                f"accuracy {_shown(result.test_accuracies)}",
                f"{result.examples_per_second:,.0f} examples/s",
            )
    _judge(result, data, probabilities)
    result.seconds = time.perf_counter() - started
    if on_end is not None:
        on_end(model, optimizer, data)
    return result


def _train_epoch(
    epoch: int,
    model: Net,
    optimizer: optim.Optimizer,
    scheduler: optim.lr_scheduler.LRScheduler,
    images: torch.Tensor,
    labels: torch.Tensor,
    draw: random.Random,
    result: DigitsResult,
    meter: Meter,
) -> None:
    """Train on all pictures once, moved about and in a new order, and note how it went."""
    started = time.perf_counter()
    device, count = images.device, len(images)
    steps = count // BATCH
    model.train()
    shifted = _shift(images, draw)
    order = draw.sample(range(count), count)
    loss_sum = torch.zeros((), device=device)
    right = torch.zeros((), dtype=torch.int64, device=device)
    for step in range(steps):
        batch = torch.tensor(order[step * BATCH : (step + 1) * BATCH], device=device)
        targets = labels[batch]
        logits = model(shifted[batch])
        loss = F.cross_entropy(logits, targets, label_smoothing=LABEL_SMOOTHING)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        loss_sum = loss_sum + loss.detach()
        right = right + (logits.detach().argmax(1) == targets).sum()
        result.examples += BATCH
        if step % 8 == 7:
            # Reading waits for the device: often enough to watch, rarely enough to be fast.
            spent = result.training_seconds + time.perf_counter() - started
            meter.step(
                epoch,
                step + 1,
                f"loss {loss_sum.item() / (step + 1):.3f}",
                f"accuracy {_shown(result.test_accuracies)}",
                f"{result.examples / spent:,.0f} examples/s",
            )
    result.losses.append(loss_sum.item() / max(1, steps))
    result.train_accuracies.append(right.item() / max(1, steps * BATCH))
    result.epoch_seconds.append(time.perf_counter() - started)
    result.training_seconds += result.epoch_seconds[-1]


def _test(
    model: Net, images: torch.Tensor, labels: torch.Tensor, data: Digits, result: DigitsResult
) -> list[list[float]]:
    """Note how well the test pictures are read; return what each of them gave the ten digits."""
    model.eval()
    with torch.no_grad():
        logits = model(images)
        result.test_losses.append(F.cross_entropy(logits, labels).item())
        probabilities: list[list[float]] = torch.softmax(logits, dim=1).tolist()
    guesses = [row.index(max(row)) for row in probabilities]
    hits = sum(g == t for g, t in zip(guesses, data.test_labels))
    result.test_accuracies.append(hits / len(guesses))
    return probabilities


def _shift(images: torch.Tensor, draw: random.Random) -> torch.Tensor:
    """Return the pictures (N, 64) as (N, 1, 8, 8), each moved by up to one pixel each way.

    One gather for all pictures, with the moves as data: another move is no other program.
    """
    wide = SIDE + 2
    corners = [draw.randrange(3) * wide + draw.randrange(3) for _ in range(images.shape[0])]
    grid = [y * wide + x for y in range(SIDE) for x in range(SIDE)]
    device = images.device
    index = torch.tensor(corners, device=device)[:, None] + torch.tensor(grid, device=device)
    padded = F.pad(images.view(-1, SIDE, SIDE), (1, 1, 1, 1)).flatten(1)
    return padded.gather(1, index).view(-1, 1, SIDE, SIDE)


def _judge(result: DigitsResult, data: Digits, probabilities: list[list[float]]) -> None:
    result.confusion = [[0] * 10 for _ in range(10)]
    for image, label, row in zip(data.test_images, data.test_labels, probabilities):
        guess = row.index(max(row))
        result.confusion[label][guess] += 1
        if guess != label:
            result.mistakes.append(Mistake(image, label, guess, row))
    # The surest mistakes first: they are the ones to look at.
    result.mistakes.sort(key=lambda mistake: -mistake.probabilities[mistake.prediction])


def _shown(accuracies: list[float]) -> str:
    return f"{accuracies[-1] * 100:.1f} %" if accuracies else "..."
