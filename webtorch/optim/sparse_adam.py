"""SparseAdam. May import floors 0 to 5."""

from __future__ import annotations

import math
from typing import Any

from webtorch.functions import public as webtorch
from webtorch.optim.optimizer import Group, Optimizer, options_of
from webtorch.tensors.formats import sparse_coo
from webtorch.tensors.tensor import Tensor

__all__ = ["SparseAdam"]


class SparseAdam(Optimizer):
    """Adam on the elements for which a sparse gradient has values, as `nn.Embedding(sparse=True)` gives them: moments
    and parameters stay where it has none. Kingma and Ba, 2015.
    """

    _takes_sparse = True

    def __init__(
        self,
        params: object,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        maximize: bool = False,
    ) -> None:
        """Take the options. Raises ValueError for parameters that are sparse themselves, or complex."""
        if isinstance(lr, Tensor) and lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
        if not lr > 0.0:
            raise ValueError(f"Invalid learning rate: {lr}")
        if not eps > 0.0:
            raise ValueError(f"Invalid epsilon value: {eps}")
        for index, beta in enumerate(betas):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"Invalid beta parameter at index {index}: {beta}")
        super().__init__(params, options_of(locals()))
        places = [
            ([i, j], p)
            for i, group in enumerate(self.param_groups)
            for j, p in enumerate(group["params"])
        ]
        sparse = [place for place, p in places if p.is_sparse]
        if sparse:
            raise ValueError(
                f"Sparse params at indices {sparse}: SparseAdam requires dense parameter tensors"
            )
        turned = [place for place, p in places if p.is_complex()]
        if turned:
            raise ValueError(
                f"Complex params at indices {turned}: SparseAdam does not support complex parameters"
            )

    def _update(self, group: Group) -> None:
        """Change the parameters of one group."""
        beta1, beta2 = group["betas"]
        lr = group["lr"].item() if isinstance(group["lr"], Tensor) else group["lr"]
        for param, given in self._gradients(group):
            if given.layout is not sparse_coo:
                raise RuntimeError(
                    "SparseAdam does not support dense gradients, please consider Adam instead"
                )
            state = self.state[param]
            if not state:
                state["step"] = 0
                state["exp_avg"] = webtorch.zeros_like(param.detach())
                state["exp_avg_sq"] = webtorch.zeros_like(param.detach())
            state["step"] += 1
            # The update is not linear: each place comes once.
            grad: Any = given.coalesce()
            values = grad._values()
            if not values.numel():
                continue
            mean = _moved(state["exp_avg"], grad, values, 1 - beta1)
            square = _moved(state["exp_avg_sq"], grad, values * values, 1 - beta2)
            count = state["step"]
            rate = lr * math.sqrt(1 - beta2**count) / (1 - beta1**count)
            param.add_(grad.like(-rate * mean / (square.sqrt() + group["eps"])))


def _moved(average: Tensor, grad: Any, values: Tensor, weight: float) -> Tensor:
    """Move a running average towards values where the gradient has any; return what it is there."""
    before = average.sparse_mask(grad)._values()
    change = (values - before) * weight
    average.add_(grad.like(change))
    return before + change
