"""NAdam. May import floors 0 to 4."""

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
    StateDict,
    check_options,
    options_of,
    update_lists,
)
from webtorch.tensors.tensor import Tensor

__all__ = ["NAdam", "nadam"]


class NAdam(Optimizer):
    """Adam with Nesterov momentum. Dozat, 2016."""

    _takes_back: ClassVar[bool] = True
    _lists: ClassVar[Mapping[str, str]] = {
        "exp_avgs": "exp_avg",
        "exp_avg_sqs": "exp_avg_sq",
        "mu_products": "mu_product",
        "state_steps": "step",
    }
    _zeros: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    _beginnings: ClassVar[dict[str, float | str]] = {"mu_product": 1.0}
    _derived: ClassVar[dict[str, Derived]] = {
        **Optimizer._derived,
        **OF_DECAY,
        **OF_BETAS,
        "-beta1/2": lambda group: -0.5 * group["betas"][0],
        # The momentum of step n is beta1 * (1 - 0.96 ** (n * momentum_decay) / 2).
        "log decay": lambda group: math.log(0.96) * group["momentum_decay"],
    }

    def __init__(
        self,
        params: object,
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        """Take the options."""
        defaults = options_of(locals())
        check_options(defaults, "eps", "betas", "weight_decay", "momentum_decay")
        super().__init__(params, defaults)

    def _momentum(self, group: dict[str, object], step: Tensor) -> Tensor:
        """Return the momentum of the given step."""
        hyper = self._hyper(group)
        return webtorch.exp(step * hyper("log decay")) * hyper("-beta1/2") + hyper("beta1")

    def _begun(self, group: Group, param: Tensor) -> StateDict:
        """Return the state of a parameter, which begins if there is none."""
        state = self.state[param]
        if "exp_avg" not in state:
            state["mu_product"] = webtorch.ones((), dtype=webtorch.float32, device=param.device)
        return super()._begun(group, param)

    def _update(self, group: Group) -> None:
        """Change the parameters of one group."""
        hyper, rate = self._hyper(group), self._scalar(group, "-lr")
        for step, members in self._advanced(group):
            now, following = self._momentum(group, step), self._momentum(group, step + 1)
            correction = -webtorch.expm1(step * hyper("log beta2"))
            for param, grad in members:
                state = self._begun(group, param)
                grad = self._decayed(group, param, grad)
                product = state["mu_product"]
                product.mul_(now)
                average, square = state["exp_avg"], state["exp_avg_sq"]
                average.lerp_(grad, hyper("1-beta1"))
                square.mul_(hyper("beta2")).addcmul_(grad, grad, value=hyper("1-beta2"))
                root = (square / correction).sqrt().add(hyper("eps"))
                fresh = (1 - now) / (1 - product) * rate
                ahead = following / (1 - product * following) * rate
                param.add_((grad * fresh + average * ahead) / root)


def nadam(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    mu_products: list[Tensor],
    state_steps: list[Tensor],
    decoupled_weight_decay: bool = False,
    foreach: bool | None = None,
    capturable: bool = False,
    differentiable: bool = False,
    has_complex: bool = False,
    maximize: bool = False,
    *,
    beta1: float,
    beta2: float,
    lr: float,
    weight_decay: float,
    momentum_decay: float,
    eps: float,
) -> None:
    """Make a step of NAdam on parameters with gradients and states that are given in lists."""
    update_lists(NAdam, locals(), betas=(beta1, beta2))
