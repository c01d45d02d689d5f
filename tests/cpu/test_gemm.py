"""Matrix products in machine code, against NumPy in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from webtorch.ir.dtype import float32, float64
from webtorch.ir.kernel import BufferSlot, Matmul
from webtorch.runtime.backends.cpu import gemm, jit
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
