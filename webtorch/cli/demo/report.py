"""The report that a demo ends with: one HTML file that needs nothing else, now or later.

No script, no font and no picture comes from anywhere: charts are SVG (`charts.py`), colours are
those of report.css, light and dark. Imports the demos' results and the standard library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from statistics import median

from webtorch.cli.demo.digits import SIDE, DigitsResult
from webtorch.cli.demo.gpt import PROMPT, GPTResult
from webtorch.show.charts import Guide, Series, line_chart, pixel_picture
from webtorch.show.theme import style

FOLDER = Path("webtorch-demo")
NAME = "report.html"


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a run took place, for the report's last table."""

    device: str
    device_name: str
    note: str
    python: str
    system: str
    webtorch: str


def write(page: str, folder: Path = FOLDER) -> Path:
    """Write the page as report.html in the folder, made if need be, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    path.write_text(page, encoding="utf-8")
    return path.resolve()


def digits_page(result: DigitsResult, machine: Machine) -> str:
    """Return the report of a digits run."""
    epochs = range(1, result.epochs + 1)
    wrong = len(result.mistakes)
    body = [
        _header(
            "Handwritten digits",
            f"A convolutional network of {result.parameters:,} parameters learned to read "
            f"{result.train_count:,} handwritten digits, and was tested on {result.test_count} "
            "that it had never seen.",
        ),
        _figures(
            ("Test accuracy", f"{result.accuracy * 100:.2f}", "%"),
            ("Misread", str(wrong), f"of {result.test_count}"),
            ("Time", _short(result.seconds), "s"),
            ("Speed", f"{result.examples_per_second:,.0f}", "examples/s"),
        ),
        "<h2>Learning</h2><p>Training sees shifted pictures, through dropout, and softened labels: its "
        "figures lag behind those of the test on purpose.</p>",
        '<div class="pair">',
        line_chart(
            [
                Series("training", epochs, result.losses),
                Series("test", epochs, result.test_losses),
            ],
            title="Loss",
            x_label="epoch",
            y_label="nats, logarithmic",
            log_y=True,
        ),
        line_chart(
            [
                Series("training", epochs, result.train_accuracies),
                Series("test", epochs, result.test_accuracies),
            ],
            title="Accuracy",
            x_label="epoch",
            y_label="share read correctly",
            percent=True,
        ),
        "</div>",
        _digits_epochs(result),
        "<h2>Which digit was taken for which</h2><p>A row is a digit as written, a column what the "
        "network read. Right answers lie on the diagonal.</p>",
        f'<div class="split"><div class="card">{_matrix(result.confusion)}</div>'
        f'<div class="card">{_per_digit(result.confusion)}</div></div>',
        "<h2>Misread digits</h2>",
        _gallery(result),
        "<h2>The run</h2><p></p>",
        _facts(
            machine,
            [
                ("Parameters", f"{result.parameters:,}"),
                ("Training set", f"{result.train_count:,} pictures of 8 × 8 pixels"),
                ("Epochs", str(result.epochs)),
                ("Training", f"{result.training_seconds:.2f} s"),
                ("First epoch, compiling included", _epoch_time(result.epoch_seconds, first=True)),
                ("Median epoch", _epoch_time(result.epoch_seconds)),
                ("All, from data to report", f"{result.seconds:.2f} s"),
                ("Seed", str(result.seed)),
            ],
            f"webtorch demo digits --device {machine.device} --seed {result.seed} "
            f"--epochs {result.epochs}{' --quick' * result.quick}",
        ),
        _footer(
            "Data: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine "
            "Learning Repository (1998), in scikit-learn’s copy."
        ),
    ]
    return _page("Handwritten digits", body)


def gpt_page(result: GPTResult, machine: Machine) -> str:
    """Return the report of a gpt run."""
    preset, corpus = result.preset, result.corpus
    steps = [preset.steps * (i + 1) for i in range(len(result.held_out))]
    last = result.held_out[-1] if result.held_out else math.nan
    smooth = _smoothed([loss for _, loss in result.curve])
    uniform = math.log(len(corpus.characters))
    body = [
        _header(
            "A small GPT learns Python",
            f"A transformer of {result.parameters:,} parameters read the source of Python’s own "
            "standard library, character by character, and learned to guess the next one.",
        ),
        _figures(
            ("Held-out loss", f"{last:.3f}", "nats/char"),
            ("The same, in bits", f"{last / math.log(2):.2f}", "bits/char"),
            ("Time", _short(result.seconds), "s"),
            ("Speed", f"{result.tokens_per_second:,.0f}", "tokens/s"),
        ),
        "<h2>Learning</h2><p>Held-out text comes from files that were never trained on. Blind "
        f"guessing among {len(corpus.characters)} characters costs ln {len(corpus.characters)} = "
        f"{uniform:.2f} nats each.</p>",
        '<div class="pair">',
        line_chart(
            [
                Series("training", [s for s, _ in result.curve], smooth, marked=False),
                Series("held-out", steps, result.held_out),
            ],
            title="Loss",
            x_label="step",
            y_label="nats per character",
            guides=[Guide("blind guessing", uniform)],
        ),
        line_chart(
            [Series("training", range(1, len(result.epoch_rates) + 1), result.epoch_rates)],
            title="Speed",
            x_label="epoch",
            y_label="tokens per second",
            from_zero=True,
        ),
        "</div>",
        f"<h2>What it writes</h2><p>After each epoch it continues <code>{escape(PROMPT)}</code>, "
        "drawing characters at temperature 0.8.</p>",
        *_samples(result),
        "<h2>The run</h2><p></p>",
        _facts(
            machine,
            [
                ("Model", f"{preset.layers} layers, {preset.heads} heads, {preset.channels} "
                          f"channels, context {preset.context} (preset {result.preset_name})"),
                ("Parameters", f"{result.parameters:,}"),
                ("Text", f"{len(corpus.train):,} characters to learn, {len(corpus.held_out):,} held "
                         f"out, from {corpus.files} files"),
                ("Batch", f"{preset.batch} windows of {preset.context} characters"),
                ("Steps", f"{result.epochs} epochs of {preset.steps}"),
                ("Training", f"{result.training_seconds:.1f} s"),
                ("All, with evaluation and samples", f"{result.seconds:.1f} s"),
                ("Seed", str(result.seed)),
            ],
            f"webtorch demo gpt --preset {result.preset_name} --device {machine.device} "
            f"--seed {result.seed} --epochs {result.epochs}{' --quick' * result.quick}",
        ),
        _footer(
            "Text: the Python standard library, © Python Software Foundation. Architecture: nanoGPT, "
            "by Andrej Karpathy."
        ),
    ]  # fmt: skip
    return _page("A small GPT learns Python", body)


def _page(title: str, body: Sequence[str]) -> str:
    own = resources.files("webtorch.cli.demo").joinpath("report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # An empty icon keeps a browser from asking a server for one.
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)} · webtorch demo</title>\n<style>\n{style(own)}</style>\n</head>\n"
        "<body>\n<main>\n" + "\n".join(body) + "\n</main>\n</body>\n</html>\n"
    )


def _header(title: str, text: str) -> str:
    return (
        f'<header><p class="kicker">webtorch demo</p><h1>{escape(title)}</h1>'
        f"<p>{escape(text)}</p></header>"
    )


def _figures(*figures: tuple[str, str, str]) -> str:
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)} <small>{escape(unit)}</small></dd></div>"
        for name, value, unit in figures
    )
    return f'<dl class="figures">{cells}</dl>'


def _matrix(confusion: Sequence[Sequence[int]]) -> str:
    most_right = max((confusion[i][i] for i in range(len(confusion))), default=0)
    most_wrong = max(
        (n for i, row in enumerate(confusion) for j, n in enumerate(row) if i != j), default=0
    )

    def cell(true: int, read: int, count: int) -> str:
        """Return the table's cell of how often `true` was read as `read`."""
        if not count:
            return "<td>0</td>"
        # Mistakes have a scale of their own: on that of the right answers they would not show.
        kind, share = (
            ("right", count / most_right) if true == read else ("wrong", count / most_wrong)
        )
        return (
            f'<td class="{kind}" style="--p:{55 + 45 * share:.0f}" '
            f'title="{true} read as {read}: {count}">{count}</td>'
        )

    head = "".join(f'<th scope="col">{i}</th>' for i in range(len(confusion)))
    rows = "".join(
        f'<tr><th scope="row">{i}</th>{"".join(cell(i, j, n) for j, n in enumerate(row))}</tr>'
        for i, row in enumerate(confusion)
    )
    return (
        '<table class="matrix" aria-label="Confusion matrix: rows written, columns read">'
        f"<tr><th></th>{head}</tr>{rows}</table>"
    )


