"""`webtorch.multiprocessing`: Python's, with torch's names. Tensors are pickled by value."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing import *  # noqa: F403
from typing import Any


def get_all_sharing_strategies() -> set[str]:
    """Return {"file_system"}: tensors are copied to other processes."""
    return {"file_system"}


def get_sharing_strategy() -> str:
    """Return "file_system": tensors are copied to other processes."""
    return "file_system"


def set_sharing_strategy(new_strategy: str) -> None:
    """Do nothing: tensors are copied to other processes."""
    assert new_strategy in get_all_sharing_strategies(), new_strategy


def spawn(
    fn: Callable[..., object],
    args: tuple[object, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> object:
    """Run fn(i, *args) in `nprocs` processes; with `join`, wait for them.

    Returns the processes, or None after `join`. Raises RuntimeError if one of them failed.
    """
    context: Any = multiprocessing.get_context(start_method)
    processes = [context.Process(target=fn, args=(i, *args), daemon=daemon) for i in range(nprocs)]
    for process in processes:
        process.start()
    if not join:
        return processes
    for process in processes:
        process.join()
    for i, process in enumerate(processes):
        if process.exitcode:
            raise RuntimeError(f"process {i} terminated with exit code {process.exitcode}")
    return None
