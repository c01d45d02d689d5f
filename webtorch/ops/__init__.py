"""Floor 1: the op table: what a formula or a kernel is. It knows no tensor."""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """Return `aten`, PyTorch's operators, which programs ask for here."""
    if name != "aten":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("webtorch.aten.parts").aten
