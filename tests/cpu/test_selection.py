"""One element of each row's order, selected: the place that a stable sort gives, ties and NaN included."""

import numpy as np
import pytest

from tests.cpu.harness import slot
from webtorch.ir.dtype import float32, int64
from webtorch.ir.kernel import Sort
from webtorch.runtime.backends.cpu import order


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(("rows", "length"), [(128, 32), (64, 100), (3, 2000), (7, 20)])
def test_a_rank_of_each_row(rows: int, length: int, descending: bool) -> None:
    rng = np.random.default_rng(2)
    x = rng.integers(-9, 9, (rows, length)).astype(np.float32)
    x[:, ::11] = np.nan
    x[:, 1::13] = -0.0
    # Ties in order, NaN as the largest: as numbers with no sign of zero.
    key = np.where(np.isnan(x), np.inf, x + 0.0)
    expected = np.argsort(-key if descending else key, axis=1, kind="stable")
    for first in (0, length // 2, length - 1):
        slots = (slot(float32, x.size), slot(int64, rows, "write"))
        out = np.zeros(rows, np.int64)
        order.sort(Sort("sort", rows, length, first, 1, descending, slots))(x.reshape(-1), out)
        np.testing.assert_array_equal(out, expected[:, first])
