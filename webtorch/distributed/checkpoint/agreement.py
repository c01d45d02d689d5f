"""Steps that all processes take together: one sees what each has found, and all get the errors of each. Floor 6."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from webtorch.distributed import collectives, objects, world
from webtorch.distributed.checkpoint.api import (
    CheckpointException,
    _is_wrapped_exception,
    _wrap_exception,
)

T = TypeVar("T")
R = TypeVar("R")


class _DistWrapper:
    """Processes that agree; without them, one that agrees with itself."""

    def __init__(self, group: Any, use_dist: bool, coordinator_rank: int) -> None:
        self.group, self.use_dist, self.coordinator_rank = group, use_dist, coordinator_rank
        self.rank = world.get_rank(group) if use_dist else 0
        self.is_coordinator = not use_dist or self.rank == coordinator_rank
        self.root = world.get_global_rank(group, coordinator_rank) if use_dist else 0

    def get_world_size(self) -> int:
        """Return how many processes there are."""
        return world.get_world_size(self.group) if self.use_dist else 1

    def gather_object(self, value: T) -> list[T] | None:
        """Return the values of all on the process that decides."""
        if not self.use_dist:
            return [value]
        found: Any = [None] * self.get_world_size() if self.is_coordinator else None
        objects.gather_object(value, found, self.root, self.group)
        return found

    def _attempt(self, function: Callable[[], T]) -> Any:
        try:
            return function()
        except BaseException as error:
            return _wrap_exception(error)

    def _decided(self, step: str, found: list[Any] | None, decide: Callable[[list[Any]], R]) -> Any:
        """Return what the process that decides makes of the values; None on others."""
        if found is None:
            return None
        failed = {rank: x for rank, x in enumerate(found) if _is_wrapped_exception(x)}
        if not failed:
            made = self._attempt(lambda: decide(found))
            if not _is_wrapped_exception(made):
                return made
            failed[self.rank] = made
        return CheckpointException(step, failed)

    def reduce_scatter(
        self, step: str, map_fun: Callable[[], T], reduce_fun: Callable[[list[T]], list[R]]
    ) -> R:
        """Return this process's part of what one process makes of the values of all."""
        found = self.gather_object(self._attempt(map_fun))
        made = self._decided(step, found, reduce_fun)
        if isinstance(made, CheckpointException):
            made = [made] * self.get_world_size()
        if self.use_dist:
            mine: list[Any] = [None]
            objects.scatter_object_list(mine, made, self.root, self.group)
            result = mine[0]
        else:
            result = made[0]
        if isinstance(result, CheckpointException):
            raise result
        return result

    def all_reduce(
        self, step: str, map_fun: Callable[[], T], reduce_fun: Callable[[list[T]], R]
    ) -> R:
        """Return what one process makes of the values of all."""
        made = self._decided(step, self.gather_object(self._attempt(map_fun)), reduce_fun)
        shared = [made]
        if self.use_dist:
            objects.broadcast_object_list(shared, self.root, self.group)
        if isinstance(shared[0], CheckpointException):
            raise shared[0]
        return shared[0]

    def all_gather(self, step: str, map_fun: Callable[[], T]) -> list[T]:
        """Return the values of all."""
        mine = self._attempt(map_fun)
        found: list[Any] = [mine]
        if self.use_dist:
            found = [None] * self.get_world_size()
            objects.all_gather_object(found, mine, self.group)
        failed = {rank: x for rank, x in enumerate(found) if _is_wrapped_exception(x)}
        if failed:
            raise CheckpointException(step, failed)
        return found

    def barrier(self) -> None:
        """Wait for all."""
        if self.use_dist:
            collectives.barrier(self.group)
