"""`torch.webgpu`: what PyTorch and its users expect of a device's module.

Imports PyTorch and the engine inside functions only; nothing but `synchronize` and the like opens the device.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

_ENGINE = "webtorch.pytorch.device"
# A seed given before the first tensor: seeding must not open the device.
_pending_seed: list[int] = []


def _runtime() -> Any:
    return importlib.import_module(_ENGINE).runtime()


def is_initialized() -> bool:
    """Return whether the device has been opened."""
    engine = sys.modules.get(_ENGINE)
    return engine is not None and engine.is_open()


def _is_in_bad_fork() -> bool:
    engine = sys.modules.get(_ENGINE)
    return engine is not None and engine.is_forked()


def is_available() -> bool:
    """Return whether there is a WebGPU adapter and the binding for it. Opens no device."""
    if is_initialized():
        return True
    try:
        return bool(importlib.import_module("webtorch.runtime.backends.webgpu").is_available())
    except (ImportError, RuntimeError):
        return False


def is_built() -> bool:
    """Return True: there is nothing to build."""
    return True


def device_count() -> int:
    """Return 1 where there is an adapter, else 0: PyTorch sees the best adapter of the machine."""
    return 1 if is_available() else 0


def current_device() -> int:
    """Return the index of the current device, which is 0."""
    return 0


def set_device(device: Any) -> None:
    """Select a device. Raises RuntimeError for any but device 0."""
    import torch

    index = device if isinstance(device, int) else torch.device(device).index
    if index not in (None, 0, -1):
        raise RuntimeError(
            f"torch.webgpu.set_device({device!r}): there is one WebGPU device, number 0"
        )


class device:
    """Context manager that selects a device."""

    def __init__(self, device: Any) -> None:
        set_device(device)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        return None


def _exchange_device(index: int) -> int:
    return 0


_maybe_exchange_device = _exchange_device


def init() -> None:
    """Open the device now rather than at the first tensor."""
    _runtime()


def synchronize(device: Any = None) -> None:
    """Compute what is pending and wait for the device."""
    if is_initialized():
        runtime = _runtime()
        runtime.realize()
        runtime.backend.synchronize()


def memory_allocated(device: Any = None) -> int:
    """Return the bytes held by live buffers. What is not computed yet holds none."""
    return int(_runtime().backend.memory_allocated()) if is_initialized() else 0


def max_memory_allocated(device: Any = None) -> int:
    """Return the largest `memory_allocated` since the start or the last reset."""
    return int(_runtime().backend.max_memory_allocated()) if is_initialized() else 0


def reset_peak_memory_stats(device: Any = None) -> None:
    """Start the peak count anew."""
    if is_initialized():
        _runtime().backend.reset_peak_memory()


def empty_cache() -> None:
    """Give pooled, unused memory back to the system."""
    if is_initialized():
        _runtime().backend.empty_cache()


def get_device_name(device: Any = None) -> str:
    """Return the adapter's name."""
    return str(_runtime().backend.description())


def get_device_properties(device: Any = None) -> Any:
    """Return the compiler's view of the device: sizes in bytes, workgroup limits."""
    return _runtime().backend.limits


def get_amp_supported_dtype() -> list[Any]:
    """Return the types that autocast may use."""
    import torch

    return [torch.float16, torch.bfloat16]


def is_bf16_supported() -> bool:
    """Return True: bfloat16 is stored in 16 bits and computed in float32."""
    return True


def fallback_counts() -> dict[str, int]:
    """Return how often each operator ran on the CPU because WEBTORCH_FALLBACK allowed it."""
    fallback = sys.modules.get("webtorch.pytorch.fallback")
    return dict(fallback.counts) if fallback is not None else {}


def host_kernel_counts() -> dict[str, int]:
    """Return how often each operator that only the CPU computes (factorisations of matrices) ran."""
    fallback = sys.modules.get("webtorch.pytorch.fallback")
    return dict(fallback.host_counts) if fallback is not None else {}


# ---- random numbers -----------------------------------------------------------------------------


def manual_seed(seed: int) -> None:
    """Seed the device's random numbers. Opens no device."""
    _pending_seed[:] = [int(seed)]
    if is_initialized():
        importlib.import_module(_ENGINE).generator()


manual_seed_all = manual_seed


def initial_seed() -> int:
    """Return the seed in use."""
    return int(importlib.import_module(_ENGINE).generator().initial_seed())


def get_rng_state(device: Any = None) -> Any:
    """Return the state of the device's random numbers, as 16 bytes in a CPU tensor."""
    import torch

    state = importlib.import_module(_ENGINE).generator().get_state()
    return torch.tensor(state.tolist(), dtype=torch.uint8)


def set_rng_state(new_state: Any, device: Any = None) -> None:
    """Go back to a state that `get_rng_state` returned."""
    import webtorch

    state = webtorch.tensor(new_state.tolist(), dtype=webtorch.uint8, device="cpu")
    importlib.import_module(_ENGINE).generator().set_state(state)


# ---- streams: there is one queue ----------------------------------------------------------------


def current_stream(device: Any = None) -> Any:
    """Return the device's only stream."""
    import torch

    return torch.Stream(device="webgpu:0")


@contextlib.contextmanager
def stream(stream: Any) -> Iterator[None]:
    """Do nothing: there is one stream."""
    yield


def device_module() -> ModuleType:
    """Return this module: PyTorch takes it as `torch.webgpu`."""
    return sys.modules[__name__]
