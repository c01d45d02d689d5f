"""Models that several processes train: each step's loss is that of one process with the whole batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tests.pytorch.losses import MODELS, WAYS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("engine", "ranks", "steps", "kinds"),
    [
        ("cpu", 2, 3, "embedding"),
        pytest.param("cpu", 2, 50, ",".join(MODELS), marks=pytest.mark.long),
        pytest.param("cpu", 4, 50, ",".join(MODELS), marks=pytest.mark.long),
        *(pytest.param("", n, 50, ",".join(MODELS), marks=pytest.mark.long) for n in (1, 2, 4)),
    ],
)
def test_losses_are_those_of_the_whole_batch(
    tmp_path: Path, engine: str, ranks: int, steps: int, kinds: str
) -> None:
    command = ["-m", "tests.pytorch.losses", str(ranks), str(steps), kinds, str(tmp_path)]
    environment = {**os.environ, "WEBTORCH_PYTORCH_ENGINE": engine}
    if not engine:
        del environment["WEBTORCH_PYTORCH_ENGINE"]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True,
        timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert {*found} == {f"{kind} {way}" for kind in kinds.split(",") for way in WAYS}
    assert max(found.values()) < 1e-5, found
