"""The planners that are used where none is given: each process writes and reads its own parts. Floor 6."""

from __future__ import annotations

import dataclasses
import io
from collections import ChainMap
from typing import Any

from webtorch.distributed.checkpoint.metadata import (
    STATE_DICT_TYPE,
    STORAGE_TYPES,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from webtorch.distributed.checkpoint.nested import Path, flatten_state_dict, set_element
from webtorch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from webtorch.distributed.tensor import DTensor
from webtorch.distributed.tensor._dtensor_spec import compute_local_shape_and_global_offset
from webtorch.functions.creation import empty
from webtorch.io.checkpoint import load, save
from webtorch.ir.view import numel
from webtorch.tensors.modes import no_grad
from webtorch.tensors.size import Size
from webtorch.tensors.tensor import Tensor

# ---- parts


def _chunk(x: Tensor) -> ChunkStorageMetadata:
    """Return which part of a whole tensor this process has."""
    if isinstance(x, DTensor):
        sizes, offsets = compute_local_shape_and_global_offset(x.shape, x.device_mesh, x.placements)
        return ChunkStorageMetadata(Size(offsets), Size(sizes))
    return ChunkStorageMetadata(Size([0] * x.ndim), Size(x.shape))


def _is_here(x: object) -> bool:
    """Whether this process has a part of an entry."""
    return not isinstance(x, DTensor) or x.device_mesh.get_coordinate() is not None


def _write_item(name: str, value: object) -> WriteItem:
    if not isinstance(value, Tensor):
        return WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO)
    chunk = _chunk(value)
    kind = WriteItemType.SHARD if isinstance(value, DTensor) else WriteItemType.TENSOR
    data = TensorWriteData(chunk, TensorProperties.create_from_tensor(value), Size(value.shape))
    return WriteItem(MetadataIndex(name, chunk.offsets), kind, tensor_data=data)


def _overlap(a: ChunkStorageMetadata, b: ChunkStorageMetadata) -> tuple[Size, Size, Size] | None:
    """Return where what two parts share begins in each, and its sizes; None where they share nothing."""
    in_a, in_b, sizes = [], [], []
    for a0, an, b0, bn in zip(a.offsets, a.sizes, b.offsets, b.sizes, strict=True):
        start, end = max(a0, b0), min(a0 + an, b0 + bn)
        if end <= start:
            return None
        in_a.append(start - a0)
        in_b.append(start - b0)
        sizes.append(end - start)
    return Size(in_a), Size(in_b), Size(sizes)


def create_read_items_for_chunk_list(
    fqn: str, checkpoint_md: TensorStorageMetadata, local_chunks: list[ChunkStorageMetadata]
) -> list[ReadItem]:
    """Return what is read of which saved parts to fill these."""
    found = []
    for k, mine in enumerate(local_chunks):
        for number, saved in enumerate(checkpoint_md.chunks):
            shared = _overlap(saved, mine)
            if shared is not None:
                found.append(
                    ReadItem(
                        LoadItemType.TENSOR, MetadataIndex(fqn, mine.offsets, k), shared[1],
                        MetadataIndex(fqn, saved.offsets, number), shared[0], shared[2],
                    )
                )  # fmt: skip
    return found


def _narrowed(x: Tensor, offsets: Size, lengths: Size) -> Tensor:
    for dim, (start, length) in enumerate(zip(offsets, lengths, strict=True)):
        if length != x.shape[dim]:
            x = x.narrow(dim, start, length)
    return x


def _part(value: Any, index: MetadataIndex) -> Any:
    """Return this process's part of an entry. Raises ValueError for a part that it does not have."""
    if not isinstance(value, Tensor):
        return value
    if index.offset is not None and _chunk(value).offsets != index.offset:
        raise ValueError(f"Could not find shard at '{index.offset}' for FQN: '{index.fqn}'")
    return value._local_tensor if isinstance(value, DTensor) else value


# ---- saving


def create_default_local_save_plan(state_dict: dict[str, Any], is_coordinator: bool) -> SavePlan:
    """Return all parts that this process has; who writes what several have is chosen later."""
    return SavePlan([_write_item(name, x) for name, x in state_dict.items() if _is_here(x)])


def dedup_save_plans(
    all_plans: list[SavePlan], save_to_lowest_rank: bool = False
) -> list[SavePlan]:
    """Return plans in which each part is written by one process: that which has the least to write so far."""
    holders: dict[MetadataIndex, list[int]] = {}
    items: dict[MetadataIndex, WriteItem] = {}
    for rank, plan in enumerate(all_plans):
        for item in plan.items:
            holders.setdefault(item.index, []).append(rank)
            items[item.index] = item
    sizes = [0] * len(all_plans)
    chosen: dict[MetadataIndex, int] = {}
    for index, ranks in holders.items():
        rank = min(ranks) if save_to_lowest_rank else min(ranks, key=lambda r: sizes[r])
        chosen[index] = rank
        sizes[rank] += items[index].tensor_storage_size() or 1
    return [
        dataclasses.replace(plan, items=[i for i in plan.items if chosen[i.index] == rank])
        for rank, plan in enumerate(all_plans)
    ]


