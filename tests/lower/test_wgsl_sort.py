"""Sorted rows as WGSL on a real adapter, and on the CPU with and without its compiler, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.lower.harness import open_device
from webtorch.ir.dtype import DType, bool_, float16, float32, float64, int64, uint8
from webtorch.ir.kernel import BufferSlot, Sort
from webtorch.lower.templates.sort import Plan, choose, sort_passes
from webtorch.runtime.backends.cpu import jit, order

Array = np.ndarray[Any, Any]
NUMPY = {float32: np.float32, float16: np.float16, int64: np.int64, uint8: np.uint8, bool_: bool}


def numbers(rows: int, length: int, dtype: DType) -> Array:
    rng = np.random.default_rng(rows * 1000 + length)
    if dtype.kind != "float":
        return rng.integers(0 if dtype is uint8 else -9, 9, (rows, length)).astype(NUMPY[dtype])
    x = rng.standard_normal((rows, length)).round(1).astype(NUMPY[dtype])
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-7]
    x[rng.random(x.shape) < 0.1] = 1
    where = rng.random(x.shape) < 0.1
    x[where] = rng.choice(special, where.sum())
    return x


def expected(x: Array, descending: bool) -> Array:
    """NaN last, ties in place: a stable sort of numbers that rise or fall."""
    y = x.astype(np.float64)
    missing = np.isnan(y)
    y = np.where(missing, np.inf, y)
    if descending:
        return np.lexsort((np.broadcast_to(np.arange(x.shape[1]), x.shape), -y, ~missing), axis=1)
    return np.lexsort((np.broadcast_to(np.arange(x.shape[1]), x.shape), y, missing), axis=1)


def routine(x: Array, dtype: DType, descending: bool, first: int, count: int) -> Sort:
    rows, length = x.shape
    slots = (BufferSlot(dtype, "read", x.size), BufferSlot(int64, "write", rows * count))
    return Sort("sort", rows, length, first, count, descending, slots)


def on_webgpu(
    x: Array, dtype: DType, descending: bool, first: int, count: int, plan: Plan | None
) -> None:
    device = open_device()
    r = routine(x, dtype, descending, first, count)
    passes = sort_passes(r, device.limits, plan or choose(r, device.limits))
    found = device.run(r, [x, None], passes=passes)[1]
    wanted = expected(x, descending)[:, first : first + count]
    np.testing.assert_array_equal(found.reshape(wanted.shape), wanted)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    "shape", [(1, 2), (3, 7), (70, 4), (51, 2), (1, 1000), (5, 129), (2, 4097), (1, 20000)], ids=str
)
def test_rows_of_every_length(shape: tuple[int, int], descending: bool) -> None:
    on_webgpu(numbers(*shape, float32), float32, descending, 0, shape[1], None)


@pytest.mark.parametrize("dtype", [float16, int64, uint8, bool_], ids=str)
def test_every_type(dtype: DType) -> None:
    on_webgpu(numbers(7, 333, dtype), dtype, True, 0, 333, None)


@pytest.mark.parametrize("plan", [Plan(64, 64), Plan(256, 64), Plan(2048, 2048)], ids=str)
def test_runs_are_merged_whatever_their_size(plan: Plan) -> None:
    on_webgpu(numbers(3, 1301, float32), float32, False, 0, 1301, plan)
    on_webgpu(numbers(2, 2048, int64), int64, True, 100, 17, plan)


def test_only_the_ranks_that_are_asked_for() -> None:
    for first, count in ((0, 1), (3, 5), (99, 1)):
        on_webgpu(numbers(9, 100, float32), float32, False, first, count, None)


@pytest.mark.parametrize("compiler", [True, False], ids=["compiled", "NumPy"])
@pytest.mark.parametrize("descending", [False, True])
def test_the_cpu(compiler: bool, descending: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiler:
        monkeypatch.setattr(jit, "available", lambda: False)
    for shape in ((1, 2), (70, 4), (3, 1500), (1, 40000), (1100, 3)):
        for dtype in (float32, float16, int64, uint8, bool_):
            x = numbers(*shape, dtype)
            wanted = expected(x, descending)
            n = shape[1]
            for first, count in ((0, n), (0, min(n, 5)), (n // 2, 1), (0, min(n, 150)), (1, n - 1)):
                r = routine(x, dtype, descending, first, count)
                out = np.full(shape[0] * count, -1, np.int64)
                order.sort(r)(x.reshape(-1), out)
                np.testing.assert_array_equal(
                    out.reshape(-1, count), wanted[:, first : first + count], str(r)
                )


def test_64_bits_are_told_apart() -> None:
    x = np.random.default_rng(0).integers(-(2**62), 2**62, (2, 3000)) // 2**20 * 2**20
    for values in (x, x.astype(np.float64)):
        dtype = int64 if values.dtype == np.int64 else float64
        r = routine(values, dtype, False, 0, 3000)
        out = np.empty(6000, np.int64)
        order.sort(r)(values.reshape(-1), out)
        wanted = np.argsort(values, axis=1, kind="stable")
        np.testing.assert_array_equal(out.reshape(2, -1), wanted)
