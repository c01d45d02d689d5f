"""Gradients where the input is NaN, against PyTorch: what is cut off there has none, what is not has its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import webtorch
from tests.conftest import need_device

VALUES = [1.0, math.nan, 3.0, -2.0, 0.0, math.inf, -7.0, 0.5, -1.0, 6.0]
Call = Callable[[Any, Any], Any]
CALLS: dict[str, Call] = {
    "clamp": lambda m, x: x.clamp(-1, 1),
    "clamp_min": lambda m, x: x.clamp(min=0),
    "clamp_max": lambda m, x: x.clamp(max=0),
    "clamp to tensors": lambda m, x: m.clamp(x, m.full_like(x, -1.0), m.full_like(x, 1.0)),
    "hardsigmoid": lambda m, x: m.nn.functional.hardsigmoid(x),
    "hardswish": lambda m, x: m.nn.functional.hardswish(x),
    "elu": lambda m, x: m.nn.functional.elu(x),
    "selu": lambda m, x: m.nn.functional.selu(x),
    "celu": lambda m, x: m.nn.functional.celu(x, 0.7),
    "leaky_relu": lambda m, x: m.nn.functional.leaky_relu(x),
    "relu": lambda m, x: x.relu(),
    # The larger or smaller of two, as a choice: a driver may make the choice of its own max and min, which lose a NaN.
    "where below": lambda m, x: m.where(x <= 0, m.zeros_like(x), x),
    "where above": lambda m, x: m.where(x > 2, m.full_like(x, 2.0), x),
    "where of two": lambda m, x: m.where(x < x.flip(0), x.flip(0), x),
    "masked_fill": lambda m, x: x.masked_fill(x < 0, 0.0),
    "threshold": lambda m, x: m.nn.functional.threshold(x, 0.0, 0.0),
    "huber_loss": lambda m, x: m.nn.functional.huber_loss(x, m.zeros_like(x), reduction="none"),
    # Pairs without a zero: there PyTorch divides by the element.
    "prod": lambda m, x: x[:4].reshape(2, 2).prod(1),
    "logcumsumexp": lambda m, x: x[:4].logcumsumexp(0),
    "smooth_l1_loss": lambda m, x: m.nn.functional.smooth_l1_loss(x, m.zeros_like(x)),
}


def _value_and_gradient(call: Call, module: Any, device: str) -> tuple[Any, Any]:
    x = module.tensor(VALUES, device=device, requires_grad=True)
    y = call(module, x)
    (y * 3).sum().backward()
    return y.detach().cpu().numpy(), x.grad.cpu().numpy()


@pytest.mark.parametrize("device", ["cpu", "webgpu"])
@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients_at_nan_are_pytorch_s(name: str, device: str) -> None:
    need_device(device)
    wanted = _value_and_gradient(CALLS[name], torch, "cpu")
    found = _value_and_gradient(CALLS[name], webtorch, device)
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("low", [-1.0, 0.5, 2.0])
def test_gradients_of_the_bounds_of_clamp(low: float) -> None:
    values, lows, highs = [-2.0, 0.0, 3.0, math.nan], [low] * 4, [1.0, 0.5, 1.0, 1.0]

    def gradients(module: Any) -> list[Any]:
        x, a, b = (module.tensor(v, requires_grad=True) for v in (values, lows, highs))
        (module.clamp(x, a, b) * module.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
        return [t.grad.numpy() for t in (x, a, b)]

    for mine, theirs in zip(gradients(webtorch), gradients(torch), strict=True):
        np.testing.assert_array_equal(mine, theirs)
