"""Forgetting gradients, as modules and optimizers do. May import the tensor floor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from webtorch.dispatch.call import Args, Callee, Kwargs, active, enter
from webtorch.tensors.host import tracing
from webtorch.tensors.modes import no_grad
from webtorch.tensors.tensor import Tensor


def _forget(args: Args, kwargs: Kwargs) -> None:
    for param in args[0]:
        param._grad = None


_FORGET = Callee("zero_grad", _forget, role="gradient")


def clear_grads(params: Iterable[Tensor], set_to_none: bool) -> None:
    """Forget the gradients of parameters, or detach them and fill them with zeros."""
    params = list(params)
    if set_to_none:
        # One call for all of them, where nobody sees each.
        seen = tracing.active or active.others
        kinds: set[Any] = {*map(type, params)}
        if not seen and all(kind.grad is Tensor.grad for kind in kinds):
            enter(_FORGET, (params, None), {})
            return
        for param in params:
            param.grad = None
        return
    for param in params:
        grad = param.grad
        if grad is None:
            continue
        if grad.grad_fn is not None:
            grad.detach_()
        else:
            grad.requires_grad_(False)
        with no_grad():
            grad.zero_()
