"""Sparse tensors with their dims in another order, parts of them, and several as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from webtorch.functions import public as dense
from webtorch.functions.movement import sizes_of
from webtorch.ir.dtype import int64
from webtorch.sparse.dispatch import rule
from webtorch.sparse.layouts import coalesce, compressed, coo, matching
from webtorch.sparse.tensor import BLOCKS, TITLES, TURNED, SparseTensor, no_kernel
from webtorch.tensors.formats import sparse_coo
from webtorch.tensors.tensor import Tensor


def _wrapped(dim: int, rank: int) -> int:
    if not -rank <= dim < rank:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})"
        )
    return dim % rank


@rule("permute")
def permute(input: SparseTensor, *dims: object) -> SparseTensor:
    """Return the tensor with its dims in another order."""
    rank = input.dim()
    order = [_wrapped(d, rank) for d in sizes_of("permute", dims)]
    if sorted(order) != list(range(rank)):
        raise RuntimeError(
            "permute(sparse_coo): number of dimensions in the tensor input does not match the length of the desired "
            f"ordering of dimensions i.e. input.dim() = {rank} is not equal to len(dims) = {len(order)}"
        )
    return _permuted(input, order, "Permute")


def _permuted(x: SparseTensor, order: Sequence[int], title: str) -> SparseTensor:
    rank, sparse = x.dim(), x.sparse_rank
    if list(order) == list(range(rank)):
        return x
    if x.layout is not sparse_coo:
        return _compressed_permuted(x, order, title)
    if any((d < sparse) != (i < sparse) for i, d in enumerate(order)):
        raise RuntimeError(
            "permute(sparse_coo): transpositions between sparse and dense dimensions are not allowed."
        )
    shape = tuple([x._shape[d] for d in order])
    values = x.values_of()
    if rank > sparse:
        values = values.permute([0, *[d - sparse + 1 for d in order[sparse:]]])
    head = list(order[:sparse])
    if head == sorted(head):
        return coo(x.places[0], values, shape, x.coalesced, title)
    indices = dense.stack([x.places[0][d] for d in head])
    return coo(indices, values, shape, x.nnz < 2, title)


def _compressed_permuted(x: SparseTensor, order: Sequence[int], title: str) -> SparseTensor:
    """Return compressed matrices with the dims of their batch in another order, or transposed."""
    batch, sparse = x.batch_rank, x.sparse_rank
    head, pair, tail = order[:batch], list(order[batch:sparse]), list(order[sparse:])
    if any(d >= batch for d in head) or set(pair) != {batch, batch + 1}:
        raise RuntimeError(
            "transpose(): can only transpose tensor dimensions of the same kind (batch, sparse or dense) for sparse "
            "compressed tensors"
        )
    places = [p.permute(*head, batch) for p in x.places] if batch else x.places
    inside = [batch + 1 + d - batch for d in pair] if x.layout in BLOCKS else []
    shift = batch + 1 + len(inside) - sparse
    values = x.values_of().permute(*head, batch, *inside, *(d + shift for d in tail))
    layout = TURNED[x.layout] if pair[0] > pair[1] else x.layout
    return SparseTensor.of(layout, places, values, [x._shape[d] for d in order], True, title)


@rule("transpose", "swapaxes", "swapdims")
def transpose(input: SparseTensor, dim0: int, dim1: int) -> SparseTensor:
    """Return the tensor with two dims in each other's place."""
    rank = input.dim()
    a, b = _wrapped(dim0, rank), _wrapped(dim1, rank)
    order = list(range(rank))
    order[a], order[b] = b, a
    return _permuted(input, order, "Transpose")


@rule("t")
def t(input: SparseTensor) -> SparseTensor:
    """Return the transposed matrix."""
    if input.dim() > 2 or input.sparse_rank > 2:
        raise RuntimeError(
            f"t() expects a tensor with <= 2 sparse and 0 dense dimensions, but got {input.sparse_rank} sparse and "
            f"{input.dim() - input.sparse_rank} dense dimensions"
        )
    return input if input.dim() < 2 else transpose(input, 0, 1)


def _in_place(name: str, move: Callable[..., SparseTensor]) -> None:
    @rule(name)
    def moved(x: SparseTensor, *args: object, **kwargs: object) -> SparseTensor:
        """Take the parts of the tensor with its dims moved."""
        if x.layout is not sparse_coo:
            raise RuntimeError(
                f"torch.transpose_: in-place transposition is not supported for {TITLES[x.layout]} layout"
            )
        return x.become(move(x, *args, **kwargs))


