"""`webtorch.accelerator`: the device that is not the CPU, by PyTorch's general names. Floor 5.

Programs written for any accelerator run on WebGPU through it:
`device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"`.
"""

from __future__ import annotations

from webtorch import webgpu
from webtorch.functions import public as webtorch

__all__ = [
    "current_accelerator", "current_device_index", "device_count", "empty_cache", "is_available", "synchronize",
]  # fmt: skip


def is_available() -> bool:
    """Whether there is a WebGPU adapter."""
    return webgpu.is_available()


def device_count() -> int:
    """Return the number of WebGPU adapters."""
    return webgpu.device_count()


def current_accelerator(check_available: bool = False) -> webtorch.device | None:
    """Return device("webgpu"); None where `check_available` and there is no adapter."""
    if check_available and not is_available():
        return None
    return webtorch.device("webgpu")


def current_device_index() -> int:
    """Return the index of the WebGPU device that tensors go to by default."""
    chosen = webtorch.get_default_device()
    return chosen.index or 0


def synchronize(device: object = None, /) -> None:
    """Wait until a WebGPU device has done its work."""
    webgpu.synchronize(device)


def empty_cache() -> None:
    """Free memory that a WebGPU device keeps for reuse."""
    webgpu.empty_cache()