def _per_digit(confusion: Sequence[Sequence[int]]) -> str:
    lines = []
    for digit, row in enumerate(confusion):
        count = sum(row)
        share = row[digit] / count if count else 0.0
        lines.append(
            f"<li>{digit} <span>read correctly {row[digit]} of {count}</span>"
            f'<span class="bar"><i style="width:{share * 100:.1f}%"></i></span></li>'
        )
    return f'<ul class="notes">{"".join(lines)}</ul>'


def _gallery(result: DigitsResult) -> str:
    if not result.mistakes:
        return f"<p>None: all {result.test_count} were read correctly.</p>"
    shown = result.mistakes[:24]
    words = "The surest mistakes come first."
    if len(result.mistakes) > len(shown):
        words += f" The first {len(shown)} of {len(result.mistakes)}."
    cards = []
    for mistake in shown:
        rows = [mistake.image[i : i + SIDE] for i in range(0, SIDE * SIDE, SIDE)]
        picture = pixel_picture(rows, f"a {mistake.label}, read as {mistake.prediction}")
        sure = mistake.probabilities[mistake.prediction] * 100
        truth = mistake.probabilities[mistake.label] * 100
        cards.append(
            f'<div class="card">{picture}<b>{mistake.label}, read as '
            f'<span class="read" style="font-size:inherit">{mistake.prediction}</span></b>'
            f"<span>{sure:.0f}&nbsp;% sure; {mistake.label} got {truth:.0f}&nbsp;%</span></div>"
        )
    return f'<p>{words}</p><div class="gallery">{"".join(cards)}</div>'


