"""`webtorch generate`: a language model goes on with a text."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from webtorch.cli.chat import in_words, load_told, print_answer, sampling_of


def main(options: argparse.Namespace, console: Console) -> int:
    """Print what follows a prompt."""
    # What is printed is the text alone.
    quiet = Console(stderr=True)
    with in_words():
        model = load_told(options, quiet)
        prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
        answer = model.generate(prompt, sampling_of(options), most=options.max_tokens)
        print_answer(answer, quiet, model.context)
    # Who interrupts it is told so, as by other programs.
    return 0 if answer.finish else 130
