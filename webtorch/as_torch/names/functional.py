"""Names of torch.nn.functional that its users import though they are not its own."""

from collections.abc import Callable as Callable
from typing import Optional as Optional

from webtorch.ir.dtype import DType
from webtorch.nn import grad as grad
from webtorch.nn.functional import attention
from webtorch.overrides import handle_torch_function as handle_torch_function
from webtorch.overrides import has_torch_function as has_torch_function
from webtorch.tensors.tensor import Tensor as Tensor

_canonical_mask, _mha_shape_check = attention.canonical_mask, attention._check_shapes


def _none_or_dtype(input: Tensor | None) -> DType | None:
    """Return the dtype of a tensor, None of None."""
    if input is None or isinstance(input, Tensor):
        return None if input is None else input.dtype
    raise RuntimeError("input to _none_or_dtype() must be None or torch.Tensor")
