"""From one layout to another: dense, COO, CSR, CSC; sums of values at one place; the values at given places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webtorch.functions import public as dense
from webtorch.ir.dtype import int64
from webtorch.sparse.tensor import (
    TITLES,
    SparseTensor,
    added,
    at,
    backend_of,
    keys,
    looked_up,
    no_kernel,
)
from webtorch.tensors.absent import why_missing
from webtorch.tensors.formats import layout as Layout
from webtorch.tensors.formats import sparse_coo, sparse_csc, sparse_csr, strided
from webtorch.tensors.tensor import Tensor


def coo(
    indices: Tensor,
    values: Tensor,
    shape: Sequence[int],
    coalesced: bool = False,
    title: str = "",
) -> SparseTensor:
    """Return a COO tensor without checks."""
    return SparseTensor.of(sparse_coo, (indices,), values, shape, coalesced, title)


def coalesce(x: Tensor) -> SparseTensor:
    """Return a COO tensor whose places are sorted and come once: values at one place are added."""
    x = as_layout(x, sparse_coo, "coalesce", "coordinate tensor")
    if x.coalesced:
        return x
    indices, values, count = x.places[0], x.values_of(), x.nnz
    if count < 2:
        return coo(indices, values, x._shape, True, "Coalesce")
    places, number = dense.unique(keys(indices, x._shape[: x.sparse_rank]), return_inverse=True)
    merged = places._shape[0]
    sums = dense.zeros((merged, *values._shape[1:]), dtype=values.dtype, device=values.device)
    sums = added(sums, number, values)
    if not x.sparse_rank:
        return coo(
            dense.zeros((0, merged), dtype=int64, device=indices.device), sums, x._shape, True
        )
    return coo(_split(places, x._shape[: x.sparse_rank]), sums, x._shape, True, "Coalesce")


def _split(places: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the places whose numbers are given (`keys`)."""
    rows: list[Tensor] = []
    for size in reversed(shape[1:]):
        rows.append(dense.remainder(places, max(size, 1)))
        places = dense.div(places, max(size, 1), rounding_mode="floor")
    return dense.stack([places, *reversed(rows)])


def to_dense(x: Tensor, dtype: Any = None, *, masked_grad: bool | None = None) -> Tensor:
    """Return the dense tensor of the same elements."""
    if not isinstance(x, SparseTensor):
        return x if dtype is None else x.to(dtype)
    pattern, values = x.pattern(), x.values_of()
    rank = pattern.rank
    head, tail = x._shape[:rank], x._shape[rank:]
    out = dense.zeros((_count(head), *tail), dtype=values.dtype, device=values.device)
    out = added(out, keys(pattern.coordinates(), head), values).reshape(x._shape)
    return out if dtype is None else out.to(dtype)


