"""Capability rows B: making tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch
from tests.capabilities.same import close, rows, same, values

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")

MADE = {
    "B1": lambda t, d: (
        t.tensor([[1.5, 2], [3, 4]], device=d),
        t.tensor([True, False], device=d),
        t.tensor([1, 2, 3, 4], device=d).reshape(2, 2),
    ),
    "B3": lambda t, d: (t.zeros(2, 3, device=d), t.zeros((2,), dtype=t.int32, device=d)),
    "B4": lambda t, d: (t.ones(2, device=d), t.ones(2, dtype=t.bool, device=d)),
    "B5": lambda t, d: (t.full((2, 2), 2.5, device=d), t.full((3,), 7, device=d)),
    "B6": lambda t, d: (
        t.zeros_like(t.ones(2, 3, dtype=t.int32, device=d)),
        t.ones_like(t.zeros(2, device=d)),
        t.full_like(t.zeros(2, device=d), 4),
        t.ones(1, dtype=t.int32, device=d).new_zeros(3),
        t.ones(1, device=d).new_full((2,), 3),
        t.ones(1, device=d).new_tensor([1, 2]),
    ),
    "B7": lambda t, d: (
        t.arange(5, device=d),
        t.arange(1, 2, 0.25, device=d),
        t.arange(9, 1, -3, dtype=t.int32, device=d),
    ),
    "B8": lambda t, d: (
        t.eye(3, 4, device=d),
        t.linspace(-1, 1, 7, device=d),
        t.ones(3, 4, device=d).tril(1),
        t.ones(3, 4, device=d).triu(),
        *t.meshgrid(t.arange(2, device=d), t.arange(3, device=d), indexing="ij"),
    ),
    "B12": lambda t, d: t.nn.functional.one_hot(t.tensor([[0, 2], [1, 0]], device=d), 4),
}


@pytest.mark.parametrize("function", rows(MADE))
def test_made(function: Callable[..., Any], device: str) -> None:
    actual, expected = function(webtorch, device), function(torch, "cpu")
    close(actual, expected)
    for a in actual if isinstance(actual, tuple) else [actual]:
        assert a.device.type == device


@pytest.mark.covers("B2", "B16")
def test_empty_and_strided(device: str) -> None:
    assert webtorch.empty(3, 2, dtype=webtorch.int32, device=device).shape == (3, 2)
    assert webtorch.empty_strided((2, 3), (1, 2), device=device).stride() == (1, 2)
    same(lambda t, x: t.as_strided(x, (3, 4), (2, 1), 1), values(12), device=device)


@pytest.mark.covers("B9")
def test_randn(device: str) -> None:
    webtorch.manual_seed(1)
    x = torch.tensor(webtorch.randn(20_000, device=device).tolist())
    assert abs(x.mean()) < 0.03 and abs(x.std() - 1) < 0.03 and abs((x**4).mean() - 3) < 0.3


@pytest.mark.covers("B10")
def test_uniform_draws_anew(device: str) -> None:
    webtorch.manual_seed(1)
    first = webtorch.empty(20_000, device=device).uniform_(-1, 3)
    x = torch.tensor(first.tolist())
    assert x.min() >= -1 and x.max() < 3 and abs(x.mean() - 1) < 0.04
    assert webtorch.rand(4, device=device).tolist() != webtorch.rand(4, device=device).tolist()


@pytest.mark.covers("B11")
def test_categories_follow_their_weights(device: str) -> None:
    webtorch.manual_seed(2)
    weights = webtorch.tensor([1.0, 0.0, 3.0], device=device)
    drawn = webtorch.multinomial(weights, 8000, replacement=True)
    assert drawn.device.type == device
    counts = torch.tensor(drawn.tolist()).bincount(minlength=3)
    assert counts[1] == 0 and abs(counts[2].item() / 8000 - 0.75) < 0.03


@pytest.mark.covers("B13")
def test_clone_carries_gradients(device: str) -> None:
    same(lambda t, x: x.clone() * x, values(5), device=device)
    x = webtorch.zeros(2, device=device)
    y = x.clone()
    y += 1
    assert x.tolist() == [0, 0] and y.tolist() == [1, 1]


@pytest.mark.covers("B14")
def test_fill_and_zero(device: str) -> None:
    x = webtorch.ones(2, 3, device=device)
    x[:, 1].fill_(5)
    assert x.tolist() == [[1, 5, 1]] * 2
    assert x.zero_() is x and x.sum().item() == 0


@pytest.mark.covers("B15")
def test_a_seed_gives_the_same_numbers_on_every_device(device: str) -> None:
    webtorch.manual_seed(42)
    expected = webtorch.randn(6).tolist()
    webtorch.manual_seed(42)
    assert webtorch.randn(6, device=device).tolist() == pytest.approx(expected, abs=1e-6)
