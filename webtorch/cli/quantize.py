"""`webtorch quantize`: a language model with packed weights."""

from __future__ import annotations

import argparse

from rich.console import Console

from webtorch.cli.chat import in_words
from webtorch.cli.messages import expect_file
from webtorch.llm import quantize_file


def main(options: argparse.Namespace, console: Console) -> int:
    """Write the file, and say how large it is."""
    expect_file(options.target)
    with in_words():
        quantize_file(options.model, options.target, options.format, options.device)
    said = f"{options.target}: {options.format}, {options.target.stat().st_size / 1e6:,.1f} MB"
    console.print(said, highlight=False, soft_wrap=True)
    return 0
