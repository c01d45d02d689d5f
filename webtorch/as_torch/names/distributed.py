"""torch.distributed where it is not built: webtorch works in one process."""

from __future__ import annotations

import enum
from typing import Any, ClassVar, NoReturn


def is_available() -> bool:
    """Return False."""
    return False


def is_initialized() -> bool:
    """Return False."""
    return False


def is_torchelastic_launched() -> bool:
    """Return False."""
    return False


def is_nccl_available() -> bool:
    """Return False."""
    return False


def is_gloo_available() -> bool:
    """Return False."""
    return False


def is_mpi_available() -> bool:
    """Return False."""
    return False


def _refuse(name: str) -> NoReturn:
    raise RuntimeError(
        f"torch.distributed.{name}: Default process group has not been initialized (webtorch works in "
        "one process, torch.distributed.is_available() is False; nn.DataParallel takes several devices)"
    )


# These raise, as PyTorch's do before a process group exists.
_FUNCTIONS = frozenset(
    """all_gather all_gather_into_tensor all_gather_object all_reduce all_to_all all_to_all_single barrier broadcast
    broadcast_object_list destroy_process_group gather gather_object get_backend get_process_group_ranks
    get_rank get_world_size init_process_group irecv isend monitored_barrier new_group recv reduce
    reduce_scatter reduce_scatter_tensor scatter scatter_object_list send""".split()  # noqa: SIM905
)


def __getattr__(name: str) -> Any:
    if name not in _FUNCTIONS:
        raise AttributeError(f"module 'torch.distributed' has no attribute {name!r}")

    def refuse(*args: object, **kwargs: object) -> NoReturn:
        """Raise: there is one process."""
        _refuse(name)

    refuse.__name__ = refuse.__qualname__ = name
    return refuse


class ReduceOp(enum.IntEnum):
    """What a reduction over processes does."""

    SUM = 0
    AVG = 1
    PRODUCT = 2
    MIN = 3
    MAX = 4
    BAND = 5
    BOR = 6
    BXOR = 7


class ProcessGroup:
    """A class that no object is an instance of."""


class group:
    """The default group, of which there is none."""

    WORLD: ClassVar[None] = None