def _count(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def to_sparse(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Return the tensor in a sparse layout, COO unless `layout` says another: of the first `sparse_dim` dims, of which
    each value has the others.
    """
    sparse_dim, layout, dense_dim = _options(*args, **kwargs)
    if layout is None:
        layout = sparse_coo
    if layout is strided:
        return to_dense(x)
    if layout is sparse_coo:
        return _to_coo(x, sparse_dim)
    if layout in (sparse_csr, sparse_csc):
        return to_compressed(x, layout, dense_dim)
    raise NotImplementedError(
        f"to_sparse: layout {layout} is not available here: use torch.sparse_csr. "
        f"{why_missing('', 'sparse_bsr_tensor')}"
    )


def _options(
    sparse_dim: int | None = None,
    *,
    layout: Layout | None = None,
    blocksize: Any = None,
    dense_dim: int | None = None,
    sparseDims: int | None = None,
) -> tuple[int | None, Layout | None, int | None]:
    return sparse_dim if sparse_dim is not None else sparseDims, layout, dense_dim


def _to_coo(x: Tensor, sparse_dim: int | None) -> SparseTensor:
    if isinstance(x, SparseTensor):
        if sparse_dim not in (None, x.sparse_rank):
            raise RuntimeError(
                "to_sparse: conversion of a sparse tensor to another sparse_dim is not supported"
            )
        if x.layout is sparse_coo:
            return x
        pattern, values = x.pattern(), x.values_of()
        indices = pattern.coordinates()
        if x.layout is sparse_csr:
            return coo(indices, values, x._shape, True, "ToSparse")
        return coalesce(coo(indices, values, x._shape, False, "ToSparse"))
    rank = x.dim()
    if sparse_dim is None:
        sparse_dim = rank
    if rank and sparse_dim <= 0:
        raise RuntimeError("dense_to_sparse: sparse_dim argument must be in >0 when self.dim()>0")
    if sparse_dim > rank:
        raise RuntimeError(
            "dense_to_sparse: sparse_dim argument must be less than or equal to self.dim()"
        )
    values = x.detach() != 0
    if sparse_dim < rank:
        values = values.flatten(sparse_dim).any(sparse_dim)
    indices = dense.nonzero(values).t().contiguous()
    if not rank:
        indices = dense.zeros((0, indices._shape[1]), dtype=int64, device=x.device)
        return coo(indices, x.reshape(1)[: indices._shape[1]], (), True, "ToSparse")
    return coo(indices, at(x, indices), x._shape, True, "ToSparse")


def to_compressed(x: Tensor, layout: Layout, dense_dim: int | None = None) -> SparseTensor:
    """Return a matrix in CSR or CSC."""
    if isinstance(x, SparseTensor) and x.layout is layout:
        return x
    name = "to_sparse_csr" if layout is sparse_csr else "to_sparse_csc"
    rank = x.sparse_rank if isinstance(x, SparseTensor) else x.dim() - (dense_dim or 0)
    if rank != 2:
        raise RuntimeError(
            f"{name}: only matrices have this layout here, and this tensor has {rank} sparse dims"
        )
    title = "ToSparseCsr" if layout is sparse_csr else "ToSparseCsc"
    source = coalesce(_to_coo(x, 2))
    indices, values = source.places[0], source.values_of()
    rows, columns = source._shape[:2]
    outer, inner = indices.unbind(0)
    if layout is sparse_csc:
        # Sorted by columns; rows stay in order.
        outer, order = dense.sort(inner, stable=True)
        inner, values = indices[0][order], values[order]
        rows = columns
    return SparseTensor.of(
        layout, (compressed(outer, rows), inner.contiguous()), values, source._shape, True, title
    )


def compressed(rows: Tensor, count: int) -> Tensor:
    """Return where each of `count` rows begins among sorted numbers of rows, and where the last one ends."""
    if not rows._shape[0]:
        return dense.zeros(count + 1, dtype=int64, device=rows.device)
    bounds = dense.arange(count + 1, device=rows.device)
    return dense.searchsorted(rows.contiguous(), bounds)


def sparse_mask(x: Tensor, mask: Tensor) -> SparseTensor:
    """Return the elements of x where `mask` has values, which do not matter."""
    if not isinstance(mask, SparseTensor):
        raise no_kernel("sparse_mask", mask)
    if x._shape != mask._shape:
        raise RuntimeError(
            "sparse_mask(): operands have incompatible sizes; self has size "
            f"{list(x._shape)} but mask has size {list(mask._shape)}"
        )
    pattern = mask.pattern()
    coordinates = pattern.coordinates()
    values = looked_up(x, coordinates) if isinstance(x, SparseTensor) else at(x, coordinates)
    return pattern.filled(values, "SparseMask")


def as_layout(x: Tensor, layout: Layout, op: str, what: str) -> SparseTensor:
    """Return x as a sparse tensor of a layout. Raises RuntimeError, in PyTorch's words, where it has another."""
    if not isinstance(x, SparseTensor) or x.layout is not layout:
        raise RuntimeError(
            f"{op} expected sparse {what} layout but got {TITLES.get(x.layout, 'Strided')}"
        )
    return x


def matching(x: SparseTensor, layout: Layout) -> SparseTensor:
    """Return x in another sparse layout."""
    if x.layout is layout:
        return x
    return _to_coo(x, None) if layout is sparse_coo else to_compressed(x, layout)


__all__ = ["backend_of", "coalesce", "coo", "sparse_mask", "to_dense", "to_sparse"]
