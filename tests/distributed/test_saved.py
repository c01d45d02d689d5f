"""Checkpoints of sharded models: PyTorch reads ours, we read its, on other numbers of processes."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import webtorch as torch
from tests.distributed import started
from webtorch.distributed import checkpoint
from webtorch.distributed.checkpoint import filesystem
from webtorch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp
from webtorch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
from webtorch.io.pytorch_file import CheckpointError


def _run(library: str, ranks: int, ways: str, place: Path) -> list[dict[str, Any]]:
    return started.found(
        "saved", ranks, lambda rank: (library, rank, ranks, ways, place),
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )  # fmt: skip


def _same(a: dict[str, Any], b: dict[str, Any]) -> None:
    for name in ("weights", "after"):
        assert a[name] == pytest.approx(b[name], rel=1e-5, abs=1e-6), name


def test_pytorch_reads_ours_and_we_read_pytorchs(tmp_path: Path) -> None:
    ours = _run("webtorch", 2, "train,save", tmp_path / "ours")
    theirs = _run("torch", 2, "train,save", tmp_path / "theirs")
    _same(ours[0], theirs[0])
    assert sorted(p.name for p in (tmp_path / "ours").iterdir()) == [
        ".metadata", "__0_0.distcp", "__1_0.distcp",
    ]  # fmt: skip
    for library, ranks, place in (("torch", 2, "ours"), ("webtorch", 1, "theirs")):
        for found in _run(library, ranks, "load", tmp_path / place):
            _same(found, ours[0])
            assert found["note"] == {"step": 3, "text": "here"}


@pytest.mark.long
def test_four_save_and_two_and_one_load(tmp_path: Path) -> None:
    saved = _run("webtorch", 4, "train,async", tmp_path)
    for ranks in (2, 1):
        for found in _run("webtorch", ranks, "load", tmp_path):
            _same(found, saved[0])


@pytest.mark.long
def test_whole_and_flat_states_are_pytorchs(tmp_path: Path) -> None:
    ours = _run("webtorch", 2, "train,full,offload,flat", tmp_path)
    for mine, other in zip(
        ours, _run("torch", 2, "train,full,offload,flat", tmp_path), strict=True
    ):
        _same(mine, other)
        assert (mine["names"], mine["flat"]) == (other["names"], other["flat"])


def _state(value: float) -> dict[str, Any]:
    inner = {"step": int(value), "list": [torch.ones(2) * value, 3], "none": None}
    return {
        "w": torch.arange(6.0).reshape(2, 3) * value,
        "b": torch.full((3,), value, dtype=torch.bfloat16),
        **inner,
    }


@pytest.mark.filterwarnings("ignore")
def test_one_process_saves_and_loads(tmp_path: Path) -> None:
    state, other = _state(2.0), _state(1.0)
    checkpoint.save(state, checkpoint_id=tmp_path / "a")
    checkpoint.load(other, checkpoint_id=tmp_path / "a")
    assert repr(other) == repr(state)
    assert repr(_load_state_dict_from_keys("w", checkpoint_id=tmp_path / "a")["w"]) == repr(
        state["w"]
    )
    dcp_to_torch_save(tmp_path / "a", tmp_path / "one.pt")
    assert repr(torch.load(tmp_path / "one.pt")["list"]) == repr(state["list"])
    torch_save_to_dcp(tmp_path / "one.pt", tmp_path / "b")
    third = _state(3.0)
    checkpoint.load(third, checkpoint_id=tmp_path / "b")
    assert repr(third) == repr(state)
    with pytest.raises(
        checkpoint.CheckpointException, match="Missing key in checkpoint state_dict: x"
    ):
        checkpoint.load({"x": torch.ones(1)}, checkpoint_id=tmp_path / "a")
    with pytest.raises(checkpoint.CheckpointException, match="Size mismatch"):
        checkpoint.load({"w": torch.ones(1)}, checkpoint_id=tmp_path / "a")
    part = {"w": torch.zeros(2, 3), "x": torch.zeros(1)}
    planner = checkpoint.DefaultLoadPlanner(allow_partial_load=True)
    checkpoint.load(part, checkpoint_id=tmp_path / "a", planner=planner)
    assert part["w"].tolist() == state["w"].tolist()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("where", ["parts", "metadata"])
def test_a_full_disk_leaves_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    checkpoint.save(_state(2.0), checkpoint_id=tmp_path)
    before = sorted(p.name for p in tmp_path.iterdir())

    def full(*_: object) -> None:
        """Fail as a disk does that is full."""
        raise OSError(errno.ENOSPC, "No space left on device")

    name = "_bytes_of" if where == "parts" else "encode_metadata"
    with monkeypatch.context() as patch:
        patch.setattr(filesystem, name, full)
        with pytest.raises(checkpoint.CheckpointException, match="No space left"):
            checkpoint.save(_state(5.0), checkpoint_id=tmp_path)
    found = _state(1.0)
    checkpoint.load(found, checkpoint_id=tmp_path)
    assert repr(found) == repr(_state(2.0))
    # The next one takes its place, and leaves none of its files.
    checkpoint.save(_state(3.0), checkpoint_id=tmp_path)
    checkpoint.load(found, checkpoint_id=tmp_path)
    assert repr(found) == repr(_state(3.0))
    assert len(list(tmp_path.iterdir())) == 2 == len(before)


@pytest.mark.filterwarnings("ignore")
def test_metadata_runs_nothing(tmp_path: Path) -> None:
    checkpoint.save(_state(2.0), checkpoint_id=tmp_path)
    with pytest.raises(CheckpointError, match=r"os|posix"):
        filesystem.decode_metadata(pickle.dumps(os.getcwd))
    with pytest.raises(CheckpointError):
        filesystem.decode_metadata((tmp_path / ".metadata").read_bytes()[:-20])
    (tmp_path / ".metadata").write_bytes(pickle.dumps(os.system))
    with pytest.raises(checkpoint.CheckpointException, match="cannot be read"):
        checkpoint.load(_state(1.0), checkpoint_id=tmp_path)
