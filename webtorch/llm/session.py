"""One text that grows: its cache, prompts in pieces, and a compiled step for each token."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from webtorch.autograd.grad_mode import no_grad
from webtorch.capture import compile as compiled
from webtorch.errors import WebtorchError
from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType
from webtorch.llm.config import Config
from webtorch.llm.model import Model, empty_cache
from webtorch.llm.sampling import Sampling, choose
from webtorch.tensors.tensor import Tensor

__all__ = ["ContextFullError", "Session", "Steps"]

# Prompts are read in pieces of these lengths; what is too much in the last one is written over.
PIECES = (256, 64, 16)
# Of the cache the first 256 places are read, the first 1024, and so on, so that short texts cost less.
LEAST = 256


class ContextFullError(WebtorchError, ValueError):
    """A prompt is longer than the context."""


class Steps:
    """The compiled steps of a model: one program for each length of a piece and of what is read of the cache."""

    def __init__(self, model: Model, compile: bool = True) -> None:
        """Make none yet. compile: whether steps become programs; else they run as they are written."""
        self.model, self.compile = model, compile
        self.device = model.embed.weight.device
        self._made: dict[tuple[int, bool], Callable[..., tuple[Tensor, Tensor]]] = {}

    def step(self, length: int, greedy: bool) -> Callable[..., tuple[Tensor, Tensor]]:
        """Return the step that reads `length` places of the cache.

        It takes tokens (1, T) at places (T,), of which the next of the one at `wanted` (1,) is chosen, the cache,
        and of `choose` numbers, seen and a chance for each place (context,). It returns the token (1, 1), and its place
        (1,).
        """
        found = self._made.get((length, greedy))
        if found is None:
            found = self._step(length, greedy)
            self._made[length, greedy] = found = compiled(found) if self.compile else found
        return found

    def _step(self, length: int, greedy: bool) -> Callable[..., tuple[Tensor, Tensor]]:
        model = self.model

        @no_grad()
        def step(
            tokens: Tensor,
            at: Tensor,
            wanted: Tensor,
            cache: Any,
            numbers: Tensor,
            seen: Tensor,
            chances: Tensor,
        ) -> tuple[Tensor, Tensor]:
            logits = model(tokens, at, cache, wanted, length)[0, 0]
            place = at[wanted] + 1
            if greedy:
                return logits.argmax(-1).reshape(1, 1), place
            token = choose(logits, numbers, seen, chances[place - 1])
            seen.index_fill_(0, token, 1.0)
            return token.reshape(1, 1), place

        return step


class Session:
    """A text and its cache. What a new prompt shares with the old text is not read again."""

    def __init__(self, steps: Steps, context: int, dtype: DType | None = None) -> None:
        """Make an empty one of up to `context` tokens; dtype: of the cache (`empty_cache`)."""
        self.steps, self.context = steps, context
        # The smallest piece fits, and a short model's context is no shorter than that.
        self.size = max(context, PIECES[-1])
        self.cache = empty_cache(steps.model.config, self.size, dtype, steps.device)
        self.tokens: list[int] = []  # whose keys and values are in the cache

    def generate(
        self, prompt: Sequence[int], most: int, sampling: Sampling, stop: Collection[int] = ()
    ) -> Iterator[int]:
        """Yield up to `most` tokens that follow a prompt, until one of `stop` (which is not yielded) or the end
        of the context. Raises ContextFullError for a prompt that leaves no room, ValueError for an empty one and
        for tokens that the vocabulary lacks.
        """
        given = [int(t) for t in prompt]
        self.check(given, self.steps.model.config, self.context)
        return self._generate(given, most, sampling, stop, self.steps.device)

    @staticmethod
    def check(prompt: Sequence[int], config: Config, context: int) -> None:
        """Refuse a prompt, as `generate` does."""
        if not prompt:
            raise ValueError("a prompt has at least one token")
        if not all(0 <= t < config.vocab_size for t in prompt):
            raise ValueError(f"tokens are 0 to {config.vocab_size - 1}")
        if len(prompt) >= context:
            raise ContextFullError(
                f"the prompt has {len(prompt)} tokens and the context {context}: take a longer context, or a "
                "shorter prompt"
            )

    def shared(self, prompt: Sequence[int]) -> int:
        """Return how many tokens of a prompt the cache has."""
        return _shared(self.tokens, prompt)

    def _generate(
        self, given: list[int], most: int, sampling: Sampling, stop: Collection[int], device: Any
    ) -> Iterator[int]:
        rest = self._chooser(given, sampling)
        token, at = self._read(given, rest, sampling.greedy)
        first = webtorch.zeros(1, dtype=webtorch.int64, device=device)
        # A device works on the next token while this one is read; on the CPU that would only come late.
        ahead = device.type != "cpu"
        for made in range(most):
            place = len(given) + made
            more = made + 1 < most and place < self.context
            following = None
            if ahead and more:
                following = self._next(token, at, first, rest, sampling.greedy, place)
            number = int(token)
            if number in stop:
                return
            # Before it is handed out: who takes it may never come back.
            yield number
            if not more:
                return
            if following is None:
                following = self._next(token, at, first, rest, sampling.greedy, place)
            self.tokens.append(number)
            token, at = following

    def _next(
        self,
        token: Tensor,
        at: Tensor,
        first: Tensor,
        rest: tuple[Tensor, ...],
        greedy: bool,
        place: int,
    ) -> tuple[Tensor, Tensor]:
        step = self.steps.step(self._length(place + 1), greedy)
        return step(token, at, first, self.cache, *rest)

    def _chooser(self, given: list[int], sampling: Sampling) -> tuple[Tensor, Tensor, Tensor]:
        """Return what steps choose by: numbers, seen, and a chance for each place."""
        device, count = self.steps.device, self.steps.model.config.vocab_size
        seen = webtorch.zeros(count)
        seen[webtorch.tensor(sorted(set(given)))] = 1.0
        draw = random.Random(sampling.seed)
        chances = webtorch.tensor([draw.random() for _ in range(self.size)])
        return sampling.numbers(count, device), seen.to(device), chances.to(device)

    def _length(self, needed: int) -> int:
        """Return how many places of the cache a step reads that needs so many."""
        length = LEAST
        while length < needed:
            length *= 4
        return min(length, self.size)

    def _read(
        self, given: list[int], rest: tuple[Tensor, ...], greedy: bool
    ) -> tuple[Tensor, Tensor]:
        """Read what the cache does not have of a prompt; return the token that follows, and its place."""
        device = self.steps.device
        at = _shared(self.tokens, given[:-1])
        del self.tokens[at:]
        result = None
        while at < len(given):
            left = len(given) - at
            width = next((p for p in PIECES if p <= left), PIECES[-1]) if left > 1 else 1
            begin = min(at, self.size - width)
            piece = given[begin : begin + width]
            end = begin + len(piece)
            tokens = webtorch.tensor([piece + [0] * (width - len(piece))]).to(device)
            places = webtorch.arange(begin, begin + width).to(device)
            wanted = webtorch.tensor([len(piece) - 1]).to(device)
            step = self.steps.step(self._length(begin + width), greedy)
            result = step(tokens, places, wanted, self.cache, *rest)
            self.tokens += given[at:end]
            at = end
        assert result is not None
        return result


def _shared(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many tokens two texts begin with alike."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
