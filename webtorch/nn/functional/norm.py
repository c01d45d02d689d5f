"""Local response normalization. May import floors 0 to 4; the other norms are the op table's."""

from __future__ import annotations

from webtorch.dispatch.call import dispatched
from webtorch.errors import DTypeError
from webtorch.functions import public as webtorch
from webtorch.nn.functional.table import table
from webtorch.tensors.calls import store_in
from webtorch.tensors.remember import remembered
from webtorch.tensors.tensor import Tensor

__all__ = ["local_response_norm", "normalize"]

_normalize = table("normalize")


@dispatched()
def normalize(
    input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None
) -> Tensor:
    """Return input / max(norm, eps), with the p-norm along `dim`; written into `out` if given."""
    result = _normalize(input, p, dim, eps)
    return result if out is None else store_in(out, result, "normalize")


@dispatched()
def local_response_norm(
    input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """Divide by (k + alpha * mean of the squares of `size` neighbouring channels) ** beta."""
    if input.dim() < 3:
        raise ValueError(
            "Expected 3D or higher dimensionality                          input (got "
            f"{input.dim()} dimensions)"
        )
    if not input.dtype.has_gradient and input.dtype is not webtorch.int64:
        raise DTypeError(
            f"local_response_norm: not implemented for {input.dtype}. Convert it with .float()."
        )
    return _divided(input, size, alpha, beta, k)


@remembered
def _divided(input: Tensor, size: int, alpha: float, beta: float, k: float) -> Tensor:
    squares = input * input
    channels = input.shape[1]
    before = size // 2
    zeros = webtorch.zeros_like(squares[:, :1]).expand((-1, size - 1, *(-1,) * (input.dim() - 2)))
    padded = webtorch.cat([zeros[:, :before], squares, zeros[:, before:]], 1)
    total = padded[:, :channels]
    for shift in range(1, size):
        total = total + padded[:, shift : shift + channels]
    # PyTorch's mean of integers is an integer.
    mean = total / size if input.dtype.has_gradient else total // size
    return input / (mean * alpha + k) ** beta
