"""Texts that grow together: prompts are read in pieces, and one step makes a token of each."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from webtorch.autograd.grad_mode import no_grad
from webtorch.capture import compile as compiled
from webtorch.errors import WebtorchError
from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType
from webtorch.llm.cache import PIECES, Cache, rewinds, room
from webtorch.llm.config import Config
from webtorch.llm.model import Mixture, Model
from webtorch.llm.sampling import Chooser, Kind, Sampling
from webtorch.llm.tokens import alike
from webtorch.nn import functional as F
from webtorch.quantization import PackedLinear
from webtorch.tensors.tensor import Tensor

# Of the cache the first 256 places are read, the first 1024, and so on, so that short texts cost less.
LEAST = 256
# What two texts begin with alike is copied if it is as long as this.
_WORTH = 16
# A piece of so many tokens takes a graphics card about as long as one of 16.
_AS_SHORT = 64
# Prompts that are left to be as short are read in one piece, of as many as fill it. (An 8B model on an H200 takes
# 15 ms for a piece of 64 tokens, 31 for one of 256.)
_TOGETHER = (16, 32, _AS_SHORT)
# From so many on: fewer are read one by one.
_WORTH_A_PIECE = 3
# How many tokens are drafted at once.
DRAFTS = 4
_READ = -(1 << 20)

Result = tuple[Tensor, ...]


class ContextFullError(WebtorchError, ValueError):
    """A prompt is longer than the context."""


class Constraint(Protocol):
    """What says which tokens may come next."""

    def allowed(self) -> list[int]:
        """Return a bit for each token that may come, in ints of 32."""

    def take(self, token: int) -> bool:
        """Go on by a token; return whether none may follow."""


@dataclass(frozen=True)
class Likely:
    """The log probability of a token, and the likeliest tokens in its place with theirs."""

    value: float
    top: list[tuple[int, float]]


@dataclass(eq=False)
class Run:
    """An answer that is being made, and why it ended."""

    prompt: list[int]
    most: int
    sampling: Sampling
    stop: Collection[int]
    constraint: Constraint | None = None
    told: bool = False
    # "stop": a token of `stop` came, or none may follow; "length": there are as many as may be.
    finish: str = ""
    likely: list[Likely] = field(default_factory=list)
    # What was made and nobody has taken; the last one, which the model has not read; how many there are.
    out: deque[int] = field(default_factory=deque)
    last: int | None = None
    made: int = 0
    ended: bool = False
    error: BaseException | None = None

    @property
    def kind(self) -> Kind:
        """Return how the next token of its answer is chosen."""
        return Kind(self.sampling.greedy, self.constraint is not None, self.told)


@dataclass(eq=False)
class _Text:
    """A place of the batch: the tokens whose keys and values are in the cache, and whose answer it makes."""

    tokens: list[int] = field(default_factory=list)
    drafted: int = 0  # of how many of them the model that drafts has keys and values
    run: Run | None = None
    used: int = 0  # when it was taken last


def check(prompt: Sequence[int], config: Config, context: int) -> None:
    """Refuse a prompt that is empty, has tokens that the vocabulary lacks, or leaves no room for an answer."""
    if not prompt:
        raise ValueError("a prompt has at least one token")
    if not all(0 <= t < config.vocab_size for t in prompt):
        raise ValueError(f"tokens are 0 to {config.vocab_size - 1}")
    if len(prompt) >= context:
        raise ContextFullError(
            f"the prompt has {len(prompt)} tokens and the context {context}: take a longer context, or a "
            "shorter prompt"
        )


class Batch:
    """Up to `texts` texts, of up to `context` tokens each, whose answers are made together.

    Whoever waits for a token computes a round for all: a piece of a prompt, then a token of each text. So that
    nothing is computed that nobody waits for, and there is no thread besides the callers'. A new prompt takes over
    what another text begins with alike.
    """

    def __init__(
        self,
        model: Model,
        context: int,
        texts: int = 1,
        dtype: DType | None = None,
        compile: bool = True,
        draft: Model | None = None,
    ) -> None:
        """Make an empty one.

        dtype: of the cache. compile: whether steps become programs. draft: a smaller model with the same tokenizer,
        which says what may come, so that one step of `model` sees whether that is what it chooses (Leviathan et al.,
        2023); answers are those that there are without.
        """
        self.model, self.context, self.compile = model, context, compile
        self.device: Any = model.embed.weight.device
        config = model.config
        self.cache = Cache(config, context, texts, dtype, self.device)
        self.chooser = Chooser(config.vocab_size, context + PIECES[-1], texts, self.device)
        self.draft = draft
        if draft is not None:
            self.draft_cache = Cache(draft.config, context, texts, dtype, self.device)
        self.texts = [_Text() for _ in range(texts)]
        self.waiting: deque[Run] = deque()
        self._rewinds = rewinds(config, context)
        self._made: dict[tuple[int, int, Kind, int | None], Callable[..., Result]] = {}
        self._packed = any(isinstance(m, PackedLinear) for m in model.modules())
        self._mixtures = [m for m in model.modules() if isinstance(m, Mixture)]
        # Which part of a piece's tokens the busiest expert had.
        self._busiest = 2.0 * config.num_experts_per_tok / max(config.num_experts, 1)
        # The bits of so many texts for which all tokens may come.
        self._every: dict[int, Tensor] = {}
        # A step that was begun before the last one was read, with its kind, those of which tokens follow, and what
        # waits for these.
        self._ahead: tuple[Result, Kind, list[Run | None], list[Callable[[], Any]]] | None = None
        self._fresh = False  # whether a step may go on from the last one's places
        self._lives: tuple[list[float], Tensor] | None = None
        self._clock = 0
        self._moving: Callable[[Tensor, Tensor], None] | None = None
        self._changed = threading.Condition()
        self._busy = False

    # ---- for those who wait

    def begin(
        self,
        prompt: Sequence[int],
        most: int,
        sampling: Sampling,
        stop: Collection[int] = (),
        constraint: Constraint | None = None,
        told: bool = False,
    ) -> Run:
        """Return an answer of up to `most` tokens to a prompt, until one of `stop` or the end of the context.

        constraint: says which tokens may come. told: whether log probabilities are. Raises ContextFullError and
        ValueError as `check` does.
        """
        given = [int(t) for t in prompt]
        check(given, self.model.config, self.context)
        bad = [t for t in sampling.bias if not 0 <= t < self.model.config.vocab_size]
        if bad:
            raise ValueError(f"token {bad[0]} has a bias and is none of the vocabulary")
        return Run(given, most, sampling, stop, constraint, told)

    def generate(
        self, prompt: Sequence[int], most: int, sampling: Sampling, stop: Collection[int] = ()
    ) -> Iterator[int]:
        """Yield the tokens of an answer; arguments as of `begin`."""
        return self.follow(self.begin(prompt, most, sampling, stop))

    def follow(self, run: Run) -> Iterator[int]:
        """Yield the tokens of an answer, but for the one that stops it; to close it frees its place."""
        with self._changed:
            self.waiting.append(run)
        try:
            while (token := self._next(run)) is not None:
                yield token
        finally:
            self.end(run)

    def end(self, run: Run) -> None:
        """Make no more of an answer, whoever waits for it."""
        with self._changed:
            run.ended = True
            self._changed.notify_all()

    def _next(self, run: Run) -> int | None:
        """Return the next token of an answer, or None at its end; compute if nobody else does."""
        while True:
            with self._changed:
                while not run.out and not run.ended and self._busy:
                    self._changed.wait()
                if run.out:
                    return run.out.popleft()
                if run.error is not None:
                    raise run.error
                if run.ended:
                    return None
                self._busy = True
            try:
                self._round()
            except Exception as error:
                self._ahead = None
                # What was to be computed for all has failed for all.
                for each in (*self.waiting, *(t.run for t in self.texts if t.run is not None)):
                    each.error, each.ended = error, True
            finally:
                self._release()

    def stop(self) -> None:
        """End all answers that are being made, or wait."""
        with self._changed:
            for run in (*self.waiting, *(t.run for t in self.texts if t.run is not None)):
                run.ended, run.finish = True, run.finish or "length"
            self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Compute something else between two rounds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._busy)
            self._busy = True
        try:
            yield
        finally:
            self._release()

    def forget(self) -> None:
        """Read again what was read, as the model is another: programs are made anew."""
        self._drop()
        self._made = {}
        for text in self.texts:
            if text.run is not None and text.run.last is not None:
                text.run.prompt, text.run.last = [*text.tokens, text.run.last], None
            text.tokens, text.drafted = [], 0

    def _drop(self) -> None:
        """Drop a step that was begun. What was to be read of it is waited for: its memory is used again."""
        found, self._ahead = self._ahead, None
        for values in () if found is None else found[-1]:
            values()

    def _release(self) -> None:
        with self._changed:
            self._busy = False
            self._changed.notify_all()

    @property
    def running(self) -> int:
        """Return how many answers are being made, or wait."""
        waiting = sum(not r.ended for r in self.waiting)
        return waiting + sum(t.run is not None and not t.run.ended for t in self.texts)

    # ---- a round

    def _round(self) -> None:
        ended = [t for t in self.texts if t.run is not None and t.run.ended]
        for text in ended:
            text.run = None
        self._read_prompts()
        live = [t for t in self.texts if t.run is not None and t.run.last is not None]
        live = [t for t in live if t.run is not None and not t.run.ended]
        if not live:
            self._drop()
        else:
            self._step(live)

    def _read_prompts(self) -> None:
        """Read a piece of a prompt, or several short ones, before what was chosen is looked at."""
        read, chosen = 0, list[tuple[list[_Text], list[Callable[[], Any]]]]()
        done = set[_Text]()
        while read < PIECES[0]:
            waiting = (t for t in self.texts if t.run is not None and t.run.last is None)
            reading = next((t for t in waiting if t not in done), None) or self._admitted()
            if reading is None:
                break
            if reading.run is None or reading.run.last is not None:
                continue
            together = [reading, *self._as_short(reading, done)]
            count, result = self._piece(together)
            read += count
            if result is not None:
                done.update(together)
                coming = self.device.type != "cpu"
                chosen.append((together, [t._coming() if coming else t.tolist for t in result]))
        for texts, values in chosen:
            said = [value() for value in values]
            for row, text in enumerate(texts):
                assert text.run is not None
                self._take(text, text.run, said, row)

    def _as_short(self, first: _Text, done: set[_Text]) -> list[_Text]:
        """Return the texts whose prompts are read in one piece with that of `first`."""
        if self.device.type == "cpu" or not self._is_short(first, _AS_SHORT):
            return []
        while self._admitted(_AS_SHORT) is not None:
            pass
        waiting = [t for t in self.texts if t.run is not None and t.run.last is None]
        waiting = [first, *(t for t in waiting if t is not first and t not in done)]
        found: list[_Text] = []
        for width in _TOGETHER:
            fitting = [t for t in waiting if self._is_short(t, width)][: PIECES[0] // width]
            # The first one's prompt must be among them; a wider piece is read if it is of more.
            found = fitting if first in fitting and len(fitting) > len(found) else found
        return found[1:] if len(found) >= _WORTH_A_PIECE else []

    def _is_short(self, text: _Text, width: int) -> bool:
        """Return whether all of a text's prompt is read in a piece that has so many tokens of each text."""
        fits = len(text.tokens) + width <= self.context + PIECES[-1] and self._rewinds is None
        return fits and self._left(text) <= width

    def _left(self, text: _Text) -> int:
        """Return how many tokens of a text's prompt are to be read."""
        assert text.run is not None
        return len(text.run.prompt) - len(text.tokens)

    def _ready(self, text: _Text) -> None:
        """Let a step read what is left of a prompt, if that is one token."""
        if text.run is not None and self._left(text) == 1:
            text.run.last = text.run.prompt[-1]

    def _admitted(self, most: int | None = None) -> _Text | None:
        """Give a place that is free to the one that has waited longest, if `most` tokens of its prompt are new, or
        fewer.
        """
        with self._changed:
            while self.waiting and self.waiting[0].ended:
                self.waiting.popleft()
            if not self.waiting or all(t.run is not None for t in self.texts):
                return None
            prompt = self.waiting[0].prompt
            if (
                most is not None
                and len(prompt) - max(self._shared(t, prompt) for t in self.texts) > most
            ):
                # It may begin as one of those do that are read now.
                return None
            run = self.waiting.popleft()
        text = self._place(run.prompt)
        self._clock += 1
        text.run, text.used = run, self._clock
        self.chooser.begin(self.texts.index(text), run.prompt, run.sampling)
        self._ready(text)
        return text

    def _place(self, prompt: list[int]) -> _Text:
        """Return a free place for a prompt, with what it shares with a text in it."""
        free = [t for t in self.texts if t.run is None]
        best = max(self.texts, key=lambda t: (self._shared(t, prompt), t.run is None))
        shared = self._shared(best, prompt)
        text = min(free, key=lambda t: (bool(t.tokens), t.used))
        if best.run is None and (len(free) == 1 or 2 * shared >= len(best.tokens) > 0):
            text = best
        elif shared >= _WORTH and text is not best:
            self._move([best], [text])
            text.tokens, text.drafted = best.tokens[:shared], min(best.drafted, shared)
            return text
        del text.tokens[self._shared(text, prompt) :]
        text.drafted = min(text.drafted, len(text.tokens))
        return text

    def _shared(self, text: _Text, prompt: Sequence[int]) -> int:
        """Return how many tokens of a prompt, but for its last one, the cache has from a text."""
        shared = alike(text.tokens, prompt[:-1])
        far = self._rewinds is not None and len(text.tokens) - shared > self._rewinds - DRAFTS
        return 0 if far else shared

    def _length(self, needed: int) -> int:
        """Return how many places of the cache a step reads that needs so many."""
        length = LEAST
        while length < needed:
            length *= 4
        return min(length, room(self.context))

    def _wide(self, text: _Text) -> int:
        """Return how long the next piece of a text's prompt is, with what fills it up."""
        at, left = len(text.tokens), self._left(text)
        width = next((p for p in PIECES if p <= left), PIECES[-1])
        wider = next((p for p in reversed(PIECES) if p >= left), width)
        fits = at + wider <= self.context + PIECES[-1] and self._rewinds is None
        # One piece that is not full rather than several, where there is room for what is too much. On the CPU a piece
        # takes about as long to unpack the weights as for 128 tokens.
        worth = self._packed and left > wider // 4 + 1
        worth = worth if self.device.type == "cpu" else wider <= _AS_SHORT
        return wider if worth and fits else width

    def _piece(self, texts: list[_Text]) -> tuple[int, Result | None]:
        """Read a piece of a prompt, or the whole of several ones that are as short. Return how many tokens that is, and
        after the last piece also what was chosen.
        """
        self._fresh = False
        count, width = 1, self._wide(texts[0])
        if len(texts) > 1:
            needed = max(map(self._left, texts))
            width = next(w for w in _TOGETHER if w >= needed and len(texts) * w <= PIECES[0])
            count = PIECES[0] // width
        # Where there are fewer, the first one is read again, to the same places.
        read = texts + [texts[0]] * (count - len(texts))
        live = [1.0] * len(texts) + [0.0] * (count - len(texts))
        runs = [t.run for t in read if t.run is not None]
        starts = [len(t.tokens) for t in read]
        pieces = [r.prompt[at : at + width] for r, at in zip(runs, starts, strict=True)]
        given = (
            webtorch.tensor([p + [0] * (width - len(p)) for p in pieces]),
            webtorch.tensor(starts).unsqueeze(1) + webtorch.arange(width),
            webtorch.tensor([self.texts.index(t) for t in read]),
            webtorch.tensor([i * width + len(p) - 1 for i, p in enumerate(pieces)]),
            webtorch.tensor(live),
        )
        ends = starts[0] + len(pieces[0]) == len(runs[0].prompt)
        kind = Kind()
        for run in runs if ends else ():
            kind |= run.kind
        moved = (*(g.to(self.device) for g in given), self._allowed(runs, kind))
        result = self._read(moved, count * width, self._length(max(starts) + width), kind)
        for text, piece in zip(texts, pieces, strict=False):
            text.tokens += piece
            self._ready(text)
        return sum(map(len, pieces[: len(texts)])), result if ends else None

    def _read(self, given: tuple[Tensor, ...], width: int, length: int, kind: Kind) -> Result:
        """Read a piece. Each expert computes about as many of its tokens as chose the busiest one of the last piece;
        where that was not enough, all compute all.
        """
        places = None
        if self._mixtures and width > PIECES[-1]:
            fitting = (width >> i for i in (3, 2, 1) if width >> i >= self._busiest * width)
            places = next(fitting, None)
        result = self._program(0, length, kind, places)(*given)
        if places is None:
            return result
        wanted = int(result[-1])
        self._busiest = wanted / width
        return result[:-1] if wanted <= places else self._program(0, length, kind)(*given)

    def _step(self, live: list[_Text]) -> None:
        """Make a token of each text, and, where a device works while this waits, begin the next one."""
        if self._ahead is None:
            self._closed_up(live)
        rows = self._rows(max(self.texts.index(t) for t in live) + 1)
        if self._ahead is None and self._drafts(live):
            self._drafted_step(live, rows)
            return
        runs = [t.run if t in live else None for t in self.texts[:rows]]
        found, self._ahead = self._ahead, None
        if found is not None:
            result, kind, begun, read = found
            self._fresh = self._fresh and begun == runs
            runs = [r if r in runs else None for r in begun]
        else:
            result, kind = self._begun(runs)
            self._fresh, read = True, [t.tolist for t in result[:-1]]
        # On the CPU a step that is begun before would only come late; a constraint must know the token.
        if self.device.type != "cpu" and self._fresh and not kind.masked and self._goes_on(runs):
            longest = max(len(t.tokens) for t in live) + 2
            program = self._program(rows, self._length(longest), kind)
            live_rows = self._live(runs)
            if found is None:
                # Before the next step is given to the device, which else would be waited for too.
                read = [t._coming() for t in result[:-1]]
            allowed, runtime = self._allowed(runs, kind), result[0]._storage.runtime
            # A step and the copy of what is read of it are one submission: each takes a card's thread some 70 us.
            with runtime.lock, runtime.backend.together():
                ahead = program(result[0], result[-1], live_rows, allowed)
                coming = [t._coming() for t in ahead[:-1]]
            self._ahead = ahead, kind, runs, coming
        said = [values() for values in read]
        for row, (text, run) in enumerate(zip(self.texts, runs, strict=False)):
            if run is not None:
                self._take(text, run, said, row)

    def _rows(self, wanted: int) -> int:
        """Return of how many texts a step is that is of at least so many."""
        return min(1 << (wanted - 1).bit_length(), len(self.texts))

    def _closed_up(self, live: list[_Text]) -> None:
        """Bring the texts of a step to the front, if it is then of fewer."""
        while True:
            last = max(self.texts.index(t) for t in live)
            if self._rows(last + 1) == self._rows(len(live)):
                return
            free = next(i for i, t in enumerate(self.texts) if t not in live)
            one, other = self.texts[last], self.texts[free]
            self._move([one, other], [other, one])
            self.texts[last], self.texts[free] = other, one

    def _move(self, sources: list[_Text], targets: list[_Text]) -> None:
        """Copy what is kept of texts to others."""
        if self._moving is None:
            held = [self.cache.move, self.chooser.move]
            held += [] if self.draft is None else [self.draft_cache.move]

            @no_grad()
            def moved(old: Tensor, new: Tensor) -> None:
                """Copy what is kept of the texts `old` to the texts `new`; both are numbers (n,), int64."""
                for move in held:
                    move(old, new)

            self._moving = compiled(moved) if self.compile else moved
        numbers = [[self.texts.index(t) for t in ts] for ts in (sources, targets)]
        self._moving(*(webtorch.tensor(n).to(self.device) for n in numbers))

    # ---- drafts

    def _drafts(self, live: list[_Text]) -> bool:
        """Return whether a step may be drafted: no choice hangs on which tokens came before it."""
        runs = [t.run for t in live if t.run is not None]
        told = any(r.kind.masked or r.kind.told or r.sampling.remembers for r in runs)
        return self.draft is not None and not told

    def _read_for_drafts(self, text: _Text) -> None:
        """Let the model that drafts read what it has not."""
        while text.drafted < len(text.tokens):
            left = len(text.tokens) - text.drafted
            width = next((p for p in PIECES if p <= left), PIECES[-1])
            piece = text.tokens[text.drafted : text.drafted + width]
            given = (
                webtorch.tensor([piece + [0] * (width - len(piece))]),
                webtorch.arange(text.drafted, text.drafted + width).unsqueeze(0),
                webtorch.tensor([self.texts.index(text)]),
            )
            program = self._program(_READ, self._length(text.drafted + width), Kind())
            program(*(g.to(self.device) for g in given))
            text.drafted += len(piece)

    def _drafted_step(self, live: list[_Text], rows: int) -> None:
        """Make some tokens of each text: as many as were drafted rightly, and one more."""
        for text in live:
            self._read_for_drafts(text)
        self._fresh = False
        runs = [t.run if t in live else None for t in self.texts[:rows]]
        kind = Kind(all(r is None or r.kind.greedy for r in runs))
        last = [0 if r is None or r.last is None else r.last for r in runs]
        places = [len(t.tokens) for t in self.texts[:rows]]
        length = self._length(max(p for p, r in zip(places, runs, strict=True) if r) + DRAFTS + 1)
        program = self._program(-rows, length, kind)
        given = webtorch.tensor(last).unsqueeze(1), webtorch.tensor(places)
        drafts, chosen = (t.tolist() for t in program(*(g.to(self.device) for g in given)))
        for row, (text, run) in enumerate(zip(self.texts, runs, strict=False)):
            if run is None:
                continue
            for i, token in enumerate(chosen[row]):
                self._take(text, run, [[[token]]], 0)
                if run.ended or i == DRAFTS or drafts[row][i] != token:
                    break
            # Drafts were read, too; what was wrong of them is written over.
            text.drafted = len(text.tokens)

    def _of_drafts(self, rows: int, length: int, kind: Kind) -> Callable[..., Result]:
        model, cache, chooser, device = self.model, self.cache, self.chooser, self.device
        draft, held = self.draft, getattr(self, "draft_cache", None)
        assert draft is not None

        @no_grad()
        def step(tokens: Tensor, at: Tensor) -> Result:
            """Return for each text the tokens that were drafted, and those that the model chooses in their places."""
            texts, none = webtorch.arange(rows, device=device), webtorch.zeros(1, device=device)
            given = [tokens]
            for i in range(DRAFTS + 1):
                logits = draft(given[i], (at + i).unsqueeze(1), held, None, length)[:, 0]
                # Sizes are rounded up, to other multiples.
                more = model.config.vocab_size - logits.shape[-1]
                logits = F.pad(logits, (0, more), value=float("-inf"))
                given += chooser.choose(kind, logits, texts, at + i + 1, none.expand(rows), None)
            places = at.unsqueeze(1) + webtorch.arange(DRAFTS + 1, device=device)
            read = webtorch.cat(given[:-1], 1)
            logits = model(read, places, cache, None, length).flatten(0, 1)
            every = texts.repeat_interleave(DRAFTS + 1)
            none = none.expand(every.shape[0])
            (chosen,) = chooser.choose(kind, logits, every, places.flatten() + 1, none, None)
            return read[:, 1:], chosen.view(rows, -1)

        return step

    def _of_reading(self, length: int) -> Callable[..., Result]:
        draft, held = self.draft, getattr(self, "draft_cache", None)
        assert draft is not None

        @no_grad()
        def step(tokens: Tensor, at: Tensor, row: Tensor) -> Result:
            """Return nothing; the keys and values of a piece are in the cache of the model that drafts."""
            draft.hidden(tokens, at, held, length, row)
            return ()

        return step

    def _goes_on(self, runs: list[Run | None]) -> bool:
        """Return whether no answer is sure to end with the token that comes."""
        sure = (
            r is not None and (r.made + 2 > r.most or len(t.tokens) + 2 > self.context)
            for t, r in zip(self.texts, runs, strict=False)
        )
        return not any(sure)

    def _live(self, runs: list[Run | None]) -> Tensor:
        """Return 1 for each text whose answer is made: what it was for the last step, if that is the same."""
        given = [float(r is not None) for r in runs]
        if self._lives is None or self._lives[0] != given:
            self._lives = given, webtorch.tensor(given).to(self.device)
        return self._lives[1]

    def _begun(self, runs: list[Run | None]) -> tuple[Result, Kind]:
        """Begin a step from what is known here."""
        kind = Kind()
        for run in runs:
            kind |= run.kind if run is not None else Kind()
        texts = self.texts[: len(runs)]
        last = [0 if r is None or r.last is None else r.last for r in runs]
        # Others write where they go on, which is written again then.
        places = [len(t.tokens) for t in texts]
        longest = max(p for p, r in zip(places, runs, strict=True) if r is not None)
        program = self._program(len(runs), self._length(longest + 1), kind)
        tokens = webtorch.tensor(last).unsqueeze(1).to(self.device)
        at = webtorch.tensor(places).to(self.device)
        return program(tokens, at, self._live(runs), self._allowed(runs, kind)), kind

    def _allowed(self, runs: Sequence[Run | None], kind: Kind) -> Tensor:
        """Return the bits of tokens that may come."""
        words = -(-self.model.config.vocab_size // 32)
        if not kind.masked:
            # Kept, as a part of one tensor of all would be copied at each step.
            found = self._every.get(len(runs))
            if found is None:
                found = webtorch.full((len(runs), words), -1, dtype=webtorch.int32).to(self.device)
                self._every[len(runs)] = found
            return found
        every = [-1] * words
        bits = []
        for run in runs:
            try:
                told = None if run is None or run.constraint is None else run.constraint.allowed()
            except WebtorchError as error:
                assert run is not None
                run.error, run.ended, told = error, True, None
            bits.append(every if told is None else told)
        return webtorch.tensor(bits, dtype=webtorch.int32).to(self.device)

    def _take(self, text: _Text, run: Run, said: list[Any], row: int) -> None:
        """Hand a token out, and see whether the answer goes on."""
        number = said[0][row][0]
        if run.ended:
            return
        if number in run.stop:
            text.tokens += [] if run.last is None else [run.last]
            run.ended, run.finish = True, "stop"
            return
        if run.told:
            top = list(zip(said[3][row], said[2][row], strict=True))
            run.likely.append(Likely(said[1][row][0], top))
        try:
            over = run.constraint is not None and run.constraint.take(number)
        except WebtorchError as error:
            run.error, run.ended = error, True
            return
        # At once: who is interrupted here (Ctrl+C) leaves the texts of others as they were.
        if run.last is not None:
            text.tokens.append(run.last)
        run.last, run.made = number, run.made + 1
        run.out.append(number)
        if over or run.made >= run.most or len(text.tokens) >= self.context:
            run.ended, run.finish = True, "stop" if over else "length"

    # ---- programs

    def _program(
        self, rows: int, length: int, kind: Kind, places: int | None = None
    ) -> Callable[..., Result]:
        """Return the step that reads `length` places: of the first `rows` texts, less than 0 with drafts; 0: of pieces
        of some, with as many places of each expert; _READ: of a piece for the model that drafts.
        """
        found = self._made.get((rows, length, kind, places))
        if found is None:
            if rows == _READ:
                found = self._of_reading(length)
            elif rows < 0:
                found = self._of_drafts(-rows, length, kind)
            elif rows == 0:
                found = self._of_piece(length, kind, places)
            else:
                found = self._of_rows(rows, length, kind)
            found = compiled(found) if self.compile else found
            self._made[rows, length, kind, places] = found
        return found

    def _of_piece(self, length: int, kind: Kind, places: int | None) -> Callable[..., Result]:
        model, cache, chooser, mixtures = self.model, self.cache, self.chooser, self._mixtures

        @no_grad()
        def step(
            tokens: Tensor, at: Tensor, row: Tensor, wanted: Tensor, live: Tensor, allowed: Tensor
        ) -> Result:
            """Return the tokens after the tokens `wanted` of a piece of each text, which count where `live` is 1; with
            `places`, also how many the experts wanted at most.
            """
            for mixture in mixtures:
                mixture.places = places
            hidden = model.hidden(tokens, at, cache, length, row).flatten(0, 1)
            logits = model.logits(hidden.index_select(0, wanted).unsqueeze(1))[:, 0]
            place = at.flatten().index_select(0, wanted) + 1
            chosen = chooser.choose(kind, logits, row, place, live, allowed)
            if places is None:
                return chosen
            told = [m.wanted for m in mixtures if m.wanted is not None]
            for mixture in mixtures:
                mixture.places = mixture.wanted = None
            return (*chosen, webtorch.stack(told).amax())

        return step

    def _of_rows(self, rows: int, length: int, kind: Kind) -> Callable[..., Result]:
        model, cache, chooser, device = self.model, self.cache, self.chooser, self.device

        @no_grad()
        def step(tokens: Tensor, at: Tensor, live: Tensor, allowed: Tensor) -> Result:
            """Return the next token of each text, and the places that come after."""
            logits = model(tokens, at.unsqueeze(1), cache, None, length)[:, 0]
            texts = webtorch.arange(rows, device=device)
            chosen = chooser.choose(kind, logits, texts, at + 1, live, allowed)
            return (*chosen, at + live.to(at.dtype))

        return step
