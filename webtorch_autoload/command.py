"""The `webtorch` command, before webtorch is loaded: Ctrl-C in those seconds ends in a sentence, as it does later."""

from __future__ import annotations

import importlib
import sys
from types import TracebackType


def loading() -> None:
    """Let Ctrl-C end in a sentence while `python -m webtorch` loads the package, which comes before its command."""
    usual = sys.excepthook

    def say(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Show an error that nothing caught."""
        if kind is KeyboardInterrupt:
            sys.stderr.write("webtorch: interrupted\n")
        else:
            usual(kind, error, trace)

    sys.excepthook = say


def main() -> int:
    """Run the command line and return its exit code (`webtorch.cli`)."""
    try:
        return int(importlib.import_module("webtorch.cli").main())
    except KeyboardInterrupt:
        sys.stderr.write("webtorch: interrupted\n")
        return 130
