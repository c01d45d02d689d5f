"""Checkpoints in a folder, in PyTorch's format: a file of parts for each process, and `.metadata`, which says where
each part lies. Floor 6.

A part is what `torch.save` writes of a tensor, at an offset of a file. A checkpoint is there when its `.metadata` is:
that takes the old one's place in one step, and files of parts never have the names of those that the old one reads. So
a save that fails (a full disk, a process that is gone) leaves the old checkpoint whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import uuid
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

from webtorch.distributed.checkpoint.metadata import (
    NAMES,
    Metadata,
    MetadataIndex,
    StorageMeta,
    _StorageInfo,
)
from webtorch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from webtorch.distributed.checkpoint.storage import (
    CheckpointId,
    StorageReader,
    StorageWriter,
    WriteResult,
)
from webtorch.futures import Future
from webtorch.io import objects
from webtorch.io.checkpoint import load, save
from webtorch.io.pickle_machine import Call, Given, Writer, read
from webtorch.io.pytorch_file import CheckpointError, Saver, known_names
from webtorch.ir.lines import user_depth
from webtorch.tensors.modes import no_grad
from webtorch.tensors.tensor import Tensor

_METADATA, DEFAULT_SUFFIX, CURRENT_DCP_VERSION = ".metadata", ".distcp", "1.0.0"


@dataclasses.dataclass
class _StoragePrefix:
    """How the files of one process begin."""

    prefix: str


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


# ---- .metadata

_FULL_NAMES = {kind: name for name, kind in NAMES.items()}


def encode_metadata(metadata: Metadata) -> bytes:
    """Return the bytes of `.metadata`: a pickle, in which classes have PyTorch's names."""
    saver = Saver()

    def special(value: object) -> Any:
        """Return what writes the name of one of the classes, or a value of PyTorch's kinds."""
        name = _FULL_NAMES.get(value) if isinstance(value, type) else None
        if name is not None:
            module, _, last = name.rpartition(".")
            return lambda w: w.name(module, last)
        return saver.special(value)

    return Writer(special, objects.write).finish(metadata)


def _build(target: Any, state: Any) -> bool:
    """Set the state of an object of one of the classes; whether it is one."""
    if type(target) not in _FULL_NAMES:
        return False
    if hasattr(type(target), "__setstate__"):
        target.__setstate__(state)
    else:
        vars(target).update(state)
    return True


def decode_metadata(data: bytes, path: object = _METADATA) -> Metadata:
    """Return what the bytes of `.metadata` say. They may name no classes but those of checkpoints: nothing in them is
    run. Raises CheckpointError for others, and for what is damaged.
    """

    def refuse(message: str) -> CheckpointError:
        """Return the error."""
        return CheckpointError(f"{path} cannot be read: {message}")

    def nowhere(_: object) -> NoReturn:
        """Refuse a tensor: metadata says where they lie, and holds none."""
        raise refuse("it holds tensors")

    paths = (
        "pathlib.PosixPath",
        "pathlib.WindowsPath",
        "pathlib._local.PosixPath",
        "pathlib._local.WindowsPath",
    )
    names: dict[str, object] = {
        **known_names(),
        **{name: Given(name, kind) for name, kind in NAMES.items()},
        **{name: Call(name, Path) for name in paths},
    }
    found = read(data, names, nowhere, _build, refuse)
    if not isinstance(found, Metadata):
        raise refuse(f"it holds a {type(found).__name__}, not Metadata")
    return found


# ---- writing


def _sizes(item: WriteItem) -> int:
    return item.tensor_storage_size() or 0


def _split(bins: int, items: Sequence[WriteItem]) -> list[list[WriteItem]]:
    """Return items for so many files, which become about equally long."""
    found: list[list[WriteItem]] = [[] for _ in range(bins)]
    sizes = [0] * bins
    objects_first = sorted(items, key=lambda i: (i.type is not WriteItemType.BYTE_IO, -_sizes(i)))
    for k, item in enumerate(objects_first):
        at = k % bins if item.type is WriteItemType.BYTE_IO else sizes.index(min(sizes))
        found[at].append(item)
        sizes[at] += _sizes(item)
    return found


def _bytes_of(item: WriteItem, planner: SavePlanner) -> bytes | memoryview:
    """Return what a file holds of a part."""
    data = planner.resolve_data(item)
    if isinstance(data, io.BytesIO):
        return data.getbuffer()
    if not isinstance(data, Tensor):
        raise AssertionError("Data must be torch.Tensor for non-BYTE_IO write items")
    with no_grad():
        data = data.detach().cpu()
        if data._storage.elements != data.numel():
            # A view's file would hold all of the memory.
            data = data.clone()
        stream = io.BytesIO()
        save(data, stream)
    return stream.getbuffer()


