"""Write docs/capabilities.md: every capability row, and whether a passed test holds it.

Run it with `make coverage-table` after `make test-all`. Reads docs/capabilities.toml (the rows) and
.cache/covers.json (the last run, written by tests/covers.py); imports the standard library only.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(slots=True)
class Row:
    """One capability, and the tests of the last run that claim it."""

    id: str
    capability: str
    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @property
    def covered(self) -> bool:
        """True when a test passed and none failed."""
        return bool(self.passed) and not self.failed

    @property
    def state(self) -> str:
        """Return "covered", "failed", "skipped" or "no test"."""
        if self.failed:
            return "failed"
        if self.passed:
            return "covered"
        return "skipped" if self.skipped else "no test"


@dataclass(slots=True)
class Area:
    """A group of rows under one heading."""

    id: str
    name: str
    rows: list[Row]


def read_areas(path: Path) -> list[Area]:
    """Return the areas and rows of capabilities.toml, without test results."""
    areas = tomllib.loads(path.read_text(encoding="utf-8"))["area"]
    return [
        Area(area["id"], area["name"], [Row(row_id, text) for row_id, text in area["rows"]])
        for area in areas
    ]


def add_results(areas: list[Area], tests: dict[str, dict[str, object]]) -> None:
    """Note each test of the last run at the rows that it claims."""
    rows = {row.id: row for area in areas for row in area.rows}
    for node_id, result in sorted(tests.items()):
        # One line for a parametrized test, whatever the number of its cases.
        name = node_id.split("[", 1)[0]
        claimed = result["rows"]
        assert isinstance(claimed, list)
        for row_id in claimed:
            row = rows.get(row_id)
            if row is None:
                continue
            names = {"passed": row.passed, "failed": row.failed}.get(
                str(result["outcome"]), row.skipped
            )
            if name not in names:
                names.append(name)


def render(areas: list[Area]) -> str:
    """Return the Markdown page."""
    rows = [row for area in areas for row in area.rows]
    covered = sum(row.covered for row in rows)
    lines = [
        "# Capabilities",
        "",
        "Written by `make coverage-table` from the last run of `make test-all`; not edited by hand.",
        "The rows are those of `capabilities.toml`; a test claims one with `@pytest.mark.covers`.",
        "",
        f"**{covered} of {len(rows)} rows are covered.**",
        "",
        "| area | covered | rows |",
        "|---|---:|---:|",
    ]
    for area in areas:
        count = sum(row.covered for row in area.rows)
        lines.append(f"| {area.id}. {area.name} | {count} | {len(area.rows)} |")
    for area in areas:
        lines += ["", f"## {area.id}. {area.name}", "", "| row | capability | state | test |"]
        lines.append("|---|---|---|---|")
        for row in area.rows:
            names = row.failed or row.passed or row.skipped
            shown = f"`{names[0]}`" if names else ""
            if len(names) > 1:
                shown += f" and {len(names) - 1} more"
            state = f"**{row.state}**" if row.covered else row.state
            lines.append(f"| {row.id} | {row.capability} | {state} | {shown} |")
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Write the page; return 1 when there is no complete test run to write it from."""
    parser = argparse.ArgumentParser(prog="coverage_table", description=__doc__.split("\n")[0])
    parser.add_argument("--partial", action="store_true", help="accept a run of some tests only")
    parser.add_argument("--rows", type=Path, default=ROOT / "docs" / "capabilities.toml")
    parser.add_argument("--results", type=Path, default=ROOT / ".cache" / "covers.json")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "capabilities.md")
    options = parser.parse_args(argv)
    if not options.results.exists():
        print(f"no test run found at {options.results}: run `make test-all` first", file=sys.stderr)
        return 1
    record = json.loads(options.results.read_text(encoding="utf-8"))
    if record["partial"] and not options.partial:
        print(
            f"the last test run was of {' '.join(record['arguments'])} only: run `make test-all`, "
            "or say --partial",
            file=sys.stderr,
        )
        return 1
    areas = read_areas(options.rows)
    add_results(areas, record["tests"])
    options.output.write_text(render(areas), encoding="utf-8")
    rows = [row for area in areas for row in area.rows]
    print(f"{options.output}: {sum(row.covered for row in rows)} of {len(rows)} rows are covered")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
