"""Names of `torch` itself that libraries of graphs call: loaded when one of them is asked for."""

from __future__ import annotations

from typing import Any

from webtorch.functions import public as webtorch
from webtorch.sparse.layouts import compressed
from webtorch.sparse.tensor import uncompressed


def _convert_indices_from_coo_to_csr(input: Any, size: int, out_int32: bool = False) -> Any:
    """Return where rows begin, given the sorted rows of values."""
    found = compressed(input, size)
    return found.int() if out_int32 else found


def _convert_indices_from_csr_to_coo(
    crow_indices: Any, col_indices: Any, out_int32: bool = False, transpose: bool = False
) -> Any:
    """Return the places of values, given where their rows begin and their columns."""
    rows = uncompressed(crow_indices, col_indices.shape[0])
    pair = [col_indices.long(), rows] if transpose else [rows, col_indices.long()]
    found = webtorch.stack(pair)
    return found.int() if out_int32 else found
