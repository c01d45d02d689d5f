"""The page of a language model: it answers as the processor does where it was made, and reads the same file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.browser import Page
from webtorch import cli
from webtorch.io import SentencePiece, Tokenizer
from webtorch.llm import (
    Finetuning,
    LanguageModel,
    ModelError,
    Sampling,
    export,
    finetune,
    load,
    lora,
    quantize_,
)
from webtorch.llm.exporting import _for_javascript, _tokenizer
from webtorch.llm.tokens import PATTERNS

TALK = [
    {
        "messages": [
            {"role": "user", "content": "Why?"},
            {"role": "assistant", "content": "A heap — first."},
        ]
    }
]
TEXTS = [
    "def  heap(x):\n\treturn  x[0]",
    "It's  I'LL 1234, é ß 漢字 🙂\n\n  x",
    "<|user|>a<|end|>",
    " ",
]


@pytest.fixture(scope="module")
def site(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a page, with a model that was taught an answer beside it."""
    folder = tmp_path_factory.mktemp("site")
    model = load(trained, "cpu", context=64)
    finetune(model, TALK, None, Finetuning(rank=8, lr=2e-2, steps=20, batch=1, length=64))
    quantize_(lora.merge(model.model), "Q8_0")
    model.save(folder / "small.gguf")
    told = [str(folder), "--url", "small.gguf", "--context", "64"]
    assert cli.main(["export-llm", str(folder / "small.gguf"), *told]) == 0
    return folder


def answer_of(page: Page, text: str) -> str:
    """Say something, and return the answer."""
    count = page.page.locator("li.assistant").count()
    page.page.fill("#temperature", "0")
    page.page.fill("#text", text)
    page.page.press("#text", "Enter")
    whole = "document.querySelectorAll('li.assistant:not(.busy)').length"
    page.until(f"{whole} === {count + 1} && !document.querySelector('#send').hidden")
    return str(page.page.locator("li.assistant").nth(count).text_content())


@pytest.mark.parametrize("device", ["webgpu", "cpu"])
def test_a_page_answers_as_the_processor(
    device: str, site: Path, page: Page, serve: Callable[[Path], str]
) -> None:
    model = load(site / "small.gguf", "cpu", context=64)
    page.page.goto(f"{serve(site)}?device={device}")
    page.page.click("#fetch")
    page.page.wait_for_selector("#text:visible")
    assert "first tokens" not in page.page.text_content("#status")
    assert answer_of(page, "Why?") == "A heap — first."
    said = [*TALK[0]["messages"], {"role": "user", "content": "heap"}]
    assert answer_of(page, "heap") == "".join(model.chat(said, Sampling(temperature=0.0)))
    assert "tokens, " in page.page.text_content("#speed")
    page.page.click("#new")
    page.page.click("summary")
    page.page.fill("#told", "heap")
    said = [{"role": "system", "content": "heap"}, {"role": "user", "content": "x"}]
    assert answer_of(page, "x") == "".join(model.chat(said, Sampling(temperature=0.0)))
    # The file is here the next time.
    (site / "small.gguf").rename(site / "away.gguf")
    try:
        page.page.reload()
        page.page.wait_for_selector("#text:visible")
        assert answer_of(page, "Why?") == "A heap — first."
        page.page.click("#forget")
        page.until("document.querySelector('#status').textContent.includes('not kept')")
    finally:
        (site / "away.gguf").rename(site / "small.gguf")
    assert not page.problems


def test_what_has_no_room_can_be_said_otherwise(
    site: Path, page: Page, serve: Callable[[Path], str]
) -> None:
    page.page.goto(f"{serve(site)}?device=cpu")
    page.page.click("#fetch")
    page.page.wait_for_selector("#text:visible")
    standing = page.page.text_content("#status")
    long = "heap " * 80
    page.page.fill("#text", long)
    page.page.press("#text", "Enter")
    page.until("document.querySelector('#status').textContent.includes('there is room for 64')")
    assert page.page.input_value("#text") == long.strip()
    assert page.page.locator("#talk li").count() == 0
    assert answer_of(page, "Why?") == "A heap — first."
    assert page.page.text_content("#status") == standing
    assert not page.problems


def test_a_page_is_given_a_file(
    site: Path, trained: Path, page: Page, serve: Callable[[Path], str]
) -> None:
    page.page.goto(f"{serve(site)}?device=cpu")
    page.page.wait_for_selector("#fetch:visible")
    page.page.set_input_files("#choose", trained)
    page.until("document.querySelector('#status').textContent.includes('this page was made for')")
    page.page.set_input_files("#choose", site / "small.gguf")
    page.page.wait_for_selector("#text:visible")
    page.page.fill("#temperature", "2")
    page.page.fill("#text", "x")
    page.page.press("#text", "Enter")
    page.page.click("#new")
    page.until("!document.querySelector('#send').hidden")
    assert page.page.locator("li").count() == 0
    assert answer_of(page, "Why?") == "A heap — first."


