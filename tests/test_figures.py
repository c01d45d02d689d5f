"""benchmarks/README.md: each ratio in its tables is that of the times beside it, and each claim is a script."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "benchmarks" / "README.md"
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
# The column of ours that a column of ratios is about; the peer is PyTorch, or the column before.
OURS = {"ratio": "webtorch", "device ratio": "on the device"}


def tables(text: str) -> Iterator[list[list[str]]]:
    """Yield each table as rows of cells, the header first."""
    for block in re.findall(r"(?:^\|.*\|\n)+", text, flags=re.M):
        rows = [[c.strip() for c in line.strip("|").split("|")] for line in block.splitlines()]
        yield [rows[0], *rows[2:]]


def seconds(cell: str) -> tuple[float, float] | None:
    """Return the time that a cell begins with and half a unit of its last digit, in seconds."""
    found = re.match(r"(\d+)(?:\.(\d+))? (s|ms|us)\b", cell)
    if found is None:
        return None
    unit = UNITS[found[3]]
    return float(f"{found[1]}.{found[2] or 0}") * unit, 0.5 * 10.0 ** -len(found[2] or "") * unit


def checked_rows(text: str) -> Iterator[tuple[str, float, float, float]]:
    """Yield (row, ratio, least, most) for each row that has a ratio and both of its times."""
    for header, *rows in tables(text):
        for column, ours in OURS.items():
            if column not in header or ours not in header or "PyTorch" not in header:
                continue
            for row in rows:
                mine, peer = seconds(row[header.index(ours)]), seconds(row[header.index("PyTorch")])
                shown = re.fullmatch(r"\**(\d+)(?:\.(\d+))?\**", row[header.index(column)])
                if mine and peer and shown:
                    half = 0.5 * 10.0 ** -len(shown[2] or "")
                    least = (mine[0] - mine[1]) / (peer[0] + peer[1]) - half
                    most = (mine[0] + mine[1]) / (peer[0] - peer[1]) + half
                    yield row[0], float(f"{shown[1]}.{shown[2] or 0}"), least, most


@pytest.mark.covers("T11")
def test_ratios_are_those_of_the_times_beside_them() -> None:
    rows = list(checked_rows(PAGE.read_text(encoding="utf-8")))
    assert len(rows) > 40
    wrong = [row for row in rows if not row[2] <= row[1] <= row[3]]
    assert not wrong, "\n".join(
        f"{name}: {shown}, not {a:.3f} to {b:.3f}" for name, shown, a, b in wrong
    )


def test_a_wrong_ratio_is_found() -> None:
    text = (
        "| work | webtorch | PyTorch | ratio |\n|---|---|---|---|\n| add | 1.0 ms | 2.0 ms | {} |\n"
    )
    assert [low <= shown <= high for _, shown, low, high in checked_rows(text.format("0.50"))] == [
        True
    ]
    assert [low <= shown <= high for _, shown, low, high in checked_rows(text.format("0.40"))] == [
        False
    ]


def test_scripts_that_the_page_names_exist() -> None:
    names = set(re.findall(r"benchmarks\.((?:cpu|gpu|web)\.\w+)", PAGE.read_text(encoding="utf-8")))
    assert len(names) > 5
    missing = [
        n for n in names if not (ROOT / "benchmarks" / f"{n.replace('.', '/')}.py").is_file()
    ]
    assert not missing
