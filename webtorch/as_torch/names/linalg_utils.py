"""torch._linalg_utils: products with matrices that may be sparse or absent."""

from __future__ import annotations

from webtorch.functions import decomposition, orthogonal
from webtorch.functions import public as webtorch
from webtorch.ir.dtype import DType
from webtorch.tensors.tensor import Tensor


def is_sparse(A: Tensor) -> bool:
    """Whether a tensor has the layout of coordinates."""
    if not isinstance(A, Tensor):
        raise TypeError(f"expected Tensor but got {type(A)}")
    return A.layout == webtorch.sparse_coo


def get_floating_dtype(A: Tensor) -> DType:
    """Return the type of a tensor of floats, float32 for others."""
    floats = (webtorch.float16, webtorch.float32, webtorch.float64)
    return A.dtype if A.dtype in floats else webtorch.float32


def matmul(A: Tensor | None, B: Tensor) -> Tensor:
    """Return A @ B, or B where there is no A."""
    return B if A is None else webtorch.matmul(A, B)


def bform(X: Tensor, A: Tensor | None, Y: Tensor) -> Tensor:
    """Return X^T A Y."""
    return matmul(X.mT, matmul(A, Y))


def qform(A: Tensor | None, S: Tensor) -> Tensor:
    """Return S^T A S."""
    return bform(S, A, S)


def basis(A: Tensor) -> Tensor:
    """Return an orthogonal basis of the columns."""
    return orthogonal.linalg_qr(A)[0]


def symeig(A: Tensor, largest: bool | None = False) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues of a symmetric matrix, ascending or with the largest first, and their vectors."""
    values, vectors = decomposition.eigh(A, UPLO="U")
    return (values.flip(-1), vectors.flip(-1)) if largest else (values, vectors)
