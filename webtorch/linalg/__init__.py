"""`webtorch.linalg`: the entries of the op table that PyTorch's users find in torch.linalg."""

import sys as _sys

from webtorch.errors import LinAlgError as LinAlgError
from webtorch.functions.bind import NAMESPACES as _NAMESPACES
from webtorch.tensors.absent import MissingName as _MissingName

globals().update(_NAMESPACES["linalg"])
__all__ = sorted([*_NAMESPACES["linalg"], "LinAlgError"])


def __getattr__(name: str) -> object:
    """Say what is known of a name that does not exist here."""
    raise _MissingName(_sys.modules[__name__], "linalg", name)
