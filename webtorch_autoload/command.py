"""The `webtorch` command, before webtorch is loaded: Ctrl-C in those seconds ends in a sentence, as it does later."""

from __future__ import annotations

import importlib
import sys
import types


def main() -> int:
    """Run the command line and return its exit code (`webtorch.cli`)."""
    try:
        return int(importlib.import_module("webtorch.cli").main())
    except KeyboardInterrupt as pressed:
        tell(type(pressed), pressed, None)
        return 130


def tell(
    kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
) -> None:
    """Show an error that ends the process as `sys.excepthook` does, but Ctrl-C in a sentence."""
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write("webtorch: interrupted\n")
    else:
        sys.__excepthook__(kind, error, trace)
