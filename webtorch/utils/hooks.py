"""torch.utils.hooks: handles of hooks, and a warning that pickling drops them."""

from __future__ import annotations

from typing import Any

from webtorch.tensors.handle import RemovableHandle as RemovableHandle


def unserializable_hook(f: Any) -> Any:
    """Mark a hook of a tensor that need not be pickled."""
    f.__torch_unserializable__ = True
    return f
