"""The page of a profile in a real browser: it draws, sorts, shows sources, in light and dark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import webtorch
from webtorch.profiler import roofline
from webtorch.runtime.backends import get_backend


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of a small profile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(roofline, "_PROCESSOR", (4096, 64))
        patch.setattr(roofline, "_MEASURED", {})
        a = webtorch.ones(40, 30, device="cpu")
        patch.setattr(type(get_backend("cpu")), "description", lambda _: "A processor; `do this`")
        with webtorch.profile() as prof, webtorch.profiler.record_function("a <b>range</b>"):
            (a @ a.t()).softmax(-1).sum().item()
        return prof.save(tmp_path_factory.mktemp("profile") / "profile.html")


@pytest.mark.one_in(2)
@pytest.mark.covers("P5")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_works(chromium: Any, page_file: Path, scheme: str) -> None:
    page = chromium.new_page(color_scheme=scheme, viewport={"width": 1280, "height": 900})
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    page.on("request", lambda r: problems.append(r.url) if "://" in r.url[5:] else None)
    page.goto(page_file.as_uri())
    # The heading is the device alone, without advice.
    assert [page.inner_text(f"#{p}") for p in ("title", "subtitle")] == [
        "A processor",
        "cpu; `do this`",
    ]
    rows = page.locator("tr.kernel")
    count = rows.count()
    assert count >= 2
    # Something is drawn in the timeline: more than the background and the grid.
    colours = page.evaluate(
        """() => {
            const c = document.getElementById("timeline");
            const p = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
            const seen = new Set();
            for (let i = 0; i < p.length; i += 4) if (p[i + 3] === 255) seen.add(p[i] << 16 | p[i + 1] << 8 | p[i + 2]);
            return seen.size;
        }"""
    )
    assert colours > 4
    assert page.locator("#roof circle").count() >= 2
    page.locator("th button", has_text="Kernel").click()
    names = [rows.nth(i).locator("td").first.inner_text() for i in range(count)]
    assert names == sorted(names)
    rows.first.click()
    assert page.locator("tr.source pre").inner_text().strip()
    page.locator("#timeline").hover(position={"x": 500, "y": 60})
    page.mouse.wheel(0, -600)
    page.keyboard.press("Home")
    # Nothing is wider than the window, and what the user named is text.
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("b:text('range')").count() == 0
    assert not problems
    page.close()
