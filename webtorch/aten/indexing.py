"""Indexing, gathering and scattering of aten. Floor 6; imports the engine, not PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

from webtorch.aten.elementwise import filled_as
from webtorch.aten.table import aten, op
from webtorch.functions import indexing
from webtorch.ir.dtype import Number, bool_, float64, int32, int64, uint8
from webtorch.ops.layout import of_operands
from webtorch.ops.primitive import cast_to, copy, fill, iota
from webtorch.tensors.batching import spread
from webtorch.tensors.tensor import Tensor


def index_tensors(x: Tensor, indices: Sequence[Tensor | None]) -> dict[int, Tensor]:
    """Return index tensors by dimension, masks expanded (which reads them)."""
    for index in indices:
        if index is not None and index.dtype not in (int64, int32, bool_, uint8):
            raise IndexError(
                f"tensors used as indices must be long, int, byte or bool tensors, got {index.dtype}: use .long()"
            )
    return {d: i for d, i in enumerate(indexing.expand_masks(x._shape, indices)) if i is not None}


@aten("index", "_unsafe_index", direct=("index.Tensor",))
def _index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    tensors = index_tensors(x, indices)
    return indexing.take_at(x, tensors) if tensors else copy(x)


@aten("index_put", "_unsafe_index_put")
def _index_put(
    x: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
) -> Tensor:
    masks = [i for i in indices if i is not None]
    # A float64 number on the CPU comes as a number.
    is_number = not isinstance(values, Tensor)
    if (
        len(masks) == 1
        and masks[0].dtype is bool_
        and (is_number or values.numel() == 1)
        and indices[0] is not None
        and not accumulate
    ):
        # No positions are needed, so nothing is read from the device.
        indexing.check_mask(masks[0], x._shape, 0)
        mask = masks[0].reshape(masks[0]._shape + (1,) * (x.ndim - masks[0].ndim))
        value = values if is_number else values.reshape(())
        return op.where(mask, filled_as(x.new_empty(()), value), x)
    out, tensors = copy(spread(x, (values, *indices))), index_tensors(x, indices)
    if not tensors:
        raise RuntimeError("index_put_: at least one index tensor is needed")
    given = filled_as(x.new_empty((), dtype=float64), values) if is_number else values
    indexing.put_at(out, tensors, given, accumulate=accumulate, given=given)
    return out


@aten("_index_put_impl_", direct=("_index_put_impl_",))
def _index_put_in_place(
    x: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Tensor:
    indexing.check_put(x, indices, values, accumulate)
    return _index_put(x, indices, values, accumulate)


def _within(
    x: Tensor, indices: Sequence[Tensor | None], from_end: bool = False
) -> list[Tensor | None]:
    """Return indices with those that are out of range moved to the nearest place that there is."""
    return [
        None if i is None else op.clamp(i, -n if from_end else 0, n - 1)
        for i, n in zip(indices, x._shape, strict=False)
    ]


@aten("_unsafe_masked_index")
def _unsafe_masked_index(
    x: Tensor, mask: Tensor, indices: Sequence[Tensor | None], fill: float
) -> Tensor:
    if 0 in x._shape:
        # Nothing is taken, but the result has a shape.
        x = x.new_zeros([max(n, 1) for n in x._shape])
    return op.masked_fill(_index(x, _within(x, indices)), ~mask, fill)


@aten("_unsafe_masked_index_put_accumulate")
def _unsafe_masked_index_put_accumulate(
    x: Tensor, mask: Tensor, indices: Sequence[Tensor | None], values: Tensor
) -> Tensor:
    if 0 in x._shape:
        return copy(x)
    return _index_put(x, _within(x, indices, True), op.masked_fill(values, ~mask, 0), True)


@aten("where", layout=of_operands)
def _where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    # PyTorch still takes conditions of bytes.
    return op.where(cast_to(condition, bool_) if condition.dtype is uint8 else condition, x, y)


@aten("gather", direct=("gather",))
def _gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    if not index.numel():
        return fill(index._shape, 0, x.dtype, x.device)
    return op.gather(x, dim, index)


def _whole(index: Tensor) -> Tensor:
    """Return an index of narrow integers, which PyTorch takes as well, as int64."""
    return cast_to(index, int64) if index.dtype.is_integral and index.dtype.itemsize < 4 else index


@aten("scatter_add")
def _scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return op.scatter_add(x, dim, _whole(index), src)


@aten(
    "scatter",
    "scatter.src",
    "scatter.src_out",
    "scatter.value",
    "scatter.value_out",
)
def _scatter(
    x: Tensor, dim: int, index: Tensor, src: Tensor | None = None, value: Number | None = None
) -> Tensor:
    written = value if src is None else src
    if isinstance(written, (bool, int, float)):
        return op.scatter(x, dim, index, value=written)
    return op.scatter(x, dim, index, written)


@aten("scatter.reduce", "scatter.reduce_out", "scatter.value_reduce", "scatter.value_reduce_out")
def _scatter_with(x: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str) -> Tensor:
    if isinstance(src, (bool, int, float)):
        return op.scatter(x, dim, index, value=src, reduce=reduce)
    return op.scatter(x, dim, index, src, reduce=reduce)


@aten("scatter_reduce")
def _scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    return op.scatter_reduce(x, dim, index, src, reduce, include_self=include_self)


@aten("embedding", direct=("embedding",))
def _embedding(
    weight: Tensor,
    indices: Sequence[Tensor | None],
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    return op.embedding(indices, weight)


@aten("put", "put_")
def _put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    return op.put(x, index, source, accumulate)


@aten("repeat_interleave.Tensor")
def _repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Tensor:
    positions = iota(repeats.numel(), 0, 1, int64, repeats.device)
    return op.repeat_interleave(positions, repeats, 0, output_size=output_size)


@aten("_convert_indices_from_coo_to_csr")
def _coo_to_csr(rows: Tensor, size: int, *, out_int32: bool = False) -> Tensor:
    wanted = iota(size + 1, 0, 1, rows.dtype, rows.device)
    return cast_to(op.searchsorted(rows, wanted), int32 if out_int32 else int64)


@aten("_convert_indices_from_csr_to_coo")
def _csr_to_coo(
    compressed: Tensor, plain: Tensor, *, out_int32: bool = False, transpose: bool = False
) -> Tensor:
    *batch, count = plain._shape
    places = iota(count, 0, 1, compressed.dtype, plain.device).expand((*batch, count))
    rows = op.searchsorted(compressed, places, right=True) - 1
    kind = int32 if out_int32 else int64
    rows, plain = cast_to(rows, kind), cast_to(plain, kind)
    pair = [t.reshape(-1) for t in ((plain, rows) if transpose else (rows, plain))]
    # Where in the batches each one lies.
    each, step = iota(plain.numel(), 0, 1, kind, plain.device), count
    outer: list[Tensor] = []
    for n in reversed(batch):
        outer.append(op.remainder(op.div(each, step, rounding_mode="floor"), n))
        step *= n
    return op.stack([*reversed(outer), *pair])
