"""Scans as WGSL on a real adapter, against NumPy in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.lower.harness import from_bf16, open_device, to_bf16
from webtorch.ir.dtype import DType, bfloat16, bool_, float16, float32, int64
from webtorch.ir.kernel import BufferSlot, Scan
from webtorch.lower.templates.generic import scan_kernel
from webtorch.lower.templates.scan import Plan, choose, scan_passes

SHAPES = (
    (1, 1, 1),
    (3, 7, 1),
    (1, 5000, 1),
    (200, 33, 1),
    (2, 300, 5),
    (5, 129, 40),
    (1, 70000, 1),
    (70, 4, 3),
)
NUMPY = {
    "sum": np.cumsum, "prod": np.cumprod, "max": np.maximum.accumulate, "min": np.minimum.accumulate,
}  # fmt: skip


def routine(op: Any, shape: tuple[int, int, int], dtype: DType, out: DType) -> Scan:
    count = int(np.prod(shape))
    return Scan(
        "scan", op, *shape, (BufferSlot(dtype, "read", count), BufferSlot(out, "write", count))
    )


def compare(
    op: Any,
    shape: tuple[int, int, int],
    dtype: DType,
    out: DType,
    gpu: bool,
    plan: Plan | None = None,
) -> None:
    device = open_device()
    limits = replace(device.limits, is_gpu=gpu)
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape)
    if dtype is bool_:
        x = rng.random(shape) < 0.01
    elif dtype is int64:
        x = rng.integers(-5, 6, shape)
    elif op == "prod":
        x = 1 + x * 0.01
    stored = (
        to_bf16(x)
        if dtype is bfloat16
        else x.astype(np.float16 if dtype is float16 else np.float32)
    )
    exact = from_bf16(stored) if dtype is bfloat16 else stored
    if dtype in (bool_, int64):
        stored = exact = x
    r = routine(op, shape, dtype, out)
    result = device.run(
        r, [stored, None], passes=scan_passes(r, limits, plan or choose(r, limits))
    )[1]
    wide = exact.astype(np.float64 if dtype.kind == "float" else np.int64)
    expected = NUMPY[op](wide, axis=1).ravel()
    if out.kind != "float":
        np.testing.assert_array_equal(result, expected.astype(result.dtype))
        return
    step = {"float32": 2.0**-22, "float16": 2.0**-10, "bfloat16": 2.0**-7}[out.name]
    size = 1.0 if op != "sum" else np.sqrt(shape[1]) * 8
    np.testing.assert_allclose(
        result, expected, rtol=step * (shape[1] if op == "prod" else 1), atol=step * size
    )


@pytest.mark.parametrize("gpu", [False, True], ids=["adapter", "gpu"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
def test_scans_of_every_shape(op: str, shape: tuple[int, int, int], gpu: bool) -> None:
    compare(op, shape, float32, float32, gpu)


@pytest.mark.parametrize("gpu", [False, True], ids=["adapter", "gpu"])
@pytest.mark.parametrize(
    ("op", "dtype", "out"),
    [
        ("sum", float16, float16),
        ("sum", bfloat16, bfloat16),
        ("sum", int64, int64),
        ("sum", bool_, int64),
        ("max", bool_, bool_),
        ("min", int64, int64),
        ("max", float16, float16),
    ],
)
def test_scans_of_every_type(op: str, dtype: DType, out: DType, gpu: bool) -> None:
    for shape in ((5, 129, 3), (2, 3000, 1)):
        compare(op, shape, dtype, out, gpu)


@pytest.mark.parametrize(
    "plan", [Plan(1, 1), Plan(4, 8, 3), Plan(1, 64, 7), Plan(32, 2, 2)], ids=str
)
def test_scans_with_any_geometry(plan: Plan) -> None:
    for shape in ((3, 1000, 1), (2, 301, 9)):
        compare("sum", shape, float32, float32, True, plan)


def test_nan_stays_until_the_end_of_the_row() -> None:
    device = open_device()
    x = np.random.default_rng(0).standard_normal((2, 3000)).astype(np.float32)
    x[0, 1234] = np.nan
    for op in ("max", "min", "sum"):
        r = routine(op, (2, 3000, 1), float32, float32)
        for gpu in (False, True):
            result = device.run(r, [x, None], limits=replace(device.limits, is_gpu=gpu))[1].reshape(
                2, 3000
            )
            assert not np.isnan(result[0, :1234]).any()
            assert np.isnan(result[0, 1234:]).all()
            assert not np.isnan(result[1]).any()


def test_the_generic_form_is_the_same_function() -> None:
    device = open_device()
    x = np.random.default_rng(0).standard_normal((3, 40, 2)).astype(np.float32)
    for op in ("sum", "prod", "max", "min"):
        r = routine(op, (3, 40, 2), float32, float32)
        np.testing.assert_allclose(
            device.run(scan_kernel(r), [x, None])[1],
            device.run(r, [x, None])[1],
            rtol=1e-4,
            atol=1e-5,
        )
