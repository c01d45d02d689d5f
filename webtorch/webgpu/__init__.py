"""`webtorch.webgpu`: what torch.cuda is for CUDA. Indices count WebGPU adapters, best first."""

from __future__ import annotations

import importlib
from typing import Any

from webtorch.errors import DeviceError
from webtorch.functions.random import default_generator
from webtorch.runtime.realize import open_runtimes, runtime_for
from webtorch.tensors.device import device, set_default_device
from webtorch.tensors.lapack import allow_host_kernels as allow_host_kernels
from webtorch.tensors.tensor import Tensor
from webtorch.webgpu.shader import compile_shader as compile_shader


def _module() -> Any:
    return importlib.import_module("webtorch.runtime.backends.webgpu")


def _index(where: object = None) -> int:
    if where is None:
        return 0
    if isinstance(where, int):
        return where
    found = where if isinstance(where, device) else device(where)
    if found.type != "webgpu":
        raise DeviceError(f"webtorch.webgpu: expected a webgpu device, got {found}")
    return found.index or 0


def is_available() -> bool:
    """Return whether any WebGPU adapter, hardware or software, can be used."""
    return bool(_module().is_available())


async def request_async() -> None:
    """Open the browser's device, awaiting, for Python in a page (Pyodide). Elsewhere it opens the first device.

    Needed before anything else only where Python cannot pause (a browser without JSPI). Raises
    DeviceError, saying why, when there is no adapter.
    """
    import sys

    if sys.platform == "emscripten" and not any(r.kind == "webgpu" for r in open_runtimes()):
        await _module().request()
    runtime_for("webgpu", 0)


def device_count() -> int:
    """Return the number of adapters."""
    return int(_module().device_count())


def graphics_cards() -> list[int]:
    """Return the numbers of the adapters that are graphics cards of the best one's kind, each card once.

    Software adapters do not count, nor a card's second graphics interface. Empty without a card.
    """
    found = _module().adapters() if is_available() else []
    return [
        a.index
        for a in found
        if a.is_hardware
        and (a.adapter_type, a.backend_type) == (found[0].adapter_type, found[0].backend_type)
    ]


def current_device() -> int:
    """Return the index of the device that "webgpu" without an index means."""
    return 0


def get_device_name(device: object = None) -> str:
    """Return the adapter's name, such as "NVIDIA H200 (Vulkan)"."""
    return runtime_for("webgpu", _index(device)).backend.description()


def synchronize(device: object = None) -> None:
    """Compute what is pending and wait until the device has done it. Raises what the device
    reported.
    """
    runtime = runtime_for("webgpu", _index(device))
    runtime.flush()
    runtime.backend.synchronize()


def memory_allocated(device: object = None) -> int:
    """Return the bytes held by live tensors."""
    return runtime_for("webgpu", _index(device)).backend.memory_allocated()


def max_memory_allocated(device: object = None) -> int:
    """Return the largest memory_allocated() so far."""
    return runtime_for("webgpu", _index(device)).backend.max_memory_allocated()


def reset_peak_memory_stats(device: object = None) -> None:
    """Start the peak count anew."""
    runtime_for("webgpu", _index(device)).backend.reset_peak_memory()


def empty_cache() -> None:
    """Give unused pooled memory back to the system."""
    for runtime in open_runtimes():
        if runtime.kind == "webgpu":
            runtime.backend.empty_cache()


def manual_seed(seed: int) -> None:
    """Seed the random numbers of the first WebGPU device."""
    default_generator("webgpu").manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seed the random numbers of all WebGPU devices."""
    for i in range(device_count()):
        default_generator(f"webgpu:{i}").manual_seed(seed)


def seed() -> None:
    """Seed the random numbers of the first WebGPU device with a number that the system draws."""
    default_generator("webgpu").seed()


def initial_seed() -> int:
    """Return the seed of the first WebGPU device."""
    return default_generator("webgpu").initial_seed()


def get_rng_state(device: object = None) -> Tensor:
    """Return the state of a device's generator."""
    return default_generator(f"webgpu:{_index(device)}").get_state()


def set_rng_state(new_state: Tensor, device: object = None) -> None:
    """Set the state of a device's generator."""
    default_generator(f"webgpu:{_index(device)}").set_state(new_state)


def set_device(device: object) -> None:
    """Make a WebGPU device the default device of new tensors."""
    set_default_device(f"webgpu:{_index(device)}")


def kernels_compiled(device: object = None) -> int:
    """Return how many kernels have been compiled so far: constant while only numbers change."""
    return int(getattr(runtime_for("webgpu", _index(device)).backend, "kernels_compiled", 0))
