"""Reductions over more elements than one invocation may loop over on a CPU adapter.

Mesa's llvmpipe leaves loops after 65,535 turns without an error; sums were then too small.
"""

from __future__ import annotations

import pytest

import webtorch


@pytest.mark.parametrize("count", [2**24, 2**25 - 4])
def test_a_sum_of_very_many_elements_is_complete(count: int) -> None:
    if not webtorch.webgpu.is_available():
        pytest.skip("no WebGPU adapter")
    with webtorch.device("webgpu"):
        assert webtorch.ones(count).sum().item() == count


@pytest.mark.long
@pytest.mark.parametrize(
    ("shape", "dim"), [((64, 100_000), 1), ((2, 10_000_000), 1), ((1_000_000, 8), 0)]
)
def test_long_rows_and_columns_are_complete(shape: tuple[int, int], dim: int) -> None:
    if not webtorch.webgpu.is_available():
        pytest.skip("no WebGPU adapter")
    with webtorch.device("webgpu"):
        x = webtorch.ones(shape)
        assert set(x.sum(dim).tolist()) == {float(shape[dim])}
        # The last element of each row or column is the largest.
        place = webtorch.arange(shape[dim], dtype=webtorch.int32)
        place = place.unsqueeze(1 - dim).expand(shape).contiguous()
        assert set(place.argmax(dim).tolist()) == {shape[dim] - 1}


@pytest.mark.long
def test_products_with_a_very_long_sum_are_complete() -> None:
    if not webtorch.webgpu.is_available():
        pytest.skip("no WebGPU adapter")
    with webtorch.device("webgpu"):
        count = 300_000
        a, b = webtorch.ones(40, count), webtorch.ones(count, 40)
        assert (a @ b)[3, 3].item() == count
        # A partial tile, and k in another order.
        assert (b.T[:3] @ a.T)[2, 1].item() == count
