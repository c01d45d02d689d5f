"""Ranks that fail: what the others say, how long they wait, and how training goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tests.pytorch.failing import LOST, alone

ROOT = Path(__file__).parents[2]


def _run(folder: Path, what: str, *launcher: str) -> str:
    command = [sys.executable, *launcher, "-m", "tests.pytorch.failing", what, str(folder)]
    environment = {**os.environ, "WEBTORCH_PYTORCH_ENGINE": "cpu"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


@pytest.mark.long
def test_training_goes_on_from_its_checkpoint_where_a_rank_was_killed(tmp_path: Path) -> None:
    _run(tmp_path, "killed", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
         "--max-restarts=1")  # fmt: skip
    found = json.loads((tmp_path / "found").read_text())
    assert found["begin"] == 3
    pairs = zip(found["weights"], alone(), strict=True)
    assert max(abs(a - b) for a, b in pairs) < 1e-6


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what ranks found that failed."""
    folder = tmp_path_factory.mktemp("failing")
    _run(folder, "all")
    return folder


@pytest.mark.parametrize("how", LOST)
def test_a_rank_that_is_lost_in_a_backward_is_named(ranks: Path, how: str) -> None:
    found = json.loads((ranks / how / "0.json").read_text())
    assert "allreduce of torch.float32 (90,) on rank 0 of 2" in found["message"]
    assert "No word from rank 1" in found["message"]
    if how.startswith("dies"):
        assert "send of torch.float32 (2, 3) on rank 0 of 2" in found["sent"]
    # At the timeout of 1.5 s, or at once and not at that of minutes.
    assert (1.4 if how.startswith("hangs") else 0) < found["seconds"] < PATIENCE / 2


def test_checkpoints_of_a_full_disk_and_of_another_number_of_ranks(ranks: Path) -> None:
    found = [json.loads((ranks / "kept" / f"{rank}.json").read_text()) for rank in range(4)]
    assert all("ranks:dict_keys([3])" in each["message"] for each in found)
    assert all("File too large" in each["message"] for each in found)
    assert [each["far"] for each in found] == [0, 0, -1, -1]