class FileSystemWriter(StorageWriter):
    """Writes a checkpoint into a folder. `single_file_per_rank`: or a file for each part; `sync_files`: files are on
    the disk when a save ends; `thread_count`: files that are written side by side; `overwrite`: or RuntimeError where
    the folder holds a checkpoint.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        single_file_per_rank: bool = True,
        sync_files: bool = True,
        thread_count: int = 1,
        per_thread_copy_ahead: int = 10_000_000,
        cache_staged_state_dict: bool = False,
        overwrite: bool = True,
        _extensions: object = None,
        serialization_format: object = None,
    ) -> None:
        if _extensions is not None or str(serialization_format).endswith("SAFETENSORS"):
            raise NotImplementedError(
                "FileSystemWriter: webtorch writes parts as torch.save does, without extensions; "
                "torch.io.save_model(model, 'x.safetensors') writes safetensors"
            )
        self.path = Path(path)
        self.single_file_per_rank, self.sync_files = single_file_per_rank, sync_files
        self.thread_count, self.overwrite = max(thread_count, 1), overwrite
        self.save_id = str(uuid.uuid4())
        self.rank: int | None = None
        self.use_collectives = True
        # The files of this process.
        self._names: list[str] = []

    def reset(self, checkpoint_id: CheckpointId = None) -> None:
        """Begin with another checkpoint."""
        if checkpoint_id:
            self.path = Path(checkpoint_id)
        self.save_id = str(uuid.uuid4())

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Begin."""
        self.rank = kwargs.get("rank")
        self.use_collectives = kwargs.get("use_collectives", True)

    def _metadata_path(self) -> Path:
        mine = "" if self.use_collectives or self.rank is None else f"__{self.rank}"
        return self.path / f"{mine}{_METADATA}"

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Make the folder. Raises RuntimeError where it holds a checkpoint that may not be overwritten."""
        self.path.mkdir(parents=True, exist_ok=True)
        if self._metadata_path().exists():
            if not self.overwrite:
                raise RuntimeError(f"Checkpoint already exists and {self.overwrite=}.")
            warnings.warn(
                f"Detected an existing checkpoint in {self.path}, overwriting since {self.overwrite=}."
                " Past version 2.5 of PyTorch, `overwrite` will default to False. Set this variable to True to"
                " maintain this functionality or False to raise when an existing checkpoint is found.",
                stacklevel=user_depth(),
            )
        if self.rank is not None and not self.use_collectives:
            plan = dataclasses.replace(plan, storage_data=self._prefix(self.rank))
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Choose the names of the processes' files."""
        return [
            plan if plan.storage_data is not None
            else dataclasses.replace(plan, storage_data=self._prefix(rank))
            for rank, plan in enumerate(plans)
        ]  # fmt: skip

    def _prefix(self, rank: int) -> _StoragePrefix:
        """Return how a process's files begin: as none of the checkpoint that is there."""
        again = f"{self.save_id[:8]}_" if self._metadata_path().exists() else ""
        return _StoragePrefix(f"__{rank}_{again}")

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this process's files."""
        items = plan.items
        if self.single_file_per_rank:
            buckets = _split(self.thread_count, items) if items else []
        else:
            buckets = [[item] for item in items]
        names = [f"{plan.storage_data.prefix}{n}{DEFAULT_SUFFIX}" for n in range(len(buckets))]
        self._names = names
        found: list[WriteResult] = []
        with ThreadPoolExecutor(self.thread_count) as threads:
            for part in threads.map(lambda n, b: self._write(n, b, planner), names, buckets):
                found += part
        return _done(found)

    def abandon(self) -> None:
        """Remove what this process has written."""
        for name in self._names:
            with contextlib.suppress(OSError):
                (self.path / name).unlink()

    def _write(
        self, name: str, items: Sequence[WriteItem], planner: SavePlanner
    ) -> list[WriteResult]:
        found = []
        with open(self.path / name, "wb") as stream:
            for item in items:
                data, at = _bytes_of(item, planner), stream.tell()
                stream.write(data)
                info = _StorageInfo(name, at, len(data))
                found.append(WriteResult(item.index, len(data), info))
            self._sync(stream)
        return found

    def _sync(self, stream: Any) -> None:
        stream.flush()
        if self.sync_files:
            os.fsync(stream.fileno())

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Let the new checkpoint take the old one's place, and remove what only the old one has read."""
        metadata.version = CURRENT_DCP_VERSION
        metadata.storage_data = {r.index: r.storage_data for rank in results for r in rank}
        metadata.storage_meta = self.storage_meta()
        final = self._metadata_path()
        before = self._files_of(final)
        temporary = final.with_name(f"{final.name}.tmp")
        try:
            with open(temporary, "wb") as stream:
                stream.write(encode_metadata(metadata))
                self._sync(stream)
            os.replace(temporary, final)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        for name in before - {i.relative_path for i in metadata.storage_data.values()}:
            with contextlib.suppress(OSError):
                (self.path / name).unlink()

    @staticmethod
    def _files_of(path: Path) -> set[str]:
        """Return the files of a checkpoint, none where there is none that can be read."""
        try:
            found = decode_metadata(path.read_bytes(), path)
        except (OSError, CheckpointError):
            return set()
        names = {i.relative_path for i in (found.storage_data or {}).values()}
        # A name that leads out of the folder is none of a checkpoint's.
        return {n for n in names if Path(n).name == n and n.endswith(DEFAULT_SUFFIX)}

    def storage_meta(self) -> StorageMeta | None:
        """Return where and by which call it is saved."""
        return StorageMeta(checkpoint_id=self.checkpoint_id, save_id=self.save_id)

    @property
    def checkpoint_id(self) -> str | os.PathLike[str]:
        """The folder."""
        return self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it is a path into which files can be written."""
        if isinstance(checkpoint_id, Path):
            return True
        if "://" in str(checkpoint_id):
            return False
        parents = Path(checkpoint_id).absolute().parents
        return any(p.exists() and os.access(p, os.W_OK) for p in parents)


# ---- reading


class FileSystemReader(StorageReader):
    """Reads a checkpoint from a folder."""

    def __init__(self, path: str | os.PathLike[str], _extension_registry: object = None) -> None:
        self.path = Path(path)
        self.storage_data: dict[MetadataIndex, _StorageInfo] = {}
        self.load_id = str(uuid.uuid4())
        self.rank: int | None = None

    def reset(self, checkpoint_id: CheckpointId = None) -> None:
        """Begin with another checkpoint."""
        self.storage_data = {}
        if checkpoint_id:
            self.path = Path(checkpoint_id)
        self.load_id = str(uuid.uuid4())

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return what the checkpoint says of itself."""
        rank = kwargs.get("rank")
        path = self.path / (_METADATA if rank is None else f"__{rank}{_METADATA}")
        found = decode_metadata(path.read_bytes(), path)
        if found.storage_meta is None:
            found.storage_meta = StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Begin."""
        if metadata.storage_data is None:
            raise AssertionError("storage_data must not be None in metadata")
        self.storage_data, self.rank = metadata.storage_data, kwargs.get("rank")

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read this process's parts, file by file."""
        files: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            files.setdefault(self.storage_data[item.storage_index].relative_path, []).append(item)
        for name, items in files.items():
            with open(self.path / name, "rb") as stream:
                for item, data in self._parts(stream, items):
                    if item.type is LoadItemType.BYTE_IO:
                        planner.load_bytes(item, io.BytesIO(data))
                    else:
                        self._read_tensor(item, data, planner)
        return _done(None)

    def _parts(self, stream: Any, items: Sequence[ReadItem]) -> Iterator[tuple[ReadItem, bytes]]:
        """Give each item with its bytes; several of one part read that once."""
        known: tuple[int, bytes] | None = None
        for item in sorted(items, key=lambda i: self.storage_data[i.storage_index].offset):
            info = self.storage_data[item.storage_index]
            if info.transform_descriptors:
                raise NotImplementedError(
                    f"FileSystemReader: {self.path / info.relative_path} was written by extensions "
                    f"({', '.join(info.transform_descriptors)}), which webtorch does not have"
                )
            if known is None or known[0] != info.offset:
                stream.seek(info.offset)
                known = info.offset, stream.read(info.length)
            yield item, known[1]

    @staticmethod
    def _read_tensor(item: ReadItem, data: bytes, planner: LoadPlanner) -> None:
        saved = load(io.BytesIO(data), map_location="cpu", weights_only=True)
        with no_grad():
            for dim, (start, length) in enumerate(
                zip(item.storage_offsets, item.lengths, strict=True)
            ):
                saved = saved.narrow(dim, start, length)
            target = planner.resolve_tensor(item).detach()
            if target.shape != saved.shape:
                raise AssertionError(
                    f"req {item.storage_index} mismatch sizes {target.shape} vs {saved.shape}"
                )
            target.copy_(saved)
        planner.commit_tensor(item, target)

    @property
    def checkpoint_id(self) -> str | os.PathLike[str]:
        """The folder."""
        return self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it is a path."""
        return FileSystemWriter.validate_checkpoint_id(checkpoint_id)
