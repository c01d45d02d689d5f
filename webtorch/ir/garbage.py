"""Work that makes many objects at once, and no cycles. Standard library only."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def not_collecting() -> Iterator[None]:
    """Make no collections: a large graph's nodes would be looked through again and again, and taken for old."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
