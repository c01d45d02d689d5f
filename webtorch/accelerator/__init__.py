"""`webtorch.accelerator`: the device that is not the CPU, by PyTorch's general names. Floor 5.

Programs written for any accelerator run on WebGPU through it:
`device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from webtorch import webgpu
from webtorch.functions import public as webtorch

__all__ = [
    "current_accelerator", "current_device_idx", "current_device_index", "device_count", "device_index", "empty_cache",
    "is_available", "max_memory_allocated", "memory_allocated", "reset_peak_memory_stats", "set_device_idx",
    "set_device_index", "synchronize",
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


def _chosen(device: object) -> object:
    return current_device_index() if device is None else device


def synchronize(device: object = None, /) -> None:
    """Wait until a WebGPU device, without one the chosen one, has done its work."""
    webgpu.synchronize(_chosen(device))


def empty_cache() -> None:
    """Free memory that a WebGPU device keeps for reuse."""
    webgpu.empty_cache()


def memory_allocated(device: object = None, /) -> int:
    """Return the bytes that live tensors hold on a WebGPU device."""
    return webgpu.memory_allocated(_chosen(device))


def max_memory_allocated(device: object = None, /) -> int:
    """Return the largest `memory_allocated()` so far."""
    return webgpu.max_memory_allocated(_chosen(device))


def reset_peak_memory_stats(device: object = None, /) -> None:
    """Start the peak count anew."""
    webgpu.reset_peak_memory_stats(_chosen(device))


def set_device_index(device: object, /) -> None:
    """Make a WebGPU device, by its number or name, the default device of new tensors."""
    webgpu.set_device(device)


@contextmanager
def device_index(device: int | None, /) -> Iterator[None]:
    """A block whose new tensors go to the WebGPU device of a number by default; None changes nothing."""
    before = webtorch.get_default_device()
    if device is not None:
        webgpu.set_device(device)
    try:
        yield
    finally:
        webtorch.set_default_device(before)


# The older names.
current_device_idx, set_device_idx = current_device_index, set_device_index
