"""A language model with its tokenizer and its chat template: text in, text out."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from webtorch.autograd.grad_mode import no_grad
from webtorch.functions import public as webtorch
from webtorch.io.gguf import GGUFReader
from webtorch.io.safetensors import FilePath
from webtorch.ir.dtype import DType
from webtorch.llm import lora
from webtorch.llm.batch import Batch, ContextFullError, Likely, Run, check
from webtorch.llm.config import ModelError, checked
from webtorch.llm.grammar import Grammar, Grammars
from webtorch.llm.loading import load_model, open_weights, read_config, read_json, reading
from webtorch.llm.memory import Needs, needs
from webtorch.llm.model import Model
from webtorch.llm.sampling import Sampling
from webtorch.llm.template import DEFAULT, Message, render
from webtorch.llm.tokens import (
    Tokens,
    bytes_of,
    ends_of,
    gguf_tokens,
    streamed,
    tokenizer_from_folder,
    tokenizer_from_gguf,
)
from webtorch.llm.weights import packed_bytes, save, save_quantized, weight_bytes
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.tensor import Tensor

# A token has no more letters, but for long rows of spaces.
_LETTERS = 128


@dataclass
class Answer:
    """Text as it comes: iterate over it; then it says why it ended. `close` ends it before."""

    prompt: list[int]
    pieces: Iterator[str] = field(default_factory=lambda: iter(()))
    tokens: list[int] = field(default_factory=list)
    finish: str = (
        ""  # "stop": a token or a text that ends it came; "length": there was no more room
    )
    seconds: float = 0.0  # from the first token to the last
    likely: list[Likely] = field(default_factory=list)  # of each token, if that was asked for
    # Ends it, also while another thread waits for it.
    end: Callable[[], None] = lambda: None

    def __iter__(self) -> Iterator[str]:
        return self.pieces

    def close(self) -> None:
        """End it: what it was computed with is free for others."""
        self.pieces.close()  # type: ignore[attr-defined]

    @property
    def speed(self) -> float:
        """Return tokens per second, after the first."""
        return (len(self.tokens) - 1) / self.seconds if self.seconds else 0.0


class LanguageModel:
    """A model that is loaded, its tokenizer and its chat template."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokens,
        *,
        template: str | None = None,
        ends: Sequence[object] = (),
        names: dict[str, str] | None = None,
        context: int | None = None,
        cache: DType | None = None,
        texts: int = 1,
        compile: bool = True,
        draft: Model | None = None,
    ) -> None:
        """Put the parts together.

        template: of chats, in Jinja; None: that of ChatML. ends: numbers of tokens that end an answer, besides
        those whose names say so. names: what the template may read (bos_token, eos_token). context: tokens of a
        text at most. cache: the type of keys and values. texts: how many answers are made at once.
        draft: a smaller model with the same tokenizer, which makes answers faster (`Batch`).
        """
        self.model, self.tokenizer = model.eval(), tokenizer
        self.template, self.names = template, dict(names or {})
        self.ends = ends_of(tokenizer, ends)
        self.context = context or min(4096, model.config.max_position_embeddings)
        self.batch = Batch(model, self.context, texts, cache, compile, draft)
        self.needs: Needs | None = None

    # ---- text

    def prompt(self, messages: Sequence[Message], **names: object) -> list[int]:
        """Return the tokens of a conversation, with the beginning of an answer.

        names: what the template may read besides (tools). Raises TemplateError where it refuses.
        """
        text = render(self.template or DEFAULT, messages, **{**self.names, **names})
        return self.encode(text, self.template is None)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Return the tokens of a text, if it may fit at all: to cut a long one takes its time."""
        if len(text) > _LETTERS * self.context:
            raise ContextFullError(
                f"the prompt has {len(text):,} letters, and the context {self.context:,} tokens"
            )
        return self.tokenizer.encode(text, add_special_tokens=special)

    def chat(
        self, messages: Sequence[Message], sampling: Sampling | None = None, *, most: int | None = None,
        stop: Sequence[str] = (), grammar: Grammar | None = None, likely: bool = False, begun: str = "",
        shown: Collection[str] = (), **names: object,
    ) -> Answer:  # fmt: skip
        """Return the answer to a conversation; arguments as of `generate`, `names` as of `prompt`.

        begun: what the answer begins with, which is no part of it. shown: special tokens that are text here.
        """
        given = self.prompt(messages, **names)
        given += self.tokenizer.encode(begun, add_special_tokens=False) if begun else []
        told = grammar, likely
        return self._answer(given, sampling, most, stop, told, begins=True, shown=shown)

    def generate(
        self, prompt: str | Sequence[int], sampling: Sampling | None = None, *, most: int | None = None,
        stop: Sequence[str] = (), grammar: Grammar | None = None, likely: bool = False,
    ) -> Answer:  # fmt: skip
        """Return the text that follows a prompt (a text, or tokens).

        most: tokens at most (None: until the context is full). stop: texts that end it, and are left out. grammar: what
        it may be. likely: whether its tokens' log probabilities are wanted. Raises ContextFullError for a prompt that
        is too long, GrammarError for a grammar that is wrong.
        """
        given = self.encode(prompt) if isinstance(prompt, str) else list(prompt)
        return self._answer(given, sampling, most, stop, (grammar, likely), begins=False)

    @functools.cached_property
    def _grammars(self) -> Grammars:
        return Grammars(self.tokenizer, self.ends, self.model.config.vocab_size)

    def _answer(
        self, given: list[int], sampling: Sampling | None, most: int | None, stop: Sequence[str],
        told: tuple[Grammar | None, bool], begins: bool, shown: Collection[str] = (),
    ) -> Answer:  # fmt: skip
        count = self.context if most is None else most
        grammar, likely = told
        constraint = None if grammar is None else self._grammars.constraint(grammar)
        run = self.batch.begin(given, count, sampling or Sampling(), self.ends, constraint, likely)
        answer = Answer(given, likely=run.likely, end=functools.partial(self.batch.end, run))
        pieces = streamed(self.tokenizer, self._tokens(answer, run), begins, shown)
        answer.pieces = _until(pieces, [s for s in stop if s], answer)
        return answer

    def _tokens(self, answer: Answer, run: Run) -> Iterator[int]:
        began = 0.0
        with contextlib.closing(self.batch.follow(run)) as made:  # type: ignore[type-var]
            for number in made:
                answer.tokens.append(number)
                answer.seconds = time.perf_counter() - (began or time.perf_counter())
                began = began or time.perf_counter()
                yield number
        answer.finish = run.finish

    def adapt(self, path: FilePath | None, strength: float = 1.0) -> None:
        """Take the adapter of a file (`lora.load`) from now on, in place of the one that is there; None: none.

        What was read of texts is read again.
        """
        with self.batch.alone():
            if path is None:
                lora.detach(self.model)
            else:
                lora.load(self.model, path, strength)
            self.batch.forget()

    def renew(self) -> None:
        """Compute anew from now on, as weights have changed: programs are made again, and texts read again."""
        with self.batch.alone():
            self.batch.forget()

    def embed(self, text: str | Sequence[int]) -> Tensor:
        """Return a text as a vector of length 1, (width,): the mean of what the last layer gives for its tokens."""
        given = self.encode(text) if isinstance(text, str) else list(text)
        check(given, self.model.config, self.context)
        with self.batch.alone(), no_grad():
            device = self.model.embed.weight.device
            hidden = self.model.hidden(webtorch.tensor([given], device=device))[0].float().mean(0)
            return hidden / hidden.norm().clamp(min=1e-12)

    def save(self, path: FilePath) -> None:
        """Write a GGUF file with model, tokenizer and template. Raises GGUFError and TokenizerError."""
        save(self.model, path, _about_text(self.tokenizer, self.template))


def _about_text(tokenizer: Tokens, template: str | None) -> dict[str, Any]:
    """Return the metadata of a file about text."""
    said = {} if template is None else {"tokenizer.chat_template": template}
    return gguf_tokens(tokenizer) | said


def _until(pieces: Iterator[str], stops: Sequence[str], answer: Answer) -> Iterator[str]:
    """Yield text until one of `stops`; what may be the beginning of one waits."""
    held = ""
    with contextlib.closing(pieces):  # type: ignore[type-var]
        for piece in pieces:
            held += piece
            found = [at for s in stops if (at := held.find(s)) >= 0]
            if found:
                answer.finish = "stop"
                yield held[: min(found)]
                return
            waits = max(
                (n for s in stops for n in range(1, len(s)) if held.endswith(s[:n])), default=0
            )
            out, held = held[: len(held) - waits], held[len(held) - waits :]
            if out or not waits:
                yield out
    yield held


# ---- from files


def load(
    path: FilePath,
    device: object = None,
    *,
    dtype: DType | None = None,
    context: int | None = None,
    cache: DType | None = None,
    texts: int = 1,
    compile: bool = True,
    packed: bool = True,
    draft: FilePath | None = None,
) -> LanguageModel:
    """Return the language model of a GGUF file, or of a folder of Hugging Face's.

    dtype: of what is computed, and of weights that are floats (default float32). packed: quantised weights of GGUF
    stay as they are in the file. context, cache and texts: as of `LanguageModel`; without a context,
    as much as the model knows, at most 4096, and as fits. draft: the file of a smaller model with the same tokenizer,
    which makes answers faster. Raises OutOfMemoryError, before anything is loaded, where
    it does not fit; ModelError, GGUFError, SafetensorError, TokenizerError and OSError for files that are damaged,
    absent or of other kinds.
    """
    place = Path(path)
    where = webtorch.device(device) if device is not None else webtorch.get_default_device()
    config = read_config(place)
    size = None
    if place.is_dir():
        size = packed_bytes(place) if packed else None
    else:
        size = weight_bytes(GGUFReader(place), dtype or webtorch.float32, packed)
    found = needs(config, where, dtype, context, cache, texts, size)
    told = _folder(place) if place.is_dir() else _gguf(place)
    smaller = None
    if draft is not None:
        smaller = _draft(Path(draft), told["tokenizer"], where, dtype, found.context, cache, texts)
    made = LanguageModel(
        load_model(place, where, dtype, packed),
        context=found.context,
        cache=cache,
        texts=texts,
        compile=compile,
        draft=smaller,
        **told,
    )
    made.needs = found
    return made


def _draft(
    place: Path,
    tokenizer: Tokens,
    device: DeviceLike,
    dtype: DType | None,
    context: int,
    *held: Any,
) -> Model:
    """Return a model that drafts. Raises ModelError where its tokenizer is another."""
    own = (_folder(place) if place.is_dir() else _gguf(place))["tokenizer"]
    count = min(len(own), len(tokenizer))
    same = own.special == tokenizer.special and all(
        bytes_of(own, i) == bytes_of(tokenizer, i) for i in range(0, count, 97)
    )
    if not same:
        raise ModelError(f"{place}: the tokenizer of the model that drafts is another")
    needs(read_config(place), device, dtype, context, *held)
    return load_model(place, device, dtype)


def quantize_file(path: FilePath, target: FilePath, format: str, device: object = None) -> None:
    """Write a GGUF file of the model of a file or folder, its matrices packed as by `quantize_`, computed on a device.

    One weight at a time is in memory. Raises as `quantize_`, `load` and `LanguageModel.save`.
    """
    place = Path(path)
    config, source = open_weights(place, device, None, packed=False)
    told = _folder(place) if place.is_dir() else _gguf(place)
    save_quantized(config, source, target, format, _about_text(told["tokenizer"], told["template"]))


def _gguf(path: Path) -> dict[str, Any]:
    """Return what a file says about text."""
    metadata = GGUFReader(path).metadata
    tokenizer = tokenizer_from_gguf(metadata, str(path))
    numbers = {
        n: metadata.get(f"tokenizer.ggml.{n}_token_id") for n in ("bos", "eos", "eot", "eom")
    }
    texts = metadata.get("tokenizer.ggml.tokens", [])
    names = {
        f"{n}_token": texts[i]
        for n, i in numbers.items()
        if isinstance(i, int) and 0 <= i < len(texts)
    }
    template = metadata.get("tokenizer.chat_template")
    return {
        "tokenizer": tokenizer, "names": names, "template": template if isinstance(template, str) else None,
        "ends": [numbers["eos"], numbers["eot"], numbers["eom"]],
    }  # fmt: skip


def _folder(folder: Path) -> dict[str, Any]:
    """Return what a folder's files say about text."""
    told, made = folder / "tokenizer_config.json", folder / "generation_config.json"
    data = read_json(told) if told.exists() else {}
    ends: list[object] = []
    for file in (made, folder / "config.json"):
        found = read_json(file).get("eos_token_id") if file.exists() else None
        ends += found if isinstance(found, list) else [found]
    names = {
        n: v.get("content") if isinstance(v, dict) else v
        for n in ("bos_token", "eos_token", "pad_token", "unk_token")
        if (v := data.get(n)) is not None
    }
    template = data.get("chat_template")
    if isinstance(template, list):
        named = [t for t in template if isinstance(t, dict) and t.get("name") == "default"]
        template = named[0].get("template", named) if named else None
    for name, value in {"chat_template": template or "", **names}.items():
        with reading(told):
            checked(name, value, "str")
    file = folder / "chat_template.jinja"
    if file.exists():
        try:
            template = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ModelError(f"{file}: {error}") from None
    return {
        "tokenizer": tokenizer_from_folder(folder), "names": names, "template": template, "ends": ends,
    }  # fmt: skip
