"""torch.distributed where it is not built: one process drives one device."""

from __future__ import annotations

from typing import Any, NoReturn


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
        f"torch.distributed.{name}: Default process group has not been initialized (webtorch drives one "
        "device from one process, torch.distributed.is_available() is False)"
    )


def init_process_group(*args: Any, **kwargs: Any) -> None:
    """Raise: there are no process groups."""
    _refuse("init_process_group")


def get_rank(group: Any = None) -> int:
    """Raise, as PyTorch does before a group exists."""
    _refuse("get_rank")


def get_world_size(group: Any = None) -> int:
    """Raise, as PyTorch does before a group exists."""
    _refuse("get_world_size")


def barrier(*args: Any, **kwargs: Any) -> None:
    """Raise, as PyTorch does before a group exists."""
    _refuse("barrier")


def all_reduce(*args: Any, **kwargs: Any) -> None:
    """Raise, as PyTorch does before a group exists."""
    _refuse("all_reduce")


def destroy_process_group(group: Any = None) -> None:
    """Raise, as PyTorch does before a group exists."""
    _refuse("destroy_process_group")


class ProcessGroup:
    """A class that no object is an instance of."""
