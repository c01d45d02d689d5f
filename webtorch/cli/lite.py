"""`webtorch lite`: write JupyterLite with webtorch in its kernel."""

from __future__ import annotations

import argparse

from rich.console import Console

from webtorch.web.playground.lite import build_lite


def main(options: argparse.Namespace, console: Console) -> int:
    """Write the folder. Returns the exit status."""
    folder = build_lite(options.folder, pyodide=options.pyodide)
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    console.print(
        f"{folder}: {size / 2**20:.0f} MiB; webtorch serve {folder} shows it",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    return 0
