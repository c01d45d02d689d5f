"""`webtorch check`: compare an exported page on the CPU, on WebGPU and in a browser."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from webtorch.cli.messages import complain
from webtorch.errors import WebtorchError
from webtorch.web.check import Site, compare, in_browser


def main(options: argparse.Namespace, console: Console) -> int:
    """Compare the exported functions on the devices. Returns the exit status."""
    site = Site(options.folder)
    if not site.functions():
        complain("check: this export has no example inputs to run on")
        return 1
    cpu = {name: site.run(name, "cpu") for name in site.functions()}
    table = Table("function", "output", "compared", "largest difference", "largest value", "agree")
    bad = 0
    places: dict[str, Callable[[], dict[str, dict[str, list[float]]]]] = {
        "WebGPU": lambda: {name: site.run(name, "webgpu") for name in cpu},
        "Chromium": lambda: in_browser(options.folder, site),
    }
    for place, run in places.items():
        try:
            found = run()
        except WebtorchError as error:
            console.print(f"{place}: not compared: {error}", highlight=False, markup=False)
            bad += 1
            continue
        for row in compare(("CPU", place), cpu, found):
            bad += not row.agrees
            figures = f"{row.difference:.3g}", f"{row.largest:.3g}", "yes" if row.agrees else "NO"
            table.add_row(row.function, row.output, f"{row.first} - {row.second}", *figures)
    console.print(table)
    return 1 if bad else 0
