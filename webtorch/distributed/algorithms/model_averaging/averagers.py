"""Parameters that become the mean of all processes' once in some steps. Floor 5."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod

from webtorch.distributed.algorithms.model_averaging.utils import (
    Parameters,
    average_parameters_or_parameter_groups,
)
from webtorch.distributed.group import ProcessGroup, go_on_as_usual
from webtorch.distributed.world import default_group
from webtorch.ir.lines import user_depth

__all__ = ["ModelAverager", "PeriodicModelAverager"]


def checked_warmup(steps: int) -> int:
    """Return a number of steps. Raises ValueError below 0."""
    if steps < 0:
        raise ValueError("Arg ``warmup_steps`` must be a non-negative number.")
    return steps


def warn_of_each_step(what: str) -> None:
    """Warn that parameters which are averaged in each step cost as much as gradients."""
    warnings.warn(
        f"{what}, no need to use model averaging because the communication cost of all-reducing parameters will be no "
        "less than the cost of all-reducing gradients by DistributedDataParallel in the backward pass. Therefore, only "
        "DistributedDataParallel should be used for this case.",
        stacklevel=user_depth(),
    )


class ModelAverager(ABC):
    """Averages parameters over the processes of a group, of all without one; `step` counts the calls."""

    def __init__(self, process_group: ProcessGroup | None = None) -> None:
        self.process_group = default_group() if process_group is None else process_group
        self.step = 0

    @abstractmethod
    def average_parameters(self, params: Parameters) -> None:
        """Average parameters, if it is time for that."""

    def _counted(self) -> int:
        """Return the number of this call, and count it, which no program does."""
        go_on_as_usual()
        self.step += 1
        return self.step - 1


class PeriodicModelAverager(ModelAverager):
    """Averages parameters in every `period`-th call, from that of number `warmup_steps` on."""

    def __init__(
        self, period: int, warmup_steps: int = 0, process_group: ProcessGroup | None = None
    ) -> None:
        super().__init__(process_group)
        self.warmup_steps = checked_warmup(warmup_steps)
        if period < 1:
            raise ValueError("Arg ``period`` must be a positive value.")
        if period == 1:
            warn_of_each_step("When period is 1")
        self.period = period

    def average_parameters(self, params: Parameters) -> None:
        """Average the parameters that have gradients, if it is time for that: a model's, or an optimizer's groups."""
        late = self._counted() - self.warmup_steps
        if late >= 0 and late % self.period == 0:
            average_parameters_or_parameter_groups(params, self.process_group)
