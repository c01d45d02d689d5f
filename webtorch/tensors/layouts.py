"""What tensors have of sparse layouts. Floor 4.

The sparse ones are a class above (`webtorch.sparse`), which is loaded when the first is made and answers for them:
what stands here is what a dense tensor says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from webtorch.dispatch.call import plays
from webtorch.tensors.above import ask
from webtorch.tensors.formats import sparse_bsc, sparse_bsr, sparse_csc, sparse_csr

if TYPE_CHECKING:
    from webtorch.tensors.tensor import Tensor


def _expected(name: str, layout: str) -> NoReturn:
    raise RuntimeError(f"{name} expected sparse {layout} layout but got Strided")


def _no_kernel(name: str) -> NoReturn:
    raise NotImplementedError(
        f"Could not run 'aten::{name}' with arguments from the 'CPU' backend. {name} is of sparse tensors: use "
        ".to_sparse()"
    )


_COO, _ROW, _COLUMN = "coordinate tensor", "row compressed tensor", "column compressed tensor"


class Layouts:
    """The methods of tensors that are about layouts."""

    __slots__ = ()

    @plays("parts")
    def to_dense(self, dtype: object = None, *, masked_grad: bool | None = None) -> Tensor:
        """Return the tensor with all of its elements: a dense one itself."""
        return self if dtype is None else self.to(dtype)  # type: ignore[attr-defined, return-value]

    def to_sparse(self, *args: object, **kwargs: object) -> Tensor:
        """Return the tensor in a sparse layout: to_sparse(sparse_dim), to_sparse(layout=torch.sparse_csr)."""
        found: Tensor = ask("to_sparse")(self, *args, **kwargs)
        return found

    def to_sparse_coo(self) -> Tensor:
        """Return the tensor in coordinates."""
        found: Tensor = ask("to_sparse")(self)
        return found

    def to_sparse_csr(self, dense_dim: int | None = None) -> Tensor:
        """Return a matrix with its rows compressed."""
        found: Tensor = ask("to_sparse")(self, layout=sparse_csr, dense_dim=dense_dim)
        return found

    def to_sparse_csc(self, dense_dim: int | None = None) -> Tensor:
        """Return a matrix with its columns compressed."""
        found: Tensor = ask("to_sparse")(self, layout=sparse_csc, dense_dim=dense_dim)
        return found

    def to_sparse_bsr(self, blocksize: Sequence[int], dense_dim: int | None = None) -> Tensor:
        """Return a matrix of blocks with its rows of blocks compressed."""
        found: Tensor = ask("to_sparse")(
            self, layout=sparse_bsr, blocksize=blocksize, dense_dim=dense_dim
        )
        return found

    def to_sparse_bsc(self, blocksize: Sequence[int], dense_dim: int | None = None) -> Tensor:
        """Return a matrix of blocks with its columns of blocks compressed."""
        found: Tensor = ask("to_sparse")(
            self, layout=sparse_bsc, blocksize=blocksize, dense_dim=dense_dim
        )
        return found

    @plays("function")
    def smm(self, mat2: Tensor) -> Tensor:
        """Return the product of a sparse matrix and a dense one as a sparse tensor."""
        found: Tensor = ask("smm")(self, mat2)
        return found

    @plays("function")
    def sspaddmm(
        self, mat1: Tensor, mat2: Tensor, *, beta: complex = 1, alpha: complex = 1
    ) -> Tensor:
        """Return beta * self + alpha * (mat1 @ mat2) as a sparse tensor."""
        found: Tensor = ask("sspaddmm")(self, mat1, mat2, beta=beta, alpha=alpha)
        return found

    def sparse_mask(self, mask: Tensor) -> Tensor:
        """Return the elements at the places of a sparse tensor."""
        found: Tensor = ask("sparse_mask")(self, mask)
        return found

    @plays("fact")
    def sparse_dim(self) -> int:
        """Return the number of dims of places: none."""
        return 0

    @plays("fact")
    def dense_dim(self) -> int:
        """Return the number of dims of values: all."""
        return len(self._shape)  # type: ignore[attr-defined]

    def coalesce(self) -> Tensor:
        """Return a sparse tensor with its places sorted, each once."""
        _expected("coalesce", _COO)

    def is_coalesced(self) -> bool:
        """Return whether the places of a sparse tensor are sorted and come once."""
        _expected("is_coalesced", _COO)

    def indices(self) -> Tensor:
        """Return the places of a coalesced sparse tensor."""
        _expected("indices", _COO)

    def values(self) -> Tensor:
        """Return the values of a coalesced sparse tensor."""
        _expected("values", "tensor")

    def crow_indices(self) -> Tensor:
        """Return where the rows of a CSR matrix begin."""
        _expected("crow_indices", _ROW)

    def col_indices(self) -> Tensor:
        """Return the columns of the values of a CSR matrix."""
        _expected("col_indices", _ROW)

    def ccol_indices(self) -> Tensor:
        """Return where the columns of a CSC matrix begin."""
        _expected("ccol_indices", _COLUMN)

    def row_indices(self) -> Tensor:
        """Return the rows of the values of a CSC matrix."""
        _expected("row_indices", _COLUMN)

    def sparse_resize_(self, size: object, sparse_dim: int, dense_dim: int) -> Tensor:
        """Give a sparse tensor other sizes."""
        _no_kernel("sparse_resize_")

    def sparse_resize_and_clear_(self, size: object, sparse_dim: int, dense_dim: int) -> Tensor:
        """Give a sparse tensor other sizes and no values."""
        _no_kernel("sparse_resize_and_clear_")

    def _nnz(self) -> int:
        _no_kernel("_nnz")

    def _indices(self) -> Tensor:
        _no_kernel("_indices")

    def _values(self) -> Tensor:
        _no_kernel("_values")

    def _coalesced_(self, coalesced: bool) -> Tensor:
        _no_kernel("_coalesced_")

    def _dimI(self) -> int:
        return self.sparse_dim()

    def _dimV(self) -> int:
        return self.dense_dim()