def create_default_global_save_plan(
    all_plans: list[SavePlan], rewrite_index_hints: bool = True
) -> tuple[list[SavePlan], Metadata]:
    """Return the plans with parts numbered, and what the checkpoint says of itself."""
    found: dict[str, STORAGE_TYPES] = {}
    plans = []
    for plan in all_plans:
        items = []
        for item in plan.items:
            name, data = item.index.fqn, item.tensor_data
            if data is None:
                found[name] = BytesStorageMetadata()
                items.append(item)
                continue
            whole = found.setdefault(name, TensorStorageMetadata(data.properties, data.size, []))
            if not isinstance(whole, TensorStorageMetadata):
                raise AssertionError(f"{name} is a tensor on one process and none on another")
            if rewrite_index_hints:
                numbered = dataclasses.replace(item.index, index=len(whole.chunks))
                item = dataclasses.replace(item, index=numbered)
            items.append(item)
            whole.chunks.append(data.chunk)
        plans.append(dataclasses.replace(plan, items=items))
    return plans, Metadata(found)


def _faults(plans: list[SavePlan], metadata: Metadata) -> list[str]:
    """Return what is wrong with the parts of tensors: what lies outside, overlaps, or is missing."""
    found = []
    for name, whole in metadata.state_dict_metadata.items():
        if not isinstance(whole, TensorStorageMetadata) or not whole.size:
            continue
        for k, chunk in enumerate(whole.chunks):
            ends = [o + s for o, s in zip(chunk.offsets, chunk.sizes, strict=True)]
            if any(end > size for end, size in zip(ends, whole.size, strict=True)):
                found.append(
                    f"key:{name} has out of bounds chunk: tensor-size:{whole.size} chunk: {chunk}"
                )
            found += [
                f"key:{name} has overlapping chunks: {chunk} {other}"
                for other in whole.chunks[:k]
                if _overlap(chunk, other) is not None
            ]
        volume, parts = numel(whole.size), sum(numel(c.sizes) for c in whole.chunks)
        if len(plans) > 1 and parts != volume:
            found.append(f"key:{name} invalid fill tensor-volume: {volume} chunks-volume: {parts}")
    return found


