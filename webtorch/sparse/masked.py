"""Masked reductions of sparse tensors: an element counts where the mask says so, and is zero where it is not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from webtorch.functions import masked
from webtorch.functions import public as dense
from webtorch.ir.dtype import DType, int64
from webtorch.ops.record import TABLE
from webtorch.sparse.dispatch import rule
from webtorch.sparse.layouts import (
    broadcast,
    coalesce,
    coo,
    matching,
    places_of,
    sparse_mask,
    to_dense,
)
from webtorch.sparse.tensor import SparseTensor, keys
from webtorch.tensors.formats import sparse_coo, sparse_csr
from webtorch.tensors.tensor import Tensor


def _identity(name: str) -> Callable[..., Any]:
    """Return the function that gives the value that changes nothing in a reduction."""
    found = TABLE[f"masked_{name}"].identity
    assert found is not None
    return found


def _taken(x: SparseTensor, mask: Any, identity: Callable[..., Any]) -> SparseTensor:
    """Return, in COO, the elements that the mask takes."""
    x = coalesce(matching(x, sparse_coo))
    if mask is None:
        return x
    if not isinstance(mask, SparseTensor):
        mask = mask.expand(x._shape).bool().to_sparse(x.sparse_rank)
    mask = coalesce(broadcast(matching(mask, sparse_coo), x._shape))
    counts = mask.values_of().bool()
    inside = counts.flatten(1).any(1) if counts.dim() > 1 else counts
    (rows,) = inside.nonzero(as_tuple=True)
    places, counts = mask.places[0][:, rows], counts[rows]
    values = sparse_mask(x, coo(places, counts, x._shape, True)).values_of()
    if counts.dim() > 1:
        values = dense.where(counts, values, identity(values))
    return coo(places, values, x._shape, True)


def _inside(name: str, values: Tensor, dims: list[int], keepdim: bool) -> Tensor:
    """Return the values, reduced along dims of their own."""
    if name != "prod":
        return getattr(dense, name)(values, dims, keepdim) if dims else values
    for d in reversed(dims):
        values = dense.prod(values, d, keepdim)
    return values


def _reduced(name: str, x: SparseTensor, dims: set[int], keepdim: bool) -> Tensor:
    """Return the elements that are there, reduced along dims."""
    rank = x.sparse_rank
    inner = [d - rank + 1 for d in sorted(dims) if d >= rank]
    values = _inside(name, x.values_of(), inner, keepdim)
    shape = [1 if d in dims else n for d, n in enumerate(x._shape) if keepdim or d not in dims]
    left = [d for d in range(rank) if d not in dims]
    if rank and len(left) == rank:
        return coo(x.places[0], values, shape, True)
    identity = _identity(name)(values)
    if not left:
        start = dense.full(values._shape[1:], identity, dtype=values.dtype, device=values.device)
        total = _inside(name, values, [0], False) if len(values) else start
        return total.reshape(shape).to_sparse()
    head = [x._shape[d] for d in left]
    numbers, group = dense.unique(keys(x.places[0][left], head), return_inverse=True)
    start = dense.full_like(values[:1], identity).repeat_interleave(len(numbers), 0)
    if name == "sum":
        out = start.index_add(0, group, values)
    else:
        out = start.index_reduce(0, group, values, name)
    places = places_of(numbers, head)
    if keepdim:
        zero = dense.zeros(len(numbers), dtype=int64, device=values.device)
        places = dense.stack([places[left.index(d)] if d in left else zero for d in range(rank)])
    return coo(places, out, shape, True)


def _rule(name: str) -> None:
    @rule(f"masked_{name}")
    def reduce(
        input: Any,
        dim: Any = None,
        *,
        keepdim: bool = False,
        dtype: DType | None = None,
        mask: Any = None,
    ) -> Tensor:
        """Return the reduction of the elements that count."""
        if not isinstance(input, SparseTensor):
            function = getattr(masked, f"{name}_")
            return function(input, dim, keepdim=keepdim, dtype=dtype, mask=to_dense(mask))
        layouts = (sparse_csr,) if name == "mean" else (sparse_coo, sparse_csr)
        if input.layout not in layouts:
            kinds = ", ".join(["strided", *map(str, layouts[:-1])]).replace("torch.", "")
            raise ValueError(
                f"masked {name} expects {kinds} or sparse_csr tensor (got {input.layout} tensor)"
            )
        if mask is None and name != "sum":
            raise ValueError(
                f"masked {name} expects explicit mask for {str(input.layout)[6:]} tensor input"
            )
        if input.layout is sparse_csr and not keepdim:
            raise RuntimeError(
                "reduction operations on CSR tensors with keepdim=False is unsupported"
            )
        x = _taken(input, mask, _identity("sum" if name == "mean" else name))
        if dtype is None and name in ("sum", "prod") and not x.dtype.has_gradient:
            dtype = int64
        if dtype is not None:
            x = x.like(x.values_of().to(dtype))
        dims = {dim} if isinstance(dim, int) else set(dim or range(x.dim()))
        # A tensor without dims has one to reduce, which is none of its values'.
        dims = {d % x.dim() for d in dims} if x.dim() else set()
        if name != "mean":
            out = _reduced(name, x, dims, keepdim)
        else:
            sums = _reduced("sum", x, dims, keepdim)
            counts = _reduced("sum", x.like(dense.ones_like(x.values_of())), dims, keepdim)
            assert isinstance(sums, SparseTensor) and isinstance(counts, SparseTensor)
            out = sums.like(sums.values_of() / counts.values_of())
        assert isinstance(out, SparseTensor)
        return matching(out, input.layout)


for _op in [op for op in TABLE.values() if op.on_groups]:
    _rule(_op.name.removeprefix("masked_"))
