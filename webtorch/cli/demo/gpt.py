"""`webtorch demo gpt`: a character-level GPT learns Python from the standard library's own source.

The architecture is that of nanoGPT (github.com/karpathy/nanoGPT), which follows GPT-2: pre-norm
blocks of causal self-attention and a GELU MLP, learned positions, tied embeddings.

Shapes: B batch, T context, C channels, H heads, D = C / H, V characters.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import webtorch.nn.functional as F
from webtorch import nn, optim
from webtorch.cli.demo.corpus import Corpus, read_corpus
from webtorch.cli.demo.progress import Meter
from webtorch.functions import public as torch

PROMPT = "def "
WEIGHT_DECAY = 0.1
BETAS = (0.9, 0.99)
CLIP = 1.0


@dataclass(frozen=True, slots=True)
class Preset:
    """Sizes of a model and of its training. An epoch is `steps` steps: the text is not walked in order."""

    layers: int
    heads: int
    channels: int
    context: int
    batch: int
    dropout: float
    lr: float
    steps: int
    epochs: int
    characters: int
    held_out_windows: int
    sample_length: int


PRESETS = {
    "tiny": Preset(4, 4, 128, 64, 16, 0.0, 2e-3, 200, 10, 2_000_000, 256, 240),
    "small": Preset(6, 6, 192, 128, 32, 0.0, 1e-3, 250, 12, 4_000_000, 256, 320),
    # The model of nanoGPT's character example.
    "base": Preset(6, 6, 384, 256, 32, 0.2, 1e-3, 250, 20, 8_000_000, 128, 400),
}
# Enough to see every part work; it learns next to nothing.
QUICK: dict[str, int] = {"batch": 4, "steps": 8, "epochs": 2, "characters": 60_000, "held_out_windows": 8,
         "sample_length": 24}  # fmt: skip


class Attention(nn.Module):
    """Causal self-attention over several heads."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.heads = preset.heads
        self.dropout = preset.dropout
        self.qkv = nn.Linear(preset.channels, 3 * preset.channels)
        self.out = nn.Linear(preset.channels, preset.channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map BTC to BTC; a position sees itself and those before it."""
        B, T, C = x.shape
        q, k, v = (
            part.view(B, T, self.heads, C // self.heads).transpose(1, 2)  # BHTD
            for part in self.qkv(x).split(C, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return F.dropout(self.out(y), self.dropout, self.training)


class Block(nn.Module):
    """Attention, then an MLP, each on a normalised copy of the stream that it adds to."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        channels = preset.channels
        self.norm_1 = nn.LayerNorm(channels)
        self.attention = Attention(preset)
        self.norm_2 = nn.LayerNorm(channels)
        self.mlp = nn.Sequential(
            nn.Linear(channels, 4 * channels),
            nn.GELU(),
            nn.Linear(4 * channels, channels),
            nn.Dropout(preset.dropout),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map BTC to BTC."""
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    """Characters in, logits of the next character out."""

    def __init__(self, preset: Preset, vocabulary: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, preset.channels)
        self.position = nn.Embedding(preset.context, preset.channels)
        self.dropout = nn.Dropout(preset.dropout)
        self.blocks = nn.ModuleList(Block(preset) for _ in range(preset.layers))
        self.norm = nn.LayerNorm(preset.channels)
        self.head = nn.Linear(preset.channels, vocabulary, bias=False)
        self.head.weight = self.token.weight
        self._initialise(preset.layers)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Map ids BT to logits BTV."""
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.dropout(self.token(ids) + self.position(positions))  # BTC
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def _initialise(self, layers: int) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() >= 2:
                # Two additions a layer reach the stream; GPT-2 keeps its variance from growing so.
                residual = name.endswith(("attention.out.weight", "mlp.2.weight"))
                std = 0.02 / math.sqrt(2 * layers) if residual else 0.02
                nn.init.normal_(parameter, mean=0.0, std=std)


@dataclass(slots=True)
class Sample:
    """What the model wrote after some steps."""

    step: int
    loss: float
    text: str


@dataclass(slots=True)
class GPTResult:
    """All that the report and the JSON file say about a run."""

    preset_name: str
    preset: Preset
    seed: int
    parameters: int
    corpus: Corpus
    epochs: int = 0
    losses: list[float] = field(default_factory=list)
    held_out: list[float] = field(default_factory=list)
    # Every so many steps, for the curve: step and training loss.
    curve: list[tuple[int, float]] = field(default_factory=list)
    # Tokens per second of each epoch's training.
    epoch_rates: list[float] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    seconds: float = 0.0
    training_seconds: float = 0.0
    tokens: int = 0
    quick: bool = False

    @property
    def tokens_per_second(self) -> float:
        """Characters trained on per second of training, without evaluation and sampling."""
        return self.tokens / self.training_seconds if self.training_seconds else 0.0


def train(
    preset_name: str,
    device: str,
    *,
    epochs: int | None = None,
    seed: int = 0,
    quick: bool = False,
    meter: Meter,
    on_sample: Callable[[Sample], None] = lambda sample: None,
    on_end: Callable[[GPT, optim.Optimizer, Corpus, Preset], object] | None = None,
) -> GPTResult:
    """Train and return figures, curves and samples. The same seed starts alike on every device."""
    preset = PRESETS[preset_name]
    if quick:
        preset = replace(preset, **QUICK)
    epochs = preset.epochs if epochs is None else epochs
    started = time.perf_counter()
    corpus = read_corpus(preset.characters)
    text = _tensor(corpus.train, device)
    held_out_text = _tensor(corpus.held_out, device)

    # Drawn on the CPU and then moved: the same weights whatever the device.
    torch.manual_seed(seed)
    with torch.device("cpu"):
        model = GPT(preset, len(corpus.characters))
    model = model.to(device)
    # The weights used up numbers of the CPU's generator only: dropout starts afresh on every device.
    torch.manual_seed(seed)
    result = GPTResult(
        preset_name,
        preset,
        seed,
        sum(p.numel() for p in model.parameters()),
        corpus,
        epochs,
        quick=quick,
    )
    optimizer = _optimizer(model, preset)
    total = epochs * preset.steps
    scheduler = optim.lr_scheduler.LambdaLR(optimizer, _schedule(total))

    batches = random.Random(seed)
    fixed = random.Random(1234)
    windows = [
        _starts(fixed, len(corpus.held_out), preset.context, 32)
        for _ in range(max(1, preset.held_out_windows // 32))
    ]
    with meter.run("epoch", epochs, preset.steps):
        for epoch in range(epochs):
            _train_epoch(epoch, model, optimizer, scheduler, text, batches, result, meter)
            held_out = _evaluate(model, held_out_text, windows, preset.context)
            result.held_out.append(held_out)
            meter.epoch(
                epoch,
                f"loss {result.losses[-1]:.3f}",
                f"held-out {held_out:.3f} nats/char",
                f"{result.tokens_per_second:,.0f} tokens/s",
            )
            sample = Sample(
                (epoch + 1) * preset.steps,
                held_out,
                generate(model, corpus, preset, device, preset.sample_length, seed),
            )
            result.samples.append(sample)
            on_sample(sample)
    result.seconds = time.perf_counter() - started
    if on_end is not None:
        on_end(model, optimizer, corpus, preset)
    return result


def _train_epoch(
    epoch: int,
    model: GPT,
    optimizer: optim.Optimizer,
    scheduler: optim.lr_scheduler.LRScheduler,
    text: torch.Tensor,
    batches: random.Random,
    result: GPTResult,
    meter: Meter,
) -> None:
    """Train for some hundred steps, and note how it went."""
    started = time.perf_counter()
    preset = result.preset
    model.train()
    sum_of_losses = torch.zeros((), device=text.device)
    for step in range(preset.steps):
        starts = _starts(batches, len(text), preset.context, preset.batch)
        x, y = _windows(text, starts, preset.context)
        loss = _loss(model, x, y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        scheduler.step()
        sum_of_losses = sum_of_losses + loss.detach()
        result.tokens += preset.batch * preset.context
        if step % 10 == 9 or step + 1 == preset.steps:
            # Reading waits for the device: often enough to watch, rarely enough to be fast.
            value = loss.item()
            result.curve.append((epoch * preset.steps + step + 1, value))
            spent = result.training_seconds + time.perf_counter() - started
            meter.step(
                epoch,
                step + 1,
                f"loss {value:.3f}",
                f"{result.tokens / spent:,.0f} tokens/s",
            )
    result.losses.append(sum_of_losses.item() / preset.steps)
    spent = time.perf_counter() - started
    result.training_seconds += spent
    result.epoch_rates.append(preset.steps * preset.batch * preset.context / spent)


def generate(
    model: GPT, corpus: Corpus, preset: Preset, device: str, length: int, seed: int
) -> str:
    """Return the prompt and `length` more characters, drawn at temperature 0.8."""
    model.eval()
    draw = random.Random(seed)
    ids = corpus.encode(PROMPT)
    with torch.no_grad():
        for _ in range(length):
            seen = ids[-preset.context :]
            # One shape for every length: what stands to the right is not seen by a causal model.
            padded = seen + [0] * (preset.context - len(seen))
            last = torch.tensor([len(seen) - 1], device=device)
            logits = model(torch.tensor([padded], device=device))[0].index_select(0, last)[0]
            weights = torch.softmax(logits / 0.8, dim=0).tolist()
            ids.append(draw.choices(range(len(weights)), weights)[0])
    return corpus.decode(ids)


def _tensor(text: bytes, device: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).to(torch.int64).to(device)


def _starts(source: random.Random, size: int, context: int, count: int) -> list[int]:
    return [source.randrange(max(1, size - context)) for _ in range(count)]


def _windows(
    text: torch.Tensor, starts: list[int], context: int
) -> tuple[torch.Tensor, torch.Tensor]:
    # The text stays on the device; a step uploads only where its windows begin.
    first = torch.tensor(starts, device=text.device)[:, None]
    window = text[first + torch.arange(context + 1, device=text.device)]
    return window[:, :-1], window[:, 1:]


def _loss(model: GPT, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    logits = model(x)
    return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def _evaluate(model: GPT, text: torch.Tensor, windows: list[list[int]], context: int) -> float:
    model.eval()
    with torch.no_grad():
        losses = [_loss(model, *_windows(text, starts, context)) for starts in windows]
        return float(torch.stack(losses).mean().item())


def _optimizer(model: GPT, preset: Preset) -> optim.AdamW:
    # Matrices decay; biases and norms do not, as in nanoGPT.
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return optim.AdamW(groups, lr=preset.lr, betas=BETAS)


def _schedule(total: int) -> Callable[[int], float]:
    warmup = max(1, min(100, total // 10))

    def factor(step: int) -> float:
        """Return the share of the learning rate at a step: up linearly, then down along a cosine to 1/10."""
        if step < warmup:
            return (step + 1) / warmup
        done = (step - warmup) / max(1, total - warmup)
        return 0.1 + 0.45 * (1 + math.cos(math.pi * min(done, 1.0)))

    return factor
