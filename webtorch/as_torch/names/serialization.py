"""torch.serialization: `load`, `save`, and which classes a file may hold objects of."""

from __future__ import annotations

from webtorch.io.checkpoint import MapLocation as MAP_LOCATION
from webtorch.io.checkpoint import load as load
from webtorch.io.checkpoint import save as save
from webtorch.io.objects import (
    add_safe_globals,
    clear_safe_globals,
    get_safe_globals,
    safe_globals,
)

__all__ = [
    "MAP_LOCATION",
    "add_safe_globals",
    "clear_safe_globals",
    "get_safe_globals",
    "load",
    "safe_globals",
    "save",
]
