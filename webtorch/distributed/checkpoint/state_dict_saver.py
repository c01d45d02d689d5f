"""`save` and `async_save`: entries of which each process writes its own parts. Floor 6."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Any

from webtorch.distributed import world
from webtorch.distributed.checkpoint.agreement import _DistWrapper
from webtorch.distributed.checkpoint.default_planner import DefaultSavePlanner
from webtorch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from webtorch.distributed.checkpoint.metadata import STATE_DICT_TYPE, Metadata
from webtorch.distributed.checkpoint.nested import mapped
from webtorch.distributed.checkpoint.planner import SavePlan, SavePlanner
from webtorch.distributed.checkpoint.stateful import Stateful
from webtorch.distributed.checkpoint.storage import (
    CheckpointId,
    StorageReader,
    StorageWriter,
    WriteResult,
)
from webtorch.distributed.tensor import DTensor
from webtorch.ir.lines import user_depth
from webtorch.tensors.modes import no_grad
from webtorch.tensors.tensor import Tensor

_ALONE = (
    "torch.distributed is disabled, unavailable or uninitialized, assuming the intent is to {} in a "
    "single process."
)


class AsyncCheckpointerType(Enum):
    """What saves while the program goes on."""

    THREAD = "thread"
    PROCESS = "process"


@dataclass
class AsyncSaveResponse:
    """What says when values have been copied, and when they are saved."""

    staging_completion: Future[None]
    upload_completion: Future[Metadata]


def is_alone(no_dist: bool, what: str) -> bool:
    """Whether one process saves or loads by itself, with a warning."""
    if no_dist or not world.is_available() or not world.is_initialized():
        warnings.warn(_ALONE.format(what), stacklevel=user_depth())
        return True
    return False


def _storage_setup(storage: Any, checkpoint_id: CheckpointId, reader: bool) -> Any:
    """Return what reads or writes: the one that is given, or that of the folder."""
    if storage:
        if checkpoint_id is not None:
            storage.reset(checkpoint_id)
        return storage
    if not checkpoint_id:
        raise RuntimeError(
            "`checkpoint_id` must be specified if storage_reader/storage_writer is None."
        )
    kind: type[StorageReader | StorageWriter] = FileSystemReader if reader else FileSystemWriter
    if not kind.validate_checkpoint_id(checkpoint_id):
        raise RuntimeError(
            f"Cannot detect which StorageReader or StorageWriter to use for {checkpoint_id}: webtorch has those of "
            "folders that can be written; give another one as storage_writer"
        )
    return (FileSystemReader if reader else FileSystemWriter)(checkpoint_id)


def states_of(state_dict: Mapping[str, Any]) -> STATE_DICT_TYPE:
    """Return entries, with what stateful objects say of themselves."""
    return {k: v.state_dict() if isinstance(v, Stateful) else v for k, v in state_dict.items()}


def save(
    state_dict: STATE_DICT_TYPE,
    *,
    checkpoint_id: CheckpointId = None,
    storage_writer: StorageWriter | None = None,
    planner: SavePlanner | None = None,
    process_group: Any = None,
    no_dist: bool = False,
    use_collectives: bool = True,
) -> Metadata:
    """Save entries (tensors, DTensors, others, nested in dicts and lists), of which each process writes its parts.

    All processes of the group call this with the same names; what has a `state_dict` is asked for it. In a folder
    (`checkpoint_id`) the checkpoint takes an older one's place when all of it is there. Raises CheckpointException on
    all processes where one fails: the older one is whole then. `no_dist`: this process alone saves what it has;
    `use_collectives=False`: each says by itself what it has written.
    """
    no_dist = is_alone(no_dist, "save")
    writer = _storage_setup(storage_writer, checkpoint_id, False)
    return _save_state_dict(
        states_of(state_dict), writer, process_group, 0, no_dist, planner, use_collectives
    )


def save_state_dict(
    state_dict: STATE_DICT_TYPE,
    storage_writer: StorageWriter,
    process_group: Any = None,
    coordinator_rank: int = 0,
    no_dist: bool = False,
    planner: SavePlanner | None = None,
) -> Metadata:
    """Deprecated: `save`."""
    warnings.warn(
        "`save_state_dict` is deprecated and will be removed in future versions."
        "Please use `save` instead.",
        FutureWarning,
        stacklevel=user_depth(),
    )
    storage_writer.reset()
    return _save_state_dict(
        state_dict, storage_writer, process_group, coordinator_rank, no_dist, planner, True
    )


def _save_state_dict(
    state_dict: STATE_DICT_TYPE,
    writer: StorageWriter,
    group: Any,
    coordinator: int,
    no_dist: bool,
    planner: SavePlanner | None,
    use_collectives: bool,
) -> Metadata:
    all_of = _DistWrapper(group, not no_dist, coordinator)
    chosen = DefaultSavePlanner() if planner is None else planner
    metadata: list[Metadata] = []

    def local_step() -> SavePlan:
        """Say what this process has."""
        chosen.set_up_planner(
            state_dict=state_dict,
            storage_meta=writer.storage_meta(),
            is_coordinator=all_of.is_coordinator,
        )
        writer.set_up_storage_writer(
            all_of.is_coordinator, rank=all_of.rank, use_collectives=use_collectives
        )
        return writer.prepare_local_plan(chosen.create_local_plan())

    def global_step(plans: list[SavePlan]) -> list[SavePlan]:
        """Choose who writes what."""
        plans, found = chosen.create_global_plan(plans)
        metadata.append(found)
        return writer.prepare_global_plan(plans)

    def write() -> list[WriteResult]:
        """Write this process's parts."""
        return writer.write_data(chosen.finish_plan(plan), chosen).wait()

    def finish(results: list[list[WriteResult]]) -> Metadata:
        """Let the checkpoint be there."""
        writer.finish(metadata=metadata[0], results=results)
        return metadata[0]

    if use_collectives:
        plan = all_of.reduce_scatter("plan", local_step, global_step)
    else:
        (plan,) = global_step([local_step()])
    try:
        if use_collectives:
            return all_of.all_reduce("write", write, finish)
        found = finish([write()])
    except BaseException:
        writer.abandon()
        raise
    all_of.barrier()
    return found


