"""`webtorch finetune`: a language model learns examples, as an adapter."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from webtorch.cli.chat import in_words
from webtorch.cli.doctor import choose_device
from webtorch.functions import public as webtorch
from webtorch.io.gguf import GGUFReader
from webtorch.llm import Finetuning, finetune, load, read_config
from webtorch.llm import Progress as Step
from webtorch.llm.finetuning import training_needs
from webtorch.llm.memory import parameter_count
from webtorch.llm.weights import weight_bytes


def options_of(options: argparse.Namespace) -> Finetuning:
    """Return what the command line says. Raises ValueError for what is out of range."""
    told = {n: getattr(options, n) for n in Finetuning.__dataclass_fields__ if hasattr(options, n)}
    given = {n: v for n, v in told.items() if v is not None}
    return Finetuning(**{**given, "targets": options.targets and tuple(options.targets)})


def _weights(path: Path, kind: object) -> int:
    dtype = kind or webtorch.float32
    if path.is_dir():
        return parameter_count(read_config(path)) * dtype.itemsize  # type: ignore[attr-defined]
    return weight_bytes(GGUFReader(path), dtype, True)  # type: ignore[arg-type]


def main(options: argparse.Namespace, console: Console) -> int:
    """Train, and write the adapter."""
    with in_words():
        how, choice = options_of(options), choose_device(options.device)
        dtype = getattr(webtorch, options.dtype) if options.dtype else None
        needs = training_needs(
            read_config(options.model), choice.device, _weights(options.model, dtype), how
        )
        console.print(
            f"on {choice.device} ({choice.name}): {needs}",
            style="dim",
            highlight=False,
            soft_wrap=True,
        )
        model = load(options.model, choice.device, dtype=dtype, context=min(how.length, 512))
        output = options.output or Path(f"{options.model.stem}-lora")
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
        tried: list[str] = []
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("compiling", total=None)

            def told(step: Step) -> None:
                """Show how far it is."""
                if step.validation is not None:
                    tried.append(f"step {step.step}: {step.validation:.4f} on what was kept back")
                speed = step.tokens / max(step.seconds, 1e-9)
                said = f"loss {step.loss:.4f}, {speed:,.0f} tokens a second"
                bar.update(task, completed=step.step, total=step.steps, description=said)

            try:
                finetune(
                    model, options.data, output, replace(how, recompute=needs.recompute),
                    resume=options.resume, told=told,
                )  # fmt: skip
            except KeyboardInterrupt:
                bar.stop()
                console.print(
                    f"{output}: what was learned until now; --resume goes on",
                    highlight=False,
                    soft_wrap=True,
                )
                raise
    for line in tried:
        console.print(line, style="dim", highlight=False)
    console.print(
        f"{output}: the adapter (webtorch chat {options.model} --lora {output})",
        highlight=False,
        soft_wrap=True,
    )
    return 0
