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


PROGRAM = """\
program  5 steps, 5 routines, 2 arguments
  #0: input float32[3]
  #1: temporary float32[3]
  #2: output float32[3]
  #3: temporary float32[3]
  #4: temporary float32[3]
  #5: output float32[3]
  mul(#0, #1, a1)
  all_reduce(#1, #2)
  add(#2, #0, #3)
  all_reduce(#3, #4)
  mul(#4, #5, a0)"""


def test_a_cut_step_shows_its_programs_and_the_collectives_between_in_order() -> None:
    for found in _found(2):
        program, steps, memory = found["shown"]
        assert program == PROGRAM
        assert steps == "mul all_reduce add all_reduce mul"
        assert memory == "peak 72 B: 12 B of inputs, 24 B of new outputs, 36 B in between"
