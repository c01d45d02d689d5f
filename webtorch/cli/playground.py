"""`webtorch playground`: write a page in which Python and webtorch run in the browser."""

from __future__ import annotations

import argparse

from rich.console import Console

from webtorch.web.playground import build_playground


def main(options: argparse.Namespace, console: Console) -> int:
    """Write the folder of the playground. Returns the exit status."""
    folder = build_playground(options.folder, pyodide=options.pyodide, packages=options.packages)
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    console.print(
        f"{folder}: {size / 2**20:.0f} MiB; webtorch serve {folder} shows it",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    return 0
