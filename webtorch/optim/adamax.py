"""Adamax. May import floors 0 to 4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from webtorch.functions import public as webtorch
from webtorch.optim.optimizer import (
    OF_BETAS,
    Derived,
    Group,
    Optimizer,
    check_options,
    options_of,
    update_lists,
)
from webtorch.tensors.tensor import Tensor

__all__ = ["Adamax", "adamax"]


class Adamax(Optimizer):
    """Adam with the largest gradient so far, decayed, in place of the average of squares.

    Kingma and Ba, 2015, section 7.
    """

    _takes_back: ClassVar[bool] = True
    _lists: ClassVar[Mapping[str, str]] = {
        "exp_avgs": "exp_avg",
        "exp_infs": "exp_inf",
        "state_steps": "step",
    }
    _zeros: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_inf")
    _derived: ClassVar[dict[str, Derived]] = {
        **Optimizer._derived,
        **OF_BETAS,
    }

    def __init__(
        self,
        params: object,
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        """Take the options."""
        defaults = options_of(locals())
        check_options(defaults, "eps", "betas", "weight_decay")
        super().__init__(params, defaults)

    def _update(self, group: Group) -> None:
        """Change the parameters of one group."""
        hyper = self._hyper(group)
        for step, members in self._advanced(group):
            # expm1(step * log(beta)) is -(1 - beta ** step), with all its digits.
            scale = webtorch.expm1(step * hyper("log beta1")).reciprocal()
            scale = scale * self._scalar(group, "lr")
            for param, grad in members:
                state = self._begun(group, param)
                grad = self._decayed(group, param, grad)
                average, largest = state["exp_avg"], state["exp_inf"]
                average.lerp_(grad, hyper("1-beta1"))
                largest.copy_(webtorch.maximum(largest * hyper("beta2"), grad.abs() + hyper("eps")))
                param.add_(average / largest * scale)


def adamax(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_infs: list[Tensor],
    state_steps: list[Tensor],
    foreach: bool | None = None,
    maximize: bool = False,
    differentiable: bool = False,
    capturable: bool = False,
    has_complex: bool = False,
    *,
    eps: float,
    beta1: float,
    beta2: float,
    lr: float,
    weight_decay: float,
) -> None:
    """Make a step of Adamax on parameters with gradients and states that are given in lists."""
    update_lists(Adamax, locals(), betas=(beta1, beta2))
