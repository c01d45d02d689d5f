"""Adafactor. May import floors 0 to 4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from webtorch.functions import public as webtorch
from webtorch.optim.optimizer import (
    OF_DECAY,
    Derived,
    Group,
    Optimizer,
    StateDict,
    options_of,
    update_lists,
)
from webtorch.tensors.tensor import Tensor

__all__ = ["Adafactor", "adafactor"]


def _root_mean_square(x: Tensor) -> Tensor:
    """Return sqrt(mean(x ** 2)) as a 0-d tensor."""
    return (x * x).mean().sqrt()


class Adafactor(Optimizer):
    """Adam without momentum, whose average of squares is kept as one row and one column.

    Shazeer and Stern, 2018. Matrices in the last two dimensions are factored; vectors are not.
    """

    _takes_back: ClassVar[bool] = True
    _lists: ClassVar[Mapping[str, str]] = {
        "row_vars": "row_var",
        "col_vars": "col_var",
        "variances": "variance",
        "state_steps": "step",
    }
    _takes_complex: ClassVar[bool] = False
    _derived: ClassVar[dict[str, Derived]] = {
        **Optimizer._derived,
        **OF_DECAY,
        "eps2": lambda group: group["eps"][1],
        "1/d": lambda group: 1 / group["d"],
    }

    _by_element = False

    def __init__(
        self,
        params: object,
        lr: float | Tensor = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        """Take the options: steps are at most lr and 1 / sqrt(n), times the parameter's size.

        The parameter's size is its root mean square, at least eps[1]; d limits the update's.
        """
        defaults = options_of(locals())
        if isinstance(lr, Tensor) and lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
        if not lr >= 0.0:
            raise ValueError(f"Learning rate should be >= 0 but is: {lr}")
        if not beta2_decay <= 0.0:
            raise ValueError(f"beta2_decay should be <= 0 but is: {beta2_decay}")
        for position, value in enumerate(eps):
            if value is not None and not value >= 0.0:
                raise ValueError(f"epsilon{position + 1} should be >= 0 but is: {value}")
        if not d >= 1.0:
            raise ValueError(f"Clipping threshold d should be >= 1 but is: {d}")
        if not weight_decay >= 0.0:
            raise ValueError(f"weight_decay should be >= 0 but is: {weight_decay}")
        super().__init__(params, defaults)

    def _begun(self, group: Group, param: Tensor) -> StateDict:
        """Return the state of a parameter, which begins if there is none."""
        state = self.state[param]
        if param.dim() <= 1:
            if "variance" not in state:
                state["variance"] = webtorch.zeros_like(param)
        elif "row_var" not in state:
            state["row_var"] = webtorch.zeros_like(param[..., :1])
            state["col_var"] = webtorch.zeros_like(param[..., :1, :])
        return state

    def _update(self, group: Group) -> None:
        """Change the parameters of one group."""
        hyper, rate = self._hyper(group), self._scalar(group, "lr")
        for step, members in self._advanced(group):
            fresh = webtorch.exp(webtorch.log(step) * hyper("beta2_decay"))
            limit = webtorch.minimum(step.rsqrt(), webtorch.zeros_like(step) + rate)
            for param, grad in members:
                size = _root_mean_square(param).clamp(min=hyper("eps2")) * limit
                if group["weight_decay"] != 0:
                    self._decay(group, param)
                eps = group["eps"][0]
                eps = webtorch.finfo(param.dtype).eps if eps is None else eps
                variance = self._variance(group, param, grad, fresh, eps)
                update = variance.clamp(min=eps * eps).rsqrt() * grad
                too_large = (_root_mean_square(update) * hyper("1/d")).clamp(min=1)
                param.sub_(update * (size / too_large))

    def _variance(
        self, group: Group, param: Tensor, grad: Tensor, fresh: Tensor, eps: float
    ) -> Tensor:
        """Return the estimate of the squared gradient; `fresh` is the part of this step's."""
        state, squares = self._begun(group, param), grad * grad
        if grad.dim() <= 1:
            return state["variance"].lerp_(squares, fresh.to(grad.dtype))
        row, column = state["row_var"], state["col_var"]
        row.lerp_(squares.mean(-1, keepdim=True), fresh.to(grad.dtype))
        column.lerp_(squares.mean(-2, keepdim=True), fresh.to(grad.dtype))
        return row * column / row.mean(-2, keepdim=True).clamp(min=eps)


def adafactor(
    params: list[Tensor],
    grads: list[Tensor],
    row_vars: list[Tensor | None],
    col_vars: list[Tensor | None],
    variances: list[Tensor | None],
    state_steps: list[Tensor],
    foreach: bool | None = None,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    has_complex: bool = False,
    *,
    d: float,
    lr: float | Tensor,
    beta2_decay: float,
    weight_decay: float,
    eps1: float,
    eps2: float,
    maximize: bool,
) -> None:
    """Make a step of Adafactor on parameters with gradients and states that are given in lists."""
    update_lists(Adafactor, locals(), eps=(eps1, eps2))
