"""RMSprop. May import floors 0 to 4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from webtorch.optim.optimizer import (
    Derived,
    Group,
    Optimizer,
    check_options,
    options_of,
    update_lists,
)
from webtorch.tensors.tensor import Tensor

__all__ = ["RMSprop", "rmsprop"]


class RMSprop(Optimizer):
    """Divide the gradient by a running root mean square of it. Tieleman and Hinton, 2012.

    `centered` divides by a running standard deviation: Graves, 2013.
    """

    _takes_back: ClassVar[bool] = True
    _lists: ClassVar[Mapping[str, str]] = {
        "square_avgs": "square_avg",
        "momentum_buffer_list": "momentum_buffer",
        "grad_avgs": "grad_avg",
        "state_steps": "step",
    }
    _zeros: ClassVar[tuple[str, ...]] = ("square_avg", "momentum_buffer", "grad_avg")
    _derived: ClassVar[dict[str, Derived]] = {
        **Optimizer._derived,
        "1-alpha": lambda group: 1 - group["alpha"],
    }

    def __init__(
        self,
        params: object,
        lr: float | Tensor = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        """Take the options."""
        defaults = options_of(locals())
        check_options(defaults, "eps", "momentum", "weight_decay", "alpha")
        super().__init__(params, defaults)

    def _update(self, group: Group) -> None:
        """Change the parameters of one group."""
        rate, hyper = self._scalar(group, "-lr"), self._hyper(group)
        for _, members in self._advanced(group):
            for param, grad in members:
                state = self._begun(group, param)
                grad = self._decayed(group, param, grad)
                square = state["square_avg"]
                square.mul_(hyper("alpha")).addcmul_(grad, grad, value=hyper("1-alpha"))
                if group["centered"]:
                    average = state["grad_avg"]
                    average.lerp_(grad, hyper("1-alpha"))
                    square = square.addcmul(average, average, value=-1)
                root = square.sqrt().add(hyper("eps"))
                if group["momentum"] > 0:
                    buffer = state["momentum_buffer"]
                    buffer.mul_(hyper("momentum")).addcdiv_(grad, root)
                    param.add_(buffer * rate)
                else:
                    param.addcdiv_(grad * rate, root)


def rmsprop(
    params: list[Tensor],
    grads: list[Tensor],
    square_avgs: list[Tensor],
    grad_avgs: list[Tensor],
    momentum_buffer_list: list[Tensor],
    state_steps: list[Tensor],
    foreach: bool | None = None,
    maximize: bool = False,
    differentiable: bool = False,
    capturable: bool = False,
    has_complex: bool = False,
    *,
    lr: float,
    alpha: float,
    eps: float,
    weight_decay: float,
    momentum: float,
    centered: bool,
) -> None:
    """Make a step of RMSprop on parameters with gradients and states that are given in lists."""
    update_lists(RMSprop, locals())
