"""Rprop. May import floors 0 to 4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

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

__all__ = ["Rprop", "rprop"]


class Rprop(Optimizer):
    """Each element has its own step size, which grows while the gradient keeps its sign.

    Riedmiller and Braun, 1993.
    """

    _takes_back: ClassVar[bool] = True
    _lists: ClassVar[Mapping[str, str]] = {
        "prevs": "prev",
        "step_sizes": "step_size",
        "state_steps": "step",
    }
    _beginnings: ClassVar[dict[str, float | str]] = {"step_size": "lr"}
    _derived: ClassVar[dict[str, Derived]] = {
        **Optimizer._derived,
        "eta-": lambda group: group["etas"][0],
        "eta+": lambda group: group["etas"][1],
        "smallest": lambda group: group["step_sizes"][0],
        "largest": lambda group: group["step_sizes"][1],
    }

    def __init__(
        self,
        params: object,
        lr: float | Tensor = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        """Take the options; `lr` is the first step size, `etas` shrink and grow it."""
        defaults = options_of(locals())
        check_options(defaults)
        if not 0.0 < etas[0] < 1.0 < etas[1]:
            raise ValueError(f"Invalid eta values: {etas[0]}, {etas[1]}")
        super().__init__(params, defaults)

    def _begun(self, group: Group, param: Tensor) -> StateDict:
        """Return the state of a parameter, which begins if there is none."""
        state = self.state[param]
        if "prev" not in state:
            state["prev"] = webtorch.zeros_like(param)
            size = self._scalar(group, "lr")
            size = complex(size, size) if param.is_complex() else size
            start = webtorch.zeros_like(param) + size
            state["step_size"] = start.to(param.dtype)
        return state

    def _update(self, group: Group) -> None:
        """Change the parameters of one group."""
        hyper = self._hyper(group)
        for _, members in self._advanced(group):
            for param, grad in members:
                state = self._begun(group, param)
                previous, size = state["prev"], state["step_size"]
                agreement = grad * previous
                changed = webtorch.where(agreement > 0, size * hyper("eta+"), size)
                changed = webtorch.where(agreement < 0, size * hyper("eta-"), changed)
                size.copy_(changed.clamp(hyper("smallest"), hyper("largest")))
                # Where the sign turned, this step does nothing and the next one does not shrink.
                kept = webtorch.where(agreement < 0, 0.0, grad)
                param.sub_(kept.sign() * size)
                previous.copy_(kept)


def rprop(
    params: list[Tensor],
    grads: list[Tensor],
    prevs: list[Tensor],
    step_sizes: list[Tensor],
    state_steps: list[Tensor],
    foreach: bool | None = None,
    capturable: bool = False,
    maximize: bool = False,
    differentiable: bool = False,
    has_complex: bool = False,
    *,
    step_size_min: float,
    step_size_max: float,
    etaminus: float,
    etaplus: float,
) -> None:
    """Make a step of Rprop on parameters with gradients and states that are given in lists."""
    update_lists(
        Rprop, locals(), etas=(etaminus, etaplus), step_sizes=(step_size_min, step_size_max)
    )
