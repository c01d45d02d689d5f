"""Random training loops give the same with scripts and without, and what PyTorch gives."""

from __future__ import annotations

import pytest

from tests.scripts.loops import check

SEEDS = range(60)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_loop_gives_the_same_numbers(seed: int) -> None:
    found, _ = check(seed)
    assert not found, found


def test_loops_follow_scripts() -> None:
    # Those that compute nothing before their end have none.
    followed = [check(seed)[1].get("followed", 0) for seed in range(100, 112)]
    assert sum(followed) >= 25, followed
