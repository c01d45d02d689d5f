"""The demos' reports: well-formed, complete, and in need of nothing outside the file."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from webtorch.cli.demo.corpus import Corpus
from webtorch.cli.demo.digits import DigitsResult, Mistake
from webtorch.cli.demo.gpt import PRESETS, GPTResult, Sample
from webtorch.cli.demo.report import Machine, digits_page, gpt_page, write

VOID = frozenset({"meta", "link", "br", "img", "hr", "input"})
MACHINE = Machine("cpu", "A <fast> CPU & more", "no adapter", "3.11.7", "Linux", "0.1.0")


class Checker(HTMLParser):
    """Collects what is wrong with a page: tags left open, and addresses that lead out of it."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.problems: list[str] = []
        self.tags: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "srcset", "action", "data") and not (value or "").startswith(
                ("data:", "#")
            ):
                self.problems.append(f"<{tag} {name}={value}>")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def check(page: str) -> Checker:
    """Parse a page and fail on anything that is wrong with it."""
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.problems == []
    assert checker.open == []
    assert not re.search(r"https?://|@import|url\(", page)
    assert "script" not in checker.tags
    assert page.startswith("<!doctype html>")
    return checker


def digits_result(mistakes: int = 2) -> DigitsResult:
    """Return a run of three epochs with so many sevens read as ones."""
    probabilities = [0.0, 0.7, 0.0, 0.0, 0.0, 0.0, 0.0, 0.3, 0.0, 0.0]
    confusion = [[36 if i == j else 0 for j in range(10)] for i in range(10)]
    confusion[7][7] -= mistakes
    confusion[7][1] += mistakes
    return DigitsResult(
        seed=3, epochs=3, parameters=160_074, train_count=1437, test_count=360,
        losses=[2.1, 0.9, 0.6], test_losses=[1.5, 0.3, 0.1],
        train_accuracies=[0.4, 0.8, 0.95], test_accuracies=[0.5, 0.9, 1 - mistakes / 360],
        epoch_seconds=[0.9, 0.3, 0.31], confusion=confusion,
        mistakes=[Mistake([0.0, 0.5, 1.0, 0.25] * 16, 7, 1, probabilities)] * mistakes,
        seconds=1.9, training_seconds=1.51, examples=4224,
    )  # fmt: skip


def gpt_result() -> GPTResult:
    """Return a run whose samples hold everything that HTML must escape."""
    corpus = Corpus(b"\x00\x01" * 50, b"\x01" * 9, "\n<", 2)
    return GPTResult(
        preset_name="tiny", preset=PRESETS["tiny"], seed=0, parameters=813_824, corpus=corpus,
        epochs=2, losses=[2.6, 2.1], held_out=[2.3, 1.9], curve=[(10, 3.5), (400, 2.0)],
        epoch_rates=[20_000.0, 21_000.0],
        samples=[Sample(200, 2.3, "def a<b>&c"), Sample(400, 1.9, "def </pre><script>x")],
        seconds=20.0, training_seconds=18.0, tokens=400_000,
    )  # fmt: skip


@pytest.mark.parametrize("mistakes", [0, 2, 30])
def test_the_digits_report_is_whole_and_alone(mistakes: int) -> None:
    checker = check(digits_page(digits_result(mistakes), MACHINE))
    text = " ".join(checker.text)
    assert f"{(1 - mistakes / 360) * 100:.2f}" in text
    assert "A <fast> CPU & more" in text
    pictures = checker.tags.count("svg") - 2
    assert pictures == min(mistakes, 24)
    assert "--seed 3" in text and "--quick" not in text


def test_the_gpt_report_is_whole_and_alone() -> None:
    checker = check(gpt_page(gpt_result(), MACHINE))
    text = "".join(checker.text)
    assert "</pre><script>x" in text
    assert checker.tags.count("details") == 2
    assert "1.900" in text
    assert "22,222" in text


def test_a_loss_that_is_not_a_number_does_not_break_the_report() -> None:
    result = digits_result()
    result.losses = [float("nan")] * 3
    result.test_losses = [float("inf")] * 3
    check(digits_page(result, MACHINE))


def test_the_command_that_repeats_a_quick_run_is_quick() -> None:
    digits, gpt = digits_result(), gpt_result()
    digits.quick = gpt.quick = True
    digits.epoch_seconds = [3.0, 1.0]
    page = digits_page(digits, MACHINE)
    assert "--seed 3 --epochs 3 --quick<" in page and "--epochs 2 --quick<" in gpt_page(
        gpt, MACHINE
    )
    assert "2.00 s" in page  # the median epoch


def test_light_and_dark_and_narrow_are_provided_for() -> None:
    page = digits_page(digits_result(), MACHINE)
    assert "prefers-color-scheme: dark" in page
    assert "max-width: 760px" in page
    assert 'name="viewport"' in page


def test_the_report_is_written_where_it_is_said_to_be(tmp_path: Path) -> None:
    path = write("<!doctype html>", tmp_path / "new" / "webtorch-demo")
    assert path == tmp_path / "new" / "webtorch-demo" / "report.html"
    assert path.read_text(encoding="utf-8") == "<!doctype html>"
