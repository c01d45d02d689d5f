"""Added tokens, forms of Unicode and unknown letters against Hugging Face's `tokenizers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Theirs

from tests.io.test_sentencepiece import bpe
from webtorch.io import SentencePiece, TokenizerError
from webtorch.io.tokenizer import Tokenizer
from webtorch.llm.tokens import gguf_tokens, tokenizer_from_gguf

TEXTS = [Path(__file__).read_text(encoding="utf-8")]
ADDED = [
    AddedToken("<left>", lstrip=True), AddedToken("<right>", rstrip=True), AddedToken("xx", single_word=True),
    AddedToken("\u00e9t", normalized=True), AddedToken("<a>"), AddedToken("<a>b"),
    # Not both after normalisation, where they are one text, and the package draws which is found.
    AddedToken("\u2581\u2581", normalized=False), AddedToken("  ", normalized=True),
]  # fmt: skip
PROBES = [
    "x <left> y <right>\n z", "xx axxb xx-xx", "e\u0301te\u0301t \u00e9t", "e\u0301\u0323 \ufb01 \u2460", "<a>b<a>",
    "   <a>b <a>  <left> <right>  <left>", "a\u2581\u2581b  c", "", " ", "\n\t",
    "\u65e5\u672c \U0001f389\U0001f389 \x00\x01", *TEXTS,
]  # fmt: skip


def byte_level(form: str, prefix: bool) -> Theirs:
    """Return a tokenizer of bytes."""
    theirs = Theirs(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    if form:
        theirs.normalizer = getattr(normalizers, form)()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    theirs.train_from_iterator(TEXTS, trainer)
    return theirs


def unigram(words: bool) -> Theirs:
    """Return a unigram model, whose pieces may go over several words."""
    theirs = Theirs(models.Unigram())
    spaces = [] if words else [normalizers.Replace(" ", "\u2581")]
    theirs.normalizer = normalizers.Sequence([normalizers.NFKC(), *spaces])
    if words:
        theirs.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    theirs.train_from_iterator(TEXTS, trainer)
    return theirs


MADE: dict[str, Any] = {
    "bytes": lambda: byte_level("", False), "bytes in NFC": lambda: byte_level("NFC", False),
    "bytes in NFKD": lambda: byte_level("NFKD", False), "bytes behind a space": lambda: byte_level("", True),
    "unigram": lambda: unigram(False), "unigram of words": lambda: unigram(True),
    **{f"pieces, {p or 'none'}": lambda p=p: Theirs.from_str(json.dumps(bpe(p))) for p in ("each", "first", "")},
}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_added_tokens_stand_where_others_find_them(name: str, tmp_path: Path) -> None:
    theirs = MADE[name]()
    theirs.add_tokens(ADDED)
    data = json.loads(theirs.to_str())
    reads: Any = Tokenizer if name.startswith("bytes") else SentencePiece
    ours = reads.from_json(data)
    written, kept = (
        Theirs.from_str(json.dumps(ours.to_json())),
        tokenizer_from_gguf(gguf_tokens(ours)),
    )
    for text in PROBES:
        wanted = theirs.encode(text).ids
        assert ours.encode(text) == kept.encode(text) == written.encode(text).ids == wanted, text
    if reads is Tokenizer:
        ours.save(tmp_path / "tokenizer.json")
        again = Tokenizer.from_file(tmp_path / "tokenizer.json")
        assert all(again.encode(text) == theirs.encode(text).ids for text in PROBES)


@pytest.mark.parametrize("name", MADE)
def test_added_tokens_are_read_back_as_others_read_them(name: str) -> None:
    theirs = MADE[name]()
    texts = [
        "\u00dcnorm \u00e9",
        "\u00dcnorm",
        "<\u00dc>",
        "\u65e5\u672c",
        "a b",
        "\u00c3\u0178",
        "norm e\u0301",
        " y",
    ]
    theirs.add_tokens([AddedToken(t, normalized=n % 2 == 0) for n, t in enumerate(texts)])
    theirs.add_special_tokens(
        [AddedToken("<\u00c9>"), AddedToken("<s \u00e9>"), AddedToken("<a\u2581b>")]
    )
    reads: Any = Tokenizer if name.startswith("bytes") else SentencePiece
    strip = [decoders.Strip(" ", 1, 0)] if name.endswith(("words", "each", "first")) else []
    pieces = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    theirs.decoder = decoders.ByteLevel() if reads is Tokenizer else decoders.Sequence(pieces)
    ours = reads.from_json(json.loads(theirs.to_str()))
    ends = theirs.encode("ab c").ids, theirs.encode("d", add_special_tokens=False).ids
    for number in sorted(ours.special.values()):
        for row in ([number], [number, number], [*ends[0], number, *ends[1]]):
            for skip in (False, True):
                assert ours.decode(row, skip) == theirs.decode(row, skip_special_tokens=skip), row


def test_text_of_qwen_is_brought_into_one_form_also_from_gguf() -> None:
    theirs = byte_level("NFC", False)
    ours = Tokenizer.from_json(json.loads(theirs.to_str()))
    again = tokenizer_from_gguf(gguf_tokens(ours, "qwen2"))
    assert again.encode("e\u0301") == theirs.encode("e\u0301").ids == ours.encode("\u00e9")
    spaced = Tokenizer.from_json(json.loads(byte_level("", True).to_str()))
    assert tokenizer_from_gguf(gguf_tokens(spaced)).encode("a") == spaced.encode("a")


def test_white_space_behind_tokens_of_phi3_goes() -> None:
    data = bpe("each")
    count = len(data["model"]["vocab"])
    flags = {"single_word": False, "lstrip": False, "rstrip": True, "normalized": False}
    data["added_tokens"].append({"id": count, "content": "<|user|>", "special": True, **flags})
    theirs, ours = Theirs.from_str(json.dumps(data)), SentencePiece.from_json(data)
    again = tokenizer_from_gguf(gguf_tokens(ours) | {"general.architecture": "phi3"})
    text = "<|user|>\nhello <s> x"
    assert ours.encode(text) == again.encode(text) == theirs.encode(text).ids


def test_a_tokenizer_json_within_a_gguf_file_that_is_damaged_is_refused() -> None:
    theirs = byte_level("", False)
    theirs.add_tokens([AddedToken("<left>", lstrip=True)])
    told = gguf_tokens(Tokenizer.from_json(json.loads(theirs.to_str())))
    name = "tokenizer.huggingface.json"
    for text in ("", "{}", "[]", str(told[name])[:-9], "[" * 100_000):
        with pytest.raises(
            TokenizerError, match=f"{name}: (it is no JSON|the entry|an entry|RecursionError)"
        ):
            tokenizer_from_gguf(told | {name: text})
    count = len(theirs.get_vocab())
    theirs.add_tokens(["<more>"])
    with pytest.raises(TokenizerError, match=f"has {count + 1} tokens, and the file {count}"):
        tokenizer_from_gguf(told | {name: theirs.to_str()})


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": r"\d"}, "behavior": "Isolated"}},
    ],
)
def test_what_changes_text_otherwise_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(TokenizerError, match="is not available"):
        SentencePiece.from_json(bpe("each") | change)
