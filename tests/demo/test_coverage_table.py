"""The capability table: rows of the list, states from the last run, nothing from a part of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.covers import known_rows
from tools import coverage_table

ROWS = """
[[area]]
id = "A"
name = "Tensors"
rows = [["A1", "float32"], ["A2", "float16"], ["A3", "complex"], ["A4", "int32"]]
"""


def run(folder: Path, partial: bool = False) -> tuple[int, str]:
    """Write a table of four rows in `folder`; return the exit code and the page."""
    tests = {
        "tests/test_a.py::test_x[cpu]": {"rows": ["A1"], "outcome": "passed"},
        "tests/test_a.py::test_x[webgpu]": {"rows": ["A1"], "outcome": "passed"},
        "tests/test_a.py::test_y": {"rows": ["A1", "A2"], "outcome": "passed"},
        "tests/test_a.py::test_z": {"rows": ["A2"], "outcome": "failed"},
        "tests/test_a.py::test_w": {"rows": ["A3"], "outcome": "skipped"},
    }
    record = {"partial": partial, "arguments": ["tests/test_a.py"], "tests": tests}
    (folder / "rows.toml").write_text(ROWS)
    (folder / "covers.json").write_text(json.dumps(record))
    output = folder / "capabilities.md"
    code = coverage_table.main(
        ["--rows", str(folder / "rows.toml"), "--results", str(folder / "covers.json"),
         "--output", str(output)]
    )  # fmt: skip
    return code, output.read_text() if output.exists() else ""


def test_a_row_is_covered_by_a_passed_test_and_no_failed_one(tmp_path: Path) -> None:
    code, page = run(tmp_path)
    assert code == 0
    assert "**1 of 4 rows are covered.**" in page
    assert "| A1 | float32 | **covered** | `tests/test_a.py::test_x` and 1 more |" in page
    assert "| A2 | float16 | failed | `tests/test_a.py::test_z` |" in page
    assert "| A3 | complex | skipped | `tests/test_a.py::test_w` |" in page
    assert "| A4 | int32 | no test |  |" in page


def test_a_part_of_the_suite_makes_no_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, page = run(tmp_path, partial=True)
    assert (code, page) == (1, "")
    assert "run `make test-all`" in capsys.readouterr().err


def test_every_row_has_its_own_id() -> None:
    areas = coverage_table.read_areas(coverage_table.ROOT / "docs" / "capabilities.toml")
    ids = [row.id for area in areas for row in area.rows]
    assert len(ids) == len(set(ids)) == len(known_rows()) == 358
    assert all(row.id.startswith(area.id) for area in areas for row in area.rows)
