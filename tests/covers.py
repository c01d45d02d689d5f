"""Pytest plugin: records which capability rows the passed tests hold.

Imports pytest and the standard library only, and counts with tests/long.py.

A test names its rows with `@pytest.mark.covers("C33", "C34")`; the rows are those of
docs/capabilities.toml, and an unknown one is an error. After the run `.cache/covers.json` has, for
each marked test, its rows and outcome; `tools/coverage_table.py` makes docs/capabilities.md of it.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tests.long import LEFT_OUT

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "docs" / "capabilities.toml"
RESULT = Path(".cache") / "covers.json"
PROPERTY = "covers"


def known_rows(path: Path = ROWS) -> frozenset[str]:
    """Return the ids of all capability rows."""
    areas = tomllib.loads(path.read_text(encoding="utf-8"))["area"]
    return frozenset(row_id for area in areas for row_id, _ in area["rows"])


def pytest_configure(config: pytest.Config) -> None:
    """Start one recorder per run; xdist's workers report to the process that started them."""
    recorder = _Recorder(config, is_worker=hasattr(config, "workerinput"))
    config.pluginmanager.register(recorder, "covers-recorder")


class _Recorder:
    def __init__(self, config: pytest.Config, is_worker: bool) -> None:
        self.config = config
        self.is_worker = is_worker
        self.outcomes: dict[str, dict[str, object]] = {}
        self.deselected = 0

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        known = known_rows()
        for item in items:
            ids = [row_id for mark in item.iter_markers("covers") for row_id in mark.args]
            unknown = sorted(set(ids) - known)
            if unknown:
                raise pytest.UsageError(
                    f"{item.nodeid}: covers {', '.join(unknown)}: "
                    f"no such row in {ROWS.relative_to(ROOT)}"
                )
            if ids:
                # User properties travel with the report, also from an xdist worker.
                item.user_properties.append((PROPERTY, sorted(set(ids))))

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self.deselected += len(items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        rows = dict(report.user_properties).get(PROPERTY)
        if rows is None:
            return
        if report.when == "call" or report.outcome != "passed":
            seen = self.outcomes.setdefault(report.nodeid, {"rows": rows, "outcome": "passed"})
            if report.outcome != "passed":
                seen["outcome"] = report.outcome

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.is_worker or self.config.option.collectonly:
            return
        chosen = [str(arg) for arg in self.config.invocation_params.args]
        left = self.deselected + self.config.stash.get(LEFT_OUT, 0)
        partial = any(not arg.startswith("-") for arg in chosen) or left > 0
        path = self.config.rootpath / RESULT
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {"partial": partial, "arguments": chosen, "tests": self.outcomes}
        path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
