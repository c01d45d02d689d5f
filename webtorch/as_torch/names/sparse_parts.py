"""Names of `torch` itself that libraries of graphs call: loaded when one of them is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webtorch.functions import public as webtorch
from webtorch.sparse import construction
from webtorch.sparse.layouts import compressed
from webtorch.sparse.tensor import uncompressed
from webtorch.tensors.tensor import Tensor


def _convert_indices_from_coo_to_csr(input: Tensor, size: int, out_int32: bool = False) -> Tensor:
    """Return where rows begin, given the sorted rows of values."""
    found = compressed(input, size)
    return found.int() if out_int32 else found


def _convert_indices_from_csr_to_coo(
    crow_indices: Tensor, col_indices: Tensor, out_int32: bool = False, transpose: bool = False
) -> Tensor:
    """Return the places of values, given where their rows begin and their columns."""
    rows = uncompressed(crow_indices, col_indices.shape[0])
    pair = [col_indices.long(), rows] if transpose else [rows, col_indices.long()]
    found = webtorch.stack(pair)
    return found.int() if out_int32 else found


def _validate_sparse_coo_tensor_args(
    indices: object, values: object, size: Sequence[int], is_coalesced: bool = False
) -> None:
    """Raise RuntimeError where these are not the parts of a COO tensor."""
    construction.sparse_coo_tensor(
        indices, values, size, is_coalesced=is_coalesced, check_invariants=True
    )


def _validate_sparse_compressed_tensor_args(
    compressed_indices: object,
    plain_indices: object,
    values: object,
    size: Sequence[int],
    layout: Any,
) -> None:
    """Raise RuntimeError where these are not the parts of a compressed tensor."""
    construction.sparse_compressed_tensor(
        compressed_indices, plain_indices, values, size, layout=layout, check_invariants=True
    )


def _validate_sparse_csr_tensor_args(
    crow_indices: object, col_indices: object, values: object, size: Sequence[int]
) -> None:
    """Raise RuntimeError where these are not the parts of a CSR tensor."""
    construction.sparse_csr_tensor(crow_indices, col_indices, values, size, check_invariants=True)


def _validate_sparse_csc_tensor_args(
    ccol_indices: object, row_indices: object, values: object, size: Sequence[int]
) -> None:
    """Raise RuntimeError where these are not the parts of a CSC tensor."""
    construction.sparse_csc_tensor(ccol_indices, row_indices, values, size, check_invariants=True)


def _validate_compressed_sparse_indices(
    is_crow: bool, compressed_idx: Tensor, plain_idx: Tensor, cdim: int, dim: int, nnz: int
) -> None:
    """Raise RuntimeError where these are not the places of `nnz` values in `cdim` rows (columns) of `dim` elements."""
    values = webtorch.zeros((*plain_idx.shape[:-1], nnz))
    size = (*plain_idx.shape[:-1], *((cdim, dim) if is_crow else (dim, cdim)))
    make = construction.sparse_csr_tensor if is_crow else construction.sparse_csc_tensor
    make(compressed_idx, plain_idx, values, size, check_invariants=True)
