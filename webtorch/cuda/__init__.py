"""`webtorch.cuda`: there is none, and programs that ask get the answers of a PyTorch without CUDA.

`"cuda" if torch.cuda.is_available() else ...` works unchanged; the device to ask for is "webgpu".
May import floors 0 to 4.
"""

from __future__ import annotations

from typing import Any, NoReturn

from webtorch.cuda import amp

__all__ = [
    "amp",
    "current_device",
    "device_count",
    "empty_cache",
    "get_device_name",
    "get_device_properties",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "memory_allocated",
    "synchronize",
]


def is_available() -> bool:
    """Return False: webtorch computes on WebGPU and on the CPU."""
    return False


def is_initialized() -> bool:
    """Return False."""
    return False


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Return False."""
    return False


def device_count() -> int:
    """Return 0."""
    return 0


def manual_seed(seed: int) -> None:
    """Do nothing: there is no generator. webtorch.manual_seed seeds all devices that are there."""


def manual_seed_all(seed: int) -> None:
    """Do nothing, see `manual_seed`."""


def empty_cache() -> None:
    """Do nothing: no memory is held. See webtorch.webgpu.empty_cache."""


def memory_allocated(device: Any = None) -> int:
    """Return 0."""
    return 0


def max_memory_allocated(device: Any = None) -> int:
    """Return 0."""
    return 0


def _no_cuda(name: str) -> NoReturn:
    raise AssertionError(
        f"Torch not compiled with CUDA enabled: torch.cuda.{name} has no device. webtorch's own is "
        "'webgpu': see webtorch.webgpu."
    )


def synchronize(device: Any = None) -> NoReturn:
    """Raise AssertionError, as PyTorch does without CUDA."""
    _no_cuda("synchronize")


def current_device() -> NoReturn:
    """Raise AssertionError, as PyTorch does without CUDA."""
    _no_cuda("current_device")


def get_device_name(device: Any = None) -> NoReturn:
    """Raise AssertionError, as PyTorch does without CUDA."""
    _no_cuda("get_device_name")


def get_device_properties(device: Any = None) -> NoReturn:
    """Raise AssertionError, as PyTorch does without CUDA."""
    _no_cuda("get_device_properties")
