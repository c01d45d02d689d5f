"""Several processes: what collectives give on the device, and models that train on parts of a batch."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.pytorch.ranks import COLLECTIVES, MODELS, RANKS
from webtorch_autoload.device import module

ROOT = Path(__file__).parents[2]
Found = list[dict[str, Any]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each rank found."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "tests.pytorch.ranks", str(folder)]
    environment = {**os.environ, "WEBTORCH_PYTORCH_ENGINE": "cpu", "LOCAL_WORLD_SIZE": str(RANKS)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_are_those_of_the_cpu(found: Found, name: str) -> None:
    for each in found:
        here, there = each[name]
        assert there == here


def test_sums_that_gloo_has_not_on_the_cpu(found: Found) -> None:
    for each in found:
        assert each["int16"] == [3, 5, 7]
        assert each["mean of integers"] == [1, 2, 3]
        assert each["mean"] == [1.5, 2.5, 3.5]


@pytest.mark.parametrize("kind", MODELS)
def test_parts_of_a_batch_train_as_the_whole(found: Found, kind: str) -> None:
    # Gradients that travel as bfloat16 have 8 bits.
    near = {"bfloat16": 2e-2, "PowerSGD": 1e-4}.get(kind, 1e-6)
    assert all(each[kind] <= near for each in found)


@pytest.mark.parametrize("kind", ["unused", "static graph", "norm", "DTensor"])
def test_modules_of_several_processes_are_those_of_the_cpu(found: Found, kind: str) -> None:
    assert all(each[kind] <= 2e-6 for each in found)


def test_a_process_of_several_has_a_device_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match=r"there is one WebGPU device, number 0$"):
        torch.webgpu.set_device(1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    torch.webgpu.set_device(1)
    assert module.device_count() in (0, 2)
    with pytest.raises(RuntimeError, match="which is also number 1, as this is process 1 of its"):
        torch.webgpu.set_device(2)


def test_a_group_that_sends_nothing_leaves_tensors_as_they_are() -> None:
    fake = importlib.import_module("torch.testing._internal.distributed.fake_pg")
    dist.init_process_group("fake", rank=0, world_size=4, store=fake.FakeStore())
    try:
        x = torch.arange(3.0, device="webgpu")
        dist.all_reduce(x)
        assert x.tolist() == [0.0, 1.0, 2.0]
        layer = torch.nn.Linear(8, 8, device="webgpu")
        importlib.import_module("torch.distributed.fsdp").fully_shard(layer)
        layer(torch.ones(2, 8, device="webgpu")).sum().backward()
        assert layer.bias.grad.to_local().shape == (2,)
    finally:
        dist.destroy_process_group()
