"""From one layout to another: dense, COO, compressed; sums of values at one place; the values at given places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from webtorch.functions import public as dense
from webtorch.ir.dtype import int64
from webtorch.sparse.tensor import (
    BLOCKS,
    BY_COLUMN,
    TITLES,
    SparseTensor,
    added,
    at,
    backend_of,
    keys,
    looked_up,
    no_kernel,
)
from webtorch.sparse.tensor import to_dense as whole
from webtorch.tensors.formats import layout as Layout
from webtorch.tensors.formats import sparse_coo, sparse_csr, strided
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
    return coo(places_of(places, x._shape[: x.sparse_rank]), sums, x._shape, True, "Coalesce")


def places_of(places: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the places whose numbers are given (`keys`)."""
    rows: list[Tensor] = []
    for size in reversed(shape[1:]):
        rows.append(dense.remainder(places, max(size, 1)))
        places = dense.div(places, max(size, 1), rounding_mode="floor")
    return dense.stack([places, *reversed(rows)])


def broadcast(x: SparseTensor, shape: Sequence[int]) -> SparseTensor:
    """Return a COO tensor of a larger shape, with its elements as often as they fit."""
    if x._shape == tuple(shape):
        return x
    before = len(shape) - x.dim()
    head = list(shape[: before + x.sparse_rank])
    grown = [d for d, n in enumerate(head) if d < before or x._shape[d - before] != n]
    lines = [dense.arange(head[d], device=x.device) for d in grown]
    grid = [line.flatten() for line in dense.meshgrid(*lines, indexing="ij")] if lines else []
    times = len(grid[0]) if grid else 1
    rows = [
        grid[grown.index(d)].repeat(x.nnz)
        if d in grown
        else x.places[0][d - before].repeat_interleave(times)
        for d in range(len(head))
    ]
    values = x.values_of().expand(x.nnz, *shape[len(head) :]).repeat_interleave(times, 0)
    return coalesce(coo(dense.stack(rows), values, shape, False, "Expand"))


def to_dense(x: Tensor, dtype: object = None, *, masked_grad: bool | None = None) -> Tensor:
    """Return the dense tensor of the same elements."""
    out = whole(x) if isinstance(x, SparseTensor) else x
    return out if dtype is None else out.to(dtype)


