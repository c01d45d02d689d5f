"""Sparse tensors of the user's places and values."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from webtorch.functions import public as dense
from webtorch.functions.factory import chosen_dtype
from webtorch.ir.dtype import DType, int32, int64
from webtorch.sparse.layouts import coalesce, to_sparse
from webtorch.sparse.tensor import (
    BLOCKS,
    BY_COLUMN,
    TITLES,
    TURNED,
    SparseTensor,
    keys,
    uncompressed,
)
from webtorch.tensors.above import give
from webtorch.tensors.device import DeviceLike
from webtorch.tensors.formats import layout as Layout
from webtorch.tensors.formats import sparse_bsc, sparse_bsr, sparse_coo, sparse_csc, sparse_csr
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


def _tensor(value: object, dtype: DType | None, device: DeviceLike) -> Tensor:
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


# What the parts of a compressed layout are called, and its rows (columns).
_BY_ROW, _BY_COLUMN = (
    ("crow_indices", "col_indices", "row"),
    ("ccol_indices", "row_indices", "column"),
)


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
    """Return a CSR, CSC, BSR or BSC matrix: `compressed_indices` says where the values (blocks) of each row (column)
    begin, and `plain_indices` in which column (row) each is. All three may have dims of a batch of matrices before.
    """
    if layout is None:
        raise RuntimeError("sparse_compressed_tensor expected layout but got None")
    if layout not in TURNED:
        raise RuntimeError(
            "sparse_compressed_tensor expected sparse compressed tensor layout but got "
            f"{TITLES.get(layout, 'Strided')}"
        )
    place = _place(values, compressed_indices, device)
    values = _tensor(values, None if dtype is None else chosen_dtype(dtype), place)
    given = [_tensor(p, None, place) for p in (compressed_indices, plain_indices)]
    checks = (
        check_sparse_tensor_invariants.is_enabled()
        if check_invariants is None
        else check_invariants
    )
    if size is None:
        size = _compressed_extent(layout, given[0], given[1], values)
    size = tuple(int(s) for s in size)
    if checks:
        _check_compressed(layout, given[0], given[1], values, size)
    if checks and not values.is_meta:
        _check_places(layout, given[0], given[1], size, _inside(layout, given[0], values))
    places = [p if p.dtype in (int32, int64) else p.to(int64) for p in given]
    out = SparseTensor.of(layout, [p.detach() for p in places], values, size, True)
    return _finished(out, requires_grad)


def _inside(layout: Layout, outer: Tensor, values: Tensor) -> tuple[int, ...]:
    """Return the sizes of a block; ones where there are none."""
    batch = max(outer.dim() - 1, 0)
    return values._shape[batch + 1 : batch + 3] if layout in BLOCKS else (1, 1)


def _compressed_extent(
    layout: Layout, outer: Tensor, inner: Tensor, values: Tensor
) -> tuple[int, ...]:
    """Return the smallest sizes that hold the places."""
    name = "sparse_compressed_tensor"
    if not outer.dim():
        raise RuntimeError(f"{_names(layout)[0]} must have dimensionality >= 1 but got 0")
    _check_ranks(layout, outer, inner)
    batch, block = outer.dim() - 1, _inside(layout, outer, values)
    if len(block) != 2 or values.dim() <= batch:
        raise RuntimeError(
            "values must have dimensionality > sum of batch and block dimensionalities "
            f"(={batch} + {2 * (layout in BLOCKS)}) but got {values.dim()}"
        )
    sizes = [outer._shape[-1] - 1, int(inner.max().item()) + 1 if inner.numel() else 0]
    if sizes[0] < 0:
        raise RuntimeError(f"{name}: {_names(layout)[0]} must have at least one element")
    pair = sizes[::-1] if layout in BY_COLUMN else sizes
    tail = values._shape[batch + 1 + 2 * (layout in BLOCKS) :]
    return (*outer._shape[:-1], *(n * b for n, b in zip(pair, block, strict=True)), *tail)


def _check_ranks(layout: Layout, outer: Tensor, inner: Tensor) -> None:
    if outer.dim() != inner.dim():
        first, second, _ = _names(layout)
        raise RuntimeError(
            f"{first} and {second} dimensionalities must be equal but got {outer.dim()} and {inner.dim()}, respectively"
        )


def _names(layout: Layout) -> tuple[str, str, str]:
    return _BY_COLUMN if layout in BY_COLUMN else _BY_ROW


def _check_compressed(
    layout: Layout, outer: Tensor, inner: Tensor, values: Tensor, size: Sequence[int]
) -> None:
    """Raise RuntimeError, in PyTorch's words, where sizes and types do not fit. Nothing is read."""
    first, second, word = _names(layout)
    for name, part in ((first, outer), (second, inner)):
        if part.dim() and part._strides[-1] != 1 and part._shape[-1] > 1:
            raise RuntimeError(f"expected {name} to be a contiguous tensor per batch")
    if not outer.dim():
        raise RuntimeError(f"{first} must have dimensionality >= 1 but got 0")
    _check_ranks(layout, outer, inner)
    batch, block = outer.dim() - 1, 2 * (layout in BLOCKS)
    rank = values.dim() - batch - block - 1
    if rank < 0:
        raise RuntimeError(
            "values must have dimensionality > sum of batch and block dimensionalities "
            f"(={batch} + {block}) but got {values.dim()}"
        )
    if len(size) != batch + 2 + rank:
        raise RuntimeError(
            "tensor dimensionality must be sum of batch, base, and dense dimensionalities "
            f"(={batch} + 2 + {rank}) but got {len(size)}"
        )
    inside = _inside(layout, outer, values)
    for d, b in enumerate(inside):
        if b <= 0 or size[batch + d] % b:
            raise RuntimeError(
                f"tensor shape[{batch + d}] (={size[batch + d]}) must be divisible with blocksize[{d}] (={b}) as "
                "defined by values shape"
            )
    heads = [list(part._shape[:batch]) for part in (outer, inner, values)]
    if any(head != list(size[:batch]) for head in heads):
        raise RuntimeError(
            f"all batch dimensions of {first} (={heads[0]}), {second} (={heads[1]}), and values (={heads[2]}) must be "
            f"equal to tensor batch dimensions (={list(size[:batch])})"
        )
    lines = _lines(layout, size, batch, inside)[0]
    if outer._shape[-1] != lines + 1:
        raise RuntimeError(
            f"{first}.shape[-1] must be equal to the number of {word}{' block' if block else ''}s + 1 (={lines + 1}), "
            f"but got {outer._shape[-1]}"
        )
    if inner._shape[-1] != values._shape[batch]:
        raise RuntimeError(
            f"{second}.shape[-1] must be equal to nnz (={values._shape[batch]}) as defined by values.shape[{batch}], "
            f"but got {inner._shape[-1]}"
        )
    if values._shape[batch + 1 + block :] != tuple(size[batch + 2 :]):
        raise RuntimeError(
            f"values.shape[{batch + 1 + block}:] must be equal to the dense dimensions of the tensor "
            f"(={list(size[batch + 2 :])}), but got {list(values._shape[batch + 1 + block :])}"
        )
    kinds = [p.dtype.legacy for p in (outer, inner)]
    if kinds[0] != kinds[1]:
        raise RuntimeError(
            f"{first} and {second} must have the same dtype, bot got {kinds[0]} and {kinds[1]}, respectively"
        )
    if outer.dtype not in (int32, int64):
        raise RuntimeError(f"{first} and {second} dtype must be Int or Long, but got {kinds[0]}")


