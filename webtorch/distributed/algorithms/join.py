"""`Join`: processes whose inputs end early take part in the others' collectives until all have ended. Floor 5."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple

from webtorch.distributed.collectives import all_reduce
from webtorch.distributed.group import ProcessGroup, Work
from webtorch.functions.creation import tensor
from webtorch.ir.dtype import int32
from webtorch.ops.purity import warn

__all__ = ["Join", "JoinHook", "Joinable"]

_SKEW = 1000


class JoinHook:
    """What a process does whose inputs have ended."""

    def main_hook(self) -> None:
        """Take part in the collectives of one step of the others."""

    def post_hook(self, is_last_joiner: bool) -> None:
        """Finish, after all have ended; `is_last_joiner` where this process was among the last."""


class _Config(NamedTuple):
    enable: bool = False
    throw_on_early_termination: bool = False
    is_first_joinable: bool = False


class Joinable:
    """What can be given to `Join`: it tells a step's first collective by `Join.notify_join_context`."""

    def __init__(self) -> None:
        self._join_config = _Config()

    def join_hook(self, **kwargs: object) -> JoinHook:
        """Return what a process does whose inputs have ended; `kwargs` are those of `Join`."""
        raise NotImplementedError

    @property
    def join_device(self) -> Any:
        """The device of the collectives."""
        raise NotImplementedError

    @property
    def join_process_group(self) -> ProcessGroup:
        """The processes."""
        raise NotImplementedError


class Join:
    """A context in which each process runs through its own number of inputs.

    Raises ValueError for joinables of several groups or devices.
    """

    def __init__(
        self,
        joinables: Sequence[Joinable],
        enable: bool = True,
        throw_on_early_termination: bool = False,
        **kwargs: object,
    ) -> None:
        """Take the objects whose collectives are shadowed."""
        if not joinables:
            raise ValueError("The join context manager requires at least one joinable")
        self._joinables = list(joinables)
        self._join_hooks = [joinable.join_hook(**kwargs) for joinable in joinables]
        self._enable, self._throw = enable, throw_on_early_termination
        groups = {id(j.join_process_group): j.join_process_group for j in joinables}
        if len(groups) > 1:
            raise ValueError("Using join context manager with multiple process groups")
        if len({str(j.join_device) for j in joinables}) > 1:
            raise ValueError("Using join context manager with multiple devices")
        (self._process_group,) = groups.values()
        for i, joinable in enumerate(joinables):
            joinable._join_config = _Config(enable, throw_on_early_termination, i == 0)

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Take part in the others' steps until all have ended."""
        if not self._enable or kind is not None:
            return
        last, steps = True, 0
        while _summed(0, self._process_group):
            if self._throw:
                _summed(1, self._process_group)
                raise RuntimeError(f"Rank {self._process_group.rank()} exhausted all inputs.")
            last = False
            steps += 1
            if steps == _SKEW:
                warn(
                    f"Detected uneven input skew of greater than {_SKEW}. This means that rank "
                    f"{self._process_group.rank()} has at least {_SKEW} fewer inputs than other currently-active "
                    "ranks. This level of skew could lead to performance degradation during training.",
                    UserWarning,
                )
            for hook in self._join_hooks:
                hook.main_hook()
        for hook in self._join_hooks:
            hook.post_hook(last)

    @staticmethod
    def notify_join_context(joinable: Joinable) -> Work | None:
        """Tell those whose inputs have ended that a step begins: to be called before its first collective."""
        config = joinable._join_config
        if not config.is_first_joinable or not config.enable:
            return None
        group = joinable.join_process_group
        work = all_reduce(tensor([1], dtype=int32), group=group, async_op=True)
        if config.throw_on_early_termination and _summed(0, group):
            raise RuntimeError(
                "Detected at least one rank that exhausted inputs. Throwing across all ranks."
            )
        return work


def _summed(number: int, group: ProcessGroup) -> int:
    """Return the sum of a number of each process."""
    found = tensor([number], dtype=int32)
    all_reduce(found, group=group)
    return int(found.item())
