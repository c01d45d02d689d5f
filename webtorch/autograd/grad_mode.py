"""`webtorch.autograd.grad_mode`: what is recorded for backward. May import floor 4."""

from webtorch.tensors.modes import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    no_grad,
    set_grad_enabled,
)

__all__ = ["enable_grad", "inference_mode", "is_grad_enabled", "no_grad", "set_grad_enabled"]