for _name in ("transpose_", "swapaxes_", "swapdims_"):
    _in_place(_name, transpose)
_in_place("t_", t)


@rule("T")
def reversed_dims(input: SparseTensor) -> SparseTensor:
    """Return the tensor with its dims in reverse order."""
    return _permuted(input, list(reversed(range(input.dim()))), "Permute")


@rule("mT")
def matrices_transposed(input: SparseTensor) -> SparseTensor:
    """Return the tensor with its last two dims in each other's place."""
    return transpose(input, -2, -1)


@rule("unsqueeze")
def unsqueeze(input: SparseTensor, dim: int) -> SparseTensor:
    """Return the tensor with one dim more, of size 1."""
    x = matching(input, sparse_coo)
    rank = x.dim() + 1
    d, sparse = _wrapped(dim, rank), x.sparse_rank
    shape = (*x._shape[:d], 1, *x._shape[d:])
    values, indices = x.values_of(), x.places[0]
    if d > sparse:
        values = values.unsqueeze(d - sparse + 1)
    else:
        row = dense.zeros(1, x.nnz, dtype=int64, device=indices.device)
        indices = dense.cat([indices[:d], row, indices[d:]])
    return coo(indices, values, shape, x.coalesced, "Unsqueeze")


@rule("cat", "concat", "concatenate")
def cat(tensors: Sequence[Tensor], dim: int = 0, *, axis: int | None = None) -> SparseTensor:
    """Return several tensors as one, along a dim."""
    parts: list[SparseTensor] = []
    for n, x in enumerate(tensors):
        if not isinstance(x, SparseTensor):
            raise RuntimeError(
                f"Concatenating sparse tensors, but a dense tensor was found at position {n}."
            )
        parts.append(matching(x, sparse_coo))
    first = parts[0]
    d = _wrapped(dim if axis is None else axis, first.dim())
    for n, x in enumerate(parts):
        if x.sparse_rank != first.sparse_rank or x.dim() != first.dim():
            raise RuntimeError(
                "All tensors must have the same sparse_dim and dense_dim: "
                f"{first.sparse_rank}, {first.dim() - first.sparse_rank}, but tensor at position {n} has "
                f"{x.sparse_rank}, {x.dim() - x.sparse_rank}."
            )
        if any(
            a != b for i, (a, b) in enumerate(zip(x._shape, first._shape, strict=True)) if i != d
        ):
            raise RuntimeError(
                "All tensors must have the same shape: "
                f"{list(first._shape)} (except in the concatenating dimension), but found shape: "
                f"{list(x._shape)} at position {n}."
            )
    if d >= first.sparse_rank:
        return _cat_values(parts, d)
    start, indices = 0, []
    for x in parts:
        rows = list(x.places[0].unbind(0))
        rows[d] = rows[d] + start
        indices.append(dense.stack(rows))
        start += x._shape[d]
    shape = (*first._shape[:d], start, *first._shape[d + 1 :])
    values = dense.cat([x.values_of() for x in parts])
    coalesced = d == 0 and all(x.coalesced for x in parts)
    return coo(dense.cat(indices, 1), values, shape, coalesced, "Cat")


def _cat_values(parts: Sequence[SparseTensor], d: int) -> SparseTensor:
    """Return several tensors as one along a dense dim: values of one have zeros where the others' are."""
    first, starts = parts[0], [0]
    for x in parts:
        starts.append(starts[-1] + x._shape[d])
    shape = (*first._shape[:d], starts[-1], *first._shape[d + 1 :])
    at, values = d - first.sparse_rank + 1, []
    for x, start in zip(parts, starts, strict=False):
        zeros = list(x.kept._shape), list(x.kept._shape)
        zeros[0][at], zeros[1][at] = start, starts[-1] - start - x._shape[d]
        before, after = (dense.zeros(z, dtype=x.dtype, device=first.device) for z in zeros)
        values.append(dense.cat([before, x.values_of(), after], at))
    indices = dense.cat([x.places[0] for x in parts], 1)
    return coo(indices, dense.cat(values), shape, False, "Cat")


@rule("stack")
def stack(tensors: Sequence[SparseTensor], dim: int = 0) -> SparseTensor:
    """Return several tensors as one, along a new dim."""
    d = _wrapped(dim, tensors[0].dim() + 1)
    return cat([unsqueeze(x, d) for x in tensors], d)


