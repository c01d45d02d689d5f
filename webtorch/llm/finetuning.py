"""Fine-tuning a language model by an adapter (QLoRA where its weights are packed; Dettmers et al., 2023)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from webtorch.autograd.grad_mode import no_grad
from webtorch.errors import OutOfMemoryError
from webtorch.functions import public as webtorch
from webtorch.io import checkpoint as files
from webtorch.io.safetensors import FilePath
from webtorch.llm import lora
from webtorch.llm.config import Config, ModelError
from webtorch.llm.examples import Example, Rows, batches, examples_of, read_lines
from webtorch.llm.language import LanguageModel
from webtorch.llm.memory import available, size_in_words
from webtorch.llm.model import Model
from webtorch.nn import functional as F
from webtorch.nn.utils import clip_grad_norm_
from webtorch.optim import AdamW
from webtorch.random import manual_seed
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.tensor import Tensor
from webtorch.utils.checkpoint import checkpoint

_STATE = "training.pt"
# Logits that are held at once.
_LOGITS = 1 << 25


@dataclass(frozen=True)
class Finetuning:
    """How a model is fine-tuned. `recompute`: whether layers are computed again in the backward pass rather than kept;
    None: where they would not fit.
    """

    rank: int = 16
    alpha: float | None = None  # 2 * rank
    dropout: float = 0.0
    targets: tuple[str, ...] | None = None  # all products of the layers
    lr: float = 2e-4
    epochs: float = 1.0
    steps: int | None = None  # instead of epochs
    batch: int = 4
    accumulation: int = 1
    length: int = 1024  # tokens of an example at most
    warmup: float = 0.05  # of the steps; the rate then falls to nothing along a cosine
    weight_decay: float = 0.0
    clip: float = 1.0
    seed: int = 0
    validation: float = 0.0  # the part of the examples that is kept back
    save_every: int = 100
    recompute: bool | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for what is out of range."""
        for name in ("rank", "batch", "accumulation", "save_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, and 1 at least is wanted")
        if (
            self.length < 2
            or self.lr <= 0
            or self.epochs <= 0
            or (self.steps is not None and self.steps < 1)
        ):
            raise ValueError("length is 2 at least; lr, epochs and steps are above 0")
        if not (
            0.0 <= self.dropout < 1.0 and 0.0 <= self.validation < 1.0 and 0.0 <= self.warmup < 1.0
        ):
            raise ValueError("dropout, validation and warmup are parts: 0 or more, and below 1")


@dataclass(frozen=True)
class TrainingNeeds:
    """What fine-tuning takes, in bytes: weights, the adapter with its gradients and averages, and what a step keeps."""

    weights: int
    adapter: int
    activations: int
    recompute: bool
    free: int | None

    @property
    def total(self) -> int:
        """Return all of it."""
        return self.weights + self.adapter + self.activations

    def __str__(self) -> str:
        free = "" if self.free is None else f", of {size_in_words(self.free)} free"
        how = " (layers are computed again in the backward pass)" if self.recompute else ""
        return (
            f"weights {size_in_words(self.weights)}, adapter {size_in_words(self.adapter)}, "
            f"about {size_in_words(self.activations)} for a step{how}{free}"
        )


def training_needs(
    config: Config, device: DeviceLike, weights: int, options: Finetuning
) -> TrainingNeeds:
    """Return what fine-tuning a model takes whose weights are so many bytes.

    Raises OutOfMemoryError, saying what would help, where it does not fit.
    """
    rows, width = options.batch * options.length, config.hidden_size
    wide = (
        config.intermediate_size
        if not config.num_experts
        else config.moe_intermediate_size * config.num_experts
    )
    heads = config.num_attention_heads * config.head_dim
    layer = (
        rows * (8 * width + 4 * heads + 5 * wide)
        + options.batch * config.num_attention_heads * options.length**2
    )
    head = 3 * min(rows * config.vocab_size, _LOGITS) + 4 * rows * width
    adapter = config.num_hidden_layers * options.rank * (6 * width + 2 * heads + 3 * wide)
    unpacked = width * max(wide, config.vocab_size)
    free, layers = available(device), config.num_hidden_layers
    found = TrainingNeeds(
        weights, 16 * adapter, 4 * (layers * layer + head + unpacked), False, free
    )
    less = replace(
        found, activations=4 * (layers * rows * width + layer + head + unpacked), recompute=True
    )
    wanted = options.recompute
    if wanted or (wanted is None and free is not None and found.total > free):
        found = less
    if free is not None and found.total > free:
        raise OutOfMemoryError(
            f"fine-tuning does not fit: {found}. Shorter examples (length), a smaller batch (with accumulation, which "
            "gives the same steps), packed weights (webtorch quantize) or a smaller model would help"
        )
    return found


