"""Byte-level BPE: text to token numbers and back, as GPT-2, Llama 3 and Qwen do. May import anything below floor 6.

Sennrich, Haddow and Birch, "Neural machine translation of rare words with subword units", 2016, over the
bytes of UTF-8 (Radford et al., 2019). Files are Hugging Face's tokenizer.json.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from webtorch.io.added import FORMS, Added, TokenizerError, facts, in_form, numbered, reading, told
from webtorch.io.safetensors import FilePath

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# The same, where each digit has been cut off before (StarCoder, SmolLM, Granite).
DIGITS = r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"
# Pieces that are looked up again and again are kept, up to this many.
_KEPT = 1 << 16
Pair = tuple[str, str]


def _letters() -> list[str]:
    """Return the character that stands for each byte: itself where it is visible, else one above 255."""
    visible = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(256, 512))
    return [chr(b) if b in visible else chr(next(spare)) for b in range(256)]


_LETTERS = _letters()
_BYTES = {letter: byte for byte, letter in enumerate(_LETTERS)}


@functools.cache
def _ranges(category: str) -> str:
    """Return the characters of a Unicode category ("L", "Nd") as ranges of a regular expression's class."""
    found: list[str] = []
    start = None
    for code in range(sys.maxunicode + 2):
        inside = code <= sys.maxunicode and unicodedata.category(chr(code)).startswith(category)
        if inside and start is None:
            start = code
        elif not inside and start is not None:
            found.append(f"\\U{start:08x}-\\U{code - 1:08x}")
            start = None
    return "".join(found)


def _expression(pattern: str) -> re.Pattern[str]:
    r"""Compile a pattern in which \p{L} and the like stand for categories, which `re` does not know."""
    out: list[str] = []
    at, in_class = 0, False
    while at < len(pattern):
        if pattern[at] == "\\" and pattern[at + 1 : at + 3] in ("p{", "P{"):
            end = pattern.index("}", at)
            ranges = _ranges(pattern[at + 3 : end])
            if not ranges or (in_class and pattern[at + 1] == "P"):
                raise TokenizerError(f"{pattern[at : end + 1]} is not known in {pattern!r}")
            negated = "^" if pattern[at + 1] == "P" else ""
            out.append(ranges if in_class else f"[{negated}{ranges}]")
            at = end + 1
            continue
        step = 2 if pattern[at] == "\\" else 1
        if step == 1:
            in_class = pattern[at] == "[" or (in_class and pattern[at] != "]")
        out.append(pattern[at : at + step])
        at += step
    try:
        return re.compile("".join(out))
    except re.error as error:
        raise TokenizerError(f"the pattern {pattern!r} is not one of Python's: {error}") from None


