"""The groups of this process: `init_process_group`, `new_group`, and what is asked of them. Floor 5."""

from __future__ import annotations

import datetime
import os
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from webtorch.distributed import engine as engines
from webtorch.distributed.engine import engine
from webtorch.distributed.group import ProcessGroup
from webtorch.distributed.reduction import ReduceOp
from webtorch.distributed.rendezvous import meet
from webtorch.ir.lines import user_depth

default_pg_timeout = datetime.timedelta(minutes=30)
_UNINITIALIZED = (
    "Default process group has not been initialized, please make sure to call init_process_group."
)


class _World:
    def __init__(self) -> None:
        self.default: ProcessGroup | None = None
        self.groups: dict[str, ProcessGroup] = {}
        # Groups that were asked for, also those without this process.
        self.count = 0


_world = _World()


class _Meta(type):
    @property
    def WORLD(cls) -> ProcessGroup | None:
        """The group of all processes, None before there is one."""
        return _world.default


class group(metaclass=_Meta):
    """Holds the group of all processes as `group.WORLD`."""


class GroupMember(metaclass=_Meta):
    """Holds what `new_group` returns to processes that are not in the group."""

    NON_GROUP_MEMBER = -100


Group = ProcessGroup | int | None


def is_available() -> bool:
    """Whether PyTorch is installed, whose Gloo connects processes."""
    return engines.is_installed()


def is_gloo_available() -> bool:
    """Whether PyTorch is installed."""
    return engines.is_installed()


def is_nccl_available() -> bool:
    """Return False: it is CUDA's."""
    return False


def is_mpi_available() -> bool:
    """Return False."""
    return False


def is_ucc_available() -> bool:
    """Return False."""
    return False


def is_xccl_available() -> bool:
    """Return False."""
    return False


class Backend(str):
    """The name of what carries values between processes, in lower case: `Backend("GLOO")` is "gloo"."""

    UNDEFINED, GLOO, NCCL, XCCL = "undefined", "gloo", "nccl", "xccl"
    UCC, MPI, FAKE = "ucc", "mpi", "fake"

    def __new__(cls, name: str) -> Backend:
        """Raises ValueError for what is no string."""
        if not isinstance(name, str):
            raise ValueError("Backend constructor parameter must be string-ish")
        return super().__new__(cls, name.lower())


def is_backend_available(backend: str) -> bool:
    """Whether a backend can be asked for."""
    return backend.lower() == "gloo" and is_gloo_available()


def is_initialized() -> bool:
    """Whether there is a group of all processes."""
    return _world.default is not None


def _checked_backend(backend: str | None) -> None:
    for part in (backend or "gloo").lower().split(","):
        name = part.rpartition(":")[2]
        if name in ("nccl", "mpi", "ucc", "xccl"):
            words = {"ucc": "", "mpi": ". MPI is only included if you build PyTorch from source"}
            raise RuntimeError(
                f"Distributed package doesn't have {name.upper()} built in{words.get(name, '')} "
                "(webtorch's tensors travel by 'gloo')"
            )
        if name != "gloo":
            raise ValueError(f"Invalid backend: '{name}': webtorch's tensors travel by 'gloo'")


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: datetime.timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
    group_name: str = "",
    pg_options: object = None,
    device_id: object = None,
) -> None:
    """Meet the other processes and make the group of all of them.

    They meet where `init_method` says: "env://" (what torchrun sets), "tcp://host:port" or "file:///path"; or by a
    `store`. Raises ImportError where PyTorch is not installed, whose Gloo moves the bytes.
    """
    if is_initialized():
        raise ValueError("trying to initialize the default process group twice!")
    if timeout is not None and not isinstance(timeout, datetime.timedelta):
        raise TypeError(
            f"Expected timeout argument to be of type datetime.timedelta, got {timeout}"
        )
    if store is not None and init_method is not None:
        raise AssertionError("Cannot specify both init_method and store.")
    engine()
    _checked_backend(backend)
    timeout = default_pg_timeout if timeout is None else timeout
    if store is not None:
        if world_size <= 0:
            raise AssertionError("world_size must be positive if using store")
        if rank < 0:
            raise AssertionError("rank must be non-negative if using store")
    else:
        store, rank, world_size = meet(init_method, rank, world_size, timeout)
        store.set_timeout(timeout)
    prefixed = engine().c10d.PrefixStore("webtorch/default_pg", store)
    made = ProcessGroup(prefixed, range(world_size), rank, group_name or "0", timeout)
    made.bound_device_id = device_id
    _world.default = _world.groups[made.group_name] = made
    _world.count = 1


