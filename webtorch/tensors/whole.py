"""Questions about tensors, and when pending work is computed. Floor 4."""

from __future__ import annotations

from typing import Any

from webtorch.runtime.realize import open_runtimes
from webtorch.tensors.tensor import Tensor


def is_tensor(obj: Any) -> bool:
    """Return whether `obj` is a tensor."""
    return isinstance(obj, Tensor)


def numel(input: Tensor) -> int:
    """Return the number of elements."""
    return input.numel()


def realize(*tensors: Tensor) -> None:
    """Compute what is pending, on the devices of `tensors` or on all: a hint, no value depends on
    it. Does not wait.
    """
    runtimes = {t._storage.runtime for t in tensors} if tensors else open_runtimes()
    for runtime in runtimes:
        runtime.flush()


def synchronize() -> None:
    """Compute everything pending on every device and wait for it."""
    for runtime in open_runtimes():
        runtime.flush()
        runtime.backend.synchronize()
