"""Work that makes many objects at once, and no cycles. Standard library only."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

# After how many new objects Python collects garbage, as versions of it have it, and once much is recorded at a time.
_USUAL = (700, 2000)
_SELDOM = 10_000


def collect_seldom() -> None:
    """Let Python collect garbage less often, unless the program has said how often: what is recorded lives until it is
    computed, so that each collection looks at it, takes it for old, and soon looks at all objects there are.
    """
    young, *old = gc.get_threshold()
    if young in _USUAL:
        gc.set_threshold(_SELDOM, *old)


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
