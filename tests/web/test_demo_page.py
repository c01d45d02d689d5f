"""`webtorch demo gpt --export`: the page that it writes goes on training, and writes text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.web.conftest import Page
from webtorch import cli
from webtorch.demo import gpt


@pytest.mark.covers("T3")
def test_the_exported_gpt_trains_and_writes_on_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: Page, serve: Any
) -> None:
    small = {"layers": 1, "context": 16, "steps": 2, "epochs": 1, "sample_length": 4}
    monkeypatch.setattr(gpt, "QUICK", {**gpt.QUICK, **small})
    monkeypatch.chdir(tmp_path)
    assert cli.main(["demo", "gpt", "--quick", "--device", "cpu", "--export", "site"]) == 0
    page.page.goto(serve(tmp_path / "site") + "?device=cpu")
    page.until("document.getElementById('status').dataset.ready")
    assert page.page.inner_text("#status") == "Ready on the processor (1 thread)."
    page.page.click("#run")
    # The batches come in turn: the same one, a round later.
    page.until("Number(document.getElementById('steps').textContent) > 64")
    page.page.click("#run")
    losses = [float(text) for text in page.page.locator("#values li").all_text_contents()]
    assert sum(losses[48:64]) < sum(losses[:16])
    page.page.click("#ask")
    page.until("document.getElementById('ask').textContent === 'Write'")
    prompt = page.page.locator("#inputs textarea").input_value()
    written = page.page.locator("#answers pre").text_content()
    assert written.startswith(prompt) and len(written) > len(prompt) + 100
    assert page.problems == []
