"""`webtorch.signal`: torch.signal, which holds the window functions."""

from __future__ import annotations

from webtorch.signal import windows

__all__ = ["windows"]
