"""The `webtorch` command, before webtorch is loaded: Ctrl-C in those seconds ends in a sentence, as it does later."""

from __future__ import annotations

import importlib
import sys


def main() -> int:
    """Run the command line and return its exit code (`webtorch.cli`)."""
    try:
        return int(importlib.import_module("webtorch.cli").main())
    except KeyboardInterrupt:
        sys.stderr.write("webtorch: interrupted\n")
        return 130
