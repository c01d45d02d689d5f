"""The WebGPU backend: native WebGPU through wgpu-py (wgpu-native) or wgpudawn (Dawn).

Importing this package opens no device and imports no binding; `open_backend` does both.

adapter     which adapters there are, best first
native      the C calls, the same for both engines
memory      pooled device memory with its own accounting
transfer    bytes as PyTorch sees them <-> bytes as the device holds them
pipeline    shader modules and compute pipelines, cached
executable  a compiled program and its replay loop
encoding    the command buffer that programs are encoded into
browser     the binding for Python in a page: the browser's own WebGPU
device      the `Backend`: everything above behind one lock

May import floors 0 and 2 (the WGSL renderer, on demand), the errors, NumPy and the bindings.
"""

from __future__ import annotations

from webtorch.runtime.backends.webgpu import browser
from webtorch.runtime.backends.webgpu.adapter import (
    AdapterInfo,
    adapters,
    default_is_hardware,
    device_count,
    is_available,
)
from webtorch.runtime.backends.webgpu.device import WebGPUBackend, open_backend, wanted


async def request() -> None:
    """In a page: look for the adapter and open its device, awaiting, so that `open_backend` need not wait."""
    adapter = await browser.request()
    await adapter.open(*wanted(adapter))


__all__ = [
    "AdapterInfo",
    "WebGPUBackend",
    "adapters",
    "default_is_hardware",
    "device_count",
    "is_available",
    "open_backend",
    "request",
]
