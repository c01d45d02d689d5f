"""Capability rows C: one line for each, on every device, against PyTorch in float64 with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import webtorch
from tests.capabilities.same import close, ours, rows, same, values

# What is tested here is nearly the same on all devices.
pytestmark = pytest.mark.one_in(3, device="webgpu")

# Inputs in (-2, 2) and, as the second tensor, in (0.25, 2).
SIGNED = {
    "C1": lambda t, x, p: ((x + p) * (x - p) / p) + 3 - 2 * x,
    "C2": lambda t, x, p: -x,
    "C3": lambda t, x, p: t.abs(x),
    "C4": lambda t, x, p: x.exp(),
    "C5": lambda t, x, p: p.log(),
    "C6": lambda t, x, p: (t.exp2(x), t.expm1(x)),
    "C7": lambda t, x, p: (t.log2(p), t.log10(p), t.log1p(p)),
    "C8": lambda t, x, p: p.sqrt(),
    "C9": lambda t, x, p: p.rsqrt(),
    "C10": lambda t, x, p: x.square(),
    # A negative base with whole exponents, a tensor as the exponent, a tensor as exponent of a number.
    "C11": lambda t, x, p: (x**3, x.pow(-2), p**x, 2.0**x),
    "C12": lambda t, x, p: p.reciprocal(),
    "C13": lambda t, x, p: (t.sin(x), t.cos(x)),
    "C14": lambda t, x, p: t.tan(x / 2),
    "C15": lambda t, x, p: (t.asin(x / 3), t.acos(x / 3), t.atan(x)),
    "C16": lambda t, x, p: (t.sinh(x), t.cosh(x)),
    "C17": lambda t, x, p: (t.asinh(x), t.acosh(p + 1)),
    "C18": lambda t, x, p: t.atanh(x / 3),
    "C19": lambda t, x, p: t.atan2(x, -p),
    "C20": lambda t, x, p: x.tanh(),
    "C21": lambda t, x, p: t.sigmoid(x),
    "C22": lambda t, x, p: (x.ceil(), x.floor(), x.round(), x.trunc(), x.frac()),
    "C23": lambda t, x, p: x.sign(),
    "C24": lambda t, x, p: t.copysign(p, x),
    "C25": lambda t, x, p: (t.deg2rad(x), t.rad2deg(p) / 60),
    "C26": lambda t, x, p: t.sinc(x),
    "C27": lambda t, x, p: t.positive(x),
    "C28": lambda t, x, p: t.hypot(x, p),
    "C29": lambda t, x, p: t.ldexp(p, t.tensor(3, device=x.device)),
    "C30": lambda t, x, p: (t.logaddexp(x, p), t.logaddexp2(x, p)),
    "C31": lambda t, x, p: t.xlogy(x, p),
    "C32": lambda t, x, p: (t.maximum(x, p), t.minimum(x, p)),
    "C33": lambda t, x, p: (x.clamp(-0.5, 1), x.clamp(min=-p, max=p)),
    "C34": lambda t, x, p: t.erf(x),
    "C35": lambda t, x, p: x.relu(),
    "C36": lambda t, x, p: t.nn.functional.leaky_relu(x, 0.2),
    "C37": lambda t, x, p: t.nn.functional.gelu(x),
    "C38": lambda t, x, p: t.nn.functional.gelu(x, approximate="tanh"),
    "C39": lambda t, x, p: t.nn.functional.silu(x),
    "C40": lambda t, x, p: t.nn.functional.softplus(20 * x),
    "C44": lambda t, x, p: (t.where(x > 0, x, p), t.where(x > 0, 1.5, x)),
    "C45": lambda t, x, p: (x < p, x > 0.5),
    "C46": lambda t, x, p: (x == x, x != p, x <= 0.5, x >= p),
    "C47": lambda t, x, p: (
        t.logical_and(x > 0, p > 1),
        t.logical_or(x > 0, p > 1),
        t.logical_not(x.trunc()),
        t.logical_xor(x > 0, p > 1),
    ),
    "C49": lambda t, x, p: (t.fmod(x, p), t.remainder(x, p), x % -0.75),
    "C50": lambda t, x, p: (
        t.lerp(x, p, 0.3),
        t.addcmul(x, x, p, value=0.5),
        t.addcdiv(x, x, p, value=-2),
    ),
    "C52": lambda t, x, p: (
        t.lgamma(p + 1),
        t.digamma(p),
        t.i0(x),
        t.erfc(x),
        t.erfinv(x / 3),
        t.logit(p / 3),
    ),
    "C53": lambda t, x, p: x.masked_fill(x > 0.5, -9.0),
    "C54": lambda t, x, p: (
        t.arccos(x / 3),
        t.arctanh(x / 3),
        t.divide(x, p),
        t.multiply(x, p),
        t.subtract(x, p),
        t.negative(x),
        t.absolute(x),
        t.fix(x),
        t.clip(x, -1, 1),
        t.arctan2(x, p),
        t.true_divide(x, p),
    ),
}


@pytest.mark.parametrize("function", rows(SIGNED))
def test_formula(function: Callable[..., Any], device: str) -> None:
    same(function, values(4, 5, seed=1), values(5, seed=2, low=0.25), device=device)


@pytest.mark.covers("C6", "C7")
def test_small_arguments_keep_their_digits(device: str) -> None:
    tiny = values(8, low=-1e-5, high=1e-5)
    same(lambda t, x: (t.log1p(x), t.expm1(x)), tiny, device=device, rtol=1e-6, atol=1e-12)


@pytest.mark.covers("C28", "C30")
def test_nothing_overflows_on_the_way(device: str) -> None:
    large = torch.tensor([1e30, 2e38, 3e-30], dtype=torch.float64)
    same(lambda t, x: t.hypot(x, x / 2), large, device=device, rtol=1e-6, atol=0, gradients=False)
    high = torch.tensor([500.0, -500.0, 1000.0], dtype=torch.float64)
    same(lambda t, x: (t.logaddexp(x, x + 1), t.logaddexp2(x, x)), high, device=device)


@pytest.mark.covers("C41")
def test_snake_and_style_affine(device: str) -> None:
    def formula(t: Any, x: Any, a: Any, gamma: Any, beta: Any) -> tuple[Any, Any]:
        if t is webtorch:
            F = webtorch.nn.functional
            return F.snake(x, a), F.style_affine(x, gamma, beta)
        return x + (a * x).sin() ** 2 / a, (1 + gamma) * x + beta

    x, row = values(3, 4), [values(4, seed=s, low=0.25) for s in (1, 2, 3)]
    same(formula, x, *row, device=device)


@pytest.mark.covers("C42")
def test_swiglu_product(device: str) -> None:
    def formula(t: Any, gate: Any, value: Any) -> Any:
        F = t.nn.functional
        return F.swiglu(gate, value) if t is webtorch else F.silu(gate) * value

    same(formula, values(3, 4), values(3, 4, seed=1), device=device)


@pytest.mark.covers("C43")
def test_dropout_drops_scales_and_sends_gradients_where_values_went(device: str) -> None:
    webtorch.manual_seed(0)
    x = webtorch.ones(40, 50, device=device, requires_grad=True)
    y = webtorch.nn.functional.dropout(x, 0.25)
    y.sum().backward()
    kept = torch.tensor(y.tolist())
    assert abs((kept == 0).double().mean().item() - 0.25) < 0.04
    torch.testing.assert_close(kept[kept != 0], torch.full_like(kept[kept != 0], 1 / 0.75))
    close(x.grad, kept.double())
    assert webtorch.nn.functional.dropout(x, 0.25, training=False) is not None
    close(webtorch.nn.functional.dropout(x, 0.0), torch.ones(40, 50).double())


@pytest.mark.covers("C48")
def test_bitwise_and_shifts(device: str) -> None:
    a = torch.tensor([5, -7, 0, 2**30], dtype=torch.int32)
    b = torch.tensor([3, 2, 9, 1], dtype=torch.int32)
    same(lambda t, a, b: (a & b, a | b, a ^ b, ~a, a << b, a >> b), a, b, device=device)


@pytest.mark.covers("C51")
def test_nan_and_infinity(device: str) -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.5], dtype=torch.float32)
    same(lambda t, x: (t.isnan(x), t.isinf(x), t.isfinite(x)), x, device=device, gradients=False)
    same(lambda t, x: t.nan_to_num(x, 7.0, 8.0, -9.0), x, device=device, gradients=False)
    actual = webtorch.nan_to_num(ours(x, device))
    close(actual, torch.nan_to_num(x).double(), rtol=1e-6)
