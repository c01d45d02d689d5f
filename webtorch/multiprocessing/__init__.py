"""`webtorch.multiprocessing`: Python's, with torch's names. Tensors are pickled by value."""

from __future__ import annotations

from multiprocessing import *  # noqa: F403

from webtorch.multiprocessing.spawn import ProcessContext as ProcessContext
from webtorch.multiprocessing.spawn import ProcessException as ProcessException
from webtorch.multiprocessing.spawn import ProcessExitedException as ProcessExitedException
from webtorch.multiprocessing.spawn import ProcessRaisedException as ProcessRaisedException
from webtorch.multiprocessing.spawn import spawn as spawn
from webtorch.multiprocessing.spawn import start_processes as start_processes


def get_all_sharing_strategies() -> set[str]:
    """Return {"file_system"}: tensors are copied to other processes."""
    return {"file_system"}


def get_sharing_strategy() -> str:
    """Return "file_system": tensors are copied to other processes."""
    return "file_system"


def set_sharing_strategy(new_strategy: str) -> None:
    """Do nothing: tensors are copied to other processes."""
    assert new_strategy in get_all_sharing_strategies(), new_strategy
