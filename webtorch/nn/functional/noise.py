"""Dropout as functions. May import the tensor floor and the op table."""

from __future__ import annotations

import webtorch
from webtorch import Tensor
from webtorch.nn.functional.table import table

__all__ = ["dropout", "dropout1d", "dropout2d", "dropout3d"]

_dropout = table("dropout")


def _checked(p: float) -> None:
    """Raise ValueError unless `p` is a probability."""
    if p < 0.0 or p > 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Set elements to 0 with probability `p` and scale the rest by 1 / (1 - p), when training."""
    _checked(p)
    if not training or p == 0.0:
        return input
    return input.copy_(_dropout(input.clone(), p, True)) if inplace else _dropout(input, p, True)


def _channel_dropout(input: Tensor, p: float, training: bool, inplace: bool) -> Tensor:
    """Drop whole channels: one draw for each (example, channel)."""
    _checked(p)
    if not training or p == 0.0:
        return input
    noise = webtorch.ones(
        (*input.shape[:2], *(1,) * (input.dim() - 2)), dtype=input.dtype, device=input.device
    )
    mask = _dropout(noise, p, True)
    return input.mul_(mask) if inplace else input * mask


def dropout1d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Drop whole channels of (N, C, L) or (C, L)."""
    _checked(p)
    if input.dim() not in (2, 3):
        raise RuntimeError(
            f"dropout1d: Expected 2D or 3D input, but received a {input.dim()}D input. Note that "
            "dropout1d exists to provide channel-wise dropout on inputs with 1 spatial dimension, "
            "a channel dimension, and an optional batch dimension (i.e. 2D or 3D inputs)."
        )
    if input.dim() == 2:
        return _channel_dropout(input.unsqueeze(0), p, training, inplace).squeeze(0)
    return _channel_dropout(input, p, training, inplace)


def dropout2d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Drop whole channels of (N, C, H, W)."""
    return _channel_dropout(input, p, training, inplace)


def dropout3d(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Drop whole channels of (N, C, D, H, W) or (C, D, H, W)."""
    if input.dim() == 4:
        return _channel_dropout(input.unsqueeze(0), p, training, inplace).squeeze(0)
    return _channel_dropout(input, p, training, inplace)
