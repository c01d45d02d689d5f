"""What CONTRIBUTING.md shows of the sources is what stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_BLOCKS = re.findall(
    r"```diff\n(.*?)```", (_ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.DOTALL
)


@pytest.fixture(scope="module")
def lines() -> set[str]:
    """All lines of the package and its tests, without their indentation."""
    files = [f for room in ("webtorch", "tests") for f in (_ROOT / room).rglob("*.py")]
    return {line.strip() for f in files for line in f.read_text("utf-8").splitlines()}


@pytest.mark.parametrize("block", _BLOCKS, ids=[str(i) for i in range(len(_BLOCKS))])
def test_what_a_change_is_said_to_take_stands_in_the_sources(block: str, lines: set[str]) -> None:
    shown = [line[1:].strip() for line in block.splitlines() if line.startswith("+")]
    assert shown
    assert [line for line in shown if line not in lines] == []
