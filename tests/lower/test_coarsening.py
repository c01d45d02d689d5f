"""Rows that read the same data are computed together: on a graphics card, and by threads where more is shared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.lower.harness import open_device
from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType, float16, float32, int32
from webtorch.ir.kernel import BufferSlot, Check, Kernel, Reduce, Store
from webtorch.ir.limits import Limits
from webtorch.lower.coarsening import CARD, THREADS, coarsened
from webtorch.lower.wgsl import render


def card(**other: object) -> Limits:
    return replace(open_device().limits, **{"is_gpu": True, **other})  # type: ignore[arg-type]


def product(vectors: int, rows: int, columns: int, out: DType = float32) -> Kernel:
    """Each vector's product with each row of a matrix, added to what the output holds."""
    v, o, k = (ex.index(i, s) for i, s in enumerate((vectors, rows, columns)))
    x = ex.load(0, float32, v * columns + k)
    w = ex.load(1, float32, o * columns + k)
    place = v * rows + o
    total = ex.reduced(0, float32) + ex.cast(ex.load(2, out, place), float32)
    return Kernel(
        "product", (vectors, rows), (columns,),
        (
            BufferSlot(float32, "read", vectors * columns),
            BufferSlot(float32, "read", rows * columns),
            BufferSlot(out, "read_write", vectors * rows),
        ),
        (), (Reduce("sum", x * w, float32),), (Store(2, place, ex.cast(total, out)),),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("vectors", "rows", "columns", "outer"),
    [
        (1, 2048, 256, (1, 512)),
        (4, 2048, 256, (2, 512)),
        (3, 1001, 256, (1, 1001)),
        (1, 1023, 256, (1, 341)),
        (1, 256, 256, (1, 256)),
    ],
)
def test_rows_share_the_vector_and_vectors_the_rows(
    vectors: int, rows: int, columns: int, outer: tuple[int, ...]
) -> None:
    kernel = product(vectors, rows, columns)
    together = coarsened(kernel, CARD)
    assert together.outer == outer
    count = vectors * rows // (outer[0] * outer[1])
    assert len(together.reduces) == len(together.stores) == count
    # What threads read comes from caches.
    assert coarsened(kernel, THREADS) is kernel
    assert coarsened(kernel, CARD, varying=True) is kernel


def test_kernels_of_several_sums_take_fewer_rows_together() -> None:
    kernel = product(1, 4096, 256)
    twice = replace(
        kernel,
        reduces=(*kernel.reduces, replace(kernel.reduces[0], value=-kernel.reduces[0].value)),
    )
    assert coarsened(kernel, CARD).outer == (1, 1024)
    assert coarsened(twice, CARD).outer == (1, 2048)


@pytest.mark.parametrize(("vectors", "rows", "out"), [(1, 1024, float32), (3, 1024, float16)])
def test_results_are_those_of_single_rows(vectors: int, rows: int, out: DType) -> None:
    device = open_device()
    if out is float16 and not device.limits.has_f16:
        out = float32
    columns = 256
    kernel = product(vectors, rows, columns, out)
    (shader,) = render(kernel, card(), device.engine)
    assert "acc1" in shader.source
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((vectors, columns)), rng.standard_normal((rows, columns))
    before = rng.standard_normal((vectors, rows))
    kind = np.float16 if out is float16 else np.float32
    inputs = [
        x.astype(np.float32).ravel(),
        w.astype(np.float32).ravel(),
        before.astype(kind).ravel(),
    ]
    found = device.run(kernel, inputs, limits=card())[2].astype(np.float64)
    expected = (x @ w.T + before.astype(kind)).ravel()
    np.testing.assert_allclose(found, expected, atol=0.05 if out is float16 else 1e-4)


def test_what_shares_little_or_has_more_to_do_stays() -> None:
    kernel = product(1, 2048, 256)
    o, k = ex.index(0, 2048), ex.index(1, 256)
    alone = replace(
        kernel, outer=(2048,), reduces=(Reduce("sum", ex.load(1, float32, o * 256 + k), float32),),
        stores=(Store(2, o, ex.reduced(0, float32)),),
    )  # fmt: skip
    assert coarsened(alone, CARD) is alone
    same = replace(alone, reduces=(Reduce("sum", ex.const(2.0, float32), float32),))
    assert coarsened(same, CARD) is same
    checked = replace(kernel, checks=(Check(ex.const(0, int32), 1, 0),))
    assert coarsened(checked, CARD) is checked
    # The second sum needs the first.
    twice = replace(
        kernel,
        reduces=(
            *kernel.reduces,
            Reduce("sum", ex.load(0, float32, ex.index(2, 256)) - ex.reduced(0, float32), float32),
        ),
    )
    assert coarsened(twice, CARD) is twice


@pytest.mark.parametrize(("vectors", "together"), [(1, 1), (2, 2), (3, 3), (8, 8), (16, 8)])
def test_threads_share_what_is_computed_of_a_row(vectors: int, together: int) -> None:
    kernel = product(vectors, 64, 256)
    (reduce,) = kernel.reduces
    x, w = reduce.value.args
    for _ in range(4):
        w = ex.unary("sin", w) + w
    kernel = replace(kernel, reduces=(replace(reduce, value=x * w),))
    found = coarsened(kernel, THREADS)
    assert found.outer == (vectors // together, 64) and len(found.reduces) == together


def test_threads_do_not_take_places_for_shared_work() -> None:
    """A sum across rows: its text adds whole rows, which vectors do."""
    o, k = ex.index(0, 256), ex.index(1, 256)
    slots = (BufferSlot(float32, "read", 1 << 16), BufferSlot(float32, "write", 256))
    sums = (Reduce("sum", ex.load(0, float32, o + k * 256), float32),)
    stores = (Store(1, o, ex.reduced(0, float32)),)
    kernel = Kernel("sum", (256,), (256,), slots, (), sums, stores)
    assert coarsened(kernel, THREADS) is kernel


def test_neighbours_that_one_point_reads_are_components_of_a_vector() -> None:
    """From places that are multiples of four: elsewhere each is read alone."""
    device = open_device()
    o, k = ex.index(0, 8), ex.index(1, 64)

    def kernel(step: int) -> Kernel:
        at = (o * 64 + k) * step
        a, b, c = (ex.load(0, float32, at + n) for n in (1, 3, 5))
        slots = (BufferSlot(float32, "read", 512 * 8), BufferSlot(float32, "write", 8))
        sums = (Reduce("sum", a * b - c, float32),)
        return Kernel("sums", (8,), (64,), slots, (), sums, (Store(1, o, ex.reduced(0, float32)),))

    (alone,) = render(kernel(7), card(), device.engine)
    assert "vec4<f32>" not in alone.source
    (together,) = render(kernel(8), card(), device.engine)
    assert "b0: array<vec4<f32>>" in together.source and together.source.count("b0[") == 2
    x = np.random.default_rng(0).standard_normal(512 * 8).astype(np.float32)
    found = device.run(kernel(8), [x, None], limits=card())[1]
    each = x.reshape(8, 64, 8)
    wanted = (each[..., 1] * each[..., 3] - each[..., 5]).sum(1)
    np.testing.assert_allclose(found, wanted, atol=1e-4)
