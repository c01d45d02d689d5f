"""The pages of examples/pages learn in the tab, on the processor, and show it."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

import webtorch as torch
from tests.browser import Page

PAGES = Path(__file__).resolve().parents[2] / "examples" / "pages"
# What a page may weigh, with all its files.
MOST = 5 * 2**20
NUMBER = "Number(document.getElementById('{}').textContent)"


@pytest.fixture
def opened(page: Page, serve: Any, tmp_path: Path) -> Any:
    """A function that exports an example with what it has not learned yet, and opens the page."""

    def start(name: str) -> dict[str, Any]:
        program = runpy.run_path(str(PAGES / f"{name}.py"))
        program["export"](program["build"](), str(tmp_path))
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) < MOST
        page.page.goto(serve(tmp_path) + "?device=cpu")
        page.until("document.getElementById('status').dataset.ready")
        assert page.page.inner_text("#status") == "Ready on the processor (1 thread)."
        return program

    return start


def test_an_adapter_learns_a_text(opened: Any, page: Page) -> None:
    program = opened("lora")
    assert "Ahoy" not in program["documentation"](1000)
    page.page.fill("#given", "Ahoy! ")
    page.page.click("#learn")
    page.until(f"{NUMBER.format('steps')} >= 16")
    page.page.click("#learn")
    assert float(page.page.inner_text("#loss")) < 0.7 * 4.6, "letters that are equally likely: 4.6"
    page.page.fill("#prompt", "Ah")
    page.page.click("#write")
    page.until("document.getElementById('after').textContent.length > 40")
    assert page.page.inner_text("#after").count("Ahoy!") > page.page.inner_text("#before").count(
        "Ahoy!"
    )
    page.page.click("#forget")
    page.until(f"{NUMBER.format('steps')} === 0")
    assert page.problems == []


def test_words_are_heard_and_how_one_speaks_is_learned(opened: Any, page: Page) -> None:
    opened("commands")
    script = (
        "() => [...document.querySelectorAll('.word small')].map((e) => parseInt(e.textContent))"
    )
    page.page.uncheck("#loud")
    page.page.click(".word >> nth=0")
    page.until("[...document.querySelectorAll('.word small')].every((e) => e.textContent)")
    before = page.run(script)
    # The rest is that nothing was said.
    assert len(before) == 8 and sum(before) <= 104
    # Whole percents: of a network of a few steps one sound may be less than one.
    for count in ("1 sound ", "2 sounds", "3 sounds"):
        page.page.click("#teach button >> nth=2")
        page.until(f"document.getElementById('taught').textContent.includes('{count}')")
    assert page.run(script)[2] > before[2]
    page.page.click("#forget")
    page.until("document.getElementById('forget').disabled")
    page.page.click(".word >> nth=0")
    assert page.run(script)[2] < 100
    assert page.problems == []


def test_shapes_come_out_of_noise_and_are_learned(opened: Any, page: Page) -> None:
    program = opened("shapes")
    pictures = program["drawn"](
        torch.arange(4), torch.zeros(4, dtype=torch.int64), torch.full((4, 4), 0.5)
    )
    # Disc, square and triangle are red in the middle; the ring is not.
    assert [p[1, 8, 8].item() < 0 for p in pictures] == [True, False, True, True]
    done = "document.getElementById('now').textContent === 'done'"
    page.until(done)
    page.page.click("#learn")
    page.until(f"{NUMBER.format('steps')} >= 12")
    page.page.click("#learn")
    page.until(done)
    assert float(page.page.inner_text("#loss")) < 1.5
    page.page.click("#reset")
    page.until(f"{NUMBER.format('steps')} === 0")
    page.until(done)
    assert page.problems == []


def test_a_style_is_learned_while_pictures_are_painted(opened: Any, page: Page) -> None:
    opened("painter")
    page.until("document.getElementById('speed').textContent !== '–'")
    page.page.click("#learn")
    page.until("parseInt(document.getElementById('learned').textContent) >= 8")
    page.page.click("#learn")
    assert page.run("() => document.querySelector('#styles .chosen').textContent") == "your own"
    heights = [
        float(p.split()[1]) for p in page.page.get_attribute("#chart .curve", "d")[1:].split("L")
    ]
    assert heights[-1] > heights[0], "the curve falls: it is drawn from the top"
    page.page.click("#camera")
    page.until("document.getElementById('status').textContent.includes('camera')")
    assert page.page.inner_text("#what") == "a landscape"
    page.page.click("#forget")
    page.until("document.getElementById('learned').textContent === 'not learned yet'")
    assert page.problems == []
