"""Programs of collectives whose processes come late by random times give exact sums, on both faces."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RANKS = 2
# Seeds of programs, of tensors that go through shared memory and of small ones.
SEEDS = (0, 1)


@pytest.mark.parametrize(("library", "device"), [("webtorch", "cpu"), ("torch", "webgpu")])
def test_what_has_been_waited_for_may_be_written(tmp_path: Path, library: str, device: str) -> None:
    command = [
        sys.executable, "-W", "ignore", "-m", "tests.distributed.delays",
        str(tmp_path / "store"), library, device, "250", *map(str, SEEDS),
    ]  # fmt: skip
    started = [
        subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(RANKS)},
        )
        for rank in range(RANKS)
    ]
    try:
        for process in started:
            _, said = process.communicate(timeout=300)
            assert not process.returncode, said[-3000:]
    finally:
        for process in started:
            process.kill()
