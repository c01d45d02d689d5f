"""PyTorch's collectives between processes (Gloo), which move the bytes of our tensors in the host's memory. Floor 5.

PyTorch is loaded when a process group or a store is made, and by nothing else. Where `torch` means webtorch
(`webtorch run`), it is loaded beside that: its modules know each other, and programs go on seeing webtorch.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, NamedTuple, TypeAlias

# An object of PyTorch's, which is not imported where types are checked: a Gloo group, its works, tensors and options.
Foreign: TypeAlias = Any

MISSING = (
    "webtorch.distributed: processes are connected by PyTorch's Gloo, and PyTorch is not installed: "
    "pip install torch==2.13.0"
)


class Engine(NamedTuple):
    """PyTorch, its module of process groups, and what tells attempts of its launcher apart, with the device's."""

    torch: Any
    c10d: Any
    attempts: Foreign


_lock = Lock()
# PyTorch asks entry points for devices when it is imported; ours is not wanted beside our own face.
_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def _is_ours(finder: object) -> bool:
    return type(finder).__module__.startswith("webtorch.")


def _of_torch() -> dict[str, Any]:
    return {n: m for n, m in sys.modules.items() if n == "torch" or n.startswith("torch.")}


@contextmanager
def _aside() -> Iterator[None]:
    """Put what stands under PyTorch's name aside, where that is webtorch."""
    finders = [f for f in sys.meta_path if _is_ours(f)]
    if not finders:
        yield
        return
    ours, places = _of_torch(), list(sys.meta_path)
    sys.meta_path[:] = [f for f in places if not _is_ours(f)]
    for name in ours:
        del sys.modules[name]
    try:
        yield
    finally:
        for name in _of_torch():
            del sys.modules[name]
        sys.modules.update(ours)
        sys.meta_path[:] = places


@functools.cache
def is_installed() -> bool:
    """Whether PyTorch is installed, without loading it."""
    with _lock, _aside():
        return "torch" in sys.modules or importlib.util.find_spec("torch") is not None


@functools.cache
def engine() -> Engine:
    """Return PyTorch. Raises ImportError where it is not installed."""
    if not is_installed():
        raise ImportError(MISSING, name="torch")
    before = os.environ.get(_AUTOLOAD)
    with _lock, _aside():
        loaded = "torch" in sys.modules
        if not loaded:
            os.environ[_AUTOLOAD] = "0"
        try:
            torch = importlib.import_module("torch")
        finally:
            if not loaded:
                os.environ.pop(_AUTOLOAD)
                if before is not None:
                    os.environ[_AUTOLOAD] = before
        if not torch.distributed.is_available():
            raise ImportError(
                "webtorch.distributed: this PyTorch was built without torch.distributed",
                name="torch",
            )
        return Engine(
            torch,
            importlib.import_module("torch._C._distributed_c10d"),
            importlib.import_module("webtorch_autoload.device.attempts"),
        )
