"""Convolutions on matrix units: which are, and that the kernels compute them, against PyTorch in
float64. No adapter here has matrix units: emulated.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.lower import test_wgsl_conv
from tests.lower.harness import Device, open_device
from tests.lower.test_wgsl_matrix_units import WITH, emulated
from webtorch.ir import expr as ex
from webtorch.ir.dtype import DType, bfloat16, float16, float32
from webtorch.ir.kernel import BufferSlot, Convolution, Store
from webtorch.lower.templates import conv_units, matrix_units, search
from webtorch.lower.templates.conv import render
from webtorch.lower.templates.tuning import MatrixTile

# (n, c, h, w), output channels, kernel, stride, padding, dilation, groups
CASES: dict[str, Any] = {
    "3x3": ((2, 32, 8, 8), 32, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    "odd sizes": ((2, 20, 7, 9), 24, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    "few places": ((1, 24, 4, 8), 72, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    "strided": ((2, 40, 10, 8), 32, (3, 3), (2, 2), (1, 1), (1, 1), 1),
    "skips": ((1, 16, 19, 19), 32, (2, 3), (3, 2), (0, 1), (3, 2), 1),
    "wide padding": ((2, 16, 6, 6), 16, (3, 3), (1, 1), (4, 3), (1, 1), 1),
    "no padding": ((2, 16, 10, 9), 16, (3, 5), (1, 1), (0, 0), (2, 1), 1),
    "groups": ((2, 48, 8, 8), 64, (3, 3), (1, 1), (1, 1), (1, 1), 2),
    "groups, few places": ((1, 48, 4, 4), 64, (3, 3), (1, 1), (1, 1), (1, 1), 2),
    "1x1, odd": ((3, 40, 5, 5), 24, (1, 1), (1, 1), (0, 0), (1, 1), 1),
    "1x1 strided": ((2, 32, 9, 9), 32, (1, 1), (2, 2), (0, 0), (1, 1), 1),
}
KINDS = ("forward", "input", "weight")


def made(
    case: str, kind: str, monkeypatch: pytest.MonkeyPatch, dtype: DType = float16
) -> tuple[Convolution, list[Any], Any]:
    """Return what `test_wgsl_conv.make` does, of a case of this file."""
    monkeypatch.setitem(test_wgsl_conv.CASES, case, CASES[case])
    return test_wgsl_conv.make(case, kind, dtype)


def opened() -> Device:
    """Return a device that has float16."""
    device = open_device()
    if not device.limits.has_f16:
        pytest.skip("the adapter has no float16")
    return device


def on_units(r: Convolution, device: Device, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the emulated dispatches, with small tiles and sums split in two."""
    monkeypatch.setattr(conv_units, "_LEAST_WORK", 1)
    monkeypatch.setattr(matrix_units, "choose", lambda p, *_: (MatrixTile(1, 2, 2, 1, 32), 2))
    limits = replace(device.limits, has_matrix_units=True)
    assert conv_units.suits(r, limits, "dawn")
    return [emulated(p) for p in conv_units.passes(r, limits, "dawn")]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_pytorch(case: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = opened()
    r, inputs, expected = made(case, kind, monkeypatch)
    passes = on_units(r, device, monkeypatch)
    test_wgsl_conv.close(device.run(r, inputs, passes=passes)[2], expected, float16)


def test_the_gradient_of_images_that_no_tap_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to multiply: the only place of each image lies between the taps."""
    monkeypatch.setitem(
        CASES, "padding alone", ((16, 16, 1, 1), 32, (1, 1), (2, 2), (1, 1), (1, 1), 1)
    )
    monkeypatch.setattr(conv_units, "_LEAST_WORK", 1)
    device = opened()
    r, inputs, expected = made("padding alone", "input", monkeypatch)
    limits = replace(device.limits, has_matrix_units=True)
    passes = render(r, limits, "dawn")
    test_wgsl_conv.close(device.run(r, inputs, passes=passes)[2], expected, float16)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KINDS)
def test_images_in_parts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = opened()
    r, inputs, expected = made("1x1, odd", kind, monkeypatch)
    whole = len(on_units(r, device, monkeypatch))
    # Two images, of three.
    channels = 24 if kind == "input" else 40
    monkeypatch.setattr(conv_units, "_MOST_SCRATCH", 2 * 2 * channels * 25)
    passes = on_units(r, device, monkeypatch)
    assert len(passes) > whole
    test_wgsl_conv.close(device.run(r, inputs, passes=passes)[2], expected, float16)


@pytest.mark.parametrize("case", ["3x3", "few places", "strided"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_follows_is_computed_too(
    kind: str, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = opened()
    r, inputs, expected = made(case, kind, monkeypatch)
    count = expected.size
    points = [ex.index(d, s) for d, s in enumerate(r.points)]
    flat: Any = points[0]
    for point, size in zip(points[1:], r.points[1:], strict=True):
        flat = flat * size + point
    total = ex.reduced(0, float32)
    added = ex.cast(ex.load(3, float16, flat), float32)
    store = Store(2, flat, ex.cast(total * 2.0 + added, float16))
    buffers = (*r.buffers, BufferSlot(float16, "read", count))
    other = inputs[0].ravel()[:1].repeat(count)
    after = replace(r, buffers=buffers, epilogue=(store,))
    passes = on_units(after, device, monkeypatch)
    found = device.run(after, [*inputs, other], passes=passes)[2]
    test_wgsl_conv.close(found, 2 * expected + other.astype("float64"), float16)


def uses_them(r: Convolution, engine: str = "dawn", limits: Any = WITH) -> bool:
    """Whether a convolution is rendered for matrix units."""
    return any("subgroupMatrix" in p.source for p in render(r, limits, engine))  # type: ignore[arg-type]


def shaped(
    image: tuple[int, ...], weight: tuple[int, ...], kind: Any = "forward", dtype: DType = float16
) -> Convolution:
    """Return a convolution that keeps the size of its images."""
    padding = (weight[2] // 2, weight[3] // 2)
    out = (image[0], weight[0], *image[2:])
    shapes = {
        "forward": (image, weight, out),
        "input": (out, weight, image),
        "weight": (image, out, weight),
    }
    sizes = [s[0] * s[1] * s[2] * s[3] for s in shapes[kind]]
    buffers = [BufferSlot(dtype, "read", n) for n in sizes[:2]]
    return Convolution(
        "conv", kind, image, weight, out, (1, 1), padding, (1, 1), 1,  # type: ignore[arg-type]
        (*buffers, BufferSlot(dtype, "write", sizes[2])),
    )  # fmt: skip


def test_which_convolutions_matrix_units_compute() -> None:
    for kind in KINDS:
        assert uses_them(shaped((2, 320, 64, 64), (320, 320, 3, 3), kind))
        assert uses_them(shaped((2, 320, 64, 64), (640, 320, 1, 1), kind))
        assert uses_them(shaped((8, 512, 7, 7), (2048, 512, 1, 1), kind))
        assert search.product_of(shaped((2, 64, 8, 8), (64, 64, 3, 3), kind), WITH, "dawn") is None
        # Other types, other engines, few channels.
        assert not uses_them(shaped((2, 64, 8, 8), (64, 64, 3, 3), kind, float32))
        assert not uses_them(shaped((2, 64, 8, 8), (64, 64, 3, 3), kind, bfloat16))
        assert not uses_them(shaped((2, 64, 8, 8), (64, 64, 3, 3), kind), "naga")
        assert not uses_them(shaped((2, 4, 64, 64), (64, 4, 3, 3), kind))


def test_kernels_larger_than_what_they_multiply_stay_as_they_are() -> None:
    few = conv_units.passes(shaped((2, 1280, 8, 8), (1280, 1280, 3, 3)), WITH, "dawn")
    many = conv_units.passes(shaped((2, 320, 64, 64), (320, 320, 3, 3)), WITH, "dawn")
    assert few[0].scratch[0] == 2 * 1280 * 9 * 128
    # With a border of zeros.
    assert many[0].scratch[:2] == (2 * 2 * 66 * 66 * 320, 2 * 320 * 9 * 320)
