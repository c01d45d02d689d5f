"""Sparse tensors of the user's places and values."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

from webtorch.functions import public as dense
from webtorch.functions.factory import chosen_dtype
from webtorch.ir.dtype import DType, int32, int64
from webtorch.sparse.layouts import coalesce, to_sparse
from webtorch.sparse.tensor import SparseTensor, keys, uncompressed
from webtorch.tensors.above import give
from webtorch.tensors.absent import why_missing
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.formats import layout as Layout
from webtorch.tensors.formats import sparse_coo, sparse_csc, sparse_csr
from webtorch.tensors.tensor import Tensor


class check_sparse_tensor_invariants:
    """Whether new sparse tensors are checked: as a block, a decorator, or by `enable` and `disable`."""

    _on = False

    def __init__(self, enable: bool = True) -> None:
        self.state = enable
        self.saved_state: bool | None = None

    @staticmethod
    def is_enabled() -> bool:
        """Return whether new sparse tensors are checked."""
        return check_sparse_tensor_invariants._on

    @staticmethod
    def enable() -> None:
        """Check new sparse tensors."""
        check_sparse_tensor_invariants._on = True

    @staticmethod
    def disable() -> None:
        """Check no sparse tensors."""
        check_sparse_tensor_invariants._on = False

    def __enter__(self) -> None:
        if self.saved_state is not None:
            raise RuntimeError(
                "This context manager instance is already activated. Use a different context manager instance for "
                "context nesting."
            )
        self.saved_state = self.is_enabled()
        check_sparse_tensor_invariants._on = self.state

    def __exit__(self, *_: object) -> None:
        assert self.saved_state is not None
        check_sparse_tensor_invariants._on = self.saved_state
        self.saved_state = None

    def __call__(self, function: Any) -> Any:
        """Return a function that runs in this block."""

        @functools.wraps(function)
        def inside(*args: object, **kwargs: object) -> Any:
            """Call the function."""
            with type(self)(self.state):
                return function(*args, **kwargs)

        return inside


def _tensor(value: Any, dtype: DType | None, device: DeviceLike) -> Tensor:
    if isinstance(value, SparseTensor):
        raise TypeError("expected a dense tensor of indices or values, not a sparse one")
    if isinstance(value, Tensor):
        return (
            value
            if dtype is None and device is None
            else value.to(device or value.device, dtype or value.dtype)
        )
    return dense.tensor(value, dtype=dtype, device=device)


def _place(values: object, indices: object, device: DeviceLike) -> DeviceLike:
    """Return the device: that which is asked for, or that of the values."""
    if device is not None:
        return device
    for given in (values, indices):
        if isinstance(given, Tensor):
            return given.device
    return None


def _finished(out: SparseTensor, requires_grad: bool) -> Tensor:
    if requires_grad:
        if out.requires_grad:
            out = out.detach()  # type: ignore[assignment]
        out.requires_grad_(True)
    return out


def sparse_coo_tensor(
    indices: Any = None,
    values: Any = None,
    size: Sequence[int] | None = None,
    *,
    dtype: DType | None = None,
    device: DeviceLike = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
    is_coalesced: bool | None = None,
    layout: Layout | None = None,
) -> Tensor:
    """Return a COO tensor: the columns of `indices` say where the values are; values at one place are added.

    Without a size it is as large as the places need. `sparse_coo_tensor(size)` has no values.
    """
    if values is None:
        if size is None:
            size = indices
        if size is None:
            raise TypeError("sparse_coo_tensor(): expected indices and values, or a size")
        return _finished(empty_coo(size, chosen_dtype(dtype), device), requires_grad)
    place = _place(values, indices, device)
    values = _tensor(values, None if dtype is None else chosen_dtype(dtype), place)
    indices = _tensor(indices, None, place)
    if not indices.numel() and indices.dim() == 1:
        indices = indices.reshape(0, 0) if size is None else indices.reshape(len(size), 0)
    if indices.dim() != 2:
        raise RuntimeError(f"indices must be sparse_dim x nnz, but got: {list(indices._shape)}")
    indices = indices.to(int64)
    if not values.dim():
        values = values.reshape(1)
    rank, count = indices._shape
    if count != values._shape[0]:
        raise RuntimeError(
            f"indices and values must have same nnz, but got nnz from indices: {count}, nnz from "
            f"values: {values._shape[0]}"
        )
    tail = values._shape[1:]
    checks = (
        check_sparse_tensor_invariants.is_enabled()
        if check_invariants is None
        else check_invariants
    )
    if size is None:
        size = (*_extent(indices), *tail)
    else:
        size = tuple(int(s) for s in size)
        if len(size) != rank + len(tail):
            raise RuntimeError(
                f"'len(size) == sparse_dim + dense_dim' is not satisfied: len(size) = {len(size)}, "
                f"sparse_dim = {rank}, dense_dim = {len(tail)}"
            )
        if checks:
            _check_coo(indices, values, size, bool(is_coalesced))
    out = SparseTensor.of(sparse_coo, (indices.detach(),), values, size, bool(is_coalesced))
    return _finished(out, requires_grad)


def _extent(indices: Tensor) -> list[int]:
    """Return the smallest sizes that hold the places."""
    rank, count = indices._shape
    if not count:
        return [0] * rank
    low, high = dense.aminmax(indices, dim=1)
    if min(low.tolist(), default=0) < 0:
        d = next(i for i, v in enumerate(low.tolist()) if v < 0)
        raise RuntimeError(f"found negative index {low.tolist()[d]} for dim {d}")
    return [int(v) + 1 for v in high.tolist()]


def _check_coo(indices: Tensor, values: Tensor, size: Sequence[int], is_coalesced: bool) -> None:
    rank, count = indices._shape
    tail = tuple(size[rank:])
    if values._shape[1:] != tail:
        raise RuntimeError(
            f"values has incorrect size, expected {[count, *tail]}, got {list(values._shape)}"
        )
    if not count:
        return
    low, high = dense.aminmax(indices, dim=1)
    for d, (least, most) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        if least < 0:
            raise RuntimeError(f"found negative index {least} for dim {d}")
        if most >= size[d]:
            raise RuntimeError(
                f"size is inconsistent with indices: for dim {d}, size is {size[d]} but found index {most}"
            )
    if is_coalesced and count > 1:
        number = keys(indices, size[:rank])
        if not (number[1:] > number[:-1]).all().item():
            raise RuntimeError(
                "cannot set is_coalesced to true if indices correspond to uncoalesced COO tensor"
            )


def empty_coo(
    size: Sequence[int], dtype: DType, device: DeviceLike, sparse_dim: int | None = None
) -> SparseTensor:
    """Return a COO tensor without values."""
    size = tuple(int(s) for s in size)
    rank = len(size) if sparse_dim is None else sparse_dim
    indices = dense.zeros((rank, 0), dtype=int64, device=device)
    values = dense.zeros((0, *size[rank:]), dtype=dtype, device=device)
    return SparseTensor.of(sparse_coo, (indices,), values, size, True)


_NAMES = {
    sparse_csr: ("crow_indices", "col_indices", "row", 0),
    sparse_csc: ("ccol_indices", "row_indices", "column", 1),
}


def sparse_compressed_tensor(
    compressed_indices: object,
    plain_indices: object,
    values: object,
    size: Sequence[int] | None = None,
    *,
    dtype: DType | None = None,
    layout: Layout | None = None,
    device: DeviceLike = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
) -> Tensor:
    """Return a CSR or CSC matrix: `compressed_indices` says where the values of each row (column) begin, and
    `plain_indices` in which column (row) each value is.
    """
    if layout is None:
        raise RuntimeError("sparse_compressed_tensor expected layout but got None")
    if layout not in _NAMES:
        raise NotImplementedError(
            f"sparse_compressed_tensor: layout {layout} is not available here: use torch.sparse_csr or "
            f"torch.sparse_csc. {why_missing('', 'sparse_bsr_tensor')}"
        )
    place = _place(values, compressed_indices, device)
    values = _tensor(values, None if dtype is None else chosen_dtype(dtype), place)
    places = []
    for given in (compressed_indices, plain_indices):
        p = _tensor(given, None, place)
        places.append(p if p.dtype in (int32, int64) else p.to(int64))
    outer, inner = places
    first, second, _, turned = _NAMES[layout]
    if outer.dim() != 1 or inner.dim() != 1 or not values.dim():
        raise NotImplementedError(
            f"sparse_compressed_tensor: {first} and {second} must be vectors here (no batches), and got "
            f"{outer.dim()} and {inner.dim()} dims"
        )
    rows = outer._shape[0] - 1
    if size is None:
        columns = int(inner.max().item()) + 1 if inner.numel() else 0
        size = ((columns, rows) if turned else (rows, columns)) + values._shape[1:]
    size = tuple(int(s) for s in size)
    checks = (
        check_sparse_tensor_invariants.is_enabled()
        if check_invariants is None
        else check_invariants
    )
    if checks:
        _check_compressed(layout, outer, inner, values, size)
    out = SparseTensor.of(layout, [p.detach() for p in places], values, size, True)
    return _finished(out, requires_grad)


def _check_compressed(
    layout: Layout, outer: Tensor, inner: Tensor, values: Tensor, size: Sequence[int]
) -> None:
    first, second, word, turned = _NAMES[layout]
    rows, columns = (size[1], size[0]) if turned else (size[0], size[1])
    count = values._shape[0]
    if outer._shape[0] != rows + 1:
        raise RuntimeError(
            f"{first}.shape[-1] must be equal to the number of {word}s + 1 ({rows + 1}), but got {outer._shape[0]}"
        )
    if inner._shape[0] != count:
        raise RuntimeError(
            f"{second}.shape[-1] must be equal to nnz ({count}) as defined by values.shape[0], but got "
            f"{inner._shape[0]}"
        )
    bounds = outer.tolist()
    if bounds[0] != 0:
        raise RuntimeError(f"`{first}[..., 0] == 0` is not satisfied.")
    if bounds[-1] != count:
        raise RuntimeError(f"`{first}[..., -1] == nnz` is not satisfied.")
    if any(not 0 <= b - a <= columns for a, b in itertools.pairwise(bounds)):
        raise RuntimeError(
            f"`0 <= {first}[..., 1:] - {first}[..., :-1] <= {'nrows' if turned else 'ncols'}` is not satisfied."
        )
    if count and not (int(inner.min().item()) >= 0 and int(inner.max().item()) < columns):
        raise RuntimeError(f"`0 <= {second} < {'nrows' if turned else 'ncols'}` is not satisfied.")
    if count > 1:
        own = uncompressed(outer, count)
        later = (own[1:] > own[:-1]) | (inner[1:] > inner[:-1])
        if not later.all().item():
            raise RuntimeError(
                f"`{second}[..., {first}[..., i - 1]:{first}[..., i]] for all i = 1, ..., {rows} are sorted and "
                "distinct along the last dimension values` is not satisfied."
            )


def sparse_csr_tensor(
    crow_indices: object,
    col_indices: object,
    values: object,
    size: Sequence[int] | None = None,
    *,
    dtype: DType | None = None,
    device: DeviceLike = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
    layout: Layout | None = None,
) -> Tensor:
    """Return a CSR matrix: the values of row i are those from crow_indices[i] up to crow_indices[i + 1]."""
    return sparse_compressed_tensor(
        crow_indices, col_indices, values, size, dtype=dtype, layout=sparse_csr, device=device,
        requires_grad=requires_grad, check_invariants=check_invariants,
    )  # fmt: skip


def sparse_csc_tensor(
    ccol_indices: object,
    row_indices: object,
    values: object,
    size: Sequence[int] | None = None,
    *,
    dtype: DType | None = None,
    device: DeviceLike = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
    layout: Layout | None = None,
) -> Tensor:
    """Return a CSC matrix: the values of column j are those from ccol_indices[j] up to ccol_indices[j + 1]."""
    return sparse_compressed_tensor(
        ccol_indices, row_indices, values, size, dtype=dtype, layout=sparse_csc, device=device,
        requires_grad=requires_grad, check_invariants=check_invariants,
    )  # fmt: skip


def spdiags(
    diagonals: Tensor, offsets: Tensor, shape: Sequence[int], layout: Layout | None = None
) -> Tensor:
    """Return a matrix with the rows of `diagonals` on the diagonals `offsets`."""
    if diagonals.dim() < 2:
        diagonals = diagonals.reshape(1, -1)
    offsets = offsets.reshape(-1)
    if diagonals._shape[0] != offsets._shape[0]:
        raise RuntimeError(
            f"spdiags(): The number of diagonals ({diagonals._shape[0]}) does not match the number of offsets "
            f"({offsets._shape[0]})"
        )
    if len(shape) != 2:
        raise RuntimeError("spdiags(): Output shape must be 2d")
    if len(set(offsets.tolist())) != offsets._shape[0]:
        raise RuntimeError("spdiags(): Offset tensor contains duplicate values")
    if layout not in (None, sparse_coo, sparse_csr, sparse_csc):
        raise RuntimeError(
            "spdiags(): Only output layouts (Sparse, SparseCsc, SparseCsr) are supported, got "
            f"{layout}"
        )
    rows, columns = shape
    width = min(columns, diagonals._shape[1])
    column = dense.arange(width, device=diagonals.device).expand(offsets._shape[0], width)
    row = column - offsets.to(int64).reshape(-1, 1)
    inside = (row >= 0) & (row < rows)
    indices = dense.stack([row[inside], column[inside]])
    values = diagonals[:, :width][inside]
    out = SparseTensor.of(sparse_coo, (indices,), values, shape)
    return (
        to_sparse(coalesce(out), layout=layout)
        if layout not in (None, sparse_coo)
        else coalesce(out)
    )


def rows_of(indices: Tensor, values: Tensor, shape: Sequence[int]) -> SparseTensor:
    """Return a matrix of which some rows are given, as gradients of look-ups are."""
    return SparseTensor.of(sparse_coo, (indices.reshape(1, -1).to(int64),), values, shape)


give(sparse_rows=rows_of)
