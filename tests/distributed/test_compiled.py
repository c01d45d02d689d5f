"""Compiled steps are cut at their collectives, and are what uncompiled ones are, in several processes."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.distributed import started
from tests.distributed.compiled import CASES

# How many captures, programs and collectives there are on ranks other than 0, which computes what it broadcasts.
PARTS = {
    "plain": [1, 4, 5],
    "views": [1, 4, 5],
    "sizes": [3, 4, 5],
    "written": [1, 4, 5],
    "accumulated": [1, 3, 4],
    "outside": [6, 3, 4],
    "autocast": [1, 4, 5],
    "module": [1, 1, 2],
    "synchronized": [1, 6, 5],
    "static": [1, 3, 2],
    "unused": [0, 0, 0],
}


@cache
def _found(size: int) -> list[dict[str, Any]]:
    return started.found("compiled", size, lambda rank: (size, rank))


SIZES = [1, 2, pytest.param(4, marks=pytest.mark.long)]


@pytest.mark.parametrize("size", SIZES)
def test_compiled_steps_are_the_uncompiled_ones(size: int) -> None:
    for rank, found in enumerate(_found(size)):
        for name in CASES if size > 1 else ("plain",):
            worst, parts = found[name]
            assert worst < 1e-6, name
            if rank:
                assert parts == PARTS[name], name


@pytest.mark.parametrize("size", SIZES)
def test_collectives_go_on_between_programs(size: int) -> None:
    for found in _found(size):
        worst, (captures, programs, collectives) = found["collectives"]
        assert worst == 0
        assert captures == 1 and programs > 10 and collectives >= 16
        for compiled, plain in found["decides"]:
            assert compiled == plain


def test_failures_are_those_of_uncompiled_steps() -> None:
    for rank, found in enumerate(_found(2)):
        plain, compiled = found["failures"]["plain"], found["failures"]["compiled"]
        sums = [4.0, 4.0]
        assert [compiled[i] for i in (0, 2, 5)] == [plain[i] for i in (0, 2, 5)] == [sums] * 3
        for i in (1, 3):
            assert compiled[i] == plain[i]
        assert compiled[3 if rank == 0 else 1].startswith("all_reduce of torch.float32 (")
        assert "was destroyed" in plain[4] and "was destroyed" in compiled[4]
