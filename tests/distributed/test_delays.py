"""Programs of collectives whose processes come late by random times give exact sums, on both faces."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed import started

RANKS = 2
# Seeds of programs, of tensors that go through shared memory and of small ones.
SEEDS = (0, 1)


@pytest.mark.parametrize(("library", "device"), [("webtorch", "cpu"), ("torch", "webgpu")])
def test_what_has_been_waited_for_may_be_written(tmp_path: Path, library: str, device: str) -> None:
    words = ("delays", tmp_path / "store", library, device, 250, *SEEDS)
    started.run(RANKS, lambda _: words)