@dataclass(frozen=True)
class Progress:
    """How far it is: after a step, and with `validation` after the examples that were kept back were tried."""

    step: int
    steps: int
    loss: float
    lr: float
    tokens: int  # learned from, since the beginning of the run
    seconds: float
    validation: float | None = None


def _loss(model: Model, tokens: Tensor, following: Tensor) -> Tensor:
    """Return the sum of the losses of a batch (N, T): of what follows each token, where that is not -100."""
    hidden = model.hidden(tokens).flatten(0, 1)
    each = max(_LOGITS // model.config.vocab_size, 1)

    def part(rows: Tensor, wanted: Tensor) -> Tensor:
        """Return the sum of some rows."""
        return F.cross_entropy(model.logits(rows).float(), wanted, reduction="sum")

    wanted = following.flatten()
    if hidden.shape[0] <= each:
        return part(hidden, wanted)
    pieces = zip(hidden.split(each), wanted.split(each), strict=True)
    parts = [checkpoint(part, h, w, use_reentrant=False) for h, w in pieces]
    return webtorch.stack(parts).sum()


class _Steps:
    """What a run computes; a batch of each length becomes a program, which is followed once it has come again."""

    def __init__(self, model: Model, options: Finetuning) -> None:
        self.model, self.options = model, options
        self.learned = lora.parameters(model)
        self.device = model.norm.weight.device
        self.optimizer = AdamW(self.learned, lr=options.lr, weight_decay=options.weight_decay)

    def _learn(
        self, tokens: Tensor, following: Tensor, share: float, lr: float, steps: bool
    ) -> Tensor:
        """Add the gradients of a batch; with `steps`, make the optimizer's step with what was added."""
        loss = _loss(self.model, tokens, following) * share
        loss.backward()
        if steps:
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            clip_grad_norm_(self.learned, self.options.clip)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.detach()

    def put(self, rows: Rows) -> tuple[Tensor, Tensor, int]:
        """Return a batch on the device, and how many of its tokens are learned."""
        tokens, following = (webtorch.tensor(r, dtype=webtorch.int64).to(self.device) for r in rows)
        return tokens, following, sum(t != -100 for row in rows[1] for t in row)

    def step(self, given: Sequence[Rows], lr: float) -> tuple[Tensor, int]:
        """Make a step of several batches; return its loss, and how many tokens were learned."""
        held = [self.put(rows) for rows in given]
        count = sum(n for _, _, n in held)
        losses = [
            self._learn(tokens, following, 1.0 / max(count, 1), lr, i == len(held) - 1)
            for i, (tokens, following, _) in enumerate(held)
        ]
        return webtorch.stack(losses).sum(), count

    def tried(self, examples: Sequence[Example], longest: int) -> float:
        """Return the mean loss of examples."""
        self.model.eval()
        total, count = 0.0, 0
        with no_grad():
            for rows in batches(examples, self.options.batch, longest, None):
                tokens, following, n = self.put(rows)
                total, count = total + float(_loss(self.model, tokens, following)), count + n
        self.model.train()
        return total / max(count, 1)


def _rate(step: int, steps: int, options: Finetuning) -> float:
    """Return the learning rate of a step, from 0 on."""
    warm = max(int(options.warmup * steps), 1)
    if step < warm:
        return options.lr * (step + 1) / warm
    return options.lr * 0.5 * (1.0 + math.cos(math.pi * (step - warm) / max(steps - warm, 1)))


def _stream(
    examples: Sequence[Example], options: Finetuning, longest: int, skip: int
) -> Iterator[list[Rows]]:
    """Yield the batches of each step, epoch after epoch, without the first `skip` steps."""
    held: list[Rows] = []
    epoch = at = 0
    while True:
        for rows in batches(examples, options.batch, longest, options.seed + epoch):
            held.append(rows)
            if len(held) == options.accumulation:
                if at >= skip:
                    yield held
                held, at = [], at + 1
        epoch += 1


def finetune(
    model: LanguageModel,
    data: FilePath | Iterable[Mapping[str, object]],
    output: FilePath | None = None,
    options: Finetuning | None = None,
    *,
    resume: bool = False,
    told: Callable[[Progress], None] | None = None,
) -> LanguageModel:
    """Give a model an adapter that has learned examples, and return it.

    data: a file of lines of JSON, or such objects: conversations ("messages"), of which the answers are learned,
    "prompt" and "completion", or "text". output: a folder for the adapter, as PEFT has it, written every
    `options.save_every` steps, at the end, and when the run is interrupted (KeyboardInterrupt, which is raised on);
    with `resume` a run goes on from there. told: is called after each step. Weights of the model stay as they are,
    packed or not. Raises DataError for lines that are no examples, ModelError where there is nothing to resume,
    ValueError for options that are out of range.
    """
    options, file = (
        options or Finetuning(),
        str(data) if isinstance(data, (str, Path)) else "the data",
    )
    lines = read_lines(data) if isinstance(data, (str, Path)) else list(data)  # type: ignore[arg-type]
    longest = min(options.length, model.model.config.max_position_embeddings)
    examples = examples_of(model, lines, longest, file)
    kept_back = (
        examples[: math.ceil(len(examples) * options.validation)] if options.validation else []
    )
    examples = examples[len(kept_back) :]
    if not examples:
        raise ValueError("nothing is left to learn: validation keeps all examples back")
    one_epoch = sum(1 for _ in batches(examples, options.batch, longest, options.seed))
    steps = options.steps or max(round(options.epochs * one_epoch / options.accumulation), 1)
    made = _begun(model, options, output, resume)
    began, done, tokens = time.perf_counter(), made.done, 0
    saved = True
    try:
        for given in _stream(examples, options, longest, done):
            if done >= steps:
                break
            if options.dropout:
                manual_seed(options.seed + done)
            lr = _rate(done, steps, options)
            loss, count = made.steps.step(given, lr)
            done, tokens, saved = done + 1, tokens + count, False
            last = done == steps
            tried = (
                made.steps.tried(kept_back, longest)
                if kept_back and (last or done % one_epoch == 0)
                else None
            )
            if told is not None:
                told(
                    Progress(
                        done, steps, float(loss), lr, tokens, time.perf_counter() - began, tried
                    )
                )
            if output is not None and done % options.save_every == 0:
                made.save(output, done)
                saved = True
    finally:
        if output is not None and not saved:
            made.save(output, done)
        model.model.recompute = False
        model.model.eval()
        for p in made.steps.learned:
            p.grad = None
            p.requires_grad_(False)
        model.renew()
    return model


class _Run:
    """A run that has begun."""

    def __init__(self, model: LanguageModel, options: Finetuning, steps: _Steps, done: int) -> None:
        self.model, self.options, self.steps, self.done = model, options, steps, done

    def save(self, output: FilePath, done: int) -> None:
        """Write the adapter and what the run goes on from."""
        place = Path(output)
        lora.save(self.model.model, place)
        state = {
            "step": done,
            "optimizer": self.steps.optimizer.state_dict(),
            "options": _kept(self.options),
        }
        files.save(state, place / _STATE)


def _kept(options: Finetuning) -> dict[str, object]:
    """Return the options by which a run that goes on must be the same."""
    said = asdict(options)
    return {n: said[n] for n in ("rank", "batch", "accumulation", "length", "seed", "validation")}


def _begun(
    model: LanguageModel, options: Finetuning, output: FilePath | None, resume: bool
) -> _Run:
    """Attach the adapter, new or from a folder."""
    inner, done, state = model.model, 0, None
    if resume:
        if output is None or not (Path(output) / _STATE).exists():
            raise ModelError(f"{output}: there is no run to go on with")
        state = files.load(Path(output) / _STATE, map_location="cpu")
        other = [n for n, v in _kept(options).items() if state["options"].get(n) != v]
        if other:
            raise ModelError(f"{output}: the run had other options: {', '.join(other)}")
        lora.load(inner, output)
        for adapter in lora.adapters(inner).values():
            adapter.dropout = options.dropout
            adapter.requires_grad_(True)
        done = int(state["step"])
    else:
        draw = webtorch.Generator().manual_seed(options.seed)
        lora.attach(inner, options.rank, options.alpha, options.dropout, options.targets, draw)
    inner.train()
    # Its weights are there already.
    inner.recompute = training_needs(inner.config, inner.norm.weight.device, 0, options).recompute
    steps = _Steps(inner, options)
    if state is not None:
        steps.optimizer.load_state_dict(state["optimizer"])
    return _Run(model, options, steps, done)
