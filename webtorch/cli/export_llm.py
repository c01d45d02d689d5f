"""`webtorch export-llm`: a page that chats with a language model."""

from __future__ import annotations

import argparse

from rich.console import Console

from webtorch.cli.chat import in_words
from webtorch.llm import export


def main(options: argparse.Namespace, console: Console) -> int:
    """Write the page, and say what shows it."""
    with in_words():
        place = export(options.model, options.folder, url=options.url, context=options.context)
    console.print(f"{place}: webtorch serve {place} shows it", highlight=False, soft_wrap=True)
    return 0
