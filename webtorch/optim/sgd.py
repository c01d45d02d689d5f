"""SGD. May import floors 0 to 4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from webtorch.optim.optimizer import (
    Derived,
    Group,
    Optimizer,
    check_flags,
    check_options,
    options_of,
    update_lists,
)
from webtorch.tensors.tensor import Tensor

__all__ = ["SGD", "sgd"]


class SGD(Optimizer):
    """Stochastic gradient descent: `p -= lr * g`, with momentum `b = momentum * b + g; p -= lr * b`.

    The buffer starts as the first gradient; dampening acts from the second step on. Sutskever et
    al., 2013.
    """

    _takes_back: ClassVar[bool] = True
    _lists: ClassVar[Mapping[str, str]] = {
        "momentum_buffer_list": "momentum_buffer",
    }
    _takes_sparse: ClassVar[bool] = True
    _tells: ClassVar[tuple[str, ...]] = ("sparse",)
    _derived: ClassVar[dict[str, Derived]] = {
        **Optimizer._derived,
        "1-dampening": lambda group: 1 - group["dampening"],
    }

    def __init__(
        self,
        params: object,
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float | Tensor = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        """Take the options; `weight_decay` is an L2 penalty added to the gradient."""
        defaults = options_of(locals())
        check_options(defaults, "weight_decay")
        if momentum < 0.0:
            raise ValueError(f"Invalid momentum value: {momentum}")
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        super().__init__(params, defaults)
        check_flags(defaults)
        if dampening != 0:
            # The first gradient is not dampened: a first step that is taken back leaves no trace of
            # which gradient is the first, so the host must know.
            self._takes_back = False  # type: ignore[misc]

    def _can_take_back(self) -> bool:
        return self._takes_back or all(
            "momentum_buffer" in self.state.get(p, ())
            for group in self.param_groups
            if group["momentum"] != 0
            for p in group["params"]
            if p.grad is not None
        )

    def _update(self, group: Group) -> None:
        """Change the parameters of one group."""
        rate = self._scalar(group, "-lr")
        for param, grad in self._gradients(group):
            if isinstance(group["weight_decay"], Tensor):
                grad = grad + param * group["weight_decay"]
            elif group["weight_decay"] != 0:
                grad = grad.add(param, alpha=self._scalar(group, "weight_decay"))
            if group["momentum"] != 0:
                momentum = self._scalar(group, "momentum")
                state = self.state[param]
                buffer = state.get("momentum_buffer")
                if buffer is None:
                    buffer = state["momentum_buffer"] = grad.detach().clone()
                else:
                    buffer.mul_(momentum).add_(grad, alpha=self._hyper(group)("1-dampening"))
                grad = grad.add(buffer, alpha=momentum) if group["nesterov"] else buffer
            if isinstance(rate, Tensor):
                param.add_(grad * rate)
            else:
                param.add_(grad, alpha=rate)


def sgd(
    params: list[Tensor],
    d_p_list: list[Tensor],
    momentum_buffer_list: list[Tensor | None],
    has_sparse_grad: bool = False,
    foreach: bool | None = None,
    fused: bool | None = None,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    *,
    weight_decay: float,
    momentum: float,
    lr: float,
    dampening: float,
    nesterov: bool,
    maximize: bool,
) -> None:
    """Make a step of SGD on parameters with gradients and states that are given in lists."""
    update_lists(SGD, locals(), grads=d_p_list)
