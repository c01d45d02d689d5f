"""Fused optimizers of PyTorch (`torch.optim.Adam(..., fused=True)`): one kernel call for all parameters. Floor 6.

Each works through its tensor lists with the op table's formulas: what one parameter takes is one kernel of the
step's program. 16-bit parameters are stepped in float32. Where a gradient scaler found an infinity, nothing changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from webtorch.ir.dtype import Number
from webtorch.ops.optimize import adam_step, square_average
from webtorch.ops.precision import widened
from webtorch.ops.primitive import copy
from webtorch.pytorch.aten.table import op
from webtorch.pytorch.device import store, wrap
from webtorch.tensors.tensor import Tensor

Kernel = Callable[..., None]


def _number(value: float | torch.Tensor) -> Tensor | Number:
    """Return a learning rate: a number, or a 0-d tensor of either device as the engine takes it."""
    if not isinstance(value, torch.Tensor):
        return value
    return wrap(value) if value.device.type == "webgpu" else value.item()


class _Scaler:
    """What a gradient scaler hands a fused step: the scale of the gradients, and whether one is infinite."""

    def __init__(
        self, grad_scale: torch.Tensor | None, found_inf: torch.Tensor | None, maximize: bool
    ) -> None:
        self.factor = None if grad_scale is None else op.reciprocal(wrap(grad_scale))
        self.failed = None if found_inf is None else op.ne(wrap(found_inf), 0.0)
        self.maximize = maximize

    def gradient(self, grad: torch.Tensor) -> Tensor:
        """Return the gradient to descend; a scaled one is also written back without its scale."""
        g = widened(wrap(grad))
        if self.factor is not None:
            g = g * self.factor
            self.write(grad, g)
        return -g if self.maximize else g

    def write(self, x: torch.Tensor, value: Tensor) -> None:
        """Overwrite a tensor unless an infinity was found."""
        if self.failed is not None:
            value = op.where(self.failed, wrap(x), value)
        store(x, value, fresh=True)


def _adam(decoupled: bool) -> Kernel:
    def kernel(
        params: Sequence[torch.Tensor],
        grads: Sequence[torch.Tensor],
        averages: Sequence[torch.Tensor],
        squares: Sequence[torch.Tensor],
        largest: Sequence[torch.Tensor],
        steps: Sequence[torch.Tensor],
        *,
        lr: float | torch.Tensor,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: torch.Tensor | None = None,
        found_inf: torch.Tensor | None = None,
    ) -> None:
        """Update all parameters, averages and steps in place."""
        scaler, rate = _Scaler(grad_scale, found_inf, maximize), _number(lr)
        # log(0) is -inf, and expm1 of that -1: no correction.
        log1, log2 = (math.log(b) if b else -math.inf for b in (beta1, beta2))
        for i, param in enumerate(params):
            x, g, step = widened(wrap(param)), scaler.gradient(grads[i]), wrap(steps[i])
            # 1 - beta ** step with all its digits; the corrections meet numbers only, and no whole tensor.
            root = op.sqrt(-op.expm1(step * log2))
            scale = root * rate / op.expm1(step * log1)
            if weight_decay and decoupled:
                x = x * (1 - rate * weight_decay)
            elif weight_decay:
                g = g + x * weight_decay
            average = op.lerp(widened(wrap(averages[i])), g, 1 - beta1)
            square = square_average(widened(wrap(squares[i])), g, beta2, 1 - beta2)
            scaler.write(averages[i], average)
            scaler.write(squares[i], square)
            if amsgrad:
                square = op.maximum(widened(wrap(largest[i])), square)
                scaler.write(largest[i], square)
            scaler.write(param, adam_step(x, average, square, scale, root * eps))

    return kernel


def _sgd(
    params: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    buffers: Sequence[torch.Tensor],
    *,
    weight_decay: float,
    momentum: float,
    lr: float | torch.Tensor,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    scaler, rate = _Scaler(grad_scale, found_inf, maximize), _number(lr)
    for i, param in enumerate(params):
        x, g = widened(wrap(param)), scaler.gradient(grads[i])
        if weight_decay:
            g = g + x * weight_decay
        if momentum:
            if is_first_step:
                kept = copy(g)
                # The buffer is new memory: where the step fails, it begins at zero.
                begun = kept if scaler.failed is None else op.where(scaler.failed, 0.0, kept)
                store(buffers[i], begun, fresh=begun is not kept)
            else:
                kept = widened(wrap(buffers[i])) * momentum + g * (1 - dampening)
                scaler.write(buffers[i], kept)
            g = g + kept * momentum if nesterov else kept
        scaler.write(param, x - g * rate)


def _adagrad(
    params: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    sums: Sequence[torch.Tensor],
    steps: Sequence[torch.Tensor],
    *,
    lr: float | torch.Tensor,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    scaler, rate = _Scaler(grad_scale, found_inf, maximize), _number(lr)
    for i, param in enumerate(params):
        x, g, step = widened(wrap(param)), scaler.gradient(grads[i]), wrap(steps[i])
        if weight_decay:
            g = g + x * weight_decay
        total = widened(wrap(sums[i])) + g * g
        scaler.write(sums[i], total)
        slower = rate / ((step - 1) * lr_decay + 1) if lr_decay else rate
        scaler.write(param, x - g * slower / (op.sqrt(total) + eps))


KERNELS: dict[str, Kernel] = {
    f"{name}{overload}": kernel
    for name, kernel in (
        ("_fused_adam_", _adam(False)),
        ("_fused_adamw_", _adam(True)),
        ("_fused_sgd_", _sgd),
        ("_fused_adagrad_", _adagrad),
    )
    for overload in ("", ".tensor_lr")
}