def _lines(
    layout: Layout, size: Sequence[int], batch: int, inside: Sequence[int]
) -> tuple[int, int]:
    """Return how many rows (columns) of blocks there are, and how many places each has."""
    rows, columns = size[batch] // inside[0], size[batch + 1] // inside[1]
    return (columns, rows) if layout in BY_COLUMN else (rows, columns)


def _check_places(
    layout: Layout, outer: Tensor, inner: Tensor, size: Sequence[int], inside: Sequence[int]
) -> None:
    """Raise RuntimeError, in PyTorch's words, where places are not those of a matrix."""
    first, second, _ = _names(layout)
    most, lines = ("nrows", "ncols") if layout in BY_COLUMN else ("ncols", "nrows")
    count = inner._shape[-1]
    columns = _lines(layout, size, outer.dim() - 1, inside)[1]
    if not outer.numel():
        return
    lengths = outer[..., 1:] - outer[..., :-1]
    rules = [
        (outer[..., 0] == 0, f"`{first}[..., 0] == 0`"),
        (outer[..., -1] == count, f"`{first}[..., -1] == nnz`"),
        (
            (lengths >= 0) & (lengths <= columns),
            f"`0 <= {first}[..., 1:] - {first}[..., :-1] <= {most}`",
        ),
        ((inner >= 0) & (inner < columns), f"`0 <= {second} < {most}`"),
    ]
    for holds, text in rules:
        if not holds.all().item():
            raise RuntimeError(f"{text} is not satisfied.")
    if count > 1:
        own = uncompressed(outer, count)
        later = (own[..., 1:] > own[..., :-1]) | (inner[..., 1:] > inner[..., :-1])
        if not later.all().item():
            raise RuntimeError(
                f"`{second}[..., {first}[..., i - 1]:{first}[..., i]] for all i = 1, ..., {lines} are sorted and "
                "distinct along the last dimension values` is not satisfied."
            )


