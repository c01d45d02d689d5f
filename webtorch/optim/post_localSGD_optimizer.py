"""An optimizer whose parameters become the mean of all processes' once in some steps. Floor 6."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from webtorch.distributed.algorithms.model_averaging.averagers import ModelAverager
from webtorch.ir.lines import user_depth
from webtorch.optim.optimizer import Optimizer

__all__ = ["PostLocalSGDOptimizer"]


class PostLocalSGDOptimizer(Optimizer):
    """Steps as `optim` does, and averages the parameters as `averager` does after that."""

    def __init__(self, optim: Optimizer, averager: ModelAverager) -> None:
        self.optim, self.averager = optim, averager
        self.param_groups = optim.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """What the optimizer keeps for each parameter."""
        return self.optim.state

    def __repr__(self) -> str:
        return repr(self.optim)

    def state_dict(self) -> dict[str, object]:
        """Return the optimizer's state, with the number of steps that the averager counted."""
        return {**self.optim.state_dict(), "step": self.averager.step}

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Take a state; warn, and count steps from 0, where it has no number of steps."""
        given = dict(state_dict)
        step = given.pop("step", None)
        self.optim.load_state_dict(given)
        if not isinstance(step, int):
            warnings.warn(
                "Loaded state dict does not contain a step counter for an averager. Setting step counter to 0.",
                stacklevel=user_depth(),
            )
        self.averager.step = step if isinstance(step, int) else 0

    def step(self, closure: Callable[[], object] | None = None) -> None:
        """Step, and average the parameters if it is time for that."""
        self.optim.step(closure)
        self.averager.average_parameters(self.param_groups)

    # Hooks are around the step of its optimizer, and what counts in Python is no part of that.
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Let go of the gradients, or let them be zeros."""
        self.optim.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, object]) -> None:
        """Step these parameters, too."""
        self.optim.add_param_group(param_group)
