"""mkldnn, which is not used here. Floor 5."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

# Switches of PyTorch's, which are kept.
enabled, deterministic, allow_tf32 = True, False, True


def is_available() -> bool:
    """Return False."""
    return False


@contextlib.contextmanager
def flags(enabled: bool = False, deterministic: bool = False, **more: object) -> Iterator[None]:
    """Do nothing for a block: there is nothing to switch."""
    yield
