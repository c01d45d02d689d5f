"""Capability rows D: reductions over any dims and sizes, against PyTorch in float64 with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.capabilities.same import rows, same, values

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")

REDUCTIONS = {
    "D1": lambda t, x: (x.sum(), x.t().sum() if x.ndim == 2 else t.sum(x)),
    "D2": lambda t, x: (x.sum(0), x.sum(dim=-1)),
    "D3": lambda t, x: (x.sum((0, 2)), t.sum(x, dim=(-1, 1)), x.sum((0, 1, 2))),
    "D4": lambda t, x: (x.sum(1, keepdim=True), x.mean((0, 2), keepdim=True), x.amax(2, True)),
    "D5": lambda t, x: (x.mean(), x.mean(1), x.mean((0, 1))),
    "D6": lambda t, x: (x.prod(), x.prod(1), (x * (x > 0.4)).prod(2)),
    "D7": lambda t, x: (x.norm(), t.norm(x, dim=1), x.norm(1, dim=(0, 2)), x.norm(float("inf"), 2)),
    "D8": lambda t, x: ((x > 0).all(), (x > 0).any(1), (x > -9).all((0, 2)), (x > 9).any()),
    "D9": lambda t, x: (t.count_nonzero(x.relu()), t.count_nonzero(x.relu(), dim=(0, 2))),
    "D10": lambda t, x: (x.max(), x.min(), *x.max(1), *x.min(-1, True), x.amax((0, 2)), x.amin(1)),
    "D11": lambda t, x: (x.argmax(), x.argmax(1), x.argmax(-1, keepdim=True)),
    "D12": lambda t, x: (x.argmin(), x.argmin(1)),
    "D13": lambda t, x: (*x.topk(2), *x.topk(3, dim=1, largest=False)),
    "D14": lambda t, x: (x.std(), x.var(1), x.std((0, 2), correction=0), t.var(x, 2, keepdim=True)),
    "D15": lambda t, x: (x.logsumexp(1), (100 * x).logsumexp((0, 2))),
    "D16": lambda t, x: (x.cumsum(0), x.cumsum(-1)),
    "D17": lambda t, x: (x.softmax(-1), t.nn.functional.softmax(50 * x, 1)),
    "D18": lambda t, x: (x.log_softmax(-1), t.nn.functional.log_softmax(50 * x, 0)),
    "D19": lambda t, x: x.masked_fill(
        t.ones(4, 5, dtype=t.bool, device=x.device).triu(2), float("-inf")
    ).softmax(-1),
    "D20": lambda t, x: (
        *x.sort(1),
        x.median(),
        *x.median(1),
        x.quantile(0.3),
        x.detach().unique(),
    ),
}


@pytest.mark.parametrize("function", rows(REDUCTIONS))
def test_reduction(function: Callable[..., Any], device: str) -> None:
    same(function, values(3, 4, 5, seed=4), device=device, atol=5e-5)


@pytest.mark.covers("D1", "D2")
@pytest.mark.parametrize("shape", [(200_003,), (3, 70_001), (70_001, 3), (0,), ()])
def test_any_size(shape: tuple[int, ...], device: str) -> None:
    x = values(*shape, low=0.0, high=1.0)
    same(lambda t, x: x.sum(), x, device=device, gradients=False, rtol=1e-5)
    if len(shape) == 2:
        same(lambda t, x: (x.t().sum(0), x.sum(0)), x, device=device, gradients=False, rtol=1e-5)


@pytest.mark.covers("D6", "D7")
def test_gradients_at_zero_are_numbers(device: str) -> None:
    x = torch.tensor([[0.0, 2.0, 3.0], [0.0, 0.0, 5.0], [1.0, 2.0, 3.0]], dtype=torch.float64)
    same(lambda t, x: (x.prod(1), x.prod()), x, device=device)
    same(lambda t, x: x.norm(dim=1), torch.zeros(2, 3, dtype=torch.float64), device=device)