class Tokenizer:
    """A byte-level BPE tokenizer: any text has an encoding, and decoding gives it back."""

    def __init__(
        self,
        vocab: Mapping[str, int],
        merges: Sequence[Pair],
        *,
        pattern: str = GPT2,
        special: Mapping[str, int] | None = None,
        before: Sequence[str] = (),
        after: Sequence[str] = (),
        whole_first: bool = False,
        prefix_space: bool = False,
        kept: Sequence[str] = (),
        unused: Iterable[int] = (),
        rules: Mapping[str, frozenset[str]] | None = None,
        form: str = "",
    ) -> None:
        """Make a tokenizer of its parts.

        vocab: token (in the letters that stand for bytes) -> number. merges: pairs in the order in which
        they are joined. pattern: what text is cut into first. special: texts that are one token each.
        before, after: special tokens put around an encoding. whole_first: a piece that is a token is
        not cut. prefix_space: text begins with a space. kept: special tokens that are text, and are never skipped.
        unused: numbers of tokens that no text has, and that give none. rules: of special tokens (`Added`).
        form: of Unicode, in which text is brought before it is cut ("NFC", ...).
        """
        self.vocab = dict(vocab)
        self.merges = [(a, b) for a, b in merges]
        self.pattern = pattern
        self.special = dict(special or {})
        self.before, self.after = list(before), list(after)
        self.whole_first, self.prefix_space = whole_first, prefix_space
        self.kept, self.unused = set(kept), set(unused)
        for name in (*self.before, *self.after):
            if name not in self.special:
                raise TokenizerError(f"{name!r} is no special token")
        self._ranks = {pair: i for i, pair in enumerate(self.merges)}
        self._pieces = _expression(pattern)
        self.rules, self.form = dict(rules or {}), form
        self._added = Added(self.special, self.rules, functools.partial(in_form, form))
        self._texts = {n: t for t, n in self.vocab.items()} | self._added.texts
        self._known: dict[str, list[int]] = {}

    def __len__(self) -> int:
        """Return one more than the largest number."""
        return max((*self.vocab.values(), *self.special.values()), default=-1) + 1

    def __repr__(self) -> str:
        return (
            f"Tokenizer({len(self)} tokens, {len(self.merges)} merges, {len(self.special)} special)"
        )

    # ---- text to numbers and back

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the numbers of a text's tokens. Special tokens in the text are found."""
        numbers = [self.special[n] for n in self.before] if add_special_tokens else []
        for number, part, _ in self._added.split(text):
            if number is not None:
                numbers.append(number)
            elif part:
                if self.prefix_space and part[0] != " ":
                    part = " " + part
                for piece in self.cut(part):
                    numbers += self._encoded(piece)
        if add_special_tokens:
            numbers += [self.special[n] for n in self.after]
        return numbers

    def cut(self, text: str) -> list[str]:
        """Return the pieces that are encoded one by one."""
        return [m.group() for m in self._pieces.finditer(text)]

    def _encoded(self, piece: str) -> list[int]:
        found = self._known.get(piece)
        if found is None:
            text = "".join([_LETTERS[b] for b in piece.encode("utf-8", "surrogatepass")])
            if self.whole_first and text in self.vocab:
                found = [self.vocab[text]]
            else:
                try:
                    found = [self.vocab[token] for token in self._joined(text)]
                except KeyError as error:
                    raise TokenizerError(f"the vocabulary has no token {error.args[0]!r}") from None
            if len(self._known) < _KEPT:
                self._known[piece] = found
        return found

    def _joined(self, text: str) -> list[str]:
        """Return a piece's tokens: pairs are joined, those of the earliest merge first."""
        parts = list(text)
        while len(parts) > 1:
            pairs = itertools.pairwise(parts)
            best = min(pairs, key=lambda p: self._ranks.get(p, len(self._ranks)))
            if best not in self._ranks:
                break
            parts = _join(parts, best)
        return parts

    def decode(self, numbers: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Return the text of tokens; bytes that are no UTF-8 become the replacement character.

        Raises IndexError for a number that no token has.
        """
        skipped = self.hidden() if skip_special_tokens else ()
        pieces = [self.piece(int(n)) for n in numbers if int(n) not in skipped]
        return b"".join(pieces).decode("utf-8", "replace")

    def hidden(self) -> set[int]:
        """Return the tokens that are no text: special and unused ones."""
        return {n for t, n in self.special.items() if t not in self.kept} | self.unused

    def piece(self, number: int) -> bytes:
        """Return the bytes of a token, an added one too. Raises IndexError for a number that no token has."""
        if number not in self._texts:
            raise IndexError(f"no token has the number {number}; there are {len(self)}")
        text = self._texts[number]
        try:
            return bytes([_BYTES[letter] for letter in text])
        except KeyError:
            # A token that is not written in the letters of bytes is its own text, as in Hugging Face's tokenizers.
            return text.encode("utf-8", "surrogatepass")

    # ---- where they come from

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocab_size: int,
        *,
        pattern: str = GPT2,
        special: Sequence[str] = (),
    ) -> Tokenizer:
        """Return a tokenizer of `vocab_size` tokens: 256 bytes, joined pairs by how often they stand
        side by side in the texts (the first in order of the alphabet where equal), special ones last.

        There are fewer where the texts have no more pairs. Raises ValueError below 256 + the special ones.
        """
        count = vocab_size - 256 - len(special)
        if count < 0:
            raise ValueError(
                f"a vocabulary has 256 bytes and {len(special)} special tokens: {vocab_size} is too small"
            )
        expression = _expression(pattern)
        words = Counter(piece for text in texts for piece in expression.findall(text))
        parts = {w: [_LETTERS[b] for b in w.encode("utf-8", "surrogatepass")] for w in words}
        pairs: Counter[Pair] = Counter()
        where: dict[Pair, set[str]] = {}

        def note(word: str, sign: int) -> None:
            """Count a word's pairs, times how often it occurs; with sign -1 take them back."""
            for pair in zip(parts[word], parts[word][1:], strict=False):
                pairs[pair] += sign * words[word]
                if sign > 0:
                    where.setdefault(pair, set()).add(word)

        for word in words:
            note(word, 1)
        merges: list[Pair] = []
        for _ in range(count):
            best = max(
                pairs, key=lambda p: (pairs[p], [-ord(c) for c in p[0] + p[1]]), default=None
            )
            if best is None or pairs[best] <= 0:
                break
            merges.append(best)
            for word in where.pop(best):
                note(word, -1)
                parts[word] = _join(parts[word], best)
                note(word, 1)
            del pairs[best]
        tokens = [*sorted(_LETTERS), *(a + b for a, b in merges)]
        vocab = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
        return cls(
            vocab,
            merges,
            pattern=pattern,
            special={s: len(vocab) + i for i, s in enumerate(special)},
        )

    @classmethod
    def from_file(cls, path: FilePath) -> Tokenizer:
        """Read a tokenizer.json. Raises TokenizerError where it is damaged, or not byte-level BPE."""
        with reading(str(path)):
            return cls.from_json(json.loads(Path(path).read_text(encoding="utf-8")))

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Tokenizer:
        """Return the tokenizer that the contents of a tokenizer.json describe."""
        model = data["model"]
        if model.get("type", "BPE") != "BPE" or model.get("byte_fallback"):
            kind = "BPE with bytes as fallback" if model.get("byte_fallback") else model["type"]
            raise TokenizerError(f"the model is {kind}; byte-level BPE is read")
        form = ""
        for step in steps(data.get("normalizer"), "normalizers"):
            if step["type"] not in FORMS or form not in ("", step["type"]):
                raise TokenizerError(f"the normalizer {step['type']} is not available")
            form = step["type"]
        pattern, prefix = _cutting(data["pre_tokenizer"])
        merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]
        before, after = around(data.get("post_processor"))
        return cls(
            numbered(model["vocab"].items()), merges, pattern=pattern, before=before, after=after, form=form,
            whole_first=bool(model.get("ignore_merges")), prefix_space=prefix, **told(data),
        )  # fmt: skip

    def save(self, path: FilePath) -> None:
        """Write a tokenizer.json, which Hugging Face's `tokenizers` reads as well."""
        Path(path).write_text(json.dumps(self.to_json(), ensure_ascii=False), encoding="utf-8")

    def to_json(self) -> dict[str, Any]:
        """Return the contents of a tokenizer.json."""
        cut = {"type": "ByteLevel", "add_prefix_space": self.prefix_space, "trim_offsets": True}
        split = {
            "type": "Split", "pattern": {"Regex": self.pattern}, "behavior": "Isolated", "invert": False,
        }  # fmt: skip
        pieces = [split, {**cut, "use_regex": False}]
        return {
            "version": "1.0", "truncation": None, "padding": None,
            "normalizer": {"type": self.form} if self.form else None,
            "added_tokens": facts(self.special, self.kept, self.rules),
            "pre_tokenizer": {**cut, "use_regex": True} if self.pattern == GPT2
            else {"type": "Sequence", "pretokenizers": pieces},
            "post_processor": putting(self.special, self.before, self.after),
            "decoder": {**cut, "use_regex": True},
            "model": {
                "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                "ignore_merges": self.whole_first, "vocab": self.vocab,
                "merges": [f"{a} {b}" for a, b in self.merges],
            },
        }  # fmt: skip


