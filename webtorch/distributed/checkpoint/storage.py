"""Where checkpoints lie: what a reader and a writer are asked for. Floor 6."""

from __future__ import annotations

import abc
import os
from dataclasses import dataclass
from typing import Any

from webtorch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from webtorch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from webtorch.futures import Future

CheckpointId = str | os.PathLike[str] | None


@dataclass(frozen=True)
class WriteResult:
    """What one part became: its bytes, and where they lie."""

    index: MetadataIndex
    size_in_bytes: int
    storage_data: Any


class StorageWriter(abc.ABC):
    """Writes a checkpoint: called in the order of its methods."""

    @abc.abstractmethod
    def reset(self, checkpoint_id: CheckpointId = None) -> None:
        """Begin with another checkpoint."""

    @abc.abstractmethod
    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Begin."""

    @abc.abstractmethod
    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return what this process writes, with what the storage wants to know."""

    @abc.abstractmethod
    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Return what each process writes, with what the storage wants to know. On one process."""

    @abc.abstractmethod
    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this process's parts."""

    @abc.abstractmethod
    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write what the checkpoint says of itself: from here on it is there. On one process."""

    def abandon(self) -> None:
        """Remove what this process has written: the save has failed, here or on another process."""
        return None

    @classmethod
    @abc.abstractmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether a checkpoint may have this name here."""

    def storage_meta(self) -> StorageMeta | None:
        """Return what is noted of the call that saves."""
        return None


class StorageReader(abc.ABC):
    """Reads a checkpoint: called in the order of its methods."""

    @abc.abstractmethod
    def reset(self, checkpoint_id: CheckpointId = None) -> None:
        """Begin with another checkpoint."""

    @abc.abstractmethod
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return what the checkpoint says of itself."""

    @abc.abstractmethod
    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Begin."""

    @abc.abstractmethod
    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return what this process reads, with what the storage wants to know."""

    @abc.abstractmethod
    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return what each process reads. On one process."""

    @abc.abstractmethod
    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read this process's parts."""

    @classmethod
    @abc.abstractmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether a checkpoint may have this name here."""
