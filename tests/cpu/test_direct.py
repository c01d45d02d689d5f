"""Convolutions in machine code, against PyTorch in float64."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import pytest
import torch

from webtorch.ir.dtype import float32, float64
from webtorch.ir.kernel import BufferSlot, Convolution
from webtorch.runtime.backends.cpu import direct, jit
from webtorch.runtime.backends.cpu.memory import CpuBuffer

pytestmark = pytest.mark.skipif(not jit.available(), reason="needs llvmlite")

Shape = tuple[int, int, int, int]
Pair = tuple[int, int]
Kind = Literal["forward", "input", "weight"]
# Images, filters, stride, padding, dilation, groups.
CASES: list[tuple[Shape, Shape, Pair, Pair, Pair, int]] = [
    ((16, 8, 8, 8), (16, 8, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((32, 6, 4, 4), (7, 6, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((19, 4, 11, 10), (6, 2, 3, 2), (2, 3), (1, 0), (1, 1), 2),
    ((30, 6, 12, 13), (9, 2, 3, 3), (1, 2), (2, 1), (2, 1), 3),
    # Pixels that no window reaches, and windows that only zeros reach.
    ((16, 2, 5, 5), (3, 2, 2, 2), (3, 3), (0, 0), (1, 1), 1),
    ((16, 1, 2, 2), (3, 1, 3, 3), (1, 2), (4, 3), (1, 1), 1),
    ((33, 3, 6, 6), (4, 3, 5, 5), (2, 2), (2, 2), (1, 1), 1),
    ((16, 8, 4, 4), (8, 1, 3, 3), (1, 1), (1, 1), (1, 1), 8),
    ((13, 3, 8, 8), (4, 3, 1, 1), (2, 2), (0, 0), (1, 1), 1),
    ((11, 2, 1, 7), (3, 2, 1, 3), (1, 1), (0, 1), (1, 1), 1),
]


@pytest.fixture(params=["own", "avx", "sse2", "neon"])
def tiles(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Use the tiles of this processor, then those of others: narrower vectors run everywhere."""
    if request.param != "own":
        found = direct.shape_for({"neon": "+neon"}.get(request.param, f"+{request.param}"))
        monkeypatch.setattr(direct, "shape_for", lambda features: found)
    return str(request.param)


def routine(kind: Kind, case: tuple[Any, ...], dtype: Any = float32) -> tuple[Convolution, Any]:
    """Return the routine, and the shapes of its two operands and its result."""
    images, filters, stride, padding, dilation, groups = case
    height, width = (
        (images[d + 2] + 2 * padding[d] - dilation[d] * (filters[d + 2] - 1) - 1) // stride[d] + 1
        for d in range(2)
    )
    out = (images[0], filters[0], height, width)
    shapes = {
        "forward": (images, filters, out),
        "input": (out, filters, images),
        "weight": (images, out, filters),
    }[kind]
    first, second, result = (math.prod(shape) for shape in shapes)
    slots = (
        BufferSlot(dtype, "read", first),
        BufferSlot(dtype, "read", second),
        BufferSlot(dtype, "write", result),
    )
    return Convolution(
        "c", kind, images, filters, out, stride, padding, dilation, groups, slots
    ), shapes


def expected(kind: str, a: Any, b: Any, r: Convolution) -> Any:
    """Return PyTorch's result in float64."""
    a, b = torch.from_numpy(a).double(), torch.from_numpy(b).double()
    options = {
        "stride": r.stride, "padding": r.padding, "dilation": r.dilation, "groups": r.groups,
    }  # fmt: skip
    if kind == "forward":
        return torch.nn.functional.conv2d(a, b, **options).numpy()
    if kind == "input":
        return torch.nn.grad.conv2d_input(r.input_shape, b, a, **options).numpy()
    return torch.nn.grad.conv2d_weight(a, r.weight_shape, b, **options).numpy()


def run(r: Convolution, *operands: Any) -> Any:
    """Return the result; what was in its memory before must not matter."""
    first, second = (CpuBuffer(float32, x.size) for x in operands)
    for buffer, x in zip((first, second), operands, strict=True):
        buffer.array[...] = x.reshape(-1)
    out = CpuBuffer(float32, r.buffers[2].elements)
    out.array[...] = np.nan
    direct.convolution(r)(first, second, out)
    return out.array


@pytest.mark.parametrize("kind", ["forward", "input", "weight"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_kind_of_convolution_matches_pytorch(kind: Kind, case: Any, tiles: str) -> None:
    r, shapes = routine(kind, case)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in shapes[:2])
    actual = run(r, a, b).reshape(shapes[2])
    exact = expected(kind, a, b, r)
    assert np.abs(actual - exact).max() <= 2e-6 * max(np.abs(exact).max(), 1.0)


@pytest.mark.parametrize("kind", ["forward", "input", "weight"])
def test_images_are_done_in_parts_where_their_copies_are_large(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "_SCRATCH", 1)
    r, shapes = routine(kind, ((50, 3, 6, 6), (5, 3, 3, 3), (1, 1), (1, 1), (1, 1), 1))
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in shapes[:2])
    exact = expected(kind, a, b, r)
    assert np.abs(run(r, a, b).reshape(shapes[2]) - exact).max() <= 2e-6 * np.abs(exact).max()


def test_lanes_past_the_last_image_do_not_count_even_next_to_infinities() -> None:
    r, shapes = routine("weight", ((11, 1, 3, 3), (1, 1, 3, 3), (1, 1), (0, 0), (1, 1), 1))
    a, b = np.ones(shapes[0], np.float32), np.ones(shapes[1], np.float32)
    a[-1] = np.inf
    assert np.isposinf(run(r, a, b)).all()


def test_small_batches_and_other_types_go_another_way() -> None:
    case = ((64, 3, 6, 6), (5, 3, 3, 3), (1, 1), (1, 1), (1, 1), 1)
    assert direct.suits(routine("forward", case)[0])
    assert not direct.suits(routine("forward", case, float64)[0])
    assert not direct.suits(routine("forward", ((1, *case[0][1:]), *case[1:]))[0])
