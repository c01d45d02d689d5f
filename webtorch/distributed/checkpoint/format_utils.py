"""A checkpoint as one file of `torch.save`, and the other way. Floor 6."""

from __future__ import annotations

import os
from typing import Any

from webtorch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from webtorch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from webtorch.distributed.checkpoint.state_dict_loader import _load_state_dict
from webtorch.distributed.checkpoint.state_dict_saver import _save_state_dict
from webtorch.io.checkpoint import load, save


def dcp_to_torch_save(
    dcp_checkpoint_dir: str | os.PathLike[str], torch_save_path: str | os.PathLike[str]
) -> None:
    """Write all of a checkpoint as one file. On one process."""
    found: dict[str, Any] = {}
    reader = FileSystemReader(dcp_checkpoint_dir)
    _load_state_dict(found, reader, None, 0, True, _EmptyStateDictLoadPlanner())
    save(found, torch_save_path)


def torch_save_to_dcp(
    torch_save_path: str | os.PathLike[str], dcp_checkpoint_dir: str | os.PathLike[str]
) -> None:
    """Write a file of `torch.save` as a checkpoint. On one process."""
    found = load(torch_save_path, weights_only=False)
    _save_state_dict(found, FileSystemWriter(dcp_checkpoint_dir), None, 0, True, None, True)
