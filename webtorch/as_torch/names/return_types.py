"""torch.return_types: the classes of results that are several (`x.max(0)`)."""

from __future__ import annotations

from webtorch.ops.record import RETURN_TYPES


def __getattr__(name: str) -> type:
    # Those of calls with out= have names of their own in PyTorch; here they are of one class with the others.
    found = RETURN_TYPES.get(name) or RETURN_TYPES.get(name.removesuffix("_out"))
    if found is not None:
        return found
    raise AttributeError(f"module 'torch.return_types' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(RETURN_TYPES)
