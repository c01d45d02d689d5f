"""`webtorch.signal.windows`: the entries of the op table that PyTorch's users find there."""

from __future__ import annotations

from webtorch.functions.bind import NAMESPACES

globals().update(NAMESPACES["signal.windows"])
__all__ = sorted(NAMESPACES["signal.windows"])
