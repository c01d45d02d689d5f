"""What the runs say: how many tests pass, and what the others fail for."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.conformance.pool import ROOT
from webtorch.as_torch.absent import ABSENT
from webtorch.as_torch.places import COMPILER, CORE
from webtorch.tensors.absent import reasons

WAYS = ("device", "torch")
CACHE = ROOT / ".cache" / "upstream"
PAGE = ROOT / "docs" / "upstream.md"
TABLE = """## What passes

| file | on the device | | absent | under the name `torch` | | absent |
|---|---|---|---|---|---|---|
"""
SUITES = """## What passes of suites of others

| project | on the device | | absent | under the name `torch` | | absent |
|---|---|---|---|---|---|---|
"""
# What says that a thing is absent, as docs/differences.md does: its reasons, those of modules that PyTorch
# programs import, and the types that a device has.
_WORDS = (
    *(why.rstrip(" .") for why in reasons()),
    *(why for why, _ in ABSENT.values()),
    CORE,
    COMPILER,
    "is not available: WebGPU has",
    "elements: WebGPU has",
    "device type at start of device string: lazy",
    "are not on the device",
    "cannot be shared with other libraries",
    # Views that are negated or conjugated when they are read, and zeros without memory.
    "has no attribute '_neg_view'",
    "torch._neg_view",
    "torch._efficientzerotensor",
    # What replays a view on another tensor.
    "has no attribute '_view_func'",
    "webtorch has no TorchScript programs",
    "'function' object has no attribute 'graph'",
    "torch.utils.data.datapipes",
    "of a nested tensor: the device has no kernel",
    "'_CachedTorchDispatchMode'",
    # What PyTorch calls the convolutions of every device from outside.
    "_ConvBackend.Overrideable",
)
# The same of the line of a test that fails: `conj()` makes a copy.
_LINES = ("is_conj(", "is_neg(", "has conjugate bit set")


def kind(result: dict[str, Any]) -> str:
    """Return "passed", "skipped", "absent" (as documented) or "failed"."""
    outcome: str = result["outcome"]
    if outcome in ("passed", "skipped"):
        return outcome
    absent = any(words in result["message"] for words in _WORDS)
    asked = any(words in line for words in _LINES for line in result.get("line", ()))
    return "absent" if absent or asked else "failed"


def line(file: str, way: str, results: dict[str, Any]) -> str:
    """Return the figures of one file, one way."""
    count = Counter(map(kind, results.values()))
    rest = count["passed"] + count["failed"]
    share = f"{100 * count['passed'] / rest:.1f} %" if rest else "-"
    return (
        f"{file:32} {way:8} {share:>8}  passed {count['passed']}, failed {count['failed']}, "
        f"absent {count['absent']}, skipped {count['skipped']}"
    )


def cause(message: str) -> str:
    """Return a message without what differs from test to test."""
    text = re.sub(r"0x[0-9a-f]+|-?\d+(\.\d+)?(e[+-]?\d+)?", "N", " ".join(message.split()))
    return re.sub(r"N(, N)+", "N", text)[:160]


def causes(results: dict[str, dict[str, Any]], way: str) -> list[tuple[str, list[str]]]:
    """Return what tests fail for, most first, with the tests."""
    found: dict[str, list[str]] = defaultdict(list)
    for file, ways in results.items():
        for test, result in ways.get(way, {}).items():
            if kind(result) == "failed":
                found[cause(result["message"])].append(f"{file}:{test}")
    return sorted(found.items(), key=lambda item: -len(item[1]))


def read(folder: Path = CACHE) -> dict[str, dict[str, Any]]:
    """Return what is kept: file -> way -> test -> result."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for way in ("pytorch", *WAYS):
        for path in sorted((folder / way).rglob("*.json")):
            name = str(path.relative_to(folder / way)).removesuffix(".json").removesuffix(".py")
            found[name][way] = json.loads(path.read_text())
    return found


def show(results: dict[str, dict[str, Any]], most: int = 60) -> None:
    """Print the sums, and the causes of most failures."""
    for way in WAYS:
        print("\n" + line("all", way, everything(results, way)))
        for text, tests in causes(results, way)[:most]:
            print(f"{len(tests):5}  {text}\n       {', '.join(tests[:2])}")


def everything(results: dict[str, dict[str, Any]], way: str) -> dict[str, Any]:
    """Return the results of all files, one way."""
    return {f"{f}:{t}": r for f, ways in results.items() for t, r in ways.get(way, {}).items()}


def write(results: dict[str, dict[str, Any]], table: str = TABLE) -> None:
    """Write a table of docs/upstream.md: the section that begins as `table` does.

    Rows of which results are kept are made anew, but of no smaller sample than they have; others stay, and the last is
    the sum of all.
    """
    title = table.partition("\n")[0] + "\n"
    before, _, after = PAGE.read_text(encoding="utf-8").partition(title)
    written, found, rest = after.partition("\n## ")
    counts = {
        cells[0].strip(" `"): [_counted(cells[at], cells[at + 2]) for at in (1, 4)]
        for cells in (row.strip("|").split("|") for row in written.splitlines())
        if cells[0].startswith(" `")
    }
    for name, ways in results.items():
        old = counts.get(name, [_NONE, _NONE])
        counts[name] = [_newer(_count(ways.get(w, {})), o) for w, o in zip(WAYS, old)]
    rows = [_row(f"`{name}`", counts[name]) for name in sorted(counts)]
    sums = zip(*counts.values())
    rows.append(_row("all", [tuple(map(sum, zip(*way))) for way in sums]))
    PAGE.write_text(before + table + "\n".join(rows) + "\n" + found + rest, encoding="utf-8")


# How many tests passed, of how many, and how many are absent.
Counts = tuple[int, ...]
_NONE = (0, 0, 0)


def _count(results: dict[str, Any]) -> Counts:
    count = Counter(map(kind, results.values()))
    return count["passed"], count["passed"] + count["failed"], count["absent"]


def _newer(new: Counts, old: Counts) -> Counts:
    """Return new counts, or the old ones where the new are of a smaller sample, not just of some tests less."""
    return new if 20 * sum(new[1:]) >= 19 * sum(old[1:]) else old


def _counted(share: str, absent: str) -> Counts:
    """Return what two cells of a row say."""
    passed, _, of = share.partition(" of ")
    return tuple(int(n) if n.strip().isdecimal() else 0 for n in (passed, of, absent.strip()))


def _row(name: str, counts: Sequence[Counts]) -> str:
    cells = [name]
    for passed, of, absent in counts:
        cells += [f"{passed} of {of}", f"{100 * passed / of:.1f} %"] if of else ["-", "-"]
        cells.append(str(absent or "-"))
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    for folder, table in ((CACHE, TABLE), (CACHE.with_name("suites"), SUITES)):
        known = read(folder)
        show(known)
        write(known, table)
