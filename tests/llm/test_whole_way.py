"""From the standard library's source to an answer: one model is trained, packed, chats, serves, runs in a tab and
learns more.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import gguf
import openai
import pytest

from tests.browser import Page
from tests.llm.conftest import learn
from tests.llm.test_page import answer_of
from tests.llm.test_server import served
from webtorch import cli
from webtorch.llm import LanguageModel, Sampling, load

GREEDY = Sampling(temperature=0.0)
TAUGHT = [
    {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]}
    for q, a in (("Why?", "A heap — first."), ("What?", "No, a queue."))
]


def said(model: LanguageModel, text: str) -> str:
    """Return an answer."""
    return "".join(model.chat([{"role": "user", "content": text}], GREEDY, most=16))


@pytest.mark.long
@pytest.mark.covers("L7")
def test_one_model_goes_the_whole_way(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    page: Page,
    serve: Callable[[Path], str],
) -> None:
    whole, packed = learn(tmp_path / "whole.gguf", 256, 3e-3), tmp_path / "packed.gguf"
    assert cli.main(["quantize", str(whole), str(packed), "--format", "Q4_K_M"]) == 0
    kinds = {t.tensor_type.name for t in gguf.GGUFReader(packed).tensors}
    assert kinds == {"F32", "Q4_K", "Q6_K"}
    model = load(packed, "cpu", context=64)
    plain = said(model, "heap")
    assert plain

    monkeypatch.setattr("sys.stdin", io.StringIO("heap\n/quit\n"))
    here = ["--device", "cpu", "--context", "64"]
    told = [*here, "--max-tokens", "16", "--temperature", "0"]
    capsys.readouterr()
    assert cli.main(["chat", str(packed), *told]) == 0
    assert plain in capsys.readouterr().out

    with served(model) as address, openai.OpenAI(base_url=address, api_key="secret") as client:
        found = client.chat.completions.create(
            model="stdlib",
            messages=[{"role": "user", "content": "heap"}],
            max_tokens=16,
            temperature=0,
        )
        assert found.choices[0].message.content == plain

    data, adapter = tmp_path / "data.jsonl", tmp_path / "adapter"
    data.write_text("\n".join(json.dumps(line) for line in TAUGHT * 4), encoding="utf-8")
    learning = [
        "--output",
        str(adapter),
        "--lr",
        "1e-2",
        "--steps",
        "40",
        "--batch",
        "2",
        "--length",
        "64",
    ]
    assert cli.main(["finetune", str(packed), str(data), "--device", "cpu", *learning]) == 0
    model.adapt(adapter)
    for line in TAUGHT:
        assert said(model, line["messages"][0]["content"]) == line["messages"][1]["content"]
    model.adapt(None)
    assert said(model, "heap") == plain

    merged = tmp_path / "site" / "merged.gguf"
    merged.parent.mkdir()
    assert cli.main(["merge", str(packed), str(adapter), str(merged), "--format", "Q4_K_M"]) == 0
    assert (
        cli.main(
            ["export-llm", str(merged), str(merged.parent), "--url", merged.name, "--context", "64"]
        )
        == 0
    )
    page.page.goto(f"{serve(merged.parent)}?device=cpu")
    page.page.click("#fetch")
    page.page.wait_for_selector("#text:visible")
    assert answer_of(page, "Why?") == said(load(merged, "cpu", context=64), "Why?") != ""
    assert not page.problems