def empty_compressed(
    size: Sequence[int],
    dtype: DType,
    device: DeviceLike,
    layout: Layout,
    batch: int = 0,
    inside: tuple[int, int] = (1, 1),
    nnz: int = 0,
    index: DType = int64,
) -> SparseTensor:
    """Return a compressed tensor with zeros for places and values, none by default, whose first `batch` dims are of a
    batch.
    """
    size = tuple(int(s) for s in size)
    head, tail = size[:batch], size[batch + 2 :]
    outer = dense.zeros(
        (*head, _lines(layout, size, batch, inside)[0] + 1), dtype=index, device=device
    )
    inner = dense.zeros((*head, nnz), dtype=index, device=device)
    block = inside if layout in BLOCKS else ()
    values = dense.zeros((*head, nnz, *block, *tail), dtype=dtype, device=device)
    return SparseTensor.of(layout, (outer, inner), values, size, True)


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


def sparse_bsr_tensor(
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
    """Return a BSR matrix: row i of blocks has those from crow_indices[i] up to crow_indices[i + 1]."""
    return sparse_compressed_tensor(
        crow_indices, col_indices, values, size, dtype=dtype, layout=sparse_bsr, device=device,
        requires_grad=requires_grad, check_invariants=check_invariants,
    )  # fmt: skip


def sparse_bsc_tensor(
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
    """Return a BSC matrix: column i of blocks has those from ccol_indices[i] up to ccol_indices[i + 1]."""
    return sparse_compressed_tensor(
        ccol_indices, row_indices, values, size, dtype=dtype, layout=sparse_bsc, device=device,
        requires_grad=requires_grad, check_invariants=check_invariants,
    )  # fmt: skip


def spdiags(
    diagonals: Tensor, offsets: Tensor, shape: Sequence[int], layout: Layout | None = None
) -> Tensor:
    """Return a matrix with the rows of `diagonals` on the diagonals `offsets`."""
    if diagonals.dim() not in (1, 2):
        raise RuntimeError("Diagonals must be vector or matrix")
    diagonals = diagonals.reshape(-1, diagonals._shape[-1])
    if offsets.dim() > 1:
        raise RuntimeError("Offsets must be scalar or vector")
    if offsets.dtype is not int64:
        raise RuntimeError(f"Offset Tensor must have dtype Long but got {offsets.dtype.legacy}")
    offsets = offsets.reshape(-1)
    if diagonals._shape[0] != offsets._shape[0]:
        raise RuntimeError(
            f"Number of diagonals ({diagonals._shape[0]}) does not match the number of offsets ({offsets._shape[0]})"
        )
    if len(shape) != 2:
        raise RuntimeError("Output shape must be 2d")
    if len(set(offsets.tolist())) != offsets._shape[0]:
        raise RuntimeError("Offset tensor contains duplicate values")
    if layout not in (None, sparse_coo, sparse_csr, sparse_csc):
        raise RuntimeError(
            "Only output layouts (Sparse, SparseCsc, SparseCsr) are supported, got "
            f"{TITLES.get(layout, 'Strided')}"
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


def places_of(g: Tensor, index: Tensor, shape: Sequence[int], dim: int) -> tuple[SparseTensor]:
    """The sparse cotangent of what `gather` reads: a value for each element of `index`."""
    if not shape:
        # A scalar has no places to tell apart.
        none = dense.zeros((0, index.numel()), dtype=int64, device=index.device)
        return (SparseTensor.of(sparse_coo, (none,), g.reshape(-1), shape),)
    g, index = (x.reshape(1) if x.dim() == 0 else x for x in (g, index))
    lines = [
        dense.arange(n, device=index.device).reshape(-1, *(1,) * (index.dim() - d - 1))
        for d, n in enumerate(index._shape)
    ]
    lines[dim] = index.to(int64)
    places = dense.stack([r.reshape(-1) for r in dense.broadcast_tensors(*lines)])
    return (SparseTensor.of(sparse_coo, (places,), g.reshape(-1), shape),)


give(sparse_rows=rows_of, sparse_places=places_of)
