"""Matrix products in machine code, against NumPy in float64."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

from webtorch.ir.dtype import float32, float64
from webtorch.ir.kernel import BufferSlot, Matmul
from webtorch.runtime.backends.cpu import contraction, gemm, jit, launch, smallproduct
from webtorch.runtime.backends.cpu.executable import SmallProductRunner
from webtorch.runtime.backends.cpu.memory import CpuBuffer

pytestmark = pytest.mark.skipif(not jit.available(), reason="needs llvmlite")

# m, n, k: whole tiles, parts of tiles, single lines, sums shorter than a vector.
SIZES = [
    (48, 96, 32),
    (8, 48, 1),
    (13, 50, 7),
    (64, 128, 65),
    (5, 10, 100),
    (1, 17, 33),
    (24, 1, 9),
]


@pytest.fixture(params=["own", "avx", "sse2", "neon"])
def tiles(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Use the tiles of this processor, then those of others: narrower vectors run everywhere."""
    if request.param != "own":
        found = gemm.shape_for({"neon": "+neon"}.get(request.param, f"+{request.param}"))
        monkeypatch.setattr(gemm, "shape_for", lambda features: found)
    return str(request.param)


def routine(
    m: int, n: int, k: int, left: str = "rows", right: str = "rows", batch: tuple[int, ...] = (),
    shared: bool = False, dtype: Any = float32,
) -> Matmul:  # fmt: skip
    """Return a product whose sides lie in memory by rows, by columns, or with gaps; offset by 3.

    `shared` uses one right side for the whole batch.
    """

    def strides(rows: int, columns: int, layout: str, one: bool) -> tuple[tuple[int, ...], int]:
        own = {"rows": (columns, 1), "columns": (1, rows), "gaps": (2 * columns + 1, 2)}[layout]
        room = rows * (2 * columns + 1)
        every = [0 if one else room * math.prod(batch[d + 1 :]) for d in range(len(batch))]
        return (*every, *own), 3 + room * (1 if one else math.prod(batch))

    left_strides, left_room = strides(m, k, left, False)
    right_strides, right_room = strides(k, n, right, shared)
    slots = (
        BufferSlot(dtype, "read", left_room),
        BufferSlot(dtype, "read", right_room),
        BufferSlot(dtype, "write", math.prod(batch) * m * n),
    )
    return Matmul(
        name="m", batch=batch, m=m, n=n, k=k, left_strides=left_strides,
        right_strides=right_strides, left_offset=3, right_offset=3, buffers=slots,
    )  # fmt: skip


def check(r: Matmul, seed: int = 0) -> None:
    """Compare with NumPy; what was in the result's memory before must not matter."""
    rng = np.random.default_rng(seed)
    left, right, out = (CpuBuffer(float32, slot.elements) for slot in r.buffers)
    for buffer in (left, right):
        buffer.array[...] = rng.standard_normal(buffer.elements)
    out.array[...] = np.nan
    gemm.matmul(r)(left, right, out)

    def seen(buffer: CpuBuffer, offset: int, shape: tuple[int, ...], strides: Any) -> Any:
        x = buffer.array[offset:].astype(np.float64)
        return np.lib.stride_tricks.as_strided(x, shape, [s * 8 for s in strides])

    a = seen(left, r.left_offset, (*r.batch, r.m, r.k), r.left_strides)
    b = seen(right, r.right_offset, (*r.batch, r.k, r.n), r.right_strides)
    error = np.abs(out.array.reshape(*r.batch, r.m, r.n) - a @ b)
    assert (error <= 4e-7 * math.sqrt(r.k) * (np.abs(a) @ np.abs(b)).max()).all()


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("layouts", ["rows rows", "rows columns", "columns rows", "gaps gaps"])
def test_products_of_every_layout(size: Any, layouts: str, tiles: str) -> None:
    left, right = layouts.split()
    m, n, k = size
    check(routine(m, n, k, left, right))


@pytest.mark.parametrize("shared", [False, True])
def test_batches(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    check(routine(20, 33, 17, "rows", "columns", (3, 5), shared))
    # A few products at a time, where the panels of all would take too much memory.
    monkeypatch.setattr(gemm, "_SCRATCH", 20_000)
    check(routine(20, 33, 17, "rows", "columns", (3, 5), shared))


def test_long_sums_are_done_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "_DEPTH", 16)
    for right in ("rows", "columns"):
        check(routine(30, 100, 61, "columns", right, (2,)))


