"""`webtorch.autograd.grad_mode`: what is recorded for backward. May import floor 4."""

from webtorch.tensors.modes import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    no_grad,
    set_grad_enabled,
)
from webtorch.tensors.modes import force_original_view_tracking as _force_original_view_tracking
from webtorch.tensors.modes import is_multithreading_enabled as is_multithreading_enabled
from webtorch.tensors.modes import is_view_replay_enabled as is_view_replay_enabled
from webtorch.tensors.modes import set_multithreading_enabled as set_multithreading_enabled

__all__ = [
    "_force_original_view_tracking", "enable_grad", "inference_mode", "is_grad_enabled", "no_grad",
    "set_grad_enabled", "set_multithreading_enabled",
]  # fmt: skip
