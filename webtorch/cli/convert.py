"""`webtorch convert`: write a checkpoint in another format."""

from __future__ import annotations

import argparse
import re

from rich.console import Console

from webtorch.cli.messages import complain, expect_file
from webtorch.io.conversion import ConvertError, convert, dtype_named


def main(options: argparse.Namespace, console: Console) -> int:
    """Write a checkpoint in another format."""
    expect_file(options.target)
    try:
        found = convert(
            options.source, options.target, rename=[tuple(r) for r in options.rename], keep=options.keep,
            dtype=None if options.dtype is None else dtype_named(options.dtype),
        )  # fmt: skip
    except re.error as error:
        complain(f"convert: {str(error.pattern)!r} is no regular expression: {error.msg}")
        return 2
    except (ValueError, TypeError, RuntimeError) as error:
        complain(str(error))
        return 2 if isinstance(error, ConvertError) else 1
    numbers = sum(t.numel() for t in found.values())
    console.print(f"{options.target}: {len(found)} tensors, {numbers:,} numbers", highlight=False)
    return 0
