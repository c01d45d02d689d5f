"""Averaged SGD. May import floors 0 to 4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from webtorch.functions import public as webtorch
from webtorch.optim.optimizer import (
    Derived,
    Group,
    Optimizer,
    StateDict,
    check_options,
    options_of,
    update_lists,
)
from webtorch.tensors.tensor import Tensor

__all__ = ["ASGD", "asgd"]


class ASGD(Optimizer):
    """Gradient descent that also averages the parameters, in the state's "ax", from step t0 on.

    Polyak and Juditsky, 1992.
    """

    _takes_back: ClassVar[bool] = True
    _lists: ClassVar[Mapping[str, str]] = {
        "mus": "mu",
        "axs": "ax",
        "etas": "eta",
        "state_steps": "step",
    }
    _beginnings: ClassVar[dict[str, float | str]] = {"eta": "lr", "mu": 1.0}
    _derived: ClassVar[dict[str, Derived]] = {
        **Optimizer._derived,
        "-lambd": lambda group: -group["lambd"],
        "-alpha": lambda group: -group["alpha"],
    }

    def __init__(
        self,
        params: object,
        lr: float | Tensor = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        """Take the options; step n + 1 has the rate lr / (1 + lambd * lr * n) ** alpha."""
        defaults = options_of(locals())
        check_options(defaults, "weight_decay")
        super().__init__(params, defaults)

    def _begun(self, group: Group, param: Tensor) -> StateDict:
        """Return the state of a parameter, which begins if there is none."""
        state = self.state[param]
        if "ax" not in state:
            made: dict[str, Any] = {"dtype": webtorch.float32, "device": param.device}
            state["eta"] = webtorch.zeros((), **made) + self._scalar(group, "lr")
            state["mu"] = webtorch.ones((), **made)
            state["ax"] = webtorch.zeros_like(param)
        return state

    def _update(self, group: dict[str, object]) -> None:
        """Change the parameters of one group."""
        hyper, rate = self._hyper(group), self._scalar(group, "lr")
        for step, members in self._advanced(group):
            slower = webtorch.log1p(step * hyper("lambd") * rate) * hyper("-alpha")
            faster, steps = webtorch.exp(slower), (step - hyper("t0")).clamp(min=1)
            for param, grad in members:
                state = self._begun(group, param)
                grad = self._decayed(group, param, grad)
                eta, mu, average = state["eta"], state["mu"], state["ax"]
                before = (eta, mu)
                if group["differentiable"]:
                    # The next step overwrites them, and this one's gradient needs them.
                    before = (eta.clone(), mu.clone())
                param.copy_(param * (before[0] * hyper("-lambd") + 1) - grad * before[0])
                average.copy_(
                    webtorch.where(before[1] == 1, param, average + (param - average) * before[1])
                )
                # Each has memory of its own, which it keeps.
                eta.copy_(faster * rate)
                mu.copy_(steps.reciprocal())


def asgd(
    params: list[Tensor],
    grads: list[Tensor],
    axs: list[Tensor],
    mus: list[Tensor],
    etas: list[Tensor],
    state_steps: list[Tensor],
    foreach: bool | None = None,
    maximize: bool = False,
    differentiable: bool = False,
    capturable: bool = False,
    has_complex: bool = False,
    *,
    lambd: float,
    lr: float,
    t0: float,
    alpha: float,
    weight_decay: float,
) -> None:
    """Make a step of ASGD on parameters with gradients and states that are given in lists."""
    update_lists(ASGD, locals())
