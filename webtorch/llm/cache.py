"""Keys and values of several texts, and what a token sees of them."""

from __future__ import annotations

from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType
from webtorch.llm.config import Config
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.tensor import Tensor

# Prompts are read in pieces of these lengths; what is too much in the last one is written over.
PIECES = (256, 64, 16)
# Keys or values of a layer: (texts * places, key heads, channels), for int8 with its scales (..., 1).
Held = list[Tensor]


def room(context: int) -> int:
    """Return how many places there are for a text of so many tokens and a piece of a prompt more: many of them in
    whole parts, which a device computes beside each other.
    """
    whole, step = context + PIECES[-1], PIECES[0]
    return whole if whole <= step else -(-whole // step) * step


def _places(config: Config, layer: int, context: int) -> int:
    """Return how many places a layer keeps of a text: those that it sees, and a piece of a prompt more."""
    whole, window = room(context), config.window(layer)
    return whole if window is None else min(whole, window + PIECES[0])


def rewinds(config: Config, context: int) -> int | None:
    """Return by how many tokens a text may be taken back, or None for any: layers with a window keep no more."""
    kept = [i for i in range(config.num_hidden_layers) if config.window(i) is not None]
    short = any(_places(config, i, context) < room(context) for i in kept)
    # What is too much of a piece is written over the oldest.
    return PIECES[0] - PIECES[-1] - 1 if short else None


def cache_bytes(config: Config, context: int, dtype: DType | None = None) -> int:
    """Return how much memory the cache of a text takes."""
    kind = dtype or webtorch.float32
    place = kind.itemsize * config.head_dim + (4 if kind is webtorch.int8 else 0)
    count = sum(_places(config, i, context) for i in range(config.num_hidden_layers))
    return 2 * config.num_key_value_heads * count * place


class Cache:
    """Keys and values of `texts` texts of up to `context` tokens each; its size stays.

    A layer with a window keeps the places that it sees: place p is where p % places is.
    """

    def __init__(
        self,
        config: Config,
        context: int,
        texts: int = 1,
        dtype: DType | None = None,
        device: DeviceLike = None,
    ) -> None:
        """Make an empty one.

        dtype: float32 (the default), float16, or int8, which has a float32 scale for each head and place.
        """
        self.context, self.texts, self.config = context, texts, config
        self.places = [_places(config, i, context) for i in range(config.num_hidden_layers)]
        kind = dtype or webtorch.float32

        def empty(places: int) -> Held:
            """Return what holds the keys, or the values, of a layer."""
            shape = (texts * places, config.num_key_value_heads)
            held = [webtorch.zeros((*shape, config.head_dim), dtype=kind, device=device)]
            if kind is webtorch.int8:
                held.append(webtorch.zeros((*shape, 1), device=device))
            return held

        self.layers = [(empty(p), empty(p)) for p in self.places]

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy what is kept of texts to others; both are numbers (n,), int64."""
        for places, held in zip(self.places, self.layers, strict=True):
            there = webtorch.arange(places, device=sources.device)
            old, new = ((t.unsqueeze(1) * places + there).flatten() for t in (sources, targets))
            for t in (*held[0], *held[1]):
                t.index_copy_(0, new, t.index_select(0, old))


class Reading:
    """Where tokens are written in the caches of layers with as many places, and what they see there."""

    def __init__(
        self, cache: Cache, layer: int, at: Tensor, rows: Tensor | None, length: int | None
    ) -> None:
        """Say it for tokens at places `at` (N, T) of the texts `rows` (N,), by default the first N.

        length: how many places are looked at, all by default.
        """
        places, window = cache.places[layer], cache.config.window(layer)
        self.texts, self.rows, self.count = cache.texts, rows, at.shape[0]
        self.length = places if length is None else min(length, places)
        texts = webtorch.arange(self.count, device=at.device) if rows is None else rows
        self.to = (texts.unsqueeze(1) * places + at % places).flatten()
        here, last = at.unsqueeze(-1), at[:, -1:].unsqueeze(-1)
        there = webtorch.arange(self.length, device=at.device)
        if window is not None and places < room(cache.context):
            # The last token that was written there.
            there = last - (last - there) % places
            seen = (there <= here) & (there > here - window) & (there >= 0)
        else:
            seen = there <= here
            seen = seen if window is None else seen & (there > here - window)
        self.mask = seen.unsqueeze(1)  # (N, 1, T, length)

    def exchange(self, held: Held, new: Tensor) -> Tensor:
        """Write rows (N, heads, T, C); return what the texts have, (N, heads, length, C)."""
        rows = new.transpose(1, 2).flatten(0, 1)
        if len(held) == 1:
            held[0].index_copy_(0, self.to, rows.to(held[0].dtype))
            return self._read(held[0]).to(new.dtype)
        scale = rows.float().abs().amax(-1, keepdim=True) / 127.0
        held[0].index_copy_(0, self.to, (rows / scale.clamp(min=1e-12)).round().to(webtorch.int8))
        held[1].index_copy_(0, self.to, scale)
        return (self._read(held[0]).float() * self._read(held[1])).to(new.dtype)

    def _read(self, held: Tensor) -> Tensor:
        each = held.unflatten(0, (self.texts, -1))[:, : self.length]
        if self.rows is None or self.texts == 1:
            return each[: self.count].transpose(1, 2)
        return each.index_select(0, self.rows).transpose(1, 2)
