"""Adagrad. May import floors 0 to 4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from webtorch.functions import public as webtorch
from webtorch.optim.optimizer import (
    Group,
    Optimizer,
    StateDict,
    check_flags,
    check_options,
    options_of,
    update_lists,
)
from webtorch.tensors.formats import strided
from webtorch.tensors.tensor import Tensor

__all__ = ["Adagrad", "adagrad"]


class Adagrad(Optimizer):
    """Divide the gradient by the root of the sum of its squares so far. Duchi et al., 2011."""

    _takes_back: ClassVar[bool] = True
    _lists: ClassVar[Mapping[str, str]] = {
        "state_sums": "sum",
        "state_steps": "step",
    }
    _beginnings: ClassVar[dict[str, float | str]] = {"sum": "initial_accumulator_value"}
    _takes_sparse: ClassVar[bool] = True
    _tells: ClassVar[tuple[str, ...]] = ("sparse", "complex")

    def __init__(
        self,
        params: object,
        lr: float | Tensor = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        """Take the options; step n's learning rate is lr / (1 + (n - 1) * lr_decay)."""
        defaults = options_of(locals())
        check_options(defaults, "lr_decay", "weight_decay", "initial_accumulator_value", "eps")
        super().__init__(params, defaults)
        check_flags(defaults)
        for group in self.param_groups:
            self._start(group["params"])

    def _start(self, params: list[Tensor]) -> None:
        """Make the state of parameters that have none."""
        self._new_steps(params)
        for param in params:
            if "sum" not in self.state[param]:
                # From the optimizer's option, as PyTorch does, not from the group's.
                start = self.defaults["initial_accumulator_value"]
                if param.dtype.is_complex:
                    start = complex(start, start)
                self.state[param]["sum"] = webtorch.full_like(param, start).detach()

    def _begun(self, group: Group, param: Tensor) -> StateDict:
        """Return the state of a parameter, which begins if there is none."""
        self._start([param])
        return self.state[param]

    def _update(self, group: Group) -> None:
        """Change the parameters of one group."""
        self._start([param for param in group["params"] if param.grad is not None])
        hyper = self._hyper(group)
        for step, members in self._advanced(group):
            rate = self._scalar(group, "-lr")
            if group["lr_decay"] != 0:
                rate = ((step - 1) * hyper("lr_decay") + 1).reciprocal() * rate
            for param, grad in members:
                if grad.layout is not strided:
                    _update_sparse(group, self.state[param]["sum"], param, grad, rate)
                    continue
                grad = self._decayed(group, param, grad)
                total = self.state[param]["sum"]
                total.addcmul_(grad, grad, value=1)
                param.addcdiv_(grad * rate, total.sqrt().add(hyper("eps")))


def _update_sparse(group: Group, total: Tensor, param: Tensor, given: Tensor, rate: object) -> None:
    """Change a parameter where its gradient has values."""
    if group["weight_decay"] != 0:
        raise RuntimeError("weight_decay option is not compatible with sparse gradients")
    grad: Any = given.coalesce()
    values = grad._values()
    total.add_(grad.like(values * values))
    size = total.sparse_mask(grad)._values().sqrt() + group["eps"]
    param.add_(grad.like(values * rate / size))


def adagrad(
    params: list[Tensor],
    grads: list[Tensor],
    state_sums: list[Tensor],
    state_steps: list[Tensor],
    fused: bool | None = None,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    has_sparse_grad: bool = False,
    foreach: bool | None = None,
    differentiable: bool = False,
    has_complex: bool = False,
    *,
    lr: float,
    weight_decay: float,
    lr_decay: float,
    eps: float,
    maximize: bool,
) -> None:
    """Make a step of Adagrad on parameters with gradients and states that are given in lists."""
    update_lists(Adagrad, locals())
