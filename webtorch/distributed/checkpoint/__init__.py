"""`torch.distributed.checkpoint`: checkpoints of which each process writes and reads its parts, in PyTorch's format.

state = {"model": model.state_dict(), "step": 3}
checkpoint.save(state, checkpoint_id="folder")
checkpoint.load(state, checkpoint_id="folder")
"""

from __future__ import annotations

from webtorch.distributed.checkpoint.api import CheckpointException
from webtorch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from webtorch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from webtorch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorStorageMetadata,
)
from webtorch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
)
from webtorch.distributed.checkpoint.state_dict_loader import load, load_state_dict
from webtorch.distributed.checkpoint.state_dict_saver import async_save, save, save_state_dict
from webtorch.distributed.checkpoint.storage import StorageReader, StorageWriter

__all__ = [
    "BytesStorageMetadata", "CheckpointException", "ChunkStorageMetadata", "DefaultLoadPlanner", "DefaultSavePlanner",
    "FileSystemReader", "FileSystemWriter", "LoadPlan", "LoadPlanner", "Metadata", "ReadItem", "SavePlan",
    "SavePlanner", "StorageReader", "StorageWriter", "TensorStorageMetadata", "WriteItem", "async_save", "load",
    "load_state_dict", "save", "save_state_dict",
]  # fmt: skip
