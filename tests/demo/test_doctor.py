"""The doctor: every kernel family has a check, a working device passes, a broken one does not."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import webtorch
from webtorch.cli import doctor
from webtorch.ops.record import TABLE


def report(device: str) -> tuple[int, str]:
    """Return the doctor's exit code and what it printed."""
    text = io.StringIO()
    code = doctor.examine(Console(file=text, width=160), device)
    return code, text.getvalue()


def test_every_family_of_the_op_table_has_a_check() -> None:
    families = {op.family for op in TABLE.values() if op.function_in}
    assert families <= {check.family for check in doctor.checks()}


@pytest.mark.one_in(2)
@pytest.mark.covers("P7")
def test_a_working_device_passes(device: str) -> None:
    code, text = report(device)
    assert code == 0, text
    assert f"Self-test of {device}" in text
    assert "largest error" in text
    assert "numpy" in text


def test_a_report_for_an_issue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what is installed, every adapter and every test, and names no file of the user's."""
    right = doctor.Check("contract", "one", lambda _: webtorch.tensor([1.0]), lambda: np.ones(1))
    monkeypatch.setattr(doctor, "checks", lambda: [right])
    where = tmp_path / "report.json"
    assert doctor.examine(Console(file=io.StringIO()), "cpu", where) == 0
    told = json.loads(where.read_text())
    assert told["versions"]["Python"] and told["device"]["name"] == "cpu"
    assert [t["passes"] for t in told["tests"]] == [True]
    assert len(told["adapters"]) == len(doctor.find_adapters()[0])
    assert str(Path.home()) not in where.read_text()


def test_a_wrong_kernel_is_named_and_fails_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = doctor.Check(
        "contract",
        "matmul",
        lambda device: webtorch.tensor([1.0, 2.5]),
        lambda: np.array([1.0, 2.0]),
    )
    monkeypatch.setattr(doctor, "checks", lambda: [wrong])
    code, text = report("cpu")
    assert code == 1
    assert "contract: matmul: error 1.67e-01 is above 2e-05" in text


@pytest.mark.parametrize(
    ("actual", "expected", "error"),
    [
        ([1.0, float("nan")], [1.0, float("nan")], 0.0),
        ([1.0, float("nan")], [1.0, 2.0], float("inf")),
        ([float("inf")], [float("inf")], 0.0),
        ([float("inf")], [-float("inf")], float("inf")),
        ([3.0], [1.0], 1.0),
    ],
)
def test_errors_count_what_is_not_a_number(
    actual: list[float], expected: list[float], error: float
) -> None:
    assert doctor._error(webtorch.tensor(actual), expected) == error


def test_a_check_that_raises_fails_its_family() -> None:
    def broken(device: str) -> Any:
        raise RuntimeError("device lost")

    outcome = doctor.Outcome("scan")
    doctor._run(doctor.Check("scan", "cumsum", broken, lambda: 0), "cpu", outcome)
    assert not outcome.passed
    assert outcome.problem == "RuntimeError: device lost"
