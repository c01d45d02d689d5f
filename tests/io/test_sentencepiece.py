"""SentencePiece's tokenizers against Hugging Face's `tokenizers`, from tokenizer.json and from GGUF's metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Theirs
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from webtorch.io import SentencePiece, TokenizerError
from webtorch.io.tokenizer import DIGITS, Tokenizer
from webtorch.llm.tokens import PATTERNS, ends_of, gguf_tokens, streamed, tokenizer_from_gguf

TEXTS = [Path(__file__).read_text(encoding="utf-8")]
PROBES = [
    "Hello, world!  two  spaces", "héllo ☃ 日本 \n\n x<s>after</s> end", "", " lead", "def f(x):\n    return x\n",
    "a" * 40 + "----" * 9, *TEXTS,
]  # fmt: skip
DIGITS_PROBES = ["12 345  67\n 8   x 9's", "  1", "a  1b   c"]


def bpe(prefix: str) -> dict[str, Any]:
    """Return a tokenizer.json of BPE with bytes, as Llama 2 ("each"), Mistral's new ones ("first") and Gemma ("")."""
    theirs = Theirs(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    theirs.normalizer = normalizers.Replace(" ", "▁")
    theirs.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    marks = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=marks, show_progress=False)
    theirs.train_from_iterator(TEXTS, trainer)
    spaces = [normalizers.Replace(" ", "▁")] if prefix != "first" else []
    front = [normalizers.Prepend("▁")] if prefix == "each" else []
    theirs.normalizer = normalizers.Sequence([*front, *spaces])
    first = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    if prefix == "first":
        theirs.pre_tokenizer = first
    theirs.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    theirs.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    data: dict[str, Any] = json.loads(theirs.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if not t["content"].startswith("<0x")]
    if prefix != "first":
        data["pre_tokenizer"] = None
    return data


@pytest.mark.covers("L7")
@pytest.mark.parametrize("prefix", ["each", "first", ""])
def test_bpe_is_that_of_other_programs(prefix: str, tmp_path: Path) -> None:
    data = bpe(prefix)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    theirs, ours = Theirs.from_str(json.dumps(data)), SentencePiece.from_file(path)
    again = tokenizer_from_gguf(gguf_tokens(ours))
    for text in PROBES:
        numbers = theirs.encode(text).ids
        assert ours.encode(text) == numbers, text
        assert ours.decode(numbers, True) == theirs.decode(numbers), text
        assert "".join(streamed(ours, numbers, begins=True)) == ours.decode(numbers, True)
        # A GGUF file has scores, which join in the same order, and knows of no "first".
        assert prefix == "first" or again.encode(text) == numbers, text
    with pytest.raises(IndexError, match="no token has the number 500"):
        ours.decode([500])


def test_unigram_pieces_are_the_likeliest() -> None:
    theirs = Theirs(models.Unigram())
    theirs.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    theirs.train_from_iterator(TEXTS, trainer)
    ours = SentencePiece.from_json(json.loads(theirs.to_str()))
    for text in (PROBES[0], PROBES[3], PROBES[4], TEXTS[0].replace("☃", "")):
        assert [p for p in ours.encode(text) if p] == [p for p in theirs.encode(text).ids if p], (
            text
        )


def test_digits_are_cut_off_one_by_one() -> None:
    theirs = Theirs(models.BPE())
    cut = [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ]
    theirs.pre_tokenizer = pre_tokenizers.Sequence(cut)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    theirs.train_from_iterator(TEXTS, trainer)
    ours = Tokenizer.from_json(json.loads(theirs.to_str()))
    assert ours.pattern == DIGITS
    for text in [*PROBES[:1], *PROBES[3:], *DIGITS_PROBES]:
        assert ours.encode(text) == theirs.encode(text).ids, text


