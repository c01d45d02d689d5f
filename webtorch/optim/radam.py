"""RAdam. May import floors 0 to 4."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from webtorch.functions import public as webtorch
from webtorch.optim.optimizer import (
    OF_BETAS,
    OF_DECAY,
    Derived,
    Group,
    Optimizer,
    check_options,
    options_of,
    update_lists,
)
from webtorch.tensors.tensor import Tensor

__all__ = ["RAdam", "radam"]


def _rate(group: Group) -> float:
    """Return -log(beta2), positive and finite."""
    return max(-OF_BETAS["log beta2"](group), 1e-30)


def _longest(group: Group) -> float:
    """Return the length of the average that beta2 makes in the limit."""
    return 2 / (1 - group["betas"][1]) - 1


class RAdam(Optimizer):
    """Adam whose step size is rectified while its average of squares is short. Liu et al., 2020."""

    _takes_back: ClassVar[bool] = True
    _lists: ClassVar[Mapping[str, str]] = {
        "exp_avgs": "exp_avg",
        "exp_avg_sqs": "exp_avg_sq",
        "state_steps": "step",
    }
    _zeros: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    _derived: ClassVar[dict[str, Derived]] = {
        **Optimizer._derived,
        **OF_DECAY,
        **OF_BETAS,
        "x": _rate,
        "-2/x": lambda group: -2 / _rate(group),
        "rest": lambda group: _longest(group) - 2 / _rate(group),
        # rho_inf / ((rho_inf - 4) * (rho_inf - 2)): what the rectification has of the limit.
        "limit": lambda group: (
            _longest(group) / (((_longest(group) - 4) * (_longest(group) - 2)) or math.inf)
        ),
    }

    def __init__(
        self,
        params: object,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        """Take the options."""
        defaults = options_of(locals())
        check_options(defaults, "eps", "betas", "weight_decay")
        super().__init__(params, defaults)

    def _length(self, group: dict[str, object], step: Tensor) -> Tensor:
        """Return rho, the length of the average of squares: rho_inf - 2 n b^n / (1 - b^n).

        Both terms are near 2 / (1 - b), and rho is near n: float32 would keep few of its digits.
        With x = -log(b) and y = n x the second term is (2 / x) (y / expm1(y)), whose series
        starts with 1 - y / 2; what is left of both terms is computed instead.
        """
        hyper = self._hyper(group)
        y = step * hyper("x")
        y2 = y * y
        series = y2 * (1 / 12 - y2 * (1 / 720 - y2 * (1 / 30240 - y2 / 1209600)))
        behind = webtorch.where(y < 0.7, series, y / webtorch.expm1(y) - 1 + y / 2)
        return step + hyper("rest") + behind * hyper("-2/x")

    def _update(self, group: Group) -> None:
        """Change the parameters of one group."""
        hyper = self._hyper(group)
        for step, members in self._advanced(group):
            scale = webtorch.expm1(step * hyper("log beta1")).reciprocal()
            scale = scale * self._scalar(group, "lr")
            rho = self._length(group, step)
            adaptive = rho > 5.0
            rectified = ((rho - 4) * (rho - 2) / rho * hyper("limit")).clamp(min=0).sqrt()
            rectified = rectified * webtorch.sqrt(-webtorch.expm1(step * hyper("log beta2")))
            for param, grad in members:
                state = self._begun(group, param)
                grad = self._decayed(group, param, grad)
                average, square = state["exp_avg"], state["exp_avg_sq"]
                average.lerp_(grad, hyper("1-beta1"))
                square.mul_(hyper("beta2")).addcmul_(grad, grad, value=hyper("1-beta2"))
                factor = webtorch.where(adaptive, rectified / square.sqrt().add(hyper("eps")), 1.0)
                param.add_(average * scale * factor)


def radam(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    state_steps: list[Tensor],
    decoupled_weight_decay: bool = False,
    foreach: bool | None = None,
    differentiable: bool = False,
    capturable: bool = False,
    has_complex: bool = False,
    maximize: bool = False,
    *,
    beta1: float,
    beta2: float,
    lr: float,
    weight_decay: float,
    eps: float,
) -> None:
    """Make a step of RAdam on parameters with gradients and states that are given in lists."""
    update_lists(RAdam, locals(), betas=(beta1, beta2))
