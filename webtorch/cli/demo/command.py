"""`webtorch demo`: train a real network on real data, and write a report."""

from __future__ import annotations

import argparse
import json
import platform

from rich.console import Console
from rich.text import Text

from webtorch.cli.demo import digits, gpt, pages, report
from webtorch.cli.demo.progress import Meter
from webtorch.cli.demo.report import Machine
from webtorch.cli.doctor import Choice, choose_device
from webtorch.cli.messages import complain, expect_file, package_version


def main(options: argparse.Namespace, console: Console) -> int:
    """Train and show a model. Returns the exit status."""
    if options.preset is not None and options.what != "gpt":
        complain("--preset is for `webtorch demo gpt`")
        return 2
    # Who cannot write there hears it before the training.
    page = options.export
    if page is not None and page.suffix != ".html":
        page = page / "index.html"
    for path in (options.json, page, report.FOLDER / report.NAME):
        if path is not None:
            expect_file(path)
    choice = choose_device(options.device)
    console.print(f"[bold]{choice.device}[/]: {choice.name}", highlight=False)
    if not choice.is_best:
        console.print(
            f"CPU, because {choice.reason}.", highlight=False, soft_wrap=True, markup=False
        )
    run = _digits if options.what == "digits" else _gpt
    figures, text = run(options, choice, console)

    path = report.write(text)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
        console.print(f"figures: {options.json.resolve()}", highlight=False, soft_wrap=True)
    console.print(f"report:  {path}", highlight=False, soft_wrap=True)
    return 0


def _digits(
    options: argparse.Namespace, choice: Choice, console: Console
) -> tuple[dict[str, object], str]:
    result = digits.train(
        choice.device,
        epochs=options.epochs,
        seed=options.seed,
        quick=options.quick,
        meter=Meter(console),
        on_end=lambda *trained: _export("export_digits", trained, options, console),
    )
    console.print(
        f"[bold]{result.accuracy * 100:.2f} %[/] of {result.test_count} unseen digits read correctly, "
        f"after {result.seconds:.1f} s at {result.examples_per_second:,.0f} examples/s",
        highlight=False,
        soft_wrap=True,
    )
    figures: dict[str, object] = {
        "demo": "digits",
        "device": choice.device,
        "device_name": choice.name,
        "seed": result.seed,
        "epochs": result.epochs,
        "parameters": result.parameters,
        "accuracy": result.accuracy,
        "loss": result.losses[-1],
        "test_loss": result.test_losses[-1],
        "seconds": result.seconds,
        "examples_per_second": result.examples_per_second,
        "losses": result.losses,
        "accuracies": result.test_accuracies,
    }
    return figures, report.digits_page(result, _machine(choice))


def _gpt(
    options: argparse.Namespace, choice: Choice, console: Console
) -> tuple[dict[str, object], str]:
    def show(sample: gpt.Sample) -> None:
        """Print a text that the model wrote."""
        console.rule(f"step {sample.step}, held-out loss {sample.loss:.3f}", style="dim")
        console.print(Text(sample.text))

    result = gpt.train(
        options.preset or "tiny",
        choice.device,
        epochs=options.epochs,
        seed=options.seed,
        quick=options.quick,
        meter=Meter(console),
        on_sample=show,
        on_end=lambda *trained: _export("export_gpt", trained, options, console),
    )
    console.rule(style="dim")
    console.print(
        f"[bold]{result.held_out[-1]:.3f} nats per character[/] on text that it never saw, "
        f"after {result.seconds:.1f} s at {result.tokens_per_second:,.0f} tokens/s",
        highlight=False,
        soft_wrap=True,
    )
    figures: dict[str, object] = {
        "demo": "gpt",
        "preset": result.preset_name,
        "device": choice.device,
        "device_name": choice.name,
        "seed": result.seed,
        "epochs": result.epochs,
        "parameters": result.parameters,
        "loss": result.held_out[-1],
        "seconds": result.seconds,
        "tokens_per_second": result.tokens_per_second,
        "examples_per_second": result.tokens_per_second / result.preset.context,
        "losses": result.losses,
        "held_out_losses": result.held_out,
    }
    return figures, report.gpt_page(result, _machine(choice))


def _export(
    how: str, trained: tuple[object, ...], options: argparse.Namespace, console: Console
) -> None:
    if options.export is None:
        return

    path = getattr(pages, how)(*trained, options.export)
    console.print(f"page:    {path}", highlight=False, soft_wrap=True)


def _machine(choice: Choice) -> Machine:
    return Machine(
        device=choice.device,
        device_name=choice.name,
        note=choice.reason,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        webtorch=package_version("webtorch") or "source",
    )
