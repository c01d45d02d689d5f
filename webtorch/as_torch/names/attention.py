"""torch.nn.attention: a choice of kernels, which here is made by shape."""

from __future__ import annotations

import contextlib
import enum


class SDPBackend(enum.IntEnum):
    """PyTorch's kernels of attention."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


def sdpa_kernel(backends: object, set_priority: bool = False) -> contextlib.nullcontext[None]:
    """Change nothing: the kernel of attention is chosen by what is computed."""
    return contextlib.nullcontext()
