"""Products of matrices of which one, or both, are sparse. A product with a dense matrix gathers its rows and adds them
where they belong, so values at one place need not be added before.
"""

from __future__ import annotations

from webtorch.dispatch.call import dispatched
from webtorch.errors import ShapeError
from webtorch.functions import public as dense
from webtorch.ir.dtype import Number, int64
from webtorch.sparse.dispatch import rule
from webtorch.sparse.layouts import coalesce, compressed, coo, matching, matching_as, to_dense
from webtorch.sparse.movement import transpose
from webtorch.sparse.tensor import BLOCKS, BY_COLUMN, Pattern, SparseTensor, added, no_kernel
from webtorch.tensors.above import give
from webtorch.tensors.formats import sparse_coo, sparse_csc, sparse_csr
from webtorch.tensors.tensor import Tensor


def _rows_and_columns(pattern: Pattern) -> tuple[Tensor, Tensor]:
    rows, columns = pattern.coordinates().unbind(0)
    return rows, columns


def _check_matrices(a: Tensor, b: Tensor, op: str) -> None:
    for name, x in (("mat1", a), ("mat2", b)):
        if x.dim() != 2:
            raise RuntimeError(f"{op}: Expected {name} to be a matrix, and it has {x.dim()} dims")
        if isinstance(x, SparseTensor) and x.sparse_rank != 2:
            raise RuntimeError(f"{op}: Argument {name} must have no dense dims")
    if a._shape[1] != b._shape[0]:
        raise ShapeError(
            f"mat1 and mat2 shapes cannot be multiplied ({a._shape[0]}x{a._shape[1]} and "
            f"{b._shape[0]}x{b._shape[1]})"
        )
    if a.dtype is not b.dtype:
        raise RuntimeError(
            f"{op}: Expected mat1 and mat2 to have the same dtype, but got {a.dtype} and {b.dtype}"
        )


@rule("mm")
def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """Return the product of two matrices: sparse if both are."""
    _check_matrices(input, mat2, "mm")
    if not isinstance(input, SparseTensor):
        assert isinstance(mat2, SparseTensor)
        return mm(transpose(mat2, 0, 1), input.t()).t()
    if isinstance(mat2, SparseTensor):
        return _sparse_product(input, mat2)
    return _times_dense(input, mat2)


def _times_dense(a: SparseTensor, b: Tensor) -> Tensor:
    """Return the product of a sparse matrix with a dense one: by its blocks where it has them."""
    (high, wide), width = a.blocksize, b._shape[1]
    out = dense.zeros(
        a._shape[0] // high, *((high,) if high > 1 else ()), width, dtype=b.dtype, device=b.device
    )
    if a.layout not in BLOCKS:
        rows, columns = _rows_and_columns(a.pattern())
        return added(out, rows, b[columns] * a.values_of().unsqueeze(1))
    outer, inner = a.pattern().lines()
    rows, columns = (inner, outer) if a.layout in BY_COLUMN else (outer, inner)
    products = dense.bmm(a.values_of(), b.reshape(-1, wide, width)[columns])
    return added(out, rows, products.reshape(-1, *out._shape[1:])).reshape(a._shape[0], width)


def _sparse_product(a: SparseTensor, b: SparseTensor) -> Tensor:
    """Return the product of two sparse matrices: each value of `a` meets the row of `b` that its column names."""
    x, y = coalesce(matching(a, sparse_coo)), coalesce(matching(b, sparse_coo))
    rows, columns = _rows_and_columns(x.pattern())
    starts = compressed(y.places[0][0], y._shape[0])
    begin = starts[columns]
    counts = starts[columns + 1] - begin
    value = dense.repeat_interleave(dense.arange(x.nnz, device=rows.device), counts)
    before = (dense.cumsum(counts, 0) - counts)[value]
    met = begin[value] + dense.arange(value._shape[0], device=rows.device) - before
    places = dense.stack([rows[value], y.places[0][1][met]])
    values = x.values_of()[value] * y.values_of()[met]
    out = coalesce(coo(places, values, (x._shape[0], y._shape[1]), False, "SparseMm"))
    if {a.layout, b.layout} <= {sparse_csr, sparse_csc}:
        return matching(out, sparse_csr)
    return matching_as(out, a) if a.layout is b.layout else out


@rule("mv")
def mv(input: Tensor, vec: Tensor) -> Tensor:
    """Return the product of a sparse matrix and a vector."""
    if vec.dim() != 1 or input.dim() != 2:
        raise RuntimeError(
            f"mv: Expected a matrix and a vector, but got {input.dim()} and {vec.dim()} dims"
        )
    if isinstance(vec, SparseTensor):
        vec = to_dense(vec)
    return mm(input, vec.unsqueeze(1)).squeeze(1)


