"""Convolutions by Winograd's method on a real adapter, against PyTorch in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.lower import test_wgsl_conv
from tests.lower.harness import open_device
from webtorch.ir import expr as ex
from webtorch.ir.dtype import float16, float32
from webtorch.ir.kernel import Store
from webtorch.lower.templates import search, winograd
from webtorch.lower.templates.conv import render

CASES: dict[str, Any] = {
    "padded": ((2, 4, 8, 8), 8, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    "edges": ((4, 8, 7, 11), 12, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    "no padding": ((4, 4, 6, 10), 4, (3, 3), (1, 1), (0, 0), (1, 1), 1),
    "wide padding": ((4, 4, 5, 12), 8, (3, 3), (1, 1), (2, 3), (1, 1), 1),
    "images": ((12, 16, 4, 4), 8, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    "many images": ((40, 32, 16, 16), 32, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    "many tiles": ((4, 8, 64, 32), 8, (3, 3), (1, 1), (1, 1), (1, 1), 1),
}
KINDS = ("forward", "input", "weight")


def made(case: str, kind: str, monkeypatch: pytest.MonkeyPatch, dtype: Any = float32) -> Any:
    """Return what `test_wgsl_conv.make` does, of a case of this file."""
    monkeypatch.setitem(test_wgsl_conv.CASES, case, CASES[case])
    return test_wgsl_conv.make(case, kind, dtype)


def close(found: Any, expected: Any) -> None:
    """Compare; the error of six points is a little above that of multiplying directly."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=2.0**-19 * np.abs(expected).max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", [c for c in CASES if c != "many images"])
def test_agrees_with_pytorch(case: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_device()
    r, inputs, expected = made(case, kind, monkeypatch)
    assert winograd.fits(r)
    gpu = replace(device.limits, is_gpu=True, family="H200")
    passes = winograd.passes(r, gpu, device.engine)  # type: ignore[arg-type]
    close(device.run(r, inputs, passes=passes)[2], expected)


@pytest.mark.parametrize("kind", KINDS)
def test_images_in_parts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_device()
    r, inputs, expected = made("images", kind, monkeypatch)
    gpu = replace(device.limits, is_gpu=True, family="H200")
    whole = len(winograd.passes(r, gpu, device.engine))  # type: ignore[arg-type]
    monkeypatch.setattr(winograd, "_MOST_SCRATCH", 4 * 36 * 24 * 5)
    passes = winograd.passes(r, gpu, device.engine)  # type: ignore[arg-type]
    assert len(passes) > whole
    assert passes[0].scratch[0] <= 4 * 36 * 16 * 5
    close(device.run(r, inputs, passes=passes)[2], expected)


def test_sums_of_a_weight_take_no_more_memory_than_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_device()
    gpu = replace(device.limits, is_gpu=True, family="H200")
    r, _, _ = made("many images", "weight", monkeypatch)
    most = 8 * 4 * 36 * 16 * 64
    monkeypatch.setattr(winograd, "_MOST_SCRATCH", most)
    passes = winograd.passes(r, gpu, device.engine)  # type: ignore[arg-type]
    assert max(passes[0].scratch) <= most


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_images_in_parts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_device()
    r, inputs, expected = made("many tiles", kind, monkeypatch)
    gpu = replace(device.limits, is_gpu=True, family="H200")
    monkeypatch.setattr(winograd, "_MOST_SCRATCH", 4 * 36 * 16 * 128)
    passes = winograd.passes(r, gpu, device.engine)  # type: ignore[arg-type]
    close(device.run(r, inputs, passes=passes)[2], expected)


@pytest.mark.parametrize("kind", KINDS)
def test_epilogue(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_device()
    r, inputs, expected = made("edges", kind, monkeypatch)
    points = [ex.index(d, s) for d, s in enumerate(r.points)]
    flat: Any = ex.const(0, points[0].dtype)
    for x, size in zip(points, r.points, strict=True):
        flat = flat * size + x
    value = ex.reduced(0, float32) * ex.const(2.0, float32) + ex.const(1.0, float32)
    r = replace(r, epilogue=(Store(2, flat, value),))
    gpu = replace(device.limits, is_gpu=True, family="H200")
    passes = winograd.passes(r, gpu, device.engine)  # type: ignore[arg-type]
    close(device.run(r, inputs, passes=passes)[2], 2 * expected + 1)


def test_which_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = replace(open_device().limits, is_gpu=True, family="H200")
    r, _, _ = made("padded", "forward", monkeypatch)
    large = replace(
        r,
        input_shape=(64, 64, 16, 16),
        weight_shape=(128, 64, 3, 3),
        output_shape=(64, 128, 16, 16),
    )
    assert winograd.suits(large, gpu)
    assert any("_A" in p.source or "0.70710" in p.source for p in render(large, gpu, "naga"))
    for other in (
        replace(large, stride=(2, 2)),
        replace(large, dilation=(2, 2)),
        replace(large, groups=2),
        replace(large, input_shape=(64, 32, 16, 16), weight_shape=(128, 32, 3, 3)),
        made("padded", "forward", monkeypatch, float16)[0],
        r,
    ):
        assert not winograd.suits(other, gpu)
    # There is no tile to tune; nor does it serve where tiles are larger than a binding may be.
    assert search.product_of(large, gpu, "naga") is None
    assert not winograd.suits(large, replace(gpu, max_binding_bytes=16 << 20))
    # Nor where the tiles of a single image take more memory than their speed is worth.
    wide = replace(gpu, max_binding_bytes=1 << 34)
    for side, serves in ((512, True), (2048, False)):
        image = {"input_shape": (1, 64, side, side), "output_shape": (1, 64, side, side)}
        one = replace(large, weight_shape=(64, 64, 3, 3), **image)
        assert winograd.suits(one, wide) == serves
        if not serves:
            assert not any(p.scratch for p in render(one, wide, "naga"))
    # Where it was not measured, it is not used.
    assert not winograd.suits(large, replace(gpu, family="discrete"))
    assert not winograd.suits(large, replace(gpu, is_gpu=False))
