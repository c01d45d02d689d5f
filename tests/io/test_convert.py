"""Weights from one format to another, by the function and by `webtorch convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import webtorch
from webtorch.cli import main
from webtorch.io import ConvertError, convert, load_gguf, load_safetensors, read_weights


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A file that PyTorch wrote, as training loops write them."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    path = tmp_path / "model.pt"
    torch.save({"state_dict": model.state_dict(), "epoch": 3, "name": "x"}, path)
    return path


def same(found: dict[str, Any], path: Path) -> None:
    wanted = torch.load(path)["state_dict"]
    assert sorted(found) == sorted(wanted)
    for name, tensor in wanted.items():
        assert found[name].tolist() == tensor.tolist(), name


@pytest.mark.covers("L10")
@pytest.mark.parametrize("ending", [".safetensors", ".pth", ".gguf"])
def test_a_checkpoint_goes_there_and_back(ending: str, checkpoint: Path, tmp_path: Path) -> None:
    keep = r"weight|bias|mean|var" if ending == ".gguf" else None
    there, back = tmp_path / f"there{ending}", tmp_path / "back.pt"
    convert(checkpoint, there, keep=keep)
    convert(there, back)
    wanted = torch.load(checkpoint)["state_dict"]
    found = torch.load(back)
    assert sorted(found) == sorted(k for k in wanted if not keep or "num_batches" not in k)
    for name, tensor in found.items():
        assert tensor.dtype == wanted[name].dtype and torch.equal(tensor, wanted[name]), name


def test_other_programs_read_what_is_written(checkpoint: Path, tmp_path: Path) -> None:
    reference = pytest.importorskip("safetensors.torch")
    convert(checkpoint, tmp_path / "new.safetensors")
    same(reference.load_file(tmp_path / "new.safetensors"), checkpoint)
    convert(checkpoint, tmp_path / "new.pt")
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    model.load_state_dict(torch.load(tmp_path / "new.pt"))


def test_the_command_renames_casts_and_picks(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "half.safetensors"
    words = [
        "--dtype",
        "float16",
        "--rename",
        r"^0\.",
        "first.",
        "--rename",
        "weight",
        "w",
        "--keep",
        r"^0",
    ]
    assert main(["convert", str(checkpoint), str(target), *words]) == 0
    assert "2 tensors, 16 numbers" in capsys.readouterr().out
    found = load_safetensors(target)
    assert sorted(found) == ["first.bias", "first.w"]
    assert all(t.dtype is webtorch.float16 for t in found.values())
    assert main(["convert", str(checkpoint), str(tmp_path / "x.gguf"), "--keep", "weight"]) == 0
    assert sorted(load_gguf(tmp_path / "x.gguf").tensors) == ["0.weight", "1.weight"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["x.onnx"], "known by their endings"),
        (["x.pt", "--dtype", "int8"], "give float32"),
        (["x.pt", "--keep", "nothing"], "no name has 'nothing'"),
        (["x.pt", "--rename", "^.*$", "same"], "two tensors would be called 'same'"),
    ],
)
def test_what_cannot_be_done_is_said(
    words: list[str],
    said: str,
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["convert", str(checkpoint), str(tmp_path / words[0]), *words[1:]]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / words[0]).exists()


@pytest.mark.parametrize("nn", [torch.nn, webtorch.nn])
def test_a_saved_model_is_refused_in_a_line(
    nn: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.pt"
    library = torch if nn is torch.nn else webtorch
    library.save({"model": nn.Sequential(nn.Linear(2, 1))}, path)
    assert main(["convert", str(path), str(tmp_path / "x.safetensors")]) == 2
    said = capsys.readouterr().err
    assert "container.Sequential" in said and "save `model.state_dict()`" in said
    assert said.count("\n") == 1


def test_nested_checkpoints_become_names_with_points(tmp_path: Path) -> None:
    path = tmp_path / "training.pt"
    moments = [{"m": webtorch.ones(2)}, {"m": webtorch.zeros(2), "step": 4}]
    webtorch.save({"model": {"w": webtorch.arange(3)}, "moments": moments}, path)
    assert sorted(read_weights(path)) == ["model.w", "moments.0.m", "moments.1.m"]
    webtorch.save({"step": 4}, path)
    with pytest.raises(ConvertError, match="holds no tensors"):
        read_weights(path)