def test_infinities_stay_in_their_row_and_column() -> None:
    r = routine(13, 50, 20)
    left, right, out = (CpuBuffer(float32, slot.elements) for slot in r.buffers)
    left.array[...] = right.array[...] = 1
    left.array[3 + 12 * 20 + 5] = np.inf
    right.array[3 + 4 * 50 + 49] = np.nan
    gemm.matmul(r)(left, right, out)
    result = out.array.reshape(13, 50)
    assert np.isnan(result[:, 49]).all() and np.isposinf(result[12, :49]).all()
    assert (result[:12, :49] == 20).all()


def test_small_products_and_other_types_go_another_way() -> None:
    assert gemm.suits(routine(64, 64, 64))
    assert gemm.suits(routine(16, 16, 16, batch=(512,)))
    assert not gemm.suits(routine(16, 16, 16))
    assert not gemm.suits(routine(64, 64, 64, dtype=float64))
    assert not gemm.suits(routine(1, 1024, 1024))


@pytest.mark.parametrize("dtype", [float32, float64])
@pytest.mark.parametrize("right", ["rows", "columns", "gaps"])
@pytest.mark.parametrize("left", ["rows", "columns", "gaps"])
def test_small_products_are_loops_that_serve_all_sizes(left: str, right: str, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    kinds = set()
    for m, n, k in [(1, 1, 1), (5, 7, 3), (16, 16, 16), (1, 600, 9), (4, 1, 33), (3, 2, 40)]:
        for batch, shared in (((), False), ((3,), False), ((3,), True)):
            r = routine(m, n, k, left, right, batch, shared, dtype)
            plan = smallproduct.plan(r)
            if plan is None:
                assert right == "gaps" or (right == "columns" and left != "rows")
                continue
            kinds.add(plan[0])
            made = SmallProductRunner(r, plan)
            buffers = [CpuBuffer(dtype, slot.elements) for slot in r.buffers]
            for buffer in buffers[:2]:
                buffer.array[...] = rng.standard_normal(buffer.elements)
            expected = _product(r, *[b.array.astype("float64") for b in buffers[:2]])
            # By both ways of calling them.
            call, _kept = launch.launch(made.one_call(0))
            for run in (
                partial(made.run, buffers, (), np.zeros(2, np.int64)),
                partial(call, *[b.address for b in buffers], *made.sizes),
            ):
                buffers[2].array[...] = np.nan
                run()
                _check_close(buffers[2].array, expected, dtype)
    # A single column lies along the sum as well as along the rows.
    assert len(kinds) <= 2


def _product(r: Matmul, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    def seen(x: np.ndarray, offset: int, shape: tuple[int, ...], strides: Any) -> np.ndarray:
        return np.lib.stride_tricks.as_strided(x[offset:], shape, [8 * s for s in strides])

    a = seen(left, r.left_offset, (*r.batch, r.m, r.k), r.left_strides)
    b = seen(right, r.right_offset, (*r.batch, r.k, r.n), r.right_strides)
    found: np.ndarray = (a @ b).reshape(-1)
    return found


def _check_close(found: np.ndarray, expected: np.ndarray, dtype: Any) -> None:
    tolerance = {float32: 1e-5, float64: 1e-13}[dtype]
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=10 * tolerance)


def test_a_call_of_machine_code_checks_its_arguments() -> None:
    native = jit.function(
        "def f(begin, end, b0: float32, a0: float32, n: int, status):\n"
        "    for i in range(begin, end):\n"
        "        b0[i] = a0 + float32(n)\n"
    )
    call, _kept = launch.launch(launch.Call(native, 5, "QdQ", 0, long=True))
    out = np.zeros(8, np.float32)
    call(out.ctypes.data, 0.5, 2)
    np.testing.assert_array_equal(out, [2.5] * 5 + [0] * 3)
    for wrong in ((out.ctypes.data, 0.5), (out.ctypes.data, "x", 2), ("x", 0.5, 2)):
        with pytest.raises(TypeError):
            call(*wrong)


@pytest.mark.parametrize("m", [2, 8])
def test_a_few_rows_read_a_large_matrix_in_parts(m: int) -> None:
    product = routine(m, 700, 400, right="columns")
    assert contraction.is_few_rows(product)
    assert not contraction.is_few_rows(routine(m, 700, 400))
    assert not contraction.is_few_rows(routine(9, 700, 400, right="columns"))
    draw = np.random.default_rng(0)
    left, right = (draw.standard_normal(b.elements).astype(np.float32) for b in product.buffers[:2])
    out = np.zeros(m * 700, np.float32)
    contraction.few_rows(product)(left, right, out)
    a, b = left[3 : 3 + m * 400].reshape(m, 400), right[3 : 3 + 700 * 400].reshape(700, 400)
    wanted = a.astype(np.float64) @ b.T.astype(np.float64)
    assert np.abs(out.reshape(m, 700) - wanted).max() < 1e-4
