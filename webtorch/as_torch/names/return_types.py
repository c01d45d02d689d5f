"""torch.return_types: the classes of results that are several (`x.max(0)`)."""

from __future__ import annotations

from webtorch.ops.record import RETURN_TYPES


def __getattr__(name: str) -> type:
    if name in RETURN_TYPES:
        return RETURN_TYPES[name]
    raise AttributeError(f"module 'torch.return_types' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(RETURN_TYPES)
