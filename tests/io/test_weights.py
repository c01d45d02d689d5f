"""Weights in several safetensors files, and in and out of modules, against the safetensors package."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import webtorch
from webtorch import nn
from webtorch.errors import DTypeError
from webtorch.io import load_model, load_safetensors, save_model, stream_safetensors
from webtorch.io.safetensors import SafetensorError


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight


def fill(model: nn.Module) -> nn.Module:
    with webtorch.no_grad():
        for p in model.parameters():
            p.copy_(webtorch.randn_like(p))
    return model


def test_tied_weights_are_in_the_file_once_and_come_back_tied(tmp_path: Path, device: str) -> None:
    model = fill(Tied().to(device))
    save_model(model, tmp_path / "m.safetensors", {"by": "me"})
    stored = safetensors.torch.load_file(tmp_path / "m.safetensors")
    assert "embed.weight" in stored and "head.weight" not in stored
    with safetensors.safe_open(tmp_path / "m.safetensors", "pt") as f:
        assert f.metadata() == {"format": "pt", "by": "me", "head.weight": "embed.weight"}
    other = Tied().to(device)
    report = load_model(other, tmp_path / "m.safetensors")
    assert report == ([], [])
    assert other.head.weight is other.embed.weight
    assert other.head.weight.tolist() == model.head.weight.tolist()
    assert other.head.weight.device.type == webtorch.device(device).type
    # The safetensors package agrees about what is missing.
    theirs = torch.nn.Module()
    theirs.embed, theirs.norm = torch.nn.Embedding(6, 4), torch.nn.BatchNorm1d(4)
    theirs.head = torch.nn.Linear(4, 6, bias=False)
    theirs.head.weight = theirs.embed.weight
    safetensors.torch.load_model(theirs, str(tmp_path / "m.safetensors"))
    assert theirs.head.weight.tolist() == model.head.weight.tolist()
    safetensors.torch.save_model(theirs, str(tmp_path / "t.safetensors"))
    again = Tied()
    load_model(again, tmp_path / "t.safetensors")
    assert again.embed.weight.tolist() == model.embed.weight.tolist()


@pytest.mark.covers("L6")
def test_shards_and_their_index(tmp_path: Path) -> None:
    model = fill(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)))
    written = save_model(model, tmp_path / "m", max_shard_size=300)
    assert len(written) == 4 and written[-1].endswith("model.safetensors.index.json")
    index = json.loads((tmp_path / "m" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(model.state_dict())
    for source in (tmp_path / "m", written[-1]):
        found = load_safetensors(source)
        assert {k: v.tolist() for k, v in found.items()} == {
            k: v.tolist() for k, v in model.state_dict().items()
        }
    assert len(save_model(model, tmp_path / "k", max_shard_size="0.3 KB")) == 4
    with pytest.raises(ValueError, match="save_model: max_shard_size='large'"):
        save_model(model, tmp_path / "k", max_shard_size="large")
    other = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)).half()
    load_model(other, tmp_path / "m")
    assert other[2].bias.tolist() == model[2].bias.half().tolist()


@pytest.mark.covers("L3")
def test_only_some_keys_open_only_their_files(tmp_path: Path) -> None:
    model = fill(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
    written = save_model(model, tmp_path / "m", max_shard_size=300)
    Path(written[1]).unlink()
    found = dict(stream_safetensors(tmp_path / "m", keys=["0.bias"], dtype=webtorch.float16))
    assert found["0.bias"].dtype is webtorch.float16 and len(found) == 1
    with pytest.raises(FileNotFoundError):
        load_safetensors(tmp_path / "m")
    with pytest.raises(KeyError, match="has no tensors"):
        load_safetensors(written[0], keys=["nothing"])


@pytest.mark.covers("L4")
def test_keys_are_renamed_on_the_way(tmp_path: Path) -> None:
    model = fill(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)))
    theirs = {
        "bert.dense.weight": torch.tensor(model[0].weight.tolist()),
        "bert.dense.bias": torch.tensor(model[0].bias.tolist()),
        "bert.LayerNorm.gamma": torch.tensor(model[1].weight.tolist()),
        "bert.LayerNorm.beta": torch.tensor(model[1].bias.tolist()),
        "bert.pooler": torch.zeros(2),
    }
    safetensors.torch.save_file(theirs, tmp_path / "m.safetensors")
    patterns = {
        r"^bert\.": "", r"^dense": "0", r"^LayerNorm": "1", r"gamma$": "weight", r"beta$": "bias",
    }  # fmt: skip
    other = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    report = load_model(other, tmp_path / "m.safetensors", strict=False, rename=patterns)
    assert report == ([], ["bert.pooler"])
    assert other[1].weight.tolist() == model[1].weight.tolist()

    def rename(key: str) -> str | None:
        names = {"dense": "0", "LayerNorm": "1", "gamma": "weight", "beta": "bias"}
        return None if "pooler" in key else ".".join(names.get(p, p) for p in key.split(".")[1:])

    again = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    assert load_model(again, tmp_path / "m.safetensors", rename=rename) == ([], [])
    assert again[0].weight.tolist() == model[0].weight.tolist()


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    save_model(nn.Linear(3, 2), tmp_path / "m.safetensors")
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        load_model(nn.Linear(4, 2), tmp_path / "m.safetensors")
    with pytest.raises(RuntimeError, match=r"(?s)Missing key.*0.weight.*Unexpected key.*bias"):
        load_model(nn.Sequential(nn.Linear(3, 2)), tmp_path / "m.safetensors")
    report = load_model(nn.Sequential(nn.Linear(3, 2)), tmp_path / "m.safetensors", strict=False)
    assert sorted(report.unexpected_keys) == ["bias", "weight"]
    eights = {"w": torch.ones(4).to(torch.float8_e4m3fn), "v": torch.ones(2, dtype=torch.bfloat16)}
    safetensors.torch.save_file(eights, tmp_path / "e.safetensors")
    with pytest.raises(DTypeError, match="'w' is float8_e4m3fn, which webtorch does not have"):
        load_safetensors(tmp_path / "e.safetensors")
    assert load_safetensors(tmp_path / "e.safetensors", keys=["v"])["v"].dtype is webtorch.bfloat16
    index = {"weight_map": {"w": "../m.safetensors"}}
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(SafetensorError, match="no name of a file beside it"):
        load_safetensors(tmp_path / "x")
    (tmp_path / "y").mkdir()
    with pytest.raises(FileNotFoundError, match="has no safetensors file"):
        load_safetensors(tmp_path / "y")


PROGRAM = """
    import sys, webtorch
    from webtorch import nn
    from webtorch.io import load_model
    webtorch.set_default_device("cpu")

    def anonymous():
        return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("RssAnon"))

    model = nn.ParameterDict({f"w{i}": nn.Parameter(webtorch.zeros(2048, 2048)) for i in range(4)})
    webtorch.realize()
    for p in model.values():
        p._storage.realize()
    before = anonymous()
    most = [0]
    load_model(model, sys.argv[1])
    print(anonymous() - before)
    assert [float(p[0, 0]) for p in model.values()] == [1.0, 2.0, 3.0, 4.0]
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux for the memory")
def test_loading_leaves_no_second_copy_in_memory(tmp_path: Path) -> None:
    tensors = {f"w{i}": torch.full((2048, 2048), i + 1.0) for i in range(4)}
    safetensors.torch.save_file(tensors, tmp_path / "m.safetensors")
    del tensors
    run: Any = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path / "m.safetensors")],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    # The parameters take 64 MiB, one of them 16: that of the last value may not be free yet.
    assert int(run.stdout) < 24 * 1024
