"""`load`: a checkpoint into entries, each process its own parts. Floor 6."""

from __future__ import annotations

import warnings
from typing import Any

from webtorch.distributed.checkpoint.agreement import _DistWrapper
from webtorch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    _EmptyStateDictLoadPlanner,
)
from webtorch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from webtorch.distributed.checkpoint.state_dict_saver import _storage_setup, is_alone
from webtorch.distributed.checkpoint.stateful import Stateful
from webtorch.distributed.checkpoint.storage import CheckpointId, StorageReader
from webtorch.ir.lines import user_depth


def load(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: CheckpointId = None,
    storage_reader: StorageReader | None = None,
    planner: LoadPlanner | None = None,
    process_group: Any = None,
    no_dist: bool = False,
) -> None:
    """Load a checkpoint into entries: tensors and DTensors are filled, other objects replaced.

    Each process reads what its own parts need, by however many processes it was saved. What has a `load_state_dict` is
    given what it says of itself, filled. Raises CheckpointException on all processes where one fails: for an entry that
    the checkpoint lacks, or has in other sizes.
    """
    no_dist = is_alone(no_dist, "load")
    reader = _storage_setup(storage_reader, checkpoint_id, True)
    # In the same order on all processes.
    names = sorted(state_dict)
    found = {n: v.state_dict() if isinstance(v := state_dict[n], Stateful) else v for n in names}
    _load_state_dict(found, reader, process_group, 0, no_dist, planner)
    for name in names:
        value = state_dict[name]
        if isinstance(value, Stateful):
            value.load_state_dict(found[name])
        else:
            state_dict[name] = found[name]


def load_state_dict(
    state_dict: dict[str, Any],
    storage_reader: StorageReader,
    process_group: Any = None,
    coordinator_rank: int = 0,
    no_dist: bool = False,
    planner: LoadPlanner | None = None,
) -> None:
    """Deprecated: `load`."""
    warnings.warn(
        "`load_state_dict` is deprecated and will be removed in future versions. Please use `load` instead.",
        FutureWarning,
        stacklevel=user_depth(),
    )
    storage_reader.reset()
    _load_state_dict(state_dict, storage_reader, process_group, coordinator_rank, no_dist, planner)


def _load_state_dict(
    state_dict: dict[str, Any],
    reader: StorageReader,
    group: Any,
    coordinator: int,
    no_dist: bool,
    planner: LoadPlanner | None,
) -> None:
    all_of = _DistWrapper(group, not no_dist, coordinator)
    chosen = DefaultLoadPlanner() if planner is None else planner

    def local_step() -> LoadPlan:
        """Say what this process reads."""
        try:
            metadata = reader.read_metadata()
        except FileNotFoundError:
            # Each process has said by itself what it has written.
            metadata = reader.read_metadata(rank=all_of.rank)
        chosen.set_up_planner(state_dict, metadata, all_of.is_coordinator)
        reader.set_up_storage_reader(metadata, all_of.is_coordinator, rank=all_of.rank)
        return reader.prepare_local_plan(chosen.create_local_plan())

    def global_step(plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans."""
        return reader.prepare_global_plan(chosen.create_global_plan(plans))

    plan = all_of.reduce_scatter("plan", local_step, global_step)
    all_of.all_gather("read", lambda: reader.read_data(chosen.finish_plan(plan), chosen).wait())


def _load_state_dict_from_keys(
    keys: set[str] | str | None = None,
    *,
    checkpoint_id: CheckpointId = None,
    storage_reader: StorageReader | None = None,
    process_group: Any = None,
) -> dict[str, Any]:
    """Return all entries of a checkpoint, or those of some names, whole, in this process."""
    no_dist = is_alone(False, "load")
    reader = _storage_setup(storage_reader, checkpoint_id, True)
    wanted = {keys} if isinstance(keys, str) else keys
    found: dict[str, Any] = {}
    _load_state_dict(
        found, reader, process_group, 0, no_dist, _EmptyStateDictLoadPlanner(wanted or None)
    )
    return found