def _digits_epochs(result: DigitsResult) -> str:
    rows = "".join(
        f"<tr><td>{i + 1}</td><td>{loss:.4f}</td><td>{test:.4f}</td><td>{train_hit * 100:.2f} %</td>"
        f"<td>{test_hit * 100:.2f} %</td><td>{seconds:.2f} s</td></tr>"
        for i, (loss, test, train_hit, test_hit, seconds) in enumerate(
            zip(
                result.losses,
                result.test_losses,
                result.train_accuracies,
                result.test_accuracies,
                result.epoch_seconds,
            )
        )
    )
    return (
        "<details><summary>Every epoch in figures</summary>"
        '<div class="scroll"><table class="epochs"><tr><th>epoch</th><th>training loss</th>'
        "<th>test loss</th><th>training accuracy</th><th>test accuracy</th><th>time</th></tr>"
        f"{rows}</table></div></details>"
    )


def _samples(result: GPTResult) -> list[str]:
    parts = []
    for i, sample in enumerate(result.samples):
        is_last = i == len(result.samples) - 1
        text = escape(sample.text.removeprefix(PROMPT).rstrip())
        parts.append(
            f"<details{' open' if is_last else ''}><summary>Step {sample.step:,}"
            f"<span>held-out loss {sample.loss:.3f}</span></summary>"
            f"<pre><mark>{escape(PROMPT)}</mark>{text}</pre></details>"
        )
    return parts[::-1]


def _facts(machine: Machine, facts: Sequence[tuple[str, str]], command: str) -> str:
    rows = [
        ("Device", f"{machine.device}: {machine.device_name}"),
        *([("Why this device", machine.note)] if machine.note else []),
        *facts,
        ("Python", machine.python),
        ("System", machine.system),
        ("webtorch", machine.webtorch),
    ]
    cells = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in rows
    )
    cells += f'<tr><th scope="row">Again</th><td><code>{escape(command)}</code></td></tr>'
    return f'<div class="card"><table class="facts">{cells}</table></div>'


def _footer(text: str) -> str:
    return f"<footer><p>{escape(text)}</p></footer>"


def _smoothed(values: Sequence[float], weight: float = 0.7) -> list[float]:
    """Return the running mean of a noisy curve, newest values weighing most."""
    out: list[float] = []
    for value in values:
        out.append(value if not out else weight * out[-1] + (1 - weight) * value)
    return out


def _short(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds < 100 else f"{seconds:,.0f}"


def _epoch_time(seconds: Sequence[float], first: bool = False) -> str:
    if not seconds:
        return "none"
    return f"{seconds[0] if first else median(seconds):.2f} s"
