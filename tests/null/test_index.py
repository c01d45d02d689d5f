"""Index arithmetic: walking through shapes and back gives plain strides again."""

from __future__ import annotations

import itertools

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


def _at(index: ix.Index, point: tuple[int, ...]) -> int:
    """Return the value of an index where its loops stand at `point`."""
    found = ix.replace_loops(index, lambda dim, size: ix.constant(point[dim]))
    assert not found.terms
    return found.constant


@pytest.mark.parametrize("factors", [(4, 1), (6, 2), (8, 3), (-3, 5), (12, 4, 1)])
def test_quotients_and_remainders_are_those_of_numbers(factors: tuple[int, ...]) -> None:
    for sizes in itertools.product((2, 4, 5), repeat=len(factors)):
        loops = [ix.loop(d, size) * f for d, (size, f) in enumerate(zip(sizes, factors))]
        points = list(itertools.product(*map(range, sizes)))
        for offset, divisor in itertools.product((0, 3), (2, 3, 4, 8)):
            flat = sum(loops[1:], loops[0]) + offset
            quotient, rest = flat // divisor, flat % divisor
            for point in points:
                number = sum(f * i for f, i in zip(factors, point)) + offset
                found = divmod(number, divisor)
                assert (_at(quotient, point), _at(rest, point)) == found, (sizes, flat, divisor)
