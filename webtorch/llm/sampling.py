"""How the next token is chosen from logits, on their device."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from webtorch.functions import public as webtorch
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.tensor import Tensor

# Of how many of the likeliest tokens the log probabilities are told, as of OpenAI's interface.
MOST_LIKELY = 20


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. `temperature` 0 takes the likeliest.

    top_k: only the k likeliest (0: all). top_p: the fewest whose probabilities add up to p (Holtzman et al., 2020).
    min_p: those at least p times as likely as the likeliest (Nguyen et al., 2024). repetition_penalty: logits of
    tokens that were there are divided by it, or times it where negative (Keskar et al., 2019). seed: the same seed
    draws the same numbers; None: others each time. frequency_penalty, presence_penalty: taken from the logits of
    tokens that the answer has, once each time and once. bias: what is added to the logits of tokens. Raises
    ValueError for what is out of its range.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repetition_penalty: float = 1.0
    seed: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        for name, low, high in (
            ("temperature", 0.0, 100.0), ("top_k", 0, 1 << 31), ("top_p", 0.0, 1.0), ("min_p", 0.0, 1.0),
            ("repetition_penalty", 1e-3, 100.0), ("frequency_penalty", -2.0, 2.0), ("presence_penalty", -2.0, 2.0),
        ):  # fmt: skip
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} is {value!r}; {low} to {high} is wanted")
        for token, value in self.bias.items():
            if not -100.0 <= value <= 100.0:
                raise ValueError(f"the bias of token {token} is {value!r}; -100 to 100 is wanted")

    @property
    def remembers(self) -> bool:
        """Return whether it asks which tokens were there."""
        return (
            self.repetition_penalty != 1.0
            or self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
        )

    @property
    def greedy(self) -> bool:
        """Return whether the likeliest token is taken, whatever was said."""
        return self.temperature == 0 and not self.remembers and not self.bias

    def numbers(self, vocabulary: int) -> list[float]:
        """Return what `choose` reads, so that other numbers compile nothing."""
        drawn = self.temperature > 0
        return [
            self.temperature if drawn else 1.0,
            float((self.top_k or vocabulary) if drawn else 1),
            self.top_p, self.min_p, self.repetition_penalty, self.frequency_penalty, self.presence_penalty,
        ]  # fmt: skip


def choose(logits: Tensor, numbers: Tensor, seen: Tensor, bias: Tensor, chance: Tensor) -> Tensor:
    """Return tokens (N, 1) for logits (N, V), drawn as `numbers` (N, 7) of `Sampling` say.

    seen: (N, V), how often tokens were made, and a half more for those of the prompt. bias: (N, V), what is added.
    chance: (N, 1), even random numbers of 0 to 1, which pick from the probabilities in falling order.
    """
    each = numbers.unsqueeze(-1)  # (N, 7, 1)
    temperature, top_k, top_p, min_p, penalty, often, once = each.unbind(1)
    logits = logits.float()
    less = webtorch.where(logits > 0, logits / penalty, logits * penalty)
    logits = webtorch.where(seen > 0, less, logits)
    logits = logits - often * seen.floor() - once * (seen >= 1) + bias
    ordered, which = (logits / temperature).sort(-1, descending=True)
    ranks = webtorch.arange(ordered.shape[1], device=logits.device)
    parts = webtorch.softmax(ordered.masked_fill(ranks >= top_k, float("-inf")), -1)
    kept = (parts.cumsum(-1) - parts < top_p) | (ranks == 0)
    kept = kept & (parts >= min_p * parts[:, :1])
    sums = (parts * kept).cumsum(-1)
    picked = (sums <= chance * sums[:, -1:]).sum(-1, keepdim=True)
    return which.gather(1, picked.clamp(max=which.shape[1] - 1))


@dataclass(frozen=True)
class Kind:
    """How a step chooses, for which there is a program each.

    greedy: the likeliest. masked: of some tokens only. told: the log probabilities are wanted.
    """

    greedy: bool = True
    masked: bool = False
    told: bool = False

    def __or__(self, other: Kind) -> Kind:
        """Return the kind that serves both."""
        return Kind(
            self.greedy and other.greedy, self.masked or other.masked, self.told or other.told
        )


class Chooser:
    """What steps choose by, of `texts` texts, on the device."""

    def __init__(self, vocabulary: int, places: int, texts: int, device: DeviceLike) -> None:
        """Make it, for texts of up to `places` tokens."""
        self.vocabulary, self.device = vocabulary, device
        self.numbers = webtorch.zeros(texts, 7, device=device)
        self.chances = webtorch.zeros(texts, places, device=device)
        self.seen = webtorch.zeros(texts, vocabulary, device=device)
        self.bias = webtorch.zeros(texts, vocabulary, device=device)
        self._biased = False  # whether some text has had a bias

    def begin(self, text: int, prompt: list[int], sampling: Sampling) -> None:
        """Take what a text is to be chosen by, as far as it can change a choice."""
        rows = [(self.numbers, webtorch.tensor(sampling.numbers(self.vocabulary)))]
        if sampling.temperature > 0:
            draw = random.Random(sampling.seed)
            chances = [draw.random() for _ in range(self.chances.shape[1])]
            rows.append((self.chances, webtorch.tensor(chances)))
        if sampling.remembers:
            seen = webtorch.zeros(self.vocabulary)
            seen[webtorch.tensor(sorted(set(prompt)))] = 0.5
            rows.append((self.seen, seen))
        self._biased = self._biased or bool(sampling.bias)
        if self._biased:
            bias = webtorch.zeros(self.vocabulary)
            if sampling.bias:
                values = [float(b) for b in sampling.bias.values()]
                bias[webtorch.tensor(list(sampling.bias))] = webtorch.tensor(values)
            rows.append((self.bias, bias))
        at = webtorch.tensor([text], device=self.device)
        for held, row in rows:
            held.index_copy_(0, at, row.to(self.device).unsqueeze(0))

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy what texts are chosen by to others; both are numbers (n,), int64."""
        for held in self.all:
            held.index_copy_(0, targets, held.index_select(0, sources))

    @property
    def all(self) -> tuple[Tensor, ...]:
        """Return what there is, a row for each text."""
        return self.numbers, self.chances, self.seen, self.bias

    def choose(
        self,
        kind: Kind,
        logits: Tensor,
        rows: Tensor,
        places: Tensor,
        live: Tensor,
        allowed: Tensor | None,
    ) -> tuple[Tensor, ...]:
        """Return tokens (N, 1) for logits (N, V) of the texts `rows` (N,), which stand at places (N,).

        live: (N,), 1 where a token counts. allowed: (N, V / 32), int32, a bit for each token that may come. Of a kind
        that tells, also the log probability (N, 1), and the likeliest (N, 20) with theirs.
        """
        if kind.masked:
            assert allowed is not None
            bits = allowed.unsqueeze(-1) >> webtorch.arange(32, device=logits.device)
            may = (bits & 1).flatten(1)[:, : self.vocabulary]
            masked = logits.masked_fill(may == 0, float("-inf"))
        else:
            masked = logits
        if kind.greedy:
            token = masked.argmax(-1, keepdim=True)
        else:
            numbers, chances, seen, bias = (t.index_select(0, rows) for t in self.all)
            chance = chances.gather(1, places.unsqueeze(1))
            token = choose(masked, numbers, seen, bias, chance)
            self.seen.index_put_((rows, token[:, 0]), live, accumulate=True)
        if not kind.told:
            return (token,)
        logarithms = webtorch.log_softmax(logits.float(), -1)
        top, which = logarithms.topk(min(MOST_LIKELY, self.vocabulary), -1)
        return token, logarithms.gather(1, token), top, which
