"""The list of faults fits the sources, and the script that plants them tells found from survived."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tools.plant_faults import FAILED, Fault, Outcome, Verdict, chosen, judge, read_faults, table

FAULTS = read_faults()


def test_every_fault_fits_the_sources() -> None:
    stale = {fault.name: why for fault in FAULTS if (why := fault.stale()) is not None}
    assert not stale, "mend these entries of tools/faults.toml"


def test_there_are_faults_of_every_room() -> None:
    rooms = Counter(fault.room for fault in FAULTS)
    assert len(FAULTS) >= 64
    assert len(rooms) >= 16 and min(rooms.values()) >= 2
    assert chosen(FAULTS, ["ir"], ["uint8-int8"]) == [f for f in FAULTS if f.name == "uint8-int8"]
    with pytest.raises(SystemExit, match="no such room or fault: attic"):
        chosen(FAULTS, ["attic"], [])


@pytest.fixture
def fault(tmp_path: Path) -> Fault:
    """A fault of a small tree."""
    (tmp_path / "half.py").write_text("def half(x):\n    return x / 2\n")
    (tmp_path / "test_half.py").write_text("def test_half(): pass\n")
    tests = ("test_half.py::test_half[cpu]",)
    return Fault("math", "half", "half of it is all of it", "half.py", "x / 2", "x / 1", tests)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"file": "third.py"}, "third.py: no such file"),
        ({"before": "x / 3"}, "half.py: the text before occurs 0 times"),
        ({"before": "x"}, "half.py: the text before occurs 2 times"),
        ({"after": "x / 2"}, "half.py: the text after is the text before"),
        ({"tests": ()}, "names no tests"),
        ({"tests": ("test_half.py::test_third",)}, "no such test: test_half.py::test_third"),
        ({"tests": ("test_third.py",)}, "no such test: test_third.py"),
    ],
)
def test_a_stale_entry_says_why(
    fault: Fault, tmp_path: Path, changes: dict[str, Any], why: str | None
) -> None:
    assert replace(fault, **changes).stale(tmp_path) == why


@pytest.mark.parametrize(
    ("status", "said", "verdict"),
    [
        (0, "1 passed", Verdict.SURVIVED),
        (FAILED, "FAILED tests/test_half.py::test_half - assert 1 == 2", Verdict.FOUND),
        (FAILED, "ERROR tests/test_half.py::test_half - in a fixture", Verdict.FOUND),
        (FAILED, "not done after 600 s", Verdict.FOUND),
        # A process that a signal ended.
        (-11, "", Verdict.FOUND),
        (2, "ERROR tests/test_half.py - ImportError", Verdict.BREAKS),
        (FAILED, "ERROR tests/test_half.py - ImportError", Verdict.BREAKS),
        (4, "ImportError while loading conftest", Verdict.BREAKS),
    ],
)
def test_verdicts(fault: Fault, status: int, said: str, verdict: Verdict) -> None:
    class Tree:
        def planted(self, fault: Fault) -> contextlib.nullcontext[None]:
            return contextlib.nullcontext()

        def pytest(self, tests: Iterable[str]) -> tuple[int, str]:
            return status, said

    assert judge(Tree(), fault) == (verdict, said)


def test_the_table_counts_rooms(fault: Fault) -> None:
    found = Outcome(fault, Verdict.FOUND, 1.0, "")
    other = Outcome(replace(fault, room="text"), Verdict.SURVIVED, 1.0, "")
    assert table([found, other, found]) == [
        "room      faults  found",
        "math           2      2",
        "text           1      0",
        "together       3      2",
    ]
