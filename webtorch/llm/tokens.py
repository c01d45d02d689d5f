"""Tokenizers of models: from GGUF metadata and from Hugging Face's files, and which tokens end an answer."""

from __future__ import annotations

import codecs
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from webtorch.io.added import reading
from webtorch.io.sentencepiece import SentencePiece
from webtorch.io.tokenizer import DIGITS, GPT2, Tokenizer, TokenizerError


class Tokens(Protocol):
    """What tokenizers have."""

    special: dict[str, int]
    before: list[str]
    after: list[str]
    kept: set[str]
    unused: set[int]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the numbers of a text's tokens."""

    def decode(self, numbers: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Return the text of tokens."""

    def piece(self, number: int) -> bytes:
        """Return the bytes of a token."""

    def hidden(self) -> set[int]:
        """Return the tokens that are no text: special and unused ones."""

    def __len__(self) -> int:
        """Return one more than the largest number."""


_MARKS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LLAMA3 = rf"{_MARKS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_MARKS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
_CASED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?"
_GPT4O = rf"{_WORD}{_UPPER}*{_LOWER}+{_MARKS}?|{_WORD}{_UPPER}+{_LOWER}*{_MARKS}?|\p{{N}}{{1,3}}|{_CASED}"
_TEKKEN = rf"{_WORD}{_UPPER}*{_LOWER}+|{_WORD}{_UPPER}+{_LOWER}*|\p{{N}}|{_CASED}"
# What text is cut by, by its name in GGUF (tokenizer.ggml.pre).
PATTERNS: dict[str, str] = {
    **dict.fromkeys(("gpt-2", "gpt2", "default", "olmo", "phi-2", "mpt", "jina-v2-en"), GPT2),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "dbrx", "smaug-bpe", "falcon3"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "qwen35"), _QWEN2),
    **dict.fromkeys(("smollm", "refact", "starcoder", "command-r", "granite-docling"), DIGITS),
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
    "tekken": _TEKKEN,
}
# In which form of Unicode text is cut, where the model knows no other; GGUF does not say it.
_FORMS = {"qwen2": "NFC", "qwen35": "NFC"}
# What stands behind the others of Phi 3's special tokens goes, which GGUF does not say either.
_OF_PHI3 = ("<unk>", "<s>", "<|endoftext|>")
# Of these a piece that is a token is not cut, and a text begins with the token of beginnings.
_WHOLE = ("llama-bpe", "llama3", "llama-v3", "falcon3", "tekken")
# What ends an answer, in the templates of the models that are read.
ENDS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<|eom_id|>",
    "<|return|>", "<|call|>", "</s>", "<eos>",
)  # fmt: skip
_CONTROL, _USER, _UNUSED = 3, 4, 5
# Where a GGUF file holds a whole tokenizer.json.
_JSON = "tokenizer.huggingface.json"


def tokenizer_from_gguf(metadata: Mapping[str, Any], file: str = "the file") -> Tokens:
    """Return the tokenizer of a GGUF file's metadata: byte-level BPE, or SentencePiece's BPE or unigram.

    A file may hold a tokenizer.json besides (`tokenizer.huggingface.json`), which says more, and is then what is read.
    Raises TokenizerError where it is damaged, or of a kind that is not read here.
    """

    def said(name: str, default: object = None) -> Any:
        """Return an entry about the tokenizer."""
        return metadata.get(f"tokenizer.ggml.{name}", default)

    kind, tokens = said("model"), said("tokens")
    if not isinstance(tokens, list) or not all(isinstance(t, str) for t in tokens):
        raise TokenizerError(f"{file}: there are no tokens of text in it")
    types = said("token_type", [1] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens):
        raise TokenizerError(f"{file}: {len(tokens)} tokens do not have {len(tokens)} types")
    special = {
        t: i for i, (t, k) in enumerate(zip(tokens, types, strict=True)) if k in (_CONTROL, _USER)
    }

    kept = [t for t, k in zip(tokens, types, strict=True) if k == _USER]
    unused = [i for i, k in enumerate(types) if k == _UNUSED]
    whole = metadata.get(_JSON)
    if isinstance(whole, str):
        made = _tokenizer_from_json(whole, f"{file}: {_JSON}")
        if len(made) > len(tokens):
            raise TokenizerError(
                f"{file}: {_JSON} has {len(made)} tokens, and the file {len(tokens)}"
            )
        made.unused = set(unused)
        return made

    def named(name: str, wanted: bool) -> list[str]:
        """Return the text of the token that begins or ends texts, where it is wanted."""
        number = said(f"{name}_token_id")
        if not isinstance(number, int) or not 0 <= number < len(tokens):
            return []
        if not said(f"add_{name}_token", wanted):
            return []
        special.setdefault(tokens[number], number)
        return [tokens[number]]

    if kind == "gpt2":
        pre = said("pre", "default")
        if pre not in PATTERNS:
            raise TokenizerError(
                f"{file}: text is cut in the way {pre!r}, which is not known here; {', '.join(PATTERNS)} are"
            )
        pairs = [tuple(m.split(" ", 1)) for m in said("merges", [])]
        if not all(len(p) == 2 for p in pairs):
            raise TokenizerError(f"{file}: a merge is two tokens")
        before, after = named("bos", pre in _WHOLE), named("eos", False)
        return Tokenizer(
            {t: i for i, t in enumerate(tokens) if t not in special},
            [(a, b) for a, b in pairs], pattern=PATTERNS[pre], special=special, before=before,
            after=after, whole_first=pre in _WHOLE, prefix_space=bool(said("add_space_prefix", False)),
            kept=kept, unused=unused, form=_FORMS.get(pre, ""),
        )  # fmt: skip
    if kind not in ("llama", "t5"):
        raise TokenizerError(
            f"{file}: the tokenizer {kind!r} is not known here; gpt2, llama and t5 are"
        )
    scores = said("scores", [0.0] * len(tokens))
    before, after = named("bos", kind == "llama"), named("eos", kind == "t5")
    rules = {}
    if metadata.get("general.architecture") == "phi3":
        rules = {t: frozenset({"rstrip"}) for t in special if t not in _OF_PHI3}
    return SentencePiece(
        tokens, scores, unigram=kind == "t5", special={_spaced(t, kept): n for t, n in special.items()},
        before=before, after=after, prefix="each" if said("add_space_prefix", True) else "",
        unknown=said("unknown_token_id", 0), kept=[_spaced(t, kept) for t in kept], unused=unused, rules=rules,
    )  # fmt: skip


def _spaced(text: str, kept: Collection[str]) -> str:
    """Return what stands in texts for a special token: of those that are text (runs of spaces) with spaces."""
    return text.replace("\u2581", " ") if text in kept else text


def gguf_tokens(tokenizer: Tokens, pre: str = "") -> dict[str, object]:
    """Return the metadata of a tokenizer for a GGUF file; pre: the name of its pattern, of PATTERNS.

    Raises TokenizerError for a pattern without a name.
    """
    out: dict[str, object] = {}

    def say(name: str, value: object) -> None:
        """Add an entry."""
        out[f"tokenizer.ggml.{name}"] = value

    count, texts = len(tokenizer), {n: t for t, n in tokenizer.special.items()}
    if isinstance(tokenizer, Tokenizer):
        names = [n for n, p in PATTERNS.items() if p == tokenizer.pattern]
        if not names and not pre:
            raise TokenizerError(f"the pattern {tokenizer.pattern!r} has no name in GGUF")
        whole = [n for n in names if (n in _WHOLE) == tokenizer.whole_first]
        known = {n: t for t, n in tokenizer.vocab.items()} | texts
        say("model", "gpt2")
        say("pre", pre or (whole or names)[0])
        say("add_space_prefix", tokenizer.prefix_space)
        say("merges", [f"{a} {b}" for a, b in tokenizer.merges])
    else:
        assert isinstance(tokenizer, SentencePiece)
        known = dict(enumerate(tokenizer.tokens)) | texts
        say("model", "t5" if tokenizer.unigram else "llama")
        say("add_space_prefix", bool(tokenizer.prefix))
        say("unknown_token_id", tokenizer.unknown)
        scores = piece_scores(tokenizer)
        say("scores", scores + [0.0] * (count - len(scores)))
    say("tokens", [_spaced(known.get(i, f"[PAD{i}]"), tokenizer.kept) for i in range(count)])
    say(
        "token_type",
        [_kind(tokenizer, i, texts.get(i)) if i in known else _UNUSED for i in range(count)],
    )
    for name, around in (("bos", tokenizer.before), ("eos", tokenizer.after)):
        say(f"add_{name}_token", bool(around))
        if around:
            say(f"{name}_token_id", tokenizer.special[around[0]])
    if not tokenizer.after:
        ends = [tokenizer.special[e] for e in ENDS if e in tokenizer.special]
        if ends:
            say("eos_token_id", ends[0])
    if _is_unsaid(tokenizer, str(out.get("tokenizer.ggml.pre", ""))):
        out[_JSON] = json.dumps(tokenizer.to_json(), ensure_ascii=False)
    return out


def _is_unsaid(tokenizer: Tokenizer | SentencePiece, pre: str) -> bool:
    """Return whether texts are cut by rules that the other entries of a GGUF file do not say."""
    if isinstance(tokenizer, Tokenizer):
        return bool(tokenizer.rules) or tokenizer.form != _FORMS.get(pre, "")
    if tokenizer.merges is None and not tokenizer.unigram:
        # A GGUF file's own, which says all of it.
        return False
    told = tokenizer.prefix in ("each", "") and not tokenizer.words and not tokenizer.form
    return bool(tokenizer.rules) or not told


def piece_scores(tokenizer: SentencePiece) -> list[float]:
    """Return the scores of a tokenizer's pieces; where it has merges, what is joined earlier has more."""
    scores = list(tokenizer.scores)
    for i, (a, b) in enumerate(tokenizer.merges or ()):
        number = tokenizer.vocab.get(a + b)
        if number is not None and scores[number] == 0.0:
            scores[number] = -float(i)
    return scores


def _kind(tokenizer: Tokens, number: int, special: str | None) -> int:
    """Return the kind of a token: 1, 6 for one that is a byte by its name, 3 and 4 for special ones, 5 for unused."""
    if special is not None:
        return _USER if special in tokenizer.kept else _CONTROL
    if number in tokenizer.unused:
        return _UNUSED
    return 6 if isinstance(tokenizer, SentencePiece) and tokenizer.is_byte(number) else 1


def tokenizer_from_folder(folder: Path) -> Tokens:
    """Return the tokenizer of a folder's tokenizer.json. Raises TokenizerError where there is none."""
    path = folder / "tokenizer.json"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TokenizerError(f"{path}: no tokenizer.json ({error})") from None
    return _tokenizer_from_json(data, str(path))


def _tokenizer_from_json(text: str | bytes, place: str) -> Tokens:
    """Return the tokenizer of a tokenizer.json's text. Raises TokenizerError where it is damaged."""
    with reading(place):
        data = json.loads(text)
        model = data["model"]
        plain = model.get("type", "BPE") == "BPE" and not model.get("byte_fallback")
        return Tokenizer.from_json(data) if plain else SentencePiece.from_json(data)


def ends_of(tokenizer: Tokens, told: Iterable[object] = ()) -> set[int]:
    """Return the tokens that end an answer: those that the files name, and those whose names say so."""
    numbers = {n for n in told if type(n) is int}
    numbers |= {tokenizer.special[e] for e in ENDS if e in tokenizer.special}
    # Of gpt-oss, <|end|> ends a message, of which an answer has several.
    return numbers - {tokenizer.special.get("<|end|>")} if _has_channels(tokenizer) else numbers


def _has_channels(tokenizer: Tokens) -> bool:
    return "<|channel|>" in tokenizer.special and "<|return|>" in tokenizer.special


def _of_channel(tokenizer: Tokens, numbers: Iterable[int]) -> Iterator[int]:
    """Yield the tokens of the channel "final"; others, by which gpt-oss thinks, and the heads of messages become
    special tokens, which give no text.
    """
    channel, message, end = (
        tokenizer.special.get(f"<|{n}|>") for n in ("channel", "message", "end")
    )
    head: list[int] | None = None
    shown = False
    for number in numbers:
        if number == channel:
            head, shown = [], False
        elif number == message:
            shown = head is None or tokenizer.decode(head).strip().startswith("final")
            head = None
        elif number == end:
            shown = False
        elif head is not None:
            head.append(number)
        elif shown:
            yield number
            continue
        assert channel is not None
        yield channel


def bytes_of(tokenizer: Tokens, number: int) -> bytes:
    """Return the bytes of a token, none for a number that no token has: models may know more numbers."""
    try:
        return tokenizer.piece(number)
    except IndexError:
        return b""


def streamed(
    tokenizer: Tokens, numbers: Iterable[int], begins: bool = False, shown: Iterable[str] = ()
) -> Iterator[str]:
    """Yield the text of tokens, one after the other; a letter of several bytes comes when it is whole.

    begins: the text is an answer by itself: a space in front that the tokenizer put there is left out, and of gpt-oss
    all but the channel "final". Special tokens give an empty text, but for those that are `shown`.
    """
    hidden = tokenizer.hidden()
    special = {n: t for t in shown if (n := tokenizer.special.get(t)) in hidden}
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    strip = begins and bool(getattr(tokenizer, "prefix", ""))
    if begins and _has_channels(tokenizer):
        numbers = _of_channel(tokenizer, numbers)
    for number in numbers:
        text = "" if number in hidden else decoder.decode(bytes_of(tokenizer, number))
        text = special.get(number, text)
        if strip and text:
            text, strip = text.removeprefix(" "), False
        yield text
    yield decoder.decode(b"", final=True)


def alike(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many tokens two texts begin with alike."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))
