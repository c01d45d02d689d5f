"""Modules made without initial values. May import nn's base files."""

from __future__ import annotations

import inspect
from typing import Any

from webtorch.nn.module import Module

__all__ = ["skip_init"]


def skip_init(module_cls: type[Module], *args: object, **kwargs: object) -> Any:
    """Return `module_cls(*args, **kwargs)` with uninitialised memory for its parameters."""
    if not issubclass(module_cls, Module):
        raise RuntimeError(f"Expected a Module; got {module_cls}")
    if "device" not in inspect.signature(module_cls).parameters:
        raise RuntimeError("Module must support a 'device' arg to skip initialization")
    final = kwargs.pop("device", "cpu")
    # The initial values are pending results that nobody reads: they are never computed.
    return module_cls(*args, **kwargs, device=final).to_empty(device=final)
