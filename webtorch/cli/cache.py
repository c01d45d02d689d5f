"""`webtorch cache`: show what is kept on disk, or remove it."""

from __future__ import annotations

import argparse

from rich.console import Console

from webtorch.runtime.backends.webgpu.tuner import table_path
from webtorch.runtime.disk import SHELVES, enabled


def main(options: argparse.Namespace, console: Console) -> int:
    """Say what the cache holds, or empty it. Returns the exit status."""

    def say(text: str) -> None:
        """Print a line."""
        console.print(text, highlight=False, soft_wrap=True)

    if not enabled():
        say("The cache is off (WEBTORCH_CACHE).")
        return 0
    for what, shelf in SHELVES.items():
        found = shelf.clear() if options.clear else shelf.contents()
        verb = "removed " if options.clear else ""
        say(
            f"{what}: {verb}{found.files} {'file' if found.files == 1 else 'files'}, {found.nbytes / 2**20:.1f} MiB "
            f"(at most {shelf.most >> 20} MiB) in {shelf.folder()}"
        )
    if table_path().exists():
        say(f"tuned sizes: {table_path()}")
    return 0
