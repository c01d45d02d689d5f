"""What a checkpoint says of itself: PyTorch's classes, whose names stand in its file. Floor 6."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType
from webtorch.tensors.formats import layout as Layout
from webtorch.tensors.formats import memory_format as MemoryFormat
from webtorch.tensors.formats import strided
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor


@dataclass
class ChunkStorageMetadata:
    """A part of a tensor: where it begins in the whole, and its sizes."""

    offsets: Size
    sizes: Size


class _MEM_FORMAT_ENCODING(Enum):
    """How a tensor lies in memory, as files say it."""

    TORCH_CONTIGUOUS_FORMAT = 0
    TORCH_CHANNELS_LAST = 1
    TORCH_PRESERVE_FORMAT = 2


_FORMATS: tuple[MemoryFormat, ...] = (
    webtorch.contiguous_format,
    webtorch.channels_last,
    webtorch.preserve_format,
)


@dataclass
class TensorProperties:
    """What a tensor is like beside its sizes; all but the dtype is of no use any more."""

    dtype: DType = field(default_factory=webtorch.get_default_dtype)
    layout: Layout = field(default=strided)
    requires_grad: bool = False
    memory_format: MemoryFormat = field(default=webtorch.contiguous_format)
    pin_memory: bool = False

    def __getstate__(self) -> tuple[object, ...]:
        """Return what a file holds."""
        if self.memory_format not in _FORMATS:
            raise RuntimeError(f"Invalid torch.memory_format: {self.memory_format}")
        encoded = _MEM_FORMAT_ENCODING(_FORMATS.index(self.memory_format))
        return self.dtype, self.layout, self.requires_grad, encoded, self.pin_memory

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Take what a file holds."""
        self.dtype, self.layout, self.requires_grad, encoded, self.pin_memory = state
        self.memory_format = _FORMATS[encoded.value]

    @staticmethod
    def create_from_tensor(tensor: Tensor) -> TensorProperties:
        """Return those of a tensor."""
        return TensorProperties(tensor.dtype, tensor.layout, tensor.requires_grad)


@dataclass
class TensorStorageMetadata:
    """A tensor of a checkpoint: what it is like, and its parts."""

    properties: TensorProperties
    size: Size
    chunks: list[ChunkStorageMetadata]


@dataclass
class BytesStorageMetadata:
    """An object of a checkpoint that is no tensor."""


STORAGE_TYPES = TensorStorageMetadata | BytesStorageMetadata
STATE_DICT_TYPE = dict[str, Any]


@dataclass
class StorageMeta:
    """Where a checkpoint was written, and by which calls."""

    checkpoint_id: str | os.PathLike[str] | None = None
    save_id: str | None = None
    load_id: str | None = None
    modules: list[str] = field(default_factory=list)


@dataclass
class Metadata:
    """A whole checkpoint: its entries by name, and where each part lies."""

    state_dict_metadata: dict[str, STORAGE_TYPES]
    # The path of each entry in nested dicts and lists.
    planner_data: Any = None
    storage_data: Any = None
    storage_meta: StorageMeta | None = None
    version: str | None = None


@dataclass(frozen=True)
class MetadataIndex:
    """A part of an entry. `index` is a hint, its number among the parts."""

    fqn: str
    offset: Size | None = None
    index: int | None = field(hash=False, compare=False, default=None)

    def __init__(
        self, fqn: str, offset: Sequence[int] | None = None, index: int | None = None
    ) -> None:
        """Name a part by where it begins; None: the entry."""
        object.__setattr__(self, "fqn", fqn)
        object.__setattr__(self, "index", index)
        object.__setattr__(self, "offset", None if offset is None else Size(offset))


@dataclass
class _StorageInfo:
    """Where a part lies: a file of the checkpoint's folder, and bytes in it."""

    relative_path: str
    offset: int
    length: int
    transform_descriptors: Sequence[str] | None = None

    def __getstate__(self) -> dict[str, object]:
        """Return what a file holds."""
        return {k: v for k, v in self.__dict__.items() if v is not None}


# The classes by their full names in files.
NAMES: dict[str, type] = {
    **{
        f"torch.distributed.checkpoint.metadata.{kind.__name__}": kind
        for kind in (
            ChunkStorageMetadata, TensorProperties, TensorStorageMetadata, BytesStorageMetadata, StorageMeta, Metadata,
            MetadataIndex, _MEM_FORMAT_ENCODING,
        )
    },
    "torch.distributed.checkpoint.filesystem._StorageInfo": _StorageInfo,
}  # fmt: skip
