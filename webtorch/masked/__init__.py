"""`webtorch.masked`: torch.masked's functions, the entries of the op table that are found there, and masked tensors."""

from __future__ import annotations

from webtorch.functions.bind import NAMESPACES
from webtorch.masked.masked_tensor import MaskedTensor as MaskedTensor
from webtorch.masked.masked_tensor import as_masked_tensor as as_masked_tensor
from webtorch.masked.masked_tensor import is_masked_tensor as is_masked_tensor
from webtorch.masked.masked_tensor import masked_tensor as masked_tensor

globals().update(NAMESPACES["masked"])
__all__ = sorted(
    (*NAMESPACES["masked"], "MaskedTensor", "as_masked_tensor", "is_masked_tensor", "masked_tensor")
)
