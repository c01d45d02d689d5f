"""torch.serialization: `load`, `save` and the switches of code in files, of which none is ever run."""

from __future__ import annotations

from typing import Any

from webtorch import load as load
from webtorch import save as save
from webtorch.io.checkpoint import MapLocation as MAP_LOCATION

__all__ = ["MAP_LOCATION", "add_safe_globals", "load", "save"]


def add_safe_globals(safe_globals: list[Any]) -> None:
    """Do nothing: webtorch.load makes no objects of other classes, and says so where a file has some."""
