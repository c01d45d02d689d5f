"""Models that several processes train: each step's loss is that of one process with the whole batch."""

from __future__ import annotations

import pytest

from tests.distributed.losses import MODELS, WAYS, farthest


@pytest.mark.parametrize(
    ("library", "device", "ranks", "steps", "kinds"),
    [
        ("torch", "cpu", 2, 3, "embedding"),
        ("webtorch", "cpu", 2, 3, "embedding"),
        *(
            pytest.param(library, device, ranks, steps, ",".join(MODELS), marks=pytest.mark.long)
            for library in ("torch", "webtorch")
            for device, steps in (("cpu", 50), ("webgpu", 3))
            for ranks in (1, 2, 4)
        ),
    ],
)
def test_losses_are_those_of_the_whole_batch(
    library: str, device: str, ranks: int, steps: int, kinds: str
) -> None:
    found = farthest(library, device, ranks, steps, kinds, 600)
    assert {*found} == {f"{kind} {way}" for kind in kinds.split(",") for way in WAYS}
    assert max(found.values()) < 1e-5, found
