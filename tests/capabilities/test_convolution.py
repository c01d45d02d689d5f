"""Capability rows F: convolutions, pooling and norms of images, with gradients, against PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import webtorch
from tests.capabilities.same import rows, same, values

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")

X, W = (2, 4, 7, 6), (6, 4, 3, 3)
CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "F1 F4": (lambda F, x, w, b: F.conv2d(x, w, b), [X, W, (6,)]),
    "F2": (
        lambda F, x, w: (
            F.conv2d(x, w, stride=2, padding=1),
            F.conv2d(x, w, stride=(1, 2), padding=(2, 0)),
            F.conv2d(x, w, padding="same"),
        ),
        [X, W],
    ),
    "F3": (
        lambda F, x, w, d: (F.conv2d(x, w, groups=2), F.conv2d(x, d, groups=4, padding=1)),
        [X, (6, 2, 3, 3), (4, 1, 3, 3)],
    ),
    "F5": (
        lambda F, x, w, b: F.conv1d(x, w, b, stride=2, padding=2, dilation=2, groups=2),
        [(2, 4, 11), (6, 2, 3), (6,)],
    ),
    "F6": (
        lambda F, x, w, y, v: (
            F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1),
            F.conv_transpose1d(y, v, stride=3, dilation=2),
        ),
        [(2, 4, 4, 3), (4, 3, 3, 3), (2, 4, 5), (4, 2, 3)],
    ),
    "F7": (
        lambda F, x, w: (F.conv2d(x, w, dilation=2), F.conv2d(x, w, dilation=(1, 2), padding=2)),
        [X, W],
    ),
    "F8": (lambda F, x: (F.max_pool2d(x, 2), F.max_pool2d(x, 3, 2, 1)), [X]),
    "F9": (
        lambda F, x: (
            F.avg_pool2d(x, 2),
            F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            F.adaptive_avg_pool2d(x, (3, 2)),
        ),
        [X],
    ),
    "F10": (
        lambda F, x: (
            F.interpolate(x, scale_factor=2, mode="nearest"),
            F.interpolate(x, size=(5, 9), mode="nearest"),
        ),
        [(2, 3, 4, 3)],
    ),
    "F11": (
        lambda F, x: (
            F.pad(x, (1, 2, 0, 1), value=3.0),
            F.pad(x, (2, 1), mode="reflect") if x.ndim == 3 else F.pad(x, (2, 1, 1, 2), "reflect"),
            F.pad(x, (1, 1, 2, 2), mode="replicate"),
            F.pad(x, (-1, 1)),
        ),
        [X],
    ),
    "F12": (
        lambda F, x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        [X, (4,), (4,)],
    ),
}


@pytest.mark.parametrize("case", rows(CASES))
def test_case(case: tuple[Callable[..., Any], list[tuple[int, ...]]], device: str) -> None:
    function, shapes = case
    inputs = [values(*s, seed=i + 1) for i, s in enumerate(shapes)]
    same(
        lambda t, *xs: function(t.nn.functional, *xs), *inputs, device=device, rtol=1e-4, atol=1e-4
    )


@pytest.mark.covers("F12")
def test_batch_norm_keeps_running_statistics(device: str) -> None:
    def run(t: Any, x: Any) -> Any:
        norm = t.nn.BatchNorm2d(4).to(x.device, x.dtype)
        norm(x)
        norm(x * 2 + 1)
        return norm.running_mean, norm.running_var, norm.eval()(x)

    same(run, values(*X), device=device, rtol=1e-4, atol=1e-4)
    assert webtorch.nn.BatchNorm2d(4).num_batches_tracked.item() == 0
