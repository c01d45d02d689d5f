"""Switches of CUDA, which is not used here: kept, without effect. Floor 5."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class _Matmul:
    """Switches of matrix products."""

    allow_tf32 = False
    allow_fp16_reduced_precision_reduction = True
    allow_bf16_reduced_precision_reduction = True
    allow_fp16_accumulation = False


matmul = _Matmul()
_kinds = {"flash": True, "mem_efficient": True, "math": True, "cudnn": True}


def is_built() -> bool:
    """Return False."""
    return False


def flash_sdp_enabled() -> bool:
    """Whether the program allows PyTorch's flash attention. Attention here is chosen by itself."""
    return _kinds["flash"]


def enable_flash_sdp(enabled: bool) -> None:
    """Keep the switch."""
    _kinds["flash"] = enabled


def mem_efficient_sdp_enabled() -> bool:
    """Whether the program allows PyTorch's memory-efficient attention."""
    return _kinds["mem_efficient"]


def enable_mem_efficient_sdp(enabled: bool) -> None:
    """Keep the switch."""
    _kinds["mem_efficient"] = enabled


def math_sdp_enabled() -> bool:
    """Whether the program allows attention as separate operations."""
    return _kinds["math"]


def enable_math_sdp(enabled: bool) -> None:
    """Keep the switch."""
    _kinds["math"] = enabled


def cudnn_sdp_enabled() -> bool:
    """Whether the program allows cuDNN's attention."""
    return _kinds["cudnn"]


def enable_cudnn_sdp(enabled: bool) -> None:
    """Keep the switch."""
    _kinds["cudnn"] = enabled


@contextlib.contextmanager
def sdp_kernel(
    enable_flash: bool = True,
    enable_math: bool = True,
    enable_mem_efficient: bool = True,
    enable_cudnn: bool = True,
) -> Iterator[None]:
    """Set the switches inside the block."""
    old = dict(_kinds)
    _kinds.update(
        flash=enable_flash, math=enable_math, mem_efficient=enable_mem_efficient, cudnn=enable_cudnn
    )
    try:
        yield
    finally:
        _kinds.update(old)
