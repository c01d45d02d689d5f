"""What a model is fine-tuned on: lines of JSON, as tokens of which some are to be learned.

A line is a conversation ("messages", with "role" and "content"; or "conversations", with "from" and "value"), of which
the assistant's answers are learned; a "prompt" and its "completion", of which the completion is; or a "text", all of
which is.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from webtorch.errors import WebtorchError
from webtorch.io.safetensors import FilePath
from webtorch.llm.language import LanguageModel
from webtorch.llm.template import DEFAULT, Message, TemplateError, render
from webtorch.llm.tokens import alike

# Texts are filled up to one of these lengths, or to the longest that is allowed: there is a program for each.
LENGTHS = (64, 256, 1024, 4096)
_ROLES = {"human": "user", "gpt": "assistant"}


class DataError(WebtorchError, ValueError):
    """A line of the data is no example."""


@dataclass(frozen=True)
class Example:
    """Tokens, and which of them are learned."""

    tokens: tuple[int, ...]
    learned: tuple[bool, ...]


def read_lines(path: FilePath) -> list[dict[str, Any]]:
    """Return the objects of a file, one a line. Raises DataError, with the line, for other lines and an empty file."""
    out = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {error}") from None
        if not isinstance(found, dict):
            raise DataError(f"{path}, line {number}: an object is wanted")
        out.append(found)
    if not out:
        raise DataError(f"{path}: there are no examples in it")
    return out


def _messages(found: Sequence[Mapping[str, object]]) -> list[Message]:
    out = []
    for m in found:
        role, content = m.get("role", m.get("from")), m.get("content", m.get("value"))
        if not isinstance(role, str) or not isinstance(content, str):
            raise DataError("a message has a role and a content, both texts")
        out.append({**m, "role": _ROLES.get(role, role), "content": content})
    if not any(m["role"] == "assistant" for m in out):
        raise DataError("the conversation has no answer of the assistant")
    return out


class _Reader:
    """Makes tokens of lines, by a model's tokenizer and template."""

    def __init__(self, model: LanguageModel) -> None:
        self.model, tokenizer = model, model.tokenizer
        name = model.names.get("eos_token", "")
        ends = [tokenizer.special[name]] if name in tokenizer.special else sorted(model.ends)
        self.end = ends[:1] if not tokenizer.after else []

    def example(self, line: Mapping[str, Any]) -> Example:
        """Return the example of a line."""
        for name in ("messages", "conversations"):
            if isinstance(line.get(name), list):
                return self._talk(_messages(line[name]))
        encode = self.model.tokenizer.encode
        if isinstance(line.get("prompt"), str) and isinstance(line.get("completion"), str):
            tokens = [*encode(line["prompt"] + line["completion"]), *self.end]
            return self._from(tokens, alike(encode(line["prompt"]), tokens))
        if isinstance(line.get("text"), str):
            return self._from([*encode(line["text"]), *self.end], 0)
        raise DataError(
            f"there are no messages, no prompt with a completion and no text, but {', '.join(line) or 'nothing'}"
        )

    @staticmethod
    def _from(tokens: list[int], begin: int) -> Example:
        return Example(tuple(tokens), tuple(i >= begin for i in range(len(tokens))))

    def _tokens(self, messages: Sequence[Message], answers: bool) -> list[int]:
        model = self.model
        text = render(
            model.template or DEFAULT, messages, **model.names, add_generation_prompt=answers
        )
        return model.tokenizer.encode(text, add_special_tokens=model.template is None)

    def _talk(self, messages: list[Message]) -> Example:
        """Return a conversation; each answer is what comes after what the template has before it."""
        last = max(i for i, m in enumerate(messages) if m["role"] == "assistant")
        whole = self._tokens(messages[: last + 1], False)
        learned = [False] * len(whole)
        for i, message in enumerate(messages[: last + 1]):
            if message["role"] != "assistant":
                continue
            begin = alike(self._tokens(messages[:i], True), whole)
            end = len(whole) if i == last else alike(self._tokens(messages[: i + 1], False), whole)
            learned[begin:end] = [True] * max(end - begin, 0)
        return Example(tuple(whole), tuple(learned))


def examples_of(
    model: LanguageModel,
    lines: Iterable[Mapping[str, object]],
    longest: int,
    file: str = "the data",
) -> list[Example]:
    """Return lines as examples of at most `longest` tokens, cut at their end.

    Texts are put one behind the other until that many are full. Raises DataError, with the line, for lines that are no
    examples, and where nothing is left to be learned.
    """
    reader = _Reader(model)
    out: list[Example] = []
    texts: list[Example] = []
    for number, line in enumerate(lines, 1):
        try:
            found = reader.example(line)
        except (DataError, TemplateError) as error:
            raise DataError(f"{file}, example {number}: {error}") from None
        (texts if all(found.learned) else out).append(found)
    flat = [t for e in texts for t in e.tokens]
    packed = [
        Example(tuple(flat[i : i + longest]), (True,) * len(flat[i : i + longest]))
        for i in range(0, len(flat), longest)
    ]
    cut = [Example(e.tokens[:longest], e.learned[:longest]) for e in out]
    # The first token has nothing before it.
    kept = [e for e in (*cut, *packed) if any(e.learned[1:])]
    if not kept:
        raise DataError(f"{file}: nothing is left to be learned of it within {longest} tokens")
    return kept


def _length(count: int, longest: int) -> int:
    return min(next((n for n in LENGTHS if n >= count), longest), longest)


# Tokens of each row, what comes after each (-100: not learned).
Rows = tuple[list[list[int]], list[list[int]]]


def batches(
    examples: Sequence[Example], size: int, longest: int, seed: int | None
) -> Iterator[Rows]:
    """Yield batches of `size` rows of one length each, in a random order of a seed; the last rows may be empty."""
    order = list(examples)
    draw = random.Random(seed)
    if seed is not None:
        draw.shuffle(order)
    groups: list[tuple[int, list[Example]]] = []
    rest: list[Example] = []
    for length in sorted({_length(len(e.tokens) - 1, longest) for e in order}):
        # What does not fill a batch goes with what is longer.
        here = [*rest, *(e for e in order if _length(len(e.tokens) - 1, longest) == length)]
        full = len(here) - len(here) % size
        groups += [(length, here[i : i + size]) for i in range(0, full, size)]
        rest, last = here[full:], length
    if rest:
        groups.append((last, rest))
    if seed is not None:
        draw.shuffle(groups)
    for length, rows in groups:
        tokens, following = [], []
        for e in rows:
            after = [t if k else -100 for t, k in zip(e.tokens[1:], e.learned[1:], strict=True)]
            short = length - len(after)
            tokens.append([*e.tokens[:-1], *[0] * short])
            following.append([*after, *[-100] * short])
        for _ in range(size - len(rows)):
            tokens.append([0] * length)
            following.append([-100] * length)
        yield tokens, following
