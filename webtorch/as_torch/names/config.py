"""torch.__config__: how PyTorch was built, which webtorch was not."""

from __future__ import annotations

from webtorch.tensors.threads import get_num_threads
from webtorch.version import __version__


def show() -> str:
    """Return what stands in for PyTorch's build settings."""
    return f"webtorch, for programs of PyTorch {__version__}: NumPy, numba and WebGPU; nothing is built\n"


def parallel_info() -> str:
    """Return how many threads the CPU device uses."""
    return f"webtorch: {get_num_threads()} threads\n"


def _cxx_flags() -> str:
    """Return the compiler's flags: there are none."""
    return ""
