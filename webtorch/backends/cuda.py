"""Switches of CUDA, which is not used here: kept, without effect. Floor 5."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple


class _Matmul:
    """Switches of matrix products."""

    allow_tf32 = False
    allow_fp16_reduced_precision_reduction = True
    allow_bf16_reduced_precision_reduction = True
    allow_fp16_accumulation = False


matmul = _Matmul()
_kinds = {"flash": True, "mem_efficient": True, "math": True, "cudnn": True}


_linalg = "default"


def preferred_linalg_library(backend: str | None = None) -> str:
    """Keep the name of a library for factorisations, if one is given, and return the one that is kept."""
    global _linalg
    if backend is not None:
        if backend not in ("default", "cusolver", "magma"):
            raise RuntimeError("Unknown input value. Choose from: default, cusolver, magma.")
        _linalg = backend
    return _linalg


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


class SDPAParams(NamedTuple):
    """What one call of attention is given, to ask which of CUDA's kernels takes it."""

    query: Any
    key: Any
    value: Any
    attn_mask: Any
    dropout: float
    is_causal: bool
    enable_gqa: bool = False


def can_use_flash_attention(params: SDPAParams, debug: bool = False) -> bool:
    """Return False: the kernel is CUDA's."""
    return False


def can_use_efficient_attention(params: SDPAParams, debug: bool = False) -> bool:
    """Return False: the kernel is CUDA's."""
    return False


def can_use_cudnn_attention(params: SDPAParams, debug: bool = False) -> bool:
    """Return False: the kernel is cuDNN's."""
    return False


def is_flash_attention_available() -> bool:
    """Return False."""
    return False
