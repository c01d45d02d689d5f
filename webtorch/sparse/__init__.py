"""torch.sparse: tensors of which only some elements are kept, in coordinates and compressed. Floor 5."""

from webtorch.functions import public as _dense
from webtorch.ir.dtype import Number as _Number
from webtorch.sparse import dispatch as _dispatch
from webtorch.sparse import elementwise as _elementwise
from webtorch.sparse import masked as _masked
from webtorch.sparse import movement as _movement
from webtorch.sparse import whole as _whole
from webtorch.sparse.algebra import addmm as _addmm
from webtorch.sparse.algebra import mm as _mm
from webtorch.sparse.algebra import sampled_addmm
from webtorch.sparse.checking import as_sparse_gradcheck
from webtorch.sparse.construction import check_sparse_tensor_invariants, spdiags
from webtorch.sparse.legacy import CONSTRUCTORS as _CONSTRUCTORS
from webtorch.sparse.reductions import log_softmax, softmax, sum
from webtorch.sparse.tensor import SparseTensor as _SparseTensor
from webtorch.tensors.tensor import Tensor as _Tensor

assert all((_dispatch, _elementwise, _masked, _movement, _whole))

__all__ = [
    "addmm", "as_sparse_gradcheck", "check_sparse_tensor_invariants", "log_softmax", "mm", "sampled_addmm", "softmax",
    "spdiags", "sum",
]  # fmt: skip

globals().update(_CONSTRUCTORS)


def mm(mat1: _Tensor, mat2: _Tensor, reduce: str | None = None) -> _Tensor:
    """Return the product of two matrices, of which one or both may be sparse."""
    if reduce is not None:
        return _reduced(mat1, mat2, reduce)
    if not (isinstance(mat1, _SparseTensor) or isinstance(mat2, _SparseTensor)):
        return _dense.mm(mat1, mat2)
    return _mm(mat1, mat2)


def _reduced(mat1: _Tensor, mat2: _Tensor, reduce: str) -> _Tensor:
    """Return for each row of a CSR matrix what its products with the rows of a dense one are reduced to."""
    if reduce not in ("sum", "mean", "amax", "amin"):
        raise ValueError(f"reduce argument must be either sum, mean, amax or amin, got {reduce}")
    if not isinstance(mat1, _SparseTensor):
        raise RuntimeError(
            "torch.sparse.mm: reduce needs a sparse CSR matrix as its first argument"
        )
    rows, columns = mat1.pattern().coordinates().unbind(0)
    products = mat2[columns] * mat1.values_of().unsqueeze(1)
    out = _dense.zeros(mat1._shape[0], mat2._shape[1], dtype=mat2.dtype, device=mat2.device)
    if reduce == "sum":
        return out.index_add(0, rows, products)
    return out.index_reduce(0, rows, products, reduce, include_self=False)


def addmm(
    mat: _Tensor, mat1: _Tensor, mat2: _Tensor, *, beta: _Number = 1.0, alpha: _Number = 1.0
) -> _Tensor:
    """Return beta * mat + alpha * (mat1 @ mat2), of which mat1 may be sparse."""
    return _addmm(mat, mat1, mat2, beta=beta, alpha=alpha)
