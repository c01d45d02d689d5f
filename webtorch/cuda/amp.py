"""`webtorch.cuda.amp`: the old names of `webtorch.amp`, which warn, as PyTorch's do. May import floors 0 to 4."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from webtorch import amp
from webtorch.ir.dtype import DType, float16
from webtorch.ir.lines import user_depth

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


def _deprecated(name: str, arguments: str, instead: str) -> None:
    warnings.warn(
        f"`torch.cuda.amp.{name}({arguments})` is deprecated. Please use `torch.amp.{instead}` instead.",
        FutureWarning,
        stacklevel=user_depth(),
    )


class autocast(amp.autocast):
    """`webtorch.autocast("cuda")`: off, with a warning, since there is no CUDA."""

    def __init__(
        self, enabled: bool = True, dtype: DType = float16, cache_enabled: bool = True
    ) -> None:
        _deprecated("autocast", "args...", "autocast('cuda', args...)")
        super().__init__("cuda", dtype, enabled, cache_enabled)


class GradScaler(amp.GradScaler):
    """`webtorch.amp.GradScaler("cuda")`: off, with a warning, since there is no CUDA."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        _deprecated("GradScaler", "args...", "GradScaler('cuda', args...)")
        super().__init__(
            "cuda", init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )


def custom_fwd(fwd: Callable[..., object] | None = None, **kwargs: Any) -> Callable[..., Any]:
    """`webtorch.amp.custom_fwd` for "webgpu", which is where programs for CUDA run here."""
    _deprecated("custom_fwd", "args...", "custom_fwd(args..., device_type='cuda')")
    return functools.partial(amp.custom_fwd, device_type="webgpu")(fwd, **kwargs)


def custom_bwd(bwd: Callable[..., object]) -> Callable[..., Any]:
    """`webtorch.amp.custom_bwd` for "webgpu", which is where programs for CUDA run here."""
    _deprecated("custom_bwd", "args...", "custom_bwd(args..., device_type='cuda')")
    return amp.custom_bwd(bwd, device_type="webgpu")
