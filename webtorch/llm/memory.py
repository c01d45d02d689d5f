"""What a model takes of a device's memory, before it is loaded."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from webtorch.errors import OutOfMemoryError
from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType
from webtorch.llm.cache import cache_bytes
from webtorch.llm.config import Config
from webtorch.llm.model import Model
from webtorch.tensors.device import DeviceLike

_SHORTEST = 512
_USUAL = 4096


@dataclass(frozen=True)
class Needs:
    """What a model takes, in bytes: weights, the caches of its texts, and what a step computes with; and the
    context that fits.
    """

    weights: int
    caches: int
    working: int
    context: int
    free: int | None  # on the device; None where it does not say

    def __str__(self) -> str:
        free = "" if self.free is None else f", of {size_in_words(self.free)} free"
        return (
            f"weights {size_in_words(self.weights)}, cache {size_in_words(self.caches)} for {self.context:,} tokens, "
            f"about {size_in_words(self.working)} to work with{free}"
        )


def size_in_words(count: int) -> str:
    """Return so many bytes in words."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def available(device: DeviceLike) -> int | None:
    """Return how many bytes are free on a device, or None where nobody says (WebGPU, but for
    WEBTORCH_MEMORY_LIMIT).
    """
    told = os.environ.get("WEBTORCH_MEMORY_LIMIT", "").strip()
    if told:
        return int(float(told))
    if webtorch.device(device).type != "cpu":
        return None
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def parameter_count(config: Config) -> int:
    """Return how many numbers a model's weights are."""
    with webtorch.device("meta"):
        return sum(p.numel() for p in Model(config).parameters())


def needs(
    config: Config,
    device: DeviceLike,
    dtype: DType | None = None,
    context: int | None = None,
    cache: DType | None = None,
    texts: int = 1,
    weights: int | None = None,
) -> Needs:
    """Return what a model takes with its weights in `dtype`, for `texts` texts of `context` tokens at once.

    weights: how many bytes they are, where packed ones make that less.
    context None: 4096, or as many as the model knows, or as fit. Raises OutOfMemoryError, saying what would help,
    where it does not fit.
    """
    kind, free = dtype or webtorch.float32, available(device)
    if weights is None:
        weights = parameter_count(config) * kind.itemsize
    # Logits, what the perceptrons of a piece of a prompt compute, and one weight of theirs that is unpacked.
    wide = max(config.intermediate_size, config.moe_intermediate_size * max(config.num_experts, 1))
    working = 4 * (8 * config.vocab_size + 256 * (6 * wide + 16 * config.hidden_size))
    working += kind.itemsize * wide * config.hidden_size
    length = context or min(_USUAL, config.max_position_embeddings)
    while True:
        found = Needs(weights, texts * cache_bytes(config, length, cache), working, length, free)
        total = found.weights + found.caches + found.working
        if free is None or total <= free:
            return found
        if context is not None or length <= _SHORTEST:
            raise OutOfMemoryError(
                f"the model does not fit: {found}. A shorter context, a cache of float16 or int8, weights of "
                "float16, or a smaller model would help"
            )
        length = max(length // 2, _SHORTEST)
