"""`webtorch.linalg`: the entries of the op table that PyTorch's users find in torch.linalg."""

from webtorch.errors import LinAlgError as LinAlgError
from webtorch.tensors.bind import NAMESPACES as _NAMESPACES

globals().update(_NAMESPACES["linalg"])
__all__ = sorted([*_NAMESPACES["linalg"], "LinAlgError"])
