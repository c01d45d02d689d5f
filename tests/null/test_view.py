"""Shapes and strides against all positions of a view, one by one."""

from __future__ import annotations

import itertools

import pytest

from webtorch.ir.view import contiguous_strides, overlaps


def positions(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    return [sum(i * s for i, s in zip(at, strides)) for at in itertools.product(*map(range, shape))]


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_view_that_meets_itself_is_known(rank: int) -> None:
    for shape in itertools.product((1, 2, 3), repeat=rank):
        for strides in itertools.product((0, 1, 2, 3, 6), repeat=rank):
            at = positions(shape, strides)
            if len(set(at)) < len(at):
                assert overlaps(shape, strides), (shape, strides)


@pytest.mark.parametrize("shape", [(5,), (2, 3), (3, 1, 2), (2, 2, 2)])
def test_a_view_of_memory_of_its_own_does_not_meet_itself(shape: tuple[int, ...]) -> None:
    strides = contiguous_strides(shape)
    for order in itertools.permutations(range(len(shape))):
        turned = tuple(shape[d] for d in order), tuple(strides[d] for d in order)
        assert not overlaps(*turned), turned
        assert not overlaps(turned[0], tuple(2 * s for s in turned[1]))
        assert not overlaps(turned[0], tuple(-s for s in turned[1]))