def default_group() -> ProcessGroup:
    """Return the group of all processes. Raises ValueError before there is one."""
    if _world.default is None:
        raise ValueError(_UNINITIALIZED)
    return _world.default


def member(of: Group, what: str) -> ProcessGroup | None:
    """Return a group that this process is in; None, with a warning, where it is not."""
    found = default_group() if of is None else of
    if isinstance(found, ProcessGroup):
        return found
    if found != GroupMember.NON_GROUP_MEMBER:
        raise TypeError(f"{what}: {of!r} is no process group")
    warnings.warn(
        f"Running {what} on global rank {default_group().rank()} which does not belong to the given group.",
        stacklevel=user_depth(),
    )
    return None


def destroy_process_group(group: Group = None) -> None:
    """Let go of a group; of all groups without one."""
    if group == GroupMember.NON_GROUP_MEMBER:
        return
    chosen = default_group() if group is None else group
    if not isinstance(chosen, ProcessGroup) or chosen not in _world.groups.values():
        raise ValueError("Invalid process group specified or has been destroyed.")
    if chosen is _world.default:
        for each in reversed(_world.groups.values()):
            each.close()
        _world.__init__()  # type: ignore[misc]
    else:
        chosen.close()
        del _world.groups[chosen.group_name]


def get_rank(group: Group = None) -> int:
    """Return this process's number in the group, -1 where it is not in it."""
    if group is None:
        return default_group().rank()
    return group.rank() if isinstance(group, ProcessGroup) else -1


def get_world_size(group: Group = None) -> int:
    """Return the number of processes in the group, -1 where this one is not in it."""
    if group is None:
        return default_group().size()
    return group.size() if isinstance(group, ProcessGroup) else -1


def get_pg_count() -> int:
    """Return how many groups were made, also without this process."""
    return _world.count


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """Return this process's number on its machine (LOCAL_RANK)."""
    if "LOCAL_RANK" in os.environ:
        return int(os.environ["LOCAL_RANK"])
    if fallback_rank is not None:
        return int(fallback_rank)
    raise RuntimeError(
        "LOCAL_RANK is not in the environment. Consider passing fallback_rank to allow `get_node_local_rank` to "
        "work, assuming you are not running in a multi-device context and want the code to run locally instead."
    )


def get_backend(group: Group = None) -> str:
    """Return "gloo"."""
    found = default_group() if group is None else group
    if not isinstance(found, ProcessGroup):
        raise ValueError("Invalid process group specified")
    return found.name()


def get_process_group_ranks(group: Group) -> list[int]:
    """Return the global ranks of a group's processes."""
    found = default_group() if group is None else group
    return list(found.ranks) if isinstance(found, ProcessGroup) else []


def get_global_rank(group: Group, group_rank: int) -> int:
    """Return the global rank of a process by its rank in a group."""
    ranks = get_process_group_ranks(group)
    if not 0 <= group_rank < len(ranks):
        raise ValueError(f"Group rank {group_rank} is not part of group {group}")
    return ranks[group_rank]


def get_group_rank(group: Group, global_rank: int) -> int:
    """Return the rank of a process in a group by its global rank."""
    ranks = get_process_group_ranks(group)
    if global_rank not in ranks:
        raise ValueError(f"Global rank {global_rank} is not part of group {group}")
    return ranks.index(global_rank)


def rank_in_group(
    group: ProcessGroup, rank: int | None, group_rank: int | None, default: int | None = None
) -> int:
    """Return a rank in the group, which is told by one of two ways. Without either it is that of rank `default`."""
    if group_rank is not None:
        if rank is not None:
            raise ValueError("Can't specify both group_rank and global_rank")
        return group_rank
    rank = default if rank is None else rank
    if rank is None:
        raise ValueError("Must specify global_rank or group_rank")
    return get_group_rank(group, rank)


