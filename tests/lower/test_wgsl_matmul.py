"""Matrix products as WGSL on a real adapter, against NumPy in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.lower.harness import NUMPY, Device, adapters, from_bf16, open_device, to_bf16
from webtorch.ir.dtype import DType, bfloat16, float16, float32, int8, int32
from webtorch.ir.kernel import BufferSlot, Matmul
from webtorch.ir.limits import Limits
from webtorch.lower.templates import gemm
from webtorch.lower.templates.matmul import matmul_kernel, product
from webtorch.lower.templates.tuning import TILES, Tile
from webtorch.lower.wgsl import WgslPass, render

pytestmark = pytest.mark.usefixtures("tiles_for_small_products")
F32 = (float32, float32, float32)
TYPES = {
    "f32": F32,
    "f16": (float16,) * 3,
    "bf16": (bfloat16,) * 3,
    "bf16 to f32": (bfloat16, float32, float32),
    "i32": (int32,) * 3,
    "i8 to i32": (int8, int8, int32),
}
LAYOUTS = ((False, False), (True, False), (False, True), (True, True))


def make(
    batch: tuple[int, ...],
    m: int,
    n: int,
    k: int,
    types: tuple[DType, DType, DType] = F32,
    left_transposed: bool = False,
    right_transposed: bool = False,
    offset: int = 0,
    shared: bool = False,
) -> Matmul:
    """Return a routine; `shared` gives the right operand no batch, `offset` moves the left one."""
    count = int(np.prod(batch))

    def strides(rows: int, columns: int, transposed: bool, one: bool) -> tuple[int, ...]:
        steps = [rows * columns]
        for size in batch[:0:-1]:
            steps.insert(0, steps[0] * size)
        steps = [0 if one else s for s in steps] if batch else []
        return (*steps, *((1, rows) if transposed else (columns, 1)))

    buffers = (
        BufferSlot(types[0], "read", count * m * k + offset),
        BufferSlot(types[1], "read", (1 if shared else count) * k * n),
        BufferSlot(types[2], "write", count * m * n),
    )
    return Matmul(
        "matmul",
        batch,
        m,
        n,
        k,
        strides(m, k, left_transposed, False),
        strides(k, n, right_transposed, shared),
        offset,
        0,
        buffers,
    )


def compare(
    r: Matmul,
    passes: list[WgslPass] | None = None,
    limits: Limits | None = None,
    device: Device | None = None,
) -> None:
    """Run a product and compare it with NumPy."""
    rng = np.random.default_rng(0)
    out = r.buffers[2].dtype
    stored, exact = [], []
    for slot in r.buffers[:2]:
        x = (
            rng.integers(-4, 5, slot.elements)
            if out.is_integral
            else rng.standard_normal(slot.elements)
        )
        x = to_bf16(x) if slot.dtype is bfloat16 else x.astype(NUMPY[slot.dtype.name])
        stored.append(x)
        exact.append((from_bf16(x) if slot.dtype is bfloat16 else x).astype(np.float64))

    def matrix(flat: Any, rows: int, columns: int, strides: tuple[int, ...], offset: int) -> Any:
        steps = [s * 8 for s in strides]
        return np.lib.stride_tricks.as_strided(flat[offset:], (*r.batch, rows, columns), steps)

    expected = matrix(exact[0], r.m, r.k, r.left_strides, r.left_offset) @ matrix(
        exact[1], r.k, r.n, r.right_strides, r.right_offset
    )
    result = (device or open_device()).run(r, [*stored, None], passes=passes, limits=limits)[2]
    if out.is_integral:
        np.testing.assert_array_equal(result, expected.ravel())
        return
    step = {"float32": 2.0**-20, "float16": 2.0**-10, "bfloat16": 2.0**-7}[out.name]
    np.testing.assert_allclose(result, expected.ravel(), rtol=step, atol=4 * step * np.sqrt(r.k))


@pytest.mark.one_in(2)
@pytest.mark.covers("E6", "E7", "M8")
@pytest.mark.parametrize("gpu", [False, True], ids=["adapter", "gpu"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nn", "tn", "nt", "tt"])
@pytest.mark.parametrize("types", TYPES)
def test_products_of_every_type_and_layout(
    types: str, layout: tuple[bool, bool], gpu: bool
) -> None:
    for f16 in (True, False):
        device = open_device(f16)
        limits = replace(device.limits, is_gpu=gpu)
        for batch, m, n, k in (((), 33, 65, 30), ((2, 3), 8, 12, 16)):
            compare(make(batch, m, n, k, TYPES[types], *layout), limits=limits, device=device)


@pytest.mark.parametrize("gpu", [False, True], ids=["adapter", "gpu"])
def test_products_whose_sizes_vary(gpu: bool) -> None:
    limits = replace(open_device().limits, is_gpu=gpu, varying=True)
    for batch, m, n, k in (((), 33, 65, 30), ((2, 3), 8, 12, 16), ((), 1, 20, 40)):
        compare(make(batch, m, n, k), limits=limits)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("tile", [None, *TILES], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nn", "tn", "nt", "tt"])
def test_every_tile(tile: Tile | None, layout: tuple[bool, bool]) -> None:
    limits = open_device().limits
    if tile is not None and tile.shared_bytes > limits.workgroup_memory_bytes:
        pytest.skip("the adapter has too little workgroup memory for this tile")
    # One shape for each layout and tile: these kernels take seconds to compile on a CPU.
    shapes = ((64, 64, 64, 1), (130, 100, 40, 1), (20, 24, 2000, 3), (33, 27, 30, 1))
    number = 0 if tile is None else TILES.index(tile) + 1
    m, n, k, split = shapes[(number + LAYOUTS.index(layout)) % len(shapes)]
    r = make((), m, n, k, F32, *layout)
    compare(r, gemm.product_passes(product(r), limits, tile, split))


@pytest.mark.one_in(2)
@pytest.mark.covers("E8", "E11")
@pytest.mark.parametrize("gpu", [False, True], ids=["adapter", "gpu"])
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (1, 1, 1),
        (1, 1, 5000),
        (1, 300, 200),
        (300, 1, 200),
        (2, 3, 4),
        (5, 7, 9),
        (4, 4, 6000),
        (64, 10, 784),
    ],
    ids=str,
)
def test_narrow_products(m: int, n: int, k: int, gpu: bool) -> None:
    limits = replace(open_device().limits, is_gpu=gpu)
    compare(make((), m, n, k), limits=limits)
    compare(make((3,), m, n, k), limits=limits)


def test_offsets_and_shared_operands() -> None:
    limits = open_device().limits
    for number, layout in enumerate(LAYOUTS):
        shared = make((3,), 16, 20, 24, F32, *layout, offset=3, shared=True)
        two = make((2, 2), 16, 20, 24, F32, *layout, offset=4)
        for turn, r in enumerate((shared, two)):
            for gpu in adapters(number + turn):
                compare(r, limits=replace(limits, is_gpu=gpu))


@pytest.mark.covers("N13")
def test_a_grid_larger_than_one_dimension() -> None:
    limits = replace(open_device().limits, max_workgroups_per_dim=5)
    r = make((5,), 100, 70, 20)
    assert max(render(r, limits, "naga")[0].grid) <= 5
    compare(r, limits=limits)
    compare(r, limits=replace(limits, is_gpu=True))


def test_the_generic_form_is_the_same_function() -> None:
    r = make((2,), 9, 10, 11)
    device = open_device()
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(s.elements).astype(np.float32) for s in r.buffers[:2]]
    np.testing.assert_allclose(
        device.run(matmul_kernel(r), [*inputs, None])[2],
        device.run(r, [*inputs, None])[2],
        rtol=1e-5,
        atol=1e-5,
    )


def test_small_products_have_short_texts_on_a_software_adapter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It compiles a tile for longer than it multiplies."""
    monkeypatch.undo()
    adapter = replace(open_device().limits, is_gpu=False)
    small, large = make((2,), 20, 20, 20), make((2,), 20, 20, 21)
    (text,) = render(small, adapter, "naga")
    assert text.source == render(matmul_kernel(small), adapter, "naga")[0].source
    assert len(text.source) < len(render(large, adapter, "naga")[0].source) / 2
    assert render(small, replace(adapter, is_gpu=True), "naga")[0].source != text.source
    compare(small, limits=adapter)
    compare(large, limits=adapter)
