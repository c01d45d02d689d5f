"""torch.linalg's names. Written by tools/stubs.py from the op table; not edited by hand."""

from collections.abc import Sequence as _Sequence
from typing import Any as _Any

from webtorch.functions.cholesky import CholeskyEx as _CholeskyEx
from webtorch.functions.cholesky import LDLFactor as _LDLFactor
from webtorch.functions.cholesky import LDLFactorEx as _LDLFactorEx
from webtorch.functions.decomposition import SVD as _SVD
from webtorch.functions.decomposition import Eig as _Eig
from webtorch.functions.decomposition import Eigh as _Eigh
from webtorch.functions.decomposition import Lstsq as _Lstsq
from webtorch.functions.linalg import LU as _LU
from webtorch.functions.linalg import InvEx as _InvEx
from webtorch.functions.linalg import LUFactor as _LUFactor
from webtorch.functions.linalg import LUFactorEx as _LUFactorEx
from webtorch.functions.linalg import Slogdet as _Slogdet
from webtorch.functions.linalg import SolveEx as _SolveEx
from webtorch.functions.orthogonal import QR as _QR
from webtorch.functions.reduce import Dims as _Dims
from webtorch.ir.dtype import DType as _DType
from webtorch.tensors.tensor import Tensor as _Tensor

def cholesky(A: _Tensor, *, upper: bool = ..., out: _Tensor | None = ...) -> _Tensor: ...
def cholesky_ex(
    A: _Tensor,
    *,
    upper: bool = ...,
    check_errors: bool = ...,
    out: tuple[_Tensor, ...] | None = ...,
) -> _CholeskyEx: ...
def cond(A: _Tensor, p: object = ..., *, out: _Tensor | None = ...) -> _Tensor: ...
def cross(
    input: _Tensor, other: _Tensor, *, dim: int = ..., out: _Tensor | None = ...
) -> _Tensor: ...
def det(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def diagonal(
    A: _Tensor, *, offset: int = ..., dim1: int = ..., dim2: int = ..., out: _Tensor | None = ...
) -> _Tensor: ...
def eig(A: _Tensor, *, out: tuple[_Tensor, ...] | None = ...) -> _Eig: ...
def eigh(A: _Tensor, UPLO: str = ..., *, out: tuple[_Tensor, ...] | None = ...) -> _Eigh: ...
def eigvals(A: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def eigvalsh(A: _Tensor, UPLO: str = ..., *, out: _Tensor | None = ...) -> _Tensor: ...
def householder_product(A: _Tensor, tau: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def inv(A: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def inv_ex(
    A: _Tensor, *, check_errors: bool = ..., out: tuple[_Tensor, ...] | None = ...
) -> _InvEx: ...
def ldl_factor(
    A: _Tensor, *, hermitian: bool = ..., out: tuple[_Tensor, ...] | None = ...
) -> _LDLFactor: ...
def ldl_factor_ex(
    A: _Tensor,
    *,
    hermitian: bool = ...,
    check_errors: bool = ...,
    out: tuple[_Tensor, ...] | None = ...,
) -> _LDLFactorEx: ...
def ldl_solve(
    LD: _Tensor, pivots: _Tensor, B: _Tensor, *, hermitian: bool = ..., out: _Tensor | None = ...
) -> _Tensor: ...
def lstsq(
    A: _Tensor,
    B: _Tensor,
    rcond: float | None = ...,
    *,
    driver: str | None = ...,
    out: tuple[_Tensor, ...] | None = ...,
) -> _Lstsq: ...
def lu(A: _Tensor, *, pivot: bool = ..., out: tuple[_Tensor, ...] | None = ...) -> _LU: ...
def lu_factor(
    A: _Tensor, *, pivot: bool = ..., out: tuple[_Tensor, ...] | None = ...
) -> _LUFactor: ...
def lu_factor_ex(
    A: _Tensor,
    *,
    pivot: bool = ...,
    check_errors: bool = ...,
    out: tuple[_Tensor, ...] | None = ...,
) -> _LUFactorEx: ...
def lu_solve(
    LU: _Tensor,
    pivots: _Tensor,
    B: _Tensor,
    *,
    left: bool = ...,
    adjoint: bool = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def matmul(input: _Tensor, other: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def matrix_exp(input: _Tensor, *, out: _Tensor | None = ...) -> _Tensor: ...
def matrix_norm(
    A: _Tensor,
    ord: _Any = ...,
    dim: _Any = ...,
    keepdim: bool = ...,
    *,
    dtype: _DType | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def matrix_power(input: _Tensor, n: int, *, out: _Tensor | None = ...) -> _Tensor: ...
def matrix_rank(
    A: _Tensor,
    tol: float | _Tensor | None = ...,
    hermitian: bool = ...,
    *,
    atol: float | _Tensor | None = ...,
    rtol: float | _Tensor | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def multi_dot(tensors: _Sequence[_Tensor], *, out: _Tensor | None = ...) -> _Tensor: ...
def norm(
    A: _Tensor,
    ord: _Any = ...,
    dim: _Any = ...,
    keepdim: bool = ...,
    *,
    dtype: _DType | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def pinv(
    A: _Tensor,
    rcond: float | _Tensor | None = ...,
    hermitian: bool = ...,
    *,
    atol: float | _Tensor | None = ...,
    rtol: float | _Tensor | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def qr(A: _Tensor, mode: str = ..., *, out: tuple[_Tensor, ...] | None = ...) -> _QR: ...
def slogdet(A: _Tensor, *, out: tuple[_Tensor, ...] | None = ...) -> _Slogdet: ...
def solve(A: _Tensor, B: _Tensor, *, left: bool = ..., out: _Tensor | None = ...) -> _Tensor: ...
def solve_ex(
    A: _Tensor,
    B: _Tensor,
    *,
    left: bool = ...,
    check_errors: bool = ...,
    out: tuple[_Tensor, ...] | None = ...,
) -> _SolveEx: ...
def solve_triangular(
    A: _Tensor,
    B: _Tensor,
    *,
    upper: bool,
    left: bool = ...,
    unitriangular: bool = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
def svd(
    A: _Tensor,
    full_matrices: bool = ...,
    *,
    driver: str | None = ...,
    out: tuple[_Tensor, ...] | None = ...,
) -> _SVD: ...
def svdvals(A: _Tensor, *, driver: str | None = ..., out: _Tensor | None = ...) -> _Tensor: ...
def tensorinv(A: _Tensor, ind: int = ..., *, out: _Tensor | None = ...) -> _Tensor: ...
def tensorsolve(
    A: _Tensor, B: _Tensor, dims: _Any = ..., *, out: _Tensor | None = ...
) -> _Tensor: ...
def vander(x: _Tensor, *, N: int | None = ..., out: _Tensor | None = ...) -> _Tensor: ...
def vecdot(x: _Tensor, y: _Tensor, *, dim: int = ..., out: _Tensor | None = ...) -> _Tensor: ...
def vector_norm(
    x: _Tensor,
    ord: float = ...,
    dim: _Dims = ...,
    keepdim: bool = ...,
    *,
    dtype: _DType | None = ...,
    out: _Tensor | None = ...,
) -> _Tensor: ...