@rule("bmm")
def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """Return the products of sparse matrices and dense ones, example by example."""
    if not isinstance(input, SparseTensor) or isinstance(mat2, SparseTensor):
        x = input if isinstance(input, SparseTensor) else mat2
        raise no_kernel("bmm", x)
    if input.sparse_rank != 3 or mat2.dim() != 3:
        raise RuntimeError("bmm: Expected batches of matrices, the first with three sparse dims")
    batch, rows, inner = input._shape
    if mat2._shape[:2] != (batch, inner):
        raise ShapeError(
            f"Expected size for first two dimensions of batch2 tensor to be: [{batch}, {inner}] but got: "
            f"[{mat2._shape[0]}, {mat2._shape[1]}]."
        )
    example, row, column = input.pattern().coordinates().unbind(0)
    places = dense.stack([example * rows + row, example * inner + column])
    flat = coo(places, input.elements(), (batch * rows, batch * inner))
    width = mat2._shape[2]
    return mm(flat, mat2.reshape(batch * inner, width)).reshape(batch, rows, width)


@rule("matmul")
def matmul(input: Tensor, other: Tensor) -> Tensor:
    """Return the product, by the numbers of dims."""
    dims = input.dim(), other.dim()
    if dims == (2, 2):
        return mm(input, other)
    if dims == (2, 1):
        return mv(input, other)
    if dims == (1, 2):
        return mv(other.t(), input)
    if dims == (3, 3):
        return bmm(input, other)
    x = input if isinstance(input, SparseTensor) else other
    raise no_kernel("matmul", x)


@rule("addmm")
def addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    """Return beta * input + alpha * (mat1 @ mat2)."""
    product = matmul(mat1, mat2) if _any_sparse(mat1, mat2) else dense.mm(mat1, mat2)
    if alpha != 1:
        product = product * alpha
    if beta == 0:
        return product
    return (input if beta == 1 else input * beta) + product


def _any_sparse(*tensors: object) -> bool:
    return any(isinstance(t, SparseTensor) for t in tensors)


@rule("addmv")
def addmv(
    input: Tensor, mat: Tensor, vec: Tensor, *, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    """Return beta * input + alpha * (mat @ vec)."""
    return input * beta + mv(mat, vec) * alpha


@rule("linear")
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return input @ weight.T + bias."""
    out = matmul(input, transpose(weight, 0, 1) if isinstance(weight, SparseTensor) else weight.t())
    return out if bias is None else out + bias


@dispatched()
def smm(input: Tensor, mat2: Tensor) -> Tensor:
    """Return the product of a sparse matrix and a dense one as a sparse tensor."""
    places = dense.zeros((2, 0), dtype=int64, device=mat2.device)
    shape = (input._shape[0], mat2._shape[1])
    return sspaddmm(coo(places, mat2.detach().reshape(-1)[:0], shape), input, mat2)


@dispatched()
def sspaddmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Number = 1, alpha: Number = 1
) -> Tensor:
    """Return beta * input + alpha * (mat1 @ mat2) as a sparse tensor, of sparse tensors and a dense one."""
    if not isinstance(input, SparseTensor):
        raise RuntimeError("sspaddmm: Argument #1: Expected sparse 'self'")
    if not isinstance(mat1, SparseTensor):
        raise RuntimeError("sspaddmm: Argument #2: Expected sparse 'mat1'")
    product, width = mm(mat1, mat2), mat2._shape[1]
    # Each row that has a value becomes a whole one.
    rows = dense.unique(mat1.pattern().coordinates()[0])
    columns = dense.arange(width, device=rows.device).repeat(rows._shape[0])
    places = dense.stack([dense.repeat_interleave(rows, width), columns])
    both = dense.cat([input.places[0], places], 1)
    values = dense.cat([input.values_of() * beta, product[rows].reshape(-1) * alpha])
    return coo(both, values, input._shape)


give(smm=smm, sspaddmm=sspaddmm)


@dispatched()
def hspmm(mat1: Tensor, mat2: Tensor) -> Tensor:
    """Return the product of a sparse matrix and a dense one, with its rows as values."""
    if not isinstance(mat1, SparseTensor):
        raise no_kernel("hspmm", mat1)
    x = coalesce(mat1)
    (rows, number) = dense.unique(x.places[0][0], return_inverse=True)
    small = coo(dense.stack([number, x.places[0][1]]), x.values_of(), (rows._shape[0], x._shape[1]))
    return coo(rows.reshape(1, -1).to(int64), mm(small, mat2), (x._shape[0], mat2._shape[1]), True)


# Old names of PyTorch.
hsmm = hspmm
dsmm = spmm = dense.mm


def sampled_addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Number = 1.0, alpha: Number = 1.0
) -> Tensor:
    """Return beta * input + alpha * (mat1 @ mat2) at the places of `input`, a CSR matrix."""
    if not isinstance(input, SparseTensor) or input.layout is not sparse_csr:
        raise RuntimeError(f"sampled_addmm: Expected self to be sparse_csr, but got {input.layout}")
    if mat1.dim() != 2 or mat2.dim() != 2 or mat1._shape[1] != mat2._shape[0]:
        raise RuntimeError("sampled_addmm: mat1 and mat2 shapes cannot be multiplied")
    if input._shape != (mat1._shape[0], mat2._shape[1]):
        raise RuntimeError("sampled_addmm: self.shape must match the shape of mat1 @ mat2")
    rows, columns = _rows_and_columns(input.pattern())
    products = (mat1[rows] * mat2.t()[columns]).sum(1)
    return input.like(input.values_of() * beta + products * alpha, "SparseSampledAddmm")
