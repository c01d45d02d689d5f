"""Random training loops give the same with scripts and without, and what PyTorch gives."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.scripts import tangles
from tests.scripts.loops import check

SEEDS = range(60)
TANGLES = range(150)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_loop_gives_the_same_numbers(seed: int) -> None:
    found, _ = check(seed)
    assert not found, found


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", TANGLES)
def test_tangled_tensors_give_the_same_numbers(seed: int) -> None:
    found, _ = tangles.check(seed)
    assert not found, found


def test_loops_follow_scripts() -> None:
    # In a process of its own: what other tests left on, such as a mode, would be looked at.
    done = subprocess.run(
        [sys.executable, "-m", "tests.scripts.loops", "--count", "12", "--seed", "100"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        env={**os.environ, "WEBTORCH_DEVICE": "cpu"},
    )
    followed = re.search(r"12 programs, 0 differ; .*'followed': (\d+)", done.stdout)
    # Those that compute nothing before their end have none.
    assert followed, done.stdout
    assert int(followed[1]) >= 25
