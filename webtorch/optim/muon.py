"""Muon. May import floors 0 to 4."""

from __future__ import annotations

import math
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

__all__ = ["Muon", "muon"]


class Muon(Optimizer):
    """Momentum whose update is made orthogonal by Newton and Schulz's iteration.

    For matrices; other parameters want another optimizer. Jordan et al., 2024; the rate
    "match_rms_adamw" is that of Liu et al., 2025.
    """

    _takes_back: ClassVar[bool] = True
    _lists: ClassVar[Mapping[str, str]] = {
        "muon_momentum_bufs": "momentum_buffer",
    }
    _takes_complex: ClassVar[bool] = False
    _derived: ClassVar[dict[str, Derived]] = {
        **Optimizer._derived,
        **OF_DECAY,
        "1-momentum": lambda group: 1 - group["momentum"],
        "a": lambda group: group["ns_coefficients"][0],
        "b": lambda group: group["ns_coefficients"][1],
        "c": lambda group: group["ns_coefficients"][2],
    }

    _by_element = False

    def __init__(
        self,
        params: object,
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        """Take the options; each of `ns_steps` is x = a x + (b x x^T + c (x x^T)^2) x, in bfloat16."""
        defaults = options_of(locals())
        if isinstance(lr, Tensor) and lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
        if not lr >= 0.0:
            raise ValueError(f"Learning rate should be >= 0 but is: {lr}")
        if not momentum >= 0.0:
            raise ValueError(f"momentum should be >= 0 but is: {momentum}")
        if not weight_decay >= 0.0:
            raise ValueError(f"weight decay should be >= 0 but is: {weight_decay}")
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ValueError(f"Adjust learning rate function {adjust_lr_fn} is not supported")
        super().__init__(params, defaults)
        for group in self.param_groups:
            for param in group["params"]:
                if param.dim() != 2:
                    raise ValueError(
                        "Muon only supports 2D parameters whereas we found a parameter with "
                        f"size: {param.size()}"
                    )

    def _begun(self, group: Group, param: Tensor) -> StateDict:
        """Return the state of a parameter, which begins if there is none."""
        state = self.state[param]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = webtorch.zeros_like(param)
        return state

    def _update(self, group: Group) -> None:
        """Change the parameters of one group."""
        hyper, rate = self._hyper(group), self._scalar(group, "-lr")
        for param, grad in self._gradients(group):
            buffer = self._begun(group, param)["momentum_buffer"]
            buffer.lerp_(grad, hyper("1-momentum"))
            update = grad.lerp(buffer, hyper("momentum")) if group["nesterov"] else buffer
            update = self._orthogonal(group, update).to(param.dtype)
            rows, columns = param.shape
            if group["adjust_lr_fn"] == "match_rms_adamw":
                ratio = 0.2 * math.sqrt(max(rows, columns))
            else:
                ratio = math.sqrt(max(1, rows / columns))
            self._decay(group, param)
            param.add_(update * ratio * rate)

    def _orthogonal(self, group: Group, matrix: Tensor) -> Tensor:
        """Return a matrix near the orthogonal factor of `matrix`: singular values near 1."""
        steps = group["ns_steps"]
        if steps >= 100:
            raise ValueError("Number of steps must be less than 100 for computational efficiency")
        if len(group["ns_coefficients"]) != 3:
            raise ValueError("Coefficients must be a tuple of exactly 3 values")
        hyper = self._hyper(group)
        tall = matrix.shape[0] > matrix.shape[1]
        x = matrix.bfloat16()
        x = x.t() if tall else x
        x = x / x.norm().clamp(min=hyper("eps"))
        for _ in range(steps):
            gram = x @ x.t()
            mixed = webtorch.addmm(gram, gram, gram, beta=hyper("b"), alpha=hyper("c"))
            x = webtorch.addmm(x, mixed, x, beta=hyper("a"))
        return x.t() if tall else x


def muon(
    params: list[Tensor],
    grads: list[Tensor],
    muon_momentum_bufs: list[Tensor],
    *,
    foreach: bool | None = None,
    lr: float,
    weight_decay: float,
    momentum: float,
    nesterov: bool,
    ns_coefficients: tuple[float, float, float],
    ns_steps: int,
    eps: float,
    adjust_lr_fn: str | None,
    has_complex: bool,
) -> None:
    """Make a step of Muon on parameters with gradients and states that are given in lists."""
    update_lists(Muon, locals())
