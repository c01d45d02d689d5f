"""The programs in examples/distributed learn, in two processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.patience import PATIENCE

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "distributed"
_TORCHRUN = ("-m", "torch.distributed.run", "--nproc_per_node=2")
_ACCELERATE = (
    "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no",
    "--dynamo_backend=no",
)  # fmt: skip


def run(*arguments: str) -> str:
    """Return what a program prints."""
    environment = {**os.environ, "WEBTORCH_PYTORCH_ENGINE": "cpu", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=PATIENCE, check=False
    )
    assert not done.returncode, done.stderr[-3000:]
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "packages", "launcher", "options"),
    [
        ("ddp", "torch", _TORCHRUN, ()),
        ("ddp", "torch", (*_TORCHRUN, "-m", "webtorch", "run"), ("--device=cpu",)),
        ("fsdp2", "torch", _TORCHRUN, ()),
        ("fsdp2", "torch", (*_TORCHRUN, "-m", "webtorch", "run"), ("--device=cpu",)),
        ("with_accelerate", "accelerate", _ACCELERATE, ()),
        ("with_accelerate", "accelerate", _ACCELERATE, ("--shard",)),
        ("with_lightning", "lightning", (), ()),
        ("with_trainer", "accelerate", _TORCHRUN, ()),
        ("with_ray", "ray pandas pyarrow", (), ()),
    ],
)
def test_an_example_learns(
    name: str, packages: str, launcher: tuple[str, ...], options: tuple[str, ...]
) -> None:
    for package in packages.split():
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    said = run(*launcher, str(EXAMPLES / f"{name}.py"), *options)
    losses = [float(found) for found in re.findall(r"loss (\d+\.\d+)", said)]
    assert losses and losses[-1] < 0.15, said


@pytest.mark.long
@pytest.mark.parametrize(
    "options", [(), (f"--python={sys.executable} -m webtorch run", "--device=cpu")]
)
def test_a_worker_leaves_and_comes_back(options: tuple[str, ...]) -> None:
    said = run(str(EXAMPLES / "slow_links.py"), "--leave", "--rounds=16", *options)
    assert "is killed" in said and "is started again" in said
    workers = [int(found) for found in re.findall(r"(\d) workers", said)]
    losses = [float(found) for found in re.findall(r"loss (\d+\.\d+)", said)]
    assert set(workers) == {2, 3} and workers[-1] == 3
    assert losses[-1] < 0.3, said


@pytest.mark.long
def test_scale_measures_and_predicts() -> None:
    said = run("-m", "benchmarks.scale", "--quick")
    rows = [line for line in said.splitlines() if line.startswith(("| DDP", "| FSDP2", "| DiLoCo"))]
    assert len(rows) == 9 and "4 processes:" in said
    for row in rows:
        parts = [float(part) for part in row.split("|")[3:-1]]
        # More devices on the same links are never better.
        assert parts == sorted(parts, reverse=True) and 0 < parts[-1] <= parts[0] <= 100
