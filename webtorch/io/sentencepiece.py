"""SentencePiece's tokenizers: text to token numbers and back, as Llama 2, Mistral, Phi 3 and Gemma do.

Kudo and Richardson, "SentencePiece", 2018: spaces are letters ("▁"), and what no token has is written as bytes.
BPE joins neighbours, those of the best score first (Sennrich et al., 2016); a unigram model takes the pieces whose
probabilities have the largest product (Kudo, "Subword Regularization", 2018). Files are Hugging Face's
tokenizer.json; scores come from GGUF files as well.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from webtorch.io.added import FORMS, Added, TokenizerError, facts, in_form, numbered, reading, told
from webtorch.io.safetensors import FilePath
from webtorch.io.tokenizer import around, putting, steps

_SPACE = "\u2581"
_WORD = re.compile(f"{_SPACE}[^{_SPACE}]*|[^{_SPACE}]+")
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


class SentencePiece:
    """A SentencePiece tokenizer, BPE or unigram."""

    def __init__(
        self,
        tokens: Sequence[str],
        scores: Sequence[float],
        *,
        merges: Sequence[tuple[str, str]] | None = None,
        unigram: bool = False,
        special: Mapping[str, int] | None = None,
        before: Sequence[str] = (),
        after: Sequence[str] = (),
        prefix: str = "each",
        unknown: int = 0,
        kept: Sequence[str] = (),
        unused: Iterable[int] = (),
        rules: Mapping[str, frozenset[str]] | None = None,
        form: str = "",
        words: bool = False,
        fuse: bool = True,
    ) -> None:
        """Make a tokenizer of its parts.

        tokens: by their numbers. scores: of each; of BPE the best is joined first. merges: pairs in the order in
        which they are joined, instead of scores. special: texts that are one token each. before, after: special
        tokens around an encoding. prefix: where a space is put in front: "each" (the text, and what follows a
        special token), "bare" (the same, where there is none), "first" (the text, where it has none) or "" (nowhere).
        unknown: the number for what has no token and no bytes, with `fuse` once for neighbours. kept: special tokens
        that are text (runs of spaces or lines, say), and are never skipped. unused: numbers of tokens that no text has,
        and that give none. rules: of special tokens (`Added`). form: of Unicode, in which text is brought first (as
        "NFKC"). words: no token goes on into the next word.
        """
        if len(tokens) != len(scores):
            raise TokenizerError(f"there are {len(tokens)} tokens and {len(scores)} scores")
        self.tokens, self.scores = list(tokens), list(scores)
        self.special = dict(special or {})
        self.before, self.after = list(before), list(after)
        self.prefix, self.unknown, self.unigram = prefix, unknown, unigram
        for name in (*self.before, *self.after):
            if name not in self.special:
                raise TokenizerError(f"{name!r} is no special token")
        self.vocab = {t: i for i, t in enumerate(self.tokens)}
        self.merges = None if merges is None else list(merges)
        self._ranks = None if merges is None else {pair: -float(i) for i, pair in enumerate(merges)}
        self._bytes = {int(m[1], 16): i for i, t in enumerate(self.tokens) if (m := _BYTE.match(t))}
        self._byte_of = {i: b for b, i in self._bytes.items()}
        self._longest = max(map(len, self.tokens), default=1)
        self.kept, self.unused = set(kept), set(unused)
        self.rules, self.form, self.words, self.fuse = dict(rules or {}), form, words, fuse
        self._added = Added(self.special, self.rules, self._normalised)

    def __len__(self) -> int:
        """Return one more than the largest number."""
        return max(len(self.tokens), max(self.special.values(), default=-1) + 1)

    def __repr__(self) -> str:
        kind = "unigram" if self.unigram else "BPE"
        return f"SentencePiece({len(self)} tokens, {kind}, {len(self.special)} special)"

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the numbers of a text's tokens. Special tokens in the text are found."""
        numbers = [self.special[n] for n in self.before] if add_special_tokens else []
        for number, part, begins in self._added.split(text):
            if number is not None:
                numbers.append(number)
            elif part:
                spaced = self.prefix == "bare" or (self.prefix == "first" and begins)
                spaced = spaced and part[0] not in (_SPACE, " ")
                numbers += self._encoded((_SPACE if spaced else "") + part)
        if add_special_tokens:
            numbers += [self.special[n] for n in self.after]
        return numbers

    def _normalised(self, text: str) -> str:
        text = in_form(self.form, text)
        if self.prefix in ("bare", "first"):
            # Spaces become letters where text is cut, behind the search for added tokens.
            return text
        return (_SPACE if self.prefix == "each" and text else "") + text.replace(" ", _SPACE)

    def _encoded(self, text: str) -> list[int]:
        text, split = text.replace(" ", _SPACE), self._likeliest if self.unigram else self._joined
        return [
            n
            for w in (_WORD.findall(text) if self.words else [text])
            for n in self._numbers(split(w))
        ]

    def _numbers(self, pieces: Iterable[str]) -> list[int]:
        """Return the numbers of pieces; of those that have none the bytes, or the number for what is unknown."""
        numbers: list[int] = []
        fused = False
        for piece in pieces:
            number = self.vocab.get(piece)
            held = [number]
            if number is None:
                held = [self._bytes.get(b) for b in piece.encode("utf-8", "surrogatepass")]
            known = [n for n in held if n is not None]
            if len(known) == len(held):
                numbers += known
            elif not fused or not self.fuse:
                numbers.append(self.unknown)
            fused = len(known) != len(held)
        return numbers

    def _score(self, a: str, b: str) -> float | None:
        """Return how early two neighbours are joined (more is earlier), or None if they are not."""
        if self._ranks is not None:
            return self._ranks.get((a, b))
        number = self.vocab.get(a + b)
        return None if number is None else self.scores[number]

    def _joined(self, text: str) -> list[str]:
        """Return the pieces of BPE: the best pair is joined first, of equal ones that on the left."""
        parts = list(text)
        following = [*range(1, len(parts)), -1]
        before = list(range(-1, len(parts) - 1))
        waiting: list[tuple[float, int, int, str]] = []

        def offer(left: int) -> None:
            """Let a piece and the next one wait to be joined."""
            right = following[left]
            if left >= 0 and right >= 0:
                score = self._score(parts[left], parts[right])
                if score is not None:
                    heapq.heappush(waiting, (-score, left, right, parts[left] + parts[right]))

        for left in range(len(parts) - 1):
            offer(left)
        while waiting:
            _, left, right, whole = heapq.heappop(waiting)
            # What was joined meanwhile is another text.
            if following[left] != right or not parts[left] or parts[left] + parts[right] != whole:
                continue
            parts[left], parts[right] = whole, ""
            following[left] = following[right]
            if following[right] >= 0:
                before[following[right]] = left
            following[right] = -1
            if before[left] >= 0:
                offer(before[left])
            offer(left)
        return [p for p in parts if p]

    def _likeliest(self, text: str) -> list[str]:
        """Return the pieces of the largest product of probabilities (Viterbi's algorithm)."""
        worst = min(self.scores, default=0.0) - 10.0
        best = [0.0] + [float("-inf")] * len(text)
        begins = [0] * (len(text) + 1)
        for end in range(1, len(text) + 1):
            for begin in range(max(0, end - self._longest), end):
                number = self.vocab.get(text[begin:end])
                if number is None and end - begin > 1:
                    continue
                score = best[begin] + (worst if number is None else self.scores[number])
                if score > best[end]:
                    best[end], begins[end] = score, begin
        pieces: list[str] = []
        end = len(text)
        while end:
            pieces.append(text[begins[end] : end])
            end = begins[end]
        return pieces[::-1]

    def is_byte(self, number: int) -> bool:
        """Return whether a token is a byte by its name: <0x0A>."""
        return number in self._byte_of

    def piece(self, number: int) -> bytes:
        """Return the bytes of a token. Raises IndexError for a number that no token has."""
        text = self._added.texts.get(number)
        if text is None and 0 <= number < len(self.tokens):
            text = self.tokens[number]
        if text is None:
            raise IndexError(f"no token has the number {number}; there are {len(self)}")
        byte = _BYTE.match(text)
        if byte:
            return bytes([int(byte[1], 16)])
        return text.replace(_SPACE, " ").encode("utf-8", "surrogatepass")

    def decode(self, numbers: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Return the text of tokens, without the space that was put in front."""
        skipped = self.hidden() if skip_special_tokens else ()
        out = [self.piece(int(n)) for n in numbers if int(n) not in skipped]
        text = b"".join(out).decode("utf-8", "replace")
        return text[1:] if self.prefix and text.startswith(" ") else text

    def hidden(self) -> set[int]:
        """Return the tokens that are no text: special and unused ones."""
        return {n for t, n in self.special.items() if t not in self.kept} | self.unused

    @classmethod
    def from_file(cls, path: FilePath) -> SentencePiece:
        """Read a tokenizer.json. Raises TokenizerError where it is damaged, or of another kind."""
        with reading(str(path)):
            return cls.from_json(json.loads(Path(path).read_text(encoding="utf-8")))

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SentencePiece:
        """Return the tokenizer that the contents of a tokenizer.json describe."""
        model = data["model"]
        before, after = around(data.get("post_processor"))
        prefix, form, words = _cutting(data.get("normalizer"), data.get("pre_tokenizer"))
        facts: dict[str, Any] = {
            "before": before, "after": after, "prefix": prefix, "form": form, "words": words, **told(data),
        }  # fmt: skip
        if model.get("type") == "Unigram":
            rows = model["vocab"]
            return cls(
                [r[0] for r in rows], [float(r[1]) for r in rows], unigram=True,
                unknown=model.get("unk_id") or 0, **facts,
            )  # fmt: skip
        if model.get("type", "BPE") != "BPE":
            raise TokenizerError(f"the model is {model['type']}; BPE and Unigram are read")
        vocab = numbered(model["vocab"].items())
        tokens = [""] * (max(vocab.values(), default=-1) + 1)
        for text, number in vocab.items():
            tokens[number] = text
        merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]
        return cls(
            tokens,
            [0.0] * len(tokens),
            merges=merges,
            unknown=vocab.get(model.get("unk_token"), 0),
            fuse=bool(model.get("fuse_unk")),
            **facts,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the contents of a tokenizer.json.

        Raises TokenizerError for BPE without merges: one of a GGUF file, whose scores a tokenizer.json lacks.
        """
        if self.merges is None and not self.unigram:
            raise TokenizerError("a tokenizer.json of BPE has merges, and this tokenizer scores")
        normalizers: list[dict[str, Any]] = [{"type": self.form}] if self.form else []
        cutting = None
        if self.prefix == "each":
            normalizers.append({"type": "Prepend", "prepend": _SPACE})
        if self.prefix in ("each", "") and not self.words:
            normalizers.append({"type": "Replace", "pattern": {"String": " "}, "content": _SPACE})
        else:
            scheme = {"bare": "always", "first": "first"}.get(self.prefix, "never")
            cutting = {
                "type": "Metaspace", "replacement": _SPACE, "prepend_scheme": scheme, "split": self.words,
            }  # fmt: skip
        decoders: list[dict[str, Any]] = [
            {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if self.prefix else []),
        ]  # fmt: skip
        model: dict[str, Any] = {"byte_fallback": bool(self._bytes)}
        if self.unigram:
            rows = [list(row) for row in zip(self.tokens, self.scores, strict=True)]
            model |= {"type": "Unigram", "unk_id": self.unknown, "vocab": rows}
        else:
            model |= {
                "type": "BPE", "dropout": None, "unk_token": self.tokens[self.unknown],
                "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": self.fuse,
                "ignore_merges": False, "vocab": self.vocab, "merges": [f"{a} {b}" for a, b in self.merges or ()],
            }  # fmt: skip
        return {
            "version": "1.0", "truncation": None, "padding": None,
            "added_tokens": facts(self.special, self.kept, self.rules),
            "normalizer": {"type": "Sequence", "normalizers": normalizers} if normalizers else None,
            "pre_tokenizer": cutting, "post_processor": putting(self.special, self.before, self.after),
            "decoder": {"type": "Sequence", "decoders": decoders}, "model": model,
        }  # fmt: skip


def _cutting(
    normalizer: dict[str, Any] | None, cutting: dict[str, Any] | None
) -> tuple[str, str, bool]:
    """Return where a space is put in front of text, its form of Unicode, and whether it is cut into words.

    Refuses what would change the text otherwise.
    """
    prefix, form, words = "", "", False
    for step in steps(normalizer, "normalizers"):
        if step["type"] == "Prepend" and step["prepend"] == _SPACE:
            prefix = "each"
        elif step["type"] in FORMS and form in ("", step["type"]):
            form = step["type"]
        elif step["type"] != "Replace" or step["content"] != _SPACE:
            raise TokenizerError(f"the normalizer {step['type']} is not available")
    for step in steps(cutting, "pretokenizers"):
        # What is cut at spaces is not cut, as there are none any more.
        if step["type"] == "Split" and step["pattern"] == {"String": " "}:
            continue
        if step["type"] != "Metaspace":
            raise TokenizerError(f"cutting by {step['type']} is not available")
        usual = "always" if step.get("add_prefix_space", True) else "never"
        scheme = step.get("prepend_scheme", usual)
        prefix = {"always": "bare", "first": "first", "never": ""}[scheme]
        words = bool(step.get("split", True))
    return prefix, form, words
