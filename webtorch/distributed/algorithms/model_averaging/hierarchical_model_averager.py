"""Parameters that are averaged often in small groups of processes, and rarely in large ones. Floor 5."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from webtorch.distributed.algorithms.model_averaging.averagers import (
    ModelAverager,
    checked_warmup,
    warn_of_each_step,
)
from webtorch.distributed.algorithms.model_averaging.utils import (
    Parameters,
    average_parameters_or_parameter_groups,
)
from webtorch.distributed.group import ProcessGroup
from webtorch.distributed.world import Group, new_subgroups

__all__ = ["HierarchicalModelAverager"]


class HierarchicalModelAverager(ModelAverager):
    """Averages parameters in groups of processes: every so many calls in groups of so many, as a dict from the smallest
    to the largest says, whose last group is of all.
    """

    def __init__(
        self,
        period_group_size_dict: Mapping[int, int] | None = None,
        warmup_steps: int = 0,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(process_group)
        if not period_group_size_dict:
            raise ValueError("Arg ``period_group_size_dict`` must not be empty.")
        periods, sizes = list(period_group_size_dict), list(period_group_size_dict.values())
        if periods[0] <= 0:
            raise ValueError(
                "The minimum period in arg ``period_group_size_dict`` must be a positive value."
            )
        if periods[-1] == 1:
            warn_of_each_step("When the maximum period in arg ``period_group_size_dict`` is 1")
        overall = self.process_group.size()
        if sizes[-1] != overall:
            raise ValueError(
                f"The last value in arg ``period_group_size_dict`` {sizes[-1]} must be equal to the size of arg "
                f"``process_group`` {overall}."
            )
        self.period_process_group_dict: OrderedDict[int, Group] = OrderedDict()
        for period, size in period_group_size_dict.items():
            whole = size == overall
            self.period_process_group_dict[period] = (
                self.process_group if whole else new_subgroups(size, group=self.process_group)[0]
            )
        self.warmup_steps = checked_warmup(warmup_steps)

    def average_parameters(self, params: Parameters) -> None:
        """Average the parameters that have gradients in the largest group whose time it is."""
        step, groups = self._counted(), reversed(self.period_process_group_dict.items())
        found = next((group for period, group in groups if step % period == 0), None)
        if found is not None and step >= self.warmup_steps:
            average_parameters_or_parameter_groups(params, found)
