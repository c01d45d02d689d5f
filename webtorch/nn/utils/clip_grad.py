"""Gradient clipping, without reading from the device. May import the tensor floor only."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from typing import Any

from webtorch.dispatch.call import Args, Callee, Kwargs
from webtorch.functions import public as webtorch
from webtorch.ir.lines import user_depth
from webtorch.tensors.tensor import Tensor
from webtorch.tensors.whole import as_one

__all__ = [
    "clip_grad_norm",
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "get_total_norm",
]


def _listed(tensors: Tensor | Iterable[Tensor]) -> list[Tensor]:
    """Return one tensor or many as a list."""
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _gradients(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    """Return the gradients that there are."""
    return [p.grad for p in _listed(parameters) if p.grad is not None]


def _norm(args: Args, kwargs: Kwargs) -> Tensor:
    tensors, norm_type = args
    device = tensors[0].device
    if norm_type == 2.0:
        # One square root for all: the sums of squares add up.
        sums = [(t.detach() * t.detach()).sum() for t in tensors]
        return webtorch.stack([s.to(device) for s in sums]).sum().sqrt()
    norms = [webtorch.norm(t.detach(), norm_type) for t in tensors]
    return webtorch.norm(webtorch.stack([n.to(device) for n in norms]), norm_type)


def _scale(args: Args, kwargs: Kwargs) -> None:
    grads, max_norm, total_norm = args
    # Clamped, not tested: a test would read the norm. 1e-6 keeps 0 / 0 out.
    factor = (max_norm / (total_norm + 1e-6)).clamp(max=1.0)
    with webtorch.no_grad():
        for grad in grads:
            grad.mul_(factor.to(grad.device))


def _clamp(args: Args, kwargs: Kwargs) -> None:
    grads, most = args
    with webtorch.no_grad():
        for grad in grads:
            grad.clamp_(min=-most, max=most)


_NORM = Callee("get_total_norm", _norm)
_SCALE = Callee("clip_grads_with_norm_", _scale)
_CLAMP = Callee("clip_grad_value_", _clamp)


def get_total_norm(
    tensors: Tensor | Iterable[Tensor],
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Return the norm of all tensors as if they were one vector: a 0-d tensor on their device.

    Only `error_if_nonfinite` reads it, to raise RuntimeError when it is NaN or infinite.
    """
    tensors = _listed(tensors)
    norm_type = float(norm_type)
    if not tensors:
        return webtorch.tensor(0.0)
    total: Tensor = as_one(_NORM, tensors, norm_type)
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, "
            "so it cannot be clipped. To disable this error and scale the gradients by the "
            "non-finite norm anyway, set `error_if_nonfinite=False`"
        )
    return total


def clip_grads_with_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    total_norm: Tensor,
    foreach: bool | None = None,
) -> None:
    """Scale the gradients, in place, as if their norm `total_norm` were at most `max_norm`."""
    grads = _gradients(parameters)
    if not grads:
        return
    as_one(_SCALE, grads, max_norm, total_norm)


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale the gradients so that their common norm is at most `max_norm`; return that norm.

    Pascanu et al., 2013.
    """
    if not isinstance(parameters, Tensor):
        is_generator = not hasattr(parameters, "__len__")
        parameters = list(parameters)
        if is_generator and not parameters:
            warnings.warn(
                "`parameters` is an empty generator, no gradient clipping will occur.",
                stacklevel=user_depth(),
            )
    grads = _gradients(parameters)
    total = get_total_norm(grads, norm_type, error_if_nonfinite, foreach)
    if grads:
        as_one(_SCALE, grads, max_norm, total)
    return total


def clip_grad_norm(*args: Any, **kwargs: Any) -> Tensor:
    """Old name of `clip_grad_norm_`."""
    warnings.warn(
        "`torch.nn.utils.clip_grad_norm` is now deprecated in favor of "
        "`torch.nn.utils.clip_grad_norm_`.",
        FutureWarning,
        stacklevel=user_depth(),
    )
    return clip_grad_norm_(*args, **kwargs)


def clip_grad_value_(
    parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None
) -> None:
    """Limit every element of the gradients, in place, to [-clip_value, clip_value]."""
    if not isinstance(clip_value, float):
        clip_value = float(clip_value)
    as_one(_CLAMP, _gradients(parameters), clip_value)
