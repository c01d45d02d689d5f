"""`webtorch.cuda`: there is none, and programs that ask get the answers of a PyTorch without CUDA.

`"cuda" if torch.cuda.is_available() else ...` works unchanged; the device to ask for is "webgpu".
May import floors 0 to 4.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NoReturn

from webtorch.cuda import amp

__all__ = [
    "amp",
    "current_device",
    "current_stream",
    "device",
    "device_count",
    "empty_cache",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state_all",
    "init",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_summary",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_rng_state_all",
    "stream",
    "synchronize",
]


# Whether PyTorch's own code has started CUDA: packages that set up processes ask.
_initialized = False


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


def memory_allocated(device: object = None) -> int:
    """Return 0."""
    return 0


def max_memory_allocated(device: object = None) -> int:
    """Return 0."""
    return 0


def _no_cuda(name: str) -> NoReturn:
    raise AssertionError(
        f"Torch not compiled with CUDA enabled: torch.cuda.{name} has no device. webtorch's own is "
        "'webgpu': see webtorch.webgpu."
    )


def synchronize(device: object = None) -> NoReturn:
    """Raise AssertionError, as PyTorch does without CUDA."""
    _no_cuda("synchronize")


def current_device() -> NoReturn:
    """Raise AssertionError, as PyTorch does without CUDA."""
    _no_cuda("current_device")


def get_device_name(device: object = None) -> NoReturn:
    """Raise AssertionError, as PyTorch does without CUDA."""
    _no_cuda("get_device_name")


def get_device_properties(device: object = None) -> NoReturn:
    """Raise AssertionError, as PyTorch does without CUDA."""
    _no_cuda("get_device_properties")


def seed() -> None:
    """Do nothing: there is no CUDA generator."""


def seed_all() -> None:
    """Do nothing: there is no CUDA generator."""


def get_rng_state_all() -> list[Any]:
    """Return an empty list: a state for each of no devices."""
    return []


def set_rng_state_all(new_states: Any) -> None:
    """Take a state for each of no devices."""
    if len(list(new_states)):
        _no_cuda("set_rng_state_all")


def memory_reserved(device: object = None) -> int:
    """Return 0."""
    return 0


def max_memory_reserved(device: object = None) -> int:
    """Return 0."""
    return 0


def reset_peak_memory_stats(device: object = None) -> None:
    """Do nothing."""


def init() -> None:
    """Raise: there is no CUDA."""
    _no_cuda("init")


def set_device(device: object) -> None:
    """Raise: there is no CUDA."""
    _no_cuda("set_device")


def get_device_capability(device: object = None) -> tuple[int, int]:
    """Raise: there is no CUDA."""
    _no_cuda("get_device_capability")


def mem_get_info(device: object = None) -> tuple[int, int]:
    """Raise: there is no CUDA."""
    _no_cuda("mem_get_info")


def memory_summary(device: object = None, abbreviated: bool = False) -> str:
    """Raise: there is no CUDA."""
    _no_cuda("memory_summary")


def current_stream(device: object = None) -> Any:
    """Raise: there is no CUDA."""
    _no_cuda("current_stream")


@contextlib.contextmanager
def stream(stream: object) -> Iterator[None]:
    """Do nothing for None, as PyTorch does; raise for a stream."""
    if stream is not None:
        _no_cuda("stream")
    yield


class device:
    """A context that chooses a CUDA device: only None and negative numbers, which choose none."""

    def __init__(self, device: Any) -> None:
        """Take a device."""
        if device is not None and not (isinstance(device, int) and device < 0):
            _no_cuda("device")

    def __enter__(self) -> None:
        """Change nothing."""

    def __exit__(self, *error: object) -> None:
        """Change nothing."""
