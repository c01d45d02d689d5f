"""How many threads the CPU backend uses. Floor 4."""

from __future__ import annotations

from webtorch.runtime.backends import processor


def set_num_threads(number: int) -> None:
    """Set the number of threads of the CPU backend."""
    processor().set_num_threads(number)


def get_num_threads() -> int:
    """Return the number of threads of the CPU backend."""
    return int(processor().get_num_threads())


def vectors() -> str:
    """Return PyTorch's name of the vectors that kernels are compiled for."""
    return str(processor().vectors())
