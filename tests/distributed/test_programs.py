"""Random programs of DTensors, beside whole tensors, and programs that train, beside one process."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.distributed import programs


@pytest.mark.parametrize(
    ("ranks", "seeds"),
    [
        (2, range(24)),
        pytest.param(2, range(1000, 1250), marks=pytest.mark.long),
        pytest.param(4, range(2000, 2120), marks=pytest.mark.long),
    ],
)
def test_random_programs_give_what_whole_tensors_do(ranks: int, seeds: range) -> None:
    failed = programs.faults("webtorch", ranks, list(seeds))
    assert not failed, "\n".join(f"{seed}: {text}" for seed, text in failed.items())


@pytest.mark.parametrize(
    ("ranks", "seeds"),
    [
        # 132: a compiled step that goes on as usual, with shapes on "meta".
        # 141: a weight that is shared around reentrant checkpoints, whose passes end before its gradient is there.
        (2, [*range(100, 104), 132, 141]),
        pytest.param(2, range(104, 131), marks=pytest.mark.long),
    ],
)
def test_random_programs_train_as_one_process_does(ranks: int, seeds: Iterable[int]) -> None:
    failed = programs.faults("webtorch", ranks, list(seeds), "training")
    assert not failed, "\n".join(f"{seed}: {text}" for seed, text in failed.items())