def _join(parts: list[str], pair: Pair) -> list[str]:
    """Return the parts with every occurrence of a pair, from the left, as one."""
    out: list[str] = []
    at = 0
    while at < len(parts):
        if at + 1 < len(parts) and (parts[at], parts[at + 1]) == pair:
            out.append(parts[at] + parts[at + 1])
            at += 2
        else:
            out.append(parts[at])
            at += 1
    return out


def steps(entry: dict[str, Any] | None, inner: str) -> list[dict[str, Any]]:
    """Return the steps of an entry of tokenizer.json: those of a sequence, which `inner` has, or itself."""
    if entry is None:
        return []
    return list(entry[inner]) if entry["type"] == "Sequence" else [entry]


def _cutting(entry: dict[str, Any]) -> tuple[str, bool]:
    """Return the pattern that text is cut by, and whether a space is put before it."""
    pattern, prefix, bytes_, digits = None, False, False, False
    for step in steps(entry, "pretokenizers"):
        if step["type"] == "Split" and "Regex" in step["pattern"] and pattern is None:
            pattern = step["pattern"]["Regex"]
        elif step["type"] == "ByteLevel":
            bytes_, prefix = True, bool(step.get("add_prefix_space"))
            if step.get("use_regex", True):
                pattern = (DIGITS if digits else GPT2) if pattern is None else pattern
        elif step["type"] == "Digits" and step.get("individual_digits") and pattern is None:
            digits = True
        else:
            raise TokenizerError(
                f"cutting by {step['type']} is not available; byte-level BPE is read"
            )
    if not bytes_:
        raise TokenizerError("the tokens are not of bytes; byte-level BPE is read")
    return pattern or r"(?s).+", prefix


def around(entry: dict[str, Any] | None) -> tuple[list[str], list[str]]:
    """Return the special tokens before and after a text, which the processing of a tokenizer.json puts there."""
    if entry is None or entry["type"] == "ByteLevel":
        return [], []
    if entry["type"] == "Sequence":
        found = [around(part) for part in entry["processors"]]
        return [n for b, _ in found for n in b], [n for _, a in found for n in a]
    if entry["type"] != "TemplateProcessing":
        raise TokenizerError(f"the processing {entry['type']} is not available")
    kinds = [next(iter(part.items())) for part in entry["single"]]
    middle = [kind for kind, _ in kinds].index("Sequence")
    return [p["id"] for _, p in kinds[:middle]], [p["id"] for _, p in kinds[middle + 1 :]]


def putting(
    special: Mapping[str, int], before: Sequence[str], after: Sequence[str]
) -> dict[str, Any] | None:
    """Return the processing of a tokenizer.json that puts special tokens before and after a text."""
    if not before and not after:
        return None
    whole = [
        *({"SpecialToken": {"id": n, "type_id": 0}} for n in before),
        {"Sequence": {"id": "A", "type_id": 0}},
        *({"SpecialToken": {"id": n, "type_id": 0}} for n in after),
    ]
    names = dict.fromkeys((*before, *after))
    return {
        "type": "TemplateProcessing", "single": whole, "pair": whole,
        "special_tokens": {n: {"id": n, "ids": [special[n]], "tokens": [n]} for n in names},
    }  # fmt: skip
