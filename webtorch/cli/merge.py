"""`webtorch merge`: an adapter goes into the weights of a language model."""

from __future__ import annotations

import argparse

from rich.console import Console

from webtorch.cli.chat import in_words
from webtorch.cli.messages import expect_file
from webtorch.llm import load, lora, quantize_


def main(options: argparse.Namespace, console: Console) -> int:
    """Write the file, and say how large it is."""
    expect_file(options.target)
    with in_words():
        model = load(options.model, "cpu", packed=options.format is None)
        lora.merge(lora.load(model.model, options.adapter))
        if options.format is not None:
            quantize_(model.model, options.format)
        model.save(options.target)
    said = f"{options.target}: {options.target.stat().st_size / 1e6:,.1f} MB"
    console.print(said, highlight=False, soft_wrap=True)
    return 0
