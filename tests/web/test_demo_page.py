"""`webtorch demo gpt --export`: the page that it writes goes on training, and writes text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.browser import Page
from webtorch import cli
from webtorch.cli.demo import gpt
from webtorch.io.safetensors import load_file


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


@pytest.mark.covers("T2")
@pytest.mark.parametrize("name", ["site", "digits.html"])
def test_the_exported_digits_train_on_and_a_drawing_is_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: Page, serve: Any
) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    command = ["demo", "digits", "--quick", "--epochs", "1", "--device", "cpu", "--export", name]
    assert cli.main(command) == 0
    one = name.endswith(".html")
    page.page.goto((tmp_path / name).as_uri() if one else serve(tmp_path / name) + "?device=cpu")
    page.until("document.getElementById('status').dataset.ready")
    page.page.click("#run")
    page.until("Number(document.getElementById('steps').textContent) >= 48")
    page.page.click("#run")
    losses = [float(text) for text in page.page.locator("#values li").all_text_contents()]
    assert sum(losses[32:48]) < 0.9 * sum(losses[:16])
    # From random weights a visitor sees it learn.
    steps = page.page.inner_text("#steps")
    page.page.click("#random")
    page.until(f"Number(document.getElementById('steps').textContent) < {steps}")
    page.until("Number(document.getElementById('steps').textContent) >= 24")
    page.page.click("#once")  # one more, and no other
    page.until("document.getElementById('run').textContent !== 'Pause'")
    again = [float(text) for text in page.page.locator("#values li").all_text_contents()]
    assert again[0] > losses[0] and sum(again[16:24]) < 0.9 * sum(again[:8])
    assert page.page.inner_text("#fourth-name") == "accuracy"
    assert page.page.inner_text("#size").endswith(" %")
    page.until(
        "/^after \\d+ steps, \\d+ of 16 right$/.test(document.getElementById('sampled').textContent)"
    )
    # No two buttons have one name, and what is drawn on says so.
    names = page.page.locator("button:visible").all_inner_texts()
    assert len(set(names)) == len(names) and "Run" not in names
    assert page.page.inner_text(".pad span") == "Draw here"
    # Pictures that were never trained on, with what the network reads in them.
    read = page.page.locator("#samples figcaption").all_text_contents()
    assert len(read) == 16 and all(" · " in text for text in read)
    # A vertical stroke.
    page.page.locator("canvas.draw").scroll_into_view_if_needed()
    box = page.page.locator("canvas.draw").bounding_box()
    assert box is not None
    mouse = page.page.mouse
    mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.1 * box["height"])
    mouse.down()
    mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.9 * box["height"], steps=12)
    mouse.up()
    assert page.page.locator(".pad span").is_hidden()
    page.until("document.querySelectorAll('#answers meter').length === 5")
    # What is downloaded is what Python reads.
    with page.page.expect_download() as download:
        page.page.click("#download")
    state = load_file(str(download.value.path()))
    assert {"model.features.0.weight", "optimizer.exp_avg.model.features.0.weight"} <= set(state)
    assert page.problems == []
