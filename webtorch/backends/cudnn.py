"""Switches of cuDNN, which is not used here: kept, without effect. Floor 5."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

enabled = True
deterministic = False
benchmark = False
benchmark_limit = 10
allow_tf32 = True


def is_available() -> bool:
    """Return False."""
    return False


def version() -> int | None:
    """Return None."""
    return None


@contextlib.contextmanager
def flags(
    enabled: bool = False,
    benchmark: bool = False,
    benchmark_limit: int = 10,
    deterministic: bool = False,
    allow_tf32: bool = True,
    fp32_precision: str = "none",
) -> Iterator[None]:
    """Set the switches inside the block."""
    here = vars(sys.modules[__name__])
    new = {
        "enabled": enabled,
        "benchmark": benchmark,
        "benchmark_limit": benchmark_limit,
        "deterministic": deterministic,
        "allow_tf32": allow_tf32,
    }
    old = {name: here[name] for name in new}
    here.update(new)
    try:
        yield
    finally:
        here.update(old)
