"""`webtorch.masked`: torch.masked's functions, the entries of the op table that are found there."""

from __future__ import annotations

from webtorch.functions.bind import NAMESPACES

globals().update(NAMESPACES["masked"])
__all__ = sorted(NAMESPACES["masked"])
