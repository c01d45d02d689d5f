"""Who saves and loads what: what a planner is asked for. Floor 6."""

from __future__ import annotations

import abc
import io
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from webtorch.distributed.checkpoint.metadata import (
    STATE_DICT_TYPE,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
)
from webtorch.ir.view import numel
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor


class WriteItemType(Enum):
    """What is written: a whole tensor, a part of one, or another object."""

    TENSOR = auto()
    SHARD = auto()
    BYTE_IO = auto()


class LoadItemType(Enum):
    """What is read: a part of a tensor, or another object."""

    TENSOR = auto()
    BYTE_IO = auto()


@dataclass(frozen=True)
class BytesIOWriteData:
    """How long an object is that is written."""

    nbytes: int


@dataclass(frozen=True)
class TensorWriteData:
    """What is written of a tensor: its part, what it is like, and the sizes of the whole."""

    chunk: ChunkStorageMetadata
    properties: TensorProperties
    size: Size


@dataclass(frozen=True)
class WriteItem:
    """What one process writes of one entry."""

    index: MetadataIndex
    type: WriteItemType
    bytes_io_data: BytesIOWriteData | None = None
    tensor_data: TensorWriteData | None = None

    def tensor_storage_size(self) -> int | None:
        """Return how many bytes the whole tensor has; None of other objects."""
        if self.tensor_data is None:
            return None
        return numel(self.tensor_data.size) * self.tensor_data.properties.dtype.itemsize


@dataclass(frozen=True)
class ReadItem:
    """What one process reads of one part of an entry, and where in its own part it belongs."""

    type: LoadItemType
    dest_index: MetadataIndex
    dest_offsets: Size
    storage_index: MetadataIndex
    storage_offsets: Size
    lengths: Size


@dataclass(frozen=True)
class SavePlan:
    """What one process writes."""

    items: list[WriteItem]
    storage_data: Any = None
    planner_data: Any = None
    usable: bool = True


@dataclass
class LoadPlan:
    """What one process reads."""

    items: list[ReadItem]
    storage_data: Any = None
    planner_data: Any = None


class SavePlanner(abc.ABC):
    """Chooses what each process writes: called in the order of its methods."""

    @abc.abstractmethod
    def set_up_planner(
        self,
        state_dict: STATE_DICT_TYPE,
        storage_meta: StorageMeta | None = None,
        is_coordinator: bool = False,
    ) -> None:
        """Take what is to be saved."""

    @abc.abstractmethod
    def create_local_plan(self) -> SavePlan:
        """Return what this process could write."""

    @abc.abstractmethod
    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Return what each process writes, and what the checkpoint says of itself. On one process."""

    @abc.abstractmethod
    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """Return what this process writes."""

    @abc.abstractmethod
    def resolve_data(self, write_item: WriteItem) -> Tensor | io.BytesIO:
        """Return the values of what is written."""


class LoadPlanner:
    """Chooses what each process reads: called in the order of its methods."""

    @abc.abstractmethod
    def set_up_planner(
        self,
        state_dict: STATE_DICT_TYPE,
        metadata: Metadata | None = None,
        is_coordinator: bool = False,
    ) -> None:
        """Take what is to be filled, and what the checkpoint says of itself."""

    @abc.abstractmethod
    def create_local_plan(self) -> LoadPlan:
        """Return what this process reads."""

    @abc.abstractmethod
    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        """Return what each process reads. On one process."""

    @abc.abstractmethod
    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        """Return what this process reads."""

    @abc.abstractmethod
    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Take an object that was read."""

    def resolve_bytes(self, read_item: ReadItem) -> io.BytesIO:
        """Return a stream that an object is read into."""
        raise NotImplementedError("LoadPlanner.resolve_bytes is not implemented")

    @abc.abstractmethod
    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        """Return the part of a tensor that is read into."""

    @abc.abstractmethod
    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """Take notice that a part has been read."""
