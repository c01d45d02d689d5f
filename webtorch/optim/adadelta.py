"""Adadelta. May import floors 0 to 4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from webtorch.optim.optimizer import (
    Derived,
    Optimizer,
    check_options,
    options_of,
    update_lists,
)
from webtorch.tensors.tensor import Tensor

__all__ = ["Adadelta", "adadelta"]


class Adadelta(Optimizer):
    """Steps whose size follows the ratio of running averages of past steps and gradients.

    Zeiler, 2012.
    """

    _takes_back: ClassVar[bool] = True
    _lists: ClassVar[Mapping[str, str]] = {
        "square_avgs": "square_avg",
        "acc_deltas": "acc_delta",
        "state_steps": "step",
    }
    _zeros: ClassVar[tuple[str, ...]] = ("square_avg", "acc_delta")
    _derived: ClassVar[dict[str, Derived]] = {
        **Optimizer._derived,
        "1-rho": lambda group: 1 - group["rho"],
    }

    def __init__(
        self,
        params: object,
        lr: float | Tensor = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        """Take the options; `rho` is the part of the averages that stays at each step."""
        defaults = options_of(locals())
        check_options(defaults, "eps", "weight_decay")
        if not 0.0 <= rho <= 1.0:
            raise ValueError(f"Invalid rho value: {rho}")
        super().__init__(params, defaults)

    def _update(self, group: dict[str, object]) -> None:
        """Change the parameters of one group."""
        rate, hyper = self._scalar(group, "-lr"), self._hyper(group)
        for _, members in self._advanced(group):
            for param, grad in members:
                state = self._begun(group, param)
                grad = self._decayed(group, param, grad)
                square, past = state["square_avg"], state["acc_delta"]
                square.mul_(hyper("rho")).addcmul_(grad, grad, value=hyper("1-rho"))
                ratio = past.add(hyper("eps")).sqrt() / square.add(hyper("eps")).sqrt()
                delta = ratio * grad
                past.mul_(hyper("rho")).addcmul_(delta, delta, value=hyper("1-rho"))
                param.add_(delta * rate)


def adadelta(
    params: list[Tensor],
    grads: list[Tensor],
    square_avgs: list[Tensor],
    acc_deltas: list[Tensor],
    state_steps: list[Tensor],
    capturable: bool = False,
    foreach: bool | None = None,
    differentiable: bool = False,
    has_complex: bool = False,
    *,
    lr: float,
    rho: float,
    eps: float,
    weight_decay: float,
    maximize: bool,
) -> None:
    """Make a step of Adadelta on parameters with gradients and states that are given in lists."""
    update_lists(Adadelta, locals())
