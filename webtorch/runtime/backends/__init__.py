"""The backends, found by name. Nothing above imports one directly, and none is imported before it is asked for.

May import floor 0, the errors and, on demand, the backends' own packages.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

from webtorch.errors import DeviceError
from webtorch.runtime.backend import Backend

KINDS: tuple[str, ...] = ("cpu", "webgpu")

_OPEN: dict[tuple[str, int], Backend] = {}
_LOCK = threading.Lock()


def get_backend(kind: str, index: int = 0) -> Backend:
    """Return the backend of device `kind` number `index`, opened at the first call and kept for the process.

    Raises DeviceError when there is no such kind, no such device, or its libraries are missing.
    """
    found = _OPEN.get((kind, index))
    if found is not None:
        return found
    if kind not in KINDS:
        known = ", ".join(repr(name) for name in KINDS)
        raise DeviceError(f"device {kind!r}: unknown kind of device; webtorch has {known}")
    with _LOCK:
        found = _OPEN.get((kind, index))
        if found is None:
            module = importlib.import_module(f"webtorch.runtime.backends.{_room(kind)}")
            opened: Backend = module.open_backend(index)
            found = _OPEN[kind, index] = opened
    return found


def webassembly() -> Any:
    """Return the module that writes programs for WebAssembly. Raises ImportError where NumPy is missing."""
    return importlib.import_module("webtorch.runtime.backends.wasm")


def processor() -> Any:
    """Return the package that is device "cpu" here."""
    return importlib.import_module(f"webtorch.runtime.backends.{_room('cpu')}")


def _room(kind: str) -> str:
    """Return the package of a kind of device: without NumPy the CPU runs plain Python."""
    if kind == "cpu":
        try:
            importlib.import_module("numpy")
        except ImportError:
            return "plain"
    return kind


def available() -> tuple[str, ...]:
    """Return the kinds of device that can be opened here. The CPU always can; WebGPU needs an adapter."""
    webgpu = importlib.import_module("webtorch.runtime.backends.webgpu")
    return KINDS if webgpu.is_available() else ("cpu",)


def opened() -> tuple[Backend, ...]:
    """Return the backends that are open, in the order in which they were opened."""
    return tuple(_OPEN.values())
