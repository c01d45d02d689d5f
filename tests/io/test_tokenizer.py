"""Byte-level BPE tokenizers; the numbers in `WANTED` are those of Hugging Face's `tokenizers`."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from webtorch.io import Tokenizer, TokenizerError

TEXT = (
    "the cat sat on the mat and the hat that the cat had eaten was the mat's " * 3
    + "naïve café 日本 日本語 12 123 2024\n\n" * 2
)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
SENTENCE = "the cat's hat: café 日本!  12345\n\n x"
WANTED = {
    "gpt2": [298, 257, 68, 262, 273, 287, 25, 260, 297, 272, 0, 220, 271, 18, 19, 20, 198, 198, 220, 87, 299],
    "llama3": [298, 257, 68, 262, 272, 286, 25, 260, 296, 271, 0, 220, 220, 292, 19, 20, 198, 198, 220, 87, 299],
}  # fmt: skip


def trained(kind: str = "gpt2", texts: tuple[str, ...] = (TEXT,)) -> Tokenizer:
    pattern = {"pattern": LLAMA3} if kind == "llama3" else {}
    plain = Tokenizer.train(texts, 300, special=["<s>", "</s>"], **pattern)
    return Tokenizer(
        plain.vocab, plain.merges, pattern=plain.pattern, special=plain.special, before=["<s>"],
        after=["</s>"],
    )  # fmt: skip


@pytest.mark.covers("L7")
@pytest.mark.parametrize("kind", sorted(WANTED))
def test_tokens_are_those_of_other_programs_and_give_the_text_back(
    kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    trained(kind).save(path)
    tokenizer = Tokenizer.from_file(path)
    assert len(tokenizer) == 300 and "300 tokens" in repr(tokenizer)
    assert tokenizer.encode(SENTENCE) == WANTED[kind]
    assert tokenizer.decode(WANTED[kind], skip_special_tokens=True) == SENTENCE
    assert tokenizer.decode(WANTED[kind]) == f"<s>{SENTENCE}</s>"
    assert tokenizer.encode("</s>the", add_special_tokens=False) == [*WANTED[kind][-1:], 257, 68]


def test_any_text_comes_back() -> None:
    tokenizer, draw = trained("llama3"), random.Random(0)
    for _ in range(300):
        codes = [draw.choice([draw.randrange(32, 127), draw.randrange(160, 0xD800), 0x1F600, 10, 9, 0x2003])
                 for _ in range(draw.randrange(30))]  # fmt: skip
        text = "".join(map(chr, codes))
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_the_pairs_that_stand_together_most_often_are_joined_first() -> None:
    tokenizer = Tokenizer.train(["aaab aaab bc"], 258)
    # aa stands there four times; then "aa" and "a", which are next to each other, twice.
    assert tokenizer.merges[0] == ("a", "a") and len(tokenizer) == 258
    assert len(Tokenizer.train(["ab"], 400)) == 257
    with pytest.raises(ValueError, match="256 bytes"):
        Tokenizer.train(["ab"], 100)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": {"type": "Unigram"}}, "the model is Unigram"),
        ({"model": {"type": "BPE", "byte_fallback": True}}, "bytes as fallback"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "cutting by Whitespace"),
        ({"normalizer": {"type": "Lowercase"}}, "normalizer Lowercase"),
        ({"pre_tokenizer": None}, "the tokens are not of bytes"),
        ({"pre_tokenizer": {}}, "the entry 'type' is missing"),
    ],
)
def test_files_of_other_kinds_are_refused_in_words(
    change: dict[str, object], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    trained().save(path)
    data = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**data, **change}), encoding="utf-8")
    with pytest.raises(TokenizerError, match=words):
        Tokenizer.from_file(path)
    with pytest.raises(IndexError, match="no token has the number 300"):
        trained().decode([300])
    with pytest.raises(TokenizerError, match="no special token"):
        Tokenizer({}, [], before=["<s>"])
    with pytest.raises(TokenizerError, match="no token 'a'"):
        Tokenizer({}, []).encode("a")