class DefaultSavePlanner(SavePlanner):
    """Each process writes the parts that it has; of what several have, one. `flatten_state_dict`: nested dicts become
    entries by their paths.
    """

    def __init__(
        self,
        flatten_state_dict: bool = True,
        flatten_sharded_tensors: bool = True,
        dedup_replicated_tensors: bool | None = None,
        dedup_save_to_lowest_rank: bool = False,
        enable_plan_caching: bool = False,
    ) -> None:
        self.flatten_state_dict = flatten_state_dict
        self.dedup_save_to_lowest_rank = dedup_save_to_lowest_rank
        self.mappings: dict[str, Path] = {}

    def set_up_planner(
        self,
        state_dict: STATE_DICT_TYPE,
        storage_meta: StorageMeta | None = None,
        is_coordinator: bool = False,
    ) -> None:
        """Take what is to be saved."""
        if self.flatten_state_dict:
            state_dict, self.mappings = flatten_state_dict(state_dict)
        self.state_dict, self.is_coordinator = state_dict, is_coordinator

    def create_local_plan(self) -> SavePlan:
        """Return the parts that this process has."""
        plan = create_default_local_save_plan(self.state_dict, self.is_coordinator)
        if self.flatten_state_dict:
            plan = dataclasses.replace(plan, planner_data=self.mappings)
        self.plan = plan
        return plan

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Return who writes what. Raises ValueError where parts do not make up the whole."""
        plans = dedup_save_plans(all_plans, self.dedup_save_to_lowest_rank)
        plans, metadata = create_default_global_save_plan(plans)
        if self.flatten_state_dict:
            paths = dict(ChainMap(*[p.planner_data for p in plans]))
            metadata = dataclasses.replace(metadata, planner_data=paths)
        faults = _faults(plans, metadata)
        if faults:
            raise ValueError(f"Failed to validate global plan: {'; '.join(faults)[:500]}")
        self.global_plan, self.metadata = plans, metadata
        return plans, metadata

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """Return what this process writes."""
        self.plan = new_plan
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> Tensor | io.BytesIO:
        """Return a part, or an object as bytes."""
        return self.transform_object(write_item, self.lookup_object(write_item.index))

    def lookup_object(self, index: MetadataIndex) -> Any:
        """Return what is written by a name. Raises ValueError where there is none."""
        if index.fqn not in self.state_dict:
            raise ValueError(f"Could not find FQN: '{index.fqn}'")
        return _part(self.state_dict[index.fqn], index)

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:
        """Return what is written of an object: bytes of what is no tensor."""
        if write_item.type is WriteItemType.BYTE_IO:
            stream = io.BytesIO()
            save(object, stream)
            stream.seek(0)
            return stream
        return object


# ---- loading


def create_default_local_load_plan(
    state_dict: dict[str, Any], metadata: Metadata, strict: bool = True
) -> LoadPlan:
    """Return what fills this process's parts. Raises RuntimeError for an entry that the checkpoint does not have
    (`strict`), ValueError for one of other sizes.
    """
    found: list[ReadItem] = []
    for name, value in state_dict.items():
        saved = metadata.state_dict_metadata.get(name)
        if saved is None:
            if strict:
                raise RuntimeError(f"Missing key in checkpoint state_dict: {name}.")
            continue
        if isinstance(saved, BytesStorageMetadata):
            index, nothing = MetadataIndex(name), Size([0])
            found.append(ReadItem(LoadItemType.BYTE_IO, index, nothing, index, nothing, nothing))
            continue
        if not isinstance(value, Tensor):
            raise ValueError(
                f"Invalid checkpoint metadata for {name}, "
                f"expected BytesStorageMetadata but found {type(saved)}"
            )
        if tuple(saved.size) != tuple(value.shape):
            raise ValueError(
                f"Size mismatch between saved {saved.size} and current: {value.shape} for {name}"
            )
        if _is_here(value):
            found += create_read_items_for_chunk_list(name, saved, [_chunk(value)])
    return LoadPlan(found)


def create_default_global_load_plan(all_plans: list[LoadPlan]) -> list[LoadPlan]:
    """Return the plans: each process reads by itself."""
    return all_plans


class DefaultLoadPlanner(LoadPlanner):
    """Each process reads what its parts need. `allow_partial_load`: entries that are missing stay as they are."""

    def __init__(
        self,
        flatten_state_dict: bool = True,
        flatten_sharded_tensors: bool = True,
        allow_partial_load: bool = False,
    ) -> None:
        self.flatten_state_dict = flatten_state_dict
        self.allow_partial_load = allow_partial_load
        self.original_state_dict: STATE_DICT_TYPE = {}
        self.mappings: dict[str, Path] = {}

    def set_up_planner(
        self,
        state_dict: STATE_DICT_TYPE,
        metadata: Metadata | None = None,
        is_coordinator: bool = False,
    ) -> None:
        """Take what is to be filled."""
        self.original_state_dict = state_dict
        if self.flatten_state_dict:
            state_dict, self.mappings = flatten_state_dict(state_dict)
        self.state_dict, self.metadata, self.is_coordinator = state_dict, metadata, is_coordinator

    def create_local_plan(self) -> LoadPlan:
        """Return what fills this process's parts."""
        assert self.metadata is not None
        return create_default_local_load_plan(
            self.state_dict, self.metadata, not self.allow_partial_load
        )

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans."""
        return create_default_global_load_plan(global_plan)

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        """Return the plan."""
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Put an object in its place. It may be of any class: load what you trust."""
        name, found = read_item.dest_index.fqn, load(value, weights_only=False)
        if self.flatten_state_dict:
            set_element(self.original_state_dict, self.mappings[name], found)
        else:
            self.state_dict[name] = found

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        """Return the part of a tensor that is read into."""
        return self.transform_tensor(read_item, self.lookup_tensor(read_item.dest_index))

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """Do nothing: it was read in its place."""

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        """Return this process's part of a tensor."""
        found: Tensor = _part(self.state_dict[index.fqn], index)
        return found

    def transform_tensor(self, read_item: ReadItem, tensor: Tensor) -> Tensor:
        """Return the part of a tensor that an item is of."""
        with no_grad():
            return _narrowed(tensor.detach(), read_item.dest_offsets, read_item.lengths)


class _EmptyStateDictLoadPlanner(DefaultLoadPlanner):
    """Fills an empty dict with all that a checkpoint has, or with the entries of some names."""

    def __init__(self, keys: set[str] | None = None, *args: Any, **kwargs: Any) -> None:
        self.keys = keys
        super().__init__(*args, **kwargs)

    def _wants(self, name: str, metadata: Metadata) -> bool:
        if self.keys is None or name in self.keys:
            return True
        path = (metadata.planner_data or {}).get(name, ())
        return any(".".join(map(str, path[:n])) in self.keys for n in range(1, len(path) + 1))

    def set_up_planner(
        self,
        state_dict: STATE_DICT_TYPE,
        metadata: Metadata | None = None,
        is_coordinator: bool = False,
    ) -> None:
        """Make what the checkpoint has. Raises AssertionError for a dict that is not empty."""
        if state_dict:
            raise AssertionError("not state_dict")
        assert metadata is not None
        for name, saved in metadata.state_dict_metadata.items():
            if self._wants(name, metadata):
                value: object = saved
                if isinstance(saved, TensorStorageMetadata):
                    value = empty(tuple(saved.size), dtype=saved.properties.dtype)
                paths = metadata.planner_data or {}
                set_element(state_dict, paths.get(name, (name,)), value)
        super().set_up_planner(state_dict, metadata, is_coordinator)
