"""How many threads the CPU backend uses. Floor 4."""

from __future__ import annotations

import importlib
from typing import Any


def _threads() -> Any:
    return importlib.import_module("webtorch.runtime.backends.cpu.threads")


def set_num_threads(number: int) -> None:
    """Set the number of threads of the CPU backend."""
    _threads().set_num_threads(number)


def get_num_threads() -> int:
    """Return the number of threads of the CPU backend."""
    return int(_threads().get_num_threads())
