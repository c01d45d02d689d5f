"""What a language model is made of: `Config`, read from config.json and from a GGUF file's metadata by one table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from webtorch.errors import WebtorchError


class ModelError(WebtorchError, ValueError):
    """A model's files are damaged, or of a kind that is not read here."""


def yarn_scale(factor: float, weight: float = 1.0) -> float:
    """Return what sine and cosine are times in contexts that are `factor` times as long (Peng et al., 2023)."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


@dataclass(frozen=True)
class Rope:
    """Rotary places (Su et al., 2021), and how they are stretched to longer contexts.

    kind: "default"; "linear" (all angles are divided by `factor`); "dynamic" (the more so the longer the context);
    "llama3" (slow ones are); "yarn" (Peng et al., 2023); "longrope" (Ding et al., 2024: `short` or `long` are divisors
    for each pair of channels); "factors" (`short` are such divisors for any length, as in GGUF files of Llama 3).
    """

    theta: float = 10000.0
    dim: int = -1  # channels of a head that are turned; the others stay; -1: all are turned
    kind: str = "default"
    factor: float = 1.0
    original: int = 0  # context before it was stretched
    low: float = 1.0  # llama3: what turns less often than this in `original` is slowed down
    high: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuse divisors that are none."""
        for value in (*self.short, *self.long):
            checked("a factor of rotary places", value, "float", positive=True)

    def frequencies(self, context: int) -> tuple[list[float], float]:
        """Return the angle from one place to the next for each pair, and what sine and cosine are times.

        context: how many places there are, which "dynamic" and "longrope" ask.
        """
        pairs = range(self.dim // 2)
        rates = [self.theta ** (-2.0 * i / self.dim) for i in pairs]
        scale = 1.0
        match self.kind:
            case "linear":
                rates = [r / self.factor for r in rates]
            case "dynamic" if context > self.original:
                longer = self.factor * context / self.original - (self.factor - 1)
                theta = self.theta * longer ** (self.dim / (self.dim - 2))
                rates = [theta ** (-2.0 * i / self.dim) for i in pairs]
            case "llama3":
                rates = [self._llama3(r) for r in rates]
            case "yarn":
                kept = self._yarn()
                rates = [r * (k + (1 - k) / self.factor) for r, k in zip(rates, kept, strict=True)]
                scale = yarn_scale(self.factor)
            case "longrope" | "factors":
                chosen = (
                    self.long if self.kind == "longrope" and context > self.original else self.short
                )
                if len(chosen) != len(rates):
                    raise ModelError(
                        f"{len(chosen)} factors of rotary places, {len(rates)} are wanted"
                    )
                rates = [r / f for r, f in zip(rates, chosen, strict=True)]
                if self.kind == "longrope" and self.factor > 1:
                    scale = math.sqrt(1 + math.log(self.factor) / math.log(self.original))
        return rates, scale if self.attention_factor is None else self.attention_factor

    def _llama3(self, rate: float) -> float:
        """Return a rate, divided by `factor` where it turns less than `low` times in the old context."""
        kept = (self.original * rate / (2 * math.pi) - self.low) / (self.high - self.low)
        kept = min(max(kept, 0.0), 1.0)
        return rate * (kept + (1 - kept) / self.factor)

    def _yarn(self) -> list[float]:
        """Return for each pair how much of its rate stays (Peng et al., 2023, section 3.2)."""

        def pair(turns: float) -> float:
            """Return the (fractional) pair that turns so often in the old context."""
            return (
                self.dim
                * math.log(self.original / (turns * 2 * math.pi))
                / (2 * math.log(self.theta))
            )

        first, last = pair(self.beta_fast), pair(self.beta_slow)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, self.dim - 1)
        width = last - first or 0.001
        return [1 - min(max((i - first) / width, 0.0), 1.0) for i in range(self.dim // 2)]


@dataclass(frozen=True)
class Config:
    """The sizes and the options of a model of the Llama kind; sizes by their names in config.json.

    What differs between architectures is an option here; `webtorch.llm.architectures` says which has which.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    activation: str = "silu"  # or "gelu", "gelu_tanh", "relu"
    rope: Rope = field(default_factory=Rope)
    # Places of layers with a window, where they have their own (Gemma 3).
    local_rope: Rope | None = None
    rotary: tuple[bool, ...] = ()  # which layers turn at all; empty: all do (SmolLM 3)
    sliding_window: int | None = None
    sliding: tuple[bool, ...] = ()  # which layers see only the last `sliding_window` places
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: str = ""  # "head": of each head's channels; "all": of all heads together
    norm_before: bool = True  # of what attention and the multilayer perceptron read
    norm_after: bool = False  # of what they give
    attention_scale: float | None = None  # of queries times keys; None: head_dim ** -0.5
    attention_cap: float | None = None  # soft caps: cap * tanh(x / cap)
    logit_cap: float | None = None
    sinks: bool = False  # a further score for each head, which takes part of the softmax (gpt-oss)
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_divisor: float = 1.0
    mlp_bias: bool = False
    # Mixtures of experts (Shazeer et al., 2017)
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    shared_intermediate_size: int = 0  # of the expert that every token has, which a gate weighs
    norm_topk_prob: bool = True  # the weights of the chosen experts add up to 1
    dense: tuple[bool, ...] = ()  # which layers have no experts
    expert_bias: bool = False  # also of the router
    expert_limit: float | None = (
        None  # gpt-oss: gates and values are clamped, and 1 is added to these
    )

    def __post_init__(self) -> None:
        """Refuse sizes that no model has."""
        for name in _SIZES:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 31:
                raise ModelError(f"{self.architecture}: {name} is {value!r}, a size is wanted")
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, (int, float)) and value < 0:
                raise ModelError(f"{self.architecture}: {name} is {value!r}, which is below 0")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ModelError(
                f"{self.architecture}: {self.num_attention_heads} heads of queries do not share "
                f"{self.num_key_value_heads} of keys evenly"
            )
        for name in ("rotary", "sliding", "dense"):
            if len(getattr(self, name)) not in (0, self.num_hidden_layers):
                raise ModelError(
                    f"{self.architecture}: {name} is not of {self.num_hidden_layers} layers"
                )
        for name in ("rope", "local_rope"):
            rope = getattr(self, name)
            if rope is not None and rope.dim == -1:
                object.__setattr__(self, name, replace(rope, dim=self.head_dim))
        if self.head_dim % 2 or not 0 < self.rope.dim <= self.head_dim or self.rope.dim % 2:
            raise ModelError(
                f"{self.architecture}: {self.rope.dim} of {self.head_dim} channels would turn"
            )
        if self.num_experts and not 0 < self.num_experts_per_tok <= self.num_experts:
            raise ModelError(
                f"{self.architecture}: {self.num_experts_per_tok} of {self.num_experts} experts"
            )
        if self.head_dim > _MOST_CHANNELS:
            raise ModelError(
                f"{self.architecture}: head_dim is {self.head_dim}; at most {_MOST_CHANNELS} are read"
            )
        for rope in (self.rope, self.local_rope or self.rope):
            try:
                rope.frequencies(self.max_position_embeddings)
            except (ArithmeticError, ValueError) as error:
                raise ModelError(
                    f"{self.architecture}: {rope} are no rotary places: {error}"
                ) from None

    def window(self, layer: int) -> int | None:
        """Return how many places a layer sees, or None for all."""
        return self.sliding_window if self.sliding and self.sliding[layer] else None

    def experts(self, layer: int) -> int:
        """Return how many experts a layer has, 0 for one that is dense."""
        return 0 if self.dense and self.dense[layer] else self.num_experts


# More would be no model but a damaged number.
_MOST_CHANNELS = 1 << 16
_SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings",
)  # fmt: skip


_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "a whole number"), "float": ((int, float), "a number"), "bool": ((bool,), "true or false"),
    "str": ((str,), "a text"), "list": ((list,), "a list"), "dict": ((dict,), "an object"),
}  # fmt: skip


def checked(name: str, value: object, kind: str, positive: bool = False) -> Any:
    """Return an entry of a file that is of a kind of _KINDS; numbers are finite. Raises ModelError for others."""
    types, words = _KINDS[kind]
    fine = isinstance(value, types) and (kind == "bool" or not isinstance(value, bool))
    if isinstance(value, (int, float)):
        fine = fine and abs(value) < 1e300 and (value > 0 or not positive)
    if not fine:
        more = " above 0" if positive else ""
        raise ModelError(f"{name} is {value!r:.80}; {words}{more} is wanted")
    return value


def given(data: Mapping[str, Any], *names: str, default: object = None) -> Any:
    """Return the first of some entries that is there and not None."""
    return next((data[n] for n in names if data.get(n) is not None), default)