@rule("index_select")
def index_select(input: SparseTensor, dim: int, index: Tensor) -> SparseTensor:
    """Return the slices at positions `index` of a dim."""
    x = matching(input, sparse_coo)
    d, sparse = _wrapped(dim, x.dim()), x.sparse_rank
    if index.dim() != 1:
        raise IndexError("index_select(): Index is supposed to be a vector")
    count, size = index._shape[0], x._shape[d]
    shape = (*x._shape[:d], count, *x._shape[d + 1 :])
    if d >= sparse:
        values = x.values_of().index_select(d - sparse + 1, index)
        return coo(x.places[0], values, shape, x.coalesced, "IndexSelect")
    if count and not ((index >= -size) & (index < size)).all().item():
        raise IndexError(
            f"index_select(): index contains values that are out of range for dimension of size {size}"
        )
    wanted = dense.where(index < 0, index + size, index).to(int64)
    along, order = dense.sort(x.places[0][d], stable=True)
    starts = compressed(along, size)
    begin = starts[wanted]
    counts = starts[wanted + 1] - begin
    place = dense.repeat_interleave(dense.arange(count, device=index.device), counts)
    before = (dense.cumsum(counts, 0) - counts)[place]
    met = order[begin[place] + dense.arange(place._shape[0], device=index.device) - before]
    rows = [place if i == d else row[met] for i, row in enumerate(x.places[0].unbind(0))]
    values = x.values_of()[met]
    return coo(dense.stack(rows), values, shape, x.coalesced and d == 0, "IndexSelect")


@rule("select", "select_copy")
def select(input: SparseTensor, dim: int, index: int) -> Tensor:
    """Return the slice at one position of a dim."""
    d, batch = _wrapped(dim, input.dim()), input.batch_rank
    if d < batch:
        places = [p.select(d, index) for p in input.places]
        shape = (*input._shape[:d], *input._shape[d + 1 :])
        return SparseTensor.of(
            input.layout, places, input.values_of().select(d, index), shape, True, "Select"
        )
    if batch and d < input.sparse_rank:
        raise RuntimeError(
            "select(): selecting sparse dimensions is not supported for batched sparse compressed tensors."
        )
    x = coalesce(matching(input, sparse_coo)) if input.layout in TURNED else input
    sparse = x.sparse_rank
    size, index = x._shape[d], int(index)
    if not -size <= index < size:
        raise IndexError(
            f"select(): index {index} out of range for tensor of size {list(x._shape)} at dimension {d}"
        )
    shape = (*x._shape[:d], *x._shape[d + 1 :])
    if d >= sparse:
        values = x.values_of().select(d - sparse + 1, index)
        return coo(x.places[0], values, shape, x.coalesced, "Select")
    (hit,) = (x.places[0][d] == index % size).nonzero(as_tuple=True)
    values = x.values_of()[hit]
    if sparse == 1:
        return values.sum(0, dtype=values.dtype)
    rows = [row[hit] for i, row in enumerate(x.places[0].unbind(0)) if i != d]
    return coo(dense.stack(rows), values, shape, x.coalesced, "Select")


@rule("getitem")
def getitem(x: SparseTensor, index: Any) -> Tensor:
    """Return what an index of numbers and whole dims picks."""
    items = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in [i for i in items if not isinstance(i, Tensor)]:
        at = next(n for n, i in enumerate(items) if i is Ellipsis)
        fill = x.dim() - sum(i is not None and i is not Ellipsis for i in items)
        items[at : at + 1] = [slice(None)] * fill
    out: Any = x
    d = 0
    for i in items:
        if i is None:
            out = out.unsqueeze(d)
            d += 1
        elif isinstance(i, slice):
            if i != slice(None):
                raise no_kernel("as_strided", x)
            d += 1
        elif isinstance(i, Tensor) and (i.dim() or i.dtype.kind not in ("int", "uint")):
            if isinstance(out, SparseTensor) and i.dim() == 1 and i.dtype is int64:
                out = index_select(out, d, i)
                d += 1
                continue
            raise no_kernel("index", x)
        else:
            out = out.select(d, int(i))
    return out


@rule("unbind")
def unbind(input: SparseTensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Return the slices along a dim."""
    d = _wrapped(dim, input.dim())
    return tuple([select(input, d, i) for i in range(input._shape[d])])