def test_text_is_cut_as_here(site: Path, page: Page, serve: Callable[[Path], str]) -> None:
    found = load(site / "small.gguf", "cpu", context=64).tokenizer
    page.page.goto(f"{serve(site)}runtime.js")
    cut = """async ([texts, patterns]) => {
        const { Tokenizer } = await import('./tokens.js');
        const made = new Tokenizer(await (await fetch('./tokenizer.json')).json());
        const parts = (p) => texts.map((text) => Array.from(text.matchAll(new RegExp(p, 'gu')), (m) => m[0]));
        return [texts.map((text) => made.encode(text, true)), patterns.map(parts)];
    }"""
    patterns = sorted(set(PATTERNS.values()))
    numbers, parts = page.run(cut, [TEXTS, [_for_javascript(p) for p in patterns]])
    assert numbers == [found.encode(t) for t in TEXTS]
    for pattern, ours in zip(patterns, parts, strict=True):
        tokenizer = Tokenizer({}, [], pattern=pattern)
        assert ours == [tokenizer.cut(t) for t in TEXTS]


def test_pieces_are_joined_as_here(
    trained: Path, site: Path, page: Page, serve: Callable[[Path], str]
) -> None:
    words = ["▁", "h", "e", "a", "p", "he", "ap", "heap", "▁heap", "▁▁", "▁h", "ea", "x", "xx", "é"]
    tokens = ["<unk>", "<s>", "<end>", "▁▁▁", *(f"<0x{b:02X}>" for b in range(256)), *words]
    scores = [0.0] * 260 + [-float(3 * i % 7) for i in range(len(words))]
    found = SentencePiece(
        tokens, scores, special={"<s>": 1, "<end>": 2, "   ": 3}, before=["<s>"], kept=["   "],
        rules={"<end>": frozenset({"rstrip"})}, form="NFC",
    )  # fmt: skip
    model = load(trained, "cpu", context=64).model
    # What a tokenizer.json says: merges, where spaces are put, the rules of added tokens.
    merges = [
        ("h", "e"),
        ("a", "p"),
        ("he", "ap"),
        ("\u2581", "heap"),
        ("\u2581", "\u2581"),
        ("x", "x"),
    ]
    added = {"<s>": 1, "<end>": 2, "<left>": 3, "xx": 277, "h\u00e9": 4, "\u2581\u2581": 5}
    rules = {"<left>": {"lstrip"}, "xx": {"single_word", "normalized"}, "h\u00e9": {"normalized"}}
    found_too = [
        SentencePiece(
            tokens, scores, merges=merges, special=added, before=["<s>"], kept=["xx", "h\u00e9"], prefix=prefix,
            rules={t: frozenset(r) for t, r in rules.items()}, form="NFC", words=bool(prefix), fuse=not prefix,
        )
        for prefix in ("each", "bare", "first", "")
    ]  # fmt: skip
    texts = [
        "heap  heap<end>heapp",
        " é漢🙂\nxxxhe",
        "hea",
        "a     b",
        "heap" * 500,
        "<end> \nhe\u0301 <end>",
        "xx heap <left>axx he\u0301  heap\u00e9 <left> xx",
    ]
    page.page.goto(f"{serve(site)}runtime.js")
    cut = """async ([texts, data]) => {
        const made = (await import('./tokens.js')).tokenizerOf(data);
        const text = (numbers) => new TextDecoder().decode(Uint8Array.from(numbers.flatMap((n) => [...made.bytes(n)])));
        const numbers = texts.map((text) => made.encode(text, true));
        return [numbers, numbers.map(text)];
    }"""
    for one in (found, *found_too):
        numbers, said = page.run(cut, [texts, _tokenizer(LanguageModel(model, one))])
        assert numbers == [one.encode(t) for t in texts]
        assert [s.removeprefix(" ") if one.prefix else s for s in said] == [
            one.decode(n, True) for n in numbers
        ]


def test_what_a_page_cannot_do_is_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="a page reads a GGUF file"):
        export(tmp_path, tmp_path / "site")
    model = load(trained, "cpu", context=64)
    odd = LanguageModel(
        model.model, model.tokenizer, template="{{ messages | length }}{{ messages[-1].content }}"
    )
    odd.save(tmp_path / "odd.gguf")
    with pytest.raises(ValueError, match="does not write each message once"):
        export(tmp_path / "odd.gguf", tmp_path / "site")
