"""Sums, norms and softmax of sparse tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webtorch.functions import public as dense
from webtorch.ir.dtype import DType, bool_, int64
from webtorch.sparse.dispatch import rule
from webtorch.sparse.elementwise import merged
from webtorch.sparse.layouts import coalesce, coo, matching, to_dense
from webtorch.sparse.tensor import SparseTensor, keys, no_kernel
from webtorch.tensors.formats import sparse_coo
from webtorch.tensors.modes import no_grad
from webtorch.tensors.tape import attach
from webtorch.tensors.tensor import Tensor


def sum(
    input: Tensor, dim: int | Sequence[int] | None = None, dtype: DType | None = None
) -> Tensor:
    """Return the sum of a sparse tensor, of all elements or along dims: dense where no sparse dim is left."""
    if not isinstance(input, SparseTensor):
        raise no_kernel("_sparse_sum", input)
    return _sum(input, dim, False, dtype)


@rule("sum")
def sum_of(
    input: SparseTensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
    axis: int | Sequence[int] | None = None,
) -> Tensor:
    """Return the sum of all elements, or along dims."""
    return _sum(input, dim if axis is None else axis, keepdim, dtype)


def _sum(
    input: SparseTensor, dim: int | Sequence[int] | None, keepdim: bool, dtype: DType | None
) -> Tensor:
    values = input.values_of()
    if dtype is None and not values.dtype.has_gradient:
        dtype = int64
    if dtype is not None and dtype is not values.dtype:
        values = values.to(dtype)
    if dim is None or (isinstance(dim, (tuple, list)) and not dim):
        if input.layout is sparse_coo or not input.requires_grad:
            return values.sum()
        # The gradient of a compressed tensor is dense, as in PyTorch.
        return attach(values.detach().sum(), "Sum", (input,), _all_alike, (), (input._shape,))
    if input.layout is not sparse_coo and input.requires_grad:
        with no_grad():
            alone = input.like(input.kept)
            out = _sum(alone, dim, keepdim, dtype)
        gone = [d % input.dim() for d in ([dim] if isinstance(dim, int) else dim)]
        args = (input._shape, () if keepdim else tuple(sorted(gone)))
        return attach(out, "Sum", (input,), _all_alike, (), args)
    x = matching(input.like(values, "Sum"), sparse_coo)
    rank, sparse = x.dim(), x.sparse_rank
    dims = _set_of([dim] if isinstance(dim, int) else list(dim), rank)
    values = x.values_of()
    inner = [d - sparse + 1 for d in sorted(dims) if d >= sparse]
    if inner:
        values = values.sum(inner, keepdim)
    left = [d for d in range(sparse) if d not in dims]
    shape = [1 if d in dims else n for d, n in enumerate(x._shape) if keepdim or d not in dims]
    if not left:
        total = values.sum(0)
        return total.reshape(shape) if keepdim else total
    if keepdim:
        zero = dense.zeros(x.nnz, dtype=int64, device=values.device)
        rows = [zero if d in dims else x.places[0][d] for d in range(sparse)]
    else:
        rows = [x.places[0][d] for d in left]
    some = len(left) < sparse
    out = coo(dense.stack(rows), values, shape, x.coalesced and not some, "SparseSum")
    return coalesce(out) if some else out


def _set_of(given: list[int], rank: int) -> set[int]:
    """Return dims, counted from the first. Raises IndexError out of range and RuntimeError for one given twice."""
    dims: set[int] = set()
    for d in given:
        if not -rank <= d < rank:
            raise IndexError(
                f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {d})"
            )
        if d % rank in dims:
            raise RuntimeError(f"dim {d % rank} appears multiple times in the list of dims")
        dims.add(d % rank)
    return dims


def _all_alike(g: Tensor, shape: tuple[int, ...], dims: tuple[int, ...] = ()) -> tuple[Tensor]:
    """The cotangent of what was summed over `dims`, which are gone; over all others that are 1."""
    g = to_dense(g)
    for d in dims:
        g = g.unsqueeze(d)
    return (g.expand(shape),)


@rule("norm", "vector_norm")
def norm(
    input: SparseTensor, p: Any = "fro", dim: Any = None, keepdim: bool = False, **options: Any
) -> Tensor:
    """Return a norm of all elements."""
    given = [dim] if isinstance(dim, int) else list(dim or ())
    if given and {d % max(input.dim(), 1) for d in given} != {*range(input.dim())}:
        raise RuntimeError(
            "norm_sparse currently only supports full reductions, so 'dim' must either be empty or contain all "
            "dimensions of the input"
        )
    if keepdim:
        raise RuntimeError("norm_sparse currently does not support keepdim=True")
    values = merged(input).values_of()
    return dense.norm(values, p=2 if p in ("fro", None) else p, dtype=options.get("dtype"))


@rule("any")
def any_of(input: SparseTensor) -> Tensor:
    """Whether an element is not zero."""
    return merged(input).values_of().any()


def softmax(input: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """Return the softmax along a dim of the elements that are there: others count as minus infinity."""
    return _softmax(input, dim, dtype, False)


def log_softmax(input: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """Return the logarithm of the softmax."""
    return _softmax(input, dim, dtype, True)


def _softmax(input: Tensor, dim: int, dtype: DType | None, logarithm: bool) -> Tensor:
    name = "log_softmax" if logarithm else "softmax"
    title = "SparseLogSoftmax" if logarithm else "SparseSoftmax"
    if not isinstance(input, SparseTensor):
        raise no_kernel(f"_sparse_{name}", input)
    x = coalesce(input)
    rank, sparse = x.dim(), x.sparse_rank
    if not -rank <= dim < rank:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})"
        )
    d = dim % rank
    values = x.values_of()
    if dtype is not None:
        values = values.to(dtype)
    if values.dtype is bool_ or not values.dtype.has_gradient:
        raise RuntimeError(
            f"\"{name}\" not implemented for '{str(values.dtype).removeprefix('torch.').title()}'"
        )
    if d >= sparse:
        function = dense.log_softmax if logarithm else dense.softmax
        return x.like(function(values, d - sparse + 1), title)
    if not x.nnz:
        return x.like(values, title)
    others = [row for i, row in enumerate(x.places[0].unbind(0)) if i != d]
    sizes = [n for i, n in enumerate(x._shape[:sparse]) if i != d]
    if others:
        _, number = dense.unique(keys(dense.stack(others), sizes), return_inverse=True)
        groups = int(number.max().item()) + 1
    else:
        number = dense.zeros(x.nnz, dtype=int64, device=values.device)
        groups = 1
    tail = values._shape[1:]
    start = dense.zeros((groups, *tail), dtype=values.dtype, device=values.device)
    largest = start.index_reduce(0, number, values.detach(), "amax", include_self=False)
    shifted = values - largest[number]
    powers = shifted.exp()
    total = start.index_add(0, number, powers)
    out = shifted - total.log()[number] if logarithm else powers / total[number]
    return x.like(out, title)