@pytest.mark.parametrize("name", ["gpt-2", "llama-bpe", "qwen2", "gpt-4o", "tekken"])
def test_text_is_cut_as_other_programs_cut_it(name: str) -> None:
    from tokenizers import Regex

    split = pre_tokenizers.Split(Regex(PATTERNS[name]), "isolated")
    plain = Tokenizer.train(TEXTS, 256, pattern=PATTERNS[name])
    for text in [*PROBES, *DIGITS_PROBES, "McDonald's HTTPServer don'T ÀÉ\r\n/ x_y"]:
        assert plain.cut(text) == [piece for piece, _ in split.pre_tokenize_str(text)], text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.tokens": None}, "no tokens of text"),
        ({"tokenizer.ggml.token_type": [1]}, "do not have"),
        ({"tokenizer.ggml.model": "rwkv"}, "'rwkv' is not known"),
        ({"tokenizer.ggml.scores": [1.0]}, "and 1 scores"),
    ],
)
def test_damaged_metadata_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        tokenizer_from_gguf(gguf_tokens(SentencePiece.from_json(bpe("each"))) | change)


def test_special_tokens_that_are_text_are_kept() -> None:
    data = bpe("")
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    count = len(data["model"]["vocab"])
    extra = [{"id": count, "content": "\n~\n", "special": False, **flags},
             {"id": count + 1, "content": "<end>", "special": True, **flags}]  # fmt: skip
    data["added_tokens"] += extra
    theirs, ours = Theirs.from_str(json.dumps(data)), SentencePiece.from_json(data)
    text = "a\n~\nb<end> c"
    numbers = theirs.encode(text).ids
    for each in (ours, tokenizer_from_gguf(gguf_tokens(ours))):
        assert each.encode(text) == numbers and {count, count + 1} <= set(numbers)
        assert each.decode(numbers, True) == theirs.decode(numbers) == "a\n~\nb c"
        assert "".join(streamed(each, numbers)) == "a\n~\nb c"
    # Runs of spaces are such tokens of Gemma's files.
    spaces = SentencePiece(
        ["<unk>", "▁", "a", "▁▁▁"], [0.0] * 4, special={"   ": 3}, kept=["   "], prefix=""
    )
    assert spaces.encode("a    a") == [2, 3, 1, 2] and spaces.decode([2, 3, 1, 2], True) == "a    a"


def test_of_gpt_oss_only_the_answer_is_shown() -> None:
    special = ["<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|start|>"]
    tokenizer = Tokenizer.train(TEXTS, 300, special=special)
    said = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>"
    numbers = tokenizer.encode(said)
    assert "".join(streamed(tokenizer, numbers, begins=True)) == "Yes."
    assert ends_of(tokenizer, [tokenizer.special["<|end|>"]]) == {tokenizer.special["<|return|>"]}


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_tokens_that_are_no_text_give_none(kind: str) -> None:
    made: Any = Tokenizer.train(TEXTS, 300) if kind == "gpt2" else SentencePiece.from_json(bpe(""))
    told: Any = gguf_tokens(made)
    count = len(made)
    texts = ["<unused 3>", "<pad>", "", " ~~ ", "ñ ☃"]  # unused, control, control, user's, plain
    tokens = told["tokenizer.ggml.tokens"] + texts
    types = [*told["tokenizer.ggml.token_type"], 5, 3, 3, 4, 1]
    more = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    if kind == "llama":
        more["tokenizer.ggml.scores"] = told["tokenizer.ggml.scores"] + [0.0] * 5
    found = tokenizer_from_gguf(told | more)
    numbers = [count, count + 1, count + 2, count + 3, count + 4]
    # As llama.cpp: unused and control tokens give nothing; what is no text of bytes is its own text.
    assert found.decode(numbers, True) == " ~~ ñ ☃"
    # A model may know more numbers than there are tokens.
    assert "".join(streamed(found, [*numbers, 10**6, -1])) == " ~~ ñ ☃"
    with pytest.raises(IndexError, match="no token has the number 1000000"):
        found.decode([10**6])
    for text in ("ab <unused 3>", "a ~~ b"):
        assert found.decode(found.encode(text, False)) == text
    assert count not in found.encode("ab <unused 3>")
    again: Any = gguf_tokens(found)
    assert again["tokenizer.ggml.token_type"][count:] == [5, 3, 3, 4, 1]
