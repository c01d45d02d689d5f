"""Training that sees the rounding of its weights (`fake_quantize_*`), against PyTorch."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import webtorch
from tests.autograd.both import error, same

VALUES = [0.25, -3.7, 100.0, -1000.0, float("nan"), float("inf"), 0.05, 0.15, -0.45, 0.36]


@pytest.mark.parametrize("device", ["cpu", "webgpu"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("tensors", [False, True])
def test_values_and_gradients(device: str, dtype: str, tensors: bool) -> None:
    def program(t: Any) -> Any:
        x = t.tensor(VALUES, dtype=getattr(t, dtype), device=device if t is webtorch else "cpu")
        x.requires_grad_()
        scale, zero = 0.1, 3
        if tensors:
            scale, zero = t.tensor([0.1]), t.tensor([3], dtype=t.int32)
            scale, zero = scale.to(x.device), zero.to(x.device)
        y = t.fake_quantize_per_tensor_affine(x, scale, zero, -8, 7)
        (y * t.arange(10.0, device=x.device)).sum().backward()
        return y, x.grad

    same(program)


@pytest.mark.parametrize("zeros", ["int32", "float32"])
def test_a_scale_for_each_channel(zeros: str) -> None:
    def program(t: Any) -> Any:
        x = t.linspace(-2.03, 2.0, 24, device="cpu").view(2, 3, 4).requires_grad_()
        scale, zero = t.tensor([0.1, 0.2, 0.3], device="cpu"), [0, 1, -2]
        zero = t.tensor(zero, dtype=getattr(t, zeros), device="cpu")
        y = t.fake_quantize_per_channel_affine(x, scale, zero, 1, -4, 5)
        (y * y.detach()).sum().backward()
        return y, x.grad

    same(program)


def test_levels_out_of_order_are_refused() -> None:
    for t in (webtorch, torch):
        x, channels = t.ones(2), t.fake_quantize_per_channel_affine
        calls = (
            functools.partial(t.fake_quantize_per_tensor_affine, x, 0.1, 9, -8, 7),
            functools.partial(t.fake_quantize_per_tensor_affine, x, 0.1, 0, 8, 7),
            functools.partial(channels, x, x, x[:1], 0, 0, 7),
            functools.partial(channels, x, x[:1], x[:1], 0, 0, 7),
            functools.partial(channels, x, x, x, 1, 0, 7),
        )
        assert all(error(call) for call in calls)
