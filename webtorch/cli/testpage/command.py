"""`webtorch testpage`: write a page that tests every operation on WebGPU in the browser."""

from __future__ import annotations

import argparse
import json

from rich.console import Console
from rich.status import Status

from webtorch.cli.messages import complain
from webtorch.cli.testpage import page, recording
from webtorch.web.browsers import find
from webtorch.web.program_json import Json


def main(options: argparse.Namespace, console: Console) -> int:
    """Write the page of tests, and run it in browsers. Returns the exit status."""
    entries = recording.entries()
    if options.only:
        unknown = set(options.only) - {op.name for op in entries}
        if unknown:
            complain(f"testpage: the table has no {', '.join(sorted(unknown))}")
            return 2
        entries = [op for op in entries if op.name in options.only]
    with console.status("recording") as status:
        written = page.write(
            options.folder, entries, most=options.calls,
            progress=lambda done, of: status.update(f"recording {done} of {of} operations"),
        )  # fmt: skip
    console.print(
        f"{options.folder}: {written.tests} tests of {written.entries} operations; "
        f"{written.left} have none (the page says why)",
        highlight=False,
    )
    if not options.run:
        return 0
    bad = 0
    for browser in ["chromium", *filter(find, ["firefox"])]:
        with console.status(browser) as status:

            def tell(progress: Json, name: str = browser, where: Status = status) -> None:
                """Show how far a browser is."""
                if "done" in progress:
                    where.update(f"{name}: {progress['done']} of {progress['of']}")

            found = page.run(options.folder, browser, tell)
        if "error" in found:
            console.print(f"{browser}: {found['error']}", highlight=False, markup=False)
            bad += 1
            continue
        path = options.folder / f"{browser}.json"
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        bad += found["failed"] + found["waiting"]
        for test in found["tests"]:
            if test["status"] != "passed":
                line = f"{test['entry']}, {test['kind']}: {test['call']}: {test.get('why', test['status'])}"
                console.print(line, highlight=False, markup=False)
        console.print(
            f"{browser}, {found['device']}: {found['passed']} passed, {found['failed']} failed ({path})",
            highlight=False,
        )
    return 1 if bad else 0
