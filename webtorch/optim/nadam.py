"""NAdam. May import floors 0 to 4."""

from __future__ import annotations

import math
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
)
from webtorch.tensors.tensor import Tensor

__all__ = ["NAdam"]


class NAdam(Optimizer):
    """Adam with Nesterov momentum. Dozat, 2016."""

    _takes_back: ClassVar[bool] = True
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

    def _update(self, group: Group) -> None:
        """Change the parameters of one group."""
        hyper, rate = self._hyper(group), self._scalar(group, "-lr")
        for step, members in self._advanced(group):
            now, following = self._momentum(group, step), self._momentum(group, step + 1)
            correction = -webtorch.expm1(step * hyper("log beta2"))
            for param, grad in members:
                state = self.state[param]
                if "exp_avg" not in state:
                    state["mu_product"] = webtorch.ones(
                        (), dtype=webtorch.float32, device=param.device
                    )
                    state["exp_avg"] = webtorch.zeros_like(param)
                    state["exp_avg_sq"] = webtorch.zeros_like(param)
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
