"""Convolutions and their gradients as WGSL on a real adapter, against PyTorch in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests import long
from tests.lower.harness import adapters, from_bf16, open_device, to_bf16
from webtorch.ir.dtype import DType, bfloat16, float16, float32
from webtorch.ir.kernel import BufferSlot, Convolution
from webtorch.lower.templates import gemm
from webtorch.lower.templates.conv import _phases, conv_kernel, product
from webtorch.lower.templates.tuning import TILES
from webtorch.lower.wgsl import render

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("tiles_for_small_products")
# (n, c, h, w), output channels, kernel, stride, padding, dilation, groups
CASES = {
    "3x3": ((2, 4, 9, 8), 6, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    "odd": ((2, 6, 11, 7), 8, (3, 2), (2, 1), (1, 0), (1, 2), 2),
    "strided": ((1, 5, 12, 12), 9, (5, 5), (3, 2), (2, 2), (1, 1), 1),
    "depthwise": ((2, 8, 7, 7), 8, (3, 3), (2, 2), (1, 1), (1, 1), 8),
    "1x1": ((3, 16, 4, 6), 8, (1, 1), (1, 1), (0, 0), (1, 1), 1),
    "1x1 strided": ((2, 16, 5, 5), 8, (1, 1), (2, 2), (0, 0), (1, 1), 1),
    "wide padding": ((1, 4, 3, 3), 4, (3, 3), (1, 1), (4, 3), (1, 1), 1),
    "groups": ((2, 32, 6, 6), 48, (3, 3), (1, 1), (1, 1), (1, 1), 4),
    "skips": ((1, 4, 9, 9), 8, (2, 2), (3, 2), (0, 1), (3, 2), 1),
    "larger strided": ((2, 16, 17, 16), 32, (3, 3), (2, 2), (1, 1), (1, 1), 1),
    "larger": ((4, 16, 16, 16), 40, (3, 3), (1, 1), (1, 1), (1, 1), 1),
}
KINDS = ("forward", "input", "weight")


def make(case: str, kind: Any, dtype: DType) -> tuple[Convolution, list[Any], Any]:
    """Return a routine, its inputs and the expected output, by PyTorch in float64."""
    (n, c, h, w), o, kernel, stride, padding, dilation, groups = CASES[case]
    rng = np.random.default_rng(0)

    def stored(x: Any) -> Any:
        return (
            to_bf16(x)
            if dtype is bfloat16
            else x.astype(np.float16 if dtype is float16 else np.float32)
        )

    def exact(x: Any) -> Any:
        return torch.from_numpy((from_bf16(x) if dtype is bfloat16 else x).astype(np.float64))

    x, weight = (
        stored(rng.standard_normal((n, c, h, w))),
        stored(rng.standard_normal((o, c // groups, *kernel))),
    )
    tx, tw = exact(x).requires_grad_(), exact(weight).requires_grad_()
    ty = torch.nn.functional.conv2d(
        tx, tw, stride=stride, padding=padding, dilation=dilation, groups=groups
    )
    grad = stored(rng.standard_normal(tuple(ty.shape)))
    ty.backward(exact(grad))
    a, b, out = {
        "forward": (x, weight, ty.detach()), "input": (grad, weight, tx.grad), "weight": (x, grad, tw.grad),
    }[kind]  # fmt: skip
    buffers = (
        BufferSlot(dtype, "read", a.size), BufferSlot(dtype, "read", b.size), BufferSlot(dtype, "write", out.numel())
    )  # fmt: skip
    r = Convolution(
        case,
        kind,
        (n, c, h, w),
        (o, c // groups, *kernel),
        tuple(ty.shape),
        stride,
        padding,
        dilation,
        groups,
        buffers,
    )
    return r, [a, b, None], out.numpy().ravel()


def close(actual: Any, expected: Any, dtype: DType) -> None:
    step = {"float32": 2.0**-20, "float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype.name]
    np.testing.assert_allclose(actual, expected, rtol=step, atol=step * np.abs(expected).max())


@pytest.mark.one_in(2)
@pytest.mark.covers("F1", "F2", "F3", "F4", "F7", "F13")
@pytest.mark.parametrize("gpu", [False, True], ids=["adapter", "gpu"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
def test_convolutions_and_gradients(case: str, kind: str, gpu: bool) -> None:
    device = open_device()
    r, inputs, expected = make(case, kind, float32)
    close(device.run(r, inputs, limits=replace(device.limits, is_gpu=gpu))[2], expected, float32)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("kind", KINDS)
def test_16_bit_convolutions(kind: str, dtype: DType) -> None:
    for f16 in (True, False):
        device = open_device(f16)
        for number, case in enumerate(("3x3", "1x1", "groups")):
            r, inputs, expected = make(case, kind, dtype)
            for gpu in adapters(number + 1):
                close(
                    device.run(r, inputs, limits=replace(device.limits, is_gpu=gpu))[2],
                    expected,
                    dtype,
                )


@pytest.mark.one_in(3)
@pytest.mark.covers("F13")
@pytest.mark.parametrize("kind", KINDS)
def test_every_tile_and_split_agrees(kind: str) -> None:
    device = open_device()
    for number, case in enumerate(("larger", "odd", "1x1")):
        r, inputs, expected = make(case, kind, float32)
        p, columns = product(r)
        every = [(None, 1), (None, 3), (TILES[6], 1), (TILES[8], 4)]
        # In `make test` half of them, each tile in turn.
        for tile, split in every if long.runs() else every[number % 2 :: 2]:
            passes = gemm.product_passes(p, device.limits, tile, split, columns)
            close(device.run(r, inputs, passes=passes)[2], expected, float32)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("case", ["odd", "strided", "1x1 strided", "larger strided", "skips"])
def test_the_input_gradient_of_a_strided_convolution_by_phases(case: str, dtype: DType) -> None:
    device = open_device()
    for gpu in (False, True):
        limits = replace(device.limits, is_gpu=gpu)
        r, inputs, expected = make(case, "input", dtype)
        passes = _phases(r, limits, "naga")
        assert len(passes) == r.stride[0] * r.stride[1]
        close(device.run(r, inputs, passes=passes)[2], expected, dtype)


def test_a_large_strided_input_gradient_is_done_by_phases() -> None:
    device = open_device()
    r, inputs, expected = make("larger strided", "input", float32)
    assert len(render(r, device.limits, "naga")) == 4
    close(device.run(r, inputs)[2], expected, float32)


@pytest.mark.parametrize("kind", KINDS)
def test_the_generic_form_is_the_same_function(kind: str) -> None:
    device = open_device()
    for case in CASES:
        r, inputs, expected = make(case, kind, float32)
        close(device.run(conv_kernel(r), inputs)[2], expected, float32)