# ---- while the program goes on


class _Groups:
    """The group in which saves that go on beside the program agree: its calls do not mix with others."""

    def __init__(self) -> None:
        self.of: dict[int, Any] = {}

    def beside(self, group: Any) -> Any:
        """Return the group beside one. All its processes call this."""
        whole = world.default_group() if group is None else group
        known = self.of.get(id(whole))
        if known is None or not known[1].is_open or known[0] is not whole:
            made = world.new_group(
                world.get_process_group_ranks(whole), use_local_synchronization=True
            )
            known = self.of[id(whole)] = (whole, made)
        return known[1]


_groups = _Groups()


def _copied(x: Tensor) -> Tensor:
    """Return a tensor's values in the host's memory, as they are now."""
    with no_grad():
        if isinstance(x, DTensor):
            return DTensor(_copied(x._local_tensor), x._spec)
        return x.detach().to("cpu", copy=True)


def async_save(
    state_dict: STATE_DICT_TYPE,
    *,
    checkpoint_id: CheckpointId = None,
    storage_writer: StorageWriter | None = None,
    planner: SavePlanner | None = None,
    process_group: Any = None,
    async_checkpointer_type: AsyncCheckpointerType = AsyncCheckpointerType.THREAD,
    async_stager: Any = None,
    no_dist: bool = False,
    use_collectives: bool = True,
) -> Future[Metadata]:
    """Copy entries to the host's memory, and save them in a thread. Returns the future of what `save` returns.

    Arguments as of `save`. Raises NotImplementedError for a process instead of a thread.
    """
    if async_checkpointer_type is not AsyncCheckpointerType.THREAD and (
        str(async_checkpointer_type) != str(AsyncCheckpointerType.THREAD)
    ):
        raise NotImplementedError(
            "async_save: webtorch saves in a thread; leave async_checkpointer_type out"
        )
    found = states_of(state_dict)
    staged = mapped(found, _copied) if async_stager is None else async_stager.stage(found)
    if isinstance(staged, Future):
        staged = staged.result()
    alone = no_dist or not world.is_initialized()
    group = process_group if alone else _groups.beside(process_group)
    thread = ThreadPoolExecutor(1, thread_name_prefix="webtorch-checkpoint")
    future = thread.submit(
        save, staged, checkpoint_id=checkpoint_id, storage_writer=storage_writer, planner=planner, process_group=group,
        no_dist=alone, use_collectives=use_collectives,
    )  # fmt: skip
    thread.shutdown(wait=False)
    return future
