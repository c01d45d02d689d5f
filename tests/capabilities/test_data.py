"""Capability rows L: files and batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import webtorch
from tests.capabilities.same import values
from webtorch.io import safetensors

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")

nn = webtorch.nn


@pytest.mark.covers("L1", "L2")
def test_weights_travel_to_and_from_other_programs(device: str, tmp_path: Path) -> None:
    reference = pytest.importorskip("safetensors.torch")
    layer = nn.Linear(3, 2).to(device)
    webtorch.save(layer.state_dict(), tmp_path / "ours.safetensors")
    theirs = reference.load_file(tmp_path / "ours.safetensors")
    assert theirs["weight"].tolist() == layer.weight.tolist()
    changed = {k: v * 2 for k, v in theirs.items()}
    reference.save_file(changed, tmp_path / "theirs.safetensors")
    layer.load_state_dict(webtorch.load(tmp_path / "theirs.safetensors", map_location=device))
    assert layer.weight.tolist() == changed["weight"].tolist()
    assert layer.weight.device.type == device


@pytest.mark.covers("L3")
def test_one_tensor_of_a_file_is_read_without_the_others(tmp_path: Path) -> None:
    path = tmp_path / "two.safetensors"
    webtorch.save({"a": webtorch.zeros(100), "b": webtorch.arange(3.0)}, path)
    header = safetensors.read_header(path)
    assert header.tensors["b"].shape == (3,)
    record = safetensors.load_file(path)["b"]
    assert torch.frombuffer(bytearray(record.data), dtype=torch.float32).tolist() == [0, 1, 2]


@pytest.mark.covers("L4")
def test_keys_are_renamed_at_load(tmp_path: Path) -> None:
    path = tmp_path / "old.safetensors"
    old: Any = {"fc.kernel": values(2, 3).float(), "fc.offset": values(2).float()}
    webtorch.save({k: webtorch.tensor(v.tolist()) for k, v in old.items()}, path)
    layer = nn.Linear(3, 2)
    names = {"fc.kernel": "weight", "fc.offset": "bias"}

    def rename(module: Any, state: dict[str, Any], *_: Any) -> None:
        for key in list(state):
            state[names[key]] = state.pop(key)

    layer.register_load_state_dict_pre_hook(rename)
    assert str(layer.load_state_dict(webtorch.load(path))) == "<All keys matched successfully>"
    assert layer.weight.tolist() == old["fc.kernel"].tolist()


@pytest.mark.covers("L8")
def test_batches(device: str) -> None:
    from webtorch.utils.data import DataLoader, TensorDataset, random_split

    webtorch.manual_seed(0)
    x = webtorch.arange(10, device=device)
    train, rest = random_split(TensorDataset(x, x * x), [7, 3])
    assert len(train) == 7 and len(rest) == 3
    batches = list(DataLoader(train, batch_size=3, shuffle=True, num_workers=2))
    assert [len(a) for a, _ in batches] == [3, 3, 1]
    seen = [v for a, _ in batches for v in a.tolist()]
    assert len(set(seen)) == 7
    assert all((a * a).tolist() == b.tolist() and a.device.type == device for a, b in batches)


@pytest.mark.covers("L9")
def test_all_parameters_go_up_and_come_back(need: Any) -> None:
    need("webgpu")
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    before = {k: v.tolist() for k, v in model.state_dict().items()}
    model.to("webgpu")
    assert {p.device.type for p in model.state_dict().values()} == {"webgpu"}
    assert {k: v.cpu().tolist() for k, v in model.state_dict().items()} == before
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(vector * 0, model.parameters())
    assert model[0].weight.abs().sum().item() == 0
