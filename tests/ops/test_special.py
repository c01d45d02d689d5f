"""Bessel and Airy functions, against SciPy: PyTorch's own have 7 to 12 digits in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special
import torch

import webtorch
from tests.conftest import need_device

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "bessel_j0": scipy.special.j0,
    "bessel_j1": scipy.special.j1,
    "bessel_y0": scipy.special.y0,
    "bessel_y1": scipy.special.y1,
    "airy_ai": lambda x: scipy.special.airy(x)[0],
}
POINTS = np.concatenate([np.linspace(-30, 30, 241), [-7.99, 7.99, 8.01, 1e-9, -3.0, 2.0]])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float64(name: str) -> None:
    points = POINTS[POINTS > 0] if "_y" in name else POINTS
    found = getattr(webtorch.special, name)(webtorch.tensor(points)).numpy()
    np.testing.assert_allclose(found, FUNCTIONS[name](points), rtol=2e-13, atol=3e-15)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float32(name: str, device: str) -> None:
    need_device(device)
    points = POINTS[POINTS > 0] if "_y" in name else POINTS
    points = points.astype(np.float32)
    found = getattr(webtorch.special, name)(webtorch.tensor(points, device=device))
    # The angle of the wave has the rounding of the argument: relative to the wave's height.
    np.testing.assert_allclose(
        found.cpu().numpy(), FUNCTIONS[name](points.astype(np.float64)), rtol=2e-5, atol=8e-6
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_points_are_pytorchs(name: str) -> None:
    points = [0.0, -0.0, float("inf"), float("nan"), -1.0 if "_y" in name else 1.0]
    found = getattr(webtorch.special, name)(webtorch.tensor(points)).tolist()
    wanted = getattr(torch.special, name)(torch.tensor(points)).tolist()
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_the_slope_of_acosh_below_its_domain_is_that_of_pytorch(device: str) -> None:
    numbers = [-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.0001, 2.0]
    theirs = torch.tensor(numbers, dtype=torch.float64, requires_grad=True)
    torch.acosh(theirs).sum().backward()
    ours = webtorch.tensor(numbers, device=device, requires_grad=True)
    webtorch.acosh(ours).sum().backward()
    expected = theirs.grad.tolist()
    assert ours.grad.tolist() == pytest.approx(expected, rel=1e-3, nan_ok=True)


def test_erfinv_of_float64_has_all_digits_up_to_1() -> None:
    near = [1 - 10.0**-n for n in range(1, 16)] + [1 - 2.0**-53, 1.0]
    points = np.concatenate([np.linspace(-1, 1, 401), near, [5e-324, 1e-300, -1e-9]])
    found = webtorch.erfinv(webtorch.tensor(points)).numpy()
    np.testing.assert_allclose(found, scipy.special.erfinv(points), rtol=5e-15)


def test_the_second_derivative_of_i1e_at_0_is_that_of_pytorch() -> None:
    found = []
    for lib in (torch, webtorch):
        x = lib.tensor([0.0, 0.5, -1.0], dtype=lib.float64, requires_grad=True)
        (first,) = lib.autograd.grad(lib.special.i1e(x).sum(), x, create_graph=True)
        (second,) = lib.autograd.grad(first.sum(), x)
        found.append(second.tolist())
    assert found[1] == pytest.approx(found[0], rel=1e-9)


@pytest.mark.parametrize("name", ["floor_divide", "heaviside"])
def test_what_has_no_derivative_says_so_when_it_is_asked_for(name: str) -> None:
    for lib in (torch, webtorch):
        x = lib.tensor([5.0, 6.0], requires_grad=True)
        y = getattr(lib, name)(x, lib.tensor([2.0, 4.0]))
        assert y.requires_grad
        with pytest.raises(RuntimeError, match=f"derivative for aten::{name} is not implemented"):
            y.sum().backward()
        # What does not ask for it is not refused.
        z = (y.detach() * x).sum()
        z.backward()
        assert x.grad.tolist() == y.tolist()


def test_erfinv_of_float32_is_within_one_and_a_half_ulps():
    near = 1 - np.logspace(-7.2, -0.5, 20_000)
    x = np.concatenate([np.linspace(-1, 1, 100_001)[1:-1], near, np.logspace(-37, -1, 2_000)])
    x = np.unique(x.astype(np.float32))
    x = x[np.abs(x) < 1]
    found = webtorch.erfinv(webtorch.tensor(x, device="cpu")).numpy().astype(np.float64)
    expected = scipy.special.erfinv(x.astype(np.float64))
    ulps = np.abs(found - expected) / np.spacing(np.abs(expected).astype(np.float32))
    assert ulps.max() <= 1.5


@pytest.mark.parametrize("offset", [0.0, 1e4, -1e4])
def test_running_log_sums_of_large_numbers_lose_nothing(offset: float, device: str) -> None:
    """The value is rounded once, the gradient as if the numbers were small; PyTorch's loses four digits."""
    start = torch.linspace(-3.0, 3.0, 70).sin().mul(5).add(offset).reshape(2, 35)
    exact = start.double().requires_grad_()
    wanted = exact.logcumsumexp(1)
    weights = torch.linspace(-1.0, 2.0, 70, dtype=torch.float64).reshape(2, 35)
    (wanted * weights).sum().backward()
    x = webtorch.tensor(start.tolist(), device=device, requires_grad=True)
    found = x.logcumsumexp(1)
    (found * webtorch.tensor(weights.tolist(), device=device)).sum().backward()
    rounding = abs(offset) * 2.0**-24 + 2e-6
    torch.testing.assert_close(
        torch.tensor(found.tolist()).double(), wanted.detach(), rtol=0, atol=rounding
    )
    torch.testing.assert_close(
        torch.tensor(x.grad.tolist()).double(), exact.grad, rtol=0, atol=1e-5
    )


def test_running_log_sums_of_infinities() -> None:
    for values in ([-math.inf, -math.inf, 1.0, 2.0], [1.0, math.inf, -math.inf], [0.0, -20.0]):
        found = webtorch.tensor(values).logcumsumexp(0)
        wanted = torch.tensor(values).logcumsumexp(0)
        torch.testing.assert_close(torch.tensor(found.tolist()), wanted)
    # What is masked gets no gradient, where nothing comes before it either.
    x = webtorch.tensor([-math.inf, 1.0, -math.inf, 2.0], requires_grad=True)
    x.logcumsumexp(0)[1:].sum().backward()
    share = 1 / (1 + math.exp(1.0))
    np.testing.assert_allclose(x.grad.numpy(), [0.0, 2 + share, 0.0, 1 - share], rtol=1e-6)


def test_polynomials_are_pytorchs_to_the_last_bit(device: str) -> None:
    """Their recurrences round a product and a sum at once, which WGSL does not promise."""
    need_device(device)
    names = [name for name in dir(torch.special) if "_polynomial_" in name]
    points = np.random.default_rng(0).uniform(-3, 3, 300).astype(np.float32)
    x = webtorch.tensor(points, device=device)
    found = webtorch.stack([getattr(webtorch.special, name)(x, 4) for name in names])
    wanted = torch.stack([getattr(torch.special, name)(torch.tensor(points), 4) for name in names])
    np.testing.assert_array_equal(found.cpu().numpy(), wanted.numpy())