def to_sparse(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Return the tensor in a sparse layout, COO unless `layout` says another: of the first `sparse_dim` dims, of which
    each value has the others.
    """
    sparse_dim, layout, blocksize, dense_dim = _options(*args, **kwargs)
    if layout in (None, sparse_coo):
        if blocksize is not None:
            raise RuntimeError(
                f"{_source(x)}_to_sparse: conversion from {TITLES.get(x.layout, 'Strided')} to Sparse with blocksize "
                "argument given is not supported"
            )
        return _to_coo(x, sparse_dim)
    if layout is strided:
        return to_dense(x)
    return to_compressed(x, layout, dense_dim, blocksize)


def _source(x: Tensor) -> str:
    return {strided: "dense", sparse_coo: "coo"}.get(x.layout, "sparse_compressed")


def _options(
    sparse_dim: int | None = None,
    *,
    layout: Layout | None = None,
    blocksize: object = None,
    dense_dim: int | None = None,
    sparseDims: int | None = None,
) -> tuple[int | None, Layout | None, object, int | None]:
    return sparse_dim if sparse_dim is not None else sparseDims, layout, blocksize, dense_dim


def _to_coo(x: Tensor, sparse_dim: int | None) -> SparseTensor:
    if isinstance(x, SparseTensor):
        if sparse_dim not in (None, x.sparse_rank):
            wanted = "self.sparse_dim()" if x.layout is sparse_coo else x.sparse_rank
            raise RuntimeError(
                f"{'' if x.layout is sparse_coo else 'sparse_compressed_'}to_sparse: conversion from "
                f"{TITLES[x.layout]} to Sparse with sparse_dim argument !={wanted} is not supported"
            )
        if x.layout is sparse_coo:
            return x
        indices, values = x.pattern().coordinates(), x.elements()
        return coo(indices, values, x._shape, x.layout is sparse_csr, "ToSparse")
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


def to_compressed(
    x: Tensor, layout: Layout, dense_dim: int | None = None, blocksize: object = None
) -> SparseTensor:
    """Return a matrix, or a batch of them, in a compressed layout. Raises RuntimeError where PyTorch has no such
    conversion.
    """
    source, target = TITLES.get(x.layout, "Strided"), TITLES[layout]
    name, between = (
        f"{_source(x)}_to_sparse_{target[-3:].lower()}",
        f"conversion from {source} to {target}",
    )
    if layout not in BLOCKS:
        if blocksize is not None:
            raise RuntimeError(f"{name}: {between} with blocksize argument given is not supported")
        size = (1, 1)
    elif blocksize is not None:
        size = _checked_blocks(blocksize, name)
    elif isinstance(x, SparseTensor) and x.layout in BLOCKS:
        size = x.blocksize
    else:
        raise RuntimeError(f"{name}: {between} without blocksize argument given is not supported")
    rank = x.sparse_rank if isinstance(x, SparseTensor) else x.dim() - (dense_dim or 0)
    if not isinstance(x, SparseTensor) and not 2 <= rank <= x.dim():
        raise RuntimeError(
            f"{name}: dense_dim argument must be in [0,{x.dim() - 2}] range, but {dense_dim} is given"
        )
    if isinstance(x, SparseTensor):
        if dense_dim is not None:
            raise RuntimeError(f"{name}: {between} with dense_dim argument given is not supported")
        if x.layout is layout and size == x.blocksize:
            return x
        if x.layout is sparse_coo and rank != 2:
            raise RuntimeError(
                f"{name}: {between} for input tensors with sparse_dim()!=2 is not supported"
            )
        if x.layout in BLOCKS and layout not in BLOCKS:
            raise RuntimeError(f"{name}: expected SparseCsr or SparseCsc layout but got {source}")
        if x.batch_rank and layout in BLOCKS and x.layout not in BLOCKS:
            raise RuntimeError(f"{name}: {between} for batched inputs is not supported")
    pair = x._shape[rank - 2 : rank]
    if any(n % b for n, b in zip(pair, size, strict=True)):
        raise RuntimeError(
            f"{name}: tensor sparse size ({pair[0]},{pair[1]}) must be divisible by given blocksize "
            f"({size[0]},{size[1]})"
        )
    if isinstance(x, SparseTensor):
        return _compressed_of(x, layout, size)
    if 0 in x._shape[: rank - 2]:
        name = str(layout).removeprefix("torch.sparse_")
        raise RuntimeError(
            f"to_sparse_{name}: Expected product of batch dimensions to be non-zero."
        )
    # The places of what is not zero; blocks take all of their elements.
    pattern = _compressed_of(_to_coo(x.detach(), rank), layout, size).pattern()
    return pattern.filled(pattern.in_blocks(at(x, pattern.coordinates())), _title(layout))


def _title(layout: Layout) -> str:
    return TITLES[layout].replace("Sparse", "ToSparse")


def _checked_blocks(blocksize: Any, name: str) -> tuple[int, int]:
    blocksize = (blocksize,) * 2 if isinstance(blocksize, int) else blocksize
    if len(blocksize) != 2:
        raise RuntimeError(
            f"{name}: blocksize needs to be a tuple of size 2, but got {len(blocksize)}"
        )
    rows, columns = (int(b) for b in blocksize)
    if rows <= 0 or columns <= 0:
        raise RuntimeError(f"{name}: blocksize needs to be positive, but got [{rows}, {columns}]")
    return rows, columns


def _compressed_of(x: SparseTensor, layout: Layout, size: tuple[int, int]) -> SparseTensor:
    """Return a sparse tensor in a compressed layout: of a batch, where it has more than two sparse dims."""
    x = coalesce(x) if x.layout is sparse_coo else x
    source = x.pattern()
    *batch, rows, columns = source.coordinates().unbind(0)
    rank, shape = source.rank, x._shape
    head, (high, wide), tail = shape[: rank - 2], shape[rank - 2 : rank], shape[rank:]
    many, high, wide = math.prod(head), high // size[0], wide // size[1]
    block_row = dense.div(rows, size[0], rounding_mode="floor") if size[0] > 1 else rows
    block_column = dense.div(columns, size[1], rounding_mode="floor") if size[1] > 1 else columns
    outer, inner = block_row, block_column
    if layout in BY_COLUMN:
        outer, inner, high, wide = inner, outer, wide, high
    number = (keys(dense.stack(batch), head) if batch else 0) * high + outer
    each, values = number * wide + inner, x.elements()
    if layout in BLOCKS:
        blocks, which = dense.unique(each, return_inverse=True)
        area = size[0] * size[1]
        spot = (
            which * area + (rows - block_row * size[0]) * size[1] + columns - block_column * size[1]
        )
        kept = dense.zeros(
            (blocks._shape[0] * area, *tail), dtype=values.dtype, device=values.device
        )
        values = added(kept, spot, values)
    elif layout is sparse_csr and x.layout is sparse_coo:
        blocks = each
    else:
        blocks, order = dense.sort(each, stable=True)
        values = values[order]
    total = blocks._shape[0]
    starts = compressed(dense.div(blocks, max(wide, 1), rounding_mode="floor"), many * high)
    per = total // many if many else 0
    if batch:
        ends = starts[high::high] if high else starts[:0]
        first = dense.arange(many, device=starts.device) * per
        if high and not (ends == first + per).all().item():
            raise RuntimeError("Expect the same number of specified elements per batch.")
        lines = starts[: many * high].reshape(many, high) - first.unsqueeze(1)
        starts = dense.cat([lines, dense.full_like(first, per).unsqueeze(1)], 1)
        starts = starts.reshape(*head, high + 1)
    plain = dense.remainder(blocks, max(wide, 1)).reshape(*head, per)
    kind = x.places[0].dtype if x.layout is not sparse_coo else int64
    places = [p.to(kind).contiguous() for p in (starts, plain)]
    inside = size if layout in BLOCKS else ()
    values = values.reshape(*head, per, *inside, *tail)
    return SparseTensor.of(layout, places, values, shape, True, _title(layout))


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
    return pattern.filled(pattern.in_blocks(values), "SparseMask")


def as_layout(x: Tensor, layout: Layout, op: str, what: str) -> SparseTensor:
    """Return x as a sparse tensor of a layout. Raises RuntimeError, in PyTorch's words, where it has another."""
    if not isinstance(x, SparseTensor) or x.layout is not layout:
        raise RuntimeError(
            f"{op} expected sparse {what} layout but got {TITLES.get(x.layout, 'Strided')}"
        )
    return x


def matching(x: SparseTensor, layout: Layout, blocksize: tuple[int, int] = (1, 1)) -> SparseTensor:
    """Return x in another sparse layout."""
    if x.layout is layout:
        return x
    return _to_coo(x, None) if layout is sparse_coo else _compressed_of(x, layout, blocksize)


def matching_as(x: SparseTensor, other: SparseTensor) -> SparseTensor:
    """Return x in the layout of another one."""
    return matching(x, other.layout, other.blocksize)


__all__ = ["backend_of", "coalesce", "coo", "sparse_mask", "to_dense", "to_sparse"]
