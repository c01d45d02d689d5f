"""Orders of rows, whole and selected: the places that a stable sort gives, ties and NaN included."""

import numpy as np
import pytest

from tests.cpu.harness import slot
from webtorch.ir.dtype import float32, float64, int32, int64
from webtorch.ir.kernel import Sort
from webtorch.runtime.backends.cpu import jit, order

DTYPES = {t.name: t for t in (float32, float64, int32, int64)}


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


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("kind", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize(("rows", "length"), [(1, 1), (3, 16), (5, 17), (7, 100), (2, 512)])
def test_rows_that_are_merged_are_in_the_order_of_numpy(
    rows: int, length: int, kind: str, descending: bool
) -> None:
    rng = np.random.default_rng(rows)
    x = (rng.standard_normal((rows, length)) * 4).astype(kind)
    if kind.startswith("f"):
        x = np.round(x)
        x[rng.random(x.shape) < 0.1] = np.nan
        x[rng.random(x.shape) < 0.1] = -0.0
        x[rng.random(x.shape) < 0.1] = -np.inf
    slots = (slot(DTYPES[kind], x.size), slot(int64, rows * (length - length // 4), "write"))
    first = length // 4
    routine = Sort("sort", rows, length, first, length - first, descending, slots)
    text = order.merging(routine)
    assert text is not None
    found, wanted = (np.empty((rows, length - first), np.int64) for _ in range(2))
    order.sort(routine)(x.reshape(-1), wanted.reshape(-1))
    numbers = np.array([x.ctypes.data, found.ctypes.data, length, first, length - first, 0])
    jit.function(text).call(0, rows, numbers.astype(np.int64).tobytes())
    np.testing.assert_array_equal(found, wanted)
