"""`webtorch.linalg`: the entries of the op table that PyTorch's users find in torch.linalg."""

from __future__ import annotations

from webtorch.errors import LinAlgError as LinAlgError
from webtorch.tensors.bind import NAMESPACES

globals().update(NAMESPACES["linalg"])
__all__ = sorted([*NAMESPACES["linalg"], "LinAlgError"])
