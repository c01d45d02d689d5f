"""`webtorch.special`: the entries of the op table that PyTorch's users find in torch.special."""

from __future__ import annotations

from webtorch.tensors.bind import NAMESPACES

globals().update(NAMESPACES["special"])
__all__ = sorted(NAMESPACES["special"])
