"""Index arithmetic: walking through shapes and back gives plain strides again."""

from __future__ import annotations

import pytest

from webtorch.ir import index as ix
from webtorch.ir.view import contiguous_strides, numel


@pytest.mark.parametrize(
    "shape", [(8,), (8, 64), (2, 4, 64), (2, 3, 4, 5), (2, 1, 4, 64), (2, 2, 2, 2, 2)]
)
def test_a_position_taken_apart_and_put_together_is_itself(shape: tuple[int, ...]) -> None:
    flat = ix.loop(0, numel(shape))
    assert ix.linearize(ix.delinearize(flat, shape), contiguous_strides(shape)) == flat


@pytest.mark.parametrize("shape", [(2, 4, 8, 16), (2, 3, 4, 5, 6)])
def test_a_kept_dim_of_a_reduced_shape_is_the_outer_position(shape: tuple[int, ...]) -> None:
    # A row's result, spread over the row again: (.., 1) expanded to (.., n) reads position `row`.
    rows, n = numel(shape[:-1]), shape[-1]
    flat = ix.loop(0, rows) * n + ix.loop(1, n)
    strides = (*contiguous_strides(shape[:-1]), 0)
    assert ix.linearize(ix.delinearize(flat, shape), strides) == ix.loop(0, rows)