def new_group(
    ranks: Iterable[int] | None = None,
    timeout: datetime.timedelta | None = None,
    backend: str | None = None,
    pg_options: object = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: object = None,
) -> ProcessGroup | int:
    """Make a group of some processes. All processes call this, in the same order, and those outside get
    `GroupMember.NON_GROUP_MEMBER`.
    """
    whole = default_group()
    _checked_backend(backend)
    chosen = list(whole.ranks) if ranks is None else sorted(ranks)
    if len(chosen) > whole.size():
        raise ValueError(
            "the new group's world size should be less or equal to the world size set by init_process_group"
        )
    for r in chosen:
        if not 0 <= r < whole.size():
            raise ValueError(
                f"Rank {r} is out of range. Valid ranks are 0 to {whole.size() - 1} (world_size={whole.size()})"
            )
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"the new group has a rank twice: {chosen}")
    name = str(_world.count)
    if use_local_synchronization:
        # Only its members know of it, so that they may have made different numbers of groups.
        name = (
            "_".join(map(str, chosen))
            + f":{sum(g.ranks == chosen for g in _world.groups.values())}"
        )
    else:
        _world.count += 1
    if whole.rank() not in chosen:
        return GroupMember.NON_GROUP_MEMBER
    store = engine().c10d.PrefixStore(f"group/{name}", whole.store)
    made = ProcessGroup(
        store,
        chosen,
        chosen.index(whole.rank()),
        name,
        whole.timeout if timeout is None else timeout,
    )
    made.group_desc = group_desc or "undefined"
    _world.groups[name] = made
    return made


def get_default_backend_for_device(device: object) -> str:
    """Return "gloo", which connects the processes whatever their device is."""
    return "gloo"


def supports_complex(reduce_op: int) -> bool:
    """Whether complex tensors can be reduced so."""
    return ReduceOp(reduce_op) in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PREMUL_SUM)


def new_subgroups(
    group_size: int | None = None,
    group: Group = None,
    timeout: datetime.timedelta | None = None,
    backend: str | None = None,
    pg_options: object = None,
    group_desc: str | None = None,
) -> tuple[ProcessGroup | int, list[ProcessGroup | int]]:
    """Make groups of `group_size` neighbours each; return this process's, and all."""
    size = get_world_size(group)
    if group_size is None:
        raise ValueError("new_subgroups: give group_size; there is no number of devices a machine")
    if group_size <= 0:
        raise ValueError(f"The arg 'group_size' ({group_size}) must be positive")
    if size % group_size:
        raise ValueError(f"The world size ({size}) must be divisible by group_size={group_size}")
    ranks = get_process_group_ranks(group)
    parts = [ranks[i : i + group_size] for i in range(0, size, group_size)]
    return new_subgroups_by_enumeration(parts, timeout, backend)


def split_group(
    parent_pg: Group = None,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: datetime.timedelta | None = None,
    pg_options: object = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> ProcessGroup | None:
    """Return the group of this process among lists of ranks of a group, None for a process of no list. All processes of
    the group call this. Raises ValueError where there is no list, or one that is empty or has a rank twice.
    """
    if not split_ranks:
        raise ValueError("split_ranks cannot be None or empty")
    _checked_backend(backend)
    rank = get_rank(parent_pg)
    if rank < 0:
        raise ValueError(f"Global rank {get_rank()} is not part of the parent group {parent_pg}")
    found: object = None
    for chosen in split_ranks:
        if not chosen:
            raise ValueError("the split group cannot be empty")
        if len(set(chosen)) < len(chosen):
            raise ValueError("the split group cannot have duplicate ranks")
        if rank in chosen and found is None:
            ranks = [get_global_rank(parent_pg, r) for r in sorted(chosen)]
            found = new_group(ranks, timeout, use_local_synchronization=True, group_desc=group_desc)
    return found if isinstance(found, ProcessGroup) else None


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    timeout: datetime.timedelta | None = None,
    backend: str | None = None,
    pg_options: object = None,
    group_desc: str | None = None,
) -> tuple[ProcessGroup | int, list[ProcessGroup | int]]:
    """Make a group of each list of ranks; return this process's, and all."""
    mine: ProcessGroup | int = GroupMember.NON_GROUP_MEMBER
    made = []
    for ranks in ranks_per_subgroup_list:
        made.append(new_group(ranks, timeout, backend))
        if isinstance(made[-1], ProcessGroup):
            mine = made[-1]
    return mine, made
